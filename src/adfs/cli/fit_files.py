"""A fit from files: they are read, an estimator is fitted, and the model and its summary are made.

One process reads all files. If an MPI launcher started several, every rank reads only its own files, and the
ranks fit together: the same function, with the ranks as the cluster of the estimator.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adfs._version import __version__
from adfs.cli.app import INTERRUPTED, TERMINATED, handling_sigterm, sigterm_as_ctrl_c
from adfs.cli.fit_command import file_names
from adfs.cli.options import (
    FitFileOptions,
    FitNodeOptions,
    FitRunOptions,
    ModelOptions,
    all_ranks,
    option_names,
    penalty_weight,
)
from adfs.data import LinearModel, ReadOptions, Table, align, read_table, stack
from adfs.errors import AdfsError, InputError, unknown_name
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from adfs.estimators.checks import count_nodes
from adfs.estimators.pipeline import FittedModel
from adfs.files import JsonObject
from adfs.launching import launched_by_mpi
from adfs.network import Network
from adfs.problem.losses import LOSSES
from adfs.runtimes import Cluster, OneProcess, Outcome, RunOptions
from adfs.runtimes.checkpoints import tell_ending, used_by_one_run
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import all_labels, place_together

if TYPE_CHECKING:
    import pandas as pd

Estimator = ADFSClassifier | ADFSRegressor
Search = ADFSClassifierCV | ADFSRegressorCV


@dataclass(frozen=True)
class FitRequest:
    """The options of ``adfs fit``, with τ and the grid of cross-validation as numbers."""

    files: tuple[str, ...]
    model: ModelOptions = field(default_factory=ModelOptions)
    reading: FitFileOptions = field(default_factory=FitFileOptions)
    nodes: FitNodeOptions = field(default_factory=FitNodeOptions)
    limits: FitRunOptions = field(default_factory=FitRunOptions)
    tau: float | str | None = None
    cv: int | None = None
    grid: tuple[float, ...] = ()

    @property
    def read(self) -> ReadOptions:
        """How the files are read."""
        return ReadOptions(**dataclasses.asdict(self.reading))

    def options(self) -> JsonObject:
        """Return the values by their options, so that ranks can report the option in which they differ."""
        names = option_names()
        records = self.model, self.reading, self.nodes, self.limits
        values = {names[name]: value for record in records for name, value in vars(record).items()}
        return values | {"FILE": self.files, "--cv": self.cv, "the grid": self.grid}

    @property
    def run(self) -> RunOptions:
        """The options of each run."""
        return RunOptions(**dataclasses.asdict(self.limits))


@dataclass(frozen=True)
class Fitted:
    """The results: the model, the recorded rows, the outcome, the summary, and the ranks' account of time."""

    model: LinearModel
    history: pd.DataFrame
    outcome: Outcome
    summary: JsonObject
    account: JsonObject
    estimator: Estimator


#: Writes the results, reports how the fit ended, and returns the exit code.
Finish = Callable[[Fitted], int]


def fit_files(request: FitRequest, finish: Finish) -> int:
    """Read the files, fit, call ``finish`` in process 0, and return its exit code in every process.

    One file is split over the nodes; several files are one per node. Over MPI rank 0 writes the model, then
    the marker in the checkpoint folder, both before MPI ends.
    """
    errors: list[Exception] = []
    if not launched_by_mpi():
        code = _fit(OneProcess(), request, finish, errors)
    else:
        with all_ranks(request.nodes.deadline) as world:
            from adfs.runtimes.mpi import MpiRanks

            code = _fit(MpiRanks(world, deadline=request.nodes.deadline), request, finish, errors)
    if errors:
        raise errors[0]
    return code


