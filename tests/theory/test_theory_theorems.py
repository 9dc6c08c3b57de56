"""Theorems 4 and 5 and Table 1 as numbers; Theorems 1 to 3 are measured with the literal algorithms."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.theory import (
    AugmentedGraph,
    NonSmoothParameters,
    Parameters,
    table1,
    theorem2_error,
    theorem2_initial_error,
    theorem3_bound,
    theorem4_step_time,
    theorem5_time,
)
from literal_cases import cases, random_case

Case = tuple[adfs.Problem, adfs.Network]


def grid_problem(sigma: float | list[float] = 1.0) -> adfs.Problem:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 3))
    return adfs.Problem(X, np.sign(X[:, 0]), sigma=sigma, n_nodes=9)


def test_theorem_4_agrees_with_a_calculation_by_hand() -> None:
    problem, network = grid_problem(), adfs.Network("grid:3x3")
    parameters = Parameters.paper(problem, network)
    step = theorem4_step_time(parameters, network, tau=5.0)
    # Edges are equally likely and the middle of the grid has four of the twelve.
    p_max = 9 * 4 * parameters.p_comm / 12
    assert step.p_comm_max == pytest.approx(p_max, rel=1e-14)
    assert step.nu == pytest.approx((9.0 * parameters.p_comp + 24.0 * 5.0 * p_max) / 9, rel=1e-14)
    assert step.p_comp == parameters.p_comp
    # Every node computes with p_comp/9; the middle one communicates with 4·p_comm/12.
    assert step.holds == (4 * parameters.p_comm / 12 <= parameters.p_comp / 9)


def test_theorem_4_says_when_its_proof_applies() -> None:
    many = adfs.Problem(np.ones((4000, 1)), np.ones(4000), loss="squared", n_nodes=4)
    ring = adfs.Network("cycle:4")
    assert theorem4_step_time(Parameters.paper(many, ring), ring, 1.0).holds
    uneven = adfs.Problem.from_shards(
        [(np.ones((m, 1)), np.ones(m)) for m in (1000, 2000, 1000, 1000)], loss="squared"
    )
    assert not theorem4_step_time(Parameters.tuned(uneven, ring), ring, 1.0).holds
    few = adfs.Problem(np.ones((4, 1)), np.ones(4), loss="squared", n_nodes=4)
    assert not theorem4_step_time(Parameters.paper(few, ring), ring, 1.0).holds
    alone = adfs.Problem(np.ones((3, 1)), np.ones(3), loss="squared")
    step = theorem4_step_time(Parameters.paper(alone, adfs.Network("path:1")), adfs.Network("path:1"), 7.0)
    assert step.holds
    assert step.nu == 9.0
    assert step.p_comm_max == 0.0
    with pytest.raises(adfs.InputError, match="tau must be"):
        theorem4_step_time(Parameters.paper(many, ring), ring, -1.0)


def blocking_time(parameters: Parameters, network: adfs.Network, tau: float, n_events: int) -> float:
    """T(t) of the clock Theorem 4 speaks of: an exchange starts when both ends are free and takes τ."""
    rng = np.random.default_rng(0)
    share = np.concatenate([parameters.node_probability, parameters.edge_probability])
    clock = np.zeros(network.n_nodes)
    for event in rng.choice(share.size, n_events, p=share / share.sum()).tolist():
        if event < network.n_nodes:
            clock[event] += 1.0
        else:
            i, j = network.edges[event - network.n_nodes]
            clock[i] = clock[j] = max(clock[i], clock[j]) + tau
    return float(clock.max())


@pytest.mark.parametrize("tau", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("name", ["grid:3x3", "cycle:8", "star:5", "complete:6"])
def test_theorem_4_holds_on_the_clock(name: str, tau: float) -> None:
    network = adfs.Network(name)
    n = network.n_nodes
    problem = adfs.Problem(np.ones((400 * n, 1)), np.ones(400 * n), loss="squared", n_nodes=n)
    parameters = Parameters.paper(problem, network)
    step = theorem4_step_time(parameters, network, tau)
    events = 4000
    spent = blocking_time(parameters, network, tau, events) / events
    if step.holds:
        assert spent < step.nu
    # The time a step is at least the mean load of the busiest node.
    assert spent > 0.9 * parameters.p_comp / n


@settings(max_examples=60)
@given(case=cases(), tau=st.floats(0.0, 1e3))
def test_theorem_5_bounds_the_time_really_obtained(case: Case, tau: float) -> None:
    problem, network = case
    parameters = Parameters.paper(problem, network)
    needed = theorem4_step_time(parameters, network, tau).nu / parameters.contraction
    found = theorem5_time(problem, network, tau)
    assert needed <= found.bound * (1.0 + 1e-12)
    assert 0.0 < found.delta_p <= 1.0
    assert 0.0 < found.r_kappa <= 1.0
    assert found.sigma_spread >= 1.0


def test_theorem_5_agrees_with_a_calculation_by_hand() -> None:
    problem, network = grid_problem(), adfs.Network("grid:3x3")
    found = theorem5_time(problem, network, tau=5.0)
    kappa = problem.kappa
    resistance = network.resistances.values
    gamma = network.algebraic_connectivity / 2 * 81 / (resistance.max() * 144)  # weights 1/2: half of λ_2
    assert found.gamma_tilde == pytest.approx(gamma, rel=1e-12)
    assert found.r_kappa == pytest.approx((1 + kappa.min()) / (1 + kappa.max()), rel=1e-14)
    assert found.c_tau == pytest.approx(9 * 4 / 12, rel=1e-12)
    roots = np.sqrt(1 + problem.smoothness)
    sums = roots.reshape(9, 10).sum(axis=1)
    assert found.delta_p == pytest.approx(sums.mean() / sums.max(), rel=1e-12)
    p_comm = min(0.5, 1 / (1 + math.sqrt(gamma / (1 + kappa.min())) * sums.mean()))
    assert found.p_comm == pytest.approx(p_comm, rel=1e-12)
    assert found.samples == pytest.approx(
        (10 + math.sqrt(10 * kappa.max())) / math.sqrt(found.r_kappa), rel=1e-12
    )
    assert found.network == pytest.approx((1 + 2 * 3 * 5) * math.sqrt((1 + kappa.max()) / gamma), rel=1e-12)
    assert found.sigma_spread == 1.0
    assert found.bound == pytest.approx(
        math.sqrt(2) * 24 / found.delta_p * (found.samples + found.network), rel=1e-12
    )


def test_theorem_5_grows_with_tau_and_with_condition() -> None:
    network = adfs.Network("grid:3x3")
    times = [theorem5_time(grid_problem(), network, tau).bound for tau in (0.0, 1.0, 10.0, 100.0)]
    assert np.all(np.diff(times) > 0.0)
    conditions = [theorem5_time(grid_problem(s), network, 5.0).bound for s in (10.0, 1.0, 0.1, 0.01)]
    assert np.all(np.diff(conditions) > 0.0)
    sizes = [
        theorem5_time(adfs.Problem(np.ones((9 * m, 1)), np.ones(9 * m), "squared", n_nodes=9), network, 5.0)
        for m in (10, 100, 1000)
    ]
    assert np.all(np.diff([size.bound for size in sizes]) > 0.0)


def test_theorem_5_needs_the_spread_of_sigma() -> None:
    """The paper sets every σ_i to one σ; without the factor its bound of ρ fails for different σ_i."""
    network = adfs.Network("path:2")
    problem = adfs.Problem.from_shards(
        [(100.0 * np.ones((2, 1)), [1.0, 1.0]), (np.ones((2, 1)), [1.0, 1.0])],
        loss="squared",
        sigma=[1000.0, 0.1],
    )
    parameters = Parameters.paper(problem, network)
    found = theorem5_time(problem, network, 1000.0)
    assert found.sigma_spread == pytest.approx(0.5 * 1000.0 * (1 / 1000.0 + 1 / 0.1), rel=1e-12)
    rate = parameters.p_comm / (math.sqrt(2) * 2) * math.sqrt(found.gamma_tilde / (1 + problem.kappa.max()))
    communication = math.sqrt(parameters.dual_curvature) * float(
        np.min(
            parameters.edge_probability
            / np.sqrt(parameters.edge_weights * parameters.edge_resistance * parameters.edge_inverse_sigma)
        )
    )
    assert communication < rate
    assert communication >= rate / math.sqrt(found.sigma_spread)


def test_table_1_follows_its_formulas() -> None:
    problem, network, tau = grid_problem(), adfs.Network("grid:3x3"), 5.0
    frame = table1(problem, network, tau=tau)
    assert isinstance(frame, pd.DataFrame)
    assert frame.shape == (6, 5)
    assert list(frame.columns) == ["distributed", "asynchronous", "stochastic", "time", "formula"]
    m, n = 10, 9
    stochastic, batch, gamma = problem.kappa_s, problem.kappa_b, network.gamma
    # γ of the 3 × 3 grid: eigenvalues of the path of 3 are 0, 1, 3; λ_2 = 1 and λ_max = 6.
    assert gamma == pytest.approx(1 / 6, rel=1e-12)
    expected = {
        "point-saga": n * m + math.sqrt(n * m * stochastic),
        "agd": n * m * math.sqrt(batch),
        "msda": math.sqrt(batch) * (m + tau / math.sqrt(gamma)),
        "esdacd": (m + tau) * math.sqrt(batch / gamma),
        "dsba": (m + stochastic + 1 / gamma) * (1 + tau),
        "adfs": m + math.sqrt(m * stochastic) + (1 + tau) * math.sqrt(stochastic / gamma),
    }
    assert frame["time"].to_dict() == pytest.approx(expected, rel=1e-12)
    assert frame["distributed"].to_list() == [False, False, True, True, True, True]
    assert frame["asynchronous"].to_list() == [False, False, False, True, False, True]
    assert frame["stochastic"].to_list() == [True, False, False, False, True, True]


def test_table_1_refuses_what_does_not_fit() -> None:
    with pytest.raises(adfs.InputError, match="the problem has 9 nodes and the network 4"):
        table1(grid_problem(), adfs.Network("path:4"), tau=1.0)
    with pytest.raises(adfs.InputError, match="tau must be"):
        table1(grid_problem(), adfs.Network("grid:3x3"), tau=-1.0)
    hinge, network = random_case(0, "hinge", n=3)
    with pytest.raises(adfs.InputError, match="smooth losses"):
        table1(hinge, network, tau=1.0)


def test_theorems_2_and_3_ask_for_their_own_parameters() -> None:
    problem, network = random_case(0, "logistic", n=3)
    smooth = AugmentedGraph(problem, network, Parameters.paper(problem, network))
    rough = AugmentedGraph(problem, network, NonSmoothParameters.paper(problem, network))
    zero, theta = np.zeros((smooth.n_augmented, problem.n_features)), np.zeros(problem.n_features)
    with pytest.raises(adfs.InputError, match="Theorem 3 is about NS-ADFS"):
        theorem3_bound(smooth, zero, 1.0)
    with pytest.raises(adfs.InputError, match="Theorem 2 is about ADFS"):
        theorem2_error(rough, zero, zero, theta)
    with pytest.raises(adfs.InputError, match="Theorem 2 is about ADFS"):
        theorem2_initial_error(rough, theta)


def test_dual_optimum_is_optimal() -> None:
    """Σ over nodes is 0, its value is minus the primal minimum, and the error of Theorem 2 is 0 there."""
    problem, network = random_case(11, "logistic", n=4, zeros=True)
    graph = AugmentedGraph(problem, network, Parameters.tuned(problem, network))
    found = problem.optimum(1e-14)
    best = graph.dual_optimum(found.theta)
    scale = 1.0 + np.abs(best).max()
    assert np.abs(best.sum(axis=0)).max() < 1e-14 * scale
    assert np.abs(best[:4] / problem.sigma[:, None] - found.theta).max() < 1e-10
    assert abs(graph.dual_value(best) + found.value) < 1e-12 * (1.0 + abs(found.value))
    assert abs(theorem2_error(graph, best, best, found.theta)) < 1e-20
