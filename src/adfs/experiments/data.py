"""The problem and the network that a comparison speaks of."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.data import ReadOptions, Table, read_source
from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, DataSpec, MethodSpec
from adfs.network import Network
from adfs.problem import Problem, get_loss
from adfs.problem.losses import Loss

__all__ = ["gaussians", "make_network", "make_problem"]

_FEATURES = 10


def gaussians(n_samples: int, n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the paper's two classes, N(−1, I) and N(1, I), half of the samples each.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        −1 and 1, in turn: any run of samples is balanced.

    Examples
    --------
    >>> X, y = gaussians(1000, 3, seed=0)
    >>> np.round(X[y == 1].mean(), 1), y.sum()
    (np.float64(1.0), np.float64(0.0))
    """
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n_samples) % 2 == 0, 1.0, -1.0)
    return rng.standard_normal((n_samples, n_features)) + y[:, None], y


def make_network(comparison: Comparison) -> Network:
    """Return the network, the same for all seeds."""
    return Network(comparison.graph, n_nodes=comparison.nodes, seed=comparison.graph_seed)


def make_problem(comparison: Comparison, seed: int) -> tuple[Problem, Network]:
    """Return the problem of a seed and the network.

    The last one is kept: the methods of a comparison run on the same object, and its optimum is found once.
    """
    # A comparison that says nothing else is the same for all methods, delays and targets.
    one = comparison
    only = (MethodSpec("adfs"),)
    key = Comparison(
        one.data, one.graph, only, "-", one.nodes, one.graph_seed, one.partition, one.loss, one.sigma
    )
    return _make_problem(key, seed)


@lru_cache(maxsize=1)
def _make_problem(comparison: Comparison, seed: int) -> tuple[Problem, Network]:
    network = make_network(comparison)
    n_nodes, sigma = network.n_nodes, comparison.sigma
    data, loss = comparison.data, get_loss(comparison.loss)
    chosen = seed if data.seed is None else data.seed
    if data.source == "gaussians":
        assert data.samples_per_node is not None
        if loss.task != "classification":
            raise InputError(f"gaussians are two classes, and the loss {loss.name!r} is for numbers")
        X, y = gaussians(data.samples_per_node * n_nodes, data.n_features or _FEATURES, chosen)
        return Problem(X, y, loss, sigma, n_nodes, partition="contiguous"), network
    table = _read_file(data) if data.is_file else read_source(data.source, seed=chosen)
    X, y, weights = _samples(table, data, loss, n_nodes, chosen)
    problem = Problem(
        X, y, loss, sigma, n_nodes, partition=comparison.partition, sample_weight=weights, seed=chosen
    )
    return problem, network


@lru_cache(maxsize=1)
def _read_file(data: DataSpec) -> Table:
    """Read a file once for all seeds."""
    return read_source(data.source, ReadOptions(data.form, data.label, n_features=data.n_features))


def _samples(
    table: Table, data: DataSpec, loss: Loss, n_nodes: int, seed: int
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return rows, labels and weights: as many as are wanted, labels ±1, rows normalised."""
    X, y, weights = table.X, table.y, table.weights
    if y is None:
        raise InputError(f"{table.source} has no labels")
    if data.samples_per_node is not None:
        wanted = data.samples_per_node * n_nodes
        if wanted > y.size:
            raise InputError(
                f"{table.source} has {y.size} samples, fewer than {n_nodes} nodes x {data.samples_per_node}: "
                "lower samples_per_node or take fewer nodes"
            )
        rows = np.sort(np.random.default_rng(seed).permutation(y.size)[:wanted])
        X, y, weights = X[rows], y[rows], None if weights is None else weights[rows]
    return _normalised(X, data.normalise, table.source), _labels(y, loss, table.source), weights


def _labels(y: np.ndarray, loss: Loss, source: str) -> np.ndarray:
    if loss.task != "classification":
        if y.dtype.kind == "U":
            raise InputError(f"{source}: the labels are text, the loss {loss.name!r} wants numbers")
        return y
    classes = np.unique(y)
    if classes.size != 2:
        raise InputError(
            f"{source} has {classes.size} classes; the loss {loss.name!r} takes two here; "
            "for numbers choose a regression loss, such as squared"
        )
    return np.where(y == classes[1], 1.0, -1.0)


def _normalised(X: Any, how: str, source: str) -> Any:
    if how == "none":
        return X
    if how == "columns":
        if sp.issparse(X):
            raise InputError(
                f"{source}: the columns of sparse samples cannot be centred; use normalise = 'rows'"
            )
        spread = X.std(axis=0)
        return (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    sparse = bool(sp.issparse(X))
    squares = np.asarray((X.multiply(X) if sparse else X * X).sum(axis=1)).ravel()
    factors = 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0))
    if sparse:
        return sp.csr_array(sp.diags_array(factors) @ X)
    return factors[:, None] * X
