"""Objective, gradient, Hessian, condition numbers and the dual, against literal NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from adfs.problem import Problem, losses, samples
from adfs.problem.losses import Loss, get_loss
from loss_cases import CASES, SMOOTH, case_id, with_rows

every = pytest.mark.parametrize("loss", CASES, ids=case_id)


def random_problem(loss: Loss, seed: int = 0, *, sparse: bool = False, n: int = 30, d: int = 5) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.uniform(size=(n, d)) < 0.6)
    X[:, 0] = rng.standard_normal(n)
    X[4] = 0.0
    y = rng.choice([-1.0, 1.0], n) if loss.task == "classification" else rng.standard_normal(n)
    weights = rng.uniform(0.2, 2.0, n)
    weights[6] = 0.0
    given = sp.csr_array(X) if sparse else X
    return Problem(given, y, loss, rng.uniform(0.2, 2.0, 4), 4, partition="random", sample_weight=weights)


def dense(problem: Problem) -> np.ndarray:
    return np.asarray(problem.X.toarray() if problem.sparse else problem.X)


@pytest.mark.parametrize(("loss", "sparse"), with_rows(CASES))
def test_problem_objective_gradient_and_hessian_are_the_literal_sums(loss: Loss, sparse: bool) -> None:
    problem = random_problem(loss, sparse=sparse)
    theta = np.random.default_rng(1).standard_normal(5)
    sigma = problem.sigma.sum()
    value, gradient, hessian = 0.5 * sigma * theta @ theta, sigma * theta, sigma * np.eye(5)
    for x, b, w in zip(dense(problem), problem.y, problem.weights, strict=True):
        u = float(x @ theta)
        value = value + w * losses.value(loss, u, b)
        gradient = gradient + w * losses.derivative(loss, u, b) * x
        hessian = hessian + w * losses.curvature(loss, u, b) * np.outer(x, x)
    assert problem.objective(theta) == pytest.approx(value, rel=1e-14)
    np.testing.assert_allclose(problem.gradient(theta), gradient, rtol=0, atol=2e-14 * (1 + abs(value)))
    np.testing.assert_allclose(problem.hessian(theta), hessian, rtol=0, atol=2e-14 * (1 + hessian.max()))


@pytest.mark.parametrize(("loss", "sparse"), with_rows(CASES))
def test_objective_of_many_parameters_is_that_of_each(loss: Loss, sparse: bool) -> None:
    problem = random_problem(loss, sparse=sparse)
    thetas = np.random.default_rng(1).standard_normal((6, 5))
    one_by_one = [problem.objective(theta) for theta in thetas]
    np.testing.assert_allclose(problem.objective(thetas), one_by_one, rtol=1e-14)
    np.testing.assert_allclose(problem.objective(np.asfortranarray(thetas)[::2]), one_by_one[::2], rtol=1e-14)
    assert problem.objective(thetas[:, ::-1][0]) == problem.objective(thetas[0, ::-1].copy())
    assert problem.objective(thetas[:0]).shape == (0,)


def test_objective_does_not_depend_on_the_split() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((20, 3)), rng.choice([-1.0, 1.0], 20)
    theta = rng.standard_normal(3)
    values = [
        Problem(X, y, sigma=1.0 / n, n_nodes=n, partition=partition).objective(theta)
        for n in (1, 4, 20)
        for partition in ("contiguous", "random", "label")
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-14)


# --------------------------------------------------------------------------- condition numbers


@pytest.mark.parametrize(("loss", "sparse"), with_rows(SMOOTH))
def test_condition_numbers_are_the_literal_ones(loss: Loss, sparse: bool) -> None:
    problem = random_problem(loss, sparse=sparse)
    X, w = dense(problem), problem.weights
    kappa, batch = [], []
    for i in range(4):
        rows = slice(problem.node_starts[i], problem.node_starts[i + 1])
        lipschitz = w[rows] * loss.beta * (X[rows] ** 2).sum(axis=1)
        np.testing.assert_allclose(problem.smoothness[rows], lipschitz, rtol=1e-14)
        kappa.append(lipschitz.sum() / problem.sigma[i])
        batch.append(np.linalg.eigvalsh(loss.beta * X[rows].T @ (w[rows, None] * X[rows]))[-1])
    np.testing.assert_allclose(problem.kappa, kappa, rtol=1e-13)
    assert problem.kappa_s == pytest.approx(max(kappa), rel=1e-13)
    np.testing.assert_allclose(problem.batch_smoothness, batch, rtol=1e-12)
    expected = max((s + b) / s for s, b in zip(problem.sigma, batch, strict=True))
    assert problem.kappa_b == pytest.approx(expected, rel=1e-12)
    assert problem.kappa_b <= 1.0 + problem.kappa_s
    np.testing.assert_allclose(problem.row_norms_squared, (X**2).sum(axis=1), rtol=1e-14)
    assert problem.total_sigma == pytest.approx(problem.sigma.sum())


@pytest.mark.parametrize("shape", [(400, 90), (90, 400), (120, 120)])
@pytest.mark.parametrize("sparse", [False, True])
def test_batch_smoothness_is_a_close_upper_bound(
    shape: tuple[int, int], sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) * (rng.uniform(size=shape) < 0.3)
    weights = rng.uniform(0.0, 2.0, shape[0])
    given = sp.csr_array(X) if sparse else X
    node_starts = np.array([0, shape[0] // 3, shape[0] // 3, shape[0]])
    exact: list[float] = []
    for a, b in ((0, shape[0] // 3), (shape[0] // 3, shape[0])):
        exact.append(0.25 * float(np.linalg.norm(np.sqrt(weights[a:b, None]) * X[a:b], ord=2)) ** 2)
    exact.insert(1, 0.0)
    whole = samples.batch_smoothness(given, weights, node_starts, 0.25)
    np.testing.assert_allclose(whole, exact, rtol=1e-12)
    monkeypatch.setattr(samples, "_DENSE_ORDER", 1)
    found = samples.batch_smoothness(given, weights, node_starts, 0.25)
    np.testing.assert_allclose(found, exact, rtol=3e-3)
    assert np.all(found >= np.array(exact) * (1.0 - 1e-13))


@pytest.mark.parametrize("name", ["hinge", "absolute", "quantile", "epsilon_insensitive"])
def test_condition_numbers_are_infinite_for_a_loss_with_kinks(name: str) -> None:
    problem = random_problem(get_loss(name))
    assert np.all(problem.smoothness[problem.active] == math.inf)
    assert np.all(problem.smoothness[~problem.active] == 0.0)
    assert problem.kappa_s == problem.kappa_b == math.inf
    assert np.all(problem.batch_smoothness == math.inf)


# --------------------------------------------------------------------------- the dual


@every
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.01, 3.0))
def test_duality_gap_is_primal_less_dual_and_never_negative(loss: Loss, seed: int, spread: float) -> None:
    problem = random_problem(loss, seed=seed % 3)
    rng = np.random.default_rng(seed)
    s = problem.clip_to_domain(spread * rng.standard_normal(problem.n_samples))
    dual = problem.dual_objective(s)
    assert math.isfinite(dual)
    assert dual <= problem.optimum().value + 1e-12 * problem.value_at_zero
    gap = problem.duality_gap(s, relative=False)
    assert gap >= 0.0
    theta = problem.primal_from_dual(s)
    assert gap == pytest.approx(problem.objective(theta) - dual, rel=1e-12, abs=1e-13)
    assert problem.duality_gap(s) == pytest.approx(gap / problem.value_at_zero)
    assert dual <= problem.objective(rng.standard_normal(5))
    assert problem.objective(theta) - problem.optimum().value <= gap + 1e-12 * problem.value_at_zero


@every
def test_dual_objective_is_the_literal_sum(loss: Loss) -> None:
    problem = random_problem(loss, seed=2)
    s = problem.clip_to_domain(np.random.default_rng(0).standard_normal(30))
    total, vector = 0.0, np.zeros(5)
    for x, b, w, scalar in zip(problem.X, problem.y, problem.weights, s, strict=True):
        if w > 0.0 and x.any():
            total -= w * losses.conjugate(loss, scalar / w, b)
            vector += scalar * x
        else:
            assert scalar == 0.0
            total += w * losses.value(loss, 0.0, b)
    sigma = problem.sigma.sum()
    assert problem.dual_objective(s) == pytest.approx(total - vector @ vector / (2 * sigma), rel=1e-13)
    np.testing.assert_allclose(problem.primal_from_dual(s), -vector / sigma, rtol=0, atol=1e-13)


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_duality_gap_closes_at_the_optimum(loss: Loss) -> None:
    problem = random_problem(loss)
    theta = problem.optimum().theta
    slopes = [losses.derivative(loss, u, b) for u, b in zip(problem.X @ theta, problem.y, strict=True)]
    assert abs(problem.duality_gap(problem.clip_to_domain(problem.weights * slopes))) <= 1e-12
    np.testing.assert_allclose(problem.primal_from_dual(problem.weights * slopes), theta, rtol=0, atol=1e-11)


@every
def test_clip_to_domain_reaches_the_domain_whatever_the_weight(loss: Loss) -> None:
    rng = np.random.default_rng(1)
    n = 2000
    y = rng.choice([-1.0, 1.0], n)
    weights = 10.0 ** rng.uniform(-3, 3, n)
    problem = Problem(np.ones((n, 1)), y, loss, 1.0, sample_weight=weights)
    for size in (1e-3, 1e9):
        for sign in (-1.0, 1.0):
            s = problem.clip_to_domain(np.full(n, sign * size))
            assert math.isfinite(problem.dual_objective(s))
    low, high = np.transpose([losses.domain(loss, b) for b in y])
    inside = weights * np.clip(rng.standard_normal(n), np.maximum(low, -9.0), np.minimum(high, 9.0))
    np.testing.assert_allclose(problem.clip_to_domain(inside), inside, rtol=5e-16, atol=0)


def test_dual_objective_gives_no_bound_outside_the_domain() -> None:
    X = np.array([[1.0], [2.0]])
    problem = Problem(X, [1.0, 1.0], "logistic", sample_weight=[1.0, 0.0])
    assert problem.dual_objective(np.array([-0.5, 0.0])) > -math.inf
    assert problem.dual_objective(np.array([0.5, 0.0])) == -math.inf
    assert problem.duality_gap(np.array([0.5, 0.0])) == math.inf
    # A row without weight is a term 0, whose conjugate is finite at 0 alone: it may not cancel others.
    assert problem.dual_objective(np.array([-0.5, 0.25])) == -math.inf


@pytest.mark.parametrize("name", ["absolute", "squared", "huber", "epsilon_insensitive", "smoothed_quantile"])
def test_optimum_is_zero_where_zero_solves_the_problem(name: str) -> None:
    problem = Problem(np.random.default_rng(0).standard_normal((5, 2)), np.zeros(5), name)
    assert problem.value_at_zero == 0.0
    assert problem.duality_gap(np.zeros(5)) == 0.0
    s = np.full(5, 0.1)
    assert problem.duality_gap(s) == problem.duality_gap(s, relative=False) > 0.0
    found = problem.optimum()
    assert found.value == found.gap == 0.0
    assert not found.theta.any()
