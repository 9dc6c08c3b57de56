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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Process, get_method
from adfs.algorithms.round_process import PrimalProcess
from adfs.estimators.solver import LocalData, Solver, joined_frames, penalised
from adfs.problem import FiniteSum, Loss, Problem
from adfs.problem.evaluation import dual_rooms, weighted_row_sums
from adfs.problem.gaps import close_gap
from adfs.problem.samples import rows_of
from adfs.problem.views import common_margin
from adfs.runtimes import Outcome, Run
from adfs.runtimes.certificates import AllNodes, Certificate, Certifier, promised_gap
from adfs.threads import single_threaded

_MOST_ROUNDS = 60
# Tolerances of the proximal rounds: of the first one for smooth losses and for losses with kinks, and the
# smallest one as a share of the tolerance of the fit.
_FIRST_SMOOTH, _FIRST_KINKED, _SMALLEST_SHARE = 1e-6, 1e-2, 0.01
_ACCURACY, _MOST_TRIALS = 0.01, 100  # of F of the best constant model
_EPS = float(np.finfo(np.float64).eps)


def takes_free_column(solver: Solver) -> bool:
    """Return whether the solver's method accepts a column without a penalty."""
    return get_method(solver.method).unpenalised_columns


def column_value(data: LocalData, loss: Loss, alpha: float, y: np.ndarray, solver: Solver) -> float:
    """Return the entry of the intercept's column, for rows that do not have this column yet.

    A dual method sees a penalised intercept. The column is as long as a typical row, so that the problem is
    hardly harder to solve, and so long that the penalty is well below the curvature of the data.
    """
    total, targets = solver.totals([data.weights, data.weights * y], data.node_starts)
    if takes_free_column(solver) or not total > 0.0:
        return 1.0
    squares = data.X.multiply(data.X).sum(axis=1) if data.sparse else np.einsum("jk,jk->j", data.X, data.X)
    (typical,) = solver.totals([data.weights * np.ravel(squares)], data.node_starts)
    least = 10.0 * alpha / (loss.typical_curvature(targets / total) or 1.0)
    return math.sqrt(max(typical, least) / total)


def solve_with_intercept(
    data: LocalData,
    loss: Loss,
    weights: tuple[float, float],
    y: np.ndarray,
    solver: Solver,
    scale: float,
    start: np.ndarray | None,
    center: np.ndarray | None = None,
) -> Run:
    """Minimise Σ wℓ(xᵀθ + b + o; y) + (α/2)‖θ‖² + λ‖θ‖₁ over θ and b; b is not penalised.

    Parameters
    ----------
    data : LocalData
        The weights are those of the objective; the last column is the intercept's.
    loss : Loss
    weights : tuple
        α and λ.
    y : ndarray of shape (N,)
        The labels as the loss takes them.
    solver : Solver
    scale : float
        The entry of the intercept's column: `column_value`.
    start : ndarray of shape (N,) or (N, K), optional
        Dual variables to start from.
    center : ndarray of shape (K,), optional
        Intercepts to start from.

    Returns
    -------
    Run
        All rounds together, certified for this problem. ``coef`` (K·(p + 1),) and ``theta`` have the
        intercept of each output after its coefficients.
    """
    levels = best_constants(data, loss, y, solver)
    fit = _InterceptFit(data, loss, weights, y, solver, scale, levels)
    center = levels if center is None else center
    if takes_free_column(solver) or fit.exact:  # an exact constant model is certified at the start
        run = solver.solve(fit.problem(center), start, fit.certifier(center))
        return replace(
            run, coef=fit.with_intercepts(run.coef, center), theta=fit.with_intercepts(run.theta, center)
        )
    return _proximal_rounds(fit, start, center)


