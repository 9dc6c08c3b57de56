"""The logistic loss, and its scalar equation, solved by a safeguarded Newton method that stops by itself."""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.compilation import compiled, fma, inlined
from adfs.problem.loss_base import Ends, Loss, clip, entropy_part
from adfs.problem.multinomial import Multinomial

# A Newton step of length Δ leaves an error below |G''|Δ²/(2G'); |G''| ≤ |C|/(6√3) for every t.
_HALF_THIRD_ORDER = 0.04811252243246881
_ROUNDING = 2.0**-52
# For c > 0, a Newton step of length u corrected to the fourth order leaves an error below u⁵/4 up to u = ¼,
# and less than 0.4 of the distance up to u = 1.
_LONGEST_CORRECTED = 1.0
_LAST_STEP = 9e-4  # u⁵/4 is below rounding, and so is what the Taylor series of p leaves out
_MOST_SHORT_STEPS = 6
_MOST_STEPS = 200  # Newton climbs from 0 by about 1 per step, to at most log(C); a good guess needs three


@compiled
def sigmoid(t: float) -> float:
    """Return 1/(1 + exp(−t)) without overflow at either tail."""
    small = math.exp(-abs(t))
    return 1.0 / (1.0 + small) if t >= 0.0 else small / (1.0 + small)


@compiled
def log_one_plus(small: float) -> float:
    """Return log(1 + small) for a number in [0, 1], with all digits.

    The C library's log1p branches on the size of its argument, which a processor cannot guess here.
    """
    one = 1.0 + small
    return math.log(one) + (small - (one - 1.0)) / one


@inlined
def _corrected(step: float, curve: float, p: float, spread: float) -> float:
    """Return the root's distance to the fourth order in a Newton step: the series of G reversed.

    ``curve`` is c·p(1 − p)/G'. The k-th derivative of G, k > 1, over k!·G' is ``curve`` times that of −p over
    k!·p(1 − p), a polynomial in p.
    """
    odd = 1.0 - 2.0 * p
    second = -0.5 * curve * odd
    third = curve * (1.0 - 6.0 * spread) * (1.0 / 6.0)
    fourth = -curve * odd * (1.0 - 12.0 * spread) * (1.0 / 24.0)
    square = second * second
    by_cube = 2.0 * square - third
    by_fourth = 5.0 * second * (third - square) - fourth
    return step * fma(step, fma(step, fma(step, by_fourth, by_cube), -second), 1.0)


@inlined
def _moved(p: float, spread: float, step: float) -> float:
    """Return sigmoid(−t) at t + step, from p = sigmoid(−t) and ``spread`` = p(1 − p)."""
    odd = 1.0 - 2.0 * p
    fourth = odd * (1.0 - 12.0 * spread) * (1.0 / 24.0)
    third = (1.0 - 6.0 * spread) * (1.0 / 6.0)
    series = fma(-step, fma(-step, fma(-step, fourth, third), 0.5 * odd), 1.0)
    return min(max(fma(-spread * step, series, p), 0.0), 1.0)


@compiled
def logistic_dual_prox(r: float, c: float, start: float) -> float:
    """Return p = sigmoid(−t) at the root of G(t) = t − c·sigmoid(−t) − r.

    Parameters
    ----------
    r, c : float
        Constants of the equation; c > −4, so that G increases and its root is unique, between r and r + c.
    start : float
        A guess of t. Near the solution of the whole problem the sample's margin is one.

    Returns
    -------
    float
        p in [0, 1]; the dual coordinate of a sample with label b is −b·p.

    Notes
    -----
    Newton's method. The derivatives of a sigmoid are polynomials in it, so a short step is corrected to the
    fourth order without another exponential: from a guess within 0.2 of the root, two do. A guess from which
    Newton's step is long is left to `_inside_bracket`. The iteration stops when the error left by the step
    just computed is below rounding; p then moves along with t by its own Taylor series, which spares a last
    exponential.
    """
    if c > 0.0:
        t = start
        for _ in range(_MOST_SHORT_STEPS):
            small = math.exp(-abs(t))
            one = 1.0 + small
            ratio = 1.0 / one
            spread = small * ratio * ratio
            inverse = 1.0 / fma(one, one, c * small)
            # p and c·p, each times 1 + small
            above = t >= 0.0
            p = (small if above else 1.0) * ratio
            step = fma(r - t, one, c * small if above else c) * (one * inverse)
            length = abs(step)
            if not length <= _LONGEST_CORRECTED:
                break
            step = _corrected(step, c * small * inverse, p, spread)
            if length <= _LAST_STEP:
                return _moved(p, spread, step)
            t += step
    return _inside_bracket(r, c, start)


