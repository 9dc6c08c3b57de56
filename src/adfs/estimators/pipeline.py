"""From the rows that this process holds and a description of the model to a fitted model.

One pipeline for every cluster: nothing but sums over the nodes, and the sizes and labels of the data, goes
between processes. The estimators and ``adfs fit`` are its front doors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from adfs.errors import InputError
from adfs.estimators.choosing import Facts, choose_method
from adfs.network import Network
from adfs.problem import Loss, Multinomial, Problem
from adfs.problem.evaluation import node_sums
from adfs.problem.shards import as_signs
from adfs.runtimes import Cluster, Outcome, Run, RunOptions, run_method
from adfs.runtimes.joint_problem import all_labels, widen, widest
from adfs.runtimes.placement import Placement
from adfs.runtimes.run import gather_summary

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FittedModel", "LocalData", "ModelSpec", "Solver", "append_column", "fit_model", "joined_frames"]


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
    intercept : bool
    intercept_scaling : float
        What the intercept's column holds, where it has one.
    class_weight : mapping, "balanced" or None
        Factors of the classes' sample weights.
    softmax : bool
        One model of all classes, instead of one per class.
    """

    loss: Loss
    data_weight: float = 1.0
    penalty_weight: float = 1.0
    intercept: bool = True
    intercept_scaling: float = 1.0
    class_weight: Any = None
    softmax: bool = False

    @property
    def classifies(self) -> bool:
        """Whether the labels are classes."""
        return self.loss.task == "classification"

    @property
    def centers(self) -> bool:
        """Whether the intercept is exact, by centring, and not penalised."""
        return self.intercept and self.loss.name == "squared"


@dataclass(frozen=True)
class LocalData:
    """What this process holds: the rows of its nodes, one node after the other.

    Attributes
    ----------
    X : ndarray or csr_array of shape (N, p)
    y : ndarray of shape (N,)
    weights : ndarray of shape (N,)
    offsets : ndarray of shape (k + 1,)
        Its node i holds the rows ``offsets[i]:offsets[i + 1]``.
    """

    X: Any
    y: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray

    def problem(self, loss: Loss, sigma: float, y: np.ndarray, X: Any = None) -> Problem:
        """Return the problem of these rows with other targets, and other columns where they are given."""
        rows = self.X if X is None else X
        return Problem.stacked(rows, y, self.weights, self.offsets, loss, sigma)


