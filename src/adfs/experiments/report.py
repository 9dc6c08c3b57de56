"""What a comparison leaves in its folder for people: traces, tables, figures, and a page of its own."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, DelaySpec
from adfs.experiments.data import make_network
from adfs.experiments.figures import (
    error_name,
    markdown,
    network_svg,
    save_figures,
    time_table,
    times_frame,
)
from adfs.experiments.runs import AXES, FLOOR, Results, load_results
from adfs.files import write_whole
from adfs.pages import fill_page, html_facts, html_table, line_styles, number
from adfs.runtimes.delays import Straggler

_DIGITS = 5
# What is told of the problem, as runs keep it -> words.
_FACTS = {
    "n_nodes": "nodes, n",
    "n_edges": "edges",
    "gamma": "spectral gap, γ",
    "n_samples": "samples of all nodes",
    "n_features": "features, d",
    "kappa_s": "κ_s",
    "kappa_b": "κ_b",
}


@dataclass(frozen=True)
class Finding:
    """A claim, the verdict of some runs on it, and the numbers behind."""

    setting: str
    text: str
    verdict: str
    detail: str


def save_findings(findings: Sequence[Finding], folder: Path) -> None:
    """Keep findings beside the runs they are about, for machines and for people."""
    plain = [dataclasses.asdict(one) for one in findings]
    write_whole(folder / "claims.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    lines = [f"- **{one.verdict}** ({one.setting}): {one.text}.\n  {one.detail}." for one in findings]
    write_whole(folder / "claims.md", "\n".join(lines) + "\n")


def load_findings(folder: Path) -> list[Finding]:
    """Return the findings kept in a folder, none if there are none."""
    path = folder / "claims.json"
    if not path.is_file():
        return []
    try:
        return [Finding(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged; remove it, or run the command that made it again") from None


# --------------------------------------------------------------------------- parts of a page


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


def _numbers(values: np.ndarray) -> list[float]:
    """Return numbers with a few digits: a page is read, not computed with."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _curves(results: Results, label: str) -> dict[str, object]:
    """Return the curves of a method by axis, for the page's script."""
    found: dict[str, object] = {}
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
    """Return what the page's script draws."""
    entries = results.comparison.methods
    methods = [
        {
            "label": entry.label,
            "color": color,
            "dash": dashes,
            "seeds": len(results.of(entry.label)),
            "curves": _curves(results, entry.label),
        }
        for entry, (color, dashes) in zip(entries, line_styles(one.method for one in entries), strict=True)
    ]
    error = f"{error_name(results)}, mean over nodes"
    content = {"axes": AXES, "error": error, "target": results.comparison.target, "methods": methods}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A label may hold anything: nothing in it may end the script element.
    return text.replace("<", "\\u003c")


def _table(results: Results) -> str:
    """Return the table of times, with the range of the seeds and the best of each column marked."""
    frame, shown = times_frame(results), time_table(results)
    best = frame.groupby("level")["median"].min()
    cells: dict[str, list[str]] = {label: [f"<td>{html.escape(label)}</td>"] for label in results.labels}
    for (_, row), text in zip(frame.iterrows(), shown.to_numpy().ravel(), strict=True):
        mark = small = ""
        if math.isfinite(row["median"]):
            mark = ' class="best"' if row["median"] == best[row["level"]] else ""
            high = number(row["high"]) if math.isfinite(row["high"]) else "…"
            small = f"{number(row['low'])} – {high}" if row["seeds"] > 1 else ""
        elif row["reached"]:
            small = f"{row['reached']} of {row['seeds']} seeds"
        small = f"<small>{small}</small>" if small else ""
        shown_text = html.escape(text).replace(" ", "&nbsp;")
        cells[row["label"]].append(f"<td{mark}>{shown_text}{small}</td>")
    return html_table(["method", *(name.replace("e-0", "e-") for name in shown.columns)], cells.values())


def _facts(results: Results) -> dict[str, str]:
    comparison = results.comparison
    first = next(iter(results.runs.values())).details.get("problem", {})
    sigma = comparison.sigma
    source = Path(comparison.data.source).name if comparison.data.is_file else comparison.data.source
    facts = {"network": comparison.network_name, "data": source, "loss": comparison.loss}
    facts |= {words: number(first[key]) for key, words in _FACTS.items() if key in first}
    facts["σ_i"] = f"{sigma:g}" if not isinstance(sigma, tuple) else f"{min(sigma):g} … {max(sigma):g}"
    facts["time of a message, τ"] = f"{comparison.tau:g}"
    return facts | _delay_facts(comparison.delays)


