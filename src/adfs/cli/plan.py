"""``adfs plan``, ``adfs rates`` and ``adfs net-bench``: predictions, and the measurements they can use."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options
from adfs.cli.options import FileOptions, ProblemOptions, WeightedFileOptions, option
from adfs.cli.simulate import Data, make_setting
from adfs.errors import InputError
from adfs.files import check_outputs
from adfs.launching import launched_by_mpi

if TYPE_CHECKING:
    from adfs.network import Network
    from adfs.planning import Facts, Plan
    from adfs.problem import Problem
    from adfs.runtimes.timing import NetBench
    from adfs.theory import Parameters


@dataclass(frozen=True)
class SizeOptions:
    """The sizes and condition numbers of a plan without data, in the order of `adfs.planning.Facts`.

    samples: Without data: N of all nodes.
    features: Without data: d.
    kappa_s: Without data: Σ L_j/Σσ, the stochastic condition number.
    kappa_b: Without data: the batch condition number.
    """

    samples: int | None = option(None, least=1)
    features: int | None = option(None, least=1)
    kappa_s: float | None = None
    kappa_b: float | None = None


@dataclass(frozen=True)
class ObjectiveOptions:
    """The objective, as in ``adfs fit``, and the gap to reach.

    loss: A registered loss by name.
    C: Classification, as in adfs fit (default 1).
    alpha: Regression, as in adfs fit (default 1).
    tol: The certified relative gap to reach.
    """

    loss: str = "logistic"
    C: float | None = option(None, "-C", positive=True)
    alpha: float | None = option(None, positive=True)
    tol: float = option(1e-6, positive=True)


@dataclass(frozen=True)
class ChoiceOptions:
    """The settings that a plan compares.

    nodes: Numbers of nodes to compare, with commas (1 to 64, as long as each has 100 rows).
    network: A network to compare; may be repeated (cycle, grid, torus, exponential).
    method: A method to compare; may be repeated (all).
    tau: Time of a message, one sample's computation taking 1 (5).
    law: Distribution of the delays: exponential or fixed.
    measure: Measure the seconds of a sample and, under mpiexec, of a message too.
    seed: Same seed, same bits.
    """

    nodes: str | None = None
    network: list[str] | None = None
    method: list[str] | None = None
    tau: float | None = None
    law: str = "exponential"
    measure: bool = False
    seed: int = option(0, least=0)


@dataclass(frozen=True)
class PlanOutputOptions:
    """The page, the figure and the form of the table.

    out: Write a page with all results here (HTML).
    figure: Draw time against nodes into this file (PNG, PDF or SVG).
    as_json: Print one JSON object.
    """

    out: Path | None = option(None, "--out", "-o")
    figure: Path | None = None
    as_json: bool = option(False, "--json")


def plan(
    choices: ChoiceOptions,
    sizes: SizeOptions,
    objective: ObjectiveOptions,
    reading: WeightedFileOptions,
    output: PlanOutputOptions,
    data: Annotated[
        str | None,
        typer.Argument(
            help="A file; sklearn:breast_cancer, …; synthetic:900x10; or leave it out and give sizes."
        ),
    ] = None,
) -> None:
    """Say which method, how many nodes and which network to run, and how long it will take.

    The times of all methods are predicted on one idealised clock, from the rates of the theory and from
    factors that were observed in runs. Time 1 is the computation of one sample; with --measure there are
    seconds too, and under mpiexec the time of a message between these ranks is measured instead of given.

    Examples
    --------
    adfs plan train.svm -C 1 --nodes 1,4,16 --network grid --network cycle --tau 20
    adfs plan --samples 1000000 --features 50 --kappa-s 1e5 --kappa-b 1e3 --nodes 16,64 --tau 100
    adfs plan sklearn:breast_cancer --measure --out plan.html
    mpiexec -n 4 adfs plan train.svm --measure --nodes 4 --json
    """
    # Everything that can be checked is checked before the data are read.
    check_outputs({"DATA": data}, {"--out": output.out, "--figure": output.figure})
    options.check_figure("--figure", output.figure)
    over_mpi = launched_by_mpi()
    if over_mpi and not choices.measure:
        raise InputError(
            "a plan is made by one process; under mpiexec it measures the network: add --measure"
        )
    if over_mpi and choices.tau is not None:
        raise InputError("under mpiexec --measure measures tau: leave out --tau")
    counts = None
    if choices.nodes is not None:
        counts = options.read_numbers("--nodes", choices.nodes, int, "1,4,16")

    import numpy as np

    from adfs.planning import GRAPHS
    from adfs.planning import plan as make_plan
    from adfs.runtimes.delays import DEFAULT_TAU
    from adfs.runtimes.timing import step_seconds

    # A problem with data, or only its sizes.
    source = _source(data, sizes, objective, reading, choices.seed)
    step, tau = None, DEFAULT_TAU if choices.tau is None else choices.tau
    if choices.measure:
        # The local step is timed on rows with as many entries as the data have.
        width, mean = source.n_features, source.entries_per_row
        entries = None if mean is None else max(1, round(mean))
        if over_mpi:
            measured = _measure((width,), entries)
            if measured is None:
                return
            step, tau = float(np.median(measured.step)), float(measured.tau[0])
        else:
            step = step_seconds(width, entries)
    result = make_plan(
        source,
        nodes=counts,
        network=choices.network or GRAPHS,
        tau=tau,
        tol=objective.tol,
        methods=choices.method or None,
        law=choices.law,
        seconds_per_sample=step,
        seed=choices.seed,
    )
    if output.out is not None:
        result.save_page(output.out)
    if output.figure is not None:
        options.save_figure(output.figure, result.plot())
    if output.as_json:
        print(result.to_json(), end="")
    else:
        _show(result)


def _source(
    data: str | None,
    sizes: SizeOptions,
    objective: ObjectiveOptions,
    reading: WeightedFileOptions,
    seed: int,
) -> Problem | Facts:
    """Return the problem of the data, or the facts that were given instead."""
    from adfs.planning import Facts

    # Sizes are given if and only if there are no data.
    given, names = asdict(sizes), options.option_names(SizeOptions)
    if data is None:
        missing = [names[name] for name, value in given.items() if value is None]
        if missing:
            raise InputError(f"give data, or its sizes and condition numbers: {', '.join(missing)} missing")
        return Facts(*given.values())
    if any(value is not None for value in given.values()):
        raise InputError(f"{', '.join(names.values())} are for a plan without data")
    # In the objective of `adfs fit`, divided by the weight of the data, σ is 1/C or alpha.
    options.penalty_weight(objective.loss, objective)
    sigma = 1.0 / objective.C if objective.C is not None else objective.alpha or 1.0
    problem, _ = make_setting(
        data, reading, options.ProblemOptions(network="path", loss=objective.loss, sigma=sigma, seed=seed)
    )
    return problem


def _measure(widths: tuple[int, ...], entries: int | None, deadline: float = 60.0) -> NetBench | None:
    """Measure messages between the ranks and a local step of each; return None on ranks other than 0."""
    from adfs.runtimes.timing import bench_network

    with options.all_ranks(deadline) as world:
        rank = world.Get_rank()
        measured = bench_network(world, widths, entries=entries, deadline=deadline)
    return measured if rank == 0 else None


def _show(result: Plan) -> None:
    """Print the facts, each method at its best, and the recommendation."""
    from adfs.pages import number

    facts = result.facts
    print(
        f"N = {facts.n_samples:,}, d = {facts.n_features:,}, κ_s = {number(facts.kappa_s)}, "
        f"κ_b = {number(facts.kappa_b)}, τ = {result.tau:.4g}"
    )
    # A file or a pipe takes all columns; a screen of fewer than 110 characters takes all but the last three.
    table = result.text_table.drop_duplicates("method")
    if sys.stdout.isatty() and get_terminal_size().columns < 110:
        table = table.iloc[:, :-3]
    print(table.to_string(index=False), end="\n\n")
    print(*result.sentences(), sep="\n")


# --------------------------------------------------------------------------- the rates of the theory


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


def rates(data: Data, setting: ProblemOptions, reading: FileOptions, asked: RateOptions) -> None:
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

    tau = DEFAULT_TAU if asked.tau is None else asked.tau
    problem, network = make_setting(data, reading, setting)
    get_method("adfs").check(problem)
    chosen = get_method("adfs").parameters(problem, network, choice=asked.parameters, tau=tau)
    # The paper's table and our own facts use the same τ.
    table, facts = table1(summarize(problem), network, tau), _rate_facts(problem, network, chosen, tau)
    name = network.name or setting.network
    if asked.as_json:
        # JSON has no infinity.
        finite = {key: value if math.isfinite(value) else None for key, value, _ in facts}
        rows = {str(key): float(row["time"]) for key, row in table.iterrows()}
        print(json.dumps(finite | {"network": name, "parameters": chosen.kind, "table1": rows}))
        return
    print(f"Problem and network ({name})")
    for _, value, text in facts:
        if text:
            print(f"  {text:<58} {value}" if isinstance(value, int) else f"  {text:<58} {value:.6g}")
    print(f"\n{chosen}\n\nTable 1: time to divide the error by e, constants left out")
    print(table[["time", "formula"]].to_string(float_format="{:.4g}".format))


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


# --------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class BenchOptions:
    """The messages and the local step that ``adfs net-bench`` measures.

    numbers: Numbers in a message (the dimension); may be repeated.
    entries: Non-zeros per row, for the local step; dense by default.
    deadline: Seconds to wait for another rank.
    as_json: Print one JSON object.
    """

    numbers: list[int] | None = option(None, "--numbers", "-d", least=1)
    entries: int | None = option(None, least=1)
    deadline: float = option(60.0, positive=True)
    as_json: bool = option(False, "--json")


def net_bench(bench: BenchOptions) -> None:
    """Measure exchanges between MPI ranks and the time of a local step, and print their ratio tau.

    Run it with the launcher, the ranks and the hosts of the run that it is for. `adfs fit --tau` and
    `adfs.Parameters.tuned(tau=…)` take tau.

    Examples
    --------
    mpiexec -n 2 adfs net-bench
    mpiexec -n 4 --hostfile hosts adfs net-bench --numbers 124 --entries 14
    """
    from adfs.runtimes.timing import WIDTHS

    if not launched_by_mpi():
        raise InputError(
            "net-bench measures messages between MPI ranks: start it as mpiexec -n 2 adfs net-bench"
        )
    # Several sizes of messages separate latency from bandwidth.
    widths = tuple(sorted(bench.numbers)) if bench.numbers else WIDTHS
    measured = _measure(widths, bench.entries, bench.deadline)
    if measured is None:
        return
    table = measured.table()
    if bench.as_json:
        figures = {"latency": measured.latency, "bandwidth": measured.bandwidth}
        print(json.dumps({"hosts": measured.hosts} | figures | {"rows": table.to_dict("records")}))
        return
    print(f"{len(measured.hosts)} ranks on {len(set(measured.hosts))} hosts, {len(measured.pairs)} pairs")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(f"latency {1e6 * measured.latency:.1f} µs, bandwidth {measured.bandwidth / 1e6:.3g} MB/s one way")
