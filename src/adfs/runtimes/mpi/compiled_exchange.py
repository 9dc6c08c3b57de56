"""The exchange of `adfs.runtimes.exchange` in compiled code, which adds almost no time to the messages.

`EventExchange` is the readable version; the tests compare this one with it. After a few hundredths of a
second of waiting the compiled loop returns to Python: `Watch.until` continues the wait, with its deadline.

It starts and tests the requests of `MpiLinks` by a few MPI functions, whose addresses each process looks up.
It gets the addresses of the requests' handles, because the type of a handle differs between MPI libraries.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import TYPE_CHECKING, NamedTuple

import llvmlite.binding
import numpy as np
from numba import types

from adfs.algorithms.base import EventProcess
from adfs.algorithms.method_kernels import Parts, execute, fill_message, take_message
from adfs.compilation import kernel
from adfs.runtimes.exchange import EventExchange, split_events, take_events
from adfs.runtimes.execution import ProcessTimes
from adfs.runtimes.waiting import SUSPENDED_SECONDS
from adfs.schedule import Events
from adfs.schedule.events import empty_events

if TYPE_CHECKING:
    from adfs.runtimes.mpi.ranks import MpiLinks, MpiRanks

#: ``start(request)``, ``test(request, flag, status)``, ``wtime()`` and ``sched_yield()``; addresses are
#: integers.
MPI_START = types.ExternalFunction("adfs_mpi_start", types.int32(types.intp))
MPI_TEST = types.ExternalFunction("adfs_mpi_test", types.int32(types.intp, types.intp, types.intp))
MPI_WTIME = types.ExternalFunction("adfs_mpi_wtime", types.float64())
YIELD = types.ExternalFunction("adfs_yield", types.int32())

_NAMES = {"adfs_mpi_start": "MPI_Start", "adfs_mpi_test": "MPI_Test", "adfs_mpi_wtime": "MPI_Wtime"}

# The number of waits that are kept for the timeline.
_LOG = 512
# Places in `counts` and `seconds` of a board.
_DONE, _WAITING, _PENDING, _LOGGED = range(4)
_COMPUTING, _COMMUNICATING = range(2)


class Board(NamedTuple):
    """The state of the compiled loop, which it keeps between two calls.

    Attributes
    ----------
    counts : (4,) int64
        Events examined, events that wait, exchanges under way, waits recorded.
    seconds : (2,)
        Seconds of computing and of communicating.
    blocked : (k,) uint8
        As ``waiting`` and ``ready``, an argument of `split_events`.
    pending : (c,) int32
        The links with an exchange under way, the oldest first.
    edges, places : (c,) int32
        The edge of each link, and the place of its node in the block.
    moments : (c,)
        The time of the event whose exchange is under way.
    sends, receives : (c,) int64
        The addresses of the requests' handles.
    out, into : (c, m)
        The last message sent, and the last one received.
    exchanges : (c,) int64
    number, ends, slot
        The link of each edge (E,), its two nodes (E, 2), the place of each node in the block (n,).
    flag : (1,) int32
        The result of MPI_Test.
    addresses : (2,) int64
        The addresses of the flag and of a status.
    waited : (c,)
        Seconds of waiting during which the exchange of a link was the oldest one under way.
    log : (_LOG, 3)
        The longest waits: begin, end, link.
    """

    counts: np.ndarray
    seconds: np.ndarray
    blocked: np.ndarray
    waiting: np.ndarray
    ready: np.ndarray
    pending: np.ndarray
    edges: np.ndarray
    places: np.ndarray
    moments: np.ndarray
    sends: np.ndarray
    receives: np.ndarray
    out: np.ndarray
    into: np.ndarray
    exchanges: np.ndarray
    number: np.ndarray
    ends: np.ndarray
    slot: np.ndarray
    flag: np.ndarray
    addresses: np.ndarray
    waited: np.ndarray
    log: np.ndarray


@functools.cache
def library_is_loaded() -> bool:
    """Make the functions known to compiled code; return False if one is not found (mpi4py is used then)."""
    from mpi4py import MPI

    # mpi4py is linked to the MPI library, so its extension module leads to the functions.
    try:
        library = ctypes.CDLL(MPI.__file__)
        functions = {ours: getattr(library, theirs) for ours, theirs in _NAMES.items()}
        functions["adfs_yield"] = ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError, TypeError):
        return False
    for name, function in functions.items():
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is None:
            return False
        llvmlite.binding.add_symbol(name, address)
    return True


@kernel
def _is_done(board: Board, request: int) -> bool:
    MPI_TEST(request, board.addresses[0], board.addresses[1])
    return bool(board.flag[0] != 0)


@kernel
def _finish_arrived(parts: Parts, board: Board) -> int:
    """Finish the exchanges whose message has arrived and whose send is done; return their number."""
    count = board.counts[_PENDING]
    # Exchanges that are not finished move to the front of the list and keep their order.
    kept = 0
    for k in range(count):
        link = board.pending[k]
        # A request that was done at an earlier check is done at every later one.
        if _is_done(board, board.receives[link]) and _is_done(board, board.sends[link]):
            # The same types of integers as in `EventExchange`, so that both use one compiled kernel.
            edge, i = int(np.int64(board.edges[link])), int(np.int64(board.places[link]))
            take_message(parts, edge, i, board.moments[link], board.out[link], board.into[link])
        else:
            board.pending[kept] = link
            kept += 1
    board.counts[_PENDING] = kept
    return int(count - kept)


@kernel
def _post(parts: Parts, board: Board, edge: int, moment: float) -> None:
    """Send the message of an event on an edge; the exchange is under way from now on."""
    link = board.number[edge]
    fill_message(parts, int(np.int64(board.places[link])), moment, board.out[link])
    MPI_START(board.receives[link])
    MPI_START(board.sends[link])
    board.exchanges[link] += 1
    board.moments[link] = moment
    board.pending[board.counts[_PENDING]] = link
    board.counts[_PENDING] += 1


@kernel
def _note_wait(board: Board, begun: float, ended: float, link: int) -> None:
    """Add a wait to the sum of its link, and to the log if it is among the longest."""
    board.waited[link] += ended - begun
    place = board.counts[_LOGGED]
    if place < _LOG:
        board.counts[_LOGGED] += 1
    else:
        # The log is full: replace the shortest wait, unless the new one is shorter still.
        place = 0
        for k in range(1, _LOG):
            if board.log[k, 1] - board.log[k, 0] < board.log[place, 1] - board.log[place, 0]:
                place = k
        if ended - begun <= board.log[place, 1] - board.log[place, 0]:
            return
    board.log[place, 0] = begun
    board.log[place, 1] = ended
    board.log[place, 2] = link


@kernel
def _wait_for_one(parts: Parts, board: Board, patience: float) -> bool:
    """Wait up to ``patience`` seconds until an exchange is finished; return whether one was."""
    begun = now = MPI_WTIME()
    oldest = board.pending[0]
    spins = 0
    while _finish_arrived(parts, board) == 0:
        before = now
        now = MPI_WTIME()
        # The time for which this rank itself was suspended does not count as waiting.
        if now - before > SUSPENDED_SECONDS:
            begun += now - before
        spins += 1
        if now - begun > patience:
            _note_wait(board, begun, now, oldest)
            return False
        # Messages between cores often arrive within a few checks. After that, leave the core to others.
        if spins > 20:
            YIELD()
    now = MPI_WTIME()
    if spins > 0:
        _note_wait(board, begun, now, oldest)
    else:
        # An exchange that was finished at the first check involved no wait.
        board.seconds[_COMMUNICATING] += now - begun
    return True


@kernel
def run_window(
    parts: Parts,
    board: Board,
    events: Events,
    taken: Events,
    at_once: int,
    ahead: int,
    patience: float,
) -> bool:
    """Continue with the events of a window; return whether all are done (False: a message is missing).

    ``taken`` is a buffer for the events that are executed next, ``at_once`` their largest number, and
    ``ahead`` the largest number of events that wait for a message while later ones are executed.
    """
    n, size = board.slot.size, events.time.size
    counts, seconds = board.counts, board.seconds
    while True:
        begun = MPI_WTIME()
        # Nodes with an exchange under way are blocked: their later events wait for the message.
        board.blocked[:] = 0
        for k in range(counts[_PENDING]):
            board.blocked[board.places[board.pending[k]]] = 1
        last = min(size, counts[_DONE] + min(at_once, ahead - counts[_WAITING]))
        n_ready, counts[_WAITING] = split_events(
            events.actor,
            counts[_DONE],
            last,
            board.ends,
            board.slot,
            board.blocked,
            board.waiting,
            counts[_WAITING],
            board.ready,
        )
        counts[_DONE] = last
        # Execute the events that are ready. `execute` stops at an event that needs another rank.
        take_events(events, board.ready, n_ready, taken)
        first = 0
        while first < n_ready:
            first = execute(parts, taken.time, taken.actor, taken.sample, first, n_ready)
            if first < n_ready:
                posted = MPI_WTIME()
                seconds[_COMPUTING] += posted - begun
                _post(parts, board, taken.actor[first] - n, taken.time[first])
                first += 1
                begun = MPI_WTIME()
                seconds[_COMMUNICATING] += begun - posted
        ended = MPI_WTIME()
        seconds[_COMPUTING] += ended - begun
        if counts[_PENDING] == 0:
            if counts[_DONE] == size and counts[_WAITING] == 0:
                return True
        # Wait only if there is nothing else to do; otherwise check the messages once.
        elif counts[_DONE] == size or counts[_WAITING] >= ahead:
            if not _wait_for_one(parts, board, patience):
                return False
        else:
            _finish_arrived(parts, board)
            seconds[_COMMUNICATING] += MPI_WTIME() - ended


class CompiledExchange(EventExchange):
    """Executes windows of events as `EventExchange` does, in compiled code."""

    def __init__(
        self,
        ranks: MpiRanks,
        process: EventProcess,
        links: MpiLinks,
        times: ProcessTimes,
        tau: float | None = None,
    ) -> None:
        super().__init__(ranks, process, links, times, tau)
        from mpi4py import MPI

        self._watch = ranks.watch
        count = links.edges.size
        self._status = np.zeros(max(256, MPI._sizeof(MPI.Status)), dtype=np.uint8)
        flag = np.zeros(1, dtype=np.int32)
        self.board = Board(
            counts=np.zeros(4, dtype=np.int64),
            seconds=np.zeros(2),
            blocked=self._blocked,
            waiting=self._waiting,
            ready=self._ready,
            pending=np.zeros(max(1, count), dtype=np.int32),
            edges=links.edges.astype(np.int32),
            places=self._own_place.astype(np.int32),
            moments=np.zeros(count),
            sends=np.array([MPI._addressof(request) for request in links.sends], dtype=np.int64),
            receives=np.array([MPI._addressof(request) for request in links.receives], dtype=np.int64),
            out=links.out,
            into=links.into,
            exchanges=links.exchanges,
            number=links.number,
            ends=process.ends,
            slot=process.slot,
            flag=flag,
            addresses=np.array([flag.ctypes.data, self._status.ctypes.data], dtype=np.int64),
            waited=np.zeros(count),
            log=np.zeros((_LOG, 3)),
        )

    def compile(self) -> None:
        """Compile the loop by a call without events, which sends no message."""
        run_window(
            self.process.parts, self.board, empty_events(0), self._taken, self._at_once, self._ahead, 0.0
        )

    def _execute(self, events: Events, size: int) -> None:
        board, parts, watch = self.board, self.process.parts, self._watch
        board.counts[[_DONE, _WAITING]] = 0
        # With more ranks than cores return to Python at once, where a waiting rank sleeps.
        patience = 0.0 if watch.crowded else 0.02
        while not run_window(parts, board, events, self._taken, self._at_once, self._ahead, patience):
            oldest, pending = int(board.pending[0]), board.pending[: board.counts[_PENDING]]
            begun = time.perf_counter() - self.cluster.suspended
            watch.until(
                lambda: _finish_arrived(parts, board) > 0,
                self.links.peer[pending].tolist,
                self._event(oldest, float(board.moments[oldest])),
            )
            begun += self.cluster.suspended
            self.times.waited(begun, time.perf_counter(), int(self.links.peer[oldest]))
        self._take_times()

    def _take_times(self) -> None:
        """Move the seconds of the board to the times of this rank."""
        from mpi4py import MPI

        board, times, peers = self.board, self.times, self.links.peer.tolist()
        # The clocks of MPI and of Python may start at different times.
        offset = time.perf_counter() - MPI.Wtime()
        for seconds, rank in zip(board.waited.tolist(), peers, strict=True):
            times.add_waiting(seconds, rank)
        for begin, end, link in board.log[: board.counts[_LOGGED]].tolist():
            times.show_wait(begin + offset, end + offset, peers[int(link)])
        times.computing += float(board.seconds[_COMPUTING])
        times.communicating += float(board.seconds[_COMMUNICATING])
        board.seconds[:] = board.waited[:] = 0.0
        board.counts[_LOGGED] = 0
