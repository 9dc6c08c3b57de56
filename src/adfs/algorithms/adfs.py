"""Compiled ADFS in the mean/lag form: events of a schedule executed at the speed of the memory.

The literal twin is :class:`adfs.algorithms.adfs_literal.MeanLagAdfs`; the tests hold these kernels to it.
What makes them fast, and changes nothing else:

- a tip's variables lie on the line of its sample, so a sample has two scalars;
- the lag is stored as one scalar a node times a vector, e = scale·ê, and the scalar alone decays: a sample
  with few non-zeros costs its non-zeros. A node's tips share its scalar, so they need no time stamp;
- c and ê are interleaved: one cache line serves both;
- the events are known in advance, so the rows of the next ones are fetched ahead.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms.adfs_general import GeneralAdfsProcess
from adfs.algorithms.base import EventProcess, Method, Setting, block_slots, passes_in_events, register_method
from adfs.algorithms.prefetch import prefetch_row, prefetch_sample
from adfs.compilation import compiled, inlined, kernel
from adfs.errors import unknown_name
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.problem.losses import weighted_dual_prox
from adfs.problem.rows import row_column, row_entry, row_span
from adfs.schedule import Events
from adfs.theory import NodeSummary, Parameters

__all__ = [
    "Adfs",
    "AdfsConstants",
    "AdfsProcess",
    "AdfsState",
    "adfs_constants",
    "adfs_start",
    "center_iterate",
    "compute",
    "decay",
    "exchange",
    "receive",
    "run_events",
    "tip_scalars",
]

# ê grows as the scale shrinks: both stay far from the ends of the floating-point range.
_SMALLEST_SCALE = 1e-60
_MOST_NEGATIVE_LOG = -1e5


class AdfsState(NamedTuple):
    """The variables of a block of nodes.

    Attributes
    ----------
    centers : (n, d, 2)
        c and ê of each centre, interleaved.
    tips : (N, 2)
        The same for each sample, as multiples of its row.
    scale : (n,)
        e = scale·ê, at centre and tips alike, as of the node's ``time``.
    time : (n,)
        Time of each node's last event.
    """

    centers: np.ndarray
    tips: np.ndarray
    scale: np.ndarray
    time: np.ndarray


class AdfsConstants(NamedTuple):
    """What an event needs besides the state; nodes are those of the block, edges those of the whole network.

    ``log_decay`` is log λ, ``beta`` the loss's smoothness, ``inverse_sigma`` 1/σ_i, ``sample_mixing``
    ρS_i/p_i (χ of a sample is this over √(1 + L/σ_i)), ``sample_step`` α_i/σ_A (η̃/L of a sample is χ times
    this), ``edge_step`` η̃_e, ``edge_mixing`` χ_e, ``ends`` the two nodes of each edge, ``slot`` the place of
    each node in the block (−1 when it lives elsewhere).
    """

    log_decay: float
    beta: float
    inverse_sigma: np.ndarray
    sample_mixing: np.ndarray
    sample_step: np.ndarray
    edge_step: np.ndarray
    edge_mixing: np.ndarray
    ends: np.ndarray
    slot: np.ndarray


def adfs_constants(
    parameters: Parameters, network: Network, beta: float, nodes: np.ndarray | None = None
) -> AdfsConstants:
    """Return the constants for a block of nodes (all of them unless told otherwise)."""
    block = np.arange(network.n_nodes) if nodes is None else np.asarray(nodes)
    probability = np.where(parameters.node_probability > 0.0, parameters.node_probability, 1.0)
    mixing = parameters.contraction * parameters.root_sums / probability
    return AdfsConstants(
        log_decay=max(parameters.log_decay, _MOST_NEGATIVE_LOG),
        beta=beta,
        inverse_sigma=1.0 / parameters.sigma[block],
        sample_mixing=mixing[block],
        sample_step=parameters.virtual_weight[block] / parameters.dual_curvature,
        edge_step=parameters.edge_step,
        edge_mixing=parameters.edge_mixing,
        ends=network.edges.astype(np.int32),
        slot=block_slots(network, block),
    )


def adfs_start(problem: Problem) -> AdfsState:
    """Return the state at time 0: all zero."""
    n, d = problem.n_nodes, problem.n_features
    return AdfsState(np.zeros((n, d, 2)), np.zeros((problem.n_samples, 2)), np.ones(n), np.zeros(n))


@inlined
def decay(state: AdfsState, offsets: np.ndarray, log_decay: float, i: int, time: float) -> float:
    """Bring node i to a time and return its scale; the scale is folded into ê before it gets too small."""
    scale = state.scale[i] * math.exp(log_decay * (time - state.time[i]))
    state.time[i] = time
    if scale < _SMALLEST_SCALE:
        for k in range(state.centers.shape[1]):
            state.centers[i, k, 1] *= scale
        for j in range(offsets[i], offsets[i + 1]):
            state.tips[j, 1] *= scale
        scale = 1.0
    state.scale[i] = scale
    return scale


@inlined
def compute(
    loss: Any,
    rows: Any,
    y: np.ndarray,
    weights: np.ndarray,
    offsets: np.ndarray,
    constants: AdfsConstants,
    state: AdfsState,
    i: int,
    j: int,
    time: float,
) -> None:
    """One computation: node i at slot i, its sample at row j."""
    scale = decay(state, offsets, constants.log_decay, i, time)
    start, stop = row_span(rows, j)
    along_mean = 0.0
    along_lag = 0.0
    norm = 0.0
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        column = row_column(rows, j, k)
        along_mean += entry * state.centers[i, column, 0]
        along_lag += entry * state.centers[i, column, 1]
        norm += entry * entry
    inverse_sigma = constants.inverse_sigma[i]
    margin = (along_mean - 0.5 * scale * along_lag) * inverse_sigma
    mean = state.tips[j, 0]
    half_lag = 0.5 * scale * state.tips[j, 1]
    weight = weights[j]
    bend = weight * constants.beta
    mixing = constants.sample_mixing[i] / math.sqrt(1.0 + bend * norm * inverse_sigma)
    h = constants.sample_step[i] * mixing * bend
    at_v = mean + half_lag
    # h·x_s/(wβ) without the division by wβ, which h contains
    zeta = at_v + h * margin - constants.sample_step[i] * mixing * (mean - half_lag)
    change = weighted_dual_prox(loss, zeta, h, y[j], weight, margin) - at_v
    to_mean = 0.5 * (1.0 + mixing) * change
    to_lag = (1.0 - mixing) * change / scale
    state.tips[j, 0] = mean + to_mean
    state.tips[j, 1] += to_lag
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        column = row_column(rows, j, k)
        state.centers[i, column, 0] -= to_mean * entry
        state.centers[i, column, 1] -= to_lag * entry


@inlined
def exchange(offsets: np.ndarray, constants: AdfsConstants, state: AdfsState, edge: int, time: float) -> None:
    """One communication between two nodes of the block."""
    i = constants.slot[constants.ends[edge, 0]]
    j = constants.slot[constants.ends[edge, 1]]
    scale_i = decay(state, offsets, constants.log_decay, i, time)
    scale_j = decay(state, offsets, constants.log_decay, j, time)
    half_i, half_j = 0.5 * scale_i, 0.5 * scale_j
    inverse_i, inverse_j = constants.inverse_sigma[i], constants.inverse_sigma[j]
    step, mixing = constants.edge_step[edge], constants.edge_mixing[edge]
    to_mean = 0.5 * (1.0 + mixing)
    lag_i, lag_j = (1.0 - mixing) / scale_i, (1.0 - mixing) / scale_j
    a = state.centers[i]
    b = state.centers[j]
    for k in range(a.shape[0]):
        at_i = (a[k, 0] - half_i * a[k, 1]) * inverse_i
        at_j = (b[k, 0] - half_j * b[k, 1]) * inverse_j
        change = step * (at_i - at_j)
        a[k, 0] -= to_mean * change
        b[k, 0] += to_mean * change
        a[k, 1] -= lag_i * change
        b[k, 1] += lag_j * change


@kernel
def center_iterate(
    offsets: np.ndarray, constants: AdfsConstants, state: AdfsState, i: int, time: float, out: np.ndarray
) -> None:
    """Write θ_i = x_i/σ_i of the block's node i at a time: what it sends its neighbours; ``out`` (d,)."""
    half = 0.5 * decay(state, offsets, constants.log_decay, i, time)
    inverse = constants.inverse_sigma[i]
    for k in range(out.size):
        out[k] = (state.centers[i, k, 0] - half * state.centers[i, k, 1]) * inverse


