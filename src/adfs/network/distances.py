"""Distances between nodes: hops, the diameter, and the effective resistances of edges.

R_e = μ_e² (e_k − e_l)ᵀ Lap⁺ (e_k − e_l) lies in (0, 1], equals 1 exactly on bridges, and Σ_e R_e = n − 1
(Foster). Every method of ADFS stays valid, a little slower, when R_e is replaced by something larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, depth_first_order

from adfs.compilation import compiled
from adfs.errors import AdfsError
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]

#: up to this many nodes resistances are exact (a dense inverse), and so is the diameter
EXACT_NODES = 2000
#: breadth-first searches that bound the diameter of a larger network
SEARCHES = 64


@compiled
def _breadth_first(indptr: Ints, neighbours: Ints, source: int) -> NDArray[np.int64]:
    """Return the number of hops from ``source`` to every node of a connected graph."""
    # The queue holds the nodes in the order of their discovery, and ends as a list of all nodes.
    hops = np.full(indptr.size - 1, -1)
    queue = np.empty_like(hops)
    hops[source] = 0
    queue[0] = source
    tail = 1
    for head in range(queue.size):
        node = queue[head]
        for position in range(indptr[node], indptr[node + 1]):
            other = neighbours[position]
            if hops[other] < 0:
                hops[other] = hops[node] + 1
                queue[tail] = other
                tail += 1
    return hops


def hop_distances(network: Network, source: int) -> NDArray[np.int64]:
    """Count the hops from ``source`` to every node, (n,) int64."""
    return _breadth_first(network.incidence.indptr, network.incidence.neighbours, source)


def diameter_bounds(network: Network) -> tuple[int, int]:
    """Return a lower and an upper bound of the diameter, which are equal up to 2,000 nodes.

    A breadth-first search from s gives the eccentricity ecc(s), so diameter ≥ ecc(s), and for every v
    ecc(v) ≤ d(s, v) + ecc(s), so diameter ≤ max_v min_s (d(s, v) + ecc(s)). The next search starts where that
    upper bound is largest (which raises the lower bound) or, every second time, at the most central node so
    far (which lowers the upper bounds). The bounds meet at the latest when a search began at every node.
    """
    n = network.n_nodes
    lower = 0
    ceiling = np.full(n, np.iinfo(np.int64).max // 2)  # an upper bound of each eccentricity
    floor = np.zeros(n, np.int64)  # a lower bound of each
    source = int(np.argmax(network.degrees))
    for search in range(n if n <= EXACT_NODES else SEARCHES):
        hops = hop_distances(network, source)
        eccentricity = int(hops.max())
        lower = max(lower, eccentricity)
        np.minimum(ceiling, hops + eccentricity, out=ceiling)
        np.maximum(floor, np.maximum(hops, eccentricity - hops), out=floor)
        ceiling[source] = eccentricity
        if ceiling.max() <= lower:
            break
        floor[source] = np.iinfo(np.int64).max
        source = int(np.argmin(floor) if search % 2 else np.argmax(ceiling))
    return lower, int(ceiling.max())


def bridges(network: Network) -> NDArray[np.bool_]:
    """Flag the edges whose removal disconnects the network, (|E|,)."""
    order, parent = depth_first_order(network.adjacency(), 0, directed=False)
    rank = np.empty(network.n_nodes, np.int64)
    rank[order] = np.arange(network.n_nodes)
    # Direct the edges of a depth-first tree away from its root, and all others towards it. An edge lies on a
    # cycle exactly when its ends are strongly connected then.
    i, j = network.edges.T
    in_tree = (parent[i] == j) | (parent[j] == i)
    forward = (rank[i] < rank[j]) == in_tree
    tails, heads = np.where(forward, i, j), np.where(forward, j, i)
    n = network.n_nodes
    directed = coo_array((np.ones(network.n_edges, np.int8), (tails, heads)), shape=(n, n))
    _, component = connected_components(directed, connection="strong")
    return np.asarray(component[i] != component[j])


@dataclass(frozen=True, eq=False)
class Resistances:
    """R_e of every edge, or upper bounds of them.

    Attributes
    ----------
    values : (|E|,) array
        In (0, 1], in the order of ``network.edges``, read-only.
    exact : bool
        Whether they are the R_e themselves.
    """

    values: Floats
    exact: bool


@single_threaded
def resistances(network: Network) -> Resistances:
    """Effective resistances R_e of all edges, each times its weight.

    Up to 2,000 nodes they come from a dense inverse. Above, they are upper bounds in O(Σ_e min degree), which
    are tight on expanders of large degree.

    Notes
    -----
    With b = e_k − e_l and any λ ≤ λ_2, the bound is w_e times the smallest of three upper bounds
    of bᵀLap⁺b:

    1. 1/w_e, the resistance of the edge alone: removing the others never lowers it (Rayleigh).
    2. 1/(w_e + Σ_m w_km w_ml/(w_km + w_ml)), for the same reason: the edge and the paths of two hops
       through common neighbours m have no edge in common, hence their conductances add.
    3. For any number c, with r = b − c·Lap b (orthogonal to the constants), b = c·Lap b + r gives

           bᵀLap⁺b = c² bᵀLap b + 2c bᵀr + rᵀLap⁺r  ≤  2c bᵀb − c² bᵀLap b + ‖r‖²/λ,

       smallest at c = (t − 2λ)/(q − λt), where it is 2/λ − (t − 2λ)²/(λ(q − λt)), with t = bᵀLap b and
       q = ‖Lap b‖², sums over the neighbours of k and l. (It is the Gauss–Radau rule with its node at λ.)

    Examples
    --------
    >>> from adfs.network import Network
    >>> resistances(Network("cycle:4")).values.round(12).tolist()
    [0.75, 0.75, 0.75, 0.75]
    """
    exact = network.n_nodes <= EXACT_NODES
    values = _exact(network) if exact else _bound(network)
    values.flags.writeable = False
    return Resistances(values, exact)


def _exact(network: Network) -> Floats:
    """Compute R_e from the inverse of the Laplacian without the row and column of one node."""
    if network.n_nodes == 1:
        return np.empty(0)
    ground = int(np.argmax(network.weighted_degrees))  # keeps the entries of the inverse small
    kept = np.delete(np.arange(network.n_nodes), ground)
    inverse = np.zeros((network.n_nodes, network.n_nodes))
    grounded = network.laplacian().toarray()[np.ix_(kept, kept)]
    try:
        factor = scipy.linalg.cho_factor(grounded)
    except np.linalg.LinAlgError:
        raise AdfsError(
            "the Laplacian is singular to rounding: the edge weights span too many orders of magnitude"
        ) from None
    inverse[np.ix_(kept, kept)] = scipy.linalg.cho_solve(factor, np.eye(kept.size))
    i, j = network.edges.T
    diagonal, between = np.diagonal(inverse), inverse[i, j]
    values = network.weights * ((diagonal[i] - between) + (diagonal[j] - between))
    return np.where(bridges(network), 1.0, np.minimum(values, 1.0))


@compiled
def shared_neighbour_sums(
    indptr: Ints, indices: Ints, weights: Floats, edges: Ints, products: Floats, series: Floats
) -> None:
    """Sum over the common neighbours m of each edge (k, l).

    w_km·w_ml goes into ``products``, the conductance in series w_km·w_ml/(w_km + w_ml) into ``series``.
    """
    for e in range(edges.shape[0]):
        a = edges[e, 0]
        b = edges[e, 1]
        if indptr[a + 1] - indptr[a] > indptr[b + 1] - indptr[b]:
            a, b = b, a
        start = indptr[b]
        stop = indptr[b + 1]
        # Walk through the shorter list. Search a much longer one (a star's hub) by bisection, so that neither
        # a hub nor a dense graph makes this quadratic.
        merge = stop - start <= 8 * (indptr[a + 1] - indptr[a])
        total_product = 0.0
        total_series = 0.0
        for position in range(indptr[a], indptr[a + 1]):
            node = indices[position]
            if merge:
                while start < stop and indices[start] < node:
                    start += 1
            else:
                start += np.searchsorted(indices[start:stop], node)
            if start == stop:
                break
            if indices[start] == node:
                u = weights[position]
                v = weights[start]
                total_product += u * v
                # written so that neither tiny nor huge weights leave the range of a double
                total_series += min(u, v) / (1.0 + min(u, v) / max(u, v))
        products[e] = total_product
        series[e] = total_series


def _bound(network: Network) -> Floats:
    """Return the smallest of the three bounds of every edge."""
    edges, weights, degrees = network.edges, network.weights, network.weighted_degrees
    products, series = np.empty(network.n_edges), np.empty(network.n_edges)
    by_node = weights[network.incidence.edges]
    shared_neighbour_sums(
        network.incidence.indptr, network.incidence.neighbours, by_node, edges, products, series
    )
    values = np.minimum(1.0, weights / (weights + series))
    # t and q of the third bound, as sums over the neighbours of both ends.
    squares = network.sum_at_nodes(weights**2)
    floor = network.connectivity_bound
    t = degrees[edges].sum(axis=1) + 2 * weights
    q = (degrees**2 + squares)[edges].sum(axis=1) + 2 * weights * (t - 2 * weights) - 2 * products
    spare = q - floor * t
    gain = np.divide((t - 2 * floor) ** 2, floor * spare, out=np.zeros_like(t), where=spare > 0)
    # the difference of two large numbers: its rounding is added, so that it stays a bound
    spectral = 2 / floor - gain + 32 * np.finfo(np.float64).eps * 2 / floor
    return np.asarray(np.minimum(values, weights * spectral))
