"""Losses made of lines and parabolas, smooth or with kinks: each a line of constants, and what all share."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem.losses import Loss, clip, register_loss
from adfs.problem.samples import by_class


def positive(loss: str, name: str, number: float) -> float:
    """Return a loss's parameter, checked to be finite and above 0."""
    if not (math.isfinite(number) and number > 0.0):
        raise InputError(f"{loss}: {name} must be finite and above 0, got {number!r}")
    return float(number)


def inside(loss: str, quantile: float) -> float:
    """Return a quantile, checked to lie strictly between 0 and 1."""
    if not 0.0 < quantile < 1.0:
        raise InputError(f"{loss}: quantile must lie strictly between 0 and 1, got {quantile!r}")
    return float(quantile)


@compiled
def best_slope(r: float, width: float, low: float, high: float) -> float:
    """Return the a in [low, high] with the largest a·r − (width/2)a²; 0 where all have the same."""
    if width > 0.0:
        return clip(r / width, low, high)
    if r == 0.0:
        return 0.0
    return high if r > 0.0 else low


@compiled
def box_divergence(r: float, s: float, width: float, low: float, high: float) -> float:
    """Return max_a [a·r − (width/2)a²] + (width/2)s² − s·r over a in [low, high], for s in it, else ∞.

    That is value + conjugate − product of the losses made of lines and a parabola; nothing cancels here.
    """
    if s < low or s > high:
        return math.inf
    best = best_slope(r, width, low, high)
    # On the parabola it is a square, on a line a product of two numbers of the same sign and a square.
    if width > 0.0 and low < best < high:
        away = r - width * s
        return 0.5 * away * away / width
    away = best - s
    return max(away * (r - width * best), 0.0) + 0.5 * width * away * away


#: Of a loss made of lines and a parabola: the factor and the constant of r, the width, and the ends of a.
Line = tuple[float, float, float, float, float]


@by_class
def line(loss: Loss, b: float) -> Line:
    """Return the constants of a `LineLoss` at a label."""
    raise NotImplementedError


class LineLoss(Loss):
    """A loss made of lines and perhaps a parabola: max_a [ar − (width/2)a²] over low ≤ a ≤ high.

    r = turn·u + constant, ``turn`` being ±1: ℓ' is turn·a for the best a. A subclass says what it is by a
    method ``line(b)`` that returns turn, constant, width, low and high. β = 1/width, and a loss of width 0
    has a kink.
    """

    curvature_type = "kinks"

    @property
    def beta(self) -> float:
        width = line(self, 1.0)[2]
        return 1.0 / width if width > 0.0 else math.inf

    def value(self, u: float, b: float) -> float:
        turn, constant, width, low, high = line(self, b)
        r = constant + turn * u
        a = best_slope(r, width, low, high)
        return a * r - 0.5 * width * a * a

    def derivative(self, u: float, b: float) -> float:
        turn, constant, width, low, high = line(self, b)
        return turn * best_slope(constant + turn * u, width, low, high)

    def curvature(self, u: float, b: float) -> float:
        turn, constant, width, low, high = line(self, b)
        on_parabola = width > 0.0 and low < (constant + turn * u) / width < high
        return 1.0 / width if on_parabola else 0.0

    def conjugate(self, s: float, b: float) -> float:
        turn, constant, width, low, high = line(self, b)
        # The slope s of the loss is turn·a for the best a.
        a = turn * s
        if a < low or a > high:
            return math.inf
        return 0.5 * width * a * a - constant * a

    def divergence(self, u: float, s: float, b: float) -> float:
        turn, constant, width, low, high = line(self, b)
        return box_divergence(constant + turn * u, turn * s, width, low, high)

    def domain(self, b: float) -> tuple[float, float]:
        turn, _, _, low, high = line(self, b)
        if turn > 0.0:
            return low, high
        return 0.0 - high, 0.0 - low  # the negatives, and 0 for 0

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        # The parabola of ℓ* is the s²/(2β) that the dual prox leaves out: a linear function on an interval is
        # left, whatever the width.
        turn, constant, _, low, high = line(self, b)
        return turn * clip(turn * zeta + h * constant, low, high)


