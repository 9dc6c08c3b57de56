"""Iterates stay in the domain of f*; the starts the paper prints leave it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import adfs
from adfs.theory import AugmentedGraph, NonSmoothParameters
from apcg_oracle import GeneralizedApcg, non_smooth_coefficients
from literal_adfs import AdfsState, draw_edges
from literal_cases import NON_SMOOTH, SMOOTH, cases, domain_excess, make_parameters, random_case, run_literal

BOUNDED = ("hinge", "absolute", "quantile", "epsilon_insensitive", "huber", "smoothed_hinge", "logistic")


def rough_graph(problem: adfs.Problem, network: adfs.Network) -> AugmentedGraph:
    return AugmentedGraph(problem, network, NonSmoothParameters.paper(problem, network))


@settings(max_examples=25)
@given(case=cases(losses=(*SMOOTH, *NON_SMOOTH)))
def test_ns_adfs_never_leaves_the_domain(case: tuple[adfs.Problem, adfs.Network]) -> None:
    graph = rough_graph(*case)
    for t, state in enumerate(run_literal(graph, 300, seed=0), start=1):
        assert domain_excess(graph, state.x) < 1e-12
        assert domain_excess(graph, state.v) < 1e-12
        if t % 100 == 0:
            assert np.isfinite(graph.dual_value(state.x))
            assert np.isfinite(graph.dual_value(state.v))


@settings(max_examples=25)
@given(case=cases())
def test_adfs_never_leaves_the_domain(case: tuple[adfs.Problem, adfs.Network]) -> None:
    for kind in ("paper", "tuned"):
        graph = AugmentedGraph(*case, make_parameters(kind, *case))
        for state in run_literal(graph, 200, seed=0):
            assert domain_excess(graph, state.x) < 1e-12
            assert domain_excess(graph, state.v) < 1e-12


def coefficients_from(start: float, step_bound: float, n_events: int) -> list[tuple[float, float]]:
    """(A_t, a_{t+1}) of the paper's recursion A_{t+1} = A_t + (1 + √(1 + 4S²A_t))/(2S²) from a given A_0."""
    out, weight = [], start
    for _ in range(n_events):
        increment = (1.0 + math.sqrt(1.0 + 4.0 * step_bound * weight)) / (2.0 * step_bound)
        out.append((weight, increment))
        weight += increment
    return out


def largest_excess(graph: AugmentedGraph, start: float, n_events: int, seed: int) -> float:
    apcg = GeneralizedApcg(graph)
    state, worst = apcg.start(), 0.0
    sequence = coefficients_from(start, graph.parameters.step_bound, n_events)
    for edge, (weight, increment) in zip(draw_edges(graph, n_events, seed).tolist(), sequence, strict=True):
        state = apcg.step(state, edge, non_smooth_coefficients(weight, increment))
        worst = max(worst, domain_excess(graph, graph.incidence @ state.x))
    return worst


@pytest.mark.parametrize("loss", BOUNDED)
def test_ns_adfs_leaves_the_domain_from_the_printed_start(loss: str) -> None:
    """Erratum 9: A_0 = 0 makes α_0 = 1 > p_ij; A_0 with α_0 = p_min keeps x inside, and so does t0."""
    problem, network = random_case(12, loss, n=4)
    graph = rough_graph(problem, network)
    least = float(graph.probability[graph.n_communication :].min())
    assert coefficients_from(0.0, graph.parameters.step_bound, 1)[0][0] == 0.0
    printed = max(largest_excess(graph, 0.0, 150, seed) for seed in range(5))
    assert printed > 0.1
    mended = (1.0 / least) * (1.0 / least - 1.0) / graph.parameters.step_bound
    weight, increment = coefficients_from(mended, graph.parameters.step_bound, 1)[0]
    assert abs(increment / (weight + increment) - least) < 1e-12
    assert max(largest_excess(graph, mended, 150, seed) for seed in range(5)) < 1e-12
    own = graph.parameters
    assert own.increment_at(0) / own.weight_at(1) <= least
    for seed in range(5):
        assert max(domain_excess(graph, s.x) for s in run_literal(graph, 150, seed)) < 1e-12


def test_dual_value_is_infinite_where_the_printed_start_leads() -> None:
    problem, network = random_case(12, "hinge", n=4)
    graph = rough_graph(problem, network)
    apcg = GeneralizedApcg(graph)
    state = apcg.start()
    values = []
    for edge, (weight, increment) in zip(
        draw_edges(graph, 150, 0).tolist(),
        coefficients_from(0.0, graph.parameters.step_bound, 150),
        strict=True,
    ):
        state = apcg.step(state, edge, non_smooth_coefficients(weight, increment))
        values.append(graph.dual_value(graph.incidence @ state.x))
    assert np.isinf(values).any()


def test_ns_adfs_leaves_the_domain_unless_x_and_v_start_together() -> None:
    """Erratum 5: x_0 = v_0 is required: from two different points of the domain one step can leave it."""
    problem = adfs.Problem.from_shards([([[1.0]], [5.0]), ([[1.0]], [-5.0])], loss="absolute")
    network = adfs.Network("path:2")
    graph = rough_graph(problem, network)
    apcg, dual = GeneralizedApcg(graph), graph.n_communication
    mu = math.sqrt(graph.mu_squared[dual])
    parameters = graph.parameters
    step = non_smooth_coefficients(parameters.weight_at(0), parameters.increment_at(0))

    def after(x: float, v: float) -> AdfsState:
        state = apcg.start()
        first, second = state.x.copy(), state.v.copy()
        first[dual], second[dual] = -x / mu, -v / mu
        for _ in range(40):
            moved = apcg.step(type(state)(first, second), dual, step)
            first, second = moved.x, moved.v
            if domain_excess(graph, graph.incidence @ first) > 1e-6:
                break
        return AdfsState(graph.incidence @ first, graph.incidence @ second)

    assert domain_excess(graph, after(-1.0, 1.0).x) > 1e-2
    assert domain_excess(graph, after(1.0, 1.0).x) < 1e-12
    assert domain_excess(graph, after(-1.0, -1.0).x) < 1e-12
