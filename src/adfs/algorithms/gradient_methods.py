"""The gradient methods: Nesterov's, alone or with the gradients summed over the nodes, and EXTRA."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from adfs.algorithms.base import Method, Setting, without_tau
from adfs.algorithms.costs import Cost, RoundEffort, gradient_work
from adfs.algorithms.method_kernels import (
    RoundKernels,
    add_row,
    extrapolate,
    node_gradients,
    register_kernels,
    row_margin,
)
from adfs.algorithms.round_process import RoundProcess
from adfs.compilation import kernel
from adfs.network import Network, lazy_gossip
from adfs.problem import FiniteSum, Samples
from adfs.theory import Facts, NodeSizes
from adfs.theory.baselines import AgdParameters, ExtraParameters, largest_eigenvalue


class AgdParts(NamedTuple):
    """The arguments of the kernels; ``theta`` and ``ahead`` (k, d) are θ and y."""

    samples: Samples
    sigma: np.ndarray
    step: float
    momentum: float
    theta: np.ndarray
    ahead: np.ndarray


@kernel
def _agd_begin(parts: AgdParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        node_gradients(parts.samples, parts.sigma, parts.ahead, out)
    return t


@kernel
def _agd_end(parts: AgdParts, t: int, total: np.ndarray) -> int:
    # ``total`` has the gradient of the whole objective in every row: all nodes take the same step.
    theta, ahead = parts.theta, parts.ahead
    for i in range(total.shape[0]):
        for k in range(total.shape[1]):
            following = ahead[i, k] - parts.step * total[i, k]
            ahead[i, k] = following + parts.momentum * (following - theta[i, k])
            theta[i, k] = following
    return t + 1


class AgdProcess(RoundProcess):
    """Accelerated gradient descent in progress over a block of nodes, which all hold the same iterate."""

    kernels = register_kernels(AgdParts, RoundKernels(_agd_begin, _agd_end))
    sums = True

    def __init__(self, setting: Setting[AgdParameters]) -> None:
        super().__init__(setting)
        self.parameters: AgdParameters = setting.parameters
        step, momentum = float(self.parameters.step), float(self.parameters.momentum)
        self.theta, self.ahead = np.zeros(self.message_shape), np.zeros(self.message_shape)
        self.parts = AgdParts(self.samples, self.problem.sigma, step, momentum, self.theta, self.ahead)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.theta.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.theta, "ahead": self.ahead}


@kernel
def curvature_products(samples: Samples, beta: float, vector: np.ndarray, out: np.ndarray) -> None:
    """Write βX_iᵀW_iX_i·v for each node, ``out`` (k, d); row after row, the same bits in any block."""
    rows, node_starts = samples.rows, samples.node_starts
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            # One pass over the row for its product with v, one to add the multiple of the row.
            along = row_margin(rows, j, vector) * (beta * samples.weights[j])
            add_row(rows, j, along, out[i])


class Agd(Method[AgdParameters]):
    """AGD: accelerated gradient descent with constant momentum, on one machine.

    Problem
        min_θ F(θ), smooth and strongly convex.
    Algorithm
        θ⁺ = y − ∇F(y)/L; y = θ⁺ + ((√k − 1)/(√k + 1))(θ⁺ − θ), k = L/Σσ_i.
    Guarantee
        F(θ) − F* shrinks by 1 − 1/√k per round.

    References
    ----------
        Nesterov, "Introductory lectures on convex optimization", 2004, section 2.2.
    """

    name: ClassVar[str] = "agd"
    observed_factor = 0.3
    label: ClassVar[str] = "AGD"
    kind: ClassVar[str] = "single"
    baseline = True

    record, process = AgdParameters, AgdProcess
    choices = without_tau({"theory": AgdParameters.theory})

    def refine(
        self, parameters: AgdParameters, problem: FiniteSum, total: Callable[[np.ndarray], np.ndarray]
    ) -> AgdParameters:
        """Take the smoothness of the whole objective, which is below the sum of the nodes'."""
        # With one node the sum of the nodes' smoothness is that of the whole objective.
        if parameters.hops == 0:
            return parameters
        samples, out = problem.samples, np.empty((problem.n_nodes, problem.n_features))

        def product(vector: np.ndarray) -> np.ndarray:
            curvature_products(samples, samples.loss.beta, vector, out)
            return total(out)

        # By products with the matrix alone, summed over the nodes: no process sees another's data.
        largest = largest_eigenvalue(product, problem.n_features)
        return parameters.with_smoothness(largest + parameters.curvature)

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # The run takes the smoothness of the whole objective, as `refine` does it.
        rounds = self.observed_factor * math.log(1.0 / tol) * math.sqrt(facts.kappa_b)
        work = rounds * facts.n_samples * gradient_work(facts)
        return Cost(rounds, rounds, work, rounds * 2.0 * (network.n_nodes - 1))

    def effort(self, parameters: AgdParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0, hops=parameters.hops)


class DistributedAgd(Agd):
    """AGD over a network: every node computes its own gradient, and a spanning tree sums them.

    A round waits for the slowest node, then for 2·diameter messages one after another.
    """

    name = "dagd"
    label = "distributed AGD"
    kind = "rounds"
    needs_sums = True


# --------------------------------------------------------------------------- EXTRA


class ExtraParts(NamedTuple):
    """The arguments of the kernels.

    Attributes
    ----------
    now, before, gradient : (k, d)
        The iterate, the one before, and the gradient there.
    room : (k, d)
    """

    samples: Samples
    sigma: np.ndarray
    step: float
    now: np.ndarray
    before: np.ndarray
    gradient: np.ndarray
    room: np.ndarray


@kernel
def _extra_begin(parts: ExtraParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        extrapolate(parts.now, parts.before, out)
    return t


@kernel
def _extra_end(parts: ExtraParts, t: int, received: np.ndarray) -> int:
    now, before, gradient, found = parts.now, parts.before, parts.gradient, parts.room
    # ``received`` is (I + W)/2·(2x⁺ − x); the difference of two gradients makes the method exact.
    node_gradients(parts.samples, parts.sigma, now, found)
    # The iterate, the one before and its gradient move on together.
    for i in range(received.shape[0]):
        for k in range(received.shape[1]):
            following = received[i, k] - parts.step * (found[i, k] - gradient[i, k])
            before[i, k] = now[i, k]
            now[i, k] = following
            gradient[i, k] = found[i, k]
    return t + 1


class ExtraProcess(RoundProcess):
    """EXTRA in progress over a block of nodes."""

    kernels = register_kernels(ExtraParts, RoundKernels(_extra_begin, _extra_end))

    def __init__(self, setting: Setting[ExtraParameters]) -> None:
        parameters: ExtraParameters = setting.parameters
        super().__init__(setting, lazy_gossip(setting.network, parameters.laplacian_max))
        # From x = x before = 0 and a gradient before of 0, the general step is the paper's first one.
        self.now, self.before, self.gradient, room = (np.zeros(self.message_shape) for _ in range(4))
        step = float(parameters.step)
        self.parts = ExtraParts(
            self.samples, self.problem.sigma, step, self.now, self.before, self.gradient, room
        )

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
    label = "EXTRA"
    needs_network = True
    observed_factor = 0.13
    kind = "rounds"
    baseline = True

    record, process = ExtraParameters, ExtraProcess
    choices = without_tau({"theory": ExtraParameters.theory})
