"""The scalar equation that the prox of a loss made of exponentials solves, and the losses with a log link.

The dual prox of the logistic, Poisson, Gamma and Tweedie losses is the root of u + Cℓ'(u) = r in the margin
u. One bracketed Newton method, `bracketed_root`, solves it for all of them; for the logistic loss
`logistic_dual_prox` tries a few faster steps first.

The curvature of the losses with a log link exists everywhere and has no bound. A run therefore assumes a
bound for every sample, from its target and the mean of all, and certificates find the samples for which it
was too small (`adfs.problem.views`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.compilation import compiled, fma, inlined
from adfs.problem.losses import Ends, Loss, clip, entropy_part, register_loss
from adfs.problem.samples import by_class

_ROUNDING = float(np.finfo(np.float64).eps)
MOST_STEPS = 200  # Newton climbs from 0 by about 1 per step, to at most log(C); a good guess needs three
# A step of length Δ leaves an error of the logistic root below |G''|Δ²/(2G'), and |G''| ≤ |C|√3/18.
_HALF_THIRD_ORDER = math.sqrt(3.0) / 36.0
_LAST_LOGISTIC_STEP = 9e-4  # Δ⁵/4 is below rounding, and so is what the Taylor series of p leaves out
_LAST_EXPONENTIAL_STEP = 1e-5  # Δ³ is below rounding


# --------------------------------------------------------------------------- one bracketed Newton method


class LogisticEquation(NamedTuple):
    """G(t) = t − c·p − r for p = sigmoid(−t)."""

    c: float
    r: float

    def evaluate(self, t: float) -> tuple[float, float, float, float, float]:
        c, r = self.c, self.r
        small = math.exp(-abs(t))
        ratio = 1.0 / (1.0 + small)
        p = small * ratio if t >= 0.0 else ratio
        spread = small * ratio * ratio
        rounding = 2.0 * _ROUNDING * (abs(t) + abs(c) * p + abs(r))
        return p, spread, t - c * p - r, 1.0 + c * spread, rounding

    def last_step(self, p: float, spread: float, slope: float, step: float) -> float:
        error = _HALF_THIRD_ORDER * abs(self.c) * step * step
        if error <= _ROUNDING * slope and 0.0 < abs(step) < _LAST_LOGISTIC_STEP:
            return _moved(p, spread, step)
        return math.nan


class ExponentialEquation(NamedTuple):
    """G(u) = u + c·m − r for m = eᵘ."""

    c: float
    r: float

    def evaluate(self, u: float) -> tuple[float, float, float, float, float]:
        m = math.exp(u)
        bent = self.c * m
        rounding = _ROUNDING * (abs(u) + abs(bent) + abs(self.r))
        return m, bent, u + bent - self.r, 1.0 + bent, rounding

    def last_step(self, m: float, bent: float, slope: float, step: float) -> float:
        if not 0.0 < abs(step) < _LAST_EXPONENTIAL_STEP:
            return math.nan
        # The step to the second order, and the exponential's own series along it.
        step -= 0.5 * bent / slope * step * step
        return m * (1.0 + step * (1.0 + step * (0.5 + step / 6.0)))


#: One of the classes above, or `adfs.problem.tweedie.TweedieEquation`.
Equation = tuple[float, ...]


@by_class
def evaluate(equation: Equation, t: float) -> tuple[float, float, float, float, float]:
    """Return p (m, or t itself), its curvature term, G, G' and the rounding of G at t."""
    raise NotImplementedError


@by_class
def last_step(equation: Equation, found: float, curve: float, slope: float, step: float) -> float:
    """Return p (or m) after a step that leaves an error below rounding, nan where the step is longer."""
    raise NotImplementedError


