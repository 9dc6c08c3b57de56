"""L-BFGS: a gradient summed over the nodes per round, and directions from the last few of them."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from adfs.algorithms.base import Method, OnePoint, RoundEffort, Setting, register_method
from adfs.algorithms.hessian_kernels import inner_product, masked_square
from adfs.algorithms.method_kernels import RoundKernels, register_round_kernels
from adfs.algorithms.round_process import LocalRounds
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.problem.evaluation import fill_margins, fill_table, read_table, table_strides
from adfs.problem.losses import value_and_slope
from adfs.problem.samples import add_shift, plain_label, row_column, row_entry, row_span
from adfs.theory import Facts, LbfgsParameters, NodeSizes, NodeSummary

PAIRS = 20
_ARMIJO, _WOLFE = 1e-4, 0.9
_FLAT = 2.0**-48  # changes of F below this, relative to F, are rounding
_MOST_TRIES = 40
# What a search along a direction remembers: F and its slope at the last point that was taken, how much of the
# direction is tried, the parts known to be too short and too long, and the number of tries. Then: how many
# pairs there are, where the next goes, whether the scales have come, and whether it can go no further.
_VALUE, _SLOPE, _PART, _SHORT, _LONG, _TRIES, _PAIRS, _NEXT, _BEGUN, _STUCK = range(10)


class LbfgsParts(NamedTuple):
    """All that the kernels below need.

    ``points`` (3, d) holds where F is looked at next, the last point that was taken and the direction from
    there; ``slopes`` (2, d) the gradient at the latter and what the features are scaled by; ``pairs``
    (2, m, d) steps and what the gradient changed by over them; ``products`` (2, m) theirs and room; ``room``
    (K,) margins; ``tables`` (3, d) those of the point, the gradient and the mask. ``mask`` (d,) is 0 for the
    columns without a penalty and 1 for the others.
    """

    samples: Samples
    sigma: np.ndarray
    mask: np.ndarray
    beta: float
    points: np.ndarray
    slopes: np.ndarray
    pairs: np.ndarray
    products: np.ndarray
    search: np.ndarray
    room: np.ndarray
    tables: np.ndarray


@kernel
def _begin(parts: LbfgsParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last and parts.search[_BEGUN] == 0.0:
        _fill_scales(parts, out)
    elif t < last:
        _fill_gradients(parts, out)
    return t


@kernel
def _fill_scales(parts: LbfgsParts, out: np.ndarray) -> None:
    """Write the diagonal of each node's largest Hessian, Σ_j wβx² + σ per feature."""
    samples = parts.samples
    width = parts.points.shape[1]
    for i in range(out.shape[0]):
        for k in range(width):
            out[i, k] = parts.sigma[i] * parts.mask[k]
        out[i, width] = 0.0
        for j in range(samples.node_starts[i], samples.node_starts[i + 1]):
            factor = samples.weights[j] * parts.beta
            start, stop = row_span(samples.rows, j)
            for output in range(parts.room.size):
                first = np.uint64(output * (width // parts.room.size))
                for k in range(start, stop):
                    entry = row_entry(samples.rows, j, k)
                    out[i, first + row_column(samples.rows, j, k)] += factor * entry * entry


@kernel
def _fill_gradients(parts: LbfgsParts, out: np.ndarray) -> None:
    """Write ∇f_i and f_i at the point to look at, (k, d + 1)."""
    samples, margins = parts.samples, parts.room
    theta, loss = parts.points[0], samples.loss
    width, rows = theta.size, samples.rows
    feature, output = table_strides(rows, width // margins.size, margins.size)
    square = masked_square(parts.mask, theta)
    table, pull, mask = parts.tables[0], parts.tables[1], parts.tables[2]
    fill_table(rows, theta, margins.size, table)
    fill_table(rows, parts.mask, margins.size, mask)
    for i in range(out.shape[0]):
        for k in range(width):
            pull[k] = parts.sigma[i] * mask[k] * table[k]
        total, carry = 0.0, 0.0
        for j in range(samples.node_starts[i], samples.node_starts[i + 1]):
            label, weight = plain_label(samples.y, j), samples.weights[j]
            fill_margins(rows, j, table, margins)
            add_shift(samples.y, j, 1.0, margins)
            # Summed with what rounding takes: near the optimum F hardly changes.
            term = weight * value_and_slope(loss, margins, label, weight) - carry
            following = total + term
            carry = (following - total) - term
            total = following
            start, stop = row_span(rows, j)
            for number in range(margins.size):
                first, factor = np.uint64(number) * output, margins[number]
                for k in range(start, stop):
                    pull[first + row_column(rows, j, k) * feature] += factor * row_entry(rows, j, k)
        read_table(rows, pull, margins.size, out[i])
        out[i, width] = total + 0.5 * parts.sigma[i] * square


@kernel
def _end(parts: LbfgsParts, t: int, heard: np.ndarray) -> int:
    search, gradient = parts.search, heard[0, :-1]
    if search[_BEGUN] == 0.0:
        search[_BEGUN] = 1.0
        for k in range(gradient.size):
            parts.slopes[1, k] = 1.0 / gradient[k] if gradient[k] > 0.0 else 1.0
        return t
    if search[_STUCK] == 0.0:
        verdict = _judge(search, heard[0, -1], gradient, parts.points[2])
        if verdict == 0:
            _take(parts, heard[0, -1], gradient)
        else:
            _try_another(parts, verdict)
    return t + 1


@kernel
def _judge(search: np.ndarray, found: float, gradient: np.ndarray, move: np.ndarray) -> int:
    """Return 0 for a point that is good enough, 1 for one too far and −1 for one not far enough."""
    part, slope = search[_PART], search[_SLOPE]
    if part == 0.0:  # nothing to compare with
        return 0
    after = inner_product(gradient, move)
    # Where F no longer tells the points apart its slope along the direction still does.
    flat = -part * slope <= _FLAT * abs(search[_VALUE])
    if not (after <= -_WOLFE * slope if flat else found <= search[_VALUE] + _ARMIJO * part * slope):
        return 1
    return -1 if after < _WOLFE * slope else 0


@kernel
def _take(parts: LbfgsParts, found: float, gradient: np.ndarray) -> None:
    """Take the point: keep the pair, and find the next direction and the point a whole step along it."""
    search, slopes = parts.search, parts.slopes
    point, anchor = parts.points[0], parts.points[1]
    if search[_PART] > 0.0:
        place = int(search[_NEXT])
        step, change = parts.pairs[0, place], parts.pairs[1, place]
        for k in range(point.size):
            step[k] = point[k] - anchor[k]
            change[k] = gradient[k] - slopes[0, k]
        product = inner_product(step, change)
        if product > 0.0:
            parts.products[0, place] = product
            search[_NEXT] = (place + 1) % parts.pairs.shape[1]
            search[_PAIRS] = min(search[_PAIRS] + 1.0, float(parts.pairs.shape[1]))
    for k in range(point.size):
        anchor[k], slopes[0, k] = point[k], gradient[k]
    search[_VALUE] = found
    _set_out(parts)


@kernel
def _set_out(parts: LbfgsParts) -> None:
    """Find the direction at the last point that was taken, and go a whole step along it."""
    search, gradient = parts.search, parts.slopes[0]
    point, anchor, move = parts.points[0], parts.points[1], parts.points[2]
    _find_direction(parts)
    search[_SLOPE] = inner_product(gradient, move)
    search[_PART], search[_SHORT], search[_LONG], search[_TRIES] = 1.0, 0.0, math.inf, 0.0
    if not search[_SLOPE] < 0.0:
        search[_STUCK] = 1.0
        return
    for k in range(point.size):
        point[k] = anchor[k] + move[k]


@kernel
def _find_direction(parts: LbfgsParts) -> None:
    """Write −H∇F, H the inverse Hessian that the pairs tell of: the two loops over them."""
    steps, changes, products = parts.pairs[0], parts.pairs[1], parts.products[0]
    move, gradient, scales, along = parts.points[2], parts.slopes[0], parts.slopes[1], parts.products[1]
    count, room = int(parts.search[_PAIRS]), products.size
    newest = int(parts.search[_NEXT]) - 1
    for k in range(move.size):
        move[k] = -gradient[k]
    for number in range(count):
        place = (newest - number) % room
        along[place] = inner_product(steps[place], move) / products[place]
        for k in range(move.size):
            move[k] -= along[place] * changes[place, k]
    factor = 1.0
    if count > 0:
        place = newest % room
        squares = 0.0
        for k in range(move.size):
            squares += changes[place, k] * changes[place, k] * scales[k]
        factor = products[place] / squares if squares > 0.0 else 1.0
    for k in range(move.size):
        move[k] *= factor * scales[k]
    for number in range(count - 1, -1, -1):
        place = (newest - number) % room
        back = along[place] - inner_product(changes[place], move) / products[place]
        for k in range(move.size):
            move[k] += back * steps[place, k]


@kernel
def _try_another(parts: LbfgsParts, verdict: int) -> None:
    """Go elsewhere along the direction; forget the pairs where it leads nowhere, and stop without any."""
    search = parts.search
    point, anchor, move = parts.points[0], parts.points[1], parts.points[2]
    search[_TRIES] += 1.0
    if search[_TRIES] >= _MOST_TRIES:
        for k in range(point.size):
            point[k] = anchor[k]
        if search[_PAIRS] == 0.0:
            search[_STUCK] = 1.0
            return
        search[_PAIRS], search[_NEXT] = 0.0, 0.0
        _set_out(parts)
        return
    search[_LONG if verdict > 0 else _SHORT] = search[_PART]
    if search[_LONG] < math.inf:
        shrink = 0.25 if search[_SHORT] == 0.0 else 0.5
        search[_PART] = search[_SHORT] + shrink * (search[_LONG] - search[_SHORT])
    else:
        search[_PART] *= 4.0
    for k in range(point.size):
        point[k] = anchor[k] + search[_PART] * move[k]


class LbfgsProcess(OnePoint, LocalRounds):
    """L-BFGS in progress over a block of nodes, which all hold the same iterate."""

    kernels = register_round_kernels(LbfgsParts, RoundKernels(_begin, _end))
    parts: LbfgsParts
    sums = True

    def __init__(self, setting: Setting[LbfgsParameters]) -> None:
        super().__init__(setting)
        d = self.problem.n_features
        self.message_shape = (self.problem.n_nodes, d + 1)
        self.parts = LbfgsParts(
            self.samples,
            self.problem.sigma,
            self.problem.ridge_mask,
            float(self.samples.loss.beta),
            np.zeros((3, d)),
            np.zeros((2, d)),
            np.zeros((2, PAIRS, d)),
            np.zeros((2, PAIRS)),
            np.zeros(10),
            np.empty(self.problem.n_outputs),
            np.empty((3, d)),
        )

    @property
    def point(self) -> np.ndarray:
        return np.asarray(self.parts.points[1])

    def place_at(self, theta: np.ndarray) -> None:
        self.parts.points[:2] = theta

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            name: getattr(self.parts, name) for name in ("points", "slopes", "pairs", "products", "search")
        }

    @property
    def seen(self) -> tuple[float, np.ndarray]:
        return float(self.parts.search[_VALUE]), self.parts.slopes[0]

    @property
    def stuck(self) -> bool:
        return bool(self.parts.search[_STUCK])


class Lbfgs(Method[LbfgsParameters]):
    """L-BFGS: quasi-Newton steps from the last 20 gradients, summed over the nodes; for many features.

    Problem
        min_θ F(θ), smooth and strongly convex, with one output or several.
    Algorithm
        θ ← θ − t·B∇F, B from the last 20 steps by BFGS, starting from the diagonal of the largest Hessian;
        t by the conditions of Armijo and Wolfe. A round is one look at F and ∇F.
    Guarantee
        F decreases at every step; what theory promises of the rate is far below what is seen.

    References
    ----------
        Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.
    """

    name = "lbfgs"
    kind: ClassVar[str] = "rounds"
    unpenalised_columns = True
    warm_starts = True
    by_gradients = True
    several_outputs = True
    checks_every_round = True

    record, process = LbfgsParameters, LbfgsProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: LbfgsParameters.theory(problem, network)}
    )

    def predicted_position(
        self, parameters: LbfgsParameters, facts: Facts, summary: NodeSummary, tol: float
    ) -> float:
        # Once the Hessian is scaled to a diagonal of ones, λ_max is at most the number of entries of a row;
        # columns of sparse rows are then nearly orthogonal. Rounds lie between the root of the condition
        # number and its logarithm: a cube root matched ten runs within a factor of three.
        condition = facts.kappa_b
        if facts.entries_per_row is not None:
            condition = min(condition, 1.0 + facts.entries_per_row)
        return 0.3 * math.log(1.0 / tol) * math.cbrt(condition)

    def effort(self, parameters: LbfgsParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0, hops=parameters.hops)


register_method(Lbfgs())
