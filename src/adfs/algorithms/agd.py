"""Nesterov's accelerated gradient method: on one machine, or with the gradients summed over the nodes."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from adfs.algorithms.base import Method, RoundEffort, Setting, register_method
from adfs.algorithms.method_kernels import RoundKernels, register_round_kernels
from adfs.algorithms.round_process import LocalRounds, node_gradients
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import FiniteSum, Samples
from adfs.problem.samples import row_column, row_entry, row_span
from adfs.theory import Facts, NodeSizes, NodeSummary
from adfs.theory.baselines import AgdParameters, largest_eigenvalue


class AgdParts(NamedTuple):
    """All that the kernels below need; ``theta`` and ``ahead`` (k, d) are θ and y."""

    samples: Samples
    sigma: np.ndarray
    step: float
    momentum: float
    theta: np.ndarray
    ahead: np.ndarray


@kernel
def _begin(parts: AgdParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        node_gradients(parts.samples, parts.sigma, parts.ahead, out)
    return t


@kernel
def _end(parts: AgdParts, t: int, total: np.ndarray) -> int:
    theta, ahead = parts.theta, parts.ahead
    for i in range(total.shape[0]):
        for k in range(total.shape[1]):
            following = ahead[i, k] - parts.step * total[i, k]
            ahead[i, k] = following + parts.momentum * (following - theta[i, k])
            theta[i, k] = following
    return t + 1


class AgdProcess(LocalRounds):
    """Accelerated gradient descent in progress over a block of nodes, which all hold the same iterate."""

    kernels = register_round_kernels(AgdParts, RoundKernels(_begin, _end))
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
def _curvature_products(samples: Samples, beta: float, vector: np.ndarray, out: np.ndarray) -> None:
    """Write βX_iᵀW_iX_i·v for each node, ``out`` (k, d); row after row, the same bits in any block."""
    rows, node_starts = samples.rows, samples.node_starts
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 0.0
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            along = 0.0
            for k in range(start, stop):
                along += row_entry(rows, j, k) * vector[row_column(rows, j, k)]
            along *= beta * samples.weights[j]
            for k in range(start, stop):
                out[i, row_column(rows, j, k)] += along * row_entry(rows, j, k)


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

    name = "agd"
    kind: ClassVar[str] = "single"
    observed_factor = 0.3
    by_gradients = True

    record, process = AgdParameters, AgdProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: AgdParameters.theory(problem, network)}
    )

    def refine(
        self, parameters: AgdParameters, problem: FiniteSum, total: Callable[[np.ndarray], np.ndarray]
    ) -> AgdParameters:
        """Take the smoothness of the whole objective, which is below the sum of the nodes'."""
        if parameters.hops == 0:  # one node
            return parameters
        samples, out = problem.samples, np.empty((problem.n_nodes, problem.n_features))

        def product(vector: np.ndarray) -> np.ndarray:
            _curvature_products(samples, samples.loss.beta, vector, out)
            return total(out)

        largest = largest_eigenvalue(product, problem.n_features)
        return parameters.with_smoothness(largest + parameters.curvature)

    def planned_parameters(
        self, facts: Facts, summary: NodeSummary, network: Network, tau: float
    ) -> AgdParameters:
        # As `refine` does it, with the smoothness that the facts have.
        parameters = super().planned_parameters(facts, summary, network, tau)
        return parameters.with_smoothness(float(summary.sigma.sum()) * facts.kappa_b)

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
