"""Each model against one that people trust, on real data of several shapes, alone and on three ranks.

Targets, weights and exposures are columns of the bundled data sets themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import statsmodels.api as sm
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from adfs import ADFSClassifier, ADFSClassifierCV, ADFSRegressor
from estimators.agreement_cases import real, standardised
from memory_cluster import Threads, on_threads

RANKS = 3


# Of each model: the estimator, what else its fit is given, and the reference, fitted.
Case = tuple[Any, dict[str, Any], Any]


def logistic(X: Any, y: np.ndarray, weights: np.ndarray) -> Case:
    theirs = LogisticRegression(C=0.3, solver="newton-cholesky", tol=1e-13, max_iter=1000)
    return ADFSClassifier(C=0.3), {"sample_weight": weights}, theirs.fit(X, y, weights)


def logistic_net(X: Any, y: np.ndarray, weights: np.ndarray) -> Case:
    penalty: dict[str, Any] = {"C": 0.2, "l1_ratio": 0.6}
    theirs = LogisticRegression(**penalty, solver="saga", tol=1e-12, max_iter=100_000, random_state=0)
    return ADFSClassifier(**penalty), {"sample_weight": weights}, theirs.fit(X, y, weights)


def ridge(X: Any, y: np.ndarray, weights: np.ndarray) -> Case:
    theirs = Ridge(alpha=0.7, solver="cholesky").fit(X, y, weights)
    return ADFSRegressor(alpha=0.7), {"sample_weight": weights}, theirs


def elastic_net(X: Any, y: np.ndarray, weights: np.ndarray) -> Case:
    alpha = 0.25 * y.std()
    theirs = ElasticNet(alpha=alpha, l1_ratio=0.7, tol=1e-15, max_iter=1_000_000).fit(X, y, weights)
    return ADFSRegressor(alpha=alpha * weights.sum(), l1_ratio=0.7), {"sample_weight": weights}, theirs


def poisson(X: Any, y: np.ndarray, exposure: np.ndarray) -> Case:
    theirs = PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    ours = ADFSRegressor("poisson", alpha=0.1 * exposure.sum())
    return ours, {"offset": np.log(exposure)}, theirs.fit(X, y / exposure, exposure)


def gamma(X: Any, y: np.ndarray, exposure: np.ndarray) -> Case:
    theirs = GammaRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    ours = ADFSRegressor("gamma", alpha=0.1 * len(y))
    return ours, {"offset": np.log(exposure)}, theirs.fit(X, y / exposure)


def tweedie(power: float, X: Any, y: np.ndarray, exposure: np.ndarray) -> Case:
    y[::3] = 0.0
    # An offset log e is the same as the weight e to the power 2 − p of the rate.
    weights = exposure ** (2.0 - power)
    theirs = TweedieRegressor(
        power=power, link="log", alpha=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    ours = ADFSRegressor("tweedie", power=power, alpha=0.1 * weights.sum())
    return ours, {"offset": np.log(exposure)}, theirs.fit(X, y / exposure, weights)


def by_adfs(model: Callable[..., Case], *data: Any) -> Case:
    """Leave nothing to `auto`, which is newton here and adfs for the elastic nets."""
    ours, given, theirs = model(*data)
    return ours.set_params(method="adfs"), given, theirs


def pipeline(model: Callable[..., Case], X: Any, y: np.ndarray, weights: np.ndarray) -> Case:
    scaler = StandardScaler().fit(X, sample_weight=weights)
    ours, given, theirs = model(scaler.transform(X), y, weights)
    coef = theirs.coef_ / scaler.scale_
    intercept = theirs.intercept_ - coef @ scaler.mean_
    return ours.set_params(standardize=True), given, SimpleNamespace(coef_=coef, intercept_=intercept)


CLASSES = ["breast_cancer: classes", "wine: classes", "iris: classes", "digits: eights"]
AMOUNTS = ["diabetes: progression", "wine: colour", "breast_cancer: area"]
COUNTS = ["digits: ink", "iris: petals", "linnerud: sit-ups"]
MODELS: dict[str, tuple[Callable[..., Case], list[str]]] = {
    "LogisticRegression": (logistic, [*CLASSES, "wine: classes, sparse"]),
    "LogisticRegression, l1_ratio": (logistic_net, CLASSES[:3]),
    "Ridge": (ridge, [*AMOUNTS, "linnerud: sit-ups", "digits: ink, wide"]),
    "ElasticNet": (elastic_net, [*AMOUNTS, "digits: ink, wide"]),
    "PoissonRegressor": (poisson, [*COUNTS, "diabetes: progression"]),
    "PoissonRegressor, adfs": (partial(by_adfs, poisson), ["iris: petals"]),
    "GammaRegressor": (gamma, [*AMOUNTS, "linnerud: sit-ups"]),
    "GammaRegressor, adfs": (partial(by_adfs, gamma), ["wine: colour"]),
    "TweedieRegressor 1.2": (partial(tweedie, 1.2), ["digits: ink"]),
    "TweedieRegressor 1.5": (partial(tweedie, 1.5), AMOUNTS),
    "TweedieRegressor 1.9": (partial(tweedie, 1.9), ["wine: colour"]),
    "TweedieRegressor, adfs": (partial(by_adfs, partial(tweedie, 1.6)), ["wine: colour"]),
    "StandardScaler, LogisticRegression": (partial(pipeline, logistic), CLASSES[:3]),
    "StandardScaler, Ridge": (partial(pipeline, ridge), AMOUNTS),
}


def fit_twice(estimator: Any, X: Any, y: np.ndarray, given: dict[str, np.ndarray]) -> Any:
    """Fit on three nodes of one process and on three ranks; return the model once all bits are equal."""
    parts = np.array_split(np.arange(len(y)), RANKS)
    options = estimator.get_params() | {"network": "complete", "random_state": 0}
    alone = type(estimator)(**options | {"n_nodes": RANKS, "partition": parts}).fit(X, y, **given)

    def one(ranks: Threads) -> Any:
        own = parts[ranks.rank]
        mine = {name: values[own] for name, values in given.items()}
        return type(estimator)(**options | {"cluster": ranks}).fit(X[own], y[own], **mine)

    errors = ["standard_errors_", "robust_standard_errors_"] if estimator.inference else []
    for model in on_threads(RANKS, one):
        for part in ("coef_", "intercept_", "dual_gap_", "node_coef_", *errors):
            assert np.asarray(getattr(model, part)).tobytes() == np.asarray(getattr(alone, part)).tobytes()
    return alone


def near(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, (_, names) in MODELS.items() for name in names]
)
def test_estimators_have_the_coefficients_of_the_reference(model: str, name: str) -> None:
    X, y, weights = real(name)
    y = y.copy()  # a case may change its targets, and the data sets are shared
    raw = model.startswith("StandardScaler")
    X = X if raw or sp.issparse(X) else standardised(X)
    X = sp.csr_array(X) if name.endswith("sparse") else X
    ours, given, theirs = MODELS[model][0](X, y, weights)
    found = fit_twice(ours.set_params(tol=1e-15), X, y, given)
    spread = X.std(axis=0) if raw else 1.0
    near(found.coef_ * spread, theirs.coef_ * spread)
    # All classes of a softmax model may have one number more.
    several = np.size(theirs.intercept_) > 1
    near(*(one - np.mean(one) if several else one for one in (found.intercept_, theirs.intercept_)))
    if model in ("LogisticRegression, l1_ratio", "ElasticNet"):
        assert np.array_equal(found.coef_ != 0.0, theirs.coef_ != 0.0)
        assert 0 < np.count_nonzero(found.coef_) < found.coef_.size
    if model in ("PoissonRegressor", "GammaRegressor", "TweedieRegressor 1.5"):
        assert found.predict(X, **given) == pytest.approx(weights * theirs.predict(X), rel=1e-6)
        rates = (X, y / weights, weights)
        assert found.score(*rates) == pytest.approx(theirs.score(*rates), abs=1e-6)


FAMILIES: dict[str, tuple[Any, Any, list[str]]] = {
    "Gaussian": (sm.families.Gaussian(), ADFSRegressor("squared"), AMOUNTS),
    "Binomial": (
        sm.families.Binomial(),
        ADFSClassifier("logistic"),
        ["breast_cancer: a class", "wine: a class", "iris: a class"],
    ),
    "Poisson": (
        sm.families.Poisson(),
        ADFSRegressor("poisson"),
        ["diabetes: progression", "iris: petals", "linnerud: sit-ups"],
    ),
    "Gamma": (sm.families.Gamma(sm.families.links.Log()), ADFSRegressor("gamma"), AMOUNTS),
    "Tweedie": (
        sm.families.Tweedie(sm.families.links.Log(), var_power=1.4),
        ADFSRegressor("tweedie", power=1.4),
        ["wine: colour"],
    ),
}


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, (*_, names) in FAMILIES.items() for name in names]
)
def test_standard_errors_are_those_of_statsmodels(family: str, name: str) -> None:
    X, y, exposure = real(name)
    X = standardised(X)
    theirs, ours, _ = FAMILIES[family]
    offset = np.log(exposure) if family in ("Poisson", "Gamma", "Tweedie") else 0.1 * exposure
    weights = 1 + np.arange(len(y)) % 3  # as repeated rows
    again = np.repeat(np.arange(len(y)), weights)
    design = np.column_stack([X, np.ones(len(y))])[again]
    model = sm.GLM(y[again], design, family=theirs, offset=offset[again])
    expected, robust = (model.fit(tol=1e-14, maxiter=200, cov_type=kind) for kind in ("nonrobust", "HC0"))
    penalty = {"C": 1e9} if family == "Binomial" else {"alpha": 1e-9}  # too small to matter
    rows = sp.csr_array(X) if name.startswith("breast_cancer") else X
    given = {"sample_weight": weights, "offset": offset}
    found = fit_twice(ours.set_params(inference=True, tol=1e-13, **penalty), rows, y, given)
    near(np.append(found.coef_, found.intercept_), expected.params)
    errors = np.append(found.standard_errors_, found.intercept_standard_error_)
    assert errors == pytest.approx(expected.bse, rel=1e-6)
    assert np.ravel(found.robust_standard_errors_) == pytest.approx(robust.bse[:-1], rel=1e-6)
    assert np.ravel(found.p_values_) == pytest.approx(expected.pvalues[:-1], rel=1e-4, abs=1e-30)
    assert found.dispersion_ == pytest.approx(expected.scale, rel=1e-6)
    assert float(found.summary().header["df residuals"]) == expected.df_resid
    assert found.summary().notes == ()


@pytest.mark.parametrize("name", ["breast_cancer: classes", "wine: a class", "iris: a class"])
def test_classifier_cv_chooses_as_logistic_regression_cv_does(name: str) -> None:
    X, y, weights = real(name)
    X, grid = standardised(X), [0.003, 0.1, 3.0]
    folds = list(StratifiedKFold(3, shuffle=True, random_state=1).split(X, y))

    def search(rows: np.ndarray, **options: Any) -> ADFSClassifierCV:
        own = [(np.isin(rows, train), np.isin(rows, test)) for train, test in folds]
        base = ADFSClassifier(network="complete", tol=1e-15, random_state=0, **options)
        return ADFSClassifierCV(grid, cv=own, estimator=base).fit(X[rows], y[rows], weights[rows])

    theirs = LogisticRegressionCV(
        Cs=grid,
        cv=folds,
        solver="newton-cholesky",
        tol=1e-12,
        l1_ratios=(0,),
        scoring="accuracy",
        use_legacy_attributes=False,
    ).fit(X, y, sample_weight=weights)
    parts = np.array_split(np.arange(len(y)), RANKS)
    found = search(np.arange(len(y)), n_nodes=RANKS, partition=parts)
    assert found.C_ == theirs.C_
    assert found.scores_ == pytest.approx(theirs.scores_[:, 0], rel=1e-12)
    near(found.coef_, theirs.coef_)
    for model in on_threads(RANKS, lambda ranks: search(parts[ranks.rank], cluster=ranks)):
        assert (model.C_, model.scores_.tobytes()) == (found.C_, found.scores_.tobytes())
        assert model.coef_.tobytes() == found.coef_.tobytes()