@compiled
def bracketed_root(equation: Equation, start: float, low: float, high: float, climbs: bool) -> float:
    """Return p (m, or t itself) at the root of G, which rises from ``low`` to ``high``.

    Newton's method from ``start``. The bracket shrinks with the sign of G, and it is bisected whenever a step
    leaves it or is not half as long as the one before. With ``climbs`` Newton is known to approach the root
    from one side: a step out of the bracket is then cut at its end, and no step is too long. The iteration
    stops where G is below the rounding of its own terms, or where the error that the step leaves is; p (or m)
    then moves along with t by its own Taylor series, which saves a last exponential.
    """
    t = min(max(start, low), high)
    previous = 2.0 * (high - low)  # the first step may be as long as the bracket
    found = 0.0
    for _ in range(MOST_STEPS):
        found, curve, g, slope, rounding = evaluate(equation, t)
        if abs(g) <= rounding:
            return found
        # The root is on the side on which G has the other sign.
        if g > 0.0:
            high = t
        else:
            low = t
        step = -g / slope if slope > 0.0 else 0.0
        ended = last_step(equation, found, curve, slope, step)
        if not math.isnan(ended):
            return ended
        moved = t + step
        if climbs:
            moved = min(max(moved, low), high)
        elif not low < moved < high or 2.0 * abs(step) > previous or step == 0.0:
            moved = 0.5 * (low + high)
        # No number is left between the ends.
        if moved == t or (not climbs and moved in (low, high)):
            return found
        previous = abs(moved - t)
        t = moved
    return found


