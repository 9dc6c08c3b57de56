"""A run, written once for every cluster: check, sum up, choose parameters, start, loop, and tell.

`simulate` runs in one process; `adfs.fit_mpi` on the ranks of an MPI program. Both, and the experiments and
the estimators, call `run_method`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import EventProcess, Method, Process, Setting, get_method
from adfs.algorithms.round_process import PrimalProcess
from adfs.errors import InputError
from adfs.files import AnyPath, JsonObject
from adfs.network import Network
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import AllNodes, Certifier, certify
from adfs.runtimes.checkpoints import (
    Checkpoints,
    KeptPhases,
    fingerprint,
    open_checkpoints,
    used_by_one_run,
)
from adfs.runtimes.clock import Clock, position_at, with_times
from adfs.runtimes.cluster import Cluster, OneProcess
from adfs.runtimes.delays import Delays
from adfs.runtimes.execution import Execution
from adfs.runtimes.loop import Budget, LoopResult, Monitor, Outcome, Plan, Progress, run_loop
from adfs.runtimes.phases import Phases
from adfs.runtimes.placement import Placement
from adfs.runtimes.progress import ProgressBar, wanted_on_screen
from adfs.runtimes.recording import Record
from adfs.runtimes.result import Run, as_columns
from adfs.runtimes.run_options import RunOptions, describe, takes_run_options
from adfs.runtimes.timing import measured_tau_of
from adfs.schedule.philox import phase_seed
from adfs.theory import NodeSummary, smoothness_limit, summarize


@takes_run_options
def simulate(
    method: str | Method, problem: FiniteSum, network: Network | str | None = None, **arguments: Any
) -> Run:
    """Run a method on a problem and a network, in this process.

    Parameters
    ----------
    method : str or Method
        ``"adfs"``, ``"ns-adfs"``, ``"adfs-block"``, …: see ``adfs.algorithms.METHODS``.
    problem : Problem or GeneralProblem
    network : Network or str, optional
        With as many nodes as the problem; may be left out for one node and for methods that run on one
        machine.
    **arguments
        The method's own options.

    Returns
    -------
    Run
        Ctrl-C ends a run early with what there is so far (outcome ``"stopped"``).

    Examples
    --------
    >>> import numpy as np, adfs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((90, 5))
    >>> problem = adfs.Problem(X, np.sign(X[:, 0]), loss="logistic", sigma=0.1, n_nodes=9)
    >>> run = adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), tol=1e-8)
    >>> str(run.outcome), run.gap <= 1e-8, run.theta.shape
    ('converged', True, (9, 5))
    """
    options, own = RunOptions.split(arguments)
    return run_method(method, problem, network, options, own)


def run_method(
    method: str | Method,
    problem: FiniteSum,
    network: Network | str | None,
    options: RunOptions,
    method_options: Mapping[str, object] | None = None,
    *,
    cluster: Cluster | None = None,
    placement: Placement | None = None,
    monitor: Monitor | None = None,
    part_of: AnyPath | None = None,
    later_part: bool = False,
    certifier: Certifier = certify,
) -> Run:
    """Run a method; every process of a cluster calls it together.

    Parameters
    ----------
    method, network
        As for `simulate`.
    problem : FiniteSum
        This process's nodes.
    options : RunOptions
    method_options : mapping, optional
        The method's own.
    cluster : Cluster, optional
        This process alone when left out.
    placement : Placement, optional
        Which process holds which nodes; left out, this one holds all.
    monitor : Monitor, optional
        Watches the run; a progress bar when left out.
    part_of : path, optional
        The checkpoint of the fit that this run is part of, which says there how it ended. Left out, the run
        says so in its own.
    later_part : bool
        Whether an earlier part of the same fit was resumed already: a checkpoint of another run is then left
        over from an earlier fit, and the run starts anew instead of refusing it.
    certifier : Certifier
        What certifies the run, and ends it.
    """
    with cluster or OneProcess() as team:
        own = dict(method_options or {})
        chosen = team.attempt("at the start", lambda: _check(method, options, own, problem, team))
        if team.size > 1:
            team.same(
                {
                    "the version of adfs": __version__,
                    "the method": chosen.name,
                    "the loss": problem.loss_name,
                    "the network": describe(network),
                }
                | {"the options": sorted((name, describe(value)) for name, value in own.items())}
                | options.words()
            )
        graph = team.attempt("at the start", lambda: _network(chosen, problem, network, placement))
        if chosen.kind == "single":
            problem = problem.merged()
        spread = placement or Placement.whole(graph)
        if not team.any(bool(problem.active.any()), "to sum up the data"):
            return _nothing_to_run(chosen, problem, AllNodes(team, spread, problem), options)
        team.attempt("at the start", lambda: chosen.check(problem, own))
        with used_by_one_run(team, options.checkpoint if part_of is None else None):
            parts = _Assembly(
                chosen, problem, graph, options, own, team, spread, part_of, later_part, certifier
            )
            return parts.run(monitor)


def _check(
    method: str | Method, options: RunOptions, own: dict[str, object], problem: FiniteSum, team: Cluster
) -> Method:
    """Check what can be checked before anything is computed."""
    chosen = get_method(method)
    if not isinstance(problem, FiniteSum):
        raise InputError(f"a run takes an adfs.Problem or adfs.GeneralProblem, got {type(problem).__name__}")
    chosen.check_options(own, RunOptions.names())
    options.check()
    if options.tol is not None and not problem.certifiable:
        raise InputError(
            "tol bounds a certified gap, and a term of this problem has no conjugate to certify with: "
            "define `conjugate`, or give a budget (max_passes, events, seconds) instead"
        )
    if team.size > 1 and chosen.kind == "single":
        raise InputError(f"method {chosen.name!r} runs on one machine with all the data: use adfs.simulate")
    needed = Record.of(options.record).needs_optimum
    if team.size > 1 and needed:
        raise InputError(
            f"{needed[0]!r} needs the optimum, which no rank knows: "
            "record 'gap' (certified), 'objective' or 'consensus'"
        )
    if team.size > 1 and (options.time is not None or options.delays is not None):
        raise InputError("idealised time is for simulations: several processes measure their own")
    return chosen


def _network(
    method: Method, problem: FiniteSum, network: Network | str | None, placement: Placement | None
) -> Network:
    """Return the network, checked to have as many nodes as the problem."""
    count = problem.n_nodes if placement is None else placement.rank_of_node.size
    if method.kind == "single":
        return Network("path:1")
    if network is None:
        if count > 1:
            raise InputError(f"the problem has {count} nodes: give the network that links them")
        network = "path:1"
    if isinstance(network, str):
        network = Network(network, n_nodes=count)
    if network.n_nodes != count:
        raise InputError(f"the problem has {count} nodes and the network {network.n_nodes}: they must agree")
    return network


def _nothing_to_run(method: Method, problem: FiniteSum, nodes: AllNodes, options: RunOptions) -> Run:
    """Return the run of a problem whose samples are all constants: θ = 0 is its minimiser."""
    zero = np.zeros(problem.n_features)
    value = nodes.value_at_zero
    names = ("position", "passes", "computations", "messages", "bytes", "seconds", "gap")
    columns = as_columns([dict.fromkeys(names, 0.0) | {"primal": value, "dual": value}])
    count = nodes.sigma.size if options.gather else problem.n_nodes
    theta = np.zeros((count, problem.n_features))
    dual = np.zeros((problem.n_samples, *problem.dual_shape))
    run = Run(method.name, Outcome.CONVERGED, theta, zero, 0.0, columns, None, options.seed, 0.0, dual=dual)
    return dataclasses.replace(run, absolute_gap=0.0)


@dataclass
class _Assembly:
    """The parts of one run, put together."""

    method: Method
    problem: FiniteSum
    network: Network
    options: RunOptions
    own: dict[str, object]
    cluster: Cluster
    placement: Placement
    part_of: AnyPath | None = None
    later_part: bool = False
    certifier: Certifier = certify
    tau: float | None = None

    def run(self, monitor: Monitor | None) -> Run:
        """Put the run together, go through it, and tell what came out."""
        cluster, options, begun = self.cluster, self.options, time.perf_counter()
        if not self.problem.linear and options.parameters in (None, "tuned"):
            limit = smoothness_limit(self.problem.sigma, self.network)
            self.problem = self.problem.with_smoothness_above(limit)
        nodes = AllNodes(cluster, self.placement, self.problem)
        start = self._start_duals()
        retuner = self.method.retuner(self.problem, options.parameters)
        view = self.problem if retuner is None else retuner.first_view(self.problem, start, nodes.add)
        summary = self.summarize(view)
        self.tau = self._tau()
        constants = self._constants(summary, options.parameters)
        setting = self.setting(view, constants, 0)
        process = cluster.attempt("to start", lambda: self.method.start(setting))
        if start is not None:
            self.place(process, view.clip_to_domain(start), nodes)
        phases = None if retuner is None else Phases(self, retuner, nodes, setting, summary)
        checkpoints, process, progress = self._checkpoints(setting, process, phases, start)
        execution = Execution(process, nodes, options.read, checkpoints, self.tau, self.certifier)
        plan = self._plan(summary, constants)
        if phases is not None:
            plan = self._in_phases(phases, execution, plan, constants)
            setting = phases.setting
        cluster.in_turns(lambda: execution.compile(self.method, setting), "to compile")
        execution.open()
        show = options.progress if cluster.rank == 0 else False
        execution.times.setting_up = time.perf_counter() - begun
        with ProgressBar(self.method.name, show=show, budget=plan.budget, last=plan.last) as bar:
            if checkpoints is not None and not plan.ends_at_once(progress, execution.position):
                checkpoints.begin()
            result = run_loop(execution, plan, monitor or bar, progress)
        run = self._tell(execution, result, constants)
        execution.close()
        if checkpoints is not None and self.part_of is None:
            ending = {"outcome": str(run.outcome), "gap": run.gap, "position": execution.position}
            checkpoints.finish(ending)
        if options.delays is None and options.time is None:
            return run
        return with_times(run, self.problem, self.network, self._delays())

    # ------------------------------------------------------------------ what phases are made of

    def summarize(self, problem: FiniteSum) -> NodeSummary:
        """Return the summary of the nodes of all processes."""
        return gather_summary(self.cluster, self.placement, problem)

    def constants(self, summary: NodeSummary) -> object:
        """Return the constants of a later phase: those of the chosen name, or the method's default."""
        choice = self.options.parameters
        return self._constants(summary, choice if isinstance(choice, str) else None)

    def setting(self, problem: FiniteSum, constants: object, phase: int) -> Setting:
        """Return what the process of a phase starts from."""
        options = self.options
        block = None if self.cluster.size == 1 else self.placement.block(self.cluster.rank)
        seed = phase_seed(options.seed, phase)
        return Setting(problem, self.network, constants, seed, options.schedule, block, self.own)

    def _in_phases(self, phases: Phases, execution: Execution, plan: Plan, constants: object) -> Plan:
        """Return the plan of a run in phases, which is ready to look."""
        execution.phases = phases
        clock = None if self.options.time is None else self._clock(constants)
        events = math.inf if self.options.events is None else self.options.events
        phases.begin(execution, clock, math.inf if self.options.time is None else self.options.time, events)
        return phases.plan(dataclasses.replace(plan, position_of=phases.position_of))

    def _tau(self) -> float | None:
        """Return τ, measured if that was asked for."""
        tau, problem = self.options.tau, self.problem
        if tau == "measure":
            entries = problem.entries_per_row
            return measured_tau_of(self.cluster, problem.n_features, entries, problem.n_samples)
        assert not isinstance(tau, str)
        return tau

    def _constants(self, summary: NodeSummary, choice: object) -> object:
        """Return the method's constants; process 0's, as eigenvalues may differ between machines."""
        # The steps of terms with a prox of their own are prepared for one split, whatever τ is.
        used = self.tau if self.problem.linear else None

        why = "to compute the parameters"
        found = self.cluster.attempt(
            why, lambda: self.method.parameters(summary, self.network, choice=choice, tau=used)
        )
        if choice is None or isinstance(choice, str):
            found = self.method.refine(
                found, self.problem, lambda values: self.cluster.add(values, self.placement, why)
            )
        adapted = self.cluster.attempt(why, lambda: self.method.adapt(found, self.own))
        return _from_first(self.cluster, adapted)

    def _start_duals(self) -> np.ndarray | None:
        """Return the tips that the run is to start from, in their domains; None for zero everywhere."""
        start = self.options.start
        if not self.cluster.any(start is not None, "to start"):
            return None
        problem = self.problem
        shape = (problem.n_samples, *problem.dual_shape)

        def clip() -> np.ndarray:
            if start is None:
                return np.zeros(shape)
            if np.shape(start) != shape:
                raise InputError(f"start must have the shape of run.dual, {shape}, got {np.shape(start)}")
            return problem.clip_to_domain(np.asarray(start, dtype=np.float64))

        return self.cluster.attempt("to start", clip)

    def place(self, process: Process, duals: np.ndarray, nodes: AllNodes) -> bool:
        """Put a process at a dual point; return whether it can start there.

        APCG may start anywhere: with x_0 = v_0 = Aλ_0 its guarantee speaks of the distance from λ_0. On a
        connected graph Aλ_0 is any choice of tips and centres whose sum over all nodes is zero. So tips s fix
        the total of the centres, −Σ x_ij s_ij, and the natural share of node i is σ_i/Σσ of it: every node
        then starts at the same θ(s). With an ℓ1 term node i has σ_iθ(s) and λ_i/Σλ of the rest. A method that
        goes by θ alone starts there if it is better than 0.
        """
        total = nodes.add_rows(duals)
        if not isinstance(process, PrimalProcess):
            return process.place(duals, nodes.penalty.centers(total, self.problem.sigma, self.problem.l1))
        theta = nodes.penalty.minimizer(total)
        if np.diff(nodes.objectives(np.array([np.zeros_like(theta), theta])))[0] < 0.0:
            process.point[:] = theta
        return True

    def _checkpoints(
        self, setting: Setting, process: Process, phases: Phases | None, initial: np.ndarray | None
    ) -> tuple[Checkpoints | None, Process, Progress]:
        """Return where checkpoints go, the process, and how far an earlier run was."""
        if self.options.checkpoint is None:
            return None, process, Progress()
        also: tuple[object, ...] = () if phases is None else (phases.retuner.words(),)
        if initial is not None:  # a later part of a fit starts where the part before it ended
            also = (*also, describe(initial))
        mark = self.cluster.attempt("to start", lambda: fingerprint(self.method.name, setting, *also))
        checkpoints = open_checkpoints(self.cluster, self.options.checkpoint, mark, self.part_of)
        checkpoints.start()
        found = [process]

        def start(kept: KeptPhases | None) -> Process:
            if kept is not None and phases is not None:
                found.append(phases.resume(kept))
            return found[-1]

        progress = Progress()
        if self.options.resume:
            progress = checkpoints.resume(start, optional=self.later_part)
        return checkpoints, found[-1], progress

    def _clock(self, constants: object) -> Clock:
        options = self.options
        return Clock(
            self.method,
            constants,
            self.problem,
            self.network,
            self._delays(),
            seed=options.seed,
            schedule=options.schedule,
        )

    def _plan(self, summary: NodeSummary, constants: object) -> Plan:
        options = self.options
        events = options.events
        if options.time is not None:
            within = position_at(self._clock(constants), options.time)
            events = within if events is None else min(events, within)
        return Plan(
            Budget(options.tol, options.max_passes, events, options.seconds),
            Record.of(options.record),
            lambda amount: self.method.position_of(constants, summary, amount),
            int(summary.n_samples.sum()),
            None if options.checkpoint is None else options.checkpoint_every,
            unrecorded=options.record is None and options.tol is not None,
            every_round=self.method.checks_every_round,
        )

    def _delays(self) -> Delays:
        """Return the delays of the idealised clock: those given, or fixed ones."""
        return self.options.delays or Delays(tau=0.0 if self.tau is None else self.tau, law="fixed")

    def _tell(self, execution: Execution, result: LoopResult, constants: object) -> Run:
        options, cluster, process = self.options, self.cluster, execution.process
        theta = process.primal(options.read)
        if options.gather:
            execution.nodes.why = "to gather the iterates"
            theta = execution.nodes.collect(theta)
        details: JsonObject = {
            "tau": self.tau,
            "read": options.read,
            "loss": self.problem.loss_name,
            "network": self.network.name or f"{self.network.n_nodes} nodes, {self.network.n_edges} edges",
        }
        history = None
        if execution.phases is not None:
            history = execution.phases.history
            constants = history.phases[-1].parameters
            details["retunings"] = history.retunings()
        if not cluster.one_file:
            count = self.network.n_nodes
            details |= {
                "nodes": list(range(count)) if options.gather else execution.block.tolist(),
                "placement": self.placement.rank_of_node.tolist(),
            }
        return Run(
            method=self.method.name,
            outcome=result.outcome,
            theta=theta,
            coef=result.certificate.theta,
            gap=result.certificate.gap,
            columns=as_columns(result.rows),
            parameters=constants,
            seed=options.seed,
            seconds=result.seconds,
            schedule=options.schedule if isinstance(process, EventProcess) else "",
            details=details | execution.account(),
            dual=process.dual() if result.certificate.duals is None else result.certificate.duals,
            history=history,
            absolute_gap=result.certificate.absolute_gap,
        )


