"""Comparisons that run: what is measured, what is kept, what goes on after an interruption."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import joblib  # noqa: F401  (it sets a variable of the environment when it is imported)
import networkx as nx
import numpy as np
import pandas as pd
import pytest

from adfs.algorithms import METHODS
from adfs.cli import main
from adfs.errors import InputError
from adfs.experiments import Comparison, load_results, read_comparison, run_comparison, runner
from adfs.experiments.inputs import make_network, make_problem
from adfs.experiments.report import make_page
from adfs.experiments.results import Results, run_path, time_to
from adfs.experiments.runner import RunsInterruptedError, run_method
from adfs.network import Network
from adfs.runtimes import simulate
from adfs.runtimes.clock import retime
from adfs.runtimes.loop import Outcome
from adfs.runtimes.result import Run

OUTSIDE = Path(__file__).with_name("outside_method.py")
EXAMPLES = Path(__file__).parents[2] / "examples"


def small(**changes: Any) -> Comparison:
    table = {
        "data": {"source": "gaussians", "samples_per_node": 20, "n_features": 3},
        "network": "cycle:4",
        "methods": ["adfs", "msda"],
        "seeds": 2,
        "target": 1e-6,
        "max_time": 2e4,
        "records": 12,
    }
    return Comparison.from_table(table | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    folder = tmp_path_factory.mktemp("finished")
    return run_comparison(small(), folder, progress=False), folder


def test_runs_of_a_comparison_have_the_constants_of_a_run_by_itself(tmp_path: Path) -> None:
    comparison = small(methods=["dagd"], seeds=1, max_time=500.0)
    run = run_comparison(comparison, tmp_path, progress=False).of("distributed AGD")[0]
    problem, network = make_problem(comparison, 0)
    alone = simulate("dagd", problem, network, max_passes=1.0)
    assert str(run.parameters) == str(alone.parameters)


def test_run_method_records_the_mean_error_over_nodes_down_to_the_target(
    finished: tuple[Results, Path],
) -> None:
    results, _ = finished
    for label in ("ADFS", "MSDA"):
        for run in results.of(label):
            problem, _ = make_problem(results.comparison, run.seed)
            errors = problem.objective(run.theta) - problem.optimum().value
            last = run.frame.iloc[-1]
            assert last["suboptimality"] == pytest.approx(errors.mean(), rel=1e-12, abs=1e-15)
            assert last["worst"] == pytest.approx(errors.max(), rel=1e-12, abs=1e-15)
            assert last["relative"] == pytest.approx(
                errors.mean() / problem.value_at_zero, rel=1e-12, abs=1e-17
            )
            assert run.outcome is Outcome.CONVERGED
            assert last["suboptimality"] <= 0.1 * results.comparison.target
            assert (run.frame["suboptimality"].iloc[:-1] > 0.1 * results.comparison.target).all()


def test_comparison_loses_exchanges_on_networks_that_change(tmp_path: Path) -> None:
    poisson = [{"method": "dadao", "schedule": "poisson"}, {"method": "adfs", "schedule": "poisson"}, "msda"]
    several = small(network=["path:4", "star:4"], lost=0.3, methods=poisson, seeds=1)
    with pytest.raises(InputError, match=r"^ADFS .*takes no networks that change; use 'dadao'$"):
        run_comparison(several, tmp_path / "a", progress=False)
    lossy = small(lost=0.3, methods=[*poisson, "adfs"], seeds=1)
    with pytest.raises(InputError, match=r"^MSDA: .*takes no lost exchanges; use"):
        run_comparison(lossy, tmp_path / "b", progress=False)
    for comparison, folder in ((several, "a"), (lossy, "b")):
        results = load_results(tmp_path / folder)
        (run,) = results.of("DADAO (poisson)")
        assert run.frame["suboptimality"].iloc[-1] <= 1e-6
        problem, network = make_problem(comparison, 0)
        delays = comparison.delays.make(comparison.tau)
        last = float(run.columns["position"][-1])
        same = simulate(
            "dadao", problem, network, schedule="poisson", events=last, delays=delays, progress=False
        )
        assert np.array_equal(same.theta, run.theta)
        assert same.columns["time"][-1] == run.columns["time"][-1]
    assert "lost exchanges" in make_page(results)


def test_run_method_has_the_bits_of_simulate_and_the_times_of_the_clock(
    finished: tuple[Results, Path],
) -> None:
    results, _ = finished
    comparison, run = results.comparison, results.of("ADFS")[1]
    problem, network = make_problem(comparison, 1)
    events = float(run.frame["position"].iloc[-1])
    same = simulate("adfs", problem, network, tau=comparison.tau, seed=1, events=events, progress=False)
    assert np.array_equal(same.theta, run.theta)
    delays = comparison.delays.make(comparison.tau)
    times = retime(
        "adfs", same.parameters, problem, network, delays, run.frame["position"].to_numpy(), seed=1
    )
    assert np.array_equal(times.latest, run.frame["time"].to_numpy())


def test_run_method_ends_at_the_given_time_or_passes() -> None:
    slow = small(target=1e-30, max_time=500.0)
    for entry in slow.methods:
        end = run_method(slow, entry, 0).frame["time"].iloc[-1]
        assert 250.0 <= end <= 600.0
    # A run in stages watches its clock, whose pace changes from stage to stage.
    adaptive = small(target=1e-30, max_time=3000.0, network="grid:4x4", methods=["adfs:parameters=adaptive"])
    run = run_method(adaptive, adaptive.methods[0], 0)
    assert run.history is not None
    assert len(run.history.stages) > 1
    assert 2900.0 <= run.frame["time"].iloc[-1] <= 3000.0
    passes = small(target=1e-30, max_time=None, max_passes=7.0)
    run = run_method(passes, passes.methods[1], 0)
    assert run.frame["passes"].iloc[-1] == 7.0
    assert run.outcome is Outcome.OUT_OF_BUDGET
    # Not even one step fits: it is taken all the same, and the table has a lower bound to show.
    none = small(max_time=1e-3)
    assert run_method(none, none.methods[1], 0).frame["position"].iloc[-1] == 1.0


def test_run_method_reaches_a_relative_target() -> None:
    comparison = small(target=1e-4, relative=True)
    run = run_method(comparison, comparison.methods[0], 0)
    assert run.frame["relative"].iloc[-1] <= 1e-5 < run.frame["relative"].iloc[-2]


def test_run_comparison_takes_every_registered_method(tmp_path: Path) -> None:
    smooth = [name for name in METHODS if name not in ("ns-adfs", "interior-point", "tracking")]
    results = run_comparison(small(methods=smooth, seeds=1, max_time=2e5), tmp_path, progress=False)
    assert len(results.labels) == len(smooth)
    for label in results.labels:
        (run,) = results.of(label)
        assert run.frame["suboptimality"].iloc[-1] < 0.01 * run.frame["suboptimality"].iloc[0], label
        assert (np.diff(run.frame["time"]) >= 0.0).all()
        assert run.frame["time"].iloc[-1] > 0.0


def test_run_comparison_gives_the_same_results_in_several_processes(
    finished: tuple[Results, Path], tmp_path: Path
) -> None:
    alone, _ = finished
    before = dict(os.environ)
    together = run_comparison(small(), tmp_path, jobs=2, progress=False)
    assert dict(os.environ) == before
    pd.testing.assert_frame_equal(
        together.frame().drop(columns="seconds"), alone.frame().drop(columns="seconds"), check_exact=True
    )


def test_run_comparison_does_not_repeat_finished_runs(
    finished: tuple[Results, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, folder = finished
    made: list[tuple[str, int]] = []

    def counting(comparison: Any, entry: Any, seed: int) -> Run:
        made.append((entry.label, seed))
        return run_method(comparison, entry, seed)

    monkeypatch.setattr(runner, "run_method", counting)
    again = run_comparison(results.comparison, folder, progress=False)
    assert made == []
    pd.testing.assert_frame_equal(again.frame(), results.frame(), check_exact=True)
    # One that is gone, one that is damaged.
    gone, damaged = (run_path(folder, results.comparison.methods[k], 1) for k in (0, 1))
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-7])
    run_comparison(results.comparison, folder, progress=False)
    assert made == [("ADFS", 1), ("MSDA", 1)]
    made.clear()
    # More seeds: only these; another σ: all; and back again: all, since a folder keeps one of each.
    run_comparison(small(seeds=3), folder, progress=False)
    assert made == [("ADFS", 2), ("MSDA", 2)]
    made.clear()
    run_comparison(small(sigma=2.0), folder, progress=False)
    assert len(made) == 4
    made.clear()
    run_comparison(small(), folder, progress=False)
    run_comparison(small(), folder, fresh=True, progress=False)
    assert len(made) == 8


def test_run_comparison_computes_new_times_for_other_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counting(comparison: Any, entry: Any, seed: int) -> Run:
        made.append(entry.label)
        return run_method(comparison, entry, seed)

    monkeypatch.setattr(runner, "run_method", counting)
    methods = ["adfs", "adfs:parameters=paper", "msda", "point-saga", "dsba"]
    settings: dict[str, Any] = {"methods": methods, "seeds": 1, "target": 1e-4, "max_time": None}
    first = small(**settings, max_passes=60.0)

    def check(wanted: Comparison, run_again: list[str]) -> None:
        made.clear()
        again = run_comparison(wanted, tmp_path / "kept", progress=False)
        assert made == run_again
        anew = run_comparison(wanted, tmp_path / "fresh", fresh=True, progress=False)
        pd.testing.assert_frame_equal(
            again.frame().drop(columns="seconds"), anew.frame().drop(columns="seconds"), check_exact=True
        )
        for label in again.labels:
            assert str(again.of(label)[0].parameters) == str(anew.of(label)[0].parameters)
        made.clear()
        run_comparison(wanted, tmp_path / "kept", progress=False)
        assert made == []

    check(first, [one.label for one in first.methods])
    assert (
        run_comparison(first, tmp_path / "kept", progress=False).of("DSBA")[0].outcome
        is not Outcome.CONVERGED
    )
    # Constants that are tuned for τ change with it, and so do the iterates; other delays change neither.
    check(small(**settings, max_passes=60.0, tau=50.0), ["ADFS"])
    check(small(**settings, max_passes=60.0, tau=50.0, delays={"law": "fixed", "stragglers": [[1, 3.0]]}), [])
    # What is given up by time is given up elsewhere now, and what took longer is given up.
    timed = settings | {"methods": ["msda", "dsba"]}
    folder = tmp_path / "timed"
    (run,) = run_comparison(small(**timed | {"max_time": 3e3}), folder, progress=False).of("MSDA")
    assert run.columns["time"][-1] < 1e3
    made.clear()
    run_comparison(small(**timed | {"max_time": 3e3}, tau=6.0), folder, progress=False)
    assert made == ["DSBA"]
    made.clear()
    run_comparison(small(**timed | {"max_time": 3e3}, tau=500.0), folder, progress=False)
    assert made == ["MSDA", "DSBA"]


def test_run_comparison_keeps_finished_runs_at_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def interrupted(comparison: Any, entry: Any, seed: int) -> Run:
        begun.append(entry.label)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run_method(comparison, entry, seed)

    monkeypatch.setattr(runner, "run_method", interrupted)
    with pytest.raises(RunsInterruptedError, match="the same command continues"):
        run_comparison(small(), tmp_path, progress=False)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["adfs-0.run"]
    run_comparison(small(), tmp_path, progress=False)
    assert begun == ["ADFS", "MSDA", "MSDA", "ADFS", "MSDA"]
    assert len(load_results(tmp_path).runs) == 4


def test_run_comparison_names_a_method_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MSDA: method 'msda' needs a smooth loss"):
        run_comparison(small(loss="hinge", methods=["msda"]), tmp_path, progress=False)
    # What is not the method's fault is not told as if it were.
    for changes, words in (
        ({"data": "sklearn:iris"}, "^sklearn:iris has 3 classes"),
        ({"delays": {"slow_links": [[0, 2, 3.0]]}}, "^delays: there is no link between nodes 0 and 2"),
        ({"delays": {"stragglers": [[7, 3.0]]}}, "^delays: there is no node 7"),
    ):
        with pytest.raises(InputError, match=words):
            run_comparison(small(**changes), tmp_path, progress=False)
    with pytest.raises(InputError, match="is not the folder of a comparison"):
        load_results(tmp_path / "none")
    with pytest.raises(InputError, match="no finished run"):
        load_results(tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_run_comparison_finishes_the_other_methods_when_one_cannot_run(tmp_path: Path, jobs: int) -> None:
    comparison = small(loss="hinge", methods=["msda", "ns-adfs"], seeds=1, target=1e-2)
    with pytest.raises(InputError, match="MSDA: method 'msda' needs a smooth loss"):
        run_comparison(comparison, tmp_path, jobs=jobs, progress=False)
    assert load_results(tmp_path).labels == ["NS-ADFS"]


def _is_gone(group: int) -> bool:
    """Return whether a process group has no process any more; wait a little if it has."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    time.sleep(0.2)
    return False


