"""Samples from files (LIBSVM text, .npz, CSV, parquet), from bundled data sets, or at random."""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from adfs.data.table import Matrix, ReadOptions, Table, align, as_number, split_columns
from adfs.errors import InputError, unknown_name
from adfs.files import machine_memory, open_bytes, read_arrays

if TYPE_CHECKING:
    import pandas as pd

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


def read_csv(path: Path) -> tuple[pd.DataFrame, bool]:
    """Return the columns of a text file, and whether its first line has their names.

    Columns may be separated by commas, semicolons, tabs, bars or blanks.
    """
    import pandas as pd

    # The text is read at once: its first lines decide the separator and whether there are names.
    with open_bytes(path) as stream:
        content = stream.read().removeprefix(b"\xef\xbb\xbf")
    if b"\x00" in content:
        raise InputError(f"{path} is not CSV: it holds bytes that are not text")
    first = next((line for line in io.BytesIO(content) if line.strip()), b"")
    if not first:
        raise InputError(f"{path} is empty")
    separator = _separator(content)
    fields = _fields(first, separator)
    # A first line of numbers only is a sample.
    named = not all(as_number(field) is not None for field in fields)
    # A line with too many fields is an error; pandas only warns if all lines have them.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.BytesIO(content),
                sep=r"\s+" if separator == " " else separator,
                skipinitialspace=True,
                header=0 if named else None,
                index_col=False,
                low_memory=False,
            )
    except UnicodeDecodeError:
        raise InputError(f"{path} is not CSV in UTF-8: it holds bytes that are not text") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path}: the lines have more fields than the first one ({len(fields)})") from None
    except pd.errors.ParserError as error:
        match = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if match:
            raise InputError(
                f"{path}: line {match[2]} has {match[3]} fields, {match[1]} were expected"
            ) from None
        raise InputError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from None
    except ValueError:  # its message may contain values of the file, which stay in this process
        raise InputError(f"{path} cannot be read as CSV") from None
    # pandas renames columns that have the same name, so the text is checked.
    if named:
        _check_first_line(fields, frame, path)
        twice = next((field for field in fields if fields.count(field) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: two columns are named {twice!r}")
        frame = frame.rename(columns=str.strip)
    return frame, named


def read_parquet(path: Path) -> tuple[pd.DataFrame, bool]:
    """Return the columns of a parquet file, which have names."""
    import pandas as pd

    with open_bytes(path) as stream:
        content = stream.read()
    try:
        return pd.read_parquet(io.BytesIO(content), engine="pyarrow"), True
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise InputError(
            f"{path} is not a parquet file, or is damaged: {str(error).splitlines()[0]}"
        ) from None


def _separator(content: bytes) -> str:
    """Return the separator of the columns: equally often on every line, and with numbers between."""
    head = b"".join(itertools.islice(io.BytesIO(content), 20))
    # Each separator is tried on the first lines.
    lines = [line for line in head.splitlines() if line.strip()]
    best, separator = (False, -1.0), ","
    for mark in (",", ";", "\t", "|", " "):  # of two that are equally good, the more usual one
        rows = [_fields(line, mark) for line in lines]
        if len(rows[0]) == 1:
            continue
        numeric = [as_number(field) is not None for row in rows[1:] or rows for field in row]
        merit = (len({len(row) for row in rows}) == 1, sum(numeric) / len(numeric))
        if merit > best:
            best, separator = merit, mark
    return separator


def _fields(line: bytes, separator: str) -> list[str]:
    text = line.decode("utf-8", "replace")
    if separator == " ":
        return [field.strip('"') for field in text.split()]
    try:
        fields = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
    except csv.Error:  # a very long line without this separator
        return [text]
    return [field.strip() for field in fields]


def _check_first_line(fields: list[str], frame: pd.DataFrame, path: Path) -> None:
    """Raise if the first line, taken for names, looks like a sample.

    It does if it has numbers where the other lines have them, and either a text that occurs below it, too, or
    numbers that cannot be the numbers of columns, because they are not whole or do not ascend.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    # Each name of the first line with its column, and whether that holds numbers.
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    pairs = [
        (field, values, is_numeric_dtype(values) and not is_bool_dtype(values))
        for field, values in zip(fields, columns, strict=False)
    ]
    numbers = [field for field, _, numeric in pairs if numeric and field]
    if len(frame) == 0 or None in map(as_number, numbers):
        return
    repeated = any(values.astype(str).eq(field).any() for field, values, numeric in pairs if not numeric)
    values = [float(number) for number in numbers]
    numbered = all(value.is_integer() for value in values) and all(a < b for a, b in pairwise(values))
    if repeated or not numbered:
        raise InputError(
            f"{path} has no line of names: its first line looks like the other lines; put a line with the "
            "names of the columns above it (or, if that line has the names, replace those that are numbers)"
        )


def check_name(name: str) -> None:
    """Raise for names that are not those of files on a disk."""
    if name == "-":
        raise InputError("standard input (-) is not read; save it to a file first")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        raise InputError(f"{name} is an address, and only files on a disk are read; download it first")
    if name.lower().endswith(".zip"):
        raise InputError(f"{name} is a zip archive; unpack it first")


def read_table(path: str | os.PathLike[str], options: ReadOptions = _ANY_FILE) -> Table:
    """Read one file; `align` decides afterwards whether columns of LIBSVM text count from 0 or 1."""
    check_name(os.fspath(path))
    path = Path(path)
    form = options.form_of(path)
    if form == "libsvm":
        table = read_libsvm(path)
    elif form == "npz":
        table = read_npz(path, labels_needed=options.labels_needed)
    else:
        frame, named = read_csv(path) if form == "csv" else read_parquet(path)
        table = split_columns(path, frame, named, options)
    # LIBSVM text has no columns of weights or offsets, and an archive has its own.
    if options.weight is not None and table.weights is None:
        raise InputError(f"{path} has no weights: --weight names a column of CSV and parquet")
    if options.offset is not None and options.offset_needed and table.offset is None:
        raise InputError(f"{path} has no offsets: --offset names a column of CSV and parquet")
    return table


def read_tables(paths: Sequence[str | os.PathLike[str]], options: ReadOptions = _ANY_FILE) -> list[Table]:
    """Read several files and bring them to the same columns."""
    return align(
        [read_table(path, options) for path in paths],
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
