"""The weight of the penalty chosen by cross-validation, on one process or on several together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from adfs.errors import InputError
from adfs.estimators.base import LinearEstimator, Prepared, positive
from adfs.estimators.classifier import ADFSClassifier
from adfs.estimators.pipeline import FittedModel, ModelSpec, Start, fit_model
from adfs.estimators.regressor import ADFSRegressor
from adfs.estimators.solver import LocalData, Solver
from adfs.runtimes import OneProcess, RunOptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ADFSClassifierCV", "ADFSRegressorCV"]

Kind = TypeVar("Kind", bound=LinearEstimator)


class PenaltyCV(BaseEstimator, Generic[Kind]):  # type: ignore[misc]  # scikit-learn has no types
    """What the two have in common: the grid, the folds, and the model that is fitted to all rows."""

    estimator: Kind | None
    cv: Any
    best_estimator_: Kind
    _name: str
    _plain: type[Kind]

    def fit(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Self:
        """Choose the penalty by cross-validation, then fit all rows with it.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (N, d)
            With a cluster, the rows of this process.
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional
            Counts in the fits and in the scores.
        offset : array-like, optional
            As in the estimator's own ``fit``.

        Returns
        -------
        self
        """
        model = self._fit(X, y, sample_weight, offset)
        self.best_estimator_._warn(model, interrupt=True)
        return self

    def _grid(self) -> list[float]:
        """Return the weights to try, from the strongest penalty to the weakest."""
        values = getattr(self, f"{self._name}s")
        if not isinstance(values, Iterable) or not list(values):
            raise InputError(f"{self._name}s must be a list of numbers above 0, got {values!r}")
        return [positive(value, f"each of {self._name}s") for value in values]

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        options: RunOptions | None = None,
        nodes: Sequence[int] | None = None,
    ) -> FittedModel:
        given = {} if self.estimator is None else self.estimator.get_params(deep=False)
        base = self._plain(**given)  # not a clone, which would copy the cluster
        self.best_estimator_ = base
        with base.cluster or OneProcess() as cluster:
            grid = cluster.attempt("to check the data", self._grid)
            ready = base._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            data, solver = ready.data, ready.solver
            folds = cluster.attempt("to make the folds", lambda: self._folds(ready))
            if len(set(cluster.gather(len(folds), "to make the folds"))) > 1:
                raise InputError("the processes have different numbers of folds; give all the same cv")
            _check_folds(data, folds, ready.spec, solver)
            scores = np.array([self._path(ready, fold, grid) for fold in folds])
            best = int(np.argmax(scores.mean(axis=0)))
            setattr(self, f"{self._name}s_", np.array(grid))
            setattr(self, f"{self._name}_", grid[best])
            self.scores_ = scores
            base.set_params(**{self._name: grid[best]})
            model = fit_model(data, self._with_weight(ready.spec, grid[best]), solver)
            base._set_fitted(model)
        self.coef_, self.intercept_, self.dual_gap_ = base.coef_, base.intercept_, base.dual_gap_
        self.n_features_in_ = base.n_features_in_
        if model.classes is not None:
            self.classes_ = model.classes
        return model

    def _with_weight(self, spec: ModelSpec, value: float) -> ModelSpec:
        raise NotImplementedError

    def _folds(self, ready: Prepared) -> list[np.ndarray]:
        """Return which rows each fold leaves out, as masks over the rows node after node."""
        data, count = ready.data, len(ready.data.y)
        if isinstance(self.cv, int | np.integer) and not isinstance(self.cv, bool):
            if self.cv < 2:
                raise InputError(f"cv must be at least 2 folds, got {self.cv}")
            number = _fold_of_row(data, int(self.cv), ready.spec.classifies)
            return [number == fold for fold in range(int(self.cv))]
        place = np.empty(count, dtype=np.int64)
        place[ready.order] = np.arange(count)
        given = self.cv.split(np.zeros((count, 1)), data.y[place]) if hasattr(self.cv, "split") else self.cv
        masks = []
        for train, test in given:
            mask = np.zeros(count, dtype=np.bool_)
            mask[place[np.asarray(test)]] = True
            if np.intersect1d(train, test).size or len(train) + len(test) != count:
                raise InputError(
                    "each fold of cv must split all rows into those to train on and those to test"
                )
            masks.append(mask)
        return masks

    def _path(self, ready: Prepared, fold: np.ndarray, grid: list[float]) -> list[float]:
        """Return the scores on one fold, each fit starting from the one before."""
        train, test = _rows_where(ready.data, ~fold), _rows_where(ready.data, fold)
        spec, solver, found = replace(ready.spec, inference=False), ready.solver, {}
        start: Start | None = None
        for value in sorted(set(grid), reverse=self._name == "alpha"):  # the strongest penalty first
            model = fit_model(train, self._with_weight(spec, value), solver, start)
            duals = [one for one in model.duals if one is not None]
            start = Start(duals, model.coef, model.intercept) if len(duals) == len(model.duals) else None
            found[value] = _score(model, test, solver)
        return [found[value] for value in grid]

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return what the model fitted to all rows predicts, shape (N,)."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X, offset)  # type: ignore[no-any-return]

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the mean score, and each fold's, against the weight."""
        check_is_fitted(self)
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(5.0, 3.5), layout="constrained").add_subplot()
        grid = np.array(getattr(self, f"{self._name}s_"))
        order = np.argsort(grid)
        for fold in self.scores_:
            axes.plot(grid[order], fold[order], color="0.75", linewidth=0.8)
        axes.plot(grid[order], self.scores_.mean(axis=0)[order], marker="o", label="mean of the folds")
        chosen = getattr(self, f"{self._name}_")
        axes.axvline(chosen, color="0.3", linestyle=":", label=f"{self._name} = {chosen:g}")
        axes.set_xscale("log")
        axes.set_xlabel(self._name)
        axes.set_ylabel("accuracy" if self._name == "C" else "R²")
        axes.legend(frameon=False)
        return axes


