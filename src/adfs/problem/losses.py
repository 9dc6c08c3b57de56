"""Losses of one margin: value, derivative, conjugate and the one-dimensional dual prox.

A loss ℓ(u; b) takes the margin u = xᵀθ of a sample and its label or target b. Each loss is one short class:
a ``NamedTuple`` of its parameters whose methods take and return numbers, in the Python that numba compiles.
The functions of this module (:func:`value`, :func:`derivative`, …) call the method of the same name of the
loss's class, in Python and in compiled kernels. A loss is written once, and kernels that use it are kept on
disk.

The dual prox is that of the strongly convex part removed from the conjugate (β is the smoothness of ℓ)::

    dual_prox(ζ, h) = argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)

A label may have an offset of the margin, ℓ(u + o; b) (:mod:`adfs.problem.samples`). The dispatch puts it into
the arguments, so no loss has to know of it. A sample weight w (the term is wℓ) needs no second formula:
:func:`weighted_dual_prox` is w·dual_prox(ζ/w, h/w).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numba import types

from adfs.compilation import compiled, overloads
from adfs.errors import InputError, unknown_name
from adfs.prediction import inverse_link
from adfs.problem.samples import Label, ShiftedLabel, by_class, kind_of

#: Two margins, the lower one first, and the slopes ℓ' there.
Ends = tuple[float, float, float, float]

_SERIES_BELOW = 0.125  # relative differences below which the entropy is a series
_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)  # of value, conjugate and product, relative to their sizes


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
        Whether a sample has more than one margin.
    n_outputs : int
        K, the number of margins of a sample.
    link : str
        The function of the mean that the margin is: ``"identity"``, ``"log"``, ``"logit"`` or ``"softmax"``.
    likelihood : bool
        Whether the loss is a negative log-likelihood, so that its curvature is the information.
    standard_errors : bool
        Whether standard errors are available: those of the likelihood, or robust ones only.
    dispersed : bool
        Whether the likelihood has a dispersion that is estimated from the data.
    sklearn_factor : float
        How often scikit-learn's loss of the same name contains this one; its ``C`` is multiplied by it.

    Notes
    -----
    A subclass defines the methods ``value(u, b)``, ``derivative(u, b)``, ``curvature(u, b)``, ``conjugate(s,
    b)`` (``inf`` outside its domain), ``domain(b)`` and ``dual_prox(zeta, h, b, start)``, where ``start`` is
    a guess of the margin at the solution that an iterative prox may use. Kernels compile these methods, so
    they call no other method of the loss; static functions of the loss and these arguments will do too.

    It may define ``divergence(u, s, b)``, which is ℓ(u; b) + ℓ*(s; b) − us without cancellation, and infinite
    outside the domain. Without it the difference is computed, and a bound of its rounding added.

    For parameters that adapt during a run (`adfs.problem.views`) it defines ``curvature_over(low, high, b)``,
    the largest ℓ'' over an interval of margins, and ``margins_of(low, high, b)``, the first margin with ℓ' ≥
    low and the last one with ℓ' ≤ high (infinite where all have it). If ℓ'' takes other values than 0 and β,
    it also defines ``prox_in_box(zeta, h, b, start, beta, ends)``, the dual prox with another β over a box. A
    loss of unbounded curvature defines all of these, and ``flatter(beta, b)``, the interval of margins on
    which ℓ'' is at most β. A loss of several outputs defines ``curvature_parts`` for Newton's method.
    """

    name: ClassVar[str]
    task: ClassVar[str]
    label: ClassVar[str] = ""
    curvature_type: ClassVar[str] = "jumps"
    translates: ClassVar[bool] = False
    several_outputs: ClassVar[bool] = False
    n_outputs: int = 1
    link: ClassVar[str] = "identity"
    likelihood: ClassVar[bool] = False
    standard_errors: ClassVar[bool] = False
    dispersed: ClassVar[bool] = False
    sklearn_factor: ClassVar[float] = 1.0
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

    def smoothed(self, width: float) -> tuple[Loss, float] | None:
        """Return the loss with its kinks rounded over a width, and the factor of its weights.

        None where there is no such form. The domains of the dual variables stay the same.
        """
        return None

    def typical_curvature(self, mean_target: float) -> float:
        """Return the size of ℓ'' at the margins of a fit to targets with this mean."""
        return self.beta if self.smooth else 1.0

    def expected_curvature(self, margins: np.ndarray) -> np.ndarray | None:
        """Return the mean of ℓ'' over the targets at margins (N,), None where it is ℓ''."""
        return None

    def curvature_parts(self, slopes: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return D and o of wℓ'' = diag(D) − ooᵀ, (2, N, K), from wℓ' (N, K): for several outputs."""
        raise NotImplementedError("for losses with several outputs")

    # ------------------------------------------------------------------ parameters and labels

    @classmethod
    def parameters(cls) -> dict[str, object]:
        """Return the parameters with their defaults, ``inspect.Parameter.empty`` where there is none."""
        signature = inspect.signature(cls.__new__)
        return {one.name: one.default for one in list(signature.parameters.values())[1:]}

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

    @property
    def advice(self) -> str:
        """The end of the sentence that refuses other labels or targets."""
        own = self.task == "classification"
        return "map your labels to ±1 first" if own else "leave such rows out, or take another loss"

    # ------------------------------------------------------------------ predictions

    @classmethod
    def mean(cls, margins: np.ndarray) -> np.ndarray:
        """Return the inverse link: predictions from margins (N,); probabilities for logit and softmax."""
        return inverse_link(cls.link, margins)

    @property
    def score(self) -> str:
        """The name of the score of predictions."""
        return "R²" if self.task == "regression" else "accuracy"

    @property
    def scoring(self) -> str | None:
        """scikit-learn's name of minus the mean deviance of predictions; None if there is none."""
        return "neg_mean_squared_error" if self.task == "regression" else None

    def unit_deviances(self, y: np.ndarray, means: np.ndarray | float) -> np.ndarray:
        """Return the deviance of each target from its predicted mean; R² and D² are 1 less their ratios."""
        return np.asarray((y - means) ** 2)

    def level_parts(self, y: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the summands, to be weighted, of the numerator and denominator of a log link's best mean."""
        raise NotImplementedError("for losses with a log link")

    # ------------------------------------------------------------------ functions that kernels call
    # They are described at the functions of the same names below.

    def divergence(self, u: Any, s: Any, b: float) -> float:
        """Return ℓ(u; b) + ℓ*(s; b) − us with a bound of its rounding added."""
        return _with_rounding(value(self, u, b), conjugate(self, s, b), u * s)

    def prox_in_box(self, zeta: float, h: float, b: float, start: float, beta: float, ends: Ends) -> float:
        # For losses whose curvature is β wherever it is not 0: convex everywhere, and only to be clipped.
        return clip(dual_prox(self, zeta, h, b, start), ends[2], ends[3])


# --------------------------------------------------------------------------- scalar pieces that losses share


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
    if abs(v) < _SERIES_BELOW:
        z = v * v
        tail = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * (1.0 / 19.0))))
        series = 1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * tail)))
        return away * v + 2.0 * a * v * z * series
    if a == 0.0:
        return p
    return max(a * (math.log(a) - log_p) - away, 0.0)


