"""The simulator: all nodes in one process, compiled."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Process, RoundProcess, Setting, Work, get_method
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.problem import FiniteSum, GeneralProblem, Problem
from adfs.runtimes.checkpoints import fingerprint, load_checkpoint, save_checkpoint
from adfs.runtimes.clock import Clock, Delays, position_at, with_times
from adfs.runtimes.gossip import local_gossip
from adfs.runtimes.loop import Budget, Driver, Outcome, run_loop
from adfs.runtimes.measuring import Certificate, certify, measure_nodes
from adfs.runtimes.progress import ProgressBar
from adfs.runtimes.recording import Record
from adfs.runtimes.result import Run, as_columns
from adfs.schedule import SCHEDULES, Events
from adfs.schedule.philox import check_seed
from adfs.theory import node_sizes, smoothness_limit

__all__ = ["SimulatedRun", "simulate"]

_MOST_NODES_TRIED, _ROUNDS_TRIED = 1000, 4


class SimulatedRun(Driver):
    """A process that holds all nodes, for the loop."""

    def __init__(
        self,
        problem: FiniteSum,
        process: Process,
        read: str,
        checkpoint: Path | None,
        mark: str,
    ) -> None:
        self.problem = problem
        self.process = process
        self.read = read
        self.checkpoint = checkpoint
        self.mark = mark
        self._stream: tuple[float, Iterator[tuple[float, Events]]] | None = None
        self._gossip = local_gossip(process.gossip_matrix) if isinstance(process, RoundProcess) else None

    @property
    def position(self) -> float:
        return self.process.position

    def compile(self, method: Method, setting: Setting) -> None:
        """Compile what a run will call, outside its time; rounds are tried on one sample a node."""
        if isinstance(self.process, EventProcess):
            _, events = next(self.process.schedule.windows(0.0, 1.0))
            self.process.run(events, 0, 0)
        elif setting.problem.n_nodes <= _MOST_NODES_TRIED:
            small = setting.problem.first_samples()
            if small is not None:
                process = method.start(replace(setting, problem=small))
                assert isinstance(process, RoundProcess)
                assert self._gossip is not None
                for _ in range(_ROUNDS_TRIED):
                    process.round(self._gossip)

    def advance(self, stop: float, deadline: float | None) -> bool:
        if isinstance(self.process, EventProcess):
            return self._advance_events(self.process, stop, deadline)
        assert isinstance(self.process, RoundProcess)
        assert self._gossip is not None
        while self.process.position < stop:
            self.process.round(self._gossip)
            if self._out_of_time(deadline):
                return False
        return True

    def _advance_events(self, process: EventProcess, stop: float, deadline: float | None) -> bool:
        # Starting a stream costs a few events a clock, so one that was left at a deadline is gone on with.
        if self._stream is None or self._stream[0] != stop:
            self._stream = stop, process.schedule.windows(process.position, stop)
        for end, events in self._stream[1]:
            size = events.time.size
            process.run(events, 0, size)
            computations = int(np.count_nonzero(events.sample >= 0))
            process.count(computations, size - computations)
            process.position = end
            if self._out_of_time(deadline):
                return False
        process.position = float(stop)
        return True

    def _out_of_time(self, deadline: float | None) -> bool:
        return self.interrupted or (deadline is not None and perf_counter() >= deadline)

    def work(self) -> Work:
        return self.process.work

    def certify(self) -> Certificate:
        return certify(self.problem, self.process)

    def measure(self, record: Record) -> dict[str, float]:
        return measure_nodes(self.problem, self.process.primal(self.read), record)

    def save(self, rows: list[dict[str, float]], seconds: float) -> None:
        if self.checkpoint is not None:
            save_checkpoint(self.checkpoint, self.process, self.mark, rows, seconds)

    def agree(self, flag: bool) -> bool:
        return flag


def simulate(
    method: str | Method,
    problem: Problem | GeneralProblem,
    network: Network | str | None = None,
    *,
    parameters: Any = None,
    schedule: str = "iid",
    tau: float | None = None,
    seed: int = 0,
    tol: float | None = None,
    passes: float | None = None,
    events: float | None = None,
    seconds: float | None = None,
    time: float | None = None,
    delays: Delays | None = None,
    record: Record | tuple[str, ...] | str | None = None,
    read: str = "x",
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Run a method on a problem and a network, in this process.

    Parameters
    ----------
    method : str or Method
        ``"adfs"``, ``"ns-adfs"``, ``"adfs-block"``, …: see ``adfs.algorithms.METHODS``.
    problem : Problem
    network : Network or str, optional
        With as many nodes as the problem; may be left out for one node and for methods that run on one
        machine.
    parameters : str or record, optional
        ``"tuned"`` or ``"paper"`` for ADFS, or a record of the method's constants.
    schedule : str
        ``"iid"`` (the paper's shared schedule) or ``"poisson"`` (a clock each node and edge).
    tau : float, optional
        Time of a communication in units of a sample's computation, for tuned parameters.
    seed : int
        Same seed, same bits.
    tol : float, optional
        Stop when the certified relative duality gap is at most this. Below about 2e-15 no gap can be told
        from rounding, and the run goes on until its budget ends.
    passes, events, seconds : float, optional
        Budgets; the first one met ends the run. Without any: 100 passes, or as many as ``tol`` takes.
    time : float, optional
        A budget of idealised time, on the clock of ``delays``.
    delays : Delays, optional
        Adds the columns ``time`` and ``time_mean`` to the frame, the idealised time of each record. A budget
        of time without delays takes fixed ones, 1 a sample and ``tau`` a message.
    record : Record, str or tuple of str, optional
        What to record and when; the gap on a logarithmic grid by default.
    read : str
        Read the nodes' iterates at ``"x"`` (quicker in practice) or at ``"v"`` (the one Theorem 2 speaks of).
    progress : bool, optional
        Show a progress bar; by default only on a terminal.
    checkpoint : path, optional
        Write a checkpoint here every ``checkpoint_every`` seconds and at the end.
    resume : bool
        Go on from the checkpoint if it is there; the bits are those of a run that never stopped.
    **options
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
    chosen = get_method(method)
    check_seed(seed)
    if not isinstance(problem, Problem | GeneralProblem):
        raise InputError(
            f"a simulation takes an adfs.Problem or adfs.GeneralProblem, got {type(problem).__name__}"
        )
    if not problem.active.any():
        return _nothing_to_run(chosen, problem, seed)
    check_options(simulate, chosen, options)
    setting = make_setting(chosen, problem, network, parameters, schedule, tau, seed, options)
    if read not in ("x", "v"):
        raise unknown_name("place to read the iterate", read, ("x", "v"))
    if resume and checkpoint is None:
        raise InputError("resume wants a checkpoint to resume from: give its path as checkpoint")
    wanted = record if isinstance(record, Record) else Record() if record is None else Record(record)
    if time is not None:
        delays = delays or Delays(tau=0.0 if tau is None else tau, law="fixed")
        clock = Clock(
            chosen, setting.parameters, problem, setting.network, delays, seed=seed, schedule=schedule
        )
        within = position_at(clock, time)
        events = within if events is None else min(events, within)
    budget = Budget(tol, passes, events, seconds)
    sizes = node_sizes(setting.problem)
    process = chosen.start(setting)
    path = None if checkpoint is None else Path(checkpoint)
    mark = "" if path is None else fingerprint(chosen.name, setting)
    driver = SimulatedRun(setting.problem, process, read, path, mark)
    rows: list[dict[str, float]] = []
    spent = 0.0
    if resume and path is not None and path.exists():
        rows, spent = load_checkpoint(path, process, mark)

    def position_of(amount: float) -> float:
        return chosen.position_of(setting.parameters, sizes, amount)

    driver.compile(chosen, setting)
    last = budget.last_position(position_of)
    with ProgressBar(chosen.name, show=progress, tol=tol, last=last) as bar:
        result = run_loop(
            driver,
            budget=budget,
            record=wanted,
            position_of=position_of,
            n_samples=problem.n_samples,
            report=bar.update,
            checkpoint_every=None if path is None else checkpoint_every,
            rows=rows,
            seconds=spent,
        )
    run = Run(
        method=chosen.name,
        outcome=result.outcome,
        theta=process.primal(read),
        coef=result.certificate.theta,
        gap=result.certificate.gap,
        columns=as_columns(result.rows),
        parameters=setting.parameters,
        seed=seed,
        seconds=result.seconds,
        schedule=schedule if isinstance(process, EventProcess) else "",
        details={
            "tau": tau,
            "read": read,
            "loss": loss_name(problem),
            "network": network_name(setting.network),
        },
    )
    return run if delays is None else with_times(run, problem, setting.network, delays)


def check_options(run: Callable[..., Run], method: Method, options: dict[str, Any]) -> None:
    """Raise unless the method has these options; a misspelt argument of what runs it ends up among them."""
    kinds = inspect.signature(run).parameters.values()
    method.check_options(options, [one.name for one in kinds if one.kind is inspect.Parameter.KEYWORD_ONLY])


def _nothing_to_run(method: Method, problem: Problem | GeneralProblem, seed: int) -> Run:
    """Return the run of a problem whose samples are all constants: θ = 0 is its minimiser."""
    zero = np.zeros(problem.n_features)
    value = float(problem.objective(zero))
    names = ("position", "passes", "computations", "messages", "bytes", "seconds", "gap")
    columns = as_columns([dict.fromkeys(names, 0.0) | {"primal": value, "dual": value}])
    theta = np.zeros((problem.n_nodes, problem.n_features))
    return Run(method.name, Outcome.CONVERGED, theta, zero, 0.0, columns, None, seed, 0.0)


def loss_name(problem: Problem | GeneralProblem) -> str:
    """Return the name of a problem's loss."""
    return problem.loss.name if isinstance(problem, Problem) else "general"


