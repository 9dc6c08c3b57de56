"""``adfs predict`` and ``adfs score``, and how a file is read for a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.data import LinearModel, ReadOptions, Table

EXAMPLES = """\b
Examples:
  adfs predict model.json test.svm.bz2 > labels.txt
  adfs predict model.json test.csv --proba --out probabilities.csv
"""


def run(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[
        str, typer.Argument(help="Samples, in any format of adfs fit; labels are not looked at.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write here instead of standard output.")
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Probabilities of the classes, as CSV; logistic loss only.")
    ] = False,
    decision: Annotated[
        bool, typer.Option("--decision", help="The values xᵀθ + b instead of classes or means.")
    ] = False,
    form: options.Form = "auto",
    label: options.Label = None,
    offset: options.OffsetOfModel = None,
    no_offset: options.NoOffset = False,
    ignore_extra: options.IgnoreExtra = False,
    as_json: options.Json = False,
) -> None:
    """Predict, one line per sample."""
    from adfs.data import LinearModel, ReadOptions
    from adfs.errors import InputError
    from adfs.files import check_outputs, write_whole

    if proba and decision:
        raise InputError("--proba and --decision are two different outputs: take one")
    check_outputs({"MODEL": model, "FILE": file}, {"--out": out})
    fitted = LinearModel.load(model)
    read = ReadOptions(form, label, offset=offset, labels_needed=False)
    table = read_for(fitted, file, read, ignore_extra=ignore_extra, no_offset=no_offset)
    header: list[object] = []
    if proba:
        values, header = fitted.proba(table.X, table.offset), list(fitted.classes or [])
    elif decision:
        values = fitted.decision(table.X, table.offset)
        header = list(fitted.classes or []) if values.ndim == 2 else []
    else:
        values = fitted.predict(table.X, table.offset)
    if as_json:
        text = json.dumps({"columns": header or None, "predictions": values.tolist()}) + "\n"
    else:
        rows = [header, *values.tolist()] if header else values.tolist()
        text = "".join(_line(row) for row in rows)
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text)


def _line(row: object) -> str:
    return ",".join(str(value) for value in row) + "\n" if isinstance(row, list) else f"{row}\n"


def read_for(
    model: LinearModel, file: str, asked: ReadOptions, *, ignore_extra: bool, no_offset: bool
) -> Table:
    """Read a file for a model: the features in the model's order, the label and the offset by their names.

    The options in ``asked`` override the names that the model has stored.
    """
    from dataclasses import replace

    from adfs.data import align, read_table
    from adfs.errors import InputError

    if no_offset and asked.offset is not None:
        raise InputError("--offset and --no-offset contradict each other: take one")
    label = asked.label if asked.label is not None else model.label
    shift = asked.offset if asked.offset is not None else model.offset
    table = read_table(file, replace(asked, label=label, offset=shift, offset_needed=False))
    if no_offset:
        table = replace(table, offset=None)
    elif shift is not None and table.offset is None:
        known = "" if asked.offset is not None else ", which the model was fitted with"
        raise InputError(
            f"{file} has no column {shift!r} of offsets{known}; add it, name another one with --offset, "
            "or predict without it by --no-offset"
        )
    if table.feature_names is not None and model.feature_names is not None:
        places = {name: place for place, name in enumerate(table.feature_names)}
        missing = [name for name in model.feature_names if name not in places]
        if missing:
            raise InputError(f"{file} has no column {missing[0]!r}, which the model wants")
        extra = set(places) - set(model.feature_names)
        if extra and not ignore_extra:
            raise InputError(
                f"{file} has a column {min(extra)!r} that the model does not know; name the label with "
                "--label, or leave such columns out with --ignore-extra-features"
            )
        order = [places[name] for name in model.feature_names]
        table = replace(table, X=table.X[:, order], feature_names=model.feature_names)
    return align(
        [table],
        n_features=model.n_features,
        index_base=model.index_base,
        ignore_extra=ignore_extra,
        remedy="leave out those that the model does not know with --ignore-extra-features",
    )[0]


SCORE_EXAMPLES = """\b
Examples:
  adfs score model.json test.svm.bz2
  adfs score model.json test.csv --label price --json
"""


def score(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[str, typer.Argument(help="Samples with labels, in any format of adfs fit.")],
    form: options.Form = "auto",
    label: options.Label = None,
    weight: options.Weight = None,
    offset: options.OffsetOfModel = None,
    no_offset: options.NoOffset = False,
    ignore_extra: options.IgnoreExtra = False,
    as_json: options.Json = False,
) -> None:
    """Score a model on samples with labels.

    The score is the share of right classes, R² for a regression, D² for the losses poisson and gamma.
    """
    import numpy as np

    from adfs.data import LinearModel, ReadOptions
    from adfs.errors import InputError
    from adfs.prediction import accuracy, explained_share
    from adfs.problem import LOSSES, get_loss
    from adfs.problem.losses import check_labels

    fitted = LinearModel.load(model)
    read = ReadOptions(form, label, weight, offset=offset)
    table = read_for(fitted, file, read, ignore_extra=ignore_extra, no_offset=no_offset)
    assert table.y is not None
    predicted = fitted.predict(table.X, table.offset)
    if (table.y.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise InputError(f"{file}: its labels and those of the model are not of one kind (numbers, or text)")
    weights = np.ones(table.n_samples) if table.weights is None else table.weights
    if weights.min() < 0.0 or not weights.any():
        raise InputError(f"{file}: the weights must be at least 0, and one of them above 0")
    if fitted.classes is not None:
        metric, value = "accuracy", accuracy(table.y, predicted, weights)
    else:
        # A loss from outside is not known here, and its model is scored by R².
        loss = get_loss(fitted.loss if fitted.loss in LOSSES else "squared")
        check_labels(loss, table.y, file)
        metric = loss.score.lower().replace("²", "2")
        value = explained_share(loss.unit_deviances, table.y, predicted, weights)
    if as_json:
        print(json.dumps({"metric": metric, "score": value, "n_samples": table.n_samples}))
    else:
        print(f"{metric} {value:.6f} ({table.n_samples} samples)")
