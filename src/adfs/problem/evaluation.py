"""Sums over the samples of each node, compiled.

Every sum runs over one node's rows in their order, and callers add the nodes' sums in the order of the nodes.
The bits of a node's sum therefore do not depend on the process that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import types

from adfs.compilation import compiled, inlined, kernel, overloads
from adfs.problem.losses import (
    Loss,
    clip_dual,
    conjugate,
    curvature,
    derivative,
    domain,
    point_of,
    value,
    write_slope,
)
from adfs.problem.samples import (
    Labels,
    Rows,
    Samples,
    SparseRows,
    add_shift,
    kind_of,
    label_at,
    plain_label,
    read_only,
    row_column,
    row_entry,
    row_span,
    shift_product,
)


@inlined
def two_sum(total: float, term: float) -> tuple[float, float]:
    """Return the rounded sum and what rounding took from it."""
    # Knuth's two-sum: exact whatever the order of the sizes of total and term is.
    found = total + term
    back = found - total
    return found, (total - (found - back)) + (term - back)


@inlined
def finish_sum(total: float, carry: float) -> float:
    """Return a sum with what its rounding took, unless it is no finite number."""
    return total + carry if math.isfinite(total) else total


@compiled
def node_sums(values: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    """Return the sum of each node's values, row after row, shape (n,)."""
    out = np.zeros(node_starts.size - 1)
    for i in range(out.size):
        for j in range(node_starts[i], node_starts[i + 1]):
            out[i] += values[j]
    return out


