"""One display for many runs at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

__all__ = ["Display"]

_REFRESH = 0.2


class Display:
    """How far some runs are, on standard error.

    On a terminal: a bar for all and a line for each run in progress. Elsewhere, if asked for, a line for each
    run that ends.

    Parameters
    ----------
    names : sequence of str
        The runs.
    show : bool or None
        Whether to show anything; None means only on a terminal.
    """

    def __init__(self, names: Sequence[str], show: bool | None) -> None:
        self._names = list(names)
        self._terminal = sys.stderr.isatty() and show is not False
        self._lines = bool(show) and not self._terminal
        self._done = [False] * len(self._names)
        self._tasks: dict[int, Any] = {}
        self._bar: Any = None
        self._begun = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._all = self._bar.add_task("all runs", total=float(len(self._names)), note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            done = sum(self._done)
            self._bar.update(self._all, completed=float(done), note=f"{done}/{len(self._names)} runs")
            self._bar.stop()

    def update(self, shares: Sequence[float], errors: Sequence[float]) -> None:
        """Show how far each run is: 0 not begun, above 1 finished; and its error."""
        for number, share in enumerate(shares):
            if share > 1.0 and not self._done[number]:
                self._done[number] = True
                if self._lines:
                    spent = time.monotonic() - self._begun
                    count = f"{sum(self._done)}/{len(self._names)}"
                    line = f"{count:>7} {spent:6.0f} s  {self._names[number]}: error {errors[number]:.1e}"
                    sys.stderr.write(line + "\n")
        now = time.monotonic()
        if self._bar is None or now - self._shown < _REFRESH:
            return
        self._shown = now
        done = sum(self._done)
        total = sum(min(share, 1.0) for share in shares)
        self._bar.update(self._all, completed=total, note=f"{done}/{len(self._names)} runs")
        for number, share in enumerate(shares):
            if 0.0 < share <= 1.0:
                if number not in self._tasks:
                    self._tasks[number] = self._bar.add_task(self._names[number], total=1.0, note="")
                self._bar.update(self._tasks[number], completed=share, note=f"error {errors[number]:.1e}")
            elif share > 1.0 and number in self._tasks:
                self._bar.remove_task(self._tasks.pop(number))
