"""Figures for the pages, from the tables in ``benchmarks/results``: none is typed by hand.

A figure's place is ``table; row; column``: the file's name, how its row begins, and the head of a column (the
second column when left out). The README has its figures between comments that say the place; a test compares
them, and ``python docs/kept.py`` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import adfs

RESULTS = Path(adfs.__file__).parents[2] / "benchmarks" / "results"
#: A figure in the README: ``<!-- place -->figure<!-- . -->``.
TAGGED = re.compile(r"<!-- ([\w-]+;[^>]*?) -->(.*?)<!-- \. -->")


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a kept table: the head of a column -> the cell."""
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    heads, _, *rows = cells
    return [dict(zip(heads, row, strict=True)) for row in rows]


def kept_figure(place: str) -> str:
    """Return the figure at a place.

    Raises
    ------
    KeyError
        If there is no such table, row or column, or several rows begin so.
    """
    name, begin, *column = (part.strip() for part in place.split(";"))
    if not (RESULTS / f"{name}.md").is_file():
        raise KeyError(f"no table {name} in benchmarks/results")
    rows = [list(row.items()) for row in read_table(name)]
    found = [row for row in rows if row[0][1].startswith(begin)]
    exact = [row for row in found if row[0][1] == begin]
    if len(exact or found) != 1:
        raise KeyError(f"{len(found)} rows of {name} begin with {begin!r}")
    row = dict((exact or found)[0])
    return row[column[0]] if column else list(row.values())[1]


def wrong_figures(text: str) -> list[str]:
    """Return what is wrong about the tagged figures of a text: one line for each that is not kept so."""
    wrong = []
    for place, shown in TAGGED.findall(text):
        kept = kept_figure(place)
        if shown.strip() != kept:
            wrong.append(f"{place}: {shown.strip()!r} is shown and {kept!r} is kept")
    return wrong


def with_kept_figures(text: str) -> str:
    """Return a text with its tagged figures replaced by the kept ones."""
    return TAGGED.sub(lambda found: f"<!-- {found[1]} -->{kept_figure(found[1])}<!-- . -->", text)


if __name__ == "__main__":
    readme = Path(__file__).parents[1] / "README.md"
    readme.write_text(with_kept_figures(readme.read_text(encoding="utf-8")), encoding="utf-8")
