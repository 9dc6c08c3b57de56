"""The results of a comparison: traces, curves over seeds, times to an error, tables, verdicts on claims."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, MethodSpec, read_comparison
from adfs.files import write_whole
from adfs.pages import number
from adfs.runtimes.loop import Outcome
from adfs.runtimes.result import Run

#: The quantities that an error can be drawn against: column of the traces -> name on the axis.
AXES = {
    "time": "idealised time",
    "computations": "computations (samples, all nodes)",
    "messages": "messages (all nodes)",
    "bytes": "bytes sent (all nodes)",
}
#: Errors below this are rounding, and are drawn here.
FLOOR = 1e-14


class Curve(NamedTuple):
    """The error of a method over seeds at points ``x`` that every seed reached; arrays of shape (P,)."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of a comparison.

    Attributes
    ----------
    comparison : Comparison
    runs : dict
        (label, seed) -> Run; those that are finished.
    """

    comparison: Comparison
    runs: dict[tuple[str, int], Run]

    @property
    def labels(self) -> list[str]:
        """The labels of the methods that have a run, in the order of the comparison."""
        return [entry.label for entry in self.comparison.methods if self.of(entry.label)]

    @property
    def error(self) -> str:
        """The column of the errors: ``"suboptimality"`` or ``"relative"``."""
        return "relative" if self.comparison.relative else "suboptimality"

    @property
    def error_name(self) -> str:
        """The formula of the errors."""
        return "(F − F*)/F(0)" if self.comparison.relative else "F − F*"

    def of(self, label: str) -> list[Run]:
        """Return the runs of a method, one per seed."""
        seeds = self.comparison.seeds
        return [self.runs[label, seed] for seed in seeds if (label, seed) in self.runs]

    def frame(self) -> pd.DataFrame:
        """Return all traces as one table, one row per recorded point."""
        runs = {(label, run.method, run.seed): run.frame for label in self.labels for run in self.of(label)}
        frame = pd.concat(runs, names=(names := ["label", "method", "seed"]))
        return frame.reset_index(names).reset_index(drop=True).rename(columns={"gap": "relative_gap"})

    def times(self, label: str, level: float) -> np.ndarray:
        """Return the time from which each run stays at or below an error, inf without one; shape (seeds,)."""
        return np.array([time_to(run.frame, level, self.error) for run in self.of(label)])

    def median_time(self, label: str, level: float) -> tuple[float, bool]:
        """Return the median over seeds of :meth:`times`, and True; or a lower bound of it, and False.

        A run that ended above the level bounds its time from below by its end.
        """
        # An infinite median means that half of the runs ended above the level.
        times = self.times(label, level)
        median = float(np.median(times))
        if math.isfinite(median):
            return median, True
        ends = [run.columns["time"][-1] for run in self.of(label)]
        return float(np.median(np.minimum(times, ends))), False

    def curve(self, label: str, axis: str = "time") -> Curve | None:
        """Return the median and the range of a method's errors over seeds; None without two points."""
        traces = []
        for run in self.of(label):
            x = run.frame[axis].to_numpy()
            y = np.log10(np.maximum(run.frame[self.error].to_numpy(), FLOOR))
            keep = np.isfinite(x) & np.isfinite(y)
            # The messages of a method that does not communicate are all 0, which gives no curve.
            if np.count_nonzero(keep) > 1 and x[keep][-1] > x[keep][0]:
                traces.append((x[keep], y[keep]))
        if not traces or len(traces) < len(self.of(label)):
            return None
        # All recorded points up to the first end of a run.
        where = np.unique(np.concatenate([x for x, _ in traces]))
        where = where[where <= min(x[-1] for x, _ in traces)]
        heights = np.array([np.interp(where, x, y) for x, y in traces])
        parts = np.median(heights, axis=0), heights.min(axis=0), heights.max(axis=0)
        return Curve(where, *(10.0**part for part in parts))


def time_to(frame: pd.DataFrame, level: float, error: str) -> float:
    """Return the time from which a trace stays at or below a level, inf if it ends above it.

    Between two recorded points the logarithm of the error is interpolated linearly.

    Examples
    --------
    >>> trace = pd.DataFrame({"time": [0.0, 10.0, 20.0], "error": [1.0, 1e-2, 1e-4]})
    >>> time_to(trace, 1e-3, "error"), time_to(trace, 1e-5, "error")
    (15.0, inf)
    """
    x, y = frame["time"].to_numpy(), frame[error].to_numpy()
    above = np.flatnonzero(~(y <= level))  # nan counts as above
    if above.size == 0:
        return float(x[0])
    last = int(above[-1])
    if last + 1 == y.size:
        return math.inf
    before, after = math.log(y[last]), math.log(max(float(y[last + 1]), FLOOR))
    share = (before - math.log(level)) / (before - after) if math.isfinite(before) else 1.0
    return float(x[last] + share * (x[last + 1] - x[last]))


