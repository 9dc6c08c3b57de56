"""Mehrotra's interior-point method for the dual of losses whose conjugates are piecewise linear.

With the pieces of :mod:`adfs.problem.piecewise` the dual is: minimise cᵀs + ‖Xᵀs‖²/(2σ) over low ≤ s ≤ high. The
primal point θ is kept as a variable of its own, tied to s by σθ + Xᵀs = 0: computed from s it would carry the
rounding of s divided by σ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from adfs.problem.piecewise import Pieces, linear_pieces
from adfs.problem.rows import sparse

if TYPE_CHECKING:
    from adfs.problem.problem import Problem

__all__ = ["interior_point"]

_LARGEST_ORDER = 1500  # of the systems that are factorised at every step
_MOST_STEPS = 100


def interior_point(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield better and better pairs of tips' scalars (N,) and parameters (d,).

    Nothing is yielded when the conjugates are not on bounded intervals, or when both d and the number of pieces are
    too large for a factorisation. The pairs end where rounding does.
    """
    pieces = linear_pieces(problem)
    if pieces is None or pieces.row.size == 0:
        return
    if min(problem.n_features, pieces.row.size) > _LARGEST_ORDER:
        return
    X, sigma = problem.X[pieces.row], problem.total_sigma
    factorise = _by_features if problem.n_features <= pieces.row.size else _by_pieces
    theta = np.zeros(problem.n_features)
    below = 0.5 * (pieces.high - pieces.low)  # s − low and high − s are kept apart: near a bound s loses them
    above = below.copy()
    to_low = np.full(below.size, 1.0 + float(np.abs(pieces.slope).max()))
    to_high = to_low.copy()
    gram = _dense(X @ X.T) / sigma if factorise is _by_pieces else None
    for _ in range(_MOST_STEPS):
        s = _position(pieces, below, above)
        stationary = pieces.slope - X @ theta - to_low + to_high
        tied = sigma * theta + X.T @ s
        mu = float(below @ to_low + above @ to_high) / (2 * s.size)
        try:
            solve = factorise(X, sigma, to_low / below + to_high / above, tied, gram)
        except (scipy.linalg.LinAlgError, ValueError):  # not definite, or no longer finite
            return

        def direction(
            extra_low: Any, extra_high: Any, stationary: Any = stationary, solve: Any = solve
        ) -> Any:
            right = -stationary + extra_low - to_low - extra_high + to_high
            move, turn = solve(right)
            d_low = extra_low - to_low - to_low / below * move
            d_high = extra_high - to_high + to_high / above * move
            return move, turn, d_low, d_high

        move, _, d_low, d_high = direction(0.0, 0.0)
        size = _longest_step((below, move), (above, -move), (to_low, d_low), (to_high, d_high), share=1.0)
        after = (below + size * move) @ (to_low + size * d_low)
        after += (above - size * move) @ (to_high + size * d_high)
        target = mu * (float(after) / (2 * s.size * mu)) ** 3
        move, turn, d_low, d_high = direction(
            (target - move * d_low) / below, (target + move * d_high) / above
        )
        size = _longest_step((below, move), (above, -move), (to_low, d_low), (to_high, d_high), share=0.995)
        if not (size > 1e-10 and np.isfinite(move).all() and np.isfinite(turn).all()):
            return
        below, above = below + size * move, above - size * move
        to_low, to_high = to_low + size * d_low, to_high + size * d_high
        theta = theta + size * turn
        if min(below.min(), above.min(), to_low.min(), to_high.min()) < 1e-200:
            return
        total = np.zeros(problem.n_samples)
        np.add.at(total, pieces.row, _position(pieces, below, above))
        yield total, theta


def _position(pieces: Pieces, below: np.ndarray, above: np.ndarray) -> np.ndarray:
    return np.where(below < above, pieces.low + below, pieces.high - above)


def _dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.toarray() if sparse(matrix) else matrix)


Solver = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _by_features(X: Any, sigma: float, diagonal: np.ndarray, tied: np.ndarray, _: Any) -> Solver:
    """Solve D·ds − X·dθ = right and σ·dθ + Xᵀds = −tied through a d × d matrix."""
    scaled = X.multiply((1.0 / diagonal)[:, None]).tocsr() if sparse(X) else X / diagonal[:, None]
    inner = _dense(X.T @ scaled)
    factor = scipy.linalg.cho_factor(inner + sigma * np.eye(X.shape[1]))

    def solve(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turn = scipy.linalg.cho_solve(factor, -tied - X.T @ (right / diagonal))
        return np.asarray((right + X @ turn) / diagonal), np.asarray(turn)

    return solve


def _by_pieces(X: Any, sigma: float, diagonal: np.ndarray, tied: np.ndarray, gram: np.ndarray) -> Solver:
    """Solve the same system through a matrix with one row a piece."""
    matrix = gram.copy()
    matrix[np.diag_indices_from(matrix)] += diagonal
    factor = scipy.linalg.cho_factor(matrix)

    def solve(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        move = scipy.linalg.cho_solve(factor, right - X @ tied / sigma)
        return np.asarray(move), np.asarray(-(tied + X.T @ move) / sigma)

    return solve


def _longest_step(*pairs: tuple[np.ndarray, np.ndarray], share: float) -> float:
    """Return how far one may go along a direction, at most 1, a share of the way to the first bound met."""
    size = 1.0
    for value, change in pairs:
        shrinking = change < 0.0
        if shrinking.any():
            size = min(size, share * float(np.min(-value[shrinking] / change[shrinking])))
    return size
