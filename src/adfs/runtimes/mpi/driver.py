"""A run on several ranks, for the one loop of all runs: this rank's nodes, and messages for the rest."""

from __future__ import annotations

import time

import numpy as np

from adfs.algorithms.base import EventProcess, Process, RoundProcess, Work
from adfs.problem.evaluation import add_squares
from adfs.runtimes.loop import Driver
from adfs.runtimes.measuring import AnyProblem, Certificate, NodeSums, certify, measure_nodes
from adfs.runtimes.mpi.checkpoint_set import CheckpointSet
from adfs.runtimes.mpi.compiled_exchange import make_exchange
from adfs.runtimes.mpi.exchange import EventExchange
from adfs.runtimes.mpi.halo import HaloGossip
from adfs.runtimes.mpi.links import Links
from adfs.runtimes.mpi.placement import Placement
from adfs.runtimes.mpi.team import Team
from adfs.runtimes.mpi.timing import RankTimes
from adfs.runtimes.recording import Record

__all__ = ["MpiRun", "TeamSums"]

_SLICE_SECONDS = 0.2
_FIRST_SLICE = 4096.0
_FIRST_ROUNDS = 8.0


class TeamSums(NodeSums):
    """Sums over the nodes of all ranks."""

    def __init__(self, team: Team, placement: Placement, sigma: np.ndarray) -> None:
        self.team, self.placement = team, placement
        self.blocks = [placement.block(rank) for rank in range(team.size)]
        self.why = "at the start"
        self._sigma = sigma
        self._at_zero: float | None = None

    def sigma(self, problem: AnyProblem) -> np.ndarray:
        """Return σ_i of all nodes."""
        return self._sigma

    def value_at_zero(self, problem: AnyProblem) -> float:
        """Return F(0), computed once."""
        if self._at_zero is None:
            self._at_zero = float(self.collect(problem.loss_sums(np.zeros(problem.n_features))).sum())
        return self._at_zero

    def collect(self, values: np.ndarray) -> np.ndarray:
        """Return one number a node, of all nodes in their order; or one vector a node."""
        width = values[0].size if values.ndim > 1 else 1
        parts = self.team.share(values, [block.size * width for block in self.blocks], self.why)
        out = np.empty((self.placement.rank_of_node.size, *values.shape[1:]))
        for block, part in zip(self.blocks, parts, strict=True):
            out[block] = part.reshape(block.size, *values.shape[1:])
        return out

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes, in their order."""
        nodes = self.blocks[self.team.rank]
        return self.team.add_in_order(values, nodes, self.placement.rank_of_node, self.why)

    def add_rows(self, problem: AnyProblem, tips: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij over all nodes."""
        return self.add(problem.row_sums(tips))

    def objectives(self, problem: AnyProblem, iterates: np.ndarray) -> np.ndarray:
        """Return F at each of some points (p, d), shape (p,)."""
        sums = self.collect(problem.loss_sums(iterates))
        return add_squares(sums, float(self._sigma.sum()), iterates)


