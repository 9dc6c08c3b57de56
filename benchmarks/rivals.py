"""ADFS next to MSDA, OPAPC and SONATA, with the constants of the theorems and after one search for all.

``python -m benchmarks.rivals FOLDER [SETTING …]`` goes on from finished runs in a folder; the table is made
of the settings that are there.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import adfs
from adfs.algorithms import METHODS, dual_gradient, dual_methods, register_method, sonata
from adfs.experiments import Comparison, MethodSpec, run_comparison
from adfs.experiments.inputs import make_problem
from adfs.experiments.paper import LEVELS, SETTINGS
from adfs.experiments.results import Results
from adfs.pages import number
from adfs.problem import FiniteSum
from adfs.theory import summarize
from benchmarks.adaptive import COVTYPE
from benchmarks.measure import RESULTS, machine

# The search divides the largest curvature of a node's data, from which every theorem takes its constants.
FACTORS = (1, 4, 16, 64, 256, 1024, 4096)
# A rival is given up at so many times the time of the best form of ADFS.
PATIENCE = 4.0
BLOCK_FORMS = (("adfs-block", None), ("adfs-block", "adaptive"))
FORMS = (("adfs", None), ("adfs", "adaptive"), *BLOCK_FORMS)
RIVALS = (("msda", None), ("opapc", None), ("sonata", "accelerated"))


class Compared(NamedTuple):
    """A comparison, the error at which times are compared, the factors and the forms of ADFS."""

    comparison: Comparison
    level: float
    factors: tuple[int, ...] = FACTORS
    forms: tuple[tuple[str, str | None], ...] = FORMS


COMPARED = {name: Compared(SETTINGS[name], LEVELS[name]) for name in ("small", "large")}
# Larger settings: fewer records, and less of a search.
COMPARED["covtype"] = Compared(
    dataclasses.replace(COVTYPE, max_time=1e6, records=8), COVTYPE.target, (1, 16, 256), BLOCK_FORMS
)
COMPARED["many-samples"] = Compared(
    dataclasses.replace(SETTINGS["many-samples"], records=8),
    LEVELS["many-samples"],
    (1, 16, 256),
    BLOCK_FORMS,
)


class Divided:
    """A method whose constants come from the largest curvature of each node's data, divided by a factor."""

    factor: float

    def parameters(self, problem: Any, network: Any, *, choice: Any = None, tau: Any = None) -> Any:
        """Return the constants."""
        if isinstance(choice, self.record):  # type: ignore[attr-defined]
            return choice
        summary = summarize(problem)
        summary = summary.with_other(batch_kappa=summary.batch_kappa / self.factor)
        return super().parameters(summary, network, choice=choice, tau=tau)  # type: ignore[misc]


class DividedSimilarity(sonata.Sonata):
    """SONATA with the β of the nodes' own second derivatives, divided by a factor."""

    factor: float

    def parameters(self, problem: Any, network: Any, *, choice: Any = None, tau: Any = None) -> Any:
        """Return the constants."""
        found = super().parameters(problem, network, choice=choice, tau=tau)
        if isinstance(problem, FiniteSum) and not isinstance(choice, self.record):
            found = self.refine(found, problem, lambda table: table.sum(axis=0))
            found = found.with_similarity(found.similarity / self.factor)
        return found


def spec(name: str, choice: str | None, factor: float) -> MethodSpec:
    """Return a form of a method with a factor of the search, entered in the registry."""
    method = METHODS[name]
    bases = (DividedSimilarity,) if name == "sonata" else (Divided, type(method))
    made = f"{name}-{factor:g}"
    if made not in METHODS:
        register_method(type(made, bases, {"name": made, "label": method.label, "factor": factor})())
    label = method.label + (f", {choice}" if choice else "")
    return MethodSpec(made, f"{label} × {factor:g}", choice)


class Found(NamedTuple):
    """The median time of a form with the constants of the theorem, and after the search; and its factor.

    A time is a pair of the time and of whether it was reached; one that was not is a lower bound.
    """

    plain: tuple[float, bool]
    searched: tuple[float, bool]
    factor: float
    rounds_per_time: float


def compare(setting: Compared, form: tuple[str, str | None], folder: Path) -> Found:
    """Choose the factor of a form on the first seed, and run it and the factor 1 with all seeds."""
    comparison, level = setting.comparison, setting.level

    def run(place: str, factor: float, seeds: tuple[int, ...], most: float) -> Results:
        changes = {"methods": (spec(*form, factor),), "seeds": seeds, "max_time": most}
        made = dataclasses.replace(comparison, **changes)  # type: ignore[arg-type]
        return run_comparison(made, folder / place, progress=True)

    most = comparison.max_time
    found: dict[int, tuple[float, float]] = {}
    assert most is not None
    # The best factor is the quickest to the level or, where none gets there in time, has the least error.
    for factor in setting.factors if len(setting.factors) > 1 else ():
        results = run("search", factor, comparison.seeds[:1], most)
        time, reached = results.median_time(results.labels[0], level)
        error = float(results.of(results.labels[0])[0].columns[results.error][-1])
        found[factor] = (time if reached else math.inf, error if math.isfinite(error) else math.inf)
        # Two factors after the best one that are worse end the search.
        if min(found.values()) < min(list(found.values())[-2:]):
            break
        # A run goes on below the level to see that its error stays there; a slower one need not get so far.
        most = min(most, 1.2 * found[factor][0])
    chosen = min(found, key=found.__getitem__, default=1)
    ends = {f: run("final", f, comparison.seeds, comparison.max_time) for f in {1, chosen}}
    times = {f: results.median_time(results.labels[0], level) for f, results in ends.items()}
    last = ends[chosen].of(ends[chosen].labels[0])[0].columns
    pace = float(last["position"][-1] / last["time"][-1])
    return Found(times[1], times[chosen], chosen, pace)


