"""``adfs reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adfs.cli import options
from adfs.cli.compare import tell_interruption

EXAMPLES = """\b
Examples:
  adfs reproduce all --quick
  adfs reproduce large --seeds 3 --jobs 4
  adfs reproduce table
"""


def run(
    which: Annotated[str, typer.Argument(help="small, large, many-samples, table or all.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Scaled-down settings and one seed, for a first look.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="How many seeds; 5 by default, 1 if quick.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the results (reproduce, or reproduce-quick)."),
    ] = None,
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    progress: options.Progress = None,
) -> int:
    """Run the paper's experiments again, and say which of its claims these runs bear out.

    small: 2 x 2 nodes with 1000 samples each; large: 10 x 10 with 300; many-samples: 7 x 7 with 10,000;
    table: Table 1, and the time per step against Theorem 4's bound. Finished runs are kept: the same command
    goes on where it was interrupted.
    """
    from adfs.experiments.figures import time_table
    from adfs.experiments.paper import reproduce, step_time_text, table_text
    from adfs.experiments.runs import RunsInterruptedError, available_cores

    folder = out or Path("reproduce-quick" if quick else "reproduce")
    try:
        found = reproduce(
            which,
            folder,
            quick=quick,
            seeds=seeds,
            jobs=jobs or available_cores(),
            fresh=fresh,
            progress=progress,
        )
    except RunsInterruptedError as stopped:
        return tell_interruption(stopped)
    for name, results in found.results.items():
        count = len(results.comparison.seeds)
        over = f", medians of {count} seeds," if count > 1 else ""
        print(f"{results.comparison.title}: idealised time{over} until F - F* stays below …")
        print(time_table(results).to_string())
        print(f"{folder / name / 'report.html'}\n")
    if not found.table.empty:
        print("Table 1: idealised time to divide the error by e; predictions leave constants out")
        print(table_text(found.table).to_string())
        print(
            "\nTheorem 4: time per step on the clock of its proof, and its bound where what it assumes holds"
        )
        print(step_time_text(found.step_times).to_string(index=False))
        print()
    if found.findings:
        print("Claims" + (", on scaled-down settings" if quick else ""))
        for one in found.findings:
            print(f"  {one.verdict:<14} {one.text}\n{'':17}{one.detail}")
    if which == "all":
        print(f"\n{folder / 'index.html'}")
    return 0
