"""The paper's experiments: the settings, the claims, and the command."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adfs.cli import main
from adfs.experiments import (
    Comparison,
    DataSpec,
    MethodSpec,
    Results,
    paper,
    read_comparison,
    reproduce,
    run_comparison,
)
from adfs.experiments.inputs import make_network, make_problem
from adfs.experiments.paper import CLAIMS, LEVELS, QUICK, SETTINGS, Claim, judge
from adfs.experiments.results import time_table
from adfs.runtimes.loop import Outcome
from adfs.runtimes.result import Run
from adfs.theory import table1


def results_of(ends: dict[str, list[float]], cap: float = 1000.0) -> Results:
    """Make up results: each error falls from 1 to 1e-8 in these times, one per seed; given up at the cap."""
    methods = tuple(MethodSpec("adfs", label) for label in ends)
    seeds = tuple(range(len(next(iter(ends.values())))))
    comparison = Comparison(DataSpec("synthetic:9x2"), "path:2", methods, seeds=seeds)
    runs = {}
    for label, times in ends.items():
        for seed, end in enumerate(times):
            x = np.linspace(0.0, min(1.2 * end, cap), 50)
            columns = {"time": x, "suboptimality": 10.0 ** (-8.0 * x / end)}
            runs[label, seed] = Run(
                "adfs", Outcome.CONVERGED, np.zeros((1, 1)), np.zeros(1), 0.0, columns, None, seed, 0.0
            )
    return Results(comparison, runs)


@pytest.mark.parametrize(
    ("setting", "method", "other", "ratio", "verdict"),
    [
        ("small", "A", "B", 1.0, "holds"),
        ("small", "B", "A", 1.0, "does not hold"),
        ("small", "B", "A", 1.15, "holds"),
        ("small", "A", "B", 0.5, "does not hold"),
        # Runs that were given up bound a time from below.
        ("small", "A", "C", 0.5, "holds"),
        ("small", "C", "A", 1.0, "does not hold"),
        ("small", "C", "D", 1.0, "undecided"),
        ("small", "A", "C", 0.01, "undecided"),
        # Its times are compared at 1e-6, where nothing of C was given up.
        ("many-samples", "C", "A", 13.0, "holds"),
    ],
)
def test_judge_decides_claims_by_median_times(
    setting: str, method: str, other: str, ratio: float, verdict: str
) -> None:
    results = results_of({"A": [90.0, 110.0], "B": [100.0, 120.0], "C": [900.0, 1300.0], "D": [1e6, 1e6]})
    assert results.times("A", 1e-8) == pytest.approx([90.0, 110.0])
    (found,) = judge({setting: results}, [Claim((setting,), "as long as", (method,), (other,), ratio)])
    assert found.verdict == verdict


def test_judge_refutes_a_claim_by_any_of_its_pairs() -> None:
    results = {"small": results_of({"A": [100.0], "B": [200.0], "C": [50.0], "D": [1e5]})}
    made = [
        Claim(("small",), "one ({})", ("A",), ("B", "D")),
        Claim(("small",), "two", ("A",), ("B", "C")),
        Claim(("small",), "three", ("D", "A"), ("D",)),
        Claim(("large",), "elsewhere", ("A",), ("B",)),
    ]
    found = judge(results, made)
    assert [one.verdict for one in found] == ["holds", "does not hold", "undecided"]
    assert (found[0].text, found[0].detail) == (
        "one (small)",
        "median time to 1e-08: A 100, B 200, D > 1,000",
    )


def test_judge_and_time_table_give_the_same_times() -> None:
    ends = {"A": [90.0, 100.0, 170.0], "B": [300.0, 500.0, 1e5], "C": [500.0, 2000.0], "D": [1e6, 1e6, 1e6]}
    results = results_of({label: (times * 2)[:3] for label, times in ends.items()})
    (found,) = judge({"small": results}, [Claim(("small",), "all", ("A",), ("B", "C", "D"))])
    assert found.detail == "median time to 1e-08: A 100, B 500, C 500, D > 1,000"
    table = time_table(results)["1e-08"]
    assert found.detail.split(": ")[1] == ", ".join(f"{label} {table[label]}" for label in "ABCD")
    # Half of the runs were given up: the median is between a time and a bound, and so bounded.
    results = results_of({"A": [500.0, 2000.0]})
    assert time_table(results).loc["A", "1e-08"] == "> 750"


def test_settings_are_those_of_the_paper() -> None:
    for name, nodes, samples, sigma in (
        ("small", 4, 1000, 1.0),
        ("large", 100, 300, 1.0),
        ("many-samples", 49, 10_000, 50.0),
    ):
        comparison = SETTINGS[name]
        assert (comparison.data.samples_per_node, comparison.data.n_features) == (samples, 10)
        assert (comparison.sigma, comparison.tau, comparison.delays.law) == (sigma, 5.0, "exponential")
        assert make_problem(QUICK[name], 0)[0].n_features == 10
        assert make_network(comparison).n_nodes == nodes
    labels = {one.label for one in SETTINGS["small"].methods}
    for claim in CLAIMS:
        assert set(claim.settings) <= set(SETTINGS)
        assert {*claim.methods, *claim.others} <= labels


TINY = {
    name: dataclasses.replace(
        SETTINGS[name],
        network=graph,
        data=DataSpec("gaussians", samples, 10),
        sigma=sigma,
        max_time=4e3,
        records=8,
    )
    for name, graph, samples, sigma in (
        ("small", "grid:2x2", 40, 1.0),
        ("large", "grid:3x3", 20, 1.0),
        ("many-samples", "grid:2x2", 60, 2.0),
    )
}


def test_reproduce_command_writes_pages_tables_and_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("adfs.experiments.paper.QUICK", TINY)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", "--quick", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "reproduce-quick"
    for name in TINY:
        assert (folder / name / "report.html").exists()
        assert (folder / name / "error-time.png").exists()
    overview = (folder / "index.html").read_text(encoding="utf-8")
    count = sum(len(claim.settings) for claim in CLAIMS)
    assert overview.count('class="verdict') == count
    assert "Scaled-down" in overview
    assert out.count("\n  holds") + out.count("\n  does not hold") + out.count("\n  undecided") == count
    assert "Table 1" in out
    table = pd.read_csv(folder / "table1.csv", index_col=0)
    problem, network = make_problem(TINY["large"], 0)
    expected = table1(problem, network, 5.0)["time"]
    assert np.allclose(table["large predicted"], expected, rtol=1e-12)
    # A measured pace is that of the curve.
    frame = pd.read_csv(folder / "small" / "times.csv").set_index(["label", "level"])["median"]
    pace = (frame["ADFS", 1e-6] - frame["ADFS", 1e-2]) / math.log(1e4)
    assert table.loc["adfs", "small measured"] == pytest.approx(pace, rel=1e-12, nan_ok=True)
    # One setting again: nothing is run, and the same verdicts come out.
    monkeypatch.setattr("adfs.experiments.runner.run_method", None)
    assert main(["reproduce", "small", "--quick"]) == 0
    assert capsys.readouterr().out.split("Claims")[0] in out
    assert main(["reproduce", "table", "--quick", "--out", "t"]) == 0
    assert "measured" not in (tmp_path / "t" / "table1.md").read_text(encoding="utf-8")
    steps = pd.read_csv(tmp_path / "t" / "theorem4.csv")
    assert (steps["measured"] <= steps["bound"])[steps["holds"]].all()
    assert "Theorem 4: time per step" in capsys.readouterr().out


def test_reproduce_command_suggests_a_known_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "smal"]) == 2
    assert "did you mean 'small'" in capsys.readouterr().err


#: Idealised times of one seed of an independent implementation.
REFERENCE = {
    "small": {paper.ADFS: 5.0e4, paper.MSDA: 1.4e5, paper.SAGA: 8.2e4},
    "large": {paper.ADFS: 1.05e5, paper.MSDA: 6.2e4, paper.SAGA: 5.2e5},
    "many-samples": {paper.ADFS: 2.1e5, paper.MSDA: 6.8e5},
}


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_settings_of_the_paper_give_the_known_times_and_the_claims_hold(name: str, tmp_path: Path) -> None:
    found = reproduce(name, tmp_path, jobs=2, seeds=5)
    results, level = found.results[name], LEVELS[name]
    for label, expected in REFERENCE[name].items():
        assert results.times(label, level).mean() == pytest.approx(expected, rel=0.25), label
    assert [one for one in found.findings if one.verdict != "holds"] == []


@pytest.mark.soak
def test_adfs_on_covtype_is_well_ahead_of_msda(tmp_path: Path) -> None:
    """The runs of the final paper on real data: 1e-8 relative, by a factor of 2 or more."""
    root = Path(__file__).parents[2]
    data = root.parent / "shared" / "data" / "covtype.libsvm.binary.scale.bz2"
    if not data.exists():
        pytest.skip(f"there is no {data.name} beside the checkout")
    comparison = read_comparison(root / "examples" / "covtype.toml", {"data": str(data)})
    results = run_comparison(comparison, tmp_path, jobs=2)
    times = {label: float(results.times(label, 1e-8)[0]) for label in ("ADFS (tuned)", "MSDA")}
    assert 2.0 * times["ADFS (tuned)"] <= times["MSDA"]
