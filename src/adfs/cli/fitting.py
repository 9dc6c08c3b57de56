"""What ``adfs fit`` does, apart from the command line: files in, a model out, by an estimator.

One process reads all files. Started by an MPI launcher, every rank reads its own files alone, and the ranks
fit together: the same function, with the ranks as the estimator's cluster.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from adfs._version import __version__
from adfs.cli.app import INTERRUPTED, TERMINATED
from adfs.cli.options import all_ranks, the_one_for
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

# Parameters of the estimators that their messages name, and the options that were typed.
_OPTIONS = {
    "inference=True": "--summary",
    "l1_ratio": "--l1-ratio",
    "multi_class": "--multi-class",
    "penalty": "--penalty",
    "intercept_scaling": "--intercept-scaling",
    "max_iter": "--max-passes",
}

_MOST_CLASSES = 50  # more than this, and more than half the samples: targets of a regression


@dataclass(frozen=True)
class FitRequest:
    """What the user asked for; the fields are the options of ``adfs fit``.

    ``settings`` are parameters that both kinds of estimators have, ``run`` what is asked of each run.
    """

    files: tuple[str, ...]
    read: ReadOptions = field(default_factory=ReadOptions)
    loss: str = "logistic"
    constants: dict[str, float] = field(default_factory=dict)
    C: float | None = None
    alpha: float | None = None
    class_weight: str | None = None
    multi_class: str = "auto"
    settings: JsonObject = field(default_factory=dict)
    cv: int | None = None
    grid: tuple[float, ...] = ()
    nodes: int | None = None
    network: str = "cycle"
    partition: str | None = None
    run: RunOptions = field(default_factory=RunOptions)
    deadline: float = 60.0

    @property
    def loss_name(self) -> str:
        """The loss as the registry spells it."""
        return self.loss

    def options(self) -> JsonObject:
        """Return every option by its own name, so that ranks can say in which one they differ."""
        groups = ("run", "read", "settings", "constants")
        own = {name: value for name, value in vars(self).items() if name not in groups}
        found = vars(self.run) | vars(self.read) | own | self.settings | self.constants
        return {_OPTIONS.get(name, name): value for name, value in found.items()}


@dataclass(frozen=True)
class Fitted:
    """What came out: the model, the recorded rows, how it ended, and the processes' account of it."""

    model: LinearModel
    history: pd.DataFrame
    outcome: Outcome
    summary: JsonObject
    account: JsonObject
    estimator: Estimator | Search


#: Writes the model and what else was asked for, says how the fit ended, and returns the exit code.
Finish = Callable[[Fitted], int]


