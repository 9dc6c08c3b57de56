"""The nodes' penalties, and the duality gap as a sum of terms of at least 0, with a bound of its rounding.

For any θ and dual variables s with θ̂ = −Σ x s/Σσ,

    F(θ) − D(s) = Σ_j [wℓ(u_j) + wℓ*(s_j/w) − u_j s_j] + (Σσ/2)‖θ − θ̂‖²,    u_j = x_jᵀθ:

every term is at least 0, and small where the gap is. A bound of the rounding is added, so that the result is
never below the exact gap of the given θ and s. The bound is of second order in the rounding of the margins.
The value F has an error of first order, about Σ|s|ε‖x‖‖θ‖, which is counted wherever values are compared.

A node's penalty is (σ_i/2)‖θ‖² + λ_i Σ_k c_k|θ_k|, c_k being 1, or 0 for a column without an ℓ1 term. At a
centre x the iterate is θ = soft(x, λ_i c)/σ_i, and x/σ_i without an ℓ1 term. Kernels pass the penalty to
`shrunk`, which is compiled to nothing where the type of the penalty is `Ridge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from adfs.compilation import compiled, inlined, kernel
from adfs.problem.evaluation import (
    column_sums,
    finish_sum,
    inner_product,
    sum_in_order,
    two_sum,
)
from adfs.problem.losses import Loss, divergence, point_of, value, write_slope
from adfs.problem.samples import (
    Labels,
    Rows,
    add_shift,
    by_class,
    plain_label,
    row_entry,
    row_span,
    shift_size,
)

_EPS = float(np.finfo(np.float64).eps)
_OWN_ROUNDING = 2.0**-44  # of a divergence and of sums of such, relative to themselves
DIVERGENCE, VALUE, MARGINS, ROWS, TIPS, ROUNDING = range(6)  # the columns of `FiniteSum.gap_parts`


# --------------------------------------------------------------------------- penalties


class Ridge(NamedTuple("NoL1", [])):
    """No ℓ1 term at any node."""

    __slots__ = ()


class ElasticNet(NamedTuple):
    """λ_i of a block's nodes, ``l1`` (n,), and c of the columns, ``columns`` (d,)."""

    l1: np.ndarray
    columns: np.ndarray

    def shrunk(self, i: Any, k: Any, x: float) -> float:
        """Return soft(x, λ_i c_k), without calls."""
        threshold = self.l1[i] * self.columns[k]
        if x > threshold:
            return x - threshold  # type: ignore[no-any-return]
        return x + threshold if x < -threshold else 0.0


Penalty = Ridge | ElasticNet


def soft(x: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    """Return x moved towards 0 by a threshold, 0 where it is nearer."""
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0))


@by_class
def shrunk(penalty: Penalty, i: int | np.uint64, k: int | np.uint64, x: float) -> float:
    """Return soft(x, λ_i c_k) for entry k of the centre of the block's node i."""
    return x