def _fit(cluster: Cluster, request: FitRequest, finish: Finish, errors: list[Exception]) -> int:
    """Fit, and return the exit code of ``finish`` in process 0; its error, if any, goes to ``errors``."""
    with sigterm_as_ctrl_c() as signals, cluster, ExitStack() as held:
        cluster.same(request.options)
        # Wrong options are reported before any file is read, on all ranks alike.
        estimator, _ = cluster.attempt("at the start", lambda: (_estimator(request), request.read))
        tables, nodes, network = _read_files(cluster, request)
        table, parts = stack(tables)
        # From here the rows of this process are one table; each file in it is a node.
        counts = cluster.allgather(table.n_samples)
        y = _labels(cluster, table, tables, estimator._task, sum(counts))
        # The estimator gets the nodes of this process, and the other processes as its cluster.
        n_nodes, partition = _nodes(request, parts, nodes)
        estimator.set_params(n_nodes=n_nodes, network=network, partition=partition, cluster=cluster)
        # With cross-validation the search is fitted in place of the estimator.
        fitter = estimator if request.cv is None else _search(request, estimator)
        # Two runs must not write the same checkpoint.
        held.enter_context(used_by_one_run(cluster, request.limits.checkpoint))
        try:
            model = fitter._fit(table.X, y, table.weights, table.offset, request.run, nodes)
        except InputError as error:
            error.args = (error.with_options(option_names()),)
            raise
        fitted = _results(request, fitter, model, table, sum(counts))
        # From here nobody waits for another process, and the model is written whatever signal arrives.
        with handling_sigterm(signal.SIG_IGN):
            code = 0
            try:
                if cluster.rank == 0:
                    with cluster.busy():
                        code = finish(fitted)
                        sys.stdout.flush()
                        if request.limits.checkpoint is not None:
                            ending = {name: fitted.summary[name] for name in ("outcome", "gap", "passes")}
                            tell_ending(cluster, request.limits.checkpoint, ending)
            except (AdfsError, OSError) as error:  # raised after the other ranks have ended in order
                errors.append(error)
            cluster.activity = "to end the fit"
            codes, signalled = zip(*cluster.allgather([code, bool(signals)]), strict=True)
        return TERMINATED if codes[0] == INTERRUPTED and any(signalled) else int(codes[0])


# --------------------------------------------------------------------------- the estimator


def _estimator(request: FitRequest) -> Estimator:
    """Return the estimator of the loss, after a check that the options are for it."""
    model = request.model
    if model.loss not in LOSSES:
        raise unknown_name("loss", model.loss, LOSSES)
    # C for classes, alpha for numbers; 1 if neither is given.
    weight = penalty_weight(model.loss, model.C, model.alpha)
    if request.cv is not None and weight is not None:
        raise InputError("--cv chooses the weight itself: leave out -C and --alpha, or give a grid")
    if weight is not None and not (np.isfinite(weight) and weight > 0.0):
        option = "-C" if model.C is not None else "--alpha"
        raise InputError(f"{option} must be finite and above 0, got {weight:g}")
    # The task of the loss decides the kind of the estimator.
    estimator: Estimator = ADFSClassifier()
    if LOSSES[model.loss].task == "regression":
        if model.class_weight is not None or model.multi_class != "auto":
            raise InputError(
                f"--class-weight and --multi-class are for classification, not for the loss {model.loss!r}"
            )
        estimator = ADFSRegressor()
    # The fields of the record are parameters of the estimators; each kind leaves out those of the other.
    known = estimator.get_params()
    given = dataclasses.asdict(model) | {"tau": request.tau, "C": weight or 1.0, "alpha": weight or 1.0}
    estimator.set_params(**{name: value for name, value in given.items() if name in known})
    # Wrong values are reported here, by their options: later, processes exchange only the text of an error.
    try:
        estimator._spec()
    except InputError as error:
        raise InputError(error.with_options(option_names())) from None
    return estimator


def _search(request: FitRequest, estimator: Estimator) -> Search:
    """Return the estimator that chooses the weight of the penalty by cross-validation."""
    search = ADFSClassifierCV if isinstance(estimator, ADFSClassifier) else ADFSRegressorCV
    grid = (request.grid,) if request.grid else ()
    return search(*grid, cv=request.cv, estimator=estimator)


def _nodes(
    request: FitRequest, parts: list[np.ndarray], nodes: list[int] | None
) -> tuple[int, str | list[np.ndarray]]:
    """Return the number of nodes in this process and the partition of its rows."""
    given = request.nodes
    # Over MPI the files of this rank are its nodes, whose numbers are known.
    if nodes is not None:
        return len(parts), parts
    # One file is split; the network may determine the number of nodes.
    if len(parts) == 1:
        count = count_nodes(given.n_nodes, given.network, request.limits.seed)
        return count, given.partition or "contiguous"
    if given.n_nodes not in (None, len(parts)):
        raise InputError(
            f"{len(parts)} files make {len(parts)} nodes, one each; leave out --nodes, "
            "or join the files to split them anew"
        )
    if given.partition is not None:
        raise InputError("several files are one per node: --partition is for one file")
    return len(parts), parts


