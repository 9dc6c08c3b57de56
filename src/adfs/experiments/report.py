"""The files that a comparison leaves for people: traces, tables, figures, and a page with all of them."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfs.algorithms import METHODS
from adfs.experiments.comparison import Comparison
from adfs.experiments.inputs import make_network, to_toml, without_defaults
from adfs.experiments.results import (
    AXES,
    Curve,
    Finding,
    Results,
    load_findings,
    load_results,
    markdown,
    time_table,
    times_frame,
)
from adfs.files import write_whole
from adfs.network import Network
from adfs.pages import (
    COLORS,
    fill_page,
    html_facts,
    html_table,
    line_options,
    line_styles,
    number,
    on_any_page,
    svg_element,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --------------------------------------------------------------------------- figures


def _styles(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Return the colour and the dashes of each method, by its label."""
    styles = line_styles((entry.method for entry in comparison.methods), METHODS)
    return dict(zip((entry.label for entry in comparison.methods), styles, strict=True))


def _draw_panel(axes: Axes, results: Results, axis: str) -> None:
    """Draw the errors of all methods against one quantity: medians, with the range of all seeds as a band.

    The axis of times is linear, the others are logarithmic.
    """
    # Styles go by the place of a method, so a curve that is missing does not shift them.
    comparison, logarithmic = results.comparison, axis != "time"
    for place, (label, (color, dashes)) in enumerate(_styles(comparison).items()):
        curve = results.curve(label, axis)
        if curve is None:
            continue
        if logarithmic:  # a logarithmic axis has no 0
            curve = Curve(*(values[curve.x > 0.0] for values in curve))
        line = line_options(color, dashes)
        # The ids let the page's script hide a method.
        axes.plot(curve.x, curve.median, linewidth=1.6, label=label, gid=f"curve-{place}-{axis}", **line)
        if len(results.of(label)) > 1:
            band = axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0.0)
            band.set_gid(f"curve-{place}-{axis}-band")
    axes.set_yscale("log")
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel(f"{results.error_name}, mean over nodes")
    if not logarithmic:
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=6)
    # The runs end below the target; a little of that is shown.
    axes.set_ylim(bottom=0.3 * comparison.target)
    axes.grid(True, which="major", alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_time(results: Results) -> Figure:
    """Draw the error against idealised time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    _draw_panel(axes, results, "time")
    # The axis ends with the slowest method that reaches the target; others may go on for much longer.
    reached = [float(results.times(label, results.comparison.target).max()) for label in results.labels]
    finite = [end for end in reached if end < math.inf]
    if finite and len(finite) < len(reached):
        axes.set_xlim(0.0, 1.15 * max(finite))
    axes.set_title(results.comparison.title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8).set_gid("legend-time")
    return figure


def _draw_work(results: Results) -> Figure:
    """Draw the error against computations, messages and bytes, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, axis in zip(panels, ("computations", "messages", "bytes"), strict=True):
        _draw_panel(axes, results, axis)
        axes.label_outer()  # one name of the vertical axis is enough
    figure.suptitle(results.comparison.title, fontsize=11)
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=8, fontsize=8).set_gid("legend-work")
    return figure


def draw_figures(results: Results) -> dict[str, Figure]:
    """Return the figures by the names of their files; the same results give the same drawings."""
    import matplotlib as mpl

    with mpl.rc_context(on_any_page()):
        return {"error-time": _draw_time(results), "error-work": _draw_work(results)}


# --------------------------------------------------------------------------- the network


def layout(network: Network) -> np.ndarray:
    """Return a position in the unit square for each node, shape (n, 2); grids and tori become lattices.

    Examples
    --------
    >>> layout(Network("grid:2x3"))[[0, 2, 5]].tolist()
    [[0.0, 0.25], [1.0, 0.25], [1.0, 0.75]]
    """
    import networkx as nx

    n = network.n_nodes
    lattice = re.fullmatch(r"(?:grid|torus):(\d+)x(\d+)", network.name or "")
    if lattice:
        row, column = np.divmod(np.arange(n, dtype=np.float64), int(lattice[2]))
        places = np.column_stack([column, row])
    else:
        graph = nx.empty_graph(n)
        graph.add_edges_from(network.edges.tolist())
        # The first is the better picture, and takes minutes for hundreds of nodes.
        positions = nx.kamada_kawai_layout(graph) if n <= 120 else nx.spring_layout(graph, seed=0)
        places = np.array([positions[node] for node in range(n)])
    # Moved to the middle of the unit square and scaled, both directions by the same factor.
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray(0.5 + (places - 0.5 * (low + high)) / max(float((high - low).max()), 1e-12))


