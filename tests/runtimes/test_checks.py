"""When a run that nobody asked to record is checked, and the passes of dual ascent that may end it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.runtimes import Grid, Outcome, Record

NETWORK = adfs.Network("cycle:4")


def make_problem(sigma: float = 0.05, loss: str = "logistic", n_nodes: int = 4) -> adfs.Problem:
    rng = np.random.default_rng(3)
    y = np.where(rng.random(400) < 0.5, 1.0, -1.0)
    X = rng.standard_normal((400, 6)) + 0.4 * y[:, None]
    shares = sigma * np.linspace(0.5, 1.5, n_nodes)
    return adfs.Problem(X, y, loss=loss, sigma=shares, n_nodes=n_nodes)


@pytest.mark.parametrize(
    ("method", "loss"), [("adfs", "logistic"), ("adfs-block", "logistic"), ("extra", "squared")]
)
def test_checks_are_few_and_the_run_ends_in_time(method: str, loss: str) -> None:
    problem = make_problem(loss=loss)
    run = adfs.simulate(method, problem, NETWORK, tol=1e-7)
    fine = adfs.simulate(method, problem, NETWORK, tol=1e-7, record=Record(grid=Grid(every=0.25)))
    assert run.outcome is fine.outcome is Outcome.CONVERGED
    assert len(run.columns["gap"]) <= 20
    assert len(run.columns["gap"]) < 0.5 * len(fine.columns["gap"])
    assert run.columns["passes"][-1] <= 1.4 * fine.columns["passes"][-1] + 1.0
    best = problem.optimum().value
    assert (problem.objective(run.coef) - best) / problem.value_at_zero <= run.gap + 1e-15
    # The best lower bound is kept, and none is above the optimum.
    assert np.all(np.diff(run.columns["dual"]) >= 0.0)
    assert run.columns["dual"][-1] <= best * (1.0 + 1e-14)


def test_run_gap_is_that_of_its_dual_variables() -> None:
    problem = make_problem()
    run = adfs.simulate("adfs", problem, NETWORK, tol=1e-9)
    assert run.dual is not None
    assert problem.duality_gap(problem.clip_to_domain(run.dual)) == pytest.approx(run.gap, rel=1e-3)


@pytest.mark.parametrize("method", ["adfs", "adfs-block"])
def test_dual_ascent_ends_a_run_at_a_certified_point(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(sigma=20.0)
    run = adfs.simulate(method, problem, NETWORK, tol=1e-6, seed=1)
    monkeypatch.setattr("adfs.runtimes.loop._ASCENT_RANGE", 0.0)
    without = adfs.simulate(method, problem, NETWORK, tol=1e-6, seed=1)
    # The run ends at an earlier check, with the passes of dual ascent counted: each but the last halves the
    # gap, which was at most 300 times the tolerance.
    last = len(run.columns["position"]) - 1
    assert last < len(without.columns["position"]) - 1
    assert run.columns["position"][last] == without.columns["position"][last]
    extra = (run.columns["computations"][last] - without.columns["computations"][last]) / problem.n_samples
    assert extra in range(1, 10)
    assert run.columns["passes"][-1] < without.columns["passes"][-1]
    # It raises the dual, its gap is true, and all nodes are at the point that is certified.
    assert problem.dual_objective(run.dual) > without.columns["dual"][last]
    best = problem.optimum().value
    assert problem.objective(run.coef) - best <= run.gap * problem.value_at_zero
    assert run.outcome is Outcome.CONVERGED
    assert problem.duality_gap(run.dual) == pytest.approx(run.gap, rel=1e-3)
    np.testing.assert_allclose(run.theta, np.tile(run.coef, (4, 1)), rtol=1e-13)


def test_dual_ascent_keeps_to_the_budget() -> None:
    problem = make_problem(sigma=400.0, n_nodes=1)
    free = adfs.simulate("adfs", problem, tol=1e-10)
    assert free.outcome is Outcome.CONVERGED
    assert free.columns["passes"][-1] > 4.0
    short = adfs.simulate("adfs", problem, tol=1e-10, max_passes=4.0)
    assert short.outcome is Outcome.OUT_OF_BUDGET
    assert short.columns["passes"][-1] <= 4.1  # passes that were tried in vain do not count


def test_run_that_was_stopped_ends_where_one_that_was_not_does(tmp_path: Path) -> None:
    problem = make_problem()
    whole = adfs.simulate("adfs", problem, NETWORK, tol=1e-7, seed=2)
    path = tmp_path / "run.checkpoint"
    for passes in (3.3, 7.7, None):
        run = adfs.simulate(
            "adfs",
            problem,
            NETWORK,
            tol=1e-7,
            seed=2,
            max_passes=passes,
            checkpoint=path,
            resume=passes != 3.3,
        )
    assert np.array_equal(run.theta, whole.theta)
    assert run.gap == whole.gap
    for name in ("position", "gap", "primal", "dual", "computations"):
        assert np.array_equal(run.columns[name], whole.columns[name])


@pytest.mark.parametrize("method", ["adfs", "newton"])
def test_checks_are_at_fixed_passes_or_after_every_round(method: str) -> None:
    problem = make_problem(sigma=5.0)
    run = adfs.simulate(method, problem, NETWORK, tol=1e-10)
    positions = run.columns["position"]
    if method == "newton":
        assert np.array_equal(positions, np.arange(len(positions)))
        return
    share = run.parameters.node_probability.sum()
    passes = [0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 37, 49]
    expected = np.ceil(np.array(passes) * problem.n_samples / share)
    assert np.array_equal(positions, expected[: len(positions)])


SPECTRUM = """
import numpy as np
from adfs.problem.samples import batch_smoothness
rng = np.random.default_rng(0)
for d in (40, 200, 700):
    X = rng.standard_normal((1500, d))
    print(batch_smoothness(X, np.ones(1500), np.array([0, 700, 1500]), 0.25).tobytes().hex())
"""


def test_batch_smoothness_does_not_depend_on_threads() -> None:
    found = set()
    for threads in ("1", "2", "4"):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", SPECTRUM], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_run_on_one_node_computes_no_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody needs it")

    monkeypatch.setattr("adfs.problem.problem.batch_smoothness", refuse)
    problem = make_problem(n_nodes=1)
    assert adfs.simulate("adfs", problem, tol=1e-4).converged
    with pytest.raises(AssertionError, match="nobody needs it"):
        adfs.simulate("agd", problem, max_passes=1)


def test_run_goes_through_a_stretch_of_nothing_but_messages() -> None:
    rng = np.random.default_rng(3)
    for seed in range(12):
        X = rng.standard_normal((4, 2))
        problem = adfs.Problem(X, np.sign(X[:, 0]), sigma=1e-3, n_nodes=3)
        run = adfs.simulate("adfs", problem, "path:3", tol=1e-10, max_passes=300, seed=seed)
        assert run.gap < 1e-2
