"""Running a method on the ranks of an MPI program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import EventProcess, Method, Process, RoundProcess, Setting, get_method
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.problem.losses import get_loss
from adfs.runtimes.checkpoints import fingerprint
from adfs.runtimes.loop import Budget, LoopResult, run_loop
from adfs.runtimes.mpi.checkpoint_set import CheckpointSet
from adfs.runtimes.mpi.driver import MpiRun, TeamSums
from adfs.runtimes.mpi.faults import aborting, say, stop_aborting
from adfs.runtimes.mpi.startup import (
    READING,
    Data,
    Shards,
    adopt,
    check_launcher,
    describe,
    gather_summary,
    load,
    same_everywhere,
    together,
)
from adfs.runtimes.mpi.team import Team
from adfs.runtimes.progress import ProgressBar
from adfs.runtimes.progress import wanted as wanted_on_screen
from adfs.runtimes.recording import Record
from adfs.runtimes.result import Run, as_columns
from adfs.runtimes.simulate import check_options, loss_name, network_name
from adfs.schedule import SCHEDULES
from adfs.schedule.philox import check_seed
from adfs.theory import NodeSummary, Parameters
from adfs.theory.parameters import smoothness_limit

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["fit_mpi"]

_COMPILING = 900.0  # seconds beyond the deadline that others may take to compile


def fit_mpi(
    comm: MPI.Intracomm,
    shards: Shards,
    network: Network | str | None = None,
    *,
    loss: Any = "logistic",
    sigma: Any = 1.0,
    nodes: Sequence[int] | None = None,
    n_features: int | None = None,
    method: str | Method = "adfs",
    parameters: Any = None,
    schedule: str = "iid",
    tau: float | str | None = None,
    seed: int = 0,
    tol: float | None = None,
    passes: float | None = None,
    events: float | None = None,
    seconds: float | None = None,
    record: Record | tuple[str, ...] | str | None = None,
    read: str = "x",
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    deadline: float = 60.0,
    gather: bool = False,
    **options: Any,
) -> Run:
    """Run a method on the ranks of an MPI program, each with its own data.

    All ranks call it together, with the same arguments apart from their shards. A rank's samples never leave
    it: neighbours exchange iterates, and the start and the certificates take a few sums. The numbers are
    those of `adfs.simulate` on the same problem, to the last bit, however the nodes are spread over ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        For instance ``MPI.COMM_WORLD``; it is duplicated.
    shards : sequence, Problem, GeneralProblem or callable
        This rank's data. A sequence holds one ``(X, y)`` or ``(X, y, weights)`` a node; a problem holds its
        nodes; a callable is asked for the shard of a node, and only for this rank's nodes, which are then
        placed so that few edges are cut.
    network : Network or str, optional
        Links the nodes of all ranks; a name may leave out its sizes. Complete when left out.
    loss, sigma
        As in `adfs.Problem`, for shards that are not a problem; sigma is a number, or one a node of the
        network. Labels may be any two values; shards may have one of them only. Sparse shards may end before
        the last column.
    nodes : sequence of int, optional
        Which node of the network each of this rank's shards is; by default the ranks' shards are numbered in
        the order of ranks.
    n_features : int, optional
        The dimension, if it is more than the widest shard's.
    method, parameters, schedule, seed, tol, passes, events, seconds, read
        As in `adfs.simulate`.
    tau : float or "measure", optional
        Time of a communication in units of a sample's computation; ``"measure"`` measures both before the
        run.
    record : Record, str or tuple of str, optional
        ``"gap"``, ``"objective"`` and ``"consensus"`` can be recorded; what needs the optimum cannot.
    progress : bool, optional
        Show a progress bar and the placement, on rank 0; by default only on a terminal.
    checkpoint : path, optional
        A folder: each rank writes its part there every ``checkpoint_every`` seconds and at the end, and rank
        0 a manifest that names the last complete set. ``finished.json`` appears when the run has ended well.
    resume : bool
        Go on from the last complete checkpoint, if there is one; the bits are those of a run that never
        stopped.
    deadline : float
        Seconds that a rank waits for another before it gives up with a sentence.
    gather : bool
        Whether ``theta`` holds the iterates of all nodes on every rank, or of this rank's only.
    **options
        The method's own options.

    Returns
    -------
    Run
        On every rank: ``coef``, ``gap``, ``frame`` are the same everywhere; ``details`` holds each rank's
        times and messages.

    Raises
    ------
    InputError
        The same on every rank, before anything is run.
    RankLostError
        When another rank did not answer within the deadline. If nobody catches it, all ranks are ended.
    """
    check_launcher()
    team = Team(comm, deadline)
    aborting(team.comm, team.watch)
    with team.watch.last_words():
        chosen, budget, wanted = together(
            team,
            "at the start",
            lambda: _check(
                method,
                schedule,
                seed,
                read,
                record,
                (tol, passes, events, seconds),
                loss,
                checkpoint,
                resume,
                options,
            ),
        )
        same_everywhere(
            team,
            {
                "the version of adfs": __version__,
                "the method": chosen.name,
                "the loss": repr(get_loss(loss)),
                "the seed": seed,
                "the schedule": schedule,
                "the choice of parameters": describe(parameters),
                "tau": tau,
                "sigma": describe(sigma),
                "the network": describe(network),
                "n_features": n_features,
                "the budget": budget,
                "what to record": wanted,
                "read": read,
                "the options": sorted((name, describe(value)) for name, value in options.items()),
                "checkpoint": checkpoint is not None and (str(checkpoint), checkpoint_every, resume),
                "gather": gather,
            },
        )
        data = load(team, shards, network, nodes, loss, sigma, n_features)
        together(team, "at the start", lambda: chosen.check(data.problem, options))
        eased = data.problem.steps_below_smoothness and parameters in (None, "tuned")
        if eased:
            limit = smoothness_limit(data.problem.sigma, data.network)
            data = data._replace(problem=data.problem.with_smoothness_above(limit))
        sums = TeamSums(team, data.placement, np.empty(0))
        summary = gather_summary(team, data.problem, sums)
        sums = TeamSums(team, data.placement, summary.sigma)
        if tau == "measure":
            from adfs.runtimes.mpi.netbench import measure_tau

            tau = measure_tau(team, data.problem.n_features, _entries(team, data.problem))
        if isinstance(tau, str):
            raise InputError(f"tau must be a number or 'measure', got {tau!r}")
        time = tau
        constants = together(
            team,
            "to compute the parameters",
            lambda: (
                Parameters.tuned(summary, data.network, r=0.5)
                if eased
                else chosen.adapt(
                    chosen.parameters(summary, data.network, choice=parameters, tau=time), options
                )
            ),
        )
        block = data.placement.block(team.rank)
        setting = Setting(data.problem, data.network, adopt(team, constants), seed, schedule, block, options)
        run = _run(
            team, chosen, setting, data, sums, summary, budget, wanted, read, progress,
            None if checkpoint is None else Path(checkpoint), checkpoint_every, resume, gather, time,
        )  # fmt: skip
    stop_aborting()
    team.close()
    return run


def _entries(team: Team, problem: Problem | GeneralProblem) -> int | None:
    """Return the mean number of non-zeros a row over all ranks, None for dense rows."""
    sparse = isinstance(problem, Problem) and problem.sparse
    count = (
        problem.X.nnz if isinstance(problem, Problem) and sparse else problem.n_samples * problem.n_features
    )
    cards = team.gather_all([sparse, int(count), problem.n_samples], "to measure the network")
    if not any(card[0] for card in cards):
        return None
    return max(1, int(sum(card[1] for card in cards) / sum(card[2] for card in cards) + 0.5))


def _check(
    method: str | Method,
    schedule: str,
    seed: int,
    read: str,
    record: Any,
    limits: tuple[float | None, ...],
    loss: Any,
    checkpoint: Any,
    resume: bool,
    options: dict[str, Any],
) -> tuple[Method, Budget, Record]:
    """Check what can be checked without data."""
    chosen = get_method(method)
    check_options(fit_mpi, chosen, options)
    check_seed(seed)
    if chosen.kind == "single":
        raise InputError(f"method {chosen.name!r} runs on one machine with all the data: use adfs.simulate")
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    if read not in ("x", "v"):
        raise unknown_name("place to read the iterate", read, ("x", "v"))
    get_loss(loss)
    if resume and checkpoint is None:
        raise InputError("resume wants a checkpoint to resume from: give its folder as checkpoint")
    wanted = record if isinstance(record, Record) else Record() if record is None else Record(record)
    for measure in wanted.measures:
        if measure in ("suboptimality", "distance"):
            raise InputError(
                f"{measure!r} needs the optimum, which no rank knows: "
                "record 'gap' (certified), 'objective' or 'consensus'"
            )
    return chosen, Budget(*limits), wanted


def _run(
    team: Team,
    chosen: Method,
    setting: Setting,
    data: Data,
    sums: TeamSums,
    summary: NodeSummary,
    budget: Budget,
    wanted: Record,
    read: str,
    progress: bool | None,
    folder: Path | None,
    checkpoint_every: float,
    resume: bool,
    gather: bool,
    tau: float | None,
) -> Run:
    block = setting.block
    show = progress if team.rank == 0 else False
    if team.rank == 0 and wanted_on_screen(progress):
        for line in str(data.placement).splitlines():
            say(line)
    process = together(team, "to start", lambda: chosen.start(setting), READING)
    checkpoints = None
    rows: list[dict[str, float]] = []
    spent = 0.0
    if folder is not None:
        checkpoints = CheckpointSet(team, folder, fingerprint(chosen.name, setting), block)
        checkpoints.start()
        if resume:
            rows, spent = checkpoints.resume(process)
    driver = MpiRun(team, data.problem, process, data.placement, sums, read=read, checkpoints=checkpoints)
    _compile_in_turns(team, chosen, setting, driver)

    def position_of(amount: float) -> float:
        return chosen.position_of(setting.parameters, summary, amount)

    driver.open()
    last = budget.last_position(position_of)
    with ProgressBar(chosen.name, show=show, tol=budget.tol, last=last) as bar:
        result = run_loop(
            driver,
            budget=budget,
            record=wanted,
            position_of=position_of,
            n_samples=int(summary.n_samples.sum()),
            report=bar.update,
            checkpoint_every=None if folder is None else checkpoint_every,
            rows=rows,
            seconds=spent,
        )
    theta = process.primal(read)
    if gather:
        sums.why = "to gather the iterates"
        theta = sums.collect(theta)
    details = {
        "tau": tau,
        "read": read,
        "loss": loss_name(data.problem),
        "network": network_name(data.network),
        "classes": data.classes,
        "nodes": list(range(data.network.n_nodes)) if gather else block.tolist(),
        "placement": data.placement.rank_of_node.tolist(),
    } | _account(team, driver)
    driver.close()
    if checkpoints is not None:
        checkpoints.finish(
            {"outcome": str(result.outcome), "gap": result.certificate.gap, "position": driver.position}
        )
    return _result(chosen, setting, result, theta, details)


def _result(
    chosen: Method, setting: Setting, result: LoopResult, theta: np.ndarray, details: dict[str, Any]
) -> Run:
    return Run(
        method=chosen.name,
        outcome=result.outcome,
        theta=theta,
        coef=result.certificate.theta,
        gap=result.certificate.gap,
        columns=as_columns(result.rows),
        parameters=setting.parameters,
        seed=setting.seed,
        seconds=result.seconds,
        schedule=setting.schedule if chosen.kind == "events" else "",
        details=details,
    )


def _account(team: Team, driver: MpiRun) -> dict[str, Any]:
    """Return every rank's times and messages, and how often each edge between ranks was used."""
    work = driver.process.work
    own = driver.times.report() | {
        "nodes": driver.block.tolist(),
        "computations": work.computations,
        "messages": work.messages,
        "bytes": 8 * work.numbers,
        "host": team.hosts[team.rank],
    }
    edges = []
    if driver.links is not None:
        # The rank of the lower node reports an edge.
        ends = driver.placement.edges[driver.links.edges]
        for edge, (a, b), count in zip(driver.links.edges, ends, driver.links.exchanges, strict=True):
            if driver.placement.rank_of_node[a] == team.rank:
                edges.append([int(edge), int(a), int(b), int(count)])
    cards = team.gather_all([own, edges], "to sum up the run")
    return {"ranks": [card[0] for card in cards], "edges": sorted(edge for card in cards for edge in card[1])}


