"""σ_A and R_e: dense eigenvalues of the augmented graph against the n × n reductions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.theory import (
    AugmentedGraph,
    NonSmoothParameters,
    Parameters,
    dual_curvature,
    dual_curvature_of_split,
    projected_dual_curvature,
)
from literal_cases import SMOOTH, cases, make_parameters, random_case, unchecked
from loss_cases import ONE_OUTPUT

Case = tuple[adfs.Problem, adfs.Network]


def with_weights(problem: adfs.Problem, network: adfs.Network, alpha: np.ndarray) -> AugmentedGraph:
    """The augmented graph with given α_i; probabilities do not matter here."""
    return AugmentedGraph(
        problem, network, unchecked(Parameters.tuned(problem, network), virtual_weight=alpha)
    )


@settings(max_examples=60)
@given(case=cases(), split=st.floats(0.02, 0.98))
def test_split_reduction_equals_dense_eigenvalues(case: Case, split: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    reduced = dual_curvature_of_split(network, problem.sigma, problem.kappa, split)
    graph = with_weights(problem, network, np.full(network.n_nodes, reduced / split))
    # Where the tips of one node can move against each other, α itself is an eigenvalue; it is above σ_A = rα.
    assert abs(graph.dual_curvature - reduced) < 1e-12 * reduced


@settings(max_examples=60)
@given(case=cases())
def test_paper_reduction_equals_dense_eigenvalues(case: Case) -> None:
    problem, network = case
    parameters = Parameters.paper(problem, network)
    dense = AugmentedGraph(problem, network, parameters).dual_curvature
    counts = np.bincount(problem.node_of_row[problem.active], minlength=problem.n_nodes)
    alpha = np.where(counts > 0, parameters.virtual_weight, np.inf)
    if counts[np.argmin(alpha)] > 1 or parameters.dual_curvature < alpha.min() * (1.0 - 1e-9):
        assert abs(parameters.dual_curvature - dense) < 1e-12 * dense
    else:  # one tip at the node of the smallest α: a lower bound
        assert parameters.dual_curvature <= dense * (1.0 + 1e-12)


@settings(max_examples=60)
@given(case=cases(), seed=st.integers(0, 10**6))
def test_any_virtual_weights(case: Case, seed: int) -> None:
    problem, network = case
    alpha = np.exp(np.random.default_rng(seed).uniform(-4.0, 4.0, network.n_nodes))
    found = dual_curvature(network, problem.sigma, problem.kappa, alpha)
    dense = with_weights(problem, network, alpha).dual_curvature
    counts = np.bincount(problem.node_of_row[problem.active], minlength=problem.n_nodes)
    smallest = np.where(counts > 0, alpha, np.inf)
    assert found <= dense * (1.0 + 1e-12)
    if counts[np.argmin(smallest)] > 1 or found < smallest.min():
        assert abs(found - dense) < 1e-12 * dense


def test_no_root_below_the_smallest_virtual_weight() -> None:
    """A node of tiny σ and large κ: its α is the smallest eigenvalue (two tips), or a lower bound (one)."""
    network = adfs.Network("path:2")
    for tips, exact in ((2, True), (1, False)):
        problem = adfs.Problem.from_shards(
            [(np.ones((2, 1)) * 0.5, [1.0, 2.0]), (np.ones((tips, 1)) / np.sqrt(tips), np.ones(tips))],
            loss="squared",
            sigma=[1.0, 0.01],
        )
        parameters = Parameters.paper(problem, network)
        alpha = parameters.virtual_weight
        assert parameters.dual_curvature == alpha.min()
        dense = AugmentedGraph(problem, network, parameters).dual_curvature
        if exact:
            assert abs(dense - alpha.min()) < 1e-12 * dense
        else:
            assert dense > alpha.min() * 1.01


@settings(max_examples=40)
@given(case=cases(), split=st.floats(0.05, 0.95))
def test_batch_bound_never_exceeds_the_exact_projected_form(case: Case, split: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    stochastic = dual_curvature_of_split(network, problem.sigma, problem.kappa, split)
    batch = dual_curvature_of_split(network, problem.sigma, problem.batch_smoothness / problem.sigma, split)
    exact = projected_dual_curvature(problem, network, split)
    assert stochastic <= batch * (1.0 + 1e-12)
    assert batch <= exact * (1.0 + 1e-12)


def projected_operator(problem: adfs.Problem, graph: AugmentedGraph) -> np.ndarray:
    """Σ^{-1/2}A on the directions ADFS can reach: all of them on centres and edges, the line of x on tips."""
    d = problem.n_features
    columns = []
    for edge, (i, j) in enumerate(graph.edges):
        mu = np.sqrt(graph.mu_squared[edge])
        if graph.is_virtual(edge):
            row = problem.X[graph.tip_rows[edge - graph.n_communication]]
            directions = (row / np.linalg.norm(row))[None, :]
        else:
            directions = np.eye(d)
        for direction in directions:
            column = np.zeros((graph.n_augmented, d))
            column[i] += mu * direction / np.sqrt(graph.sigma_diagonal[i])
            column[j] -= mu * direction / np.sqrt(graph.sigma_diagonal[j])
            columns.append(column.ravel())
    return np.array(columns).T


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("split", [0.2, 0.5, 0.9])
def test_projected_form_equals_the_explicit_operator(seed: int, split: float) -> None:
    problem, network = random_case(seed, SMOOTH[seed % len(SMOOTH)], n=2 + seed % 4)
    exact = projected_dual_curvature(problem, network, split)
    graph = with_weights(problem, network, np.full(network.n_nodes, exact / split))
    operator = projected_operator(problem, graph)
    # Its null space on the left: Σ^{1/2} times one vector at every centre and what matches it at the tips.
    values = np.sort(np.linalg.svd(operator, compute_uv=False) ** 2)
    positive = values[values > 1e-10 * values[-1]]
    assert abs(positive[0] - exact) < 1e-10 * exact


def test_projected_form_refuses_large_problems() -> None:
    problem = adfs.Problem(np.ones((2, 1500)), [1.0, 2.0], loss="squared", n_nodes=2)
    with pytest.raises(adfs.InputError, match="for small problems"):
        projected_dual_curvature(problem, adfs.Network("path:2"), 0.5)


@settings(max_examples=40)
@given(case=cases(), kind=st.sampled_from(("paper", "tuned")))
def test_resistances_of_the_augmented_graph(case: Case, kind: str) -> None:
    problem, network = case
    graph = AugmentedGraph(problem, network, make_parameters(kind, problem, network))
    np.testing.assert_allclose(graph.resistance, graph.step_resistance, rtol=0.0, atol=1e-11)
    assert np.all(graph.step_resistance[graph.n_communication :] == 1.0)
    # Foster: ΣR_e = n − 1 on communication edges.
    assert abs(graph.parameters.edge_resistance.sum() - (network.n_nodes - 1)) < 1e-11


@settings(max_examples=40)
@given(case=cases(losses=tuple(sorted(ONE_OUTPUT))))
def test_step_bound_of_ns_adfs(case: Case) -> None:
    problem, network = case
    parameters = NonSmoothParameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    assert abs(graph.step_bound() - parameters.step_bound) < 1e-12 * parameters.step_bound
    # The paper's lemma for μ_ij² = λ_min⁺(Lap)/(1 + m): λ_min⁺(AᵀA) ≥ λ_min⁺(Lap)/(2(1 + m)).
    if network.n_nodes > 1:
        most = float(parameters.n_active.max())
        limit = network.algebraic_connectivity / (2.0 * (1.0 + most))
        assert graph.smallest_gram >= limit * (1.0 - 1e-12)


def test_augmented_graph_refuses_what_does_not_fit() -> None:
    problem, network = random_case(1, "logistic", n=3)
    parameters = Parameters.tuned(problem, network)
    with pytest.raises(adfs.InputError, match="they must be the same"):
        AugmentedGraph(problem, adfs.Network("path:4"), parameters)
    large = adfs.Problem(np.ones((3100, 1)), np.ones(3100), loss="squared", n_nodes=3)
    with pytest.raises(adfs.InputError, match="for small cases"):
        AugmentedGraph(large, network, parameters)


def test_augmented_graph_is_laid_out_as_documented() -> None:
    problem, network = random_case(2, "logistic", n=4, zeros=True)
    graph = AugmentedGraph(problem, network, Parameters.paper(problem, network))
    assert graph.n_tips == np.count_nonzero(problem.active)
    assert graph.incidence.shape == (graph.n_augmented, graph.n_edges)
    assert np.array_equal(graph.edges[: network.n_edges], network.edges)
    assert np.array_equal(graph.edges[network.n_edges :, 0], problem.node_of_row[graph.tip_rows])
    communication = graph.incidence[:4, : network.n_edges]
    np.testing.assert_allclose(communication @ communication.T, network.laplacian().toarray(), atol=1e-14)
    assert graph.tip_smoothness(network.n_edges) == problem.smoothness[graph.tip_rows[0]]
    np.testing.assert_allclose(graph.projector @ graph.projector, graph.projector, atol=1e-12)
