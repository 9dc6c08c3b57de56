"""Runs in which exchanges are lost, and runs on networks that change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS, EventProcess
from adfs.errors import InputError
from adfs.network import changing_network
from adfs.runtimes import Grid, Record
from adfs.runtimes.clock import Clock, with_times
from adfs.runtimes.delays import Delays
from adfs.schedule.events import LOST
from adfs.theory import Parameters
from adfs.theory.records import edge_roots
from baseline_cases import drive, make_case, setting_of, slope

LOSSY = sorted(name for name, method in METHODS.items() if method.lost_exchanges)
POISSON = {"schedule": "poisson", "progress": False}


def retuned_contraction(
    parameters: Parameters, problem: adfs.Problem, network: adfs.Network, lost: float
) -> float:
    """ρ per event, lost ones included, with the best probabilities where an exchange counts 1 − q times."""
    roots = edge_roots(network, problem.sigma)
    computing = parameters.root_sums.sum() / np.sqrt(parameters.split)
    exchanging = roots.sum() / np.sqrt(parameters.dual_curvature) / (1.0 - lost)
    rho = 1.0 / (computing + exchanging)
    # These are the probabilities: the contraction that they allow is ρ itself.
    nodes = rho * parameters.root_sums / np.sqrt(parameters.split)
    edges = rho * roots / np.sqrt(parameters.dual_curvature) / (1.0 - lost)
    assert abs(nodes.sum() + edges.sum() - 1.0) < 1e-12
    assert np.isclose(np.min((1.0 - lost) * edges / roots) * np.sqrt(parameters.dual_curvature), rho)
    return float(rho)


def measured(problem: adfs.Problem, network: adfs.Network, lost: float, seed: int) -> tuple[float, adfs.Run]:
    """The slope of the suboptimality per event, lost ones included."""
    record = Record("suboptimality", grid=Grid(every=1.0), stop_on="suboptimality")
    run = adfs.simulate(
        "adfs", problem, network, lost=lost, seed=seed, tol=1e-12, record=record, max_passes=3000, **POISSON
    )
    events = run.columns["computations"] + run.columns["messages"] / 2
    errors = run.columns["suboptimality"]
    assert errors[-1] <= 1e-10 * errors[0]
    return slope(events, errors / errors[0]), run


def check_slope(problem: adfs.Problem, network: adfs.Network, lost: float, seeds: int) -> None:
    slopes = []
    for seed in range(seeds):
        found, run = measured(problem, network, lost, seed)
        slopes.append(found)
    rho = retuned_contraction(run.parameters, problem, network, lost)
    assert rho < run.parameters.contraction
    assert np.mean(slopes) >= 0.9 * rho


def test_adfs_that_loses_3_of_10_exchanges_has_the_rate_of_retuned_parameters() -> None:
    check_slope(*make_case(11), 0.3, 3)


@pytest.mark.parametrize("graph", ["path:10", "grid:4x4", "complete:8"])
@pytest.mark.parametrize("lost", [0.3, 0.8])
def test_adfs_that_loses_exchanges_has_the_rate_on_other_networks(lost: float, graph: str) -> None:
    network = adfs.Network(graph)
    problem, _ = make_case(5, n=network.n_nodes, m=40, d=5)
    check_slope(problem, network, lost, 5)


@pytest.mark.parametrize("name", LOSSY)
def test_lost_exchanges_change_nothing_but_their_cost(name: str) -> None:
    """A run is that of the other events alone, and counts the messages that were lost."""
    problem, network = make_case(loss="logistic" if METHODS[name].needs_smooth else "hinge")
    setting = setting_of(name, problem, network.losing(0.4))
    setting = dataclasses.replace(setting, schedule="poisson")
    process, other = METHODS[name].start(setting), METHODS[name].start(setting)
    assert isinstance(process, EventProcess)
    drive(process, 500.0)
    events = process.schedule.block(0.0, 500.0)
    kept = type(events)(*(array[events.sample != LOST] for array in events))
    assert other.run(kept, 0, kept.time.size) == kept.time.size
    other.position = 500.0
    assert np.array_equal(process.primal(), other.primal())
    run = adfs.simulate(name, problem, network, lost=0.4, events=500, **POISSON)
    assert np.array_equal(run.theta, other.primal())
    assert run.columns["messages"][-1] == process.work.messages
    assert process.work.messages == 2 * np.count_nonzero(events.sample < 0)
    assert 0.3 < np.mean(events.sample[events.sample < 0] == LOST) < 0.5


def test_lost_exchanges_lengthen_tau_for_tuned_parameters() -> None:
    problem, network = make_case()
    found = METHODS["adfs"].parameters(problem, network.losing(0.5), tau=20.0)
    expected = Parameters.tuned(problem, network, tau=40.0)
    assert found.split == expected.split < Parameters.tuned(problem, network, tau=20.0).split
    assert np.array_equal(found.edge_probability, expected.edge_probability)


def test_lost_exchanges_take_their_time_on_the_clock() -> None:
    problem, network = make_case()
    parameters = Parameters.tuned(problem, network)
    lossy = network.losing(0.5)
    delays = Delays(tau=3.0, law="fixed")
    clock = Clock("adfs", parameters, problem, lossy, delays, seed=3, schedule="poisson")
    clock.advance(300.0)
    events, times = clock.schedule.block(0.0, 300.0), np.zeros(network.n_nodes)
    assert LOST in events.sample
    for actor in events.actor:
        if actor < network.n_nodes:
            times[actor] += 1.0
        else:
            i, j = network.edges[actor - network.n_nodes]
            times[i], times[j] = max(times[i], times[j] + 3.0), max(times[j], times[i] + 3.0)
    np.testing.assert_allclose(clock.times, times, rtol=1e-12)


def test_times_of_a_run_that_loses_exchanges_are_found_again(tmp_path: Path) -> None:
    problem, network = make_case()
    delays = Delays(tau=3.0)
    run = adfs.simulate("adfs", problem, network, lost=0.3, max_passes=5, delays=delays, **POISSON)
    run.save(tmp_path / "run.adfs")
    again = with_times(adfs.Run.load(tmp_path / "run.adfs"), problem, network, delays)
    assert np.array_equal(again.columns["time"], run.columns["time"])
    assert (
        again.columns["time"][-1]
        > with_times(dataclasses.replace(run, details={}), problem, network, delays).columns["time"][-1]
    )


@pytest.mark.parametrize("name", LOSSY)
def test_run_that_loses_exchanges_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    problem, network = make_case(loss="logistic" if METHODS[name].needs_smooth else "hinge")
    if METHODS[name].changing_networks:
        network = changing_network(["path:6", "star:6"])
    path = tmp_path / "run.checkpoint"
    options = {"lost": 0.3, "seed": 2, **POISSON}
    adfs.simulate(name, problem, network, max_passes=4, checkpoint=path, **options)
    with pytest.raises(InputError, match="checkpoint of another run"):
        adfs.simulate(name, problem, network, checkpoint=path, resume=True, **(options | {"lost": 0.2}))
    resumed = adfs.simulate(name, problem, network, max_passes=9, checkpoint=path, resume=True, **options)
    whole = adfs.simulate(name, problem, network, max_passes=9, **options)
    assert np.array_equal(resumed.theta, whole.theta)
    assert resumed.columns["messages"][-1] == whole.columns["messages"][-1]
    assert whole.details["lost"] == 0.3


def test_run_on_another_sequence_does_not_resume(tmp_path: Path) -> None:
    problem, _ = make_case()
    options = {"checkpoint": tmp_path / "run.checkpoint", "max_passes": 2, **POISSON}
    adfs.simulate("dadao", problem, changing_network(["path:6", "star:6"]), **options)
    with pytest.raises(InputError, match="checkpoint of another run"):
        adfs.simulate(
            "dadao", problem, changing_network(["path:6", "star:6"], window=5.0), resume=True, **options
        )


CHANGING = {
    "two spanning trees": (["path:8", "star:8"], None),
    "two spanning trees, long windows": (["path:8", "star:8"], 400.0),
    "graphs that are not connected": ([[(0, 1), (2, 3), (4, 5), (6, 7)], [(1, 2), (3, 4), (5, 6)]], None),
}


@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize("case", CHANGING)
def test_dadao_converges_on_a_network_that_changes(case: str, lost: float) -> None:
    graphs, window = CHANGING[case]
    network = changing_network(graphs, window=window, n_nodes=8)
    problem, _ = make_case(7, n=8, loss="squared")
    run = adfs.simulate("dadao", problem, network, lost=lost, tol=1e-8, max_passes=5000, **POISSON)
    assert str(run.outcome) == "converged"
    assert run.parameters.contraction * run.columns["position"][-1] <= np.log(1e8)
    assert np.abs(run.coef - problem.optimum().theta).max() < 1e-3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_refuse_faults_that_they_cannot_bear(name: str) -> None:
    method = METHODS[name]
    problem, network = make_case(loss="logistic" if method.needs_smooth else "hinge")
    if method.kind == "single":  # it sends nothing
        run = adfs.simulate(name, problem, network, lost=0.3, max_passes=2, progress=False)
        assert "lost" not in run.details
        return
    if not method.lost_exchanges:
        with pytest.raises(InputError, match=r"takes no lost exchanges; use 'adfs' or .*'dadao'$"):
            adfs.simulate(name, problem, network, lost=0.3, **POISSON)
    if not method.changing_networks:
        with pytest.raises(InputError, match=r"takes no networks that change; use 'dadao'$"):
            adfs.simulate(name, problem, changing_network(["path:6", "star:6"]), **POISSON)
    if method.lost_exchanges:
        with pytest.raises(InputError, match="the iid schedule has no lost exchanges"):
            adfs.simulate(name, problem, network, lost=0.3)


def test_simulate_refuses_a_loss_that_is_no_probability() -> None:
    with pytest.raises(InputError, match=r"must be in \[0, 1\), got 1.0"):
        adfs.simulate("adfs", *make_case(), lost=1.0, **POISSON)
