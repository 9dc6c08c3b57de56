"""Intercepts that are not penalised, offsets and standardised columns, on one process and on several."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

import adfs
from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSRegressor
from adfs.estimators.intercepts import balanced
from adfs.problem.losses import get_loss, value
from adfs.runtimes import OneProcess
from adfs.runtimes.certificates import AllNodes
from adfs.runtimes.cluster import Placement
from estimators.agreement_cases import classification, regression
from long_double import Reference
from memory_cluster import Threads, on_threads


@pytest.mark.parametrize("n_nodes", [1, 3])
def test_newton_fits_an_intercept_in_one_round_however_long_the_rows(n_nodes: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 1.0, (300, 4)) * [1.0, 1e3, 1e6, 1e7]
    y = 50.0 + X @ [1.0, 1e-3, 1e-6, 1e-7] + rng.standard_normal(300)
    model = ADFSRegressor(tol=1e-8, n_nodes=n_nodes, network="complete").fit(X, y)
    reference = Ridge(solver="cholesky").fit(X, y)
    assert (model.method_, model.dual_gap_ <= 1e-8, len(model.history_)) == ("newton", True, 2)
    assert np.abs(model.predict(X) - reference.predict(X)).max() <= 1e-6
    assert model.intercept_ == pytest.approx(reference.intercept_, rel=1e-6)


@pytest.mark.parametrize("loss", ["huber", "squared_hinge"])
def test_intercept_is_that_of_another_solver_for_other_losses(loss: str) -> None:
    X, y = regression("diabetes") if loss == "huber" else classification("breast_cancer")
    X, y = X[:150, :6], y[:150]
    offset = np.sin(np.arange(150.0))
    if loss == "huber":
        model: Any = ADFSRegressor(loss, alpha=0.7, delta=0.8, tol=1e-13, random_state=0)
    else:
        model = ADFSClassifier(loss, C=0.7, tol=1e-13, random_state=0)
    model.fit(X, y, offset=offset)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        u = X @ theta[:-1] + theta[-1] + offset
        if loss == "huber":
            slope = np.clip(u - y, -0.8, 0.8)
            parts, weight, alpha = slope * (u - y) - 0.5 * slope**2, 1.0, 0.7
        else:
            sign = np.where(y == 1, 1.0, -1.0)
            short = np.maximum(0.0, 1.0 - sign * u)
            parts, slope, weight, alpha = short**2, -2.0 * sign * short, 0.7, 1.0
        gradient = np.append(X.T @ slope, slope.sum()) * weight
        gradient[:-1] += alpha * theta[:-1]
        return weight * parts.sum() + 0.5 * alpha * theta[:-1] @ theta[:-1], gradient

    found = minimize(objective, np.zeros(7), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    assert np.abs(np.ravel(model.coef_) - found[:-1]).max() <= 1e-6
    assert abs(np.ravel(model.intercept_)[0] - found[-1]) <= 1e-6
    if loss == "huber":
        assert np.allclose(model.predict(X, offset), model.predict(X) + offset, atol=1e-12)


@pytest.mark.soak
@pytest.mark.parametrize("tol", [1e-2, 1e-4])
def test_classifier_meets_a_loose_tolerance_on_raw_sparse_rows(tol: float) -> None:
    X, y = load_wine(return_X_y=True)
    model = ADFSClassifier(tol=tol).fit(sp.csr_array(X), y == 1)
    assert model.dual_gap_ <= tol
    assert model.n_iter_ < 60  # a point that is not exact in the intercept's direction certifies nothing


def test_intercept_of_a_kinked_loss_is_certified_and_not_penalised() -> None:
    X, y = regression("diabetes")
    model = ADFSRegressor("absolute", alpha=5.0, tol=1e-4, random_state=0).fit(X, y + 100.0)
    assert model.dual_gap_ <= 1e-4
    assert abs(model.intercept_ - 100.0) < 0.5  # the penalty would have kept it at 98


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_standardize_is_a_pipeline_with_a_scaler(kind: str) -> None:
    X, y = classification("breast_cancer")
    X = X * np.geomspace(1e-3, 1e4, 30) + 5.0 * (kind == "dense")
    X[:, 3] = 7.0  # constant
    weights = 1.0 + np.arange(len(y)) % 2
    scaler = StandardScaler().fit(X, sample_weight=weights)
    reference = LogisticRegression(solver="newton-cholesky", tol=1e-13).fit(scaler.transform(X), y, weights)
    rows = X if kind == "dense" else sp.csr_array(X)
    model = ADFSClassifier(standardize=True, n_nodes=3, tol=1e-14, random_state=0).fit(rows, y, weights)
    away = np.abs(model.coef_ * scaler.scale_ - reference.coef_).ravel()
    assert np.delete(away, 3).max() <= 1e-6
    assert away[3] <= 1e-5  # which a sparse constant column shares with the intercept
    shift = model.intercept_ + model.coef_ @ scaler.mean_
    assert np.abs(shift - reference.intercept_).max() <= 1e-5
    assert (
        np.abs(model.decision_function(rows) - reference.decision_function(scaler.transform(X))).max() <= 1e-5
    )


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_intercept_on_three_ranks_has_the_bits_of_one_process(kind: str) -> None:
    estimator = ADFSClassifier("hinge", tol=1e-2, standardize=True, network="complete", random_state=1)
    X, y = classification("breast_cancer")
    X, y, offset = X[:60, :4], y[:60], X[:60, 4]
    X = sp.csr_array(X) if kind == "sparse" else X
    alone = clone(estimator).set_params(n_nodes=3).fit(X, y, offset=offset)

    def one(ranks: Threads) -> Any:
        own = slice(20 * ranks.rank, 20 * ranks.rank + 20)
        return clone(estimator).set_params(cluster=ranks).fit(X[own], y[own], offset=offset[own])

    for model in on_threads(3, one):
        assert (model.dual_gap_, model.absolute_gap_) == (alone.dual_gap_, alone.absolute_gap_)
        for part in ("coef_", "intercept_", "node_coef_", "node_intercept_"):
            assert np.array_equal(getattr(model, part), getattr(alone, part))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["logistic", "hinge", "squared", "absolute", "multinomial"]))
def test_balanced_duals_sum_to_zero_inside_their_domains(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    m = 12
    task = get_loss(name).task
    y = rng.choice([-1.0, 1.0], m) if task == "classification" else rng.standard_normal(m)
    if name == "multinomial":
        y = np.concatenate([np.arange(3), rng.integers(0, 3, m - 3)]).astype(float)
    weights = rng.uniform(0.1, 3.0, m) * (rng.random(m) < 0.9)
    problem = adfs.Problem(np.ones((m, 1)), y, name, 1.0, 2, sample_weight=weights)
    shape = (m, *problem.dual_shape)
    duals = problem.clip_to_domain(
        weights.reshape(-1, *[1] * len(problem.dual_shape)) * rng.normal(0, 2, shape)
    )
    nodes = AllNodes(OneProcess(), Placement(np.zeros(2, int), np.empty((0, 2), int), 1), problem)
    found = balanced(problem, duals, nodes)
    assert np.abs(found.sum(axis=0)).max() <= 1e-12 * (1.0 + np.abs(duals).sum())
    inside = problem.clip_to_domain(found)
    assert np.allclose(inside, found, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["logistic", "squared", "huber"]), st.floats(-3.0, 3.0))
def test_certificate_with_an_intercept_is_never_below_the_true_error(
    seed: int, name: str, log_alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((14, 2)) * np.exp(rng.uniform(-3.0, 3.0, 2)) + rng.normal(0.0, 3.0, 2)
    offset, alpha = rng.normal(0.0, 2.0, 14), float(np.exp(log_alpha))
    if name == "logistic":
        y: Any = rng.permutation(np.arange(14) % 2)
        model: Any = ADFSClassifier(C=1.0 / alpha, tol=1e-3, random_state=0)
        weight, scale, signs = 1.0 / alpha, 1.0, np.where(y == 1, 1.0, -1.0)
    else:
        y = rng.normal(5.0, 1.0, 14)
        model = ADFSRegressor(name, alpha=alpha, tol=1e-3, random_state=0)
        weight, scale, signs = 1.0, alpha, y
    loss = get_loss(name)

    def objective(theta: np.ndarray) -> float:
        u = X @ theta[:-1] + theta[-1] + offset
        losses = sum(value(loss, float(a), float(b)) for a, b in zip(u, signs, strict=True))
        return weight * losses + 0.5 * scale * float(theta[:-1] @ theta[:-1])

    model.fit(X, y, offset=offset)
    found = np.append(model.coef_, model.intercept_)
    start = found.copy()
    for _ in range(2):
        start = minimize(objective, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    error, rounding = objective(found) - objective(start), 1e-12 * objective(np.zeros(3))
    assert error <= model.absolute_gap_ + rounding
    assert model.dual_gap_ <= 1e-3


@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("name", ["quantile", "huber", "squared", "hinge", "logistic", "multinomial"])
def test_gap_is_relative_to_the_best_constant_model(name: str, with_offset: bool) -> None:
    """Targets whose mean is far from the best constant, and classes of different sizes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    loss: Any = get_loss(name, quantile=0.01) if name == "quantile" else get_loss(name)
    classes = 3 if name == "multinomial" else 2
    if loss.task == "regression":
        y: Any = np.exp(3.0 * rng.standard_normal(60))
        options = {"quantile": 0.01} if name == "quantile" else {}
        model: Any = ADFSRegressor(name, tol=1e-3, random_state=0, **options)
    else:
        y = np.maximum(np.arange(60) - 59 + classes - 1, 0)  # one of each but the first
        method = "logistic" if name == "multinomial" else name
        model = ADFSClassifier(method, tol=1e-3, random_state=0)
    offset = rng.standard_normal((60, 3) if classes == 3 else 60) if with_offset else None
    model.fit(X, y, offset=offset)
    shift = np.zeros((60, 3) if classes == 3 else 60) if offset is None else offset

    def constant(levels: np.ndarray) -> float:
        if classes == 3:
            u = shift + levels
            return float((np.logaddexp.reduce(u, axis=1) - u[np.arange(60), y]).sum())
        labels = y if loss.task == "regression" else 2.0 * y - 1.0
        margins = zip(shift + levels[0], labels, strict=True)
        return float(sum(value(loss, float(u), float(b)) for u, b in margins))

    regression = loss.task == "regression"
    starts = [np.zeros(3 if classes == 3 else 1), *((y - shift)[:, None] if regression else ())]
    rough = min(starts, key=constant)
    found = minimize(constant, rough, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9})
    scale = model.absolute_gap_ / model.dual_gap_
    assert found.fun * (1.0 - 1e-6) <= scale <= 1.0101 * found.fun


