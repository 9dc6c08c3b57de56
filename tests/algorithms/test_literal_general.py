"""The literal algorithms on terms outside the linear case: multinomial logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import adfs
from adfs.problem import Term
from adfs.theory import AugmentedGraph, NonSmoothParameters, smoothness_limit
from apcg_oracle import GeneralizedApcg, constant_coefficients, non_smooth_coefficients
from literal_adfs import LiteralAdfs, MeanLagAdfs, draw_edges
from literal_cases import multinomial_terms
from literal_methods import LiteralNsAdfs, VelocityNsAdfs

CLASSES = 3


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((12, 2))
    y = np.arange(12) % CLASSES
    X[np.arange(12), y % 2] += 1.0
    return X, y, rng.uniform(0.5, 2.0, 12)


@pytest.fixture(scope="module")
def eased(data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> AugmentedGraph:
    X, y, weights = data
    problem = multinomial_terms(X, y, [0.5, 1.0, 0.8], 3, n_classes=CLASSES, sample_weight=weights)
    network = adfs.Network([(0, 1, 1.0), (1, 2, 0.6), (0, 2, 2.0)])
    wider = problem.with_smoothness_above(smoothness_limit(problem.sigma, network))
    return AugmentedGraph(wider, network, adfs.Parameters.tuned(wider, network, r=0.5))


def test_adfs_on_general_terms_agrees_in_all_forms_up_to_the_optimum(
    data: tuple[np.ndarray, np.ndarray, np.ndarray], eased: AugmentedGraph
) -> None:
    X, y, weights = data
    problem, parameters = eased.problem, eased.parameters
    literal, lagged, apcg = LiteralAdfs(eased), MeanLagAdfs(eased), GeneralizedApcg(eased)
    nodes, lags, edges = literal.start(), lagged.start(), apcg.start()
    step = constant_coefficients(parameters.contraction, parameters.dual_curvature, 0)
    events = 4000
    for t, edge in enumerate(draw_edges(eased, events, seed=0).tolist()):
        nodes, lags = literal.step(nodes, edge), lagged.step(lags, edge, t + 1.0)
        if t < 500:
            edges = apcg.step(edges, edge, step)
            if t == 499:
                assert np.abs(eased.incidence @ edges.x - nodes.x).max() < 1e-12
                assert np.abs(eased.incidence @ edges.v - nodes.v).max() < 1e-12
    together = lagged.iterates(lags, float(events))
    assert np.abs(together.x - nodes.x).max() < 1e-12
    assert np.abs(nodes.v.sum(axis=0)).max() < 1e-12
    duals = problem.clip_to_domain(nodes.x[eased.n_centers :])
    gap = problem.duality_gap(duals)
    assert -1e-14 < gap < 1e-10
    # scikit-learn penalises by ‖θ‖²/2 and weighs losses by C.
    model = LogisticRegression(C=1.0 / problem.total_sigma, fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(X, y, sample_weight=weights)
    certified = problem.primal_from_dual(duals).reshape(CLASSES, 2)
    assert np.abs(certified - model.coef_).max() < 1e-5
    for theta in literal.theta(nodes):
        assert np.abs(theta - certified.ravel()).max() < 1e-6
    assert np.abs(literal.theta(nodes, read="x") - literal.theta(nodes)).max() < 1e-5


class Quadratic(Term):
    """f(θ) = (c/2)‖θ‖², with nothing but what a term must have."""

    def __init__(self, curvature: float) -> None:
        self.curvature = curvature

    @property
    def smoothness(self) -> float:
        return self.curvature

    def value(self, theta: np.ndarray) -> float:
        return 0.5 * self.curvature * float(theta @ theta)

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        return center / (1.0 + step * self.curvature)


def test_adfs_on_general_terms_refuses_a_step_that_is_too_long() -> None:
    """Without raising L the Moreau form does not exist, and the error says what to do."""
    problem = adfs.GeneralProblem([[Quadratic(0.005)] for _ in range(3)], 2, 1.0)
    network = adfs.Network("path:3")
    graph = AugmentedGraph(problem, network, adfs.Parameters.tuned(problem, network, r=0.5))
    literal = LiteralAdfs(graph)
    with pytest.raises(adfs.InputError, match="raise the smoothness"):
        literal.step(literal.start(), graph.n_communication)


def test_ns_adfs_on_general_terms_agrees_in_all_forms(eased: AugmentedGraph) -> None:
    problem, network = eased.problem, eased.network
    parameters = NonSmoothParameters.paper(problem, network)
    graph = AugmentedGraph(problem, network, parameters)
    literal, moving, apcg = LiteralNsAdfs(graph), VelocityNsAdfs(graph), GeneralizedApcg(graph)
    nodes, rests, edges = literal.start(), moving.start(), apcg.start()
    for t, edge in enumerate(draw_edges(graph, 1500, seed=0).tolist()):
        step = non_smooth_coefficients(parameters.weight_at(t), parameters.increment_at(t))
        nodes, rests = literal.step(nodes, edge, t), moving.step(rests, edge, t)
        edges = apcg.step(edges, edge, step)
    assert np.abs(moving.iterates(rests, 1500).x - nodes.x).max() < 1e-12
    assert np.abs(graph.incidence @ edges.x - nodes.x).max() < 1e-12
    first = problem.duality_gap(np.zeros((problem.n_samples, problem.n_features)))
    assert problem.duality_gap(problem.clip_to_domain(nodes.x[graph.n_centers :])) < 1e-3 * first
