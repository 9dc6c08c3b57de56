"""A run in phases, in progress: it consults certificates, and begins anew when its retuner says so.

What a retuner is, and how one adds another, is told in `adfs.algorithms.retuning`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from adfs.algorithms.base import Method, Process, Setting
from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.network import Network
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import AllNodes, Certificate
from adfs.runtimes.checkpoints import KeptPhases
from adfs.runtimes.clock import Clock, follow, position_at
from adfs.runtimes.execution import Execution
from adfs.runtimes.loop import Plan
from adfs.runtimes.result import Consultation, History, PhaseRecord
from adfs.theory import NodeSizes, NodeSummary

_RETUNER = "retuner/"


class Maker(Protocol):
    """What a run is put together from, for its first phase and for those that follow."""

    method: Method
    problem: FiniteSum
    network: Network
    tau: float | None

    def summarize(self, problem: FiniteSum) -> NodeSummary:
        """Return the summary of the nodes of all processes."""

    def constants(self, summary: NodeSummary) -> Any:
        """Return the method's constants, the same in every process."""

    def setting(self, problem: FiniteSum, constants: object, phase: int) -> Setting:
        """Return what the process of a phase starts from."""

    def place(self, process: Process, duals: np.ndarray, nodes: AllNodes) -> bool:
        """Put a process at a dual point; return whether it can start there."""


class Phases:
    """The phases of a run.

    Parameters
    ----------
    maker : Maker
    retuner : Retuner
    nodes : AllNodes
        Of the true problem.
    setting : Setting
        Of phase 0, with its view of the problem.
    summary : NodeSummary
        Of that view.

    Attributes
    ----------
    setting : Setting
        Of the phase that the run is in.
    history : History
    next_look : float
        The position of the next certificate to consult.
    """

    def __init__(
        self, maker: Maker, retuner: Retuner, nodes: AllNodes, setting: Setting, summary: NodeSummary
    ) -> None:
        self.maker, self.retuner, self.nodes = maker, retuner, nodes
        self.setting = setting
        self.history = History([PhaseRecord(0.0, 0.0, setting.parameters, _sizes(summary))])
        self.next_look = 0.0
        self._summary: NodeSummary | None = summary
        self._execution: Execution | None = None
        self._looks: Iterator[float] = iter(())
        self._changed = False
        self._clock: Clock | None = None
        self._time, self._events = np.inf, np.inf

    @property
    def number(self) -> int:
        """The number of the phase that the run is in."""
        return len(self.history.phases) - 1

    @property
    def _now(self) -> PhaseRecord:
        return self.history.phases[-1]

    # ------------------------------------------------------------------ checkpoints

    def kept(self) -> KeptPhases:
        """Return what a checkpoint holds of the phases."""
        words, arrays = self.history.kept()
        state = {f"{_RETUNER}{name}": value for name, value in self.retuner.state().items()}
        return KeptPhases(words, arrays | state)

    def resume(self, kept: KeptPhases) -> Process:
        """Go back to the phase that a checkpoint was written in; return its process, to be filled."""
        own = {name: value for name, value in kept.arrays.items() if not name.startswith(_RETUNER)}
        self.history = History.from_kept(kept.words, own)
        state = {
            name.removeprefix(_RETUNER): value
            for name, value in kept.arrays.items()
            if name.startswith(_RETUNER)
        }
        view = self.retuner.restore(self.maker.problem, state)
        if self.number:
            self._summary = None  # all processes find it together, in `begin`
            self.setting = self.maker.setting(view, self._now.parameters, self.number)
        return self.maker.method.start(self.setting)

    # ------------------------------------------------------------------ going on

    def begin(self, execution: Execution, clock: Clock | None, time: float, events: float) -> None:
        """Be ready to look; a budget of idealised ``time`` goes by the clock, one of ``events`` does not."""
        self._execution = execution
        self.nodes.cluster.in_turns(lambda: self.retuner.prepare(self.maker.problem), "to compile")
        if self._summary is None:
            self._summary = self.maker.summarize(self.setting.problem)
        execution.go_on_with(execution.process, self._now.position)
        self._plan_looks(execution.position)
        self._clock, self._time, self._events = clock, time, events
        if clock is not None:
            for look in self.history.looks:
                follow(clock, self.history, look)

    def _plan_looks(self, position: float) -> None:
        assert self._summary is not None
        maker, parameters = self.maker, self._now.parameters
        self.retuner.begin(parameters, self._summary, maker.network, maker.tau, maker.constants)
        self._looks = self.retuner.looks(parameters, self._summary)
        self._to_next_look(position)

    def _to_next_look(self, position: float) -> None:
        """Find the phase's first look from a position on: at that of a checkpoint none has been yet."""
        base = self._now.position
        self.next_look = next((base + x for x in self._looks if base + x >= position), np.inf)

    def position_of(self, passes: float) -> float:
        """Return the position at which about this many passes have been made, as far as phases are known."""
        phases = self.history.phases
        number = max(k for k, phase in enumerate(phases) if phase.passes <= passes)
        phase = phases[number]
        ahead = self.maker.method.position_of(phase.parameters, phase.sizes, passes - phase.passes)
        position = phase.position + ahead
        return min(position, phases[number + 1].position) if number + 1 < len(phases) else position

    def plan(self, plan: Plan) -> Plan:
        """Return the plan after a look: another one when a phase began, or when time is what ends the run."""
        events = plan.budget.events
        if self._clock is not None:
            events = min(self._events, self._within_time(self._clock))
        if not self._changed and events == plan.budget.events:
            return plan
        self._changed = False
        return dataclasses.replace(plan, budget=dataclasses.replace(plan.budget, events=events))

    def _within_time(self, clock: Clock) -> float:
        """Return the last position within the budget of time, if no other certificate is consulted."""
        if clock.latest > self._time:
            return clock.position
        mark = clock.mark()
        position = position_at(clock, self._time)
        clock.back(mark)
        return position

    def look(self) -> float:
        """Consult a certificate, and begin a new phase if it is so decided; return the seconds it took."""
        execution = self._execution
        assert execution is not None
        assert self._summary is not None
        begun = time.perf_counter()
        certificate, duals = execution.consult()
        look = _Certified(self, self._summary, execution.position, certificate, duals)
        phase = self.retuner.decide(look)
        if phase is not None:
            look.charge(sums=1)
        self.history.looks.append(Consultation(*look.found(), float(phase is not None)))
        seconds = time.perf_counter() - begun
        if phase is not None:
            seconds += self._begin_phase(phase, look, execution)
        else:
            self._to_next_look(np.nextafter(execution.position, np.inf))
        if self._clock is not None:
            follow(self._clock, self.history, self.history.looks[-1])
        return seconds

    def _begin_phase(self, phase: Phase, look: Look, execution: Execution) -> float:
        """Go on in a new phase; return the seconds it took, compilation not counted."""
        begun = time.perf_counter()
        maker, before = self.maker, execution.process
        position, work = execution.position, execution.work()
        told = {
            "gap": look.gap,
            "rho_before": _contraction(self._now.parameters),
            "rho": _contraction(phase.parameters),
            "kappa_before": _condition(look.summary),
            "kappa": _condition(phase.summary),
        }
        told |= {name: float(value) for name, value in phase.told.items()}
        passes = work.computations / float(phase.summary.n_samples.sum())
        record = PhaseRecord(position, passes, phase.parameters, _sizes(phase.summary), told)
        self.history.phases.append(record)
        self._summary, self._changed = phase.summary, True
        self.setting = maker.setting(phase.problem, phase.parameters, self.number)
        process = self.nodes.cluster.attempt("to begin a phase", lambda: maker.method.start(self.setting))
        self.nodes.why = "to begin a phase"
        if not maker.place(process, phase.start, self.nodes):
            raise NotImplementedError(f"{maker.method.name!r} cannot start elsewhere, and so not in phases")
        process.work = before.work
        execution.go_on_with(process, position)
        self._plan_looks(np.nextafter(position, np.inf))
        seconds = time.perf_counter() - begun
        self.nodes.cluster.in_turns(lambda: execution.compile(maker.method, self.setting), "to compile")
        return seconds


