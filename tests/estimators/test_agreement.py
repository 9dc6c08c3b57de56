"""The estimators against scikit-learn where the objective is the same, and otherwise against another solver.

Smooth losses agree to 1e-6 in the coefficients, others to 1e-4, for one node and for several.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from adfs import ADFSClassifier, ADFSRegressor, Problem
from adfs.problem import get_loss
from estimators.agreement_cases import NODES, classification, regression

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


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", CLASSIFICATION)
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_smooth_classifiers_agree_with_liblinear(loss: str, name: str, n_nodes: int) -> None:
    X, y = classification(name)
    for intercept in (False, True):
        model = ADFSClassifier(loss, fit_intercept=intercept, n_nodes=n_nodes, tol=2e-14, random_state=0).fit(
            X, y
        )
        reference = liblinear(loss, name, intercept)
        check(model, reference.coef_, reference.intercept_, SMOOTH)


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_the_hinge_agrees_with_liblinear(name: str, n_nodes: int) -> None:
    X, y = classification(name)
    model = ADFSClassifier("hinge", n_nodes=n_nodes, graph="complete", tol=1e-6, random_state=0).fit(X, y)
    reference = liblinear("hinge", name, True)
    check(model, reference.coef_, reference.intercept_, KINKED)


def weighted(name: str, intercept: bool) -> tuple[Any, np.ndarray, np.ndarray]:
    X, y = regression(name)
    weights = np.random.default_rng(0).uniform(0.0, 2.0, y.size)
    return X, y + 5.0 if intercept else y, weights  # an intercept that a penalty would have moved


@functools.cache
def ridge(name: str, intercept: bool) -> Any:
    X, y, weights = weighted(name, intercept)
    dense = X.toarray() if sp.issparse(X) else X
    return Ridge(alpha=0.7, fit_intercept=intercept, solver="cholesky").fit(dense, y, weights)


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", ["diabetes", "texts"])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_squared_loss_agrees_with_ridge(name: str, intercept: bool, n_nodes: int) -> None:
    X, y, weights = weighted(name, intercept)
    model = ADFSRegressor(alpha=0.7, fit_intercept=intercept, n_nodes=n_nodes, tol=1e-14, random_state=0)
    model.fit(X, y, weights)
    reference = ridge(name, intercept)
    check(model, reference.coef_, reference.intercept_, SMOOTH)


def test_sparse_rows_with_an_intercept_give_what_dense_ones_do() -> None:
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
    "absolute": ({}, KINKED, 3e-7),
    "quantile": ({"quantile": 0.3}, KINKED, 3e-7),
    "epsilon_insensitive": ({"epsilon": 0.2}, KINKED, 3e-7),
}


@pytest.mark.parametrize("n_nodes", NODES)
@pytest.mark.parametrize("name", ["diabetes", "texts"])
@pytest.mark.parametrize("loss", REGRESSIONS)
def test_other_regressions_agree_with_another_solver(loss: str, name: str, n_nodes: int) -> None:
    constants, tolerance, tol = REGRESSIONS[loss]
    X, y = regression(name)
    model = ADFSRegressor(
        loss,
        alpha=1.3,
        n_nodes=n_nodes,
        graph="complete",
        tol=tol,
        max_iter=50_000,
        random_state=0,
        **constants,
    ).fit(X, y)
    coef, intercept = other_solver(loss, name)
    check(model, coef, intercept, tolerance)


@functools.cache
def other_solver(loss: str, name: str) -> tuple[np.ndarray, float]:
    """Newton's method or an interior point on the primal with a column for the intercept; no ADFS in it."""
    X, y = regression(name)
    column = np.ones((y.size, 1))
    rows = sp.hstack([X, column], format="csr") if sp.issparse(X) else np.hstack([X, column])
    problem = Problem(rows, y, get_loss(loss, **REGRESSIONS[loss][0]), sigma=1.3)
    theta = problem.optimum(1e-13).theta
    if problem.loss.smooth:
        # A third opinion, from SciPy.
        found = minimize(
            problem.objective, np.zeros(theta.size), jac=problem.gradient, method="BFGS", tol=1e-6
        )
        assert np.abs(found.x - theta).max() <= 1e-5
    return theta[:-1], float(theta[-1])


def test_multinomial_agrees_with_scikit_learn() -> None:
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