@compiled
def _with_rounding(value: float, conjugate: float, product: float) -> float:
    if conjugate == math.inf:
        return math.inf
    rounding = _ROUNDING * (abs(value) + abs(conjugate) + abs(product))
    return max(value + conjugate - product, 0.0) + rounding


# --------------------------------------------------------------------------- dispatch on the class of a loss
# Python code and kernels call these functions. Each is the method of the same name of the loss's class; where
# the label has an offset of the margin, the offset is put into the arguments first.


def _own(loss: Loss, b: Label, function: str) -> Callable[..., Any]:
    """Return the function of the loss's class that Python code calls."""
    return _WITH_SHIFT[function] if isinstance(b, ShiftedLabel) else getattr(type(loss), function)


def value(loss: Loss, u: float | np.ndarray, b: Label) -> float:
    """Return ℓ(u; b)."""
    return float(_own(loss, b, "value")(loss, u, b))


def derivative(loss: Loss, u: float, b: Label) -> float:
    """Return ℓ'(u; b), or a subgradient where the loss has a kink."""
    return float(_own(loss, b, "derivative")(loss, u, b))


def curvature(loss: Loss, u: float, b: Label) -> float:
    """Return ℓ''(u; b) where it exists, one of its one-sided values where it jumps."""
    return float(_own(loss, b, "curvature")(loss, u, b))


