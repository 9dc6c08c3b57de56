"""``adfs rates``."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer

from adfs.cli import options
from adfs.cli.simulate import make_setting

EXAMPLES = """\b
Examples:
  adfs rates sklearn:breast_cancer --nodes 9 --graph grid:3x3 --tau 5
  adfs rates train.svm --nodes 16 --graph torus --sigma 0.1 --tau 50 --json
"""


def run(
    data: Annotated[
        str,
        typer.Argument(
            help="A file; sklearn:breast_cancer, digits, …; or synthetic:900x10 (samples x features)."
        ),
    ],
    nodes: options.Nodes = None,
    graph: options.Graph = "cycle",
    partition: options.Partition = None,
    loss: options.Loss = "logistic",
    sigma: Annotated[float, typer.Option("--sigma", help="σ_i, the strong convexity at every node.")] = 1.0,
    parameters: Annotated[str, typer.Option("--parameters", help="tuned or paper.")] = "tuned",
    tau: Annotated[
        float, typer.Option("--tau", help="Time of a message, one sample's computation taking 1.")
    ] = 1.0,
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
    read = options.read_options(form, label, None, n_features, index_base)

    from adfs.algorithms import get_method
    from adfs.theory import summarize, table1, theorem4_step_time

    problem, network = make_setting(data, read, loss, sigma, nodes, graph, partition, seed)
    get_method("adfs").check(problem, {})
    chosen = get_method("adfs").parameters(problem, network, choice=parameters, tau=tau)
    summary = summarize(problem)
    table = table1(summary, network, tau)
    events = 1.0 / chosen.contraction
    facts = {
        "n_nodes": problem.n_nodes,
        "n_samples": problem.n_samples,
        "n_features": problem.n_features,
        "kappa_s": problem.kappa_s,
        "kappa_b": problem.kappa_b,
        "gamma": network.gamma,
        "contraction": chosen.contraction,
        "p_comm": chosen.p_comm,
        "events_to_divide_by_e": events,
        "passes_to_divide_by_e": events * chosen.p_comp / problem.n_samples,
        "messages_to_divide_by_e": 2.0 * events * chosen.p_comm,
        "time_to_divide_by_e_at_most": events * theorem4_step_time(chosen, network, tau).nu,
        "tau": tau,
    }
    if as_json:
        finite = {name: value if math.isfinite(value) else None for name, value in facts.items()}
        rows = {str(name): float(row["time"]) for name, row in table.iterrows()}
        print(json.dumps(finite | {"network": network.name, "parameters": chosen.kind, "table1": rows}))
        return
    print(f"Problem and network ({network.name})")
    for name, text in _WORDS.items():
        value = facts[name]
        print(f"  {text:<58} {value:.6g}" if isinstance(value, float) else f"  {text:<58} {value}")
    print()
    print(chosen)
    print()
    print("Table 1: time to divide the error by e, constants left out")
    shown = table.copy()
    shown["time"] = [f"{value:.4g}" for value in shown["time"]]
    print(shown[["time", "formula"]].to_string())


_WORDS = {
    "n_nodes": "nodes, n",
    "n_samples": "samples of all nodes, nm",
    "n_features": "features, d",
    "kappa_s": "stochastic condition number, κ_s",
    "kappa_b": "batch condition number, κ_b",
    "gamma": "spectral gap of the network, γ",
    "tau": "time of a message, τ",
    "contraction": "ADFS: contraction per event, ρ",
    "events_to_divide_by_e": "events to divide the error by e, 1/ρ",
    "passes_to_divide_by_e": "passes over the data in them",
    "messages_to_divide_by_e": "messages in them",
    "time_to_divide_by_e_at_most": "idealised time of them, at most (Theorem 4)",
}
