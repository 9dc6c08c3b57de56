"""The decorator of every compiled kernel, with a disk cache that notices what numba's own does not.

numba keys a cached kernel on the file that holds it. Our kernels inline losses and row operations from
other files, so an edit there would go unnoticed. Here one stamp over all the sources of the package names the
folder that the kernels are kept in. What that stamp cannot cover is not kept: functions from outside the
package, and signatures that hold a type from outside it, such as a user's own loss.

Each kernel and signature has a file of its own, written whole and moved into place. Processes that start
together (one a rank) therefore never share an index, and an entry is either right or absent.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite.binding
import numba
import numba.extending
import numpy as np
from numba.core import sigutils
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

__all__ = ["compiled", "inlined", "kernel", "overloads"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

#: The same for every kernel. No fastmath: the same schedule gives the same bits in every runtime.
OPTIONS: dict[str, object] = {
    "fastmath": False,
    "boundscheck": False,
    "error_model": "numpy",
    "nogil": True,
}

_PACKAGE = Path(__file__).parent
_PACKAGE_NAME = __name__.partition(".")[0]
# A type built from these is the same type as long as their versions are, and those are in every entry's key.
_KNOWN_PACKAGES = frozenset({_PACKAGE_NAME, "builtins", "numba", "numpy"})

_FOLDER_NAME = re.compile(r"[0-9a-f]{16}-numba.+")
_FOLDERS_KEPT = 12
_HOUR, _DAY = 3600.0, 86400.0
_DIGEST_BYTES = hashlib.sha256().digest_size


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call for each signature, and keep the machine code on disk.

    Parameters
    ----------
    function : callable
        A function that numba can compile without the interpreter. Its Python form stays reachable as
        ``py_func``.

    Returns
    -------
    callable
        The compiled function, of the same type.

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
    # With NUMBA_DISABLE_JIT=1 numba hands the function back as it was.
    if isinstance(dispatcher, Dispatcher):
        dispatcher._cache = KernelCache(cast(FunctionType, function))
    return cast("Callable[P, R]", dispatcher)


def inlined(function: F) -> F:
    """Compile a small function into whatever calls it.

    LLVM leaves a function that takes many arrays as a call, which costs more than the work of a step, and a
    loop that holds a call is not vectorised. Such a function makes no arrays (see `kernel`), and is kept on
    disk inside the kernels that use it.
    """
    return cast(F, numba.njit(forceinline=True, _nrt=False, **OPTIONS)(function))


def overloads(target: Callable[..., object]) -> Callable[[F], F]:
    """Say what a Python function is in compiled code: numba's ``overload`` with the options of `compiled`.

    Parameters
    ----------
    target : callable
        The function that compiled code will call by its name.

    Returns
    -------
    callable
        A decorator for a function of the arguments' numba types that returns the implementation, or None
        where it has none.

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


class KernelCache:
    """The machine code of one function on disk, in the shape that a numba dispatcher expects of its cache.

    Parameters
    ----------
    function : function
        The Python function.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._enabled = function.__module__.partition(".")[0] == _PACKAGE_NAME

    @property
    def cache_path(self) -> str | None:
        """The folder of the cache, or None where there is none."""
        folder = _folder() if self._enabled else None
        return None if folder is None else str(folder)

    def enable(self) -> None:
        """Use the disk from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Leave the disk alone from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Forget this function's entries (numba's ``recompile`` asks for it)."""
        folder = _folder() if self._enabled else None
        for path in [] if folder is None else folder.glob(f"{self._name()}-*.kernel"):
            path.unlink(missing_ok=True)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Bring back the compiled form for a signature.

        Parameters
        ----------
        signature : tuple of numba types, or a numba Signature
        target : numba target context

        Returns
        -------
        CompileResult or None
            None when there is no entry, or none that is intact.
        """
        entry = self._entry(signature, target.codegen())
        if entry is None:
            return None
        path, key = entry
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:  # a full disk, a machine that went down
            return None
        saved_key, payload = pickle.loads(body)
        # What machine code may call. numba's own cache refreshes the whole context here, with all it knows of
        # Python and NumPy: a tenth of a second and more, and only the compiler wants it, which asks for it.
        rtsys.initialize(target)
        return CompileResult._rebuild(target, *payload) if saved_key == key else None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep the compiled form of a signature; a disk that refuses is not an error.

        Parameters
        ----------
        signature : tuple of numba types, or a numba Signature
        result : CompileResult
        """
        entry = self._entry(signature, result.codegen)
        if entry is None:
            return
        if result.library.has_dynamic_globals or any(not lifted.can_cache for lifted in result.lifted):
            warnings.warn(
                f"{self._name()} is compiled anew in every process: it holds an address or a large array",
                numba.NumbaWarning,
                stacklevel=2,
            )
            return
        path, key = entry
        body = dumps((key, result._reduce()))
        try:
            _write_whole(path, hashlib.sha256(body).digest() + body)
        except OSError:
            self.disable()

    def _name(self) -> str:
        name = f"{self._function.__module__}.{self._function.__qualname__}"
        return re.sub(r"[^\w.]", "_", name.removeprefix(f"{_PACKAGE_NAME}."))

    def _entry(self, signature: Any, codegen: Any) -> tuple[Path, str] | None:
        """Where a signature's entry is and the key it must carry; None when it must not be kept."""
        if not self._enabled:
            return None
        arguments, result = sigutils.normalize_signature(signature)
        outside = list(_python_objects((arguments, result)))
        closure = _closure_values(self._function)
        if closure is None or not all(_is_known(value) for value in outside):
            return None
        folder = _folder()
        if folder is None or not _sources_are_the_same():
            # Sources changed since this process started: what it runs may be neither the old nor the new.
            return None
        code = self._function.__code__
        key = repr(
            (
                self._name(),
                code.co_firstlineno,
                hashlib.sha256(code.co_code).hexdigest(),
                closure,
                arguments,
                result,
                [f"{value.__module__}.{value.__qualname__}" for value in outside],
                codegen.magic_tuple(),
                (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__),
                (numba.config.OPT, numba.config.BOUNDSCHECK),
            )
        )
        name = f"{self._name()[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.kernel"
        return folder / name, key


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
    elif isinstance(value, numba.types.Type) and value not in seen:
        seen.add(value)  # a recursive type refers to itself
        yield from _python_objects(vars(value), seen)


