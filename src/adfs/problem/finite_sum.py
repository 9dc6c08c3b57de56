"""What everything outside this folder sees of a problem, whatever its terms are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem.evaluation import add_squares, node_sums, squared_norm
from adfs.problem.gaps import Gap, close_gap
from adfs.problem.losses import Loss
from adfs.problem.optimum import Optimum, find_optimum
from adfs.problem.penalties import ElasticNet, Penalty, Ridge, WholePenalty, one_per_node
from adfs.problem.samples import Labels, Matrix, Samples
from adfs.problem.shards import Shard

if TYPE_CHECKING:
    from adfs.problem.terms import Term

Sum = TypeVar("Sum", bound="FiniteSum")

#: The ends of what doubles hold with all their digits.
SMALLEST, LARGEST = float(np.finfo(np.float64).tiny), float(np.finfo(np.float64).max)


def check_sigma(sigma: ArrayLike, n_nodes: int) -> np.ndarray:
    """Return σ_i as one positive number per node, shape (n,)."""
    values = one_per_node("sigma", sigma, n_nodes)
    if not np.all(np.isfinite(values)) or np.any(values <= 0.0):
        bad = int(np.flatnonzero(~(np.isfinite(values) & (values > 0.0)))[0])
        raise InputError(f"sigma must be finite and above 0 at every node, node {bad} has {values[bad]:g}")
    # Quotients by σ_i, and the sum of all σ_i, must be doubles with all their digits.
    if values.min() < SMALLEST or values.max() > LARGEST / n_nodes:
        bad = int(np.argmin(values) if values.min() < SMALLEST else np.argmax(values))
        raise InputError(
            f"sigma must be between {SMALLEST:.1e} and {LARGEST:.1e} in all, node {bad} has {values[bad]:g}; "
            "scale the whole problem"
        )
    return values


def check_count(n_nodes: object) -> int:
    """Return the number of nodes, checked to be a whole number of at least 1."""
    if isinstance(n_nodes, bool) or not isinstance(n_nodes, int | np.integer) or n_nodes < 1:
        raise InputError(f"n_nodes must be a whole number of at least 1, got {n_nodes!r}")
    return int(n_nodes)


class FiniteSum(ABC):
    """Minimise F(θ) = Σ_i [ Σ_j f_ij(θ) + (σ_i/2)‖θ‖² ] over nodes i and their terms j.

    Every term has a dual variable: an array of the shape ``dual_shape``, () for a number. Sums run over a
    node's terms in their order and then over the nodes in theirs, so that the bits of a node's sums do not
    depend on the process that computes them.

    Attributes
    ----------
    n_samples, n_features, n_outputs : int
        N, the number of terms of all nodes together; d, the dimension of θ; K, the margins of a sample.
    node_starts : ndarray of shape (n_nodes + 1,)
        Node i holds the terms ``node_starts[i]:node_starts[i + 1]``.
    sigma : ndarray of shape (n_nodes,)
        σ_i.
    l1 : ndarray of shape (n_nodes,), or None
        λ_i, where every node has a term λ_i‖θ‖₁ too.
    l1_columns : ndarray of shape (d,), or None
        Which entries of θ that term counts, and how much; all alike when None.
    ridge_columns : ndarray of shape (d,), or None
        Which entries of θ the nodes' ℓ2 terms count, 1 or 0; all when None.
    dual_shape : tuple of int
        The shape of one term's dual variable.
    loss : Loss
        The loss of the samples; one named ``"general"``, which offers nothing, for terms with their own prox.
    smooth, certifiable : bool
        Whether all terms have Lipschitz gradients, and whether all have conjugates, without which there is no
        duality gap.
    linear : bool
        Whether the terms are losses of linear functions of θ. The methods under "samples of linear models"
        raise :class:`InputError` on other terms, whose dual steps must also stay below L: see
        `with_smoothness_above`.
    sparse : bool
        Whether the rows are stored as CSR.
    entries_per_row : float or None
        The mean number of non-zeros per row, None where rows are dense.
    X, y, weights, offset
        The samples of a linear model, node after node.
    """

    n_samples: int
    n_features: int
    n_outputs: int = 1
    node_starts: np.ndarray
    sigma: np.ndarray
    l1: np.ndarray | None = None
    l1_columns: np.ndarray | None = None
    ridge_columns: np.ndarray | None = None
    dual_shape: tuple[int, ...]
    loss: Loss
    smooth: bool
    certifiable: bool = True
    linear: bool = True
    sparse: bool = False
    entries_per_row: float | None = None
    X: Matrix
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray | None = None

    # ------------------------------------------------------------------ sizes and constants

    @property
    def loss_name(self) -> str:
        """The name of the loss."""
        return self.loss.name

    @property
    def assumes_curvature(self) -> bool:
        """Whether terms have a curvature without a bound, so that a run assumes one for each of them."""
        return self.loss.assumes_curvature

    @property
    def n_nodes(self) -> int:
        """n, the number of nodes."""
        return int(self.node_starts.size - 1)

    @property
    def node_of_row(self) -> np.ndarray:
        """The node of each term, shape (N,)."""
        return np.repeat(np.arange(self.n_nodes), np.diff(self.node_starts))

    @property
    @abstractmethod
    def active(self) -> np.ndarray:
        """Which terms are more than a constant; shape (N,), bool."""

    @property
    @abstractmethod
    def smoothness(self) -> np.ndarray:
        """L_ij or anything above, 0 on constants; ``inf`` on terms that are not smooth; shape (N,)."""

    @cached_property
    def kappa(self) -> np.ndarray:
        """κ_i = Σ_j L_ij/σ_i, shape (n,)."""
        # Row after row: the same bits for a node wherever it stands among others.
        return np.asarray(node_sums(self.smoothness, self.node_starts) / self.sigma)

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
        return float(np.max(1.0 + self.batch_smoothness / self.sigma))

    @property
    def total_sigma(self) -> float:
        """Σ_i σ_i, the strong convexity of the whole objective."""
        return float(self.sigma.sum())

    @property
    def penalty(self) -> Penalty:
        """The nodes' own terms as kernels take them, apart from σ_i."""
        if self.l1 is None:
            return Ridge()
        return ElasticNet(self.l1, np.ones(self.n_features) if self.l1_columns is None else self.l1_columns)

    @property
    def ridge_mask(self) -> np.ndarray:
        """1 for each entry of θ that the ℓ2 terms count, 0 for the others; (d,), as kernels take it."""
        return np.ones(self.n_features) if self.ridge_columns is None else self.ridge_columns

    @property
    def whole_penalty(self) -> WholePenalty:
        """The sum of the nodes' own terms."""
        return self.penalty_of(self.total_sigma, None if self.l1 is None else float(self.l1.sum()))

    def penalty_of(self, total_sigma: float, total_l1: float | None) -> WholePenalty:
        """Return the sum of the own terms of nodes with these sums of σ_i and λ_i."""
        if total_l1 is None:
            return WholePenalty(total_sigma, ridge_columns=self.ridge_columns)
        # Σ_i λ_i c_k, column by column.
        columns = np.ones(self.n_features) if self.l1_columns is None else self.l1_columns
        return WholePenalty(total_sigma, total_l1 * columns, total_l1, self.ridge_columns)

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
            squares = 0.5 * self.total_sigma * squared_norm(self.whole_penalty.ridge_part(theta))
            return float(sums.sum() + squares + self.whole_penalty.sizes(theta))
        return add_squares(sums, self.whole_penalty, theta)

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

        ``slack`` bounds what margins are off by besides their rounding.
        """

    def primal_from_dual(self, duals: np.ndarray) -> np.ndarray:
        """Return θ = −Σ s / Σ σ_i, the primal point of the dual variables; shape (d,).

        With an ℓ1 term, soft(−Σ s, Σ λ_i) / Σ σ_i.
        """
        return self.whole_penalty.minimizer(self.row_total(duals))

    def dual_objective(self, duals: np.ndarray) -> float:
        """Return D = −Σ f*_ij − ‖Σ s‖²/(2 Σ σ_i), at most F(θ) for every θ.

        It is −∞ where a dual variable lies outside its domain: see `clip_to_domain`.
        """
        theta = self.primal_from_dual(duals)
        return float(-self.conjugate_sums(duals).sum() - 0.5 * self.total_sigma * squared_norm(theta))

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
        residual, *l1 = self.whole_penalty.apart(row_total, theta)
        return close_gap(self.gap_parts(duals, theta), theta, residual, self.total_sigma, *l1)

    # ------------------------------------------------------------------ samples of linear models

    def _no_rows(self) -> InputError:
        return InputError("general terms have no rows: only linear models (adfs.Problem) have samples")

    @property
    def data(self) -> Shard:
        """The samples of all nodes, one after the other."""
        raise self._no_rows()

    @property
    def samples(self) -> Samples:
        """The samples in the form that kernels take."""
        raise self._no_rows()

    @property
    def labels(self) -> Labels:
        """The labels or targets in the form that kernels take, with the offsets of the margins."""
        raise self._no_rows()

    @property
    def row_index(self) -> np.ndarray:
        """Where each row stood in the X that was given, shape (N,)."""
        raise self._no_rows()

    @property
    def row_norms_squared(self) -> np.ndarray:
        """q_ij = ‖x_ij‖², shape (N,)."""
        raise self._no_rows()

    @property
    def margin_scales(self) -> np.ndarray:
        """The scales that bound the rounding of the margins, see `gaps.margin_scales`; shape (n, 5)."""
        raise self._no_rows()

    def margins_at(self, theta: np.ndarray) -> np.ndarray:
        """Return the margins x_ijᵀθ with their offsets, as the loss takes them; shape (N,)."""
        raise self._no_rows()

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """Return ∇²F(θ) of a model with one output, dense, shape (d, d)."""
        raise self._no_rows()

    def with_sparse_rows(self: Sum) -> Sum:
        """Return the same problem with its rows stored as CSR; terms without rows stay as they are."""
        return self

    # ------------------------------------------------------------------ the rest

    def optimum(self, tol: float = 1e-12) -> Optimum:
        """Return the minimiser, certified by its relative duality gap; computed once and kept.

        The methods of the package find it, on one machine: Newton's method or L-BFGS, interior points for
        losses with kinks, APCG with an ℓ1 term and for general terms. A warning says if ``tol`` was not
        reached; ``gap`` is what was.
        """
        known: Optimum | None = self.__dict__.get("_optimum")
        if known is None or known.gap > tol:
            known = self.__dict__["_optimum"] = find_optimum(self, tol)
        return known

    @abstractmethod
    def identity(self) -> tuple[list[object], list[np.ndarray]]:
        """Return what decides the bits of a run, as words (what prints the same is the same) and arrays."""

    @abstractmethod
    def merged(self: Sum) -> Sum:
        """Return the same problem on one node, as a machine that holds all the data sees it."""

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
