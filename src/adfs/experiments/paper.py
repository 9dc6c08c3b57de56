"""The paper's experiments: its three settings, its Table 1, and its claims, checked one by one."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from adfs.errors import unknown_name
from adfs.experiments.comparison import Comparison, DataSpec, MethodSpec
from adfs.experiments.inputs import make_problem
from adfs.experiments.report import claims_list, write_folder
from adfs.experiments.results import Finding, Results, markdown, save_findings
from adfs.experiments.runner import run_comparison
from adfs.files import write_whole
from adfs.network import Network
from adfs.pages import fill_page, html_table, number
from adfs.runtimes.clock import retime
from adfs.runtimes.delays import Delays
from adfs.theory import NodeSummary, Parameters, table1, theorem4_step_time

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
#: Labels of the curves.
ADFS, TUNED, BLOCK = "ADFS", "ADFS (tuned)", "block ADFS"
ADAPTIVE, BLOCK_ADAPTIVE = "ADFS, adaptive", "block ADFS, adaptive"
MSDA, SAGA, ESDACD, DSBA, AGD = "MSDA", "Point-SAGA", "ESDACD", "DSBA", "distributed AGD"
LBFGS, NEWTON = "L-BFGS", "Newton"

_METHODS = (
    MethodSpec("adfs", ADFS, "paper"),
    MethodSpec("adfs", TUNED, "tuned"),
    MethodSpec("adfs", ADAPTIVE, "adaptive"),
    MethodSpec("adfs-block", BLOCK),
    MethodSpec("adfs-block", BLOCK_ADAPTIVE, "adaptive"),
    MethodSpec("msda", MSDA),
    MethodSpec("point-saga", SAGA),
    MethodSpec("esdacd", ESDACD),
    MethodSpec("dsba", DSBA, "paper"),
    MethodSpec("dagd", AGD),
    MethodSpec("lbfgs", LBFGS),
    MethodSpec("newton", NEWTON),
)
#: Rows of Table 1 -> the curves that measure them.
_MEASURED = {"point-saga": SAGA, "msda": MSDA, "esdacd": ESDACD, "dsba": DSBA, "adfs": ADFS}


def _setting(
    name: str, side: int, samples: int, sigma: float, max_time: float, records: int, note: str = ""
) -> Comparison:
    """Return a setting: logistic regression on two Gaussian classes, d = 10, τ = 5, exponential delays."""
    return Comparison(
        DataSpec("gaussians", samples, 10),
        f"grid:{side}x{side}",
        _METHODS,
        title=f"{name}: {side} x {side}, m = {samples}, σ = {sigma:g}{note}",
        sigma=sigma,
        seeds=(0, 1, 2, 3, 4),
        max_time=max_time,
        records=records,
    )


#: The three settings of the paper.
SETTINGS = {
    "small": _setting("Small network", 2, 1000, 1.0, 4e5, 32),
    "large": _setting("Large network", 10, 300, 1.0, 7e5, 24),
    "many-samples": _setting("Many samples per node", 7, 10_000, 50.0, 1e6, 16),
}
#: Shorter runs, and the third setting with fewer nodes and samples and a smaller σ. They were chosen to show
#: the same picture as the full settings; only the full settings are evidence for the claims.
QUICK = {
    "small": _setting("Small network", 2, 1000, 1.0, 3.5e5, 16, " (quick)"),
    "large": _setting("Large network", 10, 300, 1.0, 2.5e5, 18, " (quick)"),
    "many-samples": _setting("Many samples per node", 5, 4000, 20.0, 3e5, 10, " (quick)"),
}
#: The errors at which the times of a setting are compared.
LEVELS = {"small": 1e-8, "large": 1e-8, "many-samples": 1e-6}
CHOICES = (*SETTINGS, "table", "all")


class Claim(NamedTuple):
    """A claim: each of some methods takes at most ``ratio`` times as long as each of some others, by label.

    The claim is about each of the ``settings``; ``{}`` in the text stands for the name of a setting.
    """

    settings: tuple[str, ...]
    text: str
    methods: tuple[str, ...]
    others: tuple[str, ...]
    ratio: float = 1.0


_ALL = tuple(SETTINGS)
_OVERHEAD = "ADFS has a low overhead and matches Point-SAGA (at most 1.15 times its time)"
_BEATS_ALL = "ADFS outperforms all other methods of the paper, by a factor of 2 or more"
_BLOCK = "Beyond the paper: block-synchronous ADFS"
_ADAPTIVE = "Beyond the paper: constants that adapt"
#: The claims of the paper's section on experiments, and claims about methods that were added later.
CLAIMS = (
    Claim(
        ("small",),
        "On a small network Point-SAGA beats the distributed methods MSDA, ESDACD and DSBA",
        (SAGA,),
        (MSDA, ESDACD, DSBA),
    ),
    Claim(("small",), _OVERHEAD, (ADFS,), (SAGA,), 1.15),
    Claim(("large",), "On a large network MSDA and ADFS beat Point-SAGA", (MSDA, ADFS), (SAGA,)),
    Claim(
        ("large",),
        "With few samples per node MSDA is faster than ADFS with the paper's constants",
        (MSDA,),
        (ADFS,),
    ),
    Claim(
        ("many-samples",), "With many samples per node MSDA still improves over Point-SAGA", (MSDA,), (SAGA,)
    ),
    Claim(("many-samples",), _BEATS_ALL, (ADFS,), (MSDA, SAGA, ESDACD, DSBA), 0.5),
    Claim(
        _ALL, "DSBA and ESDACD do not perform so well ({}): ADFS is ahead of both", (ADFS,), (ESDACD, DSBA)
    ),
    Claim(("large",), f"{_BLOCK} with the best split r (at most 1/2) is at or below MSDA", (BLOCK,), (MSDA,)),
    Claim(_ALL, f"{_BLOCK} is at or below ADFS of the paper ({{}})", (BLOCK,), (ADFS,)),
    Claim(
        ("small",),
        f"{_ADAPTIVE} make ADFS at least 1.5 times as fast as without",
        (ADAPTIVE,),
        (ADFS, TUNED),
        1 / 1.5,
    ),
    Claim(
        ("large",),
        f"{_ADAPTIVE} make block-synchronous ADFS at least 1.5 times as fast as without, and as MSDA",
        (BLOCK_ADAPTIVE,),
        (BLOCK, MSDA),
        1 / 1.5,
    ),
)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The results by setting, the verdicts on the claims, Table 1, and the check of Theorem 4."""

    results: dict[str, Results]
    findings: list[Finding]
    table: pd.DataFrame
    step_times: pd.DataFrame


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
        Gets a folder for each setting. Finished runs in it are not repeated.
    quick : bool
        Scaled-down settings and one seed.
    seeds : int, optional
        Number of seeds; 5, or 1 if quick.
    jobs, fresh, progress
        As for :func:`adfs.experiments.run_comparison`.
    """
    if which not in CHOICES:
        raise unknown_name("experiment", which, CHOICES)
    settings = QUICK if quick else SETTINGS
    chosen = list(settings) if which in ("all", "table") else [which]
    # The claims were made with several seeds; a quick look takes one.
    numbers = tuple(range((1 if quick else 5) if seeds is None else seeds))
    comparisons = {name: dataclasses.replace(settings[name], seeds=numbers) for name in chosen}
    folder = Path(folder)
    results = {
        name: run_comparison(comparison, folder / name, jobs=jobs, fresh=fresh, progress=progress)
        for name, comparison in comparisons.items()
        if which != "table"
    }
    folder.mkdir(parents=True, exist_ok=True)
    findings = judge(results)
    for name, runs in results.items():
        here = [finding for finding in findings if finding.setting == name]
        save_findings(here, folder / name)
        write_folder(runs, folder / name, findings=here)
    table = step_times = pd.DataFrame()
    if which in ("all", "table"):
        table = _table(comparisons, results)
        write_whole(folder / "table1.csv", table.to_csv())
        write_whole(folder / "table1.md", markdown(table_text(table)))
        step_times = theorem4_table(20_000 if quick else 100_000)
        write_whole(folder / "theorem4.csv", step_times.to_csv(index=False))
    if which == "all":
        save_findings(findings, folder)
        write_whole(folder / "index.html", _overview(results, findings, table, quick))
    return Reproduction(results, findings, table, step_times)


def _table(comparisons: Mapping[str, Comparison], results: Mapping[str, Results]) -> pd.DataFrame:
    """Return Table 1 of each setting: the predicted and the measured time to divide the error by e."""
    table = pd.DataFrame()
    for name, comparison in comparisons.items():
        problem, network = make_problem(comparison, comparison.seeds[0])
        theory = table1(problem, network, comparison.tau)
        # The formulas are the same in all settings.
        table["formula"] = theory["formula"]
        table[f"{name} predicted"] = theory["time"]
        if name in results:
            paces = {method: _pace(results[name], label) for method, label in _MEASURED.items()}
            table[f"{name} measured"] = pd.Series(paces)
    return table


def judge(results: Mapping[str, Results], claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Judge the claims by the runs of the settings that are there.

    Times are medians over seeds, as in the tables. If the median run ended above the level, its end is a
    lower bound of the time, which may or may not be enough to decide.
    """
    findings = []
    for claim in claims:
        for setting in (name for name in claim.settings if name in results):
            level, labels = LEVELS[setting], (*claim.methods, *claim.others)
            times = {label: results[setting].median_time(label, level) for label in labels}
            verdicts = {
                _compare(times[mine], times[other], claim.ratio)
                for mine in claim.methods
                for other in claim.others
            }
            # One pair of methods that contradicts the claim is enough to refute it.
            verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
            shown = [
                f"{label} {'' if exact else '> '}{number(time)}" for label, (time, exact) in times.items()
            ]
            detail = f"median time to {level:.0e}: {', '.join(shown)}"
            findings.append(Finding(setting, claim.text.format(setting), verdict, detail))
    return findings


