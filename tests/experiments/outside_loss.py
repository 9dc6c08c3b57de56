"""A loss as somebody outside would write it: squares that weigh more below the target than above."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.problem import Loss, register_loss


class ExpectileConstants(NamedTuple):
    level: float = 0.8


@register_loss
class Expectile(ExpectileConstants, Loss):
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

    def value(self, u: float, b: float) -> float:
        return float(0.5 * (self.level if u < b else 1 - self.level) * (u - b) ** 2)

    def derivative(self, u: float, b: float) -> float:
        return float((self.level if u < b else 1 - self.level) * (u - b))

    def curvature(self, u: float, b: float) -> float:
        return float(self.level if u < b else 1 - self.level)

    def conjugate(self, s: float, b: float) -> float:
        return float(b * s + 0.5 * s * s / (self.level if s < 0 else 1 - self.level))

    def domain(self, b: float) -> tuple[float, float]:
        return -math.inf, math.inf

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        s = zeta - h * b
        bend = 1 / (self.level if s < 0 else 1 - self.level) - 1 / max(self.level, 1 - self.level)
        return float(s / (1 + h * bend))


class NeedyConstants(NamedTuple):
    level: float


@register_loss
class Needy(NeedyConstants, Loss):
    """One that cannot be made from its name."""

    name, task = "needy", "regression"
