"""When something goes wrong on a cluster: waits have a deadline, each rank says one sentence, nobody hangs.

A rank that waits longer than the deadline raises `RankLostError`, which names the rank it waited for. An
exception that nobody catches ends all ranks (`end_all_on_error`), since the others would wait for this one
for ever. A rank that is told to stop while others fail says what it was doing (SIGTERM), if its launcher
leaves it the time: Open MPI kills a fifth of a second later.

A rank that reads or compiles tells the others that it lives, however long it takes (`Pulse`). One thread per
rank sends these signs of life, and only while the rank is busy; a rank that is stopped, killed or gone sends
none. Between rank 0 and the others only: what all do together goes through rank 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.errors import AdfsError
from adfs.launching import killed_after
from adfs.runtimes.cluster import RefusalError

if TYPE_CHECKING:
    from mpi4py import MPI

_SPINS = 50
_SHORT_SLEEP, _LONG_SLEEP = 5e-5, 1e-3
_ABORT_SECONDS = 5.0
_OTHERS_SPEAK = 0.3  # seconds for ranks that fail at the same moment
_SIGN_OF_LIFE = 5  # a tag
_LONGEST_PAUSE = 1.0  # seconds between two of them
OWN_PAUSE = 1.0  # seconds after a rank's last look that it cannot have waited: it was itself stopped


# Whether this process has said its last sentence.
_spoken = threading.Event()


class RankLostError(AdfsError, RuntimeError):
    """A rank did not answer within the deadline."""


def say(sentence: str) -> None:
    """Write one line to standard error, in one piece."""
    line = " ".join(f"adfs: {sentence}".split()) + "\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace"))


class Watch:
    """What this rank is doing and for whom it waits, and for how long it may.

    Attributes
    ----------
    deadline : float
        Seconds that a wait may last.
    doing : callable
        Returns what this rank is doing, for its last sentence.
    crowded : bool
        Whether there are more ranks than cores: then a rank that waits sleeps at once.
    pulse : Pulse or None
        The signs of life, once there are any: a wait that listens counts the seconds since the last one.
    paused : float
        Seconds for which this rank itself was stopped while it waited; they count in no wait.
    """

    def __init__(self, rank: int, size: int, deadline: float) -> None:
        self.rank = rank
        self.size = size
        self.deadline = deadline
        self.doing: Callable[[], str] = lambda: "starting"
        self.crowded = False
        self.pulse: Pulse | None = None
        self.paused = 0.0

    def wait(
        self,
        requests: Sequence[MPI.Request],
        ranks: Sequence[int],
        doing: Callable[[], str],
        *,
        listen: bool = False,
        patience: float = 0.0,
    ) -> None:
        """Wait until all requests are done; ``ranks`` are those that each depends on.

        ``doing`` returns what the wait is for, and is called only when that is needed. With ``listen`` a rank
        that sends signs of life may take longer; ``patience`` is seconds beyond the deadline.
        """
        left = [(request, rank) for request, rank in zip(requests, ranks, strict=True) if not request.Test()]
        if left:
            self.until(
                lambda: _drop_done(left),
                lambda: [rank for _, rank in left],
                doing,
                listen=listen,
                patience=patience,
            )

    def until(
        self,
        ready: Callable[[], bool],
        missing: Callable[[], Sequence[int]],
        doing: Callable[[], str],
        *,
        listen: bool = False,
        patience: float = 0.0,
    ) -> None:
        """Poll until something is ready; raise `RankLostError` after the deadline, with the missing ranks.

        ``missing`` returns nobody where it cannot be told who is missing.
        """
        begun = time.perf_counter()
        before, self.doing = self.doing, lambda: f"waiting for {rank_names(missing())} {doing()}"
        # An exception on the way out keeps `doing`: it is what this rank says last.
        for _ in range(1 if self.crowded else _SPINS):
            if ready():
                break
        else:
            pulse = self.pulse if listen else None
            # The others wait for rank 0 while it waits for one of them, which alone is to blame.
            alive = pulse.beating() if pulse is not None and self.rank == 0 else contextlib.nullcontext()
            with alive:
                while not ready():
                    own = self.rest(time.perf_counter() - begun)
                    begun, self.paused = begun + own, self.paused + own
                    lost = self._silent(missing(), begun, self.deadline + patience, pulse)
                    if lost is not None:
                        raise self.lost(lost, doing(), self.deadline + patience)
        self.doing = before

    def _silent(
        self, missing: Sequence[int], begun: float, allowed: float, pulse: Pulse | None
    ) -> list[int] | None:
        """Return which of the missing ranks were silent for too long; None while none was."""
        if pulse is not None:
            pulse.listen()
        now = time.perf_counter()
        if now - begun <= allowed:
            return None
        silent = [r for r in missing if now - (begun if pulse is None else pulse.last(r, begun)) > allowed]
        return silent if silent or not missing else None

    def rest(self, elapsed: float) -> float:
        """Leave the core to others for a moment, longer after a longer wait; return how long a pause was."""
        begun = time.perf_counter()
        if elapsed < 1e-3 and not self.crowded:
            time.sleep(0.0)
        else:
            time.sleep(_SHORT_SLEEP if elapsed < 0.05 else _LONG_SLEEP)
        taken = time.perf_counter() - begun
        return taken if taken > OWN_PAUSE else 0.0

    def lost(self, ranks: Sequence[int], doing: str, allowed: float) -> RankLostError:
        """Return the error of having waited too long for some ranks."""
        return RankLostError(
            f"rank {self.rank} waited {allowed:g} s for {rank_names(ranks)} {doing} and gave up; "
            "see what happened there, and resume from the last checkpoint if there is one"
        )

    @contextlib.contextmanager
    def speaking_when_told_to_stop(self) -> Iterator[None]:
        """Say what this rank was doing when it is told to stop (SIGTERM).

        That is what a launcher does to the others when one rank fails.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if not _spoken.is_set():
                _spoken.set()
                say(f"rank {self.rank} was told to stop while {self.doing()}")
            if callable(before):  # `adfs fit` ends the run in order, if there is the time
                before(number, frame)
            else:
                os._exit(128 + number)

        before = signal.signal(signal.SIGTERM, stop)
        # Not put back after an exception: another rank may end this one before it has said why.
        yield
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _drop_done(left: list[tuple[MPI.Request, int]]) -> bool:
    left[:] = [(request, rank) for request, rank in left if not request.Test()]
    return not left


