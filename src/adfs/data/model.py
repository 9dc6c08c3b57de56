"""Linear models as files: JSON that people can read, with a version and nothing that could run."""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adfs.data.table import Matrix, machine_memory
from adfs.errors import InputError
from adfs.files import JsonObject, reading_error, write_whole
from adfs.prediction import decision_values, inverse_link, predicted_classes, probabilities

_FORMAT = "adfs-model"
# Files of version 2 have packed coefficients: they are read, and no longer written.
_VERSION, _PACKED_VERSION = 1, 2
_PACKING = "little-endian, bytes transposed, zlib, base64"
# The links that the losses of each task may have.
_LINKS = {"classification": ("identity", "logit"), "regression": ("identity", "log")}


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A fitted linear model.

    Attributes
    ----------
    task : str
        ``"classification"`` or ``"regression"``.
    loss : str
        The name of the loss. Without a ``link`` it must be a registered one.
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
        How the model was fitted: for people. Only `offset` is used again.
    link : str
        The link of the loss, one of `adfs.prediction.LINKS`; looked up when left out.

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
    link: str = ""

    def __post_init__(self) -> None:
        if not self.link:
            object.__setattr__(self, "link", _registered_link(self.loss, self.task))

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
        return decision_values(X, self.coef, self.intercept, offset)

    def predict(self, X: Matrix, offset: np.ndarray | None = None) -> np.ndarray:
        """Return means of the targets, or classes as they were in the training data; shape (N,)."""
        scores = self.decision(X, offset)
        if self.classes is None:
            return inverse_link(self.link, scores)
        return predicted_classes(scores, np.asarray(self.classes))

    def proba(self, X: Matrix, offset: np.ndarray | None = None) -> np.ndarray:
        """Return probabilities, shape (N, n_classes); for the logistic loss only."""
        if self.link != "logit":
            raise InputError(
                f"a model with the loss {self.loss!r} has no probabilities; fit with --loss logistic"
            )
        return probabilities(self.decision(X, offset), softmax=self.softmax)

    # ------------------------------------------------------------------ the file

    def to_json(self) -> str:
        """Return the file's text: one line per entry, and one per row of coefficients."""
        entries = {
            "format": _FORMAT,
            "version": _VERSION,
            "task": self.task,
            "loss": self.loss,
            "link": self.link,
            "classes": self.classes,
            "softmax": self.softmax,
            "n_features": self.n_features,
            "feature_names": None if self.feature_names is None else list(self.feature_names),
            "index_base": self.index_base,
            "label": self.label,
            "intercept": self.intercept.tolist(),
            "training": self.training,
        }
        # One line per entry and one per row of coefficients: people read and compare such files.
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in entries.items()
        ]
        rows = ",\n".join("    " + json.dumps(_row_entry(row)) for row in self.coef)
        return "{\n" + ",\n".join(lines) + f',\n  "coef": [\n{rows}\n  ]\n}}\n'

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
        if content.get("version") not in (_VERSION, _PACKED_VERSION):
            raise InputError(
                f"{source} is an adfs model of version {content.get('version')!r}, this program reads "
                f"versions {_VERSION} and {_PACKED_VERSION}; update adfs or fit again"
            )
        # Whatever a damaged or forged file contains, the reader sees one sentence.
        try:
            return cls._from_entries(content)
        except KeyError as error:
            raise InputError(f"{source} is damaged: it has no entry {error}") from None
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise InputError(f"{source} is damaged: {str(error) or type(error).__name__}") from None

    @classmethod
    def _from_entries(cls, content: JsonObject) -> LinearModel:
        """Return the model of a file's entries, each checked; KeyError or ValueError where one is wrong."""
        width, task, loss, link = content["n_features"], content["task"], content["loss"], content.get("link")
        classes, names, base = content["classes"], content["feature_names"], content["index_base"]
        label, softmax, training = content["label"], content["softmax"], content["training"]
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError("n_features must be a whole number of at least 1")
        if not isinstance(task, str) or task not in _LINKS:
            raise ValueError(f"unknown task {task!r}")
        if not isinstance(loss, str):
            raise ValueError(f"{loss!r} is no loss of a {task}")
        if link is None:  # a file of version 0.1 or 0.2 of adfs, whose losses had hyphens
            loss = loss.replace("-", "_")
            link = _registered_link(loss, task)
        if link not in _LINKS[task]:
            raise ValueError(f"{link!r} is no link of a {task}")
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
        # The sizes are checked before any array of that size is made.
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
            link=link,
        )


