"""Runs in stages: at a check a run may go on with another problem, other parameters and another start.

A run is a sequence of stages. Most runs have one. A `StageRule` decides about further ones: it has fixed
positions at which it checks the certificate, whatever is recorded, and at each check it goes on as before or
returns a `Stage`. All that a run counts carries over to the next stage: positions, work, seconds, rows,
budgets, checkpoints, the idealised clock. Stage k draws from (seed, k), and stage 0 from the seed itself.

The rules are in `adfs.stages`, which nothing here imports. To add one:

1. Derive from `StageRule`: say where to check, and what to `decide` there. Every process calls `decide` with
   its own part of the data and the same certificate, and all must decide alike: from the gap and from the
   results of `Stages.summarize`, `parameters_for`, `any` and of sums over the nodes (`Stages.nodes.add`,
   `collect`), called in the same order.
2. Whatever else a decision depends on (an earlier gap, a curvature) is part of `state` and comes back in
   `restore`, so that a resumed run has the same bits.
3. Call `Stages.charge` for the work of a decision besides its certificate: the idealised clock counts it.
4. Put a function that makes the rule into `STAGE_RULES`, under the name that the method's class has in
   ``stages``. The method must be able to start anywhere (`Process.place`) and to run on the rule's problems.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from adfs.algorithms.base import Method, Process, Setting
from adfs.algorithms.round_process import PrimalProcess
from adfs.errors import InputError
from adfs.files import JsonObject
from adfs.network import Network
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import AllNodes, Certificate, certify
from adfs.runtimes.clock import Clock, follow, position_at
from adfs.runtimes.cluster import Cluster, Placement, RefusalError
from adfs.runtimes.delays import Delays
from adfs.runtimes.options import RunOptions
from adfs.runtimes.result import History, StageCheck, StageRecord, arrays_under
from adfs.schedule.sampling import stage_seed
from adfs.theory import NodeSummary, summarize

if TYPE_CHECKING:
    from adfs.runtimes.execution import Execution

_LEAST_GAP = 1e-13  # relative; below it rounding decides
_STALLED_SHARE = 0.5  # of the gap at the check before; a gap above it has stalled


@dataclass(frozen=True, eq=False)
class Stage:
    """The next stage of a run.

    Attributes
    ----------
    problem : FiniteSum
        This process's nodes as the stage sees them. Certificates and measures stay those of the true problem.
    summary : NodeSummary
        Of that problem, over all processes.
    parameters : object
        The method's constants, the same in every process.
    start : ndarray of shape (N, *dual_shape)
        This process's dual variables, in the domains of the stage's problem; the nodes start at their θ.
    report : mapping of str to float
        Numbers for ``run.details``, besides the stage's position, its gap and ρ.
    """

    problem: FiniteSum
    summary: NodeSummary
    parameters: Any
    start: np.ndarray
    report: Mapping[str, float] = field(default_factory=dict)


class StageRule(Protocol):
    """Decides at checks whether the next stage of a run begins."""

    #: Text that is the same for the same rule: a checkpoint is resumed by the rule that wrote it.
    identity: str

    def prepare(self, problem: FiniteSum) -> None:
        """Compile the kernels of a decision, outside the time of the run."""
        return

    def first_problem(
        self, problem: FiniteSum, start: np.ndarray | None, add: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        """Return the problem of the first stage.

        Every process calls it with the dual variables that the run starts from (None for 0), and with a
        function that adds one vector per node of this process over all nodes.
        """
        return problem

    def checks(self, stages: Stages) -> Iterator[float]:
        """Yield how far from the beginning of the current stage to check: rising whole numbers above 0."""
        return iter(())

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        """Return the next stage, or None to go on as before.

        ``certificate.duals`` are this process's dual variables, inside the domains of the true problem.
        """
        raise NotImplementedError

    def state(self) -> dict[str, np.ndarray]:
        """Return the state that later decisions and the stage's problem depend on, of this process."""
        return {}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        """Take a state back, and return the problem of the stage that it was written in."""
        return problem


def has_stalled(gap: float, before: float) -> bool:
    """Whether a gap has hardly fallen since the check before, and not because of rounding."""
    return gap > max(_LEAST_GAP, _STALLED_SHARE * before)


#: Makes a rule from the problem and the choice of parameters; None stands for one stage.
RuleMaker = Callable[[FiniteSum, object], StageRule | None]
#: By the names that methods have in ``stages``; `adfs.stages` fills it.
STAGE_RULES: dict[str, RuleMaker] = {}


