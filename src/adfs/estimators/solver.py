"""The rows of a process, the solver of problems on them, and columns of a common scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import adfs.stages  # noqa: F401  # the rules of runs in stages
from adfs.algorithms import METHODS, Method, get_method
from adfs.errors import InputError
from adfs.files import AnyPath
from adfs.network import Network
from adfs.planning import choose
from adfs.problem import Loss, Problem
from adfs.problem.evaluation import node_sums, weighted_row_sums
from adfs.problem.samples import rows_of, sparse
from adfs.problem.shards import as_rows
from adfs.runtimes import Cluster, Outcome, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certifier, certify
from adfs.runtimes.placement import Placement
from adfs.runtimes.run import gather_summary
from adfs.theory import Facts, loss_facts


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
    """

    X: Any
    y: np.ndarray
    weights: np.ndarray
    node_starts: np.ndarray
    offset: np.ndarray | None = None
    means: np.ndarray | None = None

    @property
    def sparse(self) -> bool:
        """Whether the rows are stored as CSR."""
        return bool(sp.issparse(self.X))


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

    def solve(self, problem: Problem, start: np.ndarray | None = None, certifier: Certifier = certify) -> Run:
        """Solve one problem to the tolerance, or as far as the budget permits."""
        run = run_method(
            self.method,
            problem,
            self.network,
            replace(self.options, start=start, gather=True),
            cluster=self.cluster,
            placement=self.placement,
            part_of=self.part_of,
            later_part=self.later_part,
            certifier=certifier,
        )
        if self.reason:
            run.details["reason"] = self.reason
        return run

    def limited(self) -> Solver:
        """Return the solver that ends where the replacement takes over."""
        if self.replacement is None or not self.replacement.passes < (self.options.max_passes or math.inf):
            return replace(self, replacement=None)
        return replace(self, options=replace(self.options, max_passes=self.replacement.passes))

    def after(self, run: Run) -> Solver | None:
        """Return the solver that goes on where a run of `limited` ended; None if the run was not cut off.

        That is decided by passes alone, so that it is the same on every machine and after a resume.
        """
        used, limit = float(run.columns["passes"][-1]), self.options.max_passes
        if self.limited().replacement is None or run.outcome is not Outcome.OUT_OF_BUDGET:
            return None
        assert self.replacement is not None
        if used < 0.9 * self.replacement.passes:  # it ended for another reason
            return None
        left, seconds = None if limit is None else max(limit - used, 1.0), self.options.seconds
        if seconds is not None:
            self.cluster.activity = "to share the time"
            seconds = self.cluster.bcast(max(seconds - run.seconds, 0.0))
        reason = (
            f"{self.method} was chosen ({self.reason}) and had not converged after {used:.0f} passes, "
            f"so {self.replacement.method} went on"
        )
        other = replace(self, method=self.replacement.method, reason=reason, replacement=None)
        parameters = self.replacement.parameters
        other = replace(other, options=replace(other.options, max_passes=left, parameters=parameters))
        return other.numbered("replaced", seconds)

    def choose(
        self, data: LocalData, loss: Loss, weights: tuple[float, float], y: np.ndarray, intercept: bool
    ) -> Solver:
        """Return the solver with ``"auto"`` replaced by the cheapest method for the problem of `penalised`.

        Every process makes the same choice: rank 0 decides.
        """
        options, cluster = self.options, self.cluster
        problem = penalised(data, loss, weights, y, self)
        summary = gather_summary(cluster, self.placement, problem)
        if not summary.n_active.any():
            return replace(self, method=next(iter(METHODS)), reason="all rows are constants")
        spread = self._spread(problem) if not loss.smooth else 1.0
        cluster.activity = "to choose a method"
        cards = cluster.allgather([data.X.nnz if data.sparse else 0, data.X.shape[0]])
        stored, counts = zip(*cards, strict=True)

        def chosen() -> list[Any]:
            facts = Facts.of_summary(
                summary,
                data.X.shape[1] * loss.n_outputs,
                entries_per_row=sum(stored) / sum(counts) if data.sparse else None,
                l1=weights[1] > 0.0,
                intercept=intercept,
                spread=spread,
                **loss_facts(loss),
            )
            if not any(method.can_solve(facts, self.network.n_nodes) for method in METHODS.values()):
                first = next(iter(METHODS.values()))
                raise InputError(f"no method can solve this problem: {first.name} {first.obstacle(problem)}")
            tol = min(0.5, 1e-6 if options.tol is None else options.tol)
            return list(choose(facts, self.network, tol, lambda method: self._suits(method, problem)))

        name, reason, limit, other = cluster.bcast(cluster.attempt("to choose a method", chosen))
        given = options.parameters
        options = replace(options, parameters=get_method(name).parameters_for(loss, given))
        replacement = None
        if other is not None:
            replacement = Replacement(other, get_method(other).parameters_for(loss, given), limit)
        return replace(self, method=name, options=options, reason=reason, replacement=replacement)

    def _spread(self, problem: Problem) -> float:
        """Return Σ w²‖x‖²/(F(0) Σσ), which the rounds of NS-ADFS depend on."""
        rows = node_sums(problem.weights**2 * problem.row_norms_squared, problem.node_starts)
        at_zero = problem.loss_sums(np.zeros(problem.n_features))
        squares, value, sigma = self.add(np.stack([rows, at_zero, problem.sigma], axis=1))
        return float(squares / (value * sigma)) if value > 0.0 else 1.0

    def _suits(self, method: Method, problem: Problem) -> bool:
        """Whether a method can use the parameters, the τ and the schedule that were given, and the loss."""
        options = self.options
        asked = options.parameters is not None or options.tau is not None or options.schedule != "iid"
        return (method.kind == "events" or not asked) and not method.obstacle(problem)

    def part(self, before: Sequence[Run]) -> Solver:
        """Return the solver of the next of several problems: its own checkpoint, and the time left."""
        left = self.options.seconds
        if left is not None:  # by the clock of process 0, so that all processes agree
            self.cluster.activity = "to share the time"
            left = self.cluster.bcast(max(left - sum(run.seconds for run in before), 0.0))
        return self.numbered(len(before), left)

    def numbered(self, number: int | str, seconds: float | None) -> Solver:
        """Return the solver of one of several problems, with a checkpoint of its own."""
        path = self.options.checkpoint
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
    loss: Loss,
    weights: tuple[float, float],
    y: np.ndarray,
    solver: Solver,
    columns: np.ndarray | None = None,
) -> Problem:
    """Return the problem of some rows with targets y; ``weights`` are the factors of ½‖θ‖² and Σ c_k|θ_k|.

    ``columns`` has c (d,), 1 when left out.
    """
    # Every node has the same share of the penalty.
    ridge, l1 = (weight / solver.network.n_nodes for weight in weights)
    problem = Problem.stacked(data.X, y, data.weights, data.node_starts, loss, ridge, data.offset)
    return problem.with_l1(l1, columns) if l1 > 0.0 else problem


