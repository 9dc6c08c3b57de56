"""`adfs fit` in one process: every method, how a fit ends and what it says, losses from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import ExitCode, InputError
from adfs.files import load_modules
from adfs.planning import Facts
from adfs.problem import get_loss
from adfs.runtimes import Outcome

ROOT = Path(__file__).parents[2]
OUTSIDE = ROOT / "tests" / "experiments" / "outside_loss.py"


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    return X, np.where(X[:, 0] + rng.standard_normal(40) > 0.0, 1.0, -1.0)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    X, y = data()
    np.savez("d.npz", X=X, y=y)
    return "d.npz"


@pytest.mark.parametrize("name", METHODS)
def test_methods_agree_through_command_estimator_and_simulate(name: str, file: str) -> None:
    """Command, estimator and `simulate` solve the same problem; over MPI see `test_mpi_same_bits`."""
    loss = "logistic" if METHODS[name].needs_smooth else "hinge"
    X, y = data()
    settings: dict[str, Any] = {"n_nodes": 2, "network": "path", "partition": "contiguous"}
    model = adfs.ADFSClassifier(
        loss=loss, method=name, tol=1e-2, max_iter=3000, fit_intercept=False, **settings
    ).fit(X, y)
    problem = adfs.Problem(X, y, n_nodes=2, partition="contiguous", loss=loss, sigma=0.5)
    run = adfs.simulate(name, problem, adfs.Network("path:2"), tol=1e-2, max_passes=3000.0)
    options = ["--nodes", "2", "--network", "path", "--method", name, "--loss", loss, "--tol", "1e-2"]
    assert main(["fit", file, *options, "--no-intercept", "--max-passes", "3000", "--out", "m.json"]) == 0
    written = LinearModel.load(Path("m.json"))
    assert run.outcome is Outcome.CONVERGED
    assert written.training["gap"] <= 1e-2
    assert model.dual_gap_ <= 1e-2
    best = problem.optimum()
    # (F(0) − F*)·gap bounds the error; strong convexity turns it into a distance.
    distance = np.sqrt(2.0 * 2e-2 * problem.value_at_zero / problem.total_sigma)
    for coef in (run.coef, model.coef_.ravel(), written.coef.ravel()):
        assert np.linalg.norm(coef - best.theta) <= distance
    assert written.coef.tobytes() == run.coef.tobytes()  # both with seed 0


def test_fit_command_takes_the_number_of_nodes_from_a_graph(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", file, "--network", "grid:2x2", "--tol", "1e-2", "--out", "m.json"]) == 0
    assert LinearModel.load(Path("m.json")).training["n_nodes"] == 4
    X, y = data()
    assert adfs.ADFSClassifier(network="grid:3x3", tol=1e-2).fit(X, y).node_coef_.shape == (9, 3)
    capsys.readouterr()
    Path("sites.txt").write_text("0 1\n1 2\n")
    assert main(["fit", file, "--network", "sites.txt", "--tol", "1e-2", "--out", "m.json"]) == 0
    assert LinearModel.load(Path("m.json")).training["n_nodes"] == 3
    assert main(["fit", file, "--network", "sights.txt"]) == 2
    assert "graph sights.txt: cannot be read" in capsys.readouterr().err
    assert main(["fit", file, "--network", "grid:2x2", "--nodes", "3"]) == 2
    assert "has 4 nodes but n_nodes is 3; leave one of them out" in capsys.readouterr().err
    with pytest.raises(adfs.InputError, match="has 9 nodes but n_nodes is 2"):
        adfs.ADFSClassifier(network="grid:3x3", n_nodes=2).fit(X, y)


def test_fit_command_never_overwrites_the_data(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(file).read_bytes()
    for option in ("--out", "--history", "--checkpoint"):
        assert main(["fit", file, option, file]) == 2
        assert f"{option} and FILE are the same file" in capsys.readouterr().err
    assert Path(file).read_bytes() == before
    assert [path.name for path in Path().iterdir()] == [file]


@pytest.mark.parametrize("option", ["--deadline", "--checkpoint-every", "--tol", "--max-seconds"])
def test_fit_command_refuses_seconds_and_tolerances_below_zero(
    option: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", file, option, "-1"]) == 2
    assert capsys.readouterr().err == f"adfs: {option} must be above 0, got -1\n"


def test_fit_command_says_that_all_went_well(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", file, "--out", "m.json", "--no-progress"]) == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("adfs: converged to a certified relative gap of ")
    assert " s by newton (" in line  # and why
    assert line.endswith("); the model is in m.json")
    assert shown.out == ""


def test_fit_command_does_not_advise_more_passes_after_divergence(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adfs.runtimes.loop._DIVERGED_GROWTH", 0.0)  # everything is too far away
    assert main(["fit", file, "--out", "m.json"]) == ExitCode.NOT_CONVERGED
    told = capsys.readouterr().err
    assert "diverged after" in told
    assert "scale the features" in told
    assert "--max-passes" not in told


def test_progress_without_a_terminal_prints_a_line_every_few_seconds(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adfs.runtimes.timing._SECONDS_BETWEEN_LINES", 0.0)
    assert main(["fit", file, "--out", "m.json", "--tol", "1e-8", "--progress"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("adfs: newton: gap")]
    assert len(lines) > 3
    assert lines[0].endswith(" s")  # at the start nobody knows
    assert lines[-1].endswith(", 100 % of the way")


def test_fit_command_leaves_a_model_and_a_checkpoint_at_sigterm(file: str) -> None:
    """The checkpoints that time would bring are far off: there is one because the run was told to end."""
    endless = ["--tol", "1e-300", "--max-passes", "1e12", "--method", "adfs", "--out", "m.json"]
    kept = ["--checkpoint", "kept", "--checkpoint-every", "1000", "--history", "h.csv", "--progress"]
    with subprocess.Popen(
        [sys.executable, "-m", "adfs", "fit", file, *endless, *kept],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        assert "gap" in run.stderr.readline()  # it runs
        time.sleep(0.3)
        assert main(["fit", file, *endless[:-2], *kept[:2]]) == 2  # a live run's place
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == ExitCode.TERMINATED
    assert Path("kept").stat().st_size > 0
    assert not Path(".kept.lock").exists()
    assert LinearModel.load(Path("m.json")).training["outcome"] == "stopped"
    Path("m.json").unlink()
    resumed = [file, *endless, "--max-passes", "1", "--checkpoint", "kept"]
    assert main(["fit", *resumed, "--resume"]) == ExitCode.NOT_CONVERGED
    assert LinearModel.load(Path("m.json")).training["passes"] > 1.0


def test_fit_command_takes_losses_from_outside(file: str) -> None:
    X, y = data()
    np.savez("r.npz", X=X, y=X @ [1.0, -1.0, 0.5] + y)
    fit = ["fit", "r.npz", "--loss", "expectile", "--import", str(OUTSIDE), "--out", "m.json"]
    assert main(fit) == 0
    load_modules([str(OUTSIDE)])  # where it was not yet
    target = np.load("r.npz")["y"]
    by_name = adfs.ADFSRegressor(loss="expectile").fit(X, target)
    as_object = adfs.ADFSRegressor(loss=get_loss("expectile", level=0.3)).fit(X, target)
    written = json.loads(Path("m.json").read_text())
    assert written["loss"] == "expectile"
    np.testing.assert_allclose(written["coef"][0], by_name.coef_, atol=1e-2)
    assert as_object.intercept_ < by_name.intercept_  # a lower expectile
    assert main(["predict", "m.json", "r.npz", "--out", "p.txt"]) == 0  # which needs nothing of the loss
    np.testing.assert_allclose(np.loadtxt("p.txt"), by_name.predict(X), atol=1e-2)


def test_register_loss_is_all_a_loss_from_outside_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its class says everything that estimators, inference, the planner and the help text ask for."""
    load_modules([str(OUTSIDE)])
    X, y = data()
    target = X @ [1.0, -1.0, 0.5] + y
    fitted = adfs.ADFSRegressor(loss="expectile", inference=True).fit(X, target)
    assert np.all(fitted.standard_errors_ > 0.0)
    np.testing.assert_allclose(fitted.standard_errors_, fitted.robust_standard_errors_)
    assert fitted.score(X, target) > 0.5
    with pytest.raises(InputError, match="the loss 'expectile' wants targets above -1000, and row 3 has"):
        adfs.ADFSRegressor(loss="expectile").fit(X, np.where(np.arange(len(X)) == 3, -2000.0, target))
    facts = Facts.of(adfs.Problem(X, target, "expectile", n_nodes=4))
    assert facts.smooth
    assert facts.curvature_type == "jumps"
    for command in ("fit", "plan", "simulate"):
        assert main([command, "--help"]) == 0
        assert "expectile (an expectile of numbers (level))" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("last_only", [False, True])
def test_checkpoint_that_cannot_be_written_does_not_cost_the_result(
    last_only: bool, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that cannot be written is told at the start; a disk that fills up does not cost the result."""
    if not last_only:
        Path("a file").touch()
        assert main(["fit", file, "--checkpoint", "a file/kept", "--out", "m.json"]) == 2
        assert "cannot write" in capsys.readouterr().err
        assert not Path("m.json").exists()
        return

    def full(*_: object) -> None:
        raise adfs.errors.FileError("cannot write kept: No space left on device")

    monkeypatch.setattr("adfs.runtimes.checkpoints._save", full)
    with pytest.warns(RuntimeWarning, match="the last checkpoint could not be written: .* No space left"):
        assert main(["fit", file, "--checkpoint", "kept", "--out", "m.json"]) == 0
    assert LinearModel.load(Path("m.json")).training["outcome"] == "converged"
