"""The options of the commands, in records, and the helper that makes commands out of functions of records.

A field of a record is an option. The docstring of the record has the help of the option, the name of the
field is the parameter that it sets, and the field's default is its default. Nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from adfs.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mpi4py import MPI


def option(default: Any, *names: str, least: int | None = None, positive: bool = False) -> Any:
    """Return a field of a record with names of its own, or with a check of its value.

    Without ``names`` the option has the name of the field: ``--max-passes`` for ``max_passes``.
    """
    return dataclasses.field(default=default, metadata={"names": names, "least": least, "positive": positive})


# --------------------------------------------------------------------------- options of several commands


@dataclass(frozen=True)
class FileOptions:
    """How a file is read; the fields of `adfs.data.ReadOptions`.

    form: auto (by the file's ending), libsvm, npz, csv or parquet.
    label: Label column of CSV and parquet: a name, or a number counted from 0 (or from the end, -1).
    n_features: Number of features of LIBSVM text.
    index_base: First index of LIBSVM text, 0 or 1; 1 unless an index 0 appears.
    drop: Columns of CSV and parquet to leave out, such as a,b.
    columns: Columns of CSV and parquet to keep; the others are left out.
    categories: Columns of numbers that are names of something, such as postal codes.
    missing: mean (missing numbers become the mean, and a column marks them) or error.
    reference_levels: Leave out the most frequent level of each category; coefficients are differences from
        it.
    no_header: The first line of CSV is a sample.
    decimal: Decimal mark of CSV, a point or a comma.
    """

    form: str = option("auto", "--format")
    label: str | None = None
    n_features: int | None = option(None, least=1)
    index_base: int | None = None
    drop: str | None = None
    columns: str | None = None
    categories: str | None = None
    missing: str = "mean"
    reference_levels: bool = option(False, "--reference-levels")
    no_header: bool = option(False, "--no-header")
    decimal: str = "."


@dataclass(frozen=True)
class WeightedFileOptions(FileOptions):
    """The same for commands that know sample weights.

    weight: Column of sample weights of CSV and parquet.
    """

    weight: str | None = None


@dataclass(frozen=True)
class NodeOptions:
    """The nodes and their network.

    n_nodes: Number of nodes that share the samples (default 1).
    network: How the nodes are linked: cycle, torus, grid:3x3, …, or a file of edges.
    partition: contiguous (the default), random or label.
    """

    n_nodes: int | None = option(None, "--nodes", least=1)
    network: str = "cycle"
    partition: str | None = None


@dataclass(frozen=True)
class ProblemOptions(NodeOptions):
    """The problem and the network of a simulation.

    loss: A registered loss by name.
    sigma: σ_i, the strong convexity at every node.
    seed: Same seed, same bits.
    """

    loss: str = "logistic"
    sigma: float = option(1.0, positive=True)
    seed: int = option(0, least=0)


@dataclass(frozen=True)
class RunLimits:
    """The time, the checkpoints and the progress of a run; fields of `adfs.runtimes.RunOptions`.

    seconds: Stop after so many seconds of running, including those before a --resume.
    checkpoint: Save the state of the run here every minute and at the end.
    resume: Continue from the checkpoint if it exists.
    progress: Progress on standard error; by default on a terminal only.
    """

    seconds: float | None = option(None, "--max-seconds", positive=True)
    checkpoint: Path | None = None
    resume: bool = False
    progress: bool | None = option(None, "--progress/--no-progress")


# --------------------------------------------------------------------------- options of adfs fit


@dataclass(frozen=True)
class ModelOptions:
    """The parameters of the estimators, by their names.

    loss: A registered loss by name.
    C: Classification: minimise C Σ w·loss + ½‖θ‖² (default 1).
    alpha: Regression: minimise Σ w·loss + (alpha/2)‖θ‖², as Ridge (default 1).
    penalty: l2, or elasticnet with --l1-ratio.
    l1_ratio: Share of the l1 norm in the penalty (elastic net); 1 is the lasso.
    fit_intercept: Learn an intercept, which is not penalised.
    intercept_scaling: Penalise the intercept as liblinear does: it is the coefficient of a column of this
        value.
    standardize: Scale the columns first; the coefficients are for the original columns.
    inference: Print coefficients with standard errors, z, P>|z| and intervals.
    class_weight: balanced, or nothing.
    multi_class: auto, ovr, or multinomial.
    delta: Of the huber loss.
    quantile: Of the quantile losses.
    width: Of the smoothed losses.
    epsilon: Of the epsilon_insensitive loss.
    power: Of the tweedie loss, between 1 and 2.
    method: auto (the method with the least predicted work), adfs, adfs-block, newton, lbfgs, qning, msda, …;
        interior-point or ns-adfs for losses that are not smooth.
    parameters: tuned (the default), paper or adaptive.
    tau: Time of a message, one sample's computation taking 1, for tuned parameters; over MPI also: measure.
    schedule: iid (the paper's) or poisson.
    tol: Stop at this certified relative duality gap.
    max_iter: Stop after so many passes over the data.
    """

    # The objective.
    loss: str = "logistic"
    C: float | None = option(None, "-C")
    alpha: float | None = None
    # The penalty and the intercept.
    penalty: str = "l2"
    l1_ratio: float = 0.0
    fit_intercept: bool = option(True, "--intercept/--no-intercept")
    intercept_scaling: float | None = None
    # Data and inference.
    standardize: bool = False
    inference: bool = option(False, "--summary")
    class_weight: str | None = None
    multi_class: str = "auto"
    # Constants of losses.
    delta: float = 1.0
    quantile: float = 0.5
    width: float = 0.5
    epsilon: float = 0.1
    power: float = 1.5
    # The method and where it stops.
    method: str = "auto"
    parameters: str | None = None
    tau: str | None = None
    schedule: str = "iid"
    tol: float = option(1e-6, positive=True)
    max_iter: float = option(10_000.0, "--max-passes", positive=True)


@dataclass(frozen=True)
class SearchOptions:
    """Cross-validation over the weight of the penalty.

    cv: Choose -C or --alpha with so many folds, drawn inside each node's rows.
    C_grid: With --cv: the values of C to try, 0.01,0.1,1; with --l1-ratio also how many, 20.
    alpha_grid: With --cv: the values of alpha to try, or how many.
    l1_ratios: With --cv: the values of --l1-ratio to try, 0.1,0.5,1.
    scoring: With --cv: neg_log_loss, neg_mean_squared_error, neg_mean_poisson_deviance, … instead of the
        share of right classes, R² or D².
    """

    cv: int | None = option(None, least=2)
    C_grid: str | None = None
    alpha_grid: str | None = None
    l1_ratios: str | None = None
    scoring: str | None = None


@dataclass(frozen=True)
class FitFileOptions(WeightedFileOptions):
    """How the files of a fit are read; the fields of `adfs.data.ReadOptions`.

    offset: Column of CSV and parquet that is added to xᵀθ + b, as log exposure.
    """

    offset: str | None = None


@dataclass(frozen=True)
class FitNodeOptions(NodeOptions):
    """The nodes of a fit, and the processes that hold them.

    deadline: With several processes: give up when one is silent for so many seconds.
    peers: A TOML file with the addresses of several processes, each started by hand with its --rank.
    rank: With --peers: the place of this process in the list of addresses, counted from 0.
    """

    deadline: float = option(60.0, positive=True)
    peers: Path | None = None
    rank: int | None = option(None, least=0)


@dataclass(frozen=True)
class FitRunOptions(RunLimits):
    """Options of the run itself; the fields of `adfs.runtimes.RunOptions`.

    checkpoint_every: Seconds between two checkpoints.
    seed: Same seed, same bits.
    """

    checkpoint_every: float = option(60.0, positive=True)
    seed: int = option(0, least=0)


@dataclass(frozen=True)
class FitOutputOptions:
    """The results of a fit, besides the model.

    out: File of the model; by default standard output.
    history: Write the recorded gaps, work and times here, as CSV.
    timeline: Over MPI: draw who waited for whom here (PNG, PDF or SVG).
    robust: With --summary: sandwich standard errors (HC0), valid if the model is wrong.
    as_json: Print one JSON object.
    imports: A module or .py file that registers methods or losses; may be repeated.
    """

    out: Path | None = option(None, "--out", "-o")
    history: Path | None = None
    timeline: Path | None = None
    robust: bool = False
    as_json: bool = option(False, "--json")
    imports: list[str] | None = option(None, "--import")


# --------------------------------------------------------------------------- records and commands

_FIT_RECORDS = (ModelOptions, SearchOptions, FitFileOptions, FitNodeOptions, FitRunOptions, FitOutputOptions)


def option_names(*records: Any) -> dict[str, str]:
    """Return the option that sets each field of the records, those of ``adfs fit`` by default.

    Examples
    --------
    >>> names = option_names(ModelOptions)
    >>> names["max_iter"], names["inference"], names["fit_intercept"]
    ('--max-passes', '--summary', '--intercept')
    """
    fields = [entry for record in records or _FIT_RECORDS for entry in dataclasses.fields(record)]
    return {entry.name: _names(entry)[0].partition("/")[0] for entry in fields}


def _names(entry: dataclasses.Field[Any]) -> tuple[str, ...]:
    return entry.metadata.get("names") or ("--" + entry.name.replace("_", "-"),)


def _parameters(record: Any, helps: Mapping[str, str]) -> list[inspect.Parameter]:
    """Return the fields of a record as parameters of a function; ``helps`` replace those of the docstring."""
    # A help is one line of the docstring, name: text, or several with the others indented.
    texts: dict[str, str] = {}
    for kind in reversed(record.__mro__):
        found = re.findall(r"^(\w+): (.+(?:\n +.+)*)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
        texts |= {name: " ".join(text.split()) for name, text in found}
    texts |= helps
    hints, parameters = get_type_hints(record), []
    for entry in dataclasses.fields(record):
        help_text, least = texts.get(entry.name), entry.metadata.get("least")
        hint: Any = hints[entry.name]
        annotation = Annotated[hint, typer.Option(*_names(entry), help=help_text, min=least)]
        by_name = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(entry.name, by_name, default=entry.default, annotation=annotation)
        )
    return parameters


def flatten(command: Callable[..., Any], helps: Mapping[str, str]) -> Callable[..., Any]:
    """Return a command with the fields of its records as parameters, as Typer takes it."""
    # Typer sees the fields; the command gets the records, built from the values of their fields.
    parameters: list[inspect.Parameter] = []
    records: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            records[parameter.name] = parameter.annotation
            parameters += _parameters(parameter.annotation, helps)
        else:
            # Typer passes everything by name, so the order of parameters with and without defaults is free.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def flat(**given: Any) -> Any:
        made = {}
        for name, record in records.items():
            for entry in dataclasses.fields(record):
                value = given[entry.name]
                if entry.metadata.get("positive") and value is not None and not value > 0.0:
                    raise InputError(f"{option_names(record)[entry.name]} must be above 0, got {value:g}")
            made[name] = record(**{entry.name: given.pop(entry.name) for entry in dataclasses.fields(record)})
        return command(**given, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


# --------------------------------------------------------------------------- helpers of commands


def read_numbers(option: str, text: str, kind: type[int] | type[float], example: str) -> list[Any]:
    """Return the numbers above 0 of an option such as ``--nodes 1,4,16``."""
    # A wrong word becomes 0, which the check reports.
    try:
        values = [kind(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if not all(0 < value < math.inf for value in values):
        whole = "whole numbers" if kind is int else "numbers"
        raise InputError(f"{option} takes {whole} above 0 with commas, such as {example}, got {text!r}")
    return values


def check_figure(option: str, path: Path | None) -> None:
    """Raise unless the name of a figure's file has a suffix that can be drawn."""
    if path is not None and path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{option} draws PNG, PDF or SVG, and {path} ends in none of .png, .pdf, .svg")


def save_figure(path: Path, axes: Axes) -> None:
    """Write the figure that contains the axes."""
    from adfs.files import write_whole

    figure = axes.get_figure(root=True)
    assert figure is not None
    form = path.suffix.lower().removeprefix(".")
    write_whole(path, lambda stream: figure.savefig(stream, format=form))


@contextlib.contextmanager
def all_ranks(deadline: float) -> Iterator[MPI.Intracomm]:
    """Give a command that an MPI launcher started the communicator of all ranks, and end MPI after it.

    A rank that does not start or end within ``deadline`` seconds ends the launch.
    """
    from adfs.launching import load_mpi

    try:
        MPI = load_mpi(deadline)
    except ImportError:
        raise InputError(
            "these are several MPI processes and mpi4py is missing: pip install '.[mpi]' in the checkout of "
            "adfs, or '.[hpc]' on a site's own MPI"
        ) from None
    from adfs.runtimes.mpi.faults import as_one_program

    with as_one_program(MPI.COMM_WORLD, deadline):
        yield MPI.COMM_WORLD


def penalty_weight(loss: str, record: Any, names: tuple[str, str] = ("C", "alpha")) -> Any:
    """Return the field of a record that the loss takes: the first for classes, the second for numbers."""
    from adfs.problem.losses import LOSSES

    known = LOSSES.get(loss)  # an unknown loss is reported when the problem is built
    taken, other = names[::-1] if known is not None and known.task == "regression" else names
    if getattr(record, other) is not None:
        given = option_names(record)
        raise InputError(f"the loss {loss!r} takes {given[taken]}, not {given[other]}")
    return getattr(record, taken)
