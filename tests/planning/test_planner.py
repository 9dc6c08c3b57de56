"""The planner: its predictions against runs, its advice, and what it writes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from adfs.algorithms.gradient_methods import Extra
from adfs.cli import main
from adfs.errors import InputError
from adfs.experiments.inputs import gaussians
from adfs.pages import line_styles
from adfs.planning import Facts, networks_of, plan, predict
from adfs.theory import summarize

BIG = Facts(n_samples=100_000, n_features=30, kappa_s=5e4, kappa_b=500.0)


def rows(n_samples: int, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n_samples, width)) * np.arange(1, width + 1) ** -0.5
    return X, np.where(X[:, 0] + 0.5 * rng.standard_normal(n_samples) > 0.0, 1.0, -1.0)


@pytest.fixture(scope="module")
def problem() -> adfs.Problem:
    X, y = rows(4800)
    return adfs.Problem(X, y, "logistic", 0.003 * 600, 8)


@pytest.fixture(scope="module")
def found(problem: adfs.Problem) -> adfs.planning.Plan:
    return plan(problem, nodes=[1, 8], network=["cycle"], tau=10.0, methods=["adfs", "adfs-block", "dagd"])


def test_predict_gives_the_time_of_a_run(problem: adfs.Problem, found: adfs.planning.Plan) -> None:
    network = adfs.Network("cycle:8")
    predicted = {one.method: one for one in found.predictions if one.n_nodes == 8}
    for name in ("adfs", found.best.method):
        run = adfs.simulate(
            name, problem, network, tau=10.0, tol=1e-6, delays=adfs.Delays(tau=10.0), progress=False
        )
        assert 1 / 1.5 < predicted[name].time / run.columns["time"][-1] < 1.5
        assert 1 / 1.6 < predicted[name].passes / run.columns["passes"][-1] < 1.6
        assert 1 / 1.6 < predicted[name].messages / run.columns["messages"][-1] < 1.6


def test_plan_tries_methods_for_one_machine_on_one_node() -> None:
    X, y = rows(4000)
    said = plan(adfs.Problem(X, y, "logistic", 40.0), nodes=[1, 2], network=["path"], tau=1.0)
    assert {one.n_nodes for one in said.predictions if one.method in ("apcg", "point-saga")} == {1}
    alone = plan(adfs.Problem(X, y, "logistic", 40.0), nodes=[1, 2], network=["path"], methods=["apcg"])
    assert alone.best.n_nodes == 1


@pytest.mark.parametrize("n_nodes", [1, 4, 16])
def test_facts_give_the_condition_numbers_of_any_split(n_nodes: int) -> None:
    X, y = rows(3200)
    facts = Facts.of(adfs.Problem(X, y, "logistic", 3.0, 2))
    real = summarize(adfs.Problem(X, y, "logistic", 6.0 / n_nodes, n_nodes, partition="random"))
    said = facts.summary(n_nodes)
    np.testing.assert_allclose(said.root_sums, real.root_sums, rtol=0.1)
    np.testing.assert_allclose(said.kappa, real.kappa, rtol=0.15)
    assert said.batch_kappa[0] == pytest.approx(float(real.batch_kappa.max()), rel=0.15)


def test_facts_of_a_summary_are_those_of_the_problem() -> None:
    X, y = rows(900)
    whole = adfs.Problem(X, y, "logistic", 2.0 / 3, 3)
    facts, told = Facts.of(whole), Facts.of_summary(summarize(whole), 6)
    assert (told.n_samples, told.n_features) == (900, 6)
    assert told.kappa_s == pytest.approx(facts.kappa_s, rel=1e-12)
    assert facts.kappa_b <= told.kappa_b <= 1.15 * facts.kappa_b


def test_facts_have_the_curvature_near_the_optimum() -> None:
    # With one feature the best point along a direction is the optimum: sigma t = N / (1 + e^t).
    problem = adfs.Problem(np.ones((500, 1)), np.ones(500), "logistic", 0.5, 2)
    theta = float(problem.optimum().theta[0])
    exact = 4.0 / ((1.0 + math.exp(theta)) * (1.0 + math.exp(-theta)))
    assert Facts.of(problem).curvature == pytest.approx(exact, rel=0.05)
    assert exact < 0.05
    # On several features it is about that at the optimum.
    X, y = rows(1000)
    problem = adfs.Problem(X, y, "logistic", 1.0)
    inverse = 1.0 / np.cosh(0.5 * problem.margins_at(problem.optimum().theta)) ** 2
    exact = float(np.average(inverse, weights=problem.row_norms_squared))
    assert exact < 0.4
    assert Facts.of(problem).curvature == pytest.approx(exact, rel=0.1)
    # On the straight parts of all losses the penalty decides.
    straight = Facts.of(adfs.Problem(np.ones((500, 1)), np.full(500, 1e3), "huber", 100.0))
    assert straight.curvature == pytest.approx(1.0 / (1.0 + straight.kappa_s), rel=1e-9)


def test_curvature_is_known_of_data_alone_and_where_it_can_change() -> None:
    X, y = rows(200)
    squared = adfs.Problem(X, y, "squared", 1.0)
    several = adfs.Problem(X, np.arange(200) % 3, "multinomial", 1.0)
    for facts in (BIG, Facts.of(squared), Facts.of(several), Facts.of_summary(summarize(squared), 6)):
        assert facts.curvature is None
        assert facts.near_optimum is facts
    with pytest.raises(InputError, match="curvature"):
        dataclasses.replace(BIG, curvature=0.0)


@pytest.mark.parametrize("n_nodes", [3, 4])
def test_near_optimum_is_the_problem_with_flatter_losses(n_nodes: int) -> None:
    X, y = rows(900)
    X /= np.linalg.norm(X, axis=1)[:, None]
    parts = [np.arange(100), np.arange(100, 500), np.arange(500, 900)]
    steep, flat = (
        Facts.of(adfs.Problem(X, y, "squared", 2.0, partition=parts, sample_weight=weight * np.ones(900)))
        for weight in (1.0, 0.1)
    )
    near = dataclasses.replace(steep, curvature=0.1).near_optimum
    assert near.kappa_s == pytest.approx(flat.kappa_s, rel=1e-12)
    assert near.kappa_b == pytest.approx(flat.kappa_b, rel=1e-9)
    # On the nodes that hold the samples, and on others.
    for name in ("kappa", "batch_kappa", "root_sums", "largest_smoothness"):
        own, other = (getattr(facts.summary(n_nodes), name) for facts in (near, flat))
        np.testing.assert_allclose(own, other, rtol=1e-9)


@pytest.mark.parametrize("partition", ["random", "label"])
def test_predict_gives_the_time_of_runs_on_separated_classes(partition: str) -> None:
    """The losses are flat at the optimum, where the bound of their curvature predicts five times as long."""
    X, y = gaussians(3200, 30, 0)
    problem = adfs.Problem(X, y, "logistic", 1.0, 8, partition=partition, seed=1)
    network, facts = adfs.Network("grid:2x4"), Facts.of(problem)
    for name in ("newton", "lbfgs", "adfs", "adfs-block"):
        run = adfs.simulate(name, problem, network, tau=5.0, tol=1e-6, delays=adfs.Delays(tau=5.0))
        predicted = predict(name, facts, network, adfs.Delays(tau=5.0), 1e-6)
        assert 1 / 1.5 < predicted.time / run.columns["time"][-1] < 1.5
        # With the bound of the curvature it is far off: Newton's method takes more rounds, the others fewer.
        bound = predict(name, dataclasses.replace(facts, curvature=1.0), network, adfs.Delays(tau=5.0), 1e-6)
        ratio = bound.time / predicted.time
        assert ratio < 0.7 if name == "newton" else ratio > 2.5


def test_plan_recommends_newton_for_few_features() -> None:
    def method(width: int) -> str:
        facts = Facts(n_samples=10_000, n_features=width, kappa_s=1e6, kappa_b=1e5)
        return plan(facts, nodes=[16], network=["grid"], methods=["adfs", "newton"], tau=5.0).best.method

    assert method(2) == "newton"
    assert method(2000) == "adfs"


def test_plan_recommends_local_solvers_only_by_name() -> None:
    easy = Facts(n_samples=100_000, n_features=30, kappa_s=8.0, kappa_b=4.0)
    open_ = plan(easy, nodes=[16], network=["grid"], tau=1000.0)
    assert open_.predictions[0].method == "msda"
    assert not METHODS[open_.best.method].solves_locally
    assert "msda" in str(open_)
    named = plan(easy, nodes=[16], network=["grid"], tau=1000.0, methods=["adfs", "msda"])
    assert named.best.method == "msda"


def test_plan_limits_are_where_more_nodes_and_slower_messages_stop_helping() -> None:
    said = plan(BIG, nodes=[16], network=["cycle"], tau=10.0, methods=["adfs"])
    delays = adfs.Delays(tau=10.0)

    def time(n_nodes: int, tau: float) -> float:
        return predict("adfs", BIG, adfs.Network("cycle", n_nodes=n_nodes), adfs.Delays(tau=tau), 1e-6).time

    assert time(2 * said.node_limit, float(delays.tau)) > 0.95 * time(said.node_limit, float(delays.tau))
    assert time(16, 0.7 * said.tau_limit) < time(8, 0.7 * said.tau_limit)
    assert time(16, 1.4 * said.tau_limit) > time(8, 1.4 * said.tau_limit)


def test_predict_uses_the_contraction_of_a_method_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Extra):
        name = "other"
        observed_factor = 1.0

    monkeypatch.setitem(METHODS, "other", Other())
    assert METHODS["other"].can_solve(BIG, 4)
    said = predict("other", BIG, adfs.Network("cycle:4"), adfs.Delays(tau=1.0, law="fixed"), 1e-6)
    assert said.position == math.ceil(math.log(1e6) / said.contraction)
    assert said.time == pytest.approx(said.position * (25_000 + 1.0))


def test_plan_offers_two_methods_for_a_loss_that_is_not_smooth() -> None:
    X, y = rows(4000)
    problem = adfs.Problem(X, y, "hinge", 40.0, 4)
    said = plan(problem, network=["cycle:4"], tau=2.0, tol=1e-2)
    assert {one.method for one in said.predictions} == {"interior-point", "ns-adfs"}
    for one in said.predictions:
        run = adfs.simulate(one.method, problem, "cycle:4", tol=1e-2, delays=adfs.Delays(tau=2.0))
        assert 0.4 < one.time / run.columns["time"][-1] < 2.5


def test_plan_writes_json_a_figure_and_a_page(found: adfs.planning.Plan, tmp_path: Path) -> None:
    content = json.loads(found.to_json())
    assert content["best"]["method"] == found.best.method
    assert content["recommendation"] == str(found)
    assert len(content["predictions"]) == len(found.table) == len(found.predictions)
    assert found.table["time"].is_monotonic_increasing
    lines = {line.get_label(): line for line in found.plot().lines}
    assert len(lines) == 4  # three methods and the ring
    for method in {one.method for one in found.predictions}:
        ((color, dashes),) = line_styles([method], METHODS)
        assert lines[method].get_color() == color
        assert lines[method].is_dashed() == bool(dashes)
    found.save_page(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + len(found.predictions)
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert found.best.network in page
    assert 'role="img"' in page
    for limit, told in ((math.inf, "for every τ"), (12.0, "as long as τ is below 12")):
        dataclasses.replace(found, tau_limit=limit).save_page(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text(encoding="utf-8")
        assert f"<li>8 nodes are faster than 4 {told}.</li>" in page


def test_networks_of_has_every_shape_once_and_leaves_out_impossible_sizes() -> None:
    shapes = [network.name for network in networks_of([1, 2, 4, 6], ["cycle", "grid", "hypercube"], 100)]
    assert shapes == ["path:1", "path:2", "cycle:4", "cycle:6", "grid:2x3"]
    with pytest.raises(InputError, match="hypercube"):
        networks_of([6], ["hypercube"], 100)
    with pytest.raises(InputError, match="no network"):
        networks_of([64], ["cycle"], 10)


def test_plan_keeps_few_rows_on_one_node() -> None:
    X, y = rows(143)
    assert plan(adfs.Problem(X, y)).best.n_nodes == 1
    assert plan(adfs.Problem(X, y), nodes=[4]).best.n_nodes == 4  # who asks for it


def test_estimators_refuse_auto_for_nodes_and_networks() -> None:
    X, y = rows(60)
    with pytest.raises(InputError, match="n_nodes"):
        adfs.ADFSClassifier(n_nodes="auto").fit(X, y)
    with pytest.raises(InputError, match="auto"):
        adfs.ADFSClassifier(n_nodes=4, network="auto").fit(X, y)


def test_plan_command_prints_the_plan_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--samples", "100000", "--features", "30", "--kappa-s", "5e4", "--kappa-b", "500"]
    page, figure = tmp_path / "p.html", tmp_path / "p.svg"
    options = [
        "--nodes",
        "4,16",
        "--network",
        "grid",
        "--tau",
        "20",
        "--method",
        "adfs",
        "--method",
        "newton",
    ]
    assert main(["plan", *sizes, *options, "--out", str(page), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    said = plan(BIG, nodes=[4, 16], network=["grid"], tau=20.0, methods=["adfs", "newton"])
    assert str(said).replace(". ", ".\n") in shown
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "<svg" in figure.read_text(encoding="utf-8")
    assert main(["plan", *sizes, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(said.to_json())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "10"], "--features, --kappa-s, --kappa-b missing"),
        (["t.npz", "--samples", "10"], "without data"),
        (["t.npz", "--nodes", "four"], "such as 1,4,16"),
        (["t.npz", "--alpha", "2"], "takes -C"),
        (["t.npz", "--figure", "plan.doc"], ".svg"),
        (["t.npz", "--method", "adsf"], "did you mean 'adfs'"),
        (["t.npz", "--tol", "2"], "between 0 and 1"),
    ],
)
def test_plan_command_refuses_a_bad_request_in_one_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = rows(40)
    np.savez("t.npz", X=X, y=y)
    assert main(["plan", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
