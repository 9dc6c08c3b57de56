"""Data by a short name: a file, a set that comes with scikit-learn, or random numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from adfs.data.read import ReadOptions, read_tables
from adfs.data.table import Table
from adfs.errors import InputError, unknown_name

__all__ = ["read_source"]

_BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")


def read_source(name: str, options: ReadOptions | None = None, *, seed: int = 0) -> Table:
    """Return the samples that a name stands for.

    Parameters
    ----------
    name : str
        A file; ``sklearn:breast_cancer`` (or diabetes, digits, iris, wine), standardised; or
        ``synthetic:200x10``, samples from a normal distribution with labels ±1 of a noisy hyperplane.
    options : ReadOptions, optional
        For files.
    seed : int
        Of random data.

    Examples
    --------
    >>> read_source("synthetic:200x10").X.shape
    (200, 10)
    """
    kind, colon, rest = name.partition(":")
    if colon and kind == "sklearn":
        return _bundled(rest)
    if colon and kind == "synthetic":
        return _synthetic(rest, seed)
    return read_tables([name], options)[0]


def _bundled(name: str) -> Table:
    if name not in _BUNDLED:
        raise unknown_name("bundled data set", name, _BUNDLED)
    from sklearn import datasets

    X: Any
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return Table(np.ascontiguousarray(X), y.astype(np.float64), None, f"sklearn:{name}")


def _synthetic(sizes: str, seed: int) -> Table:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", sizes)
    if found is None:
        raise InputError(f"synthetic data wants samples x features, as in synthetic:200x10, got {sizes!r}")
    n_samples, n_features = (int(size) for size in found.groups())
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    margins = X @ rng.standard_normal(n_features) / np.sqrt(n_features)
    y = np.where(margins + 0.5 * rng.standard_normal(n_samples) >= 0.0, 1.0, -1.0)
    return Table(X, y, None, f"synthetic:{sizes}")
