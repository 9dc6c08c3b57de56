"""`adfs fit --resume`: the bits of a fit that never stopped, wherever it stopped, its end included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_breast_cancer, load_diabetes, load_iris

from adfs.cli import main
from adfs.data import LinearModel

# Two classes, three classes, and a regression; each kind of fit takes a few rounds or stages.
FITS = {
    "adfs": ["two.svm", "--method", "adfs", "--tol", "1e-8"],
    "adfs-block": ["two.svm", "--method", "adfs-block", "--tol", "1e-8"],
    "adfs, no intercept": ["two.svm", "--method", "adfs", "--no-intercept", "--tol", "1e-8"],
    "adfs, poisson clocks": ["two.svm", "--method", "adfs", "--schedule", "poisson", "--tol", "1e-8"],
    "adfs, adaptive": ["two.svm", "--method", "adfs", "--parameters", "adaptive", "--tol", "1e-8"],
    "newton": ["two.svm", "--method", "newton", "--tol", "1e-9"],
    "newton, no intercept": ["two.svm", "--method", "newton", "--no-intercept", "--tol", "1e-9"],
    "lbfgs": ["two.svm", "--method", "lbfgs", "--tol", "1e-9"],
    "qning": ["two.svm", "--method", "qning", "--tol", "1e-8"],
    "squares": ["houses.csv", "--label", "y", "--loss", "squared", "--method", "adfs", "--tol", "1e-8"],
    "squares, no intercept": [
        *("houses.csv", "--label", "y", "--loss", "squared", "--method", "adfs-block"),
        *("--no-intercept", "--tol", "1e-8"),
    ],
    "one class against the others": [
        *("three.svm", "--multi-class", "ovr", "--method", "adfs", "--tol", "1e-7"),
    ],
    "softmax": ["three.svm", "--method", "adfs", "--tol", "1e-6"],
    "elastic net": ["two.svm", "--penalty", "elasticnet", "--l1-ratio", "0.5", "--tol", "1e-7"],
    "ns-adfs": ["two.svm", "--loss", "hinge", "--method", "ns-adfs", "--tol", "1e-3"],
    "interior-point": ["two.svm", "--loss", "hinge", "--tol", "1e-7"],
    "cross-validation": [
        *("two.svm", "--cv", "2", "--C-grid", "0.1,1", "--method", "adfs", "--tol", "1e-6"),
    ],
    "cross-validation of squares": [
        *("houses.csv", "--label", "y", "--loss", "squared", "--no-intercept", "--cv", "2"),
        *("--alpha-grid", "0.1,1", "--method", "adfs", "--tol", "1e-6"),
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three data sets, as the working directory."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    dump_svmlight_file(X, y, str(tmp_path / "two.svm"), zero_based=False)
    X, y = load_iris(return_X_y=True)
    dump_svmlight_file(X, y, str(tmp_path / "three.svm"), zero_based=False)
    X, y = load_diabetes(return_X_y=True)
    header = ",".join([*(f"f{k}" for k in range(X.shape[1])), "y"])
    np.savetxt(
        tmp_path / "houses.csv", np.column_stack([20.0 * X, y]), delimiter=",", header=header, comments=""
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*options: str) -> int:
    return main(["fit", *options, "--nodes", "3", "--network", "path", "--seed", "3", "--out", "model.json"])


def fitted() -> tuple[bytes, bytes, dict[str, object]]:
    """Return what must not depend on whether a fit was resumed: everything but the seconds it took."""
    model = LinearModel.load(Path("model.json"))
    training = {name: value for name, value in model.training.items() if name != "seconds"}
    return model.coef.tobytes(), model.intercept.tobytes(), training


@pytest.mark.parametrize("kind", FITS)
def test_fit_resumed_between_and_after_its_end_has_the_same_bits(kind: str, folder: Path) -> None:
    assert fit(*FITS[kind]) == 0
    expected = fitted()
    resumable = [*FITS[kind], "--checkpoint", "kept", "--resume"]
    for passes in ("3.3", "11"):
        fit(*resumable, "--max-passes", passes)
    for _ in range(3):  # the second and the third find a fit that has ended
        assert fit(*resumable) == 0
        assert fitted() == expected


# Passes after which a budget happens to end a round where the round itself would not have been checked yet.
CUTS = {
    "a round converged": (["--penalty", "elasticnet", "--l1-ratio", "0.3", "--standardize"], "1e-7", "80.75"),
    "a round can go no further": (["--method", "lbfgs"], "1e-30", "63.54"),
    "the fit converged": (["--method", "dsba", "-C", "0.01", "--no-intercept"], "1e-4", "35.02"),
}


@pytest.mark.parametrize("kind", CUTS)
def test_fit_whose_budget_ends_it_where_it_would_not_have_been_checked_goes_on(
    kind: str, folder: Path
) -> None:
    options, tol, passes = CUTS[kind]
    options = ["two.svm", *options, "--tol", tol, "--max-passes"]
    code = fit(*options, "400")
    expected = fitted()
    resumable = ["--checkpoint", "kept", "--resume"]
    first = fit(*options, passes, *resumable)
    cut = fitted()
    assert fit(*options, passes, *resumable) == first  # with the same budget it has ended
    assert fitted() == cut
    for _ in range(2):
        assert fit(*options, "400", *resumable) == code
        assert fitted() == expected


def test_fit_with_leftover_parts_of_an_earlier_fit_resumes(folder: Path) -> None:
    """Another fit has left checkpoints of later rounds where this one will have its own."""
    kept = ["--checkpoint", "kept", "--method", "adfs", "--tol", "1e-8"]
    assert fit("two.svm", *kept, "-C", "5") == 0
    assert Path("kept.1").exists()
    assert fit("two.svm", "--method", "adfs", "--tol", "1e-8") == 0
    expected = fitted()
    assert fit("two.svm", *kept, "--max-passes", "5") == 1
    assert fit("two.svm", *kept, "--resume") == 0
    assert fitted() == expected


def test_fit_refuses_a_checkpoint_of_other_data_or_another_version(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ["--checkpoint", "kept"]
    assert fit("two.svm", *kept) == 0
    assert fit("two.svm", "-C", "3", *kept, "--resume") == 2
    assert "checkpoint of another run" in capsys.readouterr().err
    monkeypatch.setattr("adfs.runtimes.checkpoints.__version__", "9.9")
    assert fit("two.svm", *kept, "--resume") == 2
    assert "and this is adfs 9.9; resume with that version, or start anew" in capsys.readouterr().err


def kill_and_resume(kind: str, kills: int, seed: int) -> None:
    """Kill fits at random moments, of the end too, and resume each until it is done."""
    rng = np.random.default_rng(seed)
    assert fit(*FITS[kind]) == 0
    expected = fitted()
    command = [sys.executable, "-m", "adfs", "fit", *FITS[kind], "--checkpoint", "kept", "--resume"]
    command += ["--checkpoint-every", "0.001", "--nodes", "3", "--network", "path", "--seed", "3"]
    command += ["--out", "model.json"]
    for _ in range(kills):
        for path in Path.cwd().glob("kept*"):
            path.unlink()
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
        try:
            while not Path("kept").exists() and not list(Path.cwd().glob("kept.*")) and child.poll() is None:
                time.sleep(0.002)
            time.sleep(float(rng.exponential(0.15)))
            child.send_signal(signal.SIGKILL)
        finally:
            child.wait(timeout=60)
        Path("model.json").unlink()
        assert fit(*FITS[kind], "--checkpoint", "kept", "--resume") == 0
        assert fitted() == expected


def test_fit_killed_at_random_resumes_with_the_same_bits(folder: Path) -> None:
    kill_and_resume("adfs", 2, seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("kind", FITS)
def test_fit_killed_at_random_often_resumes_with_the_same_bits(kind: str, folder: Path) -> None:
    kill_and_resume(kind, 5, seed=1)
