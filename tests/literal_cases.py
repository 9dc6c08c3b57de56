"""Small random problems on small random networks, for the tests of the theory and the literal algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import strategies as st

import adfs
from adfs.problem import MultinomialLogisticTerm
from adfs.problem.losses import get_loss
from adfs.theory import AugmentedGraph, NonSmoothParameters, Parameters
from literal_adfs import AdfsState, LiteralAdfs, draw_edges
from literal_methods import LiteralNsAdfs
from loss_cases import ONE_OUTPUT

SMOOTH = tuple(name for name in sorted(ONE_OUTPUT) if get_loss(name).smooth)
NON_SMOOTH = tuple(name for name in sorted(ONE_OUTPUT) if not get_loss(name).smooth)


def random_network(n: int, rng: np.random.Generator) -> adfs.Network:
    """A random tree with some more edges, weights from 0.2 to 5."""
    edges = {(int(rng.integers(j)), j) for j in range(1, n)}
    for i in range(n):
        for j in range(i + 1, n):
            if rng.random() < 0.35:
                edges.add((i, j))
    weighted = [(i, j, float(np.exp(rng.uniform(-1.6, 1.6)))) for i, j in sorted(edges)]
    return adfs.Network(weighted, n_nodes=n) if weighted else adfs.Network("path:1")


def random_problem(
    loss: str, sizes: list[int], n_features: int, rng: np.random.Generator, *, zeros: bool = False
) -> adfs.Problem:
    """Heterogeneous σ_i, sample weights and row norms; with ``zeros`` also zero rows and zero weights."""
    shards = []
    for m in sizes:
        rows = rng.standard_normal((m, n_features)) * np.exp(rng.uniform(-1.0, 1.0, (m, 1)))
        if get_loss(loss).task == "classification":
            labels = rng.choice([-1.0, 1.0], m)
        else:
            labels = rng.standard_normal(m)
        weights = rng.uniform(0.2, 3.0, m)
        if zeros and m > 1:
            rows[0] = 0.0 if rng.random() < 0.5 else rows[0]
            weights[-1] = 0.0 if m > 2 and rng.random() < 0.5 else weights[-1]
        shards.append((rows, labels, weights))
    return adfs.Problem.from_shards(shards, loss=loss, sigma=np.exp(rng.uniform(-1.5, 1.5, len(sizes))))


def multinomial_terms(
    X: np.ndarray,
    y: np.ndarray,
    sigma: float | Sequence[float] | np.ndarray,
    n_nodes: int = 1,
    *,
    n_classes: int,
    sample_weight: np.ndarray | None = None,
) -> adfs.GeneralProblem:
    """Multinomial logistic regression as general terms, the literal form of ``loss="multinomial"``."""
    weights = np.ones(len(y)) if sample_weight is None else sample_weight
    terms = [
        [MultinomialLogisticTerm(X[j], int(y[j]), n_classes, float(weights[j])) for j in part]
        for part in np.array_split(np.arange(len(y)), n_nodes)
    ]
    return adfs.GeneralProblem(terms, n_classes * X.shape[1], sigma)


def random_case(
    seed: int, loss: str, *, n: int = 4, most: int = 4, zeros: bool = False
) -> tuple[adfs.Problem, adfs.Network]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0 if zeros else 1, most + 1, n).tolist()
    sizes[0] = max(sizes[0], 2)
    problem = random_problem(loss, sizes, int(rng.integers(1, 5)), rng, zeros=zeros)
    return problem, random_network(n, rng)


@st.composite
def cases(draw: st.DrawFn, losses: tuple[str, ...] = SMOOTH) -> tuple[adfs.Problem, adfs.Network]:
    """n ≤ 6 nodes, 0 to 4 samples per node (some constants), d ≤ 4, every loss, a weighted network."""
    loss = draw(st.sampled_from(losses), label="loss")
    n = draw(st.integers(1, 6), label="n_nodes")
    seed = draw(st.integers(0, 2**32 - 1), label="seed")
    return random_case(seed, loss, n=n, zeros=draw(st.booleans(), label="zeros"))


def make_parameters(kind: str, problem: adfs.Problem, network: adfs.Network) -> Parameters:
    return (
        Parameters.paper(problem, network) if kind == "paper" else Parameters.tuned(problem, network, tau=3.0)
    )


def unchecked(parameters: Parameters, **changes: object) -> Parameters:
    """A record that the checks would refuse: what the paper prints, to be shown wrong."""
    copy = dataclasses.replace(parameters)
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


def run_literal(graph: AugmentedGraph, n_events: int, seed: int) -> Iterator[AdfsState]:
    """The states after 1, 2, … events of ADFS or NS-ADFS, whichever the parameters are for."""
    draws = draw_edges(graph, n_events, seed)
    if isinstance(graph.parameters, NonSmoothParameters):
        non_smooth = LiteralNsAdfs(graph)
        state = non_smooth.start()
        for t, edge in enumerate(draws):
            state = non_smooth.step(state, int(edge), t)
            yield state
        return
    smooth = LiteralAdfs(graph)
    state = smooth.start()
    for edge in draws:
        state = smooth.step(state, int(edge))
        yield state


def step_bound(graph: AugmentedGraph) -> float:
    """S² = max_e M_e R_e/p_e²."""
    return float(np.max(graph.directional_smoothness * graph.step_resistance / graph.probability**2))


def smallest_gram(graph: AugmentedGraph) -> float:
    """λ_min⁺(AᵀA); A has rank |V⁺| − 1."""
    return float(np.linalg.svd(graph.incidence, compute_uv=False)[graph.n_augmented - 2] ** 2)


def dual_scalars(graph: AugmentedGraph, x: np.ndarray) -> np.ndarray:
    """The tips of node variables along their samples, divided by the sample weights; shape (T,)."""
    rows = graph.problem.X[graph.tip_rows]
    duals = x[graph.n_centers :]
    return (
        np.einsum("td,td->t", rows, duals)
        / graph.problem.row_norms_squared[graph.tip_rows]
        / graph.problem.weights[graph.tip_rows]
    )


def domain_excess(graph: AugmentedGraph, x: np.ndarray) -> float:
    """How far the tips lie outside the domain of ℓ*, 0 when inside."""
    problem = graph.problem
    worst = 0.0
    for scalar, row in zip(dual_scalars(graph, x), graph.tip_rows, strict=True):
        low, high = type(problem.loss).domain(problem.loss, float(problem.y[row]))
        worst = max(worst, low - scalar, scalar - high)
    return float(worst)


def box_dual_optimum(problem: adfs.Problem, graph: AugmentedGraph) -> np.ndarray:
    """Optimal node variables for hinge, absolute and quantile losses, by cyclic dual coordinate descent.

    Their dual is ½‖Xᵀs‖²/Σσ + Σ y s over a box.
    """
    rows = graph.tip_rows
    X, y, w = problem.X[rows], problem.y[rows], problem.weights[rows]
    total, s = problem.total_sigma, np.zeros(rows.size)
    bounds = np.array([type(problem.loss).domain(problem.loss, float(b)) for b in y]) * w[:, None]
    for _ in range(20000):
        before = s.copy()
        for k in range(rows.size):
            slope = X[k] @ (X.T @ s) / total + y[k]
            s[k] = np.clip(s[k] - slope * total / (X[k] @ X[k]), *bounds[k])
        if np.array_equal(before, s):
            break
    theta = -(X.T @ s) / total
    return np.vstack([problem.sigma[:, None] * theta, s[:, None] * X])
