"""An intercept that is not penalised, for every loss and on every cluster.

The rows get one more column, so the intercept is penalised a little, around where it was before. Solve, move
the centre to what was found, repeat from the same dual variables: the proximal-point method in the intercept
alone, which a long column makes quick. What is certified is the problem without that penalty. Its dual asks
that the tips sum to 0, and any tips can be made to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Process
from adfs.algorithms.round_process import PrimalProcess
from adfs.estimators.solver import LocalData, Solver, joined_frames, penalised
from adfs.problem import Loss, Problem
from adfs.problem.evaluation import dual_rooms, weighted_row_sums
from adfs.problem.gaps import close_gap
from adfs.problem.samples import rows_of
from adfs.problem.views import common_margin
from adfs.runtimes import Outcome, Run
from adfs.runtimes.certificates import AllNodes, Certificate, Certifier, promised_gap
from adfs.threads import single_threaded

_MOST_ROUNDS = 60
_FIRST_TOLERANCE, _FIRST_WITH_KINKS = 1e-6, 1e-2  # where kinks are, the last digits take the most passes
# How well the next round is solved: shares of the gap so far, and of the one asked for.
_NEXT_SHARE, _LAST_SHARE, _LEAST_SHARE = 1e-3, 0.2, 0.01
_CENTERED_COLUMN = 0.25  # of the mean squared norm of the rows: their condition hardly suffers
_LONGEST_STRIDE = 50.0
# Of methods that do not mind the units of columns, for which one round is enough; and how many others take.
_WHATEVER_THE_UNITS = ("interior-point", "lbfgs", "newton")
_USUAL_ROUNDS, _BELOW = 3.0, 1e8
# Their runs are certified for the problem itself, where what is left of ∇F promises as much: the column is so
# long that the same change of an intercept is this much of the others' there.
_COLUMN_COUNTS = 5.0 / math.sqrt(_BELOW)
# What is left of ∇F where the rest of a gap is rounding, which another centre may mend: of the tolerance, and
# of F(0).
_IN_VAIN, _ROUNDING = 1e-6, 2.0**-52
_PROMISING = 0.8  # of the tolerance: dual variables that are made to sum to 0 prove a little less
_ACCURACY, _MOST_LOOKS = 0.01, 100  # of F of the best constant model, and how often it is computed for that
_EPS = float(np.finfo(np.float64).eps)


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
    """Minimise Σ wℓ(xᵀθ + b + o; y) + (α/2)‖θ‖² + λ‖θ‖₁ over θ and b, b not penalised.

    Parameters
    ----------
    data : LocalData
        With the weights of the objective, and the intercept's column at the end.
    loss : Loss
    weights : tuple
        α and λ.
    y : ndarray of shape (N,)
        The labels as the loss takes them.
    solver : Solver
        With the method settled.
    scale : float
        What the column holds: `column_length`.
    start : ndarray of shape (N,) or (N, K), optional
        Tips to start from.
    center : ndarray of shape (K,), optional
        Intercepts to start from.

    Returns
    -------
    Run
        Of all rounds together, certified for this problem. ``coef`` (K·(p + 1),) and ``theta`` end with the
        intercept, or each output's with its own.
    """
    tol = solver.options.tol
    assert tol is not None
    levels = best_constants(data, loss, y, solver)
    center = levels if center is None else center
    columns = np.ones((loss.n_outputs, data.X.shape[1]))
    columns[:, -1] = 0.0
    plain = penalised(data, loss, weights, y, solver, columns.ravel())
    rounds = _Rounds(plain, solver, scale, data, levels)
    first = _FIRST_TOLERANCE if loss.smooth or loss.assumes_curvature else _FIRST_WITH_KINKS
    left, next_tol = solver.options.max_passes, max(first, (0.5 if start is None else 1.0) * tol)
    if rounds.by_points:
        next_tol = tol
    best: _Point | None = None
    before: tuple[np.ndarray, np.ndarray] | None = None
    gap = math.inf
    for _ in range(_MOST_ROUNDS):
        problem = rounds.problem(center)
        part = solver.part(rounds.runs) if rounds.runs else solver
        limits = replace(part.options, tol=next_tol, max_passes=left)
        solve = replace(part, options=limits).solve
        run = solve(problem, start, rounds.certifier(center)) if rounds.by_points else solve(problem, start)
        rounds.runs.append(run)
        around = center
        if not np.isfinite(run.coef).all():
            break
        found = rounds.point_of(run, around) if rounds.by_points else rounds.certify_run(problem, run, around)
        # Where gaps are down to rounding the later point is the better one.
        best = found if best is None or found.gap < 2.0 * best.gap else best
        passes = float(run.columns["passes"][-1])
        # Rounding: nothing moves any more, however far the tolerance.
        at_rest = passes == 0.0 and next_tol <= _LEAST_SHARE * tol and found.gap > 0.9 * gap
        # One that can go no further may from another centre.
        ended = run.outcome is not Outcome.CONVERGED
        if rounds.by_points and run.outcome is Outcome.OUT_OF_BUDGET:
            ended = found.gap > 0.5 * gap or (left is not None and passes >= left)
        gap = found.gap
        if best.gap <= tol or at_rest or ended:
            break
        if not rounds.by_points:  # whose runs end where the tolerance asked for is met
            next_tol = _next_tolerance(next_tol, found.gap, tol)
        step = scale * run.coef.reshape(rounds.outputs, -1)[:, -1]
        center = around + _stride(around, step, before) * step
        if loss.several_outputs:  # which all may have one number more: they keep a mean of 0
            center = center - center.mean()
        before = around, step
        # Tips that sum to 0 stand for the very centre that the next round has.
        start = None if run.dual is None else found.duals
        if left is not None:
            left = max(left - passes, 1.0)
    return rounds.joined(best, around, tol)


def _next_tolerance(before: float, gap: float, tol: float) -> float:
    """Return how well the next round is to be solved."""
    if before > _LAST_SHARE * tol:
        return max(_LAST_SHARE * tol, _NEXT_SHARE * min(before, gap))
    # Tips that are not exact enough do not sum to 0, and it costs to make them.
    return max(_LEAST_SHARE * tol, 0.25 * before)


def _stride(
    center: np.ndarray, step: np.ndarray, before: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray | float:
    """Return how many of a round's steps the next centre is away: by the secant through two rounds.

    A round takes the same share of the way to the best intercept each time; a small one where columns can
    stand in for the intercept.
    """
    if before is None or np.abs(step).sum() > 0.9 * np.abs(before[1]).sum():
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (center - before[0]) / (before[1] - step)
    return np.where(np.isfinite(found), np.clip(found, 1.0, _LONGEST_STRIDE), 1.0)


def rounds_of(methods: Sequence[str]) -> dict[str, float]:
    """Return about how many rounds an intercept that is not penalised takes with each of some methods."""
    return {name: 1.0 if name in _WHATEVER_THE_UNITS else _USUAL_ROUNDS for name in methods}


def column_length(data: LocalData, loss: Loss, alpha: float, y: np.ndarray, solver: Solver) -> float:
    """Return what the intercept's column holds, for rows that have none yet.

    So much that its penalty is well below the curvature: far below it for a method that does not mind, and
    otherwise as far as rows as long as these hardly notice.
    """
    total, middle = solver.totals([data.weights, data.weights * y], data.node_starts)
    if not total > 0.0:
        return 1.0
    curvature = loss.beta if loss.smooth else 1.0
    if loss.name == "poisson":
        curvature = middle / total
    least = alpha / ((curvature or 1.0) * total)
    if solver.method in _WHATEVER_THE_UNITS:
        return math.sqrt(_BELOW * least)
    squares = (
        np.asarray(data.X.multiply(data.X).sum(axis=1)).ravel()
        if data.sparse
        else np.einsum("jk,jk->j", data.X, data.X)
    )
    (typical,) = solver.totals([data.weights * squares], data.node_starts)
    share = 1.0 if data.sparse else _CENTERED_COLUMN  # columns that are centred leave the intercept alone
    return math.sqrt(max(share * typical / total, 10.0 * least)) or 1.0


def best_constants(data: LocalData, loss: Loss, y: np.ndarray, solver: Solver) -> np.ndarray:
    """Return the intercepts of the best model without coefficients, whose F gaps are relative to; (K,).

    Its F is within 1 % of the least one.
    """
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
        return _best_of_classes(problem, nodes)
    start = 0.0
    if loss.translates:
        total, over = solver.totals(
            [data.weights, data.weights * (y if offset is None else y - offset)], data.node_starts
        )
        start = float(over / total) if total > 0.0 else 0.0

    def look(level: float) -> tuple[float, float, float]:
        point = np.array([level])
        sums = np.column_stack([problem.loss_sums(point), problem.row_sums(problem.slopes(point))])
        value, slope = nodes.add(sums)
        return level, float(value), float(slope)

    return np.array([start if loss.name == "squared" else _least(look, start)])


def _least(look: Callable[[float], tuple[float, float, float]], start: float) -> float:
    """Return where a convex function of one number is within 1 % of its least value.

    ``look`` returns a number, the value and the slope there. Two tangents bound the least value from below.
    """
    best = look(start)
    level, value, slope = best
    below = above = best
    step = (abs(value) or 1.0) / abs(slope) if slope != 0.0 else 0.0  # to where its tangent is 0
    for _ in range(_MOST_LOOKS):
        if slope == 0.0 or not math.isfinite(slope):
            break
        below, above = ((level, value, slope), above) if slope < 0.0 else (below, (level, value, slope))
        if below[2] * above[2] > 0.0:
            level -= math.copysign(step, slope)
            step *= 2.0
        else:
            width = above[0] - below[0]
            meet = (above[1] - above[2] * width - below[1]) / (below[2] - above[2])
            if best[1] - (below[1] + below[2] * meet) <= _ACCURACY * best[1]:
                break
            level = below[0] + min(max(meet, 0.1 * width), 0.9 * width)
        level, value, slope = look(level)
        best = min(best, (level, value, slope), key=lambda one: one[1])
    return best[0]


def _best_of_classes(problem: Problem, nodes: AllNodes) -> np.ndarray:
    """Return the logarithms of the classes' shares; with offsets Newton's method goes on from there."""
    nothing = np.zeros((problem.n_samples, problem.n_outputs))
    true = _class_sums(problem, nothing, nodes)[2]
    levels: np.ndarray = np.log(np.maximum(true, _EPS * true.sum())) if true.any() else true
    levels -= levels.mean()

    def look(point: np.ndarray) -> float:
        return float(nodes.add(problem.loss_sums(point)[:, None])[0])

    value = look(levels)
    for _ in range(0 if problem.offset is None else _MOST_LOOKS):
        _, _, true, predicted, turn = _class_sums(problem, problem.slopes(levels), nodes)
        if not (predicted - true) @ turn > _ACCURACY * value:
            break
        while (found := look(levels - turn)) > value:
            turn = 0.5 * turn
        levels, value = levels - turn, found
    return levels


@dataclass(frozen=True)
class _Point:
    """Coefficients with intercepts at the end, (K, p + 1), F there, a lower bound of F*, gaps, and tips."""

    theta: np.ndarray
    value: float
    lower: float
    gap: float
    absolute_gap: float
    duals: np.ndarray | None


class _Rounds:
    """What the rounds share: the rows with the column, the runs so far, and the certificate."""

    def __init__(
        self, plain: Problem, solver: Solver, scale: float, data: LocalData, levels: np.ndarray
    ) -> None:
        self.plain, self.solver, self.scale, self.offset = plain, solver, scale, data.offset
        self.outputs, self.tol, self.levels = plain.n_outputs, solver.options.tol or 0.0, levels
        self.runs: list[Run] = []
        self._made: tuple[np.ndarray, Problem] | None = None
        self._means = np.zeros(plain.n_features // self.outputs - 1) if data.means is None else data.means
        largest = 0.0 if data.offset is None else float(np.abs(data.offset).max(initial=0.0))
        self._largest_offset = max(solver.cluster.gather(largest, "to sum up the data"))
        # F of the best constant model, which gaps are relative to unless it is nothing but rounding.
        first = AllNodes(solver.cluster, solver.placement, self.problem(levels))
        zero = np.zeros(plain.n_features)
        duals = np.zeros((plain.n_samples, *plain.dual_shape))
        slack = self._slack(zero.reshape(self.outputs, -1), levels, levels)
        parts = first.collect(first.problem.gap_parts(duals, zero, slack))
        found = close_gap(parts, zero, None, first.total_sigma)
        exact = found.value <= found.rounding
        self.at_zero = 1.0 if exact else found.value
        self.by_points = exact or solver.method in _WHATEVER_THE_UNITS  # an exact one is certified at once
        # How far an intercept may be from the best one: the size of margins, and of targets.
        (weight,) = solver.totals([plain.weights], plain.node_starts)
        mean = found.value / weight if weight > 0.0 else 0.0
        linear = plain.loss.translates and plain.loss.name != "squared"
        self.reach = 1.0 + max(math.sqrt(2.0 * mean), mean if linear else 0.0)

    def _slack(self, point: np.ndarray, around: np.ndarray, intercepts: np.ndarray) -> float:
        """Return what rounding can do to the margins through the intercepts that are returned.

        These are the centre and what was found around it, less what the columns' means make of the
        coefficients; and the centre is added to the offsets.
        """
        sizes = 1.5 * np.abs(intercepts) + 2.0 * np.abs(intercepts - around)
        sizes += point.shape[1] * (np.abs(point[:, :-1]) @ np.abs(self._means))
        if self._largest_offset > 0.0:
            sizes += np.abs(around) + self._largest_offset
        return _EPS * float(np.sqrt(sizes @ sizes))

    def problem(self, center: np.ndarray) -> Problem:
        """Return the problem whose intercepts are penalised around ``center`` (K,)."""
        if self._made is not None and np.array_equal(self._made[0], center):
            return self._made[1]
        shape = (self.plain.n_samples, *self.plain.dual_shape)
        shift = np.broadcast_to(center if self.plain.dual_shape else center[0], shape)
        made = self.plain.with_offset(shift if self.offset is None else shift + self.offset)
        self._made = center, made
        return made

    def certifier(self, around: np.ndarray) -> Certifier:
        """Return what certifies a run that goes by θ, for the problem without the penalty."""
        lengths = np.ones((self.outputs, self.plain.n_features // self.outputs))
        lengths[:, -1] = _COLUMN_COUNTS

        def certify(
            process: Process, nodes: AllNodes, *, enough: float | None = None, lower: float = -np.inf
        ) -> Certificate:
            last = False
            if isinstance(process, PrimalProcess):
                guess = promised_gap(process, nodes, lengths.ravel()) / self.at_zero
                if enough is not None and guess > _PROMISING * enough and not process.exhausted:
                    # The guess bounds nothing, and must not end the run.
                    above = max(guess, math.nextafter(enough, math.inf))
                    value = process.value if process.point.any() else nodes.value_at_zero
                    return Certificate(process.point, value, nodes.dual_at_zero, above)
                left = promised_gap(process, nodes)
                last = 0.0 < left <= max(_IN_VAIN * self.tol, _ROUNDING) * self.at_zero
            theta, duals = np.asarray(nodes.add(process.primal()) / nodes.sigma.size), process.dual()
            if duals is None:
                duals = nodes.problem.clip_to_domain(nodes.problem.slopes(theta), in_place=True)
            found = self.certify(nodes, theta, duals, around)
            return Certificate(
                theta, found.value, found.lower, found.gap, found.duals, last, found.absolute_gap
            )

        return certify

    def point_of(self, run: Run, around: np.ndarray) -> _Point:
        """Return the point of a run that `certifier` certified: it is in the run's result."""
        point = run.coef.reshape(self.outputs, -1).copy()
        point[:, -1] = around + self.scale * point[:, -1]
        value, lower = (float(run.columns[name][-1]) for name in ("primal", "dual"))
        return _Point(point, value, lower, run.gap, run.absolute_gap, run.dual)

    def certify_run(self, problem: Problem, run: Run, around: np.ndarray) -> _Point:
        """Return the point of a run's tips, its own where it has none, certified without the penalty."""
        nodes = AllNodes(self.solver.cluster, self.solver.placement, problem)
        duals = problem.slopes(run.coef) if run.dual is None else run.dual
        return self.certify(nodes, run.coef, duals, around, move=run.dual is not None)

    def certify(
        self, nodes: AllNodes, coef: np.ndarray, duals: np.ndarray, around: np.ndarray, *, move: bool = False
    ) -> _Point:
        """Return a point certified without the penalty, moved to the one that tips stand for if asked to.

        F − D is the sum of the samples' wℓ(u) + wℓ*(s/w) − us and (α/2)‖θ − θ(s)‖², where tips sum to 0.
        """
        problem = nodes.problem
        assert isinstance(problem, Problem)
        for _ in range(2):  # again where rounding left too much
            duals = balanced(problem, duals, nodes)
            total = nodes.add_rows(duals).reshape(self.outputs, -1)
            sums, sigma = _left(duals, problem, nodes), nodes.total_sigma
            cost = float(sums @ (self.reach + np.abs(around - self.levels)))
            if cost <= _LEAST_SHARE * self.tol * self.at_zero:
                break
        point = coef.reshape(self.outputs, -1).copy()
        # Where rows are long, tips that are right to rounding stand for a point that is far off; a method
        # that goes by points has a better one.
        if move:
            point[:, :-1] = nodes.penalty.minimizer(total.ravel()).reshape(self.outputs, -1)[:, :-1]
        if move and problem.smooth and problem.loss.translates:  # to the best intercept, of a square
            pull, weight = _sums([problem.slopes(point.ravel()), problem.weights], problem, nodes)
            if weight > 0.0:
                point[:, -1] -= pull / (problem.loss.beta * weight * self.scale)
        intercepts = around + self.scale * point[:, -1]
        slack = self._slack(point, around, intercepts)
        parts = nodes.collect(problem.gap_parts(duals, point.ravel(), slack))
        free = point.copy()
        free[:, -1] = 0.0
        apart, *l1 = nodes.penalty.apart(total.ravel(), free.ravel())
        residual = apart.reshape(self.outputs, -1)
        residual[:, -1] = 0.0
        value, _, gap, rounding = close_gap(parts, free.ravel(), residual.ravel(), sigma, *l1)
        point[:, -1] = intercepts
        # Tips sum to 0 up to rounding; what is left counts as far as an intercept may be away.
        gap += float(sums @ (self.reach + np.abs(intercepts - self.levels)))
        return _Point(point, value, value - gap - rounding, gap / self.at_zero, gap, duals)

    def constant(self, other: _Point) -> _Point:
        """Return the best constant model, with the lower bound of F* that another point has proved."""
        point = np.zeros_like(other.theta)
        point[:, -1] = self.levels
        gap = self.at_zero - other.lower
        return _Point(point, self.at_zero, other.lower, gap / self.at_zero, gap, other.duals)

    def joined(self, best: _Point | None, around: np.ndarray, tol: float) -> Run:
        """Return one run of all rounds, whose last one was ``around`` these intercepts."""
        last = self.runs[-1]
        theta = last.theta.reshape(len(last.theta), self.outputs, -1).copy()
        theta[:, :, -1] = around + self.scale * theta[:, :, -1]
        coef, gap, outcome, dual, absolute = last.coef, last.gap, last.outcome, last.dual, last.absolute_gap
        if best is not None:
            # A run that goes by points has compared its own; dual variables may stand for a worse one.
            if not self.by_points and best.gap > tol and best.value > self.at_zero:
                best = self.constant(best)
            absolute = best.absolute_gap
            coef, gap, dual = best.theta.ravel(), best.gap, None if dual is None else best.duals
            if outcome is Outcome.STOPPED:
                pass  # someone wants to stop more than this fit
            elif gap <= tol:
                outcome = Outcome.CONVERGED
            elif outcome is Outcome.CONVERGED:
                outcome = Outcome.OUT_OF_BUDGET
        return replace(
            last,
            coef=coef,
            theta=theta.reshape(len(theta), -1),
            gap=gap,
            absolute_gap=absolute,
            outcome=outcome,
            columns=joined_frames(self.runs, gap),
            seconds=sum(run.seconds for run in self.runs),
            dual=dual,
        )


