"""Samples from files (LIBSVM text, .npz, CSV, parquet), from bundled data sets, or at random."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp

from adfs.data.frames import read_csv, read_parquet, split_columns
from adfs.data.joint_encoding import encode_tables
from adfs.data.table import Matrix, RawTable, ReadOptions, Table, align, as_number
from adfs.errors import InputError, unknown_name
from adfs.files import machine_memory, open_bytes, read_arrays

# The arrays of a CSR matrix, as `scipy.sparse.save_npz` names them.
_CSR = ("data", "indices", "indptr", "shape")
_ANY_FILE = ReadOptions()
# Indices of columns are stored in 32 bits.
_LARGEST_INDEX = 2**31 - 2


def read_npz(path: Path, *, labels_needed: bool = True) -> Table:
    """Read an archive with dense rows (``X``), or CSR rows as `scipy.sparse.save_npz` names their arrays.

    An archive without ``y`` is refused if labels are needed.
    """
    roles = ("sample_weight", "offset")
    # Real data are not compressed by more than a factor of 100. An archive that claims to be must be small, a
    # hundredth of the memory, because it may have been made to fill the memory.
    memory = machine_memory()
    with open_bytes(path) as stream:
        # NumPy reports a damaged archive in many ways; this check gives one sentence.
        if not zipfile.is_zipfile(stream):
            raise InputError(f"{path} is not a NumPy archive, or is damaged or cut short")
        stream.seek(0)
        most_bytes = min(memory, max(100 * path.stat().st_size, memory // 100))
        try:
            arrays = read_arrays(stream, most_bytes, (*_CSR, "format", "X", "y", *roles))
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
        try:
            y = y.astype(np.str_) if y.dtype.kind in "US" else _numbers(y, "y", path)
        except UnicodeDecodeError:
            raise InputError(f"{path}: y holds bytes that are not text; save text or numbers") from None
    # Both are optional columns with one number per row.
    weights, offset = (
        _numbers(_column(arrays[name], X.shape[0], name, path), name, path) if name in arrays else None
        for name in roles
    )
    name = None if offset is None else "offset"
    return Table(X, y, weights, str(path), offset=offset, offset_name=name)


def _rows(arrays: dict[str, np.ndarray], path: Path) -> Matrix:
    X: Matrix
    # Dense rows.
    if "X" in arrays:
        X = _numbers(arrays["X"], "X", path)
        if X.ndim != 2:
            raise InputError(f"{path}: X must be two-dimensional (samples × features), got shape {X.shape}")
    elif all(name in arrays for name in _CSR):
        # Sparse rows; `scipy.sparse.save_npz` also writes the form of the matrix.
        kind = arrays.get("format", np.array("csr")).tolist()
        if kind not in ("csr", b"csr"):
            raise InputError(f"{path} holds a sparse matrix in another form than CSR; save it with .tocsr()")
        # SciPy would truncate fractions without a word.
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
    # A column of a matrix is taken for a vector.
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
        # The place of the number is reported, not the number.
        place = tuple(int(k) for k in np.argwhere(~np.isfinite(out))[0])
        raise InputError(f"{path}: {name} holds NaN or infinity, first at {place}; clean or impute it first")
    return out


class _Lines:
    """The lines of LIBSVM text for scikit-learn's parser, without comments.

    The parser reads ``1_000`` as a number and skips ``qid``; both are refused here.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.read = stream.read  # the parser takes only objects with this method

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            text = line.partition(b"#")[0]
            if b"_" in text or b"q" in text:
                raise ValueError
            yield text


def read_libsvm(path: Path) -> Table:
    """Read LIBSVM text: one sample per line, ``label index:value index:value …``, indices ascending.

    The columns are the indices as they stand in the file.
    """
    from sklearn.datasets import load_svmlight_file

    with open_bytes(path) as stream:
        # A byte order mark, which some editors write, is not part of the text.
        if stream.read(3) != b"\xef\xbb\xbf":
            stream.seek(0)
        try:
            rows, labels = load_svmlight_file(_Lines(stream), zero_based=True)
        except (ValueError, OverflowError):
            rows = None
    if rows is None or not (np.isfinite(rows.data).all() and np.isfinite(labels).all()):
        raise _explained(path)
    if labels.size == 0:
        raise InputError(f"{path} holds no samples")
    if rows.nnz == 0:
        raise InputError(f"{path} holds labels but no features: expected 'label index:value …' on each line")
    if rows.shape[1] > _LARGEST_INDEX + 1:
        raise _explained(path)
    kind = np.int32 if rows.nnz < 2**31 else np.int64
    X = sp.csr_array((rows.data, rows.indices.astype(kind), rows.indptr.astype(kind)), shape=rows.shape)
    return Table(X, labels, None, str(path), lowest_index=int(X.indices.min()))


