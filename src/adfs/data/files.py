"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from adfs.errors import InputError

__all__ = ["check_folder", "check_writable", "write_text"]


def check_writable(path: Path) -> None:
    """Raise unless a file could be written there: asked before the work whose result goes into it."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write into {folder}")


def check_folder(path: Path) -> None:
    """Raise unless there is a folder that can be written into, or one could be made."""
    if path.exists() and not path.is_dir():
        raise InputError(f"cannot write into {path}: it is a file, and a folder is needed")
    above = path if path.exists() else path.parent
    if not above.is_dir():
        raise InputError(f"cannot write into {path}: there is no directory {above}")
    if not os.access(above, os.W_OK):
        raise InputError(f"cannot write into {path}: no permission to write into {above}")


def write_text(path: Path, text: str) -> None:
    """Replace a file by new text, or leave it as it was."""
    check_writable(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files for the owner alone; a result is as readable as the user's other files.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed there"
        ) from None
