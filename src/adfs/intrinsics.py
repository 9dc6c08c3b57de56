"""Instructions that Python has no word for."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from adfs.compilation import overloads


def _prefetch(_context: Any, array: Any, index: Any) -> Any:
    if not isinstance(array, types.Array) or not isinstance(index, types.Integer):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        view = context.make_array(array_type)(context, builder, arguments[0])
        position = context.cast(builder, arguments[1], index_type, types.intp)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(builder.gep(view.data, [position]), byte)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        # To be read, to be kept, and data rather than instructions.
        builder.call(function, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


#: ``prefetch(array, index)``, in compiled code: ask for the cache line of the entry with this number,
#: counted in a contiguous array from its start. It never fails: an index outside the array is a wasted
#: request.
prefetch = intrinsic(_prefetch)


def fma(a: float, b: float, c: float) -> float:
    """Return a·b + c rounded once, whatever the machine and the compiler.

    Examples
    --------
    >>> fma(1.0 + 2.0**-30, 1.0 - 2.0**-30, -1.0) == -(2.0**-60)
    True
    """
    rounded_twice = a * b + c
    if not math.isfinite(rounded_twice):
        return rounded_twice
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return float(exact) if exact else rounded_twice  # a zero's sign is in the floats only


def _fma(_context: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    number = types.float64
    return number(number, number, number), generate


_compiled_fma = intrinsic(_fma)


@overloads(fma)
def _fma_of(a: Any, b: Any, c: Any) -> Any:
    return lambda a, b, c: _compiled_fma(a, b, c)  # noqa: PLW0108 - numba reads its argument names
