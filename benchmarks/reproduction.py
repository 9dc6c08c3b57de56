"""The paper's experiments: ``python -m benchmarks.reproduction [FOLDER]`` uses finished runs in it again."""

from __future__ import annotations

import sys
import tempfile

from joblib import cpu_count

from adfs.experiments.paper import LEVELS, reproduce
from adfs.pages import number
from benchmarks.measure import RESULTS, machine


def main(folder: str | None = None) -> str:
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return main(made)
    found = reproduce("all", folder, jobs=cpu_count())
    settings = {f"{name}, to {LEVELS[name]:.0e}": results for name, results in found.results.items()}
    lines = [
        "# The paper's experiments",
        "",
        "| method | " + " | ".join(settings) + " |",
        "|---" * (1 + len(settings)) + "|",
    ]
    for label in next(iter(settings.values())).labels:
        cells = []
        for name, results in found.results.items():
            time, reached = results.median_time(label, LEVELS[name])
            cells.append(number(time) if reached else f"> {number(time)}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    seeds = len(next(iter(found.results.values())).comparison.seeds)
    notes = f"Idealised times, medians of {seeds} seeds; `>` where the median run was given up before."
    text = "\n".join([*lines, "", machine(), notes]) + "\n"
    (RESULTS / "reproduction.md").write_text(text)
    lines = ["# The paper's claims", "", "| claim | setting | verdict | median times |", "|---|---|---|---|"]
    for one in found.findings:
        lines.append(f"| {one.text} | {one.setting} | {one.verdict} | {one.detail.partition(': ')[2]} |")
    (RESULTS / "claims.md").write_text("\n".join(lines) + "\n")
    return text


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