def _explained(path: Path) -> InputError:
    """Return the error of a file that is not LIBSVM text: its first wrong line, and what is wrong there."""
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf").partition(b"#")[0]
            if re.search(rb"[^\t-\r -~]", text):
                return InputError(
                    f"{path} is not LIBSVM text: line {number} holds a byte that is not plain text"
                )
            fault = _fault(text.decode())
            if fault is not None:
                return InputError(f"{path}: line {number}: {fault}")
    return InputError(f"{path} is not LIBSVM text: expected 'label index:value …' on each line")


def _fault(text: str) -> str | None:
    """Return what is wrong with one line, None if nothing is.

    The sentence does not repeat words of the file: over MPI other ranks get it, and samples stay where they
    are.
    """
    # Blank lines and comments are no samples.
    words = text.split()
    if not words:
        return None
    label = as_number(words[0])
    if label is None:
        if "," in words[0]:
            return "the first word is not one label: not LIBSVM text, or several labels per sample"
        return "the label is not a number"
    if not np.isfinite(label):
        return "the label is NaN or infinite; clean the data first"
    # Pairs index:value, with ascending indices.
    previous = -1
    for place, word in enumerate(words[1:], start=2):
        index, colon, value = word.partition(":")
        if index == "qid":
            return "qid (ranking data) is not supported"
        if not colon or not index or not value or ":" in value:
            return f"word {place} is not index:value"
        if not (index.isascii() and index.isdigit()):
            return f"the index in word {place} is not a whole number of at least 0"
        if int(index) > _LARGEST_INDEX:
            return f"the index in word {place} is too large (at most {_LARGEST_INDEX})"
        if int(index) <= previous:
            return f"the index {index} comes after {previous}; indices must ascend"
        previous = int(index)
        number = as_number(value)
        if number is None:
            return f"the value of index {index} is not a number"
        if not np.isfinite(number):
            return f"the value of index {index} is NaN or infinite; clean or impute the data first"
    return None


def check_name(name: str) -> None:
    """Raise for addresses and zip archives, which are not read."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        raise InputError(f"{name} is an address, and only files on a disk are read; download it first")
    if name.lower().endswith(".zip"):
        raise InputError(f"{name} is a zip archive; unpack it first")


def read_raw(path: str | os.PathLike[str], options: ReadOptions = _ANY_FILE) -> Table | RawTable:
    """Read one file; `encode_tables` makes features of the columns of CSV and parquet.

    `align` decides afterwards whether columns of LIBSVM text count from 0 or 1.
    """
    check_name(os.fspath(path))
    path = Path(path)
    form = options.form_of(path)
    table: Table | RawTable
    if form == "libsvm":
        table = read_libsvm(path)
    elif form == "npz":
        table = read_npz(path, labels_needed=options.labels_needed)
    else:
        frame, named = (read_csv if form == "csv" else read_parquet)(path, options)
        table = split_columns(path, frame, named, options)
    # LIBSVM text has no columns of weights or offsets, and an archive has its own.
    if options.weight is not None and table.weights is None:
        raise InputError(f"{path} has no weights: --weight names a column of CSV and parquet")
    if options.offset is not None and options.offset_needed and table.offset is None:
        raise InputError(f"{path} has no offsets: --offset names a column of CSV and parquet")
    return table


def read_table(path: str | os.PathLike[str], options: ReadOptions = _ANY_FILE) -> Table:
    """Read one file, and find the encoding of its columns from it alone."""
    return encode_tables([read_raw(path, options)], options)[0]


def read_tables(paths: Sequence[str | os.PathLike[str]], options: ReadOptions = _ANY_FILE) -> list[Table]:
    """Read several files and bring them to the same columns."""
    return align(
        encode_tables([read_raw(path, options) for path in paths], options),
        n_features=options.n_features,
        index_base=options.index_base,
    )


def read_source(name: str, options: ReadOptions = _ANY_FILE, *, seed: int = 0) -> Table:
    """Return the samples of a file, of a bundled data set, or at random.

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
    known = ("breast_cancer", "diabetes", "digits", "iris", "wine")
    if name not in known:
        raise unknown_name("bundled data set", name, known)
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    # Columns that are constant stay constant.
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return Table(np.ascontiguousarray(X), y.astype(np.float64), None, f"sklearn:{name}")


def _synthetic(sizes: str, seed: int) -> Table:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", sizes)
    if match is None:
        raise InputError(f"synthetic data needs samples x features, as in synthetic:200x10, got {sizes!r}")
    n_samples, n_features = (int(size) for size in match.groups())
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    # A hyperplane through 0, with noise.
    margins = X @ rng.standard_normal(n_features) / np.sqrt(n_features)
    y = np.where(margins + 0.5 * rng.standard_normal(n_samples) >= 0.0, 1.0, -1.0)
    return Table(X, y, None, f"synthetic:{sizes}")
