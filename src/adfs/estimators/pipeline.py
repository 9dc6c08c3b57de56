"""From the rows of this process and a description of the model to a fitted model.

One pipeline serves every cluster. Processes exchange sums over the nodes, and the sizes and labels of the
data. The estimators and ``adfs fit`` call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.estimators.inference import Inference, check_inference, infer
from adfs.estimators.intercepts import column_value, solve_with_intercept
from adfs.estimators.solver import (
    Columns,
    LocalData,
    Solver,
    append_column,
    column_scales,
    joined_frames,
    penalised,
)
from adfs.problem import Loss
from adfs.problem.shards import as_signs
from adfs.runtimes import Cluster, Outcome, Run
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import all_labels, widen

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ModelSpec:
    """The description of a model.

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
        The entry of the intercept's column, which is penalised like the others; None for a free intercept,
        which has no penalty.
    standardize : bool
        Whether columns are scaled to a standard deviation of 1 before the fit. Coefficients are those of the
        original columns.
    class_weight : mapping, "balanced" or None
        Factors of the classes' sample weights.
    softmax : bool or None
        One model of all classes instead of one per class; None: if there are more than two classes.
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
        """Return the description with ``softmax`` decided."""
        if self.softmax is not None:
            return self
        return replace(self, softmax=classes is not None and classes.size > 2)


@dataclass(frozen=True)
class Start:
    """The start of a fit: the end of an earlier fit to data of the same shape.

    Attributes
    ----------
    duals : sequence of ndarray
        The ``duals`` of a fitted model.
    coef : ndarray of shape (K, p)
    intercept : ndarray of shape (K,)
    balance : float
        `ModelSpec.balance` of the earlier fit.
    """

    duals: Sequence[np.ndarray]
    coef: np.ndarray
    intercept: np.ndarray
    balance: float


@dataclass(frozen=True)
class FittedModel:
    """A fitted model; the same in every process apart from ``duals``.

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
    duals : list of ndarray or None
        The runs' dual variables over the weights, in the order of this process's rows.
    inference : list of Inference, or None
        Standard errors of each model, if they were asked for.
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
        """The reason for an automatic choice of the method; empty if the user named it."""
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
        """The seconds of all runs together."""
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
        """The recorded columns as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.recorded)


def fit_model(data: LocalData, spec: ModelSpec, solver: Solver, warm: Start | None = None) -> FittedModel:
    """Fit a model, from the start ``warm`` if it is given; all processes of the cluster call it together."""
    given = data = _same_columns(data, solver.cluster)
    classes = _classes(data, solver.cluster) if spec.classifies else None
    spec = spec.for_classes(classes)
    attempt, why = solver.cluster.attempt, "to check the data"
    if spec.inference:
        attempt(why, lambda: check_inference(spec.loss, bool(spec.softmax), spec.l1_ratio))
    # Centred dense rows are shorter, which helps every method; the free intercept compensates for it.
    weighted = replace(data, weights=_weights(data, spec, classes, solver))
    source = data if spec.standardize else weighted
    columns = column_scales(source, solver, center=spec.free_intercept, scale=spec.standardize)
    data = replace(weighted, X=columns.apply(data.X), means=columns.means)
    targets = [data.y] if classes is None else _targets(data.y, classes, bool(spec.softmax))
    offsets = attempt(why, lambda: _offsets(data.offset, len(targets), spec, classes))
    if spec.intercept and spec.intercept_scaling is not None:
        data = replace(data, X=append_column(data.X, spec.intercept_scaling))
    softmax_loss = spec.loss.multiclass(classes.size) if spec.softmax and classes is not None else None
    problems = _Problems(spec, softmax_loss or spec.loss, data, targets, offsets)
    if solver.method == "auto":
        solver = solver.choose(data, problems.loss, (spec.ridge, spec.l1), targets[0], spec.free_intercept)
    runs = problems.solve_all(solver, warm, columns)
    # From the columns as they were solved back to the columns as they were given.
    theta, node_theta = _model_rows(runs, problems.loss)
    coef, intercept = columns.undo(*_split(theta, spec))
    node_coef, node_intercept = columns.undo(*_split(node_theta, spec))
    duals = [_over_weights(run.dual, data.weights) for run in runs]
    inferences: list[Inference] | None = None
    if spec.inference:
        own = replace(given, weights=data.weights / spec.data_weight)
        points = np.column_stack([coef, intercept]) if spec.intercept else coef
        penalty = _curvatures(spec, columns, coef.shape[1])
        inferences = [
            infer(replace(own, offset=offset), problems.loss, y, point, penalty, solver)
            for offset, y, point in zip(offsets, targets, points, strict=True)
        ]
    return FittedModel(coef, intercept, node_coef, node_intercept, classes, runs, duals, inferences)


