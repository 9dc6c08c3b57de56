"""Opening a file of samples: compression by its first bytes, and one sentence for whatever goes wrong."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adfs.errors import InputError
from adfs.files import reading_error

__all__ = ["COMPRESSED_SUFFIXES", "open_bytes"]

#: Endings that say how a file is compressed; what it is said by its first bytes.
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz")
_MAGIC: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed; failures while it is open become an `InputError`."""
    try:
        with path.open("rb") as raw:
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
