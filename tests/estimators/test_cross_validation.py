"""The weight of the penalty chosen by cross-validation."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from adfs.runtimes import RunOptions
from adfs.runtimes.cluster import RefusalError
from estimators.agreement_cases import classification, regression, standardised
from memory_cluster import Threads, on_threads

GRID = [0.003, 0.1, 3.0]
DATA = Path(__file__).parents[3] / "shared" / "data"


def shared(name: str, n_rows: int) -> tuple[sp.csr_matrix, np.ndarray]:
    path = DATA / f"{name}.bz2"
    if not path.exists():
        pytest.skip(f"{path} is not there; it comes with the data beside the project")
    X, y = datasets.load_svmlight_file(str(path))
    chosen = np.random.default_rng(0).permutation(len(y))[:n_rows]
    return X[chosen], y[chosen]


def labelled(name: str) -> tuple[Any, np.ndarray]:
    if name in ("a9a", "mushrooms"):
        return shared(name, 1000)
    if name == "digits":  # all ten classes
        X, y = datasets.load_digits(return_X_y=True)
        return standardised(X[:300]), y[:300]
    return classification(name)


SLOWER = [pytest.param(name, marks=pytest.mark.soak) for name in ("digits", "a9a")]


@pytest.mark.parametrize("name", ["wine", "mushrooms", *SLOWER])
def test_classifier_cv_chooses_as_scikit_learn_does_on_the_same_folds(name: str) -> None:
    X, y = labelled(name)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y)) if name == "wine" else None
    folds = list(StratifiedKFold(3, shuffle=True, random_state=1).split(X, y))
    reference = LogisticRegressionCV(
        Cs=GRID,
        cv=folds,
        solver="newton-cholesky",
        tol=1e-12,
        l1_ratios=(0,),
        scoring="accuracy",
        use_legacy_attributes=False,
    ).fit(X, y, sample_weight=weights)
    base = ADFSClassifier(n_nodes=2, partition="random", tol=1e-15, random_state=0)
    model = ADFSClassifierCV(GRID, cv=folds, estimator=base).fit(X, y, sample_weight=weights)
    assert model.C_ == reference.C_
    assert np.allclose(model.scores_, reference.scores_[:, 0], rtol=1e-12)
    assert np.abs(model.coef_ - reference.coef_).max() <= 1e-6
    assert np.abs(model.intercept_ - reference.intercept_).max() <= 1e-6
    assert np.array_equal(model.predict(X), reference.predict(X))
    assert np.allclose(model.predict_log_proba(X), reference.predict_log_proba(X), atol=1e-5)


@pytest.mark.parametrize("name", ["diabetes", "texts", "abalone_scale"])
def test_regressor_cv_chooses_as_ridge_does(name: str) -> None:
    X, y = regression(name) if name != "abalone_scale" else shared(name, 1000)
    folds, grid = KFold(4, shuffle=True, random_state=0), [0.1, 1.0, 30.0, 1e4]
    rows = X.toarray() if sp.issparse(X) else X  # on which it is exact
    reference = RidgeCV(grid, cv=folds).fit(rows, y)
    scores = [cross_val_score(Ridge(alpha=alpha), rows, y, cv=folds) for alpha in grid]
    base = ADFSRegressor(n_nodes=3, tol=1e-15, random_state=0)
    model = ADFSRegressorCV(grid, cv=folds, estimator=base).fit(X, y)
    assert model.alpha_ == reference.alpha_
    assert np.allclose(model.scores_, np.transpose(scores), atol=1e-7)
    assert model.scores_.mean(axis=0).max() == pytest.approx(reference.best_score_, abs=1e-7)
    assert np.abs(model.coef_ - reference.coef_).max() <= 1e-6
    assert model.intercept_ == pytest.approx(reference.intercept_, abs=1e-6)
    assert model.score(X, y) == pytest.approx(reference.score(rows, y), abs=1e-7)


@pytest.mark.parametrize("loss", ["poisson", "gamma", "tweedie"])
def test_regressor_cv_scores_a_log_link_by_its_deviance(loss: str) -> None:
    X, y = datasets.load_diabetes(return_X_y=True)
    X, base = standardised(X[:150, :4]), ADFSRegressor(loss, random_state=0)
    grid = [1.0, 300.0, 1e5]
    model = ADFSRegressorCV(grid, cv=KFold(3), estimator=base).fit(X, y[:150])
    search = GridSearchCV(base, {"alpha": grid}, cv=KFold(3)).fit(X, y[:150])
    assert model.alpha_ == search.best_params_["alpha"]
    assert np.allclose(model.scores_.mean(axis=0), search.cv_results_["mean_test_score"], atol=1e-4)
    assert model.score(X, y[:150]) == pytest.approx(search.score(X, y[:150]), abs=1e-4)


CUTS = [0, 71, 133, 190]  # rows of each node: pieces that are longer, by one in some folds and not in others


def on_ranks(search: Any, X: Any, y: np.ndarray, offset: np.ndarray, widths: list[int]) -> list[Any]:
    """Fit on three ranks, each with its own rows, the last columns of which it may not know of."""

    def one(ranks: Threads) -> Any:
        own = slice(CUTS[ranks.rank], CUTS[ranks.rank + 1])
        estimator = type(search.estimator)(**(search.estimator.get_params() | {"cluster": ranks}))
        given = search.get_params(deep=False) | {"estimator": estimator}
        return type(search)(**given).fit(X[own, : widths[ranks.rank]], y[own], None, offset[own])

    return on_threads(3, one)


@pytest.mark.parametrize("kind", ["classes", "sparse", "squares", "counts"])
def test_cross_validation_splits_within_nodes_with_the_same_bits_on_ranks(kind: str) -> None:
    X, y = classification("breast_cancer")
    X, y, widths = X[:190], y[:190], [30, 30, 30]
    offset = 0.1 * X[:, 3]
    search: Any = ADFSClassifierCV(GRID, cv=4, estimator=ADFSClassifier())
    if kind in ("squares", "counts"):
        y = np.exp(0.5 * X[:, 0]) + X[:, 1] ** 2
        loss = "squared" if kind == "squares" else "poisson"
        search = ADFSRegressorCV([1.0, 30.0], cv=4, estimator=ADFSRegressor(loss))
    if kind == "sparse":
        X[CUTS[1] : CUTS[2], 28:] = 0.0
        X, widths = sp.csr_array(X), [30, 28, 30]
    search.estimator.set_params(network="complete", random_state=0)
    alone = type(search)(**search.get_params(deep=False))
    parts = [np.arange(a, b) for a, b in pairwise(CUTS)]
    alone.estimator = type(search.estimator)(
        **(search.estimator.get_params() | {"n_nodes": 3, "partition": parts})
    )
    alone.fit(X, y, None, offset)
    assert alone.scores_.shape == (4, 2 if kind in ("squares", "counts") else 3)
    for model in on_ranks(search, X, y, offset, widths):
        assert model.scores_.tobytes() == alone.scores_.tobytes()
        assert model.best_estimator_.get_params()[model._name] == getattr(alone, f"{alone._name}_")
        assert model.coef_.tobytes() == alone.coef_.tobytes()


def test_cross_validation_tells_what_all_ranks_refuse() -> None:
    X, y = classification("breast_cancer")
    search = ADFSClassifierCV([1.0], cv=200, estimator=ADFSClassifier())
    with pytest.raises(RefusalError, match="fold 190 of cv holds no row to test"):
        on_ranks(search, X[:190], y[:190], np.zeros(190), [30, 30, 30])

    def other(ranks: Threads) -> Any:
        cv = KFold(3) if ranks.rank else 3
        return ADFSClassifierCV([1.0], cv=cv, estimator=ADFSClassifier(cluster=ranks)).fit(X, y)

    with pytest.raises(RefusalError, match=r"cv is 3 on rank 0 and KFold\(n_splits=3, .* on rank 1"):
        on_threads(2, other)


def test_cross_validation_tells_untested_classes_and_folds_it_cannot_fit() -> None:
    X, y = np.random.default_rng(0).standard_normal((60, 2)), np.arange(60) < 3
    with pytest.warns(UserWarning, match="no row of class True is tested in fold 0, 1 of cv"):
        ADFSClassifierCV([1.0], cv=5, estimator=ADFSClassifier(loss="squared_hinge")).fit(X, y)
    folds = [(np.arange(3, 60), np.arange(3)), (np.arange(50), np.arange(50, 60))]
    with pytest.raises(InputError, match="fold 0 of cv: all targets are 0"):
        ADFSRegressorCV([1.0], cv=folds, estimator=ADFSRegressor("poisson")).fit(X, y.astype(float))


def test_cross_validation_takes_folds_that_leave_rows_or_nodes_out() -> None:
    X, y = classification("breast_cancer")
    X, y = X[:90, :4], y[:90]
    base = ADFSClassifier(n_nodes=3, partition="contiguous", random_state=0)
    for cv in (
        TimeSeriesSplit(3, test_size=20),
        ShuffleSplit(3, train_size=0.5, test_size=0.2, random_state=0),
    ):
        reference = cross_val_score(ADFSClassifier(C=0.1, random_state=0), X, y, cv=cv)
        model = ADFSClassifierCV([0.1], cv=cv, estimator=base).fit(X, y)
        assert np.allclose(model.scores_[:, 0], reference)
    marked = [(np.arange(90) >= 30, np.arange(90) < 30)]
    assert ADFSClassifierCV([0.1], cv=marked, estimator=base).fit(X, y).scores_.shape == (1, 1)


def test_cross_validation_passes_as_one_of_scikit_learn() -> None:
    for search in (ADFSClassifierCV([0.1, 1.0], cv=3), ADFSRegressorCV([0.1, 1.0], cv=3)):
        for check in (
            estimator_checks.check_estimator_sparse_tag,
            estimator_checks.check_fit2d_1sample,
            estimator_checks.check_dataframe_column_names_consistency,
            estimator_checks.check_estimators_pickle,
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # its checks warn on purpose
                check(type(search).__name__, search)
    X, y = datasets.load_wine(return_X_y=True, as_frame=True)
    names = np.array(["first", "second", "third"])[y]
    pipeline = make_pipeline(StandardScaler(), ADFSClassifierCV(GRID, cv=3)).fit(X, names)
    assert pipeline.score(X, names) > 0.95
    assert pipeline[-1].classes_.tolist() == ["first", "second", "third"]
    assert ADFSClassifierCV(iter(GRID), cv=3).fit(X, names).scores_.shape == (3, 3)
    assert not hasattr(ADFSClassifierCV(estimator=ADFSClassifier("hinge")), "predict_proba")


def test_cross_validation_saves_passes_by_starting_from_the_fit_before() -> None:
    X, y = classification("breast_cancer")
    grid = np.logspace(-2, 2, 5)
    for method in ("newton", "adfs"):
        base = ADFSClassifier(method=method, n_nodes=2, random_state=0)
        path = ADFSClassifierCV(grid, cv=2, estimator=base).fit(X, y)
        alone = [ADFSClassifierCV([C], cv=2, estimator=base).fit(X, y) for C in grid]
        assert path.n_iter_.sum() < 0.9 * sum(model.n_iter_.sum() for model in alone)
        assert np.allclose(path.scores_, np.hstack([model.scores_ for model in alone]), atol=0.01)


def test_cross_validation_counts_fits_that_ended_early() -> None:
    X, y = classification("breast_cancer")
    base = ADFSClassifier(method="adfs", max_iter=2, random_state=0)
    search = ADFSClassifierCV([1.0, 10.0], cv=3, estimator=base)
    with pytest.warns(ConvergenceWarning) as said:
        search.fit(X, y)
    assert str(said[0].message).startswith("6 of the 6 fits to folds ended above tol=1e-06, and are scored")
    # A limit in seconds is that of all fits together.
    base.set_params(max_iter=1e9, tol=1e-300)
    model = search._fit(X, y, options=RunOptions(seconds=0.7, progress=False))
    assert model.seconds <= 0.4
    assert search.n_unfinished_ == 6


def test_cross_validation_ends_at_ctrl_c() -> None:
    X, y = classification("breast_cancer")
    base = ADFSClassifier(method="adfs", tol=1e-300, max_iter=1e9, random_state=0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ADFSClassifierCV([1.0, 10.0], cv=3, estimator=base).fit(X, y)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ADFSClassifierCV([]), "Cs must be a list of numbers above 0"),
        (ADFSClassifierCV([1.0, -1.0]), "each of Cs must be finite and above 0"),
        (ADFSRegressorCV("1"), "alphas must be a list of numbers above 0, or their number, got '1'"),
        (
            ADFSClassifierCV([1.0], estimator=ADFSRegressor()),
            "estimator must be an ADFSClassifier, got ADFSR",
        ),
        (ADFSClassifierCV([1.0], cv=1), "cv must be at least 2 folds, got 1"),
        (ADFSClassifierCV([1.0], cv=None), "cv must be a number of folds, a splitter, or a list of"),
        (ADFSClassifierCV([1.0], cv=[]), "cv must be a number of folds, a splitter, or a list of"),
        (ADFSClassifierCV([1.0], cv=[1, 2]), "cv must be a number of folds, a splitter, or a list of"),
        (
            ADFSClassifierCV([1.0], cv=3),
            r"fold 2 of cv leaves no row of class 1 to train on \(n_samples=12\)",
        ),
        (ADFSRegressorCV([1.0], cv=13), "fold 12 of cv holds no row to test: give fewer folds"),
        (
            ADFSClassifierCV([1.0], cv=[([0, 1], [1, 2])]),
            "fold 0 of cv has row 1 both to train on and to test",
        ),
        (ADFSClassifierCV([1.0], cv=[([0, 0], [1])]), "fold 0 of cv names a row twice"),
        (
            ADFSClassifierCV([1.0], cv=[([0, 11], [12])]),
            "fold 0 of cv does not suit 12 rows: index 12 is out",
        ),
    ],
)
def test_cross_validation_refuses_what_it_cannot_do(model: Any, words: str) -> None:
    X, y = np.arange(12.0)[:, None], np.array([0] * 11 + [1])
    with pytest.raises(InputError, match=words):
        model.fit(X, y)


def test_classifier_takes_single_precision_and_sparsifies_coefficients() -> None:
    X, y = classification("breast_cancer")
    single = ADFSClassifier(random_state=0).fit(X.astype(np.float32), y)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    assert single.decision_function(X.astype(np.float32)).dtype == np.float32
    dense = single.decision_function(X)
    assert np.allclose(single.sparsify().decision_function(X), dense)
    assert np.allclose(single.densify().decision_function(X), dense)