def _delay_facts(delays: DelaySpec) -> dict[str, str]:
    """Return how long things take besides τ, in words; only what is not as usual, and the law."""
    facts = {"delays": delays.law + ("; one draw per batch" if delays.batch == "scaled" else "")}
    if delays.blocking:
        facts["exchanges"] = "both ends wait for the message"
    speeds = delays.speed if isinstance(delays.speed, tuple) else (delays.speed,)
    if set(speeds) != {1.0}:
        low, high = min(speeds), max(speeds)
        facts["samples in time 1"] = f"{low:g}" if low == high else f"{low:g} … {high:g}"
    if delays.stragglers:
        slow = (Straggler(int(one[0]), *one[1:]) for one in delays.stragglers)
        told = (
            f"node {one.node}: {one.factor:g} times as long"
            + (f", {one.share:.0%} of each {one.period:g}" if one.share < 1.0 else "")
            for one in slow
        )
        facts["stragglers"] = "; ".join(told)
    if delays.slow_links:
        facts["slow links"] = ", ".join(f"{a:g} – {b:g}: {factor:g} τ" for a, b, factor in delays.slow_links)
    if delays.seed is not None:
        facts["seed of the delays"] = str(delays.seed)
    return facts


def _shown_toml(comparison: Comparison) -> str:
    """Return the comparison as TOML with the names of its files, not where they are on this machine."""
    text = comparison.toml()
    files = [comparison.data.source] * comparison.data.is_file
    for path in [*files, *(name for name in comparison.imports if name.endswith(".py"))]:
        text = text.replace(
            json.dumps(path, ensure_ascii=False), json.dumps(Path(path).name, ensure_ascii=False)
        )
    return text


def _parameters(results: Results, label: str) -> str:
    """Return a method's constants, how its runs ended and how long they took, to be folded out."""
    runs = results.of(label)
    outcomes = ", ".join(sorted({str(one.outcome) for one in runs}))
    spent = sum(one.seconds for one in runs)
    return (
        f"<details><summary>{html.escape(label)} "
        f"<span class='detail'>({outcomes}, {spent:.1f} s of running)</span></summary>"
        f"<pre>{html.escape(str(runs[0].parameters))}</pre></details>"
    )


def make_page(results: Results, findings: Sequence[Finding] = ()) -> str:
    """Return the page as text.

    Parameters
    ----------
    results : Results
    findings : sequence of Finding
        Claims to be shown with their verdicts.
    """
    comparison, facts = results.comparison, _facts(results)
    count = len(comparison.seeds)
    error = error_name(results).replace("F −", "F(θ_i) −")
    caption = f"The mean over the nodes of {error}."
    note = "When the error comes to stay at or below the level"
    if count > 1:
        caption += f" Lines are medians over {count} seeds, bands their whole range."
        note += "; the median over seeds, their range below it"
    note += ". Where a run was given up before, the time is a lower bound."
    samples = facts.get("samples of all nodes", "?")
    lead = f"{comparison.loss} loss, {samples} samples on {comparison.network_name}, τ = {comparison.tau:g}"
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
        data=_data(results),
    )


# --------------------------------------------------------------------------- the folder


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
    frame = results.frame()
    texts = {
        "times.csv": times_frame(results).to_csv(index=False),
        "times.md": markdown(time_table(results)),
        "report.html": make_page(results, findings),
    }
    if traces == "parquet":
        frame.to_parquet(folder / "traces.parquet")
    else:
        texts["traces.csv"] = frame.to_csv(index=False)
    for name, text in texts.items():
        write_whole(folder / name, text)
    written = dict.fromkeys([f"traces.{traces}", *texts])
    return [folder / name for name in written] + save_figures(results, folder)


def remake_folder(folder: str | Path) -> list[Path]:
    """Make table, figures and page again from the runs in a folder; the traces in the format they have."""
    results = load_results(folder)
    traces = "parquet" if (Path(folder) / "traces.parquet").exists() else "csv"
    return write_folder(results, folder, traces=traces, findings=load_findings(Path(folder)))
