"""The weight of the penalty chosen by cross-validation, on one process or on several together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from adfs.errors import InputError
from adfs.estimators.base import LinearEstimator, Prepared, positive
from adfs.estimators.distributed import Engine, to_compare
from adfs.estimators.linear import ADFSClassifier, ADFSRegressor
from adfs.estimators.model_file import search_facts
from adfs.estimators.paths import Fold, fold_masks, fold_score, penalty_grid
from adfs.estimators.pipeline import FittedModel, Start, fit_model
from adfs.estimators.solver import LocalData, ModelSpec, Solver
from adfs.files import AnyPath
from adfs.runtimes import OneProcess, Outcome, RunOptions
from adfs.runtimes.cluster import RefusalError
from adfs.threads import single_threaded

Kind = TypeVar("Kind", bound=LinearEstimator)


def _has_probabilities(search: ADFSClassifierCV) -> bool:
    return hasattr(search.estimator or search._plain(), "predict_proba")


@dataclass(eq=False, repr=False, kw_only=True)
class PenaltyCV(BaseEstimator, Generic[Kind]):  # type: ignore[misc]  # scikit-learn has no types
    """The part of a search that does not depend on the task: the grid, the folds, and the final model."""

    l1_ratios: Any = None
    cv: Any = 5
    scoring: str | None = None
    estimator: Kind | None = None
    best_estimator_: Kind = field(init=False)
    _name: str = field(init=False)
    _plain: type[Kind] = field(init=False)

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
        engine = getattr(self.estimator, "cluster", None)
        fit = partial(engine.fit, self) if isinstance(engine, Engine) else self._fit
        self._report(fit(X, y, sample_weight, offset))
        return self

    def _report(self, model: FittedModel) -> None:
        """Warn of fits that did not reach the gap."""
        if self.n_unfinished_:
            warnings.warn(
                f"{self.n_unfinished_} of the {self.scores_.size} fits to folds ended above "
                f"tol={self.best_estimator_.tol:g}, and are scored as they ended: standardise the features, "
                "or raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.best_estimator_._report(model)

    def _base(self) -> Kind:
        """Return a new estimator with the parameters of the given one."""
        if self.estimator is None:
            return self._plain()
        if not isinstance(self.estimator, self._plain):
            raise InputError(f"estimator must be an {self._plain.__name__}, got {self.estimator!r}")
        # Not a clone, which would copy the cluster.
        return type(self.estimator)(**self.estimator.get_params(deep=False))

    def _check(self, base: Kind) -> tuple[list[float], list[float] | int]:
        """Return the l1 ratios and the weights to try, in their order; a number of weights may be given."""
        ratios = [base.l1_ratio] if self.l1_ratios is None else _listed(self.l1_ratios)
        if not ratios:
            raise InputError(f"l1_ratios must be a list of numbers from 0 to 1, got {self.l1_ratios!r}")
        # Wrong parameters of the estimator are refused here, before any fit.
        for ratio in ratios:
            loss = base.set_params(l1_ratio=ratio)._spec().loss
        if self.scoring not in (None, loss.scoring):
            known = "None" if loss.scoring is None else f"None or {loss.scoring!r}"
            raise InputError(f"scoring must be {known} for the loss {loss.name!r}, got {self.scoring!r}")
        values = getattr(self, f"{self._name}s")
        if isinstance(values, int | np.integer) and not isinstance(values, bool) and values > 0:
            return ratios, int(values)
        given = _listed(values)
        if not given:
            raise InputError(
                f"{self._name}s must be a list of numbers above 0, or their number, got {values!r}"
            )
        return ratios, [positive(value, f"each of {self._name}s") for value in given]

    def _values(self, base: Kind, ready: Prepared, grid: list[float] | int) -> list[float]:
        """Return the weights to try with the l1 ratio of ``base``."""
        if not isinstance(grid, int):
            return grid
        # The grid is one of penalties; C is the inverse of a penalty.
        base.set_params(**{self._name: 1.0})
        penalties = penalty_grid(grid, ready.data, base._spec(), ready.solver)
        return [float(value) for value in (penalties if self._name == "alpha" else 1.0 / penalties)]

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
            cluster.same(partial(to_compare, self, X))
            base = cluster.attempt("to check the data", self._base)
            ratios, grid = cluster.attempt("to check the data", lambda: self._check(base))
            ready = base._prepare(cluster, (X, y, sample_weight, offset), options, nodes)
            data, solver = ready.data, ready.solver
            given = cluster.attempt("to make the folds", lambda: self._given_folds(ready))
            count = f"{self.cv}" if given is None else f"a list of {len(given)}"
            cluster.same(lambda: {"cv": count})
            folds = _folds_inside(ready, int(self.cv)) if given is None else given
            _check_folds(data, folds, ready.spec, solver)
            grids = [self._values(base.set_params(l1_ratio=ratio), ready, grid) for ratio in ratios]
            fits, paths = _Fits(solver, len(folds) * sum(len(set(values)) for values in grids) + 1), []
            for number, fold in enumerate(folds):
                try:
                    for ratio, values in zip(ratios, grids, strict=True):
                        base.set_params(l1_ratio=ratio)
                        paths.append(self._path(base, ready, fold, values, fits))
                except InputError as error:
                    raise type(error)(f"fold {number} of cv: {error}") from None
            scores, passes = np.moveaxis(np.array(paths), 2, 0).reshape(2, len(folds), len(ratios), -1)
            # A fit that diverged may have no score. Every score is better than none.
            order = np.nan_to_num(scores.sum(axis=0), nan=-np.inf)
            row, best = (int(place) for place in np.unravel_index(np.argmax(order), order.shape))
            # As in scikit-learn, arrays have an axis for the l1 ratios if they were given.
            several = self.l1_ratios is not None
            setattr(self, f"{self._name}s_", np.array(grids if several and grid != grids[0] else grids[0]))
            setattr(self, f"{self._name}_", grids[row][best])
            self.l1_ratio_, self.n_unfinished_ = ratios[row], fits.unfinished
            self.scores_ = scores if several else scores[:, 0]
            self.n_iter_ = np.ceil(passes if several else passes[:, 0]).astype(int)
            # The final model starts anew, so that it is the model of a fit with this weight.
            base.set_params(**{self._name: grids[row][best], "l1_ratio": ratios[row]})
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
        pairs = _listed(given)
        if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
            raise InputError(
                "cv must be a number of folds, a splitter, or a list of (train, test) with at least one of "
                f"them, got {self.cv!r}"
            )
        return [fold_masks(pair, ready.order, number) for number, pair in enumerate(pairs)]

    def _path(
        self, base: Kind, ready: Prepared, fold: Fold, grid: list[float], fits: _Fits
    ) -> list[tuple[float, float]]:
        """Return the score on one fold and the passes of each weight; a fit starts from the one before."""
        counts = (np.concatenate([[0], np.cumsum(chosen)]) for chosen in fold)
        train, test = (
            ready.data.take(chosen, count[ready.data.node_starts].astype(np.int64))
            for chosen, count in zip(fold, counts, strict=True)
        )
        share = 1.0
        if self._name == "alpha" and base.l1_ratio > 0.0:
            # As in ElasticNetCV the penalty belongs to the mean of the losses: fewer rows, less of it.
            weights = ready.data.weights
            part, whole = ready.solver.totals([weights * fold[0], weights], ready.data.node_starts)
            share = float(part / whole) if whole > 0.0 else 1.0
        results: dict[float, tuple[float, float]] = {}
        start: Start | None = None
        for value in sorted(set(grid), reverse=self._name == "alpha"):  # the strongest penalty first
            base.set_params(**{self._name: value})
            spec = base._spec()
            spec = replace(spec, penalty_weight=share * spec.penalty_weight, inference=False)
            model = fits.fit(train, spec, start)
            if model.outcome is Outcome.STOPPED:
                raise KeyboardInterrupt
            start = model.end
            results[value] = fold_score(model, test, spec, ready.solver, self.scoring), model.passes
        return [results[value] for value in grid]

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the predictions of the model that is fitted to all rows, shape (N,)."""
        check_is_fitted(self)
        return self.best_estimator_.predict(X, offset)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> float:
        """Return the score of the model fitted to all rows: accuracy, R² or D²."""
        check_is_fitted(self)
        return self.best_estimator_.score(X, y, sample_weight, offset)  # type: ignore[no-any-return]

    def save(self, path: AnyPath) -> None:
        """Write the model that is fitted to all rows as the estimator's ``save`` does, with the scores."""
        check_is_fitted(self)
        self.best_estimator_._write(path, self.best_estimator_._training | search_facts(self))