def conjugate(loss: Loss, s: float | np.ndarray, b: Label) -> float:
    """Return ℓ*(s; b) = sup_u s·u − ℓ(u; b), ``inf`` outside the domain."""
    return float(_own(loss, b, "conjugate")(loss, s, b))


def divergence(loss: Loss, u: float | np.ndarray, s: float | np.ndarray, b: Label) -> float:
    """Return ℓ(u; b) + ℓ*(s; b) − us, at least 0 and never below the exact value by more than its digits."""
    return float(_own(loss, b, "divergence")(loss, u, s, b))


def domain(loss: Loss, b: Label) -> tuple[float, float]:
    """Return the ends of the interval on which ℓ*(·; b) is finite."""
    lo, hi = _own(loss, b, "domain")(loss, b)
    return float(lo), float(hi)


def dual_prox(loss: Loss, zeta: float, h: float, b: Label, start: float) -> float:
    """Return argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)."""
    return float(_own(loss, b, "dual_prox")(loss, zeta, h, b, start))


def prox_in_box(loss: Loss, zeta: float, h: float, b: Label, start: float, beta: float, ends: Ends) -> float:
    """Return the dual prox of a loss with another β over a box."""
    return float(_own(loss, b, "prox_in_box")(loss, zeta, h, b, start, beta, ends))


# Of one output or several: margins and dual variables are arrays of K numbers, whatever K is. The functions
# are for one output; a loss of several has its own.


@by_class
def outputs(loss: Loss) -> int:
    """Return K, the number of margins of a sample."""
    return 1


@by_class
def point_of(loss: Loss, numbers: np.ndarray) -> Any:
    """Return the argument of `value` and `conjugate` from an array (K,): the number, or the array."""
    return numbers[0]


@by_class
def write_slope(loss: Loss, margins: np.ndarray, b: Label, weight: float) -> None:
    """Replace the margins u (K,) by w∇ℓ(u; b)."""
    margins[0] = weight * derivative(loss, margins[0], b)


@by_class
def clip_dual(loss: Loss, dual: np.ndarray, b: Label, weight: float) -> None:
    """Move a dual variable s (K,), in place, so that s/w lies in the domain of ℓ*(·; b)."""
    low, high = domain(loss, b)
    t = min(max(dual[0], weight * low), weight * high)
    # w·high divided by w may round to just outside: step in by one unit.
    if t / weight > high or t / weight < low:
        t *= 1.0 - 2.0**-52
    dual[0] = t


_WITH_SHIFT: dict[str, Callable[..., object]] = {
    "value": lambda loss, u, b: value(loss, u + b.shift, b.label),
    "derivative": lambda loss, u, b: derivative(loss, u + b.shift, b.label),
    "curvature": lambda loss, u, b: curvature(loss, u + b.shift, b.label),
    "conjugate": lambda loss, s, b: conjugate(loss, s, b.label) - b.shift * s,
    "divergence": lambda loss, u, s, b: divergence(loss, u + b.shift, s, b.label),
    "domain": lambda loss, b: domain(loss, b.label),
    "dual_prox": lambda loss, zeta, h, b, start: dual_prox(
        loss, zeta + h * b.shift, h, b.label, start + b.shift
    ),
    "prox_in_box": lambda loss, zeta, h, b, start, beta, ends: prox_in_box(
        loss, zeta + h * b.shift, h, b.label, start + b.shift, beta, ends
    ),
}


