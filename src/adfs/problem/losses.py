"""Losses of one margin: value, derivative, conjugate and the one-dimensional dual prox.

A loss ℓ(u; b) takes the margin u = xᵀθ of a sample and its label or target b. Each loss is one short class:
a ``NamedTuple`` of its constants whose functions are static, scalar and written in the Python that numba
compiles. The generic functions of this module (:func:`value`, :func:`derivative`, …) dispatch on the type of
the loss, both interpreted and inside compiled kernels, so a loss is written once and a kernel that uses it
caches on disk.

The dual prox is that of the strongly convex part removed from the conjugate (β is the smoothness of ℓ)::

    dual_prox(ζ, h) = argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)

A label may come with an offset of the margin, ℓ(u + o; b) (:mod:`adfs.problem.samples`): the dispatch puts it
into the arguments, and no loss knows of it.

A sample weight w (the term is wℓ) needs no second formula: :func:`weighted_dual_prox` is
w·dual_prox(ζ/w, h/w).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from adfs.compilation import compiled, overloads
from adfs.errors import InputError, unknown_name
from adfs.problem.line_losses import (
    Absolute,
    EpsilonInsensitive,
    Hinge,
    Huber,
    Quantile,
    SmoothedHinge,
    SmoothedQuantile,
    Squared,
    SquaredHinge,
)
from adfs.problem.log_link_losses import Gamma, Poisson
from adfs.problem.logistic import Logistic
from adfs.problem.loss_base import Loss
from adfs.problem.multinomial import Multinomial
from adfs.problem.samples import Label, ShiftedLabel, kind_of

_ROUNDING = 8.0 * float(np.finfo(np.float64).eps)  # of value, conjugate and product, relative to their sizes


def _own(loss: Loss, b: Label, function: str) -> Callable[..., Any]:
    """Return the loss's own function, or that with the label's offset put in."""
    if isinstance(b, ShiftedLabel):
        return _WITH_SHIFT[function]
    default = (_difference,) if function == "divergence" else ()
    return getattr(type(loss), function, *default)


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
    """Return ℓ(u; b) + ℓ*(s; b) − us, at least 0: without cancellation, or at most its rounding too large."""
    return float(_own(loss, b, "divergence")(loss, u, s, b))


def domain(loss: Loss, b: Label) -> tuple[float, float]:
    """Return the ends of the interval on which ℓ*(·; b) is finite."""
    lo, hi = _own(loss, b, "domain")(loss, b)
    return float(lo), float(hi)


def dual_prox(loss: Loss, zeta: float, h: float, b: Label, start: float) -> float:
    """Return argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)."""
    return float(_own(loss, b, "dual_prox")(loss, zeta, h, b, start))


@compiled
def _with_rounding(value: float, conjugate: float, product: float) -> float:
    if conjugate == math.inf:
        return math.inf
    rounding = _ROUNDING * (abs(value) + abs(conjugate) + abs(product))
    return max(value + conjugate - product, 0.0) + rounding


def _difference(loss: Loss, u: float, s: float, b: float) -> float:
    return _with_rounding(value(loss, u, b), conjugate(loss, s, b), u * s)


def _chosen(
    loss: types.Type, b: types.Type, function: str, *default: Callable[..., object]
) -> Callable[..., object] | None:
    """Return what numba compiles: the loss's own function, or that with the label's offset put in."""
    if kind_of(b) is ShiftedLabel:
        return _WITH_SHIFT[function]
    return getattr(kind_of(loss), function, *(default or (None,)))


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
}

overloads(value)(lambda loss, u, b: _chosen(loss, b, "value"))
overloads(derivative)(lambda loss, u, b: _chosen(loss, b, "derivative"))
overloads(curvature)(lambda loss, u, b: _chosen(loss, b, "curvature"))
overloads(conjugate)(lambda loss, s, b: _chosen(loss, b, "conjugate"))
overloads(divergence)(lambda loss, u, s, b: _chosen(loss, b, "divergence", _difference))
overloads(domain)(lambda loss, b: _chosen(loss, b, "domain"))
overloads(dual_prox)(lambda loss, zeta, h, b, start: _chosen(loss, b, "dual_prox"))


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


# --------------------------------------------------------------------------- one output or several
# Kernels that hold a sample's margins or its tip as an array of K numbers, whatever K is.


def outputs(loss: Loss) -> int:
    """Return K, the number of margins that the loss takes."""
    return loss.n_outputs


def point_of(loss: Loss, numbers: np.ndarray) -> float | np.ndarray:
    """Return what `value` and `conjugate` of this loss take, from an array (K,): the number or the array."""
    return numbers if loss.several_outputs else float(numbers[0])


def write_slope(loss: Loss, margins: np.ndarray, b: float, weight: float) -> None:
    """Replace the margins u (K,) by w∇ℓ(u; b)."""
    raise NotImplementedError("compiled code only")


def value_and_slope(loss: Loss, margins: np.ndarray, b: float, weight: float) -> float:
    """Replace the margins u (K,) by w∇ℓ(u; b), and return ℓ(u; b)."""
    raise NotImplementedError("compiled code only")


def clip_dual(loss: Loss, dual: np.ndarray, b: float, weight: float) -> None:
    """Move a tip s (K,) so that s/w lies in the domain of ℓ*(·; b), in place."""
    raise NotImplementedError("compiled code only")


def _several(loss: types.Type) -> bool:
    return bool(getattr(kind_of(loss), "several_outputs", False))


@overloads(outputs)
def _outputs(loss: types.Type) -> Callable[..., object]:
    return (lambda loss: loss.n_classes) if _several(loss) else (lambda loss: 1)


@overloads(point_of)
def _point_of(loss: types.Type, numbers: types.Type) -> Callable[..., object]:
    return (lambda loss, numbers: numbers) if _several(loss) else (lambda loss, numbers: numbers[0])


@overloads(write_slope)
def _write_slope(
    loss: types.Type, margins: types.Type, b: types.Type, weight: types.Type
) -> Callable[..., object] | None:
    def one(loss: Loss, margins: np.ndarray, b: float, weight: float) -> None:
        margins[0] = weight * derivative(loss, margins[0], b)

    return _chosen(loss, b, "write_slope", one)


@overloads(value_and_slope)
def _value_and_slope(
    loss: types.Type, margins: types.Type, b: types.Type, weight: types.Type
) -> Callable[..., object] | None:
    def one(loss: Loss, margins: np.ndarray, b: float, weight: float) -> float:
        found = value(loss, margins[0], b)
        margins[0] = weight * derivative(loss, margins[0], b)
        return found

    return _chosen(loss, b, "value_and_slope", one)


@overloads(clip_dual)
def _clip_dual(
    loss: types.Type, dual: types.Type, b: types.Type, weight: types.Type
) -> Callable[..., object] | None:
    def one(loss: Loss, dual: np.ndarray, b: float, weight: float) -> None:
        low, high = domain(loss, b)
        t = min(max(dual[0], weight * low), weight * high)
        # w·high divided by w may round to just outside: step in by one unit.
        if t / weight > high or t / weight < low:
            t *= 1.0 - 2.0**-52
        dual[0] = t

    return _chosen(loss, b, "clip_dual", one)


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


for _cls in (
    Logistic,
    Squared,
    SquaredHinge,
    SmoothedHinge,
    Huber,
    SmoothedQuantile,
    Hinge,
    Absolute,
    Quantile,
    EpsilonInsensitive,
    Poisson,
    Gamma,
    Multinomial,
):
    register_loss(_cls)


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


def check_labels(loss: Loss, y: np.ndarray, where: str) -> None:
    """Raise :class:`InputError` unless the labels or targets fit the loss."""
    valid = loss.valid_targets(y)
    if not valid.all():
        row = int(np.argmin(valid))
        raise InputError(
            f"{where}: the loss {loss.name!r} wants {loss.wanted_targets}, and row {row} has another one; "
            f"{loss.advice}"
        )