def fit_files(request: FitRequest, finish: Finish) -> int:
    """Read the files, fit, have the model written, and return the exit code, the same in every process.

    One file is split over ``nodes``; several files are one per node. Over MPI rank 0 writes the model, then
    the marker in the checkpoint folder, both before MPI ends.
    """
    troubles: list[Exception] = []
    if not launched_by_mpi():
        code = _fit(OneProcess(), request, finish, troubles)
    else:
        with all_ranks(request.deadline) as world:
            from adfs.runtimes.mpi import MpiRanks

            code = _fit(MpiRanks(world, deadline=request.deadline), request, finish, troubles)
    if troubles:
        raise troubles[0]
    return code


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Let a SIGTERM (of Slurm, of Kubernetes) end a fit as Ctrl-C does, once; yield the signals that came."""
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if came:
            return
        came.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt) and interrupt is not signal.default_int_handler:
            interrupt(signal.SIGINT, frame)  # a run ends in order
        else:
            raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*came) from None  # whose exit code tells which signal it was
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:  # a rank that fails has other words ready
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _sigterm_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fit(cluster: Cluster, request: FitRequest, finish: Finish, troubles: list[Exception]) -> int:
    """Fit; process 0 has the model written, and notes what goes wrong then. Return the exit code."""
    with _sigterm_as_ctrl_c() as signals, cluster, ExitStack() as held:
        cluster.same(request.options())
        task = cluster.attempt("at the start", lambda: _task_of(request))
        names, nodes = list(request.files), None
        network: str | Network = request.network
        if cluster.size > 1:
            names, nodes, network = _own_files(cluster, request)
        tables = _read(cluster, names, request.read)
        table, parts = stack(tables)
        counts = cluster.gather([table.n_samples, len(tables)], "to count the samples")
        n_samples = sum(count for count, _ in counts)
        y = _labels(cluster, table, tables, task, n_samples)
        n_nodes, partition = _nodes(request, parts, cluster)
        estimator = _estimator(request, task)
        estimator.set_params(n_nodes=n_nodes, network=network, partition=partition)
        if cluster.size > 1:
            estimator.set_params(cluster=cluster)
        fitter = estimator if request.cv is None else _search(request, task, estimator)
        held.enter_context(used_by_one_run(cluster, request.run.checkpoint))
        try:
            model = fitter._fit(table.X, y, table.weights, table.offset, request.run, nodes)
        except InputError as error:
            error.args = (_in_options(str(error)),)
            raise
        summary = _summary(request, task, model, n_samples, table.offset_name)
        if not isinstance(fitter, Estimator):
            summary |= _chosen(fitter)
            estimator = fitter.best_estimator_
        if table.feature_names is not None:
            estimator.feature_names_in_ = np.array(table.feature_names, dtype=object)
        account = model.runs[-1].details
        if cluster.size > 1:
            summary["ranks"] = [
                {key: value for key, value in rank.items() if key != "waits"} for rank in account["ranks"]
            ]
        fitted = Fitted(
            _linear_model(request, model, table, summary),
            model.history,
            model.outcome,
            summary,
            account,
            fitter,
        )
        with _sigterm_ignored():  # nobody is waited for until the model is written
            code = 0
            try:
                if cluster.rank == 0:
                    with cluster.busy():
                        code = finish(fitted)
                        sys.stdout.flush()
                        if request.run.checkpoint is not None:
                            ending = {name: summary[name] for name in ("outcome", "gap", "passes")}
                            tell_ending(cluster, request.run.checkpoint, ending)
            except (AdfsError, OSError) as error:  # told once the other ranks have ended in order
                troubles.append(error)
            codes, told = zip(*cluster.gather([code, bool(signals)], "to end the fit"), strict=True)
        return TERMINATED if codes[0] == INTERRUPTED and any(told) else int(codes[0])


# --------------------------------------------------------------------------- what was asked for


def _task_of(request: FitRequest) -> str:
    """Return the task of the loss, after checking that the options fit it."""
    name = request.loss_name
    if name not in LOSSES:
        raise unknown_name("loss", request.loss, LOSSES)
    task = str(LOSSES[name].task)
    given = the_one_for(request.loss, request.C, request.alpha)
    if task == "regression" and (request.class_weight is not None or request.multi_class != "auto"):
        raise InputError(
            f"--class-weight and --multi-class are for classification, not for the loss {name!r}"
        )
    if request.cv is not None and given is not None:
        raise InputError("--cv chooses the weight itself: leave out -C and --alpha, or give a grid")
    if given is not None and not (np.isfinite(given) and given > 0.0):
        option = "-C" if request.C is not None else "--alpha"
        raise InputError(f"{option} must be finite and above 0, got {given:g}")
    return task


def _estimator(request: FitRequest, task: str) -> Estimator:
    common: JsonObject = {"loss": request.loss, **request.settings, **request.constants}
    if task == "classification":
        balance, several = request.class_weight, request.multi_class
        return ADFSClassifier(C=request.C or 1.0, class_weight=balance, multi_class=several, **common)
    return ADFSRegressor(alpha=request.alpha or 1.0, **common)


def _in_options(message: str) -> str:
    """Return a sentence about an estimator's parameters as one about the command line.

    Examples
    --------
    >>> _in_options("inference=True wants l1_ratio=0, multi_class='ovr'; max_iter must be above 0")
    '--summary wants --l1-ratio 0, --multi-class ovr; --max-passes must be above 0'
    """
    for name, option in _OPTIONS.items():
        message = re.sub(rf"\b{name}=(['\"]?)([\w.-]+)\1", rf"{option} \2", message)
        # A word of its own only where it can be no other.
        message = re.sub(rf"\b{name}\b", option, message) if {"_", "="} & set(name) else message
    return message


def _search(request: FitRequest, task: str, estimator: Estimator) -> Search:
    """Return what chooses the penalty's weight by cross-validation."""
    search = ADFSClassifierCV if task == "classification" else ADFSRegressorCV
    grid = (request.grid,) if request.grid else ()
    return search(*grid, cv=request.cv, estimator=estimator)