# --------------------------------------------------------------------------- tips that sum to 0


def balanced(problem: Problem, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Return tips in their domains that sum to 0 over all nodes (up to rounding), near those given.

    Parameters
    ----------
    problem : Problem
    tips : ndarray of shape (N,) or (N, K)
        In their domains.
    nodes : AllNodes
    """
    balance = _balanced_classes if problem.dual_shape else _balanced
    return problem.clip_to_domain(balance(problem, duals, nodes))


def _sums(columns: Sequence[np.ndarray], problem: Problem, nodes: AllNodes) -> np.ndarray:
    """Return the sums of columns (N,) over the rows of all nodes, node by node, right to rounding."""
    ones = rows_of(np.ones((problem.n_samples, 1)))
    return nodes.add(weighted_row_sums(ones, problem.node_starts, np.column_stack(columns), len(columns)))


def _left(duals: np.ndarray, problem: Problem, nodes: AllNodes) -> np.ndarray:
    """Return how far the sums of tips (N,) or (N, K) over all nodes can be from 0; (K,)."""
    duals = duals.reshape(problem.n_samples, -1)
    ones = rows_of(np.ones((problem.n_samples, 1)))
    sums = nodes.collect(weighted_row_sums(ones, problem.node_starts, duals, duals.shape[1]))
    # Each node's sum is right to its own rounding.
    return np.array([abs(math.fsum(one)) + _EPS * math.fsum(np.abs(one)) for one in sums.T])


def _balanced(problem: Problem, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Move each tip in proportion to its way to the nearer end of its domain: one at an end stays there."""
    duals = np.where(problem.weights > 0.0, duals, 0.0)
    room = dual_rooms(problem.loss, problem.labels, problem.weights, duals)
    total, space = _sums([duals, room], problem, nodes)
    if abs(total) < space:
        return np.asarray(duals - (total / space) * room)
    # Too far for that: the heavier side is scaled down, which every domain that holds 0 allows.
    above, below = _sums([np.maximum(duals, 0.0), np.minimum(duals, 0.0)], problem, nodes)
    if above > -below:
        return np.where(duals > 0.0, duals * (-below / above), duals)
    return np.where(duals < 0.0, duals * (above / -below), duals) if below < 0.0 else duals


def _class_sums(
    problem: Problem, duals: np.ndarray, nodes: AllNodes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return p and e (N, K) of tips w(p − e), the sums of we and of wp (K,), and Newton's step upwards (K,).

    The step is that of intercepts: the sums' difference over the sum of the samples' curvatures.
    """
    weights, classes = problem.weights[:, None], duals.shape[1]
    truth = np.zeros_like(duals)
    truth[np.arange(len(duals)), problem.y.astype(np.int64)] = 1.0
    share = truth + np.divide(duals, weights, out=np.zeros_like(duals), where=weights > 0.0)
    share = np.clip(share, 0.0, 1.0)
    mass = weights * share
    sums = _sums([*(weights * truth).T, *mass.T], problem, nodes)
    true, predicted = sums[:classes], sums[classes:]
    # K × K numbers per node, not a column of N for each.
    cuts = zip(problem.node_starts[:-1], problem.node_starts[1:], strict=True)
    with single_threaded:
        products = np.array([(mass[a:b].T @ share[a:b]).ravel() for a, b in cuts])
    spread = np.diag(predicted) - nodes.add(products).reshape(classes, classes)
    turn = np.linalg.lstsq(spread, predicted - true, rcond=None)[0]
    return share, truth, true, predicted, turn


def _balanced_classes(problem: Problem, duals: np.ndarray, nodes: AllNodes) -> np.ndarray:
    """Tips are w(p − e): each p moves by its own curvature, p(1 − c + p·c); else it is mixed with others."""
    weights = problem.weights[:, None]
    share, truth, true, predicted, turn = _class_sums(problem, duals, nodes)
    factor = 1.0 - turn + (share @ turn)[:, None]
    if not nodes.cluster.any(not (factor > 0.0).all(), nodes.why):
        return np.asarray(weights * (share * factor - truth))
    most = max(0.0, *(1.0 - true[predicted > 0.0] / predicted[predicted > 0.0]))
    if most == 0.0:
        return duals
    others = (true - (1.0 - most) * predicted) / (most * true.sum())
    return np.asarray(weights * ((1.0 - most) * share + most * others - truth))
