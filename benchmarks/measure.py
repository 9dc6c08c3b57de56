"""How we measure: the minimum of several, the contenders taking turns; and the table that results go into."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Row:
    """One line of a table: what, the figure, what it is compared with, and what was asked for."""

    what: str
    figure: float
    unit: str
    reference: str = ""
    ratio: float = float("nan")
    target: float = float("nan")

    @property
    def verdict(self) -> str:
        """Whether the target was met."""
        if np.isnan(self.target):
            return ""
        value = self.figure if np.isnan(self.ratio) else self.ratio
        return "yes" if value <= self.target else "NO"


def fastest(contenders: Mapping[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Return the least seconds of each contender; they take turns, so that a busy spell hits all alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, run in contenders.items():
            begun = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def write_table(name: str, title: str, rows: list[Row], notes: str = "") -> str:
    """Write a table as Markdown to the results folder, and return it."""
    lines = [
        f"# {title}",
        "",
        "| what | figure | compared with | ratio | asked for | met |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = "" if np.isnan(row.ratio) else f"{row.ratio:.2f}"
        target = "" if np.isnan(row.target) else f"≤ {row.target:g}"
        figure = f"{row.figure:.4g} {row.unit}"
        lines.append(f"| {row.what} | {figure} | {row.reference} | {ratio} | {target} | {row.verdict} |")
    lines += ["", machine(), notes]
    text = "\n".join(lines).rstrip() + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    return text


def machine() -> str:
    """Say where this is measured."""
    return f"{platform.machine()}, {processor()}, Python {platform.python_version()}."


def processor() -> str:
    """Return the processor's name, if the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"
