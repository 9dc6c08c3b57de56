"""QNing on one machine: its pass beside the literal one, its result, its safeguard, its checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.algorithms.qning import QningProcess, dual_pass
from literal_methods import literal_dual_pass


def make_problem(loss: str = "logistic", sparse: bool = False, sigma: float = 0.01) -> adfs.Problem:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 7)) * 10.0 ** rng.uniform(-1.0, 1.0, 7)
    y = X @ rng.standard_normal(7) + rng.standard_normal(120)
    X[3] = 0.0
    rows = sp.csr_array(np.where(np.abs(X) > 0.3, X, 0.0)) if sparse else X
    target = y if loss in ("squared", "huber") else np.where(y > 0.0, 1.0, -1.0)
    return adfs.Problem(rows, target, loss=loss, sigma=sigma, sample_weight=rng.uniform(0.5, 2.0, 120))


@pytest.mark.parametrize(
    ("loss", "sparse"),
    [*((loss, False) for loss in ("logistic", "squared", "squared_hinge", "huber")), ("logistic", True)],
)
def test_dual_pass_is_the_literal_one(loss: str, sparse: bool) -> None:
    problem = make_problem(loss, sparse)
    rng = np.random.default_rng(1)
    center, total = rng.standard_normal(7), 2.5
    duals = problem.clip_to_domain(0.1 * rng.standard_normal(120))
    order = rng.permutation(np.flatnonzero(problem.active))
    X = problem.X.toarray() if problem.sparse else problem.X
    expected = literal_dual_pass(problem, order, total, center, duals)
    theta = (center - X.T @ duals) / total
    dual_pass(problem.samples, problem.loss.beta, order, total, duals, theta)
    np.testing.assert_allclose(duals, expected, atol=1e-11)
    np.testing.assert_allclose(theta, (center - X.T @ duals) / total, atol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge", "huber"])
def test_qning_ends_at_the_optimum_in_a_few_passes(loss: str) -> None:
    problem = make_problem(loss)
    best = problem.optimum()
    run = adfs.simulate("qning", problem, tol=1e-11)
    assert run.converged
    # Values are compared, and each has a rounding of its own.
    assert (problem.objective(run.coef) - best.value) / problem.value_at_zero <= run.gap + 1e-16
    slow = adfs.simulate("adfs", problem, tol=1e-11)
    assert run.columns["passes"][-1] < 0.7 * slow.columns["passes"][-1]


def test_qning_records_certified_gaps_on_the_way() -> None:
    problem = make_problem()
    best = problem.optimum().value
    run = adfs.simulate("qning", problem, tol=1e-9, record=("gap", "suboptimality"))
    true = run.columns["suboptimality"] / problem.value_at_zero
    assert np.all(true <= run.columns["gap"] + 1e-15)
    assert np.all(run.columns["dual"] <= best * (1.0 + 1e-14))


def test_qning_makes_more_passes_per_step_after_bad_steps() -> None:
    """Pairs that tell lies send it astray; it forgets them, and still arrives."""
    problem = make_problem(sigma=0.1)
    method = METHODS["qning"]
    parameters = method.parameters(problem, adfs.Network("path:1"))
    process = method.start(Setting(problem, adfs.Network("path:1"), parameters))
    assert isinstance(process, QningProcess)
    rng = np.random.default_rng(0)
    for number in range(200):
        if number == 40:
            process.pairs.clear()
            step, change = rng.standard_normal((2, 7)) * [[1.0], [1e-9]]
            process.pairs.add(step, change * np.sign(step @ change))
        process.round(None)  # type: ignore[arg-type]
    assert process.counts[2] > 1.0
    theta = process.primal()[0]
    assert problem.objective(theta) - problem.optimum().value < 1e-10 * problem.value_at_zero


def test_qning_resumed_has_the_same_bits(tmp_path: Path) -> None:
    problem = make_problem()
    whole = adfs.simulate("qning", problem, max_passes=12, seed=3)
    for passes in (5, 12):
        again = adfs.simulate(
            "qning", problem, max_passes=passes, seed=3, checkpoint=tmp_path / "kept", resume=passes == 12
        )
    assert again.theta.tobytes() == whole.theta.tobytes()
    assert again.dual is not None
    assert whole.dual is not None
    assert again.dual.tobytes() == whole.dual.tobytes()


def test_qning_starts_from_dual_variables() -> None:
    problem = make_problem()
    first = adfs.simulate("qning", problem, tol=1e-6)
    second = adfs.simulate("qning", problem, tol=1e-8, start=first.dual)
    cold = adfs.simulate("qning", problem, tol=1e-8)
    assert second.columns["passes"][-1] < cold.columns["passes"][-1]
    assert second.columns["gap"][0] < 1e-3
