"""The simulator: budgets, recording, outcomes, results on disk, checkpoints."""

from __future__ import annotations

import hashlib
import io
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import adfs
from adfs.errors import FileError, InputError
from adfs.runtimes import Delays, Grid, Outcome, Record, Run
from adfs.runtimes.clock import with_times
from adfs.runtimes.result import read_container, write_container

EVENT_METHODS = ["adfs", "ns-adfs"]


def make_problem(n: int = 4, m: int = 50, d: int = 4, sigma: float = 0.3) -> adfs.Problem:
    rng = np.random.default_rng(1)
    y = np.where(rng.random(n * m) < 0.5, 1.0, -1.0)
    return adfs.Problem(rng.standard_normal((n * m, d)) + y[:, None], y, sigma=sigma, n_nodes=n)


@pytest.fixture(scope="module")
def problem() -> adfs.Problem:
    return make_problem()


NETWORK = adfs.Network("cycle:4")


def test_simulate_reaches_the_optimum_and_says_so(problem: adfs.Problem) -> None:
    run = adfs.simulate(
        "adfs", problem, NETWORK, tol=1e-12, record=("suboptimality", "distance", "consensus")
    )
    best = problem.optimum()
    assert run.outcome is Outcome.CONVERGED
    assert run.gap <= 1e-12
    assert np.abs(run.coef - best.theta).max() < 1e-5
    assert np.abs(run.theta - best.theta).max() < 1e-4
    # What is certified bounds what is true.
    true = (problem.objective(run.coef) - best.value) / problem.value_at_zero
    assert true <= run.gap + 1e-15
    last = run.frame.iloc[-1]
    assert last["suboptimality"] < 1e-8
    assert last["distance"] < 1e-4
    assert last["consensus"] < 1e-4
    assert run.frame["gap"].iloc[0] > 0.01


@pytest.mark.parametrize("method", ["adfs", "adfs-block", "qning", "lbfgs", "newton", "agd", "point-saga"])
def test_simulate_returns_the_best_point_if_it_does_not_converge(method: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 8)) * np.logspace(-2, 3, 8)
    problem = adfs.Problem(X, 1e3 * rng.standard_normal(60) + X[:, 0], "squared", sigma=1e-3)
    for passes in (1.0, 3.0, 10.0, 30.0):
        run = adfs.simulate(method, problem, tol=1e-13, max_passes=passes, record="gap")
        value, best = problem.objective(run.coef), problem.optimum().value
        assert value <= problem.value_at_zero
        assert run.gap * problem.value_at_zero >= value - best - 1e-9 * best
        if run.outcome is not Outcome.CONVERGED:
            assert run.gap <= np.min(run.columns["gap"]) * (1.0 + 1e-9)


def test_simulate_records_gaps_that_are_bounds(problem: adfs.Problem) -> None:
    run = adfs.simulate("adfs", problem, NETWORK, max_passes=20)
    best = problem.optimum().value
    rounding = 1e-14 * problem.value_at_zero
    assert (run.frame["primal"] - best >= -rounding).all()
    assert (run.frame["dual"] <= best + rounding).all()


@pytest.mark.parametrize("schedule", ["iid", "poisson"])
@pytest.mark.parametrize("method", EVENT_METHODS)
def test_simulate_gives_the_same_bits_whatever_is_recorded(
    method: str, schedule: str, problem: adfs.Problem
) -> None:
    runs = [
        adfs.simulate(
            method, problem, NETWORK, events=5000, schedule=schedule, seed=5, record=Record(grid=grid)
        )
        for grid in (Grid(), Grid(every=0.7))
    ]
    assert np.array_equal(runs[0].theta, runs[1].theta)
    other = adfs.simulate(method, problem, NETWORK, events=5000, schedule=schedule, seed=6)
    assert not np.array_equal(runs[0].theta, other.theta)


