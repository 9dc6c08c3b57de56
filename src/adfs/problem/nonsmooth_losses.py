"""Losses with kinks, whose conjugates are piecewise linear on an interval: each one short class."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.errors import InputError
from adfs.problem.loss_base import (
    Loss,
    box_conjugate,
    box_divergence,
    clip,
    hinge_conjugate,
    inside,
    signed_interval,
)

__all__ = ["Absolute", "EpsilonInsensitive", "Hinge", "Quantile"]


class Hinge(NamedTuple("HingeConstants", []), Loss):
    """Hinge max(0, 1 − b·u), labels ±1; not smooth."""

    __slots__ = ()
    name = "hinge"
    task = "classification"

    @property
    def beta(self) -> float:
        return math.inf

    @staticmethod
    def value(loss: Hinge, u: float, b: float) -> float:
        return max(0.0, 1.0 - b * u)

    @staticmethod
    def derivative(loss: Hinge, u: float, b: float) -> float:
        return -b if b * u < 1.0 else 0.0

    @staticmethod
    def curvature(loss: Hinge, u: float, b: float) -> float:
        return 0.0

    @staticmethod
    def conjugate(loss: Hinge, s: float, b: float) -> float:
        return hinge_conjugate(s, b, 0.0, 1.0)

    @staticmethod
    def divergence(loss: Hinge, u: float, s: float, b: float) -> float:
        return box_divergence(1.0 - b * u, -b * s, 0.0, 0.0, 1.0)

    @staticmethod
    def domain(loss: Hinge, b: float) -> tuple[float, float]:
        return signed_interval(b, 1.0)

    @staticmethod
    def dual_prox(loss: Hinge, zeta: float, h: float, b: float, start: float) -> float:
        return -b * clip(h - b * zeta, 0.0, 1.0)


class Absolute(NamedTuple("AbsoluteConstants", []), Loss):
    """Absolute loss |u − b|; not smooth."""

    __slots__ = ()
    name = "absolute"
    task = "regression"
    translates = True

    @property
    def beta(self) -> float:
        return math.inf

    @staticmethod
    def value(loss: Absolute, u: float, b: float) -> float:
        return abs(u - b)

    @staticmethod
    def derivative(loss: Absolute, u: float, b: float) -> float:
        return 0.0 if u == b else math.copysign(1.0, u - b)

    @staticmethod
    def curvature(loss: Absolute, u: float, b: float) -> float:
        return 0.0

    @staticmethod
    def conjugate(loss: Absolute, s: float, b: float) -> float:
        return box_conjugate(s, b, 0.0, -1.0, 1.0)

    @staticmethod
    def divergence(loss: Absolute, u: float, s: float, b: float) -> float:
        return box_divergence(u - b, s, 0.0, -1.0, 1.0)

    @staticmethod
    def domain(loss: Absolute, b: float) -> tuple[float, float]:
        return -1.0, 1.0

    @staticmethod
    def dual_prox(loss: Absolute, zeta: float, h: float, b: float, start: float) -> float:
        return clip(zeta - h * b, -1.0, 1.0)


class Quantile(NamedTuple("QuantileConstants", [("quantile", float)]), Loss):
    """Pinball loss q·max(0, b − u) + (1 − q)·max(0, u − b) of a quantile q in (0, 1); not smooth."""

    __slots__ = ()
    name = "quantile"
    task = "regression"
    translates = True

    def __new__(cls, quantile: float = 0.5) -> Quantile:
        return super().__new__(cls, inside("quantile", quantile))

    @property
    def beta(self) -> float:
        return math.inf

    @staticmethod
    def value(loss: Quantile, u: float, b: float) -> float:
        return max(loss.quantile * (b - u), (1.0 - loss.quantile) * (u - b))

    @staticmethod
    def derivative(loss: Quantile, u: float, b: float) -> float:
        if u == b:
            return 0.0
        return 1.0 - loss.quantile if u > b else -loss.quantile

    @staticmethod
    def curvature(loss: Quantile, u: float, b: float) -> float:
        return 0.0

    @staticmethod
    def conjugate(loss: Quantile, s: float, b: float) -> float:
        return box_conjugate(s, b, 0.0, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def divergence(loss: Quantile, u: float, s: float, b: float) -> float:
        return box_divergence(u - b, s, 0.0, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def domain(loss: Quantile, b: float) -> tuple[float, float]:
        return -loss.quantile, 1.0 - loss.quantile

    @staticmethod
    def dual_prox(loss: Quantile, zeta: float, h: float, b: float, start: float) -> float:
        return clip(zeta - h * b, -loss.quantile, 1.0 - loss.quantile)


class EpsilonInsensitive(NamedTuple("EpsilonInsensitiveConstants", [("epsilon", float)]), Loss):
    """ε-insensitive loss max(0, |u − b| − ε); not smooth."""

    __slots__ = ()
    name = "epsilon-insensitive"
    task = "regression"
    translates = True

    def __new__(cls, epsilon: float = 0.1) -> EpsilonInsensitive:
        if not (math.isfinite(epsilon) and epsilon >= 0.0):
            raise InputError(f"epsilon-insensitive: epsilon must be finite and at least 0, got {epsilon!r}")
        return super().__new__(cls, float(epsilon))

    @property
    def beta(self) -> float:
        return math.inf

    @staticmethod
    def value(loss: EpsilonInsensitive, u: float, b: float) -> float:
        return max(0.0, abs(u - b) - loss.epsilon)

    @staticmethod
    def derivative(loss: EpsilonInsensitive, u: float, b: float) -> float:
        return 0.0 if abs(u - b) <= loss.epsilon else math.copysign(1.0, u - b)

    @staticmethod
    def curvature(loss: EpsilonInsensitive, u: float, b: float) -> float:
        return 0.0

    @staticmethod
    def conjugate(loss: EpsilonInsensitive, s: float, b: float) -> float:
        if s < -1.0 or s > 1.0:
            return math.inf
        return b * s + loss.epsilon * abs(s)

    @staticmethod
    def divergence(loss: EpsilonInsensitive, u: float, s: float, b: float) -> float:
        if s < -1.0 or s > 1.0:
            return math.inf
        along = s if u > b else -s
        beyond = abs(u - b) - loss.epsilon
        if beyond > 0.0:
            return (1.0 - along) * beyond + loss.epsilon * (abs(s) - along)
        return abs(s) * (loss.epsilon - math.copysign(abs(u - b), along))

    @staticmethod
    def domain(loss: EpsilonInsensitive, b: float) -> tuple[float, float]:
        return -1.0, 1.0

    @staticmethod
    def dual_prox(loss: EpsilonInsensitive, zeta: float, h: float, b: float, start: float) -> float:
        s = zeta - h * b
        shrunk = math.copysign(max(0.0, abs(s) - h * loss.epsilon), s)
        return clip(shrunk, -1.0, 1.0)
