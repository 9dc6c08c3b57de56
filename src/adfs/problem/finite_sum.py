"""What everything outside this folder sees of a problem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adfs.errors import InputError
from adfs.problem.evaluation import add_diagonals, inner_product, node_sums, over_sigma, sum_in_order
from adfs.problem.gaps import ElasticNet, Gap, Penalty, Ridge, WholePenalty, column_rounding, smallest_gap
from adfs.problem.losses import Loss
from adfs.problem.reference import Optimum, find_optimum
from adfs.problem.samples import Labels, Matrix, Samples
from adfs.problem.shards import Shard

if TYPE_CHECKING:
    from adfs.problem.terms import Term

Sum = TypeVar("Sum", bound="FiniteSum")


class FiniteSum(ABC):
    """Minimise F(θ) = Σ_i [ Σ_j f_ij(θ) + (σ_i/2)‖θ‖² ] over nodes i and their terms j.

    Every term has a dual variable: an array of the shape ``dual_shape``, () for a number. Sums run over a
    node's terms in their order and then over the nodes in theirs, so that the bits of a node's sums do not
    depend on the process that computes them.

    Attributes
    ----------
    n_nodes, n_samples, n_features, n_outputs : int
        n; N, the number of terms of all nodes together; d, the dimension of θ; K, the margins of a sample.
    node_starts : ndarray of shape (n_nodes + 1,)
        Node i holds the terms ``node_starts[i]:node_starts[i + 1]``.
    sigma : ndarray of shape (n_nodes,)
        σ_i, above 0 or, with an ℓ1 term, all 0: the lasso.
    l1 : ndarray of shape (n_nodes,), or None
        λ_i, where every node has a term λ_i‖θ‖₁ too.
    l1_columns : ndarray of shape (d,), or None
        Which entries of θ that term counts, and how much; None without such a term.
    ridge_columns : ndarray of shape (d,), or None
        Which entries of θ the nodes' ℓ2 terms count, 1 or 0; all when None.
    dual_shape : tuple of int
        The shape of one term's dual variable.
    active : ndarray of shape (N,), bool
        Which terms are more than a constant.
    smoothness : ndarray of shape (N,)
        L_ij or anything above, 0 on constants; ``inf`` on terms that are not smooth.
    loss : Loss
        The loss of the samples; one named ``"general"``, which offers nothing, for terms with their own prox.
    smooth, certifiable : bool
        Whether all terms have Lipschitz gradients, and whether all have conjugates, without which there is no
        duality gap.
    assumes_curvature : bool
        Whether terms have a curvature without a bound, so that a run assumes one for each of them.
    linear : bool
        Whether the terms are losses of linear functions of θ. Other terms have none of the attributes below,
        and their dual steps must stay below L: see `with_smoothness_above`.
    sparse : bool
        Whether the rows are stored as CSR.
    entries_per_row : float or None
        The mean number of non-zeros per row, None where rows are dense.
    X, y, weights, offset, data
        The samples of a linear model, node after node; ``data`` has all four.
    labels, samples
        Labels with the offsets of the margins, and all samples, in the form that kernels take.
    ridge_mask : ndarray of shape (d,)
        `ridge_columns` as kernels take them: 1 for each entry that the ℓ2 terms count, 0 for the others.
    row_norms_squared : ndarray of shape (N,)
        q_ij = ‖x_ij‖².
    margin_scales : ndarray of shape (n_nodes, 5)
        Scales that bound the rounding of the margins, see `gaps.scan_rows`.
    """

    n_nodes: int
    n_samples: int
    n_features: int
    n_outputs: int = 1
    node_starts: np.ndarray
    sigma: np.ndarray
    l1: np.ndarray | None = None
    l1_columns: np.ndarray | None = None
    ridge_columns: np.ndarray | None = None
    dual_shape: tuple[int, ...]
    active: np.ndarray
    smoothness: np.ndarray
    loss: Loss
    smooth: bool
    assumes_curvature: bool = False
    certifiable: bool = True
    linear: bool = True
    sparse: bool = False
    entries_per_row: float | None = None
    X: Matrix
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray | None = None
    data: Shard
    labels: Labels
    samples: Samples
    ridge_mask: np.ndarray
    row_norms_squared: np.ndarray
    margin_scales: np.ndarray

    # ------------------------------------------------------------------ sizes and constants

    @property
    def node_of_row(self) -> np.ndarray:
        """The node of each term, shape (N,)."""
        return np.repeat(np.arange(self.n_nodes), np.diff(self.node_starts))

    @property
    def kappa(self) -> np.ndarray:
        """κ_i = Σ_j L_ij/σ_i, shape (n,); infinite without an ℓ2 term."""
        # Row after row: the same bits for a node wherever it stands among others.
        return over_sigma(node_sums(self.smoothness, self.node_starts), self.sigma)

    @property
    def kappa_s(self) -> float:
        """κ_s = max_i κ_i, the stochastic condition number."""
        return float(self.kappa.max())

    @property
    @abstractmethod
    def batch_smoothness(self) -> np.ndarray:
        """The smoothness of each node's Σ_j f_ij, or an upper bound of it; shape (n,)."""

    @property
    def kappa_b(self) -> float:
        """κ_b = max_i (σ_i + the batch smoothness)/σ_i, the batch condition number."""
        return float(np.max(1.0 + over_sigma(self.batch_smoothness, self.sigma)))

    @property
    def total_sigma(self) -> float:
        """Σ_i σ_i, the strong convexity of the whole objective."""
        return float(self.sigma.sum())

    @property
    def penalty(self) -> Penalty:
        """The nodes' own terms as kernels take them, apart from σ_i."""
        if self.l1 is None or self.l1_columns is None:
            return Ridge()
        return ElasticNet(self.l1, self.l1_columns)

    @property
    def whole_penalty(self) -> WholePenalty:
        """The sum of the nodes' own terms."""
        return self.penalty_of(self.total_sigma, None if self.l1 is None else float(self.l1.sum()))

    def penalty_of(self, total_sigma: float, total_l1: float | None) -> WholePenalty:
        """Return the sum of the own terms of nodes with these sums of σ_i and λ_i."""
        ridge_columns: np.ndarray | float = 1.0 if self.ridge_columns is None else self.ridge_columns
        if total_l1 is None or self.l1_columns is None:
            return WholePenalty(total_sigma, ridge_columns=ridge_columns)
        # Σ_i λ_i c_k, column by column.
        return WholePenalty(total_sigma, total_l1 * self.l1_columns, total_l1, ridge_columns)

    @cached_property
    def value_at_zero(self) -> float:
        """F(0), the scale of the relative duality gap."""
        return float(self.objective(np.zeros(self.n_features)))

    # ------------------------------------------------------------------ the primal

    def objective(self, theta: np.ndarray) -> Any:
        """Return F(θ): a float for θ of shape (d,), an array of shape (k,) for θ of shape (k, d)."""
        # The nodes' sums, added in their order, and the penalty of all nodes.
        theta = np.ascontiguousarray(theta, dtype=np.float64)
        sums = self.loss_sums(theta)
        if theta.ndim == 1:
            penalty = self.whole_penalty
            squares = 0.5 * penalty.sigma * inner_product(penalty.ridge_columns * theta, theta)
            return float(sums.sum() + squares + penalty.sizes(theta))
        return self.whole_penalty.objectives(sums, theta)

    @abstractmethod
    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j f_ij(θ), shape (n,), or (n, k) for θ of shape (k, d)."""

    @abstractmethod
    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return ∇F(θ) (a subgradient where it is not smooth), shape (d,)."""

    @abstractmethod
    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Return the dual variables of ∇f_ij(θ), which are feasible whatever θ is; shape (N, *dual_shape)."""

    # ------------------------------------------------------------------ the dual

    @abstractmethod
    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        """Move dual variables (N, *dual_shape) into the domains of the conjugates, against rounding."""

    @abstractmethod
    def row_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's sum of its dual variables as vectors of θ's space, shape (n, d)."""

    @abstractmethod
    def row_total(self, duals: np.ndarray) -> np.ndarray:
        """Return those sums added in the order of the nodes, shape (d,)."""

    @abstractmethod
    def conjugate_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j f*_ij at the dual variables, shape (n,); infinite outside the domain."""

    @abstractmethod
    def gap_parts(self, duals: np.ndarray, theta: np.ndarray, slack: float = 0.0) -> np.ndarray:
        """Return what each node contributes to F(θ) − D(s), as `gaps.close_gap` takes it; (n, 6).

        The columns: the sum of wℓ(u) + wℓ*(s/w) − us, infinite outside the domain; that of wℓ(u); half that
        of wβδ², δ bounding how far rounding takes u (for a loss that is not smooth the first column has the
        worse of u − δ and u + δ instead); that of w‖x‖²; that of ‖s‖²/w; at least that of δ|s| (for a loss
        that is not smooth, of δ times the steeper slope at u ± δ). ``slack`` bounds what margins are off by
        besides their rounding: a rounded intercept.
        """

    def primal_from_dual(self, duals: np.ndarray) -> np.ndarray:
        """Return θ = −Σ s / Σ σ_i, the primal point of the dual variables; shape (d,).

        With an ℓ1 term, soft(−Σ s, Σ λ_i) / Σ σ_i.
        """
        return self.whole_penalty.minimizer(self.row_total(duals))

    def dual_objective(self, duals: np.ndarray) -> float:
        """Return D = −Σ f*_ij − ‖Σ s‖²/(2 Σ σ_i), at most F(θ) for every θ.

        It is −∞ where a dual variable lies outside its domain (see `clip_to_domain`), and without an ℓ2 term
        where an entry of Σ s is larger than Σ λ_i.
        """
        theta, penalty = self.primal_from_dual(duals), self.whole_penalty
        if penalty.sigma == 0.0 and (np.abs(self.row_total(duals)) > penalty.l1).any():
            return -np.inf
        squares = 0.5 * self.total_sigma * inner_product(theta, theta)
        return float(-self.conjugate_sums(duals).sum() - squares)

    def duality_gap(self, duals: np.ndarray, *, relative: bool = True) -> float:
        """Return F(θ(s)) − D(s), divided by F(0) unless told otherwise; it certifies how good θ is.

        F(0) = 0 means that θ = 0 is optimal (every loss is at its least there); the gap is then given as it
        is.
        """
        # F(θ) − D(s) at the θ of the dual variables, from one sum over the rows.
        total = self.row_total(duals)
        gap = self.gap_at(duals, total, self.whole_penalty.minimizer(total)).gap
        scale = self.value_at_zero if relative and self.value_at_zero > 0.0 else 1.0
        return float(gap / scale)

    def gap_at(self, duals: np.ndarray, row_total: np.ndarray, theta: np.ndarray) -> Gap:
        """Return F(θ) − D(s) and its ends, from `row_total` of the dual variables."""
        penalty, rounding = self.whole_penalty, None
        if penalty.l1 is not None:
            squares = sum_in_order(self.column_squares, np.zeros(theta.size))
            rounding = column_rounding(squares, self.dual_squares(duals))
        return smallest_gap(partial(self.gap_parts, theta=theta), duals, row_total, theta, penalty, rounding)[
            0
        ]

    @property
    def column_squares(self) -> np.ndarray:
        """Each node's Σ w x_k² over its rows, for each output of a linear model; shape (n, d)."""
        out = np.zeros((self.n_nodes, self.n_features))
        samples = self.samples
        add_diagonals(samples.rows, samples.weights, samples.node_starts, 1.0, self.n_outputs, out)
        return out

    def dual_squares(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's Σ‖s‖²/w over its active rows, shape (n,)."""
        squares = (duals * duals).reshape(self.n_samples, -1).sum(axis=1)
        zero = np.zeros(self.n_samples)
        return node_sums(np.divide(squares, self.weights, out=zero, where=self.active), self.node_starts)

    # ------------------------------------------------------------------ samples of linear models

    def margins_at(self, theta: np.ndarray) -> np.ndarray:
        """Return the margins x_ijᵀθ with their offsets, as the loss takes them; shape (N,)."""
        raise NotImplementedError("for linear models")

    def with_sparse_rows(self: Sum) -> Sum:
        """Return the same problem with its rows stored as CSR; terms without rows stay as they are."""
        return self

    # ------------------------------------------------------------------ the rest

    def optimum(self, tol: float = 1e-12) -> Optimum:
        """Return the minimiser, certified by its relative duality gap; computed once and kept.

        The methods of the package find it, on one machine: Newton's method or L-BFGS, interior points for
        losses with kinks, APCG for general terms. A warning says if ``tol`` was not
        reached; ``gap`` is what was.
        """
        known: Optimum | None = self.__dict__.get("_optimum")
        if known is None or known.gap > tol:
            known = self.__dict__["_optimum"] = find_optimum(self, tol)
        return known

    def check_l1(self) -> None:
        """Raise :class:`InputError` if no method takes an ℓ1 term with this loss."""
        if not (self.smooth or self.assumes_curvature):
            raise InputError(
                f"an l1 term (elastic net) needs a smooth loss and {self.loss.name!r} is not; use a "
                "smoothed one (smoothed_hinge, huber, smoothed_quantile), or no l1 term"
            )

    @abstractmethod
    def identity(self) -> tuple[list[object], list[np.ndarray]]:
        """Return what decides the bits of a run, as words (what prints the same is the same) and arrays."""

    @abstractmethod
    def merged(self: Sum) -> Sum:
        """Return the same problem on one node, as a machine that holds all the data sees it."""

    def with_fewer_features(self: Sum) -> tuple[Sum, np.ndarray | None]:
        """Return a problem with N features in place of d > N, and the basis (d, N) that leads back to θ.

        Where there is none: the problem itself, and None.
        """
        return self, None

    @abstractmethod
    def first_samples(self: Sum) -> Sum | None:
        """Return the problem of each node's first term alone, to compile on; None where all are constants."""

    def widened(self: Sum, n_features: int) -> Sum:
        """Return the same problem in a space of more features, which no term depends on."""
        if n_features != self.n_features:
            raise InputError(f"the problem has {self.n_features} features and cannot have {n_features}")
        return self

    def with_smoothness_above(self: Sum, limit: np.ndarray) -> Sum:
        """Return the same problem with L raised to 1.05·limit (one per node) where it is at most that.

        Any larger L is valid. Linear models need none, and are returned as they are.
        """
        return self

    @abstractmethod
    def term(self, row: int) -> Term:
        """Return one term as an object (for the literal algorithms and for tests)."""
