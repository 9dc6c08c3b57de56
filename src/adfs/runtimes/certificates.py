"""Evaluating a run: the certificate and the measures of the nodes' iterates, over all processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from adfs.algorithms.base import Process
from adfs.algorithms.qning import dual_pass
from adfs.algorithms.round_process import PrimalProcess
from adfs.problem.evaluation import inner_product
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.gaps import Gap, close_gap, column_rounding, margin_rounding, smallest_gap
from adfs.runtimes.cluster import Cluster, Placement
from adfs.runtimes.options import MEASURES, NEED_OPTIMUM, Record

_EPS = float(np.finfo(np.float64).eps)


class Certificate(NamedTuple):
    """A point ``theta``, F there (``value``), a lower bound of F* (``lower``) and their relative ``gap``.

    ``duals`` are the dual variables that prove it, where they are not those of the process. ``absolute_gap``
    is the gap before it is divided by a scale. An estimate proves nothing: it tells the run how to go on.
    The gap is a sum of terms of at least 0, with an allowance for rounding: F(θ) − F* is never above it.
    Where terms have no conjugate nothing is certified: ``lower`` is −∞ and ``gap`` is nan.
    """

    theta: np.ndarray
    value: float
    lower: float
    gap: float
    duals: np.ndarray | None = None
    absolute_gap: float = np.nan
    is_estimate: bool = False


class Certifier(Protocol):
    """Certifies a run: `certify`, or a function with its arguments for a problem that is not the run's."""

    def __call__(
        self, process: Process, nodes: AllNodes, *, enough: float | None = None, lower: float = -np.inf
    ) -> Certificate:
        """Return the certificate of the process's point."""
        ...


OverNodes: TypeAlias = Callable[[np.ndarray], np.ndarray]


