"""Reading samples by name: files (the format by the ending, or as told), bundled sets, random numbers."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp

from adfs.data.columns import read_csv, read_parquet, split_columns
from adfs.data.table import COMPRESSED_SUFFIXES, Matrix, Table, align, machine_memory, open_bytes
from adfs.errors import InputError, unknown_name
from adfs.files import read_arrays

_CSR = ("data", "indices", "indptr", "shape")
_ROLES = ("sample_weight", "offset")

# LIBSVM text: read in blocks that end at a line, so that its text is never in memory whole.
_BLOCK = 1 << 23
_LARGEST_INDEX = 2**31 - 2

_NOT_TEXT = re.compile(rb"[^\t-\r -~]")
_LINE = re.compile(rb"\s*[^\s:]+(?:\s+[0-9]+:[^\s:]+)*\s*")


def read_npz(path: Path, *, labels_needed: bool = True) -> Table:
    """Read an archive with dense rows (``X``), or CSR rows as `scipy.sparse.save_npz` names their arrays.

    One without ``y`` is refused where labels are needed.
    """
    with open_bytes(path) as stream:
        if not zipfile.is_zipfile(stream):
            raise InputError(f"{path} is not a NumPy archive, or is damaged or cut short")
        stream.seek(0)
        try:
            arrays = read_arrays(stream, _most_bytes(path), (*_CSR, "format", "X", "y", *_ROLES))
        except ValueError as error:
            raise InputError(f"{path} cannot be read as a NumPy archive: {error}") from None
    X = _rows(arrays, path)
    y = arrays.get("y")
    if y is None and labels_needed:
        raise InputError(
            f"{path} has no array 'y' with the labels; it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if y is not None:
        y = _column(y, X.shape[0], "y", path)
        y = _texts(y, path) if y.dtype.kind in "US" else _numbers(y, "y", path)
    weights, offset = (
        _numbers(_column(arrays[name], X.shape[0], name, path), name, path) if name in arrays else None
        for name in _ROLES
    )
    name = None if offset is None else "offset"
    return Table(X, y, weights, str(path), offset=offset, offset_name=name)


def _most_bytes(path: Path) -> int:
    """Return how much memory the arrays of an archive may take.

    That is no more than this machine has. Of a file that is compressed more than a hundredfold, which real
    measurements are not, it is no more than a hundredth: such a file is small, or made to fill the memory.
    """
    there = machine_memory()
    return min(there, max(100 * path.stat().st_size, there // 100))


def _texts(values: np.ndarray, path: Path) -> np.ndarray:
    try:
        return values.astype(np.str_)
    except UnicodeDecodeError:
        raise InputError(f"{path}: y holds bytes that are not text; save text or numbers") from None


def _rows(arrays: dict[str, np.ndarray], path: Path) -> Matrix:
    X: Matrix
    if "X" in arrays:
        X = _numbers(arrays["X"], "X", path)
        if X.ndim != 2:
            raise InputError(f"{path}: X must be two-dimensional (samples × features), got shape {X.shape}")
    elif all(name in arrays for name in _CSR):
        kind = arrays.get("format", np.array("csr")).tolist()
        if kind not in ("csr", b"csr"):
            raise InputError(f"{path} holds a sparse matrix in another form than CSR; save it with .tocsr()")
        for name in _CSR[1:]:
            if arrays[name].dtype.kind not in "iu":
                raise InputError(f"{path}: {name} holds {arrays[name].dtype} values, not whole numbers")
        parts = (_numbers(arrays["data"], "data", path), arrays["indices"], arrays["indptr"])
        try:
            height, width = (int(size) for size in arrays["shape"])
            X = sp.csr_array(parts, shape=(height, width))
            X.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(f"{path} does not hold a valid CSR matrix: {error}") from None
    else:
        raise InputError(
            f"{path} must hold X and y, or data, indices, indptr, shape and y; "
            f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{path} holds no samples or no features (shape {X.shape})")
    return X


def _column(values: np.ndarray, n_samples: int, name: str, path: Path) -> np.ndarray:
    if values.shape == (n_samples, 1):
        values = values[:, 0]
    if values.shape != (n_samples,):
        raise InputError(
            f"{path}: {name} must have one entry per row: X has {n_samples} rows, "
            f"{name} has shape {values.shape}"
        )
    return values


def _numbers(values: np.ndarray, name: str, path: Path) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: {name} holds {values.dtype} values, not numbers")
    out = np.asarray(values, dtype=np.float64)
    if not np.isfinite(out).all():
        place = tuple(int(k) for k in np.argwhere(~np.isfinite(out))[0])
        raise InputError(f"{path}: {name} holds NaN or infinity, first at {place}; clean or impute it first")
    return out


class _Block(NamedTuple):
    labels: np.ndarray
    counts: np.ndarray
    indices: np.ndarray
    values: np.ndarray


def read_libsvm(path: Path) -> Table:
    """Read LIBSVM text: one sample per line, ``label index:value index:value …``, indices ascending.

    The columns are the indices as they stand in the file. A block of lines is checked and converted as
    arrays; only when a check fails is the offending line looked for.
    """
    with open_bytes(path) as stream:
        blocks = [_parse(block, line, path) for block, line in _blocks(stream)]
    labels = np.concatenate([block.labels for block in blocks]) if blocks else np.empty(0)
    if labels.size == 0:
        raise InputError(f"{path} holds no samples")
    counts = np.concatenate([block.counts for block in blocks])
    indices = np.concatenate([block.indices for block in blocks])
    values = np.concatenate([block.values for block in blocks])
    if indices.size == 0:
        raise InputError(f"{path} holds labels but no features: expected 'label index:value …' on each line")
    small = indices.size < 2**31
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32 if small else np.int64)
    shape = (labels.size, int(indices.max()) + 1)
    X = sp.csr_array((values, indices.astype(indptr.dtype), indptr), shape=shape)
    return Table(X, labels, None, str(path), lowest_index=int(indices.min()))


def _blocks(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, and the number of the first."""
    line, rest = 1, b""
    while chunk := stream.read(_BLOCK):
        if line == 1 and not rest:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += chunk
            continue
        block = rest + head + newline
        yield block, line
        line += block.count(b"\n")
        rest = tail
    if rest:
        yield rest, line