def append_column(X: Any, value: float) -> Any:
    """Return X with one more column that holds a value everywhere; sparse stays sparse."""
    column: Any = np.full((X.shape[0], 1), value)
    if not sp.issparse(X):
        return np.hstack([X, column])
    stacked: Any = sp.hstack
    return stacked([X, column], format="csr")


def row_products(X: Any, coef: np.ndarray, node_starts: np.ndarray) -> np.ndarray:
    """Return X @ coef, node by node: the rounding of BLAS depends on the number of rows."""
    if sp.issparse(X):
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

    @property
    def means(self) -> np.ndarray | None:
        """The centres in units of the spreads: the means of the scaled columns."""
        return self.center if self.center is None or self.spread is None else self.center / self.spread

    def apply(self, X: Any) -> Any:
        """Return the rows with columns centred and scaled; rows that need neither are not copied."""
        if self.center is not None:
            X = X - self.center
        if self.spread is None:
            return X
        if sparse(X):
            return sp.csr_array((X.data / self.spread[X.indices], X.indices, X.indptr), shape=X.shape)
        return X / self.spread

    def undo(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (…, p) and intercepts (…) for the columns as they were."""
        if self.spread is not None:
            coef = coef / self.spread
        return coef, intercept if self.center is None else intercept - coef @ self.center

    def intercepts(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Return the intercepts (…) for the centred columns, from a model of the columns as they were."""
        return intercept if self.center is None else intercept + coef @ self.center


def column_scales(data: LocalData, solver: Solver, *, center: bool, scale: bool) -> Columns:
    """Return the weighted means and standard deviations of the columns over the rows of all processes.

    Only dense rows are centred: sparse rows would become dense. Constant columns are not scaled.
    """
    center = center and not data.sparse
    if not (center or scale):
        return Columns()
    total = solver.totals([data.weights], data.node_starts)[0]
    if not total > 0.0:
        return Columns()
    X = as_rows(data.X)
    means = _column_sums(X, data.weights, data, solver) / total
    if not scale:
        return Columns(means)
    # Squares of distances from the mean: squares less the squared mean would lose digits.
    if sparse(X):  # the entries that are stored, and those that are 0
        parts = (X.indices, X.indptr)
        away = sp.csr_array(((X.data - means[X.indices]) ** 2, *parts), shape=X.shape)
        there = sp.csr_array((np.ones(X.nnz), *parts), shape=X.shape)
        squares = _column_sums(away, data.weights, data, solver)
        squares += (total - _column_sums(there, data.weights, data, solver)) * means**2
    else:
        squares = _column_sums((X - means) ** 2, data.weights, data, solver)
    rows = sum(solver.cluster.allgather(int(X.shape[0])))
    variance = np.maximum(squares / total, 0.0)
    # A mean of N numbers is right to about N roundings: a smaller spread is no spread.
    rounding = rows * float(np.finfo(np.float64).eps)
    constant = variance <= (rounding * np.abs(means)) ** 2
    spread = np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))
    return Columns(means if center else None, spread)


def _column_sums(X: Any, weights: np.ndarray, data: LocalData, solver: Solver) -> np.ndarray:
    """Return the weighted sum of each column over the rows of all processes, shape (p,)."""
    weights = np.ascontiguousarray(weights, dtype=np.float64)[:, None]
    return solver.add(weighted_row_sums(rows_of(X), data.node_starts, weights, X.shape[1]))
