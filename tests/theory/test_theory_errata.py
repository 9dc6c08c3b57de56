"""Each slip of the paper that changes a computation: what it prints breaks a property, what we do keeps it.

The numbers are those of docs/errata.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import adfs
from adfs.problem.terms import Term
from adfs.theory import (
    AugmentedGraph,
    NonSmoothParameters,
    Parameters,
    theorem2_error,
    theorem2_initial_error,
    theorem3_bound,
)
from adfs.theory.records import network_constant
from apcg_oracle import ApcgState, GeneralizedApcg, constant_coefficients
from literal_adfs import AdfsState, LiteralAdfs, draw_edges
from literal_cases import (
    domain_excess,
    make_parameters,
    random_case,
    run_literal,
    smallest_gram,
    step_bound,
    unchecked,
)
from literal_methods import LiteralNsAdfs


def equal_nodes(n: int, kappa: float, *, loss: str = "squared", tips: int = 2) -> adfs.Problem:
    """The homogeneous case: σ = 1 and κ_i = κ at every node."""
    rows = math.sqrt(kappa / tips) * np.ones((n * tips, 1))
    return adfs.Problem(rows, np.linspace(-1.0, 1.0, n * tips), loss=loss, sigma=1.0, n_nodes=n)


def lollipop() -> adfs.Network:
    """A clique of five and a tail: resistances from 0.4 to 1."""
    edges = [(i, j) for i in range(5) for j in range(i + 1, 5)] + [(4, 5), (5, 6)]
    return adfs.Network(edges, weights=0.5)


# ------------------------------------------------------------------ 1: μ and μ²


@pytest.mark.parametrize("kappa", [0.5, 5.0, 50.0])
def test_erratum_1_virtual_weights_are_squares(kappa: float) -> None:
    """μ_ij² = λL_ij/(σ(1 + κ_i)) keeps σ_A ≥ λ/(2σ(1 + κ)); taken as μ_ij, σ_A falls below it."""
    network = adfs.Network("path:4", weights=0.05)
    problem = equal_nodes(4, kappa)
    parameters = Parameters.paper(problem, network)
    limit = network.algebraic_connectivity / (2.0 * (1.0 + kappa))
    graph = AugmentedGraph(problem, network, parameters)
    assert graph.dual_curvature >= limit * (1.0 - 1e-12)
    squared = parameters.virtual_weight**2 * problem.smoothness[0]
    printed = AugmentedGraph(problem, network, unchecked(parameters, virtual_weight=squared))
    # That μ_ij² is the square of the one above.
    np.testing.assert_allclose(printed.mu_squared[3:], graph.mu_squared[3:] ** 2, rtol=1e-12)
    assert printed.dual_curvature < 0.5 * limit


def test_erratum_1_printed_weights_depend_on_the_scale_of_the_network() -> None:
    problem = equal_nodes(4, 5.0)

    def rates(weight: float) -> tuple[float, float]:
        network = adfs.Network("path:4", weights=weight)
        parameters = Parameters.paper(problem, network)
        squared = parameters.virtual_weight**2 * problem.smoothness[0]
        graph = AugmentedGraph(problem, network, unchecked(parameters, virtual_weight=squared))
        printed = math.sqrt(graph.dual_curvature / step_bound(graph))
        return parameters.contraction, printed

    (one, printed_one), (other, printed_other) = rates(0.5), rates(0.005)
    assert one == pytest.approx(other, rel=1e-10)
    assert printed_other < 0.5 * printed_one


def test_erratum_1_communication_weights_are_squares() -> None:
    """With μ² = 1/2, p_comm²γ̃/(2n²(1 + κ)) is exactly ρ² of communication edges for σ_A = λ/(2σ(1 + κ))."""
    kappa, p_comm = 5.0, 0.3
    for weight, exact in ((0.5, True), (0.25, False)):
        network = lollipop().with_weights(weight)
        resistance = network.resistances.values
        bound = network.algebraic_connectivity / (2.0 * (1.0 + kappa))
        probability = p_comm / network.n_edges
        rate = float(np.min(probability**2 * bound / (weight * resistance * 2.0)))
        gamma = network.algebraic_connectivity * 49 / (resistance.max() * network.n_edges**2)
        lemma = gamma * p_comm**2 / (2.0 * 49 * (1.0 + kappa))
        assert (abs(rate - lemma) < 1e-12 * rate) == exact
        # Our γ̃ does not depend on the scale.
        assert network_constant(network, resistance) == pytest.approx(
            network_constant(lollipop(), lollipop().resistances.values), rel=1e-12
        )


# ------------------------------------------------------------------ 2: directional smoothness


def test_erratum_2_directional_smoothness_has_no_inverse() -> None:
    problem, network = random_case(3, "logistic", n=4)
    graph = AugmentedGraph(problem, network, Parameters.paper(problem, network))
    hessian = graph.incidence.T @ (graph.inverse_sigma[:, None] * graph.incidence)
    smooth = graph.directional_smoothness
    np.testing.assert_allclose(np.diag(hessian), smooth, rtol=1e-12)
    printed = 1.0 / smooth
    # q_A(λ + δe) − q_A(λ) − δ∇_e q_A(λ) = δ²M_e/2 exactly: the printed constant is no bound of it.
    assert np.any(printed < 0.9 * np.diag(hessian))


def test_erratum_2_the_printed_rate_is_not_attained() -> None:
    """S from the inverse promises a ρ that the record refuses and with which ADFS does not converge."""
    network = adfs.Network("path:3", weights=20.0)
    problem = equal_nodes(3, 30.0)
    parameters = Parameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    inverse = np.max(graph.resistance / (graph.directional_smoothness * graph.probability**2))
    promised = min(0.99, math.sqrt(parameters.dual_curvature / inverse))
    assert promised > 3.0 * parameters.contraction
    with pytest.raises(adfs.InputError, match="is above"):
        Parameters(**{**vars(parameters), "contraction": promised})
    optimum = problem.optimum().theta
    steps = int(20.0 / parameters.contraction)
    errors = []
    for chosen in (parameters, unchecked(parameters, contraction=promised)):
        with np.errstate(all="ignore"):
            *_, last = run_literal(AugmentedGraph(problem, network, chosen), min(steps, 4000), seed=0)
            errors.append(float(np.abs(last.v[:3] - optimum).max()))
    assert errors[0] < 1e-3
    assert not errors[1] < 1.0


# ------------------------------------------------------------------ 3: η̃


def test_erratum_3_the_step_has_the_probability_of_the_edge() -> None:
    """η̃ = ρμ²/(σ_A p_ij) is A times APCG; with p_i = Σ_j p_ij for p_ij it is not, and it is slower."""
    problem, network = random_case(5, "logistic", n=4)
    parameters = Parameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    apcg, literal = GeneralizedApcg(graph), LiteralAdfs(graph)
    step = constant_coefficients(parameters.contraction, parameters.dual_curvature, 0)

    def disagreement(scale: Callable[[int], float]) -> float:
        edges, nodes = apcg.start(), literal.start()
        for edge in draw_edges(graph, 400, seed=0).tolist():
            edges = apcg.step(edges, edge, step)
            weight = graph.mu_squared[edge]
            # η̃ is linear in μ²: this is Algorithm 2 with η̃·scale(edge) on the same draws.
            graph.mu_squared[edge] = weight * scale(edge)
            nodes = literal.step(nodes, edge)
            graph.mu_squared[edge] = weight
        return float(np.abs(graph.incidence @ edges.v - nodes.v).max() / np.abs(nodes.v).max())

    def printed(edge: int) -> float:
        if not graph.is_virtual(edge):
            return 1.0
        center = graph.edges[edge, 0]
        return float(graph.probability[edge] / parameters.node_probability[center])

    assert disagreement(lambda edge: 1.0) < 1e-13
    assert disagreement(printed) > 1e-3


# ------------------------------------------------------------------ 4: ν̃


def test_erratum_4_the_ratio_of_step_and_smoothness_is_four_times_larger() -> None:
    """ν̃ = η̃/L = (2ρ/p)(1 + κ)/(1 + κ_i) for σ_A = λ/(2σ(1 + κ)): four times what is printed."""
    problem, network = random_case(8, "logistic", n=4)
    problem = adfs.Problem.from_shards(
        [(shard.X, shard.y, shard.weights) for shard in problem.shards], loss="logistic", sigma=1.0
    )
    parameters = Parameters.paper(problem, network)
    kappa = problem.kappa
    bound = network.algebraic_connectivity / (2.0 * (1.0 + kappa.max()))
    graph = AugmentedGraph(problem, network, unchecked(parameters, dual_curvature=bound))
    tips = slice(network.n_edges, None)
    steps = parameters.contraction * graph.mu_squared[tips] / (bound * graph.probability[tips])
    ratio = steps / problem.smoothness[graph.tip_rows]
    own = kappa[problem.node_of_row[graph.tip_rows]]
    factor = parameters.contraction / graph.probability[tips] * (1.0 + kappa.max()) / (1.0 + own)
    np.testing.assert_allclose(ratio, 2.0 * factor, rtol=1e-12)
    assert np.all(np.abs(ratio / (0.5 * factor) - 4.0) < 1e-10)


class HalfSquare(Term):
    """½‖θ‖², whose dual prox goes through Moreau's identity."""

    smoothness = 1.0

    def value(self, theta: np.ndarray) -> float:
        return 0.5 * float(theta @ theta)

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        return center / (1.0 + step)


