"""Products with a gossip matrix whose rows are spread over ranks: neighbours send the values needed."""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp

from adfs.runtimes.gossip import row_products
from adfs.runtimes.mpi.placement import Placement
from adfs.runtimes.mpi.team import Team
from adfs.runtimes.mpi.timing import RankTimes

__all__ = ["HaloGossip"]

_TAG = 8


class HaloGossip:
    """The product of this rank's rows of a matrix with the values of all nodes.

    A row is summed in the order of its columns, as `adfs.runtimes.gossip.local_gossip` does: the same bits.

    Parameters
    ----------
    team : Team
    matrix : csr_array of shape (n, n)
    placement : Placement
    times : RankTimes
    """

    def __init__(self, team: Team, matrix: sp.csr_array, placement: Placement, times: RankTimes) -> None:
        self.team, self.times = team, times
        block = placement.block(team.rank)
        csr = sp.csr_array(matrix)
        csr.sort_indices()
        own = sp.csr_array(csr[block])
        own.sort_indices()
        needed = np.setdiff1d(own.indices, block)  # in the order of nodes
        owner = placement.rank_of_node[needed]
        # Local nodes first, then the needed ones grouped by rank.
        order = np.argsort(owner, kind="stable")
        needed, owner = needed[order], owner[order]
        place = np.full(csr.shape[0], -1, dtype=np.int64)
        place[block] = np.arange(block.size)
        place[needed] = block.size + np.arange(needed.size)
        self._product = (own.data, place[own.indices], own.indptr)
        self._needed = needed.size
        self._sources = [
            (int(rank), slice(block.size + int(a), block.size + int(b))) for rank, a, b in _runs(owner)
        ]
        # What others need of this rank: the columns of their rows that are here, in the order of nodes.
        self._targets = []
        pattern = csr[:, block].tocoo()
        rows, columns = placement.rank_of_node[pattern.row], pattern.col
        for rank in np.unique(rows):
            if rank != team.rank:
                self._targets.append((int(rank), np.unique(columns[rows == rank])))
        self.rounds = 0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the rows of the product, of the shape of the block's values (k, …)."""
        begun = time.perf_counter()
        flat = values.reshape(values.shape[0], -1)
        everything = np.empty((flat.shape[0] + self._needed, flat.shape[1]))
        everything[: flat.shape[0]] = flat
        comm, watch = self.team.comm, self.team.watch
        receives = [comm.Irecv(everything[part], rank, _TAG) for rank, part in self._sources]
        parts = [np.ascontiguousarray(flat[places]) for _, places in self._targets]
        sends = [comm.Isend(part, rank, _TAG) for part, (rank, _) in zip(parts, self._targets, strict=True)]
        posted = time.perf_counter()
        self.times.communicating += posted - begun
        ranks = [rank for rank, _ in self._sources] + [rank for rank, _ in self._targets]
        watch.wait(receives + sends, ranks, lambda: f"in gossip product {self.rounds + 1}")
        came = time.perf_counter()
        if ranks:
            self.times.waited(posted, came, ranks[0])
        self.rounds += 1
        out = row_products(*self._product, everything).reshape(values.shape)
        self.times.computing += time.perf_counter() - came
        return out


def _runs(values: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (value, start, stop) of each run of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    stops = [*starts[1:].tolist(), values.size]
    return [(int(values[a]), int(a), int(b)) for a, b in zip(starts, stops, strict=True)]
