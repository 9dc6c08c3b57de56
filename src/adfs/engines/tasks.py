"""The task of one process of an engine: it fits the partitions of the process, together with the others."""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state

from adfs.errors import InputError
from adfs.estimators.base import LinearEstimator
from adfs.estimators.cross_validation import PenaltyCV
from adfs.estimators.pipeline import FittedModel
from adfs.problem.samples import sparse
from adfs.runtimes import Cluster, RunOptions
from adfs.runtimes.checkpoints import used_by_one_run

#: X, y, sample weights and offsets of one partition; the last two may be None.
Partition = tuple[Any, Any, Any, Any]


class Fitted(NamedTuple):
    """The attributes of the fitted estimator, the facts about its model, and the warnings of the fit."""

    attributes: dict[str, Any]
    model: FittedModel
    warnings: list[Warning | str]


def require(module: str, sentence: str) -> None:
    """Raise a sentence, into which the error is put, if a module of an engine is missing."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(sentence.format(error)) from None


def base_of(estimator: Any) -> LinearEstimator:
    """Return the estimator that a search fits, or the estimator itself."""
    if not isinstance(estimator, PenaltyCV):
        return estimator  # type: ignore[no-any-return]
    base: LinearEstimator = estimator._plain() if estimator.estimator is None else estimator.estimator
    return base


def without_cluster(estimator: Any) -> Any:
    """Return a new estimator of the same parameters that can go to other processes.

    Parameters that depend on how rows are spread over processes are refused: here nodes are partitions.
    """
    base = base_of(estimator)
    if base.warm_start:
        raise InputError("{warm_start} needs the rows in this process: leave it out", warm_start=True)
    if not (isinstance(base.partition, str) and base.partition == "contiguous"):
        raise InputError("{partition} is that of the collection: leave it out", partition=None)
    # Parameters alone travel: what an earlier fit has left may be large, and is not needed.
    alone = type(base)(**base.get_params(deep=False) | {"cluster": None})
    if base is estimator:
        return alone
    # A splitter would list rows of the whole collection, which no process has.
    if not isinstance(estimator.cv, int | np.integer):
        raise InputError(
            f"cv must be a number of folds, which each node makes of its own rows, got {estimator.cv!r}"
        )
    return type(estimator)(**estimator.get_params(deep=False) | {"estimator": alone})


def run_options(estimator: Any, **more: Any) -> RunOptions:
    """Return the options of the runs of a fit; this program draws the seed for all processes."""
    seed = check_random_state(base_of(estimator).random_state).randint(2**31 - 1)
    return RunOptions(seed=int(seed), progress=False, **more)


def predictor_of(model: Any) -> Any:
    """Return a fitted estimator without its cluster, which predicts alone in any process.

    It is a copy, because the user's object keeps its cluster; of a search, a copy of its best estimator.
    """
    fitted = copy.copy(model.best_estimator_ if isinstance(model, PenaltyCV) else model)
    fitted.cluster = None
    return fitted


def predict(model: Any, method: str, rows: Any, offset: Any) -> np.ndarray:
    """Return the result of a method of a fitted estimator for some rows."""
    return np.asarray(getattr(model, method)(rows, offset))


def fit_partitions(
    estimator: Any, parts: Sequence[Partition], nodes: Sequence[int], cluster: Cluster, options: RunOptions
) -> Fitted | None:
    """Fit the partitions of this process as the nodes of their numbers; process 0 returns the result."""
    rows, y, weights, offset = (_joined(columns) for columns in zip(*parts, strict=True))
    # An estimator takes one matrix: where the partitions end in it tells the nodes of this process.
    ends = np.cumsum([len(part[1]) for part in parts])
    base, parameters = base_of(estimator), estimator.get_params(deep=False)
    given = {"n_nodes": base.n_nodes, "partition": base.partition, "cluster": None}
    base.set_params(n_nodes=len(parts), partition=np.split(np.arange(ends[-1]), ends[:-1]), cluster=cluster)
    with contextlib.ExitStack() as held:
        # The warnings of process 0 are shown in the user's program; those of others would repeat them.
        noted = held.enter_context(warnings.catch_warnings(record=True)) if cluster.rank == 0 else []
        held.enter_context(cluster)
        if options.checkpoint is not None:  # two fits must not write the same one
            held.enter_context(used_by_one_run(cluster, options.checkpoint))
        model = estimator._fit(rows, y, weights, offset, options, nodes)
    # All processes end with the same model, so one of them sends it.
    if cluster.rank > 0:
        return None
    # The user's estimator keeps its own parameters; the best one of a search gets them back.
    found = {name: value for name, value in vars(estimator).items() if name not in parameters}
    if "best_estimator_" in found:
        found["best_estimator_"].set_params(**given)
    # The runs hold this process's dual variables, which nobody needs.
    return Fitted(found, replace(model, runs=[], end=None), [note.message for note in noted])


def take_fitted(estimator: Any, fitted: Fitted) -> FittedModel:
    """Give the estimator of the user's program the attributes of the fitted one; return the model's facts."""
    if "best_estimator_" in fitted.attributes:
        # The best estimator travelled without the cluster, which it needs to predict for collections.
        fitted.attributes["best_estimator_"].set_params(cluster=base_of(estimator).cluster)
    vars(estimator).update(fitted.attributes)
    for note in fitted.warnings:
        warnings.warn(note, stacklevel=4)
    return fitted.model


def _joined(columns: Sequence[Any]) -> Any:
    """Return the rows of several partitions one below the other; those of one are not copied."""
    first = columns[0]
    if first is None or len(columns) == 1:
        return first
    if sparse(first):
        return sp.vstack(columns, format="csr")
    # A dataframe keeps the names of its columns, which the fitted model remembers.
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat(columns)
    return np.concatenate(columns)
