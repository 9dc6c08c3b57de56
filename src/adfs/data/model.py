"""Linear models as files: JSON one can read, with a version, and nothing in it that could run."""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adfs.data.table import Matrix, machine_memory
from adfs.errors import InputError
from adfs.files import JsonObject, reading_error, write_whole

_FORMAT = "adfs-model"
#: Of a file whose coefficients are numbers to read, and of one where they are packed.
_READABLE, _PACKED = 1, 2

#: The losses that ``adfs fit`` knows, by their task: a prediction needs none of the code behind them.
_LOSSES = {
    "classification": ("logistic", "squared_hinge", "smoothed_hinge", "hinge"),
    "regression": (
        "squared",
        "huber",
        "smoothed_quantile",
        "quantile",
        "absolute",
        "epsilon_insensitive",
        "poisson",
        "gamma",
    ),
}
_LOG_LINK = ("poisson", "gamma")  # their margins are logarithms of means


def probabilities(scores: np.ndarray, *, softmax: bool) -> np.ndarray:
    """Return the classes' probabilities, (N, n_classes), from decision values, (N,) or (N, n_classes).

    Where it is not one softmax model, each class has a model of its own, and their probabilities are scaled
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


def deviance_score(loss: str, y: np.ndarray, means: np.ndarray, weights: np.ndarray) -> float:
    """Return D² of a Poisson or Gamma model: 1 less its deviance over that of the targets' mean."""
    y = np.asarray(y, dtype=np.float64)
    if np.any(y < 0.0 if loss == "poisson" else y <= 0.0):
        least = "of at least 0" if loss == "poisson" else "above 0"
        raise InputError(f"D² of the loss {loss!r} wants targets {least}, got {y.min():g}")
    of_mean = float(weights @ half_deviances(loss, y, float(np.average(y, weights=weights))))
    own = float(weights @ half_deviances(loss, y, means))
    return 1.0 - own / of_mean if of_mean > 0.0 else float(own <= 0.0)