class AllNodes:
    """The nodes of all processes together, each process computing from its own data.

    Numbers are collected in the order of the nodes and vectors added in that order, so a certificate has the
    same bits however the nodes are spread.

    Parameters
    ----------
    cluster : Cluster
    placement : Placement
    problem : FiniteSum
        This process's nodes.

    Attributes
    ----------
    collect, add : callable
        Return one number or vector per node of this process as one per node of the network; or the sum over
        all nodes of this process's vectors (k, d), shape (d,).
    block : ndarray
        The nodes of this process.
    sigma : ndarray of shape (n,)
        σ_i of all nodes.
    """

    def __init__(self, cluster: Cluster, placement: Placement, problem: FiniteSum) -> None:
        self.cluster, self.placement, self.problem = cluster, placement, problem
        cluster.activity = "to sum up the data"
        self.collect: OverNodes = partial(cluster.allgatherv, placement=placement)
        self.add: OverNodes = partial(cluster.allreduce, placement=placement)
        self.block = placement.block(cluster.rank)
        # The penalty of the whole problem, the same in every process.
        self.sigma = self.collect(problem.sigma)
        self.total_sigma = float(self.sigma.sum())
        total_l1 = None if problem.l1 is None else float(self.collect(problem.l1).sum())
        self.penalty = problem.penalty_of(self.total_sigma, total_l1)
        # Not cached properties: in Python 3.11 one lock would stop the other processes that are threads.
        self._value_at_zero: float | None = None
        self._dual_at_zero: float | None = None
        self._margin_scales: np.ndarray | None = None
        self._column_squares: np.ndarray | None = None

    @property
    def value_at_zero(self) -> float:
        """F(0), computed once."""
        if self._value_at_zero is None:
            zero = np.zeros(self.problem.n_features)
            self._value_at_zero = float(self.collect(self.problem.loss_sums(zero)).sum())
        return self._value_at_zero

    @property
    def scale(self) -> float:
        """The number that gaps are divided by: F(0), or 1 where that is 0."""
        return self.value_at_zero if self.value_at_zero > 0.0 else 1.0

    @property
    def dual_at_zero(self) -> float:
        """D(0) minus the rounding of its sum, computed once: a lower bound of F*."""
        if self._dual_at_zero is None:
            zero = np.zeros((self.problem.n_samples, *self.problem.dual_shape))
            total = float(self.collect(self.problem.conjugate_sums(zero)).sum())
            self._dual_at_zero = -total - 2.0**-32 * abs(total)
        return self._dual_at_zero

    @property
    def margin_scales(self) -> np.ndarray:
        """The numbers that bound the rounding of the margins of each node's rows, (n, 5), collected once."""
        if self._margin_scales is None:
            self._margin_scales = self.collect(self.problem.margin_scales)
        return self._margin_scales

    def add_rows(self, duals: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij over all nodes from the dual variables of this process, shape (d,)."""
        if self.cluster.size == 1:  # there may be many nodes: no vector for each of them
            return self.problem.row_total(duals)
        return self.add(self.problem.row_sums(duals))

    def smallest_gap(
        self,
        duals: np.ndarray,
        total: np.ndarray,
        theta: np.ndarray,
        slack: float = 0.0,
        columns: float | np.ndarray = 1.0,
    ) -> tuple[Gap, np.ndarray]:
        """Return the gap of θ at dual variables or at scaled ones, and these; see `gaps.smallest_gap`.

        ``slack`` is that of `FiniteSum.gap_parts`.
        """

        def parts_at(own: np.ndarray) -> np.ndarray:
            return self.collect(self.problem.gap_parts(own, theta, slack))

        rounding = None
        if self.penalty.l1 is not None:  # only its gap needs a bound of the rounding of `add_rows`
            if self._column_squares is None:
                self._column_squares = self.add(self.problem.column_squares)
            rounding = column_rounding(self._column_squares, self.collect(self.problem.dual_squares(duals)))
        return smallest_gap(parts_at, duals, total, theta, self.penalty, rounding, columns)

    def objectives(self, points: np.ndarray) -> np.ndarray:
        """Return F at each of some points (p, d), shape (p,)."""
        return self.penalty.objectives(self.collect(self.problem.loss_sums(points)), points)

    def certificate(
        self, theta: np.ndarray, found: Gap, lower: float, duals: np.ndarray | None = None
    ) -> Certificate:
        """Return the certificate of a point, its gap relative to F(0), given an earlier lower bound of F*."""
        found = found.above(lower)
        gap = found.gap / self.scale
        return Certificate(theta, found.value, found.lower, gap, duals, absolute_gap=found.gap)


def certify(
    process: Process, nodes: AllNodes, *, enough: float | None = None, lower: float = -np.inf
) -> Certificate:
    """Certify the point that a run's dual variables stand for, θ(s).

    A method without dual variables is certified at the mean of its nodes: s = wℓ'(xᵀθ) is feasible for any θ.

    Parameters
    ----------
    process : Process
    nodes : AllNodes
    enough : float, optional
        A primal method takes a larger gap from its gradient, which costs no pass over the data.
    lower : float
        An earlier lower bound of F*.
    """
    problem, penalty = nodes.problem, nodes.penalty
    duals: np.ndarray | None = None
    if isinstance(process, PrimalProcess):
        if enough is not None and not process.exhausted and problem.certifiable:
            expected = process.expected_gap(nodes.total_sigma) / nodes.scale
            # A run that starts at another point than 0 has neither F nor ∇F yet.
            quick = expected > enough and (expected < np.inf or not process.point.any())
            if quick and penalty.l1 is not None:
                return estimate(process, nodes, expected)
            # The rounding of a loss whose curvature has no bound depends on each row.
            if quick and problem.smooth:
                return certify_by_gradient(process, nodes, lower)
    elif problem.certifiable:
        duals = process.dual()
    if duals is not None:
        duals = problem.clip_to_domain(duals, in_place=True)
        total = nodes.add_rows(duals)
        theta = penalty.minimizer(total)
        if process.certify_iterate:
            theta = np.asarray(nodes.add(process.primal()) / nodes.sigma.size)
    else:
        theta = np.asarray(nodes.add(process.primal()) / nodes.sigma.size)
        if not problem.certifiable:
            return Certificate(theta, float(nodes.objectives(theta[None, :])[0]), -np.inf, np.nan)
        # The slopes of the losses at θ are dual variables in their domains, whatever θ is.
        duals = process.dual() if penalty.l1 is not None else None
        if duals is None:
            duals = problem.clip_to_domain(problem.slopes(theta), in_place=True)
        total = nodes.add_rows(duals)
        # Far from the optimum the dual variables of θ may give a lower bound below D(0).
        lower = max(lower, nodes.dual_at_zero)
        gap, own = nodes.smallest_gap(duals, total, theta)
        return nodes.certificate(theta, gap, lower, own)
    parts = nodes.collect(problem.gap_parts(duals, theta))
    residual, *l1 = penalty.apart(total, theta)
    return nodes.certificate(theta, close_gap(parts, theta, residual, nodes.total_sigma, *l1), lower)


def estimate(process: PrimalProcess, nodes: AllNodes, expected: float) -> Certificate:
    """Return the relative gap that a process expects: no message, no rows, and no proof."""
    value = process.value if process.point.any() else nodes.value_at_zero
    return Certificate(process.point, value, nodes.dual_at_zero, expected, is_estimate=True)


def certify_by_gradient(process: PrimalProcess, nodes: AllNodes, lower: float) -> Certificate:
    """Certify the θ of a primal method from F and ∇F, which it has: no message, no rows."""
    theta, value, gradient = process.point, process.value, process.gradient
    if not gradient.any() and not theta.any():  # F(0) − D(0) is known before the first gradient
        value, lower = nodes.value_at_zero, max(lower, nodes.dual_at_zero)
        rounding = _gradient_rounding(nodes, theta, value)[1]
        return nodes.certificate(theta, Gap(value, -np.inf, np.inf, rounding), lower)
    lost, rounding = _gradient_rounding(nodes, theta, value)
    excess = float((np.sqrt(inner_product(gradient, gradient)) + lost) ** 2 / (2.0 * nodes.total_sigma))
    return nodes.certificate(theta, Gap(value, value - excess - rounding, excess, rounding), lower)


def _gradient_rounding(nodes: AllNodes, theta: np.ndarray, value: float) -> tuple[float, float]:
    """Return bounds of the rounding of ∇F and of F at θ, for a smooth loss, from sums over the rows.

    Slopes are at most √(2β(ℓ − min ℓ)), and Σw(ℓ − min ℓ) is at most F(θ) − D(0). Margins off by δ change
    them by βδ. A node adds up its rows one after the other.
    """
    problem = nodes.problem
    beta, square, scales = problem.loss.beta, inner_product(theta, theta), nodes.margin_scales
    excess, rows = max(value - nodes.dual_at_zero, 0.0), float(scales[:, 0].sum())
    margins = float(margin_rounding(scales, beta, square).sum())
    # Three bounds: of the margins, of the slopes at them, and of the sum of the nodes' gradients.
    each = _EPS * float(scales[:, 4].max() + len(scales) + theta.size + 8.0)  # of the longest sums
    slopes = np.sqrt(2.0 * beta * margins) + each * np.sqrt(2.0 * beta * excess)
    lost = np.sqrt(rows) * slopes + each * nodes.total_sigma * np.sqrt(square)
    return float(lost), float(2.0 * np.sqrt(excess * margins) + margins + each * abs(value))


def can_ascend(process: Process, nodes: AllNodes) -> bool:
    """Whether `certify_after_pass` is possible: the loss is smooth, and the process can be placed there."""
    problem = nodes.problem
    known = problem.linear and problem.smooth and not problem.assumes_curvature and not problem.dual_shape
    return bool(known and nodes.penalty.l1 is None and process.can_be_placed and not process.certify_iterate)


def certify_after_pass(nodes: AllNodes, duals: np.ndarray, theta: np.ndarray, number: int) -> Certificate:
    """Certify the point of dual variables (N,), which are overwritten, after a pass of dual ascent.

    The point itself is often good enough long before its dual variables are: some samples have not been drawn
    for a while. So each node maximises the dual in one of its samples after another, in a random order that
    follows from the pass's ``number``, from θ = θ(s) with its own σ_i. The changes of all nodes together obey
    ‖Σ_i Δ_i‖²/Σσ ≤ Σ_i ‖Δ_i‖²/σ_i: D never falls.
    """
    problem, block = nodes.problem, nodes.block
    beta, active = float(problem.samples.loss.beta), np.flatnonzero(problem.active)
    # Each node starts from the same θ and changes its own dual variables only.
    for node, (first, last) in enumerate(pairwise(np.searchsorted(active, problem.node_starts))):
        order = np.random.default_rng([number, block[node]]).permutation(active[first:last])
        dual_pass(problem.samples, beta, order, float(problem.sigma[node]), duals, theta.copy())
    total = nodes.add_rows(problem.clip_to_domain(duals, in_place=True))
    theta = nodes.penalty.minimizer(total)
    parts = nodes.collect(problem.gap_parts(duals, theta))
    residual, *l1 = nodes.penalty.apart(total, theta)
    return nodes.certificate(theta, close_gap(parts, theta, residual, nodes.total_sigma, *l1), -np.inf, duals)


def better(one: Certificate, other: Certificate) -> bool:
    """Whether a certificate is better than another: by its gap, and by F where nothing is certified."""
    gaps = [np.inf if np.isnan(each.absolute_gap) else each.absolute_gap for each in (one, other)]
    return (gaps[0], one.value) < (gaps[1], other.value)


def or_zero(best: Certificate, nodes: AllNodes) -> Certificate:
    """Return the best point of a run that did not converge, or θ = 0 if F is smaller there."""
    if best.value <= nodes.value_at_zero:
        return best
    zero, problem = np.zeros_like(best.theta), nodes.problem
    if np.isnan(best.gap):
        return Certificate(zero, nodes.value_at_zero, best.lower, best.gap)
    duals = np.zeros((problem.n_samples, *problem.dual_shape))  # which stand for it
    found = close_gap(nodes.collect(problem.gap_parts(duals, zero)), zero, zero, nodes.total_sigma)
    if best.value <= found.value + found.rounding:
        return best
    found = found.above(best.lower)
    scale = best.absolute_gap / best.gap if 0.0 < best.gap < np.inf else nodes.scale
    # The dual variables of the run are kept: another run may start from them.
    return Certificate(zero, found.value, found.lower, found.gap / scale, absolute_gap=found.gap)


def measure_nodes(
    record: Record, iterates: np.ndarray, nodes: AllNodes
) -> tuple[Certificate | None, dict[str, float]]:
    """Evaluate the iterates of all nodes (n, d).

    Returns
    -------
    error : Certificate or None
        If the run stops on the error itself: the mean of the iterates and the mean of F at them. F* is known,
        so ``lower`` is F*.
    measures : dict of str to float
        The recorded measures, reduced or one per node.
    """
    asked = {*record.measures, record.stop_on}
    best = nodes.problem.optimum() if asked & set(NEED_OPTIMUM) else None
    found: dict[str, np.ndarray] = {}
    error: Certificate | None = None
    if asked & {"objective", "suboptimality", "worst"}:
        found["objective"] = nodes.objectives(iterates)
    if best is not None:
        found["distance"] = np.linalg.norm(iterates - best.theta, axis=1)
    if best is not None and "objective" in found:
        found["suboptimality"] = found["worst"] = found["objective"] - best.value
    if best is not None and record.stop_on == "suboptimality":
        mean = float(found["suboptimality"].mean())
        relative = mean / nodes.value_at_zero
        error = Certificate(iterates.mean(axis=0), best.value + mean, best.value, relative, absolute_gap=mean)
    found["consensus"] = np.linalg.norm(iterates - iterates.mean(axis=0), axis=1)
    # One number for all nodes, or one column per node.
    out: dict[str, float] = {}
    for name in (name for name in MEASURES if name in found and name in record.measures):
        each = found[name]
        if name == "worst":
            out[name] = float(each.max())
        elif record.nodes == "each":
            out.update({f"{name}[{node}]": float(value) for node, value in enumerate(each)})
        else:
            out[name] = float(each.mean() if record.nodes == "mean" else each.max())
    return error, out
