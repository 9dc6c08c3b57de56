"""From the rows of this process and a description of the model to a fitted model.

One pipeline serves every cluster. Processes exchange sums over the nodes, and the sizes and labels of the
data. The estimators and ``adfs fit`` call it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import get_method
from adfs.errors import InputError
from adfs.estimators.inference import Inference, check_inference, infer
from adfs.estimators.intercepts import column_value, solve_with_intercept
from adfs.estimators.solver import (
    Columns,
    LocalData,
    ModelSpec,
    Solver,
    append_column,
    column_scales,
    joined_frames,
    penalised,
)
from adfs.problem.samples import sparse
from adfs.runtimes import Cluster, Outcome, Run
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import all_labels, widen

_FROM_BEST = (Outcome.CONVERGED, Outcome.OUT_OF_BUDGET, Outcome.DIVERGED, Outcome.STOPPED)


@dataclass(frozen=True)
class Start:
    """The start of a fit: the end of an earlier fit to data of the same shape.

    Attributes
    ----------
    duals : sequence of ndarray
        The dual variables of each run over the weights, in the order of this process's rows.
    coef : ndarray of shape (K, p)
    intercept : ndarray of shape (K,)
    balance : float
        The data's weight over the penalty's.
    """

    duals: Sequence[np.ndarray]
    coef: np.ndarray
    intercept: np.ndarray
    balance: float


@dataclass(frozen=True)
class FittedModel:
    """A fitted model; the same in every process apart from the dual variables in ``end``.

    Attributes
    ----------
    coef : ndarray of shape (K, p)
        One row per model: one for two classes and for regressions, otherwise one per class.
    intercept : ndarray of shape (K,)
    node_coef : ndarray of shape (K, n, p)
        The last iterate of each node.
    node_intercept : ndarray of shape (K, n)
    classes : ndarray or None
    runs : list of Run
    end : Start or None
        The start of a later fit, if the method has dual variables.
    outcome : Outcome
        The worst of all runs.
    method : str
        The methods that ran, one for all runs in most cases.
    reason : str
        The reason for an automatic choice of the method; empty if the user named it.
    gap, absolute_gap : float
        The largest certified gaps, relative and of the objective itself.
    passes : float
        The most passes over the data.
    seconds : float
        Of all runs together.
    recorded : dict
        The recorded columns of all runs, with a column ``class`` when there are several.
    n_samples : int
        The rows of all processes.
    softmax : bool
        Whether it is one softmax model rather than one model per class.
    inference : list of Inference, or None
        Standard errors of each model, if they were asked for.
    """

    coef: np.ndarray
    intercept: np.ndarray
    node_coef: np.ndarray
    node_intercept: np.ndarray
    classes: np.ndarray | None
    runs: list[Run]
    end: Start | None = field(repr=False)
    outcome: Outcome
    method: str
    reason: str
    gap: float
    absolute_gap: float
    passes: float
    seconds: float
    recorded: dict[str, np.ndarray] = field(repr=False)
    n_samples: int
    softmax: bool
    inference: list[Inference] | None = None


def fit_model(data: LocalData, spec: ModelSpec, solver: Solver, warm: Start | None = None) -> FittedModel:
    """Fit a model, from the start ``warm`` if it is given; all processes of the cluster call it together."""
    cluster, log = solver.cluster, solver.cluster.log
    cluster.activity = "to compare the data"
    n_samples = sum(cluster.allgather(int(data.y.size)))
    sizes = n_samples, data.X.shape[1], solver.network.n_nodes
    log(logging.INFO, "fit: loss %s, %d samples, %d features, %d nodes", spec.loss.name, *sizes)
    data, spec, classes, columns, problems = scaled_problems(data, spec, solver)
    if solver.method == "auto":
        solver = solver.choose(problems[0], spec)
        log(logging.INFO, "method %s: %s", solver.method, solver.reason)
    if spec.free_intercept:
        problems = _with_intercept_column(problems, spec, solver)
    runs = _solve_all(problems, spec, solver, warm, columns)
    # From the columns as they were solved back to the columns as they were given.
    coef, intercept = _models(np.array([run.coef for run in runs]), spec, columns)
    node_coef, node_intercept = _models(np.array([run.theta for run in runs]), spec, columns)
    # The next fit may have other weights: the dual variables are divided by these.
    weights = problems[0].weights
    divisor = np.where(weights > 0.0, weights, 1.0)
    found = [run.dual for run in runs if run.dual is not None]
    duals = [dual / (divisor if dual.ndim == 1 else divisor[:, None]) for dual in found]
    balance = spec.data_weight / spec.penalty_weight
    recorded = runs[0].columns
    if classes is not None and len(runs) > 1:
        recorded = {name: np.concatenate([run.columns[name] for run in runs]) for name in recorded}
        recorded["class"] = np.repeat(classes, [run.columns["gap"].size for run in runs])
    inferences: list[Inference] | None = None
    if spec.inference:
        penalty = _curvatures(spec, columns, coef.shape[1])
        points = coef if penalty.size == coef.shape[1] else np.column_stack([coef, intercept])
        inferences = [
            infer(replace(data, y=problem.y, offset=problem.offset), spec.loss, point, penalty, solver)
            for problem, point in zip(problems, points, strict=True)
        ]
    model = FittedModel(
        coef,
        intercept,
        node_coef,
        node_intercept,
        classes,
        runs,
        Start(duals, coef, intercept, balance) if len(duals) == len(runs) else None,
        outcome=max((run.outcome for run in runs), key=_FROM_BEST.index),
        method=", ".join(dict.fromkeys(run.method for run in runs)),
        reason=str(runs[0].details.get("reason", "")),
        gap=max(run.gap for run in runs),
        absolute_gap=max(run.absolute_gap for run in runs),
        passes=max(float(run.columns["passes"][-1]) for run in runs),
        seconds=sum(run.seconds for run in runs),
        recorded=recorded,
        n_samples=n_samples,
        softmax=bool(spec.softmax),
        inference=inferences,
    )
    log(logging.INFO, "fit ended: %s, gap %.1e, %d run(s)", model.outcome, model.gap, len(runs))
    return model


# --------------------------------------------------------------------------- solving


def _solve_all(
    problems: list[LocalData], spec: ModelSpec, solver: Solver, warm: Start | None, columns: Columns
) -> list[Run]:
    """Solve every problem, from the end of an earlier fit where there is one."""
    starts: list[Any] = [(None, None)] * len(problems)
    if warm is not None:
        starts = _starts(warm, problems[0], spec, columns)
    if len(problems) == 1:
        return [_solve(problems[0], spec, solver, *starts[0])]
    done: list[Run] = []

    def solve(number: int) -> Run:
        part = solver.part(number, sum(run.seconds for run in done))
        run = _solve(problems[number], spec, part, *starts[number])
        done.append(run)
        return run

    if solver.n_jobs in (None, 1) or solver.cluster.size > 1:
        return [solve(number) for number in range(len(problems))]
    # Threads have neither checkpoints nor a limit in seconds: these need the runs in order.
    from sklearn.utils.parallel import Parallel, delayed

    jobs = (delayed(solve)(number) for number in range(len(problems)))
    runs: list[Run] = Parallel(n_jobs=solver.n_jobs, require="sharedmem")(jobs)
    return runs


def _solve(
    data: LocalData, spec: ModelSpec, solver: Solver, start: np.ndarray | None, point: np.ndarray | None
) -> Run:
    """Solve one problem; another method continues where the chosen one needs far too many passes.

    ``start`` are dual variables and ``point`` the coefficients to start from, with free intercepts.
    """
    other, limit = solver.replacement, solver.options.max_passes
    if other is not None and (limit is None or other.passes < limit):
        first = replace(solver, options=replace(solver.options, max_passes=other.passes), replacement=None)
        run = _solve(data, spec, first, start, point)
        used = float(run.columns["passes"][-1])
        # Decided by passes alone, so that it is the same on every machine and after a resume.
        if run.outcome is not Outcome.OUT_OF_BUDGET or used < 0.9 * other.passes:
            return run
        second = solver.part("replaced", run.seconds)
        left = None if limit is None else max(limit - used, 1.0)
        reason = (
            f"{solver.method} was chosen ({solver.reason}) and had not converged after {used:.0f} passes, "
            f"so {other.method} went on"
        )
        solver.cluster.log(logging.INFO, "%s", reason)
        options = replace(second.options, max_passes=left, parameters=other.parameters)
        second = replace(second, method=other.method, options=options, reason=reason, replacement=None)
        if spec.free_intercept:  # this method may want another entry in its column
            (data,) = _with_intercept_column([data], spec, second)
        last = _solve(data, spec, second, run.dual, run.coef)
        return replace(last, columns=joined_frames([run, last], last.gap), seconds=run.seconds + last.seconds)
    if spec.free_intercept:
        return solve_with_intercept(data, spec, solver, start, point)
    return solver.solve(penalised(data, spec, solver.network.n_nodes), start, point)


def _with_intercept_column(problems: list[LocalData], spec: ModelSpec, solver: Solver) -> list[LocalData]:
    """Return problems whose last column is the free intercept's, with the entry that the method needs."""
    first = problems[0]
    X = first.X if first.free_column is None else first.X[:, :-1]
    unpenalised = get_method(solver.method).unpenalised_columns
    entry = 1.0 if unpenalised else column_value(replace(first, X=X), spec, solver)
    rows = append_column(X, entry)  # the same rows for all classes
    return [replace(problem, X=rows, free_column=entry) for problem in problems]


