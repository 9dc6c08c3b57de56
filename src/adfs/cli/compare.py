"""``adfs compare``, ``adfs reproduce`` and ``adfs report``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adfs.cli import options
from adfs.cli.options import option

if TYPE_CHECKING:
    from adfs.experiments import Comparison, Results

EXAMPLES = """\b
Examples:
  adfs compare comparison.toml
  adfs compare comparison.toml --seeds 10 --tau 50 --out slow-network
  adfs compare --data sklearn:breast_cancer --network grid:3x3 --method adfs --method msda --seeds 3
  adfs compare covtype.toml --data covtype.libsvm.binary.scale.bz2 --jobs 4
  adfs compare comparison.toml --import mymethod.py --method mine --method adfs:parameters=paper
"""


@dataclass(frozen=True)
class DataOptions:
    """The samples; the fields of `adfs.experiments.DataSpec`."""

    source: str | None = option(
        None, "--data", help="A file; gaussians (the paper's); synthetic:900x10; sklearn:breast_cancer, …"
    )
    samples_per_node: int | None = option(
        None, "--samples-per-node", help="So many random samples per node; all by default.", min=1
    )
    normalise: str | None = option(None, "--normalise", help="none, rows or columns.")


@dataclass(frozen=True)
class ComparisonOptions:
    """The comparison; the fields of `adfs.experiments.Comparison`."""

    network: str | None = option(
        None, "--network", help="cycle, torus, grid:3x3, …; or a file, .graphml or an edge list."
    )
    n_nodes: int | None = option(
        None, "--nodes", help="Number of nodes, for a network whose name does not contain it.", min=1
    )
    partition: str | None = option(None, "--partition", help="random, contiguous or label.")
    loss: str | None = option(
        None, "--loss", help="logistic, squared, huber, …, or one that an import registers."
    )
    sigma: float | None = option(None, "--sigma", help="σ_i, the strong convexity at every node.")
    tau: float | None = option(None, "--tau", help="Time of a message, one sample's computation taking 1.")
    delays: str | None = option(None, "--delays", help="exponential or fixed.")
    methods: list[str] | None = option(
        None, "--method", help="A method; may be repeated: adfs, msda, adfs:parameters=paper,label=Paper, …"
    )
    seeds: int | None = option(None, "--seeds", help="Number of seeds, from 0.", min=1)
    target: float | None = option(
        None, "--target", help="Run until F - F* stays below this, in the mean over nodes."
    )
    relative: bool | None = option(None, "--relative/--absolute", help="Whether errors are divided by F(0).")
    max_time: float | None = option(None, "--max-time", help="End a run after this idealised time.")
    max_passes: float | None = option(
        None, "--max-passes", help="End a run after so many passes over the data."
    )
    title: str | None = option(None, "--title", help="Title of figures and page.")
    imports: options.Imports = None


@dataclass(frozen=True)
class RunnerOptions:
    """How the runs are made; the parameters of `adfs.experiments.run_comparison`."""

    jobs: int | None = option(None, "--jobs", "-j", help="Processes; as many as cores by default.", min=1)
    fresh: bool = option(False, "--fresh", help="Repeat the runs that are in the folder.")
    progress: options.Progress = None

    def settings(self) -> dict[str, Any]:
        """Return the parameters, with the number of cores for the jobs if they are not given."""
        from adfs.experiments.runner import available_cores

        return asdict(self) | {"jobs": self.jobs or available_cores()}


def run(
    data: DataOptions,
    comparison: ComparisonOptions,
    runner: RunnerOptions,
    file: Annotated[
        Path | None, typer.Argument(help="A comparison in TOML; the options override it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the results; the file's name by default.")
    ] = None,
    traces: Annotated[str, typer.Option("--traces", help="Format of the traces: csv or parquet.")] = "csv",
) -> int:
    """Compare methods on a problem and a network: traces, figures, a table, and a page.

    The comparison is described in a TOML file, by options, or both. Finished runs are kept in the folder: the
    same command continues after an interruption.
    """
    from adfs.errors import InputError, unknown_name
    from adfs.experiments import run_comparison, write_folder
    from adfs.experiments.runner import RunsInterruptedError

    # A wrong format of the traces is reported now, not after hours of running.
    if traces not in ("csv", "parquet"):
        raise unknown_name("format of traces", traces, ("csv", "parquet"))
    if traces == "parquet" and find_spec("pyarrow") is None:
        raise InputError("parquet needs pyarrow: pip install pyarrow, or use --traces csv")
    # The file, the options, or both.
    described = _described(file, data, comparison)
    # The folder is named after the file, which must not be overwritten.
    folder = out or Path(file.stem if file is not None and file.suffix == ".toml" else "comparison")
    if folder.resolve() == (file or Path()).resolve() or folder.is_file():
        raise InputError(f"{folder} is a file: name a folder for the results with --out")
    # Ctrl-C ends the processes and keeps the finished runs.
    try:
        results = run_comparison(described, folder, origin=file, **runner.settings())
    except RunsInterruptedError as stopped:
        return _report_interruption(stopped)
    write_folder(results, folder, traces=traces)
    _show_times(results)
    print(f"\n{folder / 'report.html'}")
    return 0


def _described(file: Path | None, data: DataOptions, comparison: ComparisonOptions) -> Comparison:
    """Return the comparison of a file, of options, or of both, and check the names in it."""
    from adfs.errors import InputError
    from adfs.experiments import Comparison, read_comparison

    # Only the options that were given override the file.
    table = {name: value for name, value in asdict(comparison).items() if value is not None}
    source = {name: value for name, value in asdict(data).items() if value is not None}
    if source:
        table["data"] = source
    # A file may be complete without any option; options alone must name the data.
    if file is not None:
        described = read_comparison(file, table)
    elif not table:
        raise InputError("give a TOML file, or --data, --network and --method; see adfs compare --help")
    elif source and data.source is None:
        raise InputError("--data is missing: a file, gaussians, synthetic:900x10, or sklearn:breast_cancer")
    else:
        described = Comparison.from_table(table, base=Path.cwd())
    # Importing runs code, so the command reports it.
    if described.imports:
        print(f"adfs: imports {', '.join(described.imports)}", file=sys.stderr)
    # Names of losses and methods are known only after the imports.
    try:
        described.check_names()
    except InputError as error:
        raise InputError(f"{file}: {error}" if file is not None else str(error)) from None
    return described


def _show_times(results: Results) -> None:
    """Print the times from which each method stays below each error."""
    from adfs.experiments.results import time_table

    # The same table as in times.md.
    comparison = results.comparison
    over = f", medians of {len(comparison.seeds)} seeds," if len(comparison.seeds) > 1 else ""
    unit = "(F - F*)/F(0)" if comparison.relative else "F - F*"
    print(f"{comparison.title}: idealised time{over} until {unit} stays below …")
    print(time_table(results).to_string())


def _report_interruption(stopped: Exception) -> int:
    """Print that the finished runs are kept, and return the exit code."""
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
    runner: RunnerOptions,
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
) -> int:
    """Run the paper's experiments again, and report which of its claims hold in these runs.

    small: 2 x 2 nodes with 1000 samples each; large: 10 x 10 with 300; many-samples: 7 x 7 with 10,000;
    table: Table 1, and the time per step against Theorem 4's bound. Finished runs are kept: the same command
    continues after an interruption.
    """
    from adfs.experiments.paper import reproduce as run_paper
    from adfs.experiments.paper import step_time_text, table_text
    from adfs.experiments.runner import RunsInterruptedError

    folder = out or Path("reproduce-quick" if quick else "reproduce")
    try:
        reproduction = run_paper(which, folder, quick=quick, seeds=seeds, **runner.settings())
    except RunsInterruptedError as stopped:
        return _report_interruption(stopped)
    # Each setting has its own folder and page.
    for name, results in reproduction.results.items():
        _show_times(results)
        print(f"{folder / name / 'report.html'}\n")
    # Only `table` and `all` evaluate Table 1 and Theorem 4.
    if not reproduction.table.empty:
        print("Table 1: idealised time to divide the error by e; predictions leave constants out")
        print(table_text(reproduction.table).to_string())
        print(
            "\nTheorem 4: time per step on the clock of its proof, and its bound where its assumption holds"
        )
        print(step_time_text(reproduction.step_times).to_string(index=False))
        print()
    if reproduction.findings:
        print("Claims" + (", on scaled-down settings" if quick else ""))
        for finding in reproduction.findings:
            print(f"  {finding.verdict:<14} {finding.text}\n{'':17}{finding.detail}")
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

    A report never imports or runs the modules that the folder's comparison.toml names.
    """
    from adfs.experiments import remake_folder

    remake_folder(folder)
    print(folder / "report.html")
