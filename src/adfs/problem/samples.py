"""Samples as kernels take them: rows, dense or CSR, and labels, plain or each with an offset of its margin.

Interpreted and compiled code share one interface. A kernel walks over row j without knowing how the rows are
stored::

    start, stop = row_span(rows, j)
    for k in range(start, stop):
        total += row_entry(rows, j, k) * vector[row_column(rows, j, k)]

The order of the walk is the order of the columns in both cases, so dense and CSR copies of the same rows give
the same bits: a column that CSR leaves out adds an exact zero.

With an offset o the loss of a sample is ℓ(xᵀθ + o; b). A kernel of one output hands labels on without
looking at them, by `label_at`: the functions of a loss see from the *type* of a label whether it has an
offset. One of several outputs adds the offsets to its margins by `add_shift`. Either way kernels for labels
without offsets are compiled as if there were no such thing.
"""

# What the methods of rows and labels do is documented at the functions of the same names.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar, cast

import numpy as np
import scipy.sparse as sp
from numba import types
from scipy.sparse.linalg import LinearOperator, eigsh

from adfs.compilation import compiled, overloads
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.problem.losses import Loss

Matrix = Any  # np.ndarray or scipy.sparse.csr_array; scipy's types cannot say "either, of float64"
F = TypeVar("F", bound=Callable[..., object])


def kind_of(value: types.Type) -> type | None:
    """Return the class of a named tuple's numba type, None for any other type."""
    return value.instance_class if isinstance(value, types.BaseNamedTuple) else None


def by_class(function: F) -> F:
    """Let calls of a function run the method of that name of the first argument's class, if it has one.

    They do so in Python and in compiled code. Arguments of other classes are for the function itself.
    """
    name = function.__name__

    @wraps(function)
    def call(first: Any, *others: Any) -> object:
        return getattr(type(first), name, function)(first, *others)

    overloads(call)(lambda first, *others: getattr(kind_of(first), name, function))
    return cast(F, call)


# In compiled code columns and positions are unsigned: numba then leaves out the test for a negative index,
# which would keep the loops over rows from being vectorised.


class DenseRows(NamedTuple):
    """Rows of a C-contiguous array, ``values`` (m, d)."""

    values: np.ndarray

    def row_span(self, j: Any) -> tuple[np.int64, np.int64]:
        return np.int64(0), np.int64(self.values.shape[1])

    def row_column(self, j: Any, k: Any) -> np.uint64:
        return np.uint64(k)

    def row_entry(self, j: Any, k: Any) -> float:
        return self.values[j, np.uint64(k)]  # type: ignore[no-any-return]


