"""A shard is what one node holds: rows, labels and sample weights. Here they are checked, once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from adfs.errors import InputError
from adfs.problem.losses import Loss, check_labels
from adfs.problem.rows import Matrix, sparse

__all__ = ["Shard", "as_numbers", "as_rows", "as_signs", "check_weights", "make_shard", "stack_shards"]


class Shard(NamedTuple):
    """Rows ``X`` (m, d), labels or targets ``y`` (m,) and sample weights ``weights`` (m,) of one node."""

    X: Matrix
    y: np.ndarray
    weights: np.ndarray


def as_numbers(values: ArrayLike, where: str) -> np.ndarray:
    """Return values as a C-contiguous float64 array, not copied when they are one already."""
    try:
        array = np.asarray(values)
        numbers = array if np.iscomplexobj(array) else np.asarray(array, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} cannot be read as numbers: {error}") from None
    if np.iscomplexobj(numbers):
        raise InputError(f"{where} holds complex numbers; give their real parts")
    return numbers


def as_rows(X: Matrix, where: str = "X") -> Matrix:
    """Return X as a C-contiguous float64 array or a canonical float64 CSR array, checked to be finite.

    Data that has the right form already is not copied; what is given is never changed.
    """
    out: Matrix
    if sparse(X):
        if np.iscomplexobj(X):
            raise InputError(f"{where} holds complex numbers; give their real parts")
        if X.ndim == 2:
            out = _canonical(X)
            values = out.data
        else:
            out, values = X, np.empty(0)
    else:
        out = values = as_numbers(X, where)
    if out.ndim != 2:
        raise InputError(f"{where} must be two-dimensional (samples × features), got shape {out.shape}")
    if out.shape[1] == 0:
        raise InputError(f"{where} has no features (shape {out.shape})")
    if not np.all(np.isfinite(values)):
        raise InputError(f"{where} contains NaN or infinity; clean or impute it first")
    return out


def as_signs(labels: np.ndarray, positive: object) -> np.ndarray:
    """Return +1 where a label is the positive one and −1 elsewhere: what two-class losses take."""
    return np.where(labels == positive, 1.0, -1.0)


def _canonical(X: Matrix) -> Matrix:
    out: Matrix = sp.csr_array(X, dtype=np.float64)
    if not out.has_canonical_format:
        out = out.copy()
        out.sum_duplicates()
    if out.indices.dtype != np.int32 and max(out.shape[1], out.nnz) < 2**31:
        parts = (out.data, out.indices.astype(np.int32), out.indptr.astype(np.int32))
        out = sp.csr_array(parts, shape=out.shape)
    return out


def check_weights(weights: ArrayLike | None, n_samples: int, where: str) -> np.ndarray:
    """Return sample weights, 1 when not given, as an array of shape (n_samples,) of its own."""
    if weights is None:
        return np.ones(n_samples)
    masses = as_numbers(weights, f"{where}sample_weight").copy()
    if masses.shape != (n_samples,):
        raise InputError(
            f"{where}sample_weight must have one entry per row of X: "
            f"X has {n_samples} rows, got shape {masses.shape}"
        )
    if not np.all(np.isfinite(masses)) or np.any(masses < 0.0):
        row = int(np.flatnonzero(~(np.isfinite(masses) & (masses >= 0.0)))[0])
        raise InputError(f"{where}sample_weight must be finite and at least 0, row {row} has {masses[row]:g}")
    return masses


def make_shard(X: Matrix, y: ArrayLike, weights: ArrayLike | None, loss: Loss, where: str) -> Shard:
    """Check one node's data against each other and against the loss."""
    rows = as_rows(X, f"{where}X")
    labels = as_numbers(y, f"{where}y").copy()
    if labels.ndim != 1 or labels.size != rows.shape[0]:
        raise InputError(
            f"{where}y must have one entry per row of X: X has {rows.shape[0]} rows, "
            f"y has shape {labels.shape}"
        )
    if not np.all(np.isfinite(labels)):
        raise InputError(f"{where}y contains NaN or infinity")
    check_labels(loss, labels, f"{where}y")
    return Shard(rows, labels, check_weights(weights, labels.size, where))


def stack_shards(shards: list[Shard]) -> tuple[Matrix, np.ndarray, np.ndarray, np.ndarray]:
    """Put shards one below the other; CSR as soon as one of them is sparse.

    Returns
    -------
    X, y, weights, offsets
        With the rows of node i at ``offsets[i]:offsets[i + 1]``.
    """
    widths = {int(shard.X.shape[1]) for shard in shards}
    if len(widths) > 1:
        raise InputError(
            f"shards have different numbers of features ({sorted(widths)}); give them the same columns"
        )
    offsets = np.concatenate([[0], np.cumsum([shard.y.size for shard in shards])]).astype(np.int64)
    X: Matrix
    if len(shards) == 1:
        X = shards[0].X
    elif any(sparse(shard.X) for shard in shards):
        X = as_rows(sp.vstack([sp.csr_array(shard.X) for shard in shards], format="csr"))
    else:
        X = np.ascontiguousarray(np.vstack([shard.X for shard in shards]))
    y = np.concatenate([shard.y for shard in shards])
    weights = np.concatenate([shard.weights for shard in shards])
    return X, y, weights, offsets