def _starts(
    warm: Start, data: LocalData, spec: ModelSpec, columns: Columns
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the dual variables and the coefficients of the end of an earlier fit, for each problem."""
    # With a weaker penalty the dual variables are scaled to represent the same coefficients. With a
    # stronger one the scaled dual variables might lie outside their domains.
    shares = min(1.0, warm.balance * spec.penalty_weight / spec.data_weight) * data.weights
    duals = [values * (shares if values.ndim == 1 else shares[:, None]) for values in warm.duals]
    # From the columns as they were given to the columns as they are solved.
    points, intercepts = warm.coef, warm.intercept
    if columns.center is not None:
        intercepts = intercepts + points @ columns.center
    if columns.spread is not None:
        points = points * columns.spread
    if spec.free_intercept or spec.intercept_column is not None:
        points = np.column_stack([points, intercepts / (spec.intercept_column or 1.0)])
    if spec.loss.n_outputs > 1:
        # A softmax model of two classes is stored as the second class against the first.
        points = points if len(points) > 1 else np.array([[-0.5], [0.5]]) * points
        points = points.reshape(1, -1)
    return list(zip(duals, points, strict=True))


# --------------------------------------------------------------------------- the data of all processes


def scaled_problems(
    data: LocalData, spec: ModelSpec, solver: Solver
) -> tuple[LocalData, ModelSpec, np.ndarray | None, Columns, list[LocalData]]:
    """Return the rows with their classes' weights, the model and the classes of all processes, and problems.

    The data of each problem has the objective's weights and columns of a common scale. The column of a free
    intercept, which depends on the method, is not among them.
    """
    data, spec, classes = _compared(data, spec, solver.cluster)
    given = data
    if classes is not None and spec.class_weight is not None:
        data = replace(data, weights=_class_weights(data, spec, classes, solver))
    weighted = replace(data, weights=spec.data_weight * data.weights)
    # Centred dense rows are shorter, which helps every method; the free intercept compensates for it.
    source = given if spec.standardize else weighted
    columns = column_scales(source, solver, center=spec.free_intercept, scale=spec.standardize)
    scaled = solver.cluster.attempt("to check the data", partial(columns.apply, weighted))
    if spec.intercept_column is not None:
        scaled = replace(scaled, X=append_column(scaled.X, spec.intercept_column))
    problems = solver.cluster.attempt("to check the data", partial(_problems, scaled, spec, classes))
    return data, spec, classes, columns, problems


def _compared(
    data: LocalData, spec: ModelSpec, cluster: Cluster
) -> tuple[LocalData, ModelSpec, np.ndarray | None]:
    """Return rows with the columns of all processes, the model of all classes, and the classes."""
    X = data.X
    cluster.activity = why = "to compare the data"
    widths, stored = zip(*cluster.allgather([int(X.shape[1]), sparse(X)]), strict=True)
    # Rows are as wide as the widest process's, and sparse as soon as one process has sparse rows.
    if any(stored) and not sparse(X):
        X = sp.csr_array(X)
    if min(widths) < max(widths):
        X = cluster.attempt(why, partial(widen, X, max(widths)))
    data, classes = replace(data, X=X), None
    if spec.loss.task == "classification":
        classes = np.unique(data.y) if cluster.size == 1 else all_labels(cluster, [data.y])
        if classes.size < 2:  # every process sees the same classes and raises
            raise RefusalError("a classifier needs samples of at least two classes, y holds one class only")
        softmax = spec.softmax
        if softmax is None:  # where the loss has a form for several classes
            softmax = classes.size > 2 and spec.loss.multiclass(classes.size) is not None
        spec = replace(spec, softmax=softmax)
    if spec.inference:
        check_inference(spec)
    if classes is not None and spec.softmax:
        spec = replace(spec, loss=spec.loss.multiclass(classes.size) or spec.loss)
    return data, spec, classes


def _class_weights(data: LocalData, spec: ModelSpec, classes: np.ndarray, solver: Solver) -> np.ndarray:
    """Return the samples' weights times those of their classes."""
    codes = np.searchsorted(classes, data.y)  # the number of each row's class
    if isinstance(spec.class_weight, str) and spec.class_weight == "balanced":
        cuts = pairwise(data.node_starts)
        sums = [np.bincount(codes[a:b], data.weights[a:b], classes.size) for a, b in cuts]
        total = solver.add(np.array(sums))
        factors = total.sum() / (total.size * np.where(total > 0.0, total, 1.0))
    else:
        from sklearn.utils.class_weight import compute_class_weight

        factors = solver.cluster.attempt(
            "to check the data",
            partial(compute_class_weight, spec.class_weight, classes=classes, y=data.y),
        )
    return np.asarray(data.weights * factors[codes])


def _problems(data: LocalData, spec: ModelSpec, classes: np.ndarray | None) -> list[LocalData]:
    """Return the data of each problem: one, or one per class against all others.

    Labels are ±1, or the numbers of the classes for softmax. Offsets have one number per row, and per class
    for softmax.
    """
    if classes is None:
        labels = [data.y]
    elif spec.softmax:
        labels = [np.searchsorted(classes, data.y).astype(np.float64)]
    else:
        positive = classes[1:] if classes.size == 2 else classes
        labels = [np.where(data.y == name, 1.0, -1.0) for name in positive]
    offset = data.offset
    if offset is None:
        return [replace(data, y=y) for y in labels]
    offsets = [offset]
    if classes is not None and classes.size > 2:
        if offset.ndim != 2 or offset.shape[1] != classes.size:
            raise InputError(
                f"offset must have one column per class ({classes.size} of them), got shape {offset.shape}"
            )
        if not spec.softmax:
            offsets = [np.ascontiguousarray(column) for column in offset.T]
    elif offset.ndim != 1:
        raise InputError(f"offset must have one number per row, got shape {offset.shape}")
    elif spec.softmax:
        # Two classes of one softmax model: the offset is that of the second against the first.
        offsets = [np.column_stack([np.zeros_like(offset), offset])]
    return [replace(data, y=y, offset=shift) for y, shift in zip(labels, offsets, strict=True)]


# --------------------------------------------------------------------------- parameters of the models


def _models(points: np.ndarray, spec: ModelSpec, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (K, …, p) and intercepts (K, …) from the points (runs, …, d) of the runs."""
    outputs = spec.loss.n_outputs
    if outputs > 1:  # one run has the parameters of all classes
        points = np.moveaxis(points[0].reshape(*points.shape[1:-1], outputs, -1), -2, 0)
        if outputs == 2:  # one model, as scikit-learn has it: the second class against the first
            points = points[1:] - points[:1]
    coef, intercept = np.ascontiguousarray(points), np.zeros(points.shape[:-1])
    if spec.free_intercept or spec.intercept_column is not None:
        scaling = 1.0 if spec.intercept_column is None else spec.intercept_column
        coef, intercept = points[..., :-1].copy(), scaling * points[..., -1]
    if columns.spread is not None:
        coef = coef / columns.spread
    return coef, intercept if columns.center is None else intercept - coef @ columns.center


def _curvatures(spec: ModelSpec, columns: Columns, width: int) -> np.ndarray:
    """Return the penalty's curvature in each coefficient of the columns as given, and in the intercept."""
    share = spec.penalty_weight / spec.data_weight
    penalty = np.full(width, share) if columns.spread is None else share * columns.spread**2
    if spec.free_intercept:
        return np.append(penalty, 0.0)
    return penalty if spec.intercept_column is None else np.append(penalty, share / spec.intercept_column**2)
