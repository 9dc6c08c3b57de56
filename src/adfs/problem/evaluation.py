"""Sums over the samples of each node, compiled.

Every sum runs over one node's rows in their order, and a caller adds the nodes' sums in the order of the
nodes: the figures a process computes for its own nodes are then the same bits wherever the others live.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adfs.compilation import compiled
from adfs.problem.losses import conjugate, curvature, derivative, domain, value
from adfs.problem.rows import row_column, row_entry, row_span

__all__ = [
    "add_squares",
    "clip_to_domain",
    "conjugate_sums",
    "loss_curvatures",
    "loss_derivatives",
    "loss_sums",
    "loss_sums_at",
    "loss_values",
    "node_maxima",
    "node_sums",
    "row_margins",
    "row_norms_squared",
    "sampling_weights",
    "sum_in_order",
    "weighted_row_sums",
    "weighted_row_total",
]


@compiled
def row_norms_squared(rows: Any, n_rows: int) -> np.ndarray:
    """Return q = ‖x‖² of each row, shape (n_rows,)."""
    out = np.empty(n_rows)
    for j in range(n_rows):
        start, stop = row_span(rows, j)
        total = 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            total += entry * entry
        out[j] = total
    return out


@compiled
def node_sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the sum of each node's values, row after row, shape (n,)."""
    out = np.zeros(offsets.size - 1)
    for i in range(out.size):
        for j in range(offsets[i], offsets[i + 1]):
            out[i] += values[j]
    return out