def network_svg(network: Network) -> str:
    """Return the network as an SVG element; a sentence when it has too many nodes to be seen."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    n = network.n_nodes
    if n > 600:
        return f"<p>{n} nodes and {network.n_edges} edges: too many to draw.</p>"
    places = layout(network)
    figure = Figure(figsize=(4.0, 4.0))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.add_collection(LineCollection(list(places[network.edges]), colors="0.48", gid="edges"))
    # Circles and labels shrink with the number of nodes, between limits that can be seen.
    size = float(np.clip(90.0 / np.sqrt(n), 4.0, 14.0))
    axes.scatter(places[:, 0], places[:, 1], size**2, COLORS[0], zorder=2, gid="nodes")
    for label, (x, y) in zip(network.labels, places, strict=True):
        # To the right of the node and above it, where lattices have no lines.
        axes.text(x, y, f"    {label}", size=0.6 * size, color="0.48", va="bottom", parse_math=False)
    axes.set_aspect("equal")
    axes.margins(0.16)
    axes.invert_yaxis()  # the first node is above
    axes.set_axis_off()
    return svg_element(figure, f"The network {network.name or ''}")


# --------------------------------------------------------------------------- parts of a page


def claims_list(findings: Sequence[Finding]) -> str:
    """Return claims and verdicts as an HTML section, nothing without any."""
    if not findings:
        return ""
    # The class, "holds", "does" (not hold) or "undecided", decides the colour of the verdict.
    items = [
        f'<li><span class="verdict {finding.verdict}">{finding.verdict}</span> '
        f'{html.escape(finding.text)}<br><span class="detail">{html.escape(finding.detail)}</span></li>'
        for finding in findings
    ]
    return f'<section><h2>Claims</h2><ul class="claims">{"".join(items)}</ul></section>'


def _table(results: Results) -> str:
    """Return the table of times, with the range of the seeds and the best time of each column marked."""
    frame, shown = times_frame(results), time_table(results)
    best = frame.groupby("level")["median"].transform("min")
    cells = []
    for (_, row), least in zip(frame.iterrows(), best, strict=True):
        # A cell: the time, and in small print the range of the seeds or how many reached the level.
        cell, small = html.escape(row["text"]).replace(" ", "&nbsp;"), ""
        if math.isfinite(row["median"]):
            cell = f"<strong>{cell}</strong>" if row["median"] == least else cell
            high = number(row["high"]) if math.isfinite(row["high"]) else "…"
            small = f"{number(row['low'])} – {high}" if row["seeds"] > 1 else ""
        elif row["reached"]:
            small = f"{row['reached']} of {row['seeds']} seeds"
        cells.append(f"{cell}<small>{small}</small>" if small else cell)
    # The frame has a row for each cell of the shown table, in the same order.
    heads = [name.replace("e-0", "e-") for name in shown.columns]
    labels = pd.Index(map(html.escape, shown.index), name="method")
    return html_table(pd.DataFrame(np.reshape(cells, shown.shape), labels, heads).reset_index())


def _facts(results: Results) -> dict[str, str]:
    comparison, delays = results.comparison, without_defaults(results.comparison.delays)
    first = next(iter(results.runs.values()))
    # σ may be one number, or one per node.
    sigma = comparison.sigma
    facts = {
        "network": comparison.network_name,
        "data": Path(comparison.data.source).name,
        "loss": comparison.loss,
    }
    # Runs of another version may lack them.
    facts |= {name: number(value) for name, value in first.details.get("problem", {}).items()}
    facts["σ_i"] = f"{sigma:g}" if not isinstance(sigma, tuple) else f"{min(sigma):g} … {max(sigma):g}"
    facts["time of a message, τ"] = f"{comparison.tau:g}"
    facts["delays"] = delays.pop("law")
    facts |= {"lost exchanges": f"{comparison.lost:g}"} if comparison.lost else {}
    return facts | {f"delays, {name}": to_toml(value) for name, value in delays.items()}


def _shown_toml(comparison: Comparison) -> str:
    """Return the comparison as TOML with the names of its files instead of their paths on this machine."""
    data = dataclasses.replace(comparison.data, source=Path(comparison.data.source).name)
    imports = tuple(Path(name).name for name in comparison.imports)
    return dataclasses.replace(comparison, data=data, imports=imports).toml()


def _parameters(results: Results, label: str) -> str:
    """Return a method's parameters, the outcomes and the duration of its runs, as a section to unfold."""
    runs = results.of(label)
    outcomes = ", ".join(sorted({str(run.outcome) for run in runs}))
    spent = sum(run.seconds for run in runs)
    return (
        f"<details><summary>{html.escape(label)} "
        f"<span class='detail'>({outcomes}, {spent:.1f} s of running)</span></summary>"
        f"<pre>{html.escape(str(runs[0].parameters))}</pre></details>"
    )


