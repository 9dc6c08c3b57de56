"""OPAPC, SONATA, DVR, GT-SAGA and DADAO in literal NumPy, line by line with their papers."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg

from adfs.algorithms.dadao import DadaoParameters
from adfs.algorithms.dvr import DvrParameters
from adfs.algorithms.gt_saga import GtSagaParameters
from adfs.algorithms.opapc import OpapcParameters
from adfs.algorithms.sonata import SonataParameters
from adfs.network import ChebyshevCoefficients, Network
from adfs.problem import Problem
from adfs.problem.evaluation import loss_derivatives
from adfs.problem.losses import derivative
from adfs.problem.samples import label_at, labels_of
from literal_methods import chebyshev_gossip, literal_dual_gradient


def node_gradient(problem: Problem, node: int, theta: np.ndarray) -> np.ndarray:
    """Return ∇f_i(θ), shape (d,)."""
    shard = problem.shards[node]
    X = shard.X.toarray() if problem.sparse else shard.X
    slopes = loss_derivatives(problem.loss, X @ theta, labels_of(problem.loss, shard.y, shard.offset))
    return np.asarray(X.T @ (shard.weights * slopes) + problem.sigma[node] * theta)


def node_gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    """Return ∇f_i(x_i) of every node, (n, d)."""
    return np.array([node_gradient(problem, i, theta) for i, theta in enumerate(x)])


def mean_by_gossip(network: Network, values: np.ndarray, rounds: int) -> np.ndarray:
    """Return the values less what the accelerated gossip of MSDA takes from them."""
    coefficients = ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)
    coefficients = dataclasses.replace(coefficients, rounds=rounds)
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
        z = z + theta * (half - mean_by_gossip(network, half, parameters.rounds))
        following = (x - eta * (pull + z)) / (1 + eta * mu)
        x_f = x_g + 2 * tau / (2 - tau) * (following - x)
        x = following
    return x


def literal_sonata(
    problem: Problem, network: Network, parameters: SonataParameters, rounds: int
) -> np.ndarray:
    """Return every node's x after some rounds, (n, d), with y itself and one loop in the other."""
    beta, added, n = parameters.similarity, parameters.added, problem.n_nodes
    local = Problem.from_shards(problem.shards, problem.loss, problem.sigma + beta + added)
    x = z = last = np.zeros((n, problem.n_features))
    y = slope = node_gradients(problem, x)
    for t in range(1, rounds + 1):
        points = slope - y + beta * x + added * z
        v = np.array([literal_dual_gradient(local, i, points[i]) for i in range(n)])
        x = mean_by_gossip(network, v, parameters.rounds)
        before, slope = slope, node_gradients(problem, x) + added * (x - z)
        y = mean_by_gossip(network, y + slope - before, parameters.rounds)
        if added > 0 and t % parameters.inner == 0:
            following = x + parameters.momentum * (x - last)
            # The objective of the next rounds has another z, and so have its gradients.
            slope, y = slope + added * (z - following), y + added * (z - following)
            z, last = following, x
    return x


def sample_gradient(problem: Problem, row: int, theta: np.ndarray) -> np.ndarray:
    """Return the gradient of one sample's weighted loss, shape (d,)."""
    x = problem.X[[row]].toarray()[0] if problem.sparse else problem.X[row]
    slope = derivative(problem.loss, float(x @ theta), label_at(problem.labels, row))
    return np.asarray(problem.weights[row] * slope * x)


