"""``adfs simulate``, and how a command gets its problem and its network."""

from __future__ import annotations

import json
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
  adfs simulate synthetic:900x10 --nodes 9 --graph grid:3x3 --tol 1e-8
  adfs simulate sklearn:breast_cancer --method msda --nodes 16 --graph torus --max-passes 500
  adfs simulate train.svm --nodes 9 --graph grid:3x3 --out run.npz --history run.csv
"""


def run(
    data: Annotated[
        str,
        typer.Argument(
            help="A file; sklearn:breast_cancer, digits, …; or synthetic:900x10 (samples x features)."
        ),
    ],
    method: Annotated[str, typer.Option("--method", help="adfs, ns-adfs, adfs-block, msda, …")] = "adfs",
    nodes: options.Nodes = None,
    graph: options.Graph = "cycle",
    partition: options.Partition = None,
    loss: options.Loss = "logistic",
    sigma: Annotated[float, typer.Option("--sigma", help="σ_i, the strong convexity at every node.")] = 1.0,
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
    read = options.read_options(form, label, None, n_features, index_base)

    from adfs.runtimes import Outcome, simulate

    problem, network = make_setting(data, read, loss, sigma, nodes, graph, partition, seed)
    result = simulate(
        method,
        problem,
        network,
        parameters=parameters,
        schedule=schedule,
        tau=tau,
        seed=seed,
        tol=tol,
        passes=max_passes,
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
        "network": network.name,
        "outcome": str(result.outcome),
        "gap": result.gap,
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
    graph: str,
    partition: str | None,
    seed: int,
) -> tuple[Problem, Network]:
    """Return the problem and the network of a command; two classes become −1 and +1."""
    import numpy as np

    from adfs.data import read_source
    from adfs.errors import InputError
    from adfs.network import Network
    from adfs.problem import Problem, get_loss

    chosen = get_loss(loss)
    table = read_source(data, read, seed=seed)
    y = table.y
    if y is None:
        raise InputError(f"{table.source} has no labels")
    if chosen.task == "classification":
        classes = np.unique(y)
        if classes.size != 2:
            raise InputError(
                f"{table.source} has {classes.size} classes; the loss {chosen.name!r} takes two here; "
                "for numbers choose a regression loss, such as squared"
            )
        y = np.where(y == classes[1], 1.0, -1.0)
    elif y.dtype.kind == "U":
        raise InputError(f"{table.source}: the labels are text, the loss {chosen.name!r} wants numbers")
    # Without --nodes a name such as grid:3x3 says the number itself; a bare one stands for one node.
    network = Network(graph, n_nodes=nodes, seed=seed) if nodes or ":" in graph else Network("path:1")
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
