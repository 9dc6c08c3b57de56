"""Tables with named columns, CSV and parquet: one column is the label, the others are features."""

from __future__ import annotations

import csv
import io
import itertools
import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adfs.data.table import Table, open_bytes
from adfs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_USUAL_LABELS = ("label", "target", "y", "class")
_SEPARATORS = (",", ";", "\t", "|", " ")  # the usual ones first
_LINES_LOOKED_AT = 20


def read_csv(path: Path) -> tuple[pd.DataFrame, bool]:
    """Return text in columns, and whether its first line has names.

    What separates the columns is found out: commas, semicolons, tabs, bars or blanks.
    """
    import pandas as pd

    with open_bytes(path) as stream:
        content = stream.read().removeprefix(b"\xef\xbb\xbf")
    if b"\x00" in content:
        raise InputError(f"{path} is not CSV: it holds bytes that are not text")
    first = next((line for line in content.splitlines() if line.strip()), b"")
    if not first:
        raise InputError(f"{path} is empty")
    separator = _separator(content)
    fields = _fields(first, separator)
    named = not all(_is_number(field) for field in fields)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.BytesIO(content),
                sep=r"\s+" if separator == " " else separator,
                skipinitialspace=True,
                header=0 if named else None,
                index_col=False,
                low_memory=False,
                keep_default_na=True,
            )
    except UnicodeDecodeError:
        raise InputError(f"{path} is not CSV in UTF-8: it holds bytes that are not text") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path}: the lines have more fields than the first one ({len(fields)})") from None
    except pd.errors.ParserError as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if found:
            wanted, line, seen = found.groups()
            raise InputError(f"{path}: line {line} has {seen} fields, {wanted} were expected") from None
        raise InputError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from None
    except ValueError:  # whose words may be the file's
        raise InputError(f"{path} cannot be read as CSV") from None
    if named:
        _check_first_line(fields, frame, path)
        _check_names(fields, path)
        frame = frame.rename(columns=str.strip)
    return frame, named


def read_parquet(path: Path) -> tuple[pd.DataFrame, bool]:
    """Return the columns of a parquet file, which have names."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    with open_bytes(path) as stream:
        content = stream.read()
    try:
        return parquet.read_table(io.BytesIO(content)).to_pandas(), True
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a parquet file, or is damaged: {str(error).splitlines()[0]}"
        ) from None


def _separator(content: bytes) -> str:
    """Return what separates the columns: equally often on every line, and with numbers between."""
    head = b"".join(itertools.islice(io.BytesIO(content), _LINES_LOOKED_AT))
    lines = [line for line in head.splitlines() if line.strip()]
    best, separator = (False, -1.0), ","
    for mark in _SEPARATORS:
        rows = [_fields(line, mark) for line in lines]
        if len(rows[0]) == 1:
            continue
        told = [_is_number(field) for row in rows[1:] or rows for field in row]
        merit = (len({len(row) for row in rows}) == 1, sum(told) / len(told))
        if merit > best:  # of equals, the usual one
            best, separator = merit, mark
    return separator


def _fields(line: bytes, separator: str) -> list[str]:
    text = line.decode("utf-8", "replace")
    if separator == " ":
        return [field.strip('"') for field in text.split()]
    try:
        fields = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
    except csv.Error:  # a very long line without this separator
        return [text]
    return [field.strip() for field in fields]


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _check_first_line(fields: list[str], frame: pd.DataFrame, path: Path) -> None:
    """Raise if the first line, taken for names, looks like a sample.

    It does if it has numbers where the other lines have them, and a text that occurs below it or numbers
    that no table of numbered columns has: these are whole and ascend.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    pairs = [
        (field, values, is_numeric_dtype(values) and not is_bool_dtype(values))
        for field, values in zip(fields, columns, strict=False)
    ]
    numbers = [field for field, _, numeric in pairs if numeric and field]
    if len(frame) == 0 or not all(map(_is_number, numbers)):
        return
    again = any(values.astype(str).eq(field).any() for field, values, numeric in pairs if not numeric)
    counted = [float(number) for number in numbers]
    numbered = all(one.is_integer() for one in counted) and all(a < b for a, b in pairwise(counted))
    if again or not numbered:
        raise InputError(
            f"{path} has no line of names: its first line looks like the other lines; put a line with the "
            "names of the columns above it (or, if that line has the names, replace those that are numbers)"
        )


