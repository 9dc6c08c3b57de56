"""From the rows that this process holds and a description of the model to a fitted model.

One pipeline for every cluster: nothing but sums over the nodes, and the sizes and labels of the data, goes
between processes. The estimators and ``adfs fit`` are its front doors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.estimators.inference import Inference, check_inference, infer
from adfs.estimators.intercepts import column_value, solve_with_intercept
from adfs.estimators.scaling import Columns, column_scales
from adfs.estimators.solver import (
    LocalData,
    Solver,
    append_column,
    joined_frames,
    penalised,
)
from adfs.problem import Loss, Multinomial
from adfs.problem.shards import as_signs
from adfs.runtimes import Cluster, Outcome, Run
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import all_labels, widen, widest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ModelSpec:
    """What is to be fitted.

    Attributes
    ----------
    loss : Loss
    data_weight : float
        Factor of the samples' weights in the objective: C, or 1.
    penalty_weight : float
        Factor of ½‖θ‖²: 1, or alpha.
    l1_ratio : float
        Share of ‖θ‖₁ in the place of ½‖θ‖².
    intercept : bool
    intercept_scaling : float or None
        What the intercept's column holds, which is penalised like the others; None for an intercept that is
        not penalised.
    standardize : bool
        Whether columns are scaled to a standard deviation of 1 first; coefficients are those of the columns
        as they were.
    class_weight : mapping, "balanced" or None
        Factors of the classes' sample weights.
    softmax : bool or None
        One model of all classes, instead of one per class; None for one where there are more than two.
    inference : bool
        Whether standard errors are wanted.
    """

    loss: Loss
    data_weight: float = 1.0
    penalty_weight: float = 1.0
    l1_ratio: float = 0.0
    intercept: bool = True
    intercept_scaling: float | None = None
    standardize: bool = False
    class_weight: Any = None
    softmax: bool | None = False
    inference: bool = False

    @property
    def classifies(self) -> bool:
        """Whether the labels are classes."""
        return self.loss.task == "classification"

    @property
    def ridge(self) -> float:
        """The factor of ½‖θ‖²."""
        return self.penalty_weight * (1.0 - self.l1_ratio)

    @property
    def l1(self) -> float:
        """The factor of ‖θ‖₁."""
        return self.penalty_weight * self.l1_ratio

    @property
    def free_intercept(self) -> bool:
        """Whether there is an intercept that is not penalised."""
        return self.intercept and self.intercept_scaling is None

    @property
    def balance(self) -> float:
        """The data's weight over the penalty's."""
        return self.data_weight / self.penalty_weight

    def for_classes(self, classes: np.ndarray | None) -> ModelSpec:
        """Return the same with it settled whether classes have one model together."""
        if self.softmax is not None:
            return self
        return replace(self, softmax=classes is not None and classes.size > 2)


@dataclass(frozen=True)
class Start:
    """Where a fit starts: at what one before, on data of the same shape, ended with.

    Attributes
    ----------
    duals : sequence of ndarray
        The ``duals`` of a fitted model.
    coef : ndarray of shape (K, p)
    intercept : ndarray of shape (K,)
    balance : float
        That of the model's description.
    """

    duals: Sequence[np.ndarray]
    coef: np.ndarray
    intercept: np.ndarray
    balance: float


@dataclass(frozen=True)
class FittedModel:
    """What came out; the same in every process apart from ``duals``.

    Attributes
    ----------
    coef : ndarray of shape (K, p)
        One row per model: one for two classes and for regressions, otherwise one per class.
    intercept : ndarray of shape (K,)
    node_coef : ndarray of shape (K, n, p)
        What each node ended with.
    node_intercept : ndarray of shape (K, n)
    classes : ndarray or None
    runs : list of Run
    algorithm, reason : str
        The methods that ran, and why where they were chosen.
    gap, absolute_gap, passes, seconds : float
        The largest certified gaps, relative and of the objective itself, the most passes, and the seconds of
        all runs together.
    outcome : Outcome
        The worst of all runs.
    history : DataFrame
        The recorded rows; with a column ``class`` when there are several runs.
    duals : list of ndarray or None
        The runs' dual variables over the weights, in the order of this process's rows.
    inference : list of Inference, or None
        How certain each model is, where that was asked for.
    """

    coef: np.ndarray
    intercept: np.ndarray
    node_coef: np.ndarray
    node_intercept: np.ndarray
    classes: np.ndarray | None
    runs: list[Run]
    duals: list[np.ndarray | None] = field(repr=False)
    inference: list[Inference] | None = None

    @property
    def method(self) -> str:
        """The methods that ran, one for all runs in most cases."""
        return ", ".join(dict.fromkeys(run.method for run in self.runs))

    @property
    def reason(self) -> str:
        """Why the first of them was chosen; empty where its name was given."""
        return str(self.runs[0].details.get("reason", ""))

    @property
    def gap(self) -> float:
        """The largest certified relative gap."""
        return max(run.gap for run in self.runs)

    @property
    def absolute_gap(self) -> float:
        """The largest certified gap of the objective itself."""
        return max(run.absolute_gap for run in self.runs)

    @property
    def passes(self) -> float:
        """The most passes over the data."""
        return max(float(run.columns["passes"][-1]) for run in self.runs)

    @property
    def seconds(self) -> float:
        """Of all runs together."""
        return sum(run.seconds for run in self.runs)

    @property
    def outcome(self) -> Outcome:
        """The worst of all runs."""
        ends = {run.outcome for run in self.runs}
        order = (Outcome.STOPPED, Outcome.DIVERGED, Outcome.OUT_OF_BUDGET, Outcome.CONVERGED)
        return next(outcome for outcome in order if outcome in ends)

    @property
    def recorded(self) -> dict[str, np.ndarray]:
        """The recorded columns of all runs, with a column ``class`` when there are several."""
        if len(self.runs) == 1:
            return self.runs[0].columns
        assert self.classes is not None
        found = {
            name: np.concatenate([run.columns[name] for run in self.runs]) for name in self.runs[0].columns
        }
        return found | {"class": np.repeat(self.classes, [run.columns["gap"].size for run in self.runs])}

    @property
    def history(self) -> pd.DataFrame:
        """The same, as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.recorded)


