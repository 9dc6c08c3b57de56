"""The problem: n nodes, each with its samples and its own ℓ2 term, minimise the sum together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem import evaluation, gaps
from adfs.problem.finite_sum import LARGEST, SMALLEST, FiniteSum, check_count, check_sigma
from adfs.problem.logistic import Multinomial
from adfs.problem.losses import Loss, get_loss
from adfs.problem.penalties import check_l1
from adfs.problem.samples import (
    Labels,
    Matrix,
    Rows,
    Samples,
    ShiftedLabels,
    batch_smoothness,
    label_at,
    rows_of,
    sparse,
)
from adfs.problem.shards import Shard, as_rows, check_offset, make_shard, split, stack_shards
from adfs.problem.terms import LinearTerm

#: Cached properties that do not depend on the offsets of the margins.
_WITHOUT_OFFSETS = ("active", "kappa", "batch_smoothness")


class Problem(FiniteSum):
    """Minimise F(θ) = Σ_i [ Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖² ] over nodes i and their samples j.

    With ``l1`` every node has a term λ_i‖θ‖₁ too: the elastic net. With an ``offset`` the loss of a sample is
    ℓ(x_ijᵀθ + o_ij; y_ij).

    The loss ``"multinomial"`` has K outputs, one per class: θ is then a (K, p) matrix laid out row by row,
    and a sample's margins are Θx.

    See :doc:`/glossary` for the words that are used here and elsewhere.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (N, d)
        All samples; they are split over the nodes. Use :meth:`from_shards` for data that is already split.
    y : array-like of shape (N,)
        Labels ±1 for classification losses, 0 … K − 1 for the multinomial one, finite targets for
        regression (losses with a log link take targets of at least 0).
    loss : str or Loss
        The name of a registered loss (`adfs.problem.LOSSES`), or an instance with its parameters.
    sigma : float or array-like of shape (n_nodes,)
        σ_i, the strong convexity of each node's ℓ2 term; only its sum matters to the solution.
    n_nodes : int, optional
        Number of nodes; 1 when not given, or as many as the partition has lists.
    partition : str or sequence of index arrays
        ``"contiguous"``, ``"random"``, ``"label"``, or the rows of each node.
    sample_weight : array-like of shape (N,), optional
        w, 1 when not given.
    offset : array-like of shape (N,), or (N, K) for K outputs, optional
        o, what is added to the margins: 0 when not given. The logarithm of an exposure, for counts.
    l1 : float or array-like of shape (n_nodes,), optional
        λ_i, at least 0, each node's as σ_i is: only the sum over the nodes matters to the solution.
    seed : int, optional
        Seed of a random partition.

    Attributes
    ----------
    X, y, weights, offset
        The samples, node after node; ``offset`` is None when none was given.
    n_features : int
        d: the number of columns, times that of outputs. `FiniteSum` describes the other attributes.

    Examples
    --------
    >>> import numpy as np
    >>> import adfs
    >>> X = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0]])
    >>> problem = adfs.Problem(X, [1, -1, 1, -1], loss="logistic", sigma=0.5, n_nodes=2)
    >>> problem
    Problem(loss='logistic', n_nodes=2, n_samples=4, n_features=2, dense)
    >>> round(float(problem.objective(np.zeros(2)) / np.log(2)), 12)
    4.0
    """

    def __init__(
        self,
        X: Matrix,
        y: ArrayLike,
        loss: str | Loss = "logistic",
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        n_nodes: int | None = None,
        *,
        partition: str | Sequence[ArrayLike] = "contiguous",
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        l1: ArrayLike | None = None,
        seed: int | None = 0,
        **partition_options: float,
    ) -> None:
        chosen = get_loss(loss)
        whole = make_shard(X, y, sample_weight, chosen, "", offset)
        if whole.y.size == 0:
            raise InputError("X has no rows")
        if n_nodes is None:
            n_nodes = 1 if isinstance(partition, str) else len(partition)
        # Rows are stored node after node; the order is kept to name a row as the caller knows it.
        parts = split(partition, whole.y, check_count(n_nodes), seed=seed, **partition_options)
        order = np.concatenate(parts)
        node_starts = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
        if np.array_equal(order, np.arange(order.size)):
            self._set(chosen, whole, node_starts, sigma, None)
        else:
            self._set(chosen, whole.take(order), node_starts, sigma, order)
        self.l1 = check_l1(l1, self.n_nodes)
        self._check_range(lambda j: f"row {int(order[j])}")

    @classmethod
    def from_shards(
        cls,
        shards: Iterable[object],
        loss: str | Loss = "logistic",
        sigma: float | Sequence[float] | np.ndarray = 1.0,
        *,
        l1: ArrayLike | None = None,
    ) -> Problem:
        """Build a problem from data that is already split, one ``(X, y)`` per node.

        Weights and offsets of the margins may follow: ``(X, y, weights, offset)``; None stands for none.

        Examples
        --------
        >>> shards = [([[1.0]], [0.5]), ([[2.0], [3.0]], [1.0, 2.0], [1.0, 0.0])]
        >>> Problem.from_shards(shards, loss="squared", sigma=[1.0, 2.0]).node_starts.tolist()
        [0, 1, 3]
        """
        chosen = get_loss(loss)
        checked: list[Shard] = []
        for number, shard in enumerate(shards):
            parts = tuple(shard) if isinstance(shard, Sequence) else ()
            if len(parts) not in (2, 3, 4):
                got = f"{len(parts)} parts" if parts else type(shard).__name__
                raise InputError(
                    f"shard {number} must be (X, y), (X, y, weights) or (X, y, weights, offset), got {got}"
                )
            # Weights and offsets may be left out at the end.
            X, y, weights, offset = (*parts, None, None)[:4]
            checked.append(make_shard(X, y, weights, chosen, f"shard {number}: ", offset))
        if not checked:
            raise InputError("no shards were given; there must be at least one node")
        stacked, node_starts = stack_shards(checked)
        problem = cls.__new__(cls)
        problem._set(chosen, stacked, node_starts, sigma, None)
        problem.l1 = check_l1(l1, problem.n_nodes)
        node = problem.node_of_row
        problem._check_range(lambda j: f"shard {node[j]}: row {j - node_starts[node[j]]}")
        return problem

    @classmethod
    def stacked(
        cls,
        X: Matrix,
        y: np.ndarray,
        weights: np.ndarray,
        node_starts: np.ndarray,
        loss: Loss,
        sigma: float | Sequence[float] | np.ndarray,
        offset: np.ndarray | None = None,
    ) -> Problem:
        """Build a problem from rows that are sorted by node; see the attribute ``node_starts``."""
        problem = cls.__new__(cls)
        problem._set(loss, make_shard(X, y, weights, loss, "", offset), np.array(node_starts), sigma, None)
        return problem

    def with_l1(self, l1: ArrayLike | None, columns: np.ndarray | None = None) -> Problem:
        """Return the same problem with terms λ_i Σ_k c_k|θ_k|; ``columns`` has c (d,), 1 when left out."""
        changed = self._with_data(self.data)
        changed.l1, changed.l1_columns = check_l1(l1, self.n_nodes), columns
        return changed

    def with_ridge_columns(self, columns: np.ndarray) -> Problem:
        """Return the problem whose ℓ2 terms count the columns with 1 in ``columns`` (d,) only."""
        changed = self._with_data(self.data)
        changed.ridge_columns = columns
        return changed

    def _with_data(self, data: Shard) -> Problem:
        """Return the same problem with other samples in the places of its own."""
        changed = Problem.__new__(Problem)
        changed._set(self.loss, data, self.node_starts, self.sigma, self._row_index)
        changed.l1, changed.l1_columns, changed.ridge_columns = self.l1, self.l1_columns, self.ridge_columns
        return changed

    def _set(
        self, loss: Loss, data: Shard, node_starts: np.ndarray, sigma: ArrayLike, row_index: np.ndarray | None
    ) -> None:
        # A multinomial loss without its K takes that of the offsets, or of the labels.
        if isinstance(loss, Multinomial) and loss.n_classes == 0:
            counted = int(data.y.max(initial=0.0)) + 1
            loss = Multinomial(counted if data.offset is None else data.offset.shape[1])
            if loss.n_classes < counted:
                raise InputError(f"offset has {loss.n_classes} columns and the labels {counted} classes")
        self.loss, self.smooth = loss, loss.smooth
        self.n_samples, self.n_outputs = int(data.y.size), loss.n_outputs
        self.n_features = int(data.X.shape[1]) * loss.n_outputs
        self.dual_shape = (loss.n_outputs,) if loss.several_outputs else ()
        self.X, self.y, self.weights, self.offset = data
        self.sparse = sparse(data.X)
        self.entries_per_row = data.X.nnz / max(1, self.n_samples) if self.sparse else None
        self.node_starts = node_starts
        self._row_index = row_index  # None: the rows are in the order in which they were given
        self._norms: np.ndarray | None = None
        self.sigma = check_sigma(sigma, node_starts.size - 1)
        # Other problems may share these arrays.
        for array in (self.y, self.weights, self.offset, self.node_starts, self.sigma):
            if array is not None:
                array.setflags(write=False)

    def _check_range(self, name: Callable[[int], str]) -> None:
        """Raise where squares, weights or their products leave the range of doubles; ``name`` names a row."""
        norms, weights = self.row_norms_squared, self.weights
        outside = (norms < SMALLEST) | (norms > LARGEST)
        chosen = np.flatnonzero(outside)
        # Rows of zeros are constants, whatever the sum of their squares is.
        outside[chosen] = np.asarray((self.X[chosen] != 0.0).sum(axis=1)).ravel() > 0
        # L and L/σ must be doubles with all their digits.
        with np.errstate(over="ignore", under="ignore"):
            smoothness = weights * norms * min(self.loss.beta, 1.0)
            ratio = smoothness / self.sigma.min()
        unusable = (norms > 0.0) & ((smoothness < SMALLEST) | ~np.isfinite(ratio))
        for bad, what in (
            (outside, "has a squared norm that is not a double; scale X"),
            (weights < SMALLEST, "has a weight too small to divide by"),
            (unusable, "has weight × squared norm / sigma beyond doubles; scale X, the weights or sigma"),
        ):
            if (bad & (weights > 0.0)).any():
                raise InputError(f"{name(int(np.argmax(bad & (weights > 0.0))))} {what}")

    # ------------------------------------------------------------------ sizes and constants
    # Arrays of N numbers are not kept, except the rows' norms, which a set-up needs five times.

    @property
    def rows(self) -> Rows:
        return rows_of(self.X)

    @property
    def samples(self) -> Samples:
        return Samples(self.loss, self.rows, self.labels, self.weights, self.node_starts)

    @cached_property
    def labels(self) -> Labels:
        return self.data.labels(self.loss)

    @property
    def data(self) -> Shard:
        return Shard(self.X, self.y, self.weights, self.offset)

    @cached_property
    def shards(self) -> list[Shard]:
        """What each node holds, as views (copies of the index arrays when sparse)."""
        return [self.data.take(slice(a, b)) for a, b in pairwise(self.node_starts)]

    @property
    def row_index(self) -> np.ndarray:
        order = np.arange(self.n_samples) if self._row_index is None else self._row_index
        order.setflags(write=False)
        return order

    @property
    def row_norms_squared(self) -> np.ndarray:
        if self._norms is None:
            self._norms = evaluation.row_norms_squared(self.rows, self.n_samples)
            self._norms.setflags(write=False)
        return self._norms

    @cached_property
    def active(self) -> np.ndarray:
        """Which rows are more than a constant: q > 0 and w > 0; shape (N,), bool."""
        return np.asarray((self.row_norms_squared > 0.0) & (self.weights > 0.0))

    @property
    def smoothness(self) -> np.ndarray:
        """L_ij = w β q, 0 on inactive rows; ``inf`` on active ones of a non-smooth loss; shape (N,)."""
        if self.loss.smooth:
            return np.asarray(self.weights * self.loss.beta * self.row_norms_squared)
        return np.where(self.active, np.inf, 0.0)

    @cached_property
    def batch_smoothness(self) -> np.ndarray:
        """λ_max(β X_iᵀ W_i X_i), shape (n,)."""
        return batch_smoothness(self.X, self.weights, self.node_starts, self.loss.beta)

    def merged(self) -> Problem:
        if self.n_nodes == 1:
            return self
        merged = self._with_data(self.data)
        merged.node_starts = np.array([0, self.n_samples], dtype=np.int64)
        merged.sigma = check_sigma(self.total_sigma, 1)
        merged.l1 = None if self.l1 is None else np.array([self.l1.sum()])
        return merged

    def with_offset(self, offset: np.ndarray) -> Problem:
        """Return the same problem with other offsets of the margins, (N,) or (N, K)."""
        checked = check_offset(offset, self.n_samples, self.loss, "")
        changed = self._with_data(self.data._replace(offset=checked))
        # Offsets do not change these, which take a pass over the rows each.
        known = {name: self.__dict__[name] for name in _WITHOUT_OFFSETS if name in self.__dict__}
        changed.__dict__.update(known)
        return changed

    def first_samples(self) -> Problem | None:
        # Kernels are compiled on the first sample of each node, which takes no time beside the compilation.
        first = [shard.take(slice(1)) for shard in self.shards]
        small = Problem.from_shards(first, self.loss, self.sigma).with_l1(self.l1, self.l1_columns)
        return small if small.active.any() else None

    def widened(self, n_features: int) -> Problem:
        """Return the same problem with columns of zeros on the right of its sparse rows."""
        if n_features == self.n_features:
            return self
        if not self.sparse or n_features < self.n_features or n_features % self.n_outputs:
            raise InputError(
                f"theta has {self.n_features} entries here and {n_features} elsewhere; "
                "give all shards the same columns and classes"
            )
        # CSR rows do not store their width: nothing is copied.
        shape = (self.n_samples, n_features // self.n_outputs)
        X = sp.csr_array((self.X.data, self.X.indices, self.X.indptr), shape=shape)
        return self._with_data(self.data._replace(X=X)).with_l1(self.l1)

    def with_sparse_rows(self) -> Problem:
        return self if self.sparse else self._with_data(self.data._replace(X=as_rows(sp.csr_array(self.X))))

    def identity(self) -> tuple[list[object], list[np.ndarray]]:
        """Return the loss, and the arrays of the samples and nodes."""
        arrays = [self.node_starts, self.sigma, *self.rows, self.y, self.weights]
        optional = (self.offset, self.l1, self.l1_columns, self.ridge_columns)
        return [self.loss], arrays + [array for array in optional if array is not None]

    def term(self, row: int) -> LinearTerm:
        x = np.asarray(self.X[[row]].toarray().ravel() if self.sparse else self.X[row])
        weight = float(self.weights[row])
        if not self.loss.several_outputs:
            return LinearTerm(x, label_at(self.labels, row), weight, self.loss)
        shift = None if self.offset is None else self.offset[row]
        return LinearTerm(x, int(self.y[row]), weight, self.loss, shift)

    @staticmethod
    def _checked(vector: ArrayLike, name: str, size: int) -> np.ndarray:
        # The kernels do not check bounds, and they are compiled once for contiguous float64.
        out = np.ascontiguousarray(vector, dtype=np.float64)
        if out.shape != (size,):
            raise InputError(f"{name} must have shape ({size},), got {out.shape}")
        return out

    # ------------------------------------------------------------------ the primal

    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j w_ij ℓ(x_ijᵀθ; y_ij), shape (n,), or (n, k) for θ of shape (k, d)."""
        theta = np.asarray(theta, dtype=np.float64)
        if theta.ndim == 1:
            return evaluation.loss_sums(self.samples, self._checked(theta, "theta", self.n_features))
        if theta.ndim != 2 or theta.shape[1] != self.n_features:
            raise InputError(
                f"theta must have shape ({self.n_features},) or (k, {self.n_features}), got {theta.shape}"
            )
        if self.loss.several_outputs:
            return np.column_stack([self.loss_sums(point) for point in theta])
        return evaluation.loss_sums_at(self.samples, np.ascontiguousarray(theta.T))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Return w_ij ∇ℓ(x_ijᵀθ; y_ij), shape (N,) or (N, K); a row's bits do not depend on the others."""
        theta = self._checked(theta, "theta", self.n_features)
        return evaluation.loss_slopes(self.samples, theta).reshape(self.n_samples, *self.dual_shape)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        theta = self._checked(theta, "theta", self.n_features)
        # (p, K) to θ's layout, output by output.
        if self.loss.several_outputs:
            return np.asarray((self.X.T @ self.slopes(theta)).T.ravel() + self._penalty_gradient(theta))
        slopes = self.weights * evaluation.loss_derivatives(self.loss, self.X @ theta, self.labels)
        return np.asarray(self.X.T @ slopes + self._penalty_gradient(theta))

    def _penalty_gradient(self, theta: np.ndarray) -> np.ndarray:
        whole = self.whole_penalty
        gradient = whole.sigma * whole.ridge_part(theta)
        return gradient if whole.l1 is None else gradient + whole.l1 * np.sign(theta)

    def margins_at(self, theta: np.ndarray) -> np.ndarray:
        margins, labels = self.X @ theta, self.labels
        return np.asarray(margins + labels.shift if isinstance(labels, ShiftedLabels) else margins)

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        if self.loss.several_outputs:
            raise InputError(f"the loss {self.loss.name!r} has several outputs: no Hessian is formed")
        theta = self._checked(theta, "theta", self.n_features)
        curvatures = self.weights * evaluation.loss_curvatures(self.loss, self.X @ theta, self.labels)
        products = self.X.T @ (sp.diags_array(curvatures) @ self.X)
        dense = products.toarray() if self.sparse else products
        return np.asarray(dense + np.diag(self.total_sigma * self.ridge_mask))

    # ------------------------------------------------------------------ the dual

    def _checked_duals(self, duals: np.ndarray) -> np.ndarray:
        """Return dual variables (N, *dual_shape) as kernels take them, (N, K)."""
        out = np.ascontiguousarray(duals, dtype=np.float64)
        if out.shape != (self.n_samples, *self.dual_shape):
            raise InputError(f"s must have shape {(self.n_samples, *self.dual_shape)}, got {out.shape}")
        return out.reshape(self.n_samples, self.n_outputs)

    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        checked = self._checked_duals(duals)
        out = checked if in_place else checked.copy()
        evaluation.clip_to_domain(self.samples, self.active, out)
        return out.reshape(self.n_samples, *self.dual_shape)

    def row_total(self, duals: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij, the nodes' sums added in their order; shape (d,)."""
        s = self._checked_duals(duals)
        return evaluation.weighted_row_total(self.rows, self.node_starts, s, self.n_features)

    def row_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j x_ij s_ij, shape (n, d)."""
        s = self._checked_duals(duals)
        return evaluation.weighted_row_sums(self.rows, self.node_starts, s, self.n_features)

    def conjugate_sums(self, duals: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j w_ij ℓ*(s_ij/w_ij), shape (n,); infinite outside the domain."""
        return evaluation.conjugate_sums(self.samples, self.active, self._checked_duals(duals))

    def gap_parts(self, duals: np.ndarray, theta: np.ndarray, slack: float = 0.0) -> np.ndarray:
        s, theta = self._checked_duals(duals), self._checked(theta, "theta", self.n_features)
        scales = self.margin_scales
        return gaps.gap_parts(self.samples, self.active, s, theta, self.loss.beta, scales, slack)

    @cached_property
    def margin_scales(self) -> np.ndarray:
        return gaps.margin_scales(self.samples, self.active)

    def __repr__(self) -> str:
        kind = "sparse" if self.sparse else "dense"
        return (
            f"Problem(loss={self.loss.name!r}, n_nodes={self.n_nodes}, n_samples={self.n_samples}, "
            f"n_features={self.n_features}, {kind})"
        )
