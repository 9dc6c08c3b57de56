"""Fits with other processes: the hook for collections of an engine such as Dask, and what must be alike.

An estimator whose ``cluster`` is an `Engine` hands its fits to it, and its predictions for collections.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _get_feature_names

from adfs._version import __version__
from adfs.errors import InputError
from adfs.problem import Loss
from adfs.runtimes import Cluster
from adfs.runtimes.options import describe

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


# --------------------------------------------------------------------------- processes that fit together

# Parameters that may differ between processes: each has its own nodes, rows, output and part of the cluster.
_OWN = ("cluster", "partition", "verbose", "n_jobs", "n_nodes")


def to_compare(estimator: BaseEstimator, X: Any) -> dict[str, str]:
    """Return what must be the same in all processes that fit together, under names for a sentence."""
    facts = {"the estimator": type(estimator).__name__, "the version of adfs": __version__}
    for name, value in estimator.get_params().items():
        last = name.rpartition("__")[2]
        if last == "cv" and not isinstance(value, Real | str) and not hasattr(value, "split"):
            facts[name] = "a list of folds"  # of the process's own rows
        elif last not in _OWN:
            facts[name] = canonical_text(value)
    names = None
    with contextlib.suppress(TypeError):  # every process reports it when it checks its data
        names = _get_feature_names(X)
    facts["whether columns have names"] = str(names is not None)
    for number, name in enumerate(() if names is None else names):
        facts[f"the name of column {number}"] = repr(str(name))
    return facts


def canonical_text(value: object) -> str:
    """Return a text that is the same for the same value, whatever kind of number or list it is.

    >>> canonical_text((1, np.float32(0.5))), canonical_text({"b": 2, "a": 1}), canonical_text(print)
    ('[1, 0.5]', "{'a': 1, 'b': 2}", '<built-in function print>')
    """
    if isinstance(value, bool | np.bool_):
        return repr(bool(value))
    if isinstance(value, Real):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, Mapping):
        pairs = (f"{canonical_text(key)}: {canonical_text(entry)}" for key, entry in value.items())
        return "{" + ", ".join(sorted(pairs)) + "}"
    if isinstance(value, list | tuple) and not isinstance(value, Loss):
        return "[" + ", ".join(canonical_text(entry) for entry in value) + "]"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return canonical_text(value.tolist())
    if isinstance(value, BaseEstimator):  # its own parameters are compared too
        return type(value).__name__
    # Objects without a repr of their own show an address, which differs between processes.
    return re.sub(" at 0x[0-9a-fA-F]+", "", describe(value))
