"""NumPy archives: ``X`` and ``y``, or the arrays of a CSR matrix and ``y``; perhaps ``sample_weight``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.data.streams import open_bytes
from adfs.data.table import Table
from adfs.errors import InputError

__all__ = ["read_npz"]

_CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, *, labels_needed: bool = True) -> Table:
    """Read an archive with dense rows (``X``), or CSR rows as `scipy.sparse.save_npz` names their arrays.

    Parameters
    ----------
    path : Path
    labels_needed : bool
        Whether an archive without ``y`` is refused.

    Returns
    -------
    Table
    """
    with open_bytes(path) as stream:
        if not zipfile.is_zipfile(stream):
            raise InputError(f"{path} is not a NumPy archive, or is damaged or cut short")
        stream.seek(0)
        try:
            with np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (ValueError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            if "allow_pickle" in str(error) or "Object arrays" in str(error):
                raise InputError(
                    f"{path} holds Python objects, which are never loaded; save plain numbers"
                ) from None
            raise InputError(f"{path} is not a NumPy archive, or is damaged or cut short") from None
    X = _rows(arrays, path)
    y = arrays.get("y")
    if y is None and labels_needed:
        raise InputError(
            f"{path} has no array 'y' with the labels; it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if y is not None:
        y = _column(y, X.shape[0], "y", path)
        y = y.astype(np.str_) if y.dtype.kind in "US" else _numbers(y, "y", path)
    weights = arrays.get("sample_weight")
    if weights is not None:
        weights = _numbers(_column(weights, X.shape[0], "sample_weight", path), "sample_weight", path)
    return Table(X, y, weights, str(path))


def _rows(arrays: dict[str, np.ndarray], path: Path) -> Any:
    X: Any
    if "X" in arrays:
        X = _numbers(arrays["X"], "X", path)
        if X.ndim != 2:
            raise InputError(f"{path}: X must be two-dimensional (samples × features), got shape {X.shape}")
    elif all(name in arrays for name in _CSR):
        kind = arrays.get("format", np.array("csr")).item()
        if kind not in ("csr", b"csr"):
            raise InputError(f"{path} holds a sparse matrix in another form than CSR; save it with .tocsr()")
        parts = (_numbers(arrays["data"], "data", path), arrays["indices"], arrays["indptr"])
        try:
            height, width = (int(size) for size in arrays["shape"])
            X = sp.csr_array(parts, shape=(height, width))
            X.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(f"{path} does not hold a valid CSR matrix: {error}") from None
    else:
        raise InputError(
            f"{path} must hold X and y, or data, indices, indptr, shape and y; "
            f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{path} holds no samples or no features (shape {X.shape})")
    return X


def _column(values: np.ndarray, n_samples: int, name: str, path: Path) -> np.ndarray:
    if values.shape == (n_samples, 1):
        values = values[:, 0]
    if values.shape != (n_samples,):
        raise InputError(
            f"{path}: {name} must have one entry per row: X has {n_samples} rows, "
            f"{name} has shape {values.shape}"
        )
    return values


def _numbers(values: np.ndarray, name: str, path: Path) -> np.ndarray:
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: {name} holds {values.dtype} values, not numbers")
    out = np.asarray(values, dtype=np.float64)
    if not np.isfinite(out).all():
        place = tuple(int(k) for k in np.argwhere(~np.isfinite(out))[0])
        raise InputError(f"{path}: {name} holds NaN or infinity, first at {place}; clean or impute it first")
    return out
