"""ESDACD: accelerated coordinate descent on the dual, an edge at a time, a dual gradient at both ends."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Setting, register_method
from adfs.algorithms.costs import Cost, EventEffort, after_local_solves
from adfs.algorithms.dual_gradient import (
    DualSolver,
    dual_gradient,
    dual_gradients,
    make_solver,
)
from adfs.algorithms.method_kernels import EventKernels, register_kernels
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.theory import Facts, NodeSizes
from adfs.theory.baselines import EsdacdParameters


class EsdacdState(NamedTuple):
    """The mean (x + v)/2 and the lag v − x of each node as of its ``time``: (k, d), (k, d), (k,)."""

    mean: np.ndarray
    lag: np.ndarray
    time: np.ndarray


class EsdacdParts(NamedTuple):
    """The arguments of the kernels.

    ``log_decay`` is log λ, ``mean_step`` and ``momentum_step`` the steps of x and of v for each edge,
    ``ends`` its two nodes, ``slot`` the place of each node in the block (−1 when it lives elsewhere).
    ``computed`` (1,) counts the samples since it was last read.
    """

    samples: Samples
    sigma: np.ndarray
    log_decay: float
    mean_step: np.ndarray
    momentum_step: np.ndarray
    ends: np.ndarray
    slot: np.ndarray
    state: EsdacdState
    solver: DualSolver
    computed: np.ndarray


@kernel
def _finish(
    parts: EsdacdParts, edge: int, i: int, sign: float, first: np.ndarray, second: np.ndarray
) -> None:
    """Move node i, the first end of an edge (``sign`` 1) or its second (−1), by the difference of the two."""
    state = parts.state
    # The steps of x and v, written for their mean and their lag.
    of_x, of_v = parts.mean_step[edge], parts.momentum_step[edge]
    for k in range(first.size):
        change = sign * (first[k] - second[k])
        state.mean[i, k] -= 0.5 * (of_x + of_v) * change
        state.lag[i, k] -= (of_v - of_x) * change


@kernel
def _solve(parts: EsdacdParts, i: int, time: float) -> None:
    """Bring node i to a time, and ``solver.theta[i]`` to the dual gradient at its x."""
    state = parts.state
    # While the node was idle its lag decayed.
    factor = math.exp(parts.log_decay * (time - state.time[i]))
    state.time[i] = time
    for k in range(state.mean.shape[1]):
        state.lag[i, k] *= factor
        parts.solver.wanted[i, k] = state.mean[i, k] - 0.5 * state.lag[i, k]
    dual_gradient(parts.samples, parts.sigma, parts.solver, i)
    parts.computed[0] += parts.samples.node_starts[i + 1] - parts.samples.node_starts[i]


@kernel
def _run(
    parts: EsdacdParts, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    """Execute events first … last − 1; stop before one with a node of another block, and return its index."""
    theta = parts.solver.theta
    n = parts.slot.size
    for t in range(first, last):
        # Every event is a communication: the schedule has no computations.
        edge = actors[t] - n
        i = parts.slot[parts.ends[edge, 0]]
        j = parts.slot[parts.ends[edge, 1]]
        if i < 0 or j < 0:
            return t
        # Both dual gradients first, from the same state, then both moves.
        _solve(parts, i, times[t])
        _solve(parts, j, times[t])
        _finish(parts, edge, i, 1.0, theta[i], theta[j])
        _finish(parts, edge, j, -1.0, theta[i], theta[j])
    return last


@kernel
def _outgoing(parts: EsdacdParts, i: int, time: float, out: np.ndarray) -> None:
    """Write the dual gradient of the block's node i at an event; ``out`` (d,)."""
    _solve(parts, i, time)
    for k in range(out.size):
        out[k] = parts.solver.theta[i, k]


@kernel
def _incoming(parts: EsdacdParts, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    """Finish an event at the block's node i, from the dual gradients of both ends."""
    if parts.slot[parts.ends[edge, 0]] == i:
        _finish(parts, edge, i, 1.0, own, other)
    else:
        _finish(parts, edge, i, -1.0, other, own)


class EsdacdProcess(EventProcess):
    """ESDACD in progress over a block of nodes."""

    parts: EsdacdParts
    kernels = register_kernels(EsdacdParts, EventKernels(_run, _outgoing, _incoming))

    def __init__(self, setting: Setting[EsdacdParameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        super().__init__(setting, np.zeros(problem.n_samples))
        # The state of ADFS without samples: a mean and a lag per node.
        k, d = problem.n_nodes, problem.n_features
        self.state = EsdacdState(np.zeros((k, d)), np.zeros((k, d)), np.zeros(k))
        self.solver = make_solver(problem)
        self._computed = np.zeros(1, dtype=np.int64)
        steps = (parameters.mean_step, parameters.momentum_step)
        constants = (parameters.log_decay, *steps, self.ends, self.slot)
        self.parts = EsdacdParts(
            problem.samples, problem.sigma, *constants, self.state, self.solver, self._computed
        )

    def count(self, computations: int, exchanges: int) -> None:
        # The schedule has no computations of its own: an end of an exchange goes through all its samples.
        super().count(computations + int(self._computed[0]), exchanges)
        self._computed[0] = 0

    def primal(self, read: str = "x") -> np.ndarray:
        side = -0.5 if read == "x" else 0.5
        factor = np.exp(self.parts.log_decay * (self.position - self.state.time))
        # On copies: reading the iterate does not change the run.
        solver = self.solver._replace(
            theta=self.solver.theta.copy(),
            solved=self.solver.solved.copy(),
            wanted=self.state.mean + (side * factor)[:, None] * self.state.lag,
        )
        dual_gradients(self.parts.samples, self.parts.sigma, solver)
        return np.asarray(solver.theta)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict() | {"theta": self.solver.theta, "solved": self.solver.solved}


class Esdacd(Method[EsdacdParameters]):
    """ESDACD: edge-synchronous dual accelerated coordinate descent.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        An event picks an edge; its two ends compute ∇f_i* at their own points, exchange them, and move
        by their difference, with the momentum of accelerated coordinate descent.
    Guarantee
        The squared error shrinks by 1 − ϑ per event in expectation, ϑ = min_e p_e√(σ_A/(μ_e²R_e(1/σ_i +
        1/σ_j))).

    References
    ----------
        Hendrikx, Bach, Massoulié, "Accelerated decentralized optimization with local updates for smooth
        and strongly convex objectives", AISTATS 2019.
    """

    name = "esdacd"
    label = "ESDACD"
    needs_network = True
    solves_locally = True
    observed_factor = 0.2
    kind = "events"
    baseline = True

    record, process = EsdacdParameters, EsdacdProcess
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: EsdacdParameters.theory(problem, network),
            "paper": lambda problem, network, tau: EsdacdParameters.paper(problem, network),
        }
    )

    def position_of(self, parameters: EsdacdParameters, sizes: NodeSizes, passes: float) -> float:
        # An event processes all samples of both ends.
        counts = sizes.n_samples.astype(np.float64)
        return passes * float(counts.sum()) / float(parameters.node_activity @ counts)

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Every node has solved its own problem once after about as many events as there are nodes.
        n, promised = network.n_nodes, super().cost(facts, network, tol, tau)
        return after_local_solves(promised, float(n), facts, n, tol)

    def effort(self, parameters: EsdacdParameters, sizes: NodeSizes, network: Network) -> EventEffort:
        return EventEffort(np.asarray(sizes.n_samples, dtype=np.int64))


register_method(Esdacd())
