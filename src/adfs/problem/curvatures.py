"""Curvatures that a run assumes, one per sample, for losses whose curvature has no bound.

A sample's β_j is twice the larger of its curvature where it would be fitted exactly and where all samples
have the same mean (adjusted for exposure). Beyond the margins at which ℓ'' ≤ β_j its loss is replaced by a
tangent, as `adfs.problem.boxes` does: what a method then runs on is smooth, and every theorem holds of it.
Certificates are of the loss itself, and tell where the optimum lies beyond.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adfs.compilation import compiled, overloads
from adfs.errors import InputError
from adfs.problem.boxes import BoxedProblem
from adfs.problem.evaluation import loss_curvatures, node_sums
from adfs.problem.labels import label_at, plain_label
from adfs.problem.loss_base import Loss
from adfs.problem.losses import curvature
from adfs.problem.problem import Problem
from adfs.problem.rows import kind_of
from adfs.problem.samples import Samples

__all__ = ["beyond", "common_margin", "first_curvatures", "view_with"]

_SLACK = 1e-9  # relative, of a curvature
_FACTOR = 2.0


def common_margin(over: float, under: float) -> float:
    """Return the margin, without offsets, of the model that has nothing but an intercept.

    From the sums over all samples of w times each of `Loss.level_parts`.
    """
    if not under > 0.0:
        return 0.0  # no sample has any weight
    if not over > 0.0:
        raise InputError(
            "all counts are 0 (or have weight 0), and no mean is small enough for them; "
            "there is nothing to fit"
        )
    return float(np.log(over) - np.log(under))


def _flatter(loss: Loss, beta: float, b: float) -> tuple[float, float]:
    raise NotImplementedError("compiled code only")


def _margins_of(loss: Loss, low: float, high: float, b: float) -> tuple[float, float]:
    raise NotImplementedError("compiled code only")


overloads(_flatter)(lambda loss, beta, b: getattr(kind_of(loss), "flatter", None))
overloads(_margins_of)(lambda loss, low, high, b: getattr(kind_of(loss), "margins_of", None))


@compiled
def _first_curvatures(samples: Samples, active: np.ndarray, margin: float, tips: np.ndarray) -> np.ndarray:
    loss, y = samples.loss, samples.y
    out = np.zeros(active.size)
    for j in range(active.size):
        if not active[j]:
            continue
        b, s = plain_label(y, j), tips[j] / samples.weights[j]
        exact = _margins_of(loss, 0.0, 0.0, b)[0]
        there = _margins_of(loss, s, s, b)[0]
        most = max(curvature(loss, exact, b), curvature(loss, margin, label_at(y, j)))
        out[j] = _FACTOR * max(most, curvature(loss, there, b))
    return out


@compiled
def _fill_margins(samples: Samples, active: np.ndarray, beta: np.ndarray, out: np.ndarray) -> None:
    for j in range(active.size):
        out[j, 0], out[j, 1] = -np.inf, np.inf
        if active[j]:
            out[j, 0], out[j, 1] = _flatter(samples.loss, beta[j], plain_label(samples.y, j))


def first_curvatures(
    problem: Problem, start: np.ndarray | None, total: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the curvatures to begin with, shape (N,); 0 on constants.

    Parameters
    ----------
    problem : Problem
    start : ndarray of shape (N,), optional
        Tips that a run starts from, in their domains: curvatures are no smaller than at their margins.
    total : callable
        Sums one vector per node over all nodes of all processes.
    """
    offset = np.zeros(problem.n_samples) if problem.offset is None else problem.offset
    parts = problem.loss.level_parts(problem.y, offset)
    sums = [node_sums(problem.weights * part, problem.offsets) for part in parts]
    over, under = total(np.stack(sums, axis=1))
    margin = common_margin(float(over), float(under))
    tips = np.zeros(problem.n_samples) if start is None else np.ascontiguousarray(start)
    return _first_curvatures(problem.samples, problem.active, margin, tips)


def view_with(problem: Problem, beta: np.ndarray) -> BoxedProblem:
    """Return the problem with each sample's loss as smooth as its β_j says."""
    margins = np.empty((problem.n_samples, 2))
    _fill_margins(problem.samples, problem.active, beta, margins)
    return BoxedProblem(problem, margins)


def beyond(problem: Problem, theta: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return at which samples the curvature at θ is above what was assumed, shape (N,), bool."""
    found = loss_curvatures(problem.loss, problem.X @ theta, problem.labels)
    return np.asarray(problem.active & (found > (1.0 + _SLACK) * beta))
