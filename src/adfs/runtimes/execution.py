"""The part of a run that this process does: its nodes, and messages for the rest. The loop drives it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Process, Setting, Work
from adfs.algorithms.qning import dual_pass
from adfs.algorithms.round_process import RoundProcess
from adfs.files import JsonObject
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import AllNodes, can_ascend
from adfs.runtimes.exchange import EventExchange, GossipProduct
from adfs.schedule.events import LOST, Events

# Between two slices of the way a run may be stopped or saved. The first slice is as short as it can be; the
# length of the next ones is chosen so that they take about these seconds.
_SLICE_SECONDS = 0.2
# Kernels are compiled before the run by a trial on one sample per node, which is slow with more nodes.
_MOST_NODES_TRIED = 1000
_TRIED: set[tuple[object, ...]] = set()  # kinds of runs that were tried in this process
_LONGEST_LIST = 2000  # of waits


@dataclass
class ProcessTimes:
    """Seconds of one process, and its longest waits for the time-line.

    Attributes
    ----------
    setting_up : float
        Before the first event: the summary of the data, parameters, tables, kernels.
    computing, communicating, waiting, evaluating : float
        Local events; packing, posting and taking messages; waiting for messages; certificates, records and
        agreements between ranks.
    for_whom : dict of int to float
        The seconds of waiting for each rank.
    """

    setting_up: float = 0.0
    computing: float = 0.0
    communicating: float = 0.0
    waiting: float = 0.0
    evaluating: float = 0.0
    for_whom: dict[int, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)
    _waits: list[tuple[float, float, int]] = field(default_factory=list)

    def waited(self, begun: float, ended: float, rank: int) -> None:
        """Note a wait for another process."""
        self.add_waiting(ended - begun, rank)
        self.show_wait(begun, ended, rank)

    def add_waiting(self, seconds: float, rank: int) -> None:
        """Add to the seconds of waiting for another process."""
        self.waiting += seconds
        self.for_whom[rank] = self.for_whom.get(rank, 0.0) + seconds

    def show_wait(self, begun: float, ended: float, rank: int) -> None:
        """Keep a wait for the time-line, as long as there are not too many longer ones."""
        # Of the short ones a picture shows nothing: the shortest is at the top of the heap.
        heappush(self._waits, (ended - begun, begun - self.start, rank))
        if len(self._waits) > _LONGEST_LIST:
            heappop(self._waits)

    def report(self) -> JsonObject:
        """Return everything in types that JSON has."""
        waits = sorted((begun, begun + length, rank) for length, begun, rank in self._waits)
        names = ("setting_up", "computing", "communicating", "waiting", "evaluating")
        return {name: getattr(self, name) for name in names} | {
            "total": time.perf_counter() - self.start,
            "waited_for": {str(rank): seconds for rank, seconds in sorted(self.for_whom.items())},
            "waits": [[round(begun, 6), round(ended, 6), rank] for begun, ended, rank in waits],
        }


class Execution:
    """A run in progress in this process.

    All processes go through the same positions, slice by slice, and agree on the length of the next slice by
    the time that the last one took.

    Parameters
    ----------
    process : Process
    nodes : AllNodes
    tau : float, optional
        Time of a message in units of a sample's computation, where it is known.
    stage_start : float
        The position of the run at which the process's stage began.

    Attributes
    ----------
    exchange : EventExchange or None
        Executes the events of a process that has a schedule.
    slice : float
        The length of the next slice.
    """

    def __init__(
        self, process: Process, nodes: AllNodes, tau: float | None = None, stage_start: float = 0.0
    ) -> None:
        self.process, self.nodes, self.cluster = process, nodes, nodes.cluster
        self.stage_start, self.times = stage_start, ProcessTimes()
        self.exchange: EventExchange | None = None
        self._gossip: GossipProduct | None = None
        self._least_slice, self._slice_ratio = 1.0, 1.0
        if isinstance(process, EventProcess):
            self.exchange = self.cluster.events(process, nodes.placement, self.times, tau)
            # At each slice the events under way of every node and edge are drawn anew, three or so each.
            self._least_slice = 4.0 * (process.slot.size + len(process.ends))
        else:
            assert isinstance(process, RoundProcess)
            self._gossip = GossipProduct(self.cluster, process.gossip_matrix, nodes.placement, self.times)
        self.slice = self._least_slice

    @property
    def position(self) -> float:
        """The position of the run; that of its process is counted from the beginning of the stage."""
        return self.stage_start + self.process.position

    def begin_stage(self, process: Process) -> None:
        """Go on with the process of a stage that begins here."""
        self.process, self.stage_start = process, self.position
        if self.exchange is not None:
            assert isinstance(process, EventProcess)
            self.exchange.process = process

    # ------------------------------------------------------------------ before and after

    def compile(self, method: Method, setting: Setting) -> None:
        """Compile the kernels of a run, outside its time and without a message."""
        if self.exchange is not None:
            self.exchange.compile()
        problem, several = setting.problem, self.cluster.size > 1
        if setting.block.size > _MOST_NODES_TRIED or not problem.linear:
            return
        # One trial per kind of run: on several ranks it is made in turns, which takes its time.
        kind = (method.name, several, problem.l1 is None, *(type(part) for part in problem.samples))
        small = None if kind in _TRIED else problem.first_samples()
        _TRIED.add(kind)
        if small is None:
            return
        if self._gossip is not None:
            trial = method.start(replace(setting, problem=small))
            assert isinstance(trial, RoundProcess)
            trial.run(self._gossip if self._gossip.rows is not None else _NoGossip(), 1.0)
        if several:  # the others would wait while one process compiles at its first certificate
            self._try_certificates(small)

    def _try_certificates(self, small: FiniteSum) -> None:
        """Call the kernels of certificates once, with one sample per node."""
        self.process.primal()
        self.process.dual()
        # Certificates are of the true problem, whatever problem the stage has.
        small = self.nodes.problem.first_samples() or small
        zero = np.zeros(small.n_features)
        small.loss_sums(zero)
        duals = small.clip_to_domain(small.slopes(zero))
        small.gap_parts(duals, zero)
        small.row_sums(duals)
        if can_ascend(self.process, self.nodes):
            rows, beta = np.flatnonzero(small.active), float(small.samples.loss.beta)
            dual_pass(small.samples, beta, rows, float(small.sigma[0]), duals, zero)

    def account(self) -> JsonObject:
        """Return every process's times and messages, and how often each edge between two was used."""
        work, placement = self.process.work, self.nodes.placement
        own = self.times.report() | {
            "nodes": self.nodes.block.tolist(),
            "computations": work.computations,
            "messages": work.messages,
            "bytes": 8 * work.numbers,
            "host": self.cluster.hosts[self.cluster.rank],
        }
        # Both ends of an edge count its exchanges: the process of the lower node reports it.
        edges = []
        if self.exchange is not None:
            links = self.exchange.links
            for edge, count in zip(links.edges.tolist(), links.exchanges.tolist(), strict=True):
                a, b = placement.edges[edge].tolist()
                if placement.rank_of_node[a] == self.cluster.rank:
                    edges.append([edge, a, b, count])
        self.cluster.activity = "to sum up the run"
        cards = self.cluster.allgather([own, edges])
        return {
            "ranks": [card[0] for card in cards],
            "edges": sorted(edge for card in cards for edge in card[1]),
        }

    # ------------------------------------------------------------------ going on

    def advance(self, stop: float, seconds: float) -> None:
        """Go on by one slice, at most to a position of the run; ``seconds`` are left of its budget."""
        begun, process, times = time.perf_counter(), self.process, self.times
        # Whole positions: all processes stop at the same event.
        target = min(stop - self.stage_start, float(np.ceil(process.position + self.slice)))
        if isinstance(process, EventProcess):
            assert self.exchange is not None
            for end, events in process.schedule.windows(process.position, target, self.nodes.block):
                self.exchange.execute(without_lost(process, events))
                process.position = end
            process.position = float(target)
        else:
            assert isinstance(process, RoundProcess)
            assert self._gossip is not None
            elsewhere = times.communicating + times.waiting
            process.run(self._gossip, target)
            # The products have noted the time of their messages.
            elsewhere = times.communicating + times.waiting - elsewhere
            times.computing += time.perf_counter() - begun - elsewhere
        took = time.perf_counter() - begun
        self._slice_ratio = min(_SLICE_SECONDS, max(seconds - took, 0.0)) / max(took, 1e-6)

    def end_slice(self, *flags: bool) -> tuple[bool, ...]:
        """Agree on the length of the next slice; return for each flag whether any process raises it."""
        own = [*(bool(flag) for flag in flags), float(self._slice_ratio)]
        *raised, ratios = self._allgather(own, "to agree on how to go on")
        # The slowest process decides, and one slice hardly says how long the next will take.
        factor = max(0.25, min(4.0, *ratios))
        self.slice = max(self._least_slice, float(np.floor(self.slice * factor)))
        return tuple(any(flag) for flag in raised)

    def work(self) -> Work:
        """Return the work of all processes."""
        counts = self._allgather([int(count) for count in self.process.work], "to count the work")
        return Work(*(sum(each) for each in counts))

    def _allgather(self, values: list[float], activity: str) -> list[tuple[Any, ...]]:
        """Return the numbers of all processes, one tuple per number."""
        begun = time.perf_counter()
        self.cluster.activity = f"{activity} at position {self.position:.17g} of the schedule"
        rows = self.cluster.allgather(values)
        self.times.evaluating += time.perf_counter() - begun
        return list(zip(*rows, strict=True))


def without_lost(process: EventProcess, events: Events) -> Events:
    """Count the messages of a window's exchanges that fail, and return the other events."""
    if process.schedule.faults is None:
        return events
    # They were sent, by those of their ends that are here.
    lost = events.sample == LOST
    ends = process.slot[process.ends[events.actor[lost] - process.slot.size]]
    messages = process.work.messages + int(np.count_nonzero(ends >= 0))
    process.work = Work(process.work.computations, messages, messages * process.message_length)
    return Events(*(array[~lost] for array in events))


class _NoGossip:
    """Products of zeros, for a trial of rounds without messages."""

    rows = None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.zeros_like(values)

    def total(self, values: np.ndarray) -> np.ndarray:
        return np.zeros(values.shape[1])

    def least(self, value: float) -> float:
        return value
