"""The page of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from adfs._version import __version__
from adfs.data.files import write_text
from adfs.experiments.claims import Finding, load_findings
from adfs.experiments.data import make_network
from adfs.experiments.drawing import network_svg
from adfs.experiments.figures import save_figures, style_of
from adfs.experiments.results import AXES, FLOOR, Results, load_results
from adfs.experiments.tables import markdown, number, time_table, times_frame

__all__ = ["make_page", "remake_folder", "write_folder"]

_DIGITS = 5


def resource(name: str) -> str:
    """Return a file that pages are made of."""
    return resources.files("adfs.experiments").joinpath("page", name).read_text(encoding="utf-8")


def _numbers(values: Sequence[float] | np.ndarray) -> list[float]:
    """Return numbers with a few digits: a page is read, not computed with."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _curves(results: Results, label: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis in AXES:
        curve = results.curve(label, axis)
        if curve is None:
            continue
        ends = results.times(label, results.comparison.target, axis)
        runs = []
        for run in results.of(label):
            heights = np.maximum(run.frame[results.error].to_numpy(), FLOOR)
            kept = np.isfinite(heights)
            runs.append({"x": _numbers(run.frame[axis].to_numpy()[kept]), "y": _numbers(heights[kept])})
        found[axis] = {
            **{name: _numbers(values) for name, values in curve._asdict().items()},
            "reached": float(ends.max()) if np.isfinite(ends).all() else None,
            "runs": runs,
        }
    return found


def _data(results: Results) -> str:
    methods = []
    for place, entry in enumerate(results.comparison.methods):
        color, dashes = style_of(place)
        methods.append(
            {
                "label": entry.label,
                "color": color,
                "dash": dashes,
                "seeds": len(results.of(entry.label)),
                "curves": _curves(results, entry.label) if results.of(entry.label) else {},
            }
        )
    error = "(F − F*)/F(0), mean over nodes" if results.comparison.relative else "F − F*, mean over nodes"
    content = {"axes": AXES, "error": error, "target": results.comparison.target, "methods": methods}
    # A label may hold anything: nothing in it may end the script element.
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )


def _table(results: Results) -> str:
    frame = times_frame(results)
    levels = sorted(set(frame["level"]), reverse=True)
    best = {level: frame.loc[frame["level"] == level, "median"].min() for level in levels}
    heads = "".join(f"<th>{level:.0e}</th>".replace("e-0", "e-") for level in levels)
    rows = []
    for label in results.labels:
        cells = []
        for level in levels:
            row = frame[(frame["label"] == label) & (frame["level"] == level)].iloc[0]
            if math.isfinite(row["median"]):
                mark = ' class="best"' if row["median"] == best[level] else ""
                high = number(row["high"]) if math.isfinite(row["high"]) else "…"
                span = f"<small>{number(row['low'])} – {high}</small>" if row["seeds"] > 1 else ""
                cells.append(f"<td{mark}>{number(row['median'])}{span}</td>")
            else:
                some = f"<small>{row['reached']} of {row['seeds']} seeds</small>" if row["reached"] else ""
                cells.append(f"<td>&gt; {number(row['given_up'])}{some}</td>")
        rows.append(f"<tr><td>{html.escape(label)}</td>{''.join(cells)}</tr>")
    head = f"<thead><tr><th>method</th>{heads}</tr></thead>"
    return f'<table class="times">{head}<tbody>{"".join(rows)}</tbody></table>'


def claims_list(findings: Sequence[Finding]) -> str:
    """Return claims and verdicts as an HTML section, nothing without any."""
    if not findings:
        return ""
    items = []
    for one in findings:
        kind = {"holds": "holds", "does not hold": "fails"}.get(one.verdict, "open")
        items.append(
            f'<li><span class="verdict {kind}">{one.verdict}</span> {html.escape(one.text)}'
            f'<br><span class="detail">{html.escape(one.detail)}</span></li>'
        )
    return f'<section><h2>Claims</h2><ul class="claims">{"".join(items)}</ul></section>'


