"""A fit from files: they are read, an estimator is fitted, and the model and its summary are made.

One process reads all files. If an MPI launcher started several, or they are peers over TCP, every rank reads
only its own files, and the ranks fit together: the same function, with the ranks as the cluster of the
estimator.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adfs.cli import options
from adfs.cli.app import handling_sigterm, sigterm_as_ctrl_c
from adfs.data import LinearModel, ReadOptions, Table, align, encode_tables, read_raw, stack
from adfs.data.frames import folder_content
from adfs.data.table import labels_for
from adfs.errors import AdfsError, ExitCode, InputError, unknown_name
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from adfs.estimators.base import count_nodes
from adfs.estimators.model_file import linear_model, plain_classes, search_facts
from adfs.estimators.pipeline import FittedModel
from adfs.files import JsonObject
from adfs.launching import launched_by_mpi, read_hosts
from adfs.network import Network
from adfs.problem.losses import LOSSES
from adfs.runtimes import Cluster, OneProcess, Outcome, RunOptions
from adfs.runtimes.checkpoints import tell_ending, used_by_one_run
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.joint_problem import all_labels, place_together

Estimator = ADFSClassifier | ADFSRegressor
Search = ADFSClassifierCV | ADFSRegressorCV


@dataclass(frozen=True)
class FitRequest:
    """The files and the options of ``adfs fit``."""

    files: tuple[str, ...]
    model: options.ModelOptions = field(default_factory=options.ModelOptions)
    search: options.SearchOptions = field(default_factory=options.SearchOptions)
    reading: options.FitFileOptions = field(default_factory=options.FitFileOptions)
    nodes: options.FitNodeOptions = field(default_factory=options.FitNodeOptions)
    limits: options.FitRunOptions = field(default_factory=options.FitRunOptions)

    def by_option(self) -> JsonObject:
        """Return the values by their options, so that ranks can report the option in which they differ."""
        names = options.option_names()
        records = self.model, self.search, self.reading, self.nodes, self.limits
        values = {names[name]: value for record in records for name, value in vars(record).items()}
        # Where the list of peers is may differ, and the rank does.
        return {name: value for name, value in values.items() if name not in ("--peers", "--rank")} | {
            "FILE": self.files
        }


@dataclass(frozen=True)
class Fitted:
    """The results: the model, the outcome, the summary, the ranks' account of time, and the estimator."""

    model: LinearModel
    outcome: Outcome
    summary: JsonObject
    account: JsonObject
    estimator: Estimator


#: Writes the results, reports how the fit ended, and returns the exit code.
Finish = Callable[[Fitted], int]


def fit_files(request: FitRequest, finish: Finish) -> int:
    """Read the files, fit, call ``finish`` in process 0, and return its exit code in every process.

    One file is split over the nodes; several files are one per node. Of several processes rank 0 writes the
    model, then the marker in the checkpoint folder, both before the others end.
    """
    errors: list[Exception] = []
    peers, rank, deadline = request.nodes.peers, request.nodes.rank, request.nodes.deadline
    if peers is not None and rank is not None:
        from adfs.runtimes.tcp import TcpPeers

        hosts = read_hosts(peers)
        code = _fit(
            TcpPeers(hosts.addresses, rank, deadline=deadline, tls=hosts.tls), request, finish, errors
        )
    elif not launched_by_mpi():
        code = _fit(OneProcess(), request, finish, errors)
    else:
        with options.all_ranks(deadline) as world:
            from adfs.runtimes.mpi import MpiRanks

            code = _fit(MpiRanks(world, deadline=deadline), request, finish, errors)
    if errors:
        raise errors[0]
    return code


def _fit(cluster: Cluster, request: FitRequest, finish: Finish, errors: list[Exception]) -> int:
    """Fit, and return the exit code of ``finish`` in process 0; its error, if any, goes to ``errors``."""
    with sigterm_as_ctrl_c() as signals, cluster, ExitStack() as held:
        cluster.same(request.by_option)
        # Wrong options are reported before any file is read, on all ranks alike.
        estimator, fitter = cluster.attempt("at the start", partial(_estimator, request))
        tables, nodes, network = _read_files(cluster, request)
        # From here the rows of this process are one table; each file in it is a node.
        table, parts = stack(tables)
        n_samples = sum(cluster.allgather(table.n_samples))
        _check_labels(cluster, table, tables, request.model.loss, n_samples)
        # The estimator gets the nodes of this process, and the other processes as its cluster.
        estimator.set_params(network=network, cluster=cluster)
        if len(parts) > 1 or nodes is not None:
            estimator.set_params(n_nodes=len(parts), partition=parts)
        # Two runs must not write the same checkpoint.
        if request.limits.checkpoint is not None:
            held.enter_context(used_by_one_run(cluster, request.limits.checkpoint))
        run = RunOptions(**dataclasses.asdict(request.limits))
        try:
            model = fitter._fit(table.X, table.y, table.weights, table.offset, run, nodes)
        except InputError as error:
            error.args = (error.with_options(options.option_names()),)
            raise
        fitted = _results(request, fitter, model, table)
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
        return ExitCode.TERMINATED if codes[0] == ExitCode.INTERRUPTED and any(signalled) else int(codes[0])


