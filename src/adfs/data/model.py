"""Linear models as files: JSON that people can read, with a version and nothing that could run."""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from adfs.data.encoding import Column, Encoding
from adfs.data.table import Matrix
from adfs.errors import InputError
from adfs.files import AnyPath, JsonObject, machine_memory, reading_error, write_whole
from adfs.prediction import decision_values, inverse_link, predicted_classes, probabilities

_FORMAT = "adfs-model"

_PACKING = "little-endian, bytes transposed, zlib, base64"
# The entries of a file between its version and its coefficients, in their order.
_ENTRIES = (
    *("task", "loss", "link", "classes", "softmax", "n_features", "feature_names"),
    *("index_base", "label", "intercept", "training"),
)
# The links that the losses of each task may have.
_LINKS = {"classification": ("identity", "logit"), "regression": ("identity", "log")}


class _Version(IntEnum):
    """The versions of the file; version 2 is read, and no longer written."""

    PLAIN = 1
    PACKED = 2  # packed coefficients
    ENCODED = 3  # with the encoding of the columns


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
        The link of the loss, see `adfs.problem.Loss`; looked up when left out.
    encoding : Encoding or None
        How the columns of a table become the features; None if they are the features.

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
    encoding: Encoding | None = None

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
        """Return xᵀθ + b and the offset, shape (N,) or, for more than two classes, (N, n_classes).

        X are features, or a data frame with the columns of the training data in any order.
        """
        columns = getattr(X, "columns", None)
        if columns is not None:
            names = map(str, columns if self.feature_names is None else self.feature_names)
            X = (self.encoding or Encoding(tuple(Column(name) for name in names))).transform(X)
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
        version = _Version.PLAIN if self.encoding is None else _Version.ENCODED
        entries: JsonObject = {"format": _FORMAT, "version": version}
        entries |= {name: getattr(self, name) for name in _ENTRIES}
        if self.encoding is not None:
            entries["encoding"] = self.encoding.to_entries()
        # One line per entry and one per row of coefficients: people read and compare such files.
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False, default=np.ndarray.tolist)}"
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
        if content.get("version") not in list(_Version):
            raise InputError(
                f"{source} is an adfs model of version {content.get('version')!r}, this program reads "
                f"versions {min(_Version)} to {max(_Version)}; update adfs or fit again"
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
        link = content.get("link")
        entries = {name: content[name] for name in _ENTRIES if name != "link"}
        width, task, loss = entries.pop("n_features"), entries["task"], entries["loss"]
        classes, names, label = entries["classes"], entries["feature_names"], entries["label"]
        softmax, training = entries["softmax"], entries["training"]
        # A file must meet all of these; the sentence is about one that does not.
        whole = isinstance(width, int) and not isinstance(width, bool)
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        kinds = isinstance(label, str | None) and isinstance(softmax, bool) and isinstance(training, dict)
        conditions = {
            "n_features must be a whole number of at least 1": whole and width >= 1,
            f"unknown task {task!r}": isinstance(task, str) and task in _LINKS,
            f"{loss!r} is no loss of a {task}": isinstance(loss, str),
            "classes and task do not fit together": (classes is None) == (task == "regression"),
            "feature_names must be one text per feature": names is None or (texts and len(names) == width),
            "index_base must be 0 or 1": entries["index_base"] in (None, 0, 1),
            "label must be text, softmax true or false, training an object": kinds,
        }
        for sentence, met in conditions.items():
            if not met:
                raise ValueError(sentence)
        if link is None:  # a file of version 0.1 or 0.2 of adfs, whose losses had hyphens
            entries["loss"] = loss.replace("-", "_")
            link = _registered_link(entries["loss"], task)
        if link not in _LINKS[task]:
            raise ValueError(f"{link!r} is no link of a {task}")
        if classes is not None:
            _check_classes(classes)
        rows = 1 if classes is None or len(classes) == 2 else len(classes)
        # The sizes are checked before any array of that size is made.
        if 8 * rows * width > machine_memory():
            raise ValueError(f"its {rows} × {width} coefficients do not fit into this machine's memory")
        coef = _coefficients(content["coef"], rows, width)
        intercept = _numbers(entries["intercept"], "intercept")
        if intercept.shape != (rows,):
            raise ValueError(f"intercept must be {rows} numbers, one per row of coef")
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
            raise ValueError("a coefficient is not finite")
        entries |= {"intercept": intercept, "feature_names": None if names is None else tuple(names)}
        if content["version"] == _Version.ENCODED:
            entries["encoding"] = Encoding.from_entries(content["encoding"])
            if entries["encoding"].feature_names != entries["feature_names"]:
                raise ValueError("the encoding and feature_names do not fit together")
        return cls(coef=coef, link=link, **entries)


def load(path: AnyPath) -> LinearModel:
    """Return the model of a file that ``adfs fit --out`` or ``save`` of an estimator wrote."""
    return LinearModel.load(Path(path))


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


def _row_entry(row: np.ndarray) -> object:
    """Return a row of coefficients as a file has it: all of them, or indices and values of a sparse row."""
    row = np.ascontiguousarray(row, dtype=np.float64)
    places = np.flatnonzero(row.view(np.int64))  # by its bits: −0 is kept
    if 3 * places.size < row.size:
        return {"indices": places.tolist(), "values": row[places].tolist()}
    return row.tolist()


def _numbers(value: object, name: str) -> np.ndarray:
    """Return a list of JSON numbers as float64; text, truth values and nested lists are refused."""
    found = np.asarray(value) if isinstance(value, list | np.ndarray) else None
    if found is None or (found.size and found.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers")
    return found.astype(np.float64)


def _coefficients(entry: object, n_rows: int, width: int) -> np.ndarray:
    """Return the coefficients that a file holds, shape (n_rows, width); ValueError for anything else."""
    if isinstance(entry, dict) and entry.get("packing") == _PACKING:
        entry = _unpacked_rows(entry, n_rows, width)
    if not isinstance(entry, list):
        raise ValueError("coef is neither a list nor packed in a way that is known here")
    if len(entry) != n_rows:
        raise ValueError(f"coef must have {n_rows} rows, one per model")
    return np.array([_dense(row, width) for row in entry])


def _dense(row: object, width: int) -> np.ndarray:
    """Return the coefficients of a row as a file has it, shape (width,)."""
    if not isinstance(row, dict):
        if not isinstance(row, list | np.ndarray):
            raise ValueError("a row of coef must be a list of numbers, or its indices and values")
        found = _numbers(row, "a row of coef")
        if found.shape != (width,):
            raise ValueError("a row of coef does not have n_features entries")
        return found
    # The values of a sparse row stand at its indices, and 0 elsewhere.
    places, values = _numbers(row["indices"], "indices"), _numbers(row["values"], "values")
    if places.shape != values.shape or places.ndim != 1:
        raise ValueError("a row of coef must have one value per index")
    inside = (places >= 0) & (places < width) & (places == np.floor(places))
    if not inside.all() or np.any(np.diff(places) <= 0):
        raise ValueError("a row of coef holds indices outside the features, or not in ascending order")
    out = np.zeros(width)
    out[places.astype(np.int64)] = values
    return out


def _unpacked_rows(entry: JsonObject, n_rows: int, width: int) -> list[Any]:
    """Return the rows of packed coefficients, which version 0.2 wrote for large models."""
    if entry["shape"] != [n_rows, width]:
        raise ValueError("coef does not have the shape that classes and n_features say")
    if "counts" not in entry:
        return list(_unpack(entry["values"], n_rows * width, np.float64).reshape(n_rows, width))
    counts = entry["counts"]
    valid = isinstance(counts, list) and len(counts) == n_rows
    if not valid or not all(isinstance(count, int) and 0 <= count <= width for count in counts):
        raise ValueError("coef must say how many entries each row has")
    cuts, total = np.cumsum(counts)[:-1], sum(counts)
    columns, values = _unpack(entry["indices"], total, np.int64), _unpack(entry["values"], total, np.float64)
    pairs = zip(np.split(columns, cuts), np.split(values, cuts), strict=True)
    return [{"indices": places, "values": row} for places, row in pairs]


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
