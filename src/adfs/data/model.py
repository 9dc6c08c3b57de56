"""Linear models as files: JSON one can read, with a version, and nothing in it that could run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adfs.data.coefficients import coefficients_from, coefficients_to, numbers
from adfs.data.table import machine_memory
from adfs.errors import InputError
from adfs.files import reading_error, write_whole

__all__ = ["LinearModel", "probabilities"]

_FORMAT = "adfs-model"
#: Of a file whose coefficients are numbers to read, and of one where they are packed.
_READABLE, _PACKED = 1, 2

#: The losses that ``adfs fit`` knows, by their task: a prediction needs none of the code behind them.
_LOSSES = {
    "classification": ("logistic", "squared-hinge", "smoothed-hinge", "hinge"),
    "regression": (
        "squared",
        "huber",
        "smoothed-quantile",
        "quantile",
        "absolute",
        "epsilon-insensitive",
    ),
}


def probabilities(scores: np.ndarray, *, softmax: bool) -> np.ndarray:
    """Return the classes' probabilities from decision values, shape (N, n_classes).

    Parameters
    ----------
    scores : ndarray of shape (N,) or (N, n_classes)
    softmax : bool
        Of one softmax model; otherwise each class has a model of its own, and their probabilities are scaled
        to sum to one.
    """
    from scipy.special import expit
    from scipy.special import softmax as normalised

    if scores.ndim == 1:
        return np.column_stack([expit(-scores), expit(scores)])
    if softmax:
        return np.asarray(normalised(scores, axis=1))
    each = expit(scores)
    total = each.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0.0, each / np.where(total > 0.0, total, 1.0), 1.0 / scores.shape[1]))


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A fitted linear model.

    Attributes
    ----------
    task : str
        ``"classification"`` or ``"regression"``.
    loss : str
    coef : ndarray of shape (1, d) or (n_classes, d)
    intercept : ndarray of shape (1,) or (n_classes,)
    classes : list or None
        Numbers or text, two or more; None for regression.
    softmax : bool
        Whether it is one softmax model rather than one model per class.
    feature_names : tuple of str, or None
    index_base : int or None
        Where the indices of LIBSVM text started in the training data.
    label : str or None
        The label's column in the training data.
    training : dict
        How it came about: for people, not used again.

    Examples
    --------
    >>> model = LinearModel("regression", "squared", np.array([[1.0, 0.0]]), np.array([0.5]))
    >>> LinearModel.from_json(model.to_json()).predict(np.array([[2.0, 7.0]])).tolist()
    [2.5]
    """

    task: str
    loss: str
    coef: np.ndarray
    intercept: np.ndarray
    classes: list[Any] | None = None
    softmax: bool = False
    feature_names: tuple[str, ...] | None = None
    index_base: int | None = None
    label: str | None = None
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """The dimension d."""
        return int(self.coef.shape[1])

    def decision(self, X: Any) -> np.ndarray:
        """Return xᵀθ + b, shape (N,) or, for more than two classes, (N, n_classes)."""
        scores = np.asarray(X @ self.coef.T) + self.intercept
        return np.asarray(scores.ravel() if scores.shape[1] == 1 else scores)

    def predict(self, X: Any) -> np.ndarray:
        """Return targets, or classes as they were in the training data; shape (N,)."""
        scores = self.decision(X)
        if self.classes is None:
            return scores
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(np.asarray(self.classes)[codes])

    def proba(self, X: Any) -> np.ndarray:
        """Return probabilities, shape (N, n_classes); for the logistic loss only."""
        if self.loss != "logistic":
            raise InputError(
                f"a model with the loss {self.loss!r} has no probabilities; fit with --loss logistic"
            )
        return probabilities(self.decision(X), softmax=self.softmax)

    # ------------------------------------------------------------------ the file

    def to_json(self) -> str:
        """Return the file's text: one line per entry, and one per row of coefficients."""
        coef = coefficients_to(self.coef)
        entries = {
            "format": _FORMAT,
            "version": _READABLE if isinstance(coef, list) else _PACKED,
            "task": self.task,
            "loss": self.loss,
            "classes": self.classes,
            "softmax": self.softmax,
            "n_features": self.n_features,
            "feature_names": None if self.feature_names is None else list(self.feature_names),
            "index_base": self.index_base,
            "label": self.label,
            "intercept": self.intercept.tolist(),
            "training": self.training,
        }
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in entries.items()
        ]
        if isinstance(coef, list):
            rows = ",\n".join("    " + json.dumps(row) for row in coef)
            lines.append(f'  "coef": [\n{rows}\n  ]')
        else:
            lines.append(f'  "coef": {json.dumps(coef)}')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> LinearModel:
        """Read a file back; anything else is refused with one sentence."""
        try:
            text = path.read_text(encoding="utf-8")
        except IsADirectoryError:
            raise InputError(f"{path} is a directory, not a model") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not an adfs model: it is not text") from None
        except OSError as error:
            raise reading_error(path, error) from None
        return cls.from_json(text, str(path))

    @classmethod
    def from_json(cls, text: str, source: str = "the model") -> LinearModel:
        """Return the model of a file's text."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{source} is not an adfs model: it is not JSON, or was cut short") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise InputError(f"{source} is not an adfs model")
        if content.get("version") not in (_READABLE, _PACKED):
            raise InputError(
                f"{source} is an adfs model of version {content.get('version')!r}, this program reads "
                f"versions {_READABLE} and {_PACKED}; update adfs or fit again"
            )
        try:
            return cls._from_entries(content)
        except KeyError as error:
            raise InputError(f"{source} is damaged: it has no entry {error}") from None
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise InputError(f"{source} is damaged: {str(error) or type(error).__name__}") from None

    @classmethod
    def _from_entries(cls, content: dict[str, Any]) -> LinearModel:
        width, task, loss = content["n_features"], content["task"], content["loss"]
        classes, names, base = content["classes"], content["feature_names"], content["index_base"]
        label, softmax, training = content["label"], content["softmax"], content["training"]
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError("n_features must be a whole number of at least 1")
        if not isinstance(task, str) or task not in _LOSSES:
            raise ValueError(f"unknown task {task!r}")
        if loss not in _LOSSES[task]:
            raise ValueError(f"{loss!r} is no loss of a {task}")
        if (classes is None) != (task == "regression"):
            raise ValueError("classes and task do not fit together")
        if classes is not None:
            _check_classes(classes)
        if names is not None and not (
            isinstance(names, list) and len(names) == width and all(isinstance(name, str) for name in names)
        ):
            raise ValueError("feature_names must be one text per feature")
        if base not in (None, 0, 1):
            raise ValueError("index_base must be 0 or 1")
        if not (isinstance(label, str | None) and isinstance(softmax, bool) and isinstance(training, dict)):
            raise ValueError("label must be text, softmax true or false, training an object")
        rows = 1 if classes is None or len(classes) == 2 else len(classes)
        if 8 * rows * width > machine_memory():
            raise ValueError(f"its {rows} × {width} coefficients do not fit into this machine's memory")
        coef = coefficients_from(content["coef"], rows, width)
        intercept = numbers(content["intercept"], "intercept")
        if intercept.shape != (rows,):
            raise ValueError(f"intercept must be {rows} numbers, one per row of coef")
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError("a coefficient is not finite")
        return cls(
            task=task,
            loss=loss,
            coef=coef,
            intercept=intercept,
            classes=classes,
            softmax=softmax,
            feature_names=None if names is None else tuple(names),
            index_base=base,
            label=label,
            training=training,
        )


def _check_classes(classes: object) -> None:
    if (
        not isinstance(classes, list)
        or len(classes) < 2
        or not (
            all(isinstance(one, str) for one in classes)
            or all(isinstance(one, int | float) and math.isfinite(one) for one in classes)
        )
    ):
        raise ValueError("classes must be two or more numbers or texts")
    if len(set(classes)) < len(classes):
        twice = next(one for place, one in enumerate(classes) if one in classes[:place])
        raise ValueError(f"the class {twice!r} is there twice")
