"""Compiled code that methods share: calls of kernels, loops over rounds, work on rows, prefetching.

A method's events or rounds are a few compiled functions of one named tuple, its *parts*. The table below maps
the named tuple to the functions, so that a compiled loop can call those of any method, also of methods from
outside the package.

- Events have three functions. The exchange of messages over MPI calls `execute`, `fill_message` and
  `take_message`.
- Rounds have two. `begin` goes on until it needs the product of values with the gossip matrix, `end` takes
  that product. With all nodes in one process `run_rounds` is one compiled loop over both; between several,
  `go_on` is one call from a product to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, SupportsIndex, TypeVar

import numpy as np
from numba import types

from adfs.compilation import inlined, kernel, overloads, prefetch
from adfs.errors import InputError
from adfs.problem.losses import Loss, derivative, dual_prox, outputs
from adfs.problem.samples import (
    DenseRows,
    Label,
    Rows,
    Samples,
    ShiftedLabels,
    SparseRows,
    kind_of,
    label_at,
    row_column,
    row_entry,
    row_span,
)
from adfs.problem.views import Boxed

_LINE = 64  # bytes in a cache line
_MOST_LINES = 8  # of a row; after these the processor's own prefetcher has recognised the pattern


class EventKernels(NamedTuple):
    """An event, as compiled functions of a method's parts.

    Attributes
    ----------
    run : callable
        ``run(parts, times, actors, samples, first, last) -> int``: execute events first … last − 1; stop
        before a communication with a node of another block, and return how far it got.
    outgoing : callable
        ``outgoing(parts, i, time, out)``: write what the block's node i sends at a communication to ``out``.
    incoming : callable
        ``incoming(parts, edge, i, time, own, other)``: finish a communication at node i, from what it sent
        and what it received.
    """

    run: Callable[..., int]
    outgoing: Callable[..., None]
    incoming: Callable[..., None]


class RoundKernels(NamedTuple):
    """A round, as compiled functions of a method's parts.

    Attributes
    ----------
    begin : callable
        ``begin(parts, t, last, out) -> int``: go on from round t until a product is needed, write its values
        to ``out`` (k, d), and return its round; or return ``last`` when that comes first.
    end : callable
        ``end(parts, t, received) -> int``: go on with the product ``received`` (k, d), which may be
        overwritten; return t + 1, or t when the round needs a further product.
    """

    begin: Callable[..., int]
    end: Callable[..., int]


Parts = tuple[object, ...]
Kernels = TypeVar("Kernels", EventKernels, RoundKernels)

_KERNELS: dict[type, EventKernels | RoundKernels] = {}


def register_kernels(parts: type, kernels: Kernels) -> Kernels:
    """Register the kernels that belong to a named tuple of parts, and return them.

    Parameters
    ----------
    parts : type
        A ``NamedTuple`` of arrays, numbers and further named tuples, one for each method.
    kernels : EventKernels or RoundKernels
        Made with `adfs.compilation.kernel`.
    """
    if not (issubclass(parts, tuple) and hasattr(parts, "_fields")):
        raise InputError(f"the parts of a method must be a NamedTuple, got {parts.__name__}")
    _KERNELS[parts] = kernels
    return kernels


def _calls_kernel(name: str) -> Callable[..., Any]:
    """Return a function that compiled code calls with a method's parts; it runs their kernel of that name."""

    def target(parts: Parts, *arguments: object) -> Any:
        raise NotImplementedError("compiled code only")

    def choose(parts: types.Type, *arguments: types.Type) -> Callable[..., object] | None:
        kind = kind_of(parts)
        registered = None if kind is None else _KERNELS.get(kind)
        if registered is None:
            return None
        run = getattr(registered, name)
        # A function around the kernel: numba would compile the kernel itself anew, with references counted.
        return lambda parts, *arguments: run(parts, *arguments)  # noqa: PLW0108

    overloads(target)(choose)
    return target


execute = _calls_kernel("run")
fill_message = _calls_kernel("outgoing")
take_message = _calls_kernel("incoming")
_begin = _calls_kernel("begin")
_end = _calls_kernel("end")


# --------------------------------------------------------------------------- loops over rounds


