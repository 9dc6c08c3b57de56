"""Comparisons over a grid: what is read, what is run and what not, who wins."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from adfs.cli import main
from adfs.errors import InputError
from adfs.experiments import Comparison, Grid, grid, read_grid, run_comparison, run_grid, runner, winners
from adfs.experiments.results import load_results
from adfs.experiments.runner import RunsInterruptedError, run_method

ROOT = Path(__file__).parents[2]
FILE = """
methods = ["adfs", "msda", "dagd", "extra"]
seeds = 1
target = 1e-4
relative = true
max_passes = 300

[grid]
network = ["cycle:4"]
tau = [1, 20]
data = [
  { source = "gaussians", samples_per_node = 20, n_features = 3 },
  { source = "gaussians", samples_per_node = 40, n_features = 3 },
]

[quick]
tau = [20]
"""


def written(folder: Path, text: str = FILE) -> Path:
    path = folder / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The runs that are made, as (title of the comparison, label)."""
    names: list[tuple[str, str]] = []

    def counting(comparison: Any, entry: Any, seed: int) -> Any:
        names.append((comparison.title, entry.label))
        return run_method(comparison, entry, seed)

    monkeypatch.setattr(runner, "run_method", counting)
    return names


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, Path]:
    folder = tmp_path_factory.mktemp("grid")
    return run_grid(read_grid(written(folder)), folder / "map", progress=False), folder


# --------------------------------------------------------------------------- the file


def test_grid_is_every_combination_and_comparisons_of_one_tau_stand_together() -> None:
    columns = Grid(
        {"data": "synthetic:90x3", "methods": ["adfs"]},
        {"tau": [1, 0.5], "network": ["cycle:9", [[0, 1], [1, 2]]], "partition": ["random", "label"]},
    ).columns()
    assert [[point.comparison.tau for point in column] for column in columns] == [[1, 0.5]] * 4
    networks = [column[0].comparison.network_name for column in columns]
    assert networks == ["cycle:9", "cycle:9", "3 nodes, 2 edges", "3 nodes, 2 edges"]
    assert columns[3][1].place == {"network": "number 2", "partition": "label", "tau": "0.5"}
    assert columns[3][1].comparison.title == "number 2, label, tau 0.5"
    assert len({point.name for column in columns for point in column}) == 8
    assert pickle.loads(pickle.dumps(columns)) == columns  # noqa: S301  (other processes run them)


