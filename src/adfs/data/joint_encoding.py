"""One encoding from the tables of all processes.

They exchange counts of levels and exact sums, which do not depend on how the rows are split, and no rows.
Errors are found together: every process raises the same one.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adfs.data.cells import MOST_LEVELS, Cells, as_frame
from adfs.data.encoding import OTHER, RARE_ROWS, Column, Encoding
from adfs.data.frames import listed
from adfs.data.table import RawTable, ReadOptions, Table, listed_names
from adfs.errors import InputError
from adfs.files import JsonObject

if TYPE_CHECKING:
    import pandas as pd

#: Returns the items of all processes in each of them, as `adfs.runtimes.Cluster.allgather` does.
Gather = Callable[[Any], list[Any]]
_DEFAULT = ReadOptions()


def _alone(item: Any) -> list[Any]:
    return [item]


def encode_tables(
    tables: Sequence[Table | RawTable], options: ReadOptions, gather: Gather = _alone
) -> list[Table]:
    """Return the tables with their features; the raw ones of all processes get the same encoding."""
    raw = [table for table in tables if isinstance(table, RawTable)]
    frames, sources = [table.X for table in raw], [table.source for table in raw]
    encoding = find_encoding(frames, options, gather=gather, sources=sources)
    # The files may differ in the columns that are left out.
    dropped = {
        name for part in gather([list(table.dropped) for table in raw]) for names in part for name in names
    }
    encoding = dataclasses.replace(encoding, dropped=tuple(sorted(dropped)))
    return [encoding.encode(table) if isinstance(table, RawTable) else table for table in tables]


def find_encoding(
    frames: Sequence[pd.DataFrame],
    options: ReadOptions = _DEFAULT,
    *,
    gather: Gather = _alone,
    sources: Sequence[str] = (),
) -> Encoding:
    """Return the encoding of the tables of all processes, which call it together.

    Parameters
    ----------
    frames : sequence of DataFrame
        The tables of this process, with columns of features only; Polars and Arrow tables too.
    options : ReadOptions, optional
        ``missing``, ``categories``, ``reference_levels``, ``decimal`` and ``no_header`` are used.
    gather : callable, optional
        `adfs.runtimes.Cluster.allgather`, or ``allgather`` of an mpi4py communicator. The processes exchange
        the names of the columns and, of each table, counts, sums and levels.
    sources : sequence of str, optional
        The names of the tables, for errors.

    Raises
    ------
    InputError
        The same in all processes.
    """
    tables = [as_frame(frame) for frame in frames]
    cells = [{name: Cells(table[name], options.decimal) for name in table.columns} for table in tables]
    sources = list(sources) or ["the table"] * len(cells)
    own = [
        [source, {name: found.profile() for name, found in table.items()}]
        for source, table in zip(sources, cells, strict=True)
    ]
    files = [file for part in gather(own) for file in part]
    names = list(files[0][1]) if files else []
    for source, profiles in files:
        if list(profiles) != names:
            raise InputError(f"{files[0][0]} and {source} have different columns; give them the same")
    categories = listed_names(options.categories)
    strange = next((name for name in categories if name not in names), None)
    if strange is not None and files:
        raise InputError(f"there is no column {strange!r} for --categories; the columns are {listed(names)}")
    # First the kinds of the columns; then the levels of categories, and sums where numbers are missing.
    by_name = {name: [(source, profiles[name]) for source, profiles in files] for name in names}
    kinds = {name: _kind(name, found, options, name in categories) for name, found in by_name.items()}
    missing = {name: sum(profile["missing"] for _, profile in found) for name, found in by_name.items()}
    wanted = {name: kind for name, kind in kinds.items() if kind == "category" or missing[name]}
    details = gather([{name: table[name].details(kind) for name, kind in wanted.items()} for table in cells])
    parts = [table for part in details for table in part]
    columns = [
        _column(Column(name, kind, missing=missing[name]), [part.get(name) for part in parts], options)
        for name, kind in kinds.items()
    ]
    encoding = Encoding(tuple(columns), no_header=options.no_header, decimal=options.decimal)
    features = encoding.feature_names
    if files and not features:
        raise InputError(f"{files[0][0]} has no column with values")
    twice = next((name for name, count in Counter(features).items() if count > 1), None)
    if twice is not None:
        raise InputError(
            f"two features would be named {twice!r}; rename a column, or leave it out with --drop"
        )
    return encoding


def _kind(name: str, found: list[tuple[str, JsonObject]], options: ReadOptions, category: bool) -> str:
    """Return the kind of a column from its profiles in all files; raise if it has none."""
    for source, profile in found:
        here = f"{source}: column {name!r}"
        if profile["trouble"]:
            raise InputError(f"{here} {profile['trouble']}")
        if profile["missing"] and options.missing == "error":
            row = profile["first_missing"] + 1
            raise InputError(f"{here} is missing in data row {row}; clean it, or say --missing mean")
    numbers, texts = (sum(profile[key] for _, profile in found) for key in ("numbers", "texts"))
    if not numbers and not texts:
        return "empty"
    if category or not texts:
        return "category" if category else "number"
    with_text = [(source, profile) for source, profile in found if profile["texts"]]
    source, first = with_text[0]
    if all(profile["dates"] for _, profile in with_text):
        raise InputError(f"{source}: column {name!r} holds dates; make them numbers, or use --drop")
    # More numbers than text: the text is probably a mistake.
    if numbers > texts:
        raise InputError(
            f"{source}: column {name!r} holds text in data row {first['first_text'] + 1}, and mostly "
            "numbers; correct it, leave the column out with --drop, or make it a category with --categories"
        )
    return "category"


def _column(column: Column, found: list[Any], options: ReadOptions) -> Column:
    """Return a column with its mean or its levels, from the details of all files."""
    if column.kind == "number" and column.missing:
        # Each file has its count of numbers, and then its sum in several exact parts.
        try:
            mean = math.fsum(part for _, *parts in found for part in parts) / sum(part[0] for part in found)
        except OverflowError:
            mean = math.inf
        if not math.isfinite(mean):
            raise InputError(f"the numbers of column {column.name!r} are too large for a mean; scale them")
        return dataclasses.replace(column, mean=mean)
    if column.kind != "category":
        return column
    counts: Counter[str] = Counter()
    for part in found:
        counts.update(part or {})
    if None in found or len(counts) > MOST_LEVELS:
        raise InputError(f"column {column.name!r} has over {MOST_LEVELS} levels; leave it out with --drop")
    common = sorted(level for level in counts if counts[level] >= RARE_ROWS and level != OTHER)
    reference = max(common, key=counts.__getitem__) if options.reference_levels and common else None
    levels = [level for level in common if level != reference] + [OTHER] * (len(common) < len(counts))
    rare = len(counts.keys() - {*common, OTHER})
    return dataclasses.replace(column, levels=tuple(levels), rare=rare, reference=reference)