def _compile(function: Callable[..., object]) -> None:
    """Let compiled calls of a function do what Python calls do."""
    name = function.__name__

    def choose(loss: types.Type, *others: types.Type) -> Callable[..., object] | None:
        shifted = any(kind_of(other) is ShiftedLabel for other in others)
        return _WITH_SHIFT[name] if shifted else getattr(kind_of(loss), name, None)

    overloads(function)(choose)


for _function in (value, derivative, curvature, conjugate, divergence, domain, dual_prox, prox_in_box):
    _compile(_function)


@compiled
def weighted_dual_prox(loss: Loss, zeta: float, h: float, b: Label, weight: float, start: float) -> float:
    """Return argmin_s (s − ζ)²/(2h) + wℓ*(s/w) − s²/(2wβ), the dual prox of the term wℓ."""
    inverse = 1.0 / weight  # known before ζ is: two divisions would come one after the other
    return weight * dual_prox(loss, zeta * inverse, h * inverse, b, start)


@compiled
def weighted_conjugate_prox(
    loss: Loss, beta: float, zeta: float, h: float, b: Label, weight: float, start: float
) -> float:
    """Return argmin_s (s − ζ)²/(2h) + wℓ*(s/w), for methods that leave nothing out of the conjugate.

    The s²/(2wβ) that the dual prox leaves out is put back into the square: 1/h' = 1/h + 1/(wβ), ζ' = ζh'/h.
    """
    shrink = 1.0 / (1.0 + h / (weight * beta))
    return weighted_dual_prox(loss, zeta * shrink, h * shrink, b, weight, start)


# --------------------------------------------------------------------------- registry

LOSSES: dict[str, type[Loss]] = {}


def register_loss(cls: type[Loss]) -> type[Loss]:
    """Add a loss to the registry under its ``name`` (usable as a class decorator)."""
    if not (issubclass(cls, tuple) and issubclass(cls, Loss)):
        raise InputError(
            f"loss {cls.__name__} must derive from a NamedTuple of its constants and from adfs.problem.Loss"
        )
    LOSSES[cls.name] = cls
    return cls


def get_loss(loss: str | Loss, **constants: float) -> Loss:
    """Return a loss from its name and constants, or the loss itself.

    Examples
    --------
    >>> get_loss("huber", delta=1.35)
    Huber(delta=1.35)
    >>> get_loss("logistic").beta
    0.25
    """
    if isinstance(loss, Loss):
        if constants:
            raise InputError(
                f"parameters {sorted(constants)} were given beside a loss that already has its own"
            )
        return loss
    if not isinstance(loss, str):
        raise InputError(f"loss must be a name or a Loss, got {type(loss).__name__}")
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    cls = LOSSES[loss]
    for constant in constants:
        if constant not in cls.parameters():
            raise unknown_name(f"parameter of the loss {loss!r}", constant, cls.parameters() or {"(none)"})
    return cls(**constants)


def describe_losses() -> str:
    """Return one line for help texts: the registered losses by task, each with its label."""
    tasks: dict[str, list[str]] = {}
    for name, cls in sorted(LOSSES.items()):
        if not cls.several_outputs:  # one that others stand for: the logistic loss with several classes
            tasks.setdefault(cls.task, []).append(f"{name} ({cls.label})" if cls.label else name)
    return "; ".join(f"{task}: {', '.join(names)}" for task, names in tasks.items()) + "."


def check_labels(loss: Loss, y: np.ndarray, where: str) -> None:
    """Raise :class:`InputError` unless the labels or targets fit the loss."""
    valid = loss.valid_targets(y)
    if not valid.all():
        row = int(np.argmin(valid))
        raise InputError(
            f"{where}: the loss {loss.name!r} wants {loss.wanted_targets}, and row {row} has another one; "
            f"{loss.advice}"
        )
