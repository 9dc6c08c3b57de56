"""Read a user's graph (networkx, matrix, edge list, file) into arrays, or refuse it with one sentence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from adfs.errors import InputError
from adfs.network.graphs import GRAPHS, components

if TYPE_CHECKING:
    import networkx

Matrix = Any  # of NumPy or SciPy; the latter's types cannot say which arrays it takes

#: the largest relative asymmetry of an adjacency matrix that counts as rounding
ASYMMETRY = 1e-12


@dataclass(frozen=True)
class GraphArrays:
    """The data of a network: edges (|E|, 2), i < j, lexicographically sorted; weights; node labels."""

    n_nodes: int
    edges: NDArray[np.int64]
    weights: NDArray[np.float64]
    labels: tuple[Hashable, ...] | None

    @property
    def names(self) -> Sequence[Hashable]:
        """The user's labels, or the numbers of the nodes."""
        return range(self.n_nodes) if self.labels is None else self.labels


def _order_labels(labels: Iterable[Hashable]) -> list[Hashable]:
    """Sort labels where they can be compared with each other, else keep the order of their appearance."""
    distinct = list(dict.fromkeys(labels))
    try:
        return sorted(distinct)  # type: ignore[type-var]
    except TypeError:
        return distinct


def _from_labels(
    names: Sequence[Hashable], ends: Iterable[Hashable], weights: Sequence[object]
) -> GraphArrays:
    """Return the graph with these nodes, in this order; ``ends`` has two names per edge."""
    index = {name: k for k, name in enumerate(names)}
    pairs = np.array([index[name] for name in ends], dtype=np.int64).reshape(-1, 2)
    return _freeze(pairs, _as_weights(weights), names)


def _freeze(ends: NDArray[np.int64], weights: NDArray[np.float64], names: Sequence[Hashable]) -> GraphArrays:
    """Sort the edges, refuse loops and repeats; ``names`` become the labels."""
    loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
    if loops.size:
        raise InputError(
            f"node {names[ends[loops[0], 0]]!r} is linked to itself ({loops.size} self-loop(s)):"
            " remove the self-loops (in an adjacency matrix, set the diagonal to 0)"
        )
    # In lexicographic order equal pairs are neighbours.
    low, high = ends.min(axis=1), ends.max(axis=1)
    order = np.lexsort((high, low))
    edges = np.column_stack([low[order], high[order]]).astype(np.int64)
    repeats = np.flatnonzero((edges[1:] == edges[:-1]).all(axis=1))
    if repeats.size:
        i, j = edges[repeats[0]]
        raise InputError(
            f"the edge ({names[i]!r}, {names[j]!r}) is given more than once: give each undirected edge once"
            " (a list of pairs is an edge list; pass an adjacency matrix as a NumPy or SciPy array)"
        )
    # Nodes that are numbered 0, …, n − 1 need no labels; True and False equal 1 and 0, but are labels.
    plain = list(names) == list(range(len(names))) and not any(isinstance(name, bool) for name in names)
    return GraphArrays(len(names), edges, weights[order], None if plain else tuple(names))


def read_networkx(graph: networkx.Graph) -> GraphArrays:
    """Read an undirected networkx graph; the edge attribute ``"weight"`` (1 where absent) is μ_e²."""
    if graph.is_directed() or graph.is_multigraph():
        raise InputError(
            "the network is directed or a multigraph, and exchanges need one edge for both ways:"
            " join such edges into one, for instance by nx.Graph(graph)"
        )
    weights = [weight for _, _, weight in graph.edges(data="weight", default=1.0)]
    return _from_labels(_order_labels(graph.nodes), itertools.chain(*graph.edges), weights)


def read_adjacency(entries: Matrix) -> GraphArrays:
    """Read a symmetric adjacency matrix, dense or sparse; a positive entry is a weight, zero is no edge."""
    if entries.ndim != 2 or entries.shape[0] != entries.shape[1]:
        raise InputError(f"an adjacency matrix is square, not of shape {entries.shape}: pass an (n, n) array")
    if entries.dtype.kind not in "biuf":
        raise InputError(f"an adjacency matrix holds real numbers, not {entries.dtype}: convert it to float")
    # A copy: the user's matrix keeps its explicit zeros.
    table: Matrix = scipy.sparse.csr_array(entries, dtype=np.float64, copy=True)
    table.sum_duplicates()
    if not np.isfinite(table.data).all():
        raise InputError(
            "the adjacency matrix has an entry that is not a finite number: replace it by a weight or by 0"
        )
    # Symmetric but for rounding.
    table.eliminate_zeros()
    excess = (abs(table - table.T) - ASYMMETRY * abs(table).maximum(abs(table.T))).tocoo()
    if excess.nnz and excess.data.max() > 0:
        worst = int(np.argmax(excess.data))
        i, j = int(excess.coords[0][worst]), int(excess.coords[1][worst])
        raise InputError(
            f"the adjacency matrix is not symmetric, entries ({i}, {j}) and ({j}, {i}) differ:"
            " edges go both ways, pass (A + A.T) / 2 if that is what you mean"
        )
    upper = scipy.sparse.triu(table).tocoo()
    ends = np.column_stack(upper.coords).astype(np.int64)
    return _freeze(ends, np.asarray(upper.data, dtype=np.float64), range(entries.shape[0]))


