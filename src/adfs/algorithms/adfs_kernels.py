"""The kernels of ADFS in the mean/lag form: events of a schedule executed at the speed of the memory.

The literal twin is `MeanLagAdfs` in the tests, which hold these kernels to it.
What makes them fast, and changes nothing else:

- the dual variable of a sample is a multiple of its row, so a sample has two scalars;
- the lag is stored as one scalar per node times a vector, e = scale·ê, and the scalar alone decays: a sample
  with few non-zeros costs its non-zeros. The samples of a node share its scalar and need no time stamp;
- c and ê are the two parts of a complex number: one load and one cache line serve both;
- the events are known in advance, so the rows of the next ones are fetched ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from adfs.algorithms.base import Setting
from adfs.algorithms.method_kernels import fetch_early, fetch_late
from adfs.compilation import AHEAD, compiled, fma, inlined, kernel, overloads, prefetch
from adfs.problem import Samples
from adfs.problem.gaps import ElasticNet, Penalty, Ridge, shrink_rows, shrunk
from adfs.problem.logistic import ROOM_ROWS, multinomial_dual_prox
from adfs.problem.losses import outputs
from adfs.problem.samples import (
    Rows,
    add_shift,
    kind_of,
    label_at,
    plain_label,
    row_column,
    row_entry,
    row_span,
)
from adfs.problem.views import sample_curvature, sample_dual_prox

#: A vector that is stored apart from its scale grows as the scale shrinks. Below this it is folded in,
#: long before either reaches an end of the floating-point range.
SMALLEST_SCALE = 1e-60
_ROOM_ROWS = ROOM_ROWS + 2  # the room of the prox, and the dual variable at v and after the step


class AdfsState(NamedTuple):
    """The variables of a block of nodes.

    Attributes
    ----------
    centers : (n, d) complex
        c + i·ê of each centre; with K outputs of p columns d = K·p, output by output.
    duals : (N·K,) complex
        The same for each sample, as multiples of its row: one per output.
    clocks : (n, 2)
        The scale of each node, e = scale·ê at its centre and its samples alike, and the time of its last
        event, as of which that holds.
    """

    centers: np.ndarray
    duals: np.ndarray
    clocks: np.ndarray


class AdfsConstants(NamedTuple):
    """The constants of an event; nodes are those of the block, edges those of the whole network.

    Attributes
    ----------
    log_decay, beta : float
        log λ, and the loss's smoothness.
    nodes : (n, 3)
        1/σ_i; ρS_i/p_i, which is χ of a sample times √(1 + L/σ_i); α_i/σ_A, which is η̃/L of a sample over χ.
    edges : (E, 2)
        η̃_e and χ_e.
    ends : (E, 2)
        The two nodes of each edge.
    slot : (all nodes,)
        The place of each node in the block, −1 when it lives elsewhere.
    penalty : Ridge or ElasticNet
        The nodes' own terms, without their σ_i.
    """

    log_decay: float
    beta: float
    nodes: np.ndarray
    edges: np.ndarray
    ends: np.ndarray
    slot: np.ndarray
    penalty: Penalty


class AdfsParts(NamedTuple):
    """The arguments of the kernels; ``room`` is working memory for a computation with K outputs."""

    samples: Samples
    constants: AdfsConstants
    state: AdfsState
    room: np.ndarray


def adfs_parts(setting: Setting, mixing: np.ndarray, steps: np.ndarray, edges: np.ndarray) -> AdfsParts:
    """Return the arguments of the kernels at time 0, with all variables 0.

    ``mixing`` and ``steps`` (k,) are the second and the third of the nodes' constants, ``edges`` (E, 2) those
    of the edges.
    """
    problem, parameters, block = setting.problem, setting.parameters, setting.block
    n, n_outputs = problem.n_nodes, problem.n_outputs
    constants = AdfsConstants(
        log_decay=parameters.log_decay,
        beta=problem.samples.loss.beta,
        nodes=np.stack([1.0 / parameters.sigma[block], mixing, steps], axis=1),
        edges=edges,
        ends=setting.network.ends,
        slot=setting.slot,
        penalty=problem.penalty,
    )
    state = AdfsState(
        np.zeros((n, problem.n_features), np.complex128),
        np.zeros(problem.n_samples * n_outputs, np.complex128),
        np.tile([1.0, 0.0], (n, 1)),
    )
    return AdfsParts(problem.samples, constants, state, np.zeros((_ROOM_ROWS, n_outputs)))


@inlined
def decay(parts: AdfsParts, i: int | np.uint64, time: float) -> float:
    """Bring node i to a time and return its scale; the scale is folded into ê before it gets too small."""
    state = parts.state
    scale = state.clocks[i, 0] * math.exp(parts.constants.log_decay * (time - state.clocks[i, 1]))
    state.clocks[i, 1] = time
    if scale < SMALLEST_SCALE:
        # Rare: once in some hundred passes. Fold the scale into ê of the centre and of all samples.
        for k in range(state.centers.shape[1]):
            state.centers[i, k] = complex(state.centers[i, k].real, scale * state.centers[i, k].imag)
        node_starts, n_outputs = parts.samples.node_starts, outputs(parts.samples.loss)
        for j in range(node_starts[i] * n_outputs, node_starts[i + 1] * n_outputs):
            state.duals[j] = complex(state.duals[j].real, scale * state.duals[j].imag)
        scale = 1.0
    state.clocks[i, 0] = scale
    return scale  # type: ignore[no-any-return]


def compute(parts: Any, i: np.uint64, j: np.uint64, time: float) -> None:
    """Do one computation: the block's node i, its sample at row j (unsigned, so that no index is wrapped)."""
    raise NotImplementedError("compiled code only")