def _proximal_rounds(fit: _InterceptFit, start: np.ndarray | None, center: np.ndarray) -> Run:
    """Solve problems whose intercept is penalised around the intercept of the problem before."""
    solver, loss, tol = fit.solver, fit.plain.loss, fit.tol
    round_tol = max(_FIRST_KINKED if loss.curvature_type == "kinks" else _FIRST_SMOOTH, 0.5 * tol)
    left = solver.options.max_passes
    runs: list[Run] = []
    best: Certificate | None = None
    while True:
        problem, around = fit.problem(center), center
        part = solver.part(runs) if runs else solver
        limits = replace(part.options, tol=round_tol, max_passes=left)
        run = replace(part, options=limits).solve(problem, start)
        runs.append(run)
        if not np.isfinite(run.coef).all():
            break
        nodes = AllNodes(solver.cluster, solver.placement, problem)
        duals = problem.slopes(run.coef) if run.dual is None else run.dual
        found = fit.certify(nodes, run.coef, duals, around, move=run.dual is not None)
        # Below twice the best gap so far only rounding differs, and the later point is the better one.
        if best is None or found.gap < 2.0 * best.gap:
            best = found._replace(theta=fit.with_intercepts(found.theta, around))
        passes = float(run.columns["passes"][-1])
        at_rest = passes == 0.0 and round_tol <= _SMALLEST_SHARE * tol  # rounding allows nothing more
        if best.gap <= tol or at_rest or run.outcome is not Outcome.CONVERGED or len(runs) == _MOST_ROUNDS:
            break
        # A round is solved a little better than its intercept is known.
        round_tol = max(_SMALLEST_SHARE * tol, min(0.25 * round_tol, max(0.2 * tol, 1e-3 * found.gap)))
        center = fit.with_intercepts(run.coef, around).reshape(fit.outputs, -1)[:, -1]
        if loss.several_outputs:  # a number added to all intercepts changes nothing: their mean stays 0
            center = center - center.mean()
        # Dual variables that sum to 0 represent exactly the new centre.
        start = None if run.dual is None else found.duals
        left = None if left is None else max(left - passes, 1.0)
    return fit.joined(runs, best, fit.with_intercepts(runs[-1].theta, around))


