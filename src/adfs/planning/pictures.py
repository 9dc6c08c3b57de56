"""The figure of a plan (times against numbers of nodes) and its page."""

from __future__ import annotations

import html
import io
import math
from typing import TYPE_CHECKING

from adfs.algorithms import METHODS
from adfs.pages import fill_page, html_facts, html_table, line_options, line_styles, number, on_any_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfs.planning.planner import Plan


def draw(plan: Plan, axes: Axes | None = None) -> Axes:
    """Draw the predicted time against the number of nodes, one line per method on its best network."""
    if axes is None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.4, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
    scale = 1.0 if plan.seconds_per_sample is None else plan.seconds_per_sample
    # Methods that take a hundred times as long as the best would squeeze the others together.
    shown = [one.method for one in plan.best_of_each() if one.time <= 100.0 * plan.best.time]
    for method, style in zip(shown, line_styles(shown, METHODS), strict=True):
        best: dict[int, float] = {}
        for one in plan.predictions:
            if one.method == method:
                best.setdefault(one.n_nodes, scale * one.time)
        counts = sorted(best)
        # Hollow markers stand for methods that are not recommended. A single point shows no dashes, so the
        # markers tell the styles of lines apart.
        line = line_options(*style) | ({"mfc": "none"} if method in plan.passed_over else {})
        marker = {"": "o", "6 3": "s"}.get(style[1], "^")
        axes.plot(counts, [best[n] for n in counts], marker=marker, ms=5, label=method, **line)
    # A grey ring marks the recommendation.
    axes.plot(plan.best.n_nodes, scale * plan.best.time, "o", ms=12, mfc="none", mec="0.48")
    counts = sorted({one.n_nodes for one in plan.predictions})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("nodes")
    unit = "one sample takes 1" if plan.seconds_per_sample is None else "seconds"
    axes.set_ylabel(f"predicted time to a gap of {plan.tol:g} ({unit})")
    axes.grid(True, which="major", alpha=0.3, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=8, frameon=False, handlelength=4.0, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def _svg(plan: Plan) -> str:
    """Return the figure as an SVG element, the same for the same plan."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context(on_any_page()):
        figure = draw(plan).get_figure(root=True)
        assert figure is not None
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    # Leave out the XML header: the element becomes part of an HTML page.
    svg = svg[svg.index("<svg") :]
    label = "Predicted time of each method against the number of nodes"
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" class="figure" ', 1)


def _rows(plan: Plan) -> list[list[str]]:
    """Return the cells of the table, at most 40 rows: the best of each method, then the fastest of all."""
    first = plan.best_of_each()
    rest = [one for one in plan.predictions if one not in first]
    rows = []
    for one in [*first, *rest][:40]:
        marked = ' class="best"' if one is plan.best else ""
        rows.append([f"<td{marked}>{html.escape(text)}</td>" for text in plan.cells(one)[:-1]])
    return rows


def make_page(plan: Plan) -> str:
    """Return the page as text."""
    facts = plan.facts
    numbers = {
        "samples, N": number(facts.n_samples),
        "features, d": number(facts.n_features),
        "κ_s": number(facts.kappa_s),
        "κ_b": number(facts.kappa_b),
        "time of a message, τ": f"{plan.tau:g}",
        "target, relative gap": f"{plan.tol:g}",
        "spectral gap, γ": number(plan.best.gamma),
        "delays": plan.law,
        "nodes that pay, at most": str(plan.node_limit),
    }
    if not math.isnan(plan.tau_limit):
        numbers["τ up to which they do"] = "any" if math.isinf(plan.tau_limit) else number(plan.tau_limit)
    sentences = "".join(f"<li>{html.escape(one)}</li>" for one in plan.sentences())
    return fill_page(
        "plan.html",
        lead=html.escape(plan.sentences()[0]),
        sentences=sentences,
        figure=_svg(plan),
        table=html_table(plan.heads[:-1], _rows(plan)),
        facts=html_facts(numbers),
    )