class ADFSClassifierCV(ClassifierMixin, PenaltyCV[ADFSClassifier]):  # type: ignore[misc]
    """A classifier whose ``C`` is chosen by cross-validation.

    Folds are made inside each node's own rows, class by class; scores (the share of right classes) are sums
    over the nodes. Each fold's fits start from the one before, from the smallest C to the largest.

    Parameters
    ----------
    Cs : list of float
        The weights to try.
    cv : int, splitter or iterable of (train, test)
        How many folds, or how this process's rows are split into them.
    estimator : ADFSClassifier, optional
        All other parameters, its cluster among them.

    Attributes
    ----------
    C_ : float
        The first of those with the best mean score.
    Cs_ : ndarray of shape (k,)
    scores_ : ndarray of shape (n_folds, k)
    best_estimator_ : ADFSClassifier
        Fitted to all rows with that weight; ``coef_``, ``intercept_`` and ``classes_`` are its.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ADFSClassifierCV([0.1, 1.0], cv=3, estimator=ADFSClassifier(random_state=0)).fit(X, y)
    >>> model.C_, model.scores_.shape
    (1.0, (3, 2))
    """

    _name = "C"
    _plain = ADFSClassifier

    def __init__(
        self,
        Cs: Any = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4),
        *,
        cv: Any = 5,
        estimator: ADFSClassifier | None = None,
    ) -> None:
        self.Cs = Cs
        self.cv = cv
        self.estimator = estimator

    def _with_weight(self, spec: ModelSpec, value: float) -> ModelSpec:
        factor = 2.0 if spec.loss.name == "squared-hinge" else 1.0
        return replace(spec, data_weight=value * factor)

    def decision_function(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the decision values of the model fitted to all rows."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X, offset)

    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the probabilities of the model fitted to all rows; for the logistic loss only."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict_proba(X, offset))


class ADFSRegressorCV(RegressorMixin, PenaltyCV[ADFSRegressor]):  # type: ignore[misc]
    """A regressor whose ``alpha`` is chosen by cross-validation; scores are R².

    Parameters
    ----------
    alphas : list of float
        The penalties to try.
    cv, estimator
        As for `ADFSClassifierCV`.

    Attributes
    ----------
    alpha_ : float
    alphas_, scores_, best_estimator_
        As for `ADFSClassifierCV`.
    """

    _name = "alpha"
    _plain = ADFSRegressor

    def __init__(
        self,
        alphas: Any = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3),
        *,
        cv: Any = 5,
        estimator: ADFSRegressor | None = None,
    ) -> None:
        self.alphas = alphas
        self.cv = cv
        self.estimator = estimator

    def _with_weight(self, spec: ModelSpec, value: float) -> ModelSpec:
        return replace(spec, penalty_weight=value)