class SmoothLineLoss(LineLoss):
    """A `LineLoss` whose parabola has a width, and whose curvature jumps at its ends."""

    curvature_type = "jumps"

    def curvature_over(self, low: float, high: float, b: float) -> float:
        turn, constant, width, bottom, top = line(self, b)
        # The parabola lies between the margins center + width·first and center + width·last.
        first, last = (bottom, top) if turn > 0.0 else (-top, -bottom)
        center = -turn * constant
        return 1.0 / width if low < center + width * last and high > center + width * first else 0.0

    def margins_of(self, low: float, high: float, b: float) -> tuple[float, float]:
        turn, constant, width, bottom, top = line(self, b)
        # ℓ' rises from least to most along the parabola; beyond its ends all margins have the same slope.
        least, most = (bottom, top) if turn > 0.0 else (-top, -bottom)
        center = -turn * constant
        first = -math.inf if low <= least else center + width * min(low, most)
        last = math.inf if high >= most else center + width * max(high, least)
        return first, last


@register_loss
class Squared(NamedTuple("SquaredParameters", []), LineLoss):
    """Squared loss ½(u − b)²; β = 1."""

    name = "squared"
    task = "regression"
    label = "numbers, least squares"
    curvature_type = "constant"
    likelihood = standard_errors = dispersed = True
    translates = True

    def value(self, u: float, b: float) -> float:
        return 0.5 * (u - b) * (u - b)

    def line(self, b: float) -> Line:
        return 1.0, -b, 1.0, -math.inf, math.inf


@register_loss
class SquaredHinge(NamedTuple("SquaredHingeParameters", []), SmoothLineLoss):
    """Squared hinge ½max(0, 1 − b·u)², labels ±1; β = 1 (scikit-learn's has no ½)."""

    name = "squared_hinge"
    task = "classification"
    label = "classes, support vectors with a squared hinge"
    sklearn_factor = 2.0  # scikit-learn's squared hinge has no ½

    def line(self, b: float) -> Line:
        return -b, 1.0, 1.0, 0.0, math.inf

    def value(self, u: float, b: float) -> float:
        slack = max(0.0, 1.0 - b * u)
        return 0.5 * slack * slack  # infinite where slack² is too large, and not inf − inf


@register_loss
class SmoothedHinge(NamedTuple("SmoothedHingeParameters", [("width", float)]), SmoothLineLoss):
    """Hinge whose kink is a parabola of the given width, labels ±1; β = 1/width."""

    name = "smoothed_hinge"
    task = "classification"
    label = "classes, support vectors with a rounded hinge (width)"

    def __new__(cls, width: float = 0.5) -> SmoothedHinge:
        return super().__new__(cls, positive("smoothed_hinge", "width", width))

    def line(self, b: float) -> Line:
        return -b, 1.0, self.width, 0.0, 1.0


@register_loss
class Huber(NamedTuple("HuberParameters", [("delta", float)]), SmoothLineLoss):
    """Huber loss: ½r² for |r| ≤ δ and δ|r| − δ²/2 beyond, r = u − b; β = 1."""

    name = "huber"
    task = "regression"
    label = "numbers with outliers (delta)"
    standard_errors = True
    translates = True

    def __new__(cls, delta: float = 1.0) -> Huber:
        return super().__new__(cls, positive("huber", "delta", delta))

    def line(self, b: float) -> Line:
        return 1.0, -b, 1.0, -self.delta, self.delta


@register_loss
class SmoothedQuantile(
    NamedTuple("SmoothedQuantileParameters", [("quantile", float), ("width", float)]), SmoothLineLoss
):
    """Pinball loss of a quantile in (0, 1), its kink smoothed by ``width``; β = 1/width."""

    name = "smoothed_quantile"
    task = "regression"
    label = "a quantile of numbers, its kink rounded (quantile, width)"
    translates = True

    def __new__(cls, quantile: float = 0.5, width: float = 0.5) -> SmoothedQuantile:
        return super().__new__(
            cls, inside("smoothed_quantile", quantile), positive("smoothed_quantile", "width", width)
        )

    def line(self, b: float) -> Line:
        return 1.0, -b, self.width, -self.quantile, 1.0 - self.quantile


# --------------------------------------------------------------------------- with kinks


@register_loss
class Hinge(NamedTuple("HingeParameters", []), LineLoss):
    """Hinge max(0, 1 − b·u), labels ±1; not smooth."""

    name = "hinge"
    task = "classification"
    label = "classes, support vectors"

    def smoothed(self, width: float) -> tuple[Loss, float]:
        return SmoothedHinge(width), 1.0

    def line(self, b: float) -> Line:
        return -b, 1.0, 0.0, 0.0, 1.0


