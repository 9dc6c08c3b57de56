"""The rows that a process holds, and how they are solved for: what every step of a fit is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from adfs.algorithms import METHODS, Method
from adfs.files import AnyPath
from adfs.network import Network
from adfs.planning import choose
from adfs.problem import Loss, Problem
from adfs.problem.evaluation import node_sums
from adfs.problem.views import can_be_smoothed
from adfs.runtimes import Cluster, Outcome, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certifier, certify
from adfs.runtimes.placement import Placement
from adfs.runtimes.run import gather_summary
from adfs.theory import Facts, loss_facts


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
    offset : ndarray of shape (N,) or (N, K), or None
        What is added to the margins, of each model where there are K.
    means : ndarray of shape (p,), or None
        What was taken from the columns, in units of what they were divided by.
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
    """The method that a fit goes on with, and the passes after which it does."""

    method: str
    passes: float


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
        ``"auto"`` is what `adfs.planning.choose` says.
    n_jobs : int or None
        Threads for problems that do not depend on each other, in one process.
    part_of : path or None
        The checkpoint of the fit; that of a later problem stands beside it.
    later_part : bool
        Whether another problem of the same fit was solved before this one.
    reason : str
        Why the algorithm was chosen, where it was.
    replacement : Replacement, optional
        What takes the place of a chosen algorithm that needs far more passes than were predicted.
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
        """Solve one problem to the tolerance asked for, or as far as the budget goes."""
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
            seconds = self.cluster.gather(max(seconds - run.seconds, 0.0), "to share the time")[0]
        reason = (
            f"{self.method} was chosen ({self.reason}) and had not converged after {used:.0f} passes, "
            f"so {self.replacement.method} went on"
        )
        other = replace(self, method=self.replacement.method, reason=reason, replacement=None)
        other = replace(other, options=replace(other.options, max_passes=left))
        return other.numbered("replaced", seconds)

    def choose(
        self, data: LocalData, loss: Loss, weights: tuple[float, float], y: np.ndarray, intercept: bool
    ) -> Solver:
        """Return the solver with ``"auto"`` replaced by the cheapest method for the problem of `penalised`.

        Every process makes the same choice: rank 0 decides.
        """
        options, cluster = self.options, self.cluster
        summary = gather_summary(cluster, self.placement, penalised(data, loss, weights, y, self))
        if not summary.n_active.any():
            return replace(self, method=next(iter(METHODS)), reason="all rows are constants")
        stored, counts = zip(
            *cluster.gather([data.X.nnz if data.sparse else 0, data.X.shape[0]], "to choose a method"),
            strict=True,
        )

        def chosen() -> list[Any]:
            facts = Facts.of_summary(
                summary,
                data.X.shape[1] * loss.n_outputs,
                entries_per_row=sum(stored) / sum(counts) if data.sparse else None,
                l1=weights[1] > 0.0,
                intercept=intercept,
                **loss_facts(loss),
            )
            tol = min(0.5, 1e-6 if options.tol is None else options.tol)
            return list(choose(facts, self.network, tol, self._takes_options))

        name, reason, limit, other = cluster.gather(
            cluster.attempt("to choose a method", chosen), "to choose a method"
        )[0]
        if name == "ns-adfs" and can_be_smoothed(loss):
            options = replace(options, parameters=options.parameters or "smoothing")
        replacement = None if other is None else Replacement(other, limit)
        return replace(self, method=name, options=options, reason=reason, replacement=replacement)

    def _takes_options(self, method: Method) -> bool:
        """Whether a method can use the parameters, the τ and the schedule that were given."""
        options = self.options
        asked = options.parameters is not None or options.tau is not None or options.schedule != "iid"
        return method.kind == "events" if asked else True

    def part(self, before: Sequence[Run]) -> Solver:
        """Return the solver of the next of several problems: its own checkpoint, and the time left."""
        left = self.options.seconds
        if left is not None:  # told by one process's clock
            own = max(left - sum(run.seconds for run in before), 0.0)
            left = self.cluster.gather(own, "to share the time")[0]
        return self.numbered(len(before), left)

    def numbered(self, number: int | str, seconds: float | None) -> Solver:
        """Return the solver of one of several problems, with a checkpoint of its own."""
        path = self.options.checkpoint
        own_path = None if path is None else Path(path).with_name(f"{Path(path).name}.{number}")
        options = replace(self.options, checkpoint=own_path, seconds=seconds)
        return replace(self, options=options, later_part=self.later_part or number != 0)

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes of one vector per node of this process."""
        return self.cluster.add(values, self.placement, "to sum up the data")

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
    """Return the problem of some rows with other targets; ``weights`` are those of ½‖θ‖² and Σ c_k|θ_k|.

    ``columns`` has c (d,), 1 when left out.
    """
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
    """Return X @ coef, node by node: BLAS rounds a dense row by which others there are."""
    if sp.issparse(X):
        return np.asarray(X @ coef)
    return np.concatenate([X[a:b] @ coef for a, b in pairwise(node_starts)])


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