def _fold_of_row(data: LocalData, count: int, classes: bool) -> np.ndarray:
    """Return each row's fold: every node cuts its own rows, of each class, into so many pieces."""
    fold = np.zeros(len(data.y), dtype=np.int64)
    dealt = 0  # so that pieces that are one row longer are not all in the first folds
    for first, last in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        labels = data.y[first:last]
        groups = np.unique(labels) if classes else [None]
        for label in groups:
            rows = first + (np.flatnonzero(labels == label) if classes else np.arange(last - first))
            for piece, own in enumerate(np.array_split(rows, count)):
                fold[own] = (piece + dealt) % count
            dealt += len(rows) % count
    return fold


def _rows_where(data: LocalData, chosen: np.ndarray) -> LocalData:
    """Return some of each node's rows."""
    cuts = np.concatenate([[0], np.cumsum(chosen)])[data.offsets]
    shift = None if data.offset is None else data.offset[chosen]
    return LocalData(data.X[chosen], data.y[chosen], data.weights[chosen], cuts.astype(np.int64), shift)


def _check_folds(data: LocalData, folds: list[np.ndarray], spec: ModelSpec, solver: Solver) -> None:
    """Raise where a fold leaves nothing to test, or a class or everything to none to train on."""
    cluster, why = solver.cluster, "to make the folds"
    labels = np.unique(data.y).tolist() if spec.classifies else [0.0]
    everything = {label for part in cluster.gather(labels, why) for label in part}
    for number, fold in enumerate(folds):
        kept = np.unique(data.y[~fold]).tolist() if spec.classifies else [0.0] * bool((~fold).any())
        cards = cluster.gather([kept, int(fold.sum())], why)
        if sum(count for _, count in cards) == 0:
            raise InputError(f"fold {number} of cv holds no row to test: give fewer folds")
        missing = sorted(everything - {label for part, _ in cards for label in part}, key=str)
        if missing:
            what = f"no row of class {missing[0]}" if spec.classifies else "no row"
            raise InputError(f"fold {number} of cv leaves {what} to train on: give fewer folds, or more rows")


def _score(model: FittedModel, test: LocalData, solver: Solver) -> float:
    """Return the share of right classes or R², from sums over all nodes."""
    scores = np.asarray(test.X @ model.coef.T) + model.intercept
    if test.offset is not None:
        scores = scores + test.offset.reshape(scores.shape)
    if model.classes is not None:
        codes = (scores[:, 0] > 0.0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        right = (model.classes[codes] == test.y).astype(np.float64)
        total, hits = solver.totals(np.column_stack([test.weights, test.weights * right]), test.offsets)
        return float(hits / total) if total > 0.0 else 0.0
    weights = test.weights
    total, summed = solver.totals(np.column_stack([weights, weights * test.y]), test.offsets)
    away = test.y - (summed / total if total > 0.0 else 0.0)
    squares = np.column_stack([weights * away**2, weights * (test.y - scores[:, 0]) ** 2])
    spread, error = solver.totals(squares, test.offsets)
    return float(1.0 - error / spread) if spread > 0.0 else float(error == 0.0)
