"""What is shown of a comparison: its table of times, its figures, and the picture of its network."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfs.experiments.runs import AXES, Curve, Results
from adfs.network import Network
from adfs.pages import line_options, line_styles, number
from adfs.runtimes.loop import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The errors of the table, as far as the target goes.
LEVELS = (1e-2, 1e-4, 1e-6, 1e-8)

_MOST_NODES = 600
_SIZE = 380.0
_RING_FAMILIES = ("cycle", "complete", "exponential")


# --------------------------------------------------------------------------- tables


def level_name(level: float) -> str:
    """Return an error as the head of a column.

    Examples
    --------
    >>> level_name(1e-6), level_name(2.5e-4)
    ('1e-06', '0.00025')
    """
    short = f"{level:.0e}"
    return short if float(short) == level else f"{level:g}"


def error_name(results: Results) -> str:
    """Return the formula of the errors."""
    return "(F − F*)/F(0)" if results.comparison.relative else "F − F*"


def times_frame(results: Results) -> pd.DataFrame:
    """Return when each method came to stay at or below each error, over its seeds.

    One row per method and level: ``label``, ``level``, ``median``, ``low``, ``high`` (inf where a run did not
    come so far), ``given_up`` (a lower bound of the median where that is inf, nan elsewhere), ``reached``,
    ``seeds``. The levels go down to the target, and none beyond it, where no run goes.
    """
    rows = []
    target = results.comparison.target
    levels = [*(level for level in LEVELS if level > target * (1.0 + 1e-9)), target]
    for label in results.labels:
        for level in levels:
            times = results.times(label, level)
            median, reached = results.median_time(label, level)
            rows.append(
                {
                    "label": label,
                    "level": level,
                    "median": median if reached else math.inf,
                    "low": float(times.min()),
                    "high": float(times.max()),
                    "given_up": math.nan if reached else median,
                    "reached": int(np.count_nonzero(np.isfinite(times))),
                    "seeds": times.size,
                }
            )
    return pd.DataFrame(rows)


def time_table(results: Results) -> pd.DataFrame:
    """Return the medians as text, one row per method, one column per level.

    Where the median did not come so far: ``> t`` when runs were given up at t, or that they diverged.
    """
    frame = times_frame(results)
    cells = []
    for _, row in frame.iterrows():
        diverged = any(run.outcome is Outcome.DIVERGED for run in results.of(row["label"]))
        late = "diverged" if diverged else f"> {number(row['given_up'])}"
        cells.append(number(row["median"]) if math.isfinite(row["median"]) else late)
    columns = [level_name(level) for level in frame["level"].unique()]
    index = pd.Index(results.labels, name="method")
    return pd.DataFrame(np.reshape(cells, (len(index), len(columns))), index, columns)


def markdown(table: pd.DataFrame) -> str:
    """Return a table of text as Markdown that also reads well as it stands."""
    named = table.reset_index()
    rows = [[str(cell) for cell in row] for row in (named.columns, *named.to_numpy())]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# --------------------------------------------------------------------------- curves


def _draw(axes: Axes, results: Results, axis: str, *, logarithmic: bool) -> None:
    entries = results.comparison.methods
    for entry, (color, dashes) in zip(entries, line_styles(one.method for one in entries), strict=True):
        curve = results.curve(entry.label, axis)
        if curve is None:
            continue
        if logarithmic:  # a logarithm has no 0 to start from
            curve = Curve(*(values[curve.x > 0.0] for values in curve))
        line = line_options(color, dashes)
        axes.plot(curve.x, curve.median, linewidth=1.6, label=entry.label, **line)
        if len(results.of(entry.label)) > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0.0)
    axes.set_yscale("log")
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(f"{error_name(results)}, mean over nodes")
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


def _draw_time(results: Results) -> Figure:
    """Draw the error against idealised time: the median over seeds, with the range of all seeds as a band."""
    figure = _figure(6.4, 4.8)
    axes = figure.add_subplot()
    _draw(axes, results, "time", logarithmic=False)
    # As far as the slowest method that reaches the target, not as far as runs were given up.
    reached = [float(results.times(label, results.comparison.target).max()) for label in results.labels]
    finite = [end for end in reached if end < math.inf]
    if finite and len(finite) < len(reached):
        axes.set_xlim(0.0, 1.15 * max(finite))
    axes.set_title(results.comparison.title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _draw_work(results: Results) -> Figure:
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
        for name, draw in (("error-time", _draw_time), ("error-work", _draw_work)):
            figure = draw(results)
            for ending in ("png", "svg"):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if ending == "svg" else None)
                paths.append(path)
    return paths


# --------------------------------------------------------------------------- the network


def layout(network: Network) -> np.ndarray:
    """Return a place in the unit square for each node, shape (n, 2): lattices as lattices, rings as rings.

    Examples
    --------
    >>> layout(Network("grid:2x3"))[[0, 2, 5]].tolist()
    [[0.0, 0.25], [1.0, 0.25], [1.0, 0.75]]
    """
    n, name = network.n_nodes, network.name or ""
    family = name.partition(":")[0]
    lattice = re.fullmatch(r"(?:grid|torus):(\d+)x(\d+)", name)
    if lattice:
        row, column = np.divmod(np.arange(n, dtype=np.float64), int(lattice[2]))
        places = np.column_stack([column, row])
    elif family == "path":
        places = np.column_stack([np.arange(n), np.zeros(n)])
    elif family in _RING_FAMILIES or n <= 2:
        angle = 2.0 * np.pi * np.arange(n) / n - 0.5 * np.pi
        places = np.column_stack([np.cos(angle), np.sin(angle)])
    else:
        import networkx as nx

        graph = nx.empty_graph(n)
        graph.add_edges_from(network.edges.tolist())
        found = nx.kamada_kawai_layout(graph) if n <= 120 else nx.spring_layout(graph, seed=0)
        places = np.array([found[node] for node in range(n)])
    # Moved and scaled into the unit square, in the middle, in proportion.
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray(0.5 + (places - 0.5 * (low + high)) / max(float((high - low).max()), 1e-12))


def network_svg(network: Network) -> str:
    """Return the network as an SVG element; a sentence when it has too many nodes to be seen."""
    n = network.n_nodes
    if n > _MOST_NODES:
        return f"<p>{n} nodes and {network.n_edges} edges: too many to draw.</p>"
    places = 16.0 + (_SIZE - 32.0) * layout(network)
    radius = float(np.clip(70.0 / np.sqrt(n), 2.5, 11.0))
    lines = []
    for ends in network.edges:
        (x1, y1), (x2, y2) = places[ends]
        lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    circles = []
    for node, (x, y) in enumerate(places):
        degree = int(network.degrees[node])
        label = html.escape(f"node {network.labels[node]}, {degree} neighbour{'s' * (degree != 1)}")
        circles.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{label}</title></circle>')
    top = places[:, 1].min() - 16.0
    height = max(places[:, 1].max() - top + 16.0, 40.0)
    box = f"0 {top:.1f} {_SIZE:.0f} {height:.1f}"
    name = html.escape(f"The network {network.name or ''}")
    return f'<svg viewBox="{box}" role="img" aria-label="{name}">{"".join(lines)}{"".join(circles)}</svg>'
