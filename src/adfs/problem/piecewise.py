"""The dual: coordinate ascent, the pieces of conjugates made of lines and parabolas, and two ways to the end.

The dual minimises Σ w ℓ*(s_j/w) + ‖Σ s_j x_j‖²/(2σ), σ = Σ σ_i. Most losses of this package have conjugates
that are a line or a parabola on each side of 0 inside an interval, which makes it a quadratic program with
bounds: cᵀs + sᵀBs/2 + ‖Xᵀs‖²/(2σ) over low ≤ s ≤ high, with the slopes c and the curvatures B, diagonal.
`interior_point` is Mehrotra's method for it; `polish` solves exactly once the right pieces are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from adfs.compilation import compiled
from adfs.problem.evaluation import loss_domains
from adfs.problem.losses import Loss, conjugate, weighted_conjugate_prox
from adfs.problem.samples import (
    Labels,
    Matrix,
    Samples,
    label_at,
    label_rows,
    row_column,
    row_entry,
    row_span,
    sparse,
)

if TYPE_CHECKING:
    from adfs.problem.finite_sum import FiniteSum

_LARGEST_FREE_SET = 3000
_LARGEST_ORDER = 1500  # of the systems that interior points factorise at every step
_MOST_STEPS = 100
_SHARE = 0.995  # of the way to the first bound met


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


def dual_ascent(problem: FiniteSum, s: np.ndarray, passes: int) -> np.ndarray:
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


def quadratic_pieces(problem: FiniteSum) -> Pieces | None:
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
    rounding = 1e-14 * (sum(np.abs(point) for point in points) + np.abs(end))
    second = points[0] - 2.0 * points[1] + points[2]
    second = np.where(np.abs(second) > rounding, second, 0.0)
    third = points[3] - 3.0 * points[2] + 3.0 * points[1] - points[0]
    if not np.all(np.abs(third) <= 8.0 * rounding):
        return None
    curvature = second / (0.25 * length) ** 2
    return (points[2] - points[0]) / (0.5 * length) - 0.5 * curvature * length, curvature


def polish(problem: FiniteSum, s: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve exactly for the tips strictly inside a piece of ℓ*, the others put at their nearest bound.

    A free tip's margin is the slope of its piece, so the free tips solve a linear system. That gives the
    optimum once the right pieces are known; a solution that leaves them is dropped. Returned are the tips'
    scalars (N,), and the parameter (d,) nearest to theirs that meets the free tips' margins.
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


# --------------------------------------------------------------------------- interior points


def interior_point(problem: FiniteSum) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield better and better pairs of tips' scalars (N,) and parameters (d,).

    θ is kept as a variable of its own, tied to s by σθ + Xᵀs = 0: computed from s it would carry the rounding
    of s divided by σ. Nothing is yielded when the conjugates are not of that kind on bounded intervals, or
    when both d and the number of pieces are too large for a factorisation. The pairs end where rounding does.
    """
    pieces = quadratic_pieces(problem)
    if pieces is None or pieces.row.size == 0:
        return
    if min(problem.n_features, pieces.row.size) > _LARGEST_ORDER:
        return
    X, sigma = problem.X[pieces.row], problem.total_sigma
    factorise = _by_features if problem.n_features <= pieces.row.size else _by_pieces
    gram = _dense(X @ X.T) / sigma if factorise is _by_pieces else np.empty((0, 0))
    theta = np.zeros(problem.n_features)
    half = 0.5 * (pieces.high - pieces.low)
    force = np.full(half.size, 1.0 + float(np.abs(pieces.slope).max()))
    at = Walls(half, half, force, force)
    for _ in range(_MOST_STEPS):
        s = at.position(pieces)
        stationary = pieces.slope + pieces.curvature * s - X @ theta - at.to_low + at.to_high
        tied = sigma * theta + X.T @ s
        mu = float(at.products().sum()) / (2 * s.size)
        diagonal = pieces.curvature + at.to_low / at.below + at.to_high / at.above
        try:
            solve = factorise(X, sigma, diagonal, tied, gram)
        except (scipy.linalg.LinAlgError, ValueError):  # not definite, or no longer finite
            return
        direction, _ = _direction(at, stationary, solve, 0.0, 0.0)
        after = at.along(direction, at.longest_step(direction)).products().sum()
        target = mu * (after / (2 * s.size * mu)) ** 3
        low_extra = (target - direction.below * direction.to_low) / at.below
        high_extra = (target - direction.above * direction.to_high) / at.above
        direction, turn = _direction(at, stationary, solve, low_extra, high_extra)
        size = _SHARE * at.longest_step(direction)
        if not (size > 1e-10 and np.isfinite(direction.below).all() and np.isfinite(turn).all()):
            return
        at = at.along(direction, size)
        theta = theta + size * turn
        if min(part.min() for part in at) < 1e-200:
            return
        total = np.zeros(problem.n_samples)
        np.add.at(total, pieces.row, at.position(pieces))
        yield total, theta


