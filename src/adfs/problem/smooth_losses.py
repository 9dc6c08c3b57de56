"""Losses with a Lipschitz derivative: each one short class, told in :class:`adfs.problem.losses.Loss`."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.problem.logistic import log_one_plus, logistic_dual_prox, logistic_prox_between, sigmoid
from adfs.problem.loss_base import (
    Ends,
    Loss,
    box_conjugate,
    box_divergence,
    clip,
    entropy_part,
    hinge_conjugate,
    inside,
    line_curvature,
    line_margins,
    positive,
    signed_interval,
)

__all__ = ["Huber", "Logistic", "SmoothedHinge", "SmoothedQuantile", "Squared", "SquaredHinge"]


class Logistic(NamedTuple("LogisticConstants", []), Loss):
    """Logistic loss log(1 + exp(−b·u)), labels ±1; β = 1/4."""

    __slots__ = ()
    name = "logistic"
    task = "classification"

    @property
    def beta(self) -> float:
        return 0.25

    @staticmethod
    def value(loss: Logistic, u: float, b: float) -> float:
        t = b * u
        return log_one_plus(math.exp(-abs(t))) + max(-t, 0.0)

    @staticmethod
    def derivative(loss: Logistic, u: float, b: float) -> float:
        return -b * sigmoid(-b * u)

    @staticmethod
    def curvature(loss: Logistic, u: float, b: float) -> float:
        return sigmoid(u) * sigmoid(-u)

    @staticmethod
    def conjugate(loss: Logistic, s: float, b: float) -> float:
        a = -b * s
        if a < 0.0 or a > 1.0:
            return math.inf
        entropy = 0.0
        if a > 0.0:
            entropy += a * math.log(a)
        if a < 1.0:
            entropy += (1.0 - a) * math.log1p(-a)
        return entropy

    @staticmethod
    def divergence(loss: Logistic, u: float, s: float, b: float) -> float:
        # Of the probabilities of the wrong label, −b·s against sigmoid(−b·u). The smaller of the latter and
        # its complement has all its digits, and so have the differences: they are one another's negative.
        t, a = b * u, -b * s
        if a < 0.0 or a > 1.0:
            return math.inf
        small = math.exp(-abs(t))
        p = small / (1.0 + small)
        chance = a if t >= 0.0 else 1.0 - a
        other = 1.0 - a if t >= 0.0 else a
        away = chance - p
        # The logarithms are for what is far apart.
        log_one = log_one_plus(small) if 8.0 * abs(away) > min(chance, other) else 0.0
        first = entropy_part(chance, p, away, -abs(t) - log_one)
        return first + entropy_part(other, 1.0 / (1.0 + small), -away, -log_one)

    @staticmethod
    def domain(loss: Logistic, b: float) -> tuple[float, float]:
        return signed_interval(b, 1.0)

    @staticmethod
    def dual_prox(loss: Logistic, zeta: float, h: float, b: float, start: float) -> float:
        inverse = 1.0 / h
        return -b * logistic_dual_prox(b * zeta * inverse, inverse - 4.0, b * start)

    @staticmethod
    def curvature_over(loss: Logistic, low: float, high: float, b: float) -> float:
        nearest = clip(0.0, low, high)
        return sigmoid(nearest) * sigmoid(-nearest)

    @staticmethod
    def margins_of(loss: Logistic, low: float, high: float, b: float) -> tuple[float, float]:
        # ℓ' is the probability of +1, less 1 where that is the label.
        shift = 1.0 if b > 0.0 else 0.0
        first, last = -math.inf, math.inf
        if low + shift > 0.0:
            first = math.log((low + shift) / (1.0 - shift - low)) if low + shift < 1.0 else math.inf
        if high + shift < 1.0:
            last = math.log((high + shift) / (1.0 - shift - high)) if high + shift > 0.0 else -math.inf
        return first, last

    @staticmethod
    def prox_in_box(
        loss: Logistic, zeta: float, h: float, b: float, start: float, beta: float, ends: Ends
    ) -> float:
        # The derivative rises along the box; in terms of the margin it is u + cℓ'(u) − ζ/h.
        inverse = 1.0 / h
        c, target = inverse - 1.0 / beta, zeta * inverse
        if ends[0] + c * ends[2] >= target:
            return ends[2]
        if ends[1] + c * ends[3] <= target:
            return ends[3]
        low, high = (ends[0], ends[1]) if b > 0.0 else (-ends[1], -ends[0])
        return clip(-b * logistic_prox_between(b * target, c, b * start, low, high), ends[2], ends[3])


class Squared(NamedTuple("SquaredConstants", []), Loss):
    """Squared loss ½(u − b)²; β = 1."""

    __slots__ = ()
    name = "squared"
    task = "regression"
    translates = True

    @property
    def beta(self) -> float:
        return 1.0

    @staticmethod
    def value(loss: Squared, u: float, b: float) -> float:
        return 0.5 * (u - b) * (u - b)

    @staticmethod
    def derivative(loss: Squared, u: float, b: float) -> float:
        return u - b

    @staticmethod
    def curvature(loss: Squared, u: float, b: float) -> float:
        return 1.0

    @staticmethod
    def conjugate(loss: Squared, s: float, b: float) -> float:
        return 0.5 * s * s + b * s

    @staticmethod
    def divergence(loss: Squared, u: float, s: float, b: float) -> float:
        return box_divergence(u - b, s, 1.0, -math.inf, math.inf)

    @staticmethod
    def domain(loss: Squared, b: float) -> tuple[float, float]:
        return -math.inf, math.inf

    @staticmethod
    def dual_prox(loss: Squared, zeta: float, h: float, b: float, start: float) -> float:
        return zeta - h * b


class SquaredHinge(NamedTuple("SquaredHingeConstants", []), Loss):
    """Squared hinge ½max(0, 1 − b·u)², labels ±1; β = 1 (scikit-learn's has no ½)."""

    __slots__ = ()
    name = "squared-hinge"
    task = "classification"

    @property
    def beta(self) -> float:
        return 1.0

    @staticmethod
    def value(loss: SquaredHinge, u: float, b: float) -> float:
        slack = max(0.0, 1.0 - b * u)
        return 0.5 * slack * slack

    @staticmethod
    def derivative(loss: SquaredHinge, u: float, b: float) -> float:
        return -b * max(0.0, 1.0 - b * u)

    @staticmethod
    def curvature(loss: SquaredHinge, u: float, b: float) -> float:
        return 1.0 if b * u < 1.0 else 0.0

    @staticmethod
    def conjugate(loss: SquaredHinge, s: float, b: float) -> float:
        return hinge_conjugate(s, b, 1.0, math.inf)

    @staticmethod
    def divergence(loss: SquaredHinge, u: float, s: float, b: float) -> float:
        return box_divergence(1.0 - b * u, -b * s, 1.0, 0.0, math.inf)

    @staticmethod
    def domain(loss: SquaredHinge, b: float) -> tuple[float, float]:
        return signed_interval(b, math.inf)

    @staticmethod
    def dual_prox(loss: SquaredHinge, zeta: float, h: float, b: float, start: float) -> float:
        return -b * max(0.0, h - b * zeta)

    @staticmethod
    def curvature_over(loss: SquaredHinge, low: float, high: float, b: float) -> float:
        bottom, top = signed_interval(b, math.inf)
        return line_curvature(low, high, b, 1.0, bottom, top)

    @staticmethod
    def margins_of(loss: SquaredHinge, low: float, high: float, b: float) -> tuple[float, float]:
        bottom, top = signed_interval(b, math.inf)
        return line_margins(low, high, b, 1.0, bottom, top)


class SmoothedHinge(NamedTuple("SmoothedHingeConstants", [("width", float)]), Loss):
    """Hinge whose kink is a parabola of the given width, labels ±1; β = 1/width."""

    __slots__ = ()
    name = "smoothed-hinge"
    task = "classification"

    def __new__(cls, width: float = 0.5) -> SmoothedHinge:
        return super().__new__(cls, positive("smoothed-hinge", "width", width))

    @property
    def beta(self) -> float:
        return 1.0 / self.width

    @staticmethod
    def value(loss: SmoothedHinge, u: float, b: float) -> float:
        a = clip((1.0 - b * u) / loss.width, 0.0, 1.0)
        return a * (1.0 - b * u) - 0.5 * loss.width * a * a

    @staticmethod
    def derivative(loss: SmoothedHinge, u: float, b: float) -> float:
        return -b * clip((1.0 - b * u) / loss.width, 0.0, 1.0)

    @staticmethod
    def curvature(loss: SmoothedHinge, u: float, b: float) -> float:
        slack = 1.0 - b * u
        return 1.0 / loss.width if 0.0 < slack < loss.width else 0.0

    @staticmethod
    def conjugate(loss: SmoothedHinge, s: float, b: float) -> float:
        return hinge_conjugate(s, b, loss.width, 1.0)

    @staticmethod
    def divergence(loss: SmoothedHinge, u: float, s: float, b: float) -> float:
        return box_divergence(1.0 - b * u, -b * s, loss.width, 0.0, 1.0)

    @staticmethod
    def domain(loss: SmoothedHinge, b: float) -> tuple[float, float]:
        return signed_interval(b, 1.0)

    @staticmethod
    def dual_prox(loss: SmoothedHinge, zeta: float, h: float, b: float, start: float) -> float:
        return -b * clip(h - b * zeta, 0.0, 1.0)

    @staticmethod
    def curvature_over(loss: SmoothedHinge, low: float, high: float, b: float) -> float:
        bottom, top = signed_interval(b, 1.0)
        return line_curvature(low, high, b, loss.width, bottom, top)

    @staticmethod
    def margins_of(loss: SmoothedHinge, low: float, high: float, b: float) -> tuple[float, float]:
        bottom, top = signed_interval(b, 1.0)
        return line_margins(low, high, b, loss.width, bottom, top)


class Huber(NamedTuple("HuberConstants", [("delta", float)]), Loss):
    """Huber loss: ½r² for |r| ≤ δ and δ|r| − δ²/2 beyond, r = u − b; β = 1."""

    __slots__ = ()
    name = "huber"
    task = "regression"
    translates = True

    def __new__(cls, delta: float = 1.0) -> Huber:
        return super().__new__(cls, positive("huber", "delta", delta))

    @property
    def beta(self) -> float:
        return 1.0

    @staticmethod
    def value(loss: Huber, u: float, b: float) -> float:
        s = clip(u - b, -loss.delta, loss.delta)
        return s * (u - b) - 0.5 * s * s

    @staticmethod
    def derivative(loss: Huber, u: float, b: float) -> float:
        return clip(u - b, -loss.delta, loss.delta)

    @staticmethod
    def curvature(loss: Huber, u: float, b: float) -> float:
        return 1.0 if abs(u - b) < loss.delta else 0.0

    @staticmethod
    def conjugate(loss: Huber, s: float, b: float) -> float:
        return box_conjugate(s, b, 1.0, -loss.delta, loss.delta)

    @staticmethod
    def divergence(loss: Huber, u: float, s: float, b: float) -> float:
        return box_divergence(u - b, s, 1.0, -loss.delta, loss.delta)

    @staticmethod
    def domain(loss: Huber, b: float) -> tuple[float, float]:
        return -loss.delta, loss.delta

    @staticmethod
    def dual_prox(loss: Huber, zeta: float, h: float, b: float, start: float) -> float:
        return clip(zeta - h * b, -loss.delta, loss.delta)

    @staticmethod
    def curvature_over(loss: Huber, low: float, high: float, b: float) -> float:
        bottom, top = -loss.delta, loss.delta
        return line_curvature(low, high, b, 1.0, bottom, top)

    @staticmethod
    def margins_of(loss: Huber, low: float, high: float, b: float) -> tuple[float, float]:
        bottom, top = -loss.delta, loss.delta
        return line_margins(low, high, b, 1.0, bottom, top)


class SmoothedQuantile(
    NamedTuple("SmoothedQuantileConstants", [("quantile", float), ("width", float)]), Loss
):
    """Pinball loss of a quantile in (0, 1), its kink smoothed by ``width``; β = 1/width."""

    __slots__ = ()
    name = "smoothed-quantile"
    task = "regression"
    translates = True

    def __new__(cls, quantile: float = 0.5, width: float = 0.5) -> SmoothedQuantile:
        return super().__new__(
            cls, inside("smoothed-quantile", quantile), positive("smoothed-quantile", "width", width)
        )

    @property
    def beta(self) -> float:
        return 1.0 / self.width

    @staticmethod
    def value(loss: SmoothedQuantile, u: float, b: float) -> float:
        s = clip((u - b) / loss.width, -loss.quantile, 1.0 - loss.quantile)
        return s * (u - b) - 0.5 * loss.width * s * s

    @staticmethod
    def derivative(loss: SmoothedQuantile, u: float, b: float) -> float:
        return clip((u - b) / loss.width, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def curvature(loss: SmoothedQuantile, u: float, b: float) -> float:
        s = (u - b) / loss.width
        return 1.0 / loss.width if -loss.quantile < s < 1.0 - loss.quantile else 0.0

    @staticmethod
    def conjugate(loss: SmoothedQuantile, s: float, b: float) -> float:
        return box_conjugate(s, b, loss.width, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def divergence(loss: SmoothedQuantile, u: float, s: float, b: float) -> float:
        return box_divergence(u - b, s, loss.width, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def domain(loss: SmoothedQuantile, b: float) -> tuple[float, float]:
        return -loss.quantile, 1.0 - loss.quantile

    @staticmethod
    def dual_prox(loss: SmoothedQuantile, zeta: float, h: float, b: float, start: float) -> float:
        return clip(zeta - h * b, -loss.quantile, 1.0 - loss.quantile)

    @staticmethod
    def curvature_over(loss: SmoothedQuantile, low: float, high: float, b: float) -> float:
        bottom, top = -loss.quantile, 1.0 - loss.quantile
        return line_curvature(low, high, b, loss.width, bottom, top)

    @staticmethod
    def margins_of(loss: SmoothedQuantile, low: float, high: float, b: float) -> tuple[float, float]:
        bottom, top = -loss.quantile, 1.0 - loss.quantile
        return line_margins(low, high, b, loss.width, bottom, top)