def test_simulate_gives_the_same_bits_on_sparse_and_dense_rows(problem: adfs.Problem) -> None:
    rows = sp.csr_array(problem.X)
    sparse = adfs.Problem(rows, problem.y, sigma=problem.sigma, n_nodes=4)
    dense = adfs.simulate("adfs", problem, NETWORK, max_passes=10)
    assert np.array_equal(dense.theta, adfs.simulate("adfs", sparse, NETWORK, max_passes=10).theta)


def test_simulate_ends_where_its_budgets_say(problem: adfs.Problem) -> None:
    by_events = adfs.simulate("adfs", problem, NETWORK, events=1234)
    assert by_events.frame["position"].iloc[-1] == 1234
    assert by_events.outcome is Outcome.OUT_OF_BUDGET
    by_passes = adfs.simulate("adfs", problem, NETWORK, max_passes=7)
    assert abs(by_passes.frame["passes"].iloc[-1] - 7) < 0.5
    by_seconds = adfs.simulate("adfs", problem, NETWORK, seconds=0.2)
    assert 0.2 <= by_seconds.seconds < 2.0
    assert by_seconds.outcome is Outcome.OUT_OF_BUDGET


def test_record_has_the_grid_and_the_measures_asked_for(problem: adfs.Problem) -> None:
    record = Record(("objective",), nodes="each", grid=Grid(every=1.0))
    frame = adfs.simulate("adfs", problem, NETWORK, max_passes=5, record=record).frame
    assert len(frame) == 6
    assert [c for c in frame if c.startswith("objective")] == [f"objective[{i}]" for i in range(4)]
    worst = adfs.simulate(
        "adfs", problem, NETWORK, max_passes=5, record=Record(("objective",), "worst", Grid(every=1.0))
    )
    each = frame[[f"objective[{i}]" for i in range(4)]].max(axis=1)
    np.testing.assert_allclose(worst.frame["objective"], each, rtol=1e-14)
    counted = frame.iloc[-1]
    assert counted["computations"] + counted["messages"] / 2 == counted["position"]
    assert counted["bytes"] == 8 * 4 * counted["messages"]


def test_simulate_reads_at_x_or_v_and_both_agree_in_the_end(problem: adfs.Problem) -> None:
    early = [adfs.simulate("adfs", problem, NETWORK, max_passes=2, read=read).theta for read in "xv"]
    late = [adfs.simulate("adfs", problem, NETWORK, max_passes=200, read=read).theta for read in "xv"]
    assert np.abs(early[0] - early[1]).max() > 1e-3
    assert np.abs(late[0] - late[1]).max() < 1e-9


def test_run_keeps_what_is_added_to_its_frame(problem: adfs.Problem, tmp_path: Path) -> None:
    run = adfs.simulate("adfs", problem, NETWORK, max_passes=3)
    assert list(run.columns) == list(run.frame)
    run.frame["mine"] = np.arange(len(run.frame), dtype=float)
    run.save(tmp_path / "run.adfs")
    timed = with_times(run, problem, NETWORK, Delays(tau=2.0))
    for kept in (Run.load(tmp_path / "run.adfs"), timed):
        assert kept.frame["mine"].tolist() == run.frame["mine"].tolist()
    assert repr(run) == repr(Run.load(tmp_path / "run.adfs"))


def test_run_survives_its_file(problem: adfs.Problem, tmp_path: Path) -> None:
    for method in ("adfs", "ns-adfs", "adfs-block", "newton"):
        run = adfs.simulate(method, problem, NETWORK, max_passes=3, seed=9)
        path = tmp_path / f"{method}.adfs"
        run.save(path)
        back = Run.load(path)
        pd.testing.assert_frame_equal(back.frame, run.frame)
        assert np.array_equal(back.theta, run.theta)
        assert np.array_equal(back.coef, run.coef)
        assert (back.method, back.outcome, back.seed, back.gap) == (method, run.outcome, 9, run.gap)
        assert type(back.parameters) is type(run.parameters)
        assert str(back.parameters) == str(run.parameters)


