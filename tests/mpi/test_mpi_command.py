"""`adfs fit` under mpiexec: kinds of data and model beyond the plain case, and going on from a checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from adfs.cli.app import main
from adfs.data.model import LinearModel
from adfs.errors import ExitCode
from mpi_launch import Launched, environment, launch

pytestmark = pytest.mark.mpi


def fit_over_ranks(ranks: int, *arguments: str) -> Launched:
    """Run the command as `mpiexec -n ranks python -m mpi4py -m adfs fit …`."""
    command = [sys.executable, "-m", "mpi4py", "-m", "adfs", "fit", *arguments]
    return launch(ranks, command, timeout=120.0)


@pytest.mark.soak
def test_fit_over_ranks_resumes_a_regression_from_csv_with_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4)) + 3.0
    y = X @ [1.0, -2.0, 0.5, 0.0] + 7.0 + 0.1 * rng.standard_normal(90)
    table = pd.DataFrame(X, columns=list("abcd")).assign(target=y)
    for rank, part in enumerate((table[:50], table[50:])):
        part.to_csv(tmp_path / f"part-{rank}.csv", index=False)
    data = [str(tmp_path / "part-{rank}.csv"), "--label", "target", "--loss", "squared", "--alpha", "0.5"]
    accurate = [*data, "--tol", "1e-16", "--method", "adfs"]
    whole = fit_over_ranks(2, *accurate, "--out", str(tmp_path / "whole.json"))
    assert whole.code == 0, whole.err

    kept = ["--checkpoint", str(tmp_path / "kept")]
    begun = fit_over_ranks(2, *accurate, *kept, "--max-passes", "5", "--out", str(tmp_path / "begun.json"))
    assert begun.code == ExitCode.NOT_CONVERGED, begun.err  # a model all the same
    shown = ["--timeline", str(tmp_path / "waits.svg"), "--progress"]
    resumed = fit_over_ranks(2, *accurate, *kept, "--resume", "--out", str(tmp_path / "resumed.json"), *shown)
    assert resumed.code == 0, resumed.err
    assert "rank 1" in (tmp_path / "waits.svg").read_text(encoding="utf-8")  # it may not have waited
    assert "seconds, messages and bytes of each rank" in resumed.err
    assert resumed.err.count("rank 0: nodes 0") == 1  # the placement

    first, last, short = (
        LinearModel.load(tmp_path / f"{name}.json") for name in ("whole", "resumed", "begun")
    )
    assert first.coef.tobytes() == last.coef.tobytes()
    assert first.intercept.tobytes() == last.intercept.tobytes()
    assert not np.allclose(short.coef, last.coef, rtol=1e-9)
    ridge = Ridge(alpha=0.5).fit(X, y)
    np.testing.assert_allclose(last.coef.ravel(), ridge.coef_, rtol=1e-6)
    np.testing.assert_allclose(last.intercept, ridge.intercept_, rtol=1e-6)


@pytest.mark.soak
def test_fit_over_ranks_of_three_classes_has_the_bits_of_one_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((3, 5))
    names = []
    for node in range(4):
        labels = rng.integers(0, 3, 25)
        names.append(str(tmp_path / f"part-{node}.npz"))
        np.savez(names[-1], X=centers[labels] + 0.7 * rng.standard_normal((25, 5)), y=labels)
    common = ["--network", "cycle", "--tol", "1e-9", "--seed", "3", "--parameters", "tuned", "--tau", "50"]
    alone = [*names, *common, "--out", str(tmp_path / "one.json"), "--no-progress"]
    command = [sys.executable, "-m", "adfs", "fit", *alone]
    found = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    pattern = [str(tmp_path / "part-{node}.npz"), "--nodes", "4", "--max-seconds", "100"]
    result = fit_over_ranks(2, *pattern, *common, "--out", str(tmp_path / "two.json"))
    assert result.code == 0, result.err
    one, two = (LinearModel.load(tmp_path / f"{name}.json") for name in ("one", "two"))
    assert one.classes == two.classes == [0, 1, 2]
    assert one.coef.tobytes() == two.coef.tobytes()
    assert [len(rank["nodes"]) for rank in two.training["ranks"]] == [2, 2]


def test_fit_over_ranks_refuses_an_unknown_penalty_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "a-0.npz", X=np.eye(2), y=[0, 1])
    np.savez(tmp_path / "a-1.npz", X=np.eye(2), y=[0, 1])
    result = fit_over_ranks(2, str(tmp_path / "a-{rank}.npz"), "--penalty", "l1")
    assert result.code == 2
    (sentence,) = result.sentences
    assert "--penalty l1 is not available" in sentence


@pytest.fixture
def two_files(tmp_path: Path) -> str:
    """Two ranks' data, of two labels each; the name that stands for both."""
    rng = np.random.default_rng(2)
    for rank in (0, 1):
        X = rng.standard_normal((40, 3))
        np.savez(tmp_path / f"s-{rank}.npz", X=X, y=np.where(X[:, 0] + rng.standard_normal(40) > 0, 1, 0))
    return str(tmp_path / "s-{rank}.npz")