def _registered_link(loss: str, task: str) -> str:
    """Return the link of a registered loss, for a model that does not say it."""
    from adfs.problem import LOSSES

    known = LOSSES.get(loss)
    if known is None or known.task != task:
        raise ValueError(f"{loss!r} is no loss of a {task}")
    return known.link


def _check_classes(classes: object) -> None:
    """Raise ValueError unless classes are different numbers, or different texts."""
    labels = classes if isinstance(classes, list) else []
    texts = all(isinstance(label, str) for label in labels)
    finite = all(isinstance(label, int | float) and math.isfinite(label) for label in labels)
    if len(labels) < 2 or not (texts or finite):
        raise ValueError("classes must be two or more numbers or texts")
    if len(set(labels)) < len(labels):
        twice = next(label for place, label in enumerate(labels) if label in labels[:place])
        raise ValueError(f"the class {twice!r} is there twice")


def numbers(value: object, name: str) -> np.ndarray:
    """Return a list of JSON numbers as float64; text, truth values and nested lists are refused."""
    found = np.asarray(value) if isinstance(value, list) else None
    if found is None or (found.size and found.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers")
    return found.astype(np.float64)


def coefficients_from(entry: object, n_rows: int, width: int) -> np.ndarray:
    """Return the coefficients that a file holds, shape (n_rows, width); ValueError for anything else."""
    if isinstance(entry, list):
        if len(entry) != n_rows:
            raise ValueError(f"coef must have {n_rows} rows, one per model")
        return np.array([_dense(row, width) for row in entry])
    # The rest reads packed coefficients, which version 0.2 wrote for large models.
    if not isinstance(entry, dict) or entry.get("packing") != _PACKING:
        raise ValueError("coef is neither a list nor packed in a way that is known here")
    if entry["shape"] != [n_rows, width]:
        raise ValueError("coef does not have the shape that classes and n_features say")
    if "counts" not in entry:
        return _unpack(entry["values"], n_rows * width, np.float64).reshape(n_rows, width)
    counts = entry["counts"]
    valid = isinstance(counts, list) and len(counts) == n_rows
    if not valid or not all(isinstance(count, int) and 0 <= count <= width for count in counts):
        raise ValueError("coef must say how many entries each row has")
    cuts, total = np.cumsum(counts)[:-1], sum(counts)
    columns, values = _unpack(entry["indices"], total, np.int64), _unpack(entry["values"], total, np.float64)
    pairs = zip(np.split(columns, cuts), np.split(values, cuts), strict=True)
    return np.array([_scattered(places, row, width) for places, row in pairs])


def _row_entry(row: np.ndarray) -> object:
    """Return a row of coefficients as a file has it: all of them, or indices and values of a sparse row."""
    row = np.ascontiguousarray(row, dtype=np.float64)
    places = np.flatnonzero(row.view(np.int64))  # by its bits: −0 is kept
    if 3 * places.size < row.size:
        return {"indices": places.tolist(), "values": row[places].tolist()}
    return row.tolist()


def _dense(row: object, width: int) -> np.ndarray:
    """Return the coefficients of a row as a file has it, shape (width,)."""
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
    return _scattered(places, values, width)


def _scattered(places: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Return the row of coefficients with some values at some places and 0 elsewhere, shape (width,)."""
    inside = (places >= 0) & (places < width) & (places == np.floor(places))
    if not inside.all() or np.any(np.diff(places) <= 0):
        raise ValueError("a row of coef holds indices outside the features, or not in ascending order")
    out = np.zeros(width)
    out[places.astype(np.int64)] = values
    return out


def _unpack(text: object, count: int, kind: type[np.float64] | type[np.int64]) -> np.ndarray:
    """Return ``count`` numbers. No more than they take is decompressed, whatever the text holds."""
    if not isinstance(text, str):
        raise ValueError("a packed array must be text")
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), 8 * count + 1)
    except (binascii.Error, zlib.error):
        raise ValueError("a packed array cannot be decompressed") from None
    if len(raw) != 8 * count or not stream.eof:
        raise ValueError(f"a packed array does not hold {count} numbers")
    # All first bytes come before all second bytes, and so on: that compresses better.
    little = np.ascontiguousarray(np.frombuffer(raw, dtype=np.uint8).reshape(8, count).T)
    return little.view(np.dtype(kind).newbyteorder("<")).ravel().astype(kind)