def fit_model(data: LocalData, spec: ModelSpec, solver: Solver, warm: Start | None = None) -> FittedModel:
    """Fit a model; every process of the cluster calls it together.

    Parameters
    ----------
    data : LocalData
    spec : ModelSpec
    solver : Solver
    warm : Start, optional
    """
    data = _same_columns(data, solver.cluster)
    classes = _classes(data, solver.cluster) if spec.classifies else None
    spec, given = spec.for_classes(classes), data
    attempt, why = solver.cluster.attempt, "to check the data"
    if spec.inference:
        attempt(why, lambda: check_inference(spec.loss, bool(spec.softmax), spec.l1_ratio))
    # Around their means dense rows are shorter, and an intercept that is not penalised takes what is left.
    weighted = replace(data, weights=_weights(data, spec, classes, solver))
    own = data if spec.standardize else weighted
    columns = column_scales(own, solver, center=spec.free_intercept, scale=spec.standardize)
    data = replace(weighted, X=columns.apply(data.X), means=columns.means)
    starts = None
    if warm is not None:
        # A weaker penalty: dual variables that stand for the same coefficients, not for larger ones. With a
        # stronger one those might lie outside their domains.
        shares = min(1.0, warm.balance / spec.balance) * data.weights
        starts = [_times_weights(one, shares) for one in warm.duals]
    around = None if warm is None else columns.intercepts(warm.coef, warm.intercept)
    targets = [data.y] if classes is None else _targets(data.y, classes, bool(spec.softmax))
    shifts = attempt(why, lambda: _shifts(given.offset, len(targets), spec, classes))
    loss: Loss = spec.loss
    if spec.softmax:
        assert classes is not None
        loss = Multinomial(classes.size)
    if spec.intercept and spec.intercept_scaling is not None:
        data = replace(data, X=append_column(data.X, spec.intercept_scaling))
    weights = spec.ridge, spec.l1
    # Classes share the method, the rows and what is known of them; targets and offsets are their own.
    if solver.method == "auto":
        solver = solver.choose(data, loss, weights, targets[0], spec.free_intercept)

    def with_column(how: Solver) -> tuple[LocalData, float]:
        """Return the rows as a method takes them, and what the intercept's column holds."""
        if not spec.free_intercept:
            return data, 1.0
        scale = column_value(data, loss, spec.ridge, targets[0], how)
        return replace(data, X=append_column(data.X, scale)), scale

    first = with_column(solver)

    def solve_by(how: Solver, number: int, start: np.ndarray | None, center: np.ndarray | None) -> Run:
        rows, scale = first if how.method == solver.method else with_column(how)
        own, y = replace(rows, offset=shifts[number]), targets[number]
        if spec.free_intercept:
            return solve_with_intercept(own, loss, weights, y, how, scale, start, center)
        return how.solve(penalised(own, loss, weights, y, how), start)

    def solve(how: Solver, number: int, start: np.ndarray | None) -> Run:
        center = None if around is None else _centers(around, number, len(targets), loss)
        run = solve_by(how.limited(), number, start, center)
        other = how.after(run)
        if other is None:
            return run
        if spec.free_intercept:
            center = run.coef.reshape(loss.n_outputs, -1)[:, -1]
        last = solve_by(other, number, run.dual, center)
        return replace(last, columns=joined_frames([run, last], last.gap), seconds=run.seconds + last.seconds)

    runs = _solve_all(len(targets), solve, solver, starts)
    if spec.softmax:
        assert classes is not None
        theta, nodes = _softmax_rows(runs[0], classes.size)
    else:
        theta = np.array([run.coef for run in runs])
        nodes = np.array([run.theta for run in runs])
    coef, intercept = columns.undo(*_split(theta, spec))
    node_coef, node_intercept = columns.undo(*_split(nodes, spec))
    duals = [_over_weights(run.dual, data.weights) for run in runs]
    found: list[Inference] | None = None
    if spec.inference:
        own = replace(given, weights=data.weights / spec.data_weight)
        found = []
        for number, y in enumerate(targets):
            line = np.append(coef[number], intercept[number]) if spec.intercept else coef[number]
            with_shift = replace(own, offset=shifts[number])
            found.append(infer(with_shift, loss, y, line, _curvatures(spec, columns, coef.shape[1]), solver))
    return FittedModel(coef, intercept, node_coef, node_intercept, classes, runs, duals, found)


