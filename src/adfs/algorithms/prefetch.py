"""Fetching ahead: the samples of coming events are asked of the memory before they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from adfs.compilation import inlined, overloads
from adfs.intrinsics import prefetch
from adfs.problem.losses import outputs
from adfs.problem.samples import DenseRows, Rows, Samples, ShiftedLabels, SparseRows, kind_of
from adfs.problem.views import Boxed

_LINE = 64  # bytes in a cache line
_MOST_LINES = 8  # beyond this the processor's own prefetcher has seen the pattern


def fetch_early(samples: Samples, tips: np.ndarray, j: int) -> None:
    """Ask for what belongs to row j besides the row itself; for CSR also for where the row is."""


def fetch_row(rows: Rows, j: int) -> None:
    """Ask for row j."""


def fetch_late(
    rows: Rows, centers: np.ndarray, slot: np.ndarray, ends: np.ndarray, actor: int, j: int
) -> None:
    """Ask for row j and the centre it moves, or for both centres of an exchange."""


@inlined
def _fetch_span(array: np.ndarray, start: np.int64, stop: np.int64) -> None:
    line = _LINE // array.itemsize
    end = min(stop, start + line * _MOST_LINES)
    for k in range(start, end, line):
        prefetch(array, k)
    prefetch(array, end - 1)


@overloads(fetch_early)
def _fetch_early(samples: types.Type, tips: types.Type, j: types.Type) -> Callable[..., object] | None:
    shifted = kind_of(samples.types[samples.fields.index("y")]) is ShiftedLabels
    pointers = kind_of(samples.types[samples.fields.index("rows")]) is SparseRows
    boxed = kind_of(samples.types[samples.fields.index("loss")]) is Boxed

    def fetch(samples: Any, tips: np.ndarray, j: int) -> None:
        if j >= 0:
            if shifted:
                prefetch(samples.y.values, np.int64(j))
            else:
                prefetch(samples.y, np.int64(j))
            prefetch(samples.weights, np.int64(j))
            # A tip is K complex numbers of 16 bytes.
            for k in range(0, outputs(samples.loss), _LINE // 16):
                prefetch(tips, np.int64(j) * outputs(samples.loss) + k)
            if boxed:
                prefetch(samples.loss.curvature, np.int64(j))
                prefetch(samples.loss.ends, np.int64(j) * 4)
            if pointers:
                prefetch(samples.rows.indptr, np.int64(j))

    return fetch


@overloads(fetch_row)
def _fetch_row(rows: types.Type, j: types.Type) -> Callable[..., object] | None:
    def dense(rows: DenseRows, j: int) -> None:
        columns = np.int64(rows.values.shape[1])
        _fetch_span(rows.values, j * columns, (j + 1) * columns)

    def sparse(rows: SparseRows, j: int) -> None:
        start, stop = np.int64(rows.indptr[j]), np.int64(rows.indptr[j + 1])
        if stop > start:
            _fetch_span(rows.data, start, stop)
            _fetch_span(rows.indices, start, stop)

    return dense if kind_of(rows) is DenseRows else sparse


def _fetch_late(dense: bool) -> Callable[..., object]:
    def fetch(
        rows: Rows, centers: np.ndarray, slot: np.ndarray, ends: np.ndarray, actor: int, j: int
    ) -> None:
        width = np.int64(centers.shape[1])
        if j < 0:
            edge = actor - slot.size
            for end in range(2):
                i = np.int64(slot[ends[edge, end]])
                if i >= 0:
                    _fetch_span(centers, i * width, (i + 1) * width)
            return
        i = np.int64(slot[actor])
        fetch_row(rows, j)
        if dense:
            _fetch_span(centers, i * width, (i + 1) * width)

    return fetch


overloads(fetch_late)(lambda rows, centers, slot, ends, actor, j: _fetch_late(kind_of(rows) is DenseRows))
