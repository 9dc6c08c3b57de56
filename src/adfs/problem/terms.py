"""Terms of the sum as objects: one sample of the linear case, or any convex function with a prox of its own.

The literal algorithms see only this interface, so they run on both. The compiled ones are for the linear
case.
"""

# What a term offers is documented once, in the base class.
# ruff: noqa: D102

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from adfs.errors import InputError
from adfs.problem import losses
from adfs.problem.losses import Loss
from adfs.problem.samples import Label

_OFF_LINE = 1e-10  # relative size of the part of a dual vector off its line that still passes for rounding
_SHORT_MOVE = 1e-9  # its square is below rounding
_OUTSIDE = 1e-12  # how far outside a domain of size 1 a point may be by rounding


class Term(ABC):
    """One term f of the finite sum: convex, with an L-Lipschitz gradient unless ``smoothness`` is infinite.

    A subclass gives ``value``, ``prox`` and ``smoothness``; ``gradient`` if it has one, and ``conjugate``
    (with ``clip_to_domain`` where it is not finite everywhere) if runs are to be certified by a duality gap.
    """

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """L, any number at least the Lipschitz constant of the gradient."""

    @abstractmethod
    def value(self, theta: np.ndarray) -> float:
        """Return f(θ), θ of shape (d,)."""

    @abstractmethod
    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        """Return argmin_θ f(θ) + ‖θ − center‖²/(2·step), shape (d,)."""

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return ∇f(θ), shape (d,)."""
        raise NotImplementedError(f"{type(self).__name__} has no gradient; define `gradient` to use it here")

    def conjugate(self, s: np.ndarray) -> float:
        """Return f*(s) = sup_θ s·θ − f(θ); without it no duality gap can be given."""
        raise NotImplementedError(
            f"{type(self).__name__} has no conjugate; define `conjugate` to certify a run"
        )

    def clip_to_domain(self, s: np.ndarray) -> np.ndarray:
        """Return s moved into the domain of f* against rounding, shape (d,)."""
        return s

    @property
    def constant(self) -> bool:
        """Whether the term does not depend on θ; it then never enters a schedule."""
        return self.smoothness == 0.0

    def identity(self) -> tuple[object, ...] | None:
        """Return what the term is made of: arrays, and what prints the same when it is the same.

        A checkpoint tells by it whether it belongs to a problem; without one there are no checkpoints.
        """
        return None

    def dual_prox(self, z: np.ndarray, step: float, smoothness: float) -> np.ndarray:
        """Return argmin_v ‖v − z‖²/(2·step) + f*(v) − ‖v‖²/(2·smoothness), shape (d,).

        By Moreau's identity this is (z − η·prox_{(1/η − 1/L)f}(z/η))/(1 − η/L), which needs η < L.
        """
        if not step < smoothness:
            raise InputError(
                f"the dual step {step:.3g} is not below the smoothness {smoothness:.3g} of a general term; "
                "raise the smoothness (any larger one is valid)"
            )
        inner = self.prox(z / step, 1.0 / step - 1.0 / smoothness)
        return (z - step * inner) / (1.0 - step / smoothness)


class LinearTerm(Term):
    """The term w·ℓ(xᵀθ; b) of one sample; its dual prox is one-dimensional, whatever the step.

    Parameters
    ----------
    x : ndarray of shape (d,)
    label : float or ShiftedLabel
        Label or target b, with the offset of its margin where it has one.
    weight : float
        Sample weight w.
    loss : Loss
    """

    def __init__(self, x: np.ndarray, label: Label, weight: float, loss: Loss) -> None:
        self.x = x
        self.label = label
        self.weight = weight
        self.loss = loss
        self.norm_squared = float(x @ x)

    def identity(self) -> tuple[object, ...]:
        return self.x, self.label, self.weight, self.loss

    @property
    def smoothness(self) -> float:
        if self.norm_squared == 0.0 or self.weight == 0.0:
            return 0.0
        return self.weight * self.loss.beta * self.norm_squared

    def value(self, theta: np.ndarray) -> float:
        return self.weight * losses.value(self.loss, float(self.x @ theta), self.label)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return self.weight * losses.derivative(self.loss, float(self.x @ theta), self.label) * self.x

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        if self.constant:
            return center
        # Moreau: prox_{γf}(z) = z − γ·prox_{f*/γ}(z/γ), the latter along x.
        margin = float(self.x @ center)
        inverse_step = step * self.norm_squared + 1.0 / (self.weight * self.loss.beta)
        return center - step * self._scalar_prox(margin, inverse_step) * self.x

    def _scalar_prox(self, slope: float, inverse_step: float) -> float:
        """Return argmin_s s²·inverse_step/2 − slope·s + wℓ*(s/w) − s²/(2wβ)."""
        h = 1.0 / inverse_step
        return losses.weighted_dual_prox(self.loss, slope * h, h, self.label, self.weight, slope)

    def conjugate(self, s: np.ndarray) -> float:
        if self.constant:
            return -self.weight * losses.value(self.loss, 0.0, self.label) if not s.any() else np.inf
        scalar = float(self.x @ s) / self.norm_squared
        if np.linalg.norm(s - scalar * self.x) > _OFF_LINE * np.linalg.norm(s):
            return np.inf
        low, high = losses.domain(self.loss, self.label)
        inside = min(max(scalar / self.weight, low), high)
        if abs(scalar / self.weight - inside) > _OUTSIDE:
            return np.inf
        return self.weight * losses.conjugate(self.loss, inside, self.label)

    def clip_to_domain(self, s: np.ndarray) -> np.ndarray:
        if self.constant:
            return np.zeros_like(s)
        low, high = losses.domain(self.loss, self.label)
        scalar = float(self.x @ s) / self.norm_squared
        return self.weight * min(max(scalar / self.weight, low), high) * self.x

    def dual_prox(self, z: np.ndarray, step: float, smoothness: float) -> np.ndarray:
        if self.constant:
            return np.zeros_like(z)
        scalar = float(self.x @ z) / self.norm_squared
        h = step / self.norm_squared
        if math.isclose(smoothness, self.smoothness, rel_tol=1e-14):
            return losses.weighted_dual_prox(self.loss, scalar, h, self.label, self.weight, 0.0) * self.x
        # An L above the term's own removes less of the conjugate's curvature than the loss's prox does.
        kept = 1.0 / (self.weight * self.loss.beta) - self.norm_squared / smoothness
        return self._scalar_prox(scalar / h, 1.0 / h + kept) * self.x


class MultinomialLogisticTerm(Term):
    """Multinomial logistic loss of one sample, θ being a (K, p) matrix of coefficients laid out row by row.

    f(θ) = w·(log Σ_k exp(u_k) − u_label) with u = Θx. Its gradient is w·(softmax(u) − e_label)xᵀ and it is
    (w/2)‖x‖²-smooth.

    Parameters
    ----------
    x : ndarray of shape (p,)
    label : int
        The sample's class, 0 … K−1.
    n_classes : int
        K.
    weight : float
        Sample weight w.
    shift : ndarray of shape (K,), optional
        What is added to the margins u.
    """

    def __init__(
        self,
        x: np.ndarray,
        label: int,
        n_classes: int,
        weight: float = 1.0,
        shift: np.ndarray | None = None,
    ) -> None:
        if not 0 <= label < n_classes:
            raise InputError(
                f"multinomial label {label} is not one of the {n_classes} classes 0 … {n_classes - 1}"
            )
        self.x = np.asarray(x, dtype=np.float64)
        self.label = int(label)
        self.n_classes = int(n_classes)
        self.weight = float(weight)
        self.shift = np.zeros(self.n_classes) if shift is None else np.asarray(shift, dtype=np.float64)
        self.norm_squared = float(self.x @ self.x)

    def identity(self) -> tuple[object, ...]:
        return self.x, self.label, self.n_classes, self.weight, self.shift

    @property
    def smoothness(self) -> float:
        return 0.5 * self.weight * self.norm_squared

    def _margins(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(theta.reshape(self.n_classes, self.x.size) @ self.x + self.shift)

    def _softmax(self, u: np.ndarray) -> np.ndarray:
        e = np.exp(u - u.max())
        return np.asarray(e / e.sum())

    def _dual_vector(self, p: np.ndarray) -> np.ndarray:
        """Return w·(p − e_label)xᵀ laid out row by row: the gradient where the probabilities are p."""
        g = self.weight * p
        # p_label − 1 loses its digits near 1; minus the sum of the others does not.
        g[self.label] = 0.0
        g[self.label] = -g.sum()
        return np.outer(g, self.x).ravel()

    def value(self, theta: np.ndarray) -> float:
        u = self._margins(theta)
        top = u.max()
        return float(self.weight * (top + np.log(np.exp(u - top).sum()) - u[self.label]))

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        return self._dual_vector(self._softmax(self._margins(theta)))

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        """Solve u + γwq(softmax(u) − e_label) = Zx by Newton in the K margins, then θ = Z − γ∇f."""
        scale = step * self.weight * self.norm_squared
        return center - step * self._dual_vector(self._prox_probabilities(self._margins(center), scale))

    def _prox_probabilities(self, target: np.ndarray, scale: float) -> np.ndarray:
        """Return softmax(u) at the u with u + scale·(softmax(u) − e_label) = target; scale above −2."""
        target = target.copy()
        target[self.label] += scale
        u = target - scale * self._softmax(target)
        for _ in range(100):
            p = self._softmax(u)
            residual = u + scale * p - target
            norm = float(np.linalg.norm(residual))
            move = np.linalg.solve(np.eye(u.size) + scale * (np.diag(p) - np.outer(p, p)), -residual)
            if float(np.abs(move).max()) <= _SHORT_MOVE:
                break
            size = 1.0
            while size > 1e-10:
                trial = u + size * move
                if float(np.linalg.norm(trial + scale * self._softmax(trial) - target)) < norm:
                    break
                size *= 0.5
            else:
                break
            u = trial
        # The last move to first order in p itself: added to u it would be rounded away, and scale is large.
        moved = p * (1.0 + move - p @ move)
        return moved if float(np.abs(move).max()) <= _SHORT_MOVE else self._softmax(u)

    def dual_prox(self, z: np.ndarray, step: float, smoothness: float) -> np.ndarray:
        # In the margins Moreau's form exists for any step: 1/η − 1/L may be negative, down to −2/(wq).
        if self.constant:
            return np.zeros_like(z)
        scale = self.weight * self.norm_squared * (1.0 / step - 1.0 / smoothness)
        return self._dual_vector(self._prox_probabilities(self._margins(z / step), scale))

    def _probabilities(self, s: np.ndarray) -> np.ndarray:
        """Return the p of a dual vector s = w·(p − e_label)xᵀ, up to rounding."""
        p = s.reshape(self.n_classes, self.x.size) @ self.x / (self.norm_squared * self.weight)
        p[self.label] += 1.0
        return np.asarray(p)

    def conjugate(self, s: np.ndarray) -> float:
        if self.constant:
            return -self.value(np.zeros_like(s)) if not s.any() else np.inf
        p = self._probabilities(s)
        line = np.outer(s.reshape(self.n_classes, -1) @ self.x / self.norm_squared, self.x).ravel()
        if p.min() < -_OUTSIDE or abs(p.sum() - 1.0) > _OUTSIDE:
            return np.inf
        if np.linalg.norm(s - line) > _OFF_LINE * np.linalg.norm(s):
            return np.inf
        p = np.clip(p, 0.0, None)
        p /= p.sum()
        entropy = float(np.sum(p[p > 0] * np.log(p[p > 0])))
        return self.weight * (entropy - float(p @ self.shift) + float(self.shift[self.label]))

    def clip_to_domain(self, s: np.ndarray) -> np.ndarray:
        if self.constant:
            return np.zeros_like(s)
        # The nearest point of the simplex: a shift that leaves the positive entries a sum of 1.
        p = self._probabilities(s)
        falling = np.sort(p)[::-1]
        shifts = (np.cumsum(falling) - 1.0) / np.arange(1, p.size + 1)
        shift = shifts[np.flatnonzero(falling > shifts)[-1]]
        return self._dual_vector(np.clip(p - shift, 0.0, None))
