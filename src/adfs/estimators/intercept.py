"""Intercepts: a penalised column as liblinear has it, or none penalised, exact, for the squared loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from adfs.estimators.solving import Plan, Solution, solve
from adfs.problem import Problem
from adfs.runtimes import Outcome

__all__ = ["Affine", "append_column", "fit_affine_squares"]

_MOST_ROUNDS = 60
_FIRST_TOLERANCE = 1e-6


def append_column(X: Any, value: float) -> Any:
    """Return X with one more column that holds a value everywhere; sparse stays sparse."""
    column: Any = np.full((X.shape[0], 1), value)
    if not sp.issparse(X):
        return np.hstack([X, column])
    stacked: Any = sp.hstack
    return stacked([X, column], format="csr")


@dataclass(frozen=True)
class Affine:
    """A solution and the intercepts that belong to it: its own (a number), and each node's (n_nodes,)."""

    solution: Solution
    intercept: float
    node_intercept: np.ndarray


def fit_affine_squares(
    X: Any,
    y: np.ndarray,
    weights: np.ndarray,
    alpha: float,
    make: Callable[[Any, np.ndarray], Problem],
    plan: Plan,
    start: np.ndarray | None,
) -> Affine:
    """Minimise Σ w ½(xᵀθ + b − y)² + (α/2)‖θ‖² over θ and b, b not penalised.

    Dense rows are centred. Sparse rows would become dense: they get a column for b instead, penalised
    around where b was before, which moves until it rests there (the proximal-point method in b alone). Both
    are certified by the gap of the problem in θ alone, to which tips with Σ s = 0 are feasible.

    Parameters
    ----------
    X : ndarray or csr_array of shape (N, d)
    y, weights : ndarray of shape (N,)
    alpha : float
    make : callable
        Makes the problem from rows and targets, split over the nodes.
    plan : Plan
    start : ndarray of shape (N,), optional
        Tips to start from, in the order of the problem's rows.
    """
    total = float(weights.sum())
    center = float(weights @ y) / total if total > 0.0 else 0.0
    if sp.issparse(X):
        return _fit_sparse(X, y, weights, alpha, make, plan, start, center)
    middle = (weights @ X) / total if total > 0.0 else np.zeros(X.shape[1])
    solution = solve(make(X - middle, y - center), plan, start)
    nodes = center - solution.node_theta @ middle
    return Affine(solution, float(center - solution.theta @ middle), nodes)


def _fit_sparse(
    X: Any,
    y: np.ndarray,
    weights: np.ndarray,
    alpha: float,
    make: Callable[[Any, np.ndarray], Problem],
    plan: Plan,
    start: np.ndarray | None,
    center: float,
) -> Affine:
    total = float(weights.sum())
    norms = np.asarray(X.multiply(X).sum(axis=1)).ravel()
    # As long as the rows, so as not to worsen their condition; longer where α is so large that b would
    # hardly move.
    typical = float(weights @ norms) / total if total > 0.0 else 0.0
    scale = float(np.sqrt(max(typical, 10.0 * alpha / total if total > 0.0 else 0.0))) or 1.0
    rows = append_column(X, scale)
    found: list[Solution] = []
    best: tuple[float, np.ndarray, float] | None = None
    around = center
    tol = _FIRST_TOLERANCE
    for _ in range(_MOST_ROUNDS):
        left = plan.max_iter - sum(one.passes for one in found)
        problem = make(rows, y - around)
        round_plan = replace(plan.part(found), tol=max(tol, 0.1 * plan.tol), max_iter=max(left, 1.0))
        solution = solve(problem, round_plan, start)
        found.append(solution)
        assert solution.dual is not None
        start = solution.dual
        tips = np.empty_like(solution.dual)
        tips[problem.row_index] = solution.dual
        gap, theta, intercept = _certify(X, y, weights, alpha, tips, solution.theta[:-1])
        if best is None or gap < best[0]:
            best = gap, theta, intercept
        node_intercept = around + scale * solution.node_theta[:, -1]
        if gap <= plan.tol or solution.outcome is not Outcome.CONVERGED:
            break
        tol = 0.1 * min(tol, gap)
        around += scale * float(solution.theta[-1])
    assert best is not None
    gap, theta, intercept = best
    last = found[-1]
    if gap <= plan.tol:
        outcome = Outcome.CONVERGED
    else:
        outcome = last.outcome if last.outcome is not Outcome.CONVERGED else Outcome.OUT_OF_BUDGET
    node_theta = last.node_theta[:, :-1]
    frame = _joined(found, gap)
    passes, seconds = sum(one.passes for one in found), sum(one.seconds for one in found)
    joined = Solution(theta, node_theta, last.dual, gap, passes, seconds, frame, outcome, last.method)
    return Affine(joined, intercept, node_intercept)


def _certify(
    X: Any,
    y: np.ndarray,
    weights: np.ndarray,
    alpha: float,
    tips: np.ndarray,
    theta: np.ndarray,
) -> tuple[float, np.ndarray, float]:
    """Return the lesser of the relative gaps at ``theta`` and at θ(s), b not penalised, that θ, and its b."""
    total = float(weights.sum())
    used = weights > 0.0
    if not used.any():
        return 0.0, np.zeros(X.shape[1]), 0.0
    tips = np.where(used, tips, 0.0)
    tips = tips - weights * (tips.sum() / total)
    own = -(X.T @ tips) / alpha
    center = float(weights @ y) / total
    at_zero = 0.5 * float(weights @ (y - center) ** 2)
    found = []
    for point in (own, theta):
        residual = X @ point - y
        intercept = -float(weights @ residual) / total
        # F − D is Σ wℓ(u) + wℓ*(s/w) − us, for squares Σ ½w(r − s/w)², and (α/2)‖θ − θ(s)‖²: nothing cancels.
        misfit = residual[used] + intercept - tips[used] / weights[used]
        away = point - own
        gap = 0.5 * float(weights[used] @ (misfit * misfit)) + 0.5 * alpha * float(away @ away)
        found.append((gap / at_zero if at_zero > 0.0 else gap, point, intercept))
    return min(found, key=lambda one: one[0])


def _joined(found: list[Solution], gap: float) -> pd.DataFrame:
    """Put the rows of the rounds one after the other, their work added up, the certified gap in the last."""
    added = [
        name for name in ("passes", "computations", "messages", "bytes", "seconds") if name in found[0].frame
    ]
    frames = []
    base = pd.Series(0.0, index=added)
    for one in found:
        frame = one.frame.copy()
        frame[added] = frame[added] + base
        base = frame[added].iloc[-1]
        frames.append(frame)
    joined = pd.concat(frames, ignore_index=True)
    joined.loc[joined.index[-1], "gap"] = gap
    return joined
