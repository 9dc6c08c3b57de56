"""Fitted estimators as model files: the one place where such a file is put together.

``save`` of the estimators and ``adfs fit --out`` write the same file, which `adfs.load` and ``adfs predict``
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from adfs.data.model import LinearModel
from adfs.errors import InputError
from adfs.files import AnyPath, JsonObject
from adfs.problem.samples import sparse

if TYPE_CHECKING:
    from adfs.estimators.base import LinearEstimator


class WithModelFile:
    """The part of an estimator that is about its file."""

    _training: JsonObject

    def save(self, path: AnyPath) -> None:
        """Write the model to a JSON file, as ``adfs fit --out`` does; `adfs.load` reads it.

        With a cluster process 0 writes. Nobody waits for it, so process 0 may also call this alone.
        """
        check_is_fitted(self)
        self._write(path, self._training)

    def _write(self: Any, path: AnyPath, training: JsonObject) -> None:
        if self.cluster is None or self.cluster.rank == 0:
            linear_model(self, training).save(Path(path))


def search_facts(search: Any) -> JsonObject:
    """Return the results of cross-validation in the same form."""
    # "C" for classifiers, "alpha" for regressors.
    name, folds = search._name, len(search.scores_)
    ratios = [{}] if search.l1_ratios is None else [{"l1_ratio": float(one)} for one in search.l1_ratios]
    scores = search.scores_.reshape(folds, len(ratios), -1)
    grids = np.broadcast_to(getattr(search, f"{name}s_"), scores.shape[1:])
    tried = [
        {name: value, **ratio, "score": float(own.mean()), "scores": own.tolist()}
        for ratio, grid, rows in zip(ratios, grids.tolist(), np.moveaxis(scores, 0, 2), strict=True)
        for value, own in zip(grid, rows, strict=True)
    ]
    facts = {
        "folds": folds,
        "score": search.scoring or search.best_estimator_._loss().score,
        "unfinished": search.n_unfinished_,
    }
    return {name: getattr(search, f"{name}_"), "cv": facts | {"tried": tried}}


def linear_model(estimator: LinearEstimator, training: JsonObject, **entries: Any) -> LinearModel:
    """Return a fitted estimator as a file holds it; ``entries`` are what only files of samples have."""
    coef, loss = estimator.coef_, estimator._loss()
    classes = getattr(estimator, "classes_", None)
    names = getattr(estimator, "feature_names_in_", None)
    return LinearModel(
        task=estimator._task,
        loss=loss.name,
        coef=np.atleast_2d(np.asarray(coef.toarray() if sparse(coef) else coef, dtype=np.float64)),
        intercept=np.atleast_1d(np.asarray(estimator.intercept_, dtype=np.float64)),
        classes=None if classes is None else plain_classes(classes),
        softmax=estimator._softmax,
        feature_names=None if names is None else tuple(map(str, names)),
        training=training,
        link=loss.link,
        **entries,
    )


def plain_classes(classes: np.ndarray) -> list[str] | list[float]:
    """Return classes as JSON writes them, whole numbers without a point."""
    names: list[Any] = classes.tolist()
    if all(isinstance(name, str) for name in names):
        return names
    if not all(isinstance(name, int | float) for name in names):
        raise InputError("a model file holds classes that are numbers or texts; map yours to one of them")
    return [int(name) if float(name).is_integer() else float(name) for name in names]
