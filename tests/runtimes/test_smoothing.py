"""Losses with kinks by rounded ones: quicker than NS-ADFS, certified, on every cluster, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adfs
from adfs.errors import InputError
from adfs.problem import get_loss
from adfs.problem.views import smoothed
from adfs.runtimes import Run, RunOptions, run_method
from adfs.runtimes.joint_problem import join_shards
from memory_cluster import Threads, on_threads


def problem_of(loss: str, n_nodes: int = 3) -> adfs.Problem:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((600, 6))
    y = X @ rng.normal(size=6) + rng.standard_t(3, 600)
    y = np.where(y > 0.0, 1.0, -1.0) if loss == "hinge" else y
    return adfs.Problem(X, y, loss=get_loss(loss), sigma=1.0 / n_nodes, n_nodes=n_nodes)


@pytest.mark.parametrize("loss", ["absolute", "quantile", "epsilon_insensitive", "hinge"])
def test_smoothing_reaches_a_gap_in_a_tenth_of_the_passes(loss: str) -> None:
    problem = problem_of(loss)
    options: dict[str, Any] = {"tol": 1e-6, "max_passes": 400}
    run = adfs.simulate("ns-adfs", problem, "path:3", parameters="smoothing", **options)
    assert run.gap <= 1e-6
    plain = adfs.simulate("ns-adfs", problem, "path:3", **options)
    assert plain.gap > 10.0 * run.gap
    error = problem.objective(run.coef) - problem.optimum().value
    assert error <= run.gap * problem.value_at_zero + 1e-12
    told = run.details["retunings"]
    assert np.all(np.diff([one["width"] for one in told]) <= 0.0)
    assert min(one["drawn"] for one in told) < 0.5
    options = {"start": run.dual, "tol": 0.3 * run.gap, "max_passes": 400}
    again = adfs.simulate("ns-adfs", problem, "path:3", parameters="smoothing", **options)
    assert again.gap <= 0.3 * run.gap


@pytest.mark.parametrize("loss", ["absolute", "epsilon_insensitive", "hinge"])
def test_smoothed_problem_is_near_the_loss_and_has_its_dual_variables(loss: str) -> None:
    problem = problem_of(loss)
    theta = np.random.default_rng(0).normal(size=6)
    for width in (1.0, 1e-3):
        round_ones = smoothed(problem, width)
        away = problem.objective(theta) - round_ones.objective(theta)
        assert 0.0 <= away <= 0.5 * width * 600.0
        duals = problem.clip_to_domain(3.0 * np.sin(np.arange(600.0)))
        assert np.array_equal(round_ones.clip_to_domain(duals), duals)
        assert round_ones.duality_gap(round_ones.slopes(theta), relative=False) >= 0.0


def test_smoothing_on_ranks_has_the_bits_of_one_process() -> None:
    problem = problem_of("absolute")
    options = RunOptions(parameters="smoothing", max_passes=60.0, gather=True)
    whole = run_method("ns-adfs", problem, adfs.Network("path:3"), options)
    assert whole.details["retunings"]

    def shard(node: int) -> tuple[np.ndarray, np.ndarray]:
        return problem.shards[node].X, problem.shards[node].y

    def run(cluster: Threads) -> Run:
        with cluster:
            sigma, network = 1.0 / 3.0, adfs.Network("path:3")
            joint = join_shards(
                cluster, shard, network, nodes=None, loss="absolute", sigma=sigma, n_features=None
            )
            placement = joint.placement
            return run_method(
                "ns-adfs", joint.problem, network, options, cluster=cluster, placement=placement
            )

    assert {one.coef.tobytes() for one in on_threads(3, run)} == {whole.coef.tobytes()}


def test_smoothing_resumed_has_the_same_bits(tmp_path: Path) -> None:
    problem = problem_of("absolute")
    options: dict[str, Any] = {"parameters": "smoothing"}
    whole = adfs.simulate("ns-adfs", problem, "path:3", max_passes=120, **options)
    options["checkpoint"] = tmp_path / "c"
    adfs.simulate("ns-adfs", problem, "path:3", max_passes=70, **options)
    resumed = adfs.simulate("ns-adfs", problem, "path:3", max_passes=120, resume=True, **options)
    assert resumed.coef.tobytes() == whole.coef.tobytes()


def test_smoothing_refuses_smooth_losses() -> None:
    problem = adfs.Problem(np.eye(3), np.ones(3), loss="squared")
    with pytest.raises(InputError, match="'smoothing' takes the losses absolute"):
        adfs.simulate("ns-adfs", problem, parameters="smoothing", max_passes=1)
