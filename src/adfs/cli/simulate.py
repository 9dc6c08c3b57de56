"""``adfs simulate`` and ``adfs rates``: a problem and a network, run or put into the formulas."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.data import ReadOptions
    from adfs.network import Network
    from adfs.problem import Problem

EXAMPLES = """\b
Examples:
  adfs simulate synthetic:900x10 --nodes 9 --network grid:3x3 --tol 1e-8
  adfs simulate sklearn:breast_cancer --method msda --nodes 16 --network torus --max-passes 500
  adfs simulate train.svm --nodes 9 --network grid:3x3 --out run.npz --history run.csv
"""


def run(
    data: options.Data,
    method: Annotated[str, typer.Option("--method", help="adfs, ns-adfs, adfs-block, msda, …")] = "adfs",
    nodes: options.Nodes = None,
    network_name: options.NetworkName = "cycle",
    partition: options.Partition = None,
    loss: options.Loss = "logistic",
    sigma: options.Sigma = 1.0,
    parameters: options.ParameterChoice = None,
    tau: options.Tau = None,
    schedule: options.Schedule = "iid",
    seed: options.Seed = 0,
    tol: Annotated[
        float | None, typer.Option("--tol", help="Stop at this certified relative duality gap.")
    ] = None,
    max_passes: Annotated[
        float | None,
        typer.Option("--max-passes", help="Stop after so many passes over the data (100 without --tol)."),
    ] = None,
    max_seconds: options.MaxSeconds = None,
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the run here; adfs.Run.load reads it.")
    ] = None,
    history: options.History = None,
    form: options.Form = "auto",
    label: options.Label = None,
    n_features: options.NFeatures = None,
    index_base: options.IndexBase = None,
    as_json: options.Json = False,
    progress: options.Progress = None,
) -> int:
    """Run one method once on a simulated network."""
    from adfs.cli.app import INTERRUPTED, NOT_CONVERGED
    from adfs.files import check_outputs, write_whole

    check_outputs({"DATA": data}, {"--out": out, "--history": history, "--checkpoint": checkpoint})
    limits = {"--tol": tol, "--max-passes": max_passes, "--max-seconds": max_seconds}
    options.check_positive({"--sigma": sigma} | limits)

    from adfs.data import ReadOptions
    from adfs.runtimes import Outcome, simulate

    read = ReadOptions(form, label, None, n_features, index_base)
    problem, network = make_setting(data, read, loss, sigma, nodes, network_name, partition, seed)
    result = simulate(
        method,
        problem,
        network,
        parameters=parameters,
        schedule=schedule,
        tau=tau,
        seed=seed,
        tol=tol,
        max_passes=max_passes,
        seconds=max_seconds,
        progress=progress,
        checkpoint=checkpoint,
        resume=resume,
    )
    if history is not None:
        write_whole(history, result.frame.to_csv(index=False))
    if out is not None:
        result.save(out)
    last = result.frame.iloc[-1]
    summary = {
        "method": result.method,
        "network": network.name or network_name,
        "outcome": str(result.outcome),
        "gap": result.gap,
        "absolute_gap": result.absolute_gap,
        "passes": float(last["passes"]),
        "messages": int(last["messages"]),
        "bytes": int(last["bytes"]),
        "seconds": result.seconds,
        "seed": seed,
    }
    if as_json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:<9} {value:.6g}" if isinstance(value, float) else f"{name:<9} {value}")
    if result.outcome is Outcome.STOPPED:
        return INTERRUPTED
    if result.outcome is Outcome.DIVERGED or (tol is not None and result.outcome is not Outcome.CONVERGED):
        print(f"adfs: {result.outcome} at a gap of {result.gap:.1e}", file=sys.stderr)
        return NOT_CONVERGED
    return 0


def make_setting(
    data: str,
    read: ReadOptions,
    loss: str,
    sigma: float,
    nodes: int | None,
    network_name: str,
    partition: str | None,
    seed: int,
) -> tuple[Problem, Network]:
    """Return the problem and the network of a command; two classes become −1 and +1."""
    from adfs.data import read_source
    from adfs.data.table import labels_for
    from adfs.errors import InputError
    from adfs.network import Network
    from adfs.network.inputs import is_graph_file
    from adfs.problem import Problem, get_loss

    chosen = get_loss(loss)
    table = read_source(data, read, seed=seed)
    if table.y is None:
        raise InputError(f"{table.source} has no labels")
    y = labels_for(table.y, chosen.task, chosen.name, table.source)
    # Without --nodes a name such as grid:3x3 or a file says the number itself; a bare name is one node.
    sized = nodes is not None or ":" in network_name or is_graph_file(network_name)
    network = Network(network_name, n_nodes=nodes, seed=seed) if sized else Network("path:1")
    problem = Problem(
        table.X,
        y,
        chosen,
        sigma,
        network.n_nodes,
        partition=partition or "contiguous",
        sample_weight=table.weights,
        seed=seed,
    )
    return problem, network


RATES_EXAMPLES = """\b
Examples:
  adfs rates sklearn:breast_cancer --nodes 9 --network grid:3x3 --tau 5
  adfs rates train.svm --nodes 16 --network torus --sigma 0.1 --tau 50 --json
