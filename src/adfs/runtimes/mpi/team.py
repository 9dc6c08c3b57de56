"""What all ranks do together, through rank 0: share small arrays and texts, add in the order of nodes.

MPI's own collectives wait without end and do not say for whom. Here rank 0 knows who has not come, the
others wait for rank 0, and the time that this takes does not matter: it happens a few times a second at
most.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.problem.evaluation import sum_in_order
from adfs.runtimes.mpi.faults import Pulse, Watch, end_all_on_error, nothing, restore_error_hook

if TYPE_CHECKING:
    from mpi4py import MPI

_NUMBERS, _ROWS = 3, 4
_NUMBERS_AT_ONCE = 1 << 16
# Seconds beyond the deadline: for rank 0 to end a start that is not complete; and for others to read and
# compile, where the MPI library lets nobody tell that it lives meanwhile.
_TO_END_ALL = 3.0
_WITHOUT_PULSE = 3600.0


class Team:
    """All ranks of a run; the user's communicator is duplicated, so that messages never meet theirs."""

    def __init__(self, comm: MPI.Intracomm, deadline: float) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.watch = Watch(self.rank, self.size, deadline)
        # From here on a rank that fails ends the others, which may be waiting for it already.
        end_all_on_error(comm, self.watch)
        self._patience = 0.0
        self._meet(comm)
        self.comm, request = comm.Idup()
        self.watch.until(request.Test, list, lambda: "at the start")
        self.pulse = self.watch.pulse = Pulse(self.comm, deadline)
        cores = (
            sorted(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else list(range(os.cpu_count() or 1))
        )
        cards = self.gather_all([socket.gethostname(), cores, self.pulse.possible], "at the start")
        self.hosts: list[str] = [host for host, *_ in cards]
        # A launcher may give each rank a core of its own: count those of all ranks here.
        here = {core for host, theirs, _ in cards if host == self.hosts[self.rank] for core in theirs}
        self.watch.crowded = self.hosts.count(self.hosts[self.rank]) > len(here)
        if not all(possible for *_, possible in cards):
            self._patience = _WITHOUT_PULSE

    def _meet(self, comm: MPI.Intracomm) -> None:
        """Wait until all ranks have come, and know who has not.

        On the user's communicator, since making one takes all ranks; with a tag that nobody uses.
        """
        from mpi4py import MPI

        most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        tag = most if isinstance(most, int) else 32_767
        why = "at the start"
        if self.rank != 0:
            sent = comm.Isend(nothing(), 0, tag)
            self.watch.wait([comm.Irecv(nothing(), 0, tag)], [0], lambda: why)
            # Rank 0 is there: from now on it is the one that tells who is missing.
            request = comm.Irecv(nothing(), 0, tag)
            both = [sent, request]
            self.watch.until(lambda: MPI.Request.Testall(both), list, lambda: why, patience=_TO_END_ALL)
            return
        others = range(1, self.size)
        signs = [comm.Isend(nothing(), r, tag) for r in others]
        self.watch.wait([comm.Irecv(nothing(), r, tag) for r in others], others, lambda: why)
        signs += [comm.Isend(nothing(), r, tag) for r in others]
        self.watch.wait(signs, [*others, *others], lambda: why)

    def close(self) -> None:
        """Give back the communicator."""
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
        sizes = self._share(np.array([text.size]), [1] * self.size, why, patience=self._patience)
        return [json.loads(own.tobytes()) for own in self._share(text, [int(n[0]) for n in sizes], why)]

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
            requests = [self.comm.Irecv(parts[r], r, _NUMBERS) for r in ranks]
            self.watch.wait(requests, ranks, lambda: why, listen=True, patience=patience)
        else:
            self._send(values, 0, _NUMBERS, lambda: why)
        self.spread(everything, why)
        return parts

    def spread(self, values: np.ndarray, why: str) -> None:
        """Overwrite an array by that of rank 0."""
        if self.rank == 0:
            ranks = range(1, self.size)
            requests = [self.comm.Isend(values, r, _NUMBERS) for r in ranks]
            self.watch.wait(requests, ranks, lambda: why, listen=True)
        else:
            self._receive(values, 0, _NUMBERS, lambda: why)

    # ------------------------------------------------------------------ sums

    def add_in_order(
        self, values: np.ndarray, nodes: np.ndarray, rank_of_node: np.ndarray, why: str
    ) -> np.ndarray:
        """Return the sum over all nodes, in their order, of one vector per node, (d,).

        ``values`` (k, d) are those of this rank's ``nodes`` (k,), in increasing order. Rank 0 adds them as
        they come and holds a few at a time.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        width = values.shape[1]
        at_once = max(1, _NUMBERS_AT_ONCE // width)
        total = np.zeros(width)
        if self.rank == 0:
            sources = [
                _Rows(self, r, int((rank_of_node == r).sum()), width, at_once, why) for r in range(self.size)
            ]
            sources[0].hold(values)
            # Nodes that follow each other on one rank are added in one call.
            starts = np.flatnonzero(np.diff(rank_of_node, prepend=-1))
            for start, stop in zip(starts, [*starts[1:], rank_of_node.size], strict=True):
                total = sources[int(rank_of_node[start])].add(int(stop - start), total)
        else:
            for first in range(0, nodes.size, at_once):
                self._send(values[first : first + at_once], 0, _ROWS, lambda: why)
        self.spread(total, why)
        return total


class _Rows:
    """The vectors of one rank, received some at a time."""

    def __init__(self, team: Team, rank: int, count: int, width: int, at_once: int, why: str) -> None:
        self._team, self._rank, self._left, self._why = team, rank, count, why
        self._at_once = at_once
        self._rows = np.empty((0, width))

    def hold(self, rows: np.ndarray) -> None:
        """Take all of them at once."""
        self._rows, self._left = rows, 0

    def add(self, count: int, total: np.ndarray) -> np.ndarray:
        """Return a total with the next vectors added."""
        while count > 0:
            if len(self._rows) == 0:
                size = min(self._at_once, self._left)
                self._rows = np.empty((size, self._rows.shape[1]))
                self._team._receive(self._rows, self._rank, _ROWS, lambda: self._why)
                self._left -= size
            taken = min(count, len(self._rows))
            total = sum_in_order(self._rows[:taken], total)
            self._rows, count = self._rows[taken:], count - taken
        return total