def _facts(results: Results) -> dict[str, str]:
    comparison = results.comparison
    first = next(iter(results.runs.values())).details.get("problem", {})
    sigma = comparison.sigma
    names = {
        "n_nodes": "nodes, n",
        "n_edges": "edges",
        "gamma": "spectral gap, γ",
        "n_samples": "samples of all nodes",
        "n_features": "features, d",
        "kappa_s": "κ_s",
        "kappa_b": "κ_b",
    }
    facts = {"network": comparison.graph, "data": comparison.data.source, "loss": comparison.loss}
    facts |= {words: number(first[key]) for key, words in names.items() if key in first}
    facts["σ_i"] = f"{sigma:g}" if not isinstance(sigma, tuple) else f"{min(sigma):g} … {max(sigma):g}"
    facts["time of a message, τ"] = f"{comparison.tau:g}"
    facts["delays"] = str(comparison.delays.make(comparison.tau)).removeprefix("Delays")
    if comparison.delays.slow_links:
        links = (f"{a:g} – {b:g}: {factor:g} τ" for a, b, factor in comparison.delays.slow_links)
        facts["slow links"] = ", ".join(links)
    return facts


def make_page(results: Results, findings: Sequence[Finding] = ()) -> str:
    """Return the page as text.

    Parameters
    ----------
    results : Results
    findings : sequence of Finding
        Claims to be shown with their verdicts.
    """
    comparison = results.comparison
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    facts = _facts(results)
    parameters = []
    for label in results.labels:
        run = results.of(label)[0]
        outcomes = ", ".join(sorted({str(one.outcome) for one in results.of(label)}))
        spent = sum(one.seconds for one in results.of(label))
        told = f"<span class='detail'>({outcomes}, {spent:.1f} s of running)</span>"
        parameters.append(
            f"<details><summary>{html.escape(label)} {told}</summary>"
            f"<pre>{html.escape(str(run.parameters))}</pre></details>"
        )
    count = len(comparison.seeds)
    band = f" Lines are medians over {count} seeds, bands their whole range." if count > 1 else ""
    caption = (
        f"The mean over the nodes of {'(F(θ_i) − F*)/F(0)' if comparison.relative else 'F(θ_i) − F*'}.{band}"
    )
    note = "When the error comes to stay at or below the level"
    note += "; the median over seeds, their range below it." if count > 1 else "."
    note += " Where a run was given up before, the time is a lower bound."
    samples = facts.get("samples of all nodes", "?")
    lead = f"{comparison.loss} loss, {samples} samples on {comparison.graph}, τ = {comparison.tau:g}"
    return Template(resource("page.html")).substitute(
        version=__version__,
        title=html.escape(comparison.title),
        css=resource("page.css"),
        js=resource("page.js"),
        lead=html.escape(lead),
        caption=html.escape(caption),
        claims=claims_list(findings),
        table=_table(results),
        table_note=html.escape(note),
        network=network_svg(make_network(comparison)),
        facts="".join(
            f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items()
        ),
        parameters="".join(parameters),
        seeds=seeds,
        toml=html.escape(comparison.toml()),
        data=_data(results),
    )


def write_folder(
    results: Results, folder: str | Path, *, traces: str = "csv", findings: Sequence[Finding] = ()
) -> list[Path]:
    """Write everything that is made from the runs: traces, table, figures, page.

    Parameters
    ----------
    results : Results
    folder : path
    traces : str
        ``"csv"`` or ``"parquet"``.
    findings : sequence of Finding

    Returns
    -------
    list of Path
        What was written.
    """
    folder = Path(folder)
    frame, times = results.frame(), times_frame(results)
    if traces == "parquet":
        written = [folder / "traces.parquet"]
        frame.to_parquet(written[0])
    else:
        written = [folder / "traces.csv"]
        write_text(written[0], frame.to_csv(index=False))
    for name, text in (
        ("times.csv", times.to_csv(index=False)),
        ("times.md", markdown(time_table(results))),
        ("report.html", make_page(results, findings)),
    ):
        write_text(folder / name, text)
        written.append(folder / name)
    return written + save_figures(results, folder)


def remake_folder(folder: str | Path) -> list[Path]:
    """Make table, figures and page again from the runs in a folder; the traces in the format they have."""
    results = load_results(folder)
    traces = "parquet" if (Path(folder) / "traces.parquet").exists() else "csv"
    return write_folder(results, folder, traces=traces, findings=load_findings(Path(folder)))