@pytest.mark.parametrize("method", ["adfs", "ns-adfs", "adfs-block"])
def test_simulate_resumed_has_the_bits_of_a_run_that_never_stopped(
    method: str, problem: adfs.Problem, tmp_path: Path
) -> None:
    path = tmp_path / "run.checkpoint"
    adfs.simulate(method, problem, NETWORK, max_passes=4, checkpoint=path, seed=2)
    resumed = adfs.simulate(method, problem, NETWORK, max_passes=9, checkpoint=path, resume=True, seed=2)
    whole = adfs.simulate(method, problem, NETWORK, max_passes=9, seed=2)
    assert np.array_equal(resumed.theta, whole.theta)
    assert resumed.frame["position"].is_monotonic_increasing
    assert resumed.frame["messages"].iloc[-1] == whole.frame["messages"].iloc[-1]


def test_checkpoint_of_another_run_is_refused(problem: adfs.Problem, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    adfs.simulate("adfs", problem, NETWORK, max_passes=1, checkpoint=path, seed=2)
    for change in ({"seed": 3}, {"parameters": "paper"}, {"schedule": "poisson"}):
        arguments = {"seed": 2} | change
        with pytest.raises(InputError, match="checkpoint of another run"):
            adfs.simulate("adfs", problem, NETWORK, max_passes=2, checkpoint=path, resume=True, **arguments)
    with pytest.raises(InputError, match="another run"):
        adfs.simulate(
            "adfs", make_problem(sigma=0.4), NETWORK, max_passes=2, checkpoint=path, resume=True, seed=2
        )


def test_checkpoint_and_run_files_are_refused_if_damaged_or_foreign(
    problem: adfs.Problem, tmp_path: Path
) -> None:
    path = tmp_path / "run.checkpoint"
    adfs.simulate("adfs", problem, NETWORK, max_passes=1, checkpoint=path)
    content = path.read_bytes()

    def resume() -> None:
        adfs.simulate("adfs", problem, NETWORK, max_passes=2, checkpoint=path, resume=True)

    for size in (0, 5, 20, 90, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"cut short|not an adfs checkpoint file"):
            resume()
    changed = bytearray(content)
    changed[-10] ^= 1
    path.write_bytes(bytes(changed))
    with pytest.raises(InputError, match="checksum"):
        resume()
    path.write_bytes(b"PK\x03\x04 somebody's archive\n")
    with pytest.raises(InputError, match="not an adfs checkpoint file"):
        resume()
    with pytest.raises(InputError, match="directory"):
        Run.load(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        Run.load(tmp_path / "nothing")
    adfs.simulate("adfs", problem, NETWORK, max_passes=1).save(path)
    with pytest.raises(InputError, match="an adfs run file, not a checkpoint file"):
        resume()


# What a file is changed to (None: left out), and what is said of it.
FORGED_CHECKPOINTS: dict[str, tuple[dict[str, Any], str]] = {
    "short state": ({"state/clocks": np.ones(1)}, "the array 'clocks' has shape"),
    "other numbers": ({"state/clocks": np.ones((4, 2), dtype=np.float32)}, "the array 'clocks' has shape"),
    "nan": ({"state/duals": np.full(200, np.nan + 0j)}, "the array 'duals' holds NaN"),
    "nan coefficients": ({"ending/theta": np.full(4, np.nan)}, "dual variables hold NaN or infinity"),
    "infinite best": ({"best/theta": np.full(4, np.inf)}, "dual variables hold NaN or infinity"),
    "no state": ({"state/duals": None}, "has no entry 'state/duals'"),
    "no rows": ({"rows": None}, "has no entry 'rows'"),
    "flat rows": ({"rows": np.ones(3)}, "the array 'rows' has shape"),
    "no position": ({"position": None}, "has no entry 'position'"),
    "nan position": ({"position": math.nan}, "not finite"),
    "text for work": ({"work": "many"}, "is damaged"),
    "no fingerprint": ({"fingerprint": None}, "of another run"),
}


def forge(path: Path, kind: str, changes: dict[str, Any]) -> None:
    """Change entries of a file, whose checksum then fits again."""
    header, arrays = read_container(path, kind)
    for name, value in changes.items():
        entries = arrays if name in arrays else header
        entries.pop(name, None)
        if value is not None:
            entries[name] = value
    write_container(path, kind, header, arrays)


@pytest.mark.parametrize("kind", FORGED_CHECKPOINTS)
def test_checkpoint_that_was_forged_is_refused_in_a_sentence(
    kind: str, problem: adfs.Problem, tmp_path: Path
) -> None:
    path = tmp_path / "run.checkpoint"
    adfs.simulate("adfs", problem, NETWORK, max_passes=1, checkpoint=path)
    changes, words = FORGED_CHECKPOINTS[kind]
    forge(path, "checkpoint", changes)
    with pytest.raises(InputError, match=words) as caught:
        adfs.simulate("adfs", problem, NETWORK, max_passes=2, checkpoint=path, resume=True)
    assert str(path) in str(caught.value)


FORGED_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no theta": ({"theta": None}, "has no entry 'theta'"),
    "theta of other size": ({"theta": np.ones((9, 7))}, "the array 'theta' has shape"),
    "no frame": ({"frame": None}, "has no entry 'frame'"),
    "frame of other size": ({"frame": np.ones((2, 3))}, "the array 'frame' has shape"),
    "no outcome": ({"outcome": None}, "has no entry 'outcome'"),
    "unknown outcome": ({"outcome": "won"}, "'won' is not a valid Outcome"),
    "gap in words": ({"gap": "small"}, "its gap is of the wrong kind"),
    "no parameters": ({"parameters": {}}, "has no entry 'record'"),
    "parameters of another kind": ({"parameters": 3}, "is damaged"),
    "parameters that do not fit": (
        {"parameters": {"record": "Parameters", "fields": {"speed": 1}, "text": ""}},
        "is damaged",
    ),
}


@pytest.mark.parametrize("kind", FORGED_RUNS)
def test_run_that_was_forged_is_refused_in_a_sentence(
    kind: str, problem: adfs.Problem, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    adfs.simulate("adfs", problem, NETWORK, max_passes=1).save(path)
    changes, words = FORGED_RUNS[kind]
    forge(path, "run", changes)
    with pytest.raises(InputError, match=words) as caught:
        Run.load(path)
    assert str(path) in str(caught.value)


def test_read_container_refuses_a_forged_file_that_unpacks_to_more(tmp_path: Path) -> None:
    path = tmp_path / "run"
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **{"array/theta": np.zeros((1000, 1000))})
    for text in (b"{}", b"[]", b"[" * 100_000):
        body = len(text).to_bytes(8, "big") + text + buffer.getvalue()
        path.write_bytes(b"adfs-file 1 run\n" + hashlib.sha256(body).hexdigest().encode() + body)
        with pytest.raises(InputError, match="cannot be read as an adfs run file"):
            read_container(path, "run")


def test_write_container_refuses_objects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write_container(tmp_path / "x", "run", {}, {"bad": np.array([object()])})
    assert not (tmp_path / "x").exists()


def test_write_container_leaves_the_old_file_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_container(path, "run", {"a": 1}, {"b": np.arange(3)})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device; what stood there before is unchanged"):
        write_container(path, "run", {"a": 2}, {"b": np.arange(3)})
    assert read_container(path, "run")[0] == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import sys, numpy as np, adfs
sys.path[:0] = [{tests!r}, {tests!r} + "/.."]
from test_simulate import make_problem
problem = make_problem(n=9, m=400)
print("ready", flush=True)
adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), max_passes=4000, schedule={schedule!r}, seed=4,
              checkpoint={path!r}, checkpoint_every=0.05,
              record=adfs.Record(grid=adfs.runtimes.Grid(every=200.0)))
