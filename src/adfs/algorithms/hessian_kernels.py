"""F, its gradient and its Hessian for each node, compiled: the sums behind Newton's method.

Every entry of a Hessian is summed over a node's rows in their order, each product rounded once (`fma`): dense
and CSR copies of the same rows give the same bits, and so does any split over processes.
"""

from __future__ import annotations

import math

import numpy as np

from adfs.compilation import compiled, fma, inlined, kernel, overloads
from adfs.problem import Samples
from adfs.problem.losses import curvature, derivative, value
from adfs.problem.samples import (
    DenseRows,
    Rows,
    SparseRows,
    kind_of,
    label_at,
    row_column,
    row_entry,
    row_span,
)

# A strip of a node's Hessian this wide, and as many rows of it as are summed at once, stay in the caches.
_STRIP, _BAND, _ROWS_AT_ONCE = 256, 64, 256


@kernel
def inner_product(a: np.ndarray, b: np.ndarray) -> float:
    """Return aᵀb, summed in order: the same bits on every machine."""
    total = 0.0
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@kernel
def masked_square(mask: np.ndarray, theta: np.ndarray) -> float:
    """Return Σ_k m_k θ_k², summed in order."""
    total = 0.0
    for k in range(theta.size):
        total += mask[k] * theta[k] * theta[k]
    return total


@inlined
def _factor(scaled: np.ndarray, ridge: float, factor: np.ndarray) -> bool:
    """Write an upper U with UᵀU = A + ridge·I from A's upper triangle (d, d); return whether there is one."""
    d = scaled.shape[0]
    for a in range(d):
        for b in range(a, d):
            factor[a, b] = scaled[a, b]
        factor[a, a] += ridge
    for a in range(d):
        if not factor[a, a] > 0.0:
            return False
        root = 1.0 / math.sqrt(factor[a, a])
        for b in range(a, d):
            factor[a, b] *= root
        for c in range(a + 1, d):
            for b in range(c, d):
                factor[c, b] -= factor[a, c] * factor[a, b]
    return True


@compiled
def small_newton_move(hessian: np.ndarray, gradient: np.ndarray, ridges: tuple[float, ...]) -> np.ndarray:
    """Return what `adfs.algorithms.newton.newton_move` does: for few features calls of LAPACK take longer."""
    d = gradient.size
    scale, move = np.empty(d), np.empty(d)
    scaled, factor = np.empty((d, d)), np.empty((d, d))
    for a in range(d):
        scale[a] = 1.0 / math.sqrt(hessian[a, a]) if hessian[a, a] > 0.0 else 1.0
    for a in range(d):
        for b in range(a, d):
            scaled[a, b] = scale[a] * hessian[a, b] * scale[b]
    for ridge in ridges:
        if _factor(scaled, ridge, factor):
            for a in range(d):  # Uᵀz = −scale·g
                total = -scale[a] * gradient[a]
                for b in range(a):
                    total -= factor[b, a] * move[b]
                move[a] = total / factor[a, a]
            for a in range(d - 1, -1, -1):  # U·move = z
                for b in range(a + 1, d):
                    move[a] -= factor[a, b] * move[b]
                move[a] /= factor[a, a]
            for a in range(d):
                move[a] *= scale[a]
            return move
    for a in range(d):
        move[a] = -scale[a] * scale[a] * gradient[a]
    return move


