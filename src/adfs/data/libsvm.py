"""LIBSVM text: one sample per line, ``label index:value index:value …``, indices ascending.

The file is read in blocks that end at a line, so that its text is never in memory whole; scikit-learn parses
a block. It takes more for LIBSVM text than we do, so what may be wrong, or is, is looked at line by line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp

from adfs.data.table import Table, open_bytes
from adfs.errors import InputError

_BLOCK = 1 << 23
_LARGEST_INDEX = 2**31 - 2

_NOT_TEXT = re.compile(rb"[^\t-\r -~]")
# Python's numbers may hold underscores; behind a blank stands an index, and begins with a digit.
_SUSPICIOUS = re.compile(rb"_|[ \t][^\s\d]")


def read_libsvm(path: Path) -> Table:
    """Read LIBSVM text, compressed or not; the columns are the indices as they stand in the file."""
    with open_bytes(path) as stream:
        blocks = [_parse(block, line, path) for block, line in _blocks(stream)]
    labels = np.concatenate([y for _, y in blocks]) if blocks else np.empty(0)
    if labels.size == 0:
        raise InputError(f"{path} holds no samples")
    counts = np.concatenate([np.diff(X.indptr) for X, _ in blocks])
    indices = np.concatenate([X.indices for X, _ in blocks])
    values = np.concatenate([X.data for X, _ in blocks])
    if indices.size == 0:
        raise InputError(f"{path} holds labels but no features: expected 'label index:value …' on each line")
    small = indices.size < 2**31
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32 if small else np.int64)
    shape = (labels.size, int(indices.max()) + 1)
    X = sp.csr_array((values, indices.astype(indptr.dtype), indptr), shape=shape)
    return Table(X, labels, None, str(path), lowest_index=int(indices.min()))


def _blocks(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, and the number of the first."""
    line, rest = 1, b""
    while chunk := stream.read(_BLOCK):
        if line == 1 and not rest:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest += chunk
            continue
        block = rest + head + newline
        yield block, line
        line += block.count(b"\n")
        rest = tail
    if rest:
        yield rest, line


def _parse(block: bytes, first_line: int, path: Path) -> tuple[sp.csr_matrix, np.ndarray]:
    """Return the rows and the labels of a block."""
    from sklearn.datasets import load_svmlight_file  # slow to import

    if b"#" in block:
        block = re.sub(rb"#[^\n]*", b"", block)
    odd = _NOT_TEXT.search(block)
    if odd is not None:
        where = first_line + block[: odd.start()].count(b"\n")
        raise InputError(f"{path} is not LIBSVM text: line {where} holds a byte that is not plain text")
    if _SUSPICIOUS.search(block):
        _look_at_lines(block, first_line, path)
    try:
        X, y = load_svmlight_file(io.BytesIO(block), zero_based=True)
    except (ValueError, OverflowError):
        _look_at_lines(block, first_line, path)
        raise InputError(f"{path} is not LIBSVM text: expected 'label index:value …' on each line") from None
    if not (np.isfinite(y).all() and np.isfinite(X.data).all() and X.shape[1] <= _LARGEST_INDEX + 1):
        _look_at_lines(block, first_line, path)
    return X, y


def _look_at_lines(block: bytes, first_line: int, path: Path) -> None:
    """Raise at the first line that is wrong, and say what is wrong with it."""
    for number, text in enumerate(block.decode().split("\n"), start=first_line):
        problem = _fault(text)
        if problem is not None:
            raise InputError(f"{path}: line {number}: {problem}")


def _fault(text: str) -> str | None:
    """Return what is wrong with one line, None when nothing is."""
    words = text.split()
    if not words:
        return None
    label = _number(words[0])
    if label is None:
        if "," in words[0]:
            return f"{_short(words[0])} is not one label: not LIBSVM text, or several labels per sample"
        return f"the label {_short(words[0])} is not a number"
    if not np.isfinite(label):
        return f"the label is {words[0]}; clean the data first"
    previous = -1.0
    for word in words[1:]:
        left, colon, right = word.partition(":")
        if left == "qid":
            return "qid (ranking data) is not supported"
        if not colon or not left or not right or ":" in right:
            return f"expected index:value, found {_short(word)}"
        if not (left.isascii() and left.isdigit()):
            return f"the index {_short(left)} is not a whole number of at least 0"
        if int(left) > _LARGEST_INDEX:
            return f"the index {_short(left)} is too large (at most {_LARGEST_INDEX})"
        if int(left) <= previous:
            return f"the index {left} comes after {previous:.0f}; indices must ascend"
        previous = int(left)
        value = _number(right)
        if value is None:
            return f"the value {_short(right)} of index {left} is not a number"
        if not np.isfinite(value):
            return f"the value of index {left} is {right}; clean or impute the data first"
    return None


def _number(word: str) -> float | None:
    try:
        return None if "_" in word else float(word)
    except ValueError:
        return None


def _short(word: str) -> str:
    return repr(word if len(word) <= 40 else word[:37] + "…")