@dataclass(frozen=True)
class _Problems:
    """The problems of a fit: one, or one per class. They have the same rows, and the same method solves them.

    Attributes
    ----------
    spec : ModelSpec
    loss : Loss
        The loss of each problem: the softmax loss where all classes have one model.
    data : LocalData
        Scaled rows with the weights of the objective, without the column of a free intercept.
    targets, offsets : list
        The labels and offsets of each problem.
    rows : dict
        The rows with the column of a free intercept, by the entry of that column.
    """

    spec: ModelSpec
    loss: Loss
    data: LocalData
    targets: list[np.ndarray]
    offsets: list[np.ndarray | None]
    rows: dict[float, Any] = field(default_factory=dict)

    def solve_all(self, solver: Solver, warm: Start | None, columns: Columns) -> list[Run]:
        """Solve every problem, from the end of an earlier fit where there is one."""
        starts: list[np.ndarray | None] = [None] * len(self.targets)
        centers: list[np.ndarray | None] = [None] * len(self.targets)
        if warm is not None:
            # With a weaker penalty the dual variables are scaled to represent the same coefficients. With a
            # stronger one the scaled dual variables might lie outside their domains.
            shares = min(1.0, warm.balance / self.spec.balance) * self.data.weights
            starts = [_times_weights(duals, shares) for duals in warm.duals]
            intercepts = columns.intercepts(warm.coef, warm.intercept)
            centers = [_center(intercepts, number, self.loss) for number in range(len(self.targets))]
        done: list[Run] = []

        def solve(number: int) -> Run:
            part = solver if len(self.targets) == 1 else solver.part(done)
            run = self._solve(number, part, starts[number], centers[number])
            done.append(run)
            return run

        numbers = range(len(self.targets))
        if len(numbers) == 1 or solver.n_jobs in (None, 1) or solver.cluster.size > 1:
            return [solve(number) for number in numbers]
        # Threads have neither checkpoints nor a limit in seconds: these need the runs in order.
        from sklearn.utils.parallel import Parallel, delayed

        jobs = (delayed(solve)(number) for number in numbers)
        runs: list[Run] = Parallel(n_jobs=solver.n_jobs, require="sharedmem")(jobs)
        return runs

    def _solve(self, number: int, solver: Solver, start: np.ndarray | None, center: np.ndarray | None) -> Run:
        """Solve one problem; another method continues where the chosen one needs far too many passes."""
        data, y, weights = self.data, self.targets[number], (self.spec.ridge, self.spec.l1)
        limited = solver.limited()
        if self.spec.free_intercept:
            scale = column_value(data, self.loss, self.spec.ridge, self.targets[0], solver)
            if scale not in self.rows:  # the same rows for all classes
                self.rows[scale] = append_column(data.X, scale)
            data = replace(data, X=self.rows[scale], offset=self.offsets[number])
            run = solve_with_intercept(data, self.loss, weights, y, limited, scale, start, center)
            center = run.coef.reshape(self.loss.n_outputs, -1)[:, -1]
        else:
            data = replace(data, offset=self.offsets[number])
            run = limited.solve(penalised(data, self.loss, weights, y, limited), start)
        other = solver.after(run)
        if other is None:
            return run
        last = self._solve(number, other, run.dual, center)
        return replace(last, columns=joined_frames([run, last], last.gap), seconds=run.seconds + last.seconds)


def _curvatures(spec: ModelSpec, columns: Columns, width: int) -> np.ndarray:
    """Return the penalty's curvature in each coefficient of the columns as given, and in the intercept."""
    share = spec.penalty_weight / spec.data_weight
    penalty = np.full(width, share) if columns.spread is None else share * columns.spread**2
    if not spec.intercept:
        return penalty
    return np.append(penalty, 0.0 if spec.intercept_scaling is None else share / spec.intercept_scaling**2)


# --------------------------------------------------------------------------- the data of all processes


