"""The nodes' penalties (σ_i/2)‖θ‖² + λ_i Σ_k c_k|θ_k|, in the form that kernels take and summed over nodes.

At a centre x the iterate is θ = soft(x, λ_i c)/σ_i, and x/σ_i without an ℓ1 term. Kernels pass the penalty to
`shrunk`, which is compiled to nothing where the type of the penalty is `Ridge`. c_k is 1, or 0 for a column
without an ℓ1 term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import ArrayLike

from adfs.compilation import compiled, overloads
from adfs.errors import InputError
from adfs.problem.samples import kind_of


class Ridge(NamedTuple("NoL1", [])):
    """No ℓ1 term at any node."""

    __slots__ = ()


class ElasticNet(NamedTuple):
    """λ_i of a block's nodes, ``l1`` (n,), and c of the columns, ``columns`` (d,)."""

    l1: np.ndarray
    columns: np.ndarray


Penalty = Ridge | ElasticNet


def soft(x: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    """Return x moved towards 0 by a threshold, 0 where it is nearer."""
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0))


def shrunk(penalty: Penalty, i: int | np.uint64, k: int | np.uint64, x: float) -> float:
    """Return soft(x, λ_i c_k) for entry k of the centre of the block's node i."""
    raise NotImplementedError("compiled code only")


@overloads(shrunk)
def _shrunk(penalty: types.Type, i: types.Type, k: types.Type, x: types.Type) -> Callable[..., object]:
    # Soft thresholding of one number, without calls.
    def net(penalty: ElasticNet, i: int, k: int, x: float) -> float:
        threshold = penalty.l1[i] * penalty.columns[k]
        if x > threshold:
            return x - threshold  # type: ignore[no-any-return]
        return x + threshold if x < -threshold else 0.0

    return net if kind_of(penalty) is ElasticNet else (lambda penalty, i, k, x: x)


def shrink_rows(penalty: Penalty, centers: np.ndarray) -> np.ndarray:
    """Return soft(x_i, λ_i c) of all the block's nodes, (n, d)."""
    if isinstance(penalty, Ridge):
        return centers
    return soft(centers, penalty.l1[:, None] * penalty.columns)


@compiled
def _weighted_sizes(weights: np.ndarray, theta: np.ndarray) -> float:
    total = 0.0
    for k in range(theta.size):
        total += weights[k] * abs(theta[k])
    return total


@dataclass(frozen=True)
class WholePenalty:
    """(σ/2) Σ_k r_k θ_k² + Σ_k Λ_k|θ_k|, the sum over all nodes.

    Attributes
    ----------
    sigma : float
    l1 : ndarray of shape (d,), or None
        Λ_k = c_k Σλ_i, where there is an ℓ1 term.
    total_l1 : float
        Σλ_i.
    ridge_columns : ndarray of shape (d,), or None
        r_k: 1, and 0 for a column without a penalty; all 1 when None.
    """

    sigma: float
    l1: np.ndarray | None = None
    total_l1: float = 0.0
    ridge_columns: np.ndarray | None = None

    def ridge_part(self, theta: np.ndarray) -> np.ndarray:
        """Return θ (…, d) with 0 in the columns without a penalty: σ times it is the ridge's gradient."""
        return theta if self.ridge_columns is None else theta * self.ridge_columns

    def sizes(self, theta: np.ndarray) -> float:
        """Return the ℓ1 term at θ (d,)."""
        return 0.0 if self.l1 is None else _weighted_sizes(self.l1, np.ascontiguousarray(theta))

    def minimizer(self, row_total: np.ndarray) -> np.ndarray:
        """Return θ̂, the minimiser of the penalty + θᵀ(row total); 0 in unpenalised columns; (d,)."""
        # A column without a penalty has no minimiser of its own: a caller that has one moves it.
        total = self.ridge_part(row_total)
        if self.l1 is None:
            return np.asarray(-total / self.sigma)
        return np.asarray(soft(-total, self.l1) / self.sigma)

    def apart(self, row_total: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Return what `close_gap` wants of the penalty at θ and of the total of the dual variables.

        With g the penalty, g(θ) + g*(v) − θᵀv at v = −total is (σ/2)‖θ − θ̂‖² + Σ_k|θ_k|(Λ_k − z_k sign θ_k),
        z being v cut off at ±Λ: nothing cancels. Returned are σ(θ − θ̂), (d,), the ℓ1 term at θ, and the sum.
        """
        if self.l1 is None:
            return self.ridge_part(row_total + self.sigma * theta), 0.0, 0.0
        # |θ_k|(Λ_k − z_k sign θ_k) is at least 0 because |z_k| ≤ Λ_k.
        cut = np.clip(-row_total, -self.l1, self.l1)
        extra = float(np.abs(theta) @ (self.l1 - cut * np.sign(theta)))
        return self.sigma * (theta - self.minimizer(row_total)), self.sizes(theta), extra

    def centers(self, row_total: np.ndarray, sigma: np.ndarray, l1: np.ndarray | None) -> np.ndarray:
        """Return where centres start, (n, d): each at θ̂, with the sum −(row total), from σ_i and λ_i."""
        # Nodes start at the same θ̂, and their centres sum to −(row total).
        theta = self.minimizer(row_total)
        if self.l1 is None or l1 is None:
            return np.asarray(sigma[:, None] * theta)
        rest = np.clip(-row_total, -self.l1, self.l1)  # Λ times a subgradient of the ℓ1 norm at θ̂
        return np.asarray(sigma[:, None] * theta + (l1[:, None] / self.total_l1) * rest)


def one_per_node(name: str, given: ArrayLike, n_nodes: int) -> np.ndarray:
    """Return a number, or one number per node, as an array (n,) of its own."""
    try:
        values = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or one number per node, got {given!r}") from None
    if values.ndim == 0:
        values = np.full(n_nodes, float(values))
    if values.shape != (n_nodes,):
        raise InputError(
            f"{name} must be one number or one per node ({n_nodes} nodes), got shape {values.shape}"
        )
    return values


def check_l1(l1: ArrayLike | None, n_nodes: int) -> np.ndarray | None:
    """Return λ_i as one number of at least 0 per node, (n,); None where all are 0."""
    if l1 is None:
        return None
    values = one_per_node("l1", l1, n_nodes)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
    if bad.size:
        raise InputError(
            f"l1 must be finite and at least 0 at every node, node {bad[0]} has {values[bad[0]]:g}"
        )
    # All zero is no ℓ1 term: the kernels without one are faster.
    values.setflags(write=False)
    return values if values.any() else None