def passes_per_solve(comparison: Comparison, form: tuple[str, str | None], found: Found) -> float:
    """Return how often a local solve of the first node goes through its samples, on the first seed.

    A gradient, a product with the Hessian and the diagonal of the Hessian are a pass each.
    """
    counts, solve = {"passes": 0, "solves": 0}, dual_gradient.dual_gradient

    def counted(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            counts["passes"] += 1
            return function(*arguments)

        return call

    def solves(samples: Any, sigma: Any, solver: Any) -> None:
        # The first node's solve runs interpreted, so that it calls the functions that count.
        counts["solves"] += 1
        solve.py_func(samples, sigma, solver, 0)  # type: ignore[attr-defined]
        for i in range(1, solver.theta.shape[0]):
            solve(samples, sigma, solver, i)

    problem, network = make_problem(comparison, comparison.seeds[0])
    method = METHODS[spec(*form, found.factor).method]
    constants = method.parameters(problem, network, choice=form[1])
    inside = {"_slope": dual_gradient._slope, "_hessian_product": dual_gradient._hessian_product}
    moves = counted(dual_gradient._newton_move.py_func)  # type: ignore[attr-defined]
    counting = {name: counted(function) for name, function in inside.items()} | {"_newton_move": moves}
    with (
        mock.patch.multiple(dual_gradient, **counting),
        mock.patch.object(dual_methods, "dual_gradients", solves),
        mock.patch.object(sonata, "dual_gradients", solves),
    ):
        rounds = max(2, round(found.searched[0] * found.rounds_per_time))
        adfs.simulate(method, problem, network, parameters=constants, events=rounds, record=("consensus",))
    return counts["passes"] / counts["solves"]


def compare_setting(name: str, folder: Path) -> list[str]:
    """Return the rows of a setting."""
    setting = COMPARED[name]
    comparison, m = setting.comparison, setting.comparison.data.samples_per_node
    assert m is not None
    forms = {form: compare(setting, form, folder) for form in setting.forms}
    best = [min(found[stage][0] for found in forms.values()) for stage in (0, 1)]
    late = setting._replace(comparison=dataclasses.replace(comparison, max_time=PATIENCE * best[0]))
    lines = []
    for form in (*setting.forms, *RIVALS):
        found = forms[form] if form in forms else compare(late, form, folder)
        label = METHODS[form[0]].label + (f", {form[1]}" if form[1] else "")
        cells = []
        for (time, reached), least in zip(found[:2], best, strict=True):
            cells += [
                f"{'' if reached else '> '}{number(time)}",
                f"{'' if reached else '> '}{time / least:.2f}",
            ]
        cells.insert(3, f"{found.factor:g}")
        counted = ["", ""]
        if METHODS[form[0]].solves_locally:
            passes = passes_per_solve(comparison, form, found)
            time, reached = found.searched
            # The clock counts one pass per solve: add the others.
            whole = time * (1.0 + found.rounds_per_time * m * (passes - 1.0))
            counted = [f"{passes:.1f}", f"{'' if reached else '> '}{whole / best[1]:.2f}"]
        lines.append(f"| {name}: {label} | {' | '.join(cells + counted)} |")
        print(lines[-1], flush=True)
    return lines


NOTES = """\
Idealised times (the computation of a sample takes 1, τ = 5, exponential delays) until the mean over the nodes
of F − F\\* stays below 1e-8, and 1e-6 with many samples; 1e-8 F(0) for covtype on the 10 × 10 grid, with 500
samples per node, rows of length 1, and σ_i = 0.1. Medians of five seeds. A ratio is the time of a method over
that of the best form of ADFS. The search divides the largest curvature of each node's data (for SONATA the
similarity β of the nodes, which is computed from their second derivatives) by 1, 4, 16, … 4,096, until two
factors in turn are worse; by 1, 16 and 256 for covtype and with many samples, where block ADFS stands for all
forms of ADFS. The factor that is the quickest on seed 0 (or, where none is in time, has the least
error at the end) is used on all seeds. A rival is given up at 4 times the time of the best form of ADFS; `>`
stands before a lower bound. The clock counts a whole local solve of MSDA and SONATA as one pass. The last two
columns count the passes of a solve (to 1e-10 of the distance that its point has moved; one node, seed 0), and
the ratio after the search with all of them.
"""


def main(folder: str | None = None, *names: str) -> str:
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return main(made)
    columns = ("method", "theorem", "ratio", "searched", "factor", "ratio after it", "passes of a solve")
    lines = [
        "# ADFS and its rivals",
        "",
        f"| {' | '.join((*columns, 'ratio with all passes'))} |",
        "|---" * 8 + "|",
    ]
    for name in names or COMPARED:
        lines += compare_setting(name, Path(folder) / name.replace(" ", "-"))
    text = "\n".join([*lines, "", machine(), NOTES])
    (RESULTS / "rivals.md").write_text(text)
    return text


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
