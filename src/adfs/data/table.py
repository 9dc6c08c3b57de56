"""The samples of one file as a table, and several tables with the same columns."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.files import reading_error

Matrix = Any  # np.ndarray or scipy.sparse.csr_array; scipy's types cannot say "either, of float64"

#: Endings of compressed files. Whether a file is compressed is decided by its first bytes.
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz")
_MAGIC: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed; an error while it is open becomes an `InputError`."""
    try:
        with path.open("rb") as raw:
            if not raw.seekable():
                raise InputError(f"{path} is a pipe, which can be read once only; save it to a file first")
            # The first bytes say whether and how the file is compressed.
            head = raw.read(6)
            if not head:
                raise InputError(f"{path} is empty")
            if head.startswith(b"\x28\xb5\x2f\xfd"):
                raise InputError(f"{path} is compressed with zstd, which is not read; use gzip, bzip2 or xz")
            raw.seek(0)
            opener = next((opener for magic, opener in _MAGIC.items() if head.startswith(magic)), None)
            if opener is None:
                yield raw
                return
            with opener(raw, "rb") as stream:
                yield stream
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} is cut short or damaged, it cannot be decompressed: {error}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; give the files in it") from None
    except OSError as error:
        if error.errno is None:  # how gzip and bz2 report damage
            raise InputError(f"cannot read {path}: it is cut short or damaged ({error})") from None
        raise reading_error(path, error) from None


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of its container."""
    # A container may allow less than the machine has.
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


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
