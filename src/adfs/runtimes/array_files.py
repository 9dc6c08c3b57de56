"""Files of ours: a magic line, a checksum, a readable header, plain arrays. Nothing in them can run code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adfs.errors import InputError
from adfs.files import JsonObject, reading_error, write_whole

_MAGIC = b"adfs-file 1 "
_DIGEST = 64


def write_container(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, object], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a header (what JSON can hold) and arrays (numbers, booleans, text) to one file, atomically.

    ``kind`` is what the file is, for instance ``"run"``; readers ask for it.
    """
    buffer = io.BytesIO()
    np.savez(
        buffer, allow_pickle=False, **{f"array/{name}": np.asarray(value) for name, value in arrays.items()}
    )
    text = json.dumps(dict(header), sort_keys=True).encode()
    body = len(text).to_bytes(8, "big") + text + buffer.getvalue()
    content = _MAGIC + kind.encode() + b"\n" + hashlib.sha256(body).hexdigest().encode() + body
    write_whole(path, content, make_folder=True)


def read_container(path: str | os.PathLike[str], kind: str) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Read a file of a kind back as its header and arrays; refuse anything else with one sentence."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path} is a directory, not an adfs {kind} file") from None
    except OSError as error:
        raise reading_error(path, error) from None
    line, newline, rest = content.partition(b"\n")
    if not line.startswith(_MAGIC) or not newline:
        raise InputError(f"{path} is not an adfs {kind} file")
    found = line[len(_MAGIC) :].decode(errors="replace")
    if found != kind:
        raise InputError(f"{path} is an adfs {found} file, not a {kind} file")
    digest, body = rest[:_DIGEST], rest[_DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise InputError(f"{path} is damaged or was cut short (its checksum does not match); use another one")
    try:
        size = int.from_bytes(body[:8], "big")
        header = json.loads(body[8 : 8 + size])
        with np.load(io.BytesIO(body[8 + size :]), allow_pickle=False) as saved:
            arrays = {name.removeprefix("array/"): saved[name] for name in saved.files}
    except (ValueError, zipfile.BadZipFile, KeyError):
        raise InputError(f"{path} cannot be read as an adfs {kind} file") from None
    return header, arrays
