"""A loss as somebody outside would write it: squares that weigh more below the target than above."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adfs.problem import Loss, register_loss


class ExpectileConstants(NamedTuple):
    level: float = 0.8


@register_loss
class Expectile(ExpectileConstants, Loss):
    __slots__ = ()
    name, task = "expectile", "regression"
    label = "an expectile of numbers (level)"
    translates = True
    standard_errors = True  # no likelihood: robust ones
    wanted_targets = "targets above -1000"

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y > -1000.0)

    @property
    def beta(self) -> float:
        return max(self.level, 1 - self.level)

    @staticmethod
    def value(loss: Any, u: float, b: float) -> float:
        return float(0.5 * (loss.level if u < b else 1 - loss.level) * (u - b) ** 2)

    @staticmethod
    def derivative(loss: Any, u: float, b: float) -> float:
        return float((loss.level if u < b else 1 - loss.level) * (u - b))

    @staticmethod
    def curvature(loss: Any, u: float, b: float) -> float:
        return float(loss.level if u < b else 1 - loss.level)

    @staticmethod
    def conjugate(loss: Any, s: float, b: float) -> float:
        return float(b * s + 0.5 * s * s / (loss.level if s < 0 else 1 - loss.level))

    @staticmethod
    def domain(loss: Any, b: float) -> tuple[float, float]:
        return -math.inf, math.inf

    @staticmethod
    def dual_prox(loss: Any, zeta: float, h: float, b: float, start: float) -> float:
        s = zeta - h * b
        bend = 1 / (loss.level if s < 0 else 1 - loss.level) - 1 / max(loss.level, 1 - loss.level)
        return float(s / (1 + h * bend))


class NeedyConstants(NamedTuple):
    level: float


@register_loss
class Needy(NeedyConstants, Loss):
    """One that cannot be made from its name."""

    __slots__ = ()
    name, task = "needy", "regression"
