"""OPAPC, SONATA, DVR, GT-SAGA and DADAO in literal NumPy, line by line with their papers."""

from __future__ import annotations

import numpy as np

from adfs.algorithms.opapc import OpapcParameters
from adfs.network import ChebyshevCoefficients, Network
from adfs.problem import Problem
from adfs.problem.evaluation import loss_derivatives
from adfs.problem.samples import labels_of
from literal_methods import chebyshev_gossip


def node_gradient(problem: Problem, node: int, theta: np.ndarray) -> np.ndarray:
    """Return ∇f_i(θ), shape (d,)."""
    shard = problem.shards[node]
    X = shard.X.toarray() if problem.sparse else shard.X
    slopes = loss_derivatives(problem.loss, X @ theta, labels_of(problem.loss, shard.y, shard.offset))
    return np.asarray(X.T @ (shard.weights * slopes) + problem.sigma[node] * theta)


def node_gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Return ∇f_i(x_i) of every node, (n, d)."""
    return np.array([node_gradient(problem, i, theta) for i, theta in enumerate(x)])


def mean_by_gossip(network: Network, values: np.ndarray) -> np.ndarray:
    """Return the values less what the accelerated gossip of MSDA takes from them."""
    coefficients = ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)
    return values - chebyshev_gossip(network.laplacian().toarray(), values, coefficients)


def literal_opapc(problem: Problem, network: Network, parameters: OpapcParameters, rounds: int) -> np.ndarray:
    """Return every node's x after some rounds, (n, d)."""
    tau, eta, theta = parameters.mixing, parameters.step, parameters.dual_step
    mu = float(problem.sigma.min())
    x = x_f = z = np.zeros((problem.n_nodes, problem.n_features))
    for _ in range(rounds):
        x_g = tau * x + (1 - tau) * x_f
        pull = node_gradients(problem, x_g) - mu * x_g
        half = (x - eta * (pull + z)) / (1 + eta * mu)
        z = z + theta * (half - mean_by_gossip(network, half))
        following = (x - eta * (pull + z)) / (1 + eta * mu)
        x_f = x_g + 2 * tau / (2 - tau) * (following - x)
        x = following
    return x
