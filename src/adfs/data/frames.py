"""Columns of CSV and parquet files: names, labels, weights and offsets; the other columns are features."""

from __future__ import annotations

import csv
import io
import itertools
import re
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.data.cells import Cells, first_row
from adfs.data.table import RawTable, ReadOptions, as_number, listed_names
from adfs.errors import InputError
from adfs.files import open_bytes

if TYPE_CHECKING:
    import pandas as pd


def read_csv(path: Path, options: ReadOptions) -> tuple[pd.DataFrame, bool]:
    """Return the columns of a text file, and whether its first line has their names.

    Columns may be separated by commas, semicolons, tabs, bars or blanks.
    """
    import pandas as pd

    # The text is read at once: its first lines decide the separator and whether there are names.
    with open_bytes(path) as stream:
        content = stream.read().removeprefix(b"\xef\xbb\xbf")
    if b"\x00" in content:
        raise InputError(f"{path} is not CSV: it holds bytes that are not text")
    first = next((line for line in io.BytesIO(content) if line.strip()), b"")
    if not first:
        raise InputError(f"{path} is empty")
    separator = _separator(content, options.decimal)
    fields = _fields(first, separator)
    # A first line of numbers only is a sample.
    named = not options.no_header and None in (as_number(field, options.decimal) for field in fields)
    # A line with too many fields is an error; pandas only warns if all lines have them.
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
                decimal=options.decimal,
            )
    except UnicodeDecodeError:
        raise InputError(f"{path} is not CSV in UTF-8: it holds bytes that are not text") from None
    except pd.errors.ParserWarning:
        raise InputError(f"{path}: the lines have more fields than the first one ({len(fields)})") from None
    except pd.errors.ParserError as error:
        match = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if match:
            raise InputError(
                f"{path}: line {match[2]} has {match[3]} fields, {match[1]} were expected"
            ) from None
        raise InputError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from None
    except ValueError:  # its message may contain values of the file, which stay in this process
        raise InputError(f"{path} cannot be read as CSV") from None
    # pandas renames columns that have the same name, so the text is checked.
    if named:
        _check_first_line(fields, frame, path)
        twice = next((field for field in fields if fields.count(field) > 1), None)
        if twice is not None:
            raise InputError(f"{path}: two columns are named {twice!r}")
        frame = frame.rename(columns=str.strip)
    return frame, named


def read_parquet(path: Path, options: ReadOptions) -> tuple[pd.DataFrame, bool]:
    """Return the columns of a parquet file, which have names, or of a part of a folder of such files."""
    import pandas as pd

    try:
        if path.is_dir():
            return _read_folder(path, options.part or (0, 1)), True
        with open_bytes(path) as stream:
            content = stream.read()
        return pd.read_parquet(io.BytesIO(content), engine="pyarrow"), True
    except InputError:
        raise
    except ImportError:
        raise InputError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        if path.is_dir():  # the message may contain values
            raise InputError(
                f"{path} cannot be read as one table: a file in it is no parquet file, is damaged, or has "
                "columns of other types"
            ) from None
        raise InputError(
            f"{path} is not a parquet file, or is damaged: {str(error).splitlines()[0]}"
        ) from None


def folder_content(path: Path) -> dict[str, object]:
    """Return the names and the rows of the parquet files in a folder, which all ranks must agree on."""
    try:
        pieces = _pieces(path)[1]
    except (ImportError, OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as parquet files by pyarrow ({type(error).__name__})"
        ) from None
    rows: Counter[str] = Counter()
    for piece, count in pieces:
        rows[Path(piece.path).relative_to(path).as_posix()] += count
    return {f"the list of files and their rows in {path}": dict(rows)}


def _pieces(path: Path) -> tuple[Any, list[tuple[Any, int]]]:
    """Return the schema of a folder's files, and their groups of rows with the number of rows in each.

    Folders such as ``year=2024`` are the values of a column.
    """
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive")
    files = sorted(found.get_fragments(), key=lambda file: file.path)
    groups = [group for file in files for group in file.split_by_row_group()]
    return found.schema, [(group, sum(part.num_rows for part in group.row_groups)) for group in groups]


def _read_folder(path: Path, part: tuple[int, int]) -> pd.DataFrame:
    """Read the rows of one of several parts of a folder, and no file that has none of them."""
    import pyarrow as pa

    schema, pieces = _pieces(path)
    if not pieces:
        raise InputError(f"{path} holds no parquet files")
    # The parts are those of `numpy.array_split`, as in a partition into contiguous rows.
    size, larger = divmod(sum(count for _, count in pieces), part[1])
    first, last = (k * size + min(k, larger) for k in (part[0], part[0] + 1))
    tables, start = [schema.empty_table()], 0
    for piece, count in pieces:
        low, high = max(first - start, 0), min(last - start, count)
        if low < high:
            tables.append(piece.to_table(schema=schema).slice(low, high - low))
        start += count
    frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    return frame


def _separator(content: bytes, decimal: str) -> str:
    """Return the separator of the columns: equally often on every line, and with numbers between."""
    head = b"".join(itertools.islice(io.BytesIO(content), 20))
    # Each separator is tried on the first lines.
    lines = [line for line in head.splitlines() if line.strip()]
    best, separator = (False, -1.0), ","
    for mark in (",", ";", "\t", "|", " "):  # of two that are equally good, the more usual one
        rows = [_fields(line, mark) for line in lines]
        if len(rows[0]) == 1 or mark == decimal:
            continue
        numeric = [as_number(field, decimal) is not None for row in rows[1:] or rows for field in row]
        merit = (len({len(row) for row in rows}) == 1, sum(numeric) / len(numeric))
        if merit > best:
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


