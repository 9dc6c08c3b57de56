"""Problems outside the linear case: every term a convex function with a prox of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem.evaluation import sum_in_order
from adfs.problem.finite_sum import FiniteSum, check_sigma
from adfs.problem.losses import Loss
from adfs.problem.multinomial import Multinomial
from adfs.problem.problem import Problem
from adfs.problem.terms import Term

_EPS = float(np.finfo(np.float64).eps)


class GeneralLoss(NamedTuple("GeneralLossParameters", []), Loss):
    """Stands for the loss of terms that have none: a loss that offers nothing."""

    __slots__ = ()
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
        self.n_samples, self.n_features, self.dual_shape = (
            len(self.terms),
            int(n_features),
            (int(n_features),),
        )
        self.certifiable = all(type(term).conjugate is not Term.conjugate for term in self.terms)
        self.node_starts = np.concatenate([[0], np.cumsum([len(own) for own in terms])]).astype(np.int64)
        self.sigma = check_sigma(sigma, len(terms))
        own = np.array([term.smoothness for term in self.terms], dtype=np.float64)
        self._smoothness = own if smoothness is None else np.array(smoothness, dtype=np.float64)
        if self._smoothness.shape != own.shape or not np.all(self._smoothness >= own):
            raise InputError("smoothness must be one number per term, none below the term's own")
        self.smooth = bool(np.all(np.isfinite(self._smoothness)))

    @staticmethod
    def multinomial(
        X: ArrayLike,
        y: ArrayLike,
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        n_nodes: int = 1,
        *,
        n_classes: int | None = None,
        **others: Any,
    ) -> Problem:
        """Multinomial logistic regression: ``adfs.Problem``, which takes the others, with that loss."""
        return Problem(X, y, Multinomial(n_classes or 0), sigma, n_nodes, **others)

    def _terms_of_nodes(self) -> list[list[Term]]:
        cuts = zip(self.node_starts[:-1], self.node_starts[1:], strict=True)
        return [self.terms[a:b] for a, b in cuts]

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
        """Return what all the terms are made of, one after the other."""
        words: list[object] = []
        arrays = [self.node_starts, self.sigma, self.smoothness]
        for term in self.terms:
            parts = term.identity()
            if parts is None:
                raise InputError(
                    f"a checkpoint must know its problem, and {type(term).__name__} does not say what it is "
                    "made of: define its method `identity`, or run without a checkpoint"
                )
            words.append(type(term).__qualname__)
            for part in parts:
                if isinstance(part, np.ndarray):
                    arrays.append(part)
                else:
                    words.append(part)
        return words, arrays

    @property
    def smoothness(self) -> np.ndarray:
        """L_ij of each term, or what it was raised to; shape (N,)."""
        return self._smoothness

    @cached_property
    def active(self) -> np.ndarray:
        """Which terms depend on θ, shape (N,)."""
        return np.array([not term.constant for term in self.terms], dtype=bool)

    @property
    def batch_smoothness(self) -> np.ndarray:
        """Σ_j L_ij, an upper bound of the smoothness of each node's data term; shape (n,)."""
        return np.asarray(self.kappa * self.sigma)

    def term(self, row: int) -> Term:
        return self.terms[row]

    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        if theta.ndim == 2:
            return np.column_stack([self.loss_sums(point) for point in theta])
        return self._node_sums([term.value(theta) for term in self.terms])

    def _node_sums(self, values: ArrayLike) -> np.ndarray:
        """Add up the terms' values node by node, one after the other; shape (n,)."""
        weights = np.asarray(values, dtype=np.float64)
        return np.bincount(self.node_of_row, weights=weights, minlength=self.n_nodes)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        out = self.total_sigma * np.asarray(theta, dtype=np.float64)
        for term in self.terms:
            out = out + term.gradient(theta)
        return out

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Raise :class:`InputError`: terms need not have gradients."""
        raise InputError("general terms need not have gradients: use a method with dual variables ('adfs')")

    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        out = duals if in_place else np.array(duals, dtype=np.float64)
        for number, term in enumerate(self.terms):
            out[number] = term.clip_to_domain(out[number])
        return out

    def row_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's sum of its tips' vectors (N, d), shape (n, d)."""
        nothing = np.zeros(self.n_features)
        cuts = zip(self.node_starts[:-1], self.node_starts[1:], strict=True)
        return np.array([sum_in_order(duals[a:b], nothing) for a, b in cuts])

    def row_total(self, duals: np.ndarray) -> np.ndarray:
        """Return the nodes' sums of the tips' vectors (N, d), added in their order; shape (d,)."""
        return sum_in_order(self.row_sums(duals), np.zeros(self.n_features))

    def _check_certifiable(self) -> None:
        if not self.certifiable:
            without = next(type(term) for term in self.terms if type(term).conjugate is Term.conjugate)
            raise InputError(
                f"{without.__name__} has no conjugate, without which there is no duality gap: "
                "define `conjugate`, or run without a tolerance"
            )

    def conjugate_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j f*_ij at the tips' vectors (N, d), shape (n,)."""
        self._check_certifiable()
        return self._node_sums([term.conjugate(dual) for term, dual in zip(self.terms, duals, strict=True)])

    def gap_parts(self, duals: np.ndarray, theta: np.ndarray, slack: float = 0.0) -> np.ndarray:
        """Return what each node contributes to F(θ) − D(tips), as `gaps.close_gap` takes it; (n, 6).

        The terms' own differences, with the rounding of values, conjugates and products. Terms have no
        margins, and no ``slack``.
        """
        self._check_certifiable()
        rows = []
        for term, dual in zip(self.terms, duals, strict=True):
            if term.constant:
                rows.append([math.inf if dual.any() else 0.0, term.value(theta), 0.0, 0.0, 0.0, 0.0])
                continue
            value, conjugate, product = term.value(theta), term.conjugate(dual), float(dual @ theta)
            sizes = abs(value) + abs(conjugate) + float(np.abs(dual) @ np.abs(theta))
            rounding = (theta.size + 8) * _EPS * sizes
            apart = max(value + conjugate - product, 0.0) + rounding
            rows.append([apart, value, 0.0, 1.0, float(dual @ dual), rounding])
        columns = np.array(rows).reshape(-1, 6).T
        return np.column_stack([self._node_sums(column) for column in columns])

    def __repr__(self) -> str:
        return (
            f"GeneralProblem(n_nodes={self.n_nodes}, n_samples={self.n_samples}, "
            f"n_features={self.n_features})"
        )
