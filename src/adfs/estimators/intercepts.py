"""Intercepts without a penalty, for every loss, method and cluster.

The rows get one more column for the intercept. A method that works on θ takes that column as it is and leaves
it out of its penalty. The dual of such a problem has a constraint: the dual variables sum to 0 over all
samples. Dual methods cannot keep it, so they solve a sequence of problems whose intercept is penalised around
the intercept of the problem before (proximal-point method).

Every result is certified for the problem without that penalty: the dual variables are made to sum to 0
before the dual value is computed. Gaps are relative to F of the best constant model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Process, get_method
from adfs.algorithms.lbfgs import node_values
from adfs.algorithms.round_process import PrimalProcess
from adfs.estimators.solver import LocalData, ModelSpec, Solver, joined_frames, penalised
from adfs.problem import FiniteSum, Loss, Samples
from adfs.problem.evaluation import column_sums, loss_domains, loss_slopes
from adfs.problem.gaps import close_gap
from adfs.problem.samples import labels_of, read_only, rows_of, sparse
from adfs.problem.views import common_margin
from adfs.runtimes import Outcome, Run
from adfs.runtimes.certificates import AllNodes, Certificate, OverNodes, estimate
from adfs.threads import single_threaded

_MOST_ROUNDS = 60
# Tolerances of the proximal rounds: of the first one for losses with kinks, whose last digits take the most
# passes, and the smallest one as a share of the tolerance of the fit.
_FIRST_KINKED, _SMALLEST_SHARE = 1e-2, 0.01
_ACCURACY, _MOST_TRIALS = 0.01, 100  # of F of the best constant model
_EPS = float(np.finfo(np.float64).eps)


def column_value(data: LocalData, spec: ModelSpec, solver: Solver) -> float:
    """Return the entry of the intercept's column for a dual method, for rows that do not have it yet.

    A dual method sees a penalised intercept. The column is as long as a typical row, so that the problem is
    hardly harder to solve, and so long that the penalty is well below the curvature of the data.
    """
    X, weights = data.X, data.weights
    squares = X.multiply(X).sum(axis=1) if sparse(X) else np.einsum("jk,jk->j", X, X)
    sums = [weights, weights * data.y, weights * np.ravel(squares)]
    total, targets, typical = solver.totals(sums, data.node_starts)
    if not total > 0.0:
        return 1.0
    ridge = spec.penalty_weight * (1.0 - spec.l1_ratio)
    least = 10.0 * ridge / (spec.loss.typical_curvature(targets / total) or 1.0)
    return math.sqrt(max(typical, least) / total)


def solve_with_intercept(
    data: LocalData,
    spec: ModelSpec,
    solver: Solver,
    start: np.ndarray | None,
    point: np.ndarray | None = None,
) -> Run:
    """Minimise Σ wℓ(xᵀθ + b + o; y) + (α/2)‖θ‖² + λ‖θ‖₁ over θ and b; b is not penalised.

    Parameters
    ----------
    data : LocalData
        The weights are those of the objective; the last column is the intercept's.
    spec : ModelSpec
    solver : Solver
    start : ndarray of shape (N,) or (N, K), optional
        Dual variables to start from.
    point : ndarray of shape (K·(p + 1),), optional
        Coefficients and intercepts to start from, in the layout of ``coef``.

    Returns
    -------
    Run
        All rounds together, certified for this problem. ``coef`` (K·(p + 1),) and ``theta`` have the
        intercept of each output after its coefficients.
    """
    fit = InterceptFit(data, spec, solver)
    if point is not None:
        points = point.reshape(fit.outputs, -1).copy()
        fit.move(points[:, -1].copy())
        points[:, -1] = 0.0  # the intercepts are in the offsets now
        point = points.ravel()
    if not (fit.unpenalised or fit.exact):  # an exact constant model is certified at the start
        return _proximal_rounds(fit, start)
    run = solver.solve(fit.problem, start, point, fit)
    return replace(run, coef=fit.with_intercepts(run.coef), theta=fit.with_intercepts(run.theta))


def _proximal_rounds(fit: InterceptFit, start: np.ndarray | None) -> Run:
    """Solve problems whose intercept is penalised around the intercept of the problem before."""
    solver, loss, tol = fit.solver, fit.problem.loss, fit.tol
    round_tol = max(_FIRST_KINKED, tol) if loss.curvature_type == "kinks" else tol
    left = solver.options.max_passes
    runs: list[Run] = []
    best: Certificate | None = None
    while True:
        part = solver.part(len(runs), sum(run.seconds for run in runs)) if runs else solver
        limits = replace(part.options, tol=round_tol, max_passes=left)
        run = replace(part, options=limits).solve(fit.problem, start)
        runs.append(run)
        theta = fit.with_intercepts(run.theta)
        if not np.isfinite(run.coef).all():
            break
        nodes = AllNodes(solver.cluster, solver.placement, fit.problem)
        duals = fit.problem.slopes(run.coef) if run.dual is None else run.dual
        found = fit.certify(nodes, run.coef, duals, move=run.dual is not None)
        # Below twice the best gap so far only rounding differs, and the later point is the better one.
        if best is None or found.gap < 2.0 * best.gap:
            best = found._replace(theta=fit.with_intercepts(found.theta))
        passes = float(run.columns["passes"][-1])
        at_rest = passes == 0.0 and round_tol <= _SMALLEST_SHARE * tol  # rounding allows nothing more
        if best.gap <= tol or at_rest or run.outcome is not Outcome.CONVERGED or len(runs) == _MOST_ROUNDS:
            break
        # A round is solved a little better than its intercept is known.
        round_tol = max(_SMALLEST_SHARE * tol, min(0.25 * round_tol, max(0.2 * tol, 1e-3 * found.gap)))
        center = fit.with_intercepts(run.coef).reshape(loss.n_outputs, -1)[:, -1]
        # A number added to the intercepts of all classes changes nothing: their mean stays 0.
        fit.move(center - center.mean() if loss.several_outputs else center)
        # Dual variables that sum to 0 represent exactly the new centre.
        start = None if run.dual is None else found.duals
        left = None if left is None else max(left - passes, 1.0)
    whole = replace(run, theta=theta, seconds=sum(each.seconds for each in runs))
    if best is None:
        return replace(whole, columns=joined_frames(runs, run.gap))
    if best.gap > tol and best.value > fit.at_zero:
        best = fit.constant(best)
    outcome = Outcome.CONVERGED if best.gap <= tol else Outcome.OUT_OF_BUDGET
    if run.outcome is Outcome.STOPPED or (best.gap > tol and run.outcome is Outcome.DIVERGED):
        outcome = run.outcome  # a user who stops a run stops the fit
    return replace(
        whole,
        coef=best.theta,
        gap=best.gap,
        absolute_gap=best.absolute_gap,
        outcome=outcome,
        columns=joined_frames(runs, best.gap),
        dual=None if run.dual is None else best.duals,
    )


class InterceptFit:
    """The problem around some intercepts, its certificate, and the scale of its gaps.

    Attributes
    ----------
    center : ndarray of shape (K,)
        The intercepts that stand for 0 in the last column of ``problem``.
    levels : ndarray of shape (K,)
        Intercepts of the best constant model, the first ``center``.
    at_zero : float
        F of the best constant model, 1 where that is nothing but rounding (``exact``).
    unpenalised : bool
        Whether the method takes a column without a penalty.
    """

    def __init__(self, data: LocalData, spec: ModelSpec, solver: Solver) -> None:
        self.solver, self.tol, loss = solver, solver.options.tol or 0.0, spec.loss
        self.data, self.scale, self.outputs = data, data.free_column or 1.0, loss.n_outputs
        self.means = np.zeros(1) if data.means is None else data.means
        largest = 0.0 if data.offset is None else float(np.abs(data.offset).max(initial=0.0))
        solver.cluster.activity = "to sum up the data"
        self._largest_offset = max(solver.cluster.allgather(largest))
        columns = np.ones((loss.n_outputs, data.X.shape[1]))
        columns[:, -1] = 0.0
        self.columns = columns.ravel()
        self.unpenalised = get_method(solver.method).unpenalised_columns
        ridge_columns = self.columns if self.unpenalised else None
        self.center = self.levels = best_constants(data, loss, solver)
        around = replace(data, offset=self._offset())
        problem = penalised(around, spec, solver.network.n_nodes, self.columns, ridge_columns)
        self.problem, nodes = problem, AllNodes(solver.cluster, solver.placement, problem)
        zero = np.zeros(self.columns.size)
        duals = np.zeros((problem.n_samples, *problem.dual_shape))
        parts = problem.gap_parts(duals, zero, self._slack(zero.reshape(self.outputs, -1), self.levels))
        constant = close_gap(nodes.collect(parts), zero, None, nodes.total_sigma)
        self.exact = constant.value <= constant.rounding
        self.at_zero = 1.0 if self.exact else constant.value
        self._rounding_at_zero = constant.rounding
        # How far the best intercept may be from the levels: the size of typical margins or residuals.
        squares = np.zeros_like(data.y)
        if loss.translates:
            squares = (data.y - self.levels[0] - (0.0 if data.offset is None else data.offset)) ** 2
        weight, square = solver.totals([data.weights, data.weights * squares], data.node_starts)
        square = max(2.0 * constant.value, square)
        self._radius = 1.0 + (math.sqrt(square / weight) if weight > 0.0 else 0.0)

    def _offset(self) -> np.ndarray:
        """Return the offsets of the margins that have the centre in them, (N,) or (N, K)."""
        shift = np.broadcast_to(self.center, (self.data.y.size, self.outputs))
        shift = shift if self.outputs > 1 else shift[:, 0]
        return shift if self.data.offset is None else shift + self.data.offset

    def move(self, center: np.ndarray) -> None:
        """Put the problem around other intercepts (K,)."""
        self.center = center
        self.problem = self.problem.with_offset(self._offset())

    def with_intercepts(self, points: np.ndarray) -> np.ndarray:
        """Return points (…, K·(p + 1)) of the problem with the intercepts themselves in the last column."""
        out = points.reshape(*points.shape[:-1], self.outputs, -1).copy()
        out[..., -1] = self.center + self.scale * out[..., -1]
        return out.reshape(points.shape)

    def __call__(
        self, process: Process, nodes: AllNodes, *, enough: float | None = None, lower: float = -np.inf
    ) -> Certificate:
        """Certify a run on the problem; see `adfs.runtimes.certificates.Certifier`."""
        if isinstance(process, PrimalProcess) and enough is not None and not process.exhausted:
            # A full certificate takes a pass. The gradient says when it is worth it.
            expected = process.expected_gap(nodes.total_sigma, self.columns) / self.at_zero
            if expected > enough:
                return estimate(process, nodes, expected)
        theta, duals = np.asarray(nodes.add(process.primal()) / nodes.sigma.size), process.dual()
        if duals is None:
            duals = nodes.problem.clip_to_domain(nodes.problem.slopes(theta), in_place=True)
        return self.certify(nodes, theta, duals)

    def certify(
        self, nodes: AllNodes, theta: np.ndarray, duals: np.ndarray, *, move: bool = False
    ) -> Certificate:
        """Certify θ (K·(p + 1),) of the problem, for the problem without a penalty of the intercepts.

        With ``move`` the coefficients become those that the dual variables represent. For dual variables
        with the sum 0, F − D is the sum of wℓ(u) + wℓ*(s/w) − us over the samples and
        (α/2)‖θ − θ(s)‖² over the penalised columns: no term is negative.
        """
        problem, duals = nodes.problem, balanced(nodes.problem, duals, nodes)
        total = nodes.add_rows(duals)
        point = theta.reshape(self.outputs, -1).copy()
        if move:
            point[:, :-1] = nodes.penalty.minimizer(total).reshape(self.outputs, -1)[:, :-1]
        intercepts = self.center + self.scale * point[:, -1]
        slack = self._slack(point, intercepts)
        found, duals = nodes.smallest_gap(duals, total, point.ravel(), slack, self.columns)
        value, _, gap, rounding = found
        # The sums of the dual variables are 0 up to rounding, of each node's sum too. What is left counts as
        # far as the best intercept may be away.
        sums = nodes.collect(column_sums(duals.reshape(problem.n_samples, -1), problem.node_starts))
        rest = [abs(math.fsum(column)) + _EPS * math.fsum(np.abs(column)) for column in sums.T]
        gap += float(np.array(rest) @ (self._radius + np.abs(intercepts - self.levels)))
        return Certificate(
            point.ravel(), value, value - gap - rounding, gap / self.at_zero, duals, absolute_gap=gap
        )

    def _slack(self, point: np.ndarray, intercepts: np.ndarray) -> float:
        """Return a bound of the rounding of margins by the intercepts that the fit returns.

        A returned intercept is the centre plus the last entry of θ, less the coefficients times the means of
        the columns; the centre is also added to the offsets.
        """
        sizes = 1.5 * np.abs(intercepts) + 2.0 * np.abs(intercepts - self.center)
        sizes += point.shape[1] * (np.abs(point[:, :-1]) * np.abs(self.means)).sum(axis=1)
        if self._largest_offset > 0.0:
            sizes += np.abs(self.center) + self._largest_offset
        return _EPS * float(np.sqrt(sizes @ sizes))

    def constant(self, other: Certificate) -> Certificate:
        """Return the best constant model, with the lower bound of F* that another point has proved."""
        point = np.zeros((self.outputs, other.theta.size // self.outputs))
        point[:, -1] = self.levels
        gap = self.at_zero - other.lower + self._rounding_at_zero
        return other._replace(
            theta=point.ravel(), value=self.at_zero, gap=gap / self.at_zero, absolute_gap=gap
        )


# --------------------------------------------------------------------------- the best constant model


def best_constants(data: LocalData, loss: Loss, solver: Solver) -> np.ndarray:
    """Return the intercepts (K,) of the best model without coefficients; its F is within 1 % of the least."""
    y, weights, starts = (read_only(array) for array in (data.y, data.weights, data.node_starts))
    offset = np.zeros_like(y) if data.offset is None else data.offset
    if loss.link == "log":
        parts = np.column_stack([weights * part for part in loss.level_parts(y, offset)])
        over, under = solver.add(column_sums(parts, starts))
        return np.array([solver.cluster.attempt("to check the data", lambda: common_margin(over, under))])
    # The intercepts are the coefficients of a column of ones, stored as the other columns are.
    ones: Any = np.ones((y.size, 1))
    if sparse(data.X):
        places = np.zeros(y.size, dtype=np.int32), np.arange(y.size + 1, dtype=np.int32)
        ones = sp.csr_array((ones.ravel(), *places), shape=ones.shape)
    shift = None if data.offset is None else read_only(data.offset)
    samples = Samples(loss, rows_of(ones), labels_of(loss, y, shift), weights, starts)
    if loss.several_outputs:
        return _best_class_levels(samples, y, solver)
    start = 0.0
    if loss.translates:  # the mean of the targets
        parts = np.column_stack([weights, weights * (y - offset)])
        total, over = solver.add(column_sums(parts, starts))
        start = float(over / total) if total > 0.0 else 0.0
        if loss.curvature_type == "constant":  # the best one of squares
            return np.array([start])
    elif loss.link == "logit":
        over, under = solver.totals([weights * (y > 0.0), weights * (y < 0.0)], starts)
        if over > 0.0 and under > 0.0:
            start = math.log(over / under)
            if data.offset is None and loss.likelihood:  # of a likelihood it is the best one
                return np.array([start])
    return np.array([_best_level(samples, solver, start)])


def _best_level(samples: Samples, solver: Solver, start: float) -> float:
    """Return a number at which F, a convex function of one number, is within 1 % of its least value.

    The tangents on both sides of the minimiser meet below the least value.
    """
    n_nodes = samples.node_starts.size - 1
    sums, no_ridge, room = np.empty((n_nodes, 2)), np.zeros((n_nodes, 1)), (np.empty(1), np.empty((2, 1)))
    level, step = start, 0.0
    # Value, argument and slope: of the least value so far, and of the nearest points on both sides.
    best = below = above = (math.inf, start, 0.0)
    for trial in range(_MOST_TRIALS):
        node_values(samples, no_ridge, np.array([level]), *room, sums)
        slope, value = (float(total) for total in solver.add(sums))
        here = value, level, slope
        best = min(best, here)
        if slope == 0.0 or not math.isfinite(slope):
            break
        if trial == 0:
            below = above = here
            step = (abs(value) or 1.0) / abs(slope)  # to where the tangent is 0
        below, above = (here, above) if slope < 0.0 else (below, here)
        if below[2] * above[2] > 0.0:  # no second side yet
            level -= math.copysign(step, slope)
            step *= 2.0
            continue
        width = above[1] - below[1]
        meet = (above[0] - above[2] * width - below[0]) / (below[2] - above[2])
        if best[0] - (below[0] + below[2] * meet) <= _ACCURACY * best[0]:
            break
        level = below[1] + min(max(meet, 0.1 * width), 0.9 * width)
    return best[1]


def _best_class_levels(samples: Samples, y: np.ndarray, solver: Solver) -> np.ndarray:
    """Return the levels (K,) of a softmax model whose shares of the classes are those of the data.

    Iterative scaling: the logarithm of true share over predicted share is added to each level. Without
    offsets the first step is exact.
    """
    levels = np.zeros(samples.loss.n_outputs)
    for _ in range(_MOST_TRIALS):
        _, _, true, predicted = _class_sums(samples, y, loss_slopes(samples, levels), solver.add)
        floor = _EPS * true.sum()
        if not floor > 0.0:
            break
        change = np.log(np.maximum(true, floor)) - np.log(np.maximum(predicted, floor))
        levels = levels + change
        if np.abs(change).max() <= _ACCURACY**2:
            break
    return np.asarray(levels - levels.mean())


# --------------------------------------------------------------------------- dual variables with the sum 0


def balanced(problem: FiniteSum, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Return dual variables (N,) or (N, K) with the sum 0 over all nodes, up to rounding.

    They are in their domains, as the given ones must be, and near them: each moves in proportion to its
    distance from the nearer end of its domain.
    """
    if problem.dual_shape:
        return problem.clip_to_domain(_balanced_classes(problem, duals, nodes))
    duals = np.where(problem.weights > 0.0, duals, 0.0)
    # An infinite end is no bound; a domain without any leaves the weight as the scale.
    with np.errstate(invalid="ignore"):
        low, high = problem.weights * loss_domains(problem.loss, problem.labels, problem.n_samples)
    room = np.minimum(duals - low, high - duals)
    distance = np.where(np.isfinite(room), np.maximum(room, 0.0), problem.weights)
    columns = np.column_stack([duals, distance])
    total, space = nodes.add(column_sums(columns, problem.node_starts))
    if abs(total) < space:
        return problem.clip_to_domain(duals - (total / space) * distance)
    # The sum is too far from 0 for that: the heavier side is scaled down. Every domain contains 0.
    columns = np.column_stack([np.maximum(duals, 0.0), np.minimum(duals, 0.0)])
    above, below = nodes.add(column_sums(columns, problem.node_starts))
    if above > -below:
        duals = np.where(duals > 0.0, duals * (-below / above), duals)
    elif below < 0.0:
        duals = np.where(duals < 0.0, duals * (above / -below), duals)
    return problem.clip_to_domain(duals)


