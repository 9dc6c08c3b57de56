"""The pictures of the pages, drawn from the package itself at each build."""

from __future__ import annotations

import tomllib
from pathlib import Path

import matplotlib as mpl

import adfs

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(adfs.__file__).parents[2]
# What flows from a layer to the one above it.
FLOWS = {
    "theory": "problems and networks",
    "schedule": "constants",
    "algorithms": "events",
    "runtimes": "processes",
    "planning": "runs and clocks",
    "estimators | experiments": "runs and plans",
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


def draw_architecture(axes: Axes) -> None:
    """Draw the folders as boxes, one row per layer, and what flows between the rows."""
    rows = layers()
    for height, row in enumerate(rows):
        width = 1.0 / len(row)
        for place, name in enumerate(row):
            x = place * width + 0.01
            box = plt.Rectangle((x, height), width - 0.02, 0.55, facecolor="#dbe7f3", edgecolor="#3b6ea5")
            axes.add_patch(box)
            axes.text(x + width / 2 - 0.01, height + 0.27, name, ha="center", va="center", fontsize=11)
            count = f"{_modules(name)} modules"
            axes.text(x + width - 0.035, height + 0.07, count, ha="right", fontsize=6.5, color="0.35")
        if height:
            axes.annotate(
                "",
                (0.5, height),
                (0.5, height - 0.45),
                arrowprops={"arrowstyle": "->", "color": "0.3", "lw": 1.4},
            )
            axes.text(0.52, height - 0.23, FLOWS[" | ".join(row)], va="center", fontsize=8, color="0.2")
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-0.1, len(rows) - 0.35)
    axes.set_axis_off()


PICTURES = {"architecture": (draw_architecture, (6.2, 6.4))}


def write_pictures(folder: Path) -> None:
    """Write all pictures as SVG; the same bytes for the same package."""
    folder.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "adfs", "svg.fonttype": "path"}):
        for name, (draw, size) in PICTURES.items():
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            draw(axes)
            figure.patch.set_facecolor("white")
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    write_pictures(Path(__file__).with_name("pictures"))