def network_name(network: Network) -> str:
    """Return a network's name, or its sizes when it has none."""
    return network.name or f"{network.n_nodes} nodes, {network.n_edges} edges"


def make_setting(
    method: Method,
    problem: Problem | GeneralProblem,
    network: Network | str | None,
    parameters: Any,
    schedule: str,
    tau: float | None,
    seed: int,
    options: dict[str, Any],
) -> Setting:
    """Check that everything fits together, and fill in what was left out."""
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    if tau is not None and not (math.isfinite(tau) and tau >= 0.0):
        raise InputError(f"tau must be finite and at least 0, got {tau!r}")
    method.check(problem, options)
    if method.kind == "single":
        problem, network = problem.merged(), Network("path:1")
    if network is None:
        if problem.n_nodes > 1:
            raise InputError(f"the problem has {problem.n_nodes} nodes: give the network that links them")
        network = Network("path:1")
    if isinstance(network, str):
        network = Network(network, n_nodes=problem.n_nodes)
    if network.n_nodes != problem.n_nodes:
        raise InputError(
            f"the problem has {problem.n_nodes} nodes and the network {network.n_nodes}: they must agree"
        )
    if problem.steps_below_smoothness and parameters in (None, "tuned"):
        problem, tau = problem.with_smoothness_above(smoothness_limit(problem.sigma, network)), None
    constants = method.parameters(problem, network, choice=parameters, tau=tau)
    constants = method.adapt(constants, options)
    return Setting(problem, network, constants, seed, schedule, None, options)
