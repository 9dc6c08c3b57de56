"""σ_A and R_e: dense eigenvalues of the augmented graph against the n × n reductions."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.network import second_eigenpair, spectrum
from adfs.theory import (
    AugmentedGraph,
    NonSmoothParameters,
    Parameters,
    dual_curvature,
    dual_curvature_of_split,
    theorem5_time,
)
from literal_cases import (
    SMOOTH,
    cases,
    make_parameters,
    random_case,
    random_network,
    smallest_gram,
    step_bound,
    unchecked,
)
from loss_cases import ONE_OUTPUT

Case = tuple[adfs.Problem, adfs.Network]


def with_weights(problem: adfs.Problem, network: adfs.Network, alpha: np.ndarray) -> AugmentedGraph:
    """The augmented graph with given α_i; probabilities do not matter here."""
    return AugmentedGraph(
        problem, network, unchecked(Parameters.tuned(problem, network), virtual_weight=alpha)
    )


@settings(max_examples=60)
@given(case=cases(), split=st.floats(0.02, 0.98))
def test_dual_curvature_of_split_equals_dense_eigenvalues(case: Case, split: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    reduced = dual_curvature_of_split(network, problem.sigma, problem.kappa, split)
    graph = with_weights(problem, network, np.full(network.n_nodes, reduced / split))
    # Where the tips of one node can move against each other, α itself is an eigenvalue; it is above σ_A = rα.
    assert abs(graph.dual_curvature - reduced) < 1e-12 * reduced


@settings(max_examples=60)
@given(case=cases())
def test_dual_curvature_of_paper_parameters_equals_dense_eigenvalues(case: Case) -> None:
    problem, network = case
    parameters = Parameters.paper(problem, network)
    if network.n_nodes > 1:
        dense = AugmentedGraph(problem, network, parameters).dual_curvature
        assert abs(parameters.dual_curvature - dense) < 1e-12 * dense


@settings(max_examples=60)
@given(case=cases(), seed=st.integers(0, 10**6))
def test_dual_curvature_is_right_for_any_virtual_weights(case: Case, seed: int) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    alpha = np.exp(np.random.default_rng(seed).uniform(-4.0, 4.0, network.n_nodes))
    counts = np.bincount(problem.node_of_row[problem.active], minlength=problem.n_nodes)
    found = dual_curvature(network, problem.sigma, problem.kappa, counts, alpha)
    dense = with_weights(problem, network, alpha).dual_curvature
    assert abs(found - dense) < 1e-12 * dense


def test_dual_curvature_is_right_at_the_smallest_virtual_weight() -> None:
    """A node of tiny σ and large κ: its α is the smallest eigenvalue with two tips, and is none with one."""
    network = adfs.Network("path:2")
    for tips in (2, 1):
        problem = adfs.Problem.from_shards(
            [(np.ones((2, 1)) * 0.5, [1.0, 2.0]), (np.ones((tips, 1)) / np.sqrt(tips), np.ones(tips))],
            loss="squared",
            sigma=[1.0, 0.01],
        )
        parameters = Parameters.paper(problem, network)
        alpha = parameters.virtual_weight
        dense = AugmentedGraph(problem, network, parameters).dual_curvature
        assert abs(dense - parameters.dual_curvature) < 1e-12 * dense
        if tips == 2:
            assert abs(dense - alpha.min()) < 1e-12 * dense
        else:
            assert dense > alpha.min() * 1.01


def test_dual_curvature_is_right_for_one_sample_beside_six() -> None:
    """σ_A is far above the smallest α, at which the single tip of the first node hangs."""
    rows = np.concatenate([[[10.0]], np.full((6, 1), 0.1)])
    problem = adfs.Problem(
        rows, np.ones(7), loss="squared", sigma=1.0, n_nodes=2, partition=[[0], [1, 2, 3, 4, 5, 6]]
    )
    network = adfs.Network("path:2")
    parameters = Parameters.paper(problem, network)
    dense = AugmentedGraph(problem, network, parameters).dual_curvature
    assert abs(dense - parameters.dual_curvature) < 1e-12 * dense
    assert parameters.dual_curvature > 20.0 * parameters.virtual_weight.min()


# ------------------------------------------------------------------ never too large


def negative_eigenvalues(matrix: list[list[Decimal]]) -> int:
    """Of a symmetric matrix, by elimination (Sylvester); pivots are far above the rounding of 100 digits."""
    size, count = len(matrix), 0
    rows = [list(row) for row in matrix]
    for k in range(size):
        pivot = rows[k][k]
        assert abs(pivot) > Decimal("1e-60")
        count += pivot < 0
        for i in range(k + 1, size):
            if rows[i][k]:
                factor = rows[i][k] / pivot
                for j in range(i, size):
                    rows[i][j] -= factor * rows[k][j]
                    rows[j][i] = rows[i][j]
    return count


def exact_laplacian(network: adfs.Network) -> list[list[Decimal]]:
    n = network.n_nodes
    laplacian = [[Decimal(0)] * n for _ in range(n)]
    for (i, j), weight in zip(network.edges.tolist(), map(Decimal, network.weights.tolist()), strict=True):
        laplacian[i][i] += weight
        laplacian[j][j] += weight
        laplacian[i][j] -= weight
        laplacian[j][i] -= weight
    return laplacian


def augmented_below(problem: adfs.Problem, network: adfs.Network, alpha: np.ndarray, value: Decimal) -> int:
    """How many eigenvalues of AᵀΣ⁻¹A, with the 0 of the constants, are below ``value``: those of (AAᵀ, Σ)."""
    tips = np.flatnonzero(problem.active)
    size = tips.size + network.n_nodes
    matrix = [[Decimal(0)] * size for _ in range(size)]
    for i, row in enumerate(exact_laplacian(network)):
        matrix[tips.size + i][tips.size :] = row
        matrix[tips.size + i][tips.size + i] -= value * Decimal(float(problem.sigma[i]))
    for k, tip in enumerate(tips):
        node = tips.size + int(problem.node_of_row[tip])
        mass = Decimal(float(problem.smoothness[tip]))
        weight = Decimal(float(alpha[problem.node_of_row[tip]])) * mass
        matrix[k][k] = weight - value * mass
        matrix[node][node] += weight
        matrix[k][node] = matrix[node][k] = -weight
    return negative_eigenvalues(matrix)


def projected_below(problem: adfs.Problem, network: adfs.Network, split: float, value: Decimal) -> int:
    """The same with tips on the lines of their samples, α = value/split: d zeros come first."""
    n, d = problem.n_nodes, problem.n_features
    matrix = [[Decimal(0)] * (n * d) for _ in range(n * d)]
    for i, row in enumerate(exact_laplacian(network)):
        for j, entry in enumerate(row):
            for k in range(d):
                matrix[i * d + k][j * d + k] = entry
    share = value * Decimal(problem.loss.beta) / (1 - Decimal(split))
    for i, shard in enumerate(problem.shards):
        for k in range(d):
            matrix[i * d + k][i * d + k] -= value * Decimal(float(problem.sigma[i]))
        for x, weight in zip(shard.X.tolist(), shard.weights.tolist(), strict=True):
            row = [Decimal(entry) for entry in x]
            for k in range(d):
                for m in range(d):
                    matrix[i * d + k][i * d + m] -= share * Decimal(weight) * row[k] * row[m]
    return negative_eigenvalues(matrix)


def heterogeneous_case(seed: int, largest: int) -> Case:
    """σ over 8 orders of magnitude, κ over 6, nodes with no, one or many samples, constants among them."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, largest + 1))
    d = int(rng.integers(1, 4))
    sigma = 10.0 ** rng.uniform(-8.0, 0.0, n)
    shards = []
    for i in range(n):
        m = int(rng.choice([0, 1, 1, 2, 3, 7])) if i else 2
        rows = rng.standard_normal((m, d)) * np.exp(rng.uniform(-1.0, 1.0, (m, 1)))
        rows *= math.sqrt(sigma[i] * 10.0 ** rng.uniform(-2.0, 4.0) / max(m, 1))
        weights = rng.uniform(0.2, 3.0, m)
        weights[rng.random(m) < 0.1] = 0.0
        rows[rng.random(m) < 0.1] = 0.0
        if i == 0:
            rows[0], weights[0] = math.sqrt(sigma[0]), 1.0
        shards.append((rows, rng.choice([-1.0, 1.0], m), weights))
    loss = str(rng.choice(SMOOTH))
    return adfs.Problem.from_shards(shards, loss=loss, sigma=sigma), random_network(n, rng)