# --------------------------------------------------------------------------- the estimator


def _estimator(request: FitRequest) -> tuple[Estimator, Estimator | Search]:
    """Return the estimator of the loss, and what is fitted: itself, or a search for its weight."""
    model, search, nodes = request.model, request.search, request.nodes
    if model.loss not in LOSSES:
        raise unknown_name("loss", model.loss, LOSSES)
    regression = LOSSES[model.loss].task == "regression"
    if regression and (model.class_weight is not None or model.multi_class != "auto"):
        raise InputError(
            f"--class-weight and --multi-class are for classification, not for the loss {model.loss!r}"
        )
    # C for classes, alpha for numbers; 1 if neither is given.
    weight = options.penalty_weight(model.loss, model)
    if search.cv is not None and weight is not None:
        raise InputError("--cv chooses the weight itself: leave out -C and --alpha, or give a grid")
    # The fields of the records are parameters of the estimators; each kind leaves out those of the other.
    kind = ADFSRegressor if regression else ADFSClassifier
    given: dict[str, Any] = dataclasses.asdict(model) | dataclasses.asdict(nodes)
    given["C"] = given["alpha"] = 1.0 if weight is None else weight
    given["partition"] = nodes.partition or "contiguous"
    if model.tau not in (None, "measure"):
        try:
            given["tau"] = float(model.tau)
        except ValueError:
            raise InputError(f"--tau is a number or measure, got {model.tau!r}") from None
    estimator: Estimator = kind(**{name: given[name] for name in kind._get_param_names() if name in given})
    # Wrong values are reported here, by their options: later, processes exchange only the text of an error.
    try:
        estimator._spec()
    except InputError as error:
        raise InputError(error.with_options(options.option_names())) from None
    if search.cv is None:
        return estimator, estimator
    searches, grid = ADFSRegressorCV if regression else ADFSClassifierCV, _grid(model.loss, search)
    ratios = search.l1_ratios and options.read_numbers("--l1-ratios", search.l1_ratios, float, "0.1,0.5,1")
    scoring = search.scoring
    return estimator, searches(*grid, cv=search.cv, l1_ratios=ratios, scoring=scoring, estimator=estimator)


def _grid(loss: str, search: options.SearchOptions) -> list[list[float] | int]:
    """Return the grid that cross-validation tries, or its size, in a list; the list is empty for neither."""
    # The grid of the other task is an error, as -C for a regression is.
    text = options.penalty_weight(loss, search, ("C_grid", "alpha_grid"))
    if text is None:
        return []
    if text.isdigit() and int(text) > 0:
        return [int(text)]
    option = "--C-grid" if search.C_grid is not None else "--alpha-grid"
    return [options.read_numbers(option, text, float, "0.01,0.1,1")]


# --------------------------------------------------------------------------- files


def _read_files(cluster: Cluster, request: FitRequest) -> tuple[list[Table], list[int] | None, str | Network]:
    """Return the tables of this process's files, the nodes that they are, and the network.

    In one process the nodes are None, and the network is the one that was asked for.
    """
    names, network = cluster.attempt("at the start", partial(_files_of_nodes, request, cluster.size))
    if network is None:
        return _read(cluster, [(name, None) for name in names], request.reading), None, request.nodes.network
    # The placement puts neighbouring nodes into one process where it can.
    nodes = place_together(cluster, network).block(cluster.rank).tolist()
    # The nodes have a file each, or a part of the rows of a folder, which all ranks must see alike.
    folder = Path(names[0]) if len(request.files) == 1 and len(set(names)) == 1 else None
    if folder is not None:
        content = cluster.attempt("to read the folder", partial(folder_content, folder))
        cluster.same(lambda: content)
    parts = [(names[node], None if folder is None else (node, len(names))) for node in nodes]
    return _read(cluster, parts, request.reading), nodes, network


def _files_of_nodes(request: FitRequest, n_ranks: int) -> tuple[Sequence[str], Network | None]:
    """Return the file of each node and their network; in one process all files, and None for the network.

    The files of several ranks are several names, one with {rank} or {node} in it, or one folder of parquet
    files, of which each node reads a part.
    """
    files, n_nodes = request.files, request.nodes.n_nodes
    if len(files) > 1 and n_nodes not in (None, len(files)):
        raise InputError(
            f"{len(files)} files make {len(files)} nodes, one each; leave out --nodes, "
            "or join the files to split them anew"
        )
    if request.nodes.partition is not None and (len(files) > 1 or n_ranks > 1):
        raise InputError("several files are one per node: --partition is for one file")
    if files.count("-") > 1 or ("-" in files and n_ranks > 1):
        raise InputError("standard input (-) is one file for one process; give each node a file of its own")
    if n_ranks == 1:
        return files, None
    # Several files are the nodes, in the order of the command line.
    if len(files) > 1:
        names = list(files)
    elif "{node}" in files[0]:
        names = [files[0].replace("{node}", str(node)) for node in range(n_nodes or n_ranks)]
    elif "{rank}" in files[0]:
        if n_nodes not in (None, n_ranks):
            raise InputError(
                f"{{rank}} makes one node per rank ({n_ranks}): use {{node}} with --nodes {n_nodes}"
            )
        names = [files[0].replace("{rank}", str(rank)) for rank in range(n_ranks)]
    elif Path(files[0]).is_dir():
        names = [files[0]] * (n_nodes or n_ranks)
    else:
        raise InputError(
            f"{files[0]} is one file for {n_ranks} ranks, and each reads its own only: "
            "give one file per node, a name such as shard-{rank}.svm, or a folder of parquet files"
        )
    if len(names) < n_ranks:
        raise InputError(
            f"there are {len(names)} files for {n_ranks} ranks; start {len(names)} ranks or fewer"
        )
    seed, asked = request.limits.seed, request.nodes.network
    return names, Network(asked, n_nodes=count_nodes(len(names), asked, seed), seed=seed)


