"""``adfs plan`` and ``adfs net-bench``."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.planning import Facts, Plan
    from adfs.problem import Problem

EXAMPLES = """\b
Examples:
  adfs plan train.svm -C 1 --nodes 1,4,16 --network grid --network cycle --tau 20
  adfs plan --samples 1000000 --features 50 --kappa-s 1e5 --kappa-b 1e3 --nodes 16,64 --tau 100
  adfs plan sklearn:breast_cancer --measure --out plan.html
  mpiexec -n 4 adfs plan train.svm --measure --nodes 4 --json

\b
Time 1 is the computation of one sample; with --measure there are seconds too, and under mpiexec the time
of a message between these ranks is measured instead of given.
"""

_WIDE = 110


def run(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A file; sklearn:breast_cancer, …; synthetic:900x10; or leave it out and give sizes."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Without data: N of all nodes.")
    ] = None,
    features: Annotated[int | None, typer.Option("--features", min=1, help="Without data: d.")] = None,
    kappa_s: Annotated[
        float | None,
        typer.Option("--kappa-s", help="Without data: Σ L_j/Σσ, the stochastic condition number."),
    ] = None,
    kappa_b: Annotated[
        float | None, typer.Option("--kappa-b", help="Without data: the batch condition number.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            help="Numbers of nodes to look at, with commas (1 to 64, as long as each has 100 rows).",
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            "--network", help="A network to consider; again for more (cycle, grid, torus, exponential)."
        ),
    ] = None,
    tau: Annotated[
        float | None, typer.Option("--tau", help="Time of a message, one sample's computation taking 1 (5).")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure a sample's seconds here and, under mpiexec, a message's too."
        ),
    ] = False,
    tol: Annotated[float, typer.Option("--tol", help="The certified relative gap to reach.")] = 1e-6,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="A method to look at; again for more (all).")
    ] = None,
    law: Annotated[str, typer.Option("--law", help="Of the delays: exponential or fixed.")] = "exponential",
    loss: options.Loss = "logistic",
    C: Annotated[float | None, typer.Option("-C", help="Classification, as in adfs fit (default 1).")] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Regression, as in adfs fit (default 1).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a page with everything here (HTML).")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", help="Draw time against nodes into this file (PNG, PDF or SVG)."),
    ] = None,
    seed: options.Seed = 0,
    form: options.Form = "auto",
    label: options.Label = None,
    weight: options.Weight = None,
    n_features: options.NFeatures = None,
    index_base: options.IndexBase = None,
    as_json: options.Json = False,
) -> int:
    """Say which method, how many nodes and which network to run, and how long it will take.

    Every method is put on one idealised clock, from the theory's rates and the factors seen in runs.
    """
    from adfs.errors import InputError
    from adfs.files import check_outputs
    from adfs.launching import launched_by_mpi

    check_outputs({"DATA": data} if data else {}, {"--out": out, "--figure": figure})
    options.check_positive({"-C": C, "--alpha": alpha, "--tol": tol})
    options.check_figure("--figure", figure)
    over_mpi = launched_by_mpi()
    if over_mpi and not measure:
        raise InputError(
            "a plan is made by one process; under mpiexec it measures the network: add --measure"
        )
    if over_mpi and tau is not None:
        raise InputError("under mpiexec --measure measures tau: leave out --tau")
    counts = None if nodes is None else _counts(nodes)

    from adfs.data import ReadOptions
    from adfs.planning import GRAPHS, plan
    from adfs.runtimes.delays import DEFAULT_TAU

    read = ReadOptions(form, label, weight, n_features, index_base)
    sizes = {"--samples": samples, "--features": features, "--kappa-s": kappa_s, "--kappa-b": kappa_b}
    if data is None:
        source: Problem | Facts = _facts(sizes)
    else:
        if any(value is not None for value in sizes.values()):
            raise InputError("--samples, --features, --kappa-s and --kappa-b are for a plan without data")
        from adfs.cli.simulate import make_setting

        source, _ = make_setting(data, read, loss, _sigma(loss, C, alpha), None, "path", None, seed)
    step, measured = _measure(source, measure, over_mpi)
    if step is not None and math.isnan(step):  # another rank than 0
        return 0
    found = plan(
        source,
        nodes=counts,
        network=network or GRAPHS,
        tau=measured if measured is not None else DEFAULT_TAU if tau is None else tau,
        tol=tol,
        methods=method or None,
        law=law,
        seconds_per_sample=step,
        seed=seed,
    )
    if out is not None:
        found.save_page(out)
    if figure is not None:
        options.save_figure(figure, found.plot())
    if as_json:
        print(found.to_json(), end="")
    else:
        _show(found)
    return 0


def _counts(words: str) -> list[int]:
    from adfs.errors import InputError

    try:
        counts = [int(word) for word in words.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InputError(f"--nodes takes whole numbers above 0 with commas, such as 1,4,16, got {words!r}")
    return counts


def _facts(sizes: dict[str, float | None]) -> Facts:
    from adfs.errors import InputError
    from adfs.planning import Facts

    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise InputError(f"give data, or its sizes and condition numbers: {', '.join(missing)} missing")
    n_samples, n_features, kappa_s, kappa_b = (value for value in sizes.values() if value is not None)
    return Facts(int(n_samples), int(n_features), kappa_s, kappa_b)


def _sigma(loss: str, C: float | None, alpha: float | None) -> float:
    """Return the strong convexity of the whole objective, divided by the weight of the data."""
    options.the_one_for(loss, C, alpha)
    return 1.0 / C if C is not None else 1.0 if alpha is None else alpha


def _measure(source: Problem | Facts, wanted: bool, over_mpi: bool) -> tuple[float | None, float | None]:
    """Return the seconds of a sample and τ, as far as they are measured; nan on ranks other than 0."""
    from adfs.runtimes.timing import step_seconds

    if not wanted:
        return None, None
    width, mean = source.n_features, source.entries_per_row
    entries = None if mean is None else max(1, round(mean))
    if not over_mpi:
        return step_seconds(width, entries), None
    from adfs.runtimes.mpi.netbench import bench_network

    with options.all_ranks() as world:
        rank = world.Get_rank()
        found = bench_network(world, (width,), entries=entries)
    if rank != 0:
        return math.nan, None
    import numpy as np

    return float(np.median(found.step)), float(found.tau[0])


def _show(found: Plan) -> None:
    """Print the facts, each method at its best, and the recommendation."""
    from rich.console import Console
    from rich.table import Table

    from adfs.pages import number

    facts = found.facts
    print(
        f"N = {facts.n_samples:,}, d = {facts.n_features:,}, κ_s = {number(facts.kappa_s)}, "
        f"κ_b = {number(facts.kappa_b)}, τ = {found.tau:.4g}"
    )
    # A file or a pipe has room for every column; a narrow screen has not.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    heads = found.heads
    kept = len(heads) if console.width >= _WIDE else len(heads) - 3
    table = Table(box=None, pad_edge=False)
    for head in heads[:kept]:
        table.add_column(head, justify="left" if head in ("method", "network") else "right", no_wrap=True)
    for one in found.best_of_each():
        table.add_row(*found.cells(one)[:kept], style="bold" if one is found.best else None)
    console.print(table)
    print()
    for sentence in found.sentences():
        print(sentence)


NET_BENCH_EXAMPLES = """\b
Examples:
  mpiexec -n 2 adfs net-bench
  mpiexec -n 4 --hostfile hosts adfs net-bench --numbers 124 --entries 14