def check_against_exact_counts(seeds: range, largest: int) -> None:
    for seed in seeds:
        problem, network = heterogeneous_case(seed, largest)
        paper = Parameters.paper(problem, network)
        tuned = Parameters.tuned(problem, network, tau=10.0 ** (seed % 5 - 2))
        with localcontext(prec=100):
            value = Decimal(paper.dual_curvature)
            assert augmented_below(problem, network, paper.virtual_weight, value) == 1, seed
            above = value * Decimal("1.0000001")
            assert augmented_below(problem, network, paper.virtual_weight, above) > 1, seed
            value = Decimal(tuned.dual_curvature)
            assert projected_below(problem, network, tuned.split, value) == problem.n_features, seed


SOLVERS = ("dense", "factor", "iterative")


def use_solver(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    """Send the smallest problems where large ones go."""
    if solver != "dense":
        monkeypatch.setattr(spectrum, "DENSE_NODES", 0)
    if solver == "iterative":
        monkeypatch.setattr(spectrum, "FACTOR_COST_EACH", 0.0)


@pytest.mark.parametrize(("number", "solver"), list(enumerate(SOLVERS)))
def test_dual_curvature_is_never_above_the_exact_value(
    monkeypatch: pytest.MonkeyPatch, number: int, solver: str
) -> None:
    use_solver(monkeypatch, solver)
    check_against_exact_counts(range(12 * number, 12 * number + 12), 5)


@pytest.mark.soak
@pytest.mark.parametrize(("number", "solver"), list(enumerate(SOLVERS)))
def test_dual_curvature_is_never_above_the_exact_value_in_many_cases(
    monkeypatch: pytest.MonkeyPatch, number: int, solver: str
) -> None:
    use_solver(monkeypatch, solver)
    check_against_exact_counts(range(1000 + 120 * number, 1120 + 120 * number), 10)


# ------------------------------------------------------------------ many nodes


LARGE = ("grid:20x21", "cycle:401", "hypercube:9", "random-regular:500,4", "grid:25x40")
HUGE = ("path:100000", "grid:316x316", "random-regular:100000,4", "small-world:100000,4,0.1")


@pytest.mark.parametrize(
    "name", [*LARGE, "path:20000", *(pytest.param(name, marks=pytest.mark.soak) for name in HUGE)]
)
@pytest.mark.parametrize("wild", [False, True])
def test_paper_parameters_of_many_nodes_have_the_right_dual_curvature(name: str, wild: bool) -> None:
    network = adfs.Network(name)
    n = network.n_nodes
    rng = np.random.default_rng(0)
    sigma = 10.0 ** rng.uniform(-8.0, 0.0, n) if wild else np.ones(n)
    scale = np.sqrt(sigma * 10.0 ** rng.uniform(-2.0, 4.0, n)) if wild else np.ones(n)
    rows = rng.standard_normal((2 * n, 3)) * np.repeat(scale, 2)[:, None]
    problem = adfs.Problem(rows, np.sign(rows[:, 0]), sigma=sigma, n_nodes=n)
    parameters = Parameters.paper(problem, network)
    # Nodes of two tips: σ_A is at most the smallest α, and λ_2(Lap, N(λ)) falls through λ there.
    value, alpha = parameters.dual_curvature, parameters.virtual_weight
    assert value < alpha.min()

    def through(trial: float) -> float:
        return second_eigenpair(network, sigma * (1.0 + problem.kappa * alpha / (alpha - trial))).value

    assert through(value) >= value
    above = value * (1.0 + 1e-6)
    assert above >= alpha.min() or through(above) < above
    if name == "grid:20x21":
        dense = AugmentedGraph(problem, network, parameters).dual_curvature
        assert value == pytest.approx(dense, rel=1e-8 if not wild else 1e-4)
        assert theorem5_time(problem, network, 1.0).bound > 0.0


def test_paper_parameters_run_on_more_than_400_nodes() -> None:
    X = np.random.default_rng(0).standard_normal((840, 3))
    problem = adfs.Problem(X, np.sign(X[:, 0]), n_nodes=420)
    run = adfs.simulate("adfs", problem, adfs.Network("grid:20x21"), parameters="paper", max_passes=1)
    assert np.isfinite(run.frame["gap"]).all()


@settings(max_examples=40)
@given(case=cases(), split=st.floats(0.05, 0.95))
def test_dual_curvature_of_split_never_exceeds_the_projected_form(case: Case, split: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    stochastic = dual_curvature_of_split(network, problem.sigma, problem.kappa, split)
    batch = dual_curvature_of_split(network, problem.sigma, problem.batch_smoothness / problem.sigma, split)
    exact = projected_dual_curvature(problem, network, split)
    assert stochastic <= batch * (1.0 + 1e-12)
    assert batch <= exact * (1.0 + 1e-12)


def projected_dual_curvature(problem: adfs.Problem, network: adfs.Network, split: float) -> float:
    """σ_A of the linear case exactly: an nd × nd eigenproblem, N_r = blockdiag(σ_i(I + K_i/(1 − r))).

    Tips never leave the line of their sample, so only that direction of each counts.
    """
    d = problem.n_features
    blocks = []
    for node, shard in enumerate(problem.shards):
        gram = problem.loss.beta * shard.X.T @ (shard.weights[:, None] * shard.X)
        blocks.append(problem.sigma[node] * np.eye(d) + gram / (1.0 - split))
    laplacian = np.kron(network.laplacian().toarray(), np.eye(d))
    values = scipy.linalg.eigh(laplacian, scipy.linalg.block_diag(*blocks), eigvals_only=True)
    return float(values[d])


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
def test_projected_dual_curvature_equals_that_of_the_explicit_operator(seed: int, split: float) -> None:
    problem, network = random_case(seed, SMOOTH[seed % len(SMOOTH)], n=2 + seed % 4)
    exact = projected_dual_curvature(problem, network, split)
    graph = with_weights(problem, network, np.full(network.n_nodes, exact / split))
    operator = projected_operator(problem, graph)
    # Its null space on the left: Σ^{1/2} times one vector at every centre and what matches it at the tips.
    values = np.sort(np.linalg.svd(operator, compute_uv=False) ** 2)
    positive = values[values > 1e-10 * values[-1]]
    assert abs(positive[0] - exact) < 1e-10 * exact


@settings(max_examples=40)
@given(case=cases(), kind=st.sampled_from(("paper", "tuned")))
def test_augmented_graph_has_the_resistances_of_the_parameters(case: Case, kind: str) -> None:
    problem, network = case
    graph = AugmentedGraph(problem, network, make_parameters(kind, problem, network))
    np.testing.assert_allclose(graph.resistance, graph.step_resistance, rtol=0.0, atol=1e-11)
    assert np.all(graph.step_resistance[graph.n_communication :] == 1.0)
    # Foster: ΣR_e = n − 1 on communication edges.
    assert abs(graph.parameters.edge_resistance.sum() - (network.n_nodes - 1)) < 1e-11


@settings(max_examples=40)
@given(case=cases(losses=tuple(sorted(ONE_OUTPUT))))
def test_step_bound_of_ns_adfs_is_that_of_the_dense_matrix(case: Case) -> None:
    problem, network = case
    parameters = NonSmoothParameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    assert abs(step_bound(graph) - parameters.step_bound) < 1e-12 * parameters.step_bound
    # The paper's lemma for μ_ij² = λ_min⁺(Lap)/(1 + m): λ_min⁺(AᵀA) ≥ λ_min⁺(Lap)/(2(1 + m)).
    if network.n_nodes > 1:
        most = float(parameters.n_active.max())
        limit = network.algebraic_connectivity / (2.0 * (1.0 + most))
        assert smallest_gram(graph) >= limit * (1.0 - 1e-12)


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
    assert graph.tip_curvature(network.n_edges) == problem.smoothness[graph.tip_rows[0]]
    projector = graph.pseudo_inverse @ graph.incidence
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-12)
