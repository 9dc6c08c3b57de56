"""Files: written whole or not at all, never over an input, a device or a link; archives read with a limit."""

from __future__ import annotations

import contextlib
import errno
import lzma
import math
import os
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from adfs.errors import AdfsError, FileError, InputError

if TYPE_CHECKING:
    import numpy as np

AnyPath: TypeAlias = str | os.PathLike[str]
#: An object of JSON: what is read from a file, or will be written to one.
JsonObject: TypeAlias = dict[str, Any]

# Reasons for which the name that was given is wrong, rather than the disk or the network behind it.
_WRONG_NAME = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


def write_whole(
    path: AnyPath, content: bytes | str | Callable[[IO[bytes]], object], *, make_folder: bool = False
) -> None:
    """Replace a file by new content, or leave it as it was.

    A reader finds the old content or the new, never a part. A link stays a link, its target is written. What
    is no regular file (a device, a FIFO, this process's standard output) is written to as it is. Text is
    written as UTF-8; a function is given the open binary stream and writes into it. When the disk is full or
    the folder is missing (and not to be made), the error is a `FileError`, and a `BrokenPipeError` for a pipe
    whose reader has gone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", "hello")
    ...     Path(f"{folder}/a.txt").read_text()
    'hello'
    """
    kept = ""
    try:
        if make_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        found = _status(path)
        if found is not None and _is_own_output(found):
            with _own_output(found) as stream:
                _write(stream, content)
        elif found is not None and not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            with Path(path).open("wb") as stream:
                _write(stream, content)
        else:
            if found is not None:
                kept = "; what stood there before is unchanged"
            _replace(os.path.realpath(path), content, found)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}{kept}") from None


def _write(stream: IO[bytes], content: bytes | str | Callable[[IO[bytes]], object]) -> None:
    if callable(content):
        content(stream)
    else:
        stream.write(content.encode() if isinstance(content, str) else content)


def _replace(
    path: str, content: bytes | str | Callable[[IO[bytes]], object], old: os.stat_result | None
) -> None:
    """Write a file beside, force it to the disk, and move it into place."""
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # Opened with the mode that any new file has, so that the umask applies. The name is short whatever the
    # name of the file is, which may have the longest length that there is.
    temporary = Path(path).parent / f".adfs-{os.urandom(8).hex()}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if old is not None:
                _keep_owner_and_mode(handle, old)
            _write(stream, content)
            stream.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _keep_owner_and_mode(handle: int, old: os.stat_result) -> None:
    with contextlib.suppress(OSError):  # only root may give files away
        os.fchown(handle, old.st_uid, old.st_gid)
    with contextlib.suppress(OSError):  # some network disks have no modes
        os.fchmod(handle, stat.S_IMODE(old.st_mode))


def _status(path: AnyPath) -> os.stat_result | None:
    """Return what a path leads to, None where there is nothing."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _is_own_output(found: os.stat_result) -> bool:
    return any(_leads_to(handle, found) for handle in (1, 2))


def _leads_to(handle: int, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), found)
    except OSError:  # closed
        return False


@contextlib.contextmanager
def _own_output(found: os.stat_result) -> Iterator[IO[bytes]]:
    """Open standard output (or error) again after what was printed so far, wherever the shell sent it."""
    for printed in (sys.stdout, sys.stderr):
        if printed is not None:  # closed by whoever started us
            printed.flush()
    handle = next(handle for handle in (1, 2) if _leads_to(handle, found))
    with os.fdopen(os.dup(handle), "wb") as stream:
        yield stream


def check_writable(path: AnyPath) -> None:
    """Raise unless a file could be written there: asked before the work whose result goes into it."""
    path = Path(path)
    try:
        found = _status(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise InputError(f"cannot write {path}: it is a directory")
    if found is not None and not os.access(path, os.W_OK) and not _is_own_output(found):
        raise InputError(f"cannot write {path}: no permission to write to it")
    if found is not None and not stat.S_ISREG(found.st_mode):
        return
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write into {folder}")


def check_folder(path: AnyPath) -> None:
    """Raise unless there is a folder that can be written into, or one could be made."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"cannot write into {path}: it is a file, and a folder is needed")
    above = path if path.exists() else path.parent
    if not above.is_dir():
        raise InputError(f"cannot write into {path}: there is no directory {above}")
    if not os.access(above, os.W_OK):
        raise InputError(f"cannot write into {path}: no permission to write into {above}")