def _curvatures(spec: ModelSpec, columns: Columns, width: int) -> np.ndarray:
    """Return the penalty's curvature in each coefficient of the columns as given, and in the intercept."""
    share = spec.penalty_weight / spec.data_weight
    penalty = np.full(width, share) if columns.spread is None else share * columns.spread**2
    if not spec.intercept:
        return penalty
    return np.append(penalty, 0.0 if spec.intercept_scaling is None else share / spec.intercept_scaling**2)


# --------------------------------------------------------------------------- the data of all processes


def _same_columns(data: LocalData, cluster: Cluster) -> LocalData:
    """Return rows as wide as the widest process's; sparse as soon as one has sparse rows."""
    if cluster.size == 1:
        return data
    width = widest(cluster, int(data.X.shape[1]), None)
    X = data.X
    if any(cluster.gather(bool(sp.issparse(X)), "to compare the data")):
        X = X if sp.issparse(X) else sp.csr_array(X)
    return replace(data, X=cluster.attempt("to compare the data", lambda: widen(X, width)))


def _classes(data: LocalData, cluster: Cluster) -> np.ndarray:
    classes = np.unique(data.y) if cluster.size == 1 else all_labels(cluster, [data.y])
    if classes.size < 2:  # in every process
        raise RefusalError("a classifier needs samples of at least two classes, y holds one class only")
    return classes


def _weights(data: LocalData, spec: ModelSpec, classes: np.ndarray | None, solver: Solver) -> np.ndarray:
    """Return the samples' weights in the objective: classes and the weight of the data put in."""
    weights = data.weights
    if classes is not None and spec.class_weight is not None:
        codes = np.searchsorted(classes, data.y)
        if isinstance(spec.class_weight, str) and spec.class_weight == "balanced":
            cuts = zip(data.node_starts[:-1], data.node_starts[1:], strict=True)
            sums = [np.bincount(codes[a:b], weights[a:b], classes.size) for a, b in cuts]
            factors = _balanced(solver.add(np.array(sums)))
        else:
            from sklearn.utils.class_weight import compute_class_weight

            factors = solver.cluster.attempt(
                "to check the data",
                lambda: compute_class_weight(spec.class_weight, classes=classes, y=data.y),
            )
        weights = weights * factors[codes]
    return np.asarray(spec.data_weight * weights)


