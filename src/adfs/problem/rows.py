"""A node's rows, dense or CSR, behind one interface that interpreted and compiled code share.

A kernel walks over row j without knowing how the rows are stored::

    start, stop = row_span(rows, j)
    for k in range(start, stop):
        total += row_entry(rows, j, k) * vector[row_column(rows, j, k)]

The order of the walk is the order of the columns in both cases, so dense and CSR copies of the same rows give
the same bits: a column that CSR leaves out adds an exact zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import scipy.sparse as sp
from numba import types

from adfs.compilation import overloads

Matrix = Any  # np.ndarray or scipy.sparse.csr_array; scipy's types cannot say "either, of float64"


class DenseRows(NamedTuple):
    """Rows of a C-contiguous array, ``values`` (m, d)."""

    values: np.ndarray


class SparseRows(NamedTuple):
    """Rows in CSR form: ``data`` and ``indices`` (nnz,), ``indptr`` (m + 1,)."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


Rows = DenseRows | SparseRows


def sparse(matrix: Matrix) -> bool:
    """Whether a matrix is stored sparse."""
    return bool(sp.issparse(matrix))


def rows_of(matrix: Matrix) -> Rows:
    """Return the rows of a dense C-contiguous array or of a CSR matrix, without copying."""
    if sparse(matrix):
        return SparseRows(*map(_only_read, (matrix.data, matrix.indices, matrix.indptr)))
    return DenseRows(_only_read(matrix))


def _only_read(array: np.ndarray) -> np.ndarray:
    """Return a view for reading: the same kernels for arrays that can and that cannot be written to."""
    seen = array.view()
    seen.setflags(write=False)
    return seen


def row_span(rows: Rows, j: SupportsIndex) -> tuple[int, int]:
    """Return the range of k over which row j is walked."""
    if isinstance(rows, SparseRows):
        return int(rows.indptr[j]), int(rows.indptr[int(j) + 1])
    return 0, int(rows.values.shape[1])


def row_column(rows: Rows, j: SupportsIndex, k: SupportsIndex) -> int:
    """Return the column of position k in row j."""
    return int(rows.indices[k]) if isinstance(rows, SparseRows) else int(k)


def row_entry(rows: Rows, j: SupportsIndex, k: SupportsIndex) -> float:
    """Return the value at position k of row j."""
    return float(rows.data[k]) if isinstance(rows, SparseRows) else float(rows.values[j, k])


# Columns and positions are unsigned in compiled code: numba then leaves out the test for a negative index.


def kind_of(value: types.Type) -> type | None:
    """Return the class of a named tuple's numba type, None for any other type."""
    return value.instance_class if isinstance(value, types.BaseNamedTuple) else None


@overloads(row_span)
def _row_span(rows: types.Type, j: types.Type) -> Callable[..., object]:
    if kind_of(rows) is SparseRows:
        return lambda rows, j: (np.int64(rows.indptr[j]), np.int64(rows.indptr[j + 1]))
    return lambda rows, j: (np.int64(0), np.int64(rows.values.shape[1]))


@overloads(row_column)
def _row_column(rows: types.Type, j: types.Type, k: types.Type) -> Callable[..., object]:
    if kind_of(rows) is SparseRows:
        return lambda rows, j, k: np.uint64(rows.indices[np.uint64(k)])
    return lambda rows, j, k: np.uint64(k)


@overloads(row_entry)
def _row_entry(rows: types.Type, j: types.Type, k: types.Type) -> Callable[..., object]:
    if kind_of(rows) is SparseRows:
        return lambda rows, j, k: rows.data[np.uint64(k)]
    return lambda rows, j, k: rows.values[j, np.uint64(k)]
