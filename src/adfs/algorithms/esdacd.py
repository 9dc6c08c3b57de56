"""ESDACD: accelerated coordinate descent on the dual, an edge at a time, a dual gradient at both ends."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms.base import EventEffort, EventProcess, Method, Setting, pick_record, register_method
from adfs.algorithms.dual_gradient import (
    DualSolver,
    dual_gradient,
    dual_gradients,
    literal_dual_gradient,
    make_solver,
)
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.schedule import Events
from adfs.theory import NodeSizes, NodeSummary
from adfs.theory.baselines import EsdacdParameters

__all__ = ["Esdacd", "EsdacdConstants", "EsdacdProcess", "EsdacdState", "LiteralEsdacd"]

_MOST_NEGATIVE_LOG = -1e5


class EsdacdState(NamedTuple):
    """The mean (x + v)/2 and the lag v − x of each node as of its ``time``: (k, d), (k, d), (k,)."""

    mean: np.ndarray
    lag: np.ndarray
    time: np.ndarray


class EsdacdConstants(NamedTuple):
    """What an event needs besides the state.

    ``log_decay`` is log λ, ``mean_step`` and ``momentum_step`` the steps of x and of v for each edge,
    ``ends`` its two nodes, ``slot`` the place of each node in the block (−1 when it lives elsewhere).
    """

    log_decay: float
    mean_step: np.ndarray
    momentum_step: np.ndarray
    ends: np.ndarray
    slot: np.ndarray


class LiteralEsdacd:
    """The same in the variables of the paper: y and v of every node, mixed at every event.

    Algorithm
        z_r = ∇f_r*(y_r) at both ends; [v; y] ← B[v; y] at every node, B = [[1 − ϑ, ϑ], [δ, 1 − δ]], δ =
        ϑ(1 − ϑ)/(1 + ϑ); at the ends v moves by −(ϑw/(pσ_A))(z_r − z_other), y by −(w/(1 +
        ϑ))(1/(w(1/σ_k + 1/σ_l)) + ϑ²/(pσ_A)) times the same.
    """

    def __init__(self, problem: Problem, network: Network, parameters: EsdacdParameters) -> None:
        self.problem = problem
        self.edges = network.edges
        self.parameters = parameters

    def step(self, v: np.ndarray, y: np.ndarray, edge: int) -> tuple[np.ndarray, np.ndarray]:
        """Return v and y after an event, (n, d) each."""
        q, theta = self.parameters, self.parameters.contraction
        i, j = self.edges[edge]
        change = literal_dual_gradient(self.problem, i, y[i]) - literal_dual_gradient(self.problem, j, y[j])
        w, p = q.edge_weights[edge], q.edge_probability[edge]
        delta = theta * (1 - theta) / (1 + theta)
        v, y = (1 - theta) * v + theta * y, delta * v + (1 - delta) * y
        of_v = theta * w / (p * q.dual_curvature)
        of_y = w / (1 + theta) * (1 / (w * q.edge_inverse_sigma[edge]) + theta**2 / (p * q.dual_curvature))
        for node, sign in ((i, 1.0), (j, -1.0)):
            v[node] -= sign * of_v * change
            y[node] -= sign * of_y * change
        return v, y


@kernel
def _ask(constants: EsdacdConstants, state: EsdacdState, solver: DualSolver, i: int, time: float) -> None:
    """Bring node i to a time, and ask for the dual gradient at its x."""
    factor = math.exp(constants.log_decay * (time - state.time[i]))
    state.time[i] = time
    for k in range(state.mean.shape[1]):
        state.lag[i, k] *= factor
        solver.wanted[i, k] = state.mean[i, k] - 0.5 * state.lag[i, k]


@kernel
def _finish(
    constants: EsdacdConstants,
    state: EsdacdState,
    edge: int,
    i: int,
    sign: float,
    first: np.ndarray,
    second: np.ndarray,
) -> None:
    """Move node i, the first end of an edge (``sign`` 1) or its second (−1), by the difference of the two."""
    of_x, of_v = constants.mean_step[edge], constants.momentum_step[edge]
    for k in range(first.size):
        change = sign * (first[k] - second[k])
        state.mean[i, k] -= 0.5 * (of_x + of_v) * change
        state.lag[i, k] -= (of_v - of_x) * change


@kernel
def _run(
    loss: Any,
    rows: Any,
    y: np.ndarray,
    weights: np.ndarray,
    offsets: np.ndarray,
    sigma: np.ndarray,
    constants: EsdacdConstants,
    state: EsdacdState,
    solver: DualSolver,
    times: np.ndarray,
    actors: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Execute events first … last − 1; stop before one with a node of another block, and return its index."""
    n = constants.slot.size
    for t in range(first, last):
        edge = actors[t] - n
        i = constants.slot[constants.ends[edge, 0]]
        j = constants.slot[constants.ends[edge, 1]]
        if i < 0 or j < 0:
            return t
        _ask(constants, state, solver, i, times[t])
        _ask(constants, state, solver, j, times[t])
        dual_gradient(loss, rows, y, weights, offsets, sigma, solver, i)
        dual_gradient(loss, rows, y, weights, offsets, sigma, solver, j)
        _finish(constants, state, edge, i, 1.0, solver.theta[i], solver.theta[j])
        _finish(constants, state, edge, j, -1.0, solver.theta[i], solver.theta[j])
    return last


