"""The part of a run that this process does: its nodes, and messages for the rest. The loop drives it."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Process, Setting, Work
from adfs.algorithms.qning import dual_pass
from adfs.algorithms.round_process import RoundProcess
from adfs.errors import FileError
from adfs.files import JsonObject
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import (
    AllNodes,
    Certificate,
    Certifier,
    can_ascend,
    certify,
    certify_after_pass,
    compare_with_optimum,
    measure_nodes,
)
from adfs.runtimes.checkpoints import Checkpoints
from adfs.runtimes.exchange import EventExchange, GossipProduct
from adfs.runtimes.options import Record
from adfs.runtimes.timing import ProcessTimes

if TYPE_CHECKING:
    from adfs.runtimes.loop import CheckPlan, Progress
    from adfs.runtimes.stages import Stages

# Between two slices of the way a run may be stopped or saved. The first slice has so many events, or rounds;
# the length of the next ones is chosen so that they take about the seconds.
_FIRST_EVENTS, _FIRST_ROUNDS, _SLICE_SECONDS = 4096.0, 1.0, 0.2
# Kernels are compiled before the run by a trial on one sample per node, which is slow with more nodes.
_MOST_NODES_TRIED = 1000
_TRIED: set[tuple[object, ...]] = set()  # kinds of runs that were tried in this process


class Execution:
    """A run in progress in this process.

    All processes go through the same positions, slice by slice, and agree on the length of the next slice by
    the time that the last one took. Iterates are read at ``read``; ``tau`` is the time of a message in units
    of a sample's computation, where it is known.
    """

    interrupted: bool = False
    stages: Stages | None = None

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
        self.times = ProcessTimes()
        self._stage_start = 0.0
        self._values: tuple[float, np.ndarray] = (-1.0, np.empty(0))
        self._exchange: EventExchange | None = None
        self._gossip: GossipProduct | None = None
        self._slice, self._least_slice, self._slice_ratio = _FIRST_ROUNDS, 1.0, 1.0
        if isinstance(process, EventProcess):
            self._exchange = self.cluster.events(process, self.placement, self.times, tau)
            # A slice has an event per node and edge at least: its events are drawn from a table of these.
            self._least_slice = float(process.slot.size + len(process.ends))
            self._slice = max(_FIRST_EVENTS, self._least_slice)
        else:
            assert isinstance(process, RoundProcess)
            self._gossip = GossipProduct(self.cluster, process.gossip_matrix, self.placement, self.times)

    @property
    def position(self) -> float:
        """The position of the run; that of its process is counted from the beginning of the stage."""
        return self._stage_start + self.process.position

    def begin_stage(self, process: Process, position: float) -> None:
        """Go on with the process of a stage that began at a position of the run."""
        self.process, self._stage_start = process, position
        self._values = (-1.0, np.empty(0))
        if self._exchange is not None:
            assert isinstance(process, EventProcess)
            self._exchange.process = process

    # ------------------------------------------------------------------ before and after

    def compile(self, method: Method, setting: Setting) -> None:
        """Compile the kernels of a run, outside its time and without a message."""
        if self._exchange is not None:
            self._exchange.compile()
        problem, several = setting.problem, self.cluster.size > 1
        if setting.block.size > _MOST_NODES_TRIED or not problem.linear:
            return
        # One trial per kind of run: on several ranks it is made in turns, which takes its time.
        kind = (method.name, several, *(type(part) for part in problem.samples))
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

    def close(self) -> None:
        """Leave no message under way."""
        if self._exchange is not None:
            self._exchange.links.close()

    def account(self) -> JsonObject:
        """Return every process's times and messages, and how often each edge between two was used."""
        work = self.process.work
        own = self.times.report() | {
            "nodes": self.nodes.block.tolist(),
            "computations": work.computations,
            "messages": work.messages,
            "bytes": 8 * work.numbers,
            "host": self.cluster.hosts[self.cluster.rank],
        }
        # Both ends of an edge count its exchanges: one of them reports it.
        edges = []
        if self._exchange is not None:
            links = self._exchange.links
            for edge, count in zip(links.edges.tolist(), links.exchanges.tolist(), strict=True):
                a, b = self.placement.edges[edge].tolist()
                if self.placement.rank_of_node[a] == self.cluster.rank:  # the lower node's process reports it
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
        begun = time.perf_counter()
        process = self.process
        # Whole positions: all processes stop at the same event.
        target = min(stop - self._stage_start, float(np.ceil(process.position + self._slice)))
        self._advance(target)
        took = time.perf_counter() - begun
        self._slice_ratio = min(_SLICE_SECONDS, max(seconds - took, 0.0)) / max(took, 1e-6)

    def _advance(self, stop: float) -> None:
        """Go on to a position of the process."""
        process = self.process
        if isinstance(process, EventProcess):
            assert self._exchange is not None
            for end, events in process.schedule.windows(process.position, stop, self.nodes.block):
                self._exchange.execute(events)
                process.position = end
            process.position = float(stop)
            return
        assert isinstance(process, RoundProcess)
        assert self._gossip is not None
        times = self.times
        begun, elsewhere = time.perf_counter(), times.communicating + times.waiting
        process.run(self._gossip, stop)
        # The products have noted the time of their messages.
        elsewhere = times.communicating + times.waiting - elsewhere
        times.computing += time.perf_counter() - begun - elsewhere

    def end_slice(self, *flags: bool) -> tuple[bool, ...]:
        """Agree on the length of the next slice; return for each flag whether any process raises it."""
        shared = self._share((*flags, self._slice_ratio), "to agree on how to go on")
        # The slowest process decides, and one slice hardly says how long the next will take.
        factor = min(4.0, max(0.25, float(shared[:, -1].min())))
        self._slice = max(self._least_slice, float(np.floor(self._slice * factor)))
        return tuple(bool(column.any()) for column in shared[:, :-1].T)

    # ------------------------------------------------------------------ agreeing

    def _where(self) -> str:
        """Return where the run is, for the sentence of a process that waits."""
        return f"at position {self.position:.17g} of the schedule"

    def _share(self, values: tuple[float, ...], why: str) -> np.ndarray:
        """Return every process's numbers, one row per process."""
        begun = time.perf_counter()
        self.cluster.activity = f"{why} {self._where()}"
        rows = self.cluster.allgather(np.array(values, dtype=np.float64))
        self.times.evaluating += time.perf_counter() - begun
        return np.array(rows)

    def any_process(self, flag: bool) -> bool:
        """Return whether any process raises a flag."""
        return bool(self._share((flag,), "to agree on how to go on").any())

    # ------------------------------------------------------------------ checks

    def work(self) -> Work:
        """Return the work of all processes."""
        totals = self._share(self.process.work, "to count the work").sum(axis=0)
        return Work(*(int(total) for total in totals))

    def certify(self, record: Record, *, enough: float | None = None, lower: float = -np.inf) -> Certificate:
        """Certify the current point, or compare it with the optimum if the run stops on the error."""
        begun = time.perf_counter()
        self.cluster.activity = f"to certify {self._where()}"
        # Comparisons with a known optimum stop on the error itself, which needs no certificate.
        if record.stop_on == "suboptimality":
            iterates = self._iterates()
            certificate = compare_with_optimum(iterates, self._objectives(iterates), self.nodes)
        else:
            certificate = self._certifier(self.process, self.nodes, enough=enough, lower=lower)
        self.times.evaluating += time.perf_counter() - begun
        return certificate

    @property
    def can_ascend(self) -> bool:
        """Whether `dual_ascent` is possible: the run has one stage, and its method allows it."""
        stages = self.stages
        one_stage = stages is None or (stages.number == 0 and stages.next_check == np.inf)
        return one_stage and can_ascend(self.process, self.nodes)

    def dual_ascent(self, now: Certificate, plan: CheckPlan, deadline: float) -> tuple[Certificate, bool]:
        """Try whether passes of dual ascent end the run, as many as its budget has; go there if they do.

        They go on as long as each one at least halves the gap. On several nodes, which do not hear of each
        other on the way, they soon gain little.

        Returns
        -------
        certificate : Certificate
            Of the point that the run is at afterwards.
        cut_short : bool
            Whether the budget ended, or the run was interrupted, before the outcome was known. The run is
            then where it was, so that one that is resumed here tries again.
        """
        begun, process, nodes, tol = time.perf_counter(), self.process, self.nodes, plan.options.tol
        left = np.inf
        if plan.options.max_passes is not None:
            left = plan.options.max_passes - self.work().computations / plan.n_samples
        number, after = 0, now
        self.cluster.activity = f"to certify {self._where()}"
        duals = process.dual()
        assert duals is not None
        assert tol is not None
        duals = nodes.problem.clip_to_domain(duals, in_place=True)
        theta = nodes.add(nodes.problem.sigma[:, None] * process.primal()) / nodes.total_sigma
        # Each pass starts from the dual variables and the θ of the one before.
        halved, cut_short = True, False
        while halved and after.gap > tol:
            late = self.interrupted or time.perf_counter() >= deadline
            if number + 1 > left or self.any_process(late):
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

    def measure(self, record: Record) -> dict[str, float]:
        """Evaluate the nodes' iterates."""
        if set(record.measures) <= {"gap"}:
            return {}
        begun = time.perf_counter()
        self.cluster.activity = f"to record {self._where()}"
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
        """Write a checkpoint; no message is under way at a position, so the processes' parts fit.

        At the end the result is worth more than the checkpoint: if that fails, there is a warning.
        """
        begun = time.perf_counter()
        assert self.checkpoints is not None
        assert self.stages is not None
        try:
            self.checkpoints.save(self.process, progress, self.stages.state())
        except FileError as error:
            if progress.ending is None:
                raise
            warnings.warn(f"the last checkpoint could not be written: {error}", RuntimeWarning, stacklevel=2)
        self.times.evaluating += time.perf_counter() - begun


class _NoGossip:
    """Products of zeros, for a trial of rounds without messages."""

    rows = None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.zeros_like(values)

    def total(self, values: np.ndarray) -> np.ndarray:
        return np.zeros(values.shape[1])

    def least(self, value: float) -> float:
        return value
