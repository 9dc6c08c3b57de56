"""How compiled code goes through the rounds of a method, whichever it is.

A round-driven method is two compiled functions of one named tuple, its *parts*: `begin` goes on until it
needs the product of values with the gossip matrix, `end` takes that product. With all nodes in one process
`run_rounds` is one compiled loop over both; between several, `go_on` is one call from a product to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types

from adfs.compilation import inlined, kernel, overloads
from adfs.errors import InputError
from adfs.problem.rows import kind_of

__all__ = ["MatrixRows", "RoundKernels", "go_on", "register_round_kernels", "row_products", "run_rounds"]


class MatrixRows(NamedTuple):
    """Rows of a matrix in CSR form."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


class RoundKernels(NamedTuple):
    """What a round does, as compiled functions of a method's parts.

    Attributes
    ----------
    begin : callable
        ``begin(parts, t, last, out) -> int``: go on from round t until a product is needed, write its values
        to ``out`` (k, d), and return its round; or return ``last`` when that comes first.
    end : callable
        ``end(parts, t, heard) -> int``: go on with the product ``heard`` (k, d), which may be used up; return
        t + 1, or t when the round needs a further product.
    """

    begin: Callable[..., int]
    end: Callable[..., int]


_KERNELS: dict[type, RoundKernels] = {}


def register_round_kernels(parts: type, kernels: RoundKernels) -> RoundKernels:
    """Say which kernels belong to a named tuple of parts, and return them.

    Parameters
    ----------
    parts : type
        A ``NamedTuple`` of arrays, numbers and further named tuples, one for each method.
    kernels : RoundKernels
        Made with `adfs.compilation.kernel`.
    """
    if not (issubclass(parts, tuple) and hasattr(parts, "_fields")):
        raise InputError(f"the parts of a round method must be a NamedTuple, got {parts.__name__}")
    _KERNELS[parts] = kernels
    return kernels


def _begin(parts: tuple[object, ...], t: int, last: int, out: np.ndarray) -> int:
    return _KERNELS[type(parts)].begin(parts, t, last, out)


def _end(parts: tuple[object, ...], t: int, heard: np.ndarray) -> int:
    return _KERNELS[type(parts)].end(parts, t, heard)


# numba compiles the inner functions below: what they close over is a constant to it.


@overloads(_begin)
def _compiled_begin(
    parts: types.Type, t: types.Type, last: types.Type, out: types.Type
) -> Callable[..., object] | None:
    kind = kind_of(parts)
    if kind not in _KERNELS:
        return None
    begin = _KERNELS[kind].begin

    def implementation(parts: tuple[object, ...], t: int, last: int, out: np.ndarray) -> int:
        return begin(parts, t, last, out)

    return implementation


@overloads(_end)
def _compiled_end(parts: types.Type, t: types.Type, heard: types.Type) -> Callable[..., object] | None:
    kind = kind_of(parts)
    if kind not in _KERNELS:
        return None
    end = _KERNELS[kind].end

    def implementation(parts: tuple[object, ...], t: int, heard: np.ndarray) -> int:
        return end(parts, t, heard)

    return implementation


@kernel
def row_products(rows: MatrixRows, values: np.ndarray, out: np.ndarray) -> None:
    """Write the product of rows with values (m, d), each row summed in the order it is stored; (rows, d)."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 0.0
        for position in range(rows.indptr[i], rows.indptr[i + 1]):
            weight = rows.data[position]
            j = rows.indices[position]
            for k in range(out.shape[1]):
                out[i, k] += weight * values[j, k]


@inlined
def _totals(values: np.ndarray, out: np.ndarray) -> None:
    """Write the sum over all nodes, in their order, to every row."""
    for k in range(out.shape[1]):
        out[0, k] = 0.0
    for i in range(values.shape[0]):
        for k in range(out.shape[1]):
            out[0, k] += values[i, k]
    for i in range(1, out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = out[0, k]


@kernel
def run_rounds(
    parts: tuple[object, ...],
    rows: MatrixRows,
    sums: bool,
    t: int,
    last: int,
    room: tuple[np.ndarray, np.ndarray],
) -> int:
    """Go from round t to round ``last`` with all nodes here; return how many products were taken.

    ``sums`` says that a product is the sum over all nodes instead; ``room`` is two arrays (n, d).
    """
    out, heard = room
    products = 0
    while True:
        t = _begin(parts, t, last, out)
        if t >= last:
            return products
        if sums:
            _totals(out, heard)
        else:
            row_products(rows, out, heard)
        products += 1
        t = _end(parts, t, heard)


@kernel
def go_on(
    parts: tuple[object, ...], t: int, last: int, out: np.ndarray, heard: np.ndarray, came: bool
) -> int:
    """Take the product of round t if it ``came``, and go on until the next one is needed, as `begin` does."""
    if came:
        t = _end(parts, t, heard)
    return _begin(parts, t, last, out)
