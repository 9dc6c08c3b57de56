"""The paper's experiments: three settings, Table 1, and its claims."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd

from adfs._version import __version__
from adfs.data.files import write_text
from adfs.errors import unknown_name
from adfs.experiments import claims as claims_module
from adfs.experiments.claims import Finding, find, save_findings
from adfs.experiments.data import make_problem
from adfs.experiments.entries import DataSpec, MethodSpec
from adfs.experiments.report import claims_list, resource, write_folder
from adfs.experiments.results import Results
from adfs.experiments.runner import run_comparisons
from adfs.experiments.spec import Comparison
from adfs.experiments.tables import markdown, number
from adfs.runtimes.step_time import theorem4_table
from adfs.theory import table1

__all__ = ["CHOICES", "SETTINGS", "Reproduction", "Setting", "reproduce"]

_TAU = 5.0
_METHODS = (
    MethodSpec("adfs", claims_module.ADFS, "paper"),
    MethodSpec("adfs", claims_module.TUNED, "tuned"),
    MethodSpec("adfs-block", claims_module.BLOCK),
    MethodSpec("msda", claims_module.MSDA),
    MethodSpec("point-saga", claims_module.SAGA),
    MethodSpec("esdacd", claims_module.ESDACD),
    MethodSpec("dsba", claims_module.DSBA, "paper"),
    MethodSpec("dagd", claims_module.AGD),
)
#: Rows of Table 1 -> the curves that measure them.
_MEASURED = {
    "point-saga": claims_module.SAGA,
    "msda": claims_module.MSDA,
    "esdacd": claims_module.ESDACD,
    "dsba": claims_module.DSBA,
    "adfs": claims_module.ADFS,
}


@dataclass(frozen=True)
class Setting:
    """One of the paper's three settings.

    Logistic regression on two Gaussian classes, d = 10, τ = 5, exponential delays.

    Attributes
    ----------
    title : str
    graph : str
    samples : int
        m, samples a node.
    sigma : float
        σ_i.
    level : float
        The error at which times are compared.
    max_time : float
        Idealised time after which a method is given up.
    records : int
        Recorded points a decade.
    """

    title: str
    graph: str
    samples: int
    sigma: float
    level: float
    max_time: float
    records: int

    def comparison(self, seeds: Sequence[int]) -> Comparison:
        """Return the setting as a comparison."""
        return Comparison(
            DataSpec("gaussians", self.samples, 10),
            self.graph,
            _METHODS,
            title=self.title,
            sigma=self.sigma,
            tau=_TAU,
            seeds=tuple(seeds),
            target=1e-8,
            max_time=self.max_time,
            records=self.records,
        )


#: The three settings of the paper.
SETTINGS = {
    "small": Setting("Small network: 2 x 2, m = 1000, σ = 1", "grid:2x2", 1000, 1.0, 1e-8, 4e5, 32),
    "large": Setting("Large network: 10 x 10, m = 300, σ = 1", "grid:10x10", 300, 1.0, 1e-8, 7e5, 24),
    "many-samples": Setting(
        "Many samples a node: 7 x 7, m = 10000, σ = 50", "grid:7x7", 10_000, 50.0, 1e-6, 1e6, 16
    ),
}
#: For a first look: given up earlier, and the third with fewer nodes and samples, σ in proportion. They were
#: chosen to show the picture of the full settings: evidence for the claims are those, not these.
QUICK = {
    "small": Setting("Small network: 2 x 2, m = 1000, σ = 1 (quick)", "grid:2x2", 1000, 1.0, 1e-8, 3.5e5, 16),
    "large": Setting(
        "Large network: 10 x 10, m = 300, σ = 1 (quick)", "grid:10x10", 300, 1.0, 1e-8, 2.5e5, 18
    ),
    "many-samples": Setting(
        "Many samples a node: 5 x 5, m = 4000, σ = 20 (quick)", "grid:5x5", 4000, 20.0, 1e-6, 3e5, 10
    ),
}
CHOICES = (*SETTINGS, "table", "all")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What a reproduction found: results by setting, verdicts on the claims, Table 1, Theorem 4's check."""

    results: dict[str, Results] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    step_times: pd.DataFrame = field(default_factory=pd.DataFrame)