def test_read_grid_takes_a_part_by_quick_or_by_options(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert sum(map(len, read_grid(path).columns())) == 4
    assert read_grid(path, quick=True).axes["tau"] == [20]
    # An option replaces a list, and the other keys.
    other = read_grid(path, {"tau": 7.0, "target": 1e-2})
    assert [[point.comparison.tau for point in column] for column in other.columns()] == [[7.0], [7.0]]
    assert other.columns()[0][0].comparison.target == 1e-2
    (column,) = read_grid(path, {"data": {"source": "synthetic:40x3"}}).columns()
    assert column[0].comparison.data.source == "synthetic:40x3"
    # Paths in the lists are relative to the file.
    path = written(tmp_path, FILE.replace('"cycle:4"', '"net.txt"'))
    assert read_grid(path).axes["network"] == [str(tmp_path / "net.txt")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tau = [20]", "tau = [3]", "quick: tau = 3 is not in the grid"),
        ("tau = [20]", "sigma = [3]", "quick: sigma = 3 is not in the grid"),
        ("[quick]\ntau = [20]", "", r"no table \[quick\]"),
        ("tau = [1, 20]", "tau = [20, 20]", "tau has the value '20' twice"),
        ("tau = [1, 20]", "tau = 20", "grid must be a table of lists"),
        ("tau = [1, 20]", "tau = []\nsigma = [1.0]", "quick: tau = 20 is not in the grid"),
        ("tau = [1, 20]", "tua = [1]\ntau = [20]", "did you mean 'tau'"),
        ("tau = [1, 20]", "tau = [20]\nseeds = [1, 2]", "the same seeds: put it above"),
    ],
)
def test_read_grid_refuses_wrong_entries_in_one_sentence(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    assert old in FILE
    with pytest.raises(InputError, match=words) as caught:
        read_grid(written(tmp_path, FILE.replace(old, new)), quick="quick" in words)
    assert "\n" not in str(caught.value)


def test_read_grid_refuses_options_that_fit_no_point(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which only --data can replace"):
        read_grid(written(tmp_path), {"data": {"samples_per_node": 3}})


# --------------------------------------------------------------------------- runs


def test_run_grid_makes_each_run_once_and_none_again(
    finished: tuple[pd.DataFrame, Path], made: list[tuple[str, str]]
) -> None:
    times, folder = finished
    again = run_grid(read_grid(folder / "tiny.toml"), folder / "map", progress=False)
    pd.testing.assert_frame_equal(again, times)
    few = run_grid(read_grid(folder / "tiny.toml", quick=True), folder / "map", progress=False)
    assert made == []
    wanted = times[times["tau"] == "20"].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, wanted)
    assert len(pd.read_csv(folder / "map" / "times.csv")) == len(few) == 8


def test_run_grid_times_runs_for_another_tau_instead_of_making_them(
    finished: tuple[pd.DataFrame, Path], made: list[tuple[str, str]], tmp_path: Path
) -> None:
    times, folder = finished
    again = run_grid(read_grid(folder / "tiny.toml"), tmp_path / "map", progress=False)
    pd.testing.assert_frame_equal(again, times)
    # MSDA does not depend on τ and finishes: it runs at one τ alone. ADFS is tuned for each.
    labels = [label for _, label in made]
    assert (labels.count("ADFS"), labels.count("MSDA")) == (4, 2)
    # A run that was timed again has the times of one that was made.
    for point in (column[1] for column in read_grid(folder / "tiny.toml").columns()):
        comparison = dataclasses.replace(point.comparison, methods=point.comparison.methods[1:2])
        anew = run_comparison(comparison, tmp_path / "alone" / point.name, progress=False)
        kept = load_results(tmp_path / "map" / "points" / point.name)
        for label in anew.labels:
            level = comparison.target
            assert kept.times(label, level) == pytest.approx(anew.times(label, level), rel=0.02)


def test_run_grid_goes_on_where_it_was_interrupted(
    finished: tuple[pd.DataFrame, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, str]] = []

    def interrupted(comparison: Any, entry: Any, seed: int) -> Any:
        begun.append((comparison.title, entry.label))
        if len(begun) == 6:
            raise KeyboardInterrupt
        return run_method(comparison, entry, seed)

    monkeypatch.setattr(runner, "run_method", interrupted)
    wanted, folder = finished
    described = read_grid(folder / "tiny.toml")
    with pytest.raises(RunsInterruptedError, match="the same command continues"):
        run_grid(described, tmp_path, progress=False)
    times = run_grid(described, tmp_path, progress=False)
    pd.testing.assert_frame_equal(times, wanted)
    # The sixth was begun twice, and no other.
    assert begun[6] == begun[5]
    assert len(set(begun)) == len(begun) - 1


def test_run_grid_gives_up_what_takes_twice_the_best_that_needs_no_more(tmp_path: Path) -> None:
    """EXTRA and DSBA send to neighbours only, AGD and L-BFGS sum over all nodes, MSDA solves locally."""
    names = ["adfs", "msda", "dagd", "lbfgs", "extra", "dsba"]
    table = {
        "data": {"source": "gaussians", "samples_per_node": 50, "n_features": 3},
        "network": "cycle:4",
        "methods": names,
        "target": 1e-6,
        "relative": True,
    }
    times = run_grid(Grid(table, {"tau": [0.2]}), tmp_path, progress=False).set_index("method")
    own = times[~times["sums"] & ~times["local"]]
    best = own[own["reached"]]["time"].min()
    late = own[~own["reached"]]
    assert len(late) >= 1
    assert (late["time"] >= 1.9 * best).all()
    assert (late["time"] <= 2.5 * best).all()
    # AGD may use sums, and so may L-BFGS, which is ahead of it; neither ends a run of those that may not.
    assert list(times.index[times["sums"]]) == ["dagd", "lbfgs"]
    assert list(times.index[times["local"]]) == ["msda"]
    assert times["time"]["lbfgs"] < best


def test_run_grid_goes_on_with_runs_that_were_given_up_too_early(
    made: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "data": {"source": "gaussians", "samples_per_node": 50, "n_features": 3},
        "network": "cycle:4",
        "methods": ["adfs", "dsba"],
        "target": 1e-6,
    }
    described = Grid(table, {"tau": [1.0]})
    before = run_grid(described, tmp_path, progress=False).set_index("label")
    assert [label for _, label in made] == ["ADFS", "DSBA"]
    assert list(before["reached"]) == [True, False]
    for patience, again in ((1.5, []), (4.0, ["DSBA"])):
        made.clear()
        monkeypatch.setattr(grid, "_PATIENCE", patience)
        after = run_grid(described, tmp_path, progress=False).set_index("label")
        assert [label for _, label in made] == again
    assert after["time"]["DSBA"] > 1.5 * before["time"]["DSBA"]


def test_run_grid_makes_the_rest_when_something_cannot_run(tmp_path: Path) -> None:
    other = '{ source = "gaussians", samples_per_node = 40, n_features = 3 }'
    text = FILE.replace(other, '"none.svm"').replace("tau = [1, 20]", "tau = [20]")
    with pytest.raises(InputError, match=r"none.svm.*No such file"):
        run_grid(read_grid(written(tmp_path, text)), tmp_path / "map", progress=False)
    kept = pd.read_csv(tmp_path / "map" / "times.csv")
    assert len(kept) == 4
    assert set(kept["data"]) == {"gaussians, m = 20, d = 3"}


def test_compare_command_makes_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    options = ["--quick", "--jobs", "1", "--method", "msda", "--method", "dagd", "--no-progress"]
    assert main(["compare", "tiny.toml", *options]) == 0
    told = capsys.readouterr().out
    assert told.count("| gaussians, m = ") == 2
    assert told.splitlines()[-1] == "tiny/times.csv"
    assert (tmp_path / "tiny" / "winners.md").read_text(encoding="utf-8") in told
    assert main(["report", str(next((tmp_path / "tiny" / "points").iterdir()))]) == 0
    # A part of a map needs a map.
    (tmp_path / "plain.toml").write_text(
        Comparison.from_table({"data": "synthetic:9x2", "network": "path:2", "methods": ["adfs"]}).toml()
    )
    assert main(["compare", "plain.toml", "--quick"]) == 2
    assert "--quick is for a file with the tables [grid] and [quick]" in capsys.readouterr().err


# --------------------------------------------------------------------------- who wins


def test_winners_say_by_how_much_and_what_the_planner_would_have_lost() -> None:
    inf = math.inf
    rows = [
        # tau, label, predicted, time, reached
        ("1", "A", 5.0, 10.0, True),
        ("1", "B", 7.0, 4.0, True),
        ("1", "C", inf, 12.0, False),
        ("2", "A", 5.0, 6.0, False),
        ("2", "B", 7.0, 4.0, True),
        ("3", "A", inf, 6.0, False),
        ("3", "B", inf, 9.0, False),
    ]
    times = pd.DataFrame(rows, columns=["tau", "label", "predicted", "time", "reached"])
    times.insert(1, "method", times["label"])
    found = winners(times).set_index("tau")
    assert list(found["winner"]) == ["B", "B", ""]
    assert list(found["lead"][:2]) == [2.5, 1.5]
    assert list(found["exact"]) == [True, False, False]
    assert list(found["predicted"]) == ["A", "A", ""]
    assert list(found["loss"][:2]) == [2.5, 1.5]
    assert np.isnan(found["lead"]["3"])
    assert np.isnan(found["loss"]["3"])
    # Another form of the winner is no rival.
    forms = times.assign(method=times["label"].replace("C", "B"))
    assert list(winners(forms)["lead"][:2]) == [2.5, 1.5]
    other = winners(forms.assign(time=[10.0, 4.0, 5.0, 6.0, 4.0, 6.0, 9.0])).set_index("tau")
    assert (other["winner"]["1"], other["lead"]["1"]) == ("B", 2.5)
    # Of some of the methods: without a rival there is no lead.
    alone = winners(times[times["label"] == "A"])
    assert list(alone["winner"]) == ["A", "", ""]


def test_picture_of_a_map_shows_each_winner_and_its_lead(
    finished: tuple[pd.DataFrame, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from drawings import CANDIDATES, draw_map

    times = finished[0].copy()
    times.insert(0, "partition", "random")
    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    draw_map(figure, times)
    axes = figure.axes
    assert len(axes) == len(CANDIDATES)
    for panel, choose in zip(axes, CANDIDATES.values(), strict=True):
        found = winners(choose(times))
        assert len(panel.texts) == len(found) == 4
        assert len(panel.patches) == 8  # the planner's choice, and the method that won
        shown = sorted(float(text.get_text().lstrip(">")) for text in panel.texts)
        assert shown == pytest.approx(sorted(found["lead"]), rel=0.05)
    (legend,) = figure.legends
    named = {text.get_text() for text in legend.get_texts()}
    assert set(winners(times[~times["local"]])["winner"]) <= named
