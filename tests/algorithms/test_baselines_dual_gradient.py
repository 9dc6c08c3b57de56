"""Dual gradients: the stationary points they must be, their twin, and their independence of other nodes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import adfs
from adfs.algorithms.dual_gradient import DualSolver, dual_gradients, make_solver
from adfs.problem.evaluation import loss_derivatives
from literal_cases import SMOOTH, random_problem
from literal_methods import literal_dual_gradient
from loss_cases import few_of


def solve(problem: adfs.Problem, solver: DualSolver, points: np.ndarray) -> np.ndarray:
    solver.wanted[...] = points
    dual_gradients(problem.samples, problem.sigma, solver)
    return solver.theta.copy()


def residual(problem: adfs.Problem, theta: np.ndarray, points: np.ndarray) -> float:
    """The largest ‖∇f_i(θ_i) − x_i‖ over the size of its terms."""
    worst = 0.0
    for node, shard in enumerate(problem.shards):
        pulls = shard.weights * loss_derivatives(problem.loss, shard.X @ theta[node], shard.y)
        gradient = shard.X.T @ pulls + problem.sigma[node] * theta[node] - points[node]
        size = np.abs(pulls).sum() + np.linalg.norm(points[node]) + problem.sigma[node]
        worst = max(worst, float(np.linalg.norm(gradient) / size))
    return worst


@pytest.mark.parametrize("loss", few_of(SMOOTH, "logistic", "squared", "smoothed_hinge"))
def test_dual_gradient_is_that_of_the_twin_for_every_loss(loss):
    rng = np.random.default_rng(5)
    problem = random_problem(loss, [0, 1, 7, 30], 4, rng, zeros=True)
    points = 3.0 * rng.standard_normal((4, 4))
    solver = make_solver(problem)
    # Moving on by less and less asks for more and more digits.
    for size in (1.0, 1e-3, 1e-6, 1e-9):
        found = solve(problem, solver, points * (1.0 + size))
    expected = [literal_dual_gradient(problem, node, points[node] * (1.0 + 1e-9)) for node in range(4)]
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_dual_gradient_follows_a_point_with_many_features_down_to_rounding(kind):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((60, 130)) * (rng.random((60, 130)) < 0.3)
    problem = adfs.Problem(
        sp.csr_array(X) if kind == "sparse" else X, np.sign(X.sum(axis=1)), sigma=[0.05, 2.0], n_nodes=2
    )
    points = rng.standard_normal((2, 130))
    solver = make_solver(problem)
    for size in (1.0, 1e-5, 1e-10):
        found = solve(problem, solver, points * (1.0 + size))
    assert residual(problem, found, points * (1.0 + 1e-10)) <= 1e-14


def test_dual_gradient_ends_where_few_samples_bend_and_sigma_is_small():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 60)) * np.exp(rng.uniform(-1, 1, (200, 1)))
    problem = adfs.Problem(X, rng.choice([-1.0, 1.0], 200), loss="smoothed_hinge", sigma=0.01)
    points = 5.0 * rng.standard_normal((1, 60))
    assert residual(problem, solve(problem, make_solver(problem), points), points) <= 1e-9


def test_dual_gradient_error_follows_the_move_and_no_move_needs_no_solve():
    rng = np.random.default_rng(7)
    problem = random_problem("logistic", [40], 3, rng)
    solver = make_solver(problem)
    point = rng.standard_normal((1, 3))
    first = solve(problem, solver, point)
    assert residual(problem, first, point) <= 1e-9 * np.linalg.norm(point)
    second = solve(problem, solver, point)  # not moved: down to rounding
    assert residual(problem, second, point) <= 1e-14
    np.testing.assert_array_equal(solve(problem, solver, point), second)


def test_dual_gradient_bits_depend_on_the_rows_of_the_node_alone():
    rng = np.random.default_rng(8)
    problem = random_problem("logistic", [5, 20, 9], 4, rng)
    points = rng.standard_normal((3, 4))
    together = solve(problem, make_solver(problem), points)
    for node, shard in enumerate(problem.shards):
        alone = adfs.Problem.from_shards([shard], sigma=problem.sigma[[node]])
        np.testing.assert_array_equal(solve(alone, make_solver(alone), points[[node]])[0], together[node])
    stored = [(sp.csr_array(shard.X), shard.y, shard.weights) for shard in problem.shards]
    sparse = adfs.Problem.from_shards(stored, sigma=problem.sigma)
    np.testing.assert_array_equal(solve(sparse, make_solver(sparse), points), together)