@kernel
def row_products(rows: SparseRows, values: np.ndarray, out: np.ndarray) -> None:
    """Write the product of rows with values (m, d), each row summed in the order it is stored; (rows, d)."""
    # The same order wherever the values come from: the same bits in any runtime.
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 0.0
        for position in range(rows.indptr[i], rows.indptr[i + 1]):
            weight = rows.data[position]
            j = rows.indices[position]
            for k in range(out.shape[1]):
                out[i, k] += weight * values[j, k]


@inlined
def _totals(values: np.ndarray, out: np.ndarray) -> None:
    """Write the sum over all nodes, in their order, to every row."""
    for k in range(out.shape[1]):
        out[0, k] = 0.0
    for i in range(values.shape[0]):
        for k in range(out.shape[1]):
            out[0, k] += values[i, k]
    for i in range(1, out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = out[0, k]


@kernel
def run_rounds(
    parts: Parts,
    rows: SparseRows,
    sums: bool,
    t: int,
    last: int,
    room: tuple[np.ndarray, np.ndarray],
) -> int:
    """Go from round t to round ``last`` with all nodes here; return how many products were taken.

    ``sums`` says that a product is the sum over all nodes instead; ``room`` is two arrays (n, d).
    """
    # One compiled loop: between two products nothing returns to the interpreter.
    out, received = room
    products = 0
    while True:
        t = _begin(parts, t, last, out)
        if t >= last:
            return products
        if sums:
            _totals(out, received)
        else:
            row_products(rows, out, received)
        products += 1
        t = _end(parts, t, received)


@kernel
def go_on(parts: Parts, t: int, last: int, out: np.ndarray, received: np.ndarray, arrived: bool) -> int:
    """Take the product of round t if it ``arrived``; go on until the next one is needed, as `begin` does."""
    if arrived:
        t = _end(parts, t, received)
    return int(_begin(parts, t, last, out))


# --------------------------------------------------------------------------- work on rows and vectors


@inlined
def row_margin(rows: Rows, j: SupportsIndex, vector: np.ndarray) -> float:
    """Return x_jᵀv, summed in the order in which the row is stored."""
    start, stop = row_span(rows, j)
    total = 0.0
    for k in range(start, stop):
        total += row_entry(rows, j, k) * vector[row_column(rows, j, k)]
    return total


@inlined
def add_row(rows: Rows, j: SupportsIndex, factor: float, out: np.ndarray) -> None:
    """Add a multiple of row j to a vector (d,)."""
    start, stop = row_span(rows, j)
    for k in range(start, stop):
        out[row_column(rows, j, k)] += factor * row_entry(rows, j, k)


@inlined
def add_gradient(samples: Samples, i: int, theta: np.ndarray, out: np.ndarray) -> None:
    """Add Σ_j w_ij ℓ'(x_ijᵀθ) x_ij of node i to a vector, sample after sample; both (d,)."""
    for j in range(samples.node_starts[i], samples.node_starts[i + 1]):
        # The slope of the loss times the row is the sample's part of the gradient.
        margin = row_margin(samples.rows, j, theta)
        pull = samples.weights[j] * derivative(samples.loss, margin, label_at(samples.y, j))
        add_row(samples.rows, j, pull, out)


@kernel
def node_gradients(samples: Samples, sigma: np.ndarray, theta: np.ndarray, out: np.ndarray) -> None:
    """Write ∇f_i(θ_i) = Σ_j w_ij ℓ'(x_ijᵀθ_i) x_ij + σ_iθ_i for each node, ``theta`` and ``out`` (k, d)."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = sigma[i] * theta[i, k]
        add_gradient(samples, i, theta[i], out[i])


@inlined
def prox_slope(loss: Loss, beta: float, target: float, step: float, b: Label, start: float) -> float:
    """Return ℓ'(u) at the root of u + step·ℓ'(u) = target: the prox of any smooth ℓ, through its dual."""
    # Moreau: the slope is the dual prox at the same point, with the inverse step.
    h = 1.0 / (step + 1.0 / beta)
    return dual_prox(loss, target * h, h, b, start)


@inlined
def exchange_messages(parts: Any, edge: int, time: float) -> bool:
    """Do an exchange of two nodes by their messages; return whether both are in this block.

    The parts have ``ends`` and ``slot`` as a process has them, and room for two ``messages`` (2, d).
    """
    i = parts.slot[parts.ends[edge, 0]]
    j = parts.slot[parts.ends[edge, 1]]
    if i < 0 or j < 0:
        return False
    first, second = parts.messages[0], parts.messages[1]
    # Both messages first, from the same state, as if the nodes were in different processes.
    fill_message(parts, i, time, first)
    fill_message(parts, j, time, second)
    take_message(parts, edge, i, time, first, second)
    take_message(parts, edge, j, time, second, first)
    return True


@inlined
def extrapolate(now: np.ndarray, before: np.ndarray, out: np.ndarray) -> None:
    """Write 2·now − before, all (k, d)."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 2.0 * now[i, k] - before[i, k]


# --------------------------------------------------------------------------- prefetching


def fetch_early(samples: Samples, duals: np.ndarray, j: int) -> None:
    """Prefetch the label, weight and dual variable of row j, and for CSR the pointer to the row."""


def fetch_row(rows: Rows, j: int) -> None:
    """Prefetch row j."""


def fetch_late(parts: Any, actor: int, j: int) -> None:
    """Prefetch row j and what it moves, or both ends of an exchange, from parts with the names of ADFS's."""


@inlined
def _fetch_span(array: np.ndarray, start: np.int64, stop: np.int64) -> None:
    # One request per cache line, and one for the end of the span.
    line = _LINE // array.itemsize
    end = min(stop, start + line * _MOST_LINES)
    for k in range(start, end, line):
        prefetch(array, k)
    prefetch(array, end - 1)


@overloads(fetch_early)
def _fetch_early(samples: types.Type, duals: types.Type, j: types.Type) -> Callable[..., object] | None:
    # The kinds of labels, rows and loss are known at compile time, so that no branch is left at run time.
    shifted = kind_of(samples.types[samples.fields.index("y")]) is ShiftedLabels
    pointers = kind_of(samples.types[samples.fields.index("rows")]) is SparseRows
    boxed = kind_of(samples.types[samples.fields.index("loss")]) is Boxed

    def fetch(samples: Any, duals: np.ndarray, j: int) -> None:
        if j >= 0:
            if shifted:
                prefetch(samples.y.values, np.int64(j))
            else:
                prefetch(samples.y, np.int64(j))
            prefetch(samples.weights, np.int64(j))
            # A dual variable is K complex numbers of 16 bytes.
            for k in range(0, outputs(samples.loss), _LINE // 16):
                prefetch(duals, np.int64(j) * outputs(samples.loss) + k)
            if boxed:
                prefetch(samples.loss.curvature, np.int64(j))
                prefetch(samples.loss.ends, np.int64(j) * 4)
            if pointers:
                prefetch(samples.rows.indptr, np.int64(j))

    return fetch


@overloads(fetch_row)
def _fetch_row(rows: types.Type, j: types.Type) -> Callable[..., object] | None:
    def dense(rows: DenseRows, j: int) -> None:
        columns = np.int64(rows.values.shape[1])
        _fetch_span(rows.values, j * columns, (j + 1) * columns)

    def sparse(rows: SparseRows, j: int) -> None:
        start, stop = np.int64(rows.indptr[j]), np.int64(rows.indptr[j + 1])
        if stop > start:
            _fetch_span(rows.data, start, stop)
            _fetch_span(rows.indices, start, stop)

    return dense if kind_of(rows) is DenseRows else sparse


@overloads(fetch_late)
def _fetch_late(parts: types.Type, actor: types.Type, j: types.Type) -> Callable[..., object]:
    samples, state = (parts.types[parts.fields.index(name)] for name in ("samples", "state"))
    dense = kind_of(samples.types[samples.fields.index("rows")]) is DenseRows
    clocks = "clocks" in state.fields

    def fetch(parts: Any, actor: int, j: int) -> None:
        constants, centers = parts.constants, parts.state.centers
        slot, width = constants.slot, np.int64(centers.shape[1])
        # An event without a sample is an exchange. One branch: which it is cannot be predicted.
        if j < 0:
            for end in range(2):
                i = np.int64(slot[constants.ends[actor - slot.size, end]])
                if i >= 0:
                    prefetch(constants.nodes, 3 * i)
                    if clocks:
                        prefetch(parts.state.clocks, 2 * i)
                    _fetch_span(centers, i * width, (i + 1) * width)
            return
        i = np.int64(slot[actor])
        prefetch(constants.nodes, 3 * i)
        if clocks:
            prefetch(parts.state.clocks, 2 * i)
        fetch_row(parts.samples.rows, j)
        # A sparse row touches few entries of the centre: which ones is not known before the row is here.
        if dense:
            _fetch_span(centers, i * width, (i + 1) * width)

    return fetch