def _sizes(summary: NodeSummary) -> NodeSizes:
    return NodeSizes(summary.n_samples, summary.n_active)


def _contraction(parameters: Any) -> float:
    """Return ρ, nan for methods that have none."""
    return float(getattr(parameters, "contraction", np.nan))


def _condition(summary: NodeSummary) -> float:
    """Return κ_b; on one node, where nobody needs it, κ_s."""
    kappa = summary.batch_kappa if summary.n_nodes > 1 else summary.kappa
    return float(1.0 + kappa.max())


class _Cost(NamedTuple):
    position: float
    passes: float
    sums: float


class _Certified(Look):
    """A look at the certificate of a run in progress."""

    def __init__(
        self,
        phases: Phases,
        summary: NodeSummary,
        position: float,
        certificate: Certificate,
        duals: np.ndarray,
    ) -> None:
        maker, nodes = phases.maker, phases.nodes
        self._maker, self._nodes = maker, nodes
        self.phase, self.position = phases.number, position
        self.problem, self.view, self.summary = maker.problem, phases.setting.problem, summary
        self.parameters, self.network, self.tau = phases.setting.parameters, maker.network, maker.tau
        self.theta, self.duals, self.gap = certificate.theta, duals, certificate.gap
        self.excess = certificate.absolute_gap
        self.total_sigma = nodes.total_sigma
        # The certificate: a pass, a sum for θ, and another for its value.
        self._passes, self._sums = 1.0, 2

    def summarize(self, view: FiniteSum) -> NodeSummary:
        return self._maker.summarize(view)

    def constants(self, summary: NodeSummary) -> Any:
        return self._maker.constants(summary)

    def total(self, values: np.ndarray) -> np.ndarray:
        self._nodes.why = "to look at a certificate"
        return self._nodes.add(values)

    def collect(self, values: np.ndarray) -> np.ndarray:
        self._nodes.why = "to look at a certificate"
        return self._nodes.collect(values)

    def any(self, flag: bool) -> bool:
        return self._nodes.cluster.any(flag, "to look at a certificate")

    def charge(self, *, passes: float = 0.0, sums: int = 0) -> None:
        self._passes += passes
        self._sums += sums

    def found(self) -> _Cost:
        """Return where it was and what it took."""
        return _Cost(self.position, self._passes, float(self._sums))
