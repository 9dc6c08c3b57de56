"""The pictures of the pages, drawn from the package itself at each build."""

from __future__ import annotations

import tomllib
from pathlib import Path

import matplotlib as mpl
import numpy as np

import adfs
from adfs.problem.boxes import intervals

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


def draw_intervals(axes: Axes) -> None:
    """Draw where the optimal margins of some samples may be, as the gap falls, under the loss's curvature."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((80, 4)) + 0.8 * (signs := np.where(np.arange(80) % 2, 1.0, -1.0))[:, None]
    problem = adfs.Problem(X, signs, sigma=0.5, n_nodes=4)
    shown = np.argsort(X @ problem.optimum().theta)[4::9]
    for tol, color in zip(
        (1e-2, 1e-3, 1e-4, 1e-6), ("#dbe7f3", "#a9c6e3", "#6c9bd0", "#1f4e86"), strict=True
    ):
        run = adfs.simulate("adfs", problem, adfs.Network("cycle:4"), tol=tol)
        assert run.dual is not None
        theta = problem.primal_from_dual(run.dual)
        gap = problem.duality_gap(run.dual, relative=False)
        radius = np.full(problem.n_samples, np.sqrt(gap / problem.total_sigma))
        low, high = intervals(problem, theta, run.dual, gap, radius)[shown].T
        axes.barh(np.arange(shown.size), high - low, left=low, height=0.7, color=color, label=f"gap {tol:g}")
    optimum = problem.X[shown] @ problem.optimum().theta
    axes.plot(optimum, np.arange(shown.size), "k|", markersize=9, label="optimal margin")
    margins = np.linspace(-7.0, 7.0, 301)
    curvature = 1.0 / (2.0 + 2.0 * np.cosh(margins))
    axes.fill_between(margins, -3.2, -3.2 + 8.0 * curvature, color="#f0d9b5", label="curvature of the loss")
    axes.set(xlabel="margin", xlim=(-7.0, 7.0), ylim=(-3.2, shown.size - 0.3), yticks=[])
    axes.set_ylabel("nine samples")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


PICTURES = {"architecture": (draw_architecture, (6.2, 6.4)), "intervals": (draw_intervals, (6.8, 4.2))}


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
