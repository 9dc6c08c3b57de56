"""Products with a gossip matrix, summed in a fixed order: the same bits wherever the rows are computed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.method_kernels import MatrixRows, row_products

if TYPE_CHECKING:
    from adfs.runtimes.cluster import Cluster
    from adfs.runtimes.placement import Placement
    from adfs.runtimes.timing import ProcessTimes

__all__ = ["GossipProduct"]


class GossipProduct:
    """The product of this process's rows of a matrix with the values of all nodes, and sums over all nodes.

    A row is summed in the order of its columns, wherever the values come from: the same bits.

    Parameters
    ----------
    cluster : Cluster
    matrix : csr_array of shape (n, n)
    placement : Placement
    times : ProcessTimes

    Attributes
    ----------
    rows : MatrixRows or None
        The whole matrix where all nodes are in this process.
    """

    def __init__(
        self, cluster: Cluster, matrix: sp.csr_array, placement: Placement, times: ProcessTimes
    ) -> None:
        self.cluster, self.placement, self.times = cluster, placement, times
        self.products = 0
        self.rows: MatrixRows | None
        csr = sp.csr_array(matrix)
        csr.sort_indices()
        if cluster.size == 1:
            self._own = self.rows = MatrixRows(csr.data, csr.indices, csr.indptr)
            self._needed = 0
            return
        self.rows = None
        block = placement.block(cluster.rank)
        own = sp.csr_array(csr[block])
        own.sort_indices()
        needed = np.setdiff1d(own.indices, block)  # in the order of nodes
        owner = placement.rank_of_node[needed]
        # This process's nodes first, then the needed ones grouped by the process that has them.
        order = np.argsort(owner, kind="stable")
        needed, owner = needed[order], owner[order]
        place = np.full(csr.shape[0], -1, dtype=np.int64)
        place[block] = np.arange(block.size)
        place[needed] = block.size + np.arange(needed.size)
        self._own = MatrixRows(own.data, place[own.indices].astype(csr.indices.dtype), own.indptr)
        self._needed = needed.size
        self._sources = [(rank, slice(block.size + a, block.size + b)) for rank, a, b in _runs(owner)]
        # What others need of this process: the columns of their rows that are here, in the order of nodes.
        self._targets = []
        pattern = csr[:, block].tocoo()
        rows, columns = placement.rank_of_node[pattern.row], pattern.col
        for rank in np.unique(rows):
            if rank != cluster.rank:
                self._targets.append((int(rank), np.unique(columns[rows == rank])))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the rows of the product, of the shape of this process's values (k, …)."""
        flat = np.ascontiguousarray(values.reshape(values.shape[0], -1))
        if self.rows is None:
            flat = self._with_neighbours(flat)
        out = np.empty((values.shape[0], flat.shape[1]))
        row_products(self._own, flat, out)
        return out.reshape(values.shape)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes in their order, (d,), from this process's values (k, d)."""
        begun = time.perf_counter()
        found = self.cluster.add(values, self.placement, f"in sum {self.products + 1} over the nodes")
        self.times.communicating += time.perf_counter() - begun
        self.products += 1
        return found

    def _with_neighbours(self, flat: np.ndarray) -> np.ndarray:
        """Return the values here followed by those needed of other processes."""
        begun = time.perf_counter()
        everything = np.empty((flat.shape[0] + self._needed, flat.shape[1]))
        everything[: flat.shape[0]] = flat
        outgoing = [(rank, np.ascontiguousarray(flat[places])) for rank, places in self._targets]
        incoming = [(rank, everything[part]) for rank, part in self._sources]
        posted = time.perf_counter()
        self.times.communicating += posted - begun
        self.cluster.swap(outgoing, incoming, lambda: f"in gossip product {self.products + 1}")
        if incoming:
            self.times.waited(posted, time.perf_counter(), incoming[0][0])
        self.products += 1
        return everything


def _runs(values: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (value, start, stop) of each run of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    stops = np.append(starts[1:], values.size)[: starts.size]  # none where there are no values
    return [(int(values[a]), int(a), int(b)) for a, b in zip(starts, stops, strict=True)]
