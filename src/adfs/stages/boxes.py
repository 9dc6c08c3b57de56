"""Boxes of dual variables for stages: around a certified point, or for losses whose curvature has no bound.

Where the optimal margin of a sample is known to lie in an interval, its dual variable lies in a box and its
curvature is at most the largest one over the interval (`adfs.problem.views`). The intervals come from a
certificate. A loss whose curvature has no bound is given a bound for every sample, and its interval has the
margins at which the bound holds; certificates show where the optimum lies outside.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adfs.compilation import compiled
from adfs.problem import FiniteSum, Loss, evaluation
from adfs.problem.losses import curvature
from adfs.problem.samples import Samples, add_shift, by_class, label_at, plain_label
from adfs.problem.views import BoxedProblem, common_margin

_MARGIN_ROUNDING = 1e-12  # of a margin, relative to itself and to 1
_CURVATURE_ROUNDING = 1e-9  # of a curvature, relative


@by_class
def margins_of(loss: Loss, low: float, high: float, b: float) -> tuple[float, float]:
    """Return the first margin with ℓ' ≥ low and the last one with ℓ' ≤ high."""
    raise NotImplementedError


@compiled
def _intervals(
    samples: Samples,
    active: np.ndarray,
    theta: np.ndarray,
    duals: np.ndarray,
    distance: np.ndarray,
    dual_radius: float,
) -> np.ndarray:
    loss = samples.loss
    count = samples.weights.size
    out = np.empty((count, 2))
    margin = np.empty(1)
    for j in range(count):
        b = plain_label(samples.y, j)
        evaluation.fill_margins(samples.rows, j, theta, margin)
        add_shift(samples.y, j, 1.0, margin)
        u = margin[0]
        slack = _MARGIN_ROUNDING * (1.0 + abs(u))
        away = distance[j] + slack
        low, high = u - away, u + away
        if active[j]:
            # The dual variable bounds the margin too: |s − s*| ≤ √(2Gwβ), here of s/w.
            far = dual_radius / np.sqrt(samples.weights[j])
            s = duals[j] / samples.weights[j]
            first, last = margins_of(loss, s - far, s + far, b)
            low, high = max(low, first - slack), min(high, last + slack)
            if low > high:  # by rounding, since the optimum is in both intervals
                low = high = 0.5 * (low + high)
        out[j, 0], out[j, 1] = low, high
    return out


def intervals(
    problem: FiniteSum, theta: np.ndarray, duals: np.ndarray, excess: float, radius: np.ndarray
) -> np.ndarray:
    """Return intervals of margins around those of a certified pair θ (d,) and s (N,); shape (N, 2).

    ``excess`` is a bound of F(θ) − D(s): |s_j − s_j*| ≤ √(2·excess·wβ). ``radius`` (N,) bounds the distance
    between θ and the optimum for each sample.
    """
    dual_radius = float(np.sqrt(2.0 * excess * problem.loss.beta))
    # The margin moves by at most the radius times the norm of the row.
    distance = radius * np.sqrt(problem.row_norms_squared)
    return _intervals(problem.samples, problem.active, theta, duals, distance, dual_radius)


@by_class
def flatter(loss: Loss, beta: float, b: float) -> tuple[float, float]:
    """Return the interval of margins on which ℓ'' is at most β."""
    raise NotImplementedError


@compiled
def _first_curvatures(samples: Samples, active: np.ndarray, margin: float, duals: np.ndarray) -> np.ndarray:
    loss, y = samples.loss, samples.y
    out = np.zeros(active.size)
    for j in range(active.size):
        if not active[j]:
            continue
        b, s = plain_label(y, j), duals[j] / samples.weights[j]
        exact_margin = margins_of(loss, 0.0, 0.0, b)[0]
        start_margin = margins_of(loss, s, s, b)[0]
        most = max(curvature(loss, exact_margin, b), curvature(loss, margin, label_at(y, j)))
        out[j] = max(most, curvature(loss, start_margin, b))
    return out


@compiled
def _fill_margins(samples: Samples, active: np.ndarray, beta: np.ndarray, out: np.ndarray) -> None:
    for j in range(active.size):
        out[j, 0], out[j, 1] = 0.0, 0.0  # of constants: times their weight, 0, infinity would be nan
        if active[j]:
            out[j, 0], out[j, 1] = flatter(samples.loss, beta[j], plain_label(samples.y, j))


def first_curvatures(
    problem: FiniteSum, start: np.ndarray | None, add: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the curvatures that are known before a run, shape (N,); 0 on constants.

    A sample's is the largest of its curvature where it would be fitted exactly, where all samples have the
    same mean (adjusted for exposure), and at the dual variables (N,) that the run starts from. ``add`` sums
    one vector per node over all nodes of all processes.
    """
    # The margin that all samples share in the model with an intercept alone.
    offset = np.zeros(problem.n_samples) if problem.offset is None else problem.offset
    parts = problem.loss.level_parts(problem.y, offset)
    sums = [evaluation.node_sums(problem.weights * part, problem.node_starts) for part in parts]
    over, under = add(np.stack(sums, axis=1))
    margin = common_margin(float(over), float(under))
    duals = np.zeros(problem.n_samples) if start is None else np.ascontiguousarray(start)
    return _first_curvatures(problem.samples, problem.active, margin, duals)


def with_curvatures(problem: FiniteSum, beta: np.ndarray) -> BoxedProblem:
    """Return the problem with the curvature of each sample's loss bounded by its β_j (N,)."""
    margins = np.empty((problem.n_samples, 2))
    _fill_margins(problem.samples, problem.active, beta, margins)
    return BoxedProblem(problem, margins)


def above_curvatures(problem: FiniteSum, theta: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return which samples have a larger curvature at θ than was assumed, shape (N,), bool."""
    found = evaluation.loss_curvatures(problem.loss, problem.X @ theta, problem.labels)
    return np.asarray(problem.active & (found > (1.0 + _CURVATURE_ROUNDING) * beta))