def test_erratum_4_the_ratio_is_not_bounded_by_one() -> None:
    """A well-conditioned node has η̃ > L: no Moreau form there, but the one-dimensional prox exists."""
    problem = equal_nodes(4, 5.0, loss="huber", tips=50)
    network = adfs.Network("complete:4")
    parameters = Parameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    edge = network.n_edges
    step = float(
        parameters.contraction
        * graph.mu_squared[edge]
        / (parameters.dual_curvature * graph.probability[edge])
    )
    smooth = graph.tip_curvature(edge)
    assert step > 1.1 * smooth
    with pytest.raises(adfs.InputError, match="is not below the smoothness"):
        HalfSquare().dual_prox(np.ones(2), 1.2, 1.0)
    term = graph.term(edge)
    for z in (-3.0, -0.1, 0.4, 2.0):
        found = float(term.dual_prox(np.array([z]), step, smooth)[0])

        def value(v: float, z: float = z) -> float:
            inner = term.conjugate(np.array([v]))
            return (v - z) ** 2 / (2.0 * step) + inner - v**2 / (2.0 * smooth)

        assert np.isfinite(value(found))
        assert value(found) <= min(value(found + 1e-6), value(found - 1e-6), value(0.5 * found))


# ------------------------------------------------------------------ 5: Algorithms 1 and 2