def half_deviances(loss: str, y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
    """Return half of each row's deviance from its mean in a Poisson or Gamma model, shape (N,)."""
    logs = np.log(np.where(y > 0.0, y, 1.0))
    if loss == "poisson":
        return np.asarray(y * (logs - np.log(means)) - y + means)
    return np.asarray(np.log(means) - logs + y / means - 1.0)


def add_offset(scores: np.ndarray, offset: ArrayLike) -> np.ndarray:
    """Return decision values with an offset each."""
    added = np.asarray(offset, dtype=np.float64)
    if added.shape != scores.shape:
        raise InputError(f"offset must have shape {scores.shape}, as the decision values, got {added.shape}")
    return scores + added


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
        How it came about: for people. Only `offset` is used again.

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
    classes: list[str] | list[float] | None = None
    softmax: bool = False
    feature_names: tuple[str, ...] | None = None
    index_base: int | None = None
    label: str | None = None
    training: JsonObject = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """The dimension d."""
        return int(self.coef.shape[1])

    @property
    def offset(self) -> str | None:
        """The column of the offsets in the training data, None where there were none."""
        name = self.training.get("offset")
        return None if name is None else str(name)

    def decision(self, X: Matrix, offset: np.ndarray | None = None) -> np.ndarray:
        """Return xᵀθ + b and the offset, shape (N,) or, for more than two classes, (N, n_classes)."""
        scores = np.asarray(X @ self.coef.T) + self.intercept
        scores = scores.ravel() if scores.shape[1] == 1 else scores
        return np.asarray(scores) if offset is None else add_offset(scores, offset)

    def predict(self, X: Matrix, offset: np.ndarray | None = None) -> np.ndarray:
        """Return targets (means, of a log link), or classes as they were in the training data; shape (N,)."""
        scores = self.decision(X, offset)
        if self.classes is None:
            return np.exp(scores) if self.loss in _LOG_LINK else scores
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(np.asarray(self.classes)[codes])

    def proba(self, X: Matrix, offset: np.ndarray | None = None) -> np.ndarray:
        """Return probabilities, shape (N, n_classes); for the logistic loss only."""
        if self.loss != "logistic":
            raise InputError(
                f"a model with the loss {self.loss!r} has no probabilities; fit with --loss logistic"
            )
        return probabilities(self.decision(X, offset), softmax=self.softmax)

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
        if self.loss not in _LOSSES[self.task]:  # predicting needs nothing of it, and a slip is still refused
            entries["loss_from_outside"] = True
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
    def _from_entries(cls, content: JsonObject) -> LinearModel:
        width, task, loss = content["n_features"], content["task"], content["loss"]
        classes, names, base = content["classes"], content["feature_names"], content["index_base"]
        label, softmax, training = content["label"], content["softmax"], content["training"]
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError("n_features must be a whole number of at least 1")
        if not isinstance(task, str) or task not in _LOSSES:
            raise ValueError(f"unknown task {task!r}")
        from_outside = content.get("loss_from_outside") is True and isinstance(loss, str)
        if not from_outside and loss not in _LOSSES[task]:
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


_PACKING = "little-endian, bytes transposed, zlib, base64"
# More numbers than this and nobody reads them: they would be half a megabyte of digits.
_MOST_READABLE = 20_000


def numbers(value: object, name: str) -> np.ndarray:
    """Return a list of JSON numbers as float64; text, truth values and nested lists are refused."""
    found = np.asarray(value) if isinstance(value, list) else None
    if found is None or (found.size and found.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers")
    return found.astype(np.float64)


def coefficients_to(coef: np.ndarray) -> list[object] | JsonObject:
    """Return what a file holds: a list per row, of all or of the non-zero entries; or all of them packed."""
    coef = np.ascontiguousarray(coef, dtype=np.float64)
    present = coef.view(np.int64) != 0  # a file keeps nothing of +0, and −0 has a bit to keep
    count = int(present.sum())
    sparse = 3 * count < coef.size
    if (count if sparse else coef.size) <= _MOST_READABLE:
        return [_row(row, there) for row, there in zip(coef, present, strict=True)]
    entry: JsonObject = {"packing": _PACKING, "shape": list(coef.shape)}
    if not sparse:
        return entry | {"values": _pack(coef)}
    rows, columns = np.nonzero(present)
    return entry | {
        "counts": np.bincount(rows, minlength=len(coef)).tolist(),
        "indices": _pack(columns),
        "values": _pack(coef[rows, columns]),
    }


def coefficients_from(entry: object, n_rows: int, width: int) -> np.ndarray:
    """Return the coefficients that a file holds, shape (n_rows, width); ValueError for anything else."""
    if isinstance(entry, list):
        if len(entry) != n_rows:
            raise ValueError(f"coef must have {n_rows} rows, one per model")
        return np.array([_dense(row, width) for row in entry])
    if not isinstance(entry, dict) or entry.get("packing") != _PACKING:
        raise ValueError("coef is neither a list nor packed in a way that is known here")
    if entry["shape"] != [n_rows, width]:
        raise ValueError("coef does not have the shape that classes and n_features say")
    if "counts" not in entry:
        return _unpack(entry["values"], n_rows * width, np.float64).reshape(n_rows, width)
    counts = entry["counts"]
    valid = isinstance(counts, list) and len(counts) == n_rows
    if not valid or not all(isinstance(one, int) and 0 <= one <= width for one in counts):
        raise ValueError("coef must say how many entries each row has")
    total = sum(counts)
    rows = np.repeat(np.arange(n_rows), counts)
    columns = _unpack(entry["indices"], total, np.int64)
    places = rows * width + columns
    if np.any((columns < 0) | (columns >= width)) or np.any(np.diff(places) <= 0):
        raise ValueError("coef holds indices outside the features, or not in ascending order")
    coef = np.zeros((n_rows, width))
    coef[rows, columns] = _unpack(entry["values"], total, np.float64)
    return coef


def _row(row: np.ndarray, present: np.ndarray) -> object:
    places = np.flatnonzero(present)
    if 3 * places.size < row.size:
        return {"indices": places.tolist(), "values": row[places].tolist()}
    return row.tolist()


def _dense(row: object, width: int) -> np.ndarray:
    if isinstance(row, list):
        found = numbers(row, "a row of coef")
        if found.shape != (width,):
            raise ValueError("a row of coef does not have n_features entries")
        return found
    if not isinstance(row, dict):
        raise ValueError("a row of coef must be a list of numbers, or its indices and values")
    places, values = numbers(row["indices"], "indices"), numbers(row["values"], "values")
    if places.shape != values.shape or places.ndim != 1:
        raise ValueError("a row of coef must have one value per index")
    inside = (places >= 0) & (places < width) & (places == np.floor(places))
    if not inside.all() or np.any(np.diff(places) <= 0):
        raise ValueError("a row of coef holds indices outside the features, or not in ascending order")
    out = np.zeros(width)
    out[places.astype(np.int64)] = values
    return out


def _pack(array: np.ndarray) -> str:
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    transposed = np.ascontiguousarray(little.reshape(-1, 1).view(np.uint8).T)
    return base64.b64encode(zlib.compress(transposed.tobytes())).decode("ascii")


def _unpack(text: object, count: int, kind: type[np.float64] | type[np.int64]) -> np.ndarray:
    """Return so many numbers; no more is decompressed than they take, whatever the text holds."""
    if not isinstance(text, str):
        raise ValueError("a packed array must be text")
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), 8 * count + 1)
    except (binascii.Error, zlib.error):
        raise ValueError("a packed array cannot be decompressed") from None
    if len(raw) != 8 * count or not stream.eof:
        raise ValueError(f"a packed array does not hold {count} numbers")
    little = np.ascontiguousarray(np.frombuffer(raw, dtype=np.uint8).reshape(8, count).T)
    return little.view(np.dtype(kind).newbyteorder("<")).ravel().astype(kind)