class EsdacdProcess(EventProcess):
    """ESDACD in progress over a block of nodes."""

    def __init__(self, setting: Setting) -> None:
        problem, parameters = setting.problem, setting.parameters
        super().__init__(setting, np.zeros(problem.n_samples))
        self.problem = problem
        self.constants = EsdacdConstants(
            max(parameters.log_decay, _MOST_NEGATIVE_LOG),
            parameters.mean_step,
            parameters.momentum_step,
            self.ends,
            self.slot,
        )
        k, d = problem.n_nodes, problem.n_features
        self.state = EsdacdState(np.zeros((k, d)), np.zeros((k, d)), np.zeros(k))
        self.solver = make_solver(problem)
        self._sizes = np.diff(problem.offsets)
        self._computed = 0

    def run(self, events: Events, first: int, last: int) -> int:
        p = self.problem
        done = _run(
            p.loss,
            p.rows,
            p.y,
            p.weights,
            p.offsets,
            p.sigma,
            self.constants,
            self.state,
            self.solver,
            events.time,
            events.actor,
            first,
            last,
        )
        edges = events.actor[first:done] - self.slot.size
        self._computed += int(self._sizes[self.slot[self.ends[edges]]].sum())
        return int(done)

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        p, i = self.problem, self.end(edge)
        _ask(self.constants, self.state, self.solver, i, time)
        dual_gradient(p.loss, p.rows, p.y, p.weights, p.offsets, p.sigma, self.solver, i)
        self._computed += int(self._sizes[i])
        return np.array(self.solver.theta[i])

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        i = self.end(edge)
        if self.slot[self.ends[edge, 0]] == i:
            _finish(self.constants, self.state, edge, i, 1.0, own, message)
        else:
            _finish(self.constants, self.state, edge, i, -1.0, message, own)

    def count(self, computations: int, exchanges: int) -> None:
        # The schedule has no computations of its own: an end of an exchange goes through all its samples.
        super().count(computations + self._computed, exchanges)
        self._computed = 0

    def primal(self, read: str = "x") -> np.ndarray:
        p, side = self.problem, -0.5 if read == "x" else 0.5
        factor = np.exp(self.constants.log_decay * (self.position - self.state.time))
        # On copies: looking at a run does not change it.
        solver = self.solver._replace(
            theta=self.solver.theta.copy(),
            solved=self.solver.solved.copy(),
            wanted=self.state.mean + (side * factor)[:, None] * self.state.lag,
        )
        dual_gradients(p.loss, p.rows, p.y, p.weights, p.offsets, p.sigma, solver)
        return np.asarray(solver.theta)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict() | {"theta": self.solver.theta, "solved": self.solver.solved}


class Esdacd(Method):
    """ESDACD: edge-synchronous dual accelerated coordinate descent.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        An event picks an edge; its two ends compute ∇f_i* at their own points, exchange them, and move
        by their difference, with the momentum of accelerated coordinate descent.
    Guarantee
        The squared error shrinks by 1 − ϑ an event in expectation, ϑ = min_e p_e√(σ_A/(μ_e²R_e(1/σ_i +
        1/σ_j))).

    References
    ----------
        Hendrikx, Bach, Massoulié, "Accelerated decentralized optimization with local updates for smooth
        and strongly convex objectives", AISTATS 2019.
    """

    name = "esdacd"
    kind = "events"

    def parameters(
        self,
        problem: Problem | GeneralProblem | NodeSummary,
        network: Network,
        *,
        choice: Any = None,
        tau: float | None = None,
    ) -> EsdacdParameters:
        makers = {
            "theory": functools.partial(EsdacdParameters.theory, problem, network),
            "paper": functools.partial(EsdacdParameters.paper, problem, network),
        }
        record: EsdacdParameters = pick_record(choice, EsdacdParameters, makers)
        return record

    def start(self, setting: Setting) -> EsdacdProcess:
        return EsdacdProcess(setting)

    def position_of(self, parameters: Any, sizes: NodeSizes, passes: float) -> float:
        counts = sizes.n_samples.astype(np.float64)
        return passes * float(counts.sum()) / float(parameters.node_activity @ counts)

    def effort(self, parameters: Any, sizes: NodeSizes, network: Network) -> EventEffort:
        return EventEffort(np.asarray(sizes.n_samples, dtype=np.int64))


register_method(Esdacd())
