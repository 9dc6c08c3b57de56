"""Losses of one margin: value, derivative, conjugate and the one-dimensional dual prox.

A loss ℓ(u; b) takes the margin u = xᵀθ of a sample and its label or target b. Each loss is one short class:
a ``NamedTuple`` of its constants whose functions are static, scalar and written in the Python that numba
compiles. The generic functions of this module (:func:`value`, :func:`derivative`, …) dispatch on the type of
the loss, both interpreted and inside compiled kernels, so a loss is written once and a kernel that uses it
caches on disk.

The dual prox is that of the strongly convex part removed from the conjugate (β is the smoothness of ℓ)::

    dual_prox(ζ, h) = argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)

A sample weight w (the term is wℓ) needs no second formula: :func:`weighted_dual_prox` is
w·dual_prox(ζ/w, h/w).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from adfs.compilation import compiled, overloads
from adfs.errors import InputError, unknown_name
from adfs.problem.loss_base import Loss
from adfs.problem.nonsmooth_losses import Absolute, EpsilonInsensitive, Hinge, Quantile
from adfs.problem.smooth_losses import (
    Huber,
    Logistic,
    SmoothedHinge,
    SmoothedQuantile,
    Squared,
    SquaredHinge,
)

__all__ = [
    "LOSSES",
    "Absolute",
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "Quantile",
    "SmoothedHinge",
    "SmoothedQuantile",
    "Squared",
    "SquaredHinge",
    "check_labels",
    "conjugate",
    "curvature",
    "derivative",
    "domain",
    "dual_prox",
    "get_loss",
    "register_loss",
    "value",
    "weighted_dual_prox",
]


def _python(loss: Any, function: str) -> Callable[..., Any]:
    return getattr(type(loss), function)  # type: ignore[no-any-return]


def value(loss: Any, u: float, b: float) -> float:
    """Return ℓ(u; b)."""
    return float(_python(loss, "value")(loss, u, b))


def derivative(loss: Any, u: float, b: float) -> float:
    """Return ℓ'(u; b), or a subgradient where the loss has a kink."""
    return float(_python(loss, "derivative")(loss, u, b))


def curvature(loss: Any, u: float, b: float) -> float:
    """Return ℓ''(u; b) where it exists, one of its one-sided values where it jumps."""
    return float(_python(loss, "curvature")(loss, u, b))


def conjugate(loss: Any, s: float, b: float) -> float:
    """Return ℓ*(s; b) = sup_u s·u − ℓ(u; b), ``inf`` outside the domain."""
    return float(_python(loss, "conjugate")(loss, s, b))


def domain(loss: Any, b: float) -> tuple[float, float]:
    """Return the ends of the interval on which ℓ*(·; b) is finite."""
    lo, hi = _python(loss, "domain")(loss, b)
    return float(lo), float(hi)


def dual_prox(loss: Any, zeta: float, h: float, b: float, start: float) -> float:
    """Return argmin_s (s − ζ)²/(2h) + ℓ*(s) − s²/(2β)."""
    return float(_python(loss, "dual_prox")(loss, zeta, h, b, start))


def _chosen(loss: Any, function: str) -> Any:
    """Return the loss's own function for numba to compile, or None when the argument is not a loss."""
    cls = getattr(loss, "instance_class", None)
    if isinstance(loss, types.BaseTuple) and cls is not None and issubclass(cls, Loss):
        return getattr(cls, function)
    return None


overloads(value)(lambda loss, u, b: _chosen(loss, "value"))
overloads(derivative)(lambda loss, u, b: _chosen(loss, "derivative"))
overloads(curvature)(lambda loss, u, b: _chosen(loss, "curvature"))
overloads(conjugate)(lambda loss, s, b: _chosen(loss, "conjugate"))
overloads(domain)(lambda loss, b: _chosen(loss, "domain"))
overloads(dual_prox)(lambda loss, zeta, h, b, start: _chosen(loss, "dual_prox"))


@compiled
def weighted_dual_prox(loss: Any, zeta: float, h: float, b: float, weight: float, start: float) -> float:
    """Return argmin_s (s − ζ)²/(2h) + wℓ*(s/w) − s²/(2wβ), the dual prox of the term wℓ."""
    inverse = 1.0 / weight  # known before ζ is: two divisions would come one after the other
    return weight * dual_prox(loss, zeta * inverse, h * inverse, b, start)


@compiled
def weighted_conjugate_prox(
    loss: Any, beta: float, zeta: float, h: float, b: float, weight: float, start: float
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
                f"constants {sorted(constants)} were given beside a loss that already has its own"
            )
        return loss
    if not isinstance(loss, str):
        raise InputError(f"loss must be a name or a Loss, got {type(loss).__name__}")
    name = loss.replace("_", "-")
    if name not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    cls = LOSSES[name]
    allowed = set(inspect.signature(cls.__new__).parameters) - {"cls", "_cls"}
    for constant in constants:
        if constant not in allowed:
            raise unknown_name(f"constant of the loss {name!r}", constant, allowed or {"(none)"})
    return cls(**constants)


def check_labels(loss: Loss, y: np.ndarray, where: str) -> None:
    """Raise :class:`InputError` unless the labels or targets fit the loss."""
    if loss.task == "classification":
        bad = np.flatnonzero(np.abs(y) != 1.0)
        if bad.size:
            raise InputError(
                f"{where}: the loss {loss.name!r} wants labels −1 and +1, but row {bad[0]} has "
                f"{y[bad[0]]:g}; map your labels to ±1 first"
            )
