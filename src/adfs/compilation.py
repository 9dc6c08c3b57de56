"""The decorators of compiled kernels, and a disk cache that notices edits in all files a kernel is made from.

numba's own cache is keyed on the file that holds a kernel. Our kernels inline losses and row operations from
other files, and an edit there would go unnoticed. Here a hash of all files that define kernels names the
folder of the cache. Code that this hash does not cover is compiled in every process: functions and types
from outside the package, such as a user's own loss. Two processor instructions stand at the end.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite
import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, sigutils
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from adfs.files import write_whole

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

#: The same for every kernel. No fastmath: the same schedule gives the same bits in every runtime.
OPTIONS: dict[str, object] = {
    "fastmath": False,
    "boundscheck": False,
    "error_model": "numpy",
    "nogil": True,
    # Nothing calls a kernel by its address in C, and that entry takes a tenth of a compilation.
    "no_cfunc_wrapper": True,
}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call for each signature, and keep the machine code on disk.

    numba must be able to compile it without the interpreter. Its Python form stays available as ``py_func``.

    Examples
    --------
    >>> @compiled
    ... def halve(x: float) -> float:
    ...     return x / 2.0
    >>> halve(3.0)
    1.5
    """
    return _with_cache(numba.njit(**OPTIONS)(function), function)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that creates no arrays, without counting references to its arguments.

    numba counts them atomically, inside the loop when arrays are members of named tuples. A step of a hundred
    nanoseconds would spend more time on that than on its work. The caller keeps the arrays alive.
    """
    return _with_cache(numba.njit(**OPTIONS, _nrt=False)(function), function)


def inlined(function: F) -> F:
    """Let compiled code inline a small function; in Python it stays the Python function.

    LLVM leaves a function that takes many arrays as a call, which costs more than the work of a step, and it
    does not vectorise a loop that holds a call. The function must create no arrays (see `kernel`). It is kept
    on disk inside the kernels that use it.
    """
    options = {**OPTIONS, "forceinline": True, "_nrt": False, "no_cpython_wrapper": True}
    return cast(F, numba.extending.register_jitable(**options)(function))


def overloads(target: Callable[..., object]) -> Callable[[F], F]:
    """Register what a Python function is in compiled code: numba's ``overload`` with our options.

    It decorates a function of the arguments' numba types that returns the implementation, or None where it
    has none; compiled code calls ``target`` by its name.

    Examples
    --------
    >>> def square(x):
    ...     return x * x
    >>> @overloads(square)
    ... def _(x):
    ...     return lambda x: x * x
    >>> @compiled
    ... def fourth(x):
    ...     return square(square(x))
    >>> fourth(2.0)
    16.0
    """
    # Not `strict`: numba would require the same annotations on the function of types and the implementation.
    options = {**OPTIONS, "forceinline": True}
    register = numba.extending.overload(target, jit_options=options, strict=False)
    return cast("Callable[[F], F]", register)


# --------------------------------------------------------------------------- the cache on disk

_PACKAGE = Path(__file__).parent
# A type that these packages define is fixed by their versions, which are part of every entry's name.
_KNOWN_PACKAGES = frozenset({_PACKAGE.name, "builtins", "numba", "numpy"})
_FOLDERS_KEPT = 12
# The files that kernels are made from: this one, and those that mention it. They import its decorators, or
# say in a comment that kernels use their constants. A test checks that kernels take nothing from other files.
_FILES = [path for path in sorted(_PACKAGE.rglob("*.py")) if path.is_file()]
_SOURCES = [path for path in _FILES if b"adfs.compilation" in path.read_bytes()]


def _file_times() -> list[tuple[int, int]]:
    """Return times and sizes of all sources; they change when a source is edited."""
    return [(status.st_mtime_ns, status.st_size) for status in map(os.stat, _SOURCES)]


_FILE_TIMES_AT_IMPORT = _file_times()


@functools.cache
def _folder() -> Path | None:
    """Make the cache folder of these sources; None where there cannot be one that is safe."""
    root = Path(AppDirs("adfs", appauthor=False).user_cache_dir) / "kernels"
    if numba.config.CACHE_DIR:
        root = Path(numba.config.CACHE_DIR).absolute() / "adfs-kernels"
    # A package inside an archive has no source files; a user without a home has no absolute folder.
    if not _SOURCES or not root.is_absolute():
        return None
    stamp = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in _SOURCES))
    folder = root / f"{stamp.hexdigest()[:16]}-numba{numba.__version__}"
    with suppress(OSError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another user who can write to the folder could have us execute any machine code.
        status = root.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):
            os.utime(folder)  # the time of its last use
            for unused in sorted(root.glob("*-numba*"), key=os.path.getmtime)[:-_FOLDERS_KEPT]:
                shutil.rmtree(unused, ignore_errors=True)
        return folder
    return None


def _python_objects(value: Any, visited: set[Any]) -> Iterator[Any]:
    """Yield the Python classes and functions that a numba type is built on, at any depth."""
    if isinstance(value, type | FunctionType | Dispatcher):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _python_objects(item, visited)
    elif isinstance(value, dict):
        yield from _python_objects([*value.keys(), *value.values()], visited)
    elif isinstance(value, types.Type) and value not in visited:
        visited.add(value)  # a recursive type refers to itself
        yield from _python_objects([type(value), vars(value)], visited)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of one function, with one file per signature instead of an index.

    numba reads its index, adds a line and writes it back: when two ranks do so together, one may later find
    the other's machine code under its own signature. Here the name of a file is the hash of its key, and a
    file appears when it is complete. numba's constructor would choose a folder beside the source file.
    """

    def __init__(self, function: FunctionType, folder: Path) -> None:
        self._py_func, self._folder, self._cache_path = function, folder, str(folder)
        self.enable()

    def flush(self) -> None:
        """Leave the files: numba's ``recompile`` asks for a compilation in this process."""
        self.disable()

    def _guard_against_spurious_io_errors(self) -> suppress:
        return suppress(OSError)  # a disk that refuses costs time and is no error

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        path = self._entry(sig, target_context.codegen())
        content = b"" if path is None else path.read_bytes()
        # A wrong bit in machine code would end the process: after a full disk or a crash, compile again.
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(content[32:]))

    def _save_overload(self, sig: Any, data: Any) -> None:
        path = self._entry(sig, data.codegen)
        # Dynamic globals, such as pointers, belong to this process.
        if path is not None and not data.library.has_dynamic_globals:
            body = dumps(data._reduce())
            write_whole(path, hashlib.sha256(body).digest() + body)

    def _entry(self, sig: Any, codegen: Any) -> Path | None:
        """Return the file of a signature, or None when its machine code must not be kept."""
        signature = sigutils.normalize_signature(sig)
        objects = list(_python_objects(signature, set()))
        # A function in a signature has an address in its name, which no other process finds again.
        origins = {item.__module__.partition(".")[0] if isinstance(item, type) else "" for item in objects}
        # After an edit this process runs a mixture of the old sources and the new.
        if not self._enabled or not origins <= _KNOWN_PACKAGES or _file_times() != _FILE_TIMES_AT_IMPORT:
            return None
        key = (
            self._index_key(signature, codegen),  # holds the processor and the function's byte code
            # The order of a tuple's fields may change in a file that is not hashed.
            [(item.__module__, item.__qualname__, getattr(item, "_fields", ())) for item in objects],
            (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__),
            (numba.config.OPT, numba.config.BOUNDSCHECK),
        )
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        return self._folder / f"{self._py_func.__module__}.{self._py_func.__name__}-{name}.kernel"


def _with_cache(dispatcher: Any, function: Callable[P, R]) -> Callable[P, R]:
    """Give a dispatcher our cache, unless its function is not covered by the hash of our sources."""
    plain, folder = cast(FunctionType, function), _folder()
    ours = plain.__module__.partition(".")[0] == _PACKAGE.name
    # The variables of a closure may come from anywhere. With NUMBA_DISABLE_JIT=1 there is no dispatcher.
    if ours and plain.__closure__ is None and folder is not None and isinstance(dispatcher, Dispatcher):
        dispatcher._cache = _KernelCache(plain, folder)
    return cast("Callable[P, R]", dispatcher)


# --------------------------------------------------------------------------- instructions


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
#: The number of events between a prefetch and the use of the memory.
AHEAD = 6


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
