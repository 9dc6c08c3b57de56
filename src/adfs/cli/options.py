"""The options of the commands, in records, and the helper that makes commands out of functions of records.

A field of a record is an option: its annotation has the option's name and help, its default is the option's
default, and its name is the name of the parameter that the option sets. Nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mpi4py import MPI


def option(default: Any, *names: str, help: str, min: int | None = None) -> Any:  # noqa: A002
    """Return a field of a record that is an option of a command."""
    return dataclasses.field(default=default, metadata={"option": typer.Option(*names, help=help, min=min)})


# --------------------------------------------------------------------------- options of several commands

# Samples.
Data = Annotated[
    str,
    typer.Argument(
        help="A file; sklearn:breast_cancer, digits, …; or synthetic:900x10 (samples x features)."
    ),
]
Form = Annotated[
    str, typer.Option("--format", help="auto (by the file's ending), libsvm, npz, csv or parquet.")
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="Label column of CSV and parquet: a name, or a number counted from 0 (or from the end, -1).",
    ),
]
Weight = Annotated[str | None, typer.Option("--weight", help="Column of sample weights of CSV and parquet.")]
OffsetOfModel = Annotated[
    str | None,
    typer.Option("--offset", help="Column of the offsets, if its name differs from the training data."),
]
NoOffset = Annotated[
    bool, typer.Option("--no-offset", help="Leave out the offset that the model was fitted with.")
]
IgnoreExtra = Annotated[
    bool, typer.Option("--ignore-extra-features", help="Leave out features that the model does not know.")
]
# Problem and network.
Loss = Annotated[
    str,
    typer.Option(
        "--loss",
        help="A registered loss by name.",  # `show_losses` puts their names here
    ),
]
Network = Annotated[
    str,
    typer.Option(
        "--network", help="How the nodes are linked: cycle, torus, grid:3x3, …, or a file of edges."
    ),
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes that share the samples (default 1).")
]
Partition = Annotated[
    str | None, typer.Option("--partition", help="contiguous (the default), random or label.")
]
# Method and run.
Parameters = Annotated[
    str | None, typer.Option("--parameters", help="tuned (the default), paper or adaptive.")
]
Schedule = Annotated[str, typer.Option("--schedule", help="iid (the paper's) or poisson.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same bits.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds", help="Stop after so many seconds of running, including those before a --resume."
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Save the state of the run here every minute and at the end."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint if it exists.")]
# Output.
History = Annotated[
    Path | None, typer.Option("--history", help="Write the recorded gaps, work and times here, as CSV.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress", help="Progress on standard error; by default on a terminal only."
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="A module or .py file that registers methods or losses; may be repeated."),
]
Deadline = Annotated[
    float, typer.Option("--deadline", help="Over MPI: give up when a rank is silent for so many seconds.")
]


def show_losses() -> None:
    """Put the registered losses into the help of --loss; for help only, as importing them takes a second."""
    from adfs.problem.losses import describe_losses

    Loss.__metadata__[0].help = describe_losses()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class FileOptions:
    """How a file is read; the fields of `adfs.data.ReadOptions`."""

    form: Form = "auto"
    label: Label = None
    n_features: int | None = option(None, "--n-features", help="Number of features of LIBSVM text.", min=1)
    index_base: int | None = option(
        None, "--index-base", help="First index of LIBSVM text, 0 or 1; 1 unless an index 0 appears."
    )


@dataclass(frozen=True)
class WeightedFileOptions(FileOptions):
    """The same for commands that know sample weights."""

    weight: Weight = None


@dataclass(frozen=True)
class ProblemOptions:
    """The problem and the network of a simulation."""

    n_nodes: Nodes = None
    network: Network = "cycle"
    partition: Partition = None
    loss: Loss = "logistic"
    sigma: float = option(1.0, "--sigma", help="σ_i, the strong convexity at every node.")
    seed: Seed = 0


# --------------------------------------------------------------------------- options of adfs fit


@dataclass(frozen=True)
class ModelOptions:
    """The parameters of the estimators, by their names."""

    # The objective.
    loss: Loss = "logistic"
    C: float | None = option(None, "-C", help="Classification: minimise C Σ w·loss + ½‖θ‖² (default 1).")
    alpha: float | None = option(
        None, "--alpha", help="Regression: minimise Σ w·loss + (alpha/2)‖θ‖², as Ridge (default 1)."
    )
    # The penalty and the intercept.
    penalty: str = option("l2", "--penalty", help="l2, or elasticnet with --l1-ratio.")
    l1_ratio: float = option(
        0.0, "--l1-ratio", help="Share of the l1 norm in the penalty, below 1 (elastic net)."
    )
    fit_intercept: bool = option(
        True, "--intercept/--no-intercept", help="Learn an intercept, which is not penalised."
    )
    intercept_scaling: float | None = option(
        None,
        "--intercept-scaling",
        help="Penalise the intercept as liblinear does: it is the coefficient of a column of this value.",
    )
    # Data and inference.
    standardize: bool = option(
        False, "--standardize", help="Scale the columns first; the coefficients are for the original columns."
    )
    inference: bool = option(
        False, "--summary", help="Print coefficients with standard errors, z, P>|z| and intervals."
    )
    class_weight: str | None = option(None, "--class-weight", help="balanced, or nothing.")
    multi_class: str = option("auto", "--multi-class", help="auto, ovr, or multinomial.")
    # Constants of losses.
    delta: float = option(1.0, "--delta", help="Of the huber loss.")
    quantile: float = option(0.5, "--quantile", help="Of the quantile losses.")
    width: float = option(0.5, "--width", help="Of the smoothed losses.")
    epsilon: float = option(0.1, "--epsilon", help="Of the epsilon_insensitive loss.")
    # The method and where it stops.
    method: str = option(
        "auto",
        "--method",
        help="auto (the method with the least predicted work), adfs, adfs-block, newton, lbfgs, qning, "
        "msda, …; interior-point or ns-adfs for losses that are not smooth.",
    )
    parameters: Parameters = None
    tau: str | None = option(
        None,
        "--tau",
        help="Time of a message, one sample's computation taking 1, for tuned parameters; "
        "over MPI also: measure.",
    )
    schedule: Schedule = "iid"
    tol: float = option(1e-6, "--tol", help="Stop at this certified relative duality gap.")
    max_iter: float = option(10_000.0, "--max-passes", help="Stop after so many passes over the data.")


@dataclass(frozen=True)
class SearchOptions:
    """Cross-validation over the weight of the penalty."""

    cv: int | None = option(
        None, "--cv", help="Choose -C or --alpha with so many folds, drawn inside each node's rows.", min=2
    )
    C_grid: str | None = option(None, "--C-grid", help="With --cv: the values of C to try, 0.01,0.1,1.")
    alpha_grid: str | None = option(None, "--alpha-grid", help="With --cv: the values of alpha to try.")


@dataclass(frozen=True)
class FitFileOptions(WeightedFileOptions):
    """How the files of a fit are read; the fields of `adfs.data.ReadOptions`."""

    offset: str | None = option(
        None, "--offset", help="Column of CSV and parquet that is added to xᵀθ + b, as log exposure."
    )


@dataclass(frozen=True)
class NodeOptions:
    """The nodes of a fit, and the processes that hold them."""

    n_nodes: Nodes = None
    network: Network = "cycle"
    partition: Partition = None
    deadline: Deadline = 60.0


@dataclass(frozen=True)
class FitRunOptions:
    """Options of the run itself; the fields of `adfs.runtimes.RunOptions`."""

    seconds: Seconds = None
    checkpoint: Checkpoint = None
    checkpoint_every: float = option(60.0, "--checkpoint-every", help="Seconds between two checkpoints.")
    resume: Resume = False
    seed: Seed = 0
    progress: Progress = None


@dataclass(frozen=True)
class FitOutputOptions:
    """The results of a fit, besides the model."""

    out: Path | None = option(None, "--out", "-o", help="File of the model; by default standard output.")
    history: History = None
    timeline: Path | None = option(
        None, "--timeline", help="Over MPI: draw who waited for whom here (PNG, PDF or SVG)."
    )
    robust: bool = option(
        False, "--robust", help="With --summary: sandwich standard errors (HC0), valid if the model is wrong."
    )
    as_json: Json = False


# --------------------------------------------------------------------------- records and commands

_FIT_RECORDS = (ModelOptions, SearchOptions, FitFileOptions, NodeOptions, FitRunOptions, FitOutputOptions)


def option_names(*records: type) -> dict[str, str]:
    """Return the option that sets each field of the records, those of ``adfs fit`` by default.

    Examples
    --------
    >>> names = option_names(ModelOptions)
    >>> names["max_iter"], names["inference"], names["fit_intercept"]
    ('--max-passes', '--summary', '--intercept')
    """
    fields = [entry for record in records or _FIT_RECORDS for entry in _parameters(record)]
    return {entry.name: entry.annotation.__metadata__[0].default.partition("/")[0] for entry in fields}


def _parameters(record: Any) -> list[inspect.Parameter]:
    """Return the fields of a record as parameters of a function."""
    hints = get_type_hints(record, include_extras=True)
    parameters = []
    for entry in dataclasses.fields(record):
        hint = hints[entry.name]
        if "option" in entry.metadata:
            hint = Annotated[hint, entry.metadata["option"]]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(entry.name, kind, default=entry.default, annotation=hint))
    return parameters


def flatten(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the fields of its records as parameters, as Typer takes it."""
    # Typer sees the fields; the command gets the records, built from the values of their fields.
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        record = parameter.annotation
        if not dataclasses.is_dataclass(record):
            # Typer passes everything by name, so the order of parameters with and without defaults is free.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        fields = _parameters(record)
        parameters += fields
        records[parameter.name] = record, [field.name for field in fields]

    @functools.wraps(command)
    def flat(**given: Any) -> Any:
        made = {
            name: record(**{field: given.pop(field) for field in fields})
            for name, (record, fields) in records.items()
        }
        return command(**given, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


# --------------------------------------------------------------------------- checks and helpers


def check_positive(record: Any, *fields: str) -> None:
    """Raise unless these fields of a record are above 0; None, which means not given, passes."""
    from adfs.errors import InputError

    # The error names the option, not the field.
    names = option_names(type(record))
    for field in fields:
        value = getattr(record, field)
        if value is not None and not value > 0.0:
            raise InputError(f"{names[field]} must be above 0, got {value:g}")


def load_imports(names: list[str] | None) -> None:
    """Import the modules that register methods or losses."""
    if names:
        from adfs.experiments.inputs import load_modules

        load_modules(names)


def check_figure(option: str, path: Path | None) -> None:
    """Raise unless the name of a figure's file has a suffix that can be drawn."""
    from adfs.errors import InputError

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
def all_ranks(deadline: float = 60.0) -> Iterator[MPI.Intracomm]:
    """Give a command that an MPI launcher started the communicator of all ranks, and end MPI after it.

    A rank that does not start or end within ``deadline`` seconds ends the launch.
    """
    from adfs.errors import InputError
    from adfs.launching import load_mpi
    from adfs.runtimes.mpi.links import check_file_limit

    check_file_limit()
    try:
        MPI = load_mpi(deadline)
    except ImportError:
        raise InputError(
            "these are several MPI processes and mpi4py is missing: pip install '.[mpi]' in the checkout of "
            "adfs, or '.[hpc]' on a site's own MPI"
        ) from None
    from adfs.runtimes.mpi.faults import as_one_program
    from adfs.runtimes.mpi.ranks import check_launcher

    check_launcher()
    with as_one_program(MPI.COMM_WORLD, deadline):
        yield MPI.COMM_WORLD


Given = TypeVar("Given", str, float)


def penalty_weight(
    loss: str, C: Given | None, alpha: Given | None, names: tuple[str, str] = ("-C", "--alpha")
) -> Given | None:
    """Return the value of the option that the loss takes: the first for classes, the second for numbers."""
    from adfs.errors import InputError
    from adfs.problem.losses import LOSSES

    # C is for losses of classes, alpha for losses of numbers.
    known = LOSSES.get(loss)  # an unknown loss is reported when the problem is built
    regression = known is not None and known.task == "regression"
    given, other, right, wrong = (alpha, C, *names[::-1]) if regression else (C, alpha, *names)
    if other is not None:
        raise InputError(f"the loss {loss!r} takes {right}, not {wrong}")
    return given