def share_at(parts: Any, i: int, time: float) -> float:
    """Bring node i to a time; return the share of the imaginary part of its centre in x_i."""
    raise NotImplementedError("compiled code only")


def moves_at(parts: Any, edge: int, i: int, time: float) -> tuple[float, float, float]:
    """Return an edge's step, and the shares of it that move the two parts of the centre of its end i."""
    raise NotImplementedError("compiled code only")


@inlined
def center_products(
    rows: Rows, j: np.uint64, center: np.ndarray, first: np.uint64
) -> tuple[float, float, float]:
    """Return the products of row j with both parts of a centre, from column ``first`` on, and ‖x_j‖²."""
    start, stop = row_span(rows, j)
    along_real = 0.0
    along_imag = 0.0
    norm = 0.0
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        pair = center[first + row_column(rows, j, k)]
        along_real += entry * pair.real
        along_imag += entry * pair.imag
        norm += entry * entry
    return along_real, along_imag, norm


@inlined
def move_center(
    rows: Rows, j: np.uint64, center: np.ndarray, first: np.uint64, real: float, imag: float
) -> None:
    """Subtract multiples of row j from both parts of a centre, from column ``first`` on."""
    start, stop = row_span(rows, j)
    # Only the non-zeros of the row: they are what a sample costs.
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        column = first + row_column(rows, j, k)
        pair = center[column]
        center[column] = complex(pair.real - real * entry, pair.imag - imag * entry)


def _along(
    penalty: Penalty, parts: AdfsParts, i: np.uint64, j: np.uint64, half: float, first: np.uint64
) -> tuple[float, float]:
    """Return σ_i times the margin of row j at node i, ``first`` its output's first column, and ‖x_j‖²."""
    raise NotImplementedError("compiled code only")


def _along_plain(
    penalty: Ridge, parts: AdfsParts, i: np.uint64, j: np.uint64, half: float, first: np.uint64
) -> tuple[float, float]:
    along_mean, along_lag, norm = center_products(parts.samples.rows, j, parts.state.centers[i], first)
    return along_mean - half * along_lag, norm


def _along_shrunk(
    penalty: ElasticNet, parts: AdfsParts, i: np.uint64, j: np.uint64, half: float, first: np.uint64
) -> tuple[float, float]:
    rows, center = parts.samples.rows, parts.state.centers[i]
    start, stop = row_span(rows, j)
    along = 0.0
    norm = 0.0
    for k in range(start, stop):
        entry = row_entry(rows, j, k)
        column = first + row_column(rows, j, k)
        pair = center[column]
        along += entry * shrunk(penalty, i, column, pair.real - half * pair.imag)
        norm += entry * entry
    return along, norm


overloads(_along)(lambda penalty, *others: _along_shrunk if kind_of(penalty) is ElasticNet else _along_plain)


def _compute_one(parts: AdfsParts, i: np.uint64, j: np.uint64, time: float) -> None:
    samples, constants, state = parts.samples, parts.constants, parts.state
    scale = decay(parts, i, time)
    # The margin of the sample at x_i/σ_i, with x = c − e/2.
    along, norm = _along(constants.penalty, parts, i, j, 0.5 * scale, np.uint64(0))
    inverse_sigma = constants.nodes[i, 0]
    step = constants.nodes[i, 2]
    margin = along * inverse_sigma
    dual = state.duals[j]
    half_lag = 0.5 * scale * dual.imag
    # χ and η̃ of the sample's virtual edge, from the sample's own smoothness.
    weight = samples.weights[j]
    curvature = weight * sample_curvature(samples.loss, constants.beta, j)
    mixing = constants.nodes[i, 1] / math.sqrt(1.0 + curvature * norm * inverse_sigma)
    h = step * mixing * curvature
    at_v = dual.real + half_lag
    # h·x_s/(wβ) without the division by wβ, which h contains
    zeta = at_v + h * margin - step * mixing * (dual.real - half_lag)
    change = sample_dual_prox(samples.loss, j, zeta, h, label_at(samples.y, j), weight, margin) - at_v
    # The jump of c and ê: at the sample with a plus, at the centre with a minus, along the row.
    to_mean = 0.5 * (1.0 + mixing) * change
    to_lag = (1.0 - mixing) / scale * change
    state.duals[j] = complex(dual.real + to_mean, dual.imag + to_lag)
    move_center(samples.rows, j, state.centers[i], np.uint64(0), to_mean, to_lag)


