"""The progress bar of a run: the gap, where it is going, and when it may be there."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import Any, Self

__all__ = ["ProgressBar"]


def wanted(show: bool | None) -> bool:
    """Whether progress is to be shown: as asked, or on a terminal."""
    return sys.stderr.isatty() if show is None else show


class ProgressBar:
    """A bar on standard error; silent when that is not a terminal, unless asked for.

    Parameters
    ----------
    title : str
    show : bool or None
        Whether to show it; None means only on a terminal.
    tol : float, optional
        Where the gap is going: the bar then measures decades of the gap.
    last : float
        The last position, for runs without a tolerance.
    """

    def __init__(self, title: str, *, show: bool | None, tol: float | None, last: float) -> None:
        self._show = wanted(show)
        self._title = title
        self._tol = tol
        self._last = last
        self._first_gap: float | None = None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._show:
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
        if self._bar is None:
            return
        done = row["position"] / self._last if math.isfinite(self._last) else 0.0
        if self._tol is not None and row["gap"] > 0.0:
            self._first_gap = self._first_gap or row["gap"]
            decades = math.log(self._first_gap / self._tol)
            done = max(done, math.log(self._first_gap / row["gap"]) / decades if decades > 0.0 else 1.0)
        self._bar.update(self._task, completed=min(max(done, 0.0), 1.0), gap=row["gap"], passes=row["passes"])
