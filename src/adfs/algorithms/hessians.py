"""Hessians of each node's losses, summed over its rows.

Every entry is summed over a node's rows in their order, each product rounded once (`fma`): dense and CSR
copies of the same rows give the same bits, and so does any split over processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adfs.compilation import fma, inlined, kernel, overloads
from adfs.problem.samples import (
    DenseRows,
    Rows,
    SparseRows,
    kind_of,
    row_column,
    row_entry,
    row_span,
)

_TILE = 256  # columns of a Hessian, and samples added to them at once, that stay in the caches


class OutputCurvatures(NamedTuple):
    """The second derivatives diag(D) − ooᵀ of losses with K outputs.

    ``diagonals`` and ``factors`` (N, K) are D and o; ``outputs`` (d,) has the output of each column, in
    increasing order; ``room`` (d,) is working memory.
    """

    diagonals: np.ndarray
    factors: np.ndarray
    outputs: np.ndarray
    room: np.ndarray


@kernel
def fill_hessian(
    rows: Rows,
    node_starts: np.ndarray,
    ridge: np.ndarray,
    curvatures: np.ndarray | OutputCurvatures,
    first: int,
    last: int,
    band: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write rows first … last − 1 of each node's Hessian, from its diagonal on, one row after the other.

    ``ridge`` (k, d) is added to the diagonals, ``curvatures`` (N,) are wℓ'' of the samples (or those of
    several outputs). ``band`` has room for one node's rows, (last − first, d); ``out`` is (k, numbers in
    these rows).
    """
    d = band.shape[1]
    # One node after another: the ridge on the diagonal, the samples, then the rows without their lower part.
    for i in range(out.shape[0]):
        for a in range(band.shape[0]):
            for b in range(d):
                band[a, b] = 0.0
            band[a, first + a] = ridge[i, first + a]
        _add_products(rows, curvatures, node_starts[i], node_starts[i + 1], first, last, band)
        place = 0
        for a in range(band.shape[0]):
            for b in range(first + a, d):
                out[i, place] = band[a, b]
                place += 1


def _add_products(
    rows: Rows,
    curvatures: np.ndarray | OutputCurvatures,
    start: int,
    stop: int,
    first: int,
    last: int,
    band: np.ndarray,
) -> None:
    """Add Σ_j c_j x_j x_jᵀ over rows start … stop − 1 to ``band``: Hessian rows first … last − 1."""
    raise NotImplementedError("compiled code only")


@overloads(_add_products)
def _choose_products(rows: Any, curvatures: Any, *others: Any) -> Callable[..., None]:
    if kind_of(curvatures) is OutputCurvatures:
        return _add_several
    return _add_sparse if kind_of(rows) is SparseRows else _add_dense


def _add_sparse(
    rows: SparseRows, curvatures: np.ndarray, start: int, stop: int, first: int, last: int, band: np.ndarray
) -> None:
    # Each pair of non-zeros of a row adds to one entry; the indices of a row increase.
    for j in range(start, stop):
        if curvatures[j] == 0.0:
            continue
        begin, end = rows.indptr[j], rows.indptr[j + 1]
        for k in range(begin, end):
            a = rows.indices[k]
            if first <= a < last:
                factor = curvatures[j] * rows.data[k]
                for m in range(k, end):
                    b = rows.indices[m]
                    band[a - first, b] = fma(factor, rows.data[m], band[a - first, b])


def _add_dense(
    rows: DenseRows, curvatures: np.ndarray, start: int, stop: int, first: int, last: int, band: np.ndarray
) -> None:
    x, c, d = rows.values, curvatures, band.shape[1]
    whole = stop - (stop - start) % 4
    # Tiles that stay in the caches; in each the rows of the data come in their order.
    for block in range(start, whole, _TILE):
        for top in range(first, last, _TILE // 4):
            for left in range(top, d, _TILE):
                right = min(left + _TILE, d)
                for j in range(block, min(block + _TILE, whole), 4):
                    for a in range(top, min(top + _TILE // 4, last)):
                        begin = max(a, left)
                        _add_four(
                            (c[j] * x[j, a], x[j, begin:right]),
                            (c[j + 1] * x[j + 1, a], x[j + 1, begin:right]),
                            (c[j + 2] * x[j + 2, a], x[j + 2, begin:right]),
                            (c[j + 3] * x[j + 3, a], x[j + 3, begin:right]),
                            band[a - first, begin:right],
                        )
    # The rows that are left over after groups of four.
    for j in range(whole, stop):
        for a in range(first, last):
            factor = c[j] * x[j, a]
            for b in range(a, d):
                band[a - first, b] = fma(factor, x[j, b], band[a - first, b])


def _add_several(
    rows: Rows, curvatures: OutputCurvatures, start: int, stop: int, first: int, last: int, band: np.ndarray
) -> None:
    room, outputs = curvatures.room, curvatures.outputs
    for j in range(start, stop):
        begin, end = row_span(rows, j)
        for k in range(begin, end):
            factor = curvatures.factors[j, outputs[row_column(rows, j, k)]]
            room[np.uint64(k - begin)] = factor * row_entry(rows, j, k)
        for k in range(begin, end):
            a = np.int64(row_column(rows, j, k))
            if not first <= a < last:
                continue
            out, factor = band[a - first], -room[np.uint64(k - begin)]
            for m in range(k, end):
                b = row_column(rows, j, m)
                out[b] = fma(factor, room[np.uint64(m - begin)], out[b])
            # The columns of one output are neighbours, and only these meet the diagonal.
            factor = curvatures.diagonals[j, outputs[a]] * row_entry(rows, j, k)
            for m in range(k, end):
                b = row_column(rows, j, m)
                if outputs[b] != outputs[a]:
                    break
                out[b] = fma(factor, row_entry(rows, j, m), out[b])


Multiple = tuple[float, np.ndarray]


@inlined
def _add_four(first: Multiple, second: Multiple, third: Multiple, fourth: Multiple, out: np.ndarray) -> None:
    """Add multiples of four pieces of rows, one after the other: each sum is loaded and stored once for all.

    With eight the compiler finds too many arrays that might overlap, and no longer uses vectors.
    """
    for b in range(out.size):
        total = fma(first[0], first[1][b], out[b])
        total = fma(second[0], second[1][b], total)
        total = fma(third[0], third[1][b], total)
        out[b] = fma(fourth[0], fourth[1][b], total)


def hessian_bands(d: int, numbers: int) -> list[tuple[int, int]]:
    """Return the rows of each band of a Hessian's upper triangle, of about so many numbers at most.

    Examples
    --------
    >>> hessian_bands(5, 9)
    [(0, 2), (2, 5)]
    """
    # Rows of the triangle get shorter: add rows to a band until it is full.
    bands, first, size = [], 0, 0
    for row in range(d):
        if size and size + d - row > numbers:
            bands.append((first, row))
            first, size = row, 0
        size += d - row
    return [*bands, (first, d)]
