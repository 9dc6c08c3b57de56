"""What fits and runs report to Python's logging, and that they are silent unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

import adfs
from memory_cluster import Threads, on_threads

X = np.random.default_rng(0).standard_normal((60, 3))
Y = X @ [1.0, -2.0, 0.5]


def test_logging_of_a_run_has_its_start_checks_and_end(caplog: pytest.LogCaptureFixture) -> None:
    problem = adfs.Problem(X, Y, loss="squared", n_nodes=3)
    with caplog.at_level(logging.DEBUG, logger="adfs"):
        run = adfs.simulate("adfs", problem, "path:3", tol=1e-8)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert {record.name for record in caplog.records} == {"adfs"}
    assert lines[0] == ("INFO", "run: adfs, loss squared, 3 features, 3 nodes")
    checks = [message for level, message in lines if level == "DEBUG"]
    assert len(checks) == len(run.columns["gap"]) == len(lines) - 2
    assert checks[-1].startswith(f"check after {run.columns['passes'][-1]:.4g} passes: gap ")
    assert lines[-1][0] == "INFO"
    assert lines[-1][1].startswith(f"run ended: converged, gap {run.gap:.1e}")


def test_logging_of_a_fit_has_the_method_and_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="adfs"):
        model = adfs.ADFSRegressor(random_state=0).fit(X, Y)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "fit: loss squared, 60 samples, 3 features, 1 nodes"
    assert lines[1] == f"method {model.method_}: {model.method_reason_}"
    assert lines[-1] == f"fit ended: converged, gap {model.dual_gap_:.1e}, 1 run(s)"
    assert all(record.funcName != "log" for record in caplog.records)


def test_logging_on_several_processes_is_that_of_process_0(caplog: pytest.LogCaptureFixture) -> None:
    parts = np.array_split(np.arange(60), 2)

    def fit(ranks: Threads) -> None:
        own = parts[ranks.rank]
        adfs.ADFSRegressor(cluster=ranks, random_state=0).fit(X[own], Y[own])

    with caplog.at_level(logging.INFO, logger="adfs"):
        on_threads(2, fit)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines if line.startswith("fit")] == ["fit", "fit ended"]


def test_logging_is_silent_by_default() -> None:
    program = "import numpy as np, adfs; adfs.ADFSRegressor().fit(np.eye(4), np.arange(4.0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
