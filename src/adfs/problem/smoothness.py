"""λ_max(β X_iᵀ W_i X_i) of each node: the smoothness of a node's whole data term."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh

from adfs.compilation import compiled
from adfs.problem.samples import Matrix, Rows, row_column, row_entry, row_span, rows_of, sparse
from adfs.threads import single_threaded

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
        rows, roots = _rows_between(X, start, stop), np.sqrt(weights[start:stop])
        if not roots.any():
            continue
        scaled = rows
        if not np.all(roots == 1.0):  # no copy of the data where nothing is to be scaled
            scaled = sp.csr_array(sp.diags_array(roots) @ rows) if sparse(rows) else roots[:, None] * rows
        if not (scaled.data if sparse(scaled) else scaled).any():
            continue
        out[node] = _largest_squared_singular_value(scaled)
    return out


def _rows_between(X: Matrix, start: int, stop: int) -> Matrix:
    """Return X[start:stop] without a copy of what is stored."""
    if not sparse(X):
        return X[start:stop]
    first, last = X.indptr[start], X.indptr[stop]
    parts = X.data[first:last], X.indices[first:last], X.indptr[start : stop + 1] - first
    return sp.csr_array(parts, shape=(stop - start, X.shape[1]))


def _largest_squared_singular_value(matrix: Matrix) -> float:
    tall = matrix.shape[0] >= matrix.shape[1]
    order = min(matrix.shape)
    if order <= _DENSE_ORDER:
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
        dense = gram.toarray() if sparse(gram) else gram
        return max(0.0, float(np.linalg.eigvalsh(dense)[-1]))
    first, second = (matrix, matrix.T) if tall else (matrix.T, matrix)
    operator = LinearOperator((order, order), matvec=lambda v: second @ (first @ v), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(order)
    how = {"v0": start, "tol": _LANCZOS_TOLERANCE, "ncv": _LANCZOS_VECTORS}
    top = eigsh(operator, k=1, which="LA", return_eigenvectors=False, **how)[0]
    return float(top) * (1.0 + 2.0 * _LANCZOS_TOLERANCE)