@compiled
def node_maxima(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the largest of each node's values and 0, shape (n,)."""
    out = np.zeros(offsets.size - 1)
    for i in range(out.size):
        for j in range(offsets[i], offsets[i + 1]):
            out[i] = max(out[i], values[j])
    return out


@compiled
def sampling_weights(
    smoothness: np.ndarray, active: np.ndarray, offsets: np.ndarray, sigma: np.ndarray
) -> np.ndarray:
    """Return what a node's rows are drawn in proportion to: √(1 + L_ij/σ_i), 0 on inactive rows; shape (N,).

    Where L is infinite (the loss is not smooth) the draw is uniform over the active rows.
    """
    out = np.zeros(smoothness.size)
    for i in range(offsets.size - 1):
        for j in range(offsets[i], offsets[i + 1]):
            if active[j]:
                out[j] = math.sqrt(1.0 + smoothness[j] / sigma[i]) if smoothness[j] < np.inf else 1.0
    return out


@compiled
def loss_sums(
    loss: Any, rows: Any, offsets: np.ndarray, y: np.ndarray, weights: np.ndarray, theta: np.ndarray
) -> np.ndarray:
    """Return Σ_j w_j ℓ(x_jᵀθ; y_j) for each node, shape (n,)."""
    n = offsets.size - 1
    out = np.empty(n)
    for i in range(n):
        total = 0.0
        for j in range(offsets[i], offsets[i + 1]):
            start, stop = row_span(rows, j)
            margin = 0.0
            for k in range(start, stop):
                margin += row_entry(rows, j, k) * theta[row_column(rows, j, k)]
            total += weights[j] * value(loss, margin, y[j])
        out[i] = total
    return out


@compiled
def loss_sums_at(
    loss: Any, rows: Any, offsets: np.ndarray, y: np.ndarray, weights: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Return the same at p points at once, ``points`` (d, p), with the same bits; shape (n, p)."""
    n, p = offsets.size - 1, points.shape[1]
    out = np.zeros((n, p))
    margins = np.empty(p)
    for i in range(n):
        for j in range(offsets[i], offsets[i + 1]):
            start, stop = row_span(rows, j)
            margins[:] = 0.0
            for k in range(start, stop):
                entry = row_entry(rows, j, k)
                column = row_column(rows, j, k)
                for t in range(p):
                    margins[t] += entry * points[column, t]
            for t in range(p):
                out[i, t] += weights[j] * value(loss, margins[t], y[j])
    return out


@compiled
def row_margins(rows: Any, n_rows: int, theta: np.ndarray) -> np.ndarray:
    """Return x_jᵀθ of each row, shape (n_rows,)."""
    out = np.empty(n_rows)
    for j in range(n_rows):
        start, stop = row_span(rows, j)
        margin = 0.0
        for k in range(start, stop):
            margin += row_entry(rows, j, k) * theta[row_column(rows, j, k)]
        out[j] = margin
    return out


@compiled
def sum_in_order(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return start (d,) plus the rows of values (n, d), one after the other (NumPy has its own order)."""
    out = start.copy()
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            out[k] += values[i, k]
    return out


def add_squares(loss_sums: np.ndarray, total_sigma: float, points: np.ndarray) -> np.ndarray:
    """Return F at p points (p, d) from the nodes' losses there (n, p); shape (p,)."""
    squares = np.einsum("kd,kd->k", points, points)
    return np.asarray(sum_in_order(loss_sums, np.zeros(len(points))) + 0.5 * total_sigma * squares)


@compiled
def weighted_row_sums(rows: Any, offsets: np.ndarray, s: np.ndarray, n_features: int) -> np.ndarray:
    """Return Σ_j s_j x_j for each node, shape (n, d)."""
    n = offsets.size - 1
    out = np.zeros((n, n_features))
    for i in range(n):
        for j in range(offsets[i], offsets[i + 1]):
            start, stop = row_span(rows, j)
            for k in range(start, stop):
                out[i, row_column(rows, j, k)] += s[j] * row_entry(rows, j, k)
    return out


@compiled
def weighted_row_total(rows: Any, offsets: np.ndarray, s: np.ndarray, n_features: int) -> np.ndarray:
    """Return the sum over the nodes, in their order, of Σ_j s_j x_j; shape (d,).

    The sums of `weighted_row_sums` added up, without n × d numbers.
    """
    out = np.zeros(n_features)
    node = np.zeros(n_features)
    for i in range(offsets.size - 1):
        for j in range(offsets[i], offsets[i + 1]):
            start, stop = row_span(rows, j)
            for k in range(start, stop):
                node[row_column(rows, j, k)] += s[j] * row_entry(rows, j, k)
        # Only the columns this node touched; one met again adds the zero left there.
        for j in range(offsets[i], offsets[i + 1]):
            start, stop = row_span(rows, j)
            for k in range(start, stop):
                column = row_column(rows, j, k)
                out[column] += node[column]
                node[column] = 0.0
    return out


@compiled
def conjugate_sums(
    loss: Any,
    offsets: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray,
    active: np.ndarray,
    s: np.ndarray,
) -> np.ndarray:
    """Return Σ_j w_j ℓ*(s_j/w_j; y_j) for each node, shape (n,).

    An inactive row is the constant wℓ(0), whose conjugate at 0 is −wℓ(0); a row without weight has no other
    point in its domain.
    """
    n = offsets.size - 1
    out = np.empty(n)
    for i in range(n):
        total = 0.0
        for j in range(offsets[i], offsets[i + 1]):
            if active[j]:
                total += weights[j] * conjugate(loss, s[j] / weights[j], y[j])
            elif weights[j] > 0.0:
                total -= weights[j] * value(loss, 0.0, y[j])
            elif s[j] != 0.0:
                total = math.inf
        out[i] = total
    return out


@compiled
def clip_to_domain(
    loss: Any, y: np.ndarray, weights: np.ndarray, active: np.ndarray, s: np.ndarray, out: np.ndarray
) -> None:
    """Write s with each s_j/w_j moved into the domain of ℓ*(·; y_j), and 0 on inactive rows, to ``out``."""
    for j in range(s.size):
        if active[j]:
            low, high = domain(loss, y[j])
            t = min(max(s[j], weights[j] * low), weights[j] * high)
            # w·high divided by w may round to just outside: step in by one unit.
            if t / weights[j] > high or t / weights[j] < low:
                t *= 1.0 - 2.0**-52
            out[j] = t
        else:
            out[j] = s[j] if math.isnan(s[j]) else 0.0


@compiled
def loss_values(loss: Any, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ℓ(u_j; y_j), shape (N,)."""
    out = np.empty(margins.size)
    for j in range(margins.size):
        out[j] = value(loss, margins[j], y[j])
    return out


@compiled
def loss_derivatives(loss: Any, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ℓ'(u_j; y_j), shape (N,)."""
    out = np.empty(margins.size)
    for j in range(margins.size):
        out[j] = derivative(loss, margins[j], y[j])
    return out


@compiled
def loss_curvatures(loss: Any, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ℓ''(u_j; y_j), shape (N,)."""
    out = np.empty(margins.size)
    for j in range(margins.size):
        out[j] = curvature(loss, margins[j], y[j])
    return out