def reproduce(
    which: str,
    folder: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
) -> Reproduction:
    """Run the paper's experiments, or some of them, and judge its claims.

    Parameters
    ----------
    which : str
        ``"small"``, ``"large"``, ``"many-samples"``, ``"table"`` (Table 1 and Theorem 4 alone) or
        ``"all"``.
    folder : path
        A folder for each setting goes into it; finished runs there are used again.
    quick : bool
        Scaled-down settings and one seed, for a first look.
    seeds : int, optional
        How many; 5, or 1 if quick.
    jobs, fresh, progress
        As for :func:`adfs.experiments.runner.run_comparison`.

    Returns
    -------
    Reproduction
    """
    if which not in CHOICES:
        raise unknown_name("experiment", which, CHOICES)
    settings = QUICK if quick else SETTINGS
    chosen = list(settings) if which in ("all", "table") else [which]
    numbers = range((1 if quick else 5) if seeds is None else seeds)
    comparisons = {name: settings[name].comparison(numbers) for name in chosen}
    folder = Path(folder)
    results: dict[str, Results] = {}
    if which != "table":
        wanted = [(comparison, folder / name) for name, comparison in comparisons.items()]
        made = run_comparisons(wanted, jobs=jobs, fresh=fresh, progress=progress)
        results = dict(zip(comparisons, made, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    findings = find(results, {name: settings[name].level for name in chosen})
    table = _table(comparisons, results) if which in ("all", "table") else pd.DataFrame()
    for name, found in results.items():
        own = [one for one in findings if one.setting == name]
        save_findings(own, folder / name)
        write_folder(found, folder / name, findings=own)
    step_times = pd.DataFrame()
    if which in ("all", "table"):
        write_text(folder / "table1.csv", table.to_csv())
        write_text(folder / "table1.md", markdown(table_text(table)))
        step_times = theorem4_table(laws=("fixed",), blocking=(True,), events=20_000 if quick else 100_000)
        write_text(folder / "theorem4.csv", step_times.to_csv(index=False))
    if which == "all":
        save_findings(findings, folder)
        write_text(folder / "index.html", _overview(results, findings, table, quick))
    return Reproduction(results, findings, table, step_times)


def _table(comparisons: Mapping[str, Comparison], results: Mapping[str, Results]) -> pd.DataFrame:
    """Return Table 1 on each setting: what theory says, and what runs took, to divide the error by e."""
    table = pd.DataFrame()
    for name, comparison in comparisons.items():
        problem, network = make_problem(comparison, comparison.seeds[0])
        theory = table1(problem, network, comparison.tau)
        table["formula"] = theory["formula"]
        table[f"{name} predicted"] = theory["time"]
        if name in results:
            measured = [_pace(results[name], _MEASURED.get(str(method))) for method in theory.index]
            table[f"{name} measured"] = measured
    return table


def _pace(results: Results, label: str | None) -> float:
    """Return the measured time to divide F − F* by e, between 1e-2 and 1e-6; nan where no run got there."""
    if label is None:
        return math.nan
    spans = (
        results.times(label, 1e-6) - results.times(label, 1e-2)
        if _reached(results, label)
        else np.array([math.nan])
    )
    return float(spans.mean() / math.log(1e4))


def _reached(results: Results, label: str) -> bool:
    return bool(np.isfinite(results.times(label, 1e-6)).all())


def table_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1 as text."""
    shown = table.map(
        lambda cell: cell if isinstance(cell, str) else "–" if math.isnan(cell) else number(cell)
    )
    shown.index.name = "method"
    return shown


def step_time_text(step_times: pd.DataFrame) -> pd.DataFrame:
    """Return Theorem 4's check as text: a bound is shown where what the proof assumes is true."""
    shown = step_times[["graph", "p_comm", "tau", "measured"]].round(4).astype(str)
    bounds = zip(step_times["bound"], step_times["holds"], strict=True)
    shown["bound"] = [f"{bound:.4f}" if holds else "–" for bound, holds in bounds]
    return shown


def _overview(
    results: Mapping[str, Results], findings: Sequence[Finding], table: pd.DataFrame, quick: bool
) -> str:
    """Return a page with the three figures, the claims and Table 1."""
    parts = []
    for name, found in results.items():
        figure = (Path(name) / "error-time.svg").as_posix()
        title = html.escape(found.comparison.title)
        parts.append(
            f'<section><h2><a href="{name}/report.html">{title}</a></h2>'
            f'<a href="{name}/report.html"><img class="figure" src="{figure}" alt="{title}"></a></section>'
        )
    shown = table_text(table)
    heads = "".join(f"<th>{html.escape(str(head))}</th>" for head in ["method", *shown.columns])
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (name, *row)) + "</tr>"
        for name, row in zip(shown.index, shown.to_numpy(), strict=True)
    )
    note = "Scaled-down settings: the claims were made of the full ones. " if quick else ""
    return Template(resource("overview.html")).substitute(
        css=resource("page.css"),
        note=note,
        figures="".join(parts),
        claims=claims_list(findings),
        heads=heads,
        rows=rows,
        version=__version__,
    )
