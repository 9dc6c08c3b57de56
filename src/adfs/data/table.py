"""The samples of one file as a table, made of columns, and several tables with the same columns."""

from __future__ import annotations

import csv
import dataclasses
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
    from adfs.data.encoding import Encoding

Matrix = Any  # np.ndarray or scipy.sparse.csr_array; scipy's types cannot say "either, of float64"

#: Format -> the endings of its files; "-" is standard input. Files with other endings are read as LIBSVM
#: text, which often has none.
FORMATS = {
    "libsvm": (".svm", ".libsvm", ".svmlight", ".txt", ".t"),
    "npz": (".npz",),
    "csv": (".csv", ".tsv", "-"),
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
    drop, columns : str or sequence of str, optional
        The columns to leave out, or those to keep; text is a list with commas.
    categories : str or sequence of str, optional
        The columns of numbers that are names of something, such as postal codes.
    missing : str
        ``"mean"`` (missing numbers become the mean, and an indicator column marks them) or ``"error"``.
    reference_levels : bool
        Whether the most frequent level of a category has no column, so that coefficients are differences from
        it.
    no_header : bool
        Whether the first line of CSV is a sample, although it is not all numbers.
    decimal : str
        The decimal mark of CSV, a point or a comma.
    part : pair of int, optional
        (k, n): the k-th of n parts of a folder of parquet files.
    """

    form: str = "auto"
    label: str | None = None
    weight: str | None = None
    n_features: int | None = None
    index_base: int | None = None
    labels_needed: bool = True
    offset: str | None = None
    offset_needed: bool = True
    drop: str | Sequence[str] | None = None
    columns: str | Sequence[str] | None = None
    categories: str | Sequence[str] | None = None
    missing: str = "mean"
    reference_levels: bool = False
    no_header: bool = False
    decimal: str = "."
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise InputError(f"--decimal must be a point or a comma, got {self.decimal!r}")
        if self.missing not in ("mean", "error"):
            raise InputError(f"--missing must be mean or error, got {self.missing!r}")
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
        if path.is_dir():
            return "parquet"
        # data.svm.bz2 has the format of data.svm.
        suffixes = [suffix.lower() for suffix in path.suffixes]
        if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
            suffixes.pop()
        last = suffixes[-1] if suffixes else str(path)
        return next((form for form, endings in FORMATS.items() if last in endings), "libsvm")


def listed_names(names: str | Sequence[str] | None) -> list[str]:
    """Return the names of an option such as ``--drop a,b``; a name with a comma stands in quotes.

    >>> listed_names('a, "b, c"'), listed_names(None)
    (['a', 'b, c'], [])
    """
    if isinstance(names, str):
        return [name.strip() for name in next(csv.reader([names], skipinitialspace=True))]
    return [str(name) for name in names or ()]


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
    encoding : Encoding or None
        How the columns became features; None if they are the features.
    notes : tuple of str
        Sentences about cells that the encoding does not know.
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
    encoding: Encoding | None = None
    notes: tuple[str, ...] = ()

    @property
    def n_samples(self) -> int:
        """N."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """The dimension d."""
        return int(self.X.shape[1])


@dataclass(frozen=True, eq=False)
class RawTable(Table):
    """The columns of one file, before an `adfs.data.Encoding` makes features of them.

    Attributes
    ----------
    X : DataFrame
        The columns of features.
    named : bool
        Whether the file has names of columns; otherwise they are numbers, counted from 0.
    dropped : tuple of str
        The columns that were left out.
    """

    named: bool = True
    dropped: tuple[str, ...] = ()


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


def as_number(word: str, decimal: str = ".") -> float | None:
    """Return the number that a word is, None for other words; ``1_000`` is none."""
    try:
        return None if "_" in word else float(word.replace(decimal, "."))
    except ValueError:
        return None