@pytest.mark.parametrize(
    ("name", "l1_ratio"), [("absolute", 0.0), ("epsilon_insensitive", 0.0), ("huber", 0.5), ("squared", 0.0)]
)
def test_regressor_certifies_targets_far_from_zero_as_returned(name: str, l1_ratio: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = 1e8 + X @ [1.0, 2.0] + rng.standard_normal(60)
    model = ADFSRegressor(name, l1_ratio=l1_ratio, tol=1e-12, max_iter=300, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # kinks do not let an intercept of 1e8 be exact
        model.fit(X, y)
    ridge, l1 = 1.0 - l1_ratio, l1_ratio
    truth = Reference(get_loss(name), X, y, np.ones(60), np.zeros(60), ridge, l1, intercept=True)
    point = np.append(model.coef_, model.intercept_)
    error = truth.value(point) - truth.value(truth.better(point))
    assert error - truth.rounding(point) <= model.absolute_gap_
    assert model.dual_gap_ <= 1e-8


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, how) for name in ("poisson", "gamma", "tweedie") for how in ("adfs", "newton")),
        ("squared", "agd"),
    ],
)
def test_regressor_certifies_constant_targets(name: str, method: str) -> None:
    X = np.random.default_rng(0).standard_normal((40, 2))
    model = ADFSRegressor(name, method=method, random_state=0).fit(X, np.full(40, 0.3))
    assert model.dual_gap_ <= 1e-12
    assert model.n_iter_ < 100
    assert np.abs(model.predict(X) - 0.3).max() <= 1e-12