\b
tau is what `adfs fit --tau` and `adfs.Parameters.tuned(tau=…)` take.
"""


def net_bench(
    numbers: Annotated[
        list[int] | None,
        typer.Option(
            "--numbers", "-d", help="Numbers in a message (the dimension); may be given several times."
        ),
    ] = None,
    entries: Annotated[
        int | None,
        typer.Option("--entries", help="Non-zeros per row, for the local step; dense when left out."),
    ] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds to wait for another rank.")] = 60.0,
    as_json: options.Json = False,
) -> int:
    """Measure exchanges between MPI ranks and the time of a local step, and print their ratio tau.

    Run it with the launcher, the ranks and the hosts of the run that it is for.
    """
    from adfs.errors import InputError
    from adfs.launching import launched_by_mpi
    from adfs.runtimes.mpi.netbench import WIDTHS, bench_network

    options.check_positive({"--deadline": deadline, "--entries": entries, "--numbers": min(numbers or [1])})
    if not launched_by_mpi():
        raise InputError(
            "net-bench measures messages between MPI ranks: start it as mpiexec -n 2 adfs net-bench"
        )
    widths = tuple(sorted(numbers)) if numbers else WIDTHS
    with options.all_ranks(deadline) as world:
        rank = world.Get_rank()
        found = bench_network(world, widths, entries=entries, deadline=deadline)
    if rank != 0:
        return 0
    table = found.table()
    if as_json:
        figures = {"latency": found.latency, "bandwidth": found.bandwidth}
        print(json.dumps({"hosts": found.hosts} | figures | {"rows": table.to_dict("records")}))
        return 0
    print(f"{len(found.hosts)} ranks on {len(set(found.hosts))} hosts, {len(found.pairs)} pairs")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(f"latency {1e6 * found.latency:.1f} µs, bandwidth {found.bandwidth / 1e6:.3g} MB/s one way")
    return 0
