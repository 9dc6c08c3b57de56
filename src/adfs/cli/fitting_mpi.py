"""What ``adfs fit`` does in each process of an MPI launcher: every rank reads its own files alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from adfs.cli.fitting import FitRequest, Fitted, _summary, check_labels, make_model, plain_classes, task_of
from adfs.data import ReadOptions, Table
from adfs.data.read import read_table
from adfs.data.table import align
from adfs.errors import InputError
from adfs.estimators.base import check_penalty, positive
from adfs.estimators.classifier import balanced
from adfs.estimators.intercept import append_column
from adfs.estimators.solving import Solution, make_network
from adfs.network import Network
from adfs.problem.losses import get_loss
from adfs.runtimes import Outcome, Run
from adfs.runtimes.mpi import fit_mpi
from adfs.runtimes.mpi.faults import RefusalError, as_one_program
from adfs.runtimes.mpi.startup import READING, check_launcher, place_together, same_everywhere, together
from adfs.runtimes.mpi.team import Team

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["file_names", "fit_files"]


def fit_files(request: FitRequest) -> Fitted | None:
    """Fit with the other processes; the model in rank 0, None in the others."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise InputError(
            "these are several MPI processes and mpi4py is missing: pip install 'adfs[mpi]', "
            "or 'adfs[hpc]' on a site's own MPI"
        ) from None
    check_launcher()
    fitted: list[Fitted | None] = []
    with as_one_program(MPI.COMM_WORLD):
        fitted.append(_fit(MPI.COMM_WORLD, request))
    return fitted[0]


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
            names = [name.replace("{node}", str(node)) for node in range(request.nodes or n_ranks)]
        elif "{rank}" in name:
            if request.nodes not in (None, n_ranks):
                raise InputError(
                    f"{{rank}} makes one node a rank ({n_ranks}): use {{node}} with --nodes {request.nodes}"
                )
            names = [name.replace("{rank}", str(rank)) for rank in range(n_ranks)]
        else:
            raise InputError(
                f"{name} is one file for {n_ranks} ranks, and each reads its own only: "
                "give one file a node, or a name such as shard-{rank}.svm"
            )
    if len(names) < n_ranks:
        raise InputError(
            f"there are {len(names)} files for {n_ranks} ranks; start {len(names)} ranks or fewer"
        )
    return names


def _fit(comm: MPI.Intracomm, request: FitRequest) -> Fitted | None:
    team = Team(comm, request.deadline)
    same_everywhere(team, {"the command line": repr(request)})
    task, names, network = together(team, "at the start", lambda: _check(request, team.size))
    placement = place_together(team, network)
    block = placement.block(team.rank)
    tables = _read(team, [names[node] for node in block], request.read)
    n_samples = sum(team.gather_all(sum(table.n_samples for table in tables), "to count the samples"))
    classes = _classes(team, tables) if task == "classification" else None
    weights = _weights(team, request, tables, classes)
    n = len(names)
    settings: dict[str, Any] = {
        "loss": get_loss(request.loss.replace("_", "-"), **request.constants),
        "nodes": block.tolist(),
        "method": _method(request),
        "parameters": request.parameters,
        "schedule": request.schedule,
        "tau": request.tau,
        "seed": request.seed,
        "tol": request.tol,
        "passes": request.max_passes,
        "progress": request.progress,
        "resume": request.resume,
        "deadline": request.deadline,
    }
    rows = [table.X for table in tables]
    middle = center = None
    if request.intercept and request.loss == "squared":
        middle, center = _means(team, tables, weights, placement.rank_of_node)
        rows = [X - middle for X in rows]
    elif request.intercept:
        rows = [append_column(X, request.intercept_scaling) for X in rows]
    runs: list[Run] = []
    targets = [None] if classes is None else [classes[1]] if len(classes) == 2 else list(classes)
    sigma = (
        1.0 if classes is not None else positive(1.0 if request.alpha is None else request.alpha, "alpha")
    ) / n
    for number, target in enumerate(targets):
        labels = [_labels(table, target, center) for table in tables]
        folder = request.checkpoint
        if folder is not None and len(targets) > 1:
            folder = folder.with_name(f"{folder.name}.{number}")
        shards = list(zip(rows, labels, weights, strict=True))
        left = request.max_seconds
        if left is not None:  # one limit for all classes, told by one rank's clock
            spent = sum(run.seconds for run in runs)
            left = team.gather_all(max(left - spent, 0.0), "to share the time")[0]
        run = fit_mpi(comm, shards, network, sigma=sigma, checkpoint=folder, seconds=left, **settings)
        runs.append(run)
    team.close()
    if team.rank != 0:
        return None
    return _model(request, runs, tables[0], classes, middle, center, n_samples, n)


def _check(request: FitRequest, n_ranks: int) -> tuple[str, list[str], Network]:
    """Check what can be checked without data."""
    task = task_of(request)
    names = file_names(request, n_ranks)
    if request.multi_class != "ovr":
        raise InputError(
            "multinomial models are fitted in one process: run without mpiexec, or with --multi-class ovr"
        )
    check_penalty(request.penalty)
    if request.partition is not None:
        raise InputError("over MPI the files are the partition: leave out --partition")
    positive(request.intercept_scaling, "intercept_scaling")
    network = make_network(request.graph, len(names), request.seed)
    return task, names, Network("path:1") if network is None else network


