"""The problem: n nodes, each with its samples and its own ℓ2 term, minimise the sum together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem import evaluation, gaps
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.logistic import Multinomial
from adfs.problem.losses import Loss, get_loss
from adfs.problem.samples import (
    Matrix,
    Samples,
    ShiftedLabels,
    batch_smoothness,
    label_at,
    labels_of,
    rows_of,
)
from adfs.problem.shards import (
    Shard,
    arrange,
    as_rows,
    check_count,
    check_penalty,
    check_squares,
    check_weights,
    make_shard,
    stack_shards,
)
from adfs.problem.terms import LinearTerm

_LARGEST_BASIS = 10**8  # numbers in the basis of the rows of a wide problem


class Parts(NamedTuple):
    """What a `Problem` is made of, checked: its attributes of the same names."""

    loss: Loss
    data: Shard
    node_starts: np.ndarray
    sigma: np.ndarray
    l1: np.ndarray | None = None
    l1_columns: np.ndarray | None = None
    ridge_columns: np.ndarray | None = None
    # The order in which the rows were given; None where it is that of the problem.
    row_index: np.ndarray | None = None
    # `gaps.scan_rows` where it is known: it depends on rows, weights and nodes only.
    scan: tuple[np.ndarray, np.ndarray] | None = None


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
        σ_i, the strong convexity of each node's ℓ2 term; only its sum matters to the solution. With an ℓ1
        term all may be 0: the lasso.
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
        data = make_shard(X, y, sample_weight, chosen, "", offset)
        if data.y.size == 0:
            raise InputError("X has no rows")
        if n_nodes is None:
            n_nodes = 1 if isinstance(partition, str) else len(partition)
        # Rows are stored node after node; the order is kept to name a row as the caller knows it.
        count = check_count(n_nodes)
        node_starts, order = arrange(partition, data.y, count, seed=seed, **partition_options)
        if order is not None:
            data = data.take(order)
        own = check_penalty(sigma, l1, count)
        self._set(Parts(chosen, data, node_starts, *own, row_index=order))
        check_squares(self, lambda j: f"row {j if order is None else int(order[j])}")

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
        own = check_penalty(sigma, l1, len(checked))
        problem._set(Parts(chosen, stacked, node_starts, *own))
        node = problem.node_of_row
        check_squares(problem, lambda j: f"shard {node[j]}: row {j - node_starts[node[j]]}")
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
        l1: float = 0.0,
        l1_columns: np.ndarray | None = None,
        ridge_columns: np.ndarray | None = None,
    ) -> Problem:
        """Build a problem from rows that are sorted by node; see the attribute ``node_starts``.

        Rows are as `as_rows` returns them, and labels and offsets fit the loss. Weights are checked here.
        """
        problem, n_nodes = cls.__new__(cls), len(node_starts) - 1
        # Copies, because the arrays of a problem cannot be written to.
        shift = None if offset is None else np.array(offset, dtype=np.float64, order="C")
        labels = np.array(y, dtype=np.float64)
        data = Shard(X, labels, check_weights(weights, labels.size, ""), shift)
        own = check_penalty(sigma, l1, n_nodes)
        problem._set(Parts(loss, data, np.array(node_starts), *own, l1_columns, ridge_columns))
        return problem

    @np.errstate(over="ignore", invalid="ignore")  # `check_squares` names the row
    def _set(self, parts: Parts) -> None:
        """Set all attributes."""
        loss, data, self.node_starts, self.sigma, self.l1, self.l1_columns, self.ridge_columns = parts[:7]
        # A multinomial loss without its K takes that of the offsets, or of the labels.
        if isinstance(loss, Multinomial) and loss.n_classes == 0:
            counted = int(data.y.max(initial=0.0)) + 1
            loss = Multinomial(counted if data.offset is None else data.offset.shape[1])
            if loss.n_classes < counted:
                raise InputError(f"offset has {loss.n_classes} columns and the labels {counted} classes")
        self.loss, self.data = loss, data
        self.smooth = math.isfinite(loss.beta)
        self.assumes_curvature = loss.curvature_type == "unbounded"
        self.n_nodes, self.n_samples = int(self.node_starts.size - 1), int(data.y.size)
        self.n_outputs = loss.n_outputs
        self.n_features = int(data.X.shape[1]) * self.n_outputs
        if self.l1 is not None and self.l1_columns is None:
            self.l1_columns = np.ones(self.n_features)
        self.ridge_mask = np.ones(self.n_features) if self.ridge_columns is None else self.ridge_columns
        self.dual_shape = (self.n_outputs,) if loss.several_outputs else ()
        self.X, self.y, self.weights, self.offset = data
        self.sparse = sp.issparse(data.X)
        self.entries_per_row = data.X.nnz / max(1, self.n_samples) if self.sparse else None
        # Other problems may share these arrays.
        for array in (self.y, self.weights, self.offset, self.node_starts, self.sigma):
            if array is not None:
                array.setflags(write=False)
        self.labels, rows = labels_of(loss, self.y, self.offset), rows_of(self.X)
        self.samples = Samples(loss, rows, self.labels, self.weights, self.node_starts)
        scan = parts.scan or gaps.scan_rows(rows, self.weights, self.node_starts)
        self.row_norms_squared, scales = scan
        self.active = np.asarray((self.row_norms_squared > 0.0) & (self.weights > 0.0))
        # L_ij = w β q.
        self.smoothness = np.where(self.active, np.inf, 0.0)
        if self.smooth:
            self.smoothness = np.asarray(self.weights * loss.beta * self.row_norms_squared)
        # The rounding of a margin depends on the label and the offsets that it meets.
        if isinstance(self.labels, ShiftedLabels):
            most = np.abs(self.labels.values) + np.abs(self.labels.shift).sum(axis=1)
        else:
            most = np.abs(self.labels)
        most = most + (self.n_outputs - 1)
        squares = np.where(self.active, self.weights * most * most, 0.0)
        self.margin_scales = scales if parts.scan is None else scales.copy()
        self.margin_scales[:, 2] = evaluation.node_sums(squares, self.node_starts)
        self._parts = parts._replace(loss=loss, scan=scan)

    def _with(self, **parts: Any) -> Problem:
        """Return the problem with some of its `Parts` replaced."""
        changed = Problem.__new__(Problem)
        changed._set(self._parts._replace(**parts))
        return changed

    # ------------------------------------------------------------------ sizes and constants

    @cached_property
    def shards(self) -> list[Shard]:
        """What each node holds, as views (copies of the index arrays when sparse)."""
        return [self.data.take(slice(a, b)) for a, b in pairwise(self.node_starts)]

    @property
    def row_index(self) -> np.ndarray:
        """Where each row stood in the X that was given, shape (N,)."""
        given = self._parts.row_index
        order = np.arange(self.n_samples) if given is None else given
        order.setflags(write=False)
        return order

    @cached_property
    def batch_smoothness(self) -> np.ndarray:
        """λ_max(β X_iᵀ W_i X_i), shape (n,)."""
        return batch_smoothness(self.X, self.weights, self.node_starts, self.loss.beta)

    # ------------------------------------------------------------------ other forms of the problem

    def merged(self) -> Problem:
        if self.n_nodes == 1:
            return self
        starts = np.array([0, self.n_samples], dtype=np.int64)
        sigma, l1 = check_penalty(self.total_sigma, None if self.l1 is None else self.l1.sum(), 1)
        return self._with(node_starts=starts, sigma=sigma, l1=l1, scan=None)

    def with_offset(self, offset: np.ndarray) -> Problem:
        """Return the same problem with other offsets of the margins, (N,) or (N, K)."""
        own = np.array(offset, dtype=np.float64).reshape(self.n_samples, *self.dual_shape)
        changed = self._with(data=self.data._replace(offset=own))
        # Offsets do not change this, which may take many passes over the rows.
        if "batch_smoothness" in self.__dict__:
            changed.batch_smoothness = self.batch_smoothness
        return changed

    def first_samples(self) -> Problem | None:
        # Kernels are compiled on the first sample of each node, which takes no time beside the compilation.
        sizes = np.minimum(np.diff(self.node_starts), 1)
        first = self.data.take(self.node_starts[:-1][sizes > 0])
        starts = np.append(0, np.cumsum(sizes))
        small = self._with(data=first, node_starts=starts, row_index=None, scan=None)
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
        return self._with(data=self.data._replace(X=X), l1_columns=None, scan=None)

    def with_sparse_rows(self) -> Problem:
        if self.sparse:
            return self
        return self._with(data=self.data._replace(X=as_rows(sp.csr_array(self.X))), scan=None)

    def with_fewer_features(self) -> tuple[Problem, np.ndarray | None]:
        n, d = self.n_samples, self.n_features
        if self.n_outputs > 1 or self.l1 is not None or self.ridge_columns is not None:
            return self, None
        if n >= d or n * d > _LARGEST_BASIS:
            return self, None
        # The minimiser is a combination of the rows. With Xᵀ = QR it is θ = Qz, where z minimises the same
        # losses on the rows of Rᵀ, and ‖θ‖ = ‖z‖: an ℓ2 term stays what it is, an ℓ1 term does not.
        X = self.X.toarray() if self.sparse else self.X
        basis, triangle = scipy.linalg.qr(X.T, mode="economic")
        small = self._with(data=self.data._replace(X=np.ascontiguousarray(triangle.T)), scan=None)
        return small, np.asarray(basis)

    def identity(self) -> tuple[list[object], list[np.ndarray]]:
        """Return the loss, and the arrays of the samples and nodes."""
        arrays = [self.node_starts, self.sigma, *self.samples.rows, self.y, self.weights]
        optional = (self.offset, self.l1, self.l1_columns, self.ridge_columns)
        return [self.loss], arrays + [array for array in optional if array is not None]

    def term(self, row: int) -> LinearTerm:
        x = np.asarray(self.X[[row]].toarray().ravel() if self.sparse else self.X[row])
        weight = float(self.weights[row])
        if not self.loss.several_outputs:
            return LinearTerm(x, label_at(self.labels, row), weight, self.loss)
        shift = None if self.offset is None else self.offset[row]
        return LinearTerm(x, int(self.y[row]), weight, self.loss, shift)

    def _checked(self, name: str, values: ArrayLike) -> np.ndarray:
        """Return ``theta`` (d,), or dual variables ``s`` (N, *dual_shape), as kernels take them."""
        # The kernels do not check bounds, and they are compiled once for contiguous float64.
        out = np.ascontiguousarray(values, dtype=np.float64)
        shape = (self.n_features,) if name == "theta" else (self.n_samples, *self.dual_shape)
        if out.shape != shape:
            raise InputError(f"{name} must have shape {shape}, got {out.shape}")
        return out if name == "theta" else out.reshape(self.n_samples, self.n_outputs)

    # ------------------------------------------------------------------ the primal

    def loss_sums(self, theta: np.ndarray) -> np.ndarray:
        """Return each node's Σ_j w_ij ℓ(x_ijᵀθ; y_ij), shape (n,), or (n, k) for θ of shape (k, d)."""
        theta, d = np.ascontiguousarray(theta, dtype=np.float64), self.n_features
        if theta.shape[-1:] != (d,) or theta.ndim > 2:
            raise InputError(f"theta must have shape ({d},) or (k, {d}), got {theta.shape}")
        if theta.ndim == 1:
            samples = self.samples
            return evaluation.loss_sums(samples.loss, *samples[2:], evaluation.bare_margins(samples, theta))
        if self.loss.several_outputs:
            return np.column_stack([self.loss_sums(point) for point in theta])
        return evaluation.loss_sums_at(self.samples, np.ascontiguousarray(theta.T))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """Return w_ij ∇ℓ(x_ijᵀθ; y_ij), shape (N,) or (N, K); a row's bits do not depend on the others."""
        theta = self._checked("theta", theta)
        return evaluation.loss_slopes(self.samples, theta).reshape(self.n_samples, *self.dual_shape)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        theta, whole = self._checked("theta", theta), self.whole_penalty
        # (p, K) to θ's layout, output by output.
        gradient = (self.X.T @ self.slopes(theta)).T.ravel() + whole.sigma * (whole.ridge_columns * theta)
        return np.asarray(gradient if whole.l1 is None else gradient + whole.l1 * np.sign(theta))

    def margins_at(self, theta: np.ndarray) -> np.ndarray:
        margins = self.X @ theta
        return np.asarray(margins + self.offset if isinstance(self.labels, ShiftedLabels) else margins)

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        if self.loss.several_outputs:
            raise InputError(f"the loss {self.loss.name!r} has several outputs: no Hessian is formed")
        theta = self._checked("theta", theta)
        curvatures = self.weights * evaluation.loss_curvatures(self.loss, self.X @ theta, self.labels)
        products = self.X.T @ (sp.diags_array(curvatures) @ self.X)
        dense = products.toarray() if self.sparse else products
        return np.asarray(dense + np.diag(self.total_sigma * self.ridge_mask))

    # ------------------------------------------------------------------ the dual

    def clip_to_domain(self, duals: np.ndarray, *, in_place: bool = False) -> np.ndarray:
        checked = self._checked("s", duals)
        out = checked if in_place else checked.copy()
        labels = self.labels.values if isinstance(self.labels, ShiftedLabels) else self.labels
        evaluation.clip_to_domain(self.samples.loss, labels, self.weights, self.active, out)
        return out.reshape(self.n_samples, *self.dual_shape)

    def row_total(self, duals: np.ndarray) -> np.ndarray:
        s = self._checked("s", duals)
        rows, d = self.samples.rows, self.n_features
        return evaluation.weighted_row_total(rows, self.node_starts, s, d) if s.any() else np.zeros(d)

    def row_sums(self, duals: np.ndarray) -> np.ndarray:
        s = self._checked("s", duals)
        return evaluation.weighted_row_sums(self.samples.rows, self.node_starts, s, self.n_features)

    def conjugate_sums(self, duals: np.ndarray) -> np.ndarray:
        samples, checked = self.samples, self._checked("s", duals)
        return evaluation.conjugate_sums(samples.loss, *samples[2:], self.active, checked)

    @np.errstate(over="ignore", invalid="ignore")  # an infinite gap is what it is
    def gap_parts(self, duals: np.ndarray, theta: np.ndarray, slack: float = 0.0) -> np.ndarray:
        s, theta = self._checked("s", duals), self._checked("theta", theta)
        out, scaled, scales = np.zeros((self.n_nodes, 6)), np.empty(self.n_outputs), self.margin_scales
        samples, loss = self.samples, self.samples.loss
        margins = evaluation.bare_margins(samples, theta)
        square, beta = evaluation.inner_product(theta, theta), loss.beta
        out[:, gaps.ROWS] = scales[:, 0]
        if beta < math.inf:
            out[:, gaps.MARGINS] = gaps.margin_rounding(scales, beta, square, slack)
        roundings = gaps.row_roundings(samples.rows, self.n_samples) if beta == math.inf else scaled
        kind, sizes = (beta == math.inf, loss.link == "log"), (math.sqrt(square), slack)
        gaps.sum_gap(loss, samples[2:], self.active, s, margins, roundings, kind, sizes, scaled, out)
        if 0.0 < beta < math.inf:  # Σδ|s| is at most √(Σwδ²·Σs²/w)
            out[:, gaps.ROUNDING] = np.sqrt(2.0 / beta * out[:, gaps.MARGINS]) * np.sqrt(out[:, gaps.TIPS])
        return out

    def __repr__(self) -> str:
        return (
            f"Problem(loss={self.loss.name!r}, n_nodes={self.n_nodes}, n_samples={self.n_samples}, "
            f"n_features={self.n_features}, {'sparse' if self.sparse else 'dense'})"
        )
