"""The problem and the network that a comparison speaks of, from files and otherwise; and its modules."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from adfs.data import ReadOptions, Table, read_source
from adfs.data.table import labels_for
from adfs.errors import InputError
from adfs.files import JsonObject
from adfs.network import Network
from adfs.network.inputs import is_graph_file
from adfs.problem import Problem, get_loss
from adfs.problem.losses import Loss
from adfs.problem.samples import Matrix

if TYPE_CHECKING:
    from adfs.experiments.comparison import Comparison, DataSpec

_FEATURES = 10
#: Two nodes each, by number or by label, and perhaps a weight.
Edges: TypeAlias = tuple[tuple[str | float, ...], ...]


def gaussians(n_samples: int, n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the paper's two classes, N(−1, I) and N(1, I), half of the samples each: rows and labels.

    The labels are −1 and 1 in turn: any run of samples is balanced.

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
    return _make_network(comparison.network, comparison.n_nodes, comparison.network_seed)


def make_problem(comparison: Comparison, seed: int) -> tuple[Problem, Network]:
    """Return the problem of a seed and the network.

    The last ones are kept: the methods of a comparison share them, and the optimum is found once.
    """
    one, network = comparison, make_network(comparison)
    return _make_problem(one.data, network, one.partition, one.loss, one.sigma, seed), network


@lru_cache(maxsize=1)
def _make_network(graph: str | Edges, nodes: int | None, seed: int) -> Network:
    return Network(graph, n_nodes=nodes, seed=seed)


@lru_cache(maxsize=1)
def _make_problem(
    data: DataSpec,
    network: Network,
    partition: str,
    loss_name: str,
    sigma: float | tuple[float, ...],
    seed: int,
) -> Problem:
    n_nodes, loss = network.n_nodes, get_loss(loss_name)
    chosen = seed if data.seed is None else data.seed
    if data.source == "gaussians":
        assert data.samples_per_node is not None
        if loss.task != "classification":
            raise InputError(f"gaussians are two classes, and the loss {loss.name!r} is for numbers")
        X, y = gaussians(data.samples_per_node * n_nodes, data.n_features or _FEATURES, chosen)
        return Problem(X, y, loss, sigma, n_nodes, partition="contiguous")
    table = _read_file(data) if data.is_file else read_source(data.source, seed=chosen)
    X, y, weights = _samples(table, data, loss, n_nodes, chosen)
    return Problem(X, y, loss, sigma, n_nodes, partition=partition, sample_weight=weights, seed=chosen)


@lru_cache(maxsize=1)
def _read_file(data: DataSpec) -> Table:
    """Read a file once for all seeds."""
    return read_source(data.source, ReadOptions(data.form, data.label, n_features=data.n_features))


def _samples(
    table: Table, data: DataSpec, loss: Loss, n_nodes: int, seed: int
) -> tuple[Matrix, np.ndarray, np.ndarray | None]:
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
    return (
        _normalised(X, data.normalise, table.source),
        labels_for(y, loss.task, loss.name, table.source),
        weights,
    )


def _normalised(X: Matrix, how: str, source: str) -> Matrix:
    if how == "none":
        return X
    sparse = bool(sp.issparse(X))
    if how == "columns":
        if sparse:
            if 8 * X.shape[0] * X.shape[1] > X.data.nbytes + X.indices.nbytes:
                raise InputError(
                    f"{source}: {1.0 - X.nnz / np.prod(X.shape):.0%} of its values are 0, which centred "
                    "columns would fill; use normalise = 'rows'"
                )
            X = X.toarray()
        spread = X.std(axis=0)
        return (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    squares = np.asarray((X.multiply(X) if sparse else X * X).sum(axis=1)).ravel()
    factors = 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0))
    if sparse:
        return sp.csr_array(sp.diags_array(factors) @ X)
    return factors[:, None] * X


def plain_graph(graph: object, nodes: int | None) -> str | Edges:
    """Return the edges of a graph or of a file, with their weights where these are not all 1."""
    try:
        network = Network(graph, n_nodes=nodes)
    except InputError as error:
        raise InputError(str(error) if isinstance(graph, str) else f"network: {error}") from None
    if network.n_nodes == 1:
        return "path:1"
    labels = network.labels
    names = [one for one in labels if isinstance(one, str)]
    ends: Sequence[str | int] = names if len(names) == len(labels) else range(len(labels))
    edges = [(ends[i], ends[j]) for i, j in network.edges.tolist()]
    if (network.weights == 1.0).all():
        return tuple(edges)
    return tuple((*edge, weight) for edge, weight in zip(edges, network.weights.tolist(), strict=True))


# --------------------------------------------------------------------------- names of files


def is_data_file(source: str) -> bool:
    """Whether the source of samples is a file."""
    return source != "gaussians" and not source.startswith(("sklearn:", "synthetic:"))


def with_paths(table: Mapping[str, Any], base: Path) -> JsonObject:
    """Return the table of a comparison with the paths in it made absolute; what is malformed stays."""
    values = dict(table)
    data, graph, imports = table.get("data"), table.get("network"), table.get("imports")
    if isinstance(data, str):
        data = {"source": data}
    if isinstance(data, Mapping):
        source = data.get("source")
        values["data"] = dict(data)
        if isinstance(source, str) and is_data_file(source):
            values["data"]["source"] = str(base / source)
    if isinstance(graph, str) and is_graph_file(graph):
        values["network"] = str(base / graph)
    if isinstance(imports, list | tuple):
        values["imports"] = [
            str(base / name) if isinstance(name, str) and name.endswith(".py") else name for name in imports
        ]
    return values


def load_modules(names: Iterable[str]) -> None:
    """Import modules by name, or .py files by path; a file is imported once."""
    for name in names:
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
                continue
            path = Path(name).resolve()
            alias = f"_adfs_import_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            if alias in sys.modules:
                continue
            found = importlib.util.spec_from_file_location(alias, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[alias] = module
            found.loader.exec_module(module)
        except (ImportError, OSError) as error:
            raise InputError(f"cannot import {name!r}: {error}") from None