def _legend(results: Results) -> str:
    """Return a checkbox with a sample of its line for each method that has a run."""
    entries = []
    for place, (label, (color, dashes)) in enumerate(_styles(results.comparison).items()):
        if label in results.labels:
            line = f'x1="0" x2="26" y1="5" y2="5" stroke="{color}" stroke-dasharray="{dashes}"'
            entries.append(
                f'<label><input type="checkbox" data-method="{place}" checked>'
                f'<svg viewBox="0 0 26 10" aria-hidden="true"><line {line} stroke-width="3"/></svg>'
                f"{html.escape(label)}</label>"
            )
    return "".join(entries)


def make_page(
    results: Results, findings: Sequence[Finding] = (), figures: dict[str, Figure] | None = None
) -> str:
    """Return the page as text.

    Parameters
    ----------
    results : Results
    findings : sequence of Finding
        Claims to be shown with their verdicts.
    figures : dict, optional
        Of :func:`draw_figures`, if they are drawn already.
    """
    figures = draw_figures(results) if figures is None else figures
    comparison, facts = results.comparison, _facts(results)
    # The sentences below the figures and the table depend on the number of seeds.
    count = len(comparison.seeds)
    error = results.error_name.replace("F −", "F(θ_i) −")
    caption = f"The mean over the nodes of {error}."
    note = "The time from which the error stays at or below the level"
    if count > 1:
        caption += f" Lines are medians over {count} seeds, bands the range of all seeds."
        note += "; the median over seeds, their range below it"
    note += ". Where a run ended above the level, the time is a lower bound."
    samples = f"{facts.get('samples of all nodes', 'all')} samples on {comparison.network_name}"
    lead = f"{comparison.loss} loss, {samples}, τ = {comparison.tau:g}"
    return fill_page(
        "page.html",
        title=html.escape(comparison.title),
        lead=html.escape(lead),
        caption=html.escape(caption),
        claims=claims_list(findings),
        table=_table(results),
        table_note=html.escape(note),
        network=network_svg(make_network(comparison)),
        facts=html_facts(facts),
        parameters="".join(_parameters(results, label) for label in results.labels),
        seeds=", ".join(str(seed) for seed in comparison.seeds),
        toml=html.escape(_shown_toml(comparison)),
        legend=_legend(results),
        curves="\n".join(
            svg_element(figure, f"Error of each method ({name})") for name, figure in figures.items()
        ),
    )


# --------------------------------------------------------------------------- the folder


def write_folder(
    results: Results, folder: str | Path, *, traces: str = "csv", findings: Sequence[Finding] = ()
) -> None:
    """Write traces, table, figures and page of the runs.

    Parameters
    ----------
    results : Results
    folder : path
    traces : str
        ``"csv"`` or ``"parquet"``.
    findings : sequence of Finding
    """
    folder = Path(folder)
    frame, figures = results.frame(), draw_figures(results)
    texts = {
        "times.csv": times_frame(results).drop(columns="text").to_csv(index=False),
        "times.md": markdown(time_table(results)),
        "report.html": make_page(results, findings, figures),
    }
    if traces == "parquet":
        frame.to_parquet(folder / "traces.parquet")
    else:
        texts["traces.csv"] = frame.to_csv(index=False)
    for name, figure in figures.items():
        texts[f"{name}.svg"] = svg_element(figure, results.comparison.title)
        figure.savefig(folder / f"{name}.png", dpi=150, transparent=True)
    for name, text in texts.items():
        write_whole(folder / name, text)


def remake_folder(folder: str | Path) -> None:
    """Make table, figures and page again from the runs in a folder; the traces keep their format."""
    results = load_results(folder)
    traces = "parquet" if (Path(folder) / "traces.parquet").exists() else "csv"
    write_folder(results, folder, traces=traces, findings=load_findings(Path(folder)))
