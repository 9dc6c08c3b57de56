"""The dual of losses that are not smooth: coordinate ascent, and an exact finish when ℓ* is piecewise linear.

The dual minimises Σ w ℓ*(s_j/w) + ‖Σ s_j x_j‖²/(2σ), σ = Σ σ_i. The losses of this package that are not smooth
have conjugates that are linear on each side of 0 inside an interval, which makes it a quadratic program with
bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.linalg

from adfs.compilation import compiled
from adfs.problem.losses import conjugate, domain, weighted_dual_prox
from adfs.problem.rows import row_column, row_entry, row_span

if TYPE_CHECKING:
    from adfs.problem.problem import Problem

__all__ = ["Pieces", "dual_ascent", "linear_pieces", "polish"]

_LARGEST_FREE_SET = 3000


@compiled
def _ascend(
    loss: Any,
    rows: Any,
    y: np.ndarray,
    weights: np.ndarray,
    norms: np.ndarray,
    order: np.ndarray,
    sigma: float,
    s: np.ndarray,
    theta: np.ndarray,
) -> None:
    """Minimise the dual exactly along each coordinate in ``order``; θ = −Σ s_j x_j/σ is kept beside s."""
    for j in order:
        start, stop = row_span(rows, j)
        margin = 0.0
        for k in range(start, stop):
            margin += row_entry(rows, j, k) * theta[row_column(rows, j, k)]
        h = sigma / norms[j]
        moved = weighted_dual_prox(loss, s[j] + h * margin, h, y[j], weights[j], margin)
        change = -(moved - s[j]) / sigma
        s[j] = moved
        for k in range(start, stop):
            theta[row_column(rows, j, k)] += change * row_entry(rows, j, k)


def dual_ascent(problem: Problem, s: np.ndarray, passes: int) -> np.ndarray:
    """Return s after some passes of exact coordinate steps in random order, shape (N,)."""
    rng = np.random.default_rng(passes)
    active = np.flatnonzero(problem.active)
    s = s.copy()
    theta = problem.primal_from_dual(s)
    for _ in range(passes):
        order = rng.permutation(active)
        norms = problem.row_norms_squared
        _ascend(
            problem.loss,
            problem.rows,
            problem.y,
            problem.weights,
            norms,
            order,
            problem.total_sigma,
            s,
            theta,
        )
    return s


class Pieces(NamedTuple):
    """The linear pieces of the terms' conjugates wℓ*(·/w): the sample, slope and interval of each."""

    row: np.ndarray
    slope: np.ndarray
    low: np.ndarray
    high: np.ndarray


@compiled
def _side_slopes(loss: Any, y: np.ndarray, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return low, high, slope below 0 and slope above 0 of wℓ*(·/w) for each row, shape (4, k)."""
    out = np.empty((4, rows.size))
    for position in range(rows.size):
        j = rows[position]
        low, high = domain(loss, y[j])
        out[0, position] = weights[j] * low
        out[1, position] = weights[j] * high
        out[2, position] = (conjugate(loss, 0.25 * low, y[j]) - conjugate(loss, 0.75 * low, y[j])) / (
            -0.5 * low
        )
        out[3, position] = (conjugate(loss, 0.75 * high, y[j]) - conjugate(loss, 0.25 * high, y[j])) / (
            0.5 * high
        )
    return out


def linear_pieces(problem: Problem) -> Pieces | None:
    """Return the pieces, two for a conjugate with a kink at 0; None when an interval is not bounded.

    For a conjugate that is not linear on each side of 0 they are an approximation, which the duality gap exposes.
    """
    rows = np.flatnonzero(problem.active)
    low, high, below, above = _side_slopes(problem.loss, problem.y, problem.weights, rows)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        return None
    below = np.where(low < 0.0, below, above)
    above = np.where(high > 0.0, above, below)
    kinked = (below != above) & (low < 0.0) & (high > 0.0)
    rounding = 1e-12 * (1.0 + np.abs(below) + np.abs(above))
    kinked &= np.abs(below - above) > rounding
    whole = ~kinked
    return Pieces(
        np.concatenate([rows[whole], rows[kinked], rows[kinked]]),
        np.concatenate([above[whole], below[kinked], above[kinked]]),
        np.concatenate([low[whole], low[kinked], np.zeros(kinked.sum())]),
        np.concatenate([high[whole], np.zeros(kinked.sum()), high[kinked]]),
    )


def polish(problem: Problem, s: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve exactly for the tips strictly inside a piece of ℓ*, the others put at their nearest bound.

    A free tip's margin is the slope of its piece, so the free tips solve a linear system. That gives the optimum
    once the right pieces are known; a solution that leaves them is dropped.

    Returns
    -------
    tuple of ndarray, shapes (N,) and (d,), or None
        The tips' scalars, and the parameter nearest to theirs that meets the free tips' margins.
    """
    pieces = linear_pieces(problem)
    if pieces is None:
        return None
    inside = 1e-7 * (pieces.high - pieces.low)
    value = s[pieces.row]
    free = (value > pieces.low + inside) & (value < pieces.high - inside)
    if not free.any() or free.sum() > _LARGEST_FREE_SET:
        return None
    settled = np.where(value - pieces.low < pieces.high - value, pieces.low, pieces.high)
    solved = np.zeros(problem.n_samples)
    np.add.at(solved, pieces.row[~free], settled[~free])
    sigma = problem.total_sigma
    rows = problem.X[pieces.row[free]]
    rows = rows.toarray() if problem.sparse else rows
    start = value[free]
    theta = -(problem.X.T @ solved + rows.T @ start) / sigma
    # The correction of s solves rows·rowsᵀ·Δ = σ·(rows·θ − slope), around the current point because more free tips
    # than features leave many solutions. Factors of the rows do not square their condition number.
    change, turn = _least_norm(rows, rows @ theta - pieces.slope[free])
    found = start + sigma * change
    if not np.all((found >= pieces.low[free]) & (found <= pieces.high[free])):
        return None
    np.add.at(solved, pieces.row[free], found)
    return solved, theta - turn


def _least_norm(rows: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Δ and rowsᵀΔ for the smallest solution of rows·rowsᵀ·Δ = right, in the least-squares sense."""
    if rows.shape[0] <= rows.shape[1]:
        basis, triangle = scipy.linalg.qr(rows.T, mode="economic")
        pivots = np.abs(np.diag(triangle))
        if pivots.min() > 1e-10 * pivots.max():
            first = scipy.linalg.solve_triangular(triangle, right, trans="T")
            return np.asarray(scipy.linalg.solve_triangular(triangle, first)), np.asarray(basis @ first)
    left, roots, turned = scipy.linalg.svd(rows, full_matrices=False)
    kept = roots > 1e-13 * roots[0]
    first = (left.T @ right)[kept] / roots[kept]
    return np.asarray(left[:, kept] @ (first / roots[kept])), np.asarray(turned[kept].T @ first)
