"""The table of a comparison: when each method comes to stay below some errors."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from adfs.experiments.results import Results
from adfs.runtimes.loop import Outcome

__all__ = ["LEVELS", "markdown", "number", "time_table", "times_frame"]

#: The errors of the table.
LEVELS = (1e-2, 1e-4, 1e-6, 1e-8)


def number(value: float) -> str:
    """Return a number with three digits, for people.

    Examples
    --------
    >>> number(123456.0), number(0.01234), number(1.5e9)
    ('123,000', '0.0123', '1.5e+09')
    """
    short = float(f"{value:.3g}")
    return f"{short:,.0f}" if 1000.0 <= short < 1e8 else f"{short:.3g}"


def times_frame(results: Results, levels: tuple[float, ...] = LEVELS, axis: str = "time") -> pd.DataFrame:
    """Return when each method came to stay at or below each error, over its seeds.

    Returns
    -------
    pandas.DataFrame
        One row a method and a level: ``label``, ``level``, ``median``, ``low``, ``high`` (inf where a run did
        not come so far), ``given_up`` (the earliest end of those runs, nan without any), ``reached``,
        ``seeds``.
    """
    rows = []
    for label in results.labels:
        for level in levels:
            times, bounds = results.times(label, level, axis), results.bounds(label, level, axis)
            missed = ~np.isfinite(times)
            rows.append(
                {
                    "label": label,
                    "level": level,
                    # The middle of an even number with one inf would be inf, as it should.
                    "median": _median(times),
                    "low": float(times.min()),
                    "high": float(times.max()),
                    "given_up": float(bounds[missed].min()) if missed.any() else math.nan,
                    "reached": int(np.count_nonzero(~missed)),
                    "seeds": times.size,
                }
            )
    return pd.DataFrame(rows)


def time_table(results: Results, levels: tuple[float, ...] = LEVELS) -> pd.DataFrame:
    """Return the medians as text, one row a method, one column a level.

    Where the median did not come so far: ``> t`` when runs were given up at t, or that they diverged.
    """
    frame = times_frame(results, levels)
    columns = {level: f"{level:.0e}" for level in levels}
    diverged = {
        label for label in results.labels if any(run.outcome is Outcome.DIVERGED for run in results.of(label))
    }
    cells = {
        (row["label"], row["level"]): number(row["median"])
        if math.isfinite(row["median"])
        else "diverged"
        if row["label"] in diverged
        else f"> {number(row['given_up'])}"
        for _, row in frame.iterrows()
    }
    rows = {label: [cells[label, level] for level in levels] for label in results.labels}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns.values()))
    table.index.name = "method"
    return table


def markdown(table: pd.DataFrame) -> str:
    """Return a table of text as Markdown that also reads well as it stands."""
    heads = [
        "" if table.index.name is None else str(table.index.name),
        *(str(name) for name in table.columns),
    ]
    rows = [
        [str(name), *(str(cell) for cell in row)]
        for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in [heads, *rows]]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _median(times: np.ndarray) -> float:
    ordered = np.sort(times)
    low, high = ordered[(times.size - 1) // 2], ordered[times.size // 2]
    return float(high if math.isinf(high) else 0.5 * (low + high))
