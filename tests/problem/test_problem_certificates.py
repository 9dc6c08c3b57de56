"""Certificates against optima of higher precision: none may be below the true error, however many samples."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.problem.losses import divergence, get_loss
from adfs.runtimes import Outcome
from long_double import Reference
from loss_cases import ONE_OUTPUT

LONG = np.longdouble


def separable_optimum(loss: str, sigma: float) -> LONG:
    """Return min ℓ(u; 1) + σu²/2 in extended precision."""
    s = LONG(sigma)
    if loss == "squared":
        u = 1 / (1 + s)
        return LONG((u - 1) ** 2 / 2 + s * u * u / 2)
    u = LONG(1)
    for _ in range(100):
        p = 1 / (1 + np.exp(u))
        u -= (s * u - p) / (s + p * (1 - p))
    return LONG(np.log1p(np.exp(-u)) + s * u * u / 2)


def separable_value(loss: str, sigma: float, theta: np.ndarray) -> LONG:
    u = theta.astype(LONG)
    each = (u - 1) ** 2 / 2 if loss == "squared" else np.log1p(np.exp(-u))
    return LONG((each + LONG(sigma) * u * u / 2).sum())


def check_separable(loss: str, sigma: float, n: int) -> None:
    problem = adfs.Problem(sp.eye_array(n, format="csr"), np.ones(n), loss=loss, sigma=sigma)
    run = adfs.simulate("adfs", problem, tol=1e-13)
    true = (
        separable_value(loss, sigma, run.coef) - n * separable_optimum(loss, sigma)
    ) / problem.value_at_zero
    assert run.outcome is Outcome.CONVERGED
    assert -1e-18 <= true <= run.gap <= 1e-13
    # The same sum, in the run and in the problem.
    assert problem.duality_gap(problem.clip_to_domain(run.dual)) == pytest.approx(run.gap, rel=1e-6)


@pytest.mark.parametrize(("loss", "sigma"), [("squared", 0.7), ("logistic", 0.05)])
def test_certificate_of_a_hundred_thousand_samples_reaches_1e_13(loss: str, sigma: float) -> None:
    check_separable(loss, sigma, 100_000)


@pytest.mark.soak
@pytest.mark.parametrize(("loss", "sigma"), [("squared", 0.7), ("logistic", 0.05)])
def test_certificate_of_a_million_samples_reaches_1e_13(loss: str, sigma: float) -> None:
    check_separable(loss, sigma, 1_000_000)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_certificate_holds_for_nearly_identical_rows(loss: str) -> None:
    rng = np.random.default_rng(0)
    n = 50_000
    X = np.full((n, 1), 0.1) * (1.0 + 1e-14 * rng.integers(-3, 4, (n, 1)))
    y = np.where(np.arange(n) % 3 == 0, -1.0, 1.0)
    problem = adfs.Problem(X, y, loss=loss, sigma=0.3)
    run = adfs.simulate("adfs", problem, tol=1e-13, max_passes=400)
    assert run.outcome is Outcome.CONVERGED
    assert 0.0 <= true_error(problem, run.coef) <= run.gap


def true_error(problem: adfs.Problem, theta: np.ndarray) -> float:
    """Return (F(θ) − F*)/F(0) by Newton's method in extended precision, for squared and logistic losses."""
    X = problem.X.toarray() if problem.sparse else problem.X
    X, y, w = X.astype(LONG), problem.y.astype(LONG), problem.weights.astype(LONG)
    sigma = LONG(problem.total_sigma)
    logistic = problem.loss.name == "logistic"

    def value(point: np.ndarray) -> LONG:
        u = X @ point
        if logistic:
            each = np.log1p(np.exp(-np.abs(u))) + np.maximum(-y * u, 0)
        else:
            each = (u - y) ** 2 / 2
        return LONG((w * each).sum() + sigma * (point @ point) / 2)

    def slope(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u = X @ point
        p = 1 / (1 + np.exp(np.minimum(y * u, 11_000))) if logistic else None  # as far as exp goes
        first = -y * p if p is not None else u - y
        second = p * (1 - p) if p is not None else np.ones_like(u)
        return X.T @ (w * first) + sigma * point, w * second

    best = problem.optimum().theta.astype(LONG)
    for _ in range(6):  # Newton's matrix may be of doubles: the gradient is what decides where it ends
        gradient, curvatures = slope(best)
        hessian = (X.T @ (curvatures[:, None] * X) + sigma * np.eye(X.shape[1], dtype=LONG)).astype(
            np.float64
        )
        best = best - np.linalg.solve(hessian, gradient.astype(np.float64)).astype(LONG)
    # At most the true error: the point that Newton ends at is not below the optimum.
    return max(float(value(theta.astype(LONG)) - value(best)), 0.0) / problem.value_at_zero


KINDS = ("plain", "copies", "scaled", "weighted", "separable")


def make_problem(seed: int, loss: str, kind: str, log_sigma: float, n_nodes: int = 1) -> adfs.Problem:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(4, 60)), int(rng.integers(1, 6))
    X = rng.standard_normal((n, d))
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    weights = np.ones(n)
    if kind == "copies":
        X = X[:1] * (1.0 + 1e-15 * rng.standard_normal((n, 1)))
    elif kind == "scaled":
        X = X * 10.0 ** rng.uniform(-4.0, 4.0, (n, 1))
    elif kind == "weighted":
        weights = 10.0 ** rng.uniform(-6.0, 6.0, n)
        weights[0] = 0.0
    elif kind == "separable":
        y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
    return adfs.Problem(X, y, loss=loss, sigma=10.0**log_sigma, sample_weight=weights, n_nodes=n_nodes)


