"""The estimators against scikit-learn where the objective is the same, and otherwise against another solver.

Smooth losses agree to 1e-6 in the coefficients (5e-6 with the squared hinge), others to 1e-4, for one
node and for several.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR

from adfs import ADFSClassifier, ADFSRegressor, Problem
from adfs.problem import get_loss
from estimators.agreement_cases import NODES, classification, regression, standardised

SMOOTH, KINKED = 1e-6, 1e-4
CLASSIFICATION = ("breast_cancer", "digits", "texts")


def check(model: Any, coef: np.ndarray, intercept: Any, tolerance: float) -> None:
    assert model.dual_gap_ <= model.tol
    assert np.abs(model.coef_ - coef).max() <= tolerance
    assert np.abs(np.asarray(model.intercept_) - intercept).max() <= tolerance
    # Every node has come to the same model.
    assert model.node_coef_.shape == (model.n_nodes, coef.shape[-1])
    assert np.abs(model.node_coef_ - coef).max() <= 100 * tolerance


@functools.cache
def liblinear(kind: str, name: str, intercept: bool) -> Any:
    X, y = classification(name)
    X = sp.csr_matrix(X) if sp.issparse(X) else X
    if kind == "logistic":
        return LogisticRegression(
            solver="liblinear", tol=1e-14, max_iter=10_000, fit_intercept=intercept
        ).fit(X, y)
    if kind == "squared_hinge":
        return LinearSVC(dual=False, tol=1e-14, max_iter=100_000, fit_intercept=intercept).fit(X, y)
    return LinearSVC(loss="hinge", tol=1e-9, max_iter=3_000_000, fit_intercept=intercept, random_state=0).fit(
        X, y
    )


def dense(X: Any) -> np.ndarray:
    """Return rows that the kernels of most losses are compiled for; sparse ones are tried with a few."""
    return X.toarray() if sp.issparse(X) else X


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_classifier_agrees_with_liblinear_for_smooth_losses(loss: str, name: str, n_nodes: int) -> None:
    X, y = classification(name)
    X = X if loss == "logistic" else dense(X)
    for intercept in (False, True):
        model = ADFSClassifier(
            loss,
            fit_intercept=intercept,
            intercept_scaling=1.0,
            n_nodes=n_nodes,
            tol=2e-14,
            random_state=0,
        ).fit(X, y)
        reference = liblinear(loss, name, intercept)
        # With the squared hinge liblinear stops up to 2e-6 from the optimum, depending on the processor.
        tolerance = SMOOTH if loss == "logistic" else 5.0 * SMOOTH
        check(model, reference.coef_, reference.intercept_, tolerance)


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classifier_agrees_with_liblinear_for_the_hinge(name: str, n_nodes: int) -> None:
    X, y = classification(name)
    model = ADFSClassifier(
        "hinge", intercept_scaling=1.0, n_nodes=n_nodes, network="complete", tol=1e-8, random_state=0
    )
    if X.shape[1] <= 200:
        model.set_params(tol=1e-11)  # of which interior points make nothing
    model.fit(X, y)
    reference = liblinear("hinge", name, True)
    check(model, reference.coef_, reference.intercept_, KINKED)


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", ["diabetes", "texts"])
def test_regressor_without_an_intercept_agrees_with_ridge(name: str, n_nodes: int) -> None:
    X, y = regression(name)
    weights = np.random.default_rng(0).uniform(0.0, 2.0, y.size)
    reference = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(dense(X), y, weights)
    model = ADFSRegressor(alpha=0.7, fit_intercept=False, n_nodes=n_nodes, tol=1e-14, random_state=0)
    check(model.fit(X, y, weights), reference.coef_, 0.0, SMOOTH)


def test_regressor_with_an_intercept_agrees_on_sparse_and_dense_rows() -> None:
    X, y = regression("diabetes")
    X = X + 3.0  # far from centred
    for alpha in (1e-2, 1.0, 1e4):
        reference = Ridge(alpha=alpha, solver="svd").fit(X, y)
        model = ADFSRegressor(alpha=alpha, tol=1e-13, random_state=0).fit(sp.csr_array(X), y)
        assert model.dual_gap_ <= 1e-13
        assert np.abs(model.coef_ - reference.coef_).max() <= SMOOTH
        assert abs(model.intercept_ - reference.intercept_) <= 5 * SMOOTH
        assert model.node_intercept_[0] == pytest.approx(reference.intercept_, abs=1e-4)


REGRESSIONS = {
    "huber": ({"delta": 0.8}, SMOOTH, 1e-14),
    "smoothed_quantile": ({"quantile": 0.8, "width": 0.3}, SMOOTH, 1e-14),
    "absolute": ({}, KINKED, 1e-9),
    "quantile": ({"quantile": 0.3}, KINKED, 1e-8),
    "epsilon_insensitive": ({"epsilon": 0.2}, KINKED, 1e-8),
}


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", ["diabetes", "texts"])
@pytest.mark.parametrize("loss", REGRESSIONS)
def test_regressor_agrees_with_another_solver_for_other_losses(loss: str, name: str, n_nodes: int) -> None:
    constants, tolerance, tol = REGRESSIONS[loss]
    X, y = regression(name)
    model = ADFSRegressor(
        loss,
        alpha=1.3,
        intercept_scaling=1.0,
        n_nodes=n_nodes,
        network="complete",
        tol=tol,
        max_iter=50_000,
        random_state=0,
        **constants,
    ).fit(dense(X), y)
    coef, intercept = other_solver(loss, name)
    check(model, coef, intercept, tolerance)


# The conjugates in s = ℓ'(u), less s·y: the ends of their domain, half their curvature, their slope in |s|.
CONJUGATES = {
    "huber": (-0.8, 0.8, 0.5, 0.0),
    "smoothed_quantile": (-0.8, 0.2, 0.15, 0.0),
    "absolute": (-1.0, 1.0, 0.0, 0.0),
    "quantile": (-0.3, 0.7, 0.0, 0.0),
    "epsilon_insensitive": (-1.0, 1.0, 0.0, 0.2),
}


@functools.cache
def other_solver(loss: str, name: str) -> tuple[np.ndarray, float]:
    """Return coefficients and intercept from a solver of others."""
    if name == "diabetes" and loss in ("absolute", "epsilon_insensitive"):
        return liblinear_regression(0.0 if loss == "absolute" else 0.2)
    if name == "diabetes" and loss == "quantile":
        return interior_point()
    return bounded_dual(loss, name)


def liblinear_regression(epsilon: float) -> tuple[np.ndarray, float]:
    X, y = regression("diabetes")
    found = LinearSVR(epsilon=epsilon, C=1.0 / 1.3, tol=1e-10, max_iter=3_000_000, random_state=0).fit(X, y)
    return found.coef_, float(found.intercept_[0])


def interior_point() -> tuple[np.ndarray, float]:
    """The package's own interior point: SciPy's L-BFGS-B stalls here, and liblinear has no quantiles."""
    X, y = regression("diabetes")
    rows = np.hstack([X, np.ones((y.size, 1))])
    theta = Problem(rows, y, get_loss("quantile", quantile=0.3), sigma=1.3).optimum(1e-13).theta
    return theta[:-1], float(theta[-1])


def bounded_dual(loss: str, name: str) -> tuple[np.ndarray, float]:
    """SciPy's L-BFGS-B on the dual, a problem with bounds, written out here; nothing of the package in it."""
    X, y = regression(name)
    rows = np.hstack([dense(X), np.ones((y.size, 1))])  # the intercept's column
    low, high, bend, slope = CONJUGATES[loss]

    def dual(parts: np.ndarray) -> tuple[float, np.ndarray]:
        up, down = np.split(parts, 2)  # s = up − down, so that |s| is smooth
        s = up - down
        total = rows.T @ s
        gradient = y + 2.0 * bend * s + rows @ total / 1.3
        value = s @ y + bend * s @ s + slope * parts.sum() + total @ total / 2.6
        return float(value), np.concatenate([gradient + slope, slope - gradient])

    bounds = [(0.0, high)] * y.size + [(0.0, -low)] * y.size
    options = {"maxiter": 200_000, "maxfun": 400_000, "ftol": 0.0, "gtol": 1e-13, "maxcor": 50}
    found = minimize(dual, np.zeros(2 * y.size), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    theta = -rows.T @ (found.x[: y.size] - found.x[y.size :]) / 1.3
    return theta[:-1], float(theta[-1])


@pytest.mark.parametrize("n_nodes", NODES)
def test_classifier_of_ten_classes_agrees_with_scikit_learn(n_nodes: int) -> None:
    X, y = datasets.load_digits(return_X_y=True)
    rows = standardised(X)
    reference = OneVsRestClassifier(LogisticRegression(solver="liblinear", tol=1e-13, max_iter=10_000)).fit(
        rows, y
    )
    options: dict[str, Any] = {"multi_class": "ovr", "n_nodes": n_nodes, "network": "complete"}
    model = ADFSClassifier(intercept_scaling=1.0, tol=1e-13, random_state=0, **options).fit(rows, y)
    assert model.coef_.shape == (10, 64)
    for row, one in zip(model.coef_, reference.estimators_, strict=True):
        assert np.abs(row - one.coef_.ravel()).max() <= 3e-6
    assert np.array_equal(model.predict(rows), reference.predict(rows))


def test_classifier_agrees_with_scikit_learn_for_the_multinomial_loss() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = rng.integers(0, 3, 60)
    reference = LogisticRegression(fit_intercept=False, C=0.5, tol=1e-12, max_iter=1000).fit(X, y)
    for n_nodes in (1, 3):
        model = ADFSClassifier(
            C=0.5, multi_class="multinomial", fit_intercept=False, n_nodes=n_nodes, tol=1e-13, random_state=0
        ).fit(X, y)
        assert np.abs(model.coef_ - reference.coef_).max() <= SMOOTH
        assert np.allclose(model.predict_proba(X), reference.predict_proba(X), atol=1e-6)
        assert model.node_coef_.shape == (3, n_nodes, 3)
    two = ADFSClassifier(C=0.5, multi_class="multinomial", tol=1e-12, random_state=0).fit(X, y == 1)
    assert two.coef_.shape == (1, 3)
    # Two penalised vectors, ±θ/2 at the optimum: the penalty on their difference is half as strong.
    assert np.abs(two.coef_ - ADFSClassifier(C=1.0, tol=1e-13).fit(X, y == 1).coef_).max() <= 1e-5
