"""Columns brought to a common scale without pooling the rows: sums over the nodes are all that is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.estimators.solver import LocalData, Solver
from adfs.problem.evaluation import weighted_row_sums
from adfs.problem.samples import rows_of, sparse
from adfs.problem.shards import as_rows


@dataclass(frozen=True)
class Columns:
    """What is taken from each column and what it is divided by, each (p,); None for nothing."""

    center: np.ndarray | None = None
    spread: np.ndarray | None = None

    @property
    def means(self) -> np.ndarray | None:
        """What is taken from each column, in units of what it is divided by."""
        return self.center if self.center is None or self.spread is None else self.center / self.spread

    def apply(self, X: Any) -> Any:
        """Return the rows with columns moved and scaled; rows that need neither are not copied."""
        if self.center is not None:
            X = X - self.center
        if self.spread is None:
            return X
        if sparse(X):
            return sp.csr_array((X.data / self.spread[X.indices], X.indices, X.indptr), shape=X.shape)
        return X / self.spread

    def undo(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return coefficients (…, p) and intercepts (…) for the columns as they were."""
        if self.spread is not None:
            coef = coef / self.spread
        return coef, intercept if self.center is None else intercept - coef @ self.center

    def intercepts(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Return the intercepts (…) for the moved columns, from a model of the columns as they were."""
        return intercept if self.center is None else intercept + coef @ self.center


def column_scales(data: LocalData, solver: Solver, *, center: bool, scale: bool) -> Columns:
    """Return the weighted means and standard deviations of the columns over the rows of all processes.

    Means are those of dense rows: sparse ones would become dense, and are scaled only. Columns that are
    constant are not scaled.
    """
    center = center and not data.sparse
    if not (center or scale):
        return Columns()
    total = solver.totals([data.weights], data.node_starts)[0]
    if not total > 0.0:
        return Columns()
    X = as_rows(data.X)
    means = _column_sums(X, data.weights, data, solver) / total
    if not scale:
        return Columns(means)
    if sparse(X):
        parts = (X.indices, X.indptr)
        away = sp.csr_array(((X.data - means[X.indices]) ** 2, *parts), shape=X.shape)
        there = sp.csr_array((np.ones(X.nnz), *parts), shape=X.shape)
        squares = _column_sums(away, data.weights, data, solver)
        squares += (total - _column_sums(there, data.weights, data, solver)) * means**2
    else:
        squares = _column_sums((X - means) ** 2, data.weights, data, solver)
    rows = sum(solver.cluster.gather(int(X.shape[0]), "to sum up the data"))
    variance = np.maximum(squares / total, 0.0)
    # A mean of N numbers is right to about N roundings: less than that is no spread.
    rounding = rows * float(np.finfo(np.float64).eps)
    constant = variance <= (rounding * np.abs(means)) ** 2
    spread = np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))
    return Columns(means if center else None, spread)


def _column_sums(X: Any, weights: np.ndarray, data: LocalData, solver: Solver) -> np.ndarray:
    weights = np.ascontiguousarray(weights, dtype=np.float64)[:, None]
    return solver.add(weighted_row_sums(rows_of(X), data.node_starts, weights, X.shape[1]))