def _compare(mine: tuple[float, bool], other: tuple[float, bool], ratio: float) -> str:
    """Decide whether a time is at most ``ratio`` times another; a time that is not exact is a lower bound."""
    # A lower bound of the other time is enough to confirm, a lower bound of this time is enough to refute.
    (time, exact), (other_time, other_exact) = mine, other
    if exact and time <= ratio * other_time:
        return HOLDS
    return FAILS if other_exact and time > ratio * other_time else OPEN


def _pace(results: Results, label: str) -> float:
    """Return the median time to divide F − F* by e, from 1e-2 to 1e-6; nan if a run did not reach 1e-6."""
    # The first two digits depend on the start more than on the rate.
    ends = results.times(label, 1e-6)
    if not np.isfinite(ends).all():
        return math.nan
    return float(np.median(ends - results.times(label, 1e-2)) / math.log(1e4))


def table_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return Table 1 as text."""
    shown = table.map(
        lambda cell: cell if isinstance(cell, str) else "–" if math.isnan(cell) else number(cell)
    )
    shown.index.name = "method"
    return shown


def step_time_text(step_times: pd.DataFrame) -> pd.DataFrame:
    """Return the check of Theorem 4 on the clock of its proof, with the bound where its assumption holds."""
    proof = step_times[(step_times["law"] == "fixed") & step_times["blocking"]]
    bounds = proof["bound"].map("{:.4f}".format).where(proof["holds"], "–")
    return proof[["network", "p_comm", "tau", "measured"]].round(4).astype(str).assign(bound=bounds)


def _overview(
    results: Mapping[str, Results], findings: Sequence[Finding], table: pd.DataFrame, quick: bool
) -> str:
    """Return a page with the three figures, the claims and Table 1."""
    figures = []
    for name, runs in results.items():
        title = html.escape(runs.comparison.title)
        figures.append(
            f'<section><h2><a href="{name}/report.html">{title}</a></h2><a href="{name}/report.html">'
            f'<img class="figure" src="{name}/error-time.svg" alt="{title}"></a></section>'
        )
    return fill_page(
        "overview.html",
        note="Scaled-down settings: the claims were made of the full ones. " if quick else "",
        figures="".join(figures),
        claims=claims_list(findings),
        table=html_table(table_text(table).reset_index().map(html.escape)),
    )


def theorem4_table(events: int) -> pd.DataFrame:
    """Measure the time per step against Theorem 4's bound, over graphs, p_comm, τ and kinds of clock.

    All nodes compute equally often and all edges are equally likely, as in the paper.

    Returns
    -------
    pandas.DataFrame
        One row per case: ``network``, ``n_nodes``, ``p_comm``, ``tau``, ``law``, ``blocking``, ``measured``
        (time per step), ``bound`` (ν), ``constant`` (measured·n/(p_comp + τ·p_comm^max), 24 in the bound)
        and ``holds`` (whether the assumptions of the proof hold).
    """
    rows = []
    for network in (Network(name) for name in ("cycle:16", "grid:4x4", "complete:8")):
        # A problem with one sample per node: only the probabilities matter to a clock.
        n = network.n_nodes
        one, count = np.ones(n), np.ones(n, dtype=np.int64)
        summary = NodeSummary(count, count, count, one, one, one, one, one)
        paper = Parameters.paper(summary, network)
        clocks = product(("fixed", "exponential"), (True, False))
        for share, message, (law, waiting) in product((0.1, 0.3, 0.5), (1.0, 5.0), clocks):
            # A clock reads nothing but the probabilities; the contraction is put where any of them allow it.
            parameters = dataclasses.replace(
                paper,
                contraction=1e-9,
                node_probability=np.full(n, (1.0 - share) / n),
                edge_probability=np.full(network.n_edges, share / network.n_edges),
            )
            bound = theorem4_step_time(parameters, network, message)
            delays = Delays(tau=message, law=law, blocking=waiting)
            found = retime("adfs", parameters, summary, network, delays, [events])
            measured = float(found.latest[0]) / events
            constant = measured * n / (bound.p_comp + message * bound.p_comm_max)
            case = network.name, n, share, message, law, waiting
            rows.append((*case, measured, bound.nu, constant, bound.holds))
    settings = "network", "n_nodes", "p_comm", "tau", "law", "blocking"
    return pd.DataFrame(rows, columns=[*settings, "measured", "bound", "constant", "holds"])