def tell_placement(cluster: Cluster, placement: Placement, progress: bool | None) -> None:
    """Say which process holds which nodes, where progress is shown."""
    if wanted_on_screen(progress) and cluster.size > 1:
        for line in str(placement).splitlines():
            cluster.say(line)


def gather_summary(cluster: Cluster, placement: Placement, problem: FiniteSum) -> NodeSummary:
    """Return the summary of the nodes of all processes: a few numbers each, never the data."""
    why = "to sum up the data"
    # A process may hold nothing but constants, as long as another has more.
    own = cluster.attempt(why, lambda: summarize(problem, whole=False))
    if cluster.size == 1:
        return own
    found: dict[str, np.ndarray] = {}
    for item in dataclasses.fields(own):
        values: np.ndarray = getattr(own, item.name)
        found[item.name] = cluster.collect(values, placement, why).astype(values.dtype)
    return NodeSummary(**found)


def _from_first(cluster: Cluster, record: object) -> object:
    """Return process 0's constants, everywhere."""
    if cluster.size == 1:
        return record
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        changed: dict[str, object] = {}
        for item in dataclasses.fields(record):
            value = getattr(record, item.name)
            if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype == np.float64):
                shared = np.array(value, dtype=np.float64, ndmin=1)
                cluster.spread(shared, "to share the parameters")
                changed[item.name] = shared if isinstance(value, np.ndarray) else float(shared[0])
        record = dataclasses.replace(record, **changed)
    cluster.same({"the parameters": describe(record)})
    return record