def _class_sums(
    samples: Samples, y: np.ndarray, duals: np.ndarray, add: OverNodes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return predicted shares p and classes e (N, K) of dual variables w(p − e), and Σwe and Σwp (K,)."""
    weights, classes = samples.weights[:, None], duals.shape[1]
    truth = np.zeros_like(duals)
    truth[np.arange(len(duals)), y.astype(np.int64)] = 1.0
    share = truth + np.divide(duals, weights, out=np.zeros_like(duals), where=weights > 0.0)
    share = np.clip(share, 0.0, 1.0)
    sums = add(column_sums(np.hstack([weights * truth, weights * share]), samples.node_starts))
    return share, truth, sums[:classes], sums[classes:]


def _balanced_classes(problem: FiniteSum, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Move the shares p of each sample by a Newton step of the intercepts, or mix them with other shares."""
    weights, classes = problem.weights[:, None], duals.shape[1]
    share, truth, true, predicted = _class_sums(problem.samples, problem.y, duals, nodes.add)
    # K × K numbers per node: the curvature of the intercepts.
    cuts = pairwise(problem.node_starts)
    with single_threaded:
        products = [((weights[a:b] * share[a:b]).T @ share[a:b]).ravel() for a, b in cuts]
    curvature = np.diag(predicted) - nodes.add(np.array(products)).reshape(classes, classes)
    step = np.linalg.lstsq(curvature, predicted - true, rcond=None)[0]
    factor = 1.0 - step + (share @ step)[:, None]
    if not any(nodes.cluster.allgather(not (factor > 0.0).all())):
        return np.asarray(weights * (share * factor - truth))
    # The step is too long: every sample's shares are mixed with the same shares of all classes.
    most = max(0.0, *(1.0 - true[predicted > 0.0] / predicted[predicted > 0.0]))
    if most == 0.0:
        return duals
    others = (true - (1.0 - most) * predicted) / (most * true.sum())
    return np.asarray(weights * ((1.0 - most) * share + most * others - truth))
