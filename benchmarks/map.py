"""The map of who wins where, of ``examples/map.toml``; it goes on from finished runs in a folder.

``python -m benchmarks.map FOLDER`` makes the part that ``--quick`` makes, with ``full`` behind it all of the
map, and with ``kept`` the table of the runs that are there. The picture is drawn from the table:
``python docs/pictures.py``.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import cpu_count

from adfs.experiments import Grid, read_grid, run_grid, winners
from adfs.pages import number
from benchmarks.measure import DATA, RESULTS

EXAMPLE = Path(__file__).parents[1] / "examples" / "map.toml"
# A choice of the planner that takes at most this many times the best time is a good one.
GOOD = 1.5
AXES = ["data", "network", "partition", "tau"]

NOTES = """\
Times are on the idealised clock (the computation of a sample takes 1, exponential delays), until the mean
over the nodes of F − F\\* stays below 1e-6 F(0); logistic loss, σ_i = 1. A cell has the method that won, and
how many times as long the next one takes, not counting other forms of the same. A run is given up when its
clock passes twice the best finished one, among the methods that need nothing that it does not need; `>`
stands before a lower bound. The clock counts a whole local solve of MSDA and SONATA as one pass. The planner
knows the default constants of a method alone, and predicts no adaptive, accelerated or Catalyst form.

All times are of seed 1: other draws of the same classes, other rows of the files, other shards by label. The
planner's formulas were fitted to seed 0 of the same points, and to rounds of Newton's method and of L-BFGS on
other problems. They were fixed before the times of seed 1 were looked at.
"""


def candidates(times: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of the methods that take part, by what the table says of them."""
    near = times[~times["local"]]
    return {
        "All methods": times,
        "Without local solves": near,
        "Without local solves and sums over all nodes": near[~near["sums"]],
    }


def example(quick: bool) -> Grid:
    """Return the grid of the example, with its files from where this machine has them."""
    grid = read_grid(EXAMPLE, quick=quick)
    data = []
    for value in grid.axes["data"]:
        here = DATA / Path(value["source"]).name
        data.append({**value, "source": str(here)} if here.exists() else value)
    return dataclasses.replace(grid, axes={**grid.axes, "data": data})


def cell(row: pd.Series) -> str:
    """Return the winner of a point, its lead, and the planner's choice where it is another one."""
    bound = "" if row["exact"] else "> "
    won = f"{row['winner']} {bound}{number(row['lead'])}" if row["winner"] else "none"
    return won if row["predicted"] == row["winner"] else f"{won} (planned {row['predicted']})"


def section(title: str, found: pd.DataFrame) -> list[str]:
    """Return the table of some candidates: one row per problem and network, one column per τ."""
    known = found[found["winner"] != ""]
    good = known["loss"] <= GOOD
    taus, count = list(dict.fromkeys(found["tau"])), f"**{good.sum()} of {len(known)}** points"
    lines = [
        f"## {title}",
        "",
        f"The planner's choice takes at most {GOOD:g} times the best time at {count}.",
        "",
        f"| data, network, shards | {' | '.join(f'τ = {tau:g}' for tau in taus)} |",
        f"|{'---|' * (1 + len(taus))}",
    ]
    for place, here in found.groupby(AXES[:3], sort=False):
        cells = {row["tau"]: cell(row) for _, row in here.iterrows()}
        lines.append(f"| {', '.join(map(str, place))} | {' | '.join(cells.get(tau, '') for tau in taus)} |")
    misses = known[~good].sort_values("loss", ascending=False)
    told = [
        f"- {', '.join(map(str, row[AXES[:3]]))}, τ = {row['tau']:g}: planned {row['predicted']}, "
        f"{number(row['loss'])} times the time of {row['winner']}"
        for _, row in misses.iterrows()
    ]
    return [*lines, "", *(["The other points:", "", *told, ""] if told else [])]


def write(times: pd.DataFrame) -> str:
    """Write the table of times, and the page of who wins where; return the page."""
    times = times.assign(tau=times["tau"].astype(float))
    every = read_grid(EXAMPLE).axes
    points, of_all = len(times.drop_duplicates(AXES)), np.prod([len(every[key]) for key in AXES])
    part = "" if points == of_all else " Only this part has been run, so it says nothing about the rest."
    lines = ["# Who wins where", "", f"{points} of the {of_all} points of `examples/map.toml`.{part}", ""]
    for title, rows in candidates(times).items():
        lines += section(title, winners(rows))
    text = "\n".join([*lines, NOTES])
    times.to_csv(RESULTS / "map.csv", index=False, float_format="%.6g")
    (RESULTS / "map.md").write_text(text)
    return text


def main(folder: str | None = None, what: str = "quick") -> str:
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return main(made)
    if what == "kept":
        return write(pd.read_csv(Path(folder) / "times.csv"))
    return write(run_grid(example(what == "quick"), folder, jobs=cpu_count()))


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
