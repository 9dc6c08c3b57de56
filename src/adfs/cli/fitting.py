"""What ``adfs fit`` does, apart from the command line: files in, a model out.

`fit_files` runs in one process. Started by an MPI launcher, ``adfs fit`` calls the function of the same
name and arguments in `adfs.cli.fitting_mpi` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs._version import __version__
from adfs.data import LinearModel, ReadOptions, Table, read_tables, stack
from adfs.errors import InputError, unknown_name
from adfs.estimators import ADFSClassifier, ADFSRegressor
from adfs.estimators.solving import Plan, Solution
from adfs.problem.losses import LOSSES
from adfs.runtimes import Outcome

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FitRequest", "Fitted", "check_labels", "fit_files", "make_model", "plain_classes", "task_of"]

_MOST_CLASSES = 50  # more than this, and more than half the samples: targets of a regression


@dataclass(frozen=True)
class FitRequest:
    """What the user asked for; the fields are the options of ``adfs fit``."""

    files: tuple[str, ...]
    read: ReadOptions = field(default_factory=ReadOptions)
    loss: str = "logistic"
    constants: dict[str, float] = field(default_factory=dict)
    C: float | None = None
    alpha: float | None = None
    penalty: str = "l2"
    intercept: bool = True
    intercept_scaling: float = 1.0
    class_weight: str | None = None
    multi_class: str = "ovr"
    nodes: int | None = None
    graph: str = "cycle"
    partition: str | None = None
    algorithm: str = "auto"
    parameters: str | None = None
    tau: float | None = None
    schedule: str = "iid"
    tol: float = 1e-6
    max_passes: float = 10_000.0
    max_seconds: float | None = None
    checkpoint: Path | None = None
    resume: bool = False
    seed: int = 0
    deadline: float = 60.0
    progress: bool | None = None


@dataclass(frozen=True)
class Fitted:
    """What came out: the model, the recorded rows, how it ended, and over MPI the ranks' account of it."""

    model: LinearModel
    history: pd.DataFrame
    outcome: Outcome
    summary: dict[str, Any]
    account: dict[str, Any] | None = None


def task_of(request: FitRequest) -> str:
    """Return the task of the loss, after checking that the options fit it."""
    name = request.loss.replace("_", "-")
    if name not in LOSSES:
        raise unknown_name("loss", request.loss, LOSSES)
    task = str(LOSSES[name].task)
    if task == "classification" and request.alpha is not None:
        raise InputError(f"the loss {name!r} takes -C (the weight of the data), not --alpha")
    if task == "regression" and request.C is not None:
        raise InputError(f"the loss {name!r} takes --alpha (the weight of the penalty), not -C")
    if task == "regression" and (request.class_weight is not None or request.multi_class != "ovr"):
        raise InputError(
            f"--class-weight and --multi-class are for classification, not for the loss {name!r}"
        )
    return task


def fit_files(request: FitRequest) -> Fitted:
    """Read the files, fit in this process, and return the model.

    Parameters
    ----------
    request : FitRequest
        One file is split over ``nodes``; several files are one a node.
    """
    task = task_of(request)
    tables = read_tables(request.files, request.read)
    table, parts = stack(tables)
    y = check_labels(table, task)
    n_nodes, partition = _nodes(request, parts)
    common: dict[str, Any] = {
        "loss": request.loss.replace("-", "_"),
        "penalty": request.penalty,
        "fit_intercept": request.intercept,
        "intercept_scaling": request.intercept_scaling,
        "tol": request.tol,
        "max_iter": request.max_passes,
        "n_nodes": n_nodes,
        "graph": request.graph,
        "partition": partition,
        **request.constants,
    }
    plan = Plan(
        seed=request.seed,
        method=request.algorithm,
        parameters=request.parameters,
        tau=request.tau,
        schedule=request.schedule,
        seconds=request.max_seconds,
        checkpoint=request.checkpoint,
        resume=request.resume,
        progress=request.progress,
    )
    estimator: ADFSClassifier | ADFSRegressor
    if task == "classification":
        estimator = ADFSClassifier(
            C=1.0 if request.C is None else request.C,
            class_weight=request.class_weight,
            multi_class=request.multi_class,
            **common,
        )
    else:
        estimator = ADFSRegressor(alpha=1.0 if request.alpha is None else request.alpha, **common)
    solutions = estimator._fit(table.X, y, table.weights, plan)
    summary = _summary(request, solutions, table.n_samples, n_nodes)
    model = make_model(
        request,
        coef=np.atleast_2d(estimator.coef_),
        intercept=np.atleast_1d(estimator.intercept_),
        classes=plain_classes(estimator.classes_) if isinstance(estimator, ADFSClassifier) else None,
        table=table,
        training=summary,
    )
    return Fitted(model, estimator.history_, Outcome(summary["outcome"]), summary)


