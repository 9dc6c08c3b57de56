"""The decorator of every compiled kernel, with numba's disk cache made to notice what numba's own does not.

numba keys a cached kernel on the file that holds it. Our kernels inline losses and row operations from
other files, so an edit there would go unnoticed. Here one stamp over the sources that kernels are made from
(all but the folders that hold none) names the folder that they are kept in. What that stamp cannot cover is
not kept: functions from outside the package, and signatures that hold a type from outside it, such as a
user's own loss. Two instructions that Python has no word for stand at the end.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import math
import os
import pickle
import re
import shutil
import sys
import time
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
from numba.core import event as compiler_events
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

#: The same for every kernel. No fastmath: the same schedule gives the same bits in every runtime.
OPTIONS: dict[str, object] = {
    "fastmath": False,
    "boundscheck": False,
    "error_model": "numpy",
    "nogil": True,
    # Nothing calls a kernel by its address in C, and the entry for that is a tenth of a compilation.
    "no_cfunc_wrapper": True,
}

_PACKAGE = Path(__file__).parent
# A type built from these is the same type as long as their versions are, and those are in every entry's name.
_KNOWN_PACKAGES = frozenset({_PACKAGE.name, "builtins", "numba", "numpy"})
_FOLDERS_KEPT = 12


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call for each signature, and keep the machine code on disk.

    numba must be able to compile it without the interpreter. Its Python form stays reachable as ``py_func``.

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
    """Compile a function that makes no arrays, without counting references to those it is given.

    numba counts them atomically, inside the loop when arrays sit in named tuples; for a step of a hundred
    nanoseconds that is more than the work. The caller holds the arrays while the kernel runs.
    """
    return _with_cache(numba.njit(**OPTIONS, _nrt=False)(function), function)


def _with_cache(dispatcher: Any, function: Callable[P, R]) -> Callable[P, R]:
    plain = cast(FunctionType, function)
    ours = plain.__module__.partition(".")[0] == _PACKAGE.name
    # What a function closes over may come from anywhere: the stamp cannot cover it.
    covered = ours and plain.__closure__ is None and _folder() is not None
    # With NUMBA_DISABLE_JIT=1 numba hands the function back as it was.
    if covered and isinstance(dispatcher, Dispatcher):
        dispatcher._cache = _KernelCache(plain)
    return cast("Callable[P, R]", dispatcher)


def inlined(function: F) -> F:
    """Compile a small function into whatever calls it.

    LLVM leaves a function that takes many arrays as a call, which costs more than the work of a step, and a
    loop that holds a call is not vectorised. Such a function makes no arrays (see `kernel`), and is kept on
    disk inside the kernels that use it. Called from Python it is the Python function: an entry to its machine
    code would cost more than that code, for each loss and kind of rows.
    """
    dispatcher = numba.njit(forceinline=True, _nrt=False, no_cpython_wrapper=True, **OPTIONS)(function)
    if isinstance(dispatcher, Dispatcher):
        # The part of numba that takes calls from Python is told of no compiled form, and asks for one.
        dispatcher._insert = lambda *compiled_form: None
        dispatcher._compile_for_args = lambda *arguments, **named: function
    return cast(F, dispatcher)


def overloads(target: Callable[..., object]) -> Callable[[F], F]:
    """Say what a Python function is in compiled code: numba's ``overload`` with the options of `compiled`.

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
    # Not `strict`: numba would want the same annotations on the function of types and on the implementation.
    options = {**OPTIONS, "forceinline": True}
    register = numba.extending.overload(target, jit_options=options, strict=False)
    return cast("Callable[[F], F]", register)


