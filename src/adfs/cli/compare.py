"""``adfs compare``, ``adfs reproduce`` and ``adfs report``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.experiments import Results

EXAMPLES = """\b
Examples:
  adfs compare comparison.toml
  adfs compare comparison.toml --seeds 10 --tau 50 --out slow-network
  adfs compare --data sklearn:breast_cancer --network grid:3x3 --method adfs --method msda --seeds 3
  adfs compare covtype.toml --data covtype.libsvm.binary.scale.bz2 --jobs 4
  adfs compare comparison.toml --import mymethod.py --method mine --method adfs:parameters=paper
"""


def run(
    file: Annotated[
        Path | None, typer.Argument(help="A comparison in TOML; flags go before what it says.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="A file; gaussians (the paper's); synthetic:900x10; sklearn:breast_cancer, …"
        ),
    ] = None,
    samples_per_node: Annotated[
        int | None,
        typer.Option("--samples-per-node", min=1, help="So many random samples per node; all by default."),
    ] = None,
    normalise: Annotated[str | None, typer.Option("--normalise", help="none, rows or columns.")] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", help="cycle, torus, grid:3x3, …; or a file, .graphml or an edge list."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Number of nodes, for a network whose name does not say it."),
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="random, contiguous or label.")] = None,
    loss: Annotated[
        str | None,
        typer.Option("--loss", help="logistic, squared, huber, …, or one that an import registers."),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", help="σ_i, the strong convexity at every node.")
    ] = None,
    tau: Annotated[
        float | None, typer.Option("--tau", help="Time of a message, one sample's computation taking 1.")
    ] = None,
    delays: Annotated[str | None, typer.Option("--delays", help="exponential or fixed.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="A method, once for each: adfs, msda, adfs:parameters=paper,label=Paper, …"
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", help="Run until F - F* stays below this, in the mean over nodes."),
    ] = None,
    relative: Annotated[
        bool | None, typer.Option("--relative/--absolute", help="Whether errors are divided by F(0).")
    ] = None,
    max_time: Annotated[
        float | None, typer.Option("--max-time", help="Give a run up after this idealised time.")
    ] = None,
    max_passes: Annotated[
        float | None, typer.Option("--max-passes", help="Give a run up after so many passes over the data.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title of figures and page.")] = None,
    imports: options.Imports = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the results; the file's name by default.")
    ] = None,
    traces: Annotated[str, typer.Option("--traces", help="Format of the traces: csv or parquet.")] = "csv",
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    progress: options.Progress = None,
) -> int:
    """Compare methods on a problem and a network: traces, figures, a table, and a page.

    The comparison is described in a TOML file, by flags, or both. Finished runs are kept in the folder: the
    same command goes on where it was interrupted.
    """
    from adfs.errors import InputError, unknown_name
    from adfs.experiments import Comparison, read_comparison, run_comparison, write_folder
    from adfs.experiments.runner import RunsInterruptedError, available_cores

    if traces not in ("csv", "parquet"):
        raise unknown_name("format of traces", traces, ("csv", "parquet"))
    if traces == "parquet" and find_spec("pyarrow") is None:
        raise InputError("parquet needs pyarrow: pip install pyarrow, or use --traces csv")
    table: dict[str, object] = {
        "network": network,
        "n_nodes": nodes,
        "partition": partition,
        "loss": loss,
        "sigma": sigma,
        "tau": tau,
        "delays": delays,
        "methods": method,
        "seeds": seeds,
        "target": target,
        "relative": relative,
        "max_time": max_time,
        "max_passes": max_passes,
        "title": title,
        "imports": imports,
    }
    table = {key: value for key, value in table.items() if value is not None}
    source = {"source": data, "samples_per_node": samples_per_node, "normalise": normalise}
    source = {key: value for key, value in source.items() if value is not None}
    if source:
        table["data"] = source
    if file is not None:
        comparison = read_comparison(file, table)
    elif not table:
        raise InputError(
            "say what to compare: a TOML file, or --data, --network and --method; see adfs compare --help"
        )
    else:
        if "source" not in source and source:
            raise InputError(
                "--data is missing: a file, gaussians, synthetic:900x10, or sklearn:breast_cancer"
            )
        comparison = Comparison.from_table(table, base=Path.cwd())
    if comparison.imports:
        print(f"adfs: imports {', '.join(comparison.imports)}", file=sys.stderr)
    try:
        comparison.check_names()
    except InputError as error:
        raise InputError(f"{file}: {error}" if file is not None else str(error)) from None
    folder = out or Path(file.stem if file is not None and file.suffix == ".toml" else "comparison")
    if folder.resolve() == (file or Path()).resolve() or folder.is_file():
        raise InputError(f"{folder} is a file: name a folder for the results with --out")
    try:
        results = run_comparison(
            comparison, folder, jobs=jobs or available_cores(), fresh=fresh, progress=progress, origin=file
        )
    except RunsInterruptedError as stopped:
        return tell_interruption(stopped)
    write_folder(results, folder, traces=traces)
    _show_times(results)
    print(f"\n{folder / 'report.html'}")
    return 0


def _show_times(results: Results) -> None:
    """Print when each method came to stay below each error."""
    from adfs.experiments.results import time_table

    comparison = results.comparison
    over = f", medians of {len(comparison.seeds)} seeds," if len(comparison.seeds) > 1 else ""
    unit = "(F - F*)/F(0)" if comparison.relative else "F - F*"
    print(f"{comparison.title}: idealised time{over} until {unit} stays below …")
    print(time_table(results).to_string())


def tell_interruption(stopped: Exception) -> int:
    """Say that runs were interrupted and what is kept, and return the exit code for it."""
    from adfs.cli.app import INTERRUPTED

    print(f"adfs: {stopped}", file=sys.stderr)
    return INTERRUPTED


REPRODUCE_EXAMPLES = """\b
Examples:
  adfs reproduce all --quick
  adfs reproduce large --seeds 3 --jobs 4
  adfs reproduce table
