"""Walks over a graph: hop distances, the diameter between certified bounds, bridges, the two-core.

Everywhere ``indptr`` (n+1,) and ``indices`` (2|E|,) describe the neighbours of a node in ascending order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled

if TYPE_CHECKING:
    from adfs.network.network import Network

Ints = NDArray[np.integer]

#: up to this many nodes the diameter is exact, whatever it takes; above, SEARCHES searches are spent
EXACT_NODES = 4000
SEARCHES = 64


@compiled
def bfs_distances(indptr: Ints, indices: Ints, source: int, distance: Ints, queue: Ints) -> int:
    """Write hop counts from ``source`` into ``distance`` (-1 where not reached); return how many are reached.

    ``queue`` (n,) is working space and holds the nodes in the order of their discovery afterwards.
    """
    distance[:] = -1
    distance[source] = 0
    queue[0] = source
    head = 0
    tail = 1
    while head < tail:
        node = queue[head]
        head += 1
        for position in range(indptr[node], indptr[node + 1]):
            other = indices[position]
            if distance[other] < 0:
                distance[other] = distance[node] + 1
                queue[tail] = other
                tail += 1
    return tail


@compiled
def two_core(indptr: Ints, indices: Ints) -> NDArray[np.bool_]:
    """Flag the nodes that remain after leaves have been removed again and again (a tree leaves none)."""
    n = indptr.size - 1
    degree = np.empty(n, np.int64)
    stack = np.empty(n, np.int64)
    kept = np.ones(n, np.bool_)
    top = 0
    for node in range(n):
        degree[node] = indptr[node + 1] - indptr[node]
        if degree[node] <= 1:
            kept[node] = False
            stack[top] = node
            top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        for position in range(indptr[node], indptr[node + 1]):
            other = indices[position]
            if kept[other]:
                degree[other] -= 1
                if degree[other] <= 1:
                    kept[other] = False
                    stack[top] = other
                    top += 1
    return kept


@compiled
def bridge_flags(indptr: Ints, indices: Ints, edge_ids: Ints, n_edges: int) -> NDArray[np.bool_]:
    """Flag the edges whose removal disconnects a connected graph (Tarjan's low-link, without recursion)."""
    n = indptr.size - 1
    flags = np.zeros(n_edges, np.bool_)
    found = np.full(n, -1, np.int64)
    low = np.zeros(n, np.int64)
    parent_edge = np.full(n, -1, np.int64)
    cursor = indptr[:-1].copy()
    stack = np.empty(n, np.int64)
    stack[0] = 0
    found[0] = 0
    top = 1
    clock = 1
    while top > 0:
        node = stack[top - 1]
        position = cursor[node]
        if position < indptr[node + 1]:
            cursor[node] = position + 1
            other = indices[position]
            edge = edge_ids[position]
            if edge == parent_edge[node]:
                continue
            if found[other] < 0:
                found[other] = clock
                low[other] = clock
                clock += 1
                parent_edge[other] = edge
                stack[top] = other
                top += 1
            elif found[other] < low[node]:
                low[node] = found[other]
        else:
            top -= 1
            if top > 0:
                above = stack[top - 1]
                if low[node] < low[above]:
                    low[above] = low[node]
                if low[node] > found[above]:
                    flags[parent_edge[node]] = True
    return flags


def hop_distances(network: Network, source: int) -> NDArray[np.int64]:
    """Count the hops from ``source`` to every node, (n,) int64."""
    distance = np.empty(network.n_nodes, np.int64)
    bfs_distances(
        network.incidence_indptr, network.incidence_neighbours, source, distance, np.empty_like(distance)
    )
    return distance


def diameter_bounds(network: Network, searches: int | None = None) -> tuple[int, int]:
    """Bound the diameter from below and above by a few breadth-first searches.

    A search from s gives the eccentricity ecc(s), so diameter ≥ ecc(s), and for every v ecc(v) ≤ d(s, v) +
    ecc(s), so diameter ≤ max_v min_s (d(s, v) + ecc(s)). The next search starts where that upper bound is
    largest (which raises the lower bound) or, every second one of the first 64, at the most central node so
    far (which brings the upper bounds down); the bounds meet at the latest when all nodes had their turn.

    Parameters
    ----------
    network : Network
    searches : int, optional
        How many searches to spend; by default as many as it takes up to 4,000 nodes, 64 above.

    Returns
    -------
    lower, upper : int
    """
    n = network.n_nodes
    if searches is None:
        searches = n + SEARCHES if n <= EXACT_NODES else SEARCHES
    lower = 0
    ceiling = np.full(n, np.iinfo(np.int64).max // 2)
    centrality = np.zeros(n, np.int64)  # a lower bound of each eccentricity
    source = int(np.argmax(network.degrees))
    for search in range(searches):
        distance = hop_distances(network, source)
        eccentricity = int(distance.max())
        lower = max(lower, eccentricity)
        np.minimum(ceiling, distance + eccentricity, out=ceiling)
        np.maximum(centrality, np.maximum(distance, eccentricity - distance), out=centrality)
        ceiling[source] = eccentricity
        if ceiling.max() <= lower:
            break
        centrality[source] = np.iinfo(np.int64).max
        source = int(np.argmin(centrality) if search % 2 and search < SEARCHES else np.argmax(ceiling))
    return lower, int(ceiling.max())