class _Place(_CacheLocator):  # type: ignore[misc]
    """Where kernels are kept, in the shape that numba expects."""

    def __init__(self, function: FunctionType) -> None:
        self._py_file = function.__code__.co_filename  # numba's warnings name it

    def get_cache_path(self) -> str:
        return str(_folder())

    def get_source_stamp(self) -> None:
        """Say nothing: the name of the folder is the stamp."""

    def get_disambiguator(self) -> str:
        return ""

    def ensure_cache_path(self) -> None:
        """Make the folder; a new one takes the place of those that have been unused for longest."""
        folder = Path(self.get_cache_path())
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.exists():
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        # A process that still uses an old one loses nothing but the next start's time.
        by_age = sorted(folder.parent.glob("*-numba*"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-_FOLDERS_KEPT]:
            shutil.rmtree(path, ignore_errors=True)


class _Results(CompileResultCacheImpl):  # type: ignore[misc]
    """How numba turns what it compiled into bytes and back, for one function."""

    def __init__(self, function: FunctionType) -> None:
        # Not numba's own, which looks for a place by the source file, or as NUMBA_CACHE_LOCATOR_CLASSES says.
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Place(function)
        self._filename_base = re.sub(r"[^\w.]", "", f"{function.__module__}.{function.__qualname__}")


class _OneFilePerSignature(IndexDataCacheFile):  # type: ignore[misc]
    """Files that are either whole and right or absent, however many processes (one per rank) write at once.

    numba reads its index, adds a line and writes it back: of two processes that do so together, one could
    find the other's machine code under its own signature. So there is no index; a file's name is its key.
    """

    def load(self, key: str | None) -> Any:
        """Return what was saved, or None when there is nothing or it is damaged."""
        if key is None:
            return None
        path = Path(self._cache_path, key)
        _refuse_what_others_may_write(path.parent.parent)
        content = path.read_bytes()
        digest, body = content[:32], content[32:]
        # After a full disk or a machine that went down: a wrong bit in machine code would end the process.
        return pickle.loads(body) if hashlib.sha256(body).digest() == digest else None

    def save(self, key: str, data: Any) -> None:
        """Write one file whole: it is moved into place when it is complete."""
        path = Path(self._cache_path, key)
        _refuse_what_others_may_write(path.parent.parent)
        body = self._dump(data)
        with self._open_for_write(str(path)) as file:
            file.write(hashlib.sha256(body).digest() + body)


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of one function, but for the names of the files and what may be kept in them."""

    _impl_class = _Results

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        self._cache_file = _OneFilePerSignature(self._cache_path, self._impl.filename_base, None)

    def flush(self) -> None:
        """Leave the disk alone: numba's ``recompile`` wants the function compiled in this process."""
        self.disable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Bring back the compiled form for a signature, or None."""
        # What machine code may call. numba's own refreshes the whole context here, with all it knows of
        # Python and NumPy: a tenth of a second and more, and only the compiler wants it, which asks for it.
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled form of a signature, if it may be kept (if not, numba need not warn of it)."""
        if self._index_key(sig, data.codegen) is not None:
            super().save_overload(sig, data)

    def _guard_against_spurious_io_errors(self) -> suppress:
        return suppress(OSError)  # a disk that refuses costs time and is not an error

    def _index_key(self, sig: Any, codegen: Any) -> str | None:
        """Return the name of the file of a signature, or None when it must not be kept."""
        signature = sigutils.normalize_signature(sig)
        classes = list(_python_objects(signature))
        # When sources changed since this process started, what it runs may be neither the old nor the new.
        # Looked up every half second: a start loads a score of kernels, and a network's disk is slow to ask.
        moment = time.monotonic() // 0.5
        if not all(map(_is_known, classes)) or _file_times(moment) != _FILE_TIMES_AT_IMPORT:
            return None
        key = (
            super()._index_key(signature, codegen),  # also has the processor and the function's byte code
            [f"{value.__module__}.{value.__qualname__}" for value in classes],
            (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__),
            (numba.config.OPT, numba.config.BOUNDSCHECK),
        )
        return f"{self._impl.filename_base}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.kernel"


def _python_objects(value: Any, seen: set[Any] | None = None) -> Iterator[Any]:
    """Yield the Python classes and functions that a numba type is built on, however deep."""
    seen = set() if seen is None else seen
    if isinstance(value, type | FunctionType | Dispatcher):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _python_objects(item, seen)
    elif isinstance(value, dict):
        yield from _python_objects([*value.keys(), *value.values()], seen)
    elif isinstance(value, types.Type) and value not in seen:
        seen.add(value)  # a recursive type refers to itself
        yield from _python_objects([type(value), vars(value)], seen)


def _is_known(value: Any) -> bool:
    # A function in a signature has an address in its name and would never be found again.
    return isinstance(value, type) and value.__module__.partition(".")[0] in _KNOWN_PACKAGES


@functools.lru_cache(maxsize=1)
def _file_times(_moment: float) -> list[tuple[int, int]] | None:
    """Tell cheaply whether a source has changed; asked again for the same moment, without looking."""
    try:
        return [(status.st_mtime_ns, status.st_size) for status in map(os.stat, _SOURCES)]
    except OSError:  # removed meanwhile
        return None


# No kernel is defined in these, or made from anything that is.
_WITHOUT_KERNELS = frozenset({"cli", "data", "estimators", "experiments", "pages", "planning"})
_SOURCES = sorted(
    path
    for path in _PACKAGE.rglob("*.py")
    if path.is_file() and path.relative_to(_PACKAGE).parts[0] not in _WITHOUT_KERNELS
)
_FILE_TIMES_AT_IMPORT = _file_times(-1.0)


@functools.cache
def _folder() -> Path | None:
    """Return the folder of these sources, whether or not it is there; None when they cannot be read."""
    if numba.config.CACHE_DIR:
        root = Path(numba.config.CACHE_DIR).absolute() / "adfs-kernels"
    else:
        root = Path(AppDirs("adfs", appauthor=False).user_cache_dir) / "kernels"
    stamp = hashlib.sha256()
    try:
        for path in _SOURCES:
            stamp.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            stamp.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return None
    if not _SOURCES or not root.is_absolute():  # inside an archive; a user without a home
        return None
    folder = root / f"{stamp.hexdigest()[:16]}-numba{numba.__version__}"
    with suppress(OSError):
        os.utime(folder)  # its time of last use
    return folder


class _WithoutCollections(compiler_events.Listener):  # type: ignore[misc]
    """Keeps Python's collector from going through all that numba makes: it is a seventh of a compilation."""

    def __init__(self) -> None:
        self._depth, self._was_enabled = 0, False

    def on_start(self, event: object) -> None:
        """Pause it when the outermost function begins; the compiler's lock keeps other threads away."""
        if not self._depth:
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: object) -> None:
        """Let it go on, also after an error."""
        self._depth -= 1
        if not self._depth and self._was_enabled:
            gc.enable()


compiler_events.register("numba:compile", _WithoutCollections())


def _refuse_what_others_may_write(root: Path) -> None:
    """Raise an OSError for a folder that another user can write to: machine code is run as it is read."""
    status = root.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise PermissionError(f"{root} can be written to by others")


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