def test_estimators_refuse_bad_offsets() -> None:
    X, y = np.eye(4), np.array([0, 1, 2, 1])
    with pytest.raises(InputError, match="offset must have one entry per row: X has 4 rows"):
        ADFSClassifier().fit(X, y, offset=np.zeros(3))
    with pytest.raises(InputError, match="one column per class"):
        ADFSClassifier().fit(X, y, offset=np.zeros(4))
    with pytest.raises(InputError, match="offset contains NaN"):
        ADFSRegressor().fit(X, y, offset=[0.0, 0.0, np.nan, 0.0])
    model = ADFSClassifier().fit(X, y == 1)
    with pytest.raises(InputError, match="offset must have shape"):
        model.predict(X, offset=[1.0])


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge", "huber", "smoothed_quantile"])
def test_estimators_converge_on_raw_columns_beside_an_identifier(loss: str) -> None:
    """Gaps of 1e15 on the way, as far as F has never grown, are not divergence."""
    X, y = load_breast_cancer(return_X_y=True)
    identifier = np.random.default_rng(0).integers(8_000, 911_000_000, len(y)).astype(float)
    rows = np.column_stack([identifier, X])
    if loss in ("huber", "smoothed_quantile"):  # areas up to 2,500, and a kink within 1 or so
        model = adfs.ADFSRegressor(loss).fit(np.delete(rows, 4, axis=1), X[:, 3])
    else:
        model = adfs.ADFSClassifier(loss).fit(rows, y)
        assert model.score(rows, y) > 0.95
    assert model.dual_gap_ <= 1e-6
    assert model.n_iter_ < 300