def _read(team: Team, names: list[str], options: ReadOptions) -> list[Table]:
    """Read this rank's files; where counting starts and the dimension are settled by all ranks together."""
    raw = together(team, "to read the files", lambda: [read_table(name, options) for name in names], READING)
    for table in raw:
        if table.n_samples == 0:
            raise_later = f"{table.source} has no samples: every node needs some"
            break
    else:
        raise_later = ""
    lowest = min((table.lowest_index for table in raw if table.lowest_index is not None), default=None)
    columns = raw[0].feature_names
    cards = team.gather_all([raise_later, lowest, list(columns) if columns else None], "to read the files")
    for words, _, names_there in cards:
        if words:
            raise RefusalError(words)
        if names_there != cards[0][2]:
            raise RefusalError("the files of different ranks have different columns; give them the same")
    base = options.index_base
    if base is None:
        found = [card[1] for card in cards if card[1] is not None]
        base = 0 if any(index == 0 for index in found) else 1
    width = options.n_features
    if width is None:
        own = together(team, "to read the files", lambda: align(raw, index_base=base)[0].n_features)
        width = max(team.gather_all(own, "to read the files"))
    return together(
        team,
        "to read the files",
        lambda: align(raw, n_features=width, index_base=base, ignore_extra=options.ignore_extra),
    )


def _classes(team: Team, tables: list[Table]) -> np.ndarray:
    """Return the labels of all ranks, sorted; a file may hold one of them only."""

    def own() -> list[Any]:
        if any(table.y is None for table in tables):
            raise InputError(f"{tables[0].source} has no labels")
        found: list[Any] = np.unique(np.concatenate([np.asarray(table.y) for table in tables])).tolist()
        return found[:1000]

    cards = team.gather_all(together(team, "to compare the labels", own), "to compare the labels")
    if len({isinstance(label, str) for card in cards for label in card}) > 1:
        raise RefusalError("some of the files have numbers as labels and others text; give them the same")
    union = np.unique(np.array([label for card in cards for label in card]))
    everything = replace(tables[0], y=union, source="all files together")
    return together(team, "to compare the labels", lambda: check_labels(everything, "classification"))


def _weights(
    team: Team, request: FitRequest, tables: list[Table], classes: np.ndarray | None
) -> list[np.ndarray]:
    """Return the samples' weights, the weight of the data in the objective put in."""
    own = [np.ones(table.n_samples) if table.weights is None else table.weights for table in tables]
    if classes is None:
        return own
    if request.class_weight == "balanced":
        labels = [np.asarray(table.y) for table in tables]
        mine = [float(sum(w[y == name].sum() for w, y in zip(own, labels, strict=True))) for name in classes]
        factors = balanced(np.sum(team.gather_all(mine, "to count the classes"), axis=0))
        own = [w * factors[np.searchsorted(classes, y)] for w, y in zip(own, labels, strict=True)]
    # scikit-learn's squared hinge has no ½ and ours has.
    scale = positive(1.0 if request.C is None else request.C, "C")
    if request.loss.replace("_", "-") == "squared-hinge":
        scale *= 2.0
    return [scale * w for w in own]


def _means(
    team: Team, tables: list[Table], weights: list[np.ndarray], rank_of_node: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the weighted means of the rows and of the targets over all ranks."""
    if any(team.gather_all(any(sp.issparse(table.X) for table in tables), "to centre the data")):
        raise RefusalError(
            "the squared loss with an intercept centres the data, which would make sparse rows dense: "
            "use --no-intercept over MPI, or fit in one process"
        )
    sums = [
        np.concatenate([[w.sum(), w @ np.asarray(t.y)], w @ t.X])
        for w, t in zip(weights, tables, strict=True)
    ]
    nodes = np.flatnonzero(rank_of_node == team.rank)
    total = team.add_in_order(np.array(sums), nodes, rank_of_node, "to centre the data")
    return total[2:] / total[0], float(total[1] / total[0])


def _labels(table: Table, target: Any, center: float | None) -> np.ndarray:
    y = np.asarray(table.y)
    if target is not None:
        return np.where(y == target, 1.0, -1.0)
    return y if center is None else y - center


def _method(request: FitRequest) -> str:
    if request.algorithm != "auto":
        return request.algorithm
    return "adfs" if get_loss(request.loss.replace("_", "-"), **request.constants).smooth else "ns-adfs"


def _model(
    request: FitRequest,
    runs: list[Run],
    table: Table,
    classes: np.ndarray | None,
    middle: np.ndarray | None,
    center: float | None,
    n_samples: int,
    n_nodes: int,
) -> Fitted:
    d = table.n_features
    coef = np.array([run.coef[:d] for run in runs])
    if not request.intercept:
        intercept = np.zeros(len(runs))
    elif middle is not None and center is not None:
        intercept = center - coef @ middle
    else:
        intercept = request.intercept_scaling * np.array([run.coef[d] for run in runs])
    solutions = [
        Solution(
            run.coef,
            run.theta,
            None,
            max(run.gap, 0.0),
            float(run.frame["passes"].iloc[-1]),
            run.seconds,
            run.frame,
            run.outcome,
            run.method,
        )
        for run in runs
    ]
    summary = _summary(request, solutions, n_samples, n_nodes)
    summary["ranks"] = [
        {key: value for key, value in rank.items() if key != "waits"} for rank in runs[-1].details["ranks"]
    ]
    if len(runs) == 1:
        history = runs[0].frame
    else:
        assert classes is not None
        named = zip(classes, runs, strict=True)
        history = pd.concat([run.frame.assign(**{"class": name}) for name, run in named], ignore_index=True)
    model = make_model(
        request,
        coef=coef,
        intercept=intercept,
        classes=None if classes is None else plain_classes(classes),
        table=table,
        training=summary | {"files": [Path(name).name for name in request.files]},
    )
    return Fitted(model, history, Outcome(summary["outcome"]), summary, runs[-1].details)