def _read(
    cluster: Cluster, names: Sequence[tuple[str, tuple[int, int] | None]], reading: options.FitFileOptions
) -> list[Table]:
    """Read the files of this process, or parts of a folder; all processes agree on the columns."""
    why = "to read the files"

    # An error of one rank is raised on all of them.
    asked = cluster.attempt(why, lambda: ReadOptions(**dataclasses.asdict(reading)))
    each = [(name, dataclasses.replace(asked, part=part)) for name, part in names]
    files = cluster.attempt(why, lambda: [read_raw(name, how) for name, how in each])
    try:
        raw = encode_tables(files, asked, cluster.allgather)
    except InputError as error:  # the same in all processes
        raise RefusalError(str(error)) from None
    for note in [] if raw[0].encoding is None else raw[0].encoding.notes:
        cluster.say(note)
    lowest = min((table.lowest_index for table in raw if table.lowest_index is not None), default=None)
    columns = raw[0].feature_names
    headers = cluster.allgather([lowest, list(columns) if columns else None])
    if any(names_there != headers[0][1] for _, names_there in headers):
        raise RefusalError("the files of different ranks have different columns; give them the same")
    # Indices count from 0 as soon as the file of one rank has an index 0.
    base = reading.index_base
    if base is None:
        base = 0 if any(index == 0 for index, _ in headers) else 1
    # First the tables of this process get one width, then those of all processes.
    tables = cluster.attempt(why, partial(align, raw, n_features=reading.n_features, index_base=base))
    width = max(cluster.allgather(tables[0].n_features))
    return cluster.attempt(why, partial(align, tables, n_features=width))


def _check_labels(cluster: Cluster, table: Table, tables: Sequence[Table], loss: str, n_samples: int) -> None:
    """Raise unless the labels of all processes fit the loss; warn if they differ from file to file."""
    assert table.y is not None
    why = "to compare the labels"
    if LOSSES[loss].task == "regression":
        cluster.attempt(why, partial(labels_for, table.y, "regression", loss, table.source))
        return
    classes = all_labels(cluster, [table.y])
    source = table.source if table.n_samples == n_samples else "all files together"
    cluster.attempt(why, partial(_check_classes, classes, n_samples, source))
    # More than two classes, of which some files lack some: one of the files may be wrong.
    here = [[Path(one.source).name, np.unique(np.asarray(one.y)).tolist()[:6]] for one in tables]
    everywhere = [entry for part in cluster.allgather(here) for entry in part]
    if classes.size > 2 and len({tuple(labels) for _, labels in everywhere}) > 1:
        shown = "; ".join(
            f"{name} has {', '.join(map(str, plain_classes(np.array(labels))))}"
            for name, labels in everywhere[:4]
        )
        cluster.say(f"the files hold different labels, {classes.size} classes together: {shown}")


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


# --------------------------------------------------------------------------- the results


def _results(request: FitRequest, fitter: Estimator | Search, model: FittedModel, table: Table) -> Fitted:
    """Return the model as a file holds it, and everything that is reported about the fit."""
    # Facts about the fit and the search, then about the files, then about the ranks.
    estimator = fitter if isinstance(fitter, Estimator) else fitter.best_estimator_
    summary = estimator._training | ({} if fitter is estimator else search_facts(fitter))
    summary |= {
        **({"offset": table.offset_name} if table.offset_name is not None else {}),
        "network": request.nodes.network if summary["n_nodes"] > 1 else None,
        "seed": request.limits.seed,
        "files": [Path(name).name for name in request.files],
    }
    if table.feature_names is not None:
        estimator.feature_names_in_ = np.array(table.feature_names, dtype=object)
    account = model.runs[-1].details
    if len(account.get("ranks", ())) > 1:
        summary["ranks"] = [
            {key: value for key, value in rank.items() if key != "waits"} for rank in account["ranks"]
        ]
    own = {"index_base": table.index_base, "label": request.reading.label, "encoding": table.encoding}
    return Fitted(linear_model(estimator, summary, **own), model.outcome, summary, account, estimator)
