"""Losses of counts and of positive amounts, the logarithm of whose mean is linear: Poisson and Gamma.

Their curvature exists everywhere and has no bound. A run therefore assumes one for every sample, from its
target and the mean of all, and certificates find out where that was too little (`adfs.problem.views`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.compilation import compiled
from adfs.problem.loss_base import Ends, Loss, clip, entropy_part

_MOST_STEPS = 100
_SHORT = 1e-5  # a step whose third power is below rounding
_ROUNDING = 2.0**-52


@compiled
def _exp(u: float) -> float:
    """Return eᵘ, infinite where it is too large (interpreted code would raise)."""
    return math.exp(u)


@compiled
def exponential_root(r: float, c: float, start: float) -> float:
    """Return eᵘ at the root of G(u) = u + c·eᵘ − r; for c < 0 at the lower one, and r ≤ −log(−c) − 1.

    Newton's method from a guess of u, in a bracket that is at most 1 long, bisected where a step leaves it or
    does not halve.
    """
    low, high = r, r + 1.0  # −c·eᵘ is at most 1 up to the lower root
    if c > 0.0:
        # With w = c·eᵘ the equation is w + log w = z.
        log_c = math.log(c)
        z = r + log_c
        low, high = r - 1.0, r
        if z > 1.0:
            low, high = math.log(z - math.log(z)) - log_c, math.log(z) - log_c
    u = clip(start, low, high)
    previous = 2.0 * (high - low)
    m = 0.0
    for _ in range(_MOST_STEPS):
        m = math.exp(u)
        bent = c * m
        g = u + bent - r
        slope = 1.0 + bent
        if abs(g) <= _ROUNDING * (abs(u) + abs(bent) + abs(r)):
            return m
        if g > 0.0:
            high = u
        else:
            low = u
        step = -g / slope if slope > 0.0 else 0.0
        if 0.0 < abs(step) < _SHORT:
            step -= 0.5 * bent / slope * step * step
            return m * (1.0 + step * (1.0 + step * (0.5 + step / 6.0)))
        moved = u + step
        if not low < moved < high or 2.0 * abs(step) > previous or step == 0.0:
            moved = 0.5 * (low + high)
        if moved in (u, low, high):
            return m
        previous = abs(moved - u)
        u = moved
    return m


class Poisson(NamedTuple("PoissonConstants", []), Loss):
    """Poisson loss eᵘ − bu less its least value, for counts b ≥ 0: half the unit deviance; β is infinite."""

    __slots__ = ()
    name = "poisson"
    task = "regression"
    label = "counts, the logarithm of whose mean is linear"
    link = "log"
    score = "D²"
    curvature_type = "unbounded"
    likelihood = standard_errors = True
    beta = math.inf

    @staticmethod
    def level_parts(y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y, np.exp(offset)

    def typical_curvature(self, mean_target: float) -> float:
        return mean_target

    wanted_targets = "counts of at least 0"

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y >= 0.0)

    @staticmethod
    def unit_deviances(y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        logs = np.log(np.where(y > 0.0, y, 1.0))
        return np.asarray(2.0 * (y * (logs - np.log(means)) - y + means))

    @staticmethod
    def value(loss: Poisson, u: float, b: float) -> float:
        if b == 0.0:
            return _exp(u)
        t = u - math.log(b)
        return b * (math.expm1(t) - t) if t < 700.0 else math.inf

    @staticmethod
    def derivative(loss: Poisson, u: float, b: float) -> float:
        return _exp(u) - b

    @staticmethod
    def curvature(loss: Poisson, u: float, b: float) -> float:
        return _exp(u)

    @staticmethod
    def conjugate(loss: Poisson, s: float, b: float) -> float:
        a = s + b
        if a < 0.0:
            return math.inf
        found = b - a
        if a > 0.0:
            found += a * math.log(a)
        if b > 0.0:
            found -= b * math.log(b)
        return found

    @staticmethod
    def divergence(loss: Poisson, u: float, s: float, b: float) -> float:
        # Of the means s + b and eᵘ.
        a, m = s + b, _exp(u)
        return entropy_part(a, m, a - m, u) if a >= 0.0 else math.inf

    @staticmethod
    def domain(loss: Poisson, b: float) -> tuple[float, float]:
        return -b, math.inf

    @staticmethod
    def dual_prox(loss: Poisson, zeta: float, h: float, b: float, start: float) -> float:
        inverse = 1.0 / h
        return exponential_root((zeta + b) * inverse, inverse, start) - b

    @staticmethod
    def curvature_over(loss: Poisson, low: float, high: float, b: float) -> float:
        return _exp(high)

    @staticmethod
    def flatter(loss: Poisson, beta: float, b: float) -> tuple[float, float]:
        return -math.inf, math.log(beta)

    @staticmethod
    def margins_of(loss: Poisson, low: float, high: float, b: float) -> tuple[float, float]:
        first = math.log(low + b) if low + b > 0.0 else -math.inf
        last = math.log(high + b) if high + b > 0.0 else -math.inf
        return first, last

    @staticmethod
    def prox_in_box(
        loss: Poisson, zeta: float, h: float, b: float, start: float, beta: float, ends: Ends
    ) -> float:
        # In terms of the margin the derivative is u + cℓ'(u) − ζ/h, which rises along the box.
        inverse = 1.0 / h
        c, target = inverse - 1.0 / beta, zeta * inverse
        if ends[0] + c * ends[2] >= target:
            return ends[2]
        if ends[1] + c * ends[3] <= target:
            return ends[3]
        return clip(exponential_root(target + c * b, c, start) - b, ends[2], ends[3])


class Gamma(NamedTuple("GammaConstants", []), Loss):
    """Gamma loss u + be⁻ᵘ less its least value, for amounts b > 0: half the unit deviance; β is infinite.

    It is the Poisson loss of a count of 1 at the margin log b − u.
    """

    __slots__ = ()
    name = "gamma"
    task = "regression"
    label = "positive amounts, the logarithm of whose mean is linear"
    link = "log"
    score = "D²"
    curvature_type = "unbounded"
    likelihood = standard_errors = True
    beta = math.inf

    @staticmethod
    def level_parts(y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y * np.exp(-offset), np.ones_like(y)

    dispersed = True
    expected_curvature = 1.0
    wanted_targets = "targets above 0"

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y > 0.0)

    @staticmethod
    def unit_deviances(y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        logs = np.log(np.where(y > 0.0, y, 1.0))
        return np.asarray(2.0 * (np.log(means) - logs + y / means - 1.0))

    @staticmethod
    def value(loss: Gamma, u: float, b: float) -> float:
        t = math.log(b) - u
        return math.expm1(t) - t if t < 700.0 else math.inf

    @staticmethod
    def derivative(loss: Gamma, u: float, b: float) -> float:
        return 1.0 - _exp(math.log(b) - u)

    @staticmethod
    def curvature(loss: Gamma, u: float, b: float) -> float:
        return _exp(math.log(b) - u)

    @staticmethod
    def conjugate(loss: Gamma, s: float, b: float) -> float:
        a = 1.0 - s
        if a < 0.0:
            return math.inf
        return (a * math.log(a) if a > 0.0 else 0.0) + s + s * math.log(b)

    @staticmethod
    def divergence(loss: Gamma, u: float, s: float, b: float) -> float:
        t = math.log(b) - u
        a, m = 1.0 - s, _exp(t)
        return entropy_part(a, m, a - m, t) if a >= 0.0 else math.inf

    @staticmethod
    def domain(loss: Gamma, b: float) -> tuple[float, float]:
        return -math.inf, 1.0

    @staticmethod
    def dual_prox(loss: Gamma, zeta: float, h: float, b: float, start: float) -> float:
        inverse, log_b = 1.0 / h, math.log(b)
        return 1.0 - exponential_root((1.0 - zeta) * inverse + log_b, inverse, log_b - start)

    @staticmethod
    def curvature_over(loss: Gamma, low: float, high: float, b: float) -> float:
        return _exp(math.log(b) - low)

    @staticmethod
    def flatter(loss: Gamma, beta: float, b: float) -> tuple[float, float]:
        return math.log(b) - math.log(beta), math.inf

    @staticmethod
    def margins_of(loss: Gamma, low: float, high: float, b: float) -> tuple[float, float]:
        first = math.log(b) - math.log(1.0 - low) if low < 1.0 else math.inf
        last = math.log(b) - math.log(1.0 - high) if high < 1.0 else math.inf
        return first, last

    @staticmethod
    def prox_in_box(
        loss: Gamma, zeta: float, h: float, b: float, start: float, beta: float, ends: Ends
    ) -> float:
        inverse, log_b = 1.0 / h, math.log(b)
        c, target = inverse - 1.0 / beta, zeta * inverse
        if ends[0] + c * ends[2] >= target:
            return ends[2]
        if ends[1] + c * ends[3] <= target:
            return ends[3]
        root = exponential_root(log_b - target + c, c, log_b - start)
        return clip(1.0 - root, ends[2], ends[3])
