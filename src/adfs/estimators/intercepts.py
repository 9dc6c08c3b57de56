"""The intercept of the squared loss: exact and not penalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from adfs.estimators.pipeline import FittedModel, LocalData, ModelSpec, Solver, append_column, joined_frames
from adfs.problem import get_loss
from adfs.problem.evaluation import node_sums, weighted_row_sums
from adfs.problem.rows import rows_of
from adfs.runtimes import Outcome, Run

__all__ = ["fit_centered_squares"]

_MOST_ROUNDS = 60
_FIRST_TOLERANCE = 1e-6


def fit_centered_squares(
    data: LocalData, spec: ModelSpec, solver: Solver, start: np.ndarray | None
) -> FittedModel:
    """Minimise Σ w ½(xᵀθ + b − y)² + (α/2)‖θ‖² over θ and b, b not penalised.

    Dense rows are centred. Sparse rows would become dense: they get a column for b instead, penalised
    around where b was before, which moves until it rests there (the proximal-point method in b alone). Both
    are certified by the gap of the problem in θ alone, to which tips with Σ s = 0 are feasible.

    Parameters
    ----------
    data : LocalData
        With the weights of the objective.
    spec : ModelSpec
    solver : Solver
    start : ndarray of shape (N,), optional
        Tips to start from.
    """
    total, center, middle = _means(data, solver)
    if sp.issparse(data.X):
        return _fit_sparse(data, spec, solver, start, total, center)
    sigma = spec.penalty_weight / solver.network.n_nodes
    run = solver.solve(data.problem(spec.loss, sigma, data.y - center, data.X - middle), start)
    return _model(
        run, run.coef, float(center - run.coef @ middle), run.theta, center - run.theta @ middle, data
    )


def _means(data: LocalData, solver: Solver) -> tuple[float, float, np.ndarray]:
    """Return the total weight, and the weighted means of the targets and of dense rows."""
    weights, offsets = np.ascontiguousarray(data.weights, dtype=np.float64), data.offsets
    sums = [node_sums(weights, offsets)[:, None], node_sums(weights * data.y, offsets)[:, None]]
    if not sp.issparse(data.X):
        rows = rows_of(np.ascontiguousarray(data.X, dtype=np.float64))
        sums.append(weighted_row_sums(rows, offsets, weights[:, None], data.X.shape[1]))
    found = solver.add(np.hstack(sums))
    total = float(found[0])
    if total == 0.0:
        return 0.0, 0.0, np.zeros(found.size - 2)
    return total, float(found[1] / total), found[2:] / total


def _model(
    run: Run,
    theta: np.ndarray,
    intercept: float,
    node_theta: np.ndarray,
    node_intercept: np.ndarray,
    data: LocalData,
) -> FittedModel:
    divisor = np.where(data.weights > 0.0, data.weights, 1.0)
    dual = None if run.dual is None else run.dual / divisor
    return FittedModel(
        theta[None, :],
        np.array([intercept]),
        node_theta[None],
        np.asarray(node_intercept)[None],
        None,
        [run],
        [dual],
    )


def _fit_sparse(
    data: LocalData,
    spec: ModelSpec,
    solver: Solver,
    start: np.ndarray | None,
    total: float,
    center: float,
) -> FittedModel:
    alpha, tol = spec.penalty_weight, solver.options.tol
    assert tol is not None
    squares = np.asarray(data.X.multiply(data.X).sum(axis=1)).ravel()
    # As long as the rows, so as not to worsen their condition; longer where α is so large that b would
    # hardly move.
    typical = solver.total(data.weights * squares, data.offsets) / total if total > 0.0 else 0.0
    scale = float(np.sqrt(max(typical, 10.0 * alpha / total if total > 0.0 else 0.0))) or 1.0
    rows = append_column(data.X, scale)
    certificate = _Certificate(data, alpha, solver)
    found: list[Run] = []
    best: tuple[float, np.ndarray, float] | None = None
    around, next_tol = center, _FIRST_TOLERANCE
    most = solver.options.passes
    for _ in range(_MOST_ROUNDS):
        part = solver.part(found)
        left = None if most is None else max(most - sum(float(r.columns["passes"][-1]) for r in found), 1.0)
        part = replace(part, options=replace(part.options, tol=max(next_tol, 0.1 * tol), passes=left))
        sigma = alpha / solver.network.n_nodes
        run = part.solve(data.problem(spec.loss, sigma, data.y - around, rows), start)
        found.append(run)
        if run.dual is None:
            break
        start = run.dual
        gap, theta, intercept = certificate(run.dual, run.coef[:-1])
        if best is None or gap < best[0]:
            best = gap, theta, intercept
        if gap <= tol or run.outcome is not Outcome.CONVERGED:
            break
        next_tol = 0.1 * min(next_tol, gap)
        around += scale * float(run.coef[-1])
    last = found[-1]
    if best is None:  # a method without dual variables: its own certificate, of the penalised column
        best = last.gap, last.coef[:-1], around + scale * float(last.coef[-1])
    gap, theta, intercept = best
    if gap <= tol:
        outcome = Outcome.CONVERGED
    else:
        outcome = last.outcome if last.outcome is not Outcome.CONVERGED else Outcome.OUT_OF_BUDGET
    joined = replace(
        last,
        gap=gap,
        outcome=outcome,
        coef=theta,
        columns=joined_frames(found, gap),
        seconds=sum(run.seconds for run in found),
    )
    node_intercept = around + scale * last.theta[:, -1]
    return _model(joined, theta, intercept, last.theta[:, :-1], node_intercept, data)


class _Certificate:
    """The relative gap of the problem whose intercept is not penalised, summed over all processes."""

    def __init__(self, data: LocalData, alpha: float, solver: Solver) -> None:
        self.data, self.alpha, self.solver = data, alpha, solver
        self.plain = data.problem(get_loss("squared"), alpha / solver.network.n_nodes, data.y)
        self.used = data.weights > 0.0
        self.divisor = np.where(self.used, data.weights, 1.0)
        self.total = self._sum(data.weights)
        self.center = self._sum(data.weights * data.y) / self.total if self.total > 0.0 else 0.0
        self.at_zero = 0.5 * self._sum(data.weights * (data.y - self.center) ** 2)

    def _sum(self, values: np.ndarray) -> float:
        return self.solver.total(values, self.data.offsets)

    def __call__(self, tips: np.ndarray, theta: np.ndarray) -> tuple[float, np.ndarray, float]:
        """Return the lesser of the gaps at ``theta`` and at θ(s), that θ, and its intercept."""
        data, weights = self.data, self.data.weights
        if self.total == 0.0:
            return 0.0, np.zeros(data.X.shape[1]), 0.0
        tips = np.where(self.used, tips, 0.0)
        tips = tips - weights * (self._sum(tips) / self.total)
        own = -self.solver.add(self.plain.row_sums(tips)) / self.alpha
        found: list[tuple[float, np.ndarray, float]] = []
        for point in (own, theta):
            residual = self.plain.slopes(point)  # times the weights
            intercept = -self._sum(residual) / self.total
            # F − D is Σ wℓ(u) + wℓ*(s/w) − us, for squares Σ ½w(r − s/w)², and (α/2)‖θ − θ(s)‖²: nothing
            # cancels.
            misfit = residual + intercept * weights - tips
            away = point - own
            gap = 0.5 * self._sum(misfit * misfit / self.divisor) + 0.5 * self.alpha * float(away @ away)
            found.append((gap / self.at_zero if self.at_zero > 0.0 else gap, point, intercept))
        return min(found, key=lambda one: one[0])