def test_compare_command_ends_every_process_at_ctrl_c(tmp_path: Path) -> None:
    """A signal to the process group, as a terminal sends it: one sentence, exit code 130, no process left."""
    endless = small(methods=["dsba", "extra"], seeds=1, target=1e-30, max_time=None, max_passes=1e8)
    (tmp_path / "c.toml").write_text(endless.toml())
    command = [sys.executable, "-m", "adfs", "compare", "c.toml", "--jobs", "2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (tmp_path / "c" / "runs").exists():  # the processes are started after it
            time.sleep(0.1)
        time.sleep(4.0)
        os.killpg(process.pid, signal.SIGINT)
        _, message = process.communicate(timeout=30.0)
    assert process.returncode == 130
    assert message.splitlines() == [
        "adfs: finished runs are kept in c/runs; the same command continues from there",
        "adfs: interrupted",
    ]
    assert any(_is_gone(process.pid) for _ in range(50))


def test_compare_command_refuses_the_folder_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.toml").write_text(small(seeds=1, methods=["msda"], title=folder).toml())
    assert main(["compare", "a/c.toml"]) == 0
    page = (tmp_path / "c" / "report.html").read_bytes()
    capsys.readouterr()
    assert main(["compare", "b/c.toml"]) == 2
    assert (
        "c holds the comparison of a/c.toml, not of b/c.toml: name another folder" in capsys.readouterr().err
    )
    assert (tmp_path / "c" / "report.html").read_bytes() == page
    # The same file, from wherever; the folder's own description; a folder of its own; or in its place.
    one, other = (read_comparison(tmp_path / name / "c.toml") for name in ("a", "b"))
    monkeypatch.chdir(tmp_path / "a")
    run_comparison(one, "../c", origin=Path("c.toml"), progress=False)
    monkeypatch.chdir(tmp_path)
    run_comparison(one, "c", origin=Path("c/comparison.toml"), progress=False)
    run_comparison(other, "d", origin=Path("b/c.toml"), progress=False)
    run_comparison(other, "c", origin=Path("b/c.toml"), fresh=True, progress=False)
    with pytest.raises(InputError, match=r"c holds the comparison of b/c\.toml"):
        run_comparison(one, "c", origin=Path("a/c.toml"), progress=False)
    # A file that is gone does not hold its folder.
    (tmp_path / "b" / "c.toml").unlink()
    run_comparison(one, "c", origin=Path("a/c.toml"), progress=False)


def test_time_to_is_when_a_trace_stays_below_a_level() -> None:
    trace = pd.DataFrame({"time": [0.0, 1.0, 2.0, 3.0, 4.0], "e": [1.0, 1e-5, 1e-1, 1e-5, math.nan]})
    # A first visit does not count, and nan is not below anything.
    assert time_to(trace.iloc[:4], 1e-3, "e") == pytest.approx(2.5)
    assert time_to(trace, 1e-3, "e") == math.inf
    assert time_to(trace, 10.0, "e") == math.inf
    assert time_to(trace.iloc[:4], 10.0, "e") == 0.0
    negative = pd.DataFrame({"time": [0.0, 1.0], "e": [1.0, -1e-18]})
    assert time_to(negative, 1e-7, "e") == pytest.approx(0.5)


def test_curve_ends_where_the_first_seed_ends(finished: tuple[Results, Path]) -> None:
    results, _ = finished
    curve = results.curve("ADFS")
    assert curve is not None
    assert curve.x[-1] == min(run.frame["time"].iloc[-1] for run in results.of("ADFS"))
    assert (curve.low <= curve.median).all()
    assert (curve.median <= curve.high).all()
    at = float(curve.x[20])
    errors = [
        10.0 ** np.interp(at, run.frame["time"], np.log10(run.frame["suboptimality"]))
        for run in results.of("ADFS")
    ]
    assert curve.low[20] == pytest.approx(min(errors), rel=1e-12)
    assert curve.high[20] == pytest.approx(max(errors), rel=1e-12)


def test_compare_command_imports_a_method_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [
        "--data",
        "gaussians",
        "--samples-per-node",
        "20",
        "--network",
        "cycle:4",
        "--max-time",
        "4e4",
        "--jobs",
        "2",
    ]
    methods = ["--method", "adfs", "--method", "tracking", "--method", "msda", "--target", "1e-4"]
    # A path on the command line is relative to where one is.
    outside = os.path.relpath(OUTSIDE)
    try:
        assert main(["compare", *flags, *methods, "--import", outside, "--out", "c"]) == 0
        out = capsys.readouterr().out
        assert main(["report", "c"]) == 0
    finally:
        METHODS.pop("tracking", None)
    capsys.readouterr()
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert float(lines["tracking"][1].replace(",", "")) > float(lines["ADFS"][1].replace(",", ""))
    assert "tracking" in (tmp_path / "c" / "report.html").read_text(encoding="utf-8")
    # The same by a file, whose import is relative to itself; the runs are there already.
    (tmp_path / "mine.py").write_text(OUTSIDE.read_text(encoding="utf-8"), encoding="utf-8")
    description = (tmp_path / "c" / "comparison.toml").read_text(encoding="utf-8")
    (stored,) = tomllib.loads(description)["imports"]
    assert Path(stored).samefile(OUTSIDE)
    (tmp_path / "c.toml").write_text(description.replace(stored, "mine.py"), encoding="utf-8")
    try:
        assert main(["compare", "c.toml"]) == 0
    finally:
        METHODS.pop("tracking", None)
    assert capsys.readouterr().out == out
    with pytest.raises(InputError, match="unknown method 'tracking'"):
        small(methods=["tracking"]).check_names()


def test_report_command_runs_no_imported_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("open('was-run', 'a').close()\n", encoding="utf-8")
    flags = ["--data", "synthetic:30x2", "--network", "path:2", "--method", "adfs", "--target", "1e-2"]
    assert main(["compare", *flags, "--import", "mine.py", "--jobs", "1", "--out", "c"]) == 0
    assert capsys.readouterr().err.count("imports") == 1
    Path("was-run").unlink()
    sys.modules.pop(next(name for name in sys.modules if name.startswith("_adfs_import_mine")))
    assert main(["report", "c"]) == 0
    assert not Path("was-run").exists()
    # The description that an earlier comparison left in the folder is read, and runs nothing either.
    assert main(["compare", *flags, "--jobs", "1", "--out", "c"]) == 0
    assert "imports" not in capsys.readouterr().err
    assert not Path("was-run").exists()


def test_compare_command_imports_a_loss_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    outside = str(Path(__file__).with_name("outside_loss.py"))
    flags = ["--data", "sklearn:diabetes", "--network", "path:2", "--method", "adfs"]
    flags += ["--sigma", "50", "--target", "1e-2", "--relative", "--import", outside]
    assert main(["compare", *flags, "--loss", "expectile", "--jobs", "1", "--out", "c"]) == 0
    out = capsys.readouterr().out
    (run,) = load_results(tmp_path / "c").of("ADFS")
    assert run.frame["relative"].iloc[-1] <= 1e-3
    (tmp_path / "outside.py").write_text(Path(outside).read_text(encoding="utf-8"), encoding="utf-8")
    description = (tmp_path / "c" / "comparison.toml").read_text(encoding="utf-8")
    (tmp_path / "c.toml").write_text(description.replace(outside, "outside.py"), encoding="utf-8")
    assert main(["compare", "c.toml"]) == 0
    assert capsys.readouterr().out == out
    assert main(["compare", *flags, "--loss", "expectil"]) == 2
    assert "did you mean 'expectile'" in capsys.readouterr().err
    assert main(["compare", *flags, "--loss", "needy"]) == 2
    assert "its constants need defaults" in capsys.readouterr().err


def test_compare_command_takes_graph_files_and_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = nx.relabel_nodes(nx.house_graph(), dict(enumerate("edcba")))
    nx.set_edge_attributes(graph, {edge: 1.0 + k for k, edge in enumerate(graph.edges)}, "weight")
    flags = ["--data", "synthetic:60x3", "--method", "msda", "--target", "1e-4", "--jobs", "1"]
    nx.write_graphml(graph, tmp_path / "house.graphml")
    nx.write_edgelist(graph, tmp_path / "house.edges")
    traces = []
    for name in ("house.graphml", "house.edges"):
        folder = tmp_path / f"from-{name}"
        assert main(["compare", *flags, "--network", str(tmp_path / name), "--out", str(folder)]) == 0
        assert capsys.readouterr().out.startswith(f"synthetic:60x3 on {name}: ")
        assert "5 nodes, 6 edges" in (folder / "report.html").read_text(encoding="utf-8")
        traces.append(load_results(folder).frame().drop(columns="seconds"))
    table = {"data": "synthetic:60x3", "network": graph, "methods": ["msda"], "target": 1e-4}
    results = run_comparison(Comparison.from_table(table), tmp_path / "python", jobs=1, progress=False)
    assert results.comparison == load_results(tmp_path / "python").comparison
    traces.append(results.frame().drop(columns="seconds"))
    for other in traces[1:]:
        pd.testing.assert_frame_equal(other, traces[0], check_exact=True)
    assert make_network(results.comparison) == Network(graph)


@pytest.mark.parametrize("name", ["breast_cancer", pytest.param("stragglers", marks=pytest.mark.soak)])
def test_examples_run_to_their_targets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As their first lines say, with one seed; covtype.toml needs a file, and `make soak` runs it."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(EXAMPLES / f"{name}.toml"), "--seeds", "1", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / name / "report.html").is_file()
    assert f"{Path(name) / 'report.html'}" in out
    results = load_results(tmp_path / name)
    for label in ("ADFS", "block ADFS", "MSDA"):
        (run,) = results.of(label)
        assert run.frame["suboptimality"].iloc[-1] <= results.comparison.target