def column_sums(values: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    """Return each node's sums of columns (N, k), row after row, right to rounding; shape (n, k)."""
    return _column_sums(read_only(np.ascontiguousarray(values)), read_only(node_starts))


@compiled
def _column_sums(values: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    out, carry = np.zeros((node_starts.size - 1, values.shape[1])), np.zeros(values.shape[1])
    for i in range(out.shape[0]):
        carry[:] = 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            for k in range(carry.size):
                out[i, k], error = two_sum(out[i, k], values[j, k])
                carry[k] += error
        for k in range(carry.size):
            out[i, k] = finish_sum(out[i, k], carry[k])
    return out


def over_sigma(values: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return values/σ; where there is no σ (the lasso) infinity, or 0 for a value of 0."""
    beyond = np.where(values > 0.0, np.inf, 0.0)
    return np.asarray(np.divide(values, sigma, out=beyond, where=sigma > 0.0))


def node_maxima(values: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    """Return the largest of each node's values and 0, shape (n,)."""
    out = np.zeros(node_starts.size - 1)
    np.maximum.at(out, np.repeat(np.arange(out.size), np.diff(node_starts)), values)
    return out


def sampling_weights(
    smoothness: np.ndarray, active: np.ndarray, node_starts: np.ndarray, sigma: np.ndarray
) -> np.ndarray:
    """Return the weights of the rows in a node's draws: √(1 + L_ij/σ_i), 0 on inactive rows; shape (N,).

    Where L is infinite (the loss is not smooth) the draw is uniform over the active rows.
    """
    roots = np.sqrt(1.0 + over_sigma(smoothness, np.repeat(sigma, np.diff(node_starts))))
    return np.where(active, np.where(np.isfinite(smoothness), roots, 1.0), 0.0)


# θ and sums of rows are laid out output by output. For sparse rows with several outputs the loops below use
# a *table* that is laid out feature by feature: the K numbers that an entry of a row multiplies are then
# neighbours in memory.


def table_strides(rows: Rows, width: int, n_outputs: int) -> tuple[int, int]:
    """Return how far apart features and outputs are in a table, for p = ``width`` features."""
    raise NotImplementedError("compiled code only")


@overloads(table_strides)
def _table_strides(rows: types.Type, width: types.Type, n_outputs: types.Type) -> Callable[..., object]:
    if kind_of(rows) is SparseRows:
        return lambda rows, width, n_outputs: (np.uint64(n_outputs), np.uint64(1))
    return lambda rows, width, n_outputs: (np.uint64(1), np.uint64(width))


@inlined
def fill_table(rows: Rows, theta: np.ndarray, n_outputs: int, table: np.ndarray) -> None:
    """Write θ (K·p,) as a table."""
    width = theta.size // n_outputs
    feature, output = table_strides(rows, width, n_outputs)
    for k in range(n_outputs):
        for column in range(width):
            table[np.uint64(k) * output + np.uint64(column) * feature] = theta[k * width + column]


@inlined
def read_table(rows: Rows, table: np.ndarray, n_outputs: int, out: np.ndarray) -> None:
    """Write a table output by output, (K·p,)."""
    width = table.size // n_outputs
    feature, output = table_strides(rows, width, n_outputs)
    for k in range(n_outputs):
        for column in range(width):
            out[k * width + column] = table[np.uint64(k) * output + np.uint64(column) * feature]


@inlined
def fill_margins(rows: Rows, j: int, table: np.ndarray, out: np.ndarray) -> None:
    """Write the margins x_jᵀθ_k of row j, one per output k; ``table`` is that of θ."""
    start, stop = row_span(rows, j)
    feature, output = table_strides(rows, table.size // out.size, out.size)
    # A sum in order waits for each addition, but the sums of five outputs do not wait for each other. The
    # last group of five may overlap the one before it: the same numbers are then written twice.
    for group in range(0, out.size if out.size >= 5 else 0, 5):
        first = min(group, out.size - 5)
        a = np.uint64(first) * output
        b, c = a + output, a + np.uint64(2) * output
        d, e = a + np.uint64(3) * output, a + np.uint64(4) * output
        at_a, at_b, at_c, at_d, at_e = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(start, stop):
            entry, column = row_entry(rows, j, k), row_column(rows, j, k) * feature
            at_a += entry * table[a + column]
            at_b += entry * table[b + column]
            at_c += entry * table[c + column]
            at_d += entry * table[d + column]
            at_e += entry * table[e + column]
        out[first], out[first + 1], out[first + 2] = at_a, at_b, at_c
        out[first + 3], out[first + 4] = at_d, at_e
    # Fewer than five outputs: one after the other.
    for number in range(0 if out.size < 5 else out.size, out.size):
        begin = np.uint64(number) * output
        margin = 0.0
        for k in range(start, stop):
            margin += row_entry(rows, j, k) * table[begin + row_column(rows, j, k) * feature]
        out[number] = margin


# Where a kernel is given the loss or the rows, but not both, it is compiled once for each of them instead of
# once for every pair.


@compiled
def row_margins(rows: Rows, theta: np.ndarray, count: int, n_outputs: int) -> np.ndarray:
    """Return the margins x_jᵀθ_k of N = ``count`` rows without their offsets, (N, K)."""
    out, table = np.empty((count, n_outputs)), np.empty(theta.size)
    fill_table(rows, theta, n_outputs, table)
    for j in range(count):
        fill_margins(rows, j, table, out[j])
    return out


def bare_margins(samples: Samples, theta: np.ndarray) -> np.ndarray:
    """Return the margins x_jᵀθ_k without their offsets, (N, K)."""
    count, n_outputs = samples.weights.size, samples.loss.n_outputs
    # Runs start at 0, where the margins need no pass over the rows.
    return row_margins(samples.rows, theta, count, n_outputs) if theta.any() else np.zeros((count, n_outputs))


@compiled
def loss_sums(
    loss: Loss, y: Labels, weights: np.ndarray, node_starts: np.ndarray, margins: np.ndarray
) -> np.ndarray:
    """Return Σ_j w_j ℓ(u_j; y_j) for each node, shape (n,); adds the offsets to ``margins`` (N, K)."""
    # Sums carry their rounding: right to the rounding of their terms, however many there are.
    out = np.empty(node_starts.size - 1)
    for i in range(out.size):
        total, carry = 0.0, 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            add_shift(y, j, 1.0, margins[j])
            term = weights[j] * value(loss, point_of(loss, margins[j]), plain_label(y, j))
            total, error = two_sum(total, term)
            carry += error
        out[i] = finish_sum(total, carry)
    return out


@compiled
def loss_sums_at(samples: Samples, points: np.ndarray) -> np.ndarray:
    """Return the same at p points at once, ``points`` (d, p), same bits; one output; shape (n, p)."""
    rows, node_starts = samples.rows, samples.node_starts
    # p sums with a carry each, as `loss_sums` has one.
    n, p = node_starts.size - 1, points.shape[1]
    out = np.zeros((n, p))
    margins, carry = np.empty(p), np.empty(p)
    for i in range(n):
        carry[:] = 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            margins[:] = 0.0
            # One walk over the row for all points: the inner loop is over neighbours in memory.
            for k in range(start, stop):
                entry = row_entry(rows, j, k)
                column = row_column(rows, j, k)
                for t in range(p):
                    margins[t] += entry * points[column, t]
            for t in range(p):
                term = samples.weights[j] * value(samples.loss, margins[t], label_at(samples.y, j))
                out[i, t], error = two_sum(out[i, t], term)
                carry[t] += error
        for t in range(p):
            out[i, t] = finish_sum(out[i, t], carry[t])
    return out


@compiled
def write_slopes(loss: Loss, y: Labels, weights: np.ndarray, margins: np.ndarray) -> None:
    """Replace the margins of each row by w_j∇ℓ there, with the offsets; ``margins`` (N, K)."""
    for j in range(weights.size):
        add_shift(y, j, 1.0, margins[j])
        write_slope(loss, margins[j], plain_label(y, j), weights[j])


def loss_slopes(samples: Samples, theta: np.ndarray) -> np.ndarray:
    """Return w_j∇ℓ at the margins of each row, shape (N, K)."""
    out = row_margins(samples.rows, theta, samples.weights.size, samples.loss.n_outputs)
    write_slopes(samples.loss, samples.y, samples.weights, out)
    return out


@compiled
def sum_in_order(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return start (d,) plus the rows of values (n, d), one after the other (NumPy has its own order)."""
    # Every process adds in this order, so that all have the same bits.
    out = start.copy()
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            out[k] += values[i, k]
    return out


@kernel
def inner_product(a: np.ndarray, b: np.ndarray) -> float:
    """Return aᵀb, summed in order: the same bits on every machine."""
    total = 0.0
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@inlined
def _add_row(rows: Rows, j: int, dual: np.ndarray, table: np.ndarray, carry: np.ndarray) -> None:
    """Add s xᵀ of row j and its dual variable s (K,) to a table (K·p,), and the rounding to ``carry``."""
    # Output by output: a row is read K times, its sum of products is in the order of its columns.
    start, stop = row_span(rows, j)
    feature, output = table_strides(rows, table.size // dual.size, dual.size)
    for number in range(dual.size):
        first, factor = np.uint64(number) * output, dual[number]
        for k in range(start, stop):
            place = first + row_column(rows, j, k) * feature
            table[place], error = two_sum(table[place], factor * row_entry(rows, j, k))
            carry[place] += error


@compiled
def weighted_row_total(rows: Rows, node_starts: np.ndarray, duals: np.ndarray, n_features: int) -> np.ndarray:
    """Return the sum over the nodes, in their order, of Σ_j s_j x_jᵀ, ``duals`` (N, K); shape (K·p,).

    It is laid out output by output, and each node's sum is right to the rounding of its terms.
    """
    total, out = np.zeros(n_features), np.empty(n_features)
    table, carry = np.zeros(n_features), np.zeros(n_features)
    count = duals.shape[1]
    feature, output = table_strides(rows, n_features // count, count)
    for i in range(node_starts.size - 1):
        entries = 0
        for j in range(node_starts[i], node_starts[i + 1]):
            _add_row(rows, j, duals[j], table, carry)
            start, stop = row_span(rows, j)
            entries += stop - start
        # A node with many entries: add the whole table.
        if entries * count >= n_features:
            for place in range(n_features):
                total[place] += finish_sum(table[place], carry[place])
                table[place] = 0.0
                carry[place] = 0.0
            continue
        # A node with few entries: add the columns that it has. A column that comes again adds the zero that
        # the first time has left there.
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            for number in range(count):
                first = np.uint64(number) * output
                for k in range(start, stop):
                    at = first + row_column(rows, j, k) * feature
                    total[at] += finish_sum(table[at], carry[at])
                    table[at] = 0.0
                    carry[at] = 0.0
    read_table(rows, total, count, out)
    return out


@compiled
def weighted_row_sums(rows: Rows, node_starts: np.ndarray, duals: np.ndarray, n_features: int) -> np.ndarray:
    """Return Σ_j s_j x_jᵀ for each node, shape (n, K·p)."""
    out = np.empty((node_starts.size - 1, n_features))
    for i in range(node_starts.size - 1):
        out[i] = weighted_row_total(rows, node_starts[i : i + 2], duals, n_features)
    return out


@kernel
def add_diagonals(
    rows: Rows, weights: np.ndarray, node_starts: np.ndarray, beta: float, n_outputs: int, out: np.ndarray
) -> None:
    """Add the diagonal Σ_j wβx² of each node's largest Hessian to ``out``, (k, d)."""
    width = out.shape[1] // n_outputs
    for i in range(out.shape[0]):
        for j in range(node_starts[i], node_starts[i + 1]):
            curvature = beta * weights[j]
            start, stop = row_span(rows, j)
            for output in range(n_outputs):
                first = np.uint64(output * width)
                for k in range(start, stop):
                    entry = row_entry(rows, j, k)
                    out[i, first + row_column(rows, j, k)] += curvature * entry * entry


@compiled
def conjugate_sums(
    loss: Loss,
    y: Labels,
    weights: np.ndarray,
    node_starts: np.ndarray,
    active: np.ndarray,
    duals: np.ndarray,
) -> np.ndarray:
    """Return Σ_j w_j ℓ*(s_j/w_j; y_j) for each node, ``duals`` (N, K); shape (n,).

    An inactive row is the constant wℓ(0), whose conjugate at 0 is −wℓ(0) and infinite elsewhere.
    """
    out = np.empty(node_starts.size - 1)
    scaled, zero = np.empty(duals.shape[1]), np.zeros(duals.shape[1])
    for i in range(out.size):
        total = 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            # With an offset o the conjugate at s is that without, less o·s.
            if active[j]:
                for k in range(scaled.size):
                    scaled[k] = duals[j, k] / weights[j]
                star = conjugate(loss, point_of(loss, scaled), plain_label(y, j))
                total += weights[j] * (star - shift_product(y, j, scaled))
            elif weights[j] > 0.0:
                zero[:] = 0.0
                add_shift(y, j, 1.0, zero)
                total -= weights[j] * value(loss, point_of(loss, zero), plain_label(y, j))
            elif np.any(duals[j] != 0.0):
                total = math.inf
        out[i] = total
    return out


@compiled
def clip_to_domain(
    loss: Loss, y: np.ndarray, weights: np.ndarray, active: np.ndarray, duals: np.ndarray
) -> None:
    """Move each s_j/w_j into the domain of ℓ*(·; y_j), and put 0 on inactive rows, in place; (N, K)."""
    for j in range(duals.shape[0]):
        if active[j]:
            clip_dual(loss, duals[j], y[j], weights[j])
        else:  # nan stays: a run that diverged is not to look as if it had not
            for k in range(duals.shape[1]):
                if not math.isnan(duals[j, k]):
                    duals[j, k] = 0.0


@compiled
def loss_derivatives(loss: Loss, margins: np.ndarray, y: Labels) -> np.ndarray:
    """Return ℓ'(u_j; y_j), shape (N,)."""
    out = np.empty(margins.size)
    for j in range(margins.size):
        out[j] = derivative(loss, margins[j], label_at(y, j))
    return out


@compiled
def loss_curvatures(loss: Loss, margins: np.ndarray, y: Labels) -> np.ndarray:
    """Return ℓ''(u_j; y_j), shape (N,)."""
    out = np.empty(margins.size)
    for j in range(margins.size):
        out[j] = curvature(loss, margins[j], label_at(y, j))
    return out


@compiled
def loss_domains(loss: Loss, y: Labels, count: int) -> np.ndarray:
    """Return the ends of the intervals on which ℓ*(·; y_j) is finite, of N = ``count`` rows; shape (2, N)."""
    out = np.empty((2, count))
    for j in range(count):
        out[0, j], out[1, j] = domain(loss, label_at(y, j))
    return out