print("done", flush=True)
"""


def kill_and_resume(tmp_path: Path, points: int, seed: int) -> None:
    """Kill -9 a run at random moments, resume it each time, and compare with one that was left alone."""
    rng = np.random.default_rng(seed)
    problem, network = make_problem(n=9, m=400), adfs.Network("grid:3x3")
    whole = adfs.simulate("adfs", problem, network, max_passes=4000, schedule="poisson", seed=4)
    path = tmp_path / "killed.checkpoint"
    code = KILLED.format(tests=str(Path(__file__).parent), path=str(path), schedule="poisson")
    for _ in range(points):
        path.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 60
            while not path.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(float(rng.uniform(0.0, 0.6)))
            child.send_signal(signal.SIGKILL)
        finally:
            child.wait(timeout=60)
            child.stdout.close()
        assert child.returncode == -signal.SIGKILL  # in mid-run, and not of itself
        assert read_container(path, "checkpoint")[0]["position"] > 0.0
        resumed = adfs.simulate(
            "adfs",
            problem,
            network,
            max_passes=4000,
            schedule="poisson",
            seed=4,
            checkpoint=path,
            resume=True,
        )
        assert np.array_equal(resumed.theta, whole.theta)


def test_checkpoint_of_a_killed_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 5, seed=0)


@pytest.mark.soak
def test_checkpoint_of_many_killed_runs_resumes_with_the_same_bits(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 50, seed=1)


def test_simulate_returns_what_there_is_at_ctrl_c(problem: adfs.Problem) -> None:
    before = signal.getsignal(signal.SIGINT)  # a job in the background is started with Ctrl-C ignored
    timer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        run = adfs.simulate("adfs", problem, NETWORK, max_passes=1e9, record=Record(grid=Grid(every=1e8)))
    finally:
        timer.cancel()
    assert run.outcome is Outcome.STOPPED
    assert np.all(np.isfinite(run.theta))
    whole = adfs.simulate("adfs", problem, NETWORK, events=run.frame["position"].iloc[-1])
    assert np.array_equal(run.theta, whole.theta)
    assert signal.getsignal(signal.SIGINT) is before


def test_simulate_shows_progress_on_standard_error_when_asked(
    problem: adfs.Problem, capsys: pytest.CaptureFixture[str]
) -> None:
    adfs.simulate("adfs", problem, NETWORK, tol=1e-6)
    assert capsys.readouterr() == ("", "")
    adfs.simulate("adfs", problem, NETWORK, tol=1e-6, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "gap" in shown.err


def test_simulate_solves_a_problem_with_nothing_to_learn_at_once() -> None:
    problem = adfs.Problem(np.zeros((4, 2)), [1, -1, 1, -1], n_nodes=2)
    run = adfs.simulate("adfs", problem, "path:2", tol=1e-9)
    assert run.outcome is Outcome.CONVERGED
    assert run.gap == 0.0
    assert not run.theta.any()


def test_simulate_makes_nodes_without_samples_agree_with_the_others() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    shards = [(X[:15], np.sign(X[:15, 0])), (np.empty((0, 3)), []), (X[15:], np.sign(X[15:, 0]))]
    problem = adfs.Problem.from_shards(shards, sigma=0.2)
    run = adfs.simulate("adfs", problem, "path:3", tol=1e-11)
    assert run.converged
    assert np.abs(run.theta - problem.optimum().theta).max() < 1e-4


def test_simulate_runs_and_certifies_general_terms() -> None:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    problem = adfs.Problem(X, y, "multinomial", sigma=0.25, n_nodes=4, partition="random")
    run = adfs.simulate("adfs", problem, NETWORK, tol=1e-7, record=Record(grid=Grid(every=20.0)))
    assert run.converged
    model = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, y)
    assert np.abs(run.coef.reshape(3, 4) - model.coef_).max() < 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "adsf"}, "unknown method 'adsf': did you mean 'adfs'"),
        ({"network": "cycle:5"}, "n_nodes is 4"),
        ({"network": None}, "give the network"),
        ({"schedule": "posson"}, "did you mean 'poisson'"),
        ({"parameters": "tunned"}, "did you mean 'tuned'"),
        ({"read": "w"}, "place to read"),
        ({"tol": -1.0}, "tol must be above 0"),
        ({"max_passes": -1.0}, "max_passes must be above 0"),
        ({"tau": -1.0}, "tau must be"),
        ({"seed": -1}, "seed"),
        ({"resume": True}, "resume wants a checkpoint"),
        ({"record": "gaps"}, "did you mean 'gap'"),
        ({"colour": "red"}, "unknown option of 'adfs'"),
        ({"max_pases": 3.0}, "did you mean 'max_passes'"),
        ({"tol": "a"}, "tol must be a number, got 'a'"),
        ({"record": 5}, "record must be a measure"),
    ],
)
def test_simulate_refuses_bad_arguments_in_one_sentence(
    problem: adfs.Problem, arguments: dict, message: str
) -> None:
    call = {"method": "adfs", "network": NETWORK, "max_passes": 1.0} | arguments
    with pytest.raises(InputError, match=message):
        adfs.simulate(call.pop("method"), problem, call.pop("network"), **call)


def test_adfs_refuses_a_loss_that_is_not_smooth() -> None:
    problem = adfs.Problem(np.eye(2), [1, -1], loss="hinge")
    with pytest.raises(InputError, match="ns-adfs"):
        adfs.simulate("adfs", problem)
    assert adfs.simulate("ns-adfs", problem, tol=1e-3).converged


def test_simulate_takes_a_budget_of_idealised_time_and_records_times(problem: adfs.Problem) -> None:
    for method, law in (("adfs", "exponential"), ("adfs-block", "fixed"), ("point-saga", "exponential")):
        delays = Delays(tau=5.0, law=law)
        run = adfs.simulate(method, problem, NETWORK, time=500.0, delays=delays, tau=5.0)
        times = run.frame["time"]
        assert times.is_monotonic_increasing
        # Point-SAGA fills its table of derivatives first.
        assert (times.iloc[0] == 0.0) == (method != "point-saga")
        assert 400.0 < times.iloc[-1] <= 500.0
        assert (run.frame["time_mean"] <= times).all()
    plain = adfs.simulate("adfs", problem, NETWORK, max_passes=2, tau=5.0)
    assert "time" not in plain.frame


def test_simulate_resumes_general_terms_with_the_same_bits(tmp_path: Path) -> None:
    from literal_cases import multinomial_terms

    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((20, 3)), rng.integers(0, 3, 20)
    problem = multinomial_terms(X, labels, 1.0, 2, n_classes=3)
    path = tmp_path / "general.checkpoint"
    whole = adfs.simulate("adfs", problem, "path", max_passes=9.0)
    adfs.simulate("adfs", problem, "path", max_passes=4.0, checkpoint=path)
    resumed = adfs.simulate("adfs", problem, "path", max_passes=9.0, checkpoint=path, resume=True)
    assert np.array_equal(resumed.theta, whole.theta)
    other = multinomial_terms(X, (labels + 1) % 3, 1.0, 2, n_classes=3)
    with pytest.raises(InputError, match="checkpoint of another run"):
        adfs.simulate("adfs", other, "path", max_passes=9.0, checkpoint=path, resume=True)

    class Nameless(type(problem.terms[0])):  # type: ignore[misc]
        def identity(self) -> None:
            return None

    terms = [[Nameless(X[0], 1, 3)], [Nameless(X[1], 0, 3)]]
    with pytest.raises(InputError, match="Nameless does not say what it is made of"):
        adfs.simulate("adfs", adfs.GeneralProblem(terms, 3 * 3), "path", max_passes=1.0, checkpoint=path)


def test_simulate_gives_general_problems_a_smoothness_that_works() -> None:
    from literal_cases import multinomial_terms

    rng = np.random.default_rng(0)
    X, y = 0.1 * rng.standard_normal((20, 2)), rng.integers(0, 3, 20)
    problem = multinomial_terms(X, y, 2.0, 4, n_classes=3)
    assert adfs.simulate("adfs", problem, NETWORK, tol=1e-6).converged