"""


def rates(
    data: options.Data,
    nodes: options.Nodes = None,
    network_name: options.NetworkName = "cycle",
    partition: options.Partition = None,
    loss: options.Loss = "logistic",
    sigma: options.Sigma = 1.0,
    parameters: Annotated[str, typer.Option("--parameters", help="tuned or paper.")] = "tuned",
    tau: Annotated[
        float | None, typer.Option("--tau", help="Time of a message, one sample's computation taking 1 (5).")
    ] = None,
    seed: options.Seed = 0,
    form: options.Form = "auto",
    label: options.Label = None,
    n_features: options.NFeatures = None,
    index_base: options.IndexBase = None,
    as_json: options.Json = False,
) -> None:
    """Print what theory predicts for a problem and a network.

    Condition numbers, γ, ADFS's parameters, the predicted rates, and the paper's Table 1.
    """
    options.check_positive({"--sigma": sigma})

    from adfs.algorithms import get_method
    from adfs.data import ReadOptions
    from adfs.planning import Facts
    from adfs.runtimes.delays import DEFAULT_TAU
    from adfs.theory import LbfgsParameters, NewtonParameters, summarize, table1, theorem4_step_time

    tau = DEFAULT_TAU if tau is None else tau
    read = ReadOptions(form, label, None, n_features, index_base)
    problem, network = make_setting(data, read, loss, sigma, nodes, network_name, partition, seed)
    get_method("adfs").check(problem, {})
    chosen = get_method("adfs").parameters(problem, network, choice=parameters, tau=tau)
    summary = summarize(problem)
    table = table1(summary, network, tau)
    events = 1.0 / chosen.contraction
    newton = NewtonParameters.theory(problem, network)
    largest = float(summary.n_samples.max())
    # Name, value, and how it is told: what is not is in the parameters' own table.
    facts: list[tuple[str, float, str]] = [
        ("n_nodes", problem.n_nodes, "nodes, n"),
        ("n_samples", problem.n_samples, "samples of all nodes, nm"),
        ("n_features", problem.n_features, "features, d"),
        ("kappa_s", problem.kappa_s, "stochastic condition number, κ_s"),
        ("kappa_b", problem.kappa_b, "batch condition number, κ_b"),
        ("gamma", network.gamma, "spectral gap of the network, γ"),
        ("tau", tau, "time of a message, τ"),
        ("contraction", chosen.contraction, "ADFS: contraction per event, ρ"),
        ("p_comm", chosen.p_comm, ""),
        ("events_to_divide_by_e", events, "events to divide the error by e, 1/ρ"),
        ("passes_to_divide_by_e", events * chosen.p_comp / problem.n_samples, "passes over the data in them"),
        ("messages_to_divide_by_e", 2.0 * events * chosen.p_comm, "messages in them"),
        (
            "time_to_divide_by_e_at_most",
            events * theorem4_step_time(chosen, network, tau).nu,
            "idealised time of them, at most (Theorem 4)",
        ),
        (
            "newton_rounds_to_1e-8",
            NewtonParameters.rounds_to(1e-8),
            "Newton (not linear): rounds to plan for an error of 1e-8",
        ),
        (
            "newton_time_of_a_round",
            newton.row_effort * largest + newton.hops * tau,
            "idealised time of one of them",
        ),
        (
            "lbfgs_rounds_to_1e-8",
            get_method("lbfgs").cost(Facts.of(problem), network, 1e-8).position,
            "L-BFGS (not linear): rounds to plan for an error of 1e-8",
        ),
        (
            "lbfgs_time_of_a_round",
            largest + LbfgsParameters.theory(problem, network).hops * tau,
            "idealised time of one of them",
        ),
    ]
    if as_json:
        finite = {name: value if math.isfinite(value) else None for name, value, _ in facts}
        rows = {str(name): float(row["time"]) for name, row in table.iterrows()}
        print(
            json.dumps(
                finite | {"network": network.name or network_name, "parameters": chosen.kind, "table1": rows}
            )
        )
        return
    print(f"Problem and network ({network.name or network_name})")
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
