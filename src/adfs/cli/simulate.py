"""``adfs simulate``, ``adfs compare``, ``adfs reproduce`` and ``adfs report``: runs on simulated networks."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adfs.cli.options import FileOptions, ProblemOptions, RunLimits, option
from adfs.errors import ExitCode, InputError, unknown_name
from adfs.files import check_outputs, write_whole

if TYPE_CHECKING:
    from adfs.experiments import Comparison, Grid, Results
    from adfs.network import Network
    from adfs.problem import Problem

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
    lost: Probability that an exchange fails; with --schedule poisson.
    """

    method: str = "adfs"
    parameters: str | None = None
    tau: float | None = None
    schedule: str = "iid"
    lost: float = 0.0


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

    from adfs import simulate as run_simulation  # with the rules of runs in stages
    from adfs.runtimes import Outcome

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
    assert table.y is not None  # a file without labels was refused
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


# --------------------------------------------------------------------------- comparisons


@dataclass(frozen=True)
class DataOptions:
    """The samples; the fields of `adfs.experiments.DataSpec`.

    source: A file; gaussians (the paper's); synthetic:900x10; sklearn:breast_cancer, …
    samples_per_node: So many random samples per node; all by default.
    normalise: none, rows or columns.
    """

    source: str | None = option(None, "--data")
    samples_per_node: int | None = option(None, least=1)
    normalise: str | None = None


@dataclass(frozen=True)
class ComparisonOptions:
    """The comparison; the fields of `adfs.experiments.Comparison`.

    network: cycle, torus, grid:3x3, …; or a file, .graphml or an edge list.
    n_nodes: Number of nodes, for a network whose name does not contain it.
    partition: random, contiguous or label.
    loss: A registered loss by name.
    sigma: σ_i, the strong convexity at every node.
    tau: Time of a message, one sample's computation taking 1.
    delays: exponential or fixed.
    lost: Probability that an exchange fails; for methods with schedule=poisson.
    methods: A method; may be repeated: adfs, msda, adfs:parameters=paper,label=Paper, …
    seeds: Number of seeds, from 0.
    target: Run until F - F* stays below this, in the mean over nodes.
    relative: Whether errors are divided by F(0).
    max_time: End a run after this idealised time.
    max_passes: End a run after so many passes over the data.
    title: Title of figures and page.
    imports: A module or .py file that registers methods or losses; may be repeated.
    """

    network: str | None = None
    n_nodes: int | None = option(None, "--nodes", least=1)
    partition: str | None = None
    loss: str | None = None
    sigma: float | None = None
    tau: float | None = None
    delays: str | None = None
    lost: float | None = None
    methods: list[str] | None = option(None, "--method")
    seeds: int | None = option(None, least=1)
    target: float | None = None
    relative: bool | None = option(None, "--relative/--absolute")
    max_time: float | None = None
    max_passes: float | None = None
    title: str | None = None
    imports: list[str] | None = option(None, "--import")


@dataclass(frozen=True)
class RunnerOptions:
    """How the runs are made; the parameters of `adfs.experiments.run_comparison`.

    jobs: Processes; as many as cores by default.
    fresh: Repeat the runs that are in the folder.
    progress: Progress on standard error; by default on a terminal only.
    """

    jobs: int | None = option(None, "--jobs", "-j", least=1)
    fresh: bool = False
    progress: bool | None = option(None, "--progress/--no-progress")

    def settings(self) -> dict[str, Any]:
        """Return the parameters, with the number of cores for the jobs if they are not given."""
        from joblib import cpu_count

        return asdict(self) | {"jobs": self.jobs or cpu_count()}


@dataclass(frozen=True)
class FolderOptions:
    """The folder of the results.

    out: Folder of the results; the file's name by default.
    traces: Format of the traces: csv or parquet.
    """

    out: Path | None = option(None, "--out", "-o")
    traces: str = "csv"


def compare(
    data: DataOptions,
    comparison: ComparisonOptions,
    runner: RunnerOptions,
    results: FolderOptions,
    file: Annotated[
        Path | None, typer.Argument(help="A comparison in TOML; the options override it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The values in [quick] instead of [grid].")] = False,
) -> None:
    """Compare methods on a problem and a network: traces, figures, a table, and a page.

    The comparison is described in a TOML file, by options, or both. Finished runs are kept in the folder: the
    same command continues after an interruption. A file with a table [grid] of lists is a comparison for each
    combination of their values, and the result is a table of who wins where.

    Examples
    --------
    adfs compare comparison.toml
    adfs compare comparison.toml --seeds 10 --tau 50 --out slow-network
    adfs compare --data sklearn:breast_cancer --network grid:3x3 --method adfs --method msda --seeds 3
    adfs compare map.toml --quick --jobs 2
    adfs compare covtype.toml --data covtype.libsvm.binary.scale.bz2 --jobs 4
    adfs compare comparison.toml --import mymethod.py --method mine --method adfs:parameters=paper
    """
    from adfs.experiments import Grid, run_comparison, run_grid, write_folder

    # A wrong format of the traces is reported now, not after hours of running.
    if results.traces not in ("csv", "parquet"):
        raise unknown_name("format of traces", results.traces, ("csv", "parquet"))
    if results.traces == "parquet" and find_spec("pyarrow") is None:
        raise InputError("parquet needs pyarrow: pip install pyarrow, or use --traces csv")
    # The file, the options, or both.
    described = _described(file, data, comparison, quick)
    # The folder is named after the file, which must not be overwritten.
    folder = results.out or Path(file.stem if file is not None and file.suffix == ".toml" else "comparison")
    if folder.is_file():
        raise InputError(f"{folder} is a file: name a folder for the results with --out")
    if isinstance(described, Grid):
        run_grid(described, folder, origin=file, **runner.settings())
        print((folder / "winners.md").read_text(encoding="utf-8"))
        print(folder / "times.csv")
        return
    runs = run_comparison(described, folder, origin=file, **runner.settings())
    write_folder(runs, folder, traces=results.traces)
    _show_times(runs)
    print(f"\n{folder / 'report.html'}")


