"""Files: written whole or not at all, read decompressed and with a limit of memory, modules by path."""

from __future__ import annotations

import bz2
import contextlib
import errno
import functools
import gzip
import hashlib
import importlib.util
import io
import lzma
import math
import os
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from adfs.errors import AdfsError, FileError, InputError

if TYPE_CHECKING:
    import numpy as np

AnyPath: TypeAlias = str | os.PathLike[str]
#: An object of JSON, read from a file or to be written to one.
JsonObject: TypeAlias = dict[str, Any]
Content: TypeAlias = bytes | str | Callable[[IO[bytes]], object]

# Errors of a wrong name, rather than of the disk or the network behind it.
_WRONG_NAME = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)

#: Endings of compressed files. Whether a file is compressed is decided by its first bytes.
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def _open_zstd(raw: IO[bytes], mode: str) -> IO[bytes]:
    """Return the decompressed content of a file; the content is held in memory, because some seek in it."""
    try:
        import pyarrow
    except ImportError:
        raise InputError("reading files compressed with zstd needs pyarrow: pip install pyarrow") from None
    return io.BytesIO(pyarrow.CompressedInputStream(raw, "zstd").read())


_MAGIC: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def write_whole(path: AnyPath, content: Content, *, make_folder: bool = False) -> None:
    """Replace a file by new content, or leave it as it was.

    A reader sees the old content or the new, never a part. For a link, the target is replaced. A device, a
    FIFO and this process's standard output are written to directly. Text is written as UTF-8; a function is
    given the open binary stream and writes into it. A full disk or a missing folder (unless ``make_folder``)
    raises a `FileError`, a pipe whose reader has ended a `BrokenPipeError`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/a.txt", "hello")
    ...     Path(f"{folder}/a.txt").read_text()
    'hello'
    """
    unchanged = ""
    try:
        if make_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        old = _status(path)
        # A device or a pipe cannot be replaced, and standard output goes on after this file.
        if old is not None and (_output_handle(old) is not None or _is_special(old)):
            with _open_directly(path, old) as stream:
                _write(stream, content)
        else:
            if old is not None:
                unchanged = "; what stood there before is unchanged"
            _replace(os.path.realpath(path), content, old)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}{unchanged}") from None


def _write(stream: IO[bytes], content: Content) -> None:
    if callable(content):
        content(stream)
    else:
        stream.write(content.encode() if isinstance(content, str) else content)


def _replace(path: str, content: Content, old: os.stat_result | None) -> None:
    """Write a temporary file, force it to the disk, and rename it."""
    # The mode of a new file follows the umask. The temporary name is short, because the file's own name may
    # have the greatest length that the disk allows.
    temporary = Path(path).parent / f".adfs-{os.urandom(8).hex()}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if old is not None:
                with contextlib.suppress(OSError):  # only root may change owners
                    os.fchown(handle, old.st_uid, old.st_gid)
                with contextlib.suppress(OSError):  # some network disks have no modes
                    os.fchmod(handle, stat.S_IMODE(old.st_mode))
            _write(stream, content)
            stream.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _status(path: AnyPath) -> os.stat_result | None:
    """Return the status of a file, through links; None where there is no file."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _is_special(status: os.stat_result) -> bool:
    """Whether it is a device, a pipe or a socket, neither a regular file nor a folder."""
    return not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


def _output_handle(status: os.stat_result) -> int | None:
    """Return 1 or 2 when the file is this process's standard output or error, else None."""
    for handle in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if os.path.samestat(os.fstat(handle), status):
                return handle
    return None


def _open_directly(path: AnyPath, status: os.stat_result) -> IO[bytes]:
    """Open a special file, or standard output after everything that was printed so far."""
    handle = _output_handle(status)
    if handle is None:
        return Path(path).open("wb")
    for printed in (sys.stdout, sys.stderr):
        if printed is not None:  # closed by the parent process
            printed.flush()
    return os.fdopen(os.dup(handle), "wb")


def check_writable(path: AnyPath, *, as_folder: bool = False) -> None:
    """Raise unless a file can be written there, or files into a folder, which may have to be made.

    It is called before the work whose result the file holds.
    """
    path = Path(path)
    refusal = f"cannot write into {path}" if as_folder else f"cannot write {path}"
    try:
        old = _status(path)
    except OSError as error:
        raise InputError(f"{refusal}: {error.strerror or error}") from None
    is_folder = old is not None and stat.S_ISDIR(old.st_mode)
    if as_folder:
        if old is not None and not is_folder:
            raise InputError(f"{refusal}: it is a file, and a folder is needed")
        folder = path if is_folder else path.parent
    else:
        if is_folder:
            raise InputError(f"{refusal}: it is a directory")
        if old is not None and not os.access(path, os.W_OK) and _output_handle(old) is None:
            raise InputError(f"{refusal}: no permission to write to it")
        if old is not None and _is_special(old):
            return
        # A regular file is replaced by a new one in the folder of its target.
        folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise InputError(f"{refusal}: there is no directory {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{refusal}: no permission to write into {folder}")


