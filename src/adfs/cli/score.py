"""``adfs score``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from adfs.cli import options
from adfs.cli.predict import read_for

EXAMPLES = """\b
Examples:
  adfs score model.json test.svm.bz2
  adfs score model.json test.csv --label price --json
"""


def run(
    model: Annotated[Path, typer.Argument(help="A model that adfs fit wrote.")],
    file: Annotated[str, typer.Argument(help="Samples with labels, in any format of adfs fit.")],
    form: options.Form = "auto",
    label: options.Label = None,
    ignore_extra: options.IgnoreExtra = False,
    as_json: options.Json = False,
) -> None:
    """Score a model on samples with labels.

    The score is the share of right classes, or R² for a regression.
    """
    import numpy as np

    from adfs.data import LinearModel
    from adfs.errors import InputError

    fitted = LinearModel.load(model)
    table = read_for(fitted, file, form, label, ignore_extra, labels_needed=True)
    assert table.y is not None
    predicted = fitted.predict(table.X)
    if (table.y.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise InputError(f"{file}: its labels and those of the model are not of one kind (numbers, or text)")
    weights = np.ones(table.n_samples) if table.weights is None else table.weights
    if fitted.task == "classification":
        metric, value = "accuracy", float(np.average(predicted == table.y, weights=weights))
    else:
        spread = float(weights @ (table.y - np.average(table.y, weights=weights)) ** 2)
        error = float(weights @ (table.y - predicted) ** 2)
        metric, value = "r2", 1.0 - error / spread if spread > 0.0 else float(error == 0.0)
    if as_json:
        print(json.dumps({"metric": metric, "score": value, "n_samples": table.n_samples}))
    else:
        print(f"{metric} {value:.6f} ({table.n_samples} samples)")
