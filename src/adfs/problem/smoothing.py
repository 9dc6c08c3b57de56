"""Losses with kinks seen as smooth ones: each kink rounded over a width, the dual variables the same."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.problem.loss_base import Loss, clip
from adfs.problem.losses import Absolute, EpsilonInsensitive, Hinge, Quantile, SmoothedHinge, SmoothedQuantile
from adfs.problem.problem import Problem

__all__ = ["can_be_smoothed", "smoothed"]


class SmoothedInsensitive(
    NamedTuple("SmoothedInsensitiveConstants", [("epsilon", float), ("width", float)]), Loss
):
    """The ε-insensitive loss with its kinks at ±ε rounded over ``width``; β = 1/width."""

    __slots__ = ()
    name = "smoothed-epsilon-insensitive"
    task = "regression"
    translates = True

    @property
    def beta(self) -> float:
        return 1.0 / self.width

    @staticmethod
    def value(loss: SmoothedInsensitive, u: float, b: float) -> float:
        beyond = max(abs(u - b) - loss.epsilon, 0.0)
        s = min(beyond / loss.width, 1.0)
        return s * beyond - 0.5 * loss.width * s * s

    @staticmethod
    def derivative(loss: SmoothedInsensitive, u: float, b: float) -> float:
        s = clip((abs(u - b) - loss.epsilon) / loss.width, 0.0, 1.0)
        return s if u > b else -s

    @staticmethod
    def curvature(loss: SmoothedInsensitive, u: float, b: float) -> float:
        return 1.0 / loss.width if 0.0 < abs(u - b) - loss.epsilon < loss.width else 0.0

    @staticmethod
    def conjugate(loss: SmoothedInsensitive, s: float, b: float) -> float:
        if abs(s) > 1.0:
            return math.inf
        return b * s + loss.epsilon * abs(s) + 0.5 * loss.width * s * s

    @staticmethod
    def domain(loss: SmoothedInsensitive, b: float) -> tuple[float, float]:
        return -1.0, 1.0

    @staticmethod
    def dual_prox(loss: SmoothedInsensitive, zeta: float, h: float, b: float, start: float) -> float:
        s = zeta - h * b
        size = clip(abs(s) - h * loss.epsilon, 0.0, 1.0)
        return size if s > 0.0 else -size

    @staticmethod
    def curvature_over(loss: SmoothedInsensitive, low: float, high: float, b: float) -> float:
        first, last = loss.epsilon, loss.epsilon + loss.width
        above = low < b + last and high > b + first
        below = low < b - first and high > b - last
        return 1.0 / loss.width if above or below else 0.0


def can_be_smoothed(loss: Loss) -> bool:
    """Whether `smoothed` knows a loss."""
    return isinstance(loss, Absolute | Quantile | EpsilonInsensitive | Hinge)


def smoothed(problem: Problem, width: float) -> Problem:
    """Return the problem with kinks rounded over a width; dual variables keep their domains."""
    loss, weights = problem.loss, problem.weights
    found: Loss
    if isinstance(loss, Hinge):
        found = SmoothedHinge(width)
    elif isinstance(loss, EpsilonInsensitive):
        found = SmoothedInsensitive(loss.epsilon, width)
    elif isinstance(loss, Absolute):
        found, weights = SmoothedQuantile(0.5, width), 2.0 * weights
    else:
        assert isinstance(loss, Quantile)
        found = SmoothedQuantile(loss.quantile, width)
    return Problem.stacked(
        problem.X, problem.y, weights, problem.offsets, found, problem.sigma, problem.offset
    )
