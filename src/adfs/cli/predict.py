"""``adfs predict`` and ``adfs score``, and how a model meets a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli import options

if TYPE_CHECKING:
    from adfs.data import LinearModel, Table

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
    offset: options.Offset = None,
    ignore_extra: options.IgnoreExtra = False,
    as_json: options.Json = False,
) -> None:
    """Predict, one line per sample."""
    from adfs.data import LinearModel
    from adfs.errors import InputError
    from adfs.files import check_outputs, write_whole

    if proba and decision:
        raise InputError("--proba and --decision are two different outputs: take one")
    check_outputs({"MODEL": model, "FILE": file}, {"--out": out})
    fitted = LinearModel.load(model)
    table = read_for(fitted, file, (form, label, offset), ignore_extra, labels_needed=False)
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
    model: LinearModel,
    file: str,
    asked: tuple[str, str | None, str | None],
    ignore_extra: bool,
    *,
    labels_needed: bool,
) -> Table:
    """Read a file as a model wants it, its features in its order, by --format, --label and --offset."""
    from dataclasses import replace

    from adfs.data import ReadOptions, align, read_table
    from adfs.errors import InputError

    form, label, offset = asked
    own_label = label if label is not None else model.label
    table = read_table(file, ReadOptions(form, own_label, labels_needed=labels_needed, offset=offset))
    if table.feature_names is not None and model.feature_names is not None:
        places = {name: place for place, name in enumerate(table.feature_names)}
        missing = [name for name in model.feature_names if name not in places]
        if missing:
            raise InputError(f"{file} has no column {missing[0]!r}, which the model wants")
        extra = set(places) - set(model.feature_names)
        shift = model.training.get("offset")
        if shift in extra and not ignore_extra:
            raise InputError(
                f"{file} has the column {shift!r}, which the model was fitted with as an offset: say "
                f"--offset {shift}, or --ignore-extra-features for predictions without it"
            )
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
    offset: options.Offset = None,
    ignore_extra: options.IgnoreExtra = False,
    as_json: options.Json = False,
) -> None:
    """Score a model on samples with labels.

    The score is the share of right classes, R² for a regression, D² for the losses poisson and gamma.
    """
    import numpy as np

    from adfs.data import LinearModel
    from adfs.data.model import deviance_score
    from adfs.errors import InputError

    fitted = LinearModel.load(model)
    table = read_for(fitted, file, (form, label, offset), ignore_extra, labels_needed=True)
    assert table.y is not None
    predicted = fitted.predict(table.X, table.offset)
    if (table.y.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise InputError(f"{file}: its labels and those of the model are not of one kind (numbers, or text)")
    weights = np.ones(table.n_samples) if table.weights is None else table.weights
    if fitted.task == "classification":
        metric, value = "accuracy", float(np.average(predicted == table.y, weights=weights))
    elif fitted.loss in ("poisson", "gamma"):
        metric, value = "d2", deviance_score(fitted.loss, table.y, predicted, weights)
    else:
        spread = float(weights @ (table.y - np.average(table.y, weights=weights)) ** 2)
        error = float(weights @ (table.y - predicted) ** 2)
        metric, value = "r2", 1.0 - error / spread if spread > 0.0 else float(error == 0.0)
    if as_json:
        print(json.dumps({"metric": metric, "score": value, "n_samples": table.n_samples}))
    else:
        print(f"{metric} {value:.6f} ({table.n_samples} samples)")
