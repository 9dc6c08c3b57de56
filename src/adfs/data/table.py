"""The samples of one file as a table, made of columns, and several tables with the same columns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError, unknown_name
from adfs.files import COMPRESSED_SUFFIXES, machine_memory

if TYPE_CHECKING:
    import pandas as pd

Matrix = Any  # np.ndarray or scipy.sparse.csr_array; scipy's types cannot say "either, of float64"

#: Format -> the endings of its files. Files with other endings are read as LIBSVM text, which often has none.
FORMATS = {
    "libsvm": (".svm", ".libsvm", ".svmlight", ".txt", ".t"),
    "npz": (".npz",),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
}


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
        d, if the files do not determine it.
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
        # A node of a run keeps about eight vectors of d numbers of 8 bytes.
        needed, memory = 8 * 8 * (self.n_features or 0), machine_memory()
        if needed > memory:
            raise InputError(
                f"--n-features {self.n_features} needs about {needed / 1e9:.3g} GB per node, this machine "
                f"has {memory / 1e9:.3g} GB; give the number of features that the data has, or leave it out"
            )

    def form_of(self, path: Path) -> str:
        """Return the format of a file, by the ending of its name unless it was given."""
        if self.form != "auto":
            return self.form
        # data.svm.bz2 has the format of data.svm.
        suffixes = [suffix.lower() for suffix in path.suffixes]
        if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
            suffixes.pop()
        last = suffixes[-1] if suffixes else ""
        return next((form for form, endings in FORMATS.items() if last in endings), "libsvm")


@dataclass(frozen=True, eq=False)
class Table:
    """The samples of one file.

    Attributes
    ----------
    X : ndarray or csr_array of shape (N, d)
        For LIBSVM text the column is the index as it stands in the file, until `align` has decided whether
        counting starts at 0 or 1.
    y : ndarray of shape (N,), or None
        Numbers (float64) or text; None if the file has no labels and needs none.
    weights : ndarray of shape (N,), or None
    source : str
        The file, for messages.
    feature_names : tuple of str, or None
    lowest_index : int or None
        The lowest index of LIBSVM text, before `align`; None for other formats.
    index_base : int or None
        The first index of LIBSVM text (0 or 1), after `align`.
    offset : ndarray of shape (N,), or None
        Is added to xᵀθ + b.
    offset_name : str or None
        The column or array that the offsets were read from.
    """

    X: Matrix
    y: np.ndarray | None
    weights: np.ndarray | None
    source: str
    feature_names: tuple[str, ...] | None = None
    lowest_index: int | None = None
    index_base: int | None = None
    offset: np.ndarray | None = None
    offset_name: str | None = None

    @property
    def n_samples(self) -> int:
        """N."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """The dimension d."""
        return int(self.X.shape[1])


def align(
    tables: Sequence[Table],
    *,
    n_features: int | None = None,
    index_base: int | None = None,
    ignore_extra: bool = False,
    remedy: str = "raise --n-features or leave it out",
) -> list[Table]:
    """Bring tables to the same columns.

    Parameters
    ----------
    tables : sequence of Table
    n_features : int, optional
        d; the largest of the tables when not given. Only LIBSVM text may have fewer columns than that.
    index_base : int, optional
        Where the indices of LIBSVM text start, 0 or 1. By default 0 if any table has an index 0, otherwise 1.
    ignore_extra : bool
        Leave out columns beyond ``n_features`` instead of refusing them.
    remedy : str
        The advice in the error about columns that are refused.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> raw = Table(sp.csr_array([[0.0, 5.0, 6.0]]), np.ones(1), None, "a.svm", lowest_index=1)
    >>> align([raw], n_features=4)[0].X.toarray().tolist()
    [[5.0, 6.0, 0.0, 0.0]]
    """
    # Files with named columns must have the same ones.
    names = {table.feature_names for table in tables if table.feature_names is not None}
    if len(names) > 1:
        raise InputError(f"{tables[0].source} and the other files have different columns; give them the same")
    # All LIBSVM files count from the same index, then they get the same width.
    lowest = {table.lowest_index: table.source for table in tables if table.lowest_index is not None}
    base = index_base if index_base is not None else int(0 not in lowest)
    if base == 1 and 0 in lowest:
        raise InputError(f"{lowest[0]} has an index 0, but its indices should start at 1")
    shifted = [_shift(table, base) if table.lowest_index is not None else table for table in tables]
    width = max(table.n_features for table in shifted) if n_features is None else n_features
    # With more than 10⁸ columns a wrong index is more likely than a model of that size.
    if n_features is None and width > 100_000_000:
        worst = max(shifted, key=lambda table: table.n_features)
        raise InputError(
            f"{worst.source}: index {width - 1 + base} would make a model of {width} coefficients; "
            "check the file, or confirm with --n-features"
        )
    return [_widen(table, width, ignore_extra, remedy) for table in shifted]


def _shift(table: Table, base: int) -> Table:
    X = table.X
    if base:
        X = sp.csr_array((X.data, X.indices - 1, X.indptr), shape=(X.shape[0], max(X.shape[1] - 1, 0)))
    return dataclasses.replace(table, X=X, lowest_index=None, index_base=base)


def _widen(table: Table, width: int, ignore_extra: bool, remedy: str) -> Table:
    count = table.n_features
    if count == width:
        return table
    if count > width:
        if not ignore_extra:
            raise InputError(f"{table.source} has {count} features, {width} are wanted; {remedy}")
        return dataclasses.replace(table, X=table.X[:, :width])
    # Only sparse text leaves out its last columns, if they are all 0.
    if table.index_base is None:
        raise InputError(
            f"{table.source} has {count} features, {width} are wanted; only LIBSVM text may have fewer"
        )
    X = sp.csr_array((table.X.data, table.X.indices, table.X.indptr), shape=(table.n_samples, width))
    return dataclasses.replace(table, X=X)


def stack(tables: Sequence[Table]) -> tuple[Table, list[np.ndarray]]:
    """Put aligned tables one below the other; return the joined table and the rows of each.

    Returns
    -------
    Table
        Sparse if one of them is.
    list of ndarray
        The row numbers of each table in it: a partition with one table per node.
    """
    # The rows of each table in the joined one.
    cuts = np.cumsum([0, *(table.n_samples for table in tables)])
    parts = [np.arange(a, b) for a, b in pairwise(cuts)]
    if len(tables) == 1:
        return tables[0], parts
    labels = [table.y for table in tables if table.y is not None]
    if labels and len(labels) != len(tables):
        raise InputError("some of the files have labels and others do not")
    if len({label.dtype.kind for label in labels}) > 1:
        raise InputError("some of the files have numbers as labels and others text; give them the same")
    # A file without weights has weight 1 for each sample; offsets must be in all files or in none.
    weighted = any(table.weights is not None for table in tables)
    weights = [np.ones(t.n_samples) if t.weights is None else t.weights for t in tables] if weighted else []
    shifts = [table.offset for table in tables if table.offset is not None]
    if shifts and len(shifts) != len(tables):
        raise InputError("some of the files have offsets and others do not")
    # One sparse table makes all of them sparse.
    X: Matrix
    if any(sp.issparse(table.X) for table in tables):
        X = sp.csr_array(sp.vstack([sp.csr_array(table.X) for table in tables], format="csr"))
    else:
        X = np.vstack([table.X for table in tables])
    joined = dataclasses.replace(
        tables[0],
        X=X,
        y=np.concatenate(labels) if labels else None,
        weights=np.concatenate(weights) if weighted else None,
        offset=np.concatenate(shifts) if shifts else None,
        source=f"{tables[0].source} and {len(tables) - 1} more",
    )
    return joined, parts


def labels_for(y: np.ndarray, task: str, loss: str, source: str) -> np.ndarray:
    """Return the labels for a loss: two classes as −1 and +1, numbers of a regression unchanged."""
    if task != "classification":
        if y.dtype.kind == "U":
            raise InputError(
                f"{source}: the labels are text, the loss {loss!r} of a regression needs numbers"
            )
        return y
    # The larger class becomes +1.
    classes = np.unique(y)
    if classes.size != 2:
        raise InputError(
            f"{source} has {classes.size} classes; the loss {loss!r} takes two here; "
            "for numbers choose a regression loss, such as squared"
        )
    return np.where(y == classes[1], 1.0, -1.0)


# --------------------------------------------------------------------------- columns


def split_columns(path: Path, frame: pd.DataFrame, named: bool, options: ReadOptions) -> Table:
    """Return the table of a file's columns, which have names or not.

    A column is asked for by its name, or by its number counted from 0 (from the end if negative). If none is
    asked for, the labels are the column named label, target, y or class.
    """
    if len(frame) == 0:
        raise InputError(f"{path} holds no samples")
    columns = [str(column) for column in frame.columns]
    frame.columns = columns
    label_column = _find(columns, options.label, path, "label", options.labels_needed, named)
    weight_column = offset_column = None
    if options.weight is not None:
        weight_column = _find(columns, options.weight, path, "weight", options.labels_needed, named)
    if options.offset is not None:
        offset_column = _find(columns, options.offset, path, "offset", options.offset_needed, named)
    features = [column for column in columns if column not in (label_column, weight_column, offset_column)]
    if not features:
        raise InputError(f"{path} has no column besides the label")
    # One column after the other: an error names the first one that does not hold numbers.
    X = np.column_stack([_numeric(frame[column], column, path) for column in features])
    return Table(
        np.ascontiguousarray(X),
        None if label_column is None else _labels(frame[label_column], label_column, path),
        None if weight_column is None else _numeric(frame[weight_column], weight_column, path),
        str(path),
        feature_names=tuple(features) if named else None,
        offset=None if offset_column is None else _numeric(frame[offset_column], offset_column, path),
        offset_name=offset_column,
    )


def _find(
    columns: list[str], wanted: str | None, path: Path, role: str, needed: bool, named: bool
) -> str | None:
    """Return the name of the column with a role, None if it is neither there nor needed."""
    if wanted is None:
        usual = ("label", "target", "y", "class")
        candidates = [column for column in columns if column.lower() in usual] if named else []
        if len(candidates) == 1:
            return candidates[0]
        if not needed:
            return None
        reason = "several columns could be the label"
        if not candidates:
            reason = "no column is named label, target, y or class"
        if len(columns) == 1:
            raise InputError(
                f"{path} has one column only, {columns[0]!r}; separate columns by commas, semicolons, tabs, "
                "bars or blanks"
            )
        raise InputError(f"{path}: {reason}; say which with --{role}: {_listed(columns)}")
    # A name first: a column may be called 0.
    if wanted in columns and named:
        return wanted
    if re.fullmatch(r"-?\d+", wanted) and -len(columns) <= int(wanted) < len(columns):
        return columns[int(wanted)]
    if not needed:
        return None
    raise InputError(f"{path} has no column {wanted!r}; its columns are {_listed(columns)}")


def _listed(columns: list[str]) -> str:
    return ", ".join(columns[:12]) + (f", … ({len(columns)} in all)" if len(columns) > 12 else "")


def _numeric(values: pd.Series, name: str, path: Path) -> np.ndarray:
    """Return a column as numbers; raise if it holds text, or has missing or infinite entries."""
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    if not (is_numeric_dtype(values) or is_bool_dtype(values)) or is_complex_dtype(values):
        # The row is reported, not its text.
        for row, value in enumerate(values):
            if as_number(str(value)) is None:
                raise InputError(
                    f"{path}: column {name!r} holds text in data row {row + 1}; turn it into numbers first"
                )
        raise InputError(f"{path}: column {name!r} holds {values.dtype} values, not numbers")
    # Missing values become NaN, which is refused below.
    out = values.to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(out).all():
        row = int(np.flatnonzero(~np.isfinite(out))[0])
        raise InputError(
            f"{path}: column {name!r} is missing, NaN or infinite in data row {row + 1}; "
            "clean or impute it first"
        )
    return out


def _labels(values: pd.Series, name: str, path: Path) -> np.ndarray:
    """Return the labels as numbers, or as text; raise if some are numbers and others are not."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if values.isna().any():
        row = int(np.flatnonzero(values.isna().to_numpy())[0])
        raise InputError(f"{path}: the label {name!r} is missing in data row {row + 1}")
    if is_numeric_dtype(values) and not is_bool_dtype(values):
        return _numeric(values, name, path)
    # Labels may be text, or numbers that were read as text.
    texts = [str(value) for value in values]
    numeric = [as_number(text) is not None for text in texts]
    if any(numeric) and not all(numeric):
        raise InputError(
            f"{path}: the label {name!r} mixes numbers and text: a number in data row "
            f"{numeric.index(True) + 1}, text in data row {numeric.index(False) + 1}"
        )
    return np.array([float(text) for text in texts]) if all(numeric) else np.array(texts, dtype=np.str_)


def as_number(word: str) -> float | None:
    """Return the number that a word is, None for other words; ``1_000`` is none."""
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None
