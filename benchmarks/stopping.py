"""How soon a run notices that it is there, and what its certificates take of its time."""

from __future__ import annotations

import math
from typing import Any

import adfs
from benchmarks.measure import DATA, Row, write_table
from benchmarks.one_machine import CASES, read
from benchmarks.wall_clock import shard

ACCURACY = 1e-6
REPEATS = 3


def problems() -> dict[str, adfs.Problem]:
    """Return the problems by name: real data where it is there, and sparse rows."""
    X, y = shard("sparse", 0)
    found = {"sparse 100,000 × 20,000": adfs.Problem(X, y, "logistic", sigma=1.0)}
    for case in CASES:
        if (DATA / f"{case.file}.bz2").exists():
            X, y = read(case)
            rows = X.toarray() if case.name == "covtype" else X
            found[f"{case.name}, σ = {case.sigma:g}"] = adfs.Problem(rows, y, "logistic", sigma=case.sigma)
    if (DATA / "news20.bz2").exists():
        found["news20, 20 classes"] = classes()
    return found


def classes() -> adfs.Problem:
    """Return the softmax model of all groups of news20."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.preprocessing import normalize

    X, y = load_svmlight_file(str(DATA / "news20.bz2"))
    return adfs.Problem(normalize(X), y - 1.0, "multinomial", sigma=1.0)


def measure(problem: adfs.Problem) -> dict[str, float]:
    """Return the passes of a run that ends by itself, those it needed, and what certifying takes."""
    network = adfs.Network("path:1")

    def run(**more: Any) -> adfs.Run:
        return adfs.simulate("adfs", problem, network, seed=0, **more)

    run(max_passes=1.0)  # compiles
    whole = min((run(tol=ACCURACY, max_passes=1000.0) for _ in range(REPEATS)), key=lambda one: one.seconds)
    passes = float(whole.columns["passes"][-1])
    best = float(run(tol=1e-4 * ACCURACY, max_passes=5000.0).columns["dual"].max())
    # The same events, checked often, and then passes of dual ascent from where the run ended.
    grid = adfs.Grid(every=passes / 100.0)
    often = run(max_passes=2.0 * passes + 5.0, record=adfs.Record(("gap",), grid=grid)).columns
    there = often["passes"][(often["primal"] - best) / problem.value_at_zero <= ACCURACY]
    account = whole.details["ranks"][0]
    return {
        "passes": passes,
        "needed": float(there[0]) if there.size else math.nan,
        "evaluating": account["evaluating"],
        "running": account["evaluating"] + account["computing"],
    }


def main() -> str:
    """Measure every problem, and write the table."""
    rows = []
    for name, problem in problems().items():
        found = measure(problem)
        passes, needed = found["passes"], found["needed"]
        share = found["evaluating"] / found["running"]
        target = 0.1 if passes >= 30.0 else 0.2 if passes >= 10.0 else math.nan
        rows.append(Row(f"{name}: ends", passes, "passes", f"needed {needed:.1f}", passes / needed, 1.3))
        words = f"{found['evaluating']:.3f} of {found['running']:.3f} s"
        rows.append(Row(f"{name}: evaluating", 100.0 * share, "%", words, share, target))
    notes = (
        "ADFS on one node to a certified relative gap of 1e-6, nothing recorded. Needed: the passes at which "
        "the point of its events is that near the optimum for the first time, to a hundredth of the run; one "
        "that ends with passes of dual ascent may be there before. Evaluating: certificates and measures, of "
        "the time of running."
    )
    return write_table("stopping", "Where a run ends, and what certifying takes", rows, notes)