def rule_for(method: Method, problem: FiniteSum, choice: object) -> StageRule | None:
    """Return the rule of a method's run on a problem with this choice of parameters; None for one stage."""
    if not method.stages:
        return None
    if method.stages not in STAGE_RULES:
        raise InputError(f"runs of {method.name!r} may have stages: import adfs.stages first")
    return STAGE_RULES[method.stages](problem, choice)


class Stages:
    """The stages of a run in progress; a rule's decisions are made with its attributes and methods.

    Parameters
    ----------
    method : Method
    nodes : AllNodes
        With the true problem.
    network : Network
    options : RunOptions
    method_options : dict
        The method's own.
    tau : float or None
        Time of a message in units of a sample's computation, where it is known.
    delays : Delays or None
        Of the idealised clock, which measures a budget of time.

    Attributes
    ----------
    problem : FiniteSum
        This process's nodes, the true problem.
    summarize : callable
        Returns the summary of a problem over all processes.
    rule : StageRule or None
        None if the run has one stage.
    number : int
        The number of the current stage.
    setting : Setting
        Of the current stage: its problem, its parameters and its seed.
    summary : NodeSummary
        Of the current stage's problem, over all processes.
    history : History
    next_check : float
        The position of the rule's next check.
    last_in_time : float
        The last position within the budget of idealised time, if no further stage begins.
    """

    setting: Setting
    summary: NodeSummary
    history: History

    def __init__(
        self,
        method: Method,
        nodes: AllNodes,
        network: Network,
        options: RunOptions,
        method_options: dict[str, object],
        tau: float | None,
        delays: Delays | None,
    ) -> None:
        self.method, self.nodes, self.network, self.tau = method, nodes, network, tau
        self.problem, self.cluster = nodes.problem, nodes.cluster
        self.summarize: Callable[[FiniteSum], NodeSummary]
        self.summarize = partial(gather_summary, nodes.cluster, nodes.placement)
        self.rule = rule_for(method, self.problem, options.parameters)
        self.number = 0
        self.next_check = self.last_in_time = math.inf
        self.options, self._method_options, self._delays = options, method_options, delays
        self._checks: Iterator[float] = iter(())
        self._clock: Clock | None = None
        self._cost = (0.0, 0.0)  # the passes and the sums of a decision

    # ------------------------------------------------------------------ for rules

    def parameters_for(self, summary: NodeSummary) -> Any:
        """Return the method's parameters for a summary, the same in every process."""
        choice = self.options.parameters
        return self._parameters(summary, choice if isinstance(choice, str) else None)

    def any(self, flag: bool) -> bool:
        """Return whether any process raises a flag."""
        return any(self.cluster.allgather(flag))

    def charge(self, *, passes: float = 0.0, sums: int = 0) -> None:
        """Count the work of a decision: passes over each node's samples, and sums over all nodes.

        The certificate, one pass and two sums, and the sum of a restart are counted anyway.
        """
        self._cost = self._cost[0] + passes, self._cost[1] + sums

    # ------------------------------------------------------------------ the first stage, or a resumed one

    def begin(self, start: np.ndarray | None) -> Process:
        """Return the process of the first stage, at dual variables to start from (None: at 0)."""
        problem, options, nodes = self.problem, self.options, self.nodes
        # The rule may see the problem differently from the start (rounded kinks, boxes).
        if self.rule is not None:
            problem = self.rule.first_problem(problem, start, nodes.add)
        self.summary = self.summarize(problem)
        parameters = self._parameters(self.summary, options.parameters)
        place = (nodes.block, self._method_options)
        self.setting = Setting(problem, self.network, parameters, options.seed, options.schedule, *place)
        self.history = History([StageRecord(0.0, 0.0, parameters, self.summary)])
        process = self.cluster.attempt("to start", partial(self.method.start, self.setting))
        if options.point is not None and isinstance(process, PrimalProcess):
            self._start_at(process, np.asarray(options.point, dtype=np.float64))
        elif start is not None:
            self._place(process, problem.clip_to_domain(start))
        return process

    def state(self) -> tuple[list[JsonObject], dict[str, np.ndarray]]:
        """Return the entries and the arrays of the stages in a checkpoint."""
        entries, arrays = self.history.to_arrays()
        own = {} if self.rule is None else self.rule.state()
        return entries, arrays | {f"rule/{name}": value for name, value in own.items()}

    def resume(self, entries: list[JsonObject], arrays: Mapping[str, np.ndarray]) -> Process:
        """Return the process of the stage that a checkpoint was written in, to be filled."""
        first = self.history.stages[0]
        self.history = History.from_arrays(entries, arrays)
        # The record of a method from outside cannot be read from a file; the first stage has it already.
        self.history.stages[0] = first
        if self.rule is not None:
            problem = self.rule.restore(self.problem, arrays_under("rule/", arrays))
            # The first stage is the same as before; a later one has its own parameters and its own draws.
            if len(entries) > 1:
                self._begin_setting(problem, self.history.stages[-1].parameters)
        return self.method.start(self.setting)

    def prepare(self, position: float) -> None:
        """Be ready for the first check of a run that is at a position, perhaps resumed in a later stage."""
        options = self.options
        if self.rule is not None:
            self.cluster.in_turns("to compile", partial(self.rule.prepare, self.problem))
            # All processes compute it together, which they could not while each read its file.
            if self.number:
                self.summary = self.summarize(self.setting.problem)
            self._checks = self.rule.checks(self)
            self._find_next_check(position)
        if options.time is not None and self._delays is not None:
            self._clock = Clock(
                self.method,
                self.history.stages[0].parameters,
                self.problem,
                self.network,
                self._delays,
                seed=options.seed,
                schedule=options.schedule,
            )
            self._follow_checks(self.history.checks)

    # ------------------------------------------------------------------ going on

    def position_of(self, passes: float) -> float:
        """Return the position at which about this many passes have been made, as far as stages are known."""
        # The stage in which these passes are made decides; a stage ends where the next one begins.
        stages = self.history.stages
        number = max(k for k, stage in enumerate(stages) if stage.passes <= passes)
        stage = stages[number]
        ahead = self.method.position_of(stage.parameters, stage.sizes, passes - stage.passes)
        position = stage.position + ahead
        return min(position, stages[number + 1].position) if number + 1 < len(stages) else position

    def _follow_checks(self, checks: Sequence[StageCheck]) -> None:
        """Let the clock go through checks, and find the last position within the budget of time."""
        clock, limit = self._clock, self.options.time
        if clock is None or limit is None:
            return
        for check in checks:
            follow(clock, self.history, check)
        self.last_in_time = clock.position
        # A check may have taken what was left of the budget. Otherwise the clock looks ahead and comes back.
        if clock.latest <= limit or clock.position == 0.0:
            mark = clock.mark()
            self.last_in_time = position_at(clock, limit)
            clock.back(mark)

    def check(self, execution: Execution) -> float:
        """Certify the run, and begin the next stage if the rule says so; return the seconds it took."""
        begun, position = time.perf_counter(), execution.position
        self.cluster.activity = "to check a stage"
        duals = execution.process.dual()
        assert self.rule is not None
        assert duals is not None, "only a method with dual variables runs in stages"
        # In one way, whatever is recorded, and with the dual variables.
        certificate = certify(execution.process, self.nodes)
        certificate = certificate._replace(duals=self.problem.clip_to_domain(duals))
        execution.times.evaluating += time.perf_counter() - begun
        # The certificate takes a pass, a sum for θ and another for its value.
        self._cost = (1.0, 2.0)
        stage = self.rule.decide(self, certificate)
        if stage is not None:
            self.charge(sums=1)
        self.history.checks.append(StageCheck(position, *self._cost, float(stage is not None)))
        if stage is not None:
            self._begin(stage, certificate, execution)
        self._find_next_check(math.nextafter(position, math.inf))
        seconds = time.perf_counter() - begun
        if stage is not None:  # compilation does not count
            self.cluster.in_turns("to compile", partial(execution.compile, self.method, self.setting))
        self._follow_checks(self.history.checks[-1:])
        return seconds

    def _begin(self, stage: Stage, certificate: Certificate, execution: Execution) -> None:
        """Go on with the process of the next stage."""
        assert self.rule is not None
        report = {
            "gap": certificate.gap,
            "rho_before": _contraction(self.setting.parameters),
            "rho": _contraction(stage.parameters),
            "kappa_before": _condition(self.summary),
            "kappa": _condition(stage.summary),
        }
        report |= {name: float(value) for name, value in stage.report.items()}
        # The new stage continues the counts of the one before.
        passes = execution.work().computations / float(stage.summary.n_samples.sum())
        record = StageRecord(execution.position, passes, stage.parameters, stage.summary, report)
        self.history.stages.append(record)
        self.summary = stage.summary
        self._begin_setting(stage.problem, stage.parameters)
        process = self.cluster.attempt("to begin a stage", partial(self.method.start, self.setting))
        if not self._place(process, stage.start):
            raise NotImplementedError(f"{self.method.name!r} cannot start elsewhere, and so not in stages")
        process.work = execution.process.work
        execution.begin_stage(process)
        self._checks = self.rule.checks(self)

    def _begin_setting(self, problem: FiniteSum, parameters: object) -> None:
        """Take the setting of the latest stage in the history, which is not the first."""
        self.number = len(self.history.stages) - 1
        seed = stage_seed(self.options.seed, self.number)
        self.setting = dataclasses.replace(self.setting, problem=problem, parameters=parameters, seed=seed)

    def _find_next_check(self, position: float) -> None:
        """Find the stage's first check from a position on: a checkpoint is written before a check."""
        base = self.history.stages[-1].position
        self.next_check = next((base + x for x in self._checks if base + x >= position), math.inf)

    # ------------------------------------------------------------------ making a stage

    def _parameters(self, summary: NodeSummary, choice: object) -> Any:
        """Return the method's parameters; process 0's, as eigenvalues may differ between machines."""
        # The steps of terms with a prox of their own are prepared for one split, whatever τ is.
        tau = None if not self.problem.linear else self.tau
        why, method = "to compute the parameters", self.method
        compute = partial(method.parameters, summary, self.network, choice=choice, tau=tau)
        found = self.cluster.attempt(why, compute)
        if choice is None or isinstance(choice, str):
            found = method.refine(found, self.problem, self.nodes.add)
        adapted = found
        if self._method_options:
            adapted = self.cluster.attempt(why, partial(method.adapt, found, self._method_options))
        if dataclasses.is_dataclass(adapted) and not isinstance(adapted, type):
            shared: dict[str, object] = {}
            for item in dataclasses.fields(adapted):
                value = getattr(adapted, item.name)
                if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype == np.float64):
                    shared[item.name] = self.cluster.bcast(value)
            adapted = dataclasses.replace(adapted, **shared)
        return adapted

    def _place(self, process: Process, duals: np.ndarray) -> bool:
        """Put a process at a dual point; return whether it can start there.

        APCG may start anywhere: with x_0 = v_0 = Aλ_0 its guarantee speaks of the distance from λ_0. On a
        connected network Aλ_0 is any choice of dual variables and centres whose sum over all nodes is zero.
        So dual variables s fix the total of the centres, −Σ x_ij s_ij, and node i takes σ_i/Σσ of it: every
        node then starts at the same θ(s). With an ℓ1 term node i has σ_iθ(s) and λ_i/Σλ of the rest. A primal
        method starts at θ(s) if that is better than 0.
        """
        nodes, total = self.nodes, self.nodes.add_rows(duals)
        if not isinstance(process, PrimalProcess):
            return process.place(duals, nodes.penalty.centers(total, self.problem.sigma, self.problem.l1))
        self._start_at(process, nodes.penalty.minimizer(total))
        return True

    def _start_at(self, process: PrimalProcess, theta: np.ndarray) -> None:
        """Put a process at θ if F is less there than at 0."""
        if np.shape(theta) != process.point.shape:
            raise RefusalError(f"point must have shape {process.point.shape}, got {np.shape(theta)}")
        if np.diff(self.nodes.objectives(np.array([np.zeros_like(theta), theta])))[0] < 0.0:
            process.point[:] = theta


def gather_summary(cluster: Cluster, placement: Placement, problem: FiniteSum) -> NodeSummary:
    """Return the summary of the nodes of all processes: a few numbers per node, never the data."""
    # A process may hold nothing but constants, as long as another has more.
    own = cluster.attempt("to sum up the data", partial(summarize, problem, whole=False))
    if cluster.size == 1:  # some numbers are computed when they are first asked for
        return own
    numbers: dict[str, np.ndarray] = {}
    for item in dataclasses.fields(own):
        values: np.ndarray = getattr(own, item.name)
        numbers[item.name] = cluster.allgatherv(values, placement).astype(values.dtype)
    return NodeSummary(**numbers)


def _contraction(parameters: Any) -> float:
    """Return ρ, nan for methods that have none."""
    return float(getattr(parameters, "contraction", np.nan))


def _condition(summary: NodeSummary) -> float:
    """Return κ_b; on one node, where no method needs it, κ_s."""
    kappa = summary.batch_kappa if summary.sigma.size > 1 else summary.kappa
    return float(1.0 + kappa.max())
