"""The logistic loss's scalar equation, solved by a safeguarded Newton method that stops by itself."""

from __future__ import annotations

import math

from adfs.compilation import compiled

__all__ = ["logistic_dual_prox", "sigmoid"]

# A Newton step of length Δ leaves an error below |G''|Δ²/(2G'); |G''| ≤ |C|/(6√3) for every t.
_HALF_THIRD_ORDER = 0.04811252243246881
_ROUNDING = 2.0**-52
_MOST_STEPS = 200  # Newton climbs from 0 by about 1 a step, to at most log(C); a good guess needs three


@compiled
def sigmoid(t: float) -> float:
    """Return 1/(1 + exp(−t)) without overflow at either tail."""
    small = math.exp(-abs(t))
    return 1.0 / (1.0 + small) if t >= 0.0 else small / (1.0 + small)


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
    Newton inside its bracket. For c > 0 the sign of G(0) tells on which side of 0, its point of inflection,
    the root lies; on that side Newton climbs from the end of the bracket nearer to 0 without ever passing the
    root, so a step that leaves the bracket is cut there (unguarded Newton cycles once c is large). For c < 0
    the bracket is shorter than 4, and it is bisected whenever a step leaves it or does not halve the one
    before (G is nearly flat when c is near −4). The iteration stops when G is below the rounding of its own
    terms, or when the error left by the step just computed is below rounding; p then moves along with t by
    its own Taylor series, which spares a last exponential.
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
        if _HALF_THIRD_ORDER * abs(c) * step * step <= _ROUNDING * slope and abs(step) < 1e-3:
            return min(max(p - spread * step * (1.0 - (0.5 - p) * step), 0.0), 1.0)
        moved = min(max(t + step, low), high)
        if c <= 0.0 and (moved != t + step or 2.0 * abs(step) > previous):
            moved = 0.5 * (low + high)
        if moved == t:
            return p
        previous = abs(moved - t)
        t = moved
    return p
