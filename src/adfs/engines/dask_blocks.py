"""Blocks of Dask collections, and what a fitted estimator does with them lazily."""

from __future__ import annotations

from typing import Any

import numpy as np

from adfs.engines.tasks import predict
from adfs.errors import InputError


def blocks_of(X: Any, *others: Any) -> list[tuple[Any, ...]]:
    """Return the lazy blocks of X and of collections of as many rows, block by block; None stays None."""
    import dask.array as da

    names, columns = ("y", "sample_weight", "offset"), [_rows(X, "X")]
    for name, values in zip(names, others, strict=True):
        both = isinstance(values, da.Array) and isinstance(X, da.Array)
        if both and values.shape[0] == X.shape[0]:  # neither is unknown
            # Arrays know how many rows a chunk has, so one can be cut like the other. The partitions of
            # dataframes do not: they are taken as they are, and the workers compare lengths.
            values = values.rechunk({0: X.chunks[0]})
        columns.append([None] * len(columns[0]) if values is None else _rows(values, name))
        if len(columns[-1]) != len(columns[0]):
            raise InputError(
                f"{name} has {len(columns[-1])} partitions and X has {len(columns[0])}; repartition one of "
                "them so that both are cut at the same rows"
            )
    return list(zip(*columns, strict=True))


def _rows(collection: Any, name: str) -> list[Any]:
    """Return the blocks of rows of a collection, each with all columns."""
    import dask.array as da

    if isinstance(collection, da.Array):
        # A node needs whole rows: columns that are cut apart are joined first.
        whole = collection.rechunk({1: -1}) if collection.ndim > 1 else collection
        return list(whole.to_delayed(optimize_graph=False).ravel())
    if not hasattr(collection, "to_delayed"):
        raise InputError(
            f"{name} must be a dask array or dataframe, as X is, got {type(collection).__name__}"
        )
    # Unoptimised graphs of X and y have the same keys: what both need is computed once.
    return list(collection.to_delayed(optimize_graph=False))


def lazy_call(name: str, estimator: Any, X: Any, offset: Any = None) -> Any:
    """Return the lazy result of a method of a fitted estimator, an array of as many blocks as X has."""
    import dask
    import dask.array as da

    # The model is one value of the graph, which all blocks share; Dask need not look into it.
    model = dask.delayed(estimator, pure=False, traverse=False)
    blocks = blocks_of(X, None, None, offset)
    # A few rows tell the shape and the type of the result.
    array = isinstance(X, da.Array)
    probe = predict(estimator, name, np.zeros((1, X.shape[1]), X.dtype) if array else X._meta_nonempty, None)
    # A dataframe does not know the lengths of its partitions, and then the result does not either.
    sizes = X.chunks[0] if array else [np.nan] * len(blocks)
    call = dask.delayed(predict, pure=True)
    results = [
        da.from_delayed(call(model, name, rows, shift), (size, *probe.shape[1:]), probe.dtype)
        for size, (rows, _, _, shift) in zip(sizes, blocks, strict=True)
    ]
    return da.concatenate(results)


def lazy_score(estimator: Any, X: Any, y: Any, sample_weight: Any = None, offset: Any = None) -> Any:
    """Return the accuracy, R² or D² of a model as a lazy number, by sums over the blocks."""
    import dask
    import dask.array as da

    model = dask.delayed(estimator, pure=False, traverse=False)
    blocks = blocks_of(X, y, sample_weight, offset)
    # The blocks are added in their order: the score does not depend on which worker is first.
    total = dask.delayed(sum, pure=True)
    # R² and D² compare with the mean of all targets, which needs a pass of its own over them.
    mean = None
    if not hasattr(estimator, "classes_"):
        sums = dask.delayed(_target_sums, pure=True)
        mean = total([sums(labels, weights) for _, labels, weights, _ in blocks])
    errors = dask.delayed(_errors, pure=True)
    found = total([errors(model, mean, *block) for block in blocks])
    return da.from_delayed(dask.delayed(_share_explained, pure=True)(found), (), np.float64)


def _columns(y: Any, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and weights as arrays of one column."""
    labels = np.asarray(y).ravel()
    return labels, np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64).ravel()


def _target_sums(y: Any, weights: Any) -> np.ndarray:
    """Return the sum of the weights, and of the targets times their weights."""
    targets, masses = _columns(y, weights)
    return np.array([masses.sum(), masses @ targets])


def _errors(model: Any, mean: Any, rows: Any, y: Any, weights: Any, offset: Any) -> np.ndarray:
    """Return the error of a block without a model, and with it.

    For classes it is the weight of the wrong ones, otherwise the deviance from the mean or the prediction.
    """
    labels, masses = _columns(y, weights)
    predicted = model.predict(rows, offset)
    if mean is None:
        return np.array([masses.sum(), masses @ (predicted != labels)])
    loss = model._loss()
    return np.array([masses @ loss.unit_deviances(labels, b) for b in (mean[1] / mean[0], predicted)])


def _share_explained(errors: np.ndarray) -> np.float64:
    """Return the share of the error without a model that a model explains."""
    # Targets that are all alike leave nothing to explain: the score is 1 without an error, and 0 otherwise.
    return np.float64(1.0 - errors[1] / errors[0]) if errors[0] > 0.0 else np.float64(errors[1] <= 0.0)
