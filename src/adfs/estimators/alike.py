"""Whether the processes of a cluster fit the same estimator: compared once, before anything else is sent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _get_feature_names

from adfs._version import __version__
from adfs.problem import Loss
from adfs.runtimes import Cluster
from adfs.runtimes.options import describe

# A process's own: its nodes, how its rows are split, what it shows, and the cluster, of which it is one.
_OWN = ("cluster", "partition", "verbose", "n_jobs", "n_nodes")


def check_alike(cluster: Cluster, estimator: BaseEstimator, X: Any) -> None:
    """Raise the same `RefusalError` in every process unless all fit the same estimator and columns."""
    if cluster.size == 1:
        return
    words = {"the estimator": type(estimator).__name__, "the version of adfs": __version__}
    for name, value in estimator.get_params().items():
        last = name.rpartition("__")[2]
        if last == "cv" and not isinstance(value, Real | str) and not hasattr(value, "split"):
            words[name] = "a list of folds"  # of its own rows
        elif last not in _OWN:
            words[name] = _words(value)
    names = None
    with contextlib.suppress(TypeError):  # which every process tells when it checks its data
        names = _get_feature_names(X)
    words["whether columns have names"] = str(names is not None)
    for number, name in enumerate(() if names is None else names):
        words[f"the name of column {number}"] = repr(str(name))
    cluster.same(words)


def _words(value: object) -> str:
    """Return words that are the same for the same value, whatever kind of number or list it is.

    >>> _words((1, np.float32(0.5))), _words({"b": 2, "a": 1}), _words(print)
    ('[1, 0.5]', "{'a': 1, 'b': 2}", '<built-in function print>')
    """
    if isinstance(value, bool | np.bool_):
        return repr(bool(value))
    if isinstance(value, Real):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_words(key)}: {_words(one)}" for key, one in value.items())) + "}"
    if isinstance(value, list | tuple) and not isinstance(value, Loss):
        return "[" + ", ".join(_words(one) for one in value) + "]"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return _words(value.tolist())
    if isinstance(value, BaseEstimator):  # its parameters follow
        return type(value).__name__
    # What does not say what it is made of says where it is, which differs between processes.
    return re.sub(" at 0x[0-9a-fA-F]+", "", describe(value))