@dataclass(frozen=True)
class Solver:
    """How problems are solved, and by whom.

    Attributes
    ----------
    cluster : Cluster
    network : Network
        Links the nodes of all processes.
    placement : Placement
    options : RunOptions
    algorithm : str
        ``"auto"`` is what `choose_method` says.
    n_jobs : int or None
        Threads for problems that do not depend on each other, in one process.
    """

    cluster: Cluster
    network: Network
    placement: Placement
    options: RunOptions
    algorithm: str = "auto"
    n_jobs: int | None = None

    def solve(self, problem: Problem, start: np.ndarray | None = None) -> Run:
        """Solve one problem to the tolerance asked for, or as far as the budget goes."""
        name, reason = self._choose(problem) if self.algorithm == "auto" else (self.algorithm, "")
        options = replace(self.options, start=start, gather=True)
        run = run_method(name, problem, self.network, options, cluster=self.cluster, placement=self.placement)
        return replace(run, details=run.details | {"reason": reason}) if reason else run

    def _choose(self, problem: Problem) -> tuple[str, str]:
        """Return the method for a problem and why, the same in every process."""
        options, X = self.options, problem.X
        stored = float(X.nnz if problem.sparse else X.size)
        counts = self.cluster.gather([stored, problem.n_samples], "to choose a method")
        facts = Facts(
            smooth=problem.smooth,
            n_outputs=problem.n_outputs,
            n_features=problem.n_features,
            entries=sum(count[0] for count in counts) / max(1, sum(count[1] for count in counts)),
            sparse=problem.sparse,
            summary=gather_summary(self.cluster, self.placement, problem),
            network=self.network,
            tol=1e-6 if options.tol is None else options.tol,
            asked=options.parameters is not None or options.tau is not None or options.schedule != "iid",
        )
        chosen = self.cluster.attempt("to choose a method", lambda: list(choose_method(facts)))
        name, reason = self.cluster.gather(chosen, "to choose a method")[0]
        return name, reason

    def part(self, before: Sequence[Run]) -> Solver:
        """Return the solver of the next of several problems: its own checkpoint, and the time left."""
        left, path = self.options.seconds, self.options.checkpoint
        if left is not None:  # told by one process's clock
            own = max(left - sum(run.seconds for run in before), 0.0)
            left = self.cluster.gather(own, "to share the time")[0]
        own_path = None if path is None else Path(path).with_name(f"{Path(path).name}.{len(before)}")
        return replace(self, options=replace(self.options, checkpoint=own_path, seconds=left))

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes of one vector per node of this process."""
        return self.cluster.add(values, self.placement, "to sum up the data")

    def total(self, values: np.ndarray, offsets: np.ndarray) -> float:
        """Return the sum of one number per row over all rows of all processes, node by node."""
        return float(self.add(node_sums(values, offsets)[:, None])[0])


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
    gap, passes, seconds : float
        The largest certified relative gap, the most passes, and the seconds of all runs together.
    outcome : Outcome
        The worst of all runs.
    history : DataFrame
        The recorded rows; with a column ``class`` when there are several runs.
    duals : list of ndarray or None
        The runs' dual variables over the weights, in the order of this process's rows.
    """

    coef: np.ndarray
    intercept: np.ndarray
    node_coef: np.ndarray
    node_intercept: np.ndarray
    classes: np.ndarray | None
    runs: list[Run]
    duals: list[np.ndarray | None] = field(repr=False)

    @property
    def algorithm(self) -> str:
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
    def history(self) -> pd.DataFrame:
        """The recorded rows of all runs."""
        if len(self.runs) == 1:
            return self.runs[0].frame
        import pandas as pd

        assert self.classes is not None
        named = zip(self.classes, self.runs, strict=True)
        return pd.concat([run.frame.assign(**{"class": name}) for name, run in named], ignore_index=True)


def append_column(X: Any, value: float) -> Any:
    """Return X with one more column that holds a value everywhere; sparse stays sparse."""
    column: Any = np.full((X.shape[0], 1), value)
    if not sp.issparse(X):
        return np.hstack([X, column])
    stacked: Any = sp.hstack
    return stacked([X, column], format="csr")


def fit_model(
    data: LocalData, spec: ModelSpec, solver: Solver, warm: Sequence[np.ndarray] | None = None
) -> FittedModel:
    """Fit a model; every process of the cluster calls it together.

    Parameters
    ----------
    data : LocalData
    spec : ModelSpec
    solver : Solver
    warm : sequence of ndarray, optional
        The ``duals`` of a fit before, on data of the same shape.
    """
    from adfs.estimators.intercepts import fit_centered_squares

    data = _same_columns(data, solver.cluster)
    classes = _classes(data, solver.cluster) if spec.classifies else None
    data = replace(data, weights=_weights(data, spec, classes, solver))
    starts = [_times_weights(one, data.weights) for one in warm] if warm is not None else None
    if spec.centers:
        return fit_centered_squares(data, spec, solver, None if starts is None else starts[0])
    rows = append_column(data.X, spec.intercept_scaling) if spec.intercept else data.X
    sigma = spec.penalty_weight / solver.network.n_nodes
    targets = [data.y] if classes is None else _targets(data.y, classes, spec.softmax)

    loss: Loss = spec.loss
    if spec.softmax:
        assert classes is not None
        loss = Multinomial(classes.size)

    def problem_of(y: np.ndarray) -> Problem:
        return data.problem(loss, sigma, y, rows)

    runs = _solve_all(targets, problem_of, solver, starts)
    if spec.softmax:
        assert classes is not None
        theta, nodes = _softmax_rows(runs[0], classes.size)
    else:
        theta = np.array([run.coef for run in runs])
        nodes = np.array([run.theta for run in runs])
    coef, intercept = _split(theta, spec)
    node_coef, node_intercept = _split(nodes, spec)
    duals = [_over_weights(run.dual, data.weights) for run in runs]
    return FittedModel(coef, intercept, node_coef, node_intercept, classes, runs, duals)


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
    if classes.size < 2:
        raise InputError("a classifier needs samples of at least two classes, y holds one class only")
    return classes


