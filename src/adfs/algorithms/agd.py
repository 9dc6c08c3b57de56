"""Nesterov's accelerated gradient method: on one machine, or with the gradients summed over a tree."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Gossip, Method, RoundEffort, Setting, register_method
from adfs.algorithms.local_rounds import LocalRounds, node_gradients
from adfs.network import Network, hop_distances
from adfs.problem import Problem
from adfs.theory import NodeSizes
from adfs.theory.baselines import AgdParameters

__all__ = ["Agd", "AgdProcess", "DistributedAgd", "literal_agd", "spanning_tree"]


def literal_agd(problem: Problem, parameters: AgdParameters, rounds: int) -> np.ndarray:
    """Return θ after some rounds on one machine, (d,)."""
    theta = y = np.zeros(problem.n_features)
    for _ in range(rounds):
        before, theta = theta, y - parameters.step * problem.gradient(y)
        y = theta + parameters.momentum * (theta - before)
    return theta


def spanning_tree(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Return a breadth-first tree from about the middle: each node's parent (−1: root) and level; (n,)."""
    end = hop_distances(network, int(np.argmax(hop_distances(network, 0))))
    other = hop_distances(network, int(np.argmax(end)))
    level = hop_distances(network, int(np.argmin(np.maximum(end, other))))
    parent = np.full(network.n_nodes, -1, dtype=np.int64)
    for node in np.flatnonzero(level > 0):
        above = network.neighbours(int(node))
        parent[node] = above[level[above] == level[node] - 1][0]
    return parent, level


class AgdProcess(LocalRounds):
    """Accelerated gradient descent in progress over a block of nodes, which all hold the same iterate.

    The gossip matrix is the adjacency of a spanning tree. A level of the tree speaks at a time and the
    others are silent: partial sums go up, the total comes down, and every node has the same bits.
    """

    def __init__(self, setting: Setting[AgdParameters]) -> None:
        n = setting.network.n_nodes
        parent, level = spanning_tree(setting.network)
        child = np.flatnonzero(parent >= 0)
        ends = np.concatenate([child, parent[child]]), np.concatenate([parent[child], child])
        tree = sp.csr_array((np.ones(2 * child.size), ends), shape=(n, n))
        tree.sort_indices()
        super().__init__(setting, tree)
        self.parameters: AgdParameters = setting.parameters
        self.depth = int(level.max())
        self.level = level[setting.block]
        shape = (setting.problem.n_nodes, setting.problem.n_features)
        self.theta, self.ahead = np.zeros(shape), np.zeros(shape)

    def round(self, gossip: Gossip) -> None:
        gradient = np.empty_like(self.theta)
        node_gradients(self.samples, self.problem.sigma, self.ahead, gradient)
        following = self.ahead - self.parameters.step * self._total(gradient, gossip)
        self.ahead[...] = following + self.parameters.momentum * (following - self.theta)
        self.theta[...] = following
        # Each node speaks once to its parent and once to its children, whatever the number of products.
        self.advance(self.problem.n_samples, 1)

    def _total(self, values: np.ndarray, gossip: Gossip) -> np.ndarray:
        for level in range(self.depth, 0, -1):
            heard = gossip(np.where((self.level == level)[:, None], values, 0.0))
            values = np.where((self.level == level - 1)[:, None], values + heard, values)
        for level in range(self.depth):
            heard = gossip(np.where((self.level == level)[:, None], values, 0.0))
            values = np.where((self.level == level + 1)[:, None], heard, values)
        return values

    def primal(self, read: str = "x") -> np.ndarray:
        return self.theta.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.theta, "ahead": self.ahead}


class Agd(Method[AgdParameters]):
    """AGD: accelerated gradient descent with constant momentum, on one machine.

    Problem
        min_θ F(θ), smooth and strongly convex.
    Algorithm
        θ⁺ = y − ∇F(y)/L; y = θ⁺ + ((√k − 1)/(√k + 1))(θ⁺ − θ), k = L/Σσ_i.
    Guarantee
        F(θ) − F* shrinks by 1 − 1/√k a round.

    References
    ----------
        Nesterov, "Introductory lectures on convex optimization", 2004, section 2.2.
    """

    name = "agd"
    kind: ClassVar[str] = "single"

    record = AgdParameters
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: AgdParameters.theory(problem, network),
        }
    )

    def start(self, setting: Setting[AgdParameters]) -> AgdProcess:
        return AgdProcess(setting)

    def position_of(self, parameters: AgdParameters, sizes: NodeSizes, passes: float) -> float:
        return passes

    def effort(self, parameters: AgdParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0, hops=parameters.hops)


class DistributedAgd(Agd):
    """AGD over a network: every node computes its own gradient, and a spanning tree sums them.

    A round waits for the slowest node, then for 2·diameter messages one after another.
    """

    name = "dagd"
    kind = "rounds"


register_method(Agd())
register_method(DistributedAgd())