@kernel
def fill_values(
    samples: Samples,
    sigma: np.ndarray,
    mask: np.ndarray,
    theta: np.ndarray,
    curves: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write ∇f_i(θ) and f_i(θ) for each node, ``out`` (k, d + 1), and wℓ'' of each row to ``curves`` (N,).

    ``mask`` (d,) is 0 for the columns without a penalty and 1 for the others.
    """
    rows, node_starts, d = samples.rows, samples.node_starts, theta.size
    square = masked_square(mask, theta)
    for i in range(out.shape[0]):
        for k in range(d):
            out[i, k] = sigma[i] * mask[k] * theta[k]
        total, carry = 0.0, 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            margin = 0.0
            for k in range(start, stop):
                margin = fma(row_entry(rows, j, k), theta[row_column(rows, j, k)], margin)
            label, weight = label_at(samples.y, j), samples.weights[j]
            pull = weight * derivative(samples.loss, margin, label)
            curves[j] = weight * curvature(samples.loss, margin, label)
            # Summed with what rounding takes: near the optimum F hardly changes.
            term = weight * value(samples.loss, margin, label) - carry
            following = total + term
            carry = (following - total) - term
            total = following
            for k in range(start, stop):
                column = row_column(rows, j, k)
                out[i, column] = fma(pull, row_entry(rows, j, k), out[i, column])
        out[i, d] = total + 0.5 * sigma[i] * square


@kernel
def fill_hessian(
    samples: Samples,
    sigma: np.ndarray,
    mask: np.ndarray,
    curves: np.ndarray,
    first: int,
    last: int,
    room: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write rows first … last − 1 of each node's Hessian, from its diagonal on, one row after the other.

    ``curves`` (N,) has wℓ'' of each row; ``room`` is (last − first, d), ``out`` (k, numbers in these rows).
    """
    d = room.shape[1]
    for i in range(out.shape[0]):
        for a in range(room.shape[0]):
            for b in range(d):
                room[a, b] = 0.0
            room[a, first + a] = sigma[i] * mask[first + a]
        _add_products(
            samples.rows, curves, samples.node_starts[i], samples.node_starts[i + 1], first, last, room
        )
        place = 0
        for a in range(room.shape[0]):
            for b in range(first + a, d):
                out[i, place] = room[a, b]
                place += 1


def _add_products(
    rows: Rows, curves: np.ndarray, start: int, stop: int, first: int, last: int, room: np.ndarray
) -> None:
    """Add Σ_j c_j x_j x_jᵀ over rows start … stop − 1 to ``room``: Hessian rows first … last − 1."""
    raise NotImplementedError("compiled code only")


overloads(_add_products)(
    lambda rows, curves, start, stop, first, last, room: (
        _add_sparse if kind_of(rows) is SparseRows else _add_dense
    )
)


def _add_sparse(
    rows: SparseRows, curves: np.ndarray, start: int, stop: int, first: int, last: int, room: np.ndarray
) -> None:
    for j in range(start, stop):
        if curves[j] == 0.0:
            continue
        begin, end = rows.indptr[j], rows.indptr[j + 1]
        for k in range(begin, end):
            a = rows.indices[k]
            if first <= a < last:
                factor = curves[j] * rows.data[k]
                for m in range(k, end):
                    b = rows.indices[m]
                    room[a - first, b] = fma(factor, rows.data[m], room[a - first, b])


def _add_dense(
    rows: DenseRows, curves: np.ndarray, start: int, stop: int, first: int, last: int, room: np.ndarray
) -> None:
    x, c, d = rows.values, curves, room.shape[1]
    whole = stop - (stop - start) % 4
    # Tiles that stay in the caches; in each the rows of the data come in their order.
    for block in range(start, whole, _ROWS_AT_ONCE):
        for top in range(first, last, _BAND):
            for left in range(top, d, _STRIP):
                right = min(left + _STRIP, d)
                for j in range(block, min(block + _ROWS_AT_ONCE, whole), 4):
                    for a in range(top, min(top + _BAND, last)):
                        begin = max(a, left)
                        _add_four(
                            (c[j] * x[j, a], x[j, begin:right]),
                            (c[j + 1] * x[j + 1, a], x[j + 1, begin:right]),
                            (c[j + 2] * x[j + 2, a], x[j + 2, begin:right]),
                            (c[j + 3] * x[j + 3, a], x[j + 3, begin:right]),
                            room[a - first, begin:right],
                        )
    for j in range(whole, stop):
        for a in range(first, last):
            factor = c[j] * x[j, a]
            for b in range(a, d):
                room[a - first, b] = fma(factor, x[j, b], room[a - first, b])


Multiple = tuple[float, np.ndarray]


@inlined
def _add_four(first: Multiple, second: Multiple, third: Multiple, fourth: Multiple, out: np.ndarray) -> None:
    """Add multiples of four pieces of rows, one after the other: each sum is loaded and stored once for all.

    With eight the compiler finds too many arrays that might overlap, and no longer uses vectors.
    """
    for b in range(out.size):
        total = fma(first[0], first[1][b], out[b])
        total = fma(second[0], second[1][b], total)
        total = fma(third[0], third[1][b], total)
        out[b] = fma(fourth[0], fourth[1][b], total)