class MpiRun(Driver):
    """The part of a run that this rank does.

    All ranks go through the same positions. They stop between two records when a slice of the schedule is
    done, whose length they agree on by what the last one took: nobody looks at a clock alone.
    """

    def __init__(
        self,
        team: Team,
        problem: AnyProblem,
        process: Process,
        placement: Placement,
        sums: TeamSums,
        *,
        read: str,
        checkpoints: CheckpointSet | None,
    ) -> None:
        self.team, self.problem, self.process, self.placement, self.sums = (
            team,
            problem,
            process,
            placement,
            sums,
        )
        self.read, self.checkpoints = read, checkpoints
        self.block = placement.block(team.rank)
        self.times = RankTimes()
        self.links: Links | None = None
        self._exchange: EventExchange | None = None
        self._gossip: HaloGossip | None = None
        if isinstance(process, EventProcess):
            self.links = Links(team, placement, process.message_length)
            self._exchange = make_exchange(team, process, self.links, self.times)
            self._slice = _FIRST_SLICE
        else:
            assert isinstance(process, RoundProcess)
            self._gossip = HaloGossip(team, process.gossip_matrix, placement, self.times)
            self._slice = _FIRST_ROUNDS

    @property
    def position(self) -> float:
        """Where the run is."""
        return self.process.position

    def compile(self) -> None:
        """Compile what exchanges messages."""
        if self._exchange is not None:
            self._exchange.compile()

    def open(self) -> None:
        """Be ready for messages."""
        if self.links is not None:
            self.links.open()

    def close(self) -> None:
        """Leave no message under way."""
        if self.links is not None:
            self.links.close()

    def advance(self, stop: float, deadline: float | None) -> bool:
        """Go on to a position, or until ranks agree that the deadline has passed or one is interrupted."""
        while self.process.position < stop:
            begun = time.perf_counter()
            self._advance(min(stop, self.round_up(self.process.position + self._slice)))
            ended = time.perf_counter()
            over = self.interrupted or (deadline is not None and ended >= deadline)
            longest, stopping = self._worst(ended - begun, over)
            self._slice *= min(4.0, max(0.25, _SLICE_SECONDS / max(longest, 1e-6)))
            self._slice = max(1.0, self._slice)
            if stopping:
                return False
        return True

    def _worst(self, seconds: float, over: bool) -> tuple[float, bool]:
        """Return the longest time of all ranks, and whether any is over."""
        parts = self._share(np.array([seconds, float(over)]), "to agree on how to go on")
        return max(float(part[0]) for part in parts), any(part[1] > 0.0 for part in parts)

    def _share(self, values: np.ndarray, why: str) -> list[np.ndarray]:
        begun = time.perf_counter()
        parts = self.team.share(values, [values.size] * self.team.size, f"{why} {self._where()}")
        self.times.evaluating += time.perf_counter() - begun
        return parts

    def _where(self) -> str:
        return f"at position {self.process.position:.17g} of the schedule"

    def _advance(self, stop: float) -> None:
        process = self.process
        self.team.watch.doing = lambda: f"computing after position {process.position:.17g}"
        if isinstance(process, EventProcess):
            assert self._exchange is not None
            for end, events in process.schedule.windows(process.position, stop, self.block):
                self._exchange.execute(events)
                process.position = end
            process.position = float(stop)
            return
        assert isinstance(process, RoundProcess)
        assert self._gossip is not None
        while process.position < stop:
            begun, elsewhere = time.perf_counter(), self.times.communicating + self.times.waiting
            computed = self.times.computing
            process.round(self._gossip)
            # The products have noted their own time.
            spent = time.perf_counter() - begun - (self.times.communicating + self.times.waiting - elsewhere)
            self.times.computing = computed + spent

    def work(self) -> Work:
        """Return what all ranks have done."""
        parts = self._share(np.array(self.process.work, dtype=np.float64), "to count the work")
        return Work(*(int(sum(part[k] for part in parts)) for k in range(3)))

    def certify(self) -> Certificate:
        """Certify the current point."""
        begun = time.perf_counter()
        self.sums.why = f"to certify {self._where()}"
        certificate = certify(self.problem, self.process, self.sums)
        self.times.evaluating += time.perf_counter() - begun
        return certificate

    def measure(self, record: Record) -> dict[str, float]:
        """Evaluate the nodes' iterates."""
        if set(record.measures) <= {"gap"}:
            return {}
        begun = time.perf_counter()
        self.sums.why = f"to record {self._where()}"
        iterates = self.sums.collect(self.process.primal(self.read))
        found = measure_nodes(self.problem, iterates, record, self.sums.objectives)
        self.times.evaluating += time.perf_counter() - begun
        return found

    def save(self, rows: list[dict[str, float]], seconds: float) -> None:
        """Write this rank's part of a checkpoint; no message is under way at a position, so the parts fit."""
        if self.checkpoints is not None:
            begun = time.perf_counter()
            self.checkpoints.save(self.process, rows, seconds)
            self.times.evaluating += time.perf_counter() - begun

    def agree(self, flag: bool) -> bool:
        """Return whether any rank raises this flag."""
        return any(part[0] > 0.0 for part in self._share(np.array([float(flag)]), "to agree on how to go on"))