# Like `adfs fit`, but all ranks are interrupted once there is a checkpoint, rank 1 when rank 0 has honoured
# it (what a launcher sends to all does not come everywhere at once); or files may not be large.
INTERRUPTED_FIT = """
import os, pathlib, signal, sys, threading, time
from adfs.cli.app import main
folder = pathlib.Path(sys.argv[1])
def interrupt():
    while not (folder / "manifest").exists():
        time.sleep(0.05)
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        while not (folder / "ended.json").exists():
            time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
sys.exit(main(["fit", *sys.argv[2:]]))
"""
LIMITED_FIT = """
import resource, sys
from adfs.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
sys.exit(main(["fit", *sys.argv[1:]]))
"""


def test_fit_over_ranks_that_was_interrupted_says_so_and_is_not_finished(
    two_files: str, tmp_path: Path
) -> None:
    folder, out = tmp_path / "kept", str(tmp_path / "m.json")
    one_run = ["--method", "adfs", "--no-intercept"]
    endless = [two_files, "--tol", "1e-300", "--max-passes", "1e12", *one_run, "--out", out]
    kept = ["--checkpoint", str(folder), "--checkpoint-every", "0.1"]
    command = [sys.executable, "-c", INTERRUPTED_FIT, str(folder), *endless, *kept]
    result = launch(2, command, timeout=150.0)
    assert result.code == ExitCode.INTERRUPTED, result.err
    assert any("the model so far, at a gap of" in line for line in result.sentences), result.err
    assert "MPI_ABORT" not in result.err
    assert LinearModel.load(Path(out)).training["outcome"] == "stopped"
    assert json.loads((folder / "ended.json").read_text())["outcome"] == "stopped"
    assert not (folder / "finished.json").exists()

    # A resume that is refused removes nothing; one that converges leaves `finished.json` alone.
    names = {path.name for path in folder.iterdir()}
    again = [two_files, *one_run, "--out", out, "--checkpoint", str(folder), "--resume"]
    assert fit_over_ranks(2, *again, "--seed", "5").code == 2
    assert {path.name for path in folder.iterdir()} == names
    done = fit_over_ranks(2, *again)
    assert done.code == 0, done.err
    assert (folder / "finished.json").exists()
    assert not (folder / "ended.json").exists()


# All ranks are sent a SIGTERM once there is a file; each writes its exit code.
TERMINATED_FIT = """
import os, pathlib, signal, sys, threading, time
from adfs.cli.app import main
folder = pathlib.Path(sys.argv[1])
def end():
    while not (folder / "go").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
code = main(["fit", *sys.argv[2:]])
(folder / ("code-" + os.environ["OMPI_COMM_WORLD_RANK"])).write_text(str(code))
time.sleep(1.0)  # the launcher ends all as soon as one has ended
sys.exit(code)
"""


