"""Problems outside the linear case: every term a convex function with a prox of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from adfs.errors import InputError
from adfs.problem.evaluation import node_sums, sum_in_order
from adfs.problem.partitions import split
from adfs.problem.problem import check_count, check_sigma
from adfs.problem.shards import as_numbers, as_rows, check_weights
from adfs.problem.terms import MultinomialLogisticTerm, Term

__all__ = ["GeneralProblem"]


class GeneralProblem:
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
    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> problem = GeneralProblem.multinomial(X, [0, 1, 2], sigma=1.0)
    >>> problem.n_features, round(float(problem.objective(np.zeros(6)) / np.log(3)), 12)
    (6, 3.0)
    """

    def __init__(
        self,
        terms: Sequence[Sequence[Term]],
        n_features: int,
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        *,
        smoothness: Any = None,
    ) -> None:
        if not terms:
            raise InputError("no terms were given; there must be at least one node")
        for node, own in enumerate(terms):
            for number, term in enumerate(own):
                if not isinstance(term, Term):
                    raise InputError(
                        f"node {node}, term {number}: expected an adfs.problem.Term, "
                        f"got {type(term).__name__}"
                    )
        if n_features < 1:
            raise InputError(f"n_features must be at least 1, got {n_features!r}")
        self.n_features = int(n_features)
        self.terms = [term for own in terms for term in own]
        self.offsets = np.concatenate([[0], np.cumsum([len(own) for own in terms])]).astype(np.int64)
        self.sigma = check_sigma(sigma, len(terms))
        own_smoothness = np.array([term.smoothness for term in self.terms], dtype=np.float64)
        if smoothness is None:
            self.smoothness = own_smoothness
        else:
            self.smoothness = np.array(smoothness, dtype=np.float64)
            if self.smoothness.shape != own_smoothness.shape or not np.all(self.smoothness >= own_smoothness):
                raise InputError("smoothness must be one number a term, none below the term's own")

    @classmethod
    def multinomial(
        cls,
        X: Any,
        y: Any,
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        n_nodes: int = 1,
        *,
        n_classes: int | None = None,
        partition: str | Sequence[Any] = "contiguous",
        sample_weight: Any = None,
        seed: int | None = 0,
        **partition_options: float,
    ) -> GeneralProblem:
        """Multinomial logistic regression: labels 0 … K−1, θ a (K, p) matrix laid out row by row."""
        rows = as_rows(X)
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        labels = as_numbers(y, "y")
        if labels.shape != (dense.shape[0],):
            raise InputError(
                f"y must have one entry a row of X: X has {dense.shape[0]} rows, y has shape {labels.shape}"
            )
        if labels.size == 0:
            raise InputError("X has no rows")
        if not np.all(np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0.0)):
            raise InputError("multinomial labels must be whole numbers from 0; number your classes first")
        classes = int(labels.max()) + 1 if n_classes is None else int(n_classes)
        weights = check_weights(sample_weight, labels.size, "")
        parts = split(partition, labels, check_count(n_nodes), seed=seed, **partition_options)
        terms = [
            [MultinomialLogisticTerm(dense[j], int(labels[j]), classes, float(weights[j])) for j in part]
            for part in parts
        ]
        return cls(terms, classes * dense.shape[1], sigma)

    def with_smoothness(self, smoothness: np.ndarray) -> GeneralProblem:
        """Return the same problem with larger L."""
        cuts = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return GeneralProblem(
            [self.terms[a:b] for a, b in cuts], self.n_features, self.sigma, smoothness=smoothness
        )

    @property
    def n_nodes(self) -> int:
        """n, the number of nodes."""
        return int(self.offsets.size - 1)

    @property
    def n_samples(self) -> int:
        """N, the number of terms."""
        return len(self.terms)

    @property
    def total_sigma(self) -> float:
        """Σ_i σ_i."""
        return float(self.sigma.sum())

    @cached_property
    def node_of_row(self) -> np.ndarray:
        """The node of each term, shape (N,)."""
        return np.repeat(np.arange(self.n_nodes), np.diff(self.offsets))

    @cached_property
    def active(self) -> np.ndarray:
        """Which terms depend on θ, shape (N,)."""
        return np.array([not term.constant for term in self.terms], dtype=bool)

    @cached_property
    def kappa(self) -> np.ndarray:
        """κ_i = Σ_j L_ij/σ_i, shape (n,)."""
        return np.asarray(node_sums(self.smoothness, self.offsets) / self.sigma)

    @property
    def kappa_s(self) -> float:
        """κ_s = max_i κ_i."""
        return float(self.kappa.max())

    @property
    def batch_smoothness(self) -> np.ndarray:
        """Σ_j L_ij, an upper bound of the smoothness of each node's data term; shape (n,)."""
        return np.asarray(self.kappa * self.sigma)

    @property
    def kappa_b(self) -> float:
        """κ_b = max_i (1 + κ_i), with the bound above."""
        return float(1.0 + self.kappa.max())

    def term(self, row: int) -> Term:
        """Return one term."""
        return self.terms[row]

    def objective(self, theta: np.ndarray) -> float:
        """Return F(θ)."""
        return float(self.loss_sums(theta).sum() + 0.5 * self.total_sigma * (theta @ theta))

    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j f_ij(θ), shape (n,), or (n, k) for θ of shape (k, d)."""
        if theta.ndim == 2:
            return np.column_stack([self.loss_sums(point) for point in theta])
        return self._node_sums([term.value(theta) for term in self.terms])

    def _node_sums(self, values: list[float]) -> np.ndarray:
        """Add up the terms' values node by node, one after the other; shape (n,)."""
        weights = np.asarray(values, dtype=np.float64)
        return np.bincount(self.node_of_row, weights=weights, minlength=self.n_nodes)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return ∇F(θ), shape (d,)."""
        out = self.total_sigma * np.asarray(theta, dtype=np.float64)
        for term in self.terms:
            out = out + term.gradient(theta)
        return out

    def clip_to_domain(self, tips: np.ndarray) -> np.ndarray:
        """Move the tips' vectors (N, d) into the domains of the conjugates, against rounding."""
        moved = [term.clip_to_domain(tip) for term, tip in zip(self.terms, tips, strict=True)]
        return np.array(moved, dtype=np.float64).reshape(self.n_samples, self.n_features)

    @cached_property
    def value_at_zero(self) -> float:
        """F(0), the scale of the relative duality gap."""
        return self.objective(np.zeros(self.n_features))

    def primal_from_dual(self, tips: np.ndarray) -> np.ndarray:
        """Return θ = −Σ v_ij / Σ σ_i from the tips' vectors, shape (N, d) → (d,)."""
        return np.asarray(-self.row_total(tips) / self.total_sigma)

    def row_sums(self, tips: np.ndarray) -> np.ndarray:
        """Return each node's sum of its tips' vectors (N, d), shape (n, d)."""
        nothing = np.zeros(self.n_features)
        cuts = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return np.array([sum_in_order(tips[a:b], nothing) for a, b in cuts])

    def row_total(self, tips: np.ndarray) -> np.ndarray:
        """Return the nodes' sums of the tips' vectors (N, d), added in their order; shape (d,)."""
        return sum_in_order(self.row_sums(tips), np.zeros(self.n_features))

    def conjugate_sums(self, tips: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j f*_ij at the tips' vectors (N, d), shape (n,)."""
        return self._node_sums([term.conjugate(tip) for term, tip in zip(self.terms, tips, strict=True)])

    def duality_gap(self, tips: np.ndarray, *, relative: bool = True) -> float:
        """Return F(θ) − D at the tips' vectors (N, d); every term must have a conjugate.

        Rounding can carry a tip out of its domain, where the gap is infinite: see :meth:`clip_to_domain`.
        """
        theta = self.primal_from_dual(tips)
        dual = -float(self.conjugate_sums(tips).sum()) - 0.5 * self.total_sigma * float(theta @ theta)
        gap = self.objective(theta) - dual
        scale = self.value_at_zero if relative else 1.0
        return float(gap / scale) if scale > 0.0 else float(gap)

    def __repr__(self) -> str:
        return (
            f"GeneralProblem(n_nodes={self.n_nodes}, n_samples={self.n_samples}, "
            f"n_features={self.n_features})"
        )
