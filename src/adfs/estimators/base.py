"""What the classifier and the regressor share: checking parameters, splitting over nodes, warnings."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from adfs.errors import InputError, unknown_name
from adfs.estimators.solving import Plan, Solution, make_network
from adfs.problem import split
from adfs.problem.finite_sum import check_count
from adfs.problem.losses import LOSSES
from adfs.runtimes import Outcome

__all__ = ["LinearEstimator", "check_penalty", "positive"]


def positive(value: Any, name: str) -> float:
    """Return a parameter as a number, checked to be finite and above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} must be a number above 0, got {value!r}")
    if not (np.isfinite(value) and value > 0.0):
        raise InputError(f"{name} must be finite and above 0, got {value!r}")
    return float(value)


def check_penalty(penalty: str) -> None:
    """Raise unless the penalty is the one there is."""
    if penalty != "l2":
        raise InputError(
            f"penalty={penalty!r} is not available: ADFS needs a strongly convex "
            "penalty at every node, so L1 and elastic net are not part of this package; use penalty='l2'"
        )


class LinearEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The part of a linear model that does not depend on the task."""

    # Set by the classes that derive from this one.
    penalty: str
    loss: str
    tol: float
    max_iter: float
    n_nodes: int
    graph: Any
    partition: Any
    random_state: Any
    warm_start: bool
    verbose: int
    intercept_scaling: float
    fit_intercept: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (N, d)
        y : array-like of shape (N,)
        sample_weight : array-like of shape (N,), optional

        Returns
        -------
        self
        """
        self._warn(self._fit(X, y, sample_weight), interrupt=True)
        return self

    @abstractmethod
    def _fit(self, X: Any, y: Any, sample_weight: Any, base: Plan | None = None) -> list[Solution]:
        """Fit, and return the solutions behind the attributes; ``base`` has what no parameter says."""

    def _data(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> tuple[Any, Any, np.ndarray]:
        """Return rows, targets and weights, checked as scikit-learn checks them."""
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, order="C", accept_large_sparse=True, **options
        )
        return X, y, _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _check(self, task: str) -> str:
        """Check what both kinds take, and return the loss's name as the registry spells it."""
        check_penalty(self.penalty)
        known = sorted(name for name, cls in LOSSES.items() if cls.task == task)
        name = str(self.loss).replace("_", "-")
        if name not in known:
            if name in LOSSES:
                other = "ADFSRegressor" if task == "classification" else "ADFSClassifier"
                raise InputError(f"loss={self.loss!r} is for {LOSSES[name].task}: use {other}")
            raise unknown_name(f"{task} loss", self.loss, known)
        positive(self.tol, "tol")
        positive(self.max_iter, "max_iter")
        positive(self.intercept_scaling, "intercept_scaling")
        check_count(self.n_nodes)
        return name

    def _make_plan(self, base: Plan | None) -> Plan:
        """Return how to solve; ``base`` has what the parameters of an estimator do not say."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if base is None else base.seed
        chosen = Plan(progress=bool(self.verbose)) if base is None else base
        network = make_network(self.graph, int(self.n_nodes), seed)
        fields = {**vars(chosen), "tol": float(self.tol), "max_iter": float(self.max_iter)}
        return Plan(**{**fields, "seed": seed, "network": network})

    def _parts(self, y: np.ndarray, seed: int) -> list[np.ndarray]:
        """Return the rows of each node."""
        return split(self.partition, np.asarray(y, dtype=np.float64), int(self.n_nodes), seed=seed)

    def _warn(self, solutions: list[Solution], interrupt: bool) -> None:
        """Warn when the gap was not reached; a Ctrl-C is passed on."""
        if interrupt and any(solution.outcome is Outcome.STOPPED for solution in solutions):
            raise KeyboardInterrupt
        worst = max(solutions, key=lambda solution: solution.gap)
        if all(solution.outcome is Outcome.CONVERGED for solution in solutions):
            return
        warnings.warn(
            f"{type(self).__name__} stopped at a relative duality gap of {worst.gap:.1e} after "
            f"{worst.passes:.0f} passes, above tol={self.tol:g}: standardise the features, "
            "or raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )

    def _passes(self, solutions: list[Solution]) -> int:
        """Return whole passes over the data, the most of several runs, at most ``max_iter``."""
        most = max(solution.passes for solution in solutions)
        return int(min(max(1, np.ceil(most)), np.ceil(self.max_iter)))

    def _warm_dual(self, key: tuple[Any, ...]) -> list[np.ndarray] | None:
        """Return the tips of the last fit over their weights, when it was on data of the same shape."""
        if not self.warm_start or getattr(self, "_warm_key", None) != key:
            return None
        saved: list[np.ndarray] = self._warm_tips
        return saved

    def _save_warm(self, key: tuple[Any, ...], tips: list[np.ndarray | None]) -> None:
        kept = [one for one in tips if one is not None]
        if self.warm_start and len(kept) == len(tips):
            self._warm_key, self._warm_tips = key, kept
        else:
            self.__dict__.pop("_warm_key", None)
            self.__dict__.pop("_warm_tips", None)


def per_weight(tips: np.ndarray | None, weights: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Return tips over their weights (which the next fit may change), in the order of the given rows."""
    if tips is None:
        return None
    out = np.empty_like(tips)
    divisor = np.where(weights > 0.0, weights, 1.0)[order]
    out[order] = tips / (divisor if tips.ndim == 1 else divisor[:, None])
    return out


def from_weights(tips: np.ndarray | None, weights: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Return tips in the order of the problem's rows, from `per_weight`."""
    if tips is None:
        return None
    factor = weights if tips.ndim == 1 else weights[:, None]
    return np.asarray((tips * factor)[order])