def _parse(block: bytes, first_line: int, path: Path) -> _Block:
    if b"#" in block:
        block = re.sub(rb"#[^\n]*", b"", block)
    odd = _NOT_TEXT.search(block)
    if odd is not None:
        where = first_line + block[: odd.start()].count(b"\n")
        raise InputError(f"{path} is not LIBSVM text: line {where} holds a byte that is not plain text")
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    if b"_" in block or not all(map(_LINE.fullmatch, lines)):  # Python's numbers may hold underscores
        _explain(block, first_line, path)
    tokens = block.replace(b":", b" ").split()
    try:
        numbers = np.fromiter(map(float, tokens), np.float64, len(tokens))
    except ValueError:
        _explain(block, first_line, path)
    counts = np.array([line.count(b":") for line in lines], dtype=np.int64)
    labels = np.cumsum(2 * counts + 1) - 2 * counts - 1
    indices, values = np.delete(numbers, labels).reshape(-1, 2).T
    ascends = np.diff(indices, prepend=-1.0) > 0.0
    ascends[(np.cumsum(counts) - counts)[counts > 0]] = True  # the first of a line
    if not (np.isfinite(numbers).all() and ascends.all() and (indices <= _LARGEST_INDEX).all()):
        _explain(block, first_line, path)
    return _Block(numbers[labels], counts, indices.astype(np.int64), values)


def _explain(block: bytes, first_line: int, path: Path) -> NoReturn:
    """Find the first line that is wrong and say what is wrong with it."""
    for number, text in enumerate(block.decode().split("\n"), start=first_line):
        problem = _fault(text)
        if problem is not None:
            raise InputError(f"{path}: line {number}: {problem}")
    raise InputError(f"{path} is not LIBSVM text: expected 'label index:value …' on each line")


def _fault(text: str) -> str | None:
    """Return what is wrong with one line, None when nothing is.

    The words of the file are not repeated: over MPI other ranks are told, and samples stay where they are.
    """
    words = text.split()
    if not words:
        return None
    label = _plain_number(words[0])
    if label is None:
        if "," in words[0]:
            return "the first word is not one label: not LIBSVM text, or several labels per sample"
        return "the label is not a number"
    if not np.isfinite(label):
        return "the label is NaN or infinite; clean the data first"
    previous = -1.0
    for place, word in enumerate(words[1:], start=2):
        left, colon, right = word.partition(":")
        if left == "qid":
            return "qid (ranking data) is not supported"
        if not colon or not left or not right or ":" in right:
            return f"word {place} is not index:value"
        if not (left.isascii() and left.isdigit()):
            return f"the index in word {place} is not a whole number of at least 0"
        if int(left) > _LARGEST_INDEX:
            return f"the index in word {place} is too large (at most {_LARGEST_INDEX})"
        if int(left) <= previous:
            return f"the index {left} comes after {previous:.0f}; indices must ascend"
        previous = int(left)
        value = _plain_number(right)
        if value is None:
            return f"the value of index {left} is not a number"
        if not np.isfinite(value):
            return f"the value of index {left} is NaN or infinite; clean or impute the data first"
    return None


def _plain_number(word: str) -> float | None:
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None


#: Format -> the endings that say it. Any other ending is taken for LIBSVM text, which often has none.
FORMATS = {
    "libsvm": (".svm", ".libsvm", ".svmlight", ".txt", ".t"),
    "npz": (".npz",),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
}
# One node of a run keeps about so many vectors of d numbers.
_VECTORS = 8


