"""An estimator on real ranks, each with its own rows, has the bits of one process that holds all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpi_launch import launch

pytestmark = pytest.mark.mpi

WORKER = Path(__file__).parents[1] / "mpi_estimators.py"


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_estimators_on_ranks_have_the_bits_of_one_process(ranks: int) -> None:
    found = launch(ranks, [sys.executable, str(WORKER)], timeout=150.0).results
    assert len(found) == 15
    assert all(found.values()), found
