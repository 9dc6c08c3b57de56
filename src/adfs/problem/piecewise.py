"""The dual: coordinate ascent, the pieces of conjugates made of lines and parabolas, and an exact finish.

The dual minimises Σ w ℓ*(s_j/w) + ‖Σ s_j x_j‖²/(2σ), σ = Σ σ_i. Most losses of this package have conjugates
that are a line or a parabola on each side of 0 inside an interval, which makes it a quadratic program with
bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from adfs.compilation import compiled
from adfs.problem.evaluation import loss_domains
from adfs.problem.labels import Labels, label_at, label_rows
from adfs.problem.losses import Loss, conjugate, weighted_conjugate_prox
from adfs.problem.rows import row_column, row_entry, row_span
from adfs.problem.samples import Samples

if TYPE_CHECKING:
    from adfs.problem.problem import Problem

__all__ = ["Pieces", "dual_ascent", "polish", "quadratic_pieces"]

_LARGEST_FREE_SET = 3000


@compiled
def _ascend(
    samples: Samples,
    beta: float,
    norms: np.ndarray,
    order: np.ndarray,
    sigma: float,
    s: np.ndarray,
    theta: np.ndarray,
) -> None:
    """Minimise the dual exactly along each coordinate in ``order``; θ = −Σ s_j x_j/σ is kept beside s."""
    loss, rows, y, weights = samples.loss, samples.rows, samples.y, samples.weights
    for j in order:
        start, stop = row_span(rows, j)
        margin = 0.0
        for k in range(start, stop):
            margin += row_entry(rows, j, k) * theta[row_column(rows, j, k)]
        h = sigma / norms[j]
        moved = weighted_conjugate_prox(loss, beta, s[j] + h * margin, h, label_at(y, j), weights[j], margin)
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
    samples, beta, norms = problem.samples, problem.loss.beta, problem.row_norms_squared
    for _ in range(passes):
        _ascend(samples, beta, norms, rng.permutation(active), problem.total_sigma, s, theta)
    return s


class Pieces(NamedTuple):
    """Where the terms' conjugates wℓ*(·/w) are slope·s + curvature·s²/2 + constant: one entry per piece.

    ``row`` is the sample, ``low`` and ``high`` the ends of the piece.
    """

    row: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    low: np.ndarray
    high: np.ndarray


@compiled
def _conjugates(loss: Loss, s: np.ndarray, y: Labels) -> np.ndarray:
    out = np.empty(s.size)
    for j in range(s.size):
        out[j] = conjugate(loss, s[j], label_at(y, j))
    return out


def quadratic_pieces(problem: Problem) -> Pieces | None:
    """Return the pieces of conjugates that are a parabola or a line on each side of 0; None for others.

    A conjugate with a kink at 0 has two pieces. Its minimiser needs at most one of them away from 0.
    """
    rows = np.flatnonzero(problem.active)
    y, weights = label_rows(problem.labels, rows), problem.weights[rows]
    low, high = loss_domains(problem.loss, y, rows.size)
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low <= 0.0) & (high >= 0.0)):
        return None
    left, right = _fit_side(problem.loss, y, low), _fit_side(problem.loss, y, high)
    if left is None or right is None:
        return None
    slopes, curvatures = np.array([left[0], right[0]]), np.array([left[1], right[1]]) / weights
    rounding = 1e-12 * (1.0 + np.abs(slopes).sum(axis=0))
    differ = (np.abs(slopes[1] - slopes[0]) > rounding) | (np.abs(curvatures[1] - curvatures[0]) > rounding)
    kinked = differ & (low < 0.0) & (high > 0.0)
    # An entry per sample, fitted on the upper side unless it has none; another for the lower side of a kink.
    side = (high > 0.0).astype(np.int64)
    every = np.arange(rows.size)
    low, high = weights * low, weights * high
    return Pieces(
        np.append(rows, rows[kinked]),
        np.append(slopes[side, every], slopes[0, kinked]),
        np.append(curvatures[side, every], curvatures[0, kinked]),
        np.append(np.where(kinked, 0.0, low), low[kinked]),
        np.append(high, np.zeros(int(kinked.sum()))),
    )


def _fit_side(loss: Loss, y: Labels, end: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the slope at 0 and the curvature of ℓ* between 0 and ``end``, or None when it is no parabola."""
    points = [_conjugates(loss, share * end, y) for share in (0.25, 0.5, 0.75, 1.0)]
    length = np.where(end == 0.0, 1.0, end)
    rounding = 1e-14 * sum(np.abs(point) for point in points)
    second = points[0] - 2.0 * points[1] + points[2]
    second = np.where(np.abs(second) > rounding, second, 0.0)
    third = points[3] - 3.0 * points[2] + 3.0 * points[1] - points[0]
    if not np.all(np.abs(third) <= 8.0 * rounding):
        return None
    curvature = second / (0.25 * length) ** 2
    return (points[2] - points[0]) / (0.5 * length) - 0.5 * curvature * length, curvature


def polish(problem: Problem, s: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve exactly for the tips strictly inside a piece of ℓ*, the others put at their nearest bound.

    A free tip's margin is the slope of its piece, so the free tips solve a linear system. That gives the
    optimum once the right pieces are known; a solution that leaves them is dropped.

    Returns
    -------
    tuple of ndarray, shapes (N,) and (d,), or None
        The tips' scalars, and the parameter nearest to theirs that meets the free tips' margins.
    """
    pieces = quadratic_pieces(problem)
    if pieces is None or pieces.curvature.any():
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
    # The correction of s solves rows·rowsᵀ·Δ = σ·(rows·θ − slope), around the current point because more free
    # tips than features leave many solutions. Factors of the rows do not square their condition number.
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