def check_certificates(problem: adfs.Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    best = problem.optimum()
    moved = best.theta + 1e-5 * rng.standard_normal(best.theta.size)
    for theta in (best.theta, best.theta * (1.0 + 1e-8), moved):
        duals = problem.clip_to_domain(problem.slopes(theta))
        found = problem.gap_at(duals, problem.row_total(duals), theta)
        scale = problem.value_at_zero
        rounding = 1e-18 * (1.0 + found.value / scale)  # of the values in extended precision
        assert true_error(problem, theta) <= found.gap / scale + rounding
        assert problem.duality_gap(duals) >= 0.0
        assert found.value - found.lower >= found.gap


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["squared", "logistic"]),
    st.sampled_from(KINDS),
    st.floats(-6.0, 2.0),
)
def test_certificate_is_never_below_the_true_error(seed: int, loss: str, kind: str, log_sigma: float) -> None:
    check_certificates(make_problem(seed, loss, kind, log_sigma), seed)


@pytest.mark.soak
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("kind", KINDS)
def test_certificate_is_never_below_the_true_error_of_a_thousand_problems(loss: str, kind: str) -> None:
    """Those of points and those that runs end with, for a hundred and twenty problems of each kind."""
    for seed in range(120):
        log_sigma = float(np.random.default_rng(seed).uniform(-6.0, 2.0))
        check_certificates(make_problem(seed, loss, kind, log_sigma), seed)
        for n_nodes, method in ((1, "adfs"), (3, "adfs"), (3, "adfs-block"), (3, "dagd")):
            problem = make_problem(seed, loss, kind, log_sigma, n_nodes)
            run = adfs.simulate(method, problem, f"path:{n_nodes}", tol=10.0 ** -(seed % 14), max_passes=300)
            assert true_error(problem, run.coef) <= run.gap * (1.0 + 1e-12) + 1e-18, (seed, method)


@pytest.mark.parametrize("name", sorted(ONE_OUTPUT))
def test_divergence_is_value_plus_conjugate_less_product(name: str) -> None:
    loss = get_loss(name)
    rng = np.random.default_rng(1)
    for _ in range(300):
        b = float(rng.choice([-1.0, 1.0])) if loss.task == "classification" else float(rng.normal())
        u = float(rng.normal() * 10.0 ** rng.uniform(-2, 1))
        own = type(loss)
        low, high = own.domain(loss, b)
        other = float(rng.normal() * 3.0)
        s = float(
            rng.choice([own.derivative(loss, u, b), own.derivative(loss, other, b), rng.uniform(-1, 1)])
        )
        s = min(max(s, low), high)
        plain = own.value(loss, u, b) + own.conjugate(loss, s, b) - u * s
        assert divergence(loss, u, s, b) >= 0.0
        assert divergence(loss, u, s, b) == pytest.approx(plain, rel=1e-9, abs=1e-13)
        if math.isfinite(high):
            assert divergence(loss, u, high + 0.5, b) == math.inf


def test_divergence_of_the_logistic_loss_keeps_its_digits_near_equality() -> None:
    loss = get_loss("logistic")
    rng = np.random.default_rng(2)
    with localcontext() as context:
        context.prec = 120
        for _ in range(100):
            u = float(rng.normal() * 10.0 ** rng.uniform(-2, 1.5))
            p = 1 / (1 + Decimal(u).exp())
            a = float(p) * (1.0 + float(10.0 ** rng.uniform(-12, -1)) * float(rng.choice([-1, 1])))
            chance = Decimal(min(a, 1.0))
            true = chance * (chance / p).ln()
            if chance < 1:
                true += (1 - chance) * ((1 - chance) / (1 - p)).ln()
            found = divergence(loss, u, -float(chance), 1.0)
            # Right for a margin within a few digits of u's last, as a certificate allows for.
            shift = 8.0 * np.finfo(float).eps
            bound = (math.sqrt(found) + shift * math.sqrt(0.125)) ** 2
            assert float(true) <= bound * (1.0 + 1e-13)
            assert found <= (math.sqrt(float(true)) + shift * math.sqrt(0.125)) ** 2 * (1.0 + 1e-13)


@pytest.mark.parametrize("method", ["lbfgs", "newton"])
def test_gap_on_rows_with_large_means_is_at_least_the_true_error(method: str) -> None:
    """F carries the rounding of the margins at first order; no tolerance can be met."""
    rng = np.random.default_rng(2)
    pair = rng.standard_normal((50, 2))
    X = np.column_stack([pair + np.array([-6e4, 6e4]), np.full(50, 6e4)])
    y = np.where(pair[:, 0] - pair[:, 1] + 0.5 * rng.standard_normal(50) > 0.0, 1.0, -1.0)
    problem = adfs.Problem(X, y, "squared_hinge", sigma=0.2)
    run = adfs.simulate(method, problem, tol=1e-30, max_passes=300)
    assert run.outcome is Outcome.OUT_OF_BUDGET
    assert (run.columns["gap"] > 0.0).all()
    truth = Reference(problem.loss, X, y, np.ones(50), np.zeros(50), 0.2)
    best = truth.value(truth.better(run.coef))
    assert truth.value(run.coef) - best <= run.absolute_gap
    assert run.columns["dual"].max() <= best
    assert run.absolute_gap == pytest.approx(run.gap * problem.value_at_zero)
