"""The progress of a run on standard error: the gap, where it is going, and when it may be there."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from adfs.runtimes.options import RunOptions

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 5.0


class ProgressBar:
    """A bar on a terminal; elsewhere a line every few seconds.

    The options have the tolerance and the seconds that the run goes to; ``last`` is the last position of a
    run without a tolerance.
    """

    def __init__(self, title: str, options: RunOptions, last: float) -> None:
        self._title, self._options, self._last = title, options, last
        self._first_gap: float | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line: float | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Imported here because most runs show nothing.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("gap {task.fields[gap]:.1e}  {task.fields[passes]:.0f} passes"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=False,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=1.0, gap=math.nan, passes=0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, row: dict[str, float]) -> None:
        """Show a recorded row."""
        # A gap may rise for a while; a bar does not leave its ends.
        done = min(max(self._share_done(row), 0.0), 1.0)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, gap=row["gap"], passes=row["passes"])
        elif self._last_line is None or time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            way = f", {100.0 * done:.0f} % of the way" if done >= 0.01 else ""  # at the start nobody knows
            sys.stderr.write(
                f"adfs: {self._title}: gap {row['gap']:.1e} after {row['passes']:.0f} passes and "
                f"{row['seconds']:.0f} s{way}\n"
            )
            sys.stderr.flush()

    def _share_done(self, row: dict[str, float]) -> float:
        """Return how much of the run is done: the first limit that will be met decides."""
        # Of the position, the seconds and the decades of the gap the furthest counts.
        shares = [row["position"] / self._last if math.isfinite(self._last) else 0.0]
        if self._options.seconds:
            shares.append(row["seconds"] / self._options.seconds)
        if self._options.tol is not None and 0.0 < row["gap"] < math.inf:  # a start may have no certificate
            # Decades are counted from the first gap that was certified.
            self._first_gap = self._first_gap or row["gap"]
            decades = math.log(self._first_gap / self._options.tol)
            shares.append(math.log(self._first_gap / row["gap"]) / decades if decades > 0.0 else 1.0)
        return max(shares)
