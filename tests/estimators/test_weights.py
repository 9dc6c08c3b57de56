"""A row of weight 2 is a row that is there twice, and one of weight 0 is none: for every model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_wine

from adfs import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from estimators.agreement_cases import classification, regression, standardised

SMOOTH, KINKED = (1e-14, 1e-6), (1e-8, 2e-3)  # tol, and how far apart coefficients may then be
# A few have a penalised intercept: their kernels are compiled for other tests already.
MODELS: dict[str, tuple[Any, tuple[float, float]]] = {
    "logistic": (ADFSClassifier(inference=True), SMOOTH),
    "logistic, standardised": (ADFSClassifier(standardize=True, inference=True), SMOOTH),
    "logistic, balanced": (ADFSClassifier(class_weight="balanced"), SMOOTH),
    "logistic, elastic net": (ADFSClassifier(l1_ratio=0.5), SMOOTH),
    "softmax": (ADFSClassifier(), SMOOTH),
    "one versus rest": (ADFSClassifier(multi_class="ovr"), SMOOTH),
    "squared hinge": (ADFSClassifier("squared_hinge"), SMOOTH),
    "smoothed hinge": (ADFSClassifier("smoothed_hinge"), SMOOTH),
    "hinge": (ADFSClassifier("hinge"), KINKED),
    "squared": (ADFSRegressor(inference=True), SMOOTH),
    "squared, standardised": (ADFSRegressor(standardize=True, inference=True), SMOOTH),
    "squared, elastic net": (ADFSRegressor(l1_ratio=0.5), SMOOTH),
    "huber": (ADFSRegressor("huber", inference=True), SMOOTH),
    "smoothed quantile": (ADFSRegressor("smoothed_quantile", quantile=0.7, intercept_scaling=1.0), SMOOTH),
    "poisson": (ADFSRegressor("poisson", inference=True), SMOOTH),
    "gamma": (ADFSRegressor("gamma", inference=True), SMOOTH),
    "tweedie": (ADFSRegressor("tweedie", power=1.3, inference=True), SMOOTH),
    "poisson, elastic net": (ADFSRegressor("poisson", l1_ratio=0.5), (1e-11, 1e-5)),
    "gamma by adfs": (ADFSRegressor("gamma", method="adfs"), (1e-11, 1e-5)),
    "absolute": (ADFSRegressor("absolute"), KINKED),
    "quantile": (ADFSRegressor("quantile", quantile=0.7, intercept_scaling=1.0), KINKED),
    "epsilon insensitive": (ADFSRegressor("epsilon_insensitive", intercept_scaling=1.0), KINKED),
}


def data_of(name: str, estimator: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(estimator, ADFSRegressor):
        X, y = regression("diabetes")
        counts = name.startswith(("poisson", "gamma", "tweedie"))
        return X[:90, :4], np.round(np.exp(1.0 + 0.5 * y[:90])) + 1.0 if counts else y[:90]
    if name in ("softmax", "one versus rest"):
        X, y = load_wine(return_X_y=True)
        return standardised(X)[::2, :4], y[::2]
    X, y = classification("breast_cancer")
    return X[:90, :4], y[:90]


@pytest.mark.parametrize("name", MODELS)
def test_sample_weights_are_repeated_rows(name: str) -> None:
    estimator, (tol, near) = MODELS[name]
    X, y = data_of(name, estimator)
    weights = np.arange(len(y)) % 3
    again = np.repeat(np.arange(len(y)), weights)
    half = len(y) // 2
    parts = [np.flatnonzero(again < half), np.flatnonzero(again >= half)]  # on the node where it was
    common = {"tol": tol, "n_nodes": 2, "random_state": 0}
    kind, given = type(estimator), estimator.get_params() | common
    model = kind(**given).fit(X, y, weights)
    other = kind(**(given | {"partition": parts})).fit(X[again], y[again])
    assert model.dual_gap_ <= tol
    assert np.abs(model.coef_ - other.coef_).max() <= near
    assert model.score(X, y, weights) == pytest.approx(other.score(X[again], y[again]), abs=near)
    if near == SMOOTH[1]:
        assert np.abs(model.intercept_ - other.intercept_).max() <= 10 * near
    if estimator.inference:
        for errors in ("standard_errors_", "robust_standard_errors_", "intercept_standard_error_"):
            assert getattr(model, errors) == pytest.approx(getattr(other, errors), rel=1e-5)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_cross_validation_counts_repeated_rows(name: str) -> None:
    base = MODELS[name][0]
    X, y = data_of(name, base)
    rows = sp.csr_array(X) if name == "logistic" else X
    weights = np.arange(len(y)) % 3
    again = np.repeat(np.arange(len(y)), weights)
    fold = np.arange(len(y)) // 2 % 3
    estimator = type(base)(**(base.get_params() | {"tol": 1e-12, "random_state": 0}))
    search: Any = ADFSClassifierCV if name == "logistic" else ADFSRegressorCV
    one, two = (
        search([1.0, 30.0], cv=[(each != k, each == k) for k in range(3)], estimator=estimator)
        for each in (fold, fold[again])
    )
    one.fit(rows, y, weights)
    two.fit(rows[again], y[again])
    assert one.scores_ == pytest.approx(two.scores_, abs=1e-5)
    assert one.coef_ == pytest.approx(two.coef_, abs=1e-5)