def _compile_in_turns(team: Team, chosen: Method, setting: Setting, driver: MpiRun) -> None:
    """Compile on one rank a host, then load on the others what it left on the disk: nobody is late then."""
    for turn in (True, False):
        if team.first_on_host is turn:
            team.watch.doing = lambda: "compiling"
            _warm_up(chosen.start(setting), setting)
            driver.compile()
        team.gather_all(0, "to compile", patience=_COMPILING)


def _warm_up(process: Process, setting: Setting) -> None:
    """Call what a run will call, on a process that is thrown away."""
    problem = setting.problem
    if isinstance(process, EventProcess):
        process.run(process.schedule.block(0.0, 0.0, setting.block), 0, 0)
        message = np.zeros(process.message_length)
        at_block = np.flatnonzero((process.slot[process.ends] >= 0).any(axis=1))
        if at_block.size:
            edge = int(at_block[0])
            process.incoming(edge, 1.0, process.outgoing(edge, 1.0), message)
    elif isinstance(process, RoundProcess):
        called: list[bool] = []

        def nothing(values: np.ndarray) -> np.ndarray:
            called.append(True)
            return np.zeros_like(values)

        for _ in range(200):
            process.round(nothing)
            if called and process.work.computations:
                break
    process.primal()
    tips = process.dual()
    with contextlib.suppress(InputError):
        problem.loss_sums(np.zeros(problem.n_features))
        if tips is not None:
            tips = problem.clip_to_domain(tips)
            problem.conjugate_sums(tips)
            problem.row_sums(tips)