def _compute_several(parts: AdfsParts, i: np.uint64, j: np.uint64, time: float) -> None:
    # As with one output, but with K margins, K numbers per dual variable, and one prox of all of them.
    samples, constants, state = parts.samples, parts.constants, parts.state
    n_outputs = outputs(samples.loss)
    width = state.centers.shape[1] // n_outputs
    margins, at_v, moved = parts.room[0], parts.room[ROOM_ROWS], parts.room[ROOM_ROWS + 1]
    scale = decay(parts, i, time)
    inverse_sigma = constants.nodes[i, 0]
    norm = 0.0
    for output in range(n_outputs):
        along, norm = _along(constants.penalty, parts, i, j, 0.5 * scale, np.uint64(output * width))
        margins[output] = along * inverse_sigma
    step = constants.nodes[i, 2]
    weight = samples.weights[j]
    curvature = weight * constants.beta
    mixing = constants.nodes[i, 1] / math.sqrt(1.0 + curvature * norm * inverse_sigma)
    h = step * mixing * curvature
    first_dual = np.int64(j) * n_outputs
    # The point of the prox, output by output.
    for output in range(n_outputs):
        dual = state.duals[first_dual + output]
        half_lag = 0.5 * scale * dual.imag
        at_v[output] = dual.real + half_lag
        moved[output] = at_v[output] + h * margins[output] - step * mixing * (dual.real - half_lag)
    # The offsets of the margins enter as h times the offset; then one prox moves all outputs.
    add_shift(samples.y, j, h, moved)
    add_shift(samples.y, j, 1.0, margins)
    multinomial_dual_prox(moved, h, int(plain_label(samples.y, j)), weight, parts.room)
    # The jumps of the dual variable and of the centre.
    for output in range(n_outputs):
        change = moved[output] - at_v[output]
        to_mean = 0.5 * (1.0 + mixing) * change
        to_lag = (1.0 - mixing) / scale * change
        dual = state.duals[first_dual + output]
        state.duals[first_dual + output] = complex(dual.real + to_mean, dual.imag + to_lag)
        move_center(samples.rows, j, state.centers[i], np.uint64(output * width), to_mean, to_lag)


@overloads(compute)
def _compute(
    parts: types.Type, i: types.Type, j: types.Type, time: types.Type
) -> Callable[..., object] | None:
    if kind_of(parts) is not AdfsParts:  # another method registers its own
        return None
    samples = parts.types[parts.fields.index("samples")]
    loss = kind_of(samples.types[samples.fields.index("loss")])
    return _compute_several if getattr(loss, "several_outputs", False) else _compute_one


def _share(parts: AdfsParts, i: int, time: float) -> float:
    return -0.5 * decay(parts, i, time)


def _moves(parts: AdfsParts, edge: int, i: int, time: float) -> tuple[float, float, float]:
    step, mixing = parts.constants.edges[edge, 0], parts.constants.edges[edge, 1]
    return step, 0.5 * (1.0 + mixing), (1.0 - mixing) / parts.state.clocks[i, 0]


overloads(share_at)(lambda parts, i, time: _share if kind_of(parts) is AdfsParts else None)
overloads(moves_at)(lambda parts, edge, i, time: _moves if kind_of(parts) is AdfsParts else None)


@inlined
def _exchange(parts: Any, edge: int, time: float) -> None:
    """Do one communication between two nodes of the block."""
    constants, state = parts.constants, parts.state
    i = constants.slot[constants.ends[edge, 0]]
    j = constants.slot[constants.ends[edge, 1]]
    # Bring both ends to the time of the event; then one loop moves both centres.
    share = (share_at(parts, i, time), share_at(parts, j, time))
    step, to_real, imag_i = moves_at(parts, edge, i, time)
    _, _, imag_j = moves_at(parts, edge, j, time)
    inverse = (constants.nodes[i, 0], constants.nodes[j, 0])
    pair = (state.centers[i], state.centers[j])
    _exchange_vectors(pair, share, inverse, step, to_real, (imag_i, imag_j), constants.penalty, (i, j))