def _check_names(fields: list[str], path: Path) -> None:
    seen: set[str] = set()
    for field in fields:
        if field in seen:
            raise InputError(f"{path}: two columns are named {field!r}")
        seen.add(field)


def split_columns(
    path: Path,
    frame: pd.DataFrame,
    named: bool,
    wanted: tuple[str | None, str | None, str | None],
    *,
    labels_needed: bool,
    offset_needed: bool,
) -> Table:
    """Return the table of a file's columns, which have names or not.

    ``wanted`` are the columns of labels, of sample weights and of offsets: a name, or a number counted from 0
    (from the end when negative). None for the labels is a column named label, target, y or class; a file
    without it is refused where labels are needed. So is one without the column of offsets where they are.
    """
    if len(frame) == 0:
        raise InputError(f"{path} holds no samples")
    columns = [str(column) for column in frame.columns]
    frame.columns = columns
    label, weight, offset = wanted
    label_column = _find(columns, label, path, "label", labels_needed, named)
    weight_column = None if weight is None else _find(columns, weight, path, "weight", labels_needed, named)
    offset_column = None if offset is None else _find(columns, offset, path, "offset", offset_needed, named)
    features = [column for column in columns if column not in (label_column, weight_column, offset_column)]
    if not features:
        raise InputError(f"{path} has no column besides the label")
    X = np.column_stack([_numeric(frame[column], column, path) for column in features])
    y = None if label_column is None else _labels(frame[label_column], label_column, path)
    weights = None if weight_column is None else _numeric(frame[weight_column], weight_column, path)
    added = None if offset_column is None else _numeric(frame[offset_column], offset_column, path)
    names = tuple(features) if named else None
    return Table(
        np.ascontiguousarray(X),
        y,
        weights,
        str(path),
        feature_names=names,
        offset=added,
        offset_name=offset_column,
    )


def _find(
    columns: list[str], wanted: str | None, path: Path, role: str, needed: bool, named: bool
) -> str | None:
    if wanted is None:
        found = [column for column in columns if column.lower() in _USUAL_LABELS] if named else []
        if len(found) == 1:
            return found[0]
        if not needed:
            return None
        reason = (
            "several columns could be the label" if found else "no column is named label, target, y or class"
        )
        if len(columns) == 1:
            raise InputError(
                f"{path} has one column only, {columns[0]!r}; separate columns by commas, semicolons, tabs, "
                "bars or blanks"
            )
        raise InputError(f"{path}: {reason}; say which with --{role}: {_listed(columns)}")
    if wanted in columns and named:
        return wanted
    if re.fullmatch(r"-?\d+", wanted) and -len(columns) <= int(wanted) < len(columns):
        return columns[int(wanted)]
    if not needed:
        return None
    raise InputError(f"{path} has no column {wanted!r}; its columns are {_listed(columns)}")


def _listed(columns: list[str]) -> str:
    return ", ".join(columns[:12]) + (f", … ({len(columns)} in all)" if len(columns) > 12 else "")


def _numeric(values: pd.Series, name: str, path: Path) -> np.ndarray:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    if not (is_numeric_dtype(values) or is_bool_dtype(values)) or is_complex_dtype(values):
        for row, value in enumerate(values):
            if not _is_number(str(value)):
                raise InputError(
                    f"{path}: column {name!r} holds text in data row {row + 1}; turn it into numbers first"
                )
        raise InputError(f"{path}: column {name!r} holds {values.dtype} values, not numbers")
    out = values.to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(out).all():
        row = int(np.flatnonzero(~np.isfinite(out))[0])
        raise InputError(
            f"{path}: column {name!r} is missing, NaN or infinite in data row {row + 1}; "
            "clean or impute it first"
        )
    return out


def _labels(values: pd.Series, name: str, path: Path) -> np.ndarray:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if values.isna().any():
        row = int(np.flatnonzero(values.isna().to_numpy())[0])
        raise InputError(f"{path}: the label {name!r} is missing in data row {row + 1}")
    if is_numeric_dtype(values) and not is_bool_dtype(values):
        return _numeric(values, name, path)
    texts = [str(value) for value in values]
    numbers = [row for row, text in enumerate(texts) if _is_number(text)]
    if numbers and len(numbers) < len(texts):
        other = next(row for row in range(len(texts)) if row not in set(numbers))
        raise InputError(
            f"{path}: the label {name!r} mixes numbers and text: a number in data row {numbers[0] + 1}, "
            f"text in data row {other + 1}"
        )
    return np.array([float(text) for text in texts]) if numbers else np.array(texts, dtype=np.str_)