def _balanced(class_sums: np.ndarray) -> np.ndarray:
    """Return the factors that give every class the same total weight, from the weights' sums per class."""
    sums = np.where(class_sums > 0.0, class_sums, 1.0)
    return np.asarray(class_sums.sum() / (class_sums.size * sums))


def _targets(y: np.ndarray, classes: np.ndarray, softmax: bool) -> list[np.ndarray]:
    """Return the labels of each problem: ±1 for one class against the others, or codes for softmax."""
    if softmax:
        return [np.searchsorted(classes, y).astype(np.float64)]
    return [as_signs(y, name) for name in (classes[1:] if classes.size == 2 else classes)]


def _shifts(
    offset: np.ndarray | None, count: int, spec: ModelSpec, classes: np.ndarray | None
) -> list[np.ndarray | None]:
    """Return the offsets of each of some models: one number per row, and per class where there are more."""
    if offset is None:
        return [None] * count
    several = classes is not None and (count > 1 or (spec.softmax and classes.size > 2))
    if several:
        assert classes is not None
        if offset.ndim != 2 or offset.shape[1] != classes.size:
            raise InputError(
                f"offset must have one column per class ({classes.size} of them), got shape {offset.shape}"
            )
        return [offset] if count == 1 else [np.ascontiguousarray(column) for column in offset.T]
    if offset.ndim != 1:
        raise InputError(f"offset must have one number per row, got shape {offset.shape}")
    # Two classes of one softmax model: the offset is that of the second against the first.
    return [np.column_stack([np.zeros_like(offset), offset]) if spec.softmax else offset]


# --------------------------------------------------------------------------- solving


def _centers(intercepts: np.ndarray, number: int, count: int, loss: Loss) -> np.ndarray:
    """Return one model's intercepts, (outputs,), from those of all models."""
    if loss.n_outputs == 2 and intercepts.size == 1:  # of the second class against the first
        return np.asarray(np.array([-0.5, 0.5]) * intercepts)
    return intercepts if count == 1 else intercepts[number : number + 1]


def _solve_all(
    count: int,
    solve: Callable[[Solver, int, np.ndarray | None], Run],
    solver: Solver,
    starts: Sequence[np.ndarray] | None,
) -> list[Run]:
    """Solve so many problems, which have the same rows."""
    done: list[Run] = []

    def one(number: int) -> Run:
        # Threads have neither checkpoints nor a limit in seconds: those come from outside.
        how = solver if count == 1 else solver.part(done)
        run = solve(how, number, None if starts is None else starts[number])
        done.append(run)
        return run

    if count == 1 or solver.n_jobs in (None, 1) or solver.cluster.size > 1:
        return [one(number) for number in range(count)]
    from sklearn.utils.parallel import Parallel, delayed

    jobs = (delayed(one)(number) for number in range(count))
    runs: list[Run] = Parallel(n_jobs=solver.n_jobs, require="sharedmem")(jobs)
    return runs


def _split(theta: np.ndarray, spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercepts from parameters (…, p) or (…, p + 1)."""
    if not spec.intercept:
        return theta, np.zeros(theta.shape[:-1])
    scaling = 1.0 if spec.intercept_scaling is None else spec.intercept_scaling
    return theta[..., :-1].copy(), scaling * theta[..., -1]


def _softmax_rows(run: Run, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one row per class, (K, d), and the nodes' (K, n, d); for two classes their difference alone."""
    theta = run.coef.reshape(n_classes, -1)
    nodes = run.theta.reshape(run.theta.shape[0], n_classes, -1).transpose(1, 0, 2)
    if n_classes == 2:  # as scikit-learn has it
        return theta[1:] - theta[:1], nodes[1:] - nodes[:1]
    return theta, np.ascontiguousarray(nodes)


def _over_weights(duals: np.ndarray | None, weights: np.ndarray) -> np.ndarray | None:
    """Return tips over their weights, which the next fit may change."""
    if duals is None:
        return None
    divisor = np.where(weights > 0.0, weights, 1.0)
    return np.asarray(duals / (divisor if duals.ndim == 1 else divisor[:, None]))


def _times_weights(duals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return tips from `_over_weights`."""
    return np.asarray(duals * (weights if duals.ndim == 1 else weights[:, None]))