@kernel
def _exchange_vectors(
    centers: tuple[np.ndarray, np.ndarray],
    share: tuple[float, float],
    inverse: tuple[float, float],
    step: float,
    to_real: float,
    to_imag: tuple[float, float],
    penalty: Penalty,
    nodes: tuple[int, int],
) -> None:
    """Move two centres; a function of its own, whose loop LLVM turns into vector instructions."""
    first, second = centers
    for k in range(first.size):
        a = first[k]
        b = second[k]
        at_first = shrunk(penalty, nodes[0], k, fma(share[0], a.imag, a.real)) * inverse[0]
        at_second = shrunk(penalty, nodes[1], k, fma(share[1], b.imag, b.real)) * inverse[1]
        change = step * (at_first - at_second)
        first[k] = complex(fma(-to_real, change, a.real), fma(-to_imag[0], change, a.imag))
        second[k] = complex(fma(to_real, change, b.real), fma(to_imag[1], change, b.imag))


@kernel
def center_iterate(parts: Any, i: int, time: float, out: np.ndarray) -> None:
    """Write θ_i = x_i/σ_i of the block's node i at a time: what it sends its neighbours; ``out`` (d,)."""
    state, constants = parts.state, parts.constants
    share = share_at(parts, i, time)
    inverse = constants.nodes[i, 0]
    for k in range(out.size):
        at_center = fma(share, state.centers[i, k].imag, state.centers[i, k].real)
        out[k] = shrunk(constants.penalty, i, k, at_center) * inverse


@kernel
def receive(parts: Any, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    """Finish a communication at the block's node i, from its own and its neighbour's θ at that event."""
    # Both ends compute the same change from the same vectors, and negation is exact: the bits of `_exchange`.
    constants = parts.constants
    step, to_real, to_imag = moves_at(parts, edge, i, time)
    # The difference as at the first end, so that where it is 0 it has the same sign.
    if constants.slot[constants.ends[edge, 0]] == i:
        side, first, second = 1.0, own, other
    else:
        side, first, second = -1.0, other, own
    to_real, to_imag = to_real * side, to_imag * side
    center = parts.state.centers[i]
    for k in range(own.size):
        change = step * (first[k] - second[k])
        center[k] = complex(fma(-to_real, change, center[k].real), fma(-to_imag, change, center[k].imag))


@kernel
def run_events(
    parts: Any, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    """Execute events first … last − 1, of ADFS or of NS-ADFS.

    Stop before an event that needs a node of another block, and return its index.
    """
    samples, constants, state = parts.samples, parts.constants, parts.state
    slot, ends = constants.slot, constants.ends
    n = slot.size
    for t in range(first, last):
        # Coming events are requested in two steps: labels, pointers and edges first, then rows and nodes.
        if t + 2 * AHEAD < last:
            fetch_early(samples, state.duals, drawn[t + 2 * AHEAD])
            # A computation asks for the first edge: a branch that nobody can predict would cost more.
            edge = max(np.int64(actors[t + 2 * AHEAD]) - n, 0)
            prefetch(ends, 2 * edge)
            prefetch(constants.edges, 2 * edge)
            fetch_late(parts, actors[t + AHEAD], drawn[t + AHEAD])
        # Actors below n are nodes, which compute; the others are edges, which communicate.
        actor = actors[t]
        if actor < n:
            compute(parts, np.uint64(slot[actor]), np.uint64(drawn[t]), times[t])
        else:
            edge = actor - n
            if slot[ends[edge, 0]] < 0 or slot[ends[edge, 1]] < 0:
                return t
            _exchange(parts, edge, times[t])
    return last


@compiled
def dual_scalars(parts: AdfsParts, time: float, side: float) -> np.ndarray:
    """Return c + side·e/2 of every dual variable at a time, ``side`` −1 for x and +1 for v; (N·K,)."""
    constants, state, node_starts = parts.constants, parts.state, parts.samples.node_starts
    n_outputs = outputs(parts.samples.loss)
    out = np.empty(state.duals.size)
    for i in range(state.clocks.shape[0]):
        # The lag has decayed since the node's last event.
        idle = math.exp(constants.log_decay * (time - state.clocks[i, 1]))
        half = 0.5 * side * state.clocks[i, 0] * idle
        for j in range(node_starts[i] * n_outputs, node_starts[i + 1] * n_outputs):
            out[j] = state.duals[j].real + half * state.duals[j].imag
    return out


def center_iterates(parts: AdfsParts, time: float, read: str) -> np.ndarray:
    """Return θ_i of the block's nodes at x or v as of one time, (k, d); x_i/σ_i without an ℓ1 term."""
    constants, state = parts.constants, parts.state
    lag = state.clocks[:, 0] * np.exp(constants.log_decay * (time - state.clocks[:, 1]))
    side = (-0.5 if read == "x" else 0.5) * lag[:, None]
    iterate = state.centers.real + side * state.centers.imag
    return np.asarray(shrink_rows(constants.penalty, iterate) * constants.nodes[:, 0, None])