# --------------------------------------------------------------------------- files


def _read_files(cluster: Cluster, request: FitRequest) -> tuple[list[Table], list[int] | None, str | Network]:
    """Return the tables of this process's files, the nodes that they are, and the network.

    In one process the nodes are None, and the network is the one that was asked for.
    """
    if cluster.size == 1:
        return _read(cluster, request.files, request.read), None, request.nodes.network

    def check() -> tuple[list[str], Network]:
        names = file_names(request.files, request.nodes.n_nodes, cluster.size)
        if request.nodes.partition is not None:
            raise InputError("over MPI the files are the partition: leave out --partition")
        seed = request.limits.seed
        count = count_nodes(len(names), request.nodes.network, seed)
        return names, Network("path:1" if count == 1 else request.nodes.network, n_nodes=count, seed=seed)

    names, network = cluster.attempt("at the start", check)
    # The placement puts neighbouring nodes into one process where it can.
    block = place_together(cluster, network).block(cluster.rank)
    tables = _read(cluster, [names[node] for node in block], request.read)
    return tables, block.tolist(), network


def _read(cluster: Cluster, names: Sequence[str], options: ReadOptions) -> list[Table]:
    """Read the files of this process; all processes agree on the first index and on the dimension."""
    why = "to read the files"

    def read() -> list[Table]:
        tables = [read_table(name, options) for name in names]
        if cluster.size > 1 or len(tables) > 1:
            for table in tables:
                if table.n_samples == 0:
                    raise InputError(f"{table.source} has no samples: every node needs some")
        return tables

    # An error of one rank is raised on all of them.
    raw = cluster.attempt(why, read)
    lowest = min((table.lowest_index for table in raw if table.lowest_index is not None), default=None)
    columns = raw[0].feature_names
    headers = cluster.allgather([lowest, list(columns) if columns else None])
    if any(names_there != headers[0][1] for _, names_there in headers):
        raise RefusalError("the files of different ranks have different columns; give them the same")
    # Indices count from 0 as soon as the file of one rank has an index 0.
    base = options.index_base
    if base is None:
        base = 0 if any(index == 0 for index, _ in headers) else 1
    width = options.n_features
    if width is None:
        here = cluster.attempt(why, lambda: align(raw, index_base=base)[0].n_features)
        width = max(cluster.allgather(here))
    return cluster.attempt(why, lambda: align(raw, n_features=width, index_base=base))


def _labels(cluster: Cluster, table: Table, tables: Sequence[Table], task: str, n_samples: int) -> np.ndarray:
    """Return the labels of this process's rows, after a check of the labels of all processes."""

    def check() -> np.ndarray:
        if table.y is None:
            raise InputError(f"{table.source} has no labels")
        if task == "regression" and table.y.dtype.kind == "U":
            raise InputError(f"{table.source}: the labels are text, a regression needs numbers")
        return table.y

    y = cluster.attempt("to compare the labels", check)
    if task == "regression":
        return y
    classes = all_labels(cluster, [y])
    source = "all files together" if cluster.size > 1 else table.source
    cluster.attempt("to compare the labels", lambda: _check_classes(classes, n_samples, source))
    _warn_of_different_labels(cluster, tables, classes)
    return y


