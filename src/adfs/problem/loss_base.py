"""What every loss offers, and the scalar pieces that several of them share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from adfs.compilation import compiled
from adfs.errors import InputError
from adfs.prediction import inverse_link

#: Two margins, the lower one first, and the slopes ℓ' there.
Ends = tuple[float, float, float, float]

_NEAR = 0.125  # relative differences below which the entropy is a series


class Loss:
    """A loss ℓ(u; b) of a margin u and a label or target b.

    A loss is a class that derives from a ``NamedTuple`` of its parameters and from this class. Everything
    that other parts of the package must know of a loss is an attribute or a method of the class, so a new
    loss is one class: register it with :func:`adfs.problem.register_loss`, or pass an instance.

    Attributes
    ----------
    name : str
        The name users type.
    task : str
        ``"classification"`` (labels −1 and +1), ``"multiclass"`` (labels 0 … K − 1) or ``"regression"``.
    label : str
        A few words for help texts: what the loss is for.
    beta : float
        Smoothness β = sup ℓ''; ``inf`` when the loss is not smooth.
    curvature_type : str
        How ℓ'' behaves: ``"constant"``, ``"continuous"`` (never 0 and without jumps), ``"jumps"`` (between 0
        and β, say), ``"kinks"`` (ℓ' jumps) or ``"unbounded"`` (it exists and has no bound: runs then assume a
        bound for every sample).
    translates : bool
        Whether the loss depends on u − b alone. An offset of the margin can then be subtracted from b.
    several_outputs : bool
        Whether a sample has more than one margin, ``n_outputs`` of them.
    link : str
        Which function of the mean the margin is: ``"identity"``, ``"log"``, ``"logit"`` or ``"softmax"``.
    likelihood : bool
        Whether the loss is a negative log-likelihood, so that its curvature is the information.
    standard_errors : bool
        Whether standard errors are available: those of the likelihood, or robust ones only.
    dispersed : bool
        Whether the likelihood has a dispersion that is estimated from the data.
    expected_curvature : float or None
        The mean of ℓ'' over the targets, where it differs from ℓ''.
    score : str
        The name of the score of predictions: ``"accuracy"``, ``"R²"`` or ``"D²"``.
    sklearn_factor : float
        How often scikit-learn's loss of the same name contains this one; its ``C`` is multiplied by it.
    wanted_targets, advice : str
        The two halves of the sentence that refuses invalid labels or targets.

    Notes
    -----
    A subclass defines the static functions ``value(loss, u, b)``, ``derivative(loss, u, b)``,
    ``curvature(loss, u, b)``, ``conjugate(loss, s, b)`` (``inf`` outside its domain), ``domain(loss, b)`` and
    ``dual_prox(loss, zeta, h, b, start)``, where ``start`` is a guess of the margin at the solution that an
    iterative prox may use.

    It may define ``divergence(loss, u, s, b)``, which is ℓ(u; b) + ℓ*(s; b) − us without cancellation, and
    infinite outside the domain. Certificates are then accurate to the last digits. Without it the difference
    is computed, and a bound of its rounding is added.

    For parameters that adapt during a run (`adfs.problem.views`) it defines ``curvature_over(loss, low, high,
    b)``, the largest ℓ'' over an interval of margins, and ``margins_of(loss, low, high, b)``, the first
    margin with ℓ' ≥ low and the last one with ℓ' ≤ high (infinite where all have it). If ℓ'' takes other
    values than 0 and β, it also defines ``prox_in_box(loss, zeta, h, b, start, beta, ends)``, the dual prox
    with another β over a box. A loss of unbounded curvature defines all of these, and ``flatter(loss, beta,
    b)``, the interval of margins on which ℓ'' is at most β.
    """

    __slots__ = ()
    name: ClassVar[str]
    task: ClassVar[str]
    label: ClassVar[str] = ""
    curvature_type: ClassVar[str] = "jumps"
    translates: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    link: ClassVar[str] = "identity"
    likelihood: ClassVar[bool] = False
    standard_errors: ClassVar[bool] = False
    dispersed: ClassVar[bool] = False
    expected_curvature: ClassVar[float | None] = None
    sklearn_factor: ClassVar[float] = 1.0
    advice: ClassVar[str] = "leave such rows out, or take another loss"
    curvature_over: ClassVar[Callable[..., float] | None] = None

    # ------------------------------------------------------------------ smoothness

    @property
    def beta(self) -> float:
        """β = sup ℓ'', ``inf`` when the loss is not smooth."""
        raise NotImplementedError(f"{type(self).__name__} does not say how smooth it is: define `beta`")

    @property
    def smooth(self) -> bool:
        """Whether the loss has a Lipschitz derivative."""
        return math.isfinite(self.beta)

    @property
    def assumes_curvature(self) -> bool:
        """Whether ℓ'' exists without a bound, so that runs assume one for every sample."""
        return self.curvature_type == "unbounded"

    @property
    def can_be_boxed(self) -> bool:
        """Whether the loss has `curvature_over`, so that parameters can adapt to the samples' margins."""
        return self.curvature_over is not None

    def smoothed(self, width: float) -> tuple[Loss, float] | None:
        """Return the loss with its kinks rounded over a width, and the factor of its weights.

        None where there is no such form. The domains of the dual variables stay the same.
        """
        return None

    def typical_curvature(self, mean_target: float) -> float:
        """Return the size of ℓ'' at the margins of a fit to targets with this mean."""
        return self.beta if self.smooth else 1.0

    # ------------------------------------------------------------------ parameters and labels

    @classmethod
    def parameters(cls) -> dict[str, object]:
        """Return the parameters with their defaults, ``inspect.Parameter.empty`` where there is none."""
        signature = inspect.signature(cls.__new__)
        return {one.name: one.default for one in list(signature.parameters.values())[1:]}

    @property
    def n_outputs(self) -> int:
        """K, the number of margins of a sample."""
        return 1

    def multiclass(self, n_classes: int) -> Loss | None:
        """Return the loss of one model for several classes; None where each class needs its own model."""
        return None

    def valid_targets(self, y: np.ndarray) -> np.ndarray:
        """Return which finite labels or targets the loss takes, shape (N,), bool."""
        return np.abs(y) == 1.0 if self.task == "classification" else np.ones(y.shape, dtype=bool)

    @property
    def wanted_targets(self) -> str:
        """What labels or targets must be."""
        return "labels −1 and +1" if self.task == "classification" else "finite targets"

    # ------------------------------------------------------------------ predictions

    @classmethod
    def mean(cls, margins: np.ndarray) -> np.ndarray:
        """Return the inverse link: predictions from margins (N,); probabilities for logit and softmax."""
        return inverse_link(cls.link, margins)

    @property
    def score(self) -> str:
        """The name of the score of predictions."""
        return "R²" if self.task == "regression" else "accuracy"

    @staticmethod
    def unit_deviances(y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        """Return the deviance of each target from its predicted mean; R² and D² are 1 less their ratios."""
        return np.asarray((y - means) ** 2)

    @staticmethod
    def level_parts(y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the summands, to be weighted, of the numerator and denominator of a log link's best mean."""
        raise NotImplementedError("for losses with a log link")


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
