"""LIBSVM text: one sample per line, ``label index:value index:value …``, indices ascending.

The file is read in blocks that end at a line, so that its text is never in memory whole; a block is checked
and converted as arrays. Only when a check fails is the offending line looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

import numpy as np
import scipy.sparse as sp

from adfs.data.table import Table, open_bytes
from adfs.errors import InputError

_BLOCK = 1 << 23
_LARGEST_INDEX = 2**31 - 2

_NOT_TEXT = re.compile(rb"[^\t-\r -~]")
_LINE = re.compile(rb"\s*[^\s:]+(?:\s+[0-9]+:[^\s:]+)*\s*")


class _Block(NamedTuple):
    labels: np.ndarray
    counts: np.ndarray
    indices: np.ndarray
    values: np.ndarray


def read_libsvm(path: Path) -> Table:
    """Read LIBSVM text, compressed or not; the columns are the indices as they stand in the file."""
    with open_bytes(path) as stream:
        blocks = [_parse(block, line, path) for block, line in _blocks(stream)]
    labels = np.concatenate([block.labels for block in blocks]) if blocks else np.empty(0)
    if labels.size == 0:
        raise InputError(f"{path} holds no samples")
    counts = np.concatenate([block.counts for block in blocks])
    indices = np.concatenate([block.indices for block in blocks])
    values = np.concatenate([block.values for block in blocks])
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


def _parse(block: bytes, first_line: int, path: Path) -> _Block:
    if b"#" in block:
        block = re.sub(rb"#[^\n]*", b"", block)
    odd = _NOT_TEXT.search(block)
    if odd is not None:
        where = first_line + block[: odd.start()].count(b"\n")
        raise InputError(f"{path} is not LIBSVM text: line {where} holds a byte that is not plain text")
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    if b"_" in block or not all(map(_LINE.fullmatch, lines)):  # Python's numbers may hold underscores
        _explain(block, first_line, path)
    tokens = block.replace(b":", b" ").split()
    try:
        numbers = np.fromiter(map(float, tokens), np.float64, len(tokens))
    except ValueError:
        _explain(block, first_line, path)
    counts = np.array([line.count(b":") for line in lines], dtype=np.int64)
    labels = np.cumsum(2 * counts + 1) - 2 * counts - 1
    indices, values = np.delete(numbers, labels).reshape(-1, 2).T
    ascends = np.diff(indices, prepend=-1.0) > 0.0
    ascends[(np.cumsum(counts) - counts)[counts > 0]] = True  # the first of a line
    if not (np.isfinite(numbers).all() and ascends.all() and (indices <= _LARGEST_INDEX).all()):
        _explain(block, first_line, path)
    return _Block(numbers[labels], counts, indices.astype(np.int64), values)


def _explain(block: bytes, first_line: int, path: Path) -> NoReturn:
    """Find the first line that is wrong and say what is wrong with it."""
    for number, text in enumerate(block.decode().split("\n"), start=first_line):
        problem = _fault(text)
        if problem is not None:
            raise InputError(f"{path}: line {number}: {problem}")
    raise InputError(f"{path} is not LIBSVM text: expected 'label index:value …' on each line")


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
