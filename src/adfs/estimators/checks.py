"""Checks of what estimators are given: parameters, weights, offsets, and that all processes agree."""

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
from adfs.errors import InputError
from adfs.network import Network
from adfs.network.inputs import is_graph_file
from adfs.problem import Loss
from adfs.problem.shards import check_count
from adfs.runtimes import Cluster
from adfs.runtimes.options import describe

_LARGEST_LOGARITHM = 500.0  # its exponential, and that of its negative, may still be squared
# Parameters that may differ between processes: each has its own nodes, rows, output and part of the cluster.
_OWN = ("cluster", "partition", "verbose", "n_jobs", "n_nodes")


def is_number(value: Any) -> bool:
    """Return whether a parameter is a real number; True and False are not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def positive(value: Any, name: str) -> float:
    """Return a parameter as a number, checked to be finite and above 0."""
    if not (is_number(value) and np.isfinite(value) and value > 0.0):
        raise InputError(f"{{{name}}} must be finite and above 0, got {value!r}", **{name: None})
    return float(value)


def read_offset(offset: Any, n_rows: int, loss: Loss) -> np.ndarray | None:
    """Return offsets as numbers: one entry per row of the data, a number or one number per class."""
    if offset is None:
        return None
    values = np.asarray(offset, dtype=np.float64)
    if values.ndim not in (1, 2) or len(values) != n_rows:
        raise InputError(f"offset must have one entry per row: X has {n_rows} rows, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("offset contains NaN or infinity")
    if loss.link == "log" and np.abs(values).max(initial=0.0) > _LARGEST_LOGARITHM:
        raise InputError(
            f"offset must lie between −{_LARGEST_LOGARITHM:g} and {_LARGEST_LOGARITHM:g} for the loss "
            f"{loss.name!r}, whose means it multiplies by its exponential; give the logarithm of the exposure"
        )
    return values


def count_nodes(n_nodes: Any, network: Any, seed: int) -> int:
    """Return the number of nodes: the one given, or the network's own; 1 where neither is given."""
    if n_nodes is not None:
        check_count(n_nodes)
    if isinstance(network, str) and ":" not in network and not is_graph_file(network):
        return int(n_nodes or 1)
    try:
        found = network.n_nodes if isinstance(network, Network) else Network(network, seed=seed).n_nodes
    except InputError:
        if not isinstance(network, str) or is_graph_file(network):
            raise
        # The name has no size, or is wrong: `Network` reports that once it is given the number of nodes.
        return int(n_nodes or 1)
    if n_nodes not in (None, found):
        raise InputError(
            f"the network {network!r} has {found} nodes but n_nodes is {n_nodes}; leave one of them out"
        )
    return int(found)


def check_alike(cluster: Cluster, estimator: BaseEstimator, X: Any) -> None:
    """Raise the same `RefusalError` in every process unless all fit the same estimator and columns."""
    if cluster.size == 1:
        return
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
    cluster.same(lambda: facts)


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
