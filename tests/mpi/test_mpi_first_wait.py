"""A deadline holds from the first call on and blames nobody who came; reading may take longer."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mpi_cases import Case, stamp
from mpi_launch import Launched, launch
from mpi_starts import DEADLINE

pytestmark = pytest.mark.mpi

STARTS = Path(__file__).parents[1] / "mpi_starts.py"
ENDS = STARTS.with_name("mpi_ends.py")


def start(kind: str) -> Launched:
    return launch(3, [sys.executable, str(STARTS), kind], timeout=150.0)


@pytest.mark.parametrize("kind", ["late", "gone", "paused", "leaves", "paused while reading"])
def test_deadline_ends_the_wait_for_a_missing_rank_and_names_it(kind: str) -> None:
    result = start(kind)
    assert result.code != 0
    assert result.seconds < DEADLINE + 30.0  # of which the launcher and the imports take some
    where = "to read the data" if "read" in kind or kind == "leaves" else "at the start"
    told = f"rank 0 waited {DEADLINE:g} s for rank 2 {where} and gave up"
    assert any(told in line for line in result.sentences), result.err[-3000:]
    # Nobody who came is given up.
    assert not re.search(r"waited \d+ s for rank [01]\b", result.err), result.err[-3000:]
    assert "Traceback" not in result.err


@pytest.mark.soak
def test_deadline_does_not_hold_for_a_rank_that_reads() -> None:
    result = start("reads long")
    assert result.code == 0, result.err[-3000:]
    assert result.results["stamp"] == stamp(Case().simulate())


@pytest.mark.parametrize(
    ("kind", "guilty"),
    [
        ("leaves", 1),
        pytest.param("stopped", 1, marks=pytest.mark.soak),
        pytest.param("late", 1, marks=pytest.mark.soak),
        pytest.param("stopped", 0, marks=pytest.mark.soak),
    ],
)
def test_deadline_ends_the_wait_for_a_rank_that_does_not_start_mpi(kind: str, guilty: int) -> None:
    """The others wait in MPI_Init, where no line of Python runs."""
    words = [kind, str(guilty), "before imports", "s-{rank}.npz", "--deadline", f"{DEADLINE:g}"]
    result = launch(2, [sys.executable, str(ENDS), *words], timeout=60.0)
    assert result.code != 0
    assert result.seconds < DEADLINE + 30.0
    (sentence,) = result.sentences
    assert re.search(rf"rank {1 - guilty} waited \d+ s for all ranks to start MPI and gave up", sentence)