"""


def reproduce(
    which: Annotated[str, typer.Argument(help="small, large, many-samples, table or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled-down settings and one seed, for a first look.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="How many seeds; 5 by default, 1 if quick.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the results (reproduce, or reproduce-quick)."),
    ] = None,
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    progress: options.Progress = None,
) -> int:
    """Run the paper's experiments again, and say which of its claims these runs bear out.

    small: 2 x 2 nodes with 1000 samples each; large: 10 x 10 with 300; many-samples: 7 x 7 with 10,000;
    table: Table 1, and the time per step against Theorem 4's bound. Finished runs are kept: the same command
    goes on where it was interrupted.
    """
    from adfs.experiments.paper import reproduce as run_paper
    from adfs.experiments.paper import step_time_text, table_text
    from adfs.experiments.runner import RunsInterruptedError, available_cores

    folder = out or Path("reproduce-quick" if quick else "reproduce")
    try:
        found = run_paper(
            which,
            folder,
            quick=quick,
            seeds=seeds,
            jobs=jobs or available_cores(),
            fresh=fresh,
            progress=progress,
        )
    except RunsInterruptedError as stopped:
        return tell_interruption(stopped)
    for name, results in found.results.items():
        _show_times(results)
        print(f"{folder / name / 'report.html'}\n")
    if not found.table.empty:
        print("Table 1: idealised time to divide the error by e; predictions leave constants out")
        print(table_text(found.table).to_string())
        print(
            "\nTheorem 4: time per step on the clock of its proof, and its bound where what it assumes holds"
        )
        print(step_time_text(found.step_times).to_string(index=False))
        print()
    if found.findings:
        print("Claims" + (", on scaled-down settings" if quick else ""))
        for one in found.findings:
            print(f"  {one.verdict:<14} {one.text}\n{'':17}{one.detail}")
    if which == "all":
        print(f"\n{folder / 'index.html'}")
    return 0


REPORT_EXAMPLES = """\b
Examples:
  adfs report comparison
  adfs report reproduce/large
"""


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that adfs compare or adfs reproduce wrote.")],
) -> None:
    """Make the page, the figures and the table of a comparison again, from the runs in its folder.

    Nothing that the folder names is imported or run.
    """
    from adfs.experiments import remake_folder

    remake_folder(folder)
    print(folder / "report.html")
