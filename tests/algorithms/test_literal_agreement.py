"""Edge-space APCG times A, the algorithms over all nodes, and their forms without idle work are one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.theory import AugmentedGraph, NonSmoothParameters, Parameters
from apcg_oracle import GeneralizedApcg, constant_coefficients, non_smooth_coefficients
from literal_adfs import LiteralAdfs, MeanLagAdfs, draw_edges
from literal_cases import NON_SMOOTH, SMOOTH, cases, make_parameters, random_case
from literal_methods import LiteralNsAdfs, VelocityNsAdfs

KINDS = ("paper", "tuned")


class Largest:
    """The largest difference and the largest sum over all nodes, relative to the largest iterate so far."""

    def __init__(self) -> None:
        self.size = 0.0
        self.difference = 0.0
        self.sum = 0.0

    def compare(self, reference: np.ndarray, *others: np.ndarray) -> None:
        self.size = max(self.size, float(np.abs(reference).max()))
        for other in others:
            self.difference = max(self.difference, self._relative(reference - other))

    def vanish(self, *states: np.ndarray) -> None:
        for state in states:
            self.sum = max(self.sum, self._relative(state.sum(axis=0)))

    def _relative(self, array: np.ndarray) -> float:
        largest = float(np.abs(array).max())
        return largest / self.size if largest > 0.0 else 0.0


def smooth_disagreement(
    problem: adfs.Problem, network: adfs.Network, kind: str, steps: int
) -> tuple[float, float]:
    """Largest relative disagreement of the three forms of ADFS, and of Σ over nodes with 0."""
    parameters = make_parameters(kind, problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    coefficients = constant_coefficients(parameters.contraction, parameters.dual_curvature, 0)
    apcg, literal, lagged = GeneralizedApcg(graph), LiteralAdfs(graph), MeanLagAdfs(graph)
    edges, nodes, lags = apcg.start(), literal.start(), lagged.start()
    largest = Largest()
    for t, edge in enumerate(draw_edges(graph, steps, seed=1).tolist()):
        edges = apcg.step(edges, edge, coefficients)
        nodes = literal.step(nodes, edge)
        lags = lagged.step(lags, edge, t + 1.0)
        if t % 50 == 0 or t == steps - 1:
            together = lagged.iterates(lags, t + 1.0)
            largest.compare(nodes.x, graph.incidence @ edges.x, together.x)
            largest.compare(nodes.v, graph.incidence @ edges.v, together.v)
            largest.vanish(nodes.x, nodes.v, lags.mean, together.v - together.x, graph.incidence @ edges.v)
    return largest.difference, largest.sum


def non_smooth_disagreement(problem: adfs.Problem, network: adfs.Network, steps: int) -> tuple[float, float]:
    """The same for NS-ADFS."""
    parameters = NonSmoothParameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    apcg, literal, moving = GeneralizedApcg(graph), LiteralNsAdfs(graph), VelocityNsAdfs(graph)
    edges, nodes, rests = apcg.start(), literal.start(), moving.start()
    largest = Largest()
    for t, edge in enumerate(draw_edges(graph, steps, seed=2).tolist()):
        coefficients = non_smooth_coefficients(parameters.weight_at(t), parameters.increment_at(t))
        edges = apcg.step(edges, edge, coefficients)
        nodes = literal.step(nodes, edge, t)
        rests = moving.step(rests, edge, t)
        if t % 50 == 0 or t == steps - 1:
            together = moving.iterates(rests, t + 1)
            largest.compare(nodes.x, graph.incidence @ edges.x, together.x)
            largest.compare(nodes.v, graph.incidence @ edges.v, together.v)
            largest.vanish(nodes.x, nodes.v, together.x, together.v)
    return largest.difference, largest.sum


@settings(max_examples=40)
@given(case=cases(), kind=st.sampled_from(KINDS))
def test_adfs_agrees_in_its_three_forms(case: tuple[adfs.Problem, adfs.Network], kind: str) -> None:
    assert max(smooth_disagreement(*case, kind, 300)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", SMOOTH)
def test_adfs_agrees_in_its_three_forms_over_3000_steps(loss: str, kind: str) -> None:
    problem, network = random_case(sum(map(ord, loss + kind)), loss, n=6, zeros=kind == "paper")
    assert max(smooth_disagreement(problem, network, kind, 3000)) < 1e-12


@settings(max_examples=40)
@given(case=cases(losses=(*SMOOTH, *NON_SMOOTH)))
def test_ns_adfs_agrees_in_its_three_forms(case: tuple[adfs.Problem, adfs.Network]) -> None:
    assert max(non_smooth_disagreement(*case, 300)) < 1e-12


@pytest.mark.parametrize("loss", [*SMOOTH, *NON_SMOOTH])
def test_ns_adfs_agrees_in_its_three_forms_over_3000_steps(loss: str) -> None:
    problem, network = random_case(sum(map(ord, loss)), loss, n=5, zeros=True)
    assert max(non_smooth_disagreement(problem, network, 3000)) < 1e-12


@pytest.mark.soak
@settings(max_examples=300)
@given(case=cases(), kind=st.sampled_from(KINDS))
def test_adfs_agrees_in_its_three_forms_for_long(case: tuple[adfs.Problem, adfs.Network], kind: str) -> None:
    assert max(smooth_disagreement(*case, kind, 3000)) < 1e-12


@pytest.mark.soak
@settings(max_examples=300)
@given(case=cases(losses=(*SMOOTH, *NON_SMOOTH)))
def test_ns_adfs_agrees_in_its_three_forms_for_long(case: tuple[adfs.Problem, adfs.Network]) -> None:
    # Steps grow like t and nothing contracts: rounding is amplified by up to t·2e-16 and small factors.
    assert max(non_smooth_disagreement(*case, 3000)) < 5e-12


def test_adfs_steps_take_the_resistances_of_the_parameters() -> None:
    """An upper bound of R_e may stand for it, in the step and in ρ alike; all still agrees and converges."""
    problem, network = random_case(5, "logistic", n=5)
    exact = Parameters.tuned(problem, network)
    bound = np.minimum(1.0, 1.3 * exact.edge_resistance)
    roots = np.sqrt(bound / exact.edge_resistance)
    loose = Parameters(
        kind="bounded",
        contraction=exact.contraction / roots.max(),
        dual_curvature=exact.dual_curvature,
        split=exact.split,
        sigma=exact.sigma,
        root_sums=exact.root_sums,
        node_probability=exact.node_probability,
        virtual_weight=exact.virtual_weight,
        edge_weights=exact.edge_weights,
        edge_probability=exact.edge_probability,
        edge_resistance=bound,
        edge_inverse_sigma=exact.edge_inverse_sigma,
    )
    graph = AugmentedGraph(problem, network, loose)
    assert np.array_equal(graph.step_resistance[: network.n_edges], bound)
    literal, lagged = LiteralAdfs(graph), MeanLagAdfs(graph)
    nodes, lags = literal.start(), lagged.start()
    for t, edge in enumerate(draw_edges(graph, 4000, seed=3).tolist()):
        nodes, lags = literal.step(nodes, edge), lagged.step(lags, edge, t + 1.0)
    assert np.abs(lagged.iterates(lags, 4000.0).v - nodes.v).max() < 1e-12
    assert np.abs(literal.theta(nodes) - problem.optimum().theta).max() < 1e-8


def test_mean_lag_adfs_decays_alike_over_real_valued_times() -> None:
    """Events at real times: the lag decays by λ^Δs, and an event-free wait changes nothing else."""
    problem, network = random_case(6, "huber", n=3)
    graph = AugmentedGraph(problem, network, Parameters.tuned(problem, network))
    lagged = MeanLagAdfs(graph)
    state = lagged.step(lagged.start(), graph.n_communication, 0.7)
    later, latest = lagged.iterates(state, 1.7), lagged.iterates(state, 2.7)
    decay = graph.parameters.decay
    np.testing.assert_allclose(latest.v - latest.x, decay * (later.v - later.x), rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(latest.v + latest.x, later.v + later.x, rtol=1e-14, atol=1e-300)


def test_literal_methods_refuse_the_parameters_of_others() -> None:
    problem, network = random_case(7, "logistic", n=3)
    smooth = AugmentedGraph(problem, network, Parameters.tuned(problem, network))
    rough = AugmentedGraph(problem, network, NonSmoothParameters.paper(problem, network))
    for method in (LiteralAdfs, MeanLagAdfs):
        with pytest.raises(adfs.InputError, match="use NS-ADFS"):
            method(rough)
    for other in (LiteralNsAdfs, VelocityNsAdfs):
        with pytest.raises(adfs.InputError, match="takes NonSmoothParameters"):
            other(smooth)
