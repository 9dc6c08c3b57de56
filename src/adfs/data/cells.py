"""The cells of a column of a table: numbers, words, missing values, and what processes tell of them."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.data.table import as_number
from adfs.files import JsonObject

if TYPE_CHECKING:
    import pandas as pd

#: A column with more levels is no category.
MOST_LEVELS = 1000
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([ T]\d.*)?")


class Cells:
    """The cells of one column.

    Attributes
    ----------
    numbers : ndarray of shape (N,)
        NaN where a cell is missing or text.
    missing, text : ndarray of shape (N,), bool
        Which cells are missing, and which are text or truth values.
    dates : bool
        Whether all text is dates.
    trouble : str
        Why the column is neither numbers nor a category; empty if it is.
    """

    def __init__(self, values: pd.Series, decimal: str = ".") -> None:
        from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

        self._values, self._decimal = values, decimal
        self.missing, self.dates, self.trouble = values.isna().to_numpy(), False, ""
        if is_numeric_dtype(values) and not is_complex_dtype(values):
            self.numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
            self.text = ~self.missing if is_bool_dtype(values) else np.zeros(len(values), dtype=bool)
            infinite = first_row(np.isinf(self.numbers))
            if infinite is not None:
                self.trouble = f"is infinite in data row {infinite + 1}; clean it first"
            return
        # Each different word is looked at once.
        codes, words = self.words
        found = np.array([*(_finite(word, ".") for word in words), np.nan], dtype=np.float64)
        self.numbers = found[codes]
        self.text = np.isnan(self.numbers) & ~self.missing
        texts = [word for word, number in zip(words, found, strict=False) if np.isnan(number)]
        self.dates = bool(texts) and all(_DATE.fullmatch(word) for word in texts)

    @cached_property
    def words(self) -> tuple[np.ndarray, list[str]]:
        """The place of each cell's word, −1 for missing cells, and the different words."""
        import pandas as pd

        found: Any
        try:
            codes, found = pd.factorize(self._values)
        except TypeError:  # lists, for example
            codes, found = np.full(len(self._values), -1), np.array([b""])
        if any(isinstance(value, bytes | complex) for value in found):
            self.trouble = "holds values that are neither numbers nor text; leave it out with --drop"
        return codes, [_word(str(value).strip(), self._decimal) for value in found]

    def profile(self) -> JsonObject:
        """Return what the processes have to know of each other's cells to agree on the kind of the column."""
        return {
            "numbers": int((~self.missing & ~self.text).sum()),
            "texts": int(self.text.sum()),
            "missing": int(self.missing.sum()),
            "first_text": first_row(self.text),
            "first_missing": first_row(self.missing),
            "dates": self.dates,
            "trouble": self.trouble,
        }

    def details(self, kind: str) -> JsonObject | list[float] | None:
        """Return the counts of the levels, None if there are too many; or the count of numbers and their sum.

        The sum is exact, in several parts.
        """
        if kind != "category":
            present = self.numbers[~self.missing].tolist()
            return [len(present), *_exact_sum(present)]
        codes, words = self.words
        counts: Counter[str] = Counter()
        for word, count in zip(words, np.bincount(codes[codes >= 0], minlength=len(words)), strict=True):
            counts[word] += int(count)
        return None if len(counts) > MOST_LEVELS else dict(counts)


def as_frame(table: Any) -> pd.DataFrame:
    """Return a pandas, Polars or Arrow table as a data frame of pandas whose columns have text as names."""
    frame: pd.DataFrame = table.to_pandas() if hasattr(table, "to_pandas") else table
    return frame.rename(columns=str)


def first_row(flags: np.ndarray) -> int | None:
    """Return the first row with a flag, None if there is none."""
    return int(np.argmax(flags)) if flags.any() else None


def _finite(word: str, decimal: str) -> float | None:
    number = as_number(word, decimal)
    return number if number is not None and math.isfinite(number) else None


def _word(text: str, decimal: str) -> str:
    """Return one spelling of a cell, whatever type the column of its file has.

    >>> _word("007", "."), _word("1,50", ","), _word("TRUE", "."), _word("Oslo", ".")
    ('7', '1.5', 'True', 'Oslo')
    """
    number = _finite(text, decimal)
    if number is None:
        return text.capitalize() if text.lower() in ("true", "false") else text
    return str(int(text)) if text.isdecimal() else repr(number + 0.0).removesuffix(".0")


def _exact_sum(values: list[float]) -> list[float]:
    """Return a few numbers whose exact sum is that of the values: they can be added in any order.

    >>> _exact_sum([1e20, 1.0, -1e20, 0.5])
    [1.5]
    """
    parts: list[float] = []
    try:
        while rest := math.fsum([*values, *(-part for part in parts)]):
            parts.append(rest)
    except OverflowError:
        return [math.inf]
    return parts