def _chosen(search: Search) -> JsonObject:
    """Return what cross-validation found, for the summary."""
    name = search._name
    grid = getattr(search, f"{name}s_").tolist()
    tried = [
        {name: value, "score": float(scores.mean()), "scores": scores.tolist()}
        for value, scores in zip(grid, search.scores_.T, strict=True)
    ]
    found = {"folds": len(search.scores_), "score": search._score_name(), "unfinished": search.n_unfinished_}
    return {name: getattr(search, f"{name}_"), "cv": found | {"tried": tried}}


def _nodes(
    request: FitRequest, parts: list[np.ndarray], cluster: Cluster
) -> tuple[int, str | list[np.ndarray]]:
    """Return the number of nodes here and the partition: one file is split, several are one per node."""
    if cluster.size > 1:
        return len(parts), parts
    if len(parts) == 1:
        return count_nodes(
            request.nodes, request.network, request.run.seed
        ), request.partition or "contiguous"
    if request.nodes not in (None, len(parts)):
        raise InputError(
            f"{len(parts)} files make {len(parts)} nodes, one each; leave out --nodes, "
            "or join the files to split them anew"
        )
    if request.partition is not None:
        raise InputError("several files are one per node: --partition is for one file")
    return len(parts), parts


# --------------------------------------------------------------------------- files


def _own_files(cluster: Cluster, request: FitRequest) -> tuple[list[str], list[int], Network]:
    """Return this rank's files, the nodes that they are, and the network of all."""

    def check() -> tuple[list[str], Network]:
        names = file_names(request, cluster.size)
        if request.partition is not None:
            raise InputError("over MPI the files are the partition: leave out --partition")
        count = count_nodes(len(names), request.network, request.run.seed)
        name = "path:1" if count == 1 else request.network
        return names, Network(name, n_nodes=count, seed=request.run.seed)

    names, network = cluster.attempt("at the start", check)
    block = place_together(cluster, network).block(cluster.rank)
    return [names[node] for node in block], block.tolist(), network


def file_names(request: FitRequest, n_ranks: int) -> list[str]:
    """Return the file of each node: several files, or a name with {rank} or {node} in it.

    Examples
    --------
    >>> file_names(FitRequest(("shard-{rank}.svm",)), 2)
    ['shard-0.svm', 'shard-1.svm']
    """
    if len(request.files) > 1:
        if request.nodes not in (None, len(request.files)):
            raise InputError(f"{len(request.files)} files make as many nodes, one each; leave out --nodes")
        names = list(request.files)
    else:
        (name,) = request.files
        if "{node}" in name:
            count = request.nodes or n_ranks
            names = [name.replace("{node}", str(node)) for node in range(count)]
        elif "{rank}" in name:
            if request.nodes not in (None, n_ranks):
                raise InputError(
                    f"{{rank}} makes one node per rank ({n_ranks}): use {{node}} with --nodes {request.nodes}"
                )
            names = [name.replace("{rank}", str(rank)) for rank in range(n_ranks)]
        else:
            raise InputError(
                f"{name} is one file for {n_ranks} ranks, and each reads its own only: "
                "give one file per node, or a name such as shard-{rank}.svm"
            )
    if len(names) < n_ranks:
        raise InputError(
            f"there are {len(names)} files for {n_ranks} ranks; start {len(names)} ranks or fewer"
        )
    return names


def _read(cluster: Cluster, names: Sequence[str], options: ReadOptions) -> list[Table]:
    """Read this process's files; where counting starts and the dimension are settled by all together."""
    why = "to read the files"

    def read() -> list[Table]:
        tables = [read_table(name, options) for name in names]
        if cluster.size > 1 or len(tables) > 1:
            for table in tables:
                if table.n_samples == 0:
                    raise InputError(f"{table.source} has no samples: every node needs some")
        return tables

    raw = cluster.attempt(why, read)
    lowest = min((table.lowest_index for table in raw if table.lowest_index is not None), default=None)
    columns = raw[0].feature_names
    cards = cluster.gather([lowest, list(columns) if columns else None], why)
    if any(names_there != cards[0][1] for _, names_there in cards):
        raise RefusalError("the files of different ranks have different columns; give them the same")
    base = options.index_base
    if base is None:
        base = 0 if any(index == 0 for index, _ in cards) else 1
    width = options.n_features
    if width is None:
        own = cluster.attempt(why, lambda: align(raw, index_base=base)[0].n_features)
        width = max(cluster.gather(own, why))
    return cluster.attempt(why, lambda: align(raw, n_features=width, index_base=base))