@kernel
def receive(
    constants: AdfsConstants, state: AdfsState, edge: int, i: int, own: np.ndarray, other: np.ndarray
) -> None:
    """Finish a communication at the block's node i, from its own and its neighbour's θ at that event.

    Both ends compute the same change from the same two vectors, and negation is exact: the two halves are the
    bits of :func:`exchange`.
    """
    first = constants.slot[constants.ends[edge, 0]] == i
    step, mixing = constants.edge_step[edge], constants.edge_mixing[edge]
    to_mean = 0.5 * (1.0 + mixing)
    to_lag = (1.0 - mixing) / state.scale[i]
    a = state.centers[i]
    for k in range(own.size):
        if first:
            change = step * (own[k] - other[k])
            a[k, 0] -= to_mean * change
            a[k, 1] -= to_lag * change
        else:
            change = step * (other[k] - own[k])
            a[k, 0] += to_mean * change
            a[k, 1] += to_lag * change


_AHEAD = 6


@kernel
def run_events(
    loss: Any,
    rows: Any,
    y: np.ndarray,
    weights: np.ndarray,
    offsets: np.ndarray,
    constants: AdfsConstants,
    state: AdfsState,
    times: np.ndarray,
    actors: np.ndarray,
    samples: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Execute events first … last − 1; stop before one that needs a node of another block.

    Returns
    -------
    int
        How far it got: ``last``, or the index of a communication with a node that lives elsewhere.
    """
    n = constants.slot.size
    for t in range(first, last):
        if t + 2 * _AHEAD < last and samples[t + 2 * _AHEAD] >= 0:
            prefetch_sample(rows, y, weights, state.tips, samples[t + 2 * _AHEAD])
        if t + _AHEAD < last and samples[t + _AHEAD] >= 0:
            prefetch_row(rows, samples[t + _AHEAD])
        actor = actors[t]
        if actor < n:
            compute(
                loss, rows, y, weights, offsets, constants, state, constants.slot[actor], samples[t], times[t]
            )
        else:
            edge = actor - n
            if constants.slot[constants.ends[edge, 0]] < 0 or constants.slot[constants.ends[edge, 1]] < 0:
                return t
            exchange(offsets, constants, state, edge, times[t])
    return last


@compiled
def tip_scalars(
    offsets: np.ndarray, constants: AdfsConstants, state: AdfsState, time: float, side: float
) -> np.ndarray:
    """Return c + side·e/2 of every tip as of one time, ``side`` −1 for x and +1 for v; shape (N,)."""
    out = np.empty(state.tips.shape[0])
    for i in range(state.scale.size):
        half = 0.5 * side * state.scale[i] * math.exp(constants.log_decay * (time - state.time[i]))
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = state.tips[j, 0] + half * state.tips[j, 1]
    return out


# --------------------------------------------------------------------------- the method


class AdfsProcess(EventProcess):
    """ADFS in progress over a block of nodes."""

    def __init__(self, setting: Setting) -> None:
        problem, parameters, block = setting.problem, setting.parameters, setting.block
        sigma = parameters.sigma[block][problem.node_of_row]
        super().__init__(setting, np.where(problem.active, np.sqrt(1.0 + problem.smoothness / sigma), 0.0))
        self.problem = problem
        self.constants = adfs_constants(parameters, setting.network, problem.loss.beta, block)
        self.state = adfs_start(problem)

    def run(self, events: Events, first: int, last: int) -> int:
        p = self.problem
        return run_events(
            p.loss, p.rows, p.y, p.weights, p.offsets, self.constants, self.state, *events, first, last
        )

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        out = np.empty(self.message_length)
        center_iterate(self.problem.offsets, self.constants, self.state, self.end(edge), time, out)
        return out

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        receive(self.constants, self.state, edge, self.end(edge), own, message)

    def primal(self, read: str = "x") -> np.ndarray:
        lag = self.state.scale * np.exp(self.constants.log_decay * (self.position - self.state.time))
        side = (-0.5 if read == "x" else 0.5) * lag[:, None]
        iterate = self.state.centers[:, :, 0] + side * self.state.centers[:, :, 1]
        return np.asarray(iterate * self.constants.inverse_sigma[:, None])

    def dual(self) -> np.ndarray:
        return tip_scalars(self.problem.offsets, self.constants, self.state, self.position, -1.0)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict()


class Adfs(Method):
    """ADFS: decentralised, asynchronous, accelerated, stochastic, proximal.

    Problem
        min_θ Σ_i [Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖²] with a smooth loss, node i holding its own samples.
    Algorithm
        Algorithm 2 of the paper in mean/lag form: an event is a dual coordinate step on one sample at one
        node, or a difference between two neighbours.
    Guarantee
        Theorem 2: the error contracts by 1 − ρ an event, in expectation.

    References
    ----------
        Hendrikx, Bach, Massoulié, "An accelerated decentralized stochastic proximal algorithm for finite
        sums", arXiv 1905.11394.
    """

    name = "adfs"
    kind = "events"
    general = True

    def parameters(
        self,
        problem: Problem | GeneralProblem | NodeSummary,
        network: Network,
        *,
        choice: Any = None,
        tau: float | None = None,
    ) -> Parameters:
        return pick_parameters(problem, network, choice=choice, tau=tau)

    def start(self, setting: Setting) -> EventProcess:
        if isinstance(setting.problem, GeneralProblem):
            return GeneralAdfsProcess(setting)
        return AdfsProcess(setting)

    def position_of(self, parameters: Any, summary: NodeSummary, passes: float) -> float:
        return passes_in_events(parameters.node_probability, summary, passes)


def pick_parameters(
    problem: Problem | GeneralProblem | NodeSummary,
    network: Network,
    *,
    choice: Any = None,
    tau: float | None = None,
) -> Parameters:
    """Return ``"tuned"`` (the default) or ``"paper"`` parameters, or the record that was given."""
    if isinstance(choice, Parameters):
        return choice
    time = math.nan if tau is None else float(tau)
    if choice in (None, "tuned"):
        return Parameters.tuned(problem, network, tau=time)
    if choice == "paper":
        return Parameters.paper(problem, network, tau=time)
    raise unknown_name("choice of parameters", choice, ("tuned", "paper"))


register_method(Adfs())
