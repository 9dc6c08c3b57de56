"""The rows that a process holds, and how they are solved for: what every step of a fit is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.estimators.auto import CANDIDATES
from adfs.files import AnyPath
from adfs.network import Network
from adfs.planning import CURVED, Facts, choose
from adfs.problem import Loss, Problem
from adfs.problem.evaluation import node_sums
from adfs.problem.views import can_be_smoothed
from adfs.runtimes import Cluster, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certifier, certify
from adfs.runtimes.placement import Placement
from adfs.runtimes.run import gather_summary

_FEW_FEATURES, _FEW_WITH_KINKS = 500, 200
_VERY_FEW, _FEW_ROWS = 30, 1000


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
    """

    X: Any
    y: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray
    offset: np.ndarray | None = None

    @property
    def sparse(self) -> bool:
        """Whether the rows are stored as CSR."""
        return bool(sp.issparse(self.X))


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
    reason : str
        Why the algorithm was chosen, where it was.
    """

    cluster: Cluster
    network: Network
    placement: Placement
    options: RunOptions
    algorithm: str = "auto"
    n_jobs: int | None = None
    part_of: AnyPath | None = None
    reason: str = ""

    def solve(self, problem: Problem, start: np.ndarray | None = None, certifier: Certifier = certify) -> Run:
        """Solve one problem to the tolerance asked for, or as far as the budget goes."""
        run = run_method(
            self.algorithm,
            problem,
            self.network,
            replace(self.options, start=start, gather=True),
            cluster=self.cluster,
            placement=self.placement,
            part_of=self.part_of,
            certifier=certifier,
        )
        if self.reason:
            run.details["reason"] = self.reason
        return run

    def settled(self, loss: Loss, name: str, reason: str) -> Solver:
        """Return the solver with ``"auto"`` replaced by a method that was chosen for a loss."""
        options = self.options
        if name == "ns-adfs" and can_be_smoothed(loss):
            options = replace(options, parameters=options.parameters or "smoothing")
        return replace(self, algorithm=name, options=options, reason=reason)

    def choose(
        self,
        data: LocalData,
        loss: Loss,
        weights: tuple[float, float],
        y: np.ndarray,
        rounds: Mapping[str, float],
    ) -> tuple[str, str]:
        """Return what ``"auto"`` stands for on the problem of `penalised` and why, alike in every process.

        ``rounds`` says of methods how often they will solve it.
        """
        if weights[1] > 0.0:
            return "adfs", "the penalty has an l1 term"
        options, width = self.options, data.X.shape[1] * loss.n_outputs
        asked = options.parameters is not None or options.tau is not None or options.schedule != "iid"
        if loss.assumes_curvature:  # which nothing predicts; a Newton step costs about d passes
            name = "adfs" if asked or width > _FEW_FEATURES else "newton"
            return name, "the curvature of the loss has no bound"
        if not loss.smooth:
            if width <= _FEW_WITH_KINKS and not asked and can_be_smoothed(loss):
                return "interior-point", "the loss is not smooth, and there are few features"
            return "ns-adfs", "the loss is not smooth"
        if asked:
            return "adfs", "its parameters, tau or schedule were given"
        own = [data.X.nnz if data.sparse else 0, data.X.shape[0]]
        stored, counts = zip(*self.cluster.gather(own, "to choose a method"), strict=True)
        if loss.name == "squared" and width <= min(_FEW_FEATURES, sum(counts)):
            return "newton", "one step solves a square"
        if loss.n_outputs == 1 and width <= _VERY_FEW and sum(counts) <= _FEW_ROWS:
            return "newton", "there is so little data that comparing methods would take longer"
        summary = gather_summary(self.cluster, self.placement, penalised(data, loss, weights, y, self))
        if not summary.n_active.any():
            return "adfs", "there is nothing to run"
        entries = sum(stored) / sum(counts) if data.sparse else None

        def chosen() -> list[str]:
            facts = Facts.of_summary(
                summary,
                width,
                entries_per_row=entries,
                n_outputs=loss.n_outputs,
                curved=loss.name in CURVED,
            )
            tol = min(0.5, 1e-6 if options.tol is None else options.tol)
            found = choose(facts, [self.network], tau=None, tol=tol, methods=CANDIDATES, rounds=rounds)
            return [found.method, found.reason]

        told = self.cluster.attempt("to choose a method", chosen)
        name, reason = self.cluster.gather(told, "to choose a method")[0]
        return name, reason

    def part(self, before: Sequence[Run]) -> Solver:
        """Return the solver of the next of several problems: its own checkpoint, and the time left."""
        left, path = self.options.seconds, self.options.checkpoint
        if left is None and path is None:
            return self
        if left is not None:  # told by one process's clock
            own = max(left - sum(run.seconds for run in before), 0.0)
            left = self.cluster.gather(own, "to share the time")[0]
        own_path = None if path is None else Path(path).with_name(f"{Path(path).name}.{len(before)}")
        return replace(self, options=replace(self.options, checkpoint=own_path, seconds=left))

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes of one vector per node of this process."""
        return self.cluster.add(values, self.placement, "to sum up the data")

    def totals(self, columns: Sequence[np.ndarray], offsets: np.ndarray) -> np.ndarray:
        """Return the sums of k columns (N,) over all rows of all processes, node by node; shape (k,)."""
        own = (np.ascontiguousarray(column, dtype=np.float64) for column in columns)
        return self.add(np.stack([node_sums(column, offsets) for column in own], axis=1))


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
    problem = Problem.stacked(data.X, y, data.weights, data.offsets, loss, ridge, data.offset)
    return problem.with_l1(l1, columns) if l1 > 0.0 else problem


def append_column(X: Any, value: float) -> Any:
    """Return X with one more column that holds a value everywhere; sparse stays sparse."""
    column: Any = np.full((X.shape[0], 1), value)
    if not sp.issparse(X):
        return np.hstack([X, column])
    stacked: Any = sp.hstack
    return stacked([X, column], format="csr")


def row_products(X: Any, coef: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return X @ coef, node by node: BLAS rounds a dense row by which others there are."""
    if sp.issparse(X):
        return np.asarray(X @ coef)
    return np.concatenate([X[a:b] @ coef for a, b in pairwise(offsets)])


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
