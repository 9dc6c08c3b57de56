"""The rows of a process, the solver of problems on them, and columns of a common scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import adfs.stages  # noqa: F401  # the rules of runs in stages
from adfs.algorithms import METHODS, get_method
from adfs.errors import InputError
from adfs.files import AnyPath
from adfs.network import Network
from adfs.planning import choose
from adfs.problem import Loss, Problem
from adfs.problem.evaluation import node_sums, weighted_row_sums
from adfs.problem.samples import rows_of, sparse
from adfs.problem.shards import as_rows, check_range
from adfs.runtimes import Cluster, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certifier, certify
from adfs.runtimes.cluster import Placement
from adfs.runtimes.stages import gather_summary
from adfs.theory import Facts

_LARGEST_LOGARITHM = 500.0  # its exponential, and that of its negative, may still be squared


@dataclass(frozen=True)
class LocalData:
    """The rows of this process, one node after the other.

    Attributes
    ----------
    X : ndarray or csr_array of shape (N, p)
    y : ndarray of shape (N,)
    weights : ndarray of shape (N,)
    node_starts : ndarray of shape (k + 1,)
        Node i holds the rows ``node_starts[i]:node_starts[i + 1]``.
    offset : ndarray of shape (N,) or (N, K), or None
        Added to the margins, of each model where there are K.
    means : ndarray of shape (p,), or None
        The centres that were subtracted from the columns, in units of their spreads.
    free_column : float or None
        The entry of the last column, if it is that of an intercept without a penalty.
    """

    X: Any
    y: np.ndarray
    weights: np.ndarray
    node_starts: np.ndarray
    offset: np.ndarray | None = None
    means: np.ndarray | None = None
    free_column: float | None = None

    def take(self, rows: np.ndarray, node_starts: np.ndarray) -> LocalData:
        """Return some of the rows: their numbers, or a mask."""
        offset = None if self.offset is None else self.offset[rows]
        return LocalData(self.X[rows], self.y[rows], self.weights[rows], node_starts, offset)


@dataclass(frozen=True)
class ModelSpec:
    """The description of a model.

    Attributes
    ----------
    loss : Loss
    data_weight : float
        Factor of the samples' weights in the objective: C, or 1.
    penalty_weight : float
        Factor of the penalty: 1, or alpha.
    l1_ratio : float
        Share of ‖θ‖₁ in the penalty; the rest is ½‖θ‖².
    free_intercept : bool
        Whether there is an intercept without a penalty.
    intercept_column : float or None
        The entry of the column of a penalised intercept.
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
    free_intercept: bool = True
    intercept_column: float | None = None
    standardize: bool = False
    class_weight: Any = None
    softmax: bool | None = False
    inference: bool = False


class Replacement(NamedTuple):
    """The method that a fit goes on with, its parameters, and the passes after which it does."""

    method: str
    parameters: object
    passes: float