def read_edge_list(pairs: Sequence[Any] | np.ndarray, n_nodes: int | None) -> GraphArrays:
    """Read pairs ``(i, j)`` or triples ``(i, j, weight)``; ends may be any labels.

    With ``n_nodes`` and integer ends in 0, …, n_nodes − 1 the nodes are these numbers; otherwise the nodes
    are the labels that occur.
    """
    # Rows of a NumPy array become lists: the rest is the same for arrays and lists.
    rows = [row.tolist() if isinstance(row, np.ndarray) else row for row in pairs]
    for k, row in enumerate(rows):
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) not in (2, 3):
            raise InputError(f"edge number {k} is {row!r}: an edge is (i, j) or (i, j, weight)")
    labels = [_plain(label) for row in rows for label in row[:2]]
    integers = all(isinstance(label, int) and not isinstance(label, bool) for label in labels)
    if not labels and n_nodes is None:
        raise InputError("the edge list is empty: give at least one edge, or 'path:1' for a single node")
    # With n_nodes, integers are the numbers of nodes, some of which may have no edge.
    if n_nodes is not None and integers:
        outside = [label for label in labels if not 0 <= cast(int, label) < n_nodes]
        if outside:
            raise InputError(
                f"the edge list names node {outside[0]} but n_nodes is {n_nodes}:"
                f" nodes are numbered 0 to {n_nodes - 1}"
            )
        names: list[Hashable] = list(range(n_nodes))
    else:
        names = _order_labels(labels)
    return _from_labels(names, labels, [row[2] if len(row) == 3 else 1.0 for row in rows])


def is_graph_file(name: str) -> bool:
    """Whether a graph is a file and not a name: ``"erdos-renyi:9,0.5"`` is one of ours."""
    start = name.partition(":")[0]
    return start not in GRAPHS and (Path(start).suffix != "" or Path(start).name != start)


def read_file(path: Path, n_nodes: int | None) -> GraphArrays:
    """Read GraphML, or else an edge list, one edge per line; labels become numbers if all can."""
    import networkx as nx

    # Both formats can fail in many ways, which all mean that this is no graph.
    try:
        if path.suffix.lower() == ".graphml":
            graph = nx.read_graphml(path)
            numbers = _as_numbers(graph.nodes)
            return read_networkx(nx.relabel_nodes(graph, dict(zip(graph.nodes, numbers, strict=True))))
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, SyntaxError, nx.NetworkXError) as error:
        raise InputError(
            f"graph {path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    ends: list[str] = []
    weights = []
    for number, line in enumerate(lines, 1):
        # networkx writes the attributes of an edge in braces after its two nodes.
        start, _, attributes = line.partition("#")[0].partition("{")
        fields = start.replace(",", " ").split()
        fields += re.findall(r"'weight': *([^,}]+)", attributes)
        if not fields:
            continue
        try:
            first, second, weight = fields if len(fields) == 3 else (*fields, "1")
            ends += [first, second]
            weights.append(float(weight))
        except ValueError:
            raise InputError(
                f"graph {path}: line {number}: an edge is two nodes and perhaps a weight, "
                f"got {line.strip()!r}"
            ) from None
    labels = _as_numbers(ends)
    return read_edge_list(list(zip(labels[::2], labels[1::2], weights, strict=True)), n_nodes)


def _as_numbers(labels: Iterable[str]) -> list[int] | list[str]:
    """Turn labels into integers if all of them are."""
    texts = list(labels)
    return [int(text) for text in texts] if all(re.fullmatch(r"\d+", text) for text in texts) else texts


def _plain(label: object) -> Hashable:
    """Turn NumPy scalars into Python's, so that they sort and compare as labels."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, float) and value.is_integer():
        return int(value)  # an edge array with weights is a float array
    if not isinstance(value, Hashable):
        raise InputError(f"{label!r} cannot name a node: use numbers, strings or other hashable labels")
    return value


def _as_weights(values: object) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "an edge weight is not a number: give one positive finite number for each edge"
        ) from None


def check_weights(weights: object, arrays: GraphArrays) -> NDArray[np.float64]:
    """Bring weights (a number, or one per edge) to (|E|,), all positive."""
    edges, names = arrays.edges, arrays.names
    values = _as_weights(weights)
    if values.ndim == 0:
        values = np.full(len(edges), float(values))
    if values.shape != (len(edges),):
        raise InputError(
            f"weights have shape {values.shape} but the network has {len(edges)} edges:"
            " give a number, or one number for each edge in the order of network.edges"
        )
    # Compared in this direction, so that nan is refused too.
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        i, j = edges[bad[0]]
        raise InputError(
            f"the edge ({names[i]!r}, {names[j]!r}) has weight {values[bad[0]]:g}:"
            " weights must be positive finite numbers (leave an edge out to remove it)"
        )
    return values


def check_connected(arrays: GraphArrays) -> None:
    """Refuse a graph with several components, and name a node of another component."""
    if arrays.n_nodes == 0:
        raise InputError("the network has no nodes: give at least one, 'path:1' is a single node")
    count, component = components(arrays.n_nodes, arrays.edges)
    if count > 1:
        other = int(np.flatnonzero(component != component[0])[0])
        raise InputError(
            f"the network is not connected, it has {count} components and node {arrays.names[other]!r} cannot"
            f" be reached from node {arrays.names[0]!r}: add edges, or solve each component by itself"
        )
