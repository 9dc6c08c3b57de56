"""Data sets for the estimators' tests: bundled ones, and a sparse one that looks like text."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets

# One node is left to the long tests: the same kernels, and less that could go wrong.
NODES = (pytest.param(1, marks=pytest.mark.soak), 4)


def standardised(X: np.ndarray) -> np.ndarray:
    spread = X.std(axis=0)
    return np.ascontiguousarray((X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0))


@functools.cache
def texts() -> tuple[Any, np.ndarray, np.ndarray]:
    """Rows of weighted word counts: Zipf's law, each of length one; a class and a real target a row."""
    rng = np.random.default_rng(7)
    n_samples, n_words = 300, 500
    counts = np.zeros((n_samples, n_words))
    for row in range(n_samples):
        words = rng.zipf(1.35, 60)
        np.add.at(counts[row], words[words <= n_words] - 1, 1.0)
    rows = np.log1p(counts) * np.log(n_samples / (1.0 + (counts > 0).sum(axis=0)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    target = rows @ rng.standard_normal(n_words) + 0.1 * rng.standard_normal(n_samples)
    return sp.csr_array(rows), (target > np.median(target)).astype(int), target


@functools.cache
def classification(name: str) -> tuple[Any, np.ndarray]:
    if name == "texts":
        return texts()[:2]
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return standardised(X), (y == 8).astype(int) if name == "digits" else y


@functools.cache
def regression(name: str) -> tuple[Any, np.ndarray]:
    if name == "texts":
        X, _, target = texts()
        return X, (target - target.mean()) / target.std()
    X, y = datasets.load_diabetes(return_X_y=True)
    return standardised(X), (y - y.mean()) / y.std()


@functools.cache
def real(name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return rows, targets, and weights or exposures; the name is a data set and what to learn of it."""
    source, what = name.removesuffix(", sparse").split(": ")
    table = getattr(datasets, f"load_{source}")()
    X, y = table.data, table.target
    match what:
        case "classes":
            return X, y, X[:, 0] / X[:, 0].mean()
        case "a class":  # of which a few columns are not certain
            return X[:, 1:5], (y == 1).astype(int), X[:, 0] / X[:, 0].mean()
        case "eights":  # sparse: half of the pixels are 0
            return sp.csr_array(X / 16.0), (y == 8).astype(int), 0.5 + X.mean(axis=1) / 8.0
        case "ink":  # of the lower half of a picture, by its upper half; the exposure is all of it
            return X[::4, :32], X[::4, 32:].sum(axis=1), X[::4].sum(axis=1) / 300.0
        case "ink, wide":  # fewer rows than columns
            return X[:50], X[:50, 32:].sum(axis=1) + y[:50], 1.0 + y[:50]
        case "progression":
            return X, y, 1.5 + X[:, 2] / X[:, 2].max()
        case "colour":  # a column by the others
            return np.delete(X, 9, axis=1), X[:, 9], X[:, 0] / X[:, 0].mean()
        case "area":
            return np.delete(X, [0, 2, 3], axis=1), X[:, 3], X[:, 0] / X[:, 0].mean()
        case "petals":  # in tenths of a centimetre
            return X[:, [0, 1, 3]], np.round(10.0 * X[:, 2]), X[:, 1] / X[:, 1].mean()
    assert what == "sit-ups"
    return y, X[:, 1], y[:, 0] / y[:, 0].mean()
