"""The weight of the penalty chosen by cross-validation, on one process or on several together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from adfs.errors import InputError
from adfs.estimators.base import LinearEstimator, Prepared, check_alike, positive
from adfs.estimators.linear import ADFSClassifier, ADFSRegressor
from adfs.estimators.pipeline import FittedModel, Start, fit_model
from adfs.estimators.solver import LocalData, ModelSpec, Solver, row_products
from adfs.prediction import accuracy, explained_share, predicted_classes
from adfs.runtimes import OneProcess, Outcome, RunOptions
from adfs.runtimes.cluster import RefusalError
from adfs.threads import single_threaded

Kind = TypeVar("Kind", bound=LinearEstimator)
Fold = tuple[np.ndarray, np.ndarray]  # masks of the rows to train on and of the rows to test, node after node


def _has_probabilities(search: ADFSClassifierCV) -> bool:
    return hasattr(search.estimator or search._plain(), "predict_proba")


class PenaltyCV(BaseEstimator, Generic[Kind]):  # type: ignore[misc]  # scikit-learn has no types
    """The part of a search that does not depend on the task: the grid, the folds, and the final model."""

    estimator: Kind | None
    cv: Any
    best_estimator_: Kind
    _name: str
    _plain: type[Kind]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

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
        if self.n_unfinished_:
            warnings.warn(
                f"{self.n_unfinished_} of the {self.scores_.size} fits to folds ended above "
                f"tol={self.best_estimator_.tol:g}, and are scored as they ended: standardise the features, "
                "or raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.best_estimator_._report(model)
        return self

    def _base(self) -> Kind:
        """Return a new estimator with the parameters of the given one."""
        if self.estimator is None:
            return self._plain()
        if not isinstance(self.estimator, self._plain):
            raise InputError(f"estimator must be an {self._plain.__name__}, got {self.estimator!r}")
        # Not a clone, which would copy the cluster.
        return type(self.estimator)(**self.estimator.get_params(deep=False))

    def _grid(self) -> list[float]:
        """Return the weights to try, in the order in which they were given."""
        values = getattr(self, f"{self._name}s")
        given = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []
        if not given:
            raise InputError(f"{self._name}s must be a list of numbers above 0, got {values!r}")
        return [positive(value, f"each of {self._name}s") for value in given]

    @single_threaded
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        options: RunOptions | None = None,
        nodes: Sequence[int] | None = None,
    ) -> FittedModel:
        """Search, fit all rows with the best weight, set the attributes, and return the final model."""
        with getattr(self.estimator, "cluster", None) or OneProcess() as cluster:
            check_alike(cluster, self, X)
            base = cluster.attempt("to check the data", self._base)
            grid = cluster.attempt("to check the data", self._grid)
            ready = base._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            data, solver = ready.data, ready.solver
            given = cluster.attempt("to make the folds", lambda: self._given_folds(ready))
            count = f"{self.cv}" if given is None else f"a list of {len(given)}"
            cluster.same(lambda: {"cv": count})
            folds = _folds_inside(ready, int(self.cv)) if given is None else given
            _check_folds(data, folds, ready.spec, solver)
            fits, paths = _Fits(solver, len(folds) * len(set(grid)) + 1), []
            for number, fold in enumerate(folds):
                try:
                    paths.append(self._path(base, ready, fold, grid, fits))
                except InputError as error:
                    raise type(error)(f"fold {number} of cv: {error}") from None
            scores, passes = np.moveaxis(np.array(paths), 2, 0)
            # A fit that diverged may have no score. Every score is better than none.
            best = int(np.argmax(np.nan_to_num(scores.sum(axis=0), nan=-np.inf)))
            setattr(self, f"{self._name}s_", np.array(grid))
            setattr(self, f"{self._name}_", grid[best])
            self.scores_, self.n_unfinished_ = scores, fits.unfinished
            self.n_iter_ = np.ceil(passes).astype(int)
            # The final model starts anew, so that it is the model of a fit with this weight.
            base.set_params(**{self._name: grid[best]})
            model = fits.fit(data, base._spec(), None)
            base._set_fitted(model)
        # The search has the fitted attributes of its best estimator.
        self.best_estimator_ = base
        self.coef_, self.intercept_ = base.coef_, base.intercept_
        self.dual_gap_, self.absolute_gap_ = base.dual_gap_, base.absolute_gap_
        self.n_features_in_ = base.n_features_in_
        if hasattr(base, "feature_names_in_"):
            self.feature_names_in_ = base.feature_names_in_
        if model.classes is not None:
            self.classes_ = model.classes
        return model

    def _given_folds(self, ready: Prepared) -> list[Fold] | None:
        """Return the folds that were given or that a splitter makes; None for a number of them."""
        if isinstance(self.cv, int | np.integer) and not isinstance(self.cv, bool):
            if self.cv < 2:
                raise InputError(f"cv must be at least 2 folds, got {self.cv}")
            return None
        given = self.cv
        if hasattr(given, "split") and not isinstance(given, str):
            targets = np.empty_like(ready.data.y)
            targets[ready.order] = ready.data.y
            given = given.split(np.zeros((targets.size, 1)), targets)
        pairs = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
        if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
            raise InputError(
                "cv must be a number of folds, a splitter, or a list of (train, test) with at least one of "
                f"them, got {self.cv!r}"
            )
        return [_masks(pair, ready.order, number) for number, pair in enumerate(pairs)]

    def _path(
        self, base: Kind, ready: Prepared, fold: Fold, grid: list[float], fits: _Fits
    ) -> list[tuple[float, float]]:
        """Return the score on one fold and the passes of each weight; a fit starts from the one before."""
        counts = (np.concatenate([[0], np.cumsum(chosen)]) for chosen in fold)
        train, test = (
            ready.data.take(chosen, count[ready.data.node_starts].astype(np.int64))
            for chosen, count in zip(fold, counts, strict=True)
        )
        results: dict[float, tuple[float, float]] = {}
        start: Start | None = None
        for value in sorted(set(grid), reverse=self._name == "alpha"):  # the strongest penalty first
            base.set_params(**{self._name: value})
            spec = replace(base._spec(), inference=False)
            model = fits.fit(train, spec, start)
            if model.outcome is Outcome.STOPPED:
                raise KeyboardInterrupt
            start = model.end
            results[value] = _score(model, test, spec, ready.solver), model.passes
        return [results[value] for value in grid]

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the predictions of the model that is fitted to all rows, shape (N,)."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X, offset)  # type: ignore[no-any-return]


@dataclass(eq=False, repr=False)
class ADFSClassifierCV(ClassifierMixin, PenaltyCV[ADFSClassifier]):  # type: ignore[misc]
    """A classifier whose ``C`` is chosen by cross-validation.

    Folds are made inside each node's own rows, class by class; scores (the share of right classes) are sums
    over the nodes. Each fold's fits start from the one before, from the smallest C to the largest.

    Parameters
    ----------
    Cs : list of float
        The weights to try.
    cv : int, splitter or iterable of (train, test)
        How many folds, or how this process's rows are split into them: row numbers, or one bool per row.
    estimator : ADFSClassifier, optional
        All other parameters, its cluster among them.

    Attributes
    ----------
    C_ : float
        The first of those with the best mean score.
    Cs_ : ndarray of shape (k,)
    scores_ : ndarray of shape (n_folds, k)
    n_iter_ : ndarray of shape (n_folds, k)
        Passes over the data of each fit to a fold.
    n_unfinished_ : int
        How many fits to folds ended above the estimator's ``tol``.
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

    Cs: Any = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
    cv: Any = field(default=5, kw_only=True)
    estimator: ADFSClassifier | None = field(default=None, kw_only=True)

    def decision_function(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the decision values of the model fitted to all rows."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X, offset)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the probabilities of the model fitted to all rows; for the logistic loss only."""
        check_is_fitted(self)
        return np.asarray(self.best_estimator_.predict_proba(X, offset))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_log_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the logarithms of the probabilities."""
        return np.asarray(np.log(self.predict_proba(X, offset)))


@dataclass(eq=False, repr=False)
class ADFSRegressorCV(RegressorMixin, PenaltyCV[ADFSRegressor]):  # type: ignore[misc]
    """A regressor whose ``alpha`` is chosen by cross-validation.

    Scores are R², or D² (the share of the deviance explained) for the losses ``"poisson"`` and ``"gamma"``.

    Parameters
    ----------
    alphas : list of float
        The penalties to try.
    cv, estimator
        As for `ADFSClassifierCV`.

    Attributes
    ----------
    alpha_ : float
    alphas_, scores_, n_iter_, n_unfinished_, best_estimator_
        As for `ADFSClassifierCV`.
    """

    _name = "alpha"
    _plain = ADFSRegressor

    alphas: Any = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3)
    cv: Any = field(default=5, kw_only=True)
    estimator: ADFSRegressor | None = field(default=None, kw_only=True)

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Return R² or D² of the model fitted to all rows."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, sample_weight, offset)


class _Fits:
    """A number of fits that share the limit in seconds, each with a checkpoint of its own."""

    def __init__(self, solver: Solver, count: int) -> None:
        self.solver, self.count = solver, count
        self.done, self.seconds, self.unfinished = 0, 0.0, 0

    def fit(self, data: LocalData, spec: ModelSpec, start: Start | None) -> FittedModel:
        """Make the next fit."""
        part = self.solver.part(self.done, self.seconds, self.count - self.done)
        model = fit_model(data, spec, part, start)
        self.seconds += model.seconds
        self.done += 1
        self.unfinished += model.outcome is not Outcome.CONVERGED
        return model


def _masks(pair: Sequence[Any], order: np.ndarray, number: int) -> Fold:
    """Return a given fold as masks of the rows node after node; ``order`` has their places in the data."""
    masks = []
    for rows in pair:
        chosen, mask = np.asarray(rows), np.zeros(order.size, dtype=np.bool_)
        chosen = chosen.astype(np.int64) if chosen.size == 0 else chosen
        try:
            mask[chosen] = True
        except IndexError as error:
            raise InputError(f"fold {number} of cv does not suit {order.size} rows: {error}") from None
        if chosen.dtype != np.bool_ and mask.sum() < chosen.size:
            raise InputError(f"fold {number} of cv names a row twice")
        masks.append(mask)
    train, test = masks
    if (train & test).any():
        row = np.flatnonzero(train & test)[0]
        raise InputError(f"fold {number} of cv has row {row} both to train on and to test")
    return train[order], test[order]


def _folds_inside(ready: Prepared, count: int) -> list[Fold]:
    """Return ``count`` folds: every node cuts its own rows of each class into as many pieces."""
    data, solver = ready.data, ready.solver
    spans = list(zip(data.node_starts[:-1], data.node_starts[1:], strict=True))
    groups = []
    for first, last in spans:
        labels = data.y[first:last] if ready.spec.loss.task == "classification" else np.zeros(last - first)
        groups.append([first + np.flatnonzero(labels == label) for label in np.unique(labels)])
    # Some pieces are one row longer. They go to the folds in turn, over the nodes of all processes in order,
    # so that the folds have the same size and do not depend on the processes.
    own = [sum(len(rows) % count for rows in node) for node in groups]
    longer = np.zeros(solver.network.n_nodes, dtype=np.int64)
    solver.cluster.activity = "to make the folds"
    for rank, numbers in enumerate(solver.cluster.allgather(own)):
        longer[solver.placement.block(rank)] = numbers
    before = np.concatenate([[0], np.cumsum(longer)])[solver.placement.block(solver.cluster.rank)]
    fold = np.zeros(len(data.y), dtype=np.int64)
    for dealt, node in zip(before, groups, strict=True):
        for rows in node:
            for piece, part in enumerate(np.array_split(rows, count)):
                fold[part] = (piece + dealt) % count
            dealt += len(rows) % count
    return [(fold != number, fold == number) for number in range(count)]


def _check_folds(data: LocalData, folds: list[Fold], spec: ModelSpec, solver: Solver) -> None:
    """Raise if a fold has no row to test, or no row of a class to train on.

    Warn of a class that a fold does not test.
    """
    labels = data.y if spec.loss.task == "classification" else np.zeros(len(data.y))
    cards = [[np.unique(labels[rows]).tolist() for rows in fold] for fold in folds]
    own = [len(labels), np.unique(labels).tolist(), cards]
    solver.cluster.activity = "to make the folds"
    counts, kinds, parts = zip(*solver.cluster.allgather(own), strict=True)
    everything = set().union(*kinds)
    untested: dict[object, list[int]] = {}
    for number, each in enumerate(zip(*parts, strict=True)):
        kept, tested = (set().union(*kinds) for kinds in zip(*each, strict=True))
        if not tested:
            raise RefusalError(f"fold {number} of cv holds no row to test: give fewer folds")
        for label in everything - tested:
            untested.setdefault(label, []).append(number)
        missing = sorted(everything - kept, key=str)
        if missing:
            what = f"no row of class {missing[0]}" if spec.loss.task == "classification" else "no row"
            raise RefusalError(
                f"fold {number} of cv leaves {what} to train on (n_samples={sum(counts)}): give fewer folds, "
                "or more rows"
            )
    for label in sorted(untested, key=str) if solver.cluster.rank == 0 else ():
        where = ", ".join(str(number) for number in untested[label])
        warnings.warn(
            f"no row of class {label} is tested in fold {where} of cv: give fewer folds, or more rows of it",
            UserWarning,
            stacklevel=2,
        )


def _score(model: FittedModel, test: LocalData, spec: ModelSpec, solver: Solver) -> float:
    """Return the share of right classes, R² or D², from sums over all nodes."""
    # Sparse rows of this process may be narrower than those of another one.
    coef, weights = model.coef[:, : test.X.shape[1]], test.weights
    margins = row_products(test.X, coef.T, test.node_starts) + model.intercept
    if test.offset is not None:
        margins = margins + test.offset.reshape(margins.shape)
    margins = margins[:, 0] if margins.shape[1] == 1 else margins

    def totals(columns: Sequence[np.ndarray]) -> np.ndarray:
        return solver.totals(columns, test.node_starts)

    if model.classes is not None:
        return accuracy(test.y, predicted_classes(margins, model.classes), weights, totals)
    with np.errstate(all="ignore"):  # a fit that diverged
        predicted = spec.loss.mean(margins)
    return explained_share(spec.loss.unit_deviances, test.y, predicted, weights, totals)