def test_erratum_5_the_other_coordinates_move_too() -> None:
    """v_{t+1} = z_{t+1} before the prox: left at v_t, the rest breaks the proof and leaves Algorithm 2."""
    problem, network = random_case(2, "squared", n=3)
    parameters = Parameters.tuned(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    apcg, literal = GeneralizedApcg(graph), LiteralAdfs(graph)
    rho = parameters.contraction
    step = constant_coefficients(rho, parameters.dual_curvature, 0)

    def run(*, printed: bool) -> tuple[float, float]:
        """Disagreement with Algorithm 2, and how far x_{t+1} − y_t leaves the coordinate that was drawn."""
        state, nodes, off = apcg.start(), literal.start(), 0.0
        for edge in draw_edges(graph, 300, seed=0).tolist():
            x, v = state
            y, w = (x + rho * v) / (1 + rho), (v + rho * x) / (1 + rho)
            moved = apcg.step(state, edge, step)
            if printed:
                kept = v.copy()
                kept[edge] = moved.v[edge]
                ratio = rho * graph.resistance[edge] / graph.probability[edge]
                moved = ApcgState(y + ratio * (kept - w), kept)
            state, nodes = moved, literal.step(nodes, edge)
            off = max(off, float(np.abs(np.delete(state.x - y, edge, axis=0)).max()))
        size = float(np.abs(nodes.v).max())
        return float(np.abs(graph.incidence @ state.v - nodes.v).max()) / size, off

    agreement, off = run(printed=False)
    assert max(agreement, off) < 1e-13
    agreement, off = run(printed=True)
    assert min(agreement, off) > 1e-3


def test_erratum_5_the_prox_goes_to_the_tip() -> None:
    """v^(i,j), not v^(j): written to node j, Σ over all nodes is no longer 0. And W_ij has a row a node."""
    problem, network = random_case(2, "logistic", n=3)
    graph = AugmentedGraph(problem, network, Parameters.tuned(problem, network))
    literal = LiteralAdfs(graph)
    state = literal.start()
    for edge in draw_edges(graph, 50, seed=0).tolist():
        state = literal.step(state, edge)
    assert np.abs(state.v.sum(axis=0)).max() < 1e-13
    edge = graph.n_communication
    moved = literal.step(state, edge)
    i, tip = graph.edges[edge]
    local = int(graph.tip_rows[0] - problem.node_starts[i])
    printed = moved.v.copy()
    printed[[tip, local]] = state.v[tip], moved.v[tip]
    assert np.abs(moved.v.sum(axis=0)).max() < 1e-13
    assert np.abs(printed.sum(axis=0)).max() > 1e-3
    ends = np.eye(3)[0] - np.eye(3)[1]
    with pytest.raises(ValueError, match="mismatch"):
        np.outer(ends, ends) @ state.v


# ------------------------------------------------------------------ 6: what to return


def test_erratum_6_only_centres_hold_the_parameter() -> None:
    problem, network = random_case(4, "logistic", n=3)
    parameters = Parameters.tuned(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    optimum = problem.optimum(1e-14).theta
    events = int(30.0 / parameters.contraction)
    *_, last = run_literal(graph, events, seed=0)
    scaled = last.v / graph.sigma_diagonal[:, None]
    assert np.abs(scaled[:3] - optimum).max() < 1e-6
    tips = np.array([graph.term(edge).gradient(optimum) for edge in range(network.n_edges, graph.n_edges)])
    assert np.abs(last.v[3:] - tips).max() < 1e-6
    assert np.abs(scaled[3:] - optimum).max() > 0.1
    # Over all nodes Theorem 2's left side does not even tend to 0.
    constant = parameters.dual_curvature / graph.largest_inverse_square
    everywhere = constant * np.sum((scaled - optimum) ** 2)
    bound = theorem2_initial_error(graph, optimum) * (1.0 - parameters.contraction) ** events
    assert theorem2_error(graph, last.x, last.v, optimum) <= bound
    assert everywhere > 1e6 * bound


# ------------------------------------------------------------------ 7: the prox in the primal


@pytest.mark.parametrize("loss", ["logistic", "huber", "squared"])
def test_erratum_7_the_chain_of_proxes_leads_to_the_dual_prox(loss: str) -> None:
    """One −‖v‖²/(2L), not two; f* and not f̃* in what follows; v = ∇f(θ) with θ + (1/η̃ − 1/L)v = z/η̃."""
    problem = adfs.Problem([[1.5]], [1.0], loss=loss, sigma=1.0)
    term = problem.term(0)
    smooth, z = term.smoothness, -0.3
    step = 0.4 * smooth
    low, high = type(problem.loss).domain(problem.loss, 1.0)
    bounds = (1.5 * max(low, -50.0), 1.5 * min(high, 50.0))

    def least(center: float, length: float, removed: float) -> float:
        """argmin (v − center)²/(2·length) + f*(v) − removed·v²/(2L)."""
        out = minimize_scalar(
            lambda v: (
                (v - center) ** 2 / (2.0 * length)
                + term.conjugate(np.array([v]))
                - removed * v**2 / (2.0 * smooth)
            ),
            bounds=bounds,
            method="bounded",
            options={"xatol": 1e-12},
        )
        return float(out.x)

    found = float(term.dual_prox(np.array([z]), step, smooth)[0])
    assert abs(least(z, step, 1.0) - found) < 1e-6
    assert abs(least(z, step, 2.0) - found) > 1e-2
    length, center = 1.0 / (1.0 / step - 1.0 / smooth), z / (1.0 - step / smooth)
    assert abs(least(center, length, 0.0) - found) < 1e-6
    assert abs(least(center, length, 1.0) - found) > 1e-2
    # The final identity, and the simple form of it.
    inner = float(term.prox(np.array([z / step]), 1.0 / step - 1.0 / smooth)[0])
    assert abs((1.0 - step / smooth) * found - (z - step * inner)) < 1e-12
    assert abs(float(term.gradient(np.array([inner]))[0]) - found) < 1e-12
    assert abs(inner + (1.0 / step - 1.0 / smooth) * found - z / step) < 1e-12


# ------------------------------------------------------------------ 8 and 9: NS-ADFS


def rough_case(loss: str, seed: int = 4) -> AugmentedGraph:
    problem, network = random_case(seed, loss, n=3)
    return AugmentedGraph(problem, network, NonSmoothParameters.paper(problem, network))


def test_erratum_8_the_x_update_has_alpha() -> None:
    """With Theorem 3's constant ρ̃ for α_t the iterates diverge; with α_t the bound of Theorem 3 holds."""
    graph = rough_case("squared")
    problem, parameters = graph.problem, graph.parameters
    best = graph.dual_optimum(problem.optimum(1e-14).theta)
    least = graph.dual_value(best)
    literal = LiteralNsAdfs(graph)
    rho = math.sqrt(smallest_gram(graph) / parameters.step_bound)
    events, seeds = 600, 4

    def error(*, printed: bool) -> float:
        total = 0.0
        for seed in range(seeds):
            state = literal.start()
            for t, edge in enumerate(draw_edges(graph, events, seed).tolist()):
                moved = literal.step(state, edge, t)
                if printed:
                    alpha = parameters.increment_at(t) / parameters.weight_at(t + 1)
                    y = (1 - alpha) * state.x + alpha * state.v
                    ratio = rho * graph.resistance[edge] / graph.probability[edge]
                    # The step of v hangs on y alone, so it is the literal one.
                    moved = AdfsState(y + ratio * (moved.v - state.v), moved.v)
                state = moved
            total += (graph.dual_value(state.x) - least) / seeds
        return total

    bound = theorem3_bound(graph, best, events)
    assert error(printed=False) <= bound
    assert error(printed=True) > 1e6 * bound


def test_erratum_8_tips_have_no_curvature() -> None:
    graph = rough_case("absolute")
    hessian = graph.incidence.T @ (graph.inverse_sigma[:, None] * graph.incidence)
    np.testing.assert_allclose(np.diag(hessian), graph.directional_smoothness, rtol=1e-12)
    tips = slice(graph.n_communication, None)
    centers = graph.edges[tips, 0]
    np.testing.assert_allclose(
        graph.directional_smoothness[tips],
        graph.mu_squared[tips] / graph.problem.sigma[centers],
        rtol=1e-14,
    )


def test_erratum_9_the_start_at_zero_breaks_the_hypothesis() -> None:
    """A_0 = 0 gives α_0 = 1; A_0 = (1/p)(1/p − 1)/S² gives α_0 = p, and the closed form less."""
    graph = rough_case("hinge")
    parameters, bound = graph.parameters, graph.parameters.step_bound
    least = float(graph.probability[graph.n_communication :].min())

    def first_alpha(weight: float) -> float:
        increment = (1.0 + math.sqrt(1.0 + 4.0 * bound * weight)) / (2.0 * bound)
        return increment / (weight + increment)

    assert first_alpha(0.0) == 1.0
    assert first_alpha((1.0 / least) * (1.0 / least - 1.0) / bound) == pytest.approx(least, rel=1e-12)
    # Ours needs no recursion, satisfies a²S² ≤ A_{t+1}, never exceeds p, and grows as the theorem wants.
    for t in (0, 1, 10, 1000, 10**6):
        weight, increment = parameters.weight_at(t), parameters.increment_at(t)
        assert weight + increment == pytest.approx(parameters.weight_at(t + 1), rel=1e-12)
        assert increment**2 * bound <= parameters.weight_at(t + 1)
        assert increment / parameters.weight_at(t + 1) <= least
        assert weight >= t**2 / (4.0 * bound)
    # One smaller t0 than 2/p would still do here, but not half of it.
    half = 0.5 * parameters.offset
    assert (2.0 * half + 1.0) / (half + 1.0) ** 2 > least


# ------------------------------------------------------------------ 10: γ̃


def test_erratum_10_gamma_is_a_minimum() -> None:
    """ρ ≥ p_comm√(γ̃/(1 + κ))/(√2n) on communication edges with the minimum; with the maximum it fails."""
    network, kappa = lollipop(), 400.0
    problem = equal_nodes(7, kappa)
    parameters = Parameters.paper(problem, network)
    resistance = network.resistances.values
    roots = np.sqrt(network.weights * resistance * parameters.edge_inverse_sigma)
    rate = math.sqrt(parameters.dual_curvature) * float(np.min(parameters.edge_probability / roots))

    def lemma(gamma: float) -> float:
        return parameters.p_comm / (math.sqrt(2.0) * 7) * math.sqrt(gamma / (1.0 + kappa))

    values = network.algebraic_connectivity * 49 / (resistance * network.n_edges**2)
    assert network_constant(network, resistance) == pytest.approx(values.min(), rel=1e-12)
    assert lemma(values.min()) <= rate
    assert lemma(values.max()) > 1.2 * rate


# ------------------------------------------------------------------ 11: the condition of Lemma 1


def test_erratum_11_rho_below_p_is_enough() -> None:
    """1 − ρ − ρR/p > 0 fails on virtual edges of good parameters; x stays in the domain all the same."""
    problem = adfs.Problem([[0.3], [0.2]], [1.0, -1.0], loss="smoothed_hinge", sigma=1.0, n_nodes=2)
    network = adfs.Network("path:2")
    refused = 0
    for kind in ("paper", "tuned"):
        parameters = make_parameters(kind, problem, network)
        graph = AugmentedGraph(problem, network, parameters)
        rho = parameters.contraction
        condition = 1.0 - rho - rho * graph.resistance / graph.probability
        refused += np.count_nonzero(condition[graph.n_communication :] <= 0.0)
        assert np.all(rho <= graph.probability[graph.n_communication :])
        for state in run_literal(graph, 2000, seed=0):
            assert domain_excess(graph, state.x) < 1e-13
    assert refused > 0


def test_erratum_11_the_condition_as_printed_refuses_a_single_sample() -> None:
    """One node, one sample: ρ = 1/√(1 + L/σ) ≤ p = 1, and 1 − 2ρ < 0 once L < 3σ; Theorem 2 holds exactly."""
    problem = adfs.Problem([[1.0]], [1.0], loss="smoothed_hinge", sigma=2.0)
    network = adfs.Network("path:1")
    graph = AugmentedGraph(problem, network, Parameters.tuned(problem, network))
    rho = graph.parameters.contraction
    assert 1.0 - rho - rho < 0.0
    optimum = problem.optimum(1e-14).theta
    first = theorem2_initial_error(graph, optimum)
    for t, state in enumerate(run_literal(graph, 30, seed=0), start=1):
        assert domain_excess(graph, state.x) == 0.0
        assert theorem2_error(graph, state.x, state.v, optimum) <= first * (1.0 - rho) ** t + 1e-15


def test_erratum_11_weights_are_those_of_a_convex_combination() -> None:
    """x = a·v + (1 − a)·u with u in the hull of earlier v: a ← (a + ρ)/(1 + ρa) idle, a ← ρ/p at an event."""
    rho, p = 0.2, 0.25
    rng = np.random.default_rng(0)
    x = v = u = 0.0
    a = 1.0
    for _ in range(2000):
        y, w = (x + rho * v) / (1 + rho), (v + rho * x) / (1 + rho)
        a = (a + rho) / (1 + rho * a)
        assert y == pytest.approx(a * w + (1 - a) * u, abs=1e-12)
        assert rho / p <= a <= 1.0
        if rng.random() < p:
            new = rng.choice([-1.0, 1.0])
            x, v = y + rho / p * (new - w), new
            u = ((a - rho / p) * w + (1 - a) * u) / (1 - rho / p)
            a = rho / p
        else:
            x, v = y, w
        assert max(abs(x), abs(u)) <= 1.0 + 1e-12
