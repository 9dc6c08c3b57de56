"""A run, written once for every cluster: check the request, start the first stage, loop, return the result.

`simulate` runs in one process; `adfs.fit_mpi` on the ranks of an MPI program. Both, and the experiments and
the estimators, call `run_method`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import METHODS, EventProcess, Method, get_method
from adfs.errors import InputError
from adfs.files import AnyPath, JsonObject
from adfs.network import Network
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.certificates import AllNodes, Certifier, certify
from adfs.runtimes.checkpoints import Checkpoints, run_fingerprint, tell_ending, used_by_one_run
from adfs.runtimes.clock import with_times
from adfs.runtimes.cluster import Cluster, OneProcess, Placement
from adfs.runtimes.delays import Delays
from adfs.runtimes.execution import Execution
from adfs.runtimes.loop import Ending, Loop, Outcome, Progress
from adfs.runtimes.options import NEED_OPTIMUM, RUN_OPTIONS, Record, RunOptions, describe, takes_run_options
from adfs.runtimes.result import Run
from adfs.runtimes.stages import Stages
from adfs.runtimes.timing import ProgressBar, measured_tau_of
from adfs.theory import smoothness_limit


@takes_run_options
def simulate(
    method: str | Method, problem: FiniteSum, network: Network | str | None = None, **arguments: Any
) -> Run:
    """Run a method on a problem and a network, in this process.

    See :doc:`/glossary` for words such as pass, position and gap.

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
        Ctrl-C ends a run early with the result so far (outcome ``"stopped"``).

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
    part_of : path, optional
        The checkpoint of the fit that this run is part of. The fit then writes there how it ended; a run on
        its own writes it to its own checkpoint.
    later_part : bool
        Whether an earlier part of the same fit was resumed already. A checkpoint of another run is then left
        over from an earlier fit: the run starts anew instead of refusing it.
    certifier : Certifier
        Certifies the run, and so ends it.
    """
    with cluster or OneProcess() as team:
        own = dict(method_options or {})
        # Everything that needs no data is refused first, by all processes together.
        chosen, record = team.attempt("at the start", partial(_check, method, options, own, problem, team))
        # Processes that were started differently would wait for each other in vain.
        team.same(partial(_to_compare, chosen, problem, network, options, own))
        net = team.attempt(
            "at the start", partial(_network, chosen, problem, network, placement, options.lost)
        )
        # One machine has the samples of all nodes as one node's.
        if chosen.kind == "single":
            problem, placement = problem.merged(), None
        size = problem.n_features, net.n_nodes
        team.log(
            logging.INFO, "run: %s, loss %s, %d features, %d nodes", chosen.name, problem.loss.name, *size
        )
        spread = placement or Placement(np.zeros(net.n_nodes, dtype=np.int64), net.edges, 1)
        if not any(team.allgather(bool(problem.active.any()))):
            return _nothing_to_run(chosen, problem, AllNodes(team, spread, problem), options)
        team.attempt("at the start", partial(chosen.check, problem))
        # A fit of several runs locks the place of their checkpoints itself.
        path = options.checkpoint if part_of is None else None
        with nullcontext() if path is None else used_by_one_run(team, path):
            begun = time.perf_counter()
            # Steps of general terms are prepared for one smoothness, which all nodes must agree on.
            if not problem.linear and options.parameters in (None, "tuned"):
                problem = problem.with_smoothness_above(smoothness_limit(problem.sigma, net))
            nodes = AllNodes(team, spread, problem)
            if isinstance(options.tau, str):
                sizes = (problem.n_features, problem.entries_per_row, problem.n_samples)
                tau: float | None = measured_tau_of(team, *sizes)
            else:
                tau = options.tau
            delays = options.delays
            if delays is None and options.time is not None:
                delays = Delays(tau=0.0 if tau is None else tau, law="fixed")
            stages = team.attempt(
                "at the start", partial(Stages, chosen, nodes, net, options, own, tau, delays)
            )
            run = _run_stages(stages, record, begun, part_of, later_part, certifier)
        return run if delays is None else with_times(run, problem, net, delays)


def _check(
    method: str | Method, options: RunOptions, own: dict[str, object], problem: FiniteSum, team: Cluster
) -> tuple[Method, Record]:
    """Check the request as far as possible before anything is computed; return the method and the record."""
    chosen = get_method(method)
    if not isinstance(problem, FiniteSum):
        raise InputError(f"a run takes an adfs.Problem or adfs.GeneralProblem, got {type(problem).__name__}")
    chosen.check_options(own, RUN_OPTIONS)
    record = options.check()
    if options.tol is not None and not problem.certifiable:
        raise InputError(
            "tol bounds a certified gap, and a term of this problem has no conjugate to certify with: "
            "define `conjugate`, or give a budget (max_passes, events, seconds) instead"
        )
    if team.size == 1:
        return chosen, record
    # No process of several holds all the data.
    if chosen.kind == "single":
        raise InputError(f"method {chosen.name!r} runs on one machine with all the data: use adfs.simulate")
    needed = [name for name in NEED_OPTIMUM if name in (*record.measures, record.stop_on)]
    if needed:
        raise InputError(
            f"{needed[0]!r} needs the optimum, which no rank knows: "
            "record 'gap' (certified), 'objective' or 'consensus'"
        )
    if options.time is not None or options.delays is not None:
        raise InputError("idealised time is for simulations: several processes measure their own")
    return chosen, record


# The names of options in a sentence, where the option's own name would not be understood.
_NAMES_IN_SENTENCES = {
    "parameters": "the choice of parameters",
    "schedule": "the schedule",
    "seed": "the seed",
    "record": "what to record",
    "lost": "the share of lost exchanges",
}


def _to_compare(
    method: Method,
    problem: FiniteSum,
    network: Network | str | None,
    options: RunOptions,
    own: dict[str, object],
) -> dict[str, object]:
    """Return what must be the same in all processes, under names for a sentence."""
    words: dict[str, object] = {
        "the version of adfs": __version__,
        "the method": method.name,
        "the loss": problem.loss.name,
        "the network": describe(network),
        "the options": sorted((name, describe(value)) for name, value in own.items()),
    }
    # Each process starts from its own rows, and one of them shows the progress.
    for name in RUN_OPTIONS:
        if name not in ("start", "progress"):
            words[_NAMES_IN_SENTENCES.get(name, name)] = describe(getattr(options, name))
    return words


def _network(
    method: Method,
    problem: FiniteSum,
    network: Network | str | None,
    placement: Placement | None,
    lost: float,
) -> Network:
    """Return the network, checked to have as many nodes as the problem and to suit the method."""
    count = problem.n_nodes if placement is None else placement.rank_of_node.size
    if method.kind == "single":
        return Network("path:1")
    if network is None:
        if count > 1:
            raise InputError(f"the problem has {count} nodes: give the network that links them")
        network = "path:1"
    # A name may leave out the number of nodes.
    if isinstance(network, str):
        network = Network(network, n_nodes=count)
    if network.n_nodes != count:
        raise InputError(f"the problem has {count} nodes and the network {network.n_nodes}: they must agree")
    network = network.losing(lost) if lost else network
    if network.faults is None:
        return network
    for asked, able, what in (
        (network.lost > 0.0, "lost_exchanges", "lost exchanges"),
        (network.changes, "changing_networks", "networks that change"),
    ):
        if asked and not getattr(method, able):
            others = [repr(name) for name, other in METHODS.items() if getattr(other, able)]
            raise InputError(f"method {method.name!r} takes no {what}; use {' or '.join(others)}")
    return network


def _nothing_to_run(method: Method, problem: FiniteSum, nodes: AllNodes, options: RunOptions) -> Run:
    """Return the run of a problem whose samples are all constants: θ = 0 is its minimiser."""
    # A row of zeros stands for the run: it was at its optimum before it began.
    zero = np.zeros(problem.n_features)
    value = nodes.value_at_zero
    names = ("position", "passes", "computations", "messages", "bytes", "seconds", "gap")
    columns = _columns([dict.fromkeys(names, 0.0) | {"primal": value, "dual": value}])
    count = nodes.sigma.size if options.gather else problem.n_nodes
    theta = np.zeros((count, problem.n_features))
    dual = np.zeros((problem.n_samples, *problem.dual_shape))
    ended, seed = Outcome.CONVERGED, options.seed
    return Run(method.name, ended, theta, zero, 0.0, columns, None, seed, 0.0, dual=dual, absolute_gap=0.0)


def _run_stages(
    stages: Stages,
    record: Record,
    begun: float,
    part_of: AnyPath | None,
    later_part: bool,
    certifier: Certifier,
) -> Run:
    """Start the first stage, or the one of a checkpoint, and run to the end."""
    cluster, nodes, options = stages.cluster, stages.nodes, stages.options
    start = options.start
    cluster.activity = "to start"
    if any(cluster.allgather(start is not None)):
        start = cluster.attempt("to start", partial(_clipped_start, nodes.problem, start))
    process, progress, checkpoints = stages.begin(start), Progress(), None
    # A checkpoint continues only the run that wrote it: same data, parameters, seed and rule.
    if options.checkpoint is not None:
        # A later part of a fit starts where the part before it ended, so the start is part of it.
        identity = "" if stages.rule is None else stages.rule.identity
        rule = f"{identity} {describe(start)} {describe(options.point)}"
        identify = partial(run_fingerprint, stages.method.name, stages.setting, rule)
        fingerprint = cluster.attempt("to start", identify)
        checkpoints = Checkpoints(cluster, Path(options.checkpoint), fingerprint, part_of)
        make_process = stages.resume if options.resume else None
        resumed = checkpoints.start(make_process, optional=later_part)
        process, progress = resumed or (process, progress)
    # From here on every process goes through the same positions.
    execution = Execution(process, nodes, stages.tau, stages.history.stages[-1].position)
    if stages.rule is not None or options.time is not None:
        stages.prepare(execution.position)
    cluster.in_turns("to compile", partial(execution.compile, stages.method, stages.setting))
    loop = Loop(stages, execution, record, certifier, checkpoints, progress)
    execution.times.setting_up = time.perf_counter() - begun
    show = cluster.rank == 0 and wanted_on_screen(options.progress)
    with ProgressBar(stages.method.name, options, loop.last) if show else nullcontext() as bar:
        ending = loop.run(bar)
    run = _result(execution, stages, progress, ending)
    facts = run.outcome, run.gap, progress.rows[-1]["passes"], run.seconds
    cluster.log(logging.INFO, "run ended: %s, gap %.1e, %.4g passes, %.3g s", *facts)
    if execution.exchange is not None:
        execution.exchange.links.close()
    if options.checkpoint is not None and part_of is None:
        ending_words = {"outcome": str(run.outcome), "gap": run.gap, "position": execution.position}
        tell_ending(cluster, options.checkpoint, ending_words)
    return run


def _clipped_start(problem: FiniteSum, start: np.ndarray | None) -> np.ndarray:
    """Return the dual variables that the run starts from, in their domains; 0 where only others have some."""
    shape = (problem.n_samples, *problem.dual_shape)
    if start is None:
        return np.zeros(shape)
    if np.shape(start) != shape:
        raise InputError(f"start must have the shape of run.dual, {shape}, got {np.shape(start)}")
    return problem.clip_to_domain(np.asarray(start, dtype=np.float64))


def _result(execution: Execution, stages: Stages, progress: Progress, ending: Ending) -> Run:
    """Put together the result of a run, in every process alike."""
    process, nodes, network, options = execution.process, execution.nodes, stages.network, stages.options
    history = None if stages.rule is None else stages.history
    theta = process.primal(options.read)
    # Every process returns its own nodes, or all of them if that was asked for.
    if options.gather:
        nodes.cluster.activity = "to gather the iterates"
        theta = nodes.collect(theta)
    details: JsonObject = {
        "tau": stages.tau,
        "read": options.read,
        "loss": nodes.problem.loss.name,
        "network": network.name or f"{network.n_nodes} nodes, {network.n_edges} edges",
    }
    if network.faults is not None and network.lost > 0.0:
        details["lost"] = network.lost
    if history is not None:
        details["retunings"] = [{"position": stage.position} | stage.report for stage in history.stages[1:]]
    if not stages.cluster.one_file:
        details |= {
            "nodes": list(range(network.n_nodes)) if options.gather else nodes.block.tolist(),
            "placement": nodes.placement.rank_of_node.tolist(),
        }
    certificate, rows = ending.certificate, list(progress.rows)
    # The last check of an unrecorded run may have been an estimate; the result has the certified gap.
    if options.record is None and options.tol is not None:
        rows[-1] = rows[-1] | {"gap": certificate.gap}
    return Run(
        method=stages.method.name,
        outcome=ending.outcome,
        theta=theta,
        coef=certificate.theta,
        gap=certificate.gap,
        columns=_columns(rows),
        parameters=stages.setting.parameters,
        seed=options.seed,
        seconds=progress.seconds,
        schedule=options.schedule if isinstance(process, EventProcess) else "",
        details=details | execution.account(),
        dual=process.dual() if certificate.duals is None else certificate.duals,
        history=history,
        absolute_gap=certificate.absolute_gap,
    )


def wanted_on_screen(show: bool | None) -> bool:
    """Whether progress is to be shown: as asked, or on a terminal."""
    return sys.stderr.isatty() if show is None else show


def _columns(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return recorded rows column by column; a missing entry is nan."""
    names = dict.fromkeys(name for row in rows for name in row)
    table = np.array([[row.get(name, np.nan) for row in rows] for name in names], dtype=np.float64)
    return dict(zip(names, table, strict=True))