def test_fit_over_ranks_ends_at_sigterm_and_keeps_its_folder_while_alive(
    two_files: str, tmp_path: Path
) -> None:
    folder, out = tmp_path / "kept", tmp_path / "m.json"
    endless = [two_files, "--tol", "1e-300", "--max-passes", "1e12", "--method", "adfs", "--no-intercept"]
    kept = ["--checkpoint", str(folder), "--checkpoint-every", "0.1"]
    command = [sys.executable, "-c", TERMINATED_FIT, str(tmp_path), *endless, *kept, "--out", str(out)]
    found: list[Launched] = []
    live = threading.Thread(target=lambda: found.append(launch(2, command, timeout=120.0)))
    live.start()
    while not (folder / "manifest").exists() and live.is_alive():
        time.sleep(0.05)
    second = fit_over_ranks(2, *endless, *kept, "--resume")
    (tmp_path / "go").touch()
    live.join()
    assert second.code == 2, second.err
    (sentence,) = second.sentences
    assert sentence.startswith(f"adfs: rank 0: another run keeps its checkpoints in {folder}")
    (first,) = found
    assert first.code == ExitCode.TERMINATED, first.err
    assert [(tmp_path / f"code-{rank}").read_text() for rank in (0, 1)] == [str(int(ExitCode.TERMINATED))] * 2
    assert "MPI_ABORT" not in first.err
    assert LinearModel.load(out).training["outcome"] == "stopped"
    assert json.loads((folder / "ended.json").read_text())["outcome"] == "stopped"
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("stopped", "at the end of MPI"),
        pytest.param("stopped", "when ranks part", marks=pytest.mark.soak),
        pytest.param("leaves", "when ranks part", marks=pytest.mark.soak),
        pytest.param("killed", "at the end of MPI", marks=pytest.mark.soak),
        pytest.param("stopped", "after the fit", marks=pytest.mark.soak),
        pytest.param("killed", "after the last event", marks=pytest.mark.soak),
        pytest.param("stopped", "after the last event", marks=pytest.mark.soak),
    ],
)
def test_fit_over_ranks_ends_in_time_and_marks_no_end_without_a_model(
    kind: str, where: str, two_files: str, tmp_path: Path
) -> None:
    script = Path(__file__).parents[1] / "mpi_ends.py"
    folder, out = tmp_path / "kept", tmp_path / "m.json"
    words = [kind, "1", where, two_files, "--deadline", "4", "--checkpoint", str(folder), "--out", str(out)]
    result = launch(2, [sys.executable, str(script), *words], timeout=90.0)
    assert result.code != 0
    if kind == "stopped":
        assert any("rank 0 waited 4 s for" in line for line in result.sentences), result.err
    assert (folder / "finished.json").exists() <= out.exists()
    if where != "after the last event" and kind == "stopped":  # rank 0 has what it needs
        assert LinearModel.load(out).training["outcome"] == "converged"
        assert (folder / "finished.json").exists()
    if where == "after the last event":  # nothing that was left behind is in the way of going on
        again = fit_over_ranks(2, two_files, "--checkpoint", str(folder), "--resume", "--out", str(out))
        assert again.code == 0, again.err
        assert (folder / "finished.json").exists()