class Walls(NamedTuple):
    """Distances s − low and high − s, kept apart because s loses them near a bound, and the forces there."""

    below: np.ndarray
    above: np.ndarray
    to_low: np.ndarray
    to_high: np.ndarray

    def position(self, pieces: Pieces) -> np.ndarray:
        """Return s, from the end it is nearer to."""
        nearer_low = self.below < self.above
        return np.asarray(np.where(nearer_low, pieces.low + self.below, pieces.high - self.above))

    def products(self) -> np.ndarray:
        """Return what is 0 at the optimum, of each piece."""
        return np.asarray(self.below * self.to_low + self.above * self.to_high)

    def along(self, direction: Walls, size: float) -> Walls:
        """Return where a step in a direction ends."""
        return Walls(*(part + size * change for part, change in zip(self, direction, strict=True)))

    def longest_step(self, direction: Walls) -> float:
        """Return how far one may go along a direction before a part vanishes, at most 1."""
        size = 1.0
        for part, change in zip(self, direction, strict=True):
            shrinking = change < 0.0
            if shrinking.any():
                size = min(size, float(np.min(-part[shrinking] / change[shrinking])))
        return size


Solver = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _direction(
    at: Walls,
    stationary: np.ndarray,
    solve: Solver,
    low_extra: float | np.ndarray,
    high_extra: float | np.ndarray,
) -> tuple[Walls, np.ndarray]:
    """Return Newton's direction for below·to_low = below·low_extra (the same above), and that of θ."""
    move, turn = solve(-stationary + low_extra - at.to_low - high_extra + at.to_high)
    d_low = low_extra - at.to_low - at.to_low / at.below * move
    d_high = high_extra - at.to_high + at.to_high / at.above * move
    return Walls(move, -move, d_low, d_high), turn


def _dense(matrix: Matrix) -> np.ndarray:
    return np.asarray(matrix.toarray() if sparse(matrix) else matrix, dtype=np.float64)


def _by_features(X: Matrix, sigma: float, diagonal: np.ndarray, tied: np.ndarray, _: np.ndarray) -> Solver:
    """Solve D·ds − X·dθ = right and σ·dθ + Xᵀds = −tied through a d × d matrix."""
    scaled = X.multiply((1.0 / diagonal)[:, None]).tocsr() if sparse(X) else X / diagonal[:, None]
    inner = _dense(X.T @ scaled)
    factor = scipy.linalg.cho_factor(inner + sigma * np.eye(X.shape[1]))

    def solve(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turn = scipy.linalg.cho_solve(factor, -tied - X.T @ (right / diagonal))
        return np.asarray((right + X @ turn) / diagonal), np.asarray(turn)

    return solve


def _by_pieces(X: Matrix, sigma: float, diagonal: np.ndarray, tied: np.ndarray, gram: np.ndarray) -> Solver:
    """Solve the same system through a matrix with one row per piece."""
    matrix = gram.copy()
    matrix[np.diag_indices_from(matrix)] += diagonal
    factor = scipy.linalg.cho_factor(matrix)

    def solve(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        move = scipy.linalg.cho_solve(factor, right - X @ tied / sigma)
        return np.asarray(move), np.asarray(-(tied + X.T @ move) / sigma)

    return solve