@compiled
def _inside_bracket(r: float, c: float, start: float) -> float:
    """Return what `logistic_dual_prox` does, from any guess and for any c > −4.

    For c > 0 the sign of G(0) tells on which side of 0, its point of inflection, the root lies; on that side
    Newton climbs from the end of the bracket nearer to 0 without ever passing the root, so a step that leaves
    the bracket is cut there (unguarded Newton cycles once c is large). For c < 0 the bracket is shorter
    than 4, and it is bisected whenever a step leaves it or does not halve the one before (G is nearly flat
    when c is near −4). It also stops when G is below the rounding of its own terms.
    """
    low = min(r, r + c)
    high = max(r, r + c)
    if c > 0.0:
        if r + 0.5 * c > 0.0:
            low = max(low, 0.0)
        else:
            high = min(high, 0.0)
    t = min(max(start, low), high)
    previous = 2.0 * (high - low)  # the first step may be as long as the bracket
    p = 0.5
    for _ in range(_MOST_STEPS):
        small = math.exp(-abs(t))
        ratio = 1.0 / (1.0 + small)
        p = small * ratio if t >= 0.0 else ratio
        spread = small * ratio * ratio
        g = t - c * p - r
        if abs(g) <= 2.0 * _ROUNDING * (abs(t) + abs(c) * p + abs(r)):
            return p
        if g > 0.0:
            high = t
        else:
            low = t
        slope = 1.0 + c * spread
        step = -g / slope
        if _HALF_THIRD_ORDER * abs(c) * step * step <= _ROUNDING * slope and abs(step) < _LAST_STEP:
            return _moved(p, spread, step)
        moved = min(max(t + step, low), high)
        if c <= 0.0 and (moved != t + step or 2.0 * abs(step) > previous):
            moved = 0.5 * (low + high)
        if moved == t:
            return p
        previous = abs(moved - t)
        t = moved
    return p


@compiled
def logistic_prox_between(r: float, c: float, start: float, low: float, high: float) -> float:
    """Return p = sigmoid(−t) at the root of G(t) = t − c·sigmoid(−t) − r between two ends of which G has 0.

    As `_inside_bracket`, for any c with which G rises from ``low`` to ``high``, where its root is: c may be
    below −4 where the sigmoid is flat. The bracket is bisected whenever a step leaves it or does not halve.
    """
    low, high = max(low, min(r, r + c)), min(high, max(r, r + c))
    t = min(max(start, low), high)
    previous = 2.0 * (high - low)
    p = 0.5
    for _ in range(_MOST_STEPS):
        small = math.exp(-abs(t))
        ratio = 1.0 / (1.0 + small)
        p = small * ratio if t >= 0.0 else ratio
        spread = small * ratio * ratio
        g = t - c * p - r
        if abs(g) <= 2.0 * _ROUNDING * (abs(t) + abs(c) * p + abs(r)):
            return p
        if g > 0.0:
            high = t
        else:
            low = t
        slope = 1.0 + c * spread
        step = -g / slope if slope > 0.0 else 0.0
        if _HALF_THIRD_ORDER * abs(c) * step * step <= _ROUNDING * slope and 0.0 < abs(step) < _LAST_STEP:
            return _moved(p, spread, step)
        moved = t + step
        if not low < moved < high or 2.0 * abs(step) > previous or step == 0.0:
            moved = 0.5 * (low + high)
        if moved in (t, low, high):
            return p
        previous = abs(moved - t)
        t = moved
    return p


class Logistic(NamedTuple("LogisticConstants", []), Loss):
    """Logistic loss log(1 + exp(−b·u)), labels ±1; β = 1/4."""

    __slots__ = ()
    name = "logistic"
    task = "classification"
    label = "two or more classes, with probabilities"
    link = "logit"
    advice = "map your labels to ±1 first"
    curvature_type = "continuous"
    likelihood = standard_errors = True
    beta = 0.25

    def multiclass(self, n_classes: int) -> Multinomial:
        return Multinomial(n_classes)

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
        return (-1.0, 0.0) if b > 0.0 else (0.0, 1.0)

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
