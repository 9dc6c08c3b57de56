"""Instructions that Python has no word for, for compiled code only."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

__all__ = ["fma"]


@intrinsic  # type: ignore[untyped-decorator]
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c rounded once, on every machine and whatever the compiler would have chosen."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    number = types.float64
    return number(number, number, number), build
