"""What every loss offers, and the scalar pieces that several of them share."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from adfs.compilation import compiled
from adfs.errors import InputError

#: Two margins, the lower one first, and the slopes ℓ' there.
Ends = tuple[float, float, float, float]

_NEAR = 0.125  # relative differences below which the entropy is a series


class Loss:
    """What every loss offers; subclass it together with a ``NamedTuple`` of the loss's constants.

    Attributes
    ----------
    name : str
        The name users type.
    task : str
        ``"classification"`` (labels −1 and +1) or ``"regression"`` (any finite target).
    beta : float
        Smoothness β = sup ℓ''; ``inf`` when the loss is not smooth.
    translates : bool
        Whether it depends on u − b alone, so that an offset of the margin can be taken from the target.
    several_outputs : bool
        Whether it takes more than one margin per sample, ``n_outputs`` of them.
    link : str
        ``"identity"``, or ``"log"`` where the margin is the logarithm of the mean.
    assumes_curvature : bool
        Whether it has a curvature everywhere, without a bound: runs then assume one for every sample.

    Notes
    -----
    A subclass defines the static functions ``value(loss, u, b)``, ``derivative(loss, u, b)``,
    ``curvature(loss, u, b)``, ``conjugate(loss, s, b)`` (``inf`` outside its domain), ``domain(loss, b)`` and
    ``dual_prox(loss, zeta, h, b, start)``, where ``start`` is a guess of the margin at the solution that an
    iterative prox may use.

    It may define ``divergence(loss, u, s, b)``, ℓ(u; b) + ℓ*(s; b) − us without cancellation near the s at
    which that is 0 (infinite outside the domain): certificates are then right to the last digits. Without it
    the difference is taken, and its rounding added.

    For constants that a run adapts (`adfs.problem.views`) it defines ``curvature_over(loss, low, high, b)``,
    the largest ℓ'' over an interval of margins, and ``margins_of(loss, low, high, b)``, the first margin with
    ℓ' ≥ low and the last one with ℓ' ≤ high (infinite where all have it). If ℓ'' is not β wherever it is not
    0, also ``prox_in_box(loss, zeta, h, b, start, beta, ends)``, the dual prox with another β over a box.
    One that ``assumes_curvature`` has all of these, and ``flatter(loss, beta, b)``, the interval of margins
    at which ℓ'' is at most β.
    """

    __slots__ = ()
    name: ClassVar[str]
    task: ClassVar[str]
    translates: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    link: ClassVar[str] = "identity"
    assumes_curvature: ClassVar[bool] = False

    @property
    def beta(self) -> float:
        """β = sup ℓ'', ``inf`` when the loss is not smooth."""
        raise NotImplementedError(f"{type(self).__name__} does not say how smooth it is: define `beta`")

    @staticmethod
    def level_parts(y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what is summed, weighted, above and below the fraction that is the mean of a log link."""
        raise NotImplementedError("for losses with a log link")

    @property
    def n_outputs(self) -> int:
        """K, the number of margins of a sample."""
        return 1

    @property
    def smooth(self) -> bool:
        """Whether the loss has a Lipschitz derivative."""
        return math.isfinite(self.beta)


@compiled
def clip(s: float, lo: float, hi: float) -> float:
    """Return the point of [lo, hi] nearest to s."""
    return min(max(s, lo), hi)


@compiled
def entropy_part(a: float, p: float, away: float, log_p: float) -> float:
    """Return a·log(a/p) − a + p, at least 0, from ``away`` = a − p and log p.

    Near a = p it is a series in v = away/(a + p), because log(a/p) = 2(v + v³/3 + v⁵/5 + …).
    """
    total = a + p
    v = away / total if total > 0.0 else 0.0
    if abs(v) < _NEAR:
        z = v * v
        tail = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * (1.0 / 19.0))))
        series = 1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * tail)))
        return away * v + 2.0 * a * v * z * series
    if a == 0.0:
        return p
    return max(a * (math.log(a) - log_p) - away, 0.0)


def positive(loss: str, name: str, number: float) -> float:
    """Return a loss's constant, checked to be finite and above 0."""
    if not (math.isfinite(number) and number > 0.0):
        raise InputError(f"{loss}: {name} must be finite and above 0, got {number!r}")
    return float(number)


def inside(loss: str, quantile: float) -> float:
    """Return a quantile, checked to lie strictly between 0 and 1."""
    if not 0.0 < quantile < 1.0:
        raise InputError(f"{loss}: quantile must lie strictly between 0 and 1, got {quantile!r}")
    return float(quantile)
