"""Which process holds which nodes: as many each, and few edges between processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from adfs.errors import InputError
from adfs.network import Network

_DENSE = 600  # nodes up to which the Fiedler vector comes from a dense eigensolver
_SWAPS = 1000  # tried at most to improve a cut


@dataclass(frozen=True, eq=False)
class Placement:
    """The rank of every node.

    Attributes
    ----------
    rank_of_node : ndarray of shape (n,), int64
    edges : ndarray of shape (|E|, 2)
        The network's.
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
    words = [str(run[0]) if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs if run.size]
    return ", ".join(words[:8]) + (", …" if len(words) > 8 else "")


def place(network: Network, n_ranks: int) -> Placement:
    """Put the nodes of a network on ranks, equally many each (or one more), cutting few edges.

    Recursive bisection: each part is ordered by its Fiedler vector, by its bandwidth and by the nodes'
    numbers, cut at the right place, improved by swaps, and the best of the three is kept.

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
    # Every edge carries as many messages, whatever its weight.
    weights = np.ones(network.n_edges)
    i, j = network.edges[:, 0], network.edges[:, 1]
    links = sp.csr_array(sp.coo_array((weights, (i, j)), shape=(n, n)))
    links = sp.csr_array(links + links.T)
    _bisect(links, np.arange(n), 0, n_ranks, rank_of_node)
    return Placement(rank_of_node, np.asarray(network.edges), n_ranks)


def _bisect(links: sp.csr_array, nodes: np.ndarray, first: int, ranks: int, out: np.ndarray) -> None:
    """Give some nodes to ranks first … first + ranks − 1."""
    if ranks == 1:
        out[nodes] = first
        return
    left = ranks // 2
    # Sizes as equal as they can be: the first ranks have one more.
    base, more = divmod(nodes.size, ranks)
    size = left * base + min(left, more)
    part = sp.csr_array(links[nodes][:, nodes])
    best, fewest = np.zeros(nodes.size, dtype=bool), np.inf
    # The best of several cuts, each improved by swaps.
    for order in _orders(part):
        side = np.zeros(nodes.size, dtype=bool)
        side[order[:size]] = True
        cut = _improve(part, side)
        if cut < fewest:
            best, fewest = side, cut
    if not best[0]:  # the part that holds the lowest node goes first, where the sizes allow it
        best = ~best if 2 * size == nodes.size else best
    _bisect(links, nodes[best], first, left, out)
    _bisect(links, nodes[~best], first + left, ranks - left, out)


def _orders(part: sp.csr_array) -> list[np.ndarray]:
    n = part.shape[0]
    orders: list[np.ndarray] = [np.arange(n), np.asarray(reverse_cuthill_mckee(part, symmetric_mode=True))]
    # The second eigenvector of the Laplacian orders the nodes along the network.
    if 2 < n <= _DENSE:
        laplacian = np.diag(np.asarray(part.sum(axis=1)).ravel()) - part.toarray()
        orders.append(np.argsort(np.linalg.eigh(laplacian)[1][:, 1], kind="stable"))
    return orders


def _improve(part: sp.csr_array, side: np.ndarray) -> float:
    """Swap pairs across the cut while that cuts fewer edges; change ``side`` and return the edges cut."""
    for _ in range(min(part.shape[0], _SWAPS)):
        sign = np.where(side, 1.0, -1.0)
        # The gain of a node that changes sides: its edges across minus its edges inside.
        gain = -sign * (part @ sign)
        # Only the nodes with the largest gains of each side are tried as pairs.
        here, there = np.flatnonzero(side), np.flatnonzero(~side)
        here = here[np.argsort(-gain[here], kind="stable")][:8]
        there = there[np.argsort(-gain[there], kind="stable")][:8]
        total = gain[here][:, None] + gain[there][None, :] - 2.0 * part[here][:, there].toarray()
        a, b = np.unravel_index(int(np.argmax(total)), total.shape)
        if total[a, b] <= 0.0:
            break
        side[here[a]], side[there[b]] = False, True
    sign = np.where(side, 1.0, -1.0)
    return float((part.sum() - sign @ (part @ sign)) / 4.0)