def test_fit_over_ranks_refuses_bad_requests_in_one_sentence_with_code_2(
    two_files: str, tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cases = {
        "-C must be finite and above 0, got -1": ["-C", "-1"],
        "--deadline must be above 0, got -1": ["--deadline", "-1"],
        "--out and FILE are the same file": ["--out", two_files.replace("{rank}", "1")],
        "but n_nodes is 2; leave one of them out": ["--network", "grid:2x2"],
        "method 'apcg' runs on one machine": ["--method", "apcg"],
    }
    for words, options in cases.items():
        result = fit_over_ranks(2, two_files, *options)
        assert result.code == 2, (words, result.err)
        (sentence,) = result.sentences
        assert words in sentence
        assert "MPI_ABORT" not in result.err
        assert "Traceback" not in result.err
    limited = launch(2, [sys.executable, "-c", LIMITED_FIT, two_files], timeout=60.0)
    assert limited.code == 2
    (sentence,) = limited.sentences
    assert "files may not be larger than 97 kB here (ulimit -f)" in sentence
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_fit_over_ranks_tells_files_with_other_labels(two_files: str, tmp_path: Path) -> None:
    other = np.load(tmp_path / "s-1.npz")
    np.savez(tmp_path / "s-1.npz", X=other["X"], y=2 * other["y"] + 2)
    search = ["--tol", "1e-2", "--cv", "3", "--C-grid", "0.01,1"]
    result = fit_over_ranks(2, two_files, *search, "--out", str(tmp_path / "m.json"))
    assert result.code == 0, result.err
    told = "the files hold different labels, 4 classes together: s-0.npz has 0, 1; s-1.npz has 2, 4"
    assert sum(told in line for line in result.sentences) == 1
    # Cross-validation among it: the classes of a fold are on either rank, its scores are sums over both.
    names = [two_files.replace("{rank}", str(rank)) for rank in (0, 1)]
    assert main(["fit", *names, *search, "--out", str(tmp_path / "one.json")]) == 0
    two, one = (LinearModel.load(tmp_path / name) for name in ("m.json", "one.json"))
    assert one.coef.tobytes() == two.coef.tobytes()
    assert one.intercept.tobytes() == two.intercept.tobytes()
    assert [one.training[name] for name in ("C", "cv")] == [two.training[name] for name in ("C", "cv")]


def test_fit_over_ranks_that_is_finished_changes_nothing_when_resumed(two_files: str, tmp_path: Path) -> None:
    """A job that is queued again after its end: the rounds of an intercept are all there."""
    folder, out = tmp_path / "kept", tmp_path / "m.json"
    options = [two_files, "--method", "adfs", "--tol", "1e-8", "--out", str(out)]
    options += ["--checkpoint", str(folder), "--resume"]
    first = fit_over_ranks(2, *options)
    assert first.code == 0, first.err
    assert folder.with_name("kept.1").exists()  # there was more than one round
    model, finished = LinearModel.load(out), (folder / "finished.json").read_bytes()
    again = fit_over_ranks(2, *options)
    assert again.code == 0, again.err
    other = LinearModel.load(out)
    assert (folder / "finished.json").read_bytes() == finished
    assert (other.coef.tobytes(), other.intercept.tobytes()) == (
        model.coef.tobytes(),
        model.intercept.tobytes(),
    )
    assert [other.training[name] for name in ("gap", "passes")] == [
        model.training[name] for name in ("gap", "passes")
    ]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["adfs", "newton", "hinge"])
def test_fit_over_ranks_killed_at_random_resumes_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Both ranks are killed at a random moment, at the end too, and the fit is resumed until it is done."""
    rng = np.random.default_rng(3)
    for rank in (0, 1):
        X = rng.standard_normal((4000, 30)) * np.arange(1, 31) ** -0.5
        np.savez(tmp_path / f"s-{rank}.npz", X=X, y=np.where(X[:, 0] + rng.standard_normal(4000) > 0, 1, 0))
    options = [str(tmp_path / "s-{rank}.npz"), "--checkpoint-every", "0.01", "-C", "10"]
    options += ["--loss", "hinge", "--tol", "1e-4"] if kind == "hinge" else ["--tol", "1e-9"]
    options += ["--method", "ns-adfs" if kind == "hinge" else kind]
    out, folder = tmp_path / "m.json", tmp_path / "kept"
    assert fit_over_ranks(2, *options, "--out", str(out)).code == 0
    expected = LinearModel.load(out)
    command = [sys.executable, "-c", KILLED_FIT, str(folder)]
    kept = ["--checkpoint", str(folder), "--resume", "--out", str(out)]
    for _ in range(6):
        for path in tmp_path.glob("kept*"):
            shutil.rmtree(path)
        launch(2, [*command, f"{rng.exponential(0.5):.3f}", *options, *kept], timeout=150.0)
        done = fit_over_ranks(2, *options, *kept)
        assert done.code == 0, done.err
        model = LinearModel.load(out)
        assert model.coef.tobytes() == expected.coef.tobytes()
        assert model.intercept.tobytes() == expected.intercept.tobytes()
        assert (folder / "finished.json").exists()


# Like `adfs fit`, but the rank kills itself so many seconds after there is a checkpoint.
KILLED_FIT = """
import os, pathlib, signal, sys, threading, time
from adfs.cli.app import main
folder, delay = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def die():
    while not (folder / "manifest").exists():
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=die, daemon=True).start()
sys.exit(main(["fit", *sys.argv[3:]]))
"""