def _check_first_line(fields: list[str], frame: pd.DataFrame, path: Path) -> None:
    """Raise if the first line, taken for names, looks like a sample.

    It does if it has numbers where the other lines have them, and either a text that occurs below it, too, or
    numbers that cannot be the numbers of columns, because they are not whole or do not ascend.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    # Each name of the first line with its column, and whether that holds numbers.
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    pairs = [
        (field, values, is_numeric_dtype(values) and not is_bool_dtype(values))
        for field, values in zip(fields, columns, strict=False)
    ]
    numbers = [field for field, _, numeric in pairs if numeric and field]
    if len(frame) == 0 or None in map(as_number, numbers):
        return
    repeated = any(values.astype(str).eq(field).any() for field, values, numeric in pairs if not numeric)
    values = [float(number) for number in numbers]
    numbered = all(value.is_integer() for value in values) and all(a < b for a, b in pairwise(values))
    if repeated or not numbered:
        raise InputError(
            f"{path} has no line of names: its first line looks like the other lines; say --no-header, or "
            "put a line with the names of the columns above it (names must not be numbers)"
        )


# --------------------------------------------------------------------------- columns


def split_columns(path: Path, frame: pd.DataFrame, named: bool, options: ReadOptions) -> RawTable:
    """Return the columns of a file by their roles; they have names or not.

    A column is asked for by its name, or by its number counted from 0 (from the end if negative). If none is
    asked for, the labels are the column named label, target, y or class.
    """
    if len(frame) == 0:
        raise InputError(f"{path} holds no samples")
    source = f"{path}, part {options.part[0] + 1} of {options.part[1]}" if options.part else str(path)
    columns = [str(column) for column in frame.columns]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns are named {twice!r}")
    frame.columns = columns
    label_column = _find(columns, options.label, path, "label", options.labels_needed, named)
    weight_column = offset_column = None
    if options.weight is not None:
        weight_column = _find(columns, options.weight, path, "weight", options.labels_needed, named)
    if options.offset is not None:
        offset_column = _find(columns, options.offset, path, "offset", options.offset_needed, named)
    others = [column for column in columns if column not in (label_column, weight_column, offset_column)]
    # The columns to keep and those to leave out must exist.
    kept, left_out = (
        {_find(columns, name, path, role, True, named) for name in listed_names(getattr(options, role))}
        for role in ("columns", "drop")
    )
    features = [column for column in others if (not kept or column in kept) and column not in left_out]
    if not features:
        raise InputError(f"{path} has no column besides the label" + (" that is kept" if others else ""))
    return RawTable(
        frame[features],
        None if label_column is None else _labels(frame[label_column], label_column, path),
        None if weight_column is None else _numeric(frame[weight_column], weight_column, path),
        source,
        named=named,
        dropped=tuple(column for column in others if column not in features),
        offset=None if offset_column is None else _numeric(frame[offset_column], offset_column, path),
        offset_name=offset_column,
    )


def _find(
    columns: list[str], wanted: str | None, path: Path, role: str, needed: bool, named: bool
) -> str | None:
    """Return the name of the column with a role, None if it is neither there nor needed."""
    if wanted is None:
        usual = ("label", "target", "y", "class")
        candidates = [column for column in columns if column.lower() in usual] if named else []
        if len(candidates) == 1:
            return candidates[0]
        if not needed:
            return None
        reason = "several columns could be the label"
        if not candidates:
            reason = "no column is named label, target, y or class"
        if len(columns) == 1:
            raise InputError(
                f"{path} has one column only, {columns[0]!r}; separate columns by commas, semicolons, tabs, "
                "bars or blanks"
            )
        raise InputError(f"{path}: {reason}; say which with --{role}: {listed(columns)}")
    # A name first: a column may be called 0.
    if wanted in columns and named:
        return wanted
    if re.fullmatch(r"-?\d+", wanted) and -len(columns) <= int(wanted) < len(columns):
        return columns[int(wanted)]
    if not needed:
        return None
    raise InputError(f"{path} has no column {wanted!r}; its columns are {listed(columns)}")


def listed(columns: list[str]) -> str:
    """Return the first names of a list, and how many there are."""
    return ", ".join(columns[:12]) + (f", … ({len(columns)} in all)" if len(columns) > 12 else "")


def _numeric(values: pd.Series, name: str, path: Path) -> np.ndarray:
    """Return a column as numbers; raise if it holds text, or has missing or infinite entries."""
    cells = Cells(values)
    row = first_row(~np.isfinite(cells.numbers))
    if row is not None:  # the row is reported, not its text
        fault = "holds text" if cells.text[row] else "is missing, NaN or infinite"
        raise InputError(f"{path}: column {name!r} {fault} in data row {row + 1}; clean or impute it first")
    return cells.numbers


def _labels(values: pd.Series, name: str, path: Path) -> np.ndarray:
    """Return the labels as numbers, or as text; raise if some are numbers and others are not."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    row = first_row(values.isna().to_numpy())
    if row is not None:
        raise InputError(f"{path}: the label {name!r} is missing in data row {row + 1}")
    if is_numeric_dtype(values) and not is_bool_dtype(values):
        return _numeric(values, name, path)
    # Labels may be text, or numbers that were read as text.
    texts = [str(value) for value in values]
    numeric = [as_number(text) is not None for text in texts]
    if any(numeric) and not all(numeric):
        raise InputError(
            f"{path}: the label {name!r} mixes numbers and text: a number in data row "
            f"{numeric.index(True) + 1}, text in data row {numeric.index(False) + 1}"
        )
    return np.array([float(text) for text in texts]) if all(numeric) else np.array(texts, dtype=np.str_)