def check_labels(table: Table, task: str) -> np.ndarray:
    """Return the labels of a table, checked against the task."""
    y = table.y
    if y is None:
        raise InputError(f"{table.source} has no labels")
    if task == "regression":
        if y.dtype.kind == "U":
            raise InputError(
                f"{table.source}: the labels are text ({str(y[0])!r}), a regression wants numbers"
            )
        return y
    distinct = np.unique(y)
    if y.dtype.kind != "U" and not np.array_equal(distinct, np.floor(distinct)):
        raise InputError(
            f"{table.source}: labels such as {distinct[distinct != np.floor(distinct)][0]:g} are no classes; "
            "use a regression loss (--loss squared), or whole numbers"
        )
    if distinct.size < 2:
        raise InputError(f"{table.source}: all labels are {distinct[0]}; a classifier needs two")
    if distinct.size > max(_MOST_CLASSES, y.size // 2):
        raise InputError(
            f"{table.source}: {distinct.size} different labels for {y.size} samples are not classes; "
            "use a regression loss (--loss squared)"
        )
    return y


def plain_classes(classes: np.ndarray) -> list[Any]:
    """Return classes as JSON has them, whole numbers without a point."""
    if classes.dtype.kind == "U":
        return [str(name) for name in classes]
    return [int(name) if float(name).is_integer() else float(name) for name in classes]


def make_model(
    request: FitRequest,
    *,
    coef: np.ndarray,
    intercept: np.ndarray,
    classes: list[Any] | None,
    table: Table,
    training: dict[str, Any],
) -> LinearModel:
    """Return the model of a request; of the table, only how its columns are named is looked at."""
    return LinearModel(
        task="regression" if classes is None else "classification",
        loss=request.loss.replace("_", "-"),
        coef=coef,
        intercept=intercept,
        classes=classes,
        softmax=request.multi_class == "multinomial",
        feature_names=table.feature_names,
        index_base=table.index_base,
        label=request.read.label,
        training=training,
    )


def _nodes(request: FitRequest, parts: list[np.ndarray]) -> tuple[int, Any]:
    """Return the number of nodes and the partition: one file is split, several are one a node."""
    if len(parts) == 1:
        return request.nodes or 1, request.partition or "contiguous"
    if request.nodes not in (None, len(parts)):
        raise InputError(
            f"{len(parts)} files make {len(parts)} nodes, one each; leave out --nodes, "
            "or join the files to split them anew"
        )
    if request.partition is not None:
        raise InputError("several files are one a node: --partition is for one file")
    return len(parts), parts


def _summary(request: FitRequest, solutions: list[Solution], n_samples: int, n_nodes: int) -> dict[str, Any]:
    worst = max(solutions, key=lambda solution: solution.gap)
    ends = {solution.outcome for solution in solutions}
    order = (Outcome.STOPPED, Outcome.DIVERGED, Outcome.OUT_OF_BUDGET, Outcome.CONVERGED)
    weight = {"alpha": request.alpha or 1.0} if task_of(request) == "regression" else {"C": request.C or 1.0}
    return {
        "outcome": str(next(outcome for outcome in order if outcome in ends)),
        "gap": worst.gap,
        "tol": request.tol,
        "passes": round(max(solution.passes for solution in solutions), 3),
        "seconds": round(sum(solution.seconds for solution in solutions), 3),
        "n_samples": n_samples,
        **weight,
        **request.constants,
        "intercept": request.intercept,
        "method": worst.method,
        "n_nodes": n_nodes,
        "graph": request.graph if n_nodes > 1 else None,
        "seed": request.seed,
        "files": [Path(name).name for name in request.files],
        "adfs": __version__,
    }
