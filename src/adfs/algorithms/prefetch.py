"""Fetching ahead: the samples of coming events are asked of the memory before they are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from adfs.compilation import overloads
from adfs.problem.rows import DenseRows, SparseRows

__all__ = ["prefetch_row", "prefetch_sample"]

_LINE = 8  # doubles in a cache line
_MOST_LINES = 8  # beyond this the processor's own prefetcher has seen the pattern


@intrinsic  # type: ignore[untyped-decorator]
def _touch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of element ``index`` of a contiguous array, counted through its dimensions."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        record = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(record.data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), build


def prefetch_row(rows: Any, j: int) -> None:
    """Ask for row j; compiled code only, nothing happens interpreted."""


def prefetch_sample(rows: Any, y: np.ndarray, weights: np.ndarray, tips: np.ndarray, j: int) -> None:
    """Ask for what belongs to row j besides the row; compiled code only."""


def _kind(rows: Any) -> type | None:
    return rows.instance_class if isinstance(rows, types.BaseNamedTuple) else None


@overloads(prefetch_row)
def _prefetch_row(rows: Any, j: Any) -> Any:
    if _kind(rows) is DenseRows:

        def dense(rows: Any, j: Any) -> None:
            width = rows.values.shape[1]
            start = np.int64(j) * width
            for k in range(0, min(width, _LINE * _MOST_LINES), _LINE):
                _touch(rows.values, start + k)
            _touch(rows.values, start + min(width, _LINE * _MOST_LINES) - 1)

        return dense
    if _kind(rows) is SparseRows:

        def sparse(rows: Any, j: Any) -> None:
            start = np.int64(rows.indptr[j])
            stop = min(np.int64(rows.indptr[j + 1]), start + _LINE * _MOST_LINES)
            for k in range(start, stop, _LINE):
                _touch(rows.data, k)
                _touch(rows.indices, k)
            if stop > start:
                _touch(rows.data, stop - 1)
                _touch(rows.indices, stop - 1)

        return sparse
    return None


@overloads(prefetch_sample)
def _prefetch_sample(rows: Any, y: Any, weights: Any, tips: Any, j: Any) -> Any:
    def common(rows: Any, y: Any, weights: Any, tips: Any, j: Any) -> None:
        _touch(y, np.int64(j))
        _touch(weights, np.int64(j))
        _touch(tips, np.int64(2 * j))

    def pointers(rows: Any, y: Any, weights: Any, tips: Any, j: Any) -> None:
        _touch(y, np.int64(j))
        _touch(weights, np.int64(j))
        _touch(tips, np.int64(2 * j))
        _touch(rows.indptr, np.int64(j))

    return pointers if _kind(rows) is SparseRows else common
