"""``adfs predict`` and ``adfs score``, and how a file is read for a model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adfs.cli.options import option
from adfs.errors import InputError
from adfs.files import check_outputs, write_whole

if TYPE_CHECKING:
    from adfs.data import LinearModel, Table


@dataclass(frozen=True)
class SampleOptions:
    """How a file is read for a model.

    form: auto (by the file's ending), libsvm, npz, csv or parquet.
    label: Label column of CSV and parquet: a name, or a number counted from 0 (or from the end, -1).
    offset: Column of the offsets, if its name differs from the training data.
    no_offset: Leave out the offset that the model was fitted with.
    ignore_extra: Leave out features that the model does not know.
    as_json: Print one JSON object.
    """

    form: str = option("auto", "--format")
    label: str | None = None
    offset: str | None = None
    no_offset: bool = False
    ignore_extra: bool = option(False, "--ignore-extra-features")
    as_json: bool = option(False, "--json")


@dataclass(frozen=True)
class PredictionOptions:
    """What is predicted, and where it goes.

    out: Write here instead of standard output.
    proba: Probabilities of the classes, as CSV; logistic loss only.
    decision: The values xᵀθ + b instead of classes or means.
    """

    out: Path | None = option(None, "--out", "-o")
    proba: bool = False
    decision: bool = False


def predict(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[
        str, typer.Argument(help="Samples, in any format of adfs fit; labels are not looked at.")
    ],
    output: PredictionOptions,
    samples: SampleOptions,
) -> None:
    """Predict, one line per sample.

    Examples
    --------
    adfs predict model.json test.svm.bz2 > labels.txt
    adfs predict model.json test.csv --proba --out probabilities.csv
    """
    if output.proba and output.decision:
        raise InputError("--proba and --decision are two different outputs: take one")
    check_outputs({"MODEL": model, "FILE": file}, {"--out": output.out})
    fitted, table = read_for(model, file, samples, labels_needed=False)
    # Several columns have the classes as their heads.
    header: list[object] = []
    if output.proba:
        values, header = fitted.proba(table.X, table.offset), list(fitted.classes or [])
    elif output.decision:
        values = fitted.decision(table.X, table.offset)
        header = list(fitted.classes or []) if values.ndim == 2 else []
    else:
        values = fitted.predict(table.X, table.offset)
    if samples.as_json:
        text = json.dumps({"columns": header or None, "predictions": values.tolist()}) + "\n"
    else:
        rows = values.tolist() if values.ndim == 2 else values[:, None].tolist()
        text = "".join(",".join(map(str, row)) + "\n" for row in ([header, *rows] if header else rows))
    if output.out is None:
        sys.stdout.write(text)
    else:
        write_whole(output.out, text)


def read_for(
    path: Path, file: str, samples: SampleOptions, *, weight: str | None = None, labels_needed: bool = True
) -> tuple[LinearModel, Table]:
    """Return a model, and a file's samples for it: features in the model's order, label and offset by name.

    Options override the names that the model has stored.
    """
    from adfs.data import LinearModel, ReadOptions, align, read_table

    model = LinearModel.load(path)
    if samples.no_offset and samples.offset is not None:
        raise InputError("--offset and --no-offset contradict each other: take one")
    label = samples.label if samples.label is not None else model.label
    offset = samples.offset if samples.offset is not None else model.offset
    read = ReadOptions(samples.form, label, weight, offset=offset)
    table = read_table(file, replace(read, labels_needed=labels_needed, offset_needed=False))
    if samples.no_offset:
        table = replace(table, offset=None)
    elif offset is not None and table.offset is None:
        known = "" if samples.offset is not None else ", which the model was fitted with"
        raise InputError(
            f"{file} has no column {offset!r} of offsets{known}; add it, name another one with --offset, "
            "or predict without it by --no-offset"
        )
    # Columns are found by their names if both have names.
    if table.feature_names is not None and model.feature_names is not None:
        places = {name: place for place, name in enumerate(table.feature_names)}
        missing = [name for name in model.feature_names if name not in places]
        if missing:
            raise InputError(f"{file} has no column {missing[0]!r}, which the model wants")
        extra = set(places) - set(model.feature_names)
        if extra and not samples.ignore_extra:
            raise InputError(
                f"{file} has a column {min(extra)!r} that the model does not know; name the label with "
                "--label, or leave such columns out with --ignore-extra-features"
            )
        order = [places[name] for name in model.feature_names]
        table = replace(table, X=table.X[:, order], feature_names=model.feature_names)
    (table,) = align(
        [table],
        n_features=model.n_features,
        index_base=model.index_base,
        ignore_extra=samples.ignore_extra,
        remedy="leave out those that the model does not know with --ignore-extra-features",
    )
    return model, table


@dataclass(frozen=True)
class WeightOptions:
    """The weights of a score.

    weight: Column of sample weights of CSV and parquet.
    """

    weight: str | None = None


def score(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[str, typer.Argument(help="Samples with labels, in any format of adfs fit.")],
    samples: SampleOptions,
    weighting: WeightOptions,
) -> None:
    """Score a model on samples with labels.

    The score is the share of right classes, R² for a regression, D² for the losses poisson and gamma.

    Examples
    --------
    adfs score model.json test.svm.bz2
    adfs score model.json test.csv --label price --json
    """
    import numpy as np

    from adfs.prediction import accuracy, explained_share
    from adfs.problem import LOSSES, get_loss
    from adfs.problem.losses import check_labels

    fitted, table = read_for(model, file, samples, weight=weighting.weight)
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
    if samples.as_json:
        print(json.dumps({"metric": metric, "score": value, "n_samples": table.n_samples}))
    else:
        print(f"{metric} {value:.6f} ({table.n_samples} samples)")
