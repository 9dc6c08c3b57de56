"""Hop distances: eccentricities by breadth-first search, and the diameter between certified bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adfs.network.kernels import bfs_distances

if TYPE_CHECKING:
    from adfs.network.network import Network

__all__ = ["DiameterBounds", "diameter_bounds", "hop_distances"]

#: up to this many nodes the diameter is exact, whatever it takes; above, SEARCHES searches are spent
EXACT_NODES = 4000
SEARCHES = 64


@dataclass(frozen=True)
class DiameterBounds:
    """``lower`` ≤ diameter ≤ ``upper``."""

    lower: int
    upper: int

    @property
    def exact(self) -> bool:
        """Whether the two ends meet."""
        return self.lower == self.upper


def hop_distances(network: Network, source: int) -> NDArray[np.int64]:
    """Count the hops from ``source`` to every node, (n,) int64."""
    distance = np.empty(network.n_nodes, np.int64)
    bfs_distances(
        network.incidence_indptr, network.incidence_neighbours, source, distance, np.empty_like(distance)
    )
    return distance


def diameter_bounds(network: Network, searches: int | None = None) -> DiameterBounds:
    """Bound the diameter by a few breadth-first searches.

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
    DiameterBounds
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
    return DiameterBounds(lower, int(ceiling.max()))
