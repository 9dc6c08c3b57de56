from __future__ import annotations
from typing import Any
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, index):
    if not isinstance(array, types.Array) or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        view = context.make_array(array_type)(context, builder, arguments[0])
        position = context.cast(builder, arguments[1], index_type, types.intp)
        pointer = builder.gep(view.data, [position])
        i32 = ir.IntType(32)
        bytes_ = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [bytes_.type, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [bytes_, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate
