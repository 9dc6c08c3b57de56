"""Predictions and scores of linear models: of estimators, of cross-validation and of model files.

A link says which function of the mean the margin xᵀθ + b is. A model file keeps the name of its link, so a
prediction needs none of the code of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import InputError

#: Returns the sum of each of some columns (N,), over all samples there are.
Totals = Callable[[Sequence[np.ndarray]], np.ndarray]


def inverse_link(link: str, margins: np.ndarray) -> np.ndarray:
    """Return means from margins (N,): probabilities for ``"logit"``, and for ``"softmax"`` with (N, K)."""
    if link == "identity":
        return np.asarray(margins)
    if link == "log":
        return np.asarray(np.exp(margins))
    from scipy.special import expit, softmax

    return np.asarray(expit(margins) if link == "logit" else softmax(margins, axis=1))


def decision_values(X: Any, coef: Any, intercept: Any, offset: ArrayLike | None = None) -> np.ndarray:
    """Return the margins xᵀθ + b of models with coefficients (K, d): (N,) for one model, otherwise (N, K).

    An offset of the same shape is added.
    """
    products: Any = X @ coef.T
    if hasattr(products, "toarray"):  # of sparse rows and sparsified coefficients
        products = products.toarray()
    scores = np.asarray(products + intercept)
    scores = scores.ravel() if scores.shape[1] == 1 else scores
    if offset is None:
        return scores
    added = np.asarray(offset, dtype=np.float64)
    if added.shape != scores.shape:
        raise InputError(f"offset must have shape {scores.shape}, as the decision values, got {added.shape}")
    return np.asarray(scores + added)


def predicted_classes(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the class of each sample from decision values (N,) of the second class, or (N, n_classes)."""
    codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
    return np.asarray(classes[codes])


def probabilities(scores: np.ndarray, *, softmax: bool) -> np.ndarray:
    """Return the probabilities of the classes, (N, n_classes), from decision values (N,) or (N, n_classes).

    Without ``softmax`` each class has a model of its own, and the probabilities are scaled to sum to one.
    """
    if scores.ndim == 1:
        return np.column_stack([inverse_link("logit", -scores), inverse_link("logit", scores)])
    if softmax:
        return inverse_link("softmax", scores)
    each = inverse_link("logit", scores)
    total = each.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0.0, each / np.where(total > 0.0, total, 1.0), 1.0 / scores.shape[1]))


def _sums(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([column.sum() for column in columns])


def mean_score(scores: np.ndarray, weights: np.ndarray, totals: Totals = _sums) -> float:
    """Return the weighted mean of the scores (N,) of samples: of right classes, their share."""
    total, summed = totals([weights, weights * scores])
    return float(summed / total) if total > 0.0 else 0.0


def explained_share(
    deviances: Callable[[np.ndarray, Any], np.ndarray],
    y: np.ndarray,
    predicted: np.ndarray,
    weights: np.ndarray,
    totals: Totals = _sums,
) -> float:
    """Return R² or D²: 1 less the deviance of the predictions over the deviance of the mean of the targets.

    Parameters
    ----------
    deviances : callable
        Returns the deviance of each target from a mean: `adfs.problem.Loss.unit_deviances`.
    y, predicted, weights : ndarray of shape (N,)
    totals : callable
        Sums columns over all samples; those of other processes too, where there are any.
    """
    total, summed = totals([weights, weights * y])
    mean = summed / total if total > 0.0 else 0.0
    with np.errstate(all="ignore"):  # predictions of a fit that diverged, or a mean of 0 of a log link
        flat, own = deviances(y, mean), deviances(y, predicted)
    spread, error = totals([weights * np.where(np.isfinite(flat), flat, 0.0), weights * own])
    return float(1.0 - error / spread) if spread > 0.0 else float(error <= 0.0)
