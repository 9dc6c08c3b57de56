"""OPAPC, an accelerated primal-dual gradient method with accelerated gossip."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from adfs.algorithms.base import Method, Setting, Source, without_tau
from adfs.algorithms.chebyshev import chebyshev_coefficients, chebyshev_gossip
from adfs.algorithms.costs import RoundEffort
from adfs.algorithms.method_kernels import node_gradients
from adfs.algorithms.round_process import Gossip, RoundProcess
from adfs.errors import InputError
from adfs.network import Network
from adfs.theory import NodeSizes, NodeSummary
from adfs.theory.baselines import node_smoothness
from adfs.theory.problem_summary import summarize_on
from adfs.theory.records import ParameterRecord, shown


def summarize_gossip(method: str, problem: Source, network: Network) -> NodeSummary:
    """Return the summary of a problem's nodes for a method that needs at least two of them."""
    if network.n_nodes < 2:
        raise InputError(f"{method} exchanges vectors between nodes: it needs at least two of them")
    return summarize_on(network, problem)


@dataclass(frozen=True, eq=False)
class OpapcParameters(ParameterRecord):
    """OPAPC: μ = min σ_i, L = max M_i, and K = ⌊1/√γ⌋ Chebyshev rounds, which contract to c = c1^K.

    The condition number of K rounds is χ = ((1 + c)/(1 − c))², and ``contraction`` is 1 − 1/(1 + min(1/√(κχ),
    1/χ)/4) with κ = L/μ.
    """

    _title: ClassVar[str] = "Parameters of OPAPC"
    contraction: float = field(metadata=shown("contraction", ""))
    mixing: float = field(metadata=shown("weight of the new point", "τ"))
    step: float = field(metadata=shown("primal step", "η"))
    dual_step: float = field(metadata=shown("dual step", "θ"))
    smoothness: float = field(metadata=shown("smoothness", "L"))
    curvature: float = field(metadata=shown("strong convexity", "μ"))
    rounds: int = field(metadata=shown("gossip rounds per gradient", "K"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> OpapcParameters:
        """Return the constants of Kovalev et al."""
        summary, chebyshev = summarize_gossip("opapc", problem, network), chebyshev_coefficients(network)
        largest, smallest = float(node_smoothness(summary).max()), float(summary.sigma.min())
        kappa, c = largest / smallest, chebyshev.contraction**chebyshev.rounds
        root = (1.0 + c) / (1.0 - c)  # √χ
        # Theorem 1 has τ = min(1, ½√(χ/κ)), η = 1/(4τL), and θ = 1/(ηλ) with the largest eigenvalue λ.
        mixing = min(1.0, 0.5 * root / math.sqrt(kappa))
        step = 1.0 / (4.0 * mixing * largest)
        rate = 0.25 * min(1.0 / (math.sqrt(kappa) * root), 1.0 / root**2)
        # The largest eigenvalue of K rounds is (1 + c)²/(1 + c²).
        dual_step = (1.0 + c * c) / (step * (1.0 + c) ** 2)
        return cls(rate / (1.0 + rate), mixing, step, dual_step, largest, smallest, chebyshev.rounds)


class OpapcProcess(RoundProcess):
    """OPAPC in progress over a block of nodes.

    Attributes
    ----------
    x, forward, dual_sum : ndarray of shape (k, d)
        x, x_f and z; z sums to 0 over the nodes.
    """

    def __init__(self, setting: Setting[OpapcParameters]) -> None:
        super().__init__(setting, setting.network.laplacian())
        self.parameters, self.chebyshev = setting.parameters, chebyshev_coefficients(setting.network)
        self.x, self.forward, self.dual_sum = (np.zeros(self.message_shape) for _ in range(3))

    def round(self, gossip: Gossip) -> None:
        p, x = self.parameters, self.x
        point = p.mixing * x + (1.0 - p.mixing) * self.forward
        gradient = np.empty(self.message_shape)
        node_gradients(self.samples, self.problem.sigma, point, gradient)
        # Forward with the gradient, backward with the quadratic, for the old z and then for the new one.
        shrink, target = 1.0 / (1.0 + p.step * p.curvature), x - p.step * (gradient - p.curvature * point)
        guess = shrink * (target - p.step * self.dual_sum)
        self.dual_sum += p.dual_step * chebyshev_gossip(gossip, guess, self.chebyshev)
        following = shrink * (target - p.step * self.dual_sum)
        # This uses the old x, which is therefore replaced last.
        self.forward[...] = point + 2.0 * p.mixing / (2.0 - p.mixing) * (following - x)
        x[...] = following
        self.position += 1.0
        self.count(1, p.rounds)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.x.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": self.x, "forward": self.forward, "dual_sum": self.dual_sum}


class Opapc(Method[OpapcParameters]):
    """OPAPC: accelerated gradients of whole nodes with accelerated gossip, without dual gradients.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        x_g = τx + (1 − τ)x_f; x̂ = (x − η(∇f(x_g) − μx_g + z))/(1 + ημ); z⁺ = z + θP(Lap)x̂; x⁺ is x̂ with
        z⁺ for z; x_f⁺ = x_g + (2τ/(2 − τ))(x⁺ − x). P is the polynomial of K Chebyshev rounds, as in MSDA.
    Guarantee
        (1/η)‖x − x*‖² + (2(1 − τ)/τ)·D_f(x_f, x*) and a multiple of ‖z − z*‖² together shrink by
        1/(1 + ¼ min(1/√(κχ), 1/χ)) per round: Theorem 1 of the paper. The polynomial has χ ≤ 4.

    References
    ----------
        Kovalev, Salim, Richtárik, "Optimal and practical algorithms for smooth and strongly convex
        decentralized optimization", NeurIPS 2020, arXiv 2006.11773.
    """

    name = "opapc"
    label = "OPAPC"
    needs_network = True
    observed_factor = 0.13
    kind = "rounds"
    baseline = True

    record, process = OpapcParameters, OpapcProcess
    choices = without_tau({"theory": OpapcParameters.theory})

    def effort(self, parameters: OpapcParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=parameters.rounds)
