"""The Tweedie loss: amounts many of which are 0, between the Poisson and the Gamma loss.

With a power 1 < p < 2 of the variance, a = p − 1 and c = 2 − p, the loss is half the unit deviance at the
mean eᵘ,

    ℓ(u; b) = eᶜᵘ/c + be⁻ᵃᵘ/a − bᶜ/(ac),    ℓ' = A − B,    ℓ'' = cA + aB,    A = eᶜᵘ, B = be⁻ᵃᵘ.

The conjugate has no closed form where b > 0. One bracketed solve finds a margin v with ℓ'(v) = s − r for a
small residual r. The curvature changes by a factor of at most eᵈ over a distance d, so the exact margin is
within 2|r|/ℓ''(v) of v where 2|r| ≤ ℓ''(v), and

    0 ≤ ℓ*(s) − (sv − ℓ(v)) ≤ 2r²/ℓ''(v).

The bound is added to the conjugate and to divergences: no certificate depends on how well v was found.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.problem.exponential_losses import ExponentialLoss, bracketed_root, exponential_root
from adfs.problem.losses import Ends, entropy_part, register_loss

_ROUNDING = float(np.finfo(np.float64).eps)
_SERIES_BELOW, _SERIES_TERMS = 0.125, 12  # the first term that is left out is below rounding


class TweedieEquation(NamedTuple):
    """G(u) = k·u + first·eᶜᵘ − second·e⁻ᵃᵘ − r."""

    power: float
    k: float
    first: float
    second: float
    r: float

    def evaluate(self, u: float) -> tuple[float, float, float, float, float]:
        a, c = self.power - 1.0, 2.0 - self.power
        rising, falling = self.first * math.exp(c * u), self.second * math.exp(-a * u)
        sizes = abs(rising) + abs(falling)
        rounding = _ROUNDING * (self.k * abs(u) + sizes + abs(self.r))
        slope = self.k + c * rising + a * falling
        return u, sizes, self.k * u + rising - falling - self.r, slope, rounding

    def last_step(self, u: float, sizes: float, slope: float, step: float) -> float:
        # |G''| is at most the sizes of the exponentials, and a step leaves |G''|Δ²/(2G').
        ended = 0.0 < sizes * step * step <= _ROUNDING * slope
        return u + step if ended else math.nan


# --------------------------------------------------------------------------- scalar pieces, for b > 0


@compiled
def _beyond_tangent(size: float, x: float, factor: float, exponent: float) -> float:
    """Return size·(eˣ − 1 − x) with its digits; size·eˣ is ``factor`` times e to the ``exponent``."""
    if x > 1.0:  # the size may have vanished where the product has not
        return factor * math.exp(exponent) - size * (1.0 + x)
    if abs(x) >= _SERIES_BELOW:
        return size * (math.expm1(x) - x)
    total = 1.0
    for n in range(_SERIES_TERMS, 2, -1):
        total = 1.0 + x / n * total
    return size * 0.5 * x * x * total


@compiled
def _powers(power: float, u: float, b: float) -> tuple[float, float]:
    """Return A and B."""
    # Without the second one where b is 0: u may then be −∞.
    return math.exp((2.0 - power) * u), b * math.exp((1.0 - power) * u) if b > 0.0 else 0.0


@compiled
def _bregman(power: float, u: float, v: float, b: float, rising: float, falling: float) -> float:
    """Return ℓ(u) − ℓ(v) − ℓ'(v)(u − v) from A and B at v: two terms of at least 0."""
    a, c = power - 1.0, 2.0 - power
    first = _beyond_tangent(rising / c, c * (u - v), 1.0 / c, c * u)
    return first + _beyond_tangent(falling / a, a * (v - u), b / a, -a * u)


@compiled
def _margin(
    power: float, b: float, k: float, factor: float, r: float, start: float, low: float, high: float
) -> float:
    """Return u between ``low`` and ``high`` with k·u + factor·ℓ'(u; b) = r, where the left side rises."""
    if factor > 0.0:
        # ℓ' is 0 at log b. Beyond it the larger exponential is at most what is left of r plus bᶜ.
        level, scale = math.log(b), b ** (2.0 - power)
        rest = r - k * level
        most = math.log(scale + abs(rest) / factor)
        if rest >= 0.0:
            low, high = max(low, level), min(high, max(most / (2.0 - power), level))
            high = min(high, max(r, level)) if k > 0.0 else high
        else:
            low, high = max(low, min((level - most) / (power - 1.0), level)), min(high, level)
            low = max(low, min(r, level)) if k > 0.0 else low
    return bracketed_root(TweedieEquation(power, k, factor, factor * b, r), start, low, high, False)


@compiled
def _pair(power: float, s: float, b: float, start: float) -> tuple[float, float, float]:
    """Return v with ℓ'(v) ≈ s, a bound of |s − ℓ'(v)|, and the bound 2r²/ℓ''(v) of the error of ℓ*(s)."""
    v = _margin(power, b, 0.0, 1.0, s, start, -math.inf, math.inf)
    rising, falling = _powers(power, v, b)
    # The rounding of v times the rates, of the exponentials and of the difference.
    rounding = _ROUNDING * (abs(s) + (rising + falling) * (3.0 + abs(v)))
    residual = abs(s - (rising - falling)) + rounding
    bend = (2.0 - power) * rising + (power - 1.0) * falling
    if 2.0 * residual > bend:
        return v, residual, math.inf
    return v, residual, 2.0 * residual * residual / bend


