"""Terms of the sum as objects, and problems made of them.

A term is one sample of a linear model, or any convex function with a prox of its own. The literal methods see
only this interface, so they run on both; the compiled methods are for linear models.
"""

# What a term offers is documented once, in the base class.
# ruff: noqa: D102

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem import losses
from adfs.problem.evaluation import node_sums, sum_in_order
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.logistic import OUTSIDE, ROOM_ROWS, Multinomial, multinomial_dual_prox
from adfs.problem.losses import Loss
from adfs.problem.samples import Label, ShiftedLabel
from adfs.problem.shards import one_per_node

_EPS = float(np.finfo(np.float64).eps)
_OFF_LINE = 1e-10  # relative size of the part of a dual vector off its line that still passes for rounding


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
        # The curvature that is left out of f* makes the step of the prox shorter.
        inner = self.prox(z / step, 1.0 / step - 1.0 / smoothness)
        return (z - step * inner) / (1.0 - step / smoothness)


class LinearTerm(Term):
    """The term w·ℓ(Θx; b) of one sample; Θ is θ itself, or a (K, p) matrix laid out row by row.

    Its dual prox is a problem in the K margins, whatever the step.

    Parameters
    ----------
    x : ndarray of shape (p,)
    label : float or ShiftedLabel
        Label or target b, for one output with the offset of its margin where there is one.
    weight : float
        Sample weight w.
    loss : Loss
    shift : ndarray of shape (K,), optional
        The offsets of several margins.
    """

    def __init__(
        self, x: np.ndarray, label: Label, weight: float, loss: Loss, shift: np.ndarray | None = None
    ) -> None:
        self.x = np.asarray(x, dtype=np.float64)
        self.label, self.weight, self.loss = label, float(weight), loss
        self.shift = np.zeros(loss.n_outputs) if shift is None else np.asarray(shift, dtype=np.float64)
        self.norm_squared = float(self.x @ self.x)

    def identity(self) -> tuple[object, ...]:
        return self.x, self.label, self.weight, self.loss, self.shift

    @property
    def smoothness(self) -> float:
        if self.norm_squared == 0.0 or self.weight == 0.0:
            return 0.0
        return self.weight * self.loss.beta * self.norm_squared

    def _margins(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(theta.reshape(-1, self.x.size) @ self.x + self.shift)

    def _along(self, slopes: np.ndarray) -> np.ndarray:
        """Return the vector of θ's space of K multiples of x."""
        return np.outer(slopes, self.x).ravel()

    def _multiples(self, s: np.ndarray) -> np.ndarray:
        """Return the K multiples of x that a dual vector is made of, up to rounding."""
        return np.asarray(s.reshape(-1, self.x.size) @ self.x / self.norm_squared)

    def value(self, theta: np.ndarray) -> float:
        point = losses.point_of(self.loss, self._margins(theta))
        return self.weight * losses.value(self.loss, point, self.label)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        slopes = self._margins(theta)
        losses.write_slope(self.loss, slopes, self.label, self.weight)
        return self._along(slopes)

    def _prox_slopes(self, target: np.ndarray, inverse_step: float) -> np.ndarray:
        """Return s = w∇ℓ(u) at the u (K,) with u + (inverse_step − 1/(wβ))·s = target."""
        # The dual prox of the term is stationary at (s − ζ)/h + u − s/(wβ) = 0, with ζ/h = target.
        h = 1.0 / inverse_step
        if not self.loss.several_outputs:
            slope = float(target[0])
            return np.array(
                [losses.weighted_dual_prox(self.loss, slope * h, h, self.label, self.weight, slope)]
            )
        # The kernel takes a guess of u in the first row of its memory.
        slopes, room = target * h, np.empty((ROOM_ROWS, target.size))
        room[0] = target
        assert not isinstance(self.label, ShiftedLabel)
        multinomial_dual_prox(slopes, h, int(self.label), self.weight, room)
        return slopes

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        if self.constant:
            return center
        # Moreau: prox_{γf}(z) = z − γ·prox_{f*/γ}(z/γ), and the latter is made of multiples of x. The square
        # that the dual prox of the loss leaves out is added to the inverse step.
        inverse_step = step * self.norm_squared + 1.0 / (self.weight * self.loss.beta)
        return center - step * self._along(self._prox_slopes(self._margins(center), inverse_step))

    def dual_prox(self, z: np.ndarray, step: float, smoothness: float) -> np.ndarray:
        if self.constant:
            return np.zeros_like(z)
        # An L above the term's own removes less of the conjugate's curvature than the loss's prox does.
        kept = 0.0
        if not math.isclose(smoothness, self.smoothness, rel_tol=1e-14):
            kept = 1.0 / (self.weight * self.loss.beta) - self.norm_squared / smoothness
        inverse_step = self.norm_squared / step + kept
        return self._along(self._prox_slopes(self._margins(z / step), inverse_step))

    def conjugate(self, s: np.ndarray) -> float:
        if self.constant:
            return -self.value(np.zeros_like(s)) if not s.any() else np.inf
        # f* is finite on multiples of x only, and there it is the conjugate of the loss.
        scaled = self._multiples(s) / self.weight
        if np.linalg.norm(s - self._along(self.weight * scaled)) > _OFF_LINE * np.linalg.norm(s):
            return np.inf
        # Rounding may have moved the multiples out of the domain: no more than that is moved back.
        inside = scaled.copy()
        losses.clip_dual(self.loss, inside, self.label, 1.0)
        if np.abs(inside - scaled).max() > OUTSIDE:
            return np.inf
        conjugate = losses.conjugate(self.loss, losses.point_of(self.loss, inside), self.label)
        return self.weight * (conjugate - float(inside @ self.shift))

    def clip_to_domain(self, s: np.ndarray) -> np.ndarray:
        if self.constant:
            return np.zeros_like(s)
        inside = self._multiples(s)
        losses.clip_dual(self.loss, inside, self.label, self.weight)
        return self._along(inside)


class MultinomialLogisticTerm(LinearTerm):
    """Multinomial logistic loss of one sample: f(θ) = w·(log Σ_k exp(u_k) − u_label) with u = Θx.

    Parameters
    ----------
    x : ndarray of shape (p,)
    label, n_classes : int
        The sample's class, 0 … K − 1, and K.
    weight : float
        Sample weight w.
    shift : ndarray of shape (K,), optional
        The offsets of the margins.
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
        super().__init__(x, int(label), weight, Multinomial(int(n_classes)), shift)


class GeneralLoss(NamedTuple("GeneralLossParameters", []), Loss):
    """Stands for the loss of terms that have none: a loss that offers nothing."""

    name = "general"
    task = "regression"
    beta = math.inf


class GeneralProblem(FiniteSum):
    """Minimise F(θ) = Σ_i [ Σ_j f_ij(θ) + (σ_i/2)‖θ‖² ] for terms given as objects.

    Parameters
    ----------
    terms : sequence of sequences of Term
        The terms of each node.
    n_features : int
        d, the dimension of θ.
    sigma : float or array-like of shape (n_nodes,)
        σ_i.
    smoothness : array-like of shape (N,), optional
        An L for each term where it should be larger than the term's own; any larger L is valid.

    Examples
    --------
    >>> import numpy as np
    >>> from adfs.problem import MultinomialLogisticTerm
    >>> terms = [MultinomialLogisticTerm(x, label, 3) for label, x in enumerate(np.eye(3))]
    >>> problem = GeneralProblem([terms[:2], terms[2:]], n_features=9, sigma=0.5)
    >>> problem.n_nodes, round(float(problem.objective(np.zeros(9)) / np.log(3)), 12)
    (2, 3.0)
    """

    linear = False
    loss = GeneralLoss()

    def __init__(
        self,
        terms: Sequence[Sequence[Term]],
        n_features: int,
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        *,
        smoothness: ArrayLike | None = None,
    ) -> None:
        if not terms:
            raise InputError("no terms were given; there must be at least one node")
        for node, held in enumerate(terms):
            for number, term in enumerate(held):
                if not isinstance(term, Term):
                    raise InputError(
                        f"node {node}, term {number}: expected an adfs.problem.Term, "
                        f"got {type(term).__name__}"
                    )
        if n_features < 1:
            raise InputError(f"n_features must be at least 1, got {n_features!r}")
        self.terms = [term for own in terms for term in own]
        self.n_samples, self.n_features = len(self.terms), int(n_features)
        self.dual_shape = (self.n_features,)
        # A term that keeps the base class's conjugate has none.
        kinds = dict.fromkeys(type(term) for term in self.terms)
        self._without_conjugate = [kind.__name__ for kind in kinds if kind.conjugate is Term.conjugate]
        self.certifiable = not self._without_conjugate
        self.node_starts = np.concatenate([[0], np.cumsum([len(own) for own in terms])]).astype(np.int64)
        self.n_nodes, self.sigma = len(terms), one_per_node("sigma", sigma, len(terms))
        self.active = np.array([not term.constant for term in self.terms], dtype=bool)
        # A larger L is valid for every term: it only makes the steps shorter.
        own = np.array([term.smoothness for term in self.terms], dtype=np.float64)
        self.smoothness = own if smoothness is None else np.array(smoothness, dtype=np.float64)
        if self.smoothness.shape != own.shape or not np.all(self.smoothness >= own):
            raise InputError("smoothness must be one number per term, none below the term's own")
        self.smooth = bool(np.all(np.isfinite(self.smoothness)))

    def _terms_of_nodes(self) -> list[list[Term]]:
        return [self.terms[a:b] for a, b in pairwise(self.node_starts)]

    def with_smoothness_above(self, limit: np.ndarray) -> GeneralProblem:
        # The Moreau form of the dual prox needs a step below L, and near L it would lose its digits.
        least = 1.05 * np.asarray(limit)[self.node_of_row]
        raised = np.where(self.active & (self.smoothness <= least), least, self.smoothness)
        return GeneralProblem(self._terms_of_nodes(), self.n_features, self.sigma, smoothness=raised)

    def merged(self) -> GeneralProblem:
        sigma = np.array([self.total_sigma])
        return GeneralProblem([self.terms], self.n_features, sigma, smoothness=self.smoothness)

    def first_samples(self) -> GeneralProblem | None:
        small = GeneralProblem([own[:1] for own in self._terms_of_nodes()], self.n_features, self.sigma)
        return small if small.active.any() else None

    def identity(self) -> tuple[list[object], list[np.ndarray]]:
        words: list[object] = []
        arrays = [self.node_starts, self.sigma, self.smoothness]
        for term in self.terms:
            parts = term.identity()
            if parts is None:
                raise InputError(
                    f"a checkpoint must know its problem, and {type(term).__name__} does not say what it is "
                    "made of: define its method `identity`, or run without a checkpoint"
                )
            words += [type(term).__qualname__, *(part for part in parts if not isinstance(part, np.ndarray))]
            arrays += [part for part in parts if isinstance(part, np.ndarray)]
        return words, arrays

    @property
    def batch_smoothness(self) -> np.ndarray:
        """Σ_j L_ij, an upper bound of the smoothness of each node's data term; shape (n,)."""
        return np.asarray(self.kappa * self.sigma)

    def term(self, row: int) -> Term:
        return self.terms[row]

    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        if theta.ndim == 2:
            return np.column_stack([self.loss_sums(point) for point in theta])
        return node_sums(np.array([term.value(theta) for term in self.terms]), self.node_starts)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        out = self.total_sigma * np.asarray(theta, dtype=np.float64)
        for term in self.terms:
            out = out + term.gradient(theta)
        return out

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        raise InputError("general terms need not have gradients: use a method with dual variables ('adfs')")

    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        out = duals if in_place else np.array(duals, dtype=np.float64)
        for number, term in enumerate(self.terms):
            out[number] = term.clip_to_domain(out[number])
        return out

    def row_sums(self, duals: np.ndarray) -> np.ndarray:
        zero = np.zeros(self.n_features)
        return np.array([sum_in_order(duals[a:b], zero) for a, b in pairwise(self.node_starts)])

    def row_total(self, duals: np.ndarray) -> np.ndarray:
        return sum_in_order(self.row_sums(duals), np.zeros(self.n_features))

    def _check_certifiable(self) -> None:
        for name in self._without_conjugate:
            raise InputError(
                f"{name} has no conjugate, without which there is no duality gap: "
                "define `conjugate`, or run without a tolerance"
            )

    def conjugate_sums(self, duals: np.ndarray) -> np.ndarray:
        self._check_certifiable()
        values = [term.conjugate(dual) for term, dual in zip(self.terms, duals, strict=True)]
        return node_sums(np.array(values), self.node_starts)

    def gap_parts(self, duals: np.ndarray, theta: np.ndarray, slack: float = 0.0) -> np.ndarray:
        # Differences of values, conjugates and products, with their rounding. Terms have no margins, and so
        # no rounding of these and no slack.
        self._check_certifiable()
        rows = []
        for term, dual in zip(self.terms, duals, strict=True):
            if term.constant:  # whose conjugate is finite at 0 only
                rows.append([math.inf if dual.any() else 0.0, term.value(theta), 0.0, 0.0, 0.0, 0.0])
                continue
            value, conjugate, product = term.value(theta), term.conjugate(dual), float(dual @ theta)
            sizes = abs(value) + abs(conjugate) + float(np.abs(dual) @ np.abs(theta))
            rounding = (theta.size + 8) * _EPS * sizes
            apart = max(value + conjugate - product, 0.0) + rounding
            rows.append([apart, value, 0.0, 1.0, float(dual @ dual), rounding])
        columns = np.array(rows).reshape(-1, 6).T
        return np.column_stack([node_sums(column, self.node_starts) for column in columns])

    def __repr__(self) -> str:
        sizes = f"n_nodes={self.n_nodes}, n_samples={self.n_samples}, n_features={self.n_features}"
        return f"GeneralProblem({sizes})"
