"""The reference optimum is certified, agrees with scikit-learn, and is honest where it cannot reach."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import LinearConstraint, linprog, minimize
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC, LinearSVR

from adfs.algorithms import METHODS
from adfs.algorithms.interior_point import quadratic_pieces
from adfs.problem import Problem, losses, reference
from adfs.problem.losses import Loss, get_loss
from adfs.problem.reference import Optimum
from loss_cases import CASES, FEW, ON_SPARSE_ROWS, SMOOTH, case_id

DATA = Path(__file__).parents[3] / "shared" / "data"
every = pytest.mark.parametrize("loss", CASES, ids=case_id)


def made(
    loss: Loss, n: int, d: int, *, scales: np.ndarray | None = None, density: float = 1.0, seed: int = 0
) -> tuple[object, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) if scales is None else rng.standard_normal((n, d)) * scales
    given: object = X
    if density < 1.0:
        given = sp.random_array((n, d), density=density, rng=rng, format="csr")
        X = given.toarray()  # type: ignore[attr-defined]
        if loss.name not in FEW:
            given = X
    margin = X @ rng.standard_normal(d)
    margin = margin / (margin.std() + 1e-9) + 0.5 * rng.standard_normal(n)
    return given, np.where(margin > 0.0, 1.0, -1.0) if loss.task == "classification" else margin


def assert_certified(problem: Problem, tol: float = 1e-12) -> Optimum:
    """Check a certificate without the functions that made it."""
    found = problem.optimum()
    assert found.gap <= tol
    assert found.value == problem.objective(found.theta)
    X = problem.X.toarray() if problem.sparse else problem.X
    total = 0.0
    for w, b, s, active in zip(problem.weights, problem.y, found.dual, problem.active, strict=True):
        total -= (
            w * losses.conjugate(problem.loss, s / w, b)
            if active
            else -w * losses.value(problem.loss, 0.0, b)
        )
    vector = found.dual @ X
    dual = total - vector @ vector / (2.0 * problem.sigma.sum())
    assert found.value - dual <= 3.0 * tol * (problem.value_at_zero or 1.0)
    return found


@every
@pytest.mark.parametrize(
    "kind",
    ["low", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("sparse", "wide", "ill", "weak"))],
)
def test_optimum_is_certified_to_a_trillionth(loss: Loss, kind: str) -> None:
    sigma = 1e-6 if kind in {"ill", "weak"} else 0.5
    scales = np.logspace(0.0, -6.0, 6) if kind == "ill" else None
    n, d = (25, 60) if kind == "wide" else (80, 6)
    X, y = made(loss, n, d, scales=scales, density=0.3 if kind == "sparse" else 1.0)
    weights = np.random.default_rng(1).uniform(0.1, 2.0, n)
    problem = Problem(X, y, loss, [sigma, 2.0 * sigma], 2, sample_weight=weights)
    assert_certified(problem)


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_optimum_has_no_gradient(loss: Loss) -> None:
    X, y = made(loss, 100, 8)
    problem = Problem(X, y, loss, 0.3)
    scale = np.linalg.norm(problem.gradient(np.zeros(8)))
    assert np.linalg.norm(problem.gradient(problem.optimum().theta)) <= 1e-12 * scale


@every
def test_optimum_has_no_better_neighbour(loss: Loss) -> None:
    X, y = made(loss, 60, 4)
    problem = Problem(X, y, loss, 0.3)
    found = problem.optimum()
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-3, 1e-5):
        thetas = found.theta + size * rng.standard_normal((50, 4))
        assert np.min(problem.objective(thetas)) >= found.value * (1.0 - 1e-13)


@pytest.mark.parametrize("loss", ON_SPARSE_ROWS, ids=case_id)
def test_optimum_is_the_same_dense_and_sparse(loss: Loss) -> None:
    X, y = made(loss, 60, 10, density=0.3)
    sparse = Problem(X, y, loss, 0.2)
    dense = Problem(X.toarray(), y, loss, 0.2)  # type: ignore[attr-defined]
    np.testing.assert_allclose(sparse.optimum().theta, dense.optimum().theta, rtol=0, atol=1e-9)
    assert sparse.optimum().value == pytest.approx(dense.optimum().value, rel=1e-12)


def test_optimum_is_computed_once() -> None:
    X, y = made(get_loss("logistic"), 30, 3)
    problem = Problem(X, y)
    assert problem.optimum() is problem.optimum(tol=1e-10)


# --------------------------------------------------------------------------- high dimension


@every
def test_optimum_is_certified_with_more_features_than_samples(loss: Loss) -> None:
    X, y = made(loss, 120, 1700, density=0.01)
    found = assert_certified(Problem(X, y, loss, 0.5, 3))
    assert found.method in {"newton", "interior-point"}


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_optimum_by_lbfgs_agrees_with_newton(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = made(loss, 80, 20)
    direct = Problem(X, y, loss, 0.1).optimum()
    for name in ("newton", "interior-point"):
        monkeypatch.setattr(type(METHODS[name]), "reference_order", np.inf)
    iterative = assert_certified(Problem(X, y, loss, 0.1))
    assert (direct.method, iterative.method) == ("newton", "lbfgs")
    np.testing.assert_allclose(iterative.theta, direct.theta, rtol=0, atol=1e-9)


def test_optimum_warns_of_a_gap_it_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = made(get_loss("absolute"), 60, 30, density=0.2)
    problem = Problem(X, y, "absolute", 1e-3)
    with monkeypatch.context() as patch:
        patch.setattr(type(METHODS["interior-point"]), "reference_order", np.inf)
        patch.setattr(reference, "_MOST_STEPS", 1)
        with pytest.warns(RuntimeWarning, match=r"relative duality gap of .*, not 1\.0e-12; rescale"):
            poor = problem.optimum()
    assert poor.method == "ns-adfs"
    assert 1e-12 < poor.gap < 1.0
    best = problem.optimum()  # asked again, it is computed again: the first was not good enough
    assert best.gap <= 1e-12
    assert 0.0 < (poor.value - best.value) / problem.value_at_zero <= poor.gap


def test_optimum_has_an_honest_gap_beyond_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last method goes on to the end of its budget, half a minute: a hundredth of it is as good here.
    monkeypatch.setattr(reference, "_MOST_STEPS", 10**7)
    loss = get_loss("hinge")
    X, y = made(loss, 200, 8, scales=np.logspace(0, 6, 8))
    problem = Problem(X, y, loss, 1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = problem.optimum()
    assert np.isfinite(found.value)
    dual = problem.dual_objective(found.dual)
    assert (found.value - dual) / problem.value_at_zero <= found.gap + 1e-12


# --------------------------------------------------------------------------- the parts


@pytest.mark.parametrize(
    "loss",
    [loss for loss in CASES if loss.name not in {"logistic", "squared", "squared_hinge", "expectile"}],
    ids=case_id,
)
def test_quadratic_pieces_are_the_conjugates(loss: Loss) -> None:
    X, y = made(loss, 30, 3)
    weights = np.random.default_rng(1).uniform(0.1, 5.0, 30)
    weights[4] = 0.0
    problem = Problem(X, y, loss, sample_weight=weights)
    pieces = quadratic_pieces(problem)
    assert pieces is not None
    assert set(pieces.row) == set(np.flatnonzero(problem.active))
    for row, slope, bend, low, high in zip(*pieces, strict=True):
        w, b = weights[row], y[row]
        at_zero = w * losses.conjugate(loss, 0.0, b)
        for s in (0.1 * low + 0.9 * high, 0.7 * low + 0.3 * high):
            expected = w * losses.conjugate(loss, s / w, b)
            assert at_zero + slope * s + 0.5 * bend * s * s == pytest.approx(expected, abs=1e-11 * (1 + w))
        assert low <= 0.0 <= high


@pytest.mark.parametrize("name", ["logistic", "squared", "squared_hinge"])
def test_quadratic_pieces_are_none_for_other_conjugates(name: str) -> None:
    X, y = made(get_loss(name), 10, 3)
    problem = Problem(X, np.sign(y), name)
    assert quadratic_pieces(problem) is None


# --------------------------------------------------------------------------- other people's solvers


def test_optimum_agrees_with_ridge() -> None:
    X, y = made(get_loss("squared"), 100, 6)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, 100)
    problem = Problem(X, y, "squared", 0.7, sample_weight=weights)
    other = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(problem.optimum().theta, other.coef_, rtol=0, atol=1e-13)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_optimum_agrees_with_logistic_regression(strength: float) -> None:
    X, y = made(get_loss("logistic"), 200, 6)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, 200)
    problem = Problem(X, y, "logistic", 1.0 / strength, sample_weight=weights)
    model = LogisticRegression(
        C=strength, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=500
    )
    other = model.fit(X, y, sample_weight=weights).coef_[0]
    np.testing.assert_allclose(problem.optimum().theta, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["hinge", "squared_hinge"])
def test_optimum_agrees_with_linear_svc(name: str) -> None:
    X, y = made(get_loss(name), 150, 5)
    problem = Problem(X, y, name, 2.0)
    # scikit-learn minimises ½‖θ‖² + CΣℓ; its squared hinge has no ½.
    constant = 0.5 if name == "hinge" else 0.25
    model = LinearSVC(
        C=constant, loss=name.replace("-", "_"), fit_intercept=False, dual=True, tol=1e-9, max_iter=10**6
    )
    other = model.fit(X, y).coef_[0]
    np.testing.assert_allclose(problem.optimum().theta, other, rtol=0, atol=1e-5)
    assert problem.objective(other) >= problem.optimum().value * (1.0 - 1e-13)


def test_optimum_agrees_with_linear_svr() -> None:
    loss = get_loss("epsilon_insensitive", epsilon=0.2)
    X, y = made(loss, 120, 4)
    problem = Problem(X, y, loss, 4.0)
    model = LinearSVR(C=0.25, epsilon=0.2, fit_intercept=False, dual=True, tol=1e-9, max_iter=10**6)
    other = model.fit(X, y).coef_
    np.testing.assert_allclose(problem.optimum().theta, other, rtol=0, atol=1e-5)
    assert problem.objective(other) >= problem.optimum().value * (1.0 - 1e-13)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_optimum_of_quantiles_agrees_with_a_quadratic_program(quantile: float) -> None:
    """The primal with slack variables, by a general-purpose solver."""
    loss = get_loss("quantile", quantile=quantile)
    X, y = made(loss, 25, 3)
    assert isinstance(X, np.ndarray)
    problem = Problem(X, y, loss, 0.5)
    n, d = X.shape
    cost = np.concatenate([np.zeros(d), np.ones(n)])
    # slack ≥ q·(y − Xθ) and slack ≥ (1 − q)·(Xθ − y)
    matrix = np.block([[quantile * X, np.eye(n)], [-(1 - quantile) * X, np.eye(n)]])
    bound = np.concatenate([quantile * y, -(1 - quantile) * y])

    def value(z: np.ndarray) -> float:
        return float(cost @ z + 0.25 * z[:d] @ z[:d])

    def gradient(z: np.ndarray) -> np.ndarray:
        return np.asarray(cost + np.concatenate([0.5 * z[:d], np.zeros(n)]))

    found = minimize(
        value,
        np.concatenate([np.zeros(d), np.abs(y)]),
        jac=gradient,
        method="SLSQP",
        constraints=[LinearConstraint(matrix, bound, np.inf)],
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert problem.optimum().value == pytest.approx(found.fun, rel=1e-8)
    np.testing.assert_allclose(problem.optimum().theta, found.x[:d], rtol=0, atol=1e-4)


def test_optimum_of_the_absolute_loss_agrees_with_linear_programming() -> None:
    """With σ → 0 the problem is a linear program; its optimum bounds ours from both sides."""
    X, y = made(get_loss("absolute"), 40, 3)
    assert isinstance(X, np.ndarray)
    n, d = X.shape
    answer = linprog(
        np.concatenate([np.zeros(d), np.ones(n)]),
        A_ub=np.block([[X, -np.eye(n)], [-X, -np.eye(n)]]),
        b_ub=np.concatenate([y, -y]),
        bounds=[(None, None)] * d + [(0, None)] * n,
    )
    assert answer.x is not None
    assert answer.fun is not None
    theta = answer.x[:d]
    sigma = 1e-6
    found = Problem(X, y, "absolute", sigma).optimum()
    assert answer.fun * (1.0 - 1e-9) <= found.value
    assert found.value <= (answer.fun + 0.5 * sigma * theta @ theta) * (1.0 + 1e-9)


@pytest.mark.skipif(not (DATA / "a9a.bz2").exists(), reason="the data set is not here")
def test_optimum_of_a9a_agrees_with_logistic_regression() -> None:
    X, y = load_svmlight_file(str(DATA / "a9a.bz2"))
    problem = Problem(X, y, "logistic", 1.0 / 9.0, 9)
    found = problem.optimum()
    assert found.gap <= 1e-12
    assert np.linalg.norm(problem.gradient(found.theta)) <= 1e-10 * np.linalg.norm(
        problem.gradient(np.zeros(123))
    )
    model = LogisticRegression(C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-10)
    other = model.fit(X, y).coef_[0]
    np.testing.assert_allclose(found.theta, other, rtol=0, atol=1e-7)
    hinge = Problem(X[:4000], y[:4000], "hinge", 1.0).optimum()
    assert hinge.gap <= 1e-12
