"""Linear models as files: JSON one can read, with a version, and nothing in it that could run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adfs.errors import InputError
from adfs.files import reading_error, write_whole

__all__ = ["LinearModel", "probabilities"]

_FORMAT = "adfs-model"
_VERSION = 1


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
        Whether it is one softmax model rather than one model a class.
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
        """Return the file's text: one line an entry, a coefficient vector on one line."""
        entries = {
            "format": _FORMAT,
            "version": _VERSION,
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
        rows = ",\n".join("    " + json.dumps(_packed(row)) for row in self.coef)
        lines.append(f'  "coef": [\n{rows}\n  ]')
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
        if content.get("version") != _VERSION:
            raise InputError(
                f"{source} is an adfs model of version {content.get('version')!r}, this program reads "
                f"version {_VERSION}; update adfs or fit again"
            )
        try:
            return cls._from_entries(content)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{source} is damaged: {type(error).__name__} {error}") from None

    @classmethod
    def _from_entries(cls, content: dict[str, Any]) -> LinearModel:
        width = _whole(content["n_features"], "n_features")
        coef = np.array([_unpacked(row, width) for row in content["coef"]], dtype=np.float64)
        intercept = np.array(content["intercept"], dtype=np.float64)
        classes, names, base = content["classes"], content["feature_names"], content["index_base"]
        if content["task"] not in ("classification", "regression"):
            raise ValueError(f"unknown task {content['task']!r}")
        if (classes is None) != (content["task"] == "regression"):
            raise ValueError("classes and task do not fit together")
        if classes is not None and (
            not isinstance(classes, list)
            or len(classes) < 2
            or not (
                all(isinstance(one, str) for one in classes)
                or all(isinstance(one, int | float) and math.isfinite(one) for one in classes)
            )
        ):
            raise ValueError("classes must be two or more numbers or texts")
        rows = 1 if classes is None or len(classes) == 2 else len(classes)
        if coef.shape != (rows, width) or intercept.shape != (rows,):
            raise ValueError("coef and intercept do not have the shape that classes and n_features say")
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError("a coefficient is not finite")
        if names is not None and (len(names) != width or not all(isinstance(name, str) for name in names)):
            raise ValueError("feature_names must be one text a feature")
        if base not in (None, 0, 1):
            raise ValueError("index_base must be 0 or 1")
        return cls(
            task=content["task"],
            loss=str(content["loss"]),
            coef=coef,
            intercept=intercept,
            classes=classes,
            softmax=bool(content["softmax"]),
            feature_names=None if names is None else tuple(names),
            index_base=base,
            label=None if content["label"] is None else str(content["label"]),
            training=dict(content["training"]),
        )


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1")
    return value


def _packed(row: np.ndarray) -> Any:
    """Return a row as a list, or as its non-zero entries where most are zero."""
    places = np.flatnonzero(row)
    if 3 * places.size < row.size:
        return {"indices": places.tolist(), "values": row[places].tolist()}
    return row.tolist()


def _unpacked(row: Any, width: int) -> np.ndarray:
    if isinstance(row, list):
        if len(row) != width:
            raise ValueError("a row of coef does not have n_features entries")
        return np.array(row, dtype=np.float64)
    places = np.array(row["indices"], dtype=np.int64)
    values = np.array(row["values"], dtype=np.float64)
    if places.shape != values.shape or places.ndim != 1 or np.any((places < 0) | (places >= width)):
        raise ValueError("a row of coef holds indices outside the features")
    out = np.zeros(width)
    out[places] = values
    return out
