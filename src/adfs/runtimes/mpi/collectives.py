"""Collective operations of all ranks: share small arrays and texts, and add vectors in the order of nodes.

MPI's own collectives wait without a limit and do not say for which rank. Here everything goes through rank 0,
which knows the ranks that have not answered. This takes longer, which does not matter: it happens a few times
per second at most.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.problem.evaluation import sum_in_order
from adfs.runtimes.mpi.faults import Pulse, Tag, Watch, end_all_on_error, nothing, restore_error_hook

if TYPE_CHECKING:
    from mpi4py import MPI


class Team:
    """All ranks of a run, on a duplicate of the user's communicator: its messages never meet the user's."""

    def __init__(self, comm: MPI.Intracomm, deadline: float) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.watch = Watch(self.rank, self.size, deadline)
        # From here on a rank that fails ends the others, which may already wait for it.
        end_all_on_error(comm, self.watch)
        self._patience = 0.0
        self._meet(comm)
        self.comm, request = comm.Idup()
        self.watch.until(request.Test, list, lambda: "at the start")
        self.pulse = self.watch.pulse = Pulse(self.comm, deadline)
        cores = list(range(os.cpu_count() or 1))
        if hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))
        cards = self.gather_all([socket.gethostname(), cores, self.pulse.possible], "at the start")
        self.hosts: list[str] = [host for host, *_ in cards]
        # A launcher may bind each rank to a core: the cores of this host are those of all its ranks.
        host = self.hosts[self.rank]
        cores_of_host = {core for name, theirs, _ in cards if name == host for core in theirs}
        self.watch.crowded = self.hosts.count(host) > len(cores_of_host)
        # Without signs of life, a rank that reads or compiles must be allowed to be silent for an hour.
        if not all(possible for *_, possible in cards):
            self._patience = 3600.0

    def _meet(self, comm: MPI.Intracomm) -> None:
        """Wait until all ranks are there, so that rank 0 can name those that are not.

        This uses the user's communicator, because all ranks must be there to make another one. The tag is the
        largest possible one, which nobody else uses.
        """
        from mpi4py import MPI

        most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        tag = most if isinstance(most, int) else 32_767
        why = "at the start"
        if self.rank != 0:
            sent = comm.Isend(nothing(), 0, tag)
            self.watch.wait([comm.Irecv(nothing(), 0, tag)], [0], lambda: why)
            # Rank 0 is there and reports the missing ranks. This rank waits 3 s longer, so that rank 0 can
            # end an incomplete start.
            both = [sent, comm.Irecv(nothing(), 0, tag)]
            self.watch.until(lambda: MPI.Request.Testall(both), list, lambda: why, patience=3.0)
            return
        others = range(1, self.size)
        signs = [comm.Isend(nothing(), r, tag) for r in others]
        self.watch.wait([comm.Irecv(nothing(), r, tag) for r in others], others, lambda: why)
        signs += [comm.Isend(nothing(), r, tag) for r in others]
        self.watch.wait(signs, [*others, *others], lambda: why)

    def close(self) -> None:
        """Free the communicator."""
        restore_error_hook()
        self.pulse.close()
        self.comm.Free()

    # ------------------------------------------------------------------ through rank 0

    def _send(self, body: Any, rank: int, tag: int, why: Callable[[], str]) -> None:
        self.watch.wait([self.comm.Isend(body, rank, tag)], [rank], why, listen=True)

    def _receive(self, body: Any, rank: int, tag: int, why: Callable[[], str]) -> None:
        request = self.comm.Irecv(body, rank, tag)
        self.watch.wait([request], [rank], why, listen=True, patience=self._patience)

    def share(self, values: np.ndarray, sizes: Sequence[int], why: str) -> list[np.ndarray]:
        """Return every rank's numbers, ``sizes[rank]`` of each, on every rank."""
        return self._share(np.ascontiguousarray(values, dtype=np.float64).ravel(), sizes, why)

    def gather_all(self, item: Any, why: str) -> list[Any]:
        """Return every rank's item (what JSON can hold), on every rank."""
        text = np.frombuffer(json.dumps(item).encode(), dtype=np.uint8)
        # The lengths of the texts go first. Only this wait may meet a rank that is still busy.
        sizes = self._share(np.array([text.size]), [1] * self.size, why, patience=self._patience)
        texts = self._share(text, [int(size[0]) for size in sizes], why)
        return [json.loads(part.tobytes()) for part in texts]

    def _share(
        self, values: np.ndarray, sizes: Sequence[int], why: str, *, patience: float = 0.0
    ) -> list[np.ndarray]:
        assert values.size == sizes[self.rank]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        everything = np.empty(bounds[-1], dtype=values.dtype)
        parts = [everything[bounds[r] : bounds[r + 1]] for r in range(self.size)]
        if self.rank == 0:
            parts[0][:] = values
            ranks = range(1, self.size)
            requests = [self.comm.Irecv(parts[r], r, Tag.NUMBERS) for r in ranks]
            self.watch.wait(requests, ranks, lambda: why, listen=True, patience=patience)
        else:
            self._send(values, 0, Tag.NUMBERS, lambda: why)
        self.spread(everything, why)
        return parts

    def spread(self, values: np.ndarray, why: str) -> None:
        """Overwrite an array by the array of rank 0."""
        if self.rank == 0:
            ranks = range(1, self.size)
            requests = [self.comm.Isend(values, r, Tag.NUMBERS) for r in ranks]
            self.watch.wait(requests, ranks, lambda: why, listen=True)
        else:
            self._receive(values, 0, Tag.NUMBERS, lambda: why)

    # ------------------------------------------------------------------ sums

    def add_in_order(
        self, values: np.ndarray, nodes: np.ndarray, rank_of_node: np.ndarray, why: str
    ) -> np.ndarray:
        """Return the sum over all nodes, in their order, of one vector per node, (d,).

        ``values`` (k, d) belong to this rank's ``nodes`` (k,), in increasing order. Rank 0 adds them as they
        arrive and holds only a few at a time.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        width = values.shape[1]
        at_once = max(1, 65_536 // width)
        total = np.zeros(width)
        if self.rank == 0:
            sources = [
                _Rows(self, r, int((rank_of_node == r).sum()), width, at_once, why) for r in range(self.size)
            ]
            sources[0].hold(values)
            # Consecutive nodes of one rank are added in one call.
            starts = np.flatnonzero(np.diff(rank_of_node, prepend=-1))
            for start, stop in zip(starts, [*starts[1:], rank_of_node.size], strict=True):
                total = sources[int(rank_of_node[start])].add(int(stop - start), total)
        else:
            for first in range(0, nodes.size, at_once):
                self._send(values[first : first + at_once], 0, Tag.ROWS, lambda: why)
        self.spread(total, why)
        return total


class _Rows:
    """The vectors of one rank, which rank 0 receives a few at a time."""

    def __init__(self, team: Team, rank: int, count: int, width: int, at_once: int, why: str) -> None:
        self._team, self._rank, self._left, self._why = team, rank, count, why
        self._at_once = at_once
        self._rows = np.empty((0, width))

    def hold(self, rows: np.ndarray) -> None:
        """Use vectors that need not be received."""
        self._rows, self._left = rows, 0

    def add(self, count: int, total: np.ndarray) -> np.ndarray:
        """Return the total with the next vectors added."""
        while count > 0:
            if len(self._rows) == 0:
                size = min(self._at_once, self._left)
                self._rows = np.empty((size, self._rows.shape[1]))
                self._team._receive(self._rows, self._rank, Tag.ROWS, lambda: self._why)
                self._left -= size
            taken = min(count, len(self._rows))
            total = sum_in_order(self._rows[:taken], total)
            self._rows, count = self._rows[taken:], count - taken
        return total
