"""How the columns of a table become features: numbers, categories, missing values.

`adfs.data.find_encoding` finds an encoding from tables. A model keeps its encoding for later tables.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from adfs.data.cells import Cells, as_frame, first_row
from adfs.data.frames import listed
from adfs.data.table import Matrix, RawTable, Table
from adfs.errors import InputError
from adfs.files import JsonObject

if TYPE_CHECKING:
    import pandas as pd

#: A level with fewer rows than this is rare.
RARE_ROWS = 3
OTHER = "other"


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    Attributes
    ----------
    name : str
    kind : str
        ``"number"``, ``"category"``, or ``"empty"`` if all values are missing; an empty column is left out.
    mean : float or None
        Replaces missing numbers.
    missing : int
        The number of missing values. If it is above 0, a feature marks the rows with missing values.
    levels : tuple of str
        The levels that have a feature; the last one may be ``"other"``.
    rare : int
        The number of rare levels, which count as ``"other"``.
    reference : str or None
        The level without a feature.
    """

    name: str
    kind: str = "number"
    mean: float | None = None
    missing: int = 0
    levels: tuple[str, ...] = ()
    rare: int = 0
    reference: str | None = None

    @property
    def features(self) -> list[str]:
        """The names of the features: ``income``, ``city=Paris``, ``income is missing``."""
        if self.kind == "empty":
            return []
        names = [self.name] if self.kind == "number" else [f"{self.name}={level}" for level in self.levels]
        return names + [f"{self.name} is missing"] * (self.missing > 0)

    @property
    def treatment(self) -> str:
        """What is done to the column, in a few words."""
        words = []
        if self.missing and self.kind != "empty":
            mean = "" if self.mean is None else f", replaced by {self.mean:.6g}"
            words.append(f"{self.missing} missing{mean}")
        if self.rare:
            words.append(f"{self.rare} rare level{' is' if self.rare == 1 else 's are'} {OTHER!r}")
        if self.reference is not None:
            words.append(f"reference {self.reference}")
        return "all values are missing" if self.kind == "empty" else "; ".join(words)


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become features; `find_encoding` finds it.

    Attributes
    ----------
    columns : tuple of Column
    dropped : tuple of str
        Columns that are left out of every table.
    no_header : bool
        Whether the tables have no line of names.
    decimal : str
        The decimal mark of the tables.

    Examples
    --------
    >>> import pandas as pd
    >>> from adfs.data import find_encoding
    >>> table = pd.DataFrame({"age": [31, None, 35, 33], "city": ["Paris", "Rome", "Paris", "Paris"]})
    >>> encoding = find_encoding([table])
    >>> encoding.feature_names
    ('age', 'age is missing', 'city=Paris', 'city=other')
    >>> encoding.transform(table).toarray()[:2].tolist()
    [[31.0, 0.0, 1.0, 0.0], [33.0, 1.0, 0.0, 1.0]]
    """

    columns: tuple[Column, ...]
    dropped: tuple[str, ...] = ()
    no_header: bool = False
    decimal: str = "."

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features, in their order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def plain(self) -> bool:
        """Whether the columns are the features: numbers, none of them missing."""
        numbers = all(column.kind == "number" and not column.missing for column in self.columns)
        return numbers and not self.dropped and self.decimal == "."

    def transform(self, frame: pd.DataFrame) -> Matrix:
        """Return the features of a pandas, Polars or Arrow table, shape (N, d).

        The features are sparse (CSR) if a column is a category.
        A level that the encoding does not know is ``"other"``. If there were no others, it has no feature.
        """
        return self._features(frame, "the table")[0]

    def encode(self, raw: RawTable) -> Table:
        """Return the table with the features of a file's columns."""
        X, notes = self._features(raw.X, raw.source)
        names = self.feature_names if raw.named or not self.plain else None
        entries = {field.name: getattr(raw, field.name) for field in dataclasses.fields(Table)}
        entries |= {"X": X, "feature_names": names, "notes": tuple(notes)}
        return Table(**entries | {"encoding": None if self.plain else self})

    def _features(self, frame: pd.DataFrame, source: str) -> tuple[Matrix, list[str]]:
        frame = as_frame(frame)
        absent = next((column.name for column in self.columns if column.name not in frame.columns), None)
        if absent is not None:
            raise InputError(f"{source} has no column {absent!r}, which the model wants")
        # Each column becomes a block of features: one or two for numbers, one per level for categories.
        blocks: list[Matrix] = []
        notes: list[str] = []
        for column in self.columns:
            if column.kind == "empty":
                continue
            cells = Cells(frame[column.name], self.decimal)
            if column.kind == "number":
                blocks.append(_number_features(column, cells, source))
                continue
            block, unknown = _category_features(column, cells)
            blocks.append(block)
            if unknown:
                place = OTHER if OTHER in column.levels else column.reference or "no level"
                words = f"has unknown or rare levels in {unknown} rows, which count as {place}"
                notes.append(f"{source}: column {column.name!r} {words}")
        if any(sp.issparse(block) for block in blocks):
            return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks], format="csr")), notes
        return np.ascontiguousarray(np.column_stack(blocks)), notes

    # ------------------------------------------------------------------ for people, and for files

    @property
    def notes(self) -> list[str]:
        """Sentences about what was replaced or left out."""
        numbers = [column.name for column in self.columns if column.kind == "number" and column.missing]
        rare = [column.name for column in self.columns if column.rare]
        empty = [column.name for column in self.columns if column.kind == "empty"]
        sentences = {
            "missing numbers are replaced by the mean, with a feature that marks them, in": numbers,
            f"levels with fewer than {RARE_ROWS} rows count as {OTHER!r} in": rare,
            "left out, because all values are missing:": empty,
        }
        return [f"{words} {listed(names)}" for words, names in sentences.items() if names]

    def __str__(self) -> str:
        """Return a table with one line per column."""
        # Columns of text, each as wide as its longest entry.
        rows = [("column", "kind", "features", "treatment")]
        rows += [(c.name, c.kind, str(len(c.features)), c.treatment) for c in self.columns]
        rows += [(name, "dropped", "0", "") for name in self.dropped]
        widths = [max(map(len, words)) for words in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def to_entries(self) -> JsonObject:
        """Return the entries of a model file; what has its default is left out."""
        columns = [
            {name: value for name, value in vars(column).items() if value != getattr(Column, name, None)}
            for column in self.columns
        ]
        return {**vars(self), "columns": columns}

    @classmethod
    def from_entries(cls, entries: JsonObject) -> Encoding:
        """Return the encoding of a model file's entries; `ValueError` or `TypeError` if they are wrong."""
        found = tuple(
            Column(**entry | {"levels": tuple(entry.get("levels", ()))}) for entry in entries["columns"]
        )
        for column in found:
            # A mean belongs to numbers of which some were missing.
            filled = column.kind == "number" and column.missing > 0
            has_mean = column.mean is not None and math.isfinite(column.mean)
            if column.kind not in ("number", "category", "empty") or filled is not has_mean:
                raise ValueError("a column of the encoding is not described as columns are")
        return cls(found, tuple(entries["dropped"]), bool(entries["no_header"]), entries["decimal"])


def _number_features(column: Column, cells: Cells, source: str) -> np.ndarray:
    """Return a column of numbers, and one that marks missing values if there were any; shape (N, 1 or 2)."""
    values, trouble = cells.numbers, cells.trouble
    holes = np.isnan(values)
    # Truth values have numbers, too: the models of earlier versions take them.
    text = first_row(cells.text & holes)
    if text is not None:
        trouble = f"holds text in data row {text + 1}, and numbers in the training data"
    elif column.mean is None and holes.any():
        trouble = f"is missing in data row {int(np.argmax(holes)) + 1}, and never in the training data"
    if trouble:
        raise InputError(f"{source}: column {column.name!r} {trouble}")
    if column.mean is None:
        return values[:, None]
    return np.column_stack([np.where(holes, column.mean, values), holes])


def _category_features(column: Column, cells: Cells) -> tuple[Matrix, int]:
    """Return one column per level, and how many rows have a level without one of its own."""
    places = {level: place for place, level in enumerate(column.levels)}
    other = places.get(OTHER, -1)
    # The place of each different word, and last that of missing values, whose code is −1.
    codes, words = cells.words
    found = [places.get(word, -1 if word == column.reference else other) for word in words]
    place = np.array([*found, len(places) if column.missing else other])[codes]
    known = {*places, column.reference}
    unknown = np.array([*(word not in known for word in words), not column.missing])
    kept = place >= 0
    starts = np.concatenate([[0], np.cumsum(kept)])
    rows = sp.csr_array((np.ones(starts[-1]), place[kept], starts), shape=(len(codes), len(column.features)))
    return rows, int(unknown[codes].sum())