@dataclass(eq=False, repr=False)
class ADFSClassifierCV(ClassifierMixin, PenaltyCV[ADFSClassifier]):  # type: ignore[misc]
    """A classifier whose ``C`` is chosen by cross-validation.

    Folds are made inside each node's own rows, class by class; scores (the share of right classes) are sums
    over the nodes. Each fold's fits start from the one before, from the smallest C to the largest.

    Parameters
    ----------
    Cs : list of float, or int
        The weights to try; or how many, with an l1 ratio above 0: a geometric grid from the largest C at
        which all coefficients are 0 up to a thousand times that, by sums over the nodes.
        (LogisticRegressionCV's grid of so many values, from 1e-4 to 1e4, does not depend on the data.)
    l1_ratios : list of float, optional
        The ``l1_ratio`` is chosen among these too; left out, it is the estimator's.
    cv : int, splitter or iterable of (train, test)
        How many folds, or how this process's rows are split into them: row numbers, or one bool per row.
    scoring : str, optional
        ``"neg_log_loss"`` for the logistic loss, as in scikit-learn; left out, the share of right classes.
    estimator : ADFSClassifier, optional
        All other parameters, its cluster among them.

    Attributes
    ----------
    C_ : float
        The first of those with the best mean score.
    l1_ratio_ : float
    Cs_ : ndarray of shape (k,)
        (n_ratios, k) if both the ratios and a number of values were given.
    scores_ : ndarray of shape (n_folds, k), or (n_folds, n_ratios, k) with ``l1_ratios``
    n_iter_ : ndarray of the same shape
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

    score = PenaltyCV.score

    def decision_function(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the decision values of the model fitted to all rows."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X, offset)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the probabilities of the model fitted to all rows; for the logistic loss only."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X, offset)  # type: ignore[no-any-return, unused-ignore]

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_log_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """Return the logarithms of the probabilities."""
        return np.log(self.predict_proba(X, offset))  # type: ignore[no-any-return]


@dataclass(eq=False, repr=False)
class ADFSRegressorCV(RegressorMixin, PenaltyCV[ADFSRegressor]):  # type: ignore[misc]
    """A regressor whose ``alpha`` is chosen by cross-validation.

    Scores are R², or D² (the share of the deviance explained) for losses with a log link.

    With an l1 ratio above 0 the folds are penalised as in ElasticNetCV, whose penalty belongs to the mean of
    the losses: a fit to a fold takes alpha times the fold's share of the weights. Without an ℓ1 term it takes
    alpha itself, as in RidgeCV.

    Parameters
    ----------
    alphas : list of float, or int
        The penalties to try; or how many, with an l1 ratio above 0: ElasticNetCV's geometric grid from the
        smallest alpha at which all coefficients are 0 down to 1e-3 of it, by sums over the nodes.
    scoring : str, optional
        Minus the mean deviance by scikit-learn's name: ``"neg_mean_squared_error"``, which ElasticNetCV
        takes, or ``"neg_mean_poisson_deviance"``, ``"neg_mean_gamma_deviance"`` for these losses.
    l1_ratios, cv, estimator
        As for `ADFSClassifierCV`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
    alphas_, scores_, n_iter_, n_unfinished_, best_estimator_
        As for `ADFSClassifierCV`.
    """

    _name = "alpha"
    _plain = ADFSRegressor

    alphas: Any = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3)

    score = PenaltyCV.score


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


def _listed(values: Any) -> list[Any]:
    """Return the entries of a list of any kind; none of a number or a text."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else []


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
