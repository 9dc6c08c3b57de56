"""The hook for rows that lie in other processes: collections of an engine such as Dask.

An estimator whose ``cluster`` is an `Engine` hands its fits to it, and its predictions for collections.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from adfs.errors import InputError
from adfs.runtimes import Cluster

if TYPE_CHECKING:
    from adfs.estimators.pipeline import FittedModel

F = TypeVar("F", bound=Callable[..., Any])


class Engine(Cluster):
    """The processes of an engine, seen from the program that gives them work.

    This program holds no rows and takes no part in the fit: the engine starts a task in each process that
    holds rows, and these tasks are the cluster.
    """

    @abstractmethod
    def holds(self, X: Any) -> bool:
        """Return whether X is a collection of this engine."""

    @abstractmethod
    def fit(self, estimator: Any, X: Any, y: Any, sample_weight: Any, offset: Any) -> FittedModel:
        """Fit where the rows are, and set the fitted attributes of the estimator of this program."""

    @abstractmethod
    def apply(self, name: str, estimator: Any, X: Any, *arrays: Any) -> Any:
        """Return the lazy result of a method of a fitted estimator, block by block."""

    def allgather(self, item: Any) -> list[Any]:
        """Refuse: this program is not one of the processes that fit."""
        raise InputError(f"{self!r} fits estimators; for a run of a method give the processes themselves")


def fits_on_engines(fit: F) -> F:
    """Let the engine of an estimator, or of the estimator of a search, do its fits."""

    @wraps(fit)
    def placed(self: Any, X: Any, y: Any, *arrays: Any, **named: Any) -> Any:
        # A search has no cluster of its own: that of the estimator which it fits counts.
        engine = getattr(getattr(self, "estimator", self), "cluster", None)
        return (engine.fit if isinstance(engine, Engine) else fit)(self, X, y, *arrays, **named)

    return cast("F", placed)


def lazy_on_engines(method: F) -> F:
    """Let a method of an estimator answer for collections of its engine, too."""

    @wraps(method)
    def placed(self: Any, X: Any, *arrays: Any, **named: Any) -> Any:
        engine = self.cluster
        # Rows of this program are predicted here, also by a model that an engine has fitted.
        if isinstance(engine, Engine) and engine.holds(X):
            return engine.apply(method.__name__, self, X, *arrays, **named)
        return method(self, X, *arrays, **named)

    return cast("F", placed)
