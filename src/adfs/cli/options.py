"""Options that several commands share. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mpi4py import MPI

Data = Annotated[
    str,
    typer.Argument(
        help="A file; sklearn:breast_cancer, digits, …; or synthetic:900x10 (samples x features)."
    ),
]
Sigma = Annotated[float, typer.Option("--sigma", help="σ_i, the strong convexity at every node.")]
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
Offset = Annotated[
    str | None,
    typer.Option("--offset", help="Column of CSV and parquet that is added to xᵀθ + b, as log exposure."),
]
OffsetOfModel = Annotated[
    str | None,
    typer.Option(
        "--offset", help="Column of the offsets, where it has another name than in the training data."
    ),
]
NoOffset = Annotated[
    bool, typer.Option("--no-offset", help="Leave out the offset that the model was fitted with.")
]
NFeatures = Annotated[
    int | None, typer.Option("--n-features", min=1, help="Number of features of LIBSVM text.")
]
IndexBase = Annotated[
    int | None,
    typer.Option("--index-base", help="First index of LIBSVM text, 0 or 1; 1 unless an index 0 appears."),
]
Loss = Annotated[
    str,
    typer.Option(
        "--loss",
        help="logistic, squared_hinge, smoothed_hinge, hinge; squared, huber, smoothed_quantile, quantile, "
        "absolute, epsilon_insensitive, poisson, gamma.",
    ),
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Split the samples over so many nodes (default 1).")
]
NetworkName = Annotated[
    str,
    typer.Option(
        "--network", help="How the nodes are linked: cycle, torus, grid:3x3, …, or a file of edges."
    ),
]
Partition = Annotated[
    str | None, typer.Option("--partition", help="contiguous (the default), random or label.")
]
ParameterChoice = Annotated[
    str | None, typer.Option("--parameters", help="tuned (the default), paper or adaptive.")
]
Tau = Annotated[
    float | None,
    typer.Option("--tau", help="Time of a message, one sample's computation taking 1; for tuned parameters."),
]
Schedule = Annotated[str, typer.Option("--schedule", help="iid (the paper's) or poisson.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same bits.")]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds", help="Stop after so many seconds of running, those before a --resume included."
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Save the state of the run here every minute and at the end."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint if it is there.")]
History = Annotated[
    Path | None, typer.Option("--history", help="Write the recorded gaps, work and times here, as CSV.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress", help="Progress on standard error; by default on a terminal only."
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", help="A module or .py file that registers methods or losses; may be given again."
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Runs at once; as many as cores by default.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again what is already there.")]
IgnoreExtra = Annotated[
    bool, typer.Option("--ignore-extra-features", help="Leave out features that the model does not know.")
]


def load_imports(names: list[str] | None) -> None:
    """Import what registers methods or losses."""
    if names:
        from adfs.experiments.inputs import load_modules

        load_modules(names)


def check_figure(option: str, path: Path | None) -> None:
    """Raise unless a figure's file ends as one."""
    from adfs.errors import InputError

    if path is not None and path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"{option} draws PNG, PDF or SVG, and {path} ends in none of .png, .pdf, .svg")


def save_figure(path: Path, axes: Axes) -> None:
    """Write the figure that axes are on."""
    from adfs.files import write_whole

    figure = axes.get_figure(root=True)
    assert figure is not None
    form = path.suffix.lower().removeprefix(".")
    write_whole(path, lambda stream: figure.savefig(stream, format=form))


@contextlib.contextmanager
def all_ranks(deadline: float = 60.0) -> Iterator[MPI.Intracomm]:
    """Give a command that an MPI launcher started the communicator of all ranks, and end MPI after it.

    Ranks that do not start or end within so many seconds are given up.
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


def the_one_for(
    loss: str, C: Given | None, alpha: Given | None, names: tuple[str, str] = ("-C", "--alpha")
) -> Given | None:
    """Return what is given of two options: the first is for losses of classes, the second for the others."""
    from adfs.errors import InputError
    from adfs.problem.losses import LOSSES

    known = LOSSES.get(loss)  # of one that is not, somebody else will tell
    regression = known is not None and known.task == "regression"
    given, other, right, wrong = (alpha, C, *names[::-1]) if regression else (C, alpha, *names)
    if other is not None:
        raise InputError(f"the loss {loss!r} takes {right}, not {wrong}")
    return given


def check_positive(given: Mapping[str, float | None]) -> None:
    """Raise unless the numbers given, by their options (``"--deadline"``), are above 0; None is not given."""
    from adfs.errors import InputError

    for option, number in given.items():
        if number is not None and not number > 0.0:
            raise InputError(f"{option} must be above 0, got {number:g}")
