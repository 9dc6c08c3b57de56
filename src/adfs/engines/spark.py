"""Fits where the partitions of a Spark dataframe are: barrier tasks, linked by `adfs.TcpPeers`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from adfs._version import __version__
from adfs.engines.tasks import (
    Partition,
    fit_partitions,
    predict,
    predictor_of,
    require,
    run_options,
    take_fitted,
    without_cluster,
)
from adfs.errors import AdfsError, InputError, unknown_name
from adfs.estimators.base import LinearEstimator
from adfs.estimators.cross_validation import PenaltyCV
from adfs.runtimes import RunOptions
from adfs.runtimes.cluster import RefusalError
from adfs.runtimes.tcp import TcpPeers
from adfs.runtimes.waiting import RankLostError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Estimator = TypeVar("Estimator", bound=LinearEstimator | PenaltyCV[Any])

_NODE = "adfs node"  # the column with the number of a row's partition
_NEEDS = "adfs.spark needs pyspark ({}): install adfs with the extra spark"


def fit(
    estimator: Estimator,
    dataframe: DataFrame,
    features: Sequence[str],
    label: str = "y",
    weight: str | None = None,
    *,
    offset: str | None = None,
    n_tasks: int | None = None,
    deadline: float = 60.0,
    tls: Any = None,
) -> Estimator:
    """Fit an estimator to a Spark dataframe, in a barrier stage.

    The partitions that have rows are the nodes, in their order. A task holds one of them or more: the bits do
    not depend on the number of tasks, and are those of a fit in one process with the same partitions.

    Parameters
    ----------
    estimator : ADFSClassifier, ADFSRegressor, ADFSClassifierCV or ADFSRegressorCV
    dataframe : pyspark.sql.DataFrame
    features : list of str
        The columns of numbers.
    label : str
    weight, offset : str, optional
        The columns of the sample weights and of the offsets.
    n_tasks : int, optional
        The tasks of the stage, which run at once; left out, Spark's default parallelism. One per partition is
        enough.
    deadline : float
        Seconds that one task waits for another.
    tls : optional
        The certificates of the links, as for `adfs.TcpPeers`: files on every executor.

    Returns
    -------
    estimator
        The one that was given, fitted, in this program.

    Examples
    --------
    ::

        model = adfs.spark.fit(adfs.ADFSClassifier(), dataframe, features=["age", "size"], label="ill")
        predicted = adfs.spark.transform(model, dataframe)
    """
    require("pyspark.sql", _NEEDS)
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.sql import functions

    names = list(features)
    if not names:
        raise InputError("features names no column: give the columns of numbers to fit to")
    others = {"label": label, "weight": weight, "offset": offset}
    others = {part: name for part, name in others.items() if name is not None}
    for name in [*names, *others.values()]:
        if name not in dataframe.columns:
            raise unknown_name("column", name, dataframe.columns)
    plain, options = without_cluster(estimator), run_options(estimator)
    links = {"deadline": deadline, "tls": tls}

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        result = _fit_rank(plain, options, batches, names, links)
        # A task can only return rows: the result, or an error, is the bytes of one row.
        if result is not None:
            yield pyarrow.record_batch({"result": [CloudPickleSerializer().dumps(result)]})

    # As one array the numbers of a row lie side by side, which takes Spark less time than a column for each.
    row = functions.array(*(functions.col(f"`{name}`").cast("double") for name in names))
    columns = [functions.col(f"`{name}`").alias(part) for part, name in others.items()]
    # The number of a partition is taken before several are put together into one task. A shuffle does that:
    # a task of a barrier stage cannot read several partitions.
    chosen = dataframe.select(row.alias("row"), *columns, functions.spark_partition_id().alias(_NODE))
    count = n_tasks or dataframe.sparkSession.sparkContext.defaultParallelism
    if dataframe.rdd.getNumPartitions() > count:
        chosen = chosen.repartitionByRange(count, _NODE)
    # A barrier stage starts all tasks at once, so that no rank waits for one that has no core yet.
    rows = chosen.mapInArrow(task, "result binary", barrier=True).collect()
    if not rows:
        raise InputError("the dataframe has no rows")
    results = [CloudPickleSerializer().loads(bytes(row["result"])) for row in rows]
    # An error of the fit comes back as a result: Spark would repeat a stage whose task raised it.
    for result in results:
        if isinstance(result, AdfsError):
            raise result
    (fitted,) = results
    estimator._report(take_fitted(estimator, fitted))
    return estimator


def transform(
    model: Any,
    dataframe: DataFrame,
    features: Sequence[str] | None = None,
    *,
    method: str = "predict",
    column: str = "prediction",
    offset: str | None = None,
) -> DataFrame:
    """Return a dataframe with one more column: the predictions of a fitted model.

    Parameters
    ----------
    model : fitted estimator
    dataframe : pyspark.sql.DataFrame
    features : list of str, optional
        Left out, the columns that the model was fitted to.
    method : str
        ``"predict"``, ``"predict_proba"`` or ``"decision_function"``; several numbers per row are an array.
    column : str
        The name of the new column.
    offset : str, optional
        The column of the offsets.
    """
    require("pyspark.sql", _NEEDS)
    from pyspark.sql import functions

    check_is_fitted(model)
    names = list(getattr(model, "feature_names_in_", []) if features is None else features)
    given = [*names, *([] if offset is None else [offset])]
    for name in given:
        if name not in dataframe.columns:
            raise unknown_name("column", name, dataframe.columns)
    if len(names) != model.n_features_in_:
        raise InputError(
            f"the model was fitted to {model.n_features_in_} columns: give their names as features"
        )
    # The executors predict block by block, each alone: the cluster of the fit stays here.
    alone = predictor_of(model)
    # One row tells the type of the result.
    import pandas

    zero = pandas.DataFrame(np.zeros((1, len(names))), columns=names)
    probe = predict(alone, method, zero, None)
    kind = {"f": "double", "i": "bigint", "u": "bigint", "b": "boolean"}.get(probe.dtype.kind, "string")

    def values(*series: Any) -> Any:
        rows = pandas.concat(series[: len(names)], axis=1, keys=names)
        found = predict(alone, method, rows, None if offset is None else series[-1].to_numpy())
        return pandas.Series(list(found) if found.ndim > 1 else found)

    values.__annotations__ = dict.fromkeys(("series", "return"), pandas.Series)  # which Spark reads
    function = functions.pandas_udf(values, kind if probe.ndim == 1 else f"array<{kind}>")
    inputs = [functions.col(f"`{name}`").cast("double") for name in given]
    return dataframe.withColumn(column, function(*inputs))


# --------------------------------------------------------------------------- in the tasks


def _partitions(batches: Iterator[pa.RecordBatch], features: list[str]) -> dict[int, Partition]:
    """Return the rows of this task, by the number of their partition."""
    import pandas
    import pyarrow.compute

    # The fit needs all rows of the task at once, so the batches are not worked off one by one.
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return {}
    table = pyarrow.Table.from_batches(held)
    X = pyarrow.compute.list_flatten(table["row"]).to_numpy().reshape(table.num_rows, len(features))
    parts: dict[str, Any] = {}
    for name in ("label", "weight", "offset"):
        values = table[name].to_numpy() if name in table.column_names else None
        # Text comes as Python objects. Missing labels are refused later: as text they would be a class.
        if values is not None and values.dtype == object and not table[name].null_count:
            values = values.astype(str)
        parts[name] = values
    # The rows of a partition follow each other.
    numbers = table.column(_NODE).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), numbers.size]
    found: dict[int, Partition] = {}
    for first, last in pairwise(cuts):
        y, weights, offset = (None if values is None else values[first:last] for values in parts.values())
        # Without a copy, which pandas would turn into columns again.
        rows = pandas.DataFrame(X[first:last], columns=features, copy=False)
        found[int(numbers[first])] = rows, y, weights, offset
    return found


def _fit_rank(
    estimator: Any,
    options: RunOptions,
    batches: Iterator[pa.RecordBatch],
    features: list[str],
    links: dict[str, Any],
) -> Any:
    """Be one rank of a fit; return the result of rank 0, an error that all tasks have, or None."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    host = context.getTaskInfos()[context.partitionId()].address.rpartition(":")[0]
    # The ports are open before the others learn their addresses: none of them finds one closed. One is for
    # the meeting of all tasks, and one for the fit of those with rows.
    listeners = [socket.create_server((host, 0)) for _ in range(2)]
    card = [__version__, *(f"{host}:{listener.getsockname()[1]}" for listener in listeners)]
    with ThreadPoolExecutor(1) as thread:
        # Spark looks once in a second whether all tasks have sent their cards. The rows are read meanwhile.
        gathered = thread.submit(context.allGather, json.dumps(card))
        held = _partitions(batches, features)
        cards = [json.loads(text) for text in gathered.result()]
    versions = sorted({version for version, *_ in cards})
    if len(versions) > 1:
        return RefusalError(f"the executors have different versions of adfs: {', '.join(versions)}")
    rank = cards.index(card)
    try:
        addresses = [first for _, first, _ in cards]
        with TcpPeers(addresses, rank, listener=listeners[0], **links) as everyone:
            nodes_of = everyone.allgather(sorted(held))
        # Those without rows take no part.
        fitting = [task for task, nodes in enumerate(nodes_of) if nodes]
        if not held:
            return None
        addresses, rank = [cards[task][2] for task in fitting], fitting.index(rank)
        ranks = TcpPeers(addresses, rank, listener=listeners[1], **links)
        # Every task makes the same list, in which the place of a partition is the number of its node.
        nodes = sorted(node for theirs in nodes_of for node in theirs)
        own = [nodes.index(node) for node in sorted(held)]
        return fit_partitions(estimator, [held[node] for node in sorted(held)], own, ranks, options)
    except RankLostError:  # Spark starts the stage again
        raise
    except AdfsError as error:
        # Where all tasks have the same error, rank 0 says it for all; a task says one that it alone has.
        return error if rank == 0 or getattr(error, "own", False) else None
    finally:
        for listener in listeners:
            listener.close()