def literal_dvr(
    problem: Problem, network: Network, parameters: DvrParameters, draws: list[np.ndarray | None]
) -> np.ndarray:
    """Return every node's θ after the rounds whose samples are ``draws`` (None: gossip), (n, d)."""
    p, laplacian, active = parameters, network.laplacian().toarray(), problem.active
    n, d = problem.n_nodes, problem.n_features
    sigma = problem.sigma + p.added
    ratio = 1 + problem.smoothness / sigma[problem.node_of_row]
    sums = np.array([ratio[active & (problem.node_of_row == i)].sum() for i in range(n)])
    z, omega, last = np.zeros((problem.n_samples, d)), np.zeros((n, d)), np.zeros((n, d))
    theta = np.array([-node_gradient(problem, i, np.zeros(d)) / sigma[i] for i in range(n)])
    for t, samples in enumerate(draws):
        if p.inner and t and t % p.inner == 0:
            following = theta + p.momentum * (theta - last)
            last = theta
            theta = theta + p.added / sigma[:, None] * (following - omega)
            omega = following
        if samples is None:
            theta = theta - p.step / p.p_comm * (laplacian @ theta) / sigma[:, None]
            continue
        theta = theta.copy()
        for i, row in enumerate(samples):
            if row < 0:
                continue
            probability = (1 - p.p_comm) * ratio[row] / sums[i]
            share = p.dual_weight * p.step / probability
            before, z[row] = sample_gradient(problem, row, z[row]), (1 - share) * z[row] + share * theta[i]
            theta[i] = theta[i] - (sample_gradient(problem, row, z[row]) - before) / sigma[i]
    return theta


def literal_gt_saga(
    problem: Problem, network: Network, parameters: GtSagaParameters, draws: list[np.ndarray]
) -> np.ndarray:
    """Return every node's x after the rounds whose samples are ``draws``, (n, d)."""
    n, d = problem.n_nodes, problem.n_features
    mixing = np.eye(n) - 2 / (network.algebraic_connectivity + network.laplacian_max) * (
        network.laplacian().toarray()
    )
    x = y = g = np.zeros((n, d))
    table = np.zeros((problem.n_samples, d))
    for samples in draws:
        x = mixing @ x - parameters.step * y
        estimate = problem.sigma[:, None] * x
        for i, row in enumerate(samples):
            own = problem.node_of_row == i
            estimate[i] += table[own].sum(axis=0)
            if row >= 0:
                found = sample_gradient(problem, row, x[i])
                estimate[i] += (own & problem.active).sum() * (found - table[row])
                table[row] = found
        y, g = mixing @ y + estimate - g, estimate
    return x


def literal_dadao(
    problem: Problem, network: Network, parameters: DadaoParameters, events: list[tuple[float, int]]
) -> np.ndarray:
    """Return every node's x at the time of the last event, (n, d), with the paper's variables and ODE."""
    n, large, nu, rate = problem.n_nodes, parameters.smoothness, parameters.curvature, parameters.event_rate
    root = np.sqrt(nu / large)
    eta, alpha, alpha_tilde, theta = root / 8, root / 4, root / 8, 1 / (2 * root)
    gamma, gamma_tilde, delta, delta_tilde = 1 / (4 * large), 1 / (4 * np.sqrt(large * nu)), root / 4, 1.0
    beta, beta_tilde = 0.5, 2 * parameters.inverse_gap / root
    # Rows: the derivatives of x, x̃, y, ỹ, z and z̃.
    flow = np.array(
        [
            [-eta, eta, 0, 0, 0, 0],
            [eta, -eta, 0, 0, 0, 0],
            [0, 0, -alpha, alpha, 0, 0],
            [0, -theta * nu, -theta, 0, -theta, 0],
            [0, 0, 0, 0, -alpha, alpha],
            [0, 0, 0, 0, alpha_tilde, -alpha_tilde],
        ]
    )
    state, now = np.zeros((n, 6, problem.n_features)), 0.0
    for time, actor in events:
        # All nodes follow the flow; one unit of time has ``rate`` events.
        state = scipy.linalg.expm(flow * (time - now) / rate) @ state
        now = time
        if actor < n:
            x, y_tilde = state[actor, 0], state[actor, 3]
            pull = node_gradient(problem, actor, x) - nu * x - y_tilde
            state[actor, 0] = x - gamma * pull
            state[actor, 1] -= gamma_tilde * pull
            state[actor, 3] = y_tilde + (delta + delta_tilde) * pull
        else:
            i, j = network.edges[actor - n]
            half = 0.5 * (state[i, 2] + state[i, 4] - state[j, 2] - state[j, 4])
            for node, sign in ((i, 1.0), (j, -1.0)):
                state[node, 4] -= sign * beta * half
                state[node, 5] -= sign * beta_tilde * half
    return state[:, 0]