def _labels(cluster: Cluster, table: Table, tables: Sequence[Table], task: str, n_samples: int) -> np.ndarray:
    """Return the labels of this process's rows, those of all processes checked against the task."""

    def own() -> np.ndarray:
        if table.y is None:
            raise InputError(f"{table.source} has no labels")
        if task == "regression" and table.y.dtype.kind == "U":
            raise InputError(f"{table.source}: the labels are text, a regression wants numbers")
        return table.y

    y = cluster.attempt("to compare the labels", own)
    if task == "regression":
        return y
    everything = all_labels(cluster, [y])
    whole = "all files together" if cluster.size > 1 else table.source
    cluster.attempt("to compare the labels", lambda: _check_classes(everything, n_samples, whole))
    _say_different_labels(cluster, tables, everything)
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
    if classes.size > max(_MOST_CLASSES, n_samples // 2):
        raise InputError(
            f"{source}: {classes.size} different labels for {n_samples} samples are not classes; "
            "use a regression loss (--loss squared)"
        )


def _say_different_labels(cluster: Cluster, tables: Sequence[Table], classes: np.ndarray) -> None:
    """Say so when files with different labels make more than two classes: one may be numbered wrongly."""
    own = [[Path(table.source).name, np.unique(np.asarray(table.y)).tolist()[:6]] for table in tables]
    cards = [card for part in cluster.gather(own, "to compare the labels") for card in part]
    if classes.size > 2 and len({tuple(found) for _, found in cards}) > 1:
        shown = "; ".join(
            f"{name} has {', '.join(_plain(one) for one in found)}" for name, found in cards[:4]
        )
        cluster.say(f"the files hold different labels, {classes.size} classes together: {shown}")


def _plain(label: object) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


# --------------------------------------------------------------------------- the model


def _summary(
    request: FitRequest, task: str, model: FittedModel, n_samples: int, offset: str | None
) -> JsonObject:
    worst = max(model.runs, key=lambda run: run.gap)
    n_nodes = model.node_coef.shape[1]
    weight = {"alpha": request.alpha or 1.0} if task == "regression" else {"C": request.C or 1.0}
    settings = request.settings
    return {
        "outcome": str(model.outcome),
        "gap": model.gap,
        "absolute_gap": model.absolute_gap,
        "tol": settings["tol"],
        "passes": round(model.passes, 3),
        "seconds": round(model.seconds, 3),
        "n_samples": n_samples,
        **weight,
        **request.constants,
        "intercept": settings["fit_intercept"],
        **({"standardized": True} if settings["standardize"] else {}),
        **({"l1_ratio": settings["l1_ratio"]} if settings["l1_ratio"] else {}),
        **({"offset": offset} if offset is not None else {}),
        "method": worst.method,
        "reason": model.reason,
        "n_nodes": n_nodes,
        "network": request.network if n_nodes > 1 else None,
        "seed": request.run.seed,
        "files": [Path(name).name for name in request.files],
        "adfs": __version__,
    }


def _linear_model(request: FitRequest, model: FittedModel, table: Table, training: JsonObject) -> LinearModel:
    """Return what is written to a file; of the table, only how its columns are named is looked at."""
    classes = None if model.classes is None else _plain_classes(model.classes)
    return LinearModel(
        task="regression" if classes is None else "classification",
        loss=request.loss_name,
        coef=model.coef,
        intercept=model.intercept,
        classes=classes,
        softmax=request.multi_class == "multinomial"
        or (request.multi_class == "auto" and request.loss_name == "logistic" and len(model.coef) > 1),
        feature_names=table.feature_names,
        index_base=table.index_base,
        label=request.read.label,
        training=training,
    )


def _plain_classes(classes: np.ndarray) -> list[str] | list[float]:
    """Return classes as JSON has them, whole numbers without a point."""
    if classes.dtype.kind == "U":
        return [str(name) for name in classes]
    return [int(name) if float(name).is_integer() else float(name) for name in classes]