@register_loss
class Absolute(NamedTuple("AbsoluteParameters", []), LineLoss):
    """Absolute loss |u − b|; not smooth."""

    name = "absolute"
    task = "regression"
    label = "numbers, least absolute errors"
    translates = True

    def smoothed(self, width: float) -> tuple[Loss, float]:
        return SmoothedQuantile(0.5, width), 2.0  # |r| is twice the pinball loss of the median

    def line(self, b: float) -> Line:
        return 1.0, -b, 0.0, -1.0, 1.0


@register_loss
class Quantile(NamedTuple("QuantileParameters", [("quantile", float)]), LineLoss):
    """Pinball loss q·max(0, b − u) + (1 − q)·max(0, u − b) of a quantile q in (0, 1); not smooth."""

    name = "quantile"
    task = "regression"
    label = "a quantile of numbers (quantile)"
    translates = True

    def __new__(cls, quantile: float = 0.5) -> Quantile:
        return super().__new__(cls, inside("quantile", quantile))

    def smoothed(self, width: float) -> tuple[Loss, float]:
        return SmoothedQuantile(self.quantile, width), 1.0

    def line(self, b: float) -> Line:
        return 1.0, -b, 0.0, -self.quantile, 1.0 - self.quantile


class InsensitiveLoss(LineLoss):
    """A loss of the excess of |u − b| over ε, 0 inside that tube; `line` has the width of its parabola."""

    epsilon: float
    task = "regression"
    translates = True

    def value(self, u: float, b: float) -> float:
        width = line(self, b)[2]
        excess = max(abs(u - b) - self.epsilon, 0.0)
        a = best_slope(excess, width, 0.0, 1.0)
        return a * excess - 0.5 * width * a * a

    def derivative(self, u: float, b: float) -> float:
        excess = max(abs(u - b) - self.epsilon, 0.0)
        return math.copysign(best_slope(excess, line(self, b)[2], 0.0, 1.0), u - b)

    def curvature(self, u: float, b: float) -> float:
        width = line(self, b)[2]
        return 1.0 / width if 0.0 < abs(u - b) - self.epsilon < width else 0.0

    def conjugate(self, s: float, b: float) -> float:
        if s < -1.0 or s > 1.0:
            return math.inf
        return b * s + self.epsilon * abs(s) + 0.5 * line(self, b)[2] * s * s

    def divergence(self, u: float, s: float, b: float) -> float:
        # That of the excess, and ε|s| − s·(what is left of u − b): each at least 0, and nothing cancels.
        excess = math.copysign(max(abs(u - b) - self.epsilon, 0.0), u - b)
        inside_tube = math.copysign(1.0, s) * clip(u - b, -self.epsilon, self.epsilon)
        return box_divergence(excess, s, line(self, b)[2], -1.0, 1.0) + abs(s) * (self.epsilon - inside_tube)

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        # ε|s| shrinks towards 0 by hε; then the domain.
        s = zeta - h * b
        return math.copysign(clip(abs(s) - h * self.epsilon, 0.0, 1.0), s)


@register_loss
class EpsilonInsensitive(NamedTuple("EpsilonInsensitiveParameters", [("epsilon", float)]), InsensitiveLoss):
    """ε-insensitive loss max(0, |u − b| − ε); not smooth."""

    name = "epsilon_insensitive"
    label = "numbers, support vectors (epsilon)"

    def __new__(cls, epsilon: float = 0.1) -> EpsilonInsensitive:
        if not (math.isfinite(epsilon) and epsilon >= 0.0):
            raise InputError(f"epsilon_insensitive: epsilon must be finite and at least 0, got {epsilon!r}")
        return super().__new__(cls, float(epsilon))

    def smoothed(self, width: float) -> tuple[Loss, float]:
        return SmoothedInsensitive(self.epsilon, width), 1.0

    def line(self, b: float) -> Line:
        return 1.0, -b, 0.0, -1.0, 1.0


class SmoothedInsensitive(
    NamedTuple("SmoothedInsensitiveParameters", [("epsilon", float), ("width", float)]), InsensitiveLoss
):
    """The ε-insensitive loss with its kinks at ±ε rounded over ``width``; β = 1/width."""

    name = "smoothed_epsilon_insensitive"
    curvature_type = "jumps"

    def line(self, b: float) -> Line:
        return 1.0, -b, self.width, -1.0, 1.0

    def curvature_over(self, low: float, high: float, b: float) -> float:
        first, last = self.epsilon, self.epsilon + self.width
        above = low < b + last and high > b + first
        below = low < b - first and high > b - last
        return 1.0 / self.width if above or below else 0.0
