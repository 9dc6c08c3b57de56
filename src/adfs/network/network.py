"""The communication network: nodes, weighted edges in a fixed order, spectrum, distances and gossip."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from adfs.errors import InputError
from adfs.network import inputs
from adfs.network.distances import Resistances, diameter_bounds, resistances
from adfs.network.graphs import build_graph
from adfs.network.spectrum import ACCEPTED_ERROR, EigenPair, largest_eigenvalue, second_eigenpair

if TYPE_CHECKING:
    import networkx

Array = TypeVar("Array", bound=np.ndarray)


class Incidence(NamedTuple):
    """The edges of each node.

    Those of node i are at positions indptr[i]:indptr[i + 1] of ``edges`` (2|E|,), their numbers, and of
    ``neighbours`` (2|E|,), the nodes at their other ends, int32. Both ascend within a node.
    """

    indptr: NDArray[np.int64]
    edges: NDArray[np.int64]
    neighbours: NDArray[np.int32]


class Faults(NamedTuple):
    """How the edges of a network fail: exchanges at random, edges in turn.

    Attributes
    ----------
    lost : float
        The probability that an exchange fails at both ends, independently of all others.
    window : float
        For how much of the schedule's time the graph stays the same.
    present : (G, |E|) bool
        The edges of each graph. Window k has graph k mod G.
    """

    lost: float
    window: float
    present: NDArray[np.bool_]


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


class Network:
    """A connected undirected graph whose nodes hold data and whose edges carry messages.

    Nodes are numbered 0, …, n − 1; edge e joins ``edges[e] = (i, j)`` with i < j, and edges are in
    lexicographic order whatever the order in which they were given. A network does not change once it is
    built: its arrays are read-only, it compares and hashes by content, and it pickles.

    Parameters
    ----------
    spec : str, networkx graph, matrix, edge list or Network
        - a name with sizes: ``"path:5"``, ``"cycle:8"``, ``"star:5"``, ``"complete:4"``, ``"grid:3x3"``,
          ``"torus:4x4"``, ``"hypercube:4"`` (its dimension), ``"tree:15"`` (balanced, binary),
          ``"erdos-renyi:50,0.1"``, ``"random-regular:100,4"`` (nodes, degree), ``"geometric:50,0.3"`` (unit
          square, radius), ``"small-world:50,4,0.1"`` (nodes, nearest neighbours, probability),
          ``"barbell:5,2"`` (clique, path between), ``"exponential:16"`` (node i linked to i ± 2^k mod n);
        - an undirected ``networkx.Graph``: the edge attribute ``"weight"`` is μ_e², node labels are kept,
          and nodes are ordered by label where labels can be sorted, else as inserted;
        - a symmetric adjacency matrix, NumPy or SciPy sparse, whose positive entries are the weights;
        - a list of ``(i, j)`` or ``(i, j, weight)``;
        - a file: GraphML (``"sites.graphml"``), or an edge list, one edge per line (``"sites.txt"``);
        - another network.
    weights : float or (|E|,) array, optional
        The edge weights μ_e², in the order of :attr:`edges`; they replace those of ``spec``. By default 1
        on every edge: the overall scale cancels in every method, and the theory sets its own where the
        paper does (1/2).
    n_nodes : int, optional
        Number of nodes, for a name without sizes (``Network("grid", n_nodes=12)`` is the 3 x 4 grid);
        otherwise it must agree with ``spec``.
    seed : int, optional
        Seed of a random family, 0 by default. A draw that is not connected is drawn again, in an order fixed
        by the seed.

    Attributes
    ----------
    n_nodes, n_edges : int
        n and the number of edges.
    edges : (|E|, 2) int64 array
    weights : (|E|,) float64 array
        μ_e².
    name : str or None
        The full name, for a network built by name.
    labels : tuple
        The user's node labels in node order.
    faults : Faults or None
        How its edges fail: see :meth:`losing` and :func:`changing_network`.

    Examples
    --------
    >>> network = Network("grid:2x3")
    >>> network
    Network('grid:2x3', n_nodes=6, n_edges=7)
    >>> network.edges[:3].tolist()
    [[0, 1], [0, 3], [1, 2]]
    >>> round(network.gamma, 12)
    0.2
    >>> network.neighbours(1).tolist()
    [0, 2, 4]
    """

    n_nodes: int
    n_edges: int
    edges: NDArray[np.int64]
    weights: NDArray[np.float64]
    name: str | None
    faults: Faults | None
    _arrays: inputs.GraphArrays

    def __init__(
        self,
        spec: object,
        *,
        weights: object = None,
        n_nodes: int | None = None,
        seed: int | None = None,
    ) -> None:
        if n_nodes is not None:
            given: object = n_nodes
            if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
                raise InputError(f"n_nodes must be a whole number of at least 1, not {n_nodes!r}")
            n_nodes = int(n_nodes)
        arrays, name = read_graph(spec, n_nodes, seed)
        if n_nodes is not None and arrays.n_nodes != n_nodes:
            raise InputError(
                f"the network has {arrays.n_nodes} nodes but n_nodes is {n_nodes}: make them agree"
            )
        # A graph with a name is connected, and its weights are 1 or were checked before.
        if name is None or weights is not None:
            values = inputs.check_weights(arrays.weights if weights is None else weights, arrays)
            arrays = replace(arrays, weights=values)
        if name is None:
            inputs.check_connected(arrays)
        self._set(arrays, name, spec.faults if isinstance(spec, Network) else None)

    def _set(self, arrays: inputs.GraphArrays, name: str | None, faults: Faults | None) -> None:
        edges = _read_only(np.array(arrays.edges, dtype=np.int64, order="C"))
        weights = _read_only(np.array(arrays.weights, dtype=np.float64))
        # Not by `__setattr__`, which refuses.
        self.__dict__.update(
            n_nodes=int(arrays.n_nodes),
            n_edges=len(edges),
            edges=edges,
            weights=weights,
            name=name,
            faults=faults,
            _arrays=replace(arrays, edges=edges, weights=weights),
        )

    @classmethod
    def from_arrays(
        cls, arrays: inputs.GraphArrays, name: str | None = None, faults: Faults | None = None
    ) -> Network:
        """Build a network from arrays that were already checked."""
        network = object.__new__(cls)
        network._set(arrays, name, faults)
        return network

    def __setattr__(self, key: str, value: object) -> NoReturn:
        raise AttributeError(f"a Network does not change: build another one instead of setting {key!r}")

    def __delattr__(self, key: str) -> NoReturn:
        raise AttributeError(f"a Network does not change: {key!r} cannot be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        return Network.from_arrays, (self._arrays, self.name, self.faults)

    def __repr__(self) -> str:
        name = "" if self.name is None else f"{self.name!r}, "
        # Weights are shown when one of them is not 1: one number, or the smallest and the largest.
        low, high = (self.weights.min(), self.weights.max()) if self.n_edges else (1.0, 1.0)
        weights = (
            "" if low == high == 1.0 else f", weights={low:.3g}" + ("" if low == high else f"..{high:.3g}")
        )
        turns = f", graphs={len(self.faults.present)}" if self.faults and self.changes else ""
        lost = f", lost={self.lost:g}" if self.lost else ""
        return f"Network({name}n_nodes={self.n_nodes}, n_edges={self.n_edges}{weights}{turns}{lost})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Network):
            return NotImplemented
        return self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        """What decides about equality."""
        faults = self.faults and (self.faults.lost, self.faults.window, self.faults.present.tobytes())
        arrays = self.edges.tobytes(), self.weights.tobytes()
        return self.n_nodes, self._arrays.labels, arrays, faults

    # The graph itself

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """The user's node labels in node order; 0, …, n − 1 when none were given."""
        return tuple(self._arrays.names)

    @property
    def lost(self) -> float:
        """The probability that an exchange fails at both ends."""
        return 0.0 if self.faults is None else self.faults.lost

    @property
    def changes(self) -> bool:
        """Whether it has several graphs, one after another."""
        return self.faults is not None and len(self.faults.present) > 1

    def losing(self, lost: float) -> Network:
        """Return the same network, on which an exchange fails at both ends with probability ``lost``.

        Examples
        --------
        >>> Network("cycle:4").losing(0.3)
        Network('cycle:4', n_nodes=4, n_edges=4, lost=0.3)
        """
        check_lost(lost)
        if lost == self.lost or self.n_edges == 0:
            return self
        faults = self.faults or Faults(0.0, math.inf, np.ones((1, self.n_edges), dtype=np.bool_))
        kept = faults._replace(lost=float(lost)) if lost > 0.0 or self.changes else None
        network = object.__new__(Network)
        # The copy has the spectra and resistances that were computed already.
        network.__dict__.update(self.__dict__, faults=kept)
        return network

    def with_weights(self, weights: object) -> Network:
        """Return the same graph with other edge weights μ_e² (a number, or (|E|,) values)."""
        return Network(self, weights=weights)

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx graph with the labels as nodes and the weights as edge attribute ``"weight"``."""
        import networkx

        graph = networkx.Graph()
        labels = self.labels
        graph.add_nodes_from(labels)
        for (i, j), weight in zip(self.edges.tolist(), self.weights.tolist(), strict=True):
            graph.add_edge(labels[i], labels[j], weight=weight)
        return graph

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """(|E|, 2) int32: :attr:`edges` in half the memory, as compiled loops read them."""
        # Schedules refuse networks with 2**31 nodes and more.
        return _read_only(self.edges.astype(np.int32))

    @cached_property
    def incidence(self) -> Incidence:
        """The edges and neighbours of each node, as three arrays."""
        ends = self.ends.ravel()
        order = np.argsort(ends, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=self.n_nodes))]).astype(np.int64)
        # The ends of edge e are at positions 2e and 2e + 1: the other end of position p is at p ^ 1.
        edges = (order // 2).astype(np.int64)
        return Incidence(_read_only(indptr), _read_only(edges), _read_only(ends[order ^ 1]))

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """(n,) int64: number of neighbours of each node."""
        return _read_only(np.diff(self.incidence.indptr))

    @cached_property
    def weighted_degrees(self) -> NDArray[np.float64]:
        """(n,) float64: sum of the weights of each node's edges, the diagonal of the Laplacian."""
        return _read_only(self.sum_at_nodes(self.weights))

    def sum_at_nodes(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each node the sum of the values (|E|,) of its edges, (n,) float64."""
        sums = np.bincount(self.edges.ravel(), weights=np.repeat(values, 2), minlength=self.n_nodes)
        # Without edges the sums are counts, which are integers.
        return sums.astype(np.float64)

    def neighbours(self, node: int) -> NDArray[np.int32]:
        """Neighbours of a node, ascending."""
        if not 0 <= node < self.n_nodes:
            raise InputError(f"there is no node {node}: nodes are numbered 0 to {self.n_nodes - 1}")
        indptr, _, neighbours = self.incidence
        return neighbours[indptr[node] : indptr[node + 1]]

    # Matrices and constants of the theory

    def adjacency(self) -> scipy.sparse.csr_array:
        """Return the weighted adjacency matrix, (n, n) CSR with sorted 32-bit indices."""
        indptr, edges, neighbours = self.incidence
        return scipy.sparse.csr_array(
            (self.weights[edges], neighbours, indptr.astype(np.int32)),
            shape=(self.n_nodes, self.n_nodes),
        )

    def laplacian(self) -> scipy.sparse.csr_array:
        """Return the weighted Laplacian Lap = Σ_e μ_e² (e_i − e_j)(e_i − e_j)ᵀ, (n, n) CSR."""
        matrix = scipy.sparse.csr_array(scipy.sparse.diags_array(self.weighted_degrees) - self.adjacency())
        matrix.sort_indices()
        return matrix

    @cached_property
    def second_eigenpair(self) -> EigenPair:
        """λ_2 of the Laplacian with its vector and its residual."""
        return second_eigenpair(self)

    @cached_property
    def connectivity_bound(self) -> float:
        """A lower bound of λ_2, at most a hundredth below it: quicker than λ_2 itself on large networks."""
        return second_eigenpair(self, tolerance=ACCEPTED_ERROR).lower

    @property
    def algebraic_connectivity(self) -> float:
        """λ_2 = λ_min⁺(Lap), the smallest positive eigenvalue; infinite for a single node, which has none."""
        return self.second_eigenpair.value

    @cached_property
    def laplacian_max(self) -> float:
        """λ_max(Lap); zero for a single node."""
        return largest_eigenvalue(self)

    @property
    def gamma(self) -> float:
        """γ = λ_2/λ_max, in (0, 1]: 1 for a complete graph (and a single node), about 1/n² for a path."""
        return 1.0 if self.n_nodes == 1 else self.algebraic_connectivity / self.laplacian_max

    @cached_property
    def resistances(self) -> Resistances:
        """R_e for every edge, or upper bounds of them (see :func:`adfs.network.resistances`)."""
        return resistances(self)

    @cached_property
    def diameter(self) -> int:
        """Largest hop distance; above 2,000 nodes perhaps an upper bound (see `diameter_bounds`)."""
        return diameter_bounds(self)[1]


def check_lost(lost: object) -> None:
    """Raise unless a number is a probability with which exchanges can fail."""
    numeric = isinstance(lost, int | float | np.integer | np.floating) and not isinstance(lost, bool)
    if not (numeric and 0.0 <= lost < 1.0):  # type: ignore[operator]
        raise InputError(f"lost, the probability that an exchange fails, must be in [0, 1), got {lost!r}")


def read_graph(spec: object, n_nodes: int | None, seed: int | None) -> tuple[inputs.GraphArrays, str | None]:
    """Turn any accepted description into arrays and, for a name, the full name."""
    # Text is a file or a name.
    if isinstance(spec, str) and inputs.is_graph_file(spec):
        return inputs.read_file(Path(spec), n_nodes), None
    if isinstance(spec, str):
        n, edges, name = build_graph(spec, n_nodes, seed)
        return inputs.GraphArrays(n, edges, np.ones(len(edges)), None), name
    if isinstance(spec, Network):
        return spec._arrays, spec.name
    # A user who has a networkx graph has imported networkx; nobody else has to wait for that import.
    networkx = sys.modules.get("networkx")
    if networkx is not None and isinstance(spec, networkx.Graph):
        return inputs.read_networkx(spec), None
    if scipy.sparse.issparse(spec):
        return inputs.read_adjacency(spec), None
    if isinstance(spec, np.ndarray):
        rows, columns = spec.shape if spec.ndim == 2 else (0, 0)
        # A square array is an adjacency matrix, also where it could be a list of two or three edges.
        if columns in (2, 3) and rows != columns:
            return inputs.read_edge_list(spec, n_nodes), None
        return inputs.read_adjacency(spec), None
    if isinstance(spec, list | tuple):
        return inputs.read_edge_list(spec, n_nodes), None
    raise InputError(
        f"a network cannot be made from {type(spec).__name__}:"
        " give a name such as 'grid:3x3', a networkx graph, an adjacency matrix or an edge list"
    )


# --------------------------------------------------------------------------- gossip


def lazy_gossip(network: Network, laplacian_max: float) -> scipy.sparse.csr_array:
    """(I + W)/2 with W = I − Lap/λ_max, (n, n) CSR: symmetric, rows sum to one, eigenvalues in [1/2, 1]."""
    identity = scipy.sparse.eye_array(network.n_nodes, format="csr")
    if network.n_nodes == 1:
        return scipy.sparse.csr_array(identity)
    matrix = scipy.sparse.csr_array(identity - network.laplacian() / (2.0 * laplacian_max))
    matrix.sort_indices()
    return matrix


@dataclass(frozen=True)
class ChebyshevCoefficients:
    """The numbers of Chebyshev gossip for a network with γ = λ_2/λ_max.

    ``contraction`` is c1 = (1 − √γ)/(1 + √γ), ``stretch`` is c2 = (1 + γ)/(1 − γ) (infinite at γ = 1),
    ``step`` is c3 = 2/((1 + γ) λ_max), ``rounds`` is K = ⌊1/√γ⌋, at least 1.
    """

    contraction: float
    stretch: float
    step: float
    rounds: int

    @classmethod
    def from_spectrum(cls, gamma: float, laplacian_max: float) -> ChebyshevCoefficients:
        """Compute the coefficients from γ in (0, 1] and λ_max (zero for a single node)."""
        # Rounding of γ = 1 or γ = 1/K² must neither lose a round nor leave (0, 1].
        gamma = min(gamma, 1.0)
        root = math.sqrt(gamma)
        return cls(
            contraction=(1 - root) / (1 + root),
            stretch=math.inf if gamma == 1 else (1 + gamma) / (1 - gamma),
            step=0.0 if laplacian_max == 0 else 2 / ((1 + gamma) * laplacian_max),
            rounds=max(1, math.floor(1 / root + 1e-9)),
        )
