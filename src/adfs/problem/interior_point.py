"""Mehrotra's interior-point method for the dual of losses whose conjugates are made of lines and parabolas.

With the pieces of :mod:`adfs.problem.piecewise` the dual is to minimise cᵀs + sᵀBs/2 + ‖Xᵀs‖²/(2σ) over
low ≤ s ≤ high, with the slopes c and the curvatures B, diagonal. The primal point θ is kept as a variable
of its own, tied to s by σθ + Xᵀs = 0: computed from s it would carry the rounding of s divided by σ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from adfs.problem.piecewise import Pieces, quadratic_pieces
from adfs.problem.rows import Matrix, sparse

if TYPE_CHECKING:
    from adfs.problem.problem import Problem

__all__ = ["interior_point"]

_LARGEST_ORDER = 1500  # of the systems that are factorised at every step
_MOST_STEPS = 100
_SHARE = 0.995  # of the way to the first bound met


def interior_point(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield better and better pairs of tips' scalars (N,) and parameters (d,).

    Nothing is yielded when the conjugates are not of that kind on bounded intervals, or when both d and the
    number of pieces are too large for a factorisation. The pairs end where rounding does.
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
    at = _Walls(half, half, force, force)
    for _ in range(_MOST_STEPS):
        s = at.position(pieces)
        stationary = pieces.slope + pieces.curvature * s - X @ theta - at.to_low + at.to_high
        tied = sigma * theta + X.T @ s
        mu = at.products() / (2 * s.size)
        diagonal = pieces.curvature + at.to_low / at.below + at.to_high / at.above
        try:
            solve = factorise(X, sigma, diagonal, tied, gram)
        except (scipy.linalg.LinAlgError, ValueError):  # not definite, or no longer finite
            return
        direction, _ = _direction(at, stationary, solve, 0.0, 0.0)
        after = at.along(direction, at.longest_step(direction)).products()
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


class _Walls(NamedTuple):
    """Distances s − low and high − s, kept apart because s loses them near a bound, and the forces there."""

    below: np.ndarray
    above: np.ndarray
    to_low: np.ndarray
    to_high: np.ndarray

    def position(self, pieces: Pieces) -> np.ndarray:
        nearer_low = self.below < self.above
        return np.asarray(np.where(nearer_low, pieces.low + self.below, pieces.high - self.above))

    def products(self) -> float:
        return float(self.below @ self.to_low + self.above @ self.to_high)

    def along(self, direction: _Walls, size: float) -> _Walls:
        return _Walls(*(part + size * change for part, change in zip(self, direction, strict=True)))

    def longest_step(self, direction: _Walls) -> float:
        """Return how far one may go along a direction before a part vanishes, at most 1."""
        size = 1.0
        for part, change in zip(self, direction, strict=True):
            shrinking = change < 0.0
            if shrinking.any():
                size = min(size, float(np.min(-part[shrinking] / change[shrinking])))
        return size


Solver = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _direction(
    at: _Walls,
    stationary: np.ndarray,
    solve: Solver,
    low_extra: float | np.ndarray,
    high_extra: float | np.ndarray,
) -> tuple[_Walls, np.ndarray]:
    """Return Newton's direction for below·to_low = below·low_extra (the same above), and that of θ."""
    move, turn = solve(-stationary + low_extra - at.to_low - high_extra + at.to_high)
    d_low = low_extra - at.to_low - at.to_low / at.below * move
    d_high = high_extra - at.to_high + at.to_high / at.above * move
    return _Walls(move, -move, d_low, d_high), turn


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