@compiled
def _slope(power: float, u: float, b: float) -> float:
    rising, falling = _powers(power, u, b)
    return rising - falling


@compiled
def _curvature(power: float, u: float, b: float) -> float:
    rising, falling = _powers(power, u, b)
    return (2.0 - power) * rising + (power - 1.0) * falling


@compiled
def _value(power: float, u: float, b: float) -> float:
    if b == 0.0:
        return math.exp((2.0 - power) * u) / (2.0 - power)
    scale = b ** (2.0 - power)
    return _bregman(power, u, math.log(b), b, scale, scale)


@compiled
def _margin_of_slope(power: float, s: float, b: float) -> float:
    if b > 0.0:
        return _margin(power, b, 0.0, 1.0, s, math.log(b), -math.inf, math.inf)
    return math.log(s) / (2.0 - power) if s > 0.0 else -math.inf


# --------------------------------------------------------------------------- the loss


@register_loss
class Tweedie(NamedTuple("TweedieParameters", [("power", float)]), ExponentialLoss):
    """Tweedie loss, half the unit deviance with a log link, for amounts b ≥ 0.

    Parameters
    ----------
    power : float
        p, strictly between 1 and 2: the variance is proportional to the mean to this power.
    """

    name = "tweedie"
    task = "regression"
    label = "amounts of at least 0, the logarithm of whose mean is linear (power)"
    wanted_targets = "amounts of at least 0"
    link = "log"
    score = "D²"
    scoring = None  # scikit-learn has no name for it
    curvature_type = "unbounded"
    beta = math.inf
    dispersed = True

    def __new__(cls, power: float = 1.5) -> Tweedie:
        if not 1.0 < power < 2.0:
            raise InputError(
                f"tweedie: power must lie strictly between 1 and 2, got {power!r}; "
                "1 is the loss poisson, 2 the loss gamma"
            )
        return super().__new__(cls, float(power))

    def value(self, u: float, b: float) -> float:
        return _value(self.power, u, b)

    def derivative(self, u: float, b: float) -> float:
        return _slope(self.power, u, b)

    def curvature(self, u: float, b: float) -> float:
        return _curvature(self.power, u, b)

    def conjugate(self, s: float, b: float) -> float:
        if b == 0.0:
            entropy = s * (math.log(s) - 1.0) if s > 0.0 else 0.0
            return entropy / (2.0 - self.power) if s >= 0.0 else math.inf
        v, _, error = _pair(self.power, s, b, math.log(b))
        return s * v - _value(self.power, v, b) + error

    def divergence(self, u: float, s: float, b: float) -> float:
        if b == 0.0:
            t, m = (2.0 - self.power) * u, _slope(self.power, u, b)
            return entropy_part(s, m, s - m, t) / (2.0 - self.power) if s >= 0.0 else math.inf
        # At the margin v of s nothing cancels; the residual counts at both margins.
        v, residual, error = _pair(self.power, s, b, u)
        rising, falling = _powers(self.power, v, b)
        return _bregman(self.power, u, v, b, rising, falling) + residual * abs(u - v) + error

    def domain(self, b: float) -> tuple[float, float]:
        return 0.0 if b == 0.0 else -math.inf, math.inf

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        inverse = 1.0 / h
        c = 2.0 - self.power
        if b == 0.0:
            return exponential_root(c * zeta * inverse, c * inverse, c * start)
        u = _margin(self.power, b, 1.0, inverse, zeta * inverse, start, -math.inf, math.inf)
        return _slope(self.power, u, b)

    def slope_at_root(self, target: float, c: float, b: float, start: float, ends: Ends) -> float:
        rate = 2.0 - self.power
        if b == 0.0:
            return exponential_root(rate * target, rate * c, rate * start)
        return _slope(self.power, _margin(self.power, b, 1.0, c, target, start, ends[0], ends[1]), b)

    def curvature_over(self, low: float, high: float, b: float) -> float:
        return max(_curvature(self.power, low, b), _curvature(self.power, high, b))  # it is convex

    def flatter(self, beta: float, b: float) -> tuple[float, float]:
        a, c = self.power - 1.0, 2.0 - self.power
        last = math.log(beta / c) / c  # where cA alone is β
        if b == 0.0:
            return -math.inf, last
        # On both sides of the margin with the least curvature, Newton approaches from outside.
        level = math.log(b)
        least = level + 2.0 * math.log(a / c)
        first = (level - math.log(beta / a)) / a
        left = TweedieEquation(self.power, 0.0, -c, a * b, -beta)
        right = TweedieEquation(self.power, 0.0, c, -a * b, beta)
        return bracketed_root(left, first, first, least, True), bracketed_root(right, last, least, last, True)

    def margins_of(self, low: float, high: float, b: float) -> tuple[float, float]:
        return _margin_of_slope(self.power, low, b), _margin_of_slope(self.power, high, b)

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y >= 0.0)

    def level_parts(self, y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y * np.exp((1.0 - self.power) * offset), np.exp((2.0 - self.power) * offset)

    def typical_curvature(self, mean_target: float) -> float:
        return float(mean_target ** (2.0 - self.power))

    def expected_curvature(self, margins: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp((2.0 - self.power) * margins))

    def unit_deviances(self, y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        a, c = self.power - 1.0, 2.0 - self.power
        return np.asarray(2.0 * (means**c / c + y * means**-a / a - y**c / (a * c)))
