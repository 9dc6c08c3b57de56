"""Runs in stages: a rule that begins a stage at fixed positions, on every cluster, resumed, timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from adfs.problem import FiniteSum
from adfs.runtimes import Delays, Grid, Record, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.clock import retime
from adfs.runtimes.joint_problem import join_shards
from adfs.runtimes.stages import STAGE_RULES, Stage, StageRule, Stages
from memory_cluster import Threads, on_threads
from mpi_cases import Case, stamp


class EverySecondCheck(StageRule):
    """Begins a stage at every second check, with a smaller ρ each time."""

    def __init__(self, stride: int) -> None:
        self.identity = f"every second check, {stride}"
        self.stride, self.checked = stride, 0

    def checks(self, stages: Stages) -> Iterator[float]:
        return (float(k * self.stride) for k in count(1))

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        self.checked += 1
        if self.checked % 2:
            return None
        stages.charge(passes=2.0, sums=1)
        summary = stages.summarize(stages.problem)
        parameters = stages.parameters_for(summary)
        careful = dataclasses.replace(parameters, contraction=0.9**self.checked * parameters.contraction)
        assert certificate.duals is not None
        return Stage(stages.problem, summary, careful, certificate.duals, {"checked": self.checked})

    def state(self) -> dict[str, np.ndarray]:
        return {"checked": np.array([self.checked])}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self.checked = int(state["checked"][0])
        return problem


def restarting(name: str, stride: int) -> Any:
    """Return a method with that rule, under its own name."""
    cls = type(METHODS[name])
    rule = f"every second check, {stride}"
    STAGE_RULES[rule] = lambda problem, choice: EverySecondCheck(stride)
    return type(cls.__name__, (cls,), {"stages": rule})()


def problem_of(case: Case) -> adfs.Problem:
    shards = [case.shard(node) for node in range(case.n_nodes())]
    return adfs.Problem.from_shards(shards, case.loss, case.sigma())


CASES = [("adfs", "iid", 120), ("adfs", "poisson", 120), ("adfs-block", "iid", 15)]


def simulate(name: str, schedule: str, stride: int, **more: Any) -> Run:
    case = Case(method=name, schedule=schedule, max_passes=8.0)
    settings = case.options() | {"gather": True} | more
    settings.pop("method")
    return adfs.simulate(restarting(name, stride), problem_of(case), adfs.Network(case.network), **settings)


@pytest.mark.parametrize(("name", "schedule", "stride"), CASES)
def test_run_in_stages_has_the_same_bits_on_every_cluster(name: str, schedule: str, stride: int) -> None:
    whole = simulate(name, schedule, stride)
    assert whole.history is not None
    assert len(whole.history.stages) >= 3
    assert np.all(np.diff(whole.columns["position"]) > 0.0)
    assert np.all(np.diff(whole.columns["passes"]) >= 0.0)
    assert np.all(np.diff(whole.columns["stage"]) >= 0.0)
    assert whole.columns["stage"][-1] == len(whole.history.stages) - 1
    case = Case(method=name, schedule=schedule, max_passes=8.0)
    network = adfs.Network(case.network)

    def run(cluster: Threads) -> Run:
        with cluster:
            joint = join_shards(
                cluster, case.shard, network, nodes=None, loss=case.loss, sigma=case.sigma(), n_features=None
            )
            settings = case.options() | {"gather": True}
            settings.pop("method")
            return run_method(
                restarting(name, stride),
                joint.problem,
                network,
                RunOptions(**settings),
                cluster=cluster,
                placement=joint.placement,
            )

    for size in (2, 4):
        assert {stamp(run) for run in on_threads(size, run)} == {stamp(whole)}


@pytest.mark.parametrize(("name", "schedule", "stride"), CASES)
def test_run_in_stages_resumed_between_and_at_checks_has_the_same_bits(
    name: str, schedule: str, stride: int, tmp_path: Path
) -> None:
    whole = simulate(name, schedule, stride, max_passes=None, events=7 * stride + 11)
    assert len(whole.details["retunings"]) == 3
    path = tmp_path / "run"
    # Before a check, at one that goes on, at one that begins a stage, and after.
    for events in (stride - 3, stride, 2 * stride, 5 * stride + 7, 7 * stride + 11):
        kept = {"checkpoint": path, "resume": True, "checkpoint_every": 0.0}
        part = simulate(name, schedule, stride, max_passes=None, events=events, **kept)
    assert part.coef.tobytes() == whole.coef.tobytes()
    assert part.theta.tobytes() == whole.theta.tobytes()
    assert part.details["retunings"] == whole.details["retunings"]
    assert part.history is not None
    assert whole.history is not None
    assert part.history.checks == whole.history.checks


def test_run_in_stages_does_not_depend_on_what_is_recorded() -> None:
    bare = simulate("adfs", "iid", 120, record=Record(grid=Grid(every=3.0)))
    often = simulate("adfs", "iid", 120, record=Record(("gap", "consensus"), grid=Grid(every=0.25)))
    assert bare.details["retunings"] == often.details["retunings"]
    assert bare.coef.tobytes() == often.coef.tobytes()
    unrecorded = simulate("adfs", "iid", 120, record=None, tol=1e-9)
    assert unrecorded.details["retunings"][:2] == bare.details["retunings"][:2]


def test_clock_charges_the_checks_of_stages(tmp_path: Path) -> None:
    delays = Delays(tau=5.0, law="fixed")
    run = simulate("adfs-block", "iid", 15, delays=delays)
    history = run.history
    assert history is not None
    case = Case(method="adfs-block")
    problem, network = problem_of(case), adfs.Network(case.network)
    # The same walk by hand: stage after stage, on clocks of their own, with fixed delays.
    most = np.diff(problem.node_starts).max()
    assert [check.passes for check in history.checks[:4]] == [1.0, 3.0, 1.0, 3.0]
    assert [check.sums for check in history.checks[:4]] == [2.0, 4.0, 2.0, 4.0]
    first = retime(
        "adfs-block", history.stages[0].parameters, problem, network, delays, [15.0, 30.0], seed=run.seed
    )
    row = int(np.argmax(run.columns["position"] > 30.0))
    charged = float(run.columns["time"][row]) - float(first.latest[1])
    assert charged >= 4.0 * most + 2.0 * 6.0 * 5.0
    # A budget of time ends the run where the clock, with all checks, says so.
    limit = float(run.columns["time"][-1])
    budgeted = simulate("adfs-block", "iid", 15, delays=delays, max_passes=None, time=limit)
    assert budgeted.columns["time"][-1] <= limit + 1e-9
    assert budgeted.columns["position"][-1] >= run.columns["position"][-1]
    # A saved run is timed again with all its stages.
    budgeted.save(tmp_path / "run")
    again = adfs.runtimes.clock.with_times(Run.load(tmp_path / "run"), problem, network, delays)
    assert again.columns["time"].tobytes() == budgeted.columns["time"].tobytes()