# --------------------------------------------------------------------------- the logistic equation


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
    The derivatives of a sigmoid are polynomials in it, so a short Newton step is corrected to the fourth
    order without another exponential: from a guess within 0.2 of the root two steps are enough. After a long
    step `bracketed_root` takes over.
    """
    if c > 0.0:
        t = start
        for _ in range(6):
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
            # A corrected step of length u leaves less than 0.4 of the distance up to u = 1.
            if not length <= 1.0:
                break
            step = _corrected(step, c * small * inverse, p, spread)
            if length <= _LAST_LOGISTIC_STEP:
                return _moved(p, spread, step)
            t += step
    low, high = min(r, r + c), max(r, r + c)
    if c > 0.0:
        # The sign of G(0) says on which side of 0, the point of inflection, the root lies. On that side
        # Newton climbs from the end nearer to 0 without passing the root (unguarded Newton cycles).
        if r + 0.5 * c > 0.0:
            low = max(low, 0.0)
        else:
            high = min(high, 0.0)
    return bracketed_root(LogisticEquation(c, r), start, low, high, c > 0.0)


@by_class
def slope_at_root(loss: Loss, target: float, c: float, b: float, start: float, ends: Ends) -> float:
    """Return ℓ'(u; b) at the root of u + cℓ'(u) = target between the margins of a box."""
    raise NotImplementedError


class ExponentialLoss(Loss):
    """A loss whose prox solves a scalar equation: a subclass defines `slope_at_root`."""

    likelihood = standard_errors = True

    def prox_in_box(self, zeta: float, h: float, b: float, start: float, beta: float, ends: Ends) -> float:
        # In terms of the margin the derivative is u + cℓ'(u) − ζ/h, which rises along the box.
        inverse = 1.0 / h
        c, target = inverse - 1.0 / beta, zeta * inverse
        if ends[0] + c * ends[2] >= target:
            return ends[2]
        if ends[1] + c * ends[3] <= target:
            return ends[3]
        return clip(slope_at_root(self, target, c, b, start, ends), ends[2], ends[3])


# --------------------------------------------------------------------------- losses with a log link


@compiled
def _exp(u: float) -> float:
    """Return eᵘ, infinite where it is too large (interpreted code would raise)."""
    return math.exp(u)


@compiled
def exponential_root(r: float, c: float, start: float) -> float:
    """Return eᵘ at the root of G(u) = u + c·eᵘ − r; for c < 0 at the lower one, and r ≤ −log(−c) − 1."""
    low, high = r, r + 1.0  # −c·eᵘ is at most 1 up to the lower root
    if c > 0.0:
        # With w = c·eᵘ the equation is w + log w = z; for z > 1 its root lies between z − log z and z.
        log_c = math.log(c)
        z = r + log_c
        low, high = r - 1.0, r
        if z > 1.0:
            low, high = math.log(z - math.log(z)) - log_c, math.log(z) - log_c
    return bracketed_root(ExponentialEquation(c, r), start, low, high, False)


#: Of a loss with a log link: t = turn·u + constant is a margin whose Poisson loss for ``count`` it is.
Form = tuple[float, float, float]


@by_class
def form(loss: Loss, b: float) -> Form:
    """Return turn, constant and count of a `LogLinkLoss` at a target."""
    raise NotImplementedError


class LogLinkLoss(ExponentialLoss):
    """eᵗ − count·t less its least value, half the unit deviance, at t = turn·u + constant; β is infinite."""

    task = "regression"
    link = "log"
    score = "D²"
    curvature_type = "unbounded"
    beta = math.inf

    @property
    def scoring(self) -> str:
        return f"neg_mean_{self.name}_deviance"

    def value(self, u: float, b: float) -> float:
        # eᵗ − count·t less its value at t = log count.
        turn, constant, count = form(self, b)
        t = turn * u + constant
        if count == 0.0:
            return _exp(t)
        t -= math.log(count)
        return count * (math.expm1(t) - t) if t < 700.0 else math.inf

    def derivative(self, u: float, b: float) -> float:
        turn, constant, count = form(self, b)
        return turn * (_exp(turn * u + constant) - count)

    def curvature(self, u: float, b: float) -> float:
        turn, constant, _ = form(self, b)
        return _exp(turn * u + constant)

    def conjugate(self, s: float, b: float) -> float:
        turn, constant, count = form(self, b)
        a = turn * s + count
        if a < 0.0:
            return math.inf
        entropy = (a * math.log(a) if a > 0.0 else 0.0) - (count * math.log(count) if count > 0.0 else 0.0)
        return entropy - turn * s * (1.0 + constant)

    def divergence(self, u: float, s: float, b: float) -> float:
        # Of the means turn·s + count and eᵗ.
        turn, constant, count = form(self, b)
        t = turn * u + constant
        a, m = turn * s + count, _exp(t)
        return entropy_part(a, m, a - m, t) if a >= 0.0 else math.inf

    def domain(self, b: float) -> tuple[float, float]:
        turn, _, count = form(self, b)
        return (-count, math.inf) if turn > 0.0 else (-math.inf, count)

    def dual_prox(self, zeta: float, h: float, b: float, start: float) -> float:
        turn, constant, count = form(self, b)
        inverse = 1.0 / h
        r = (turn * zeta + count) * inverse + constant
        return turn * (exponential_root(r, inverse, turn * start + constant) - count)

    def slope_at_root(self, target: float, c: float, b: float, start: float, ends: Ends) -> float:
        turn, constant, count = form(self, b)
        r = turn * target + constant + c * count
        return turn * (exponential_root(r, c, turn * start + constant) - count)

    def curvature_over(self, low: float, high: float, b: float) -> float:
        turn, constant, _ = form(self, b)
        return _exp(turn * (high if turn > 0.0 else low) + constant)

    def flatter(self, beta: float, b: float) -> tuple[float, float]:
        turn, constant, _ = form(self, b)
        end = turn * (math.log(beta) - constant)
        return (-math.inf, end) if turn > 0.0 else (end, math.inf)

    def margins_of(self, low: float, high: float, b: float) -> tuple[float, float]:
        turn, constant, count = form(self, b)
        # ℓ' = turn·(eᵗ − count): solved for t, and then for u.
        first, last = turn * low + count, turn * high + count
        at_first = math.log(first) if first > 0.0 else -math.inf
        at_last = math.log(last) if last > 0.0 else -math.inf
        return turn * (at_first - constant), turn * (at_last - constant)


@register_loss
class Poisson(NamedTuple("PoissonParameters", []), LogLinkLoss):
    """Poisson loss eᵘ − bu less its least value, for counts b ≥ 0."""

    name = "poisson"
    label = "counts, the logarithm of whose mean is linear"
    wanted_targets = "counts of at least 0"

    def form(self, b: float) -> Form:
        return 1.0, 0.0, b

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y >= 0.0)

    def level_parts(self, y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y, np.exp(offset)

    def typical_curvature(self, mean_target: float) -> float:
        return mean_target

    def unit_deviances(self, y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        logs = np.log(np.where(y > 0.0, y, 1.0))
        return np.asarray(2.0 * (y * (logs - np.log(means)) - y + means))


@register_loss
class Gamma(NamedTuple("GammaParameters", []), LogLinkLoss):
    """Gamma loss u + be⁻ᵘ less its least value, for amounts b > 0: a count of 1 at the margin log b − u."""

    name = "gamma"
    label = "positive amounts, the logarithm of whose mean is linear"
    wanted_targets = "targets above 0"
    dispersed = True

    def form(self, b: float) -> Form:
        return -1.0, math.log(b), 1.0

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y > 0.0)

    def level_parts(self, y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return y * np.exp(-offset), np.ones_like(y)

    def expected_curvature(self, margins: np.ndarray) -> np.ndarray:
        return np.ones_like(margins)

    def unit_deviances(self, y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        logs = np.log(np.where(y > 0.0, y, 1.0))
        return np.asarray(2.0 * (np.log(means) - logs + y / means - 1.0))
