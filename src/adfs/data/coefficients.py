"""The coefficients in a model file: numbers one can read where they are few, packed where they are many.

Packed arrays keep every bit and hold nothing that could run. An array's numbers are laid out little-endian,
all first bytes before all second bytes and so on (numbers of like size then share long runs), compressed with
zlib and written as base64 text.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import numpy as np

__all__ = ["coefficients_from", "coefficients_to", "numbers"]

_PACKING = "little-endian, bytes transposed, zlib, base64"
# More numbers than this and nobody reads them: they would be half a megabyte of digits.
_MOST_READABLE = 20_000


def numbers(value: object, name: str) -> np.ndarray:
    """Return a list of JSON numbers as float64; text, truth values and nested lists are refused."""
    found = np.asarray(value) if isinstance(value, list) else None
    if found is None or (found.size and found.dtype.kind not in "iuf"):
        raise ValueError(f"{name} must be a list of numbers")
    return found.astype(np.float64)


def _present(coef: np.ndarray) -> np.ndarray:
    """Return where coefficients are not +0, of which a file keeps nothing (−0 has a bit to keep)."""
    return np.asarray(coef.view(np.int64) != 0)


def coefficients_to(coef: np.ndarray) -> list[Any] | dict[str, Any]:
    """Return what a file holds: a list per row, of all or of the non-zero entries; or all of them packed.

    Parameters
    ----------
    coef : ndarray of shape (n_rows, d)
    """
    coef = np.ascontiguousarray(coef, dtype=np.float64)
    present = _present(coef)
    count = int(present.sum())
    sparse = 3 * count < coef.size
    if (count if sparse else coef.size) <= _MOST_READABLE:
        return [_row(row, there) for row, there in zip(coef, present, strict=True)]
    entry: dict[str, Any] = {"packing": _PACKING, "shape": list(coef.shape)}
    if not sparse:
        return entry | {"values": _pack(coef)}
    rows, columns = np.nonzero(present)
    return entry | {
        "counts": np.bincount(rows, minlength=len(coef)).tolist(),
        "indices": _pack(columns),
        "values": _pack(coef[rows, columns]),
    }


def coefficients_from(entry: Any, n_rows: int, width: int) -> np.ndarray:
    """Return the coefficients that a file holds, shape (n_rows, width); ValueError for anything else."""
    if isinstance(entry, list):
        if len(entry) != n_rows:
            raise ValueError(f"coef must have {n_rows} rows, one per model")
        return np.array([_dense(row, width) for row in entry])
    if not isinstance(entry, dict) or entry.get("packing") != _PACKING:
        raise ValueError("coef is neither a list nor packed in a way that is known here")
    if entry["shape"] != [n_rows, width]:
        raise ValueError("coef does not have the shape that classes and n_features say")
    if "counts" not in entry:
        return _unpack(entry["values"], n_rows * width, np.float64).reshape(n_rows, width)
    counts = entry["counts"]
    if not isinstance(counts, list) or [_is_count(one, width) for one in counts] != [True] * n_rows:
        raise ValueError("coef must say how many entries each row has")
    total = sum(counts)
    rows = np.repeat(np.arange(n_rows), counts)
    columns = _unpack(entry["indices"], total, np.int64)
    places = rows * width + columns
    if np.any((columns < 0) | (columns >= width)) or np.any(np.diff(places) <= 0):
        raise ValueError("coef holds indices outside the features, or not in ascending order")
    coef = np.zeros((n_rows, width))
    coef[rows, columns] = _unpack(entry["values"], total, np.float64)
    return coef


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and 0 <= value <= most


def _row(row: np.ndarray, present: np.ndarray) -> Any:
    places = np.flatnonzero(present)
    if 3 * places.size < row.size:
        return {"indices": places.tolist(), "values": row[places].tolist()}
    return row.tolist()


def _dense(row: Any, width: int) -> np.ndarray:
    if isinstance(row, list):
        found = numbers(row, "a row of coef")
        if found.shape != (width,):
            raise ValueError("a row of coef does not have n_features entries")
        return found
    if not isinstance(row, dict):
        raise ValueError("a row of coef must be a list of numbers, or its indices and values")
    places, values = numbers(row["indices"], "indices"), numbers(row["values"], "values")
    if places.shape != values.shape or places.ndim != 1:
        raise ValueError("a row of coef must have one value per index")
    inside = (places >= 0) & (places < width) & (places == np.floor(places))
    if not inside.all() or np.any(np.diff(places) <= 0):
        raise ValueError("a row of coef holds indices outside the features, or not in ascending order")
    out = np.zeros(width)
    out[places.astype(np.int64)] = values
    return out


def _pack(array: np.ndarray) -> str:
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    transposed = np.ascontiguousarray(little.reshape(-1, 1).view(np.uint8).T)
    return base64.b64encode(zlib.compress(transposed.tobytes())).decode("ascii")


def _unpack(text: object, count: int, kind: type[np.float64] | type[np.int64]) -> np.ndarray:
    """Return so many numbers; no more is decompressed than they take, whatever the text holds."""
    if not isinstance(text, str):
        raise ValueError("a packed array must be text")
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), 8 * count + 1)
    except (binascii.Error, zlib.error):
        raise ValueError("a packed array cannot be decompressed") from None
    if len(raw) != 8 * count or not stream.eof:
        raise ValueError(f"a packed array does not hold {count} numbers")
    little = np.ascontiguousarray(np.frombuffer(raw, dtype=np.uint8).reshape(8, count).T)
    return little.view(np.dtype(kind).newbyteorder("<")).ravel().astype(kind)
