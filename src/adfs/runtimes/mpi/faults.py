"""Failures on a cluster: waits have a deadline, each rank reports one sentence, and no rank hangs.

A rank that waits longer than the deadline raises `RankLostError`, which names the rank it waited for. An
uncaught exception ends all ranks (`Watch.install_hooks`): the others would wait for this one for ever.
A rank that receives SIGTERM while others fail reports what it was doing, if its launcher leaves it the time:
Open MPI kills it a fifth of a second later.

A rank that is busy reading or compiling sends signs of life (`Pulse`) from a second thread, so that the
others wait for it longer than the deadline. A rank that is suspended, killed or gone sends none. Signs of
life go between rank 0 and the others only, because all collective operations go through rank 0.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.errors import AdfsError
from adfs.launching import killed_after
from adfs.runtimes.cluster import Cluster, RefusalError
from adfs.runtimes.waiting import RankLostError, Waits

if TYPE_CHECKING:
    from mpi4py import MPI

# Set once this process has written the sentence that says why it ends.
_final_sentence = threading.Event()


class Tag(enum.IntEnum):
    """The tags of all messages; the links between nodes take those from FIRST_LINK."""

    NUMBERS = 3
    ROWS = 4
    SIGN_OF_LIFE = 5
    PARCEL = 8
    FIRST_LINK = 16


def say(sentence: str) -> None:
    """Write one line to standard error, in one piece."""
    line = " ".join(f"adfs: {sentence}".split()) + "\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace"))


class Watch(Waits):
    """Waits with a deadline, and what this rank reports when one of them fails.

    Attributes
    ----------
    comm : Intracomm
        The duplicate of the user's communicator, once all ranks have met.
    pulse : Pulse
        The signs of life, also once all ranks have met. A wait with ``listen`` counts the seconds since the
        last one.
    """

    comm: MPI.Intracomm
    pulse: Pulse

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        super().__init__(cluster, deadline)
        self._sigterm: Any = None
        self._excepthook = sys.excepthook

    def wait(self, requests: Sequence[MPI.Request], ranks: Sequence[int], *, listen: bool = False) -> None:
        """Wait until all requests are done.

        Parameters
        ----------
        requests, ranks
            Requests, and the rank that each of them depends on.
        listen
            Whether a rank that sends signs of life may take longer than the deadline.
        """
        left = list(zip(requests, ranks, strict=True))

        def all_done() -> bool:
            left[:] = [(request, rank) for request, rank in left if not request.Test()]
            return not left

        self.until(all_done, lambda: [rank for _, rank in left], listen=listen)

    def rest(self, elapsed: float) -> float:
        # Sleep longer after a longer wait: short waits need a quick answer, long ones a free core.
        if elapsed < 1e-3 and not self.crowded:
            asked = 0.0
        else:
            asked = 5e-5 if elapsed < 0.05 else 1e-3
        time.sleep(asked)
        return asked

    def listen(self) -> Mapping[int, float]:
        return self.pulse.listen()

    def signs_while_waiting(self, ranks: Sequence[int]) -> AbstractContextManager[None]:
        # While rank 0 waits for one rank, the others wait for rank 0: it must not seem to be lost.
        return self.pulse.beating() if self.cluster.rank == 0 else contextlib.nullcontext()

    def install_hooks(self, comm: MPI.Intracomm) -> None:
        """From now on report an uncaught exception in one sentence and end all ranks, and report SIGTERM.

        All ranks raise a `RefusalError` together: rank 0 reports it, and so does a rank with a reason of its
        own. Then each rank ends by itself. It ends MPI first, because ``python -m mpi4py`` would call
        MPI_ABORT. A launcher sends SIGTERM to the other ranks when one rank fails.
        """

        def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not isinstance(error, RefusalError):
                _report_and_end(error, comm)
                return
            if comm.Get_rank() == 0 or error.own:
                say(str(error))
            _end_mpi(self.deadline)

        def stop(number: int, frame: FrameType | None) -> None:
            if not _final_sentence.is_set():
                _final_sentence.set()
                last = f"computing; the ranks last met {self.cluster.activity}"
                doing = last if self.waiting is None else self.waiting()
                say(f"rank {self.cluster.rank} was told to stop while {doing}")
            # The handler of `adfs fit` ends the run in order, if there is time.
            if callable(self._sigterm):
                self._sigterm(number, frame)
            else:
                os._exit(128 + number)

        self._excepthook, sys.excepthook = sys.excepthook, end
        if threading.current_thread() is threading.main_thread():
            self._sigterm = signal.signal(signal.SIGTERM, stop)

    def restore_hooks(self) -> None:
        """Restore the handlers that `install_hooks` replaced."""
        sys.excepthook = self._excepthook
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)


def abort(comm: MPI.Intracomm, code: int = 1) -> None:
    """End all ranks; this one ends within 5 s even if the library cannot reach the others."""
    timer = threading.Timer(5.0, os._exit, (code,))
    timer.daemon = True
    timer.start()
    comm.Abort(code)


@contextlib.contextmanager
def as_one_program(comm: MPI.Intracomm, deadline: float) -> Iterator[None]:
    """Let all processes behave as one command: rank 0 alone raises a refusal, any other error ends all ranks.

    MPI is finalised at the end, so that an exit code other than 0 ends no other rank and is no MPI_ABORT.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    try:
        yield
    except RefusalError as error:
        _end_mpi(deadline)
        if rank == 0:
            raise
        if error.own:
            say(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        if size == 1:
            raise
        # Within a run the first interrupt stops all ranks together. Here the others would wait for this rank.
        if not _final_sentence.is_set():
            say(f"rank {rank} was interrupted and ends at once; a checkpoint that was written is intact")
        abort(comm, 128 + next(iter(error.args), signal.SIGINT))
    except Exception as error:
        if size == 1:
            raise
        _report_and_end(error, comm)
    _end_mpi(deadline)


def _end_mpi(deadline: float) -> None:
    """End MPI, which waits for all ranks; after the deadline end this process."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        with killed_after(deadline, "end MPI"):
            MPI.Finalize()


def _report_and_end(error: BaseException, comm: MPI.Intracomm) -> None:
    """Report an error in one sentence, an unexpected one with its traceback, and end all ranks."""
    if not _final_sentence.is_set():
        _final_sentence.set()
        if isinstance(error, RankLostError):
            say(str(error))
        elif isinstance(error, AdfsError):
            say(f"rank {comm.Get_rank()}: {error}")
        else:
            traceback.print_exception(error)
            say(f"rank {comm.Get_rank()} failed with {type(error).__name__}: {error}")
    sys.stderr.flush()
    if comm.Get_size() > 1:
        # Ranks that fail at the same moment may write their sentences too.
        time.sleep(0.3)
        abort(comm)


# --------------------------------------------------------------------------- signs of life


class Pulse:
    """Sends signs of life of this rank, and records the last ones of other ranks.

    It is ``possible`` if the MPI library allows calls from several threads.
    """

    def __init__(self, comm: MPI.Intracomm, deadline: float) -> None:
        from mpi4py import MPI

        self._comm, self._mpi = comm, MPI
        self.possible = bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)
        self._last_sign: dict[int, float] = {}
        self._busy = 0
        self._over = threading.Event()
        self._pause = min(1.0, deadline / 8.0)
        self._thread = threading.Thread(target=self._beat, name="adfs-pulse", daemon=True)
        if self.possible and comm.Get_size() > 1:
            self._thread.start()

    def _beat(self) -> None:
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        peers = range(1, size) if rank == 0 else [0]
        sent: dict[int, MPI.Request] = {}
        while not self._over.wait(self._pause):
            for peer in peers if self._busy else ():
                # A peer that does not receive has at most one message in its queue.
                if peer not in sent or sent[peer].Test():
                    sent[peer] = self._comm.Isend(nothing(), peer, Tag.SIGN_OF_LIFE)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Send signs of life until the block ends, also by an exception."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def listen(self) -> dict[int, float]:
        """Receive the signs of life that have arrived; return the time of the last one of each rank."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, Tag.SIGN_OF_LIFE, status):
            self._comm.Recv(nothing(), status.Get_source(), Tag.SIGN_OF_LIFE)
            self._last_sign[status.Get_source()] = time.perf_counter()
        return self._last_sign

    def close(self) -> None:
        """Stop sending, and receive the messages that are still under way to this rank."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.listen()


def nothing() -> np.ndarray:
    """Return the buffer of a message without content."""
    return np.empty(0, dtype=np.uint8)