def rank_names(ranks: Sequence[int]) -> str:
    """Name some ranks.

    >>> rank_names([3]), rank_names([1, 2]), rank_names([])
    ('rank 3', 'ranks 1, 2', 'the other ranks')
    """
    some = sorted(set(ranks))
    if not some:
        return "the other ranks"
    if len(some) == 1:
        return f"rank {some[0]}"
    return "ranks " + ", ".join(str(rank) for rank in some[:8]) + (", …" if len(some) > 8 else "")


def abort(comm: MPI.Intracomm, code: int = 1) -> None:
    """End all ranks; this one ends even if the library cannot reach the others."""
    timer = threading.Timer(_ABORT_SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()
    comm.Abort(code)


def end_all_on_error(comm: MPI.Intracomm, watch: Watch) -> None:
    """From now on an exception that nobody catches is said in one sentence and ends all ranks.

    A `RefusalError` is raised by all ranks together: rank 0 says it, and a rank that knows more says its own;
    every rank ends by itself. It ends MPI first: ``python -m mpi4py`` would make an MPI_ABORT of it.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RefusalError):
            if watch.rank == 0 or error.own:
                say(str(error))
            _end_mpi(watch.deadline)
            return
        _tell_and_end(error, watch, comm)

    hook.before = before  # type: ignore[attr-defined]
    sys.excepthook = hook


@contextlib.contextmanager
def as_one_program(comm: MPI.Intracomm, deadline: float) -> Iterator[None]:
    """Let processes behave as one command: a refusal is raised on rank 0 alone, anything else ends all.

    MPI is over at the end, or the deadline: an exit code other than 0 then ends nobody else, and is no
    MPI_ABORT.
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
        # The first one within a run stops all together; here the others would wait for this rank.
        if not _spoken.is_set():
            say(f"rank {rank} was interrupted and ends at once; a checkpoint that was written is intact")
        abort(comm, 128 + next(iter(error.args), signal.SIGINT))
    except Exception as error:
        if size == 1:
            raise
        _tell_and_end(error, Watch(rank, size, 1.0), comm)
    _end_mpi(deadline)


def _end_mpi(deadline: float) -> None:
    """End MPI, which waits for all ranks, or this process after the deadline."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        with killed_after(deadline, "end MPI"):
            MPI.Finalize()


def _tell_and_end(error: BaseException, watch: Watch, comm: MPI.Intracomm) -> None:
    """Say an error, and end all ranks once those that fail at the same moment have spoken."""
    tell(error, watch)
    sys.stderr.flush()
    if watch.size > 1:
        time.sleep(_OTHERS_SPEAK)
        abort(comm)


def restore_error_hook() -> None:
    """Put back the hook that `end_all_on_error` replaced."""
    hook: Any = sys.excepthook
    sys.excepthook = getattr(hook, "before", hook)


def tell(error: BaseException, watch: Watch) -> None:
    """Say an error in one sentence; one that is not ours is a defect, and its traceback goes before."""
    if _spoken.is_set():
        return
    _spoken.set()
    if isinstance(error, RankLostError):
        say(str(error))
    elif isinstance(error, AdfsError):
        say(f"rank {watch.rank}: {error}")
    else:
        traceback.print_exception(error)
        say(f"rank {watch.rank} failed with {type(error).__name__}: {error}")


# --------------------------------------------------------------------------- signs of life


class Pulse:
    """Sends this rank's signs of life over the team's communicator, and notes when others were last heard of.

    It is ``possible`` where the MPI library lets a second thread send.
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
                    sent[peer] = self._comm.Isend(nothing(), peer, _SIGN_OF_LIFE)

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
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _SIGN_OF_LIFE, status):
            self._comm.Recv(nothing(), status.Get_source(), _SIGN_OF_LIFE)
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


def nothing() -> np.ndarray:
    """Return what a message without content is made of."""
    return np.empty(0, dtype=np.uint8)
