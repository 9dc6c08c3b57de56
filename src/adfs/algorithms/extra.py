"""EXTRA: an exact first-order method, the floor that others are measured from."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from adfs.algorithms.base import Gossip, Method, RoundEffort, Setting, register_method
from adfs.algorithms.local_rounds import LocalRounds, lazy_matrix, node_gradients
from adfs.network import Network
from adfs.problem import Problem
from adfs.problem.evaluation import loss_derivatives
from adfs.theory import NodeSizes
from adfs.theory.baselines import ExtraParameters

__all__ = ["Extra", "ExtraProcess", "literal_extra"]


def literal_extra(problem: Problem, network: Network, parameters: ExtraParameters, rounds: int) -> np.ndarray:
    """Return every node's iterate after some rounds, (n, d), as the paper writes them.

    x¹ = Wx⁰ − α∇f(x⁰), then x⁺⁺ = (I + W)x⁺ − (I + W)/2·x − α(∇f(x⁺) − ∇f(x)).
    """
    mixing = 2.0 * lazy_matrix(network, parameters.laplacian_max).toarray()

    def gradients(x: np.ndarray) -> np.ndarray:
        found = []
        for shard, sigma, theta in zip(problem.shards, problem.sigma, x, strict=True):
            slopes = shard.weights * loss_derivatives(problem.loss, shard.X @ theta, shard.y)
            found.append(shard.X.T @ slopes + sigma * theta)
        return np.array(found)

    before = np.zeros((problem.n_nodes, problem.n_features))
    x = (mixing - np.eye(problem.n_nodes)) @ before - parameters.step * gradients(before)
    for _ in range(rounds - 1):
        change = parameters.step * (gradients(x) - gradients(before))
        before, x = x, mixing @ x - 0.5 * mixing @ before - change
    return x


class ExtraProcess(LocalRounds):
    """EXTRA in progress over a block of nodes."""

    def __init__(self, setting: Setting[ExtraParameters]) -> None:
        parameters: ExtraParameters = setting.parameters
        super().__init__(setting, lazy_matrix(setting.network, parameters.laplacian_max))
        self.step = parameters.step
        shape = (setting.problem.n_nodes, setting.problem.n_features)
        # From x = x before = 0 and a gradient before of 0, the general step is the paper's first one.
        self.now, self.before, self.gradient = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def round(self, gossip: Gossip) -> None:
        gradient = np.empty_like(self.now)
        node_gradients(self.samples, self.problem.sigma, self.now, gradient)
        following = gossip(2.0 * self.now - self.before) - self.step * (gradient - self.gradient)
        self.before[...] = self.now
        self.now[...] = following
        self.gradient[...] = gradient
        self.advance(self.problem.n_samples, 1)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.now.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"now": self.now, "before": self.before, "gradient": self.gradient}


class Extra(Method[ExtraParameters]):
    """EXTRA: gradient descent with gossip, made exact by the difference of two steps.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        x⁺⁺ = (I + W)x⁺ − (I + W)/2·x − α(∇f(x⁺) − ∇f(x)), W = I − Lap/λ_max, α = 1/(2 max M_i).
    Guarantee
        The squared error shrinks by 1 − min(σ_min/(2 max M_i), γ/2) per round.

    References
    ----------
        Shi, Ling, Wu, Yin, "EXTRA: an exact first-order algorithm for decentralized consensus
        optimization", SIAM Journal on Optimization, 2015.
    """

    name = "extra"
    kind = "rounds"

    record = ExtraParameters
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: ExtraParameters.theory(problem, network),
        }
    )

    def start(self, setting: Setting[ExtraParameters]) -> ExtraProcess:
        return ExtraProcess(setting)

    def position_of(self, parameters: ExtraParameters, sizes: NodeSizes, passes: float) -> float:
        return passes

    def effort(self, parameters: ExtraParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples)


register_method(Extra())
