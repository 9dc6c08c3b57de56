"""The part of a run that this process does: its nodes, and messages for the rest. The loop drives it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Process, Setting, Work
from adfs.algorithms.qning import dual_pass
from adfs.algorithms.round_process import RoundProcess
from adfs.errors import FileError
from adfs.files import JsonObject
from adfs.runtimes.certificates import (
    AllNodes,
    Certificate,
    Certifier,
    can_be_closed,
    certify,
    certify_after_pass,
    compare_with_optimum,
    measure_nodes,
)
from adfs.runtimes.checkpoints import Checkpoints
from adfs.runtimes.exchange import EventExchange, GossipProduct
from adfs.runtimes.recording import Record
from adfs.runtimes.timing import ProcessTimes
from adfs.schedule import Events

if TYPE_CHECKING:
    from adfs.runtimes.loop import Plan, Progress
    from adfs.runtimes.phases import Phases

_SLICE_SECONDS = 0.2
_FIRST_SLICE = 4096.0
_FIRST_ROUNDS = 1.0
_MOST_NODES_TRIED = 1000
_TRIED: set[tuple[object, ...]] = set()  # kinds of rounds that were compiled in this process


class Execution:
    """A run in progress in this process.

    All processes go through the same positions. Several of them stop between two records when a slice of the
    schedule is done, whose length they agree on by what the last one took: nobody looks at a clock alone.
    Iterates are read at ``read``; ``tau`` is the time of a message in units of a sample's computation, where
    it is known; ``phases`` are what checkpoints also hold of a run in phases.
    """

    interrupted: bool = False

    def __init__(
        self,
        process: Process,
        nodes: AllNodes,
        read: str,
        checkpoints: Checkpoints | None,
        tau: float | None = None,
        certifier: Certifier = certify,
    ) -> None:
        self._certifier = certifier
        self.process, self.nodes, self.read, self.checkpoints = process, nodes, read, checkpoints
        self.cluster, self.placement = nodes.cluster, nodes.placement
        self.alone = self.cluster.size == 1
        self.block = self.placement.block(self.cluster.rank)
        self.times = ProcessTimes()
        self.phases: Phases | None = None
        self._base = 0.0
        self._stream: tuple[float, Iterator[tuple[float, Events]]] | None = None
        self._values: tuple[float, np.ndarray] = (-1.0, np.empty(0))
        self._exchange: EventExchange | None = None
        self._gossip: GossipProduct | None = None
        if isinstance(process, EventProcess):
            self._exchange = self.cluster.events(process, self.placement, self.times, tau)
            self._slice = _FIRST_SLICE
        else:
            assert isinstance(process, RoundProcess)
            self._gossip = GossipProduct(self.cluster, process.gossip_matrix, self.placement, self.times)
            self._slice = _FIRST_ROUNDS

    @property
    def position(self) -> float:
        """Where the run is: positions of a process begin at 0 in every phase."""
        return self._base + self.process.position

    def go_on_with(self, process: Process, base: float) -> None:
        """Go on with the process of another phase, which began at a position of the run."""
        self.process, self._base = process, base
        self._stream, self._values = None, (-1.0, np.empty(0))
        if self._exchange is not None:
            assert isinstance(process, EventProcess)
            self._exchange.go_on_with(process)

    # ------------------------------------------------------------------ before and after

    def compile(self, method: Method, setting: Setting) -> None:
        """Compile what a run will call, outside its time and without a message."""
        if self._exchange is not None:
            self._exchange.compile()
            if self.alone:
                return
        if setting.block.size > _MOST_NODES_TRIED or not setting.problem.linear:
            return
        # What decides what is compiled: once in a process is enough, and in turns a trial takes its time.
        kind = (method.name, self.alone, *(type(part) for part in setting.problem.samples))
        if kind in _TRIED:
            return
        _TRIED.add(kind)
        small = setting.problem.first_samples()
        if small is None:
            return
        if self._gossip is not None:
            trial = method.start(replace(setting, problem=small))  # thrown away
            assert isinstance(trial, RoundProcess)
            trial.run(self._gossip if self.alone else _NoGossip(), 1.0)
        if not self.alone:  # others would wait while one compiles at its first certificate
            self.process.primal()
            self.process.dual()
            # Certificates are of the true problem, whatever the phase sees of it.
            small = self.nodes.problem.first_samples() or small
            zero = np.zeros(small.n_features)
            small.loss_sums(zero)
            duals = small.clip_to_domain(small.slopes(zero))
            small.gap_parts(duals, zero)
            small.row_sums(duals)
            if can_be_closed(self.process, self.nodes):
                rows, beta = np.flatnonzero(small.active), float(small.samples.loss.beta)
                dual_pass(small.samples, beta, rows, float(small.sigma[0]), duals, zero)

    def open(self) -> None:
        """Be ready for messages."""
        if self._exchange is not None:
            self._exchange.open()

    def close(self) -> None:
        """Leave no message under way."""
        if self._exchange is not None:
            self._exchange.close()

    def account(self) -> JsonObject:
        """Return every process's times and messages, and how often each edge between two was used."""
        work = self.process.work
        own = self.times.report() | {
            "nodes": self.block.tolist(),
            "computations": work.computations,
            "messages": work.messages,
            "bytes": 8 * work.numbers,
            "host": self.cluster.hosts[self.cluster.rank],
        }
        edges = []
        for edge, count in self._exchange.used_edges() if self._exchange is not None else []:
            a, b = self.placement.edges[edge]
            if self.placement.rank_of_node[a] == self.cluster.rank:  # the lower node's process reports it
                edges.append([edge, int(a), int(b), count])
        cards = self.cluster.gather([own, edges], "to sum up the run")
        return {
            "ranks": [card[0] for card in cards],
            "edges": sorted(edge for card in cards for edge in card[1]),
        }

    # ------------------------------------------------------------------ going on

    def advance(self, stop: float, deadline: float | None) -> bool:
        """Go on to a position; return False when interrupted, or when the deadline passed first."""
        stop -= self._base
        while self.process.position < stop:
            begun = time.perf_counter()
            target = stop if self.alone else min(stop, float(np.ceil(self.process.position + self._slice)))
            self._advance(target, deadline if self.alone else None)
            over = self._out_of_time(deadline)
            if not self.alone:
                over = self._agree_on_slice(time.perf_counter() - begun, over)
            if over:
                return False
        return True

    def _out_of_time(self, deadline: float | None) -> bool:
        return self.interrupted or (deadline is not None and time.perf_counter() >= deadline)

    def _agree_on_slice(self, seconds: float, over: bool) -> bool:
        """Fit the next slice to what the slowest process took; return whether any is over."""
        cards = self._share(np.array([seconds, float(over)]), "to agree on how to go on")
        longest = max(float(card[0]) for card in cards)
        self._fit_slice(longest)
        return any(card[1] > 0.0 for card in cards)

    def _fit_slice(self, seconds: float) -> None:
        """Fit the next slice to what the last one took."""
        factor = min(4.0, max(0.25, _SLICE_SECONDS / max(seconds, 1e-6)))
        self._slice = max(1.0, float(np.floor(self._slice * factor)))

    def _advance(self, stop: float, deadline: float | None) -> None:
        """Go on to a position, or in one process until the deadline."""
        process = self.process
        self.cluster.doing = lambda: f"computing after position {self.position:.17g}"
        if isinstance(process, EventProcess):
            self._advance_events(process, stop, deadline)
            return
        assert isinstance(process, RoundProcess)
        assert self._gossip is not None
        while process.position < stop:
            begun, elsewhere = time.perf_counter(), self.times.communicating + self.times.waiting
            target = min(stop, process.position + self._slice) if self.alone else stop
            process.run(self._gossip, target)
            seconds = time.perf_counter() - begun
            # The products have noted the time of their messages.
            self.times.computing += seconds - (self.times.communicating + self.times.waiting - elsewhere)
            if self.alone:
                self._fit_slice(seconds)
            if self._out_of_time(deadline):
                return

    def _advance_events(self, process: EventProcess, stop: float, deadline: float | None) -> None:
        assert self._exchange is not None
        # Starting a stream costs a few events per clock, so one that was left at a deadline is gone on with.
        if self._stream is None or self._stream[0] != stop:
            block = None if self.alone else self.block
            self._stream = stop, process.schedule.windows(process.position, stop, block)
        for end, events in self._stream[1]:
            self._exchange.execute(events)
            process.position = end
            if deadline is not None and self._out_of_time(deadline):
                return
        process.position = float(stop)

    # ------------------------------------------------------------------ agreeing

    def _where(self) -> str:
        """Return where the run is, for the sentence of a process that waits."""
        return "" if self.alone else f"at position {self.position:.17g} of the schedule"

    def _share(self, values: np.ndarray, why: str) -> list[np.ndarray]:
        begun = time.perf_counter()
        sizes = [values.size] * self.cluster.size
        cards = self.cluster.share(values, sizes, f"{why} {self._where()}")
        self.times.evaluating += time.perf_counter() - begun
        return cards

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether any process raises it."""
        if self.alone:
            return flags
        cards = self._share(np.array(flags, dtype=np.float64), "to agree on how to go on")
        return tuple(bool(flag) for flag in np.max(cards, axis=0))

    # ------------------------------------------------------------------ looking

    def work(self) -> Work:
        """Return what all processes have done."""
        if self.alone:
            return self.process.work
        cards = self._share(np.array(self.process.work, dtype=np.float64), "to count the work")
        return Work(*(int(sum(card[k] for card in cards)) for k in range(3)))

    def certify(self, record: Record, *, enough: float | None = None, lower: float = -np.inf) -> Certificate:
        """Certify the current point, or compare it with the optimum where that is what stops the run."""
        begun = time.perf_counter()
        self.nodes.why = f"to certify {self._where()}"
        if record.stop_on == "suboptimality":
            iterates = self._iterates()
            certificate = compare_with_optimum(iterates, self._objectives(iterates), self.nodes)
        else:
            certificate = self._certifier(self.process, self.nodes, enough=enough, lower=lower)
        self.times.evaluating += time.perf_counter() - begun
        return certificate

    @property
    def can_ascend(self) -> bool:
        """Whether `dual_ascent` is for this run."""
        simple = self.phases is None or (self.phases.number == 0 and self.phases.next_look == np.inf)
        return simple and can_be_closed(self.process, self.nodes)

    def dual_ascent(self, now: Certificate, plan: Plan, deadline: float) -> tuple[Certificate, bool]:
        """Try whether passes of dual ascent end the run, as many as its budget has; go there if they do.

        They go on as long as each one at least halves the gap. Those of several nodes, which do not hear of
        each other on the way, soon gain little.

        Returns
        -------
        certificate : Certificate
            Of the point that the run is at afterwards.
        cut_short : bool
            Whether the budget ended, or the run was interrupted, before the passes could tell. The run is
            then where it was, so that one that is resumed here tries again.
        """
        begun, process, nodes, tol = time.perf_counter(), self.process, self.nodes, plan.budget.tol
        left = np.inf
        if plan.budget.passes is not None:
            left = plan.budget.passes - self.work().computations / plan.n_samples
        number, after = 0, now
        nodes.why = f"to certify {self._where()}"
        duals = process.dual()
        assert duals is not None
        assert tol is not None
        duals = nodes.problem.clip_to_domain(duals, in_place=True)
        theta = nodes.add(nodes.problem.sigma[:, None] * process.primal()) / nodes.total_sigma
        halved, cut_short = True, False
        while halved and after.gap > tol:
            if number + 1 > left or self.agree(self._out_of_time(deadline))[0]:
                cut_short = True
                break
            before, after = after, certify_after_pass(nodes, duals, theta, number)
            theta, number = after.theta, number + 1
            halved = after.gap <= 0.5 * before.gap
        if after.gap <= tol:
            process.place(duals, nodes.problem.sigma[:, None] * theta)
        if not cut_short:
            computations = process.work.computations + number * nodes.problem.n_samples
            process.work = process.work._replace(computations=computations)
        self.times.computing += time.perf_counter() - begun
        return (after if after.gap <= tol else now), cut_short

    def consult(self) -> tuple[Certificate, np.ndarray]:
        """Certify the current point for a decision, in one way whatever is recorded; return its tips too."""
        begun = time.perf_counter()
        self.nodes.why = f"to certify {self._where()}"
        certificate = certify(self.process, self.nodes)
        duals = self.process.dual()
        assert duals is not None, "only a method with dual variables runs in phases"
        self.times.evaluating += time.perf_counter() - begun
        return certificate, self.nodes.problem.clip_to_domain(duals)

    def measure(self, record: Record) -> dict[str, float]:
        """Evaluate the nodes' iterates."""
        if set(record.measures) <= {"gap"}:
            return {}
        begun = time.perf_counter()
        self.nodes.why = f"to record {self._where()}"
        iterates = self._iterates()
        values = self._objectives(iterates) if record.needs_values else None
        found = measure_nodes(record, iterates, values, self.nodes)
        self.times.evaluating += time.perf_counter() - begun
        return found

    def _iterates(self) -> np.ndarray:
        """Return the iterates of all nodes, (n, d)."""
        return self.nodes.collect(self.process.primal(self.read))

    def _objectives(self, iterates: np.ndarray) -> np.ndarray:
        """Return F at each node's iterate, computed once per position."""
        if self._values[0] != self.position:
            self._values = self.position, self.nodes.objectives(iterates)
        return self._values[1]

    # ------------------------------------------------------------------ saving

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; no message is under way at a position, so the processes' parts fit."""
        if self.checkpoints is not None:
            begun = time.perf_counter()
            kept = None if self.phases is None else self.phases.kept()
            self.checkpoints.save(self.process, progress, kept)
            self.times.evaluating += time.perf_counter() - begun

    def save_last(self, progress: Progress) -> None:
        """Write the checkpoint of the end; the result is worth more than it, and is kept if that fails."""
        try:
            self.save(progress)
        except FileError as error:
            warnings.warn(f"the last checkpoint could not be written: {error}", RuntimeWarning, stacklevel=2)


class _NoGossip:
    """Products of zeros, for trying rounds without messages."""

    rows = None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.zeros_like(values)

    def total(self, values: np.ndarray) -> np.ndarray:
        return np.zeros(values.shape[1])

    def least(self, value: float) -> float:
        return value