def _same_columns(data: LocalData, cluster: Cluster) -> LocalData:
    """Return rows as wide as the widest process's; sparse as soon as one process has sparse rows."""
    X = data.X
    cluster.activity = "to compare the data"
    cards = cluster.allgather([int(X.shape[1]), data.sparse])
    widths, sparse = zip(*cards, strict=True)
    if any(sparse) and not data.sparse:
        X = sp.csr_array(X)
    width = max(widths)
    return replace(data, X=cluster.attempt("to compare the data", lambda: widen(X, width)))


def _classes(data: LocalData, cluster: Cluster) -> np.ndarray:
    """Return the classes of all processes."""
    classes = np.unique(data.y) if cluster.size == 1 else all_labels(cluster, [data.y])
    if classes.size < 2:  # every process sees the same classes and raises
        raise RefusalError("a classifier needs samples of at least two classes, y holds one class only")
    return classes


def _weights(data: LocalData, spec: ModelSpec, classes: np.ndarray | None, solver: Solver) -> np.ndarray:
    """Return the samples' weights in the objective: classes and the weight of the data put in."""
    weights = data.weights
    if classes is not None and spec.class_weight is not None:
        codes = np.searchsorted(classes, data.y)  # the number of each row's class
        if isinstance(spec.class_weight, str) and spec.class_weight == "balanced":
            cuts = zip(data.node_starts[:-1], data.node_starts[1:], strict=True)
            sums = [np.bincount(codes[a:b], weights[a:b], classes.size) for a, b in cuts]
            total = solver.add(np.array(sums))
            factors = total.sum() / (total.size * np.where(total > 0.0, total, 1.0))
        else:
            from sklearn.utils.class_weight import compute_class_weight

            factors = solver.cluster.attempt(
                "to check the data",
                lambda: compute_class_weight(spec.class_weight, classes=classes, y=data.y),
            )
        weights = weights * factors[codes]
    return np.asarray(spec.data_weight * weights)


def _targets(y: np.ndarray, classes: np.ndarray, softmax: bool) -> list[np.ndarray]:
    """Return the labels of each problem: ±1 for one class against the others, or codes for softmax."""
    if softmax:
        return [np.searchsorted(classes, y).astype(np.float64)]
    return [as_signs(y, name) for name in (classes[1:] if classes.size == 2 else classes)]


def _offsets(
    offset: np.ndarray | None, count: int, spec: ModelSpec, classes: np.ndarray | None
) -> list[np.ndarray | None]:
    """Return the offsets of each problem: one number per row, and per class for a softmax model."""
    if offset is None:
        return [None] * count
    # A fit with more than two classes has one offset per class.
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


# --------------------------------------------------------------------------- parameters of the models


def _center(intercepts: np.ndarray, number: int, loss: Loss) -> np.ndarray:
    """Return the intercepts (outputs,) of one problem, from those of all models."""
    if loss.n_outputs == 1:
        return intercepts[number : number + 1]
    # A softmax model of two classes is stored as the second class against the first.
    return intercepts if intercepts.size > 1 else np.asarray(np.array([-0.5, 0.5]) * intercepts)


def _split(theta: np.ndarray, spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercepts from parameters (…, p) or (…, p + 1)."""
    if not spec.intercept:
        return theta, np.zeros(theta.shape[:-1])
    scaling = 1.0 if spec.intercept_scaling is None else spec.intercept_scaling
    return theta[..., :-1].copy(), scaling * theta[..., -1]


def _model_rows(runs: Sequence[Run], loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return one row of parameters per model, (K, p), and those of the nodes, (K, n, p)."""
    if loss.n_outputs == 1:
        return np.array([run.coef for run in runs]), np.array([run.theta for run in runs])
    (run,) = runs
    theta = run.coef.reshape(loss.n_outputs, -1)
    nodes = run.theta.reshape(run.theta.shape[0], loss.n_outputs, -1).transpose(1, 0, 2)
    if loss.n_outputs == 2:  # one model, as scikit-learn has it: the second class against the first
        return theta[1:] - theta[:1], nodes[1:] - nodes[:1]
    return theta, np.ascontiguousarray(nodes)


def _over_weights(duals: np.ndarray | None, weights: np.ndarray) -> np.ndarray | None:
    """Return dual variables divided by the weights, which the next fit may change."""
    if duals is None:
        return None
    divisor = np.where(weights > 0.0, weights, 1.0)
    return np.asarray(duals / (divisor if duals.ndim == 1 else divisor[:, None]))


def _times_weights(duals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return dual variables from those of `_over_weights`."""
    return np.asarray(duals * (weights if duals.ndim == 1 else weights[:, None]))