def _is_known(value: Any) -> bool:
    # A function in a signature has an address in its name and would never be found again.
    return isinstance(value, type) and value.__module__.partition(".")[0] in _KNOWN_PACKAGES


def _closure_values(function: FunctionType) -> list[str] | None:
    """Return what a function closes over as text, or None when that does not identify it."""
    values = []
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet: the function refers to itself
            return None
        if not isinstance(value, bool | int | float | complex | str | None):
            return None
        values.append(repr(value))
    return values


def _sources() -> list[Path]:
    """List the files that compiled code may come from: all but the rooms that compile nothing."""
    without = {"cli", "data", "experiments", "estimators"}
    paths = _PACKAGE.rglob("*.py")
    return sorted(path for path in paths if path.relative_to(_PACKAGE).parts[0] not in without)


def _fingerprint() -> list[tuple[str, int, int]]:
    """Tell cheaply whether any source has changed."""
    found = []
    for path in _sources():
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return found


_FINGERPRINT_AT_IMPORT = _fingerprint()


class _Sameness:
    """Whether the sources are still what they were at import; looked up at most every half second."""

    def __init__(self) -> None:
        self._until = 0.0
        self._answer = True

    def __call__(self) -> bool:
        if self._answer and time.monotonic() >= self._until:  # once changed, always changed
            self._answer = _fingerprint() == _FINGERPRINT_AT_IMPORT
            self._until = time.monotonic() + 0.5
        return self._answer


_sources_are_the_same = _Sameness()


@functools.cache
def _stamp() -> str | None:
    """Hash all the sources of the package; None when they cannot be read."""
    stamp = hashlib.sha256()
    paths = _sources()
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        name = path.relative_to(_PACKAGE).as_posix().encode()
        stamp.update(b"%d %s %d " % (len(name), name, len(content)))
        stamp.update(content)
    return stamp.hexdigest() if paths else None


@functools.cache
def _folder() -> Path | None:
    """Return the folder of this version of the sources, numba and processor, made if need be."""
    stamp = _stamp()
    if stamp is None:
        return None
    processor = re.sub(r"\W", "_", llvmlite.binding.get_host_cpu_name())
    name = f"{stamp[:16]}-numba{numba.__version__}-{processor}"
    for root in _roots():
        folder = root / name
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(root):
                continue
            new = not folder.exists()
            folder.mkdir(mode=0o700, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # a folder may exist and refuse
            os.utime(folder)  # its time of last use
        except OSError:
            continue
        if new:
            _prune(root)
        return folder
    return None


def _roots() -> Iterator[Path]:
    """Yield where kernels may be kept, best first."""
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / "adfs-kernels"
    else:
        yield _user_cache() / "adfs" / "kernels"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"adfs-kernels-{user}"


def _user_cache() -> Path:
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home))
    return home / ".cache"


def _is_ours(root: Path) -> bool:
    """Machine code is run as it is read: a folder that another user can write to is refused."""
    if not hasattr(os, "getuid"):
        return True
    status = root.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _prune(root: Path) -> None:
    """Remove the folders of other versions that nobody has used for long.

    A process that still uses one loses nothing but the next start's time: it makes the folder again when it
    saves. So several processes may prune at once.
    """
    now = time.time()
    folders = []
    for path in root.iterdir():
        try:
            if _FOLDER_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                folders.append((now - path.stat().st_mtime, path))
        except OSError:
            continue
    for rank, (age, path) in enumerate(sorted(folders)):
        if age > 30 * _DAY or (rank >= _FOLDERS_KEPT and age > _HOUR):
            shutil.rmtree(path, ignore_errors=True)


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no other process ever sees a part of it."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
