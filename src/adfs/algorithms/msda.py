"""MSDA: one dual gradient at every node, then K rounds of Chebyshev gossip."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Gossip, Method, RoundEffort, Setting, register_method
from adfs.algorithms.dual_gradient import dual_gradients, literal_dual_gradient, make_solver
from adfs.algorithms.local_rounds import LocalRounds
from adfs.network import Network
from adfs.network.gossip import chebyshev_gossip
from adfs.problem import Problem
from adfs.theory import NodeSizes
from adfs.theory.baselines import MsdaParameters

__all__ = ["Msda", "MsdaProcess", "literal_msda"]


def literal_msda(problem: Problem, network: Network, parameters: MsdaParameters, rounds: int) -> np.ndarray:
    """Return every node's θ after some rounds, (n, d): dense and slow, the twin of :class:`MsdaProcess`."""
    laplacian = network.laplacian().toarray()
    x = np.zeros((problem.n_nodes, problem.n_features))
    y, theta = x, x
    for _ in range(rounds):
        theta = np.array([literal_dual_gradient(problem, i, x[i]) for i in range(problem.n_nodes)])
        before, y = y, x - parameters.step * chebyshev_gossip(laplacian, theta, parameters.chebyshev)
        x = (1.0 + parameters.momentum) * y - parameters.momentum * before
    return theta


class MsdaProcess(LocalRounds):
    """MSDA in progress over a block of nodes; ``point`` is x, ``gossiped`` is y."""

    def __init__(self, setting: Setting[MsdaParameters]) -> None:
        super().__init__(setting, sp.csr_array(setting.network.laplacian()))
        self.parameters: MsdaParameters = setting.parameters
        self.chebyshev = self.parameters.chebyshev
        self.solver = make_solver(setting.problem)
        self.point = self.solver.wanted
        self.gossiped = np.zeros_like(self.point)

    def round(self, gossip: Gossip) -> None:
        dual_gradients(self.samples, self.problem.sigma, self.solver)
        pull = chebyshev_gossip(gossip, self.solver.theta, self.chebyshev)
        momentum = self.parameters.momentum
        following = self.point - self.parameters.step * pull
        self.point[...] = (1.0 + momentum) * following - momentum * self.gossiped
        self.gossiped[...] = following
        self.advance(self.problem.n_samples, self.parameters.rounds)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.solver.theta.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        solver = self.solver
        return {
            "point": self.point,
            "gossiped": self.gossiped,
            "theta": solver.theta,
            "solved": solver.solved,
        }


class Msda(Method[MsdaParameters]):
    """MSDA: accelerated gradient on the dual, with accelerated gossip.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex; its dual couples the nodes through the
        network alone.
    Algorithm
        θ_i = ∇f_i*(x_i); y⁺ = x − η P(Lap)Θ; x = (1 + μ)y⁺ − μy, P the polynomial of K Chebyshev rounds.
        With K = 1 (``parameters="ssda"``, or the option ``rounds=1``) it is SSDA.
    Guarantee
        ‖Θ − Θ*‖² shrinks by 1 − ((1 − c1^K)/(1 + c1^K))·√(min σ_i/max M_i) per round.

    References
    ----------
        Scaman, Bach, Bubeck, Lee, Massoulié, "Optimal algorithms for smooth and strongly convex
        distributed optimization in networks", ICML 2017.
    """

    name = "msda"
    kind = "rounds"
    options = ("rounds",)

    record = MsdaParameters
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: MsdaParameters.theory(problem, network),
            "ssda": lambda problem, network, tau: MsdaParameters.theory(problem, network, rounds=1),
        }
    )

    def adapt(self, parameters: MsdaParameters, options: Mapping[str, Any]) -> MsdaParameters:
        return parameters.with_rounds(options["rounds"]) if "rounds" in options else parameters

    def start(self, setting: Setting[MsdaParameters]) -> MsdaProcess:
        return MsdaProcess(setting)

    def position_of(self, parameters: MsdaParameters, sizes: NodeSizes, passes: float) -> float:
        return passes

    def effort(self, parameters: MsdaParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=parameters.rounds if network.n_nodes > 1 else 0)


register_method(Msda())
