"""The methods that solve whole local problems for dual gradients: MSDA in rounds, ESDACD edge by edge."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import EventProcess, Method, Options, Setting, without_tau
from adfs.algorithms.chebyshev import chebyshev_gossip
from adfs.algorithms.costs import Cost, EventEffort, RoundEffort
from adfs.algorithms.dual_gradient import DualSolver, dual_gradient, dual_gradients, make_solver
from adfs.algorithms.method_kernels import EventKernels, exchange_messages, register_kernels
from adfs.algorithms.round_process import Gossip, RoundProcess
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.theory import EsdacdParameters, Facts, MsdaParameters, NodeSizes


def _after_local_solves(promised: Cost, first: float, facts: Facts, n_nodes: int, tol: float) -> Cost:
    """Return the cost of a method whose nodes first solve their own problem, until position ``first``.

    The mean of the local solutions is nearer to the optimum with more rows per node, fewer directions and
    more penalty; theory's promise then counts from there.
    """
    start = 1.0
    if facts.kappa_b > 1.0:
        effective = facts.kappa_s / (facts.kappa_b - 1.0)
        rows = facts.n_samples / n_nodes
        start = min(1.0, effective**2 * facts.kappa_b / (4.0 * rows**2))
    left = max(0.0, math.log(start / tol)) / math.log(1.0 / tol)
    position = first + math.ceil(promised.position * left)
    return Cost(*(position / promised.position * number for number in promised))


# --------------------------------------------------------------------------- MSDA


class MsdaProcess(RoundProcess):
    """MSDA in progress over a block of nodes; ``point`` is x, ``gossiped`` is y."""

    def __init__(self, setting: Setting[MsdaParameters]) -> None:
        super().__init__(setting, setting.network.laplacian())
        self.parameters, self.chebyshev = setting.parameters, setting.parameters.chebyshev
        # The solver keeps each node's last solution, which is also the primal iterate.
        self.solver = make_solver(setting.problem)
        self.point, self.gossiped = self.solver.wanted, np.zeros(self.message_shape)

    def round(self, gossip: Gossip) -> None:
        p, x = self.parameters, self.point
        dual_gradients(self.samples, self.problem.sigma, self.solver)
        # The dual step on y, and x with momentum.
        following = x - p.step * chebyshev_gossip(gossip, self.solver.theta, self.chebyshev)
        x[...] = (1.0 + p.momentum) * following - p.momentum * self.gossiped
        self.gossiped[...] = following
        self.position += 1.0
        self.count(1, p.rounds)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.solver.theta.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        solved = {"theta": self.solver.theta, "solved": self.solver.solved}
        return {"point": self.point, "gossiped": self.gossiped} | solved


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
    choices = without_tau({"theory": MsdaParameters.theory, "ssda": partial(MsdaParameters.theory, rounds=1)})

    def adapt(self, parameters: MsdaParameters, options: Options) -> MsdaParameters:
        return parameters.with_rounds(options["rounds"]) if "rounds" in options else parameters

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Every node has solved its own problem once after a round.
        return _after_local_solves(super().cost(facts, network, tol, tau), 1.0, facts, network.n_nodes, tol)

    def effort(self, parameters: MsdaParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=parameters.rounds if network.n_nodes > 1 else 0)


# --------------------------------------------------------------------------- ESDACD


class EsdacdState(NamedTuple):
    """The mean (x + v)/2 and the lag v − x of each node as of its ``time``: (k, d), (k, d), (k,)."""

    mean: np.ndarray
    lag: np.ndarray
    time: np.ndarray


class EsdacdParts(NamedTuple):
    """The arguments of the kernels.

    ``log_decay`` is log λ, ``mean_step`` and ``momentum_step`` the steps of x and of v for each edge,
    ``ends`` its two nodes, ``slot`` the place of each node in the block (−1 when it lives elsewhere).
    ``messages`` (2, d) is working memory, ``further`` (1,) counts the samples.
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
    messages: np.ndarray
    further: np.ndarray


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
    parts.further[0] += parts.samples.node_starts[i + 1] - parts.samples.node_starts[i]


@kernel
def _run(
    parts: EsdacdParts, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    """Execute events first … last − 1; stop before one with a node of another block, and return its index."""
    for t in range(first, last):
        # Every event is a communication: the schedule has no computations.
        if not exchange_messages(parts, actors[t] - parts.slot.size, times[t]):
            return t
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
    state = parts.state
    # The steps of x and v, written for their mean and their lag.
    of_x, of_v = parts.mean_step[edge], parts.momentum_step[edge]
    for k in range(own.size):
        change = own[k] - other[k]
        state.mean[i, k] -= 0.5 * (of_x + of_v) * change
        state.lag[i, k] -= (of_v - of_x) * change


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
        steps = (parameters.mean_step, parameters.momentum_step)
        constants = (parameters.log_decay, *steps, self.ends, self.slot)
        # The schedule has no computations of its own: an end of an exchange goes through all its samples.
        memory = (np.empty((2, d)), self.further)
        self.parts = EsdacdParts(problem.samples, problem.sigma, *constants, self.state, self.solver, *memory)

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
    choices = without_tau({"theory": EsdacdParameters.theory, "paper": EsdacdParameters.paper})

    def position_of(self, parameters: EsdacdParameters, sizes: NodeSizes, passes: float) -> float:
        # An event processes all samples of both ends.
        counts = sizes.n_samples.astype(np.float64)
        return passes * float(counts.sum()) / float(parameters.node_activity @ counts)

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Every node has solved its own problem once after about as many events as there are nodes.
        n, promised = network.n_nodes, super().cost(facts, network, tol, tau)
        return _after_local_solves(promised, float(n), facts, n, tol)

    def effort(self, parameters: EsdacdParameters, sizes: NodeSizes, network: Network) -> EventEffort:
        return EventEffort(np.asarray(sizes.n_samples, dtype=np.int64))
