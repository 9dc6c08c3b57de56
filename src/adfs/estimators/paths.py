"""Parts of cross-validation: the grid of an elastic net or a lasso, folds as masks, the score of a fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from adfs.errors import InputError
from adfs.estimators.intercepts import best_constants
from adfs.estimators.pipeline import FittedModel, scaled_problems
from adfs.estimators.solver import LocalData, ModelSpec, Solver, penalised, row_products
from adfs.prediction import explained_share, mean_score, predicted_classes, probabilities
from adfs.problem import Problem
from adfs.problem.evaluation import loss_curvatures, node_sums
from adfs.runtimes.certificates import AllNodes
from adfs.runtimes.cluster import RefusalError

#: Masks of the rows to train on and of the rows to test, node after node.
Fold = tuple[np.ndarray, np.ndarray]

_WEAKEST = 1e-3  # the last penalty of a grid over the first, as in scikit-learn's ElasticNetCV


def penalty_grid(count: int, data: LocalData, spec: ModelSpec, solver: Solver) -> np.ndarray:
    """Return multiples of the penalty of ``spec`` that form a geometric grid, the strongest first; (count,).

    The first one is the smallest at which all coefficients are 0: the largest derivative of the losses by a
    coefficient, at the best constant model. The last one is 1e-3 of it. All processes of the cluster call
    this together and get the same bits.
    """
    _, spec, _, _, problems = scaled_problems(data, spec, solver)
    strength, largest = spec.penalty_weight * spec.l1_ratio, 0.0
    for each in problems:
        # The penalty has no part in it.
        problem = penalised(each, replace(spec, l1_ratio=0.0), solver.network.n_nodes)
        nodes = AllNodes(solver.cluster, solver.placement, problem)
        around = problem
        if spec.free_intercept:
            around = _around_constants(problem, nodes, best_constants(each, spec.loss, solver))
        slopes = nodes.add_rows(around.slopes(np.zeros(problem.n_features)))
        largest = max(largest, float(np.abs(slopes).max()))
    if not strength * largest > 0.0:
        raise RefusalError(
            f"a grid of {count} values begins at the least penalty at which all coefficients are 0, and "
            "there is none here: give an {l1_ratio} above 0, or the values",
            l1_ratio=None,
        )
    return np.asarray(np.geomspace(largest / strength, _WEAKEST * largest / strength, count))


def _around_constants(problem: Problem, nodes: AllNodes, levels: np.ndarray) -> Problem:
    """Return the problem with the intercepts of the best constant model, near ``levels``, in its offsets."""
    loss, starts = problem.loss, problem.node_starts
    given = np.zeros((problem.n_samples, *problem.dual_shape)) if problem.offset is None else problem.offset
    length = math.inf
    while True:
        around = problem.with_offset(given + levels)
        if loss.several_outputs:
            return around
        # F of the constants is near its least value. Newton's steps from there end where rounding decides.
        slopes = around.slopes(np.zeros(problem.n_features))
        curvatures = problem.weights * loss_curvatures(loss, given + levels, problem.y)
        sums = [node_sums(values, starts) for values in (slopes, curvatures)]
        slope, curvature = nodes.add(np.stack(sums, axis=1))
        step = slope / curvature if curvature > 0.0 else 0.0
        if not abs(step) < 0.5 * length:
            return around
        levels, length = levels - step, abs(step)


def fold_score(
    model: FittedModel, test: LocalData, spec: ModelSpec, solver: Solver, scoring: str | None = None
) -> float:
    """Return the share of right classes, R² or D², from sums over all nodes.

    With ``scoring`` it is minus the mean deviance.
    """
    # Sparse rows of this process may be narrower than those of another one.
    coef, weights = model.coef[:, : test.X.shape[1]], test.weights
    margins = row_products(test.X, coef.T, test.node_starts) + model.intercept
    if test.offset is not None:
        margins = margins + test.offset.reshape(margins.shape)
    margins = margins[:, 0] if margins.shape[1] == 1 else margins

    totals = partial(solver.totals, node_starts=test.node_starts)
    with np.errstate(all="ignore"):  # a fit that diverged
        if model.classes is not None:
            if scoring is None:
                return mean_score(predicted_classes(margins, model.classes) == test.y, weights, totals)
            chances = probabilities(margins, softmax=spec.softmax is not False)
            own = chances[np.arange(test.y.size), np.searchsorted(model.classes, test.y)]
            return mean_score(np.log(np.maximum(own, np.finfo(np.float64).eps)), weights, totals)
        predicted = spec.loss.mean(margins)
        if scoring is None:
            return explained_share(spec.loss.unit_deviances, test.y, predicted, weights, totals)
        return mean_score(-spec.loss.unit_deviances(test.y, predicted), weights, totals)


def fold_masks(pair: Sequence[Any], order: np.ndarray, number: int) -> Fold:
    """Return a given fold as masks of the rows node after node; ``order`` has their places in the data."""
    masks = []
    for rows in pair:
        chosen, mask = np.asarray(rows), np.zeros(order.size, dtype=np.bool_)
        chosen = chosen.astype(np.int64) if chosen.size == 0 else chosen
        try:
            mask[chosen] = True
        except IndexError as error:
            raise InputError(f"fold {number} of cv does not suit {order.size} rows: {error}") from None
        if chosen.dtype != np.bool_ and mask.sum() < chosen.size:
            raise InputError(f"fold {number} of cv names a row twice")
        masks.append(mask)
    train, test = masks
    if (train & test).any():
        row = np.flatnonzero(train & test)[0]
        raise InputError(f"fold {number} of cv has row {row} both to train on and to test")
    return train[order], test[order]
