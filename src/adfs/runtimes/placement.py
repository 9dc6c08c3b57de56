"""The placement of nodes on processes: equally many nodes each, and few edges between processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from adfs.errors import InputError
from adfs.network import Network


@dataclass(frozen=True, eq=False)
class Placement:
    """The rank of every node.

    Attributes
    ----------
    rank_of_node : ndarray of shape (n,), int64
    edges : ndarray of shape (|E|, 2)
        The edges of the network.
    n_ranks : int
    """

    rank_of_node: np.ndarray
    edges: np.ndarray
    n_ranks: int

    @classmethod
    def whole(cls, network: Network) -> Placement:
        """Return the placement of all nodes in one process."""
        return cls(np.zeros(network.n_nodes, dtype=np.int64), network.edges, 1)

    def block(self, rank: int) -> np.ndarray:
        """Return the nodes of a rank, in increasing order."""
        return np.flatnonzero(self.rank_of_node == rank)

    @property
    def cut(self) -> np.ndarray:
        """Which edges join two ranks, shape (|E|,), bool."""
        ends = self.rank_of_node[self.edges]
        return np.asarray(ends[:, 0] != ends[:, 1])

    def __str__(self) -> str:
        """Return the placement as a table, one line per rank."""
        ends, cut = self.rank_of_node[self.edges], self.cut
        lines = [
            f"{self.rank_of_node.size} nodes on {self.n_ranks} ranks, {cut.sum()} of {cut.size} edges cut"
        ]
        for rank in range(self.n_ranks):
            here = (ends == rank).any(axis=1)
            inside, between = int((here & ~cut).sum()), int((here & cut).sum())
            nodes = _short(self.block(rank))
            lines.append(f"  rank {rank}: nodes {nodes} ({inside} edges inside, {between} to other ranks)")
        return "\n".join(lines)


def _short(nodes: np.ndarray) -> str:
    """Write increasing numbers as ranges, at most eight of them.

    >>> _short(np.array([0, 1, 2, 7, 9, 10]))
    '0-2, 7, 9-10'
    """
    runs = np.split(nodes, np.flatnonzero(np.diff(nodes) > 1) + 1)
    texts = [str(run[0]) if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs if run.size]
    return ", ".join(texts[:8]) + (", …" if len(texts) > 8 else "")


def place(network: Network, n_ranks: int) -> Placement:
    """Place the nodes of a network on ranks, equally many each (or one more), so that few edges are cut.

    Recursive bisection: each part is sorted by the nodes' numbers, to a small bandwidth, and by the Fiedler
    vector. Each order is cut in two, the cut is improved by swaps, and the best of the three is kept.

    Parameters
    ----------
    network : Network
    n_ranks : int
        At most as many as there are nodes.

    Returns
    -------
    Placement

    Examples
    --------
    >>> print(place(Network("grid:4x4"), 2))
    16 nodes on 2 ranks, 4 of 24 edges cut
      rank 0: nodes 0-7 (10 edges inside, 4 to other ranks)
      rank 1: nodes 8-15 (10 edges inside, 4 to other ranks)
    """
    n = network.n_nodes
    if not 1 <= n_ranks <= n:
        raise InputError(
            f"{n} nodes cannot be placed on {n_ranks} ranks: every rank holds at least one node; "
            f"start {n} ranks or fewer"
        )
    rank_of_node = np.zeros(n, dtype=np.int64)
    # The symmetric matrix of the edges, with weights 1.
    ends = (network.edges[:, 0], network.edges[:, 1])
    one_way = sp.coo_array((np.ones(network.n_edges), ends), shape=(n, n))
    links = sp.csr_array(one_way + one_way.T)
    _bisect(links, np.arange(n), 0, n_ranks, rank_of_node)
    return Placement(rank_of_node, np.asarray(network.edges), n_ranks)


def _bisect(links: sp.csr_array, nodes: np.ndarray, first: int, ranks: int, out: np.ndarray) -> None:
    """Place some nodes on the ranks first … first + ranks − 1; write them to ``out``."""
    if ranks == 1:
        out[nodes] = first
        return
    left = ranks // 2
    # The sizes are as equal as possible: the first ranks have one node more.
    base, more = divmod(nodes.size, ranks)
    size = left * base + min(left, more)
    part = sp.csr_array(links[nodes][:, nodes])
    best, fewest = np.zeros(nodes.size, dtype=bool), np.inf
    for order in _orders(part):
        side = np.zeros(nodes.size, dtype=bool)
        side[order[:size]] = True
        cut = _improve(part, side)
        if cut < fewest:
            best, fewest = side, cut
    # The part with the lowest node goes first, if the sizes allow it.
    if not best[0]:
        best = ~best if 2 * size == nodes.size else best
    _bisect(links, nodes[best], first, left, out)
    _bisect(links, nodes[~best], first + left, ranks - left, out)


def _orders(part: sp.csr_array) -> list[np.ndarray]:
    """Return the orders in which a part is cut."""
    n = part.shape[0]
    orders: list[np.ndarray] = [np.arange(n), np.asarray(reverse_cuthill_mckee(part, symmetric_mode=True))]
    # The Fiedler vector needs a dense eigensolver, which takes too long for large parts.
    if 2 < n <= 600:
        laplacian = np.diag(np.asarray(part.sum(axis=1)).ravel()) - part.toarray()
        orders.append(np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable"))
    return orders


def _improve(part: sp.csr_array, side: np.ndarray) -> float:
    """Swap pairs across the cut while that cuts fewer edges; change ``side`` and return the edges cut."""
    for _ in range(min(part.shape[0], 1000)):
        sign = np.where(side, 1.0, -1.0)
        # The gain of moving a node to the other side: its edges across the cut minus its other edges.
        gain = -sign * (part @ sign)
        # Try all pairs of the eight best nodes of each side; an edge between the two would stay cut.
        here, there = np.flatnonzero(side), np.flatnonzero(~side)
        here = here[np.argsort(-gain[here], kind="stable")][:8]
        there = there[np.argsort(-gain[there], kind="stable")][:8]
        total = gain[here][:, None] + gain[there][None, :] - 2.0 * part[here][:, there].toarray()
        a, b = np.unravel_index(int(np.argmax(total)), total.shape)
        if total[a, b] <= 0.0:
            break
        side[here[a]], side[there[b]] = False, True
    # signᵀ A sign counts each edge inside a part twice positively, and each cut edge twice negatively.
    sign = np.where(side, 1.0, -1.0)
    return float((part.sum() - sign @ (part @ sign)) / 4.0)
