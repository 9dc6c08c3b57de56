"""`adfs plan` under mpiexec: what a message takes is measured between the ranks."""

from __future__ import annotations

import json
import sys

import pytest

from mpi_launch import launch

pytestmark = pytest.mark.mpi


def test_plan_command_on_ranks_measures_tau_and_plans_once() -> None:
    sizes = ["--samples", "9000", "--features", "20", "--kappa-s", "3000", "--kappa-b", "300"]
    asked = [*sizes, "--nodes", "2", "--network", "path", "--method", "adfs", "--measure", "--json"]
    found = launch(2, [sys.executable, "-m", "mpi4py", "-m", "adfs", "plan", *asked], timeout=120.0)
    assert found.code == 0, found.err
    plan = json.loads(found.out)  # once: the other rank prints nothing
    assert plan["tau"] > 0.0
    assert 1e-9 < plan["seconds_per_sample"] < 1e-2
    assert plan["best"]["method"] == "adfs"