def _weights(data: LocalData, spec: ModelSpec, classes: np.ndarray | None, solver: Solver) -> np.ndarray:
    """Return the samples' weights in the objective: classes and the weight of the data put in."""
    weights = data.weights
    if classes is not None and spec.class_weight is not None:
        codes = np.searchsorted(classes, data.y)
        if isinstance(spec.class_weight, str) and spec.class_weight == "balanced":
            cuts = zip(data.offsets[:-1], data.offsets[1:], strict=True)
            sums = [np.bincount(codes[a:b], weights[a:b], classes.size) for a, b in cuts]
            factors = _balanced(solver.add(np.array(sums)))
        else:
            from sklearn.utils.class_weight import compute_class_weight

            factors = compute_class_weight(spec.class_weight, classes=classes, y=data.y)
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


# --------------------------------------------------------------------------- solving


def _solve_all(
    targets: list[np.ndarray],
    problem_of: Callable[[np.ndarray], Problem],
    solver: Solver,
    starts: Sequence[np.ndarray] | None,
) -> list[Run]:
    """Solve one problem per list of targets, with the same rows."""
    done: list[Run] = []

    def one(number: int, y: np.ndarray) -> Run:
        # Threads have neither checkpoints nor a limit in seconds: those come from outside.
        how = solver if len(targets) == 1 else solver.part(done)
        run = how.solve(problem_of(y), None if starts is None else starts[number])
        done.append(run)
        return run

    if len(targets) == 1 or solver.n_jobs in (None, 1) or solver.cluster.size > 1:
        return [one(number, y) for number, y in enumerate(targets)]
    from sklearn.utils.parallel import Parallel, delayed

    jobs = (delayed(one)(number, y) for number, y in enumerate(targets))
    runs: list[Run] = Parallel(n_jobs=solver.n_jobs, require="sharedmem")(jobs)
    return runs


def _split(theta: np.ndarray, spec: ModelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients and intercepts from parameters (…, p) or (…, p + 1)."""
    if not spec.intercept:
        return theta, np.zeros(theta.shape[:-1])
    return theta[..., :-1].copy(), spec.intercept_scaling * theta[..., -1]


def _softmax_rows(run: Run, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one row per class, (K, d), and the nodes' (K, n, d); for two classes their difference alone."""
    theta = run.coef.reshape(n_classes, -1)
    nodes = run.theta.reshape(run.theta.shape[0], n_classes, -1).transpose(1, 0, 2)
    if n_classes == 2:  # as scikit-learn has it
        return theta[1:] - theta[:1], nodes[1:] - nodes[:1]
    return theta, np.ascontiguousarray(nodes)


def _over_weights(tips: np.ndarray | None, weights: np.ndarray) -> np.ndarray | None:
    """Return tips over their weights, which the next fit may change."""
    if tips is None:
        return None
    divisor = np.where(weights > 0.0, weights, 1.0)
    return np.asarray(tips / (divisor if tips.ndim == 1 else divisor[:, None]))


def _times_weights(tips: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return tips from `_over_weights`."""
    return np.asarray(tips * (weights if tips.ndim == 1 else weights[:, None]))


def joined_frames(runs: Sequence[Run], gap: float) -> dict[str, np.ndarray]:
    """Return the columns of runs one after the other, their work added up, the certified gap in the last."""
    added = ("passes", "computations", "messages", "bytes", "seconds")
    parts: list[dict[str, np.ndarray]] = []
    base = dict.fromkeys(added, 0.0)
    for run in runs:
        columns = {name: values + base.get(name, 0.0) for name, values in run.columns.items()}
        base = {name: float(columns[name][-1]) for name in added}
        parts.append(columns)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined["gap"][-1] = gap
    return joined