@dataclass(frozen=True)
class Solver:
    """The method, the options and the processes that solve problems.

    Attributes
    ----------
    cluster : Cluster
    network : Network
        Links the nodes of all processes.
    placement : Placement
    options : RunOptions
    method : str
        ``"auto"`` is replaced by `choose`.
    n_jobs : int or None
        Threads for problems that do not depend on each other, in one process.
    part_of : path or None
        The checkpoint of the whole fit. Each problem of the fit has a checkpoint beside it.
    later_part : bool
        Whether another problem of the same fit was solved before this one.
    reason : str
        The reason for an automatic choice of the method.
    replacement : Replacement, optional
        The method that continues if the chosen one needs far more passes than predicted.
    """

    cluster: Cluster
    network: Network
    placement: Placement
    options: RunOptions
    method: str = "auto"
    n_jobs: int | None = None
    part_of: AnyPath | None = None
    later_part: bool = False
    reason: str = ""
    replacement: Replacement | None = None

    def solve(
        self,
        problem: Problem,
        start: np.ndarray | None = None,
        point: np.ndarray | None = None,
        certifier: Certifier = certify,
    ) -> Run:
        """Solve one problem to the tolerance, or as far as the budget permits.

        ``start`` are dual variables and ``point`` is the θ to start from, for methods that hold one.
        """
        run = run_method(
            self.method,
            problem,
            self.network,
            replace(self.options, start=start, point=point, gather=True),
            cluster=self.cluster,
            placement=self.placement,
            part_of=self.part_of,
            later_part=self.later_part,
            certifier=certifier,
        )
        if self.reason:
            run.details["reason"] = self.reason
        return run

    def choose(self, data: LocalData, spec: ModelSpec) -> Solver:
        """Return the solver with ``"auto"`` replaced by the cheapest method for a problem.

        Every process makes the same choice: rank 0 decides.
        """
        options, cluster, loss = self.options, self.cluster, spec.loss
        # The condition numbers come from the problem without an intercept's column.
        problem = penalised(data, spec, self.network.n_nodes)
        if problem.l1 is not None:
            cluster.attempt("to choose a method", problem.check_l1)
        summary = gather_summary(cluster, self.placement, problem)
        if not summary.n_active.any():
            return replace(self, method=next(iter(METHODS)), reason="all rows are constants")
        spread = self._spread(problem) if not problem.smooth else 1.0
        cluster.activity = "to choose a method"
        entries = [data.X.nnz if sparse(data.X) else data.X.size, data.X.shape[0]]
        stored, counts = zip(*cluster.allgather(entries), strict=True)
        facts = Facts.of_summary(
            summary,
            data.X.shape[1] * loss.n_outputs,
            entries_per_row=sum(stored) / sum(counts) if sparse(data.X) else None,
            l1=spec.l1_ratio > 0.0,
            intercept=spec.free_intercept,
            spread=spread,
            n_outputs=loss.n_outputs,
            curvature_type=loss.curvature_type,
        )
        tol = min(0.5, 1e-6 if options.tol is None else options.tol)
        # Only methods driven by events have parameters, a τ and a schedule that can be asked for.
        asked = options.parameters is not None or options.tau is not None or options.schedule != "iid"
        found = partial(choose, facts, self.network, tol, events_only=asked)
        name, reason, limit, other = cluster.bcast(cluster.attempt("to choose a method", found))
        # Another method takes over if this one needs far more passes than predicted.
        parameters = get_method(name).parameters_for(loss, options.parameters)
        replacement = None
        if other is not None:
            given = get_method(other).parameters_for(loss, options.parameters)
            replacement = Replacement(other, given, limit)
        options = replace(options, parameters=parameters)
        return replace(self, method=name, options=options, reason=reason, replacement=replacement)

    def _spread(self, problem: Problem) -> float:
        """Return Σ w²‖x‖²/(F(0) Σσ), which the rounds of NS-ADFS depend on."""
        rows = node_sums(problem.weights**2 * problem.row_norms_squared, problem.node_starts)
        at_zero = problem.loss_sums(np.zeros(problem.n_features))
        squares, value, sigma = self.add(np.stack([rows, at_zero, problem.sigma], axis=1))
        return float(squares / (value * sigma)) if value > 0.0 and sigma > 0.0 else 1.0

    def part(self, number: int | str, used: float, shares: int = 1) -> Solver:
        """Return the solver of one of several problems: a checkpoint of its own, and a share of the time.

        ``used`` are the seconds of the problems before, and the rest is divided by ``shares``.
        """
        seconds, path = self.options.seconds, self.options.checkpoint
        if seconds is not None:  # by the clock of process 0, so that all processes agree
            self.cluster.activity = "to share the time"
            seconds = self.cluster.bcast(max(seconds - used, 0.0) / shares)
        own_path = None if path is None else Path(path).with_name(f"{Path(path).name}.{number}")
        options = replace(self.options, checkpoint=own_path, seconds=seconds)
        return replace(self, options=options, later_part=self.later_part or number != 0)

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes of one vector per node of this process."""
        self.cluster.activity = "to sum up the data"
        return self.cluster.allreduce(values, self.placement)

    def totals(self, columns: Sequence[np.ndarray], node_starts: np.ndarray) -> np.ndarray:
        """Return the sums of k columns (N,) over all rows of all processes, node by node; shape (k,)."""
        own = (np.ascontiguousarray(column, dtype=np.float64) for column in columns)
        return self.add(np.stack([node_sums(column, node_starts) for column in own], axis=1))


def penalised(
    data: LocalData,
    spec: ModelSpec,
    n_nodes: int,
    columns: np.ndarray | None = None,
    ridge_columns: np.ndarray | None = None,
) -> Problem:
    """Return the problem of this process's rows in a network of ``n_nodes``.

    ``columns`` (d,) has 0 for columns that the ℓ1 term leaves out, 1 for the others; ``ridge_columns`` is the
    same for the ℓ2 term.
    """
    # Every node has the same share of the penalty.
    ridge = spec.penalty_weight * (1.0 - spec.l1_ratio) / n_nodes
    l1 = spec.penalty_weight * spec.l1_ratio / n_nodes
    rows = data.X, data.y, data.weights, data.node_starts
    return Problem.stacked(*rows, spec.loss, ridge, data.offset, l1, columns, ridge_columns)


def refuse_missing_labels(y: Any) -> None:
    """Raise if labels are missing; those of numbers are NaN, which scikit-learn refuses."""
    values = np.asarray(y)
    # Among text, None and pandas' NA are missing labels: to compare them with others is a TypeError.
    if values.dtype == object and values.ndim > 0:
        import pandas as pd

        missing = np.flatnonzero(pd.isna(values))
        if missing.size:
            raise InputError(
                f"labels are missing in y, first in row {missing[0]}; leave out the rows without a label"
            )


def read_offset(offset: Any, n_rows: int, loss: Loss) -> np.ndarray:
    """Return offsets as numbers: one entry per row of the data, a number or one number per class."""
    values = np.asarray(offset, dtype=np.float64)
    if values.ndim not in (1, 2) or len(values) != n_rows:
        raise InputError(f"offset must have one entry per row: X has {n_rows} rows, got shape {values.shape}")
    check_range(values, "offset")
    if loss.link == "log" and np.abs(values).max(initial=0.0) > _LARGEST_LOGARITHM:
        raise InputError(
            f"offset must lie between −{_LARGEST_LOGARITHM:g} and {_LARGEST_LOGARITHM:g} for the loss "
            f"{loss.name!r}, whose means it multiplies by its exponential; give the logarithm of the exposure"
        )
    return values


def append_column(X: Any, value: float) -> Any:
    """Return X with one more column that holds a value everywhere; sparse stays sparse."""
    if not sparse(X):
        return np.hstack([X, np.full((X.shape[0], 1), value)])
    # One more entry at the end of each row: many times as fast as `scipy.sparse.hstack`.
    starts = X.indptr + np.arange(X.indptr.size, dtype=X.indptr.dtype)
    old = np.ones(starts[-1], dtype=np.bool_)
    old[starts[1:] - 1] = False
    parts = np.full(old.size, value), np.full(old.size, X.shape[1], dtype=X.indices.dtype)
    parts[0][old], parts[1][old] = X.data, X.indices
    return sp.csr_array((*parts, starts), shape=(X.shape[0], X.shape[1] + 1))


def row_products(X: Any, coef: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    """Return X @ coef, node by node: the rounding of BLAS depends on the number of rows."""
    if sparse(X):
        return np.asarray(X @ coef)
    return np.concatenate([X[a:b] @ coef for a, b in pairwise(node_starts)])


def joined_frames(runs: Sequence[Run], gap: float) -> dict[str, np.ndarray]:
    """Return the recorded columns of consecutive runs, with their work summed and the certified gap last."""
    added = ("passes", "computations", "messages", "bytes", "seconds")
    parts: list[dict[str, np.ndarray]] = []
    # The work of a run starts where that of the run before ended.
    base = dict.fromkeys(added, 0.0)
    for run in runs:
        columns = {name: values + base.get(name, 0.0) for name, values in run.columns.items()}
        base = {name: float(columns[name][-1]) for name in added}
        parts.append(columns)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined["gap"][-1] = gap
    return joined


# --------------------------------------------------------------------------- columns of a common scale


@dataclass(frozen=True)
class Columns:
    """The centre that is subtracted from each column and the spread it is divided by, (p,); None for none."""

    center: np.ndarray | None = None
    spread: np.ndarray | None = None

    def apply(self, data: LocalData) -> LocalData:
        """Return the data with columns centred and scaled; rows that need neither are not copied."""
        if self.center is None and self.spread is None:
            return data
        X, means = data.X, self.center
        if self.center is not None:
            X = X - self.center
        if self.spread is not None:
            means = None if self.center is None else self.center / self.spread
            if sparse(X):
                X = sp.csr_array((X.data / self.spread[X.indices], X.indices, X.indptr), shape=X.shape)
            else:
                X = X / self.spread
        return replace(data, X=as_rows(X), means=means)  # a scale may take them out of their range


def column_scales(data: LocalData, solver: Solver, *, center: bool, scale: bool) -> Columns:
    """Return the weighted means and standard deviations of the columns over the rows of all processes.

    Only dense rows are centred: sparse rows would become dense. Constant columns are not scaled.
    """
    X, starts = data.X, data.node_starts
    center = center and not sparse(X)
    if not (center or scale):
        return Columns()
    weights = np.ascontiguousarray(data.weights)[:, None]

    def column_sums(rows: Any) -> np.ndarray:
        return solver.add(weighted_row_sums(rows_of(rows), starts, weights, X.shape[1]))

    (total,) = solver.totals([data.weights], starts)
    if not total > 0.0:
        return Columns()
    means = column_sums(X) / total
    if not scale:
        return Columns(means)
    # Squares of distances from the mean: squares less the squared mean would lose digits.
    if sparse(X):  # the entries that are stored, and those that are 0
        parts = (X.indices, X.indptr)
        squares = column_sums(sp.csr_array(((X.data - means[X.indices]) ** 2, *parts), shape=X.shape))
        there = column_sums(sp.csr_array((np.ones(X.nnz), *parts), shape=X.shape))
        squares += (total - there) * means**2
    else:
        squares = column_sums((X - means) ** 2)
    rows = sum(solver.cluster.allgather(int(X.shape[0])))
    variance = np.maximum(squares / total, 0.0)
    # A mean of N numbers is right to about N roundings: a smaller spread is no spread.
    rounding = rows * float(np.finfo(np.float64).eps)
    constant = variance <= (rounding * np.abs(means)) ** 2
    spread = np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))
    return Columns(means if center else None, spread)