def shrink_rows(penalty: Penalty, centers: np.ndarray) -> np.ndarray:
    """Return soft(x_i, λ_i c) of all the block's nodes, (n, d)."""
    if isinstance(penalty, Ridge):
        return centers
    return soft(centers, penalty.l1[:, None] * penalty.columns)


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
    ridge_columns : ndarray of shape (d,), or 1
        r_k: 1, and 0 for a column without a penalty.
    """

    sigma: float
    l1: np.ndarray | None = None
    total_l1: float = 0.0
    ridge_columns: np.ndarray | float = 1.0

    def sizes(self, theta: np.ndarray) -> float:
        """Return the ℓ1 term at θ (d,)."""
        return 0.0 if self.l1 is None else inner_product(self.l1, np.abs(theta))

    def objectives(self, loss_sums: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return F at p points (p, d) from the nodes' losses there (n, p); shape (p,)."""
        squares = np.einsum("kd,kd->k", self.ridge_columns * points, points)
        found = sum_in_order(loss_sums, np.zeros(len(points))) + 0.5 * self.sigma * squares
        if self.l1 is not None:
            found += [self.sizes(point) for point in points]
        return np.asarray(found)

    def minimizer(self, row_total: np.ndarray) -> np.ndarray:
        """Return θ̂, the minimiser of the penalty + θᵀ(row total); 0 in unpenalised columns; (d,)."""
        # A column without a penalty has no minimiser of its own: a caller that has one moves it.
        total = self.ridge_columns * row_total
        if self.l1 is None:
            return np.asarray(-total / self.sigma)
        # Without an ℓ2 term it is 0 for the totals in the box |total| ≤ Λ; for others there is none.
        if self.sigma == 0.0:
            return np.zeros_like(total)
        return np.asarray(soft(-total, self.l1) / self.sigma)

    def apart(self, row_total: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Return what `close_gap` wants of the penalty at θ and of the total of the dual variables.

        With g the penalty, g(θ) + g*(v) − θᵀv at v = −total is (σ/2)‖θ − θ̂‖² + Σ_k|θ_k|(Λ_k − z_k sign θ_k),
        z being v cut off at ±Λ: nothing cancels. Returned are σ(θ − θ̂), (d,), the ℓ1 term at θ, and the sum.
        """
        if self.l1 is None:
            return self.ridge_columns * (row_total + self.sigma * theta), 0.0, 0.0
        # |θ_k|(Λ_k − z_k sign θ_k) is at least 0 because |z_k| ≤ Λ_k.
        cut = np.clip(-row_total, -self.l1, self.l1)
        extra = float(np.abs(theta) @ (self.l1 - cut * np.sign(theta)))
        return self.sigma * (theta - self.minimizer(row_total)), self.sizes(theta), extra

    def box_factor(self, row_total: np.ndarray, rounding: np.ndarray) -> float:
        """Return the largest factor, at most 1, that brings totals into the box |total_k| ≤ Λ_k.

        ``rounding`` (d,) bounds the rounding of the total. Columns without an ℓ1 term do not count.
        """
        if self.l1 is None:
            return 1.0
        largest, ones = np.abs(row_total) + rounding, np.ones_like(row_total)
        beyond = (self.l1 > 0.0) & (largest > self.l1)
        factor = float(np.divide(self.l1, largest, out=ones, where=beyond).min(initial=1.0))
        return factor * (1.0 - 4.0 * _EPS) if factor < 1.0 else 1.0

    def centers(self, row_total: np.ndarray, sigma: np.ndarray, l1: np.ndarray | None) -> np.ndarray:
        """Return where centres start, (n, d): each at θ̂, with the sum −(row total), from σ_i and λ_i."""
        # Nodes start at the same θ̂, and their centres sum to −(row total).
        theta = self.minimizer(row_total)
        if self.l1 is None or l1 is None:
            return np.asarray(sigma[:, None] * theta)
        rest = np.clip(-row_total, -self.l1, self.l1)  # Λ times a subgradient of the ℓ1 norm at θ̂
        return np.asarray(sigma[:, None] * theta + (l1[:, None] / self.total_l1) * rest)


# --------------------------------------------------------------------------- the rounding of margins


@inlined
def _row_size(rows: Rows, j: int) -> tuple[float, int]:
    """Return ‖x_j‖² and how many entries of x_j are not 0."""
    start, stop = row_span(rows, j)
    squares, count = 0.0, 0
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        squares += entry * entry
        count += entry != 0.0
    return squares, count


# The scan is not given the loss, so that it is compiled once for all of them.


@compiled
def scan_rows(rows: Rows, weights: np.ndarray, node_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ‖x‖² of each row, (N,), and each node's sums that bound the rounding of its margins, (n, 5).

    The sums over active rows, of a norm and a weight above 0: of w‖x‖², of w(m + 4)²‖x‖², m being the entries
    of a row, of the part of the labels (0 here, see `Problem`), and of w; and the number of these rows.
    """
    norms, scales = np.empty(weights.size), np.zeros((node_starts.size - 1, 5))
    for i in range(scales.shape[0]):
        for j in range(node_starts[i], node_starts[i + 1]):
            squares, count = _row_size(rows, j)
            norms[j] = squares
            if squares > 0.0 and weights[j] > 0.0:
                # A margin is a sum of ``count`` products.
                scales[i, 0] += weights[j] * squares
                scales[i, 1] += weights[j] * squares * (count + 4.0) ** 2
                scales[i, 3] += weights[j]
                scales[i, 4] += 1.0
    return norms, scales


def margin_rounding(scales: np.ndarray, beta: float, square: float, slack: float = 0.0) -> np.ndarray:
    """Return half of each node's Σwβδ², δ bounding what rounding does to u; shape (n,).

    ``square`` is ‖θ‖², and ``slack`` bounds what else the margins are off by.
    """
    # Twice ½Σwβδ² for δ = ε((m + 4)‖x‖‖θ‖ + 8·labels), and the slack beside it.
    own = beta * _EPS * _EPS * (scales[:, 1] * square + 64.0 * scales[:, 2])
    return np.asarray((np.sqrt(own) + slack * np.sqrt(0.5 * beta * scales[:, 3])) ** 2)


# --------------------------------------------------------------------------- the gap


@compiled
def row_roundings(rows: Rows, count: int) -> np.ndarray:
    """Return (m + 4)‖x‖ of N = ``count`` rows, m being the entries of a row that are not 0; shape (N,)."""
    out = np.empty(count)
    for j in range(count):
        squares, entries = _row_size(rows, j)
        out[j] = (entries + 4.0) * math.sqrt(squares)
    return out


@kernel
def sum_gap(
    loss: Loss,
    data: tuple[Labels, np.ndarray, np.ndarray],
    active: np.ndarray,
    duals: np.ndarray,
    margins: np.ndarray,
    roundings: np.ndarray,
    kind: tuple[bool, bool],
    sizes: tuple[float, float],
    scaled: np.ndarray,
    out: np.ndarray,
) -> None:
    """Do the sums of `Problem.gap_parts` that run over samples; ``duals`` (N, K), ``out`` (n, 6).

    ``data`` has the labels, the weights and the starts of the nodes. ``margins`` (N, K) have no offsets yet,
    ``roundings`` (N,) are those of `row_roundings` where there are kinks. ``kind`` says whether there are
    kinks and whether there is a log link, ``sizes`` are ‖θ‖ and the slack, ``scaled`` (K,) is working memory.
    The margins are overwritten.
    """
    (y, weights, node_starts), (kinks, log_link) = data, kind
    for i in range(out.shape[0]):
        apart, apart_carry, total, total_carry, squares, rounding = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            weight = weights[j]
            label, u = plain_label(y, j), margins[j]
            # F has the rows with weight, active or not.
            if weight > 0.0:
                add_shift(y, j, 1.0, u)
                total, error = two_sum(total, weight * value(loss, point_of(loss, u), label))
                total_carry += error
            # The conjugate of a constant is finite at 0 only.
            if not active[j]:
                for k in range(scaled.size):
                    apart += math.inf if duals[j, k] != 0.0 else 0.0
                continue
            for k in range(scaled.size):
                scaled[k] = duals[j, k] / weight
                squares += scaled[k] * duals[j, k]
            if kinks:
                # No bound of the curvature: the worse of the two ends of the interval that rounding leaves.
                labels = abs(label) + shift_size(y, j)
                if log_link:  # of a logarithm and an exponential too
                    labels += 1.0 + (abs(math.log(label)) if label > 0.0 else 0.0)
                shift = sizes[1] + _EPS * (roundings[j] * sizes[0] + 8.0 * labels)
                middle = u[0]
                u[0] = middle - shift
                below = divergence(loss, point_of(loss, u), point_of(loss, scaled), label)
                write_slope(loss, u, label, weight)
                slope = abs(u[0])
                u[0] = middle + shift
                term = divergence(loss, point_of(loss, u), point_of(loss, scaled), label)
                term = max(term, below)
                write_slope(loss, u, label, weight)
                rounding += shift * max(slope, abs(u[0]))
            else:
                term = divergence(loss, point_of(loss, u), point_of(loss, scaled), label)
            apart, error = two_sum(apart, weight * term)
            apart_carry += error
        out[i, DIVERGENCE] = finish_sum(apart, apart_carry)
        out[i, VALUE] = finish_sum(total, total_carry)
        out[i, TIPS] = squares
        out[i, ROUNDING] = rounding


class Gap(NamedTuple):
    """F at a point (``value``), a lower bound of F* (``lower``), and a bound of F − F* there (``gap``).

    ``rounding`` bounds how far the value is from F of the numbers as they are.
    """

    value: float
    lower: float
    gap: float
    rounding: float

    def above(self, lower: float) -> Gap:
        """Return the same with another lower bound of F*, where that is the better one."""
        if not lower > self.lower:
            return self
        return self._replace(lower=lower, gap=min(self.gap, self.value - lower + self.rounding))


def close_gap(
    parts: np.ndarray,
    theta: np.ndarray,
    residual: np.ndarray | None,
    total_sigma: float,
    l1_value: float = 0.0,
    l1_gap: float = 0.0,
) -> Gap:
    """Return the duality gap at θ from what all nodes contribute.

    The gap is never below the true one of the given θ and s: a smooth loss has |wℓ' − s|² ≤ 2wβ·divergence,
    so margins that are off by δ change the sum of divergences G to at most (√G + √(½Σwβδ²))², and F by that
    difference and Σδ|s|.

    Parameters
    ----------
    parts : ndarray of shape (n, 6)
        `gap_parts` of all nodes, in their order.
    theta : ndarray of shape (d,)
    residual : ndarray of shape (d,), optional
        Σ x s + Σσ·θ; when left out θ is taken to be θ̂.
    total_sigma : float
        Σ_i σ_i.
    l1_value, l1_gap : float
        What an ℓ1 term adds to F and to the gap, as `WholePenalty.apart` says.
    """
    apart, losses, margins, rows, duals, rounding = (
        float(part) for part in column_sums(parts, np.array([0, len(parts)]))[0]
    )
    square = inner_product(theta, theta)
    penalty = 0.5 * total_sigma * square + l1_value
    value = losses + penalty
    # The divergences at margins that are off by their rounding, in the worst case.
    root = math.sqrt(apart) + math.sqrt(margins)
    gap = root * root * (1.0 + _OWN_ROUNDING)
    rounding += 2.0 * math.sqrt(apart) * math.sqrt(margins) + margins if margins > 0.0 else 0.0
    rounding += _EPS * (16.0 * abs(value) + (theta.size + 8.0) * penalty)  # of sums over samples, and over θ
    if residual is not None:
        # Σ‖x‖‖s‖ is at most √(Σw‖x‖²·Σ‖s‖²/w): the rounding of Σ x s, of each node's and of the nodes' sum.
        lost = (parts.shape[0] + 8) * _EPS * math.sqrt(rows) * math.sqrt(duals)
        lost += 4.0 * _EPS * total_sigma * math.sqrt(square)
        # (Σσ/2)‖θ − θ̂‖² from Σσ(θ − θ̂), which the residual is.
        miss = math.sqrt(inner_product(residual, residual)) + lost
        gap += (miss * miss / (2.0 * total_sigma) if total_sigma > 0.0 else 0.0) + l1_gap
    return Gap(value, value - gap - rounding, gap, rounding)


def column_rounding(column_squares: np.ndarray, dual_squares: np.ndarray) -> np.ndarray:
    """Return a bound of the rounding of each column's Σ x_k s, (d,), from Σwx_k² (d,) and Σs²/w (n,).

    Each node's sum is right to the rounding of its terms, and Σ|x_k||s| is at most the root of the product.
    """
    squares = float(column_sums(dual_squares[:, None], np.array([0, dual_squares.size]))[0, 0])
    return np.asarray((dual_squares.size + 8) * _EPS * np.sqrt(squares) * np.sqrt(column_squares))


def smallest_gap(
    parts_at: Callable[[np.ndarray], np.ndarray],
    duals: np.ndarray,
    row_total: np.ndarray,
    theta: np.ndarray,
    penalty: WholePenalty,
    rounding: np.ndarray | None = None,
    columns: float | np.ndarray = 1.0,
) -> tuple[Gap, np.ndarray]:
    """Return the gap of θ at dual variables, and these; or those scaled towards 0, if their gap is smaller.

    Scaled until |x_kᵀs| ≤ Λ_k in every column with an ℓ1 term, they need no ℓ2 term: its conjugate is 0.
    Every domain contains 0, so they stay in theirs.

    Parameters
    ----------
    parts_at : callable
        Returns `gap_parts` of all nodes at dual variables.
    duals : ndarray of shape (N, *dual_shape)
    row_total : ndarray of shape (d,)
        Σ x s over all nodes.
    theta : ndarray of shape (d,)
    penalty : WholePenalty
    rounding : ndarray of shape (d,), optional
        Bounds the rounding of the total; without it nothing is scaled.
    columns : ndarray of shape (d,), optional
        Has 0 for the columns without a penalty, whose totals are 0, and 1 for the others.
    """
    bare, found = columns * theta, list[tuple[float, int, Gap, np.ndarray]]()
    factor = 1.0 if rounding is None else penalty.box_factor(row_total, rounding)
    for each in sorted({1.0, factor} if penalty.sigma > 0.0 else {factor}):
        own = duals if each == 1.0 else each * duals
        residual, value, apart = penalty.apart(each * row_total, bare)
        # Σ|θ_k|(Λ_k − z_k sign θ_k) is linear in the total. With an ℓ2 term the residual counts the rounding.
        if penalty.sigma == 0.0 and rounding is not None:
            apart += float(np.abs(bare) @ rounding)
        gap = close_gap(parts_at(own), bare, columns * residual, penalty.sigma, value, apart)
        found.append((gap.gap, len(found), gap, own))
    return min(found)[2:]