def check_outputs(
    inputs: Mapping[str, AnyPath | Sequence[AnyPath] | None],
    outputs: Mapping[str, AnyPath | None],
    *,
    folders: Mapping[str, AnyPath | None] | None = None,
) -> None:
    """Raise unless the outputs can be written and are none of the inputs, nor one another.

    All by the option or argument that says them (``"FILE"``, ``"--out"``), None where it was not given:
    what is read, the files that will be written, the folders that will be written into.
    """
    taken: list[tuple[str, AnyPath]] = []
    for name, given in inputs.items():
        several = [given] if isinstance(given, str | os.PathLike) else given or []
        taken += [(name, path) for path in several]
    for name, path in [*outputs.items(), *(folders or {}).items()]:
        if path is None:
            continue
        for other, other_path in taken:
            if _same_file(path, other_path):
                where = f"{path}" if str(path) == str(other_path) else f"{path} and {other_path}"
                raise InputError(
                    f"{name} and {other} are the same file ({where}), which would be overwritten; "
                    f"give {name} another name"
                )
        taken.append((name, path))
    for path in outputs.values():
        if path is not None:
            check_writable(path)
    for path in (folders or {}).values():
        if path is not None:
            check_folder(path)


def _same_file(one: AnyPath, other: AnyPath) -> bool:
    """Whether two names, through links of either kind, are one file; devices and pipes may be shared."""
    try:
        first, second = _status(one), _status(other)
    except OSError:  # told by whoever opens it
        return False
    if first is None or second is None:
        return first is second and os.path.realpath(one) == os.path.realpath(other)
    shared = not (stat.S_ISREG(first.st_mode) or stat.S_ISDIR(first.st_mode))
    return not shared and os.path.samestat(first, second)


def reading_error(path: AnyPath, error: OSError) -> AdfsError:
    """Build the error for a file that cannot be read: a wrong name, or a disk that fails."""
    kind = InputError if error.errno in _WRONG_NAME else FileError
    return kind(f"cannot read {path}: {error.strerror or error}")


def read_arrays(
    stream: IO[bytes], most_bytes: int, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Read the arrays of a NumPy archive, or those of some names, if they take at most so much memory.

    A file may say anything of its sizes. They are added up from the arrays' headers, and compared with the
    sizes of the archive's entries, before any array is unpacked. Whatever is wrong is a `ValueError`.
    """
    from numpy.lib import format as npy

    try:
        with zipfile.ZipFile(stream) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            if names is not None:
                entries = {name: entry for name, entry in entries.items() if name in names}
            needed = 0
            for name, entry in entries.items():
                with archive.open(entry) as member:
                    old = npy.read_magic(member) == (1, 0)
                    header = npy.read_array_header_1_0(member) if old else npy.read_array_header_2_0(member)
                    shape, _, kind = header
                    size = math.prod(shape) * kind.itemsize
                    if kind.hasobject:
                        raise ValueError(f"the array {name!r} holds Python objects, which are never loaded")
                    if size != entry.file_size - member.tell():
                        raise ValueError(f"the array {name!r} is not as large as it says")
                needed += size
            if needed > most_bytes:
                raise ValueError(
                    f"its arrays would take {needed / 1e9:.3g} GB of memory, and those of this file may take "
                    f"{most_bytes / 1e9:.3g}; save rows of zeros as a sparse matrix"
                )
            arrays = {}
            for name, entry in entries.items():
                with archive.open(entry) as member:
                    arrays[name] = npy.read_array(member, allow_pickle=False)
            return arrays
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError("it is damaged or cut short") from error
    except (
        KeyError,
        RuntimeError,
        OverflowError,
        MemoryError,
    ) as error:  # encrypted, or packed in other ways
        raise ValueError(str(error) or type(error).__name__) from error
