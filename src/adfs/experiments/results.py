"""The folder of a comparison, and what its runs say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from adfs.errors import InputError
from adfs.experiments.entries import MethodSpec
from adfs.experiments.spec import Comparison, read_comparison
from adfs.runtimes.result import Run

__all__ = ["AXES", "Curve", "Results", "load_results", "run_path", "time_to"]

#: What an error can be drawn against: column -> words.
AXES = {
    "time": "idealised time",
    "computations": "computations (samples, all nodes)",
    "messages": "messages (all nodes)",
    "bytes": "bytes sent (all nodes)",
}
#: Errors are drawn down to here; below it is rounding.
FLOOR = 1e-14


class Curve(NamedTuple):
    """The error of a method over seeds, at places ``x`` that every seed reached; (P,) each."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def run_path(folder: Path, entry: MethodSpec, seed: int) -> Path:
    """Return where a run is kept."""
    return folder / "runs" / f"{entry.slug}-{seed}.run"


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
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods that have a run, in the order of the comparison."""
        return [one.label for one in self.comparison.methods if self.of(one.label)]

    @property
    def error(self) -> str:
        """The column of the errors: ``"suboptimality"`` or ``"relative"``."""
        return "relative" if self.comparison.relative else "suboptimality"

    def of(self, label: str) -> list[Run]:
        """Return the runs of a method, one a seed."""
        seeds = self.comparison.seeds
        return [self.runs[label, seed] for seed in seeds if (label, seed) in self.runs]

    def frame(self) -> pd.DataFrame:
        """Return all traces as one table, one row a recorded point."""
        parts = []
        for label in self.labels:
            for run in self.of(label):
                part = run.frame.rename(columns={"gap": "relative_gap"})
                part.insert(0, "seed", run.seed)
                part.insert(0, "label", label)
                part.insert(1, "method", run.method)
                parts.append(part)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def times(self, label: str, level: float, axis: str = "time") -> np.ndarray:
        """Return when each run came to stay at or below an error, inf where it did not; shape (seeds,)."""
        return np.array([time_to(run.frame, level, self.error, axis)[0] for run in self.of(label)])

    def bounds(self, label: str, level: float, axis: str = "time") -> np.ndarray:
        """Return lower bounds of the same: the end of a run that did not come so far; shape (seeds,)."""
        return np.array([time_to(run.frame, level, self.error, axis)[1] for run in self.of(label)])

    def curve(self, label: str, axis: str = "time", points: int = 120) -> Curve | None:
        """Return the median and the range of a method's errors over seeds; None without two points."""
        traces = []
        for run in self.of(label):
            x = run.frame[axis].to_numpy()
            y = np.log10(np.maximum(run.frame[self.error].to_numpy(), FLOOR))
            keep = np.isfinite(x) & np.isfinite(y)
            # A method that does not communicate at all has no axis of messages.
            if np.count_nonzero(keep) > 1 and x[keep][-1] > x[keep][0]:
                traces.append((x[keep], y[keep]))
        if not traces or len(traces) < len(self.of(label)):
            return None
        end = min(x[-1] for x, _ in traces)
        first = min(x[x > 0.0][0] for x, _ in traces)
        spaced = np.geomspace(first, end, points) if first < end else np.array([end])
        where = np.unique(np.concatenate([np.linspace(0.0, end, points), spaced]))
        heights = np.array([np.interp(where, x, y) for x, y in traces])
        middle, low, high = np.median(heights, axis=0), heights.min(axis=0), heights.max(axis=0)
        return Curve(where, *(10.0**one for one in (middle, low, high)))


def time_to(frame: pd.DataFrame, level: float, error: str, axis: str = "time") -> tuple[float, float]:
    """Return where a trace comes to stay at or below a level, and a lower bound of that.

    Between two recorded points the logarithm of the error is taken to be straight. A trace that ends above
    the level gives inf and its own end.

    Examples
    --------
    >>> trace = pd.DataFrame({"time": [0.0, 10.0, 20.0], "error": [1.0, 1e-2, 1e-4]})
    >>> time_to(trace, 1e-3, "error")
    (15.0, 15.0)
    >>> time_to(trace, 1e-5, "error")
    (inf, 20.0)
    """
    x, y = frame[axis].to_numpy(), frame[error].to_numpy()
    above = np.flatnonzero(~(y <= level))
    if above.size == 0:
        return float(x[0]), float(x[0])
    last = int(above[-1])
    if last + 1 == y.size:
        return math.inf, float(x[-1])
    before, after = math.log(y[last]), math.log(max(float(y[last + 1]), FLOOR))
    share = (before - math.log(level)) / (before - after) if math.isfinite(before) else 1.0
    found = float(x[last] + share * (x[last + 1] - x[last]))
    return found, found


def load_results(folder: str | Path, methods: Sequence[str] | None = None) -> Results:
    """Read the finished runs of a comparison back from its folder.

    Parameters
    ----------
    folder : path
        As ``adfs compare`` wrote it.
    methods : sequence of str, optional
        The labels wanted; all when left out.
    """
    folder = Path(folder)
    description = folder / "comparison.toml"
    if not description.is_file():
        raise InputError(f"{folder} is not the folder of a comparison: there is no comparison.toml in it")
    comparison = read_comparison(description)
    results = Results(comparison)
    for entry in comparison.methods:
        for seed in comparison.seeds:
            path = run_path(folder, entry, seed)
            if (methods is None or entry.label in methods) and path.exists():
                results.runs[entry.label, seed] = Run.load(path)
    if not results.runs:
        raise InputError(f"{folder} holds no finished run yet: run adfs compare {description} first")
    return results
