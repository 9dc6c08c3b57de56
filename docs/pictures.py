"""The pictures of the pages, drawn from the package itself at each build."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import drawings
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import adfs
from adfs.pages import on_any_page

ROOT = Path(adfs.__file__).parents[2]
# What flows from a layer to the one above it.
FLOWS = {
    "data": "losses",
    "theory": "problems and networks",
    "schedule": "constants",
    "algorithms": "events",
    "runtimes": "processes",
    "stages": "runs",
    "planning": "runs and clocks",
    "estimators | experiments": "runs and plans",
    "engines": "estimators",
    "cli": "models and comparisons",
}


def layers() -> list[list[str]]:
    """Return the folders, the lowest layer first, as the import contract has them."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = [[name.strip(" ()") for name in line.split("|")] for line in contract["layers"]]
    folders = [[name for name in line if (ROOT / "src/adfs" / name).is_dir()] for line in named]
    return [line for line in reversed(folders) if line]


def _modules(name: str) -> int:
    return len(list((ROOT / "src/adfs" / name).rglob("*.py")))


def draw_architecture(figure: Figure) -> None:
    """Draw the folders as boxes, one row per layer, and what flows between the rows."""
    rows = layers()
    axes: Axes = figure.subplots()
    for height, row in enumerate(rows):
        width = 1.0 / len(row)
        for place, name in enumerate(row):
            x = place * width + 0.01
            box = Rectangle((x, height), width - 0.02, 0.55, facecolor="#dbe7f3", edgecolor="#3b6ea5")
            axes.add_patch(box)
            middle = x + width / 2 - 0.01
            axes.text(middle, height + 0.36, name, ha="center", va="center", fontsize=11, color="black")
            number = _modules(name)
            count = f"{number} module{'s' * (number != 1)}"
            axes.text(middle, height + 0.11, count, ha="center", va="center", fontsize=8, color="0.35")
        if height:
            flow = FLOWS.get(" | ".join(row), "")
            axes.annotate(
                "",
                (0.5, height),
                (0.5, height - 0.45),
                arrowprops={"arrowstyle": "->", "color": drawings.SOFT, "lw": 1.4},
            )
            axes.text(0.52, height - 0.23, flow, va="center", fontsize=8)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-0.1, len(rows) - 0.35)
    axes.set_axis_off()


#: The pictures of the README, which are kept beside it: forges show no page that a build has made.
FIRST, MAP = (ROOT / "docs" / "style" / name for name in ("first.svg", "map.svg"))
PICTURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "architecture": (draw_architecture, (5.2, 6.2)),
    "augmented": (drawings.draw_augmented, (5.2, 2.7)),
    "event": (drawings.draw_event, (5.2, 2.5)),
    "mean-and-lag": (drawings.draw_mean_and_lag, (5.2, 2.8)),
    "waiting": (drawings.draw_waiting, (5.2, 2.8)),
    "placement": (drawings.draw_placement, (4.2, 3.0)),
    "certificate": (drawings.draw_certificate, (5.2, 3.0)),
    "constants": (drawings.draw_constants, (5.2, 3.2)),
    "nonsmooth": (drawings.draw_nonsmooth, (5.2, 3.2)),
    "intervals": (drawings.draw_intervals, (5.2, 3.8)),
    "map": (drawings.draw_map, (7.4, 6.0)),
}


def write_picture(
    path: Path, draw: Callable[[Figure], None], size: tuple[float, float], description: str = ""
) -> None:
    """Write a picture as SVG, with a description in its metadata."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    with mpl.rc_context(on_any_page() | {"font.size": 9.5}):
        draw(figure)
        figure.savefig(path, metadata={"Date": None, "Description": description})


def write_pictures(folder: Path) -> None:
    """Write all pictures of the pages; the same bytes for the same package."""
    folder.mkdir(exist_ok=True)
    for name, (draw, size) in PICTURES.items():
        write_picture(folder / f"{name}.svg", draw, size)


def write_first() -> None:
    """Write the picture of the README, and in it the numbers it shows."""
    data = json.dumps(drawings.first_picture_data())
    write_picture(FIRST, drawings.draw_first, (5.6, 2.6), data)


def write_map() -> None:
    """Write the map of the README, and in it a hash of the table that it was drawn from."""
    write_picture(MAP, *PICTURES["map"], drawings.map_stamp())


if __name__ == "__main__":
    write_pictures(Path(__file__).with_name("pictures"))
    write_first()
    write_map()
