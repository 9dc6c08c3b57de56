"""MSDA: one dual gradient at every node, then K rounds of Chebyshev gossip."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Method, Options, Setting, register_method
from adfs.algorithms.costs import Cost, RoundEffort, after_local_solves
from adfs.algorithms.dual_gradient import DualSolver, dual_gradients, make_solver
from adfs.algorithms.method_kernels import RoundKernels, register_kernels
from adfs.algorithms.round_process import RoundProcess
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.theory import Facts, NodeSizes
from adfs.theory.baselines import MsdaParameters


class MsdaParts(NamedTuple):
    """The arguments of the kernels.

    Attributes
    ----------
    constants : (5,)
        c2, c3 and K of the Chebyshev rounds, the dual step and the momentum.
    gossiped : (k, d)
        y; x is the point of the solver's next dual gradient.
    current, before : (k, d)
        X_k of the Chebyshev rounds and the one before.
    stage : (3,)
        The number of products of this round so far, a_k and the one before.
    """

    samples: Samples
    sigma: np.ndarray
    solver: DualSolver
    constants: np.ndarray
    gossiped: np.ndarray
    current: np.ndarray
    before: np.ndarray
    stage: np.ndarray


@kernel
def _begin(parts: MsdaParts, t: int, last: int, out: np.ndarray) -> int:
    if t >= last:
        return t
    # The first product of a round is of the dual gradients, the others continue the Chebyshev recursion.
    if parts.stage[0] == 0.0:
        dual_gradients(parts.samples, parts.sigma, parts.solver)
    source = parts.solver.theta if parts.stage[0] == 0.0 else parts.current
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = source[i, k]
    return t


@kernel
def _end(parts: MsdaParts, t: int, received: np.ndarray) -> int:
    """Take one product of `adfs.network.chebyshev_gossip`; after the last one, move."""
    stretch, step, rounds, dual_step, momentum = parts.constants
    stage, current, before = parts.stage, parts.current, parts.before
    theta, point, gossiped = parts.solver.theta, parts.solver.wanted, parts.gossiped
    # The recursion of the Chebyshev polynomial: its values a_k, and X_k for every node.
    if stage[0] == 0.0:
        stage[1], stage[2] = stretch, 1.0
    else:
        stage[1], stage[2] = 2.0 * stretch * stage[1] - stage[2], stage[1]
    for i in range(received.shape[0]):
        for k in range(received.shape[1]):
            # With one product per round the polynomial is the matrix itself; c2 may be infinite then.
            if rounds == 1.0:
                received[i, k] = step * received[i, k]
            elif stage[0] == 0.0:
                before[i, k] = theta[i, k]
                current[i, k] = stretch * (theta[i, k] - step * received[i, k])
            else:
                following = 2.0 * stretch * (current[i, k] - step * received[i, k]) - before[i, k]
                before[i, k] = current[i, k]
                current[i, k] = following
    stage[0] += 1.0
    if stage[0] < rounds:
        return t
    # After the last product: the dual step on y, and x with momentum.
    stage[0] = 0.0
    for i in range(received.shape[0]):
        for k in range(received.shape[1]):
            pull = received[i, k] if rounds == 1.0 else theta[i, k] - current[i, k] / stage[1]
            following = point[i, k] - dual_step * pull
            point[i, k] = (1.0 + momentum) * following - momentum * gossiped[i, k]
            gossiped[i, k] = following
    return t + 1


class MsdaProcess(RoundProcess):
    """MSDA in progress over a block of nodes; ``point`` is x, ``gossiped`` is y."""

    kernels = register_kernels(MsdaParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[MsdaParameters]) -> None:
        super().__init__(setting, setting.network.laplacian())
        self.parameters: MsdaParameters = setting.parameters
        chebyshev, found = self.parameters.chebyshev, self.parameters
        # The solver keeps each node's last solution, which is also the primal iterate.
        self.solver = make_solver(setting.problem)
        self.point = self.solver.wanted
        self.gossiped, current, before = (np.zeros(self.message_shape) for _ in range(3))
        # In one array, so that the kernels have one argument for all of them.
        constants = np.array(
            [chebyshev.stretch, chebyshev.step, found.rounds, found.step, found.momentum], dtype=np.float64
        )
        sigma, stage = self.problem.sigma, np.zeros(3)
        self.parts = MsdaParts(
            self.samples, sigma, self.solver, constants, self.gossiped, current, before, stage
        )

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
    label = "MSDA"
    needs_network = True
    solves_locally = True
    observed_factor = 0.21
    kind = "rounds"
    baseline = True
    options = ("rounds",)

    record, process = MsdaParameters, MsdaProcess
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: MsdaParameters.theory(problem, network),
            "ssda": lambda problem, network, tau: MsdaParameters.theory(problem, network, rounds=1),
        }
    )

    def adapt(self, parameters: MsdaParameters, options: Options) -> MsdaParameters:
        return parameters.with_rounds(options["rounds"]) if "rounds" in options else parameters

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Every node has solved its own problem once after a round.
        return after_local_solves(super().cost(facts, network, tol, tau), 1.0, facts, network.n_nodes, tol)

    def effort(self, parameters: MsdaParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=parameters.rounds if network.n_nodes > 1 else 0)


register_method(Msda())
