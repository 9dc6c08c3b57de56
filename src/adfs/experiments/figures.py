"""Figures of a comparison: the error against time and against work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adfs.experiments.results import AXES, Curve, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DASHES", "PALETTE", "draw_time", "draw_work", "save_figures", "style_of"]

#: Okabe and Ito's colours, told apart with every kind of colour vision; black and yellow are left out, since
#: pages may be dark or light.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: Beyond six methods the lines are dashed as well.
DASHES = ("", "6 3", "2 2", "8 3 2 3")


def style_of(number: int) -> tuple[str, str]:
    """Return the colour and the dashes of the curve with this number."""
    return PALETTE[number % len(PALETTE)], DASHES[(number // len(PALETTE)) % len(DASHES)]


def _name_of_error(results: Results) -> str:
    return "(F − F*)/F(0)" if results.comparison.relative else "F − F*"


def _draw(axes: Axes, results: Results, axis: str, *, logarithmic: bool) -> None:
    for number, entry in enumerate(results.comparison.methods):
        curve = results.curve(entry.label, axis) if results.of(entry.label) else None
        if curve is None:
            continue
        color, dashes = style_of(number)
        line = (0, tuple(float(part) for part in dashes.split())) if dashes else "-"
        if logarithmic:  # a logarithm has no 0 to start from
            curve = Curve(*(values[curve.x > 0.0] for values in curve))
        axes.plot(curve.x, curve.median, color=color, linestyle=line, linewidth=1.6, label=entry.label)
        if len(results.of(entry.label)) > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0.0)
    axes.set_yscale("log")
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(f"{_name_of_error(results)}, mean over nodes")
    if not logarithmic:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(bottom=0.3 * results.comparison.target)
    axes.grid(True, which="major", alpha=0.3, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_time(results: Results) -> Figure:
    """Draw the error against idealised time: the median over seeds, with the range of all seeds as a band."""
    figure = _figure(6.4, 4.8)
    axes = figure.add_subplot()
    _draw(axes, results, "time", logarithmic=False)
    # As far as the slowest method that reaches the target, not as far as runs were given up.
    reached = [float(results.times(label, results.comparison.target).max()) for label in results.labels]
    finite = [end for end in reached if end < float("inf")]
    if finite and len(finite) < len(reached):
        axes.set_xlim(0.0, 1.15 * max(finite))
    axes.set_title(results.comparison.title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def draw_work(results: Results) -> Figure:
    """Draw the error against computations, messages and bytes, on logarithmic axes."""
    figure = _figure(11.0, 4.2)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, axis in zip(panels, ("computations", "messages", "bytes"), strict=True):
        _draw(axes, results, axis, logarithmic=True)
        if axis != "computations":
            axes.set_ylabel("")
    figure.suptitle(results.comparison.title, fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    return figure


def save_figures(results: Results, folder: Path) -> list[Path]:
    """Write the figures as PNG and SVG and return their paths; the same results give the same files."""
    import matplotlib as mpl

    paths = []
    with mpl.rc_context({"svg.hashsalt": "adfs", "svg.fonttype": "path"}):
        for name, draw in (("error-time", draw_time), ("error-work", draw_work)):
            figure = draw(results)
            for ending in ("png", "svg"):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if ending == "svg" else None)
                paths.append(path)
    return paths