# --------------------------------------------------------------------------- tables


def times_frame(results: Results) -> pd.DataFrame:
    """Return the times from which each method stays at or below each error, over its seeds.

    One row per method and level: ``label``, ``level``, ``median``, ``low``, ``high`` (inf where a run did not
    reach the level), ``given_up`` (a lower bound of the median where that is inf, nan elsewhere),
    ``reached``, ``seeds``, and ``text``: the median, ``> t`` if the median run ended above the level at the
    time t, or ``diverged``. The lowest level is the target, where runs end.
    """
    rows = []
    target = results.comparison.target
    # 1e-2, 1e-4, … as far as they are above the target.
    levels = [*(10.0**-k for k in range(2, math.ceil(-math.log10(target)), 2)), target]
    for label in results.labels:
        diverged = any(run.outcome is Outcome.DIVERGED for run in results.of(label))
        for level in levels:
            times = results.times(label, level)
            median, reached = results.median_time(label, level)
            late = "diverged" if diverged else f"> {number(median)}"
            rows.append(
                {
                    "label": label,
                    "level": level,
                    "median": median if reached else math.inf,
                    "low": float(times.min()),
                    "high": float(times.max()),
                    "given_up": math.nan if reached else median,
                    "reached": int(np.count_nonzero(np.isfinite(times))),
                    "seeds": times.size,
                    "text": number(median) if reached else late,
                }
            )
    return pd.DataFrame(rows)


def time_table(results: Results) -> pd.DataFrame:
    """Return the medians as text, one row per method, one column per level."""
    frame = times_frame(results)
    # 1e-06 rather than 1e-6: these are the names of the columns in files, too.
    levels = frame["level"].unique()
    columns = [f"{level:.0e}" if float(f"{level:.0e}") == level else f"{level:g}" for level in levels]
    index = pd.Index(results.labels, name="method")
    return pd.DataFrame(frame["text"].to_numpy().reshape(len(index), len(columns)), index, columns)


def markdown(table: pd.DataFrame) -> str:
    """Return a table of text as Markdown with aligned columns."""
    named = table.reset_index()
    rows = [[str(cell) for cell in row] for row in (named.columns, *named.to_numpy())]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# --------------------------------------------------------------------------- the folder


def run_path(folder: Path, entry: MethodSpec, seed: int) -> Path:
    """Return the file of a run in the folder of its comparison."""
    return folder / "runs" / f"{entry.slug}-{seed}.run"


def load_results(folder: str | Path) -> Results:
    """Read the finished runs of a comparison from its folder, as ``adfs compare`` wrote it."""
    folder = Path(folder)
    description = folder / "comparison.toml"
    if not description.is_file():
        raise InputError(f"{folder} is not the folder of a comparison: there is no comparison.toml in it")
    results = load_runs(read_comparison(description), folder)
    if not results.runs:
        raise InputError(f"{folder} holds no finished run yet: run adfs compare {description} first")
    return results


def load_runs(comparison: Comparison, folder: Path) -> Results:
    """Read the finished runs of a comparison from its folder."""
    pairs = product(comparison.methods, comparison.seeds)
    paths = {(entry.label, seed): run_path(folder, entry, seed) for entry, seed in pairs}
    return Results(comparison, {key: Run.load(path) for key, path in paths.items() if path.exists()})


# --------------------------------------------------------------------------- claims


@dataclass(frozen=True)
class Finding:
    """A claim, the verdict of some runs on it, and the numbers behind."""

    setting: str
    text: str
    verdict: str
    detail: str


def save_findings(findings: Sequence[Finding], folder: Path) -> None:
    """Write findings into the folder of their runs."""
    plain = [dataclasses.asdict(finding) for finding in findings]
    write_whole(folder / "claims.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def load_findings(folder: Path) -> list[Finding]:
    """Return the findings in a folder, an empty list if there are none."""
    path = folder / "claims.json"
    if not path.is_file():
        return []
    try:
        return [Finding(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged; remove it, or run the command that made it again") from None
