"""Signs of life: a rank that reads or compiles tells the others that it lives, however long it takes.

One thread per rank sends them, and only while the rank is busy; a rank that is stopped, killed or gone sends
none. Between rank 0 and the others only: what all do together goes through rank 0.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Pulse"]

_TAG = 5
_LONGEST_PAUSE = 1.0  # seconds


class Pulse:
    """Sends this rank's signs of life, and notes when others were last heard of.

    Parameters
    ----------
    comm : Intracomm
        The team's own.
    deadline : float
        Seconds of silence after which another rank is given up.

    Attributes
    ----------
    possible : bool
        Whether this MPI library lets a second thread send.
    """

    def __init__(self, comm: MPI.Intracomm, deadline: float) -> None:
        from mpi4py import MPI

        self._comm, self._mpi = comm, MPI
        self.possible = bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)
        self._heard: dict[int, float] = {}
        self._busy = 0
        self._over = threading.Event()
        self._pause = min(_LONGEST_PAUSE, deadline / 8.0)
        self._thread = threading.Thread(target=self._beat, name="adfs-pulse", daemon=True)
        if self.possible and comm.Get_size() > 1:
            self._thread.start()

    def _beat(self) -> None:
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        peers = range(1, size) if rank == 0 else [0]
        sent: dict[int, MPI.Request] = {}
        while not self._over.wait(self._pause):
            for peer in peers if self._busy else ():
                if peer not in sent or sent[peer].Test():
                    sent[peer] = self._comm.Isend(_nothing(), peer, _TAG)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Tell the others that this rank lives, until the block ends in whatever way."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def listen(self) -> None:
        """Note of whom there is a sign of life."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            self._comm.Recv(_nothing(), status.Get_source(), _TAG)
            self._heard[status.Get_source()] = time.perf_counter()

    def last(self, rank: int, begun: float) -> float:
        """Return when a rank was last heard of, or when the wait for it began."""
        return max(begun, self._heard.get(rank, begun))

    def close(self) -> None:
        """Stop; what is still under way to this rank is taken."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.listen()


def _nothing() -> np.ndarray:
    return np.empty(0, dtype=np.uint8)
