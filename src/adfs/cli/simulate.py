"""``adfs simulate`` and ``adfs rates``: a run on a simulated network, and the rates of the theory."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli.options import FileOptions, ProblemOptions, RunLimits, option
from adfs.errors import ExitCode, InputError
from adfs.files import check_outputs, write_whole

if TYPE_CHECKING:
    from adfs.network import Network
    from adfs.problem import Problem
    from adfs.theory import Parameters

Data = Annotated[
    str,
    typer.Argument(
        help="A file; sklearn:breast_cancer, digits, …; or synthetic:900x10 (samples x features)."
    ),
]


@dataclass(frozen=True)
class LimitOptions(RunLimits):
    """Where a simulation ends, and its checkpoints; the parameters of `adfs.simulate`.

    tol: Stop at this certified relative duality gap.
    max_passes: Stop after so many passes over the data (100 without --tol).
    """

    tol: float | None = option(None, positive=True)
    max_passes: float | None = option(None, positive=True)


@dataclass(frozen=True)
class MethodOptions:
    """The method of a simulation; the parameters of `adfs.simulate`.

    method: adfs, ns-adfs, adfs-block, msda, …
    parameters: tuned (the default), paper or adaptive.
    tau: Time of a message, one sample's computation taking 1; for tuned parameters.
    schedule: iid (the paper's) or poisson.
    """

    method: str = "adfs"
    parameters: str | None = None
    tau: float | None = None
    schedule: str = "iid"


@dataclass(frozen=True)
class OutputOptions:
    """The results of a simulation.

    out: Save the run here; adfs.Run.load reads it.
    history: Write the recorded gaps, work and times here, as CSV.
    as_json: Print one JSON object.
    """

    out: Path | None = option(None, "--out", "-o")
    history: Path | None = None
    as_json: bool = option(False, "--json")


def simulate(
    data: Data,
    method: MethodOptions,
    setting: ProblemOptions,
    limits: LimitOptions,
    reading: FileOptions,
    output: OutputOptions,
) -> int:
    """Run one method once on a simulated network.

    Examples
    --------
    adfs simulate synthetic:900x10 --nodes 9 --network grid:3x3 --tol 1e-8
    adfs simulate sklearn:breast_cancer --method msda --nodes 16 --network torus --max-passes 500
    adfs simulate train.svm --nodes 9 --network grid:3x3 --out run.npz --history run.csv
    """
    outputs = {"--out": output.out, "--history": output.history, "--checkpoint": limits.checkpoint}
    check_outputs({"DATA": data}, outputs)

    from adfs.runtimes import Outcome
    from adfs.runtimes import simulate as run_simulation

    problem, network = make_setting(data, reading, setting)
    # The records have the names of the parameters of `simulate`.
    settings = asdict(method) | asdict(limits) | {"seed": setting.seed}
    result = run_simulation(settings.pop("method"), problem, network, **settings)
    if output.history is not None:
        write_whole(output.history, result.frame.to_csv(index=False))
    if output.out is not None:
        result.save(output.out)
    # The summary is printed as text or as JSON.
    last = result.frame.iloc[-1]
    summary = {
        "method": result.method,
        "network": network.name or setting.network,
        "outcome": str(result.outcome),
        "gap": result.gap,
        "absolute_gap": result.absolute_gap,
        "passes": float(last["passes"]),
        "messages": int(last["messages"]),
        "bytes": int(last["bytes"]),
        "seconds": result.seconds,
        "seed": setting.seed,
    }
    if output.as_json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:<9} {value:.6g}" if isinstance(value, float) else f"{name:<9} {value}")
    # Without --tol a run that used up its passes did what was asked.
    if result.outcome is Outcome.STOPPED:
        return ExitCode.INTERRUPTED
    if result.outcome is Outcome.DIVERGED or (
        limits.tol is not None and result.outcome is not Outcome.CONVERGED
    ):
        print(f"adfs: {result.outcome} at a gap of {result.gap:.1e}", file=sys.stderr)
        return ExitCode.NOT_CONVERGED
    return 0


def make_setting(data: str, reading: FileOptions, setting: ProblemOptions) -> tuple[Problem, Network]:
    """Return the problem and the network of a command; two classes become −1 and +1."""
    from adfs.data import ReadOptions, read_source
    from adfs.data.table import labels_for
    from adfs.network import Network
    from adfs.network.inputs import is_graph_file
    from adfs.problem import Problem, get_loss

    loss = get_loss(setting.loss)
    table = read_source(data, ReadOptions(**asdict(reading)), seed=setting.seed)
    if table.y is None:
        raise InputError(f"{table.source} has no labels")
    y = labels_for(table.y, loss.task, loss.name, table.source)
    # Names such as grid:3x3 and files have a number of nodes; a bare name without --nodes means one node.
    n_nodes, name = setting.n_nodes, setting.network
    sized = n_nodes is not None or ":" in name or is_graph_file(name)
    network = Network(name, n_nodes=n_nodes, seed=setting.seed) if sized else Network("path:1")
    problem = Problem(
        table.X,
        y,
        loss,
        setting.sigma,
        network.n_nodes,
        partition=setting.partition or "contiguous",
        sample_weight=table.weights,
        seed=setting.seed,
    )
    return problem, network


@dataclass(frozen=True)
class RateOptions:
    """The parameters whose rates are printed.

    parameters: tuned or paper.
    tau: Time of a message, one sample's computation taking 1 (5).
    as_json: Print one JSON object.
    """

    parameters: str = "tuned"
    tau: float | None = None
    as_json: bool = option(False, "--json")


def rates(data: Data, setting: ProblemOptions, reading: FileOptions, options: RateOptions) -> None:
    """Print what theory predicts for a problem and a network.

    Condition numbers, γ, ADFS's parameters, the predicted rates, and the paper's Table 1.

    Examples
    --------
    adfs rates sklearn:breast_cancer --nodes 9 --network grid:3x3 --tau 5
    adfs rates train.svm --nodes 16 --network torus --sigma 0.1 --tau 50 --json
    """
    from adfs.algorithms import get_method
    from adfs.runtimes.delays import DEFAULT_TAU
    from adfs.theory import summarize, table1

    tau = DEFAULT_TAU if options.tau is None else options.tau
    problem, network = make_setting(data, reading, setting)
    get_method("adfs").check(problem)
    chosen = get_method("adfs").parameters(problem, network, choice=options.parameters, tau=tau)
    # The paper's table and our own facts use the same τ.
    table, facts = table1(summarize(problem), network, tau), _rate_facts(problem, network, chosen, tau)
    name = network.name or setting.network
    if options.as_json:
        # JSON has no infinity.
        finite = {key: value if math.isfinite(value) else None for key, value, _ in facts}
        rows = {str(key): float(row["time"]) for key, row in table.iterrows()}
        print(json.dumps(finite | {"network": name, "parameters": chosen.kind, "table1": rows}))
        return
    print(f"Problem and network ({name})")
    for _, value, text in facts:
        if text:
            print(f"  {text:<58} {value}" if isinstance(value, int) else f"  {text:<58} {value:.6g}")
    print()
    print(chosen)
    print()
    print("Table 1: time to divide the error by e, constants left out")
    shown = table.copy()
    shown["time"] = [f"{value:.4g}" for value in shown["time"]]
    print(shown[["time", "formula"]].to_string())


def _rate_facts(
    problem: Problem, network: Network, chosen: Parameters, tau: float
) -> list[tuple[str, float, str]]:
    """Return the name, the value and the description of each rate; without one it is for ``--json`` only."""
    from adfs.algorithms import RoundEffort, get_method
    from adfs.planning import Facts
    from adfs.theory import node_sizes, theorem4_step_time

    events = 1.0 / chosen.contraction
    passes = events * chosen.p_comp / problem.n_samples
    time = events * theorem4_step_time(chosen, network, tau).nu
    # Newton and L-BFGS do not converge linearly: rounds to a fixed error replace the rate. A round waits for
    # the node with the most work, and for a sum over all nodes.
    facts, sizes = Facts.of(problem), node_sizes(problem)
    rounds: list[tuple[str, float, str]] = []
    for method in (get_method("newton"), get_method("lbfgs")):
        effort = method.effort(None, sizes, network)
        assert isinstance(effort, RoundEffort)
        count = method.cost(facts, network, 1e-8).position
        title = f"{method.label} (not linear): rounds to plan for an error of 1e-8"
        rounds.append((f"{method.name}_rounds_to_1e-8", count, title))
        time_of_one = float(effort.samples.max()) + effort.hops * tau
        rounds.append((f"{method.name}_time_of_a_round", time_of_one, "idealised time of one of them"))
    return [
        ("n_nodes", problem.n_nodes, "nodes, n"),
        ("n_samples", problem.n_samples, "samples of all nodes, nm"),
        ("n_features", problem.n_features, "features, d"),
        ("kappa_s", problem.kappa_s, "stochastic condition number, κ_s"),
        ("kappa_b", problem.kappa_b, "batch condition number, κ_b"),
        ("gamma", network.gamma, "spectral gap of the network, γ"),
        ("tau", tau, "time of a message, τ"),
        ("contraction", chosen.contraction, "ADFS: contraction per event, ρ"),
        ("p_comm", chosen.p_comm, ""),  # the parameters are printed below, this one among them
        ("events_to_divide_by_e", events, "events to divide the error by e, 1/ρ"),
        ("passes_to_divide_by_e", passes, "passes over the data in them"),
        ("messages_to_divide_by_e", 2.0 * events * chosen.p_comm, "messages in them"),
        ("time_to_divide_by_e_at_most", time, "idealised time of them, at most (Theorem 4)"),
        *rounds,
    ]