def check_outputs(
    inputs: Mapping[str, AnyPath | Sequence[AnyPath] | None],
    outputs: Mapping[str, AnyPath | None],
    *,
    folders: Mapping[str, AnyPath | None] | None = None,
) -> None:
    """Raise unless all outputs can be written, and differ from each other and from the inputs.

    Each mapping goes from the name of an option or argument (``"FILE"``, ``"--out"``) to its path, None where
    it was not given: the files to read, the files to write, and the folders to write into.
    """
    folders = folders or {}
    # Compare each output with all inputs and with the outputs before it.
    others: list[tuple[str, AnyPath]] = []
    for name, given in inputs.items():
        paths = [given] if isinstance(given, str | os.PathLike) else given or []
        others += [(name, path) for path in paths]
    for name, path in [*outputs.items(), *folders.items()]:
        if path is None:
            continue
        for other, other_path in others:
            if _same_file(path, other_path):
                where = f"{path}" if str(path) == str(other_path) else f"{path} and {other_path}"
                raise InputError(
                    f"{name} and {other} are the same file ({where}), which would be overwritten; "
                    f"give {name} another name"
                )
        others.append((name, path))
        check_writable(path, as_folder=name in folders)


def _same_file(one: AnyPath, other: AnyPath) -> bool:
    """Whether two names, through links of either kind, are one file; devices and pipes may be shared."""
    try:
        first, second = _status(one), _status(other)
    except OSError:  # opening it will give the reason
        return False
    # Files that do not exist yet have names only.
    if first is None or second is None:
        return first is second and os.path.realpath(one) == os.path.realpath(other)
    return not _is_special(first) and os.path.samestat(first, second)


def reading_error(path: AnyPath, error: OSError) -> AdfsError:
    """Return the error for a file that cannot be read: an `InputError` if its name is wrong."""
    kind = InputError if error.errno in _WRONG_NAME else FileError
    return kind(f"cannot read {path}: {error.strerror or error}")


@functools.lru_cache(maxsize=1)
def _input_content(stream: Any) -> bytes:
    """Return the content of standard input, which is read once and may be opened again."""
    return bytes(stream.buffer.read())


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed; an error while it is open becomes an `InputError`.

    The file ``-`` is standard input.
    """
    try:
        with io.BytesIO(_input_content(sys.stdin)) if str(path) == "-" else path.open("rb") as raw:
            if not raw.seekable():
                raise InputError(f"{path} is a pipe, which can be read once only; save it to a file first")
            # The first bytes say whether and how the file is compressed.
            head = raw.read(6)
            if not head:
                raise InputError(f"{path} is empty")
            raw.seek(0)
            opener = next((opener for magic, opener in _MAGIC.items() if head.startswith(magic)), None)
            if opener is None:
                yield raw
                return
            with opener(raw, "rb") as stream:
                yield stream
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} is cut short or damaged, it cannot be decompressed: {error}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; give the files in it") from None
    except OSError as error:
        if error.errno is None:  # how gzip and bz2 report damage
            raise InputError(f"cannot read {path}: it is cut short or damaged ({error})") from None
        raise reading_error(path, error) from None


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of its container."""
    # A container may allow less than the machine has.
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def read_arrays(
    stream: IO[bytes], most_bytes: int, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Read the arrays of a NumPy archive (or those with some names) if they fit into ``most_bytes``.

    A file may declare any size. The declared sizes are compared with the sizes of the archive's entries, and
    added up, before any array is unpacked. Any defect of the file raises a `ValueError`.
    """
    # Imported here, because most users of this module read no arrays.
    from numpy.lib import format as npy

    try:
        with zipfile.ZipFile(stream) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            entries = {name: entry for name, entry in entries.items() if names is None or name in names}
            # Read the headers first: an array must have the size of its entry, and all of them must fit.
            for name, entry in entries.items():
                with archive.open(entry) as member:
                    first_version = npy.read_magic(member) == (1, 0)
                    read_header = npy.read_array_header_1_0 if first_version else npy.read_array_header_2_0
                    shape, _, kind = read_header(member)
                    if kind.hasobject:
                        raise ValueError(f"the array {name!r} holds Python objects, which are never loaded")
                    if math.prod(shape) * kind.itemsize != entry.file_size - member.tell():
                        raise ValueError(f"the array {name!r} is not as large as it says")
            needed = sum(entry.file_size for entry in entries.values())
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
    except (KeyError, RuntimeError, OverflowError, MemoryError) as error:  # encrypted, or an unknown packing
        raise ValueError(str(error) or type(error).__name__) from error


def load_modules(names: Iterable[str]) -> None:
    """Import modules by name, or .py files by path; a file is imported once."""
    for name in names:
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
                continue
            # Files of the same name in different folders get different modules.
            path = Path(name).resolve()
            alias = f"_adfs_import_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            spec = importlib.util.spec_from_file_location(alias, path)
            if alias not in sys.modules and spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules[alias] = module
                spec.loader.exec_module(module)
        except (ImportError, OSError) as error:
            raise InputError(f"cannot import {name!r}: {error}") from None