def _described(
    file: Path | None, data: DataOptions, comparison: ComparisonOptions, quick: bool
) -> Comparison | Grid:
    """Return the comparison of a file, of options, or of both."""
    from adfs.experiments import Comparison, Grid, read_comparison, read_grid
    from adfs.experiments.inputs import read_table

    # Only the options that were given override the file.
    table = {name: value for name, value in asdict(comparison).items() if value is not None}
    source = {name: value for name, value in asdict(data).items() if value is not None}
    if source:
        table["data"] = source
    over_grid = file is not None and "grid" in read_table(file)
    if quick and not over_grid:
        raise InputError("--quick is for a file with the tables [grid] and [quick]")
    described: Comparison | Grid
    # A file may be complete without any option; options alone must name the data.
    if file is not None:
        described = read_grid(file, table, quick=quick) if over_grid else read_comparison(file, table)
    elif source and data.source is None:
        raise InputError("--data is missing: a file, gaussians, synthetic:900x10, or sklearn:breast_cancer")
    else:
        described = Comparison.from_table(table, base=Path.cwd())
    # Importing runs code, so the command reports it.
    imports = described.table.get("imports", ()) if isinstance(described, Grid) else described.imports
    if imports:
        print(f"adfs: imports {', '.join(imports)}", file=sys.stderr)
    return described


def _show_times(results: Results) -> None:
    """Print the times from which each method stays below each error."""
    from adfs.experiments.results import time_table

    # The same table as in times.md.
    comparison = results.comparison
    over = f", medians of {len(comparison.seeds)} seeds," if len(comparison.seeds) > 1 else ""
    print(f"{comparison.title}: idealised time{over} until {results.error_name} stays below …")
    print(time_table(results).to_string())


@dataclass(frozen=True)
class ReproduceOptions:
    """The paper's experiments.

    quick: Scaled-down settings and one seed, for a first look.
    seeds: How many seeds; 5 by default, 1 if quick.
    out: Folder of the results (reproduce, or reproduce-quick).
    """

    quick: bool = False
    seeds: int | None = option(None, least=1)
    out: Path | None = option(None, "--out", "-o")


def reproduce(
    which: Annotated[str, typer.Argument(help="small, large, many-samples, table or all.")],
    runner: RunnerOptions,
    options: ReproduceOptions,
) -> None:
    """Run the paper's experiments again, and report which of its claims hold in these runs.

    small: 2 x 2 nodes with 1000 samples each; large: 10 x 10 with 300; many-samples: 7 x 7 with 10,000;
    table: Table 1, and the time per step against Theorem 4's bound. Finished runs are kept: the same command
    continues after an interruption.

    Examples
    --------
    adfs reproduce all --quick
    adfs reproduce large --seeds 3 --jobs 4
    adfs reproduce table
    """
    from adfs.experiments.paper import reproduce as run_paper
    from adfs.experiments.paper import step_time_text, table_text

    quick = options.quick
    folder = options.out or Path("reproduce-quick" if quick else "reproduce")
    reproduction = run_paper(which, folder, quick=quick, seeds=options.seeds, **runner.settings())
    # Each setting has its own folder and page.
    for name, results in reproduction.results.items():
        _show_times(results)
        print(f"{folder / name / 'report.html'}\n")
    # Only `table` and `all` evaluate Table 1 and Theorem 4.
    if not reproduction.table.empty:
        print("Table 1: idealised time to divide the error by e; predictions leave constants out")
        print(table_text(reproduction.table).to_string())
        print("\nTheorem 4: time per step on the clock of its proof, its bound where its assumption holds")
        print(step_time_text(reproduction.step_times).to_string(index=False), end="\n\n")
    if reproduction.findings:
        print("Claims" + (", on scaled-down settings" if quick else ""))
        for finding in reproduction.findings:
            print(f"  {finding.verdict:<14} {finding.text}\n{'':17}{finding.detail}")
    if which == "all":
        print(f"\n{folder / 'index.html'}")


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that adfs compare or adfs reproduce wrote.")],
) -> None:
    """Make the page, the figures and the table of a comparison again, from the runs in its folder.

    A report never imports or runs the modules that the folder's comparison.toml names.

    Examples
    --------
    adfs report comparison
    adfs report reproduce/large
    """
    from adfs.experiments import remake_folder

    remake_folder(folder)
    print(folder / "report.html")