@dataclass(frozen=True)
class ReadOptions:
    """How files are read.

    Parameters
    ----------
    form : str
        ``"auto"`` or one of `FORMATS`.
    label, weight, offset : str, optional
        The columns with the labels, the sample weights and the offsets, for CSV and parquet.
    n_features : int, optional
        d, where the files do not say it.
    index_base : int, optional
        0 or 1, for LIBSVM text.
    labels_needed, offset_needed : bool
        Whether a file without labels, or without the offsets that ``offset`` names, is refused.
    """

    form: str = "auto"
    label: str | None = None
    weight: str | None = None
    n_features: int | None = None
    index_base: int | None = None
    labels_needed: bool = True
    offset: str | None = None
    offset_needed: bool = True

    def __post_init__(self) -> None:
        if self.form != "auto" and self.form not in FORMATS:
            raise unknown_name("format", self.form, ("auto", *FORMATS))
        if self.index_base not in (None, 0, 1):
            raise InputError(f"--index-base must be 0 or 1, got {self.index_base}")
        needed, there = 8 * _VECTORS * (self.n_features or 0), machine_memory()
        if needed > there:
            raise InputError(
                f"--n-features {self.n_features} needs about {needed / 1e9:.3g} GB per node, this machine "
                f"has {there / 1e9:.3g} GB; give the number of features that the data has, or leave it out"
            )


def format_of(path: Path) -> str:
    """Return the format that a file's name says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return next((form for form, endings in FORMATS.items() if last in endings), "libsvm")


def check_name(name: str) -> None:
    """Raise for names of what is no file that can be read here."""
    if name == "-":
        raise InputError("standard input (-) is not read; save it to a file first")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        raise InputError(f"{name} is an address, and only files on a disk are read; download it first")
    if name.lower().endswith(".zip"):
        raise InputError(f"{name} is a zip archive; unpack it first")


def read_table(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Table:
    """Read one file; the columns of LIBSVM text are settled afterwards by `align`."""
    options = options or ReadOptions()
    check_name(os.fspath(path))
    path = Path(path)
    form = format_of(path) if options.form == "auto" else options.form
    if form == "libsvm":
        table = read_libsvm(path)
    elif form == "npz":
        table = read_npz(path, labels_needed=options.labels_needed)
    else:
        frame, named = read_csv(path) if form == "csv" else read_parquet(path)
        table = split_columns(
            path,
            frame,
            named,
            (options.label, options.weight, options.offset),
            labels_needed=options.labels_needed,
            offset_needed=options.offset_needed,
        )
    if options.weight is not None and table.weights is None:
        raise InputError(f"{path} has no weights: --weight names a column of CSV and parquet")
    if options.offset is not None and options.offset_needed and table.offset is None:
        raise InputError(f"{path} has no offsets: --offset names a column of CSV and parquet")
    return table


def read_tables(paths: Sequence[str | os.PathLike[str]], options: ReadOptions | None = None) -> list[Table]:
    """Read several files and bring them to the same columns."""
    options = options or ReadOptions()
    return align(
        [read_table(path, options) for path in paths],
        n_features=options.n_features,
        index_base=options.index_base,
    )


_BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")


def read_source(name: str, options: ReadOptions | None = None, *, seed: int = 0) -> Table:
    """Return the samples that a name stands for.

    Parameters
    ----------
    name : str
        A file; ``sklearn:breast_cancer`` (or diabetes, digits, iris, wine), standardised; or
        ``synthetic:200x10``, samples from a normal distribution with labels ±1 of a noisy hyperplane.
    options : ReadOptions, optional
        For files.
    seed : int
        Of random data.

    Examples
    --------
    >>> read_source("synthetic:200x10").X.shape
    (200, 10)
    """
    kind, colon, rest = name.partition(":")
    if colon and kind == "sklearn":
        return _bundled(rest)
    if colon and kind == "synthetic":
        return _synthetic(rest, seed)
    return read_tables([name], options)[0]


def _bundled(name: str) -> Table:
    if name not in _BUNDLED:
        raise unknown_name("bundled data set", name, _BUNDLED)
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return Table(np.ascontiguousarray(X), y.astype(np.float64), None, f"sklearn:{name}")


def _synthetic(sizes: str, seed: int) -> Table:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", sizes)
    if found is None:
        raise InputError(f"synthetic data wants samples x features, as in synthetic:200x10, got {sizes!r}")
    n_samples, n_features = (int(size) for size in found.groups())
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    margins = X @ rng.standard_normal(n_features) / np.sqrt(n_features)
    y = np.where(margins + 0.5 * rng.standard_normal(n_samples) >= 0.0, 1.0, -1.0)
    return Table(X, y, None, f"synthetic:{sizes}")
