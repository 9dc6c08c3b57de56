"""The weight of the penalty chosen by cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score

from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from estimators.agreement_cases import classification, regression
from memory_cluster import Threads, on_threads

GRID = [0.003, 0.1, 3.0]


def test_the_choice_is_scikit_learn_s_on_the_same_folds() -> None:
    X, y = classification("breast_cancer")
    X, y = X[:200, :6], y[:200]
    folds = list(StratifiedKFold(3, shuffle=True, random_state=1).split(X, y))
    reference = [
        cross_val_score(LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12), X, y, cv=folds)
        for C in GRID
    ]
    base = ADFSClassifier(n_nodes=2, partition="random", tol=1e-9, random_state=0)
    model = ADFSClassifierCV(GRID, cv=folds, estimator=base).fit(X, y)
    assert np.allclose(model.scores_, np.transpose(reference), rtol=1e-12)
    assert GRID[int(np.argmax(np.mean(reference, axis=1)))] == model.C_
    best = LogisticRegression(C=model.C_, solver="newton-cholesky", tol=1e-12).fit(X, y)
    assert np.allclose(model.coef_, best.coef_, atol=1e-3)
    assert np.array_equal(model.predict(X), best.predict(X))
    assert model.predict_proba(X).shape == (200, 2)
    assert model.score(X, y) == pytest.approx(best.score(X, y))
    axes = model.plot()
    assert axes.get_xlabel() == "C"
    assert len(axes.get_lines()) == 5


def test_the_regressor_chooses_as_ridge_does() -> None:
    X, y = regression("diabetes")
    folds = KFold(4)
    reference = [cross_val_score(Ridge(alpha=alpha), X, y, cv=folds) for alpha in (1.0, 30.0, 1e4)]
    model = ADFSRegressorCV([1.0, 30.0, 1e4], cv=folds, estimator=ADFSRegressor(tol=1e-10, random_state=0))
    model.fit(X, y)
    assert np.allclose(model.scores_, np.transpose(reference), atol=1e-6)
    assert model.alpha_ == (1.0, 30.0, 1e4)[int(np.argmax(np.mean(reference, axis=1)))]


def test_folds_lie_inside_the_nodes_and_ranks_have_the_bits_of_one_process() -> None:
    X, y = classification("breast_cancer")
    X, y = X[:90, :4], y[:90]
    base = ADFSClassifier(n_nodes=3, graph="complete", random_state=0)
    alone = ADFSClassifierCV(GRID, cv=3, estimator=base).fit(X, y)
    assert alone.scores_.shape == (3, 3)

    def one(ranks: Threads) -> Any:
        own = slice(30 * ranks.rank, 30 * ranks.rank + 30)
        mine = ADFSClassifier(graph="complete", cluster=ranks, random_state=0)
        return ADFSClassifierCV(GRID, cv=3, estimator=mine).fit(X[own], y[own])

    for model in on_threads(3, one):
        assert np.array_equal(model.scores_, alone.scores_)
        assert model.C_ == alone.C_
        assert np.array_equal(model.coef_, alone.coef_)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ADFSClassifierCV([]), "Cs must be a list of numbers above 0"),
        (ADFSClassifierCV([1.0, -1.0]), "each of Cs must be finite and above 0"),
        (ADFSClassifierCV([1.0], cv=1), "cv must be at least 2 folds, got 1"),
        (ADFSClassifierCV([1.0], cv=3), "fold 2 of cv leaves no row of class 1 to train on"),
        (ADFSClassifierCV([1.0], cv=[([0, 1], [1, 2])]), "each fold of cv must split all rows"),
    ],
)
def test_what_cannot_be_done_is_said(model: Any, words: str) -> None:
    X, y = np.arange(12.0)[:, None], np.array([0] * 11 + [1])
    with pytest.raises(InputError, match=words):
        model.fit(X, y)


def test_single_precision_and_sparse_coefficients() -> None:
    X, y = classification("breast_cancer")
    single = ADFSClassifier(random_state=0).fit(X.astype(np.float32), y)
    assert single.coef_.dtype == single.intercept_.dtype == np.float32
    assert single.decision_function(X.astype(np.float32)).dtype == np.float32
    dense = single.decision_function(X)
    assert np.allclose(single.sparsify().decision_function(X), dense)
    assert np.allclose(single.densify().decision_function(X), dense)