def _check_classes(classes: np.ndarray, n_samples: int, source: str) -> None:
    """Raise unless labels can be classes."""
    if classes.dtype.kind != "U" and not np.array_equal(classes, np.floor(classes)):
        raise InputError(
            f"{source}: labels with fractions are no classes; use a regression loss (--loss squared), "
            "or whole numbers"
        )
    if classes.size < 2:
        raise InputError(f"{source}: all labels are {classes[0]}; a classifier needs two")
    # More than 50 labels, and one for every second sample: the targets of a regression.
    if classes.size > max(50, n_samples // 2):
        raise InputError(
            f"{source}: {classes.size} different labels for {n_samples} samples are not classes; "
            "use a regression loss (--loss squared)"
        )


def _warn_of_different_labels(cluster: Cluster, tables: Sequence[Table], classes: np.ndarray) -> None:
    """Print the labels of each file if they differ and make more than two classes: one file may be wrong."""
    here = [[Path(table.source).name, np.unique(np.asarray(table.y)).tolist()[:6]] for table in tables]
    everywhere = [entry for part in cluster.allgather(here) for entry in part]
    if classes.size > 2 and len({tuple(labels) for _, labels in everywhere}) > 1:
        shown = "; ".join(
            f"{name} has {', '.join(map(str, _plain_classes(np.array(labels))))}"
            for name, labels in everywhere[:4]
        )
        cluster.say(f"the files hold different labels, {classes.size} classes together: {shown}")


# --------------------------------------------------------------------------- the results


def _results(
    request: FitRequest, fitter: Estimator | Search, model: FittedModel, table: Table, n_samples: int
) -> Fitted:
    """Return the model as a file holds it, and everything that is reported about the fit."""
    # Facts about the fit, then about the search, then about the ranks.
    summary = _summary(request, model, n_samples, table.offset_name)
    estimator = fitter
    if not isinstance(fitter, Estimator):
        summary |= _search_summary(fitter)
        estimator = fitter.best_estimator_
    if table.feature_names is not None:
        estimator.feature_names_in_ = np.array(table.feature_names, dtype=object)
    account = model.runs[-1].details
    if len(account.get("ranks", ())) > 1:
        summary["ranks"] = [
            {key: value for key, value in rank.items() if key != "waits"} for rank in account["ranks"]
        ]
    # The model file holds plain numbers and texts.
    classes = None if model.classes is None else _plain_classes(model.classes)
    options = request.model
    written = LinearModel(
        task="regression" if classes is None else "classification",
        loss=options.loss,
        coef=model.coef,
        intercept=model.intercept,
        classes=classes,
        softmax=options.multi_class == "multinomial"
        or (options.multi_class == "auto" and options.loss == "logistic" and len(model.coef) > 1),
        feature_names=table.feature_names,
        index_base=table.index_base,
        label=request.reading.label,
        training=summary,
    )
    return Fitted(written, estimator.history_, model.outcome, summary, account, estimator)


def _summary(request: FitRequest, model: FittedModel, n_samples: int, offset: str | None) -> JsonObject:
    """Return the facts about the fit that the model file and ``--json`` hold."""
    options = request.model
    regression = model.classes is None
    n_nodes = model.node_coef.shape[1]
    constants = LOSSES[options.loss].parameters()  # delta of the Huber loss, and so on
    # Of several classes the run with the largest gap is reported.
    worst = max(model.runs, key=lambda run: run.gap)
    return {
        "outcome": str(model.outcome),
        "gap": model.gap,
        "absolute_gap": model.absolute_gap,
        "tol": options.tol,
        "passes": round(model.passes, 3),
        "seconds": round(model.seconds, 3),
        "n_samples": n_samples,
        **({"alpha": options.alpha or 1.0} if regression else {"C": options.C or 1.0}),
        **{name: getattr(options, name) for name in constants if hasattr(options, name)},
        "intercept": options.fit_intercept,
        **({"standardized": True} if options.standardize else {}),
        **({"l1_ratio": options.l1_ratio} if options.l1_ratio else {}),
        **({"offset": offset} if offset is not None else {}),
        "method": worst.method,
        "reason": model.reason,
        "n_nodes": n_nodes,
        "network": request.nodes.network if n_nodes > 1 else None,
        "seed": request.limits.seed,
        "files": [Path(name).name for name in request.files],
        "adfs": __version__,
    }


def _search_summary(search: Search) -> JsonObject:
    """Return the results of cross-validation for the summary."""
    # "C" for classifiers, "alpha" for regressors.
    name = search._name
    grid = getattr(search, f"{name}s_").tolist()
    tried = [
        {name: value, "score": float(scores.mean()), "scores": scores.tolist()}
        for value, scores in zip(grid, search.scores_.T, strict=True)
    ]
    facts = {"folds": len(search.scores_), "score": search._score_name(), "unfinished": search.n_unfinished_}
    return {name: getattr(search, f"{name}_"), "cv": facts | {"tried": tried}}


def _plain_classes(classes: np.ndarray) -> list[str] | list[float]:
    """Return classes as JSON writes them, whole numbers without a point."""
    if classes.dtype.kind == "U":
        return [str(name) for name in classes]
    return [int(name) if float(name).is_integer() else float(name) for name in classes]