class _InterceptFit:
    """The problem around any intercepts, its certificate, and the scale of its gaps.

    Attributes
    ----------
    plain : Problem
        The problem without a shift of the margins.
    levels : ndarray of shape (K,)
        Intercepts of the best constant model.
    at_zero : float
        F of the best constant model, 1 where that is nothing but rounding (``exact``).
    """

    def __init__(
        self,
        data: LocalData,
        loss: Loss,
        weights: tuple[float, float],
        y: np.ndarray,
        solver: Solver,
        scale: float,
        levels: np.ndarray,
    ) -> None:
        columns = np.ones((loss.n_outputs, data.X.shape[1]))
        columns[:, -1] = 0.0
        self.columns = columns.ravel()
        plain = penalised(data, loss, weights, y, solver, self.columns)
        self.plain = plain.with_ridge_columns(self.columns) if takes_free_column(solver) else plain
        self.solver, self.scale, self.levels, self.outputs = solver, scale, levels, loss.n_outputs
        self.tol = solver.options.tol or 0.0
        self.offset, self.means = data.offset, np.zeros(1) if data.means is None else data.means
        largest = 0.0 if data.offset is None else float(np.abs(data.offset).max(initial=0.0))
        solver.cluster.activity = "to sum up the data"
        self._largest_offset = max(solver.cluster.allgather(largest))
        nodes = AllNodes(solver.cluster, solver.placement, self.problem(levels))
        zero, duals = np.zeros(plain.n_features), np.zeros((plain.n_samples, *plain.dual_shape))
        slack = self._slack(zero.reshape(self.outputs, -1), levels, levels)
        constant = close_gap(
            nodes.collect(nodes.problem.gap_parts(duals, zero, slack)), zero, None, nodes.total_sigma
        )
        self.exact = constant.value <= constant.rounding
        self.at_zero = 1.0 if self.exact else constant.value
        self._rounding_at_zero = constant.rounding
        # How far the best intercept may be from the levels: the size of typical margins or residuals.
        squares = np.zeros_like(y)
        if loss.translates:
            squares = (y - levels[0] - (0.0 if data.offset is None else data.offset)) ** 2
        weight, square = solver.totals([data.weights, data.weights * squares], data.node_starts)
        square = max(2.0 * constant.value, square)
        self._radius = 1.0 + (math.sqrt(square / weight) if weight > 0.0 else 0.0)

    def problem(self, center: np.ndarray) -> Problem:
        """Return the problem whose last column has the intercepts less ``center`` (K,)."""
        shape = (self.plain.n_samples, *self.plain.dual_shape)
        shift = np.broadcast_to(center if self.plain.dual_shape else center[0], shape)
        return self.plain.with_offset(shift if self.offset is None else shift + self.offset)

    def with_intercepts(self, points: np.ndarray, center: np.ndarray) -> np.ndarray:
        """Return points (…, K·(p + 1)) of the problem around ``center`` with the intercepts themselves."""
        out = points.reshape(*points.shape[:-1], self.outputs, -1).copy()
        out[..., -1] = center + self.scale * out[..., -1]
        return out.reshape(points.shape)

    def certifier(self, center: np.ndarray) -> Certifier:
        """Return the function that certifies a run on the problem around ``center``."""

        def certify(
            process: Process, nodes: AllNodes, *, enough: float | None = None, lower: float = -np.inf
        ) -> Certificate:
            if isinstance(process, PrimalProcess) and enough is not None and not process.exhausted:
                # A full certificate takes a pass. The gradient says when it is worth it.
                promised = promised_gap(process, nodes, self.columns) / self.at_zero
                if promised > enough:
                    value = process.value if process.point.any() else nodes.value_at_zero
                    return Certificate(process.point, value, nodes.dual_at_zero, promised)
            theta, duals = np.asarray(nodes.add(process.primal()) / nodes.sigma.size), process.dual()
            if duals is None:
                duals = nodes.problem.clip_to_domain(nodes.problem.slopes(theta), in_place=True)
            return self.certify(nodes, theta, duals, center)

        return certify

    def certify(
        self, nodes: AllNodes, theta: np.ndarray, duals: np.ndarray, center: np.ndarray, *, move: bool = False
    ) -> Certificate:
        """Certify θ (K·(p + 1),) of the problem around ``center``, for the problem without the penalty.

        With ``move`` the coefficients become those that the dual variables represent. For dual variables
        with the sum 0, F − D is the sum of wℓ(u) + wℓ*(s/w) − us over the samples and
        (α/2)‖θ − θ(s)‖² over the penalised columns: no term is negative.
        """
        problem = nodes.problem
        for _ in range(2):  # the second time removes the rounding of the first
            duals = balanced(problem, duals, nodes)
        total = nodes.add_rows(duals)
        point = theta.reshape(self.outputs, -1).copy()
        if move:
            point[:, :-1] = nodes.penalty.minimizer(total).reshape(self.outputs, -1)[:, :-1]
        intercepts = center + self.scale * point[:, -1]
        slack = self._slack(point, center, intercepts)
        parts = nodes.collect(problem.gap_parts(duals, point.ravel(), slack))
        bare = self.columns * point.ravel()
        residual, *l1 = nodes.penalty.apart(total, bare)
        value, _, gap, rounding = close_gap(parts, bare, self.columns * residual, nodes.total_sigma, *l1)
        # The rest of the sum of the dual variables counts as far as the best intercept may be away.
        gap += float(_rest_of_sums(problem, duals, nodes) @ (self._radius + np.abs(intercepts - self.levels)))
        return Certificate(
            point.ravel(), value, value - gap - rounding, gap / self.at_zero, duals, absolute_gap=gap
        )

    def _slack(self, point: np.ndarray, center: np.ndarray, intercepts: np.ndarray) -> float:
        """Return a bound of the rounding of margins by the intercepts that the fit returns.

        A returned intercept is the centre plus the last entry of θ, less the coefficients times the means of
        the columns; the centre is also added to the offsets.
        """
        sizes = 1.5 * np.abs(intercepts) + 2.0 * np.abs(intercepts - center)
        sizes += point.shape[1] * (np.abs(point[:, :-1]) * np.abs(self.means)).sum(axis=1)
        if self._largest_offset > 0.0:
            sizes += np.abs(center) + self._largest_offset
        return _EPS * float(np.sqrt(sizes @ sizes))

    def constant(self, other: Certificate) -> Certificate:
        """Return the best constant model, with the lower bound of F* that another point has proved."""
        point = np.zeros((self.outputs, other.theta.size // self.outputs))
        point[:, -1] = self.levels
        gap = self.at_zero - other.lower + self._rounding_at_zero
        return other._replace(
            theta=point.ravel(), value=self.at_zero, gap=gap / self.at_zero, absolute_gap=gap
        )

    def joined(self, runs: Sequence[Run], best: Certificate | None, theta: np.ndarray) -> Run:
        """Return one run of all rounds, at the best certified point, or the better constant model."""
        last = runs[-1]
        whole = replace(last, theta=theta, seconds=sum(run.seconds for run in runs))
        if best is None:
            return replace(whole, columns=joined_frames(runs, last.gap))
        if best.gap > self.tol and best.value > self.at_zero:
            best = self.constant(best)
        outcome = last.outcome
        if outcome is not Outcome.STOPPED:  # a user who stops a run stops the fit
            ended = Outcome.OUT_OF_BUDGET if outcome is Outcome.CONVERGED else outcome
            outcome = Outcome.CONVERGED if best.gap <= self.tol else ended
        return replace(
            whole,
            coef=best.theta,
            gap=best.gap,
            absolute_gap=best.absolute_gap,
            outcome=outcome,
            columns=joined_frames(runs, best.gap),
            dual=None if last.dual is None else best.duals,
        )


# --------------------------------------------------------------------------- the best constant model


def best_constants(data: LocalData, loss: Loss, y: np.ndarray, solver: Solver) -> np.ndarray:
    """Return the intercepts (K,) of the best model without coefficients; its F is within 1 % of the least."""
    offset = data.offset
    if loss.link == "log":
        parts = loss.level_parts(y, np.zeros_like(y) if offset is None else offset)
        over, under = solver.totals([data.weights * part for part in parts], data.node_starts)
        return np.array([solver.cluster.attempt("to check the data", lambda: common_margin(over, under))])
    ones: Any = np.ones((y.size, 1))
    column = sp.csr_array(ones) if data.sparse else ones
    problem = Problem.stacked(column, y, data.weights, data.node_starts, loss, 1.0, offset)
    nodes = AllNodes(solver.cluster, solver.placement, problem)
    if loss.several_outputs:
        return _best_class_levels(problem, nodes)
    start = 0.0
    if loss.translates:  # the mean of the targets
        targets = data.weights * (y if offset is None else y - offset)
        total, over = solver.totals([data.weights, targets], data.node_starts)
        start = float(over / total) if total > 0.0 else 0.0

    def evaluate(level: float) -> tuple[float, float, float]:
        point = np.array([level])
        sums = np.column_stack([problem.loss_sums(point), problem.row_sums(problem.slopes(point))])
        value, slope = nodes.add(sums)
        return level, float(value), float(slope)

    return np.array([_minimise_scalar(evaluate, start)])


def _minimise_scalar(evaluate: Callable[[float], tuple[float, float, float]], start: float) -> float:
    """Return an argument at which a convex function of one number is within 1 % of its least value.

    ``evaluate`` returns the argument, the value and the slope there. The tangents on both sides of the
    minimiser meet below the least value.
    """
    best = below = above = here = evaluate(start)
    step = (abs(here[1]) or 1.0) / abs(here[2]) if here[2] != 0.0 else 0.0  # to where the tangent is 0
    for _ in range(_MOST_TRIALS):
        level, _, slope = here
        if slope == 0.0 or not math.isfinite(slope):
            break
        below, above = (here, above) if slope < 0.0 else (below, here)
        if below[2] * above[2] > 0.0:  # no second side yet
            level -= math.copysign(step, slope)
            step *= 2.0
        else:
            width = above[0] - below[0]
            meet = (above[1] - above[2] * width - below[1]) / (below[2] - above[2])
            if best[1] - (below[1] + below[2] * meet) <= _ACCURACY * best[1]:
                break
            level = below[0] + min(max(meet, 0.1 * width), 0.9 * width)
        here = evaluate(level)
        best = min(best, here, key=lambda point: point[1])
    return best[0]


def _best_class_levels(problem: FiniteSum, nodes: AllNodes) -> np.ndarray:
    """Return the levels (K,) of a softmax model whose shares of the classes are those of the data.

    Iterative scaling: the logarithm of true share over predicted share is added to each level. Without
    offsets the first step is exact.
    """
    levels = np.zeros(problem.n_outputs)
    for _ in range(_MOST_TRIALS):
        _, _, true, predicted = _class_sums(problem, problem.slopes(levels), nodes)
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
    """Return dual variables in their domains with the sum 0 over all nodes (up to rounding), near the given.

    Parameters
    ----------
    problem : FiniteSum
    duals : ndarray of shape (N,) or (N, K)
        In their domains.
    nodes : AllNodes
    """
    balance = _balanced_classes if problem.dual_shape else _balanced
    return problem.clip_to_domain(balance(problem, duals, nodes))


def _node_sums(problem: FiniteSum, columns: np.ndarray) -> np.ndarray:
    """Return each node's sums of columns (N, k), right to rounding; shape (n, k)."""
    ones = rows_of(np.ones((problem.n_samples, 1)))
    return weighted_row_sums(ones, problem.node_starts, np.ascontiguousarray(columns), columns.shape[1])


def _rest_of_sums(problem: FiniteSum, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Return how far the sums of dual variables (N,) or (N, K) over all nodes can be from 0; (K,)."""
    sums = nodes.collect(_node_sums(problem, duals.reshape(problem.n_samples, -1)))
    # Each node's sum is right to its own rounding.
    return np.array([abs(math.fsum(column)) + _EPS * math.fsum(np.abs(column)) for column in sums.T])


def _balanced(problem: FiniteSum, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Move each dual variable in proportion to its distance from the nearer end of its domain."""
    duals = np.where(problem.weights > 0.0, duals, 0.0)
    distance = dual_rooms(problem.loss, problem.labels, problem.weights, duals)
    columns = np.column_stack([duals, distance, np.maximum(duals, 0.0), np.minimum(duals, 0.0)])
    total, space, above, below = nodes.add(_node_sums(problem, columns))
    if abs(total) < space:
        return np.asarray(duals - (total / space) * distance)
    # The sum is too far from 0 for that: the heavier side is scaled down. Every domain contains 0.
    if above > -below:
        return np.where(duals > 0.0, duals * (-below / above), duals)
    return np.where(duals < 0.0, duals * (above / -below), duals) if below < 0.0 else duals


def _class_sums(
    problem: FiniteSum, duals: np.ndarray, nodes: AllNodes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return predicted shares p and classes e (N, K) of dual variables w(p − e), and Σwe and Σwp (K,)."""
    weights, classes = problem.weights[:, None], duals.shape[1]
    truth = np.zeros_like(duals)
    truth[np.arange(len(duals)), problem.y.astype(np.int64)] = 1.0
    share = truth + np.divide(duals, weights, out=np.zeros_like(duals), where=weights > 0.0)
    share = np.clip(share, 0.0, 1.0)
    sums = nodes.add(_node_sums(problem, np.hstack([weights * truth, weights * share])))
    return share, truth, sums[:classes], sums[classes:]


def _balanced_classes(problem: FiniteSum, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Move the shares p of each sample by a Newton step of the intercepts, or mix them with other shares."""
    weights, classes = problem.weights[:, None], duals.shape[1]
    share, truth, true, predicted = _class_sums(problem, duals, nodes)
    # K × K numbers per node: the curvature of the intercepts.
    cuts = zip(problem.node_starts[:-1], problem.node_starts[1:], strict=True)
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