class SparseRows(NamedTuple):
    """Rows in CSR form: ``data`` and ``indices`` (nnz,), ``indptr`` (m + 1,)."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray

    def row_span(self, j: Any) -> tuple[np.int64, np.int64]:
        return np.int64(self.indptr[j]), np.int64(self.indptr[j + 1])

    def row_column(self, j: Any, k: Any) -> np.uint64:
        return np.uint64(self.indices[np.uint64(k)])

    def row_entry(self, j: Any, k: Any) -> float:
        return self.data[np.uint64(k)]  # type: ignore[no-any-return]


Rows = DenseRows | SparseRows


#: Whether a matrix is stored sparse. SciPy's function itself would tell the type checker too much.
sparse: Callable[[Matrix], bool] = sp.issparse


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view for reading: the same kernels for arrays that can and that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view


def rows_of(matrix: Matrix) -> Rows:
    """Return the rows of a dense C-contiguous array or of a CSR matrix, without copying."""
    if sparse(matrix):
        return SparseRows(read_only(matrix.data), read_only(matrix.indices), read_only(matrix.indptr))
    return DenseRows(read_only(matrix))


@by_class
def row_span(rows: Rows, j: SupportsIndex) -> tuple[int, int]:
    """Return the range of k over which row j is walked."""
    raise NotImplementedError


@by_class
def row_column(rows: Rows, j: SupportsIndex, k: SupportsIndex) -> int:
    """Return the column of position k in row j."""
    raise NotImplementedError


@by_class
def row_entry(rows: Rows, j: SupportsIndex, k: SupportsIndex) -> float:
    """Return the value at position k of row j."""
    raise NotImplementedError


# --------------------------------------------------------------------------- labels


class ShiftedLabels(NamedTuple):
    """Labels ``values`` (N,) and what is added to the margins, ``shift`` (N, K)."""

    values: np.ndarray
    shift: np.ndarray

    def label_at(self, j: Any) -> ShiftedLabel:
        return ShiftedLabel(self.values[j], self.shift[j, 0])

    def plain_label(self, j: Any) -> float:
        return self.values[j]  # type: ignore[no-any-return]

    def add_shift(self, j: Any, factor: float, out: np.ndarray) -> None:
        for k in range(out.size):
            out[k] += factor * self.shift[j, k]

    def shift_product(self, j: Any, s: np.ndarray) -> float:
        total = 0.0
        for k in range(s.size):
            total += self.shift[j, k] * s[k]
        return total

    def shift_size(self, j: Any) -> float:
        total = 0.0
        for k in range(self.shift.shape[1]):
            total += abs(self.shift[j, k])
        return total


class ShiftedLabel(NamedTuple):
    """The label of one sample and what is added to its one margin."""

    label: float
    shift: float


Labels = np.ndarray | ShiftedLabels
Label = float | ShiftedLabel


def labels_of(loss: Loss, y: np.ndarray, offset: np.ndarray | None) -> Labels:
    """Return labels as kernels take them; a loss of u − b has the offset in its target."""
    if offset is None:
        return y
    # A loss of u − b takes b − o: one array, and the kernels of labels without offsets.
    if not loss.translates:
        shift = offset if offset.ndim == 2 else offset[:, None]
        return ShiftedLabels(y, read_only(np.ascontiguousarray(shift)))
    return read_only(y - offset)  # as targets without offsets: the same kernels


def label_rows(y: Labels, rows: np.ndarray) -> Labels:
    """Return the labels of some rows."""
    if isinstance(y, ShiftedLabels):
        return ShiftedLabels(read_only(y.values[rows]), read_only(y.shift[rows]))
    return read_only(y[rows])


# The functions below are for labels without offsets; `ShiftedLabels` has its own.


@by_class
def label_at(y: Labels, j: SupportsIndex) -> Label:
    """Return the label of row j with its offset, for a loss of one output."""
    return float(y[j])


@by_class
def plain_label(y: Labels, j: SupportsIndex) -> float:
    """Return the label of row j without its offset."""
    return float(y[j])


@by_class
def add_shift(y: Labels, j: SupportsIndex, factor: float, out: np.ndarray) -> None:
    """Add a multiple of the offsets of row j to K numbers, in place."""


@by_class
def shift_product(y: Labels, j: SupportsIndex, s: np.ndarray) -> float:
    """Return the inner product of the offsets of row j and K numbers."""
    return 0.0


@by_class
def shift_size(y: Labels, j: SupportsIndex) -> float:
    """Return the sum of the sizes of the offsets of row j."""
    return 0.0


# --------------------------------------------------------------------------- all of it


class Samples(NamedTuple):
    """The samples of a block of nodes, node after node.

    Attributes
    ----------
    loss : Loss
    rows : DenseRows or SparseRows
        The N rows.
    y : ndarray of shape (N,) or ShiftedLabels
        Labels or targets, with offsets where there are any: read by `label_at`.
    weights : ndarray of shape (N,)
        Sample weights.
    node_starts : ndarray of shape (n + 1,)
        Node i holds the rows ``node_starts[i]:node_starts[i + 1]``.
    """

    loss: Loss
    rows: Rows
    y: Labels
    weights: np.ndarray
    node_starts: np.ndarray


# --------------------------------------------------------------------------- the smoothness of a node's sum

_SMALL_DIMENSION = 64  # up to here Gram matrices are summed row by row: the same bits for dense and CSR rows
_GRAM_ENTRIES = 1 << 22  # entries of Gram matrices held at once
_DENSE_ORDER = 300  # Gram matrices up to this order are diagonalised whole
# Rates go by the root of it: a thousandth is enough, and takes a third of the products that ten digits do.
_LANCZOS_TOLERANCE, _LANCZOS_VECTORS = 1e-3, 6


@single_threaded
def batch_smoothness(X: Matrix, weights: np.ndarray, node_starts: np.ndarray, beta: float) -> np.ndarray:
    """Return λ_max(β X_iᵀ W_i X_i) for each node, shape (n,); infinite for an infinite β.

    Above a few hundred rows and columns the eigenvalue comes from Lanczos, from below, to a thousandth; it is
    then raised by twice that, so that it stays an upper bound.
    """
    # Small Gram matrices are summed row by row, so that dense and CSR copies have the same bits.
    if X.shape[1] <= _SMALL_DIMENSION:
        out = _by_gram_matrices(X, weights, node_starts)
    else:
        out = _node_by_node(X, weights, node_starts)
    return beta * out if np.isfinite(beta) else np.where(out > 0.0, np.inf, 0.0)


@compiled
def gram_matrices(rows: Rows, weights: np.ndarray, node_starts: np.ndarray, n_features: int) -> np.ndarray:
    """Return X_iᵀW_iX_i of consecutive nodes, the lower triangle; shape (n, d, d)."""
    n = node_starts.size - 1
    out = np.zeros((n, n_features, n_features))
    for i in range(n):
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            for k in range(start, stop):
                scaled = weights[j] * row_entry(rows, j, k)
                column = row_column(rows, j, k)
                for other in range(start, k + 1):
                    out[i, column, row_column(rows, j, other)] += scaled * row_entry(rows, j, other)
    return out


def _by_gram_matrices(X: Matrix, weights: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    # As many nodes at a time as fit into the memory that is set aside for their matrices.
    rows, d = rows_of(X), X.shape[1]
    together = max(1, _GRAM_ENTRIES // (d * d))
    parts = []
    for first in range(0, node_starts.size - 1, together):
        grams = gram_matrices(rows, weights, node_starts[first : first + together + 1], d)
        parts.append(np.linalg.eigvalsh(grams, UPLO="L")[:, -1])
    return np.asarray(np.maximum(np.concatenate(parts), 0.0))


def _node_by_node(X: Matrix, weights: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    out = np.zeros(node_starts.size - 1)
    for node, (start, stop) in enumerate(pairwise(node_starts)):
        rows, roots = X[start:stop], np.sqrt(weights[start:stop])
        if not roots.any():
            continue
        scaled = rows
        if not np.all(roots == 1.0):  # no copy of the data where nothing is to be scaled
            scaled = sp.csr_array(sp.diags_array(roots) @ rows) if sparse(rows) else roots[:, None] * rows
        if not (scaled.data if sparse(scaled) else scaled).any():
            continue
        out[node] = _largest_squared_singular_value(scaled)
    return out


def _largest_squared_singular_value(matrix: Matrix) -> float:
    # XᵀX and XXᵀ have the same largest eigenvalue: the smaller of the two is used.
    tall = matrix.shape[0] >= matrix.shape[1]
    order = min(matrix.shape)
    if order <= _DENSE_ORDER:
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
        dense = gram.toarray() if sparse(gram) else gram
        return max(0.0, float(np.linalg.eigvalsh(dense)[-1]))
    # Lanczos on products with X and Xᵀ, without forming the Gram matrix.
    first, second = (matrix, matrix.T) if tall else (matrix.T, matrix)
    operator = LinearOperator((order, order), matvec=lambda v: second @ (first @ v), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(order)
    how = {"v0": start, "tol": _LANCZOS_TOLERANCE, "ncv": _LANCZOS_VECTORS}
    top = eigsh(operator, k=1, which="LA", return_eigenvectors=False, **how)[0]
    return float(top) * (1.0 + 2.0 * _LANCZOS_TOLERANCE)
