"""How compiled code calls the kernels of a method, whichever it is.

A method's events or rounds are a few compiled functions of one named tuple, its *parts*. The table below says
which functions belong to which named tuple, so that a compiled loop can call them on any of them, those of
methods from outside the package too.

- Events: three functions. The exchange of messages over MPI calls `execute`, `fill_message` and
  `take_message`.
- Rounds: two. `begin` goes on until it needs the product of values with the gossip matrix, `end` takes that
  product. With all nodes in one process `run_rounds` is one compiled loop over both; between several, `go_on`
  is one call from a product to the next.

And fetching ahead, which several methods do: the samples of coming events are asked of the memory before they
are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import types

from adfs.compilation import inlined, kernel, overloads, prefetch
from adfs.errors import InputError
from adfs.problem.losses import outputs
from adfs.problem.samples import DenseRows, Rows, Samples, ShiftedLabels, SparseRows, kind_of
from adfs.problem.views import Boxed


@kernel
def sends_nothing(parts: tuple[object, ...], i: int, time: float, out: np.ndarray) -> None:
    """Write nothing: the method runs on one machine."""


@kernel
def takes_nothing(
    parts: tuple[object, ...], edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray
) -> None:
    """Take nothing: the method runs on one machine."""


class EventKernels(NamedTuple):
    """What an event does, as compiled functions of a method's parts.

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
    outgoing: Callable[..., None] = sends_nothing
    incoming: Callable[..., None] = takes_nothing


class RoundKernels(NamedTuple):
    """What a round does, as compiled functions of a method's parts.

    Attributes
    ----------
    begin : callable
        ``begin(parts, t, last, out) -> int``: go on from round t until a product is needed, write its values
        to ``out`` (k, d), and return its round; or return ``last`` when that comes first.
    end : callable
        ``end(parts, t, heard) -> int``: go on with the product ``heard`` (k, d), which may be used up; return
        t + 1, or t when the round needs a further product.
    """

    begin: Callable[..., int]
    end: Callable[..., int]


Parts = tuple[object, ...]
Kernels = TypeVar("Kernels", EventKernels, RoundKernels)

_KERNELS: dict[type, EventKernels | RoundKernels] = {}


def _register(parts: type, kernels: Kernels) -> Kernels:
    if not (issubclass(parts, tuple) and hasattr(parts, "_fields")):
        raise InputError(f"the parts of a method must be a NamedTuple, got {parts.__name__}")
    _KERNELS[parts] = kernels
    return kernels


def register_event_kernels(parts: type, kernels: EventKernels) -> EventKernels:
    """Say which kernels belong to a named tuple of parts, and return them.

    Parameters
    ----------
    parts : type
        A ``NamedTuple`` of arrays, numbers and further named tuples, one for each method.
    kernels : EventKernels
        Made with `adfs.compilation.kernel`.
    """
    return _register(parts, kernels)


def register_round_kernels(parts: type, kernels: RoundKernels) -> RoundKernels:
    """Say which kernels belong to a named tuple of parts, as `register_event_kernels` does."""
    return _register(parts, kernels)


def execute(
    parts: Parts, times: np.ndarray, actors: np.ndarray, samples: np.ndarray, first: int, last: int
) -> int:
    """Execute events by the kernel of these parts."""
    raise NotImplementedError("compiled code only")


def fill_message(parts: Parts, i: int, time: float, out: np.ndarray) -> None:
    """Write what the block's node i sends, by the kernel of these parts."""
    raise NotImplementedError("compiled code only")


def take_message(parts: Parts, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    """Finish a communication at the block's node i, by the kernel of these parts."""
    raise NotImplementedError("compiled code only")


def _begin(parts: Parts, t: int, last: int, out: np.ndarray) -> int:
    raise NotImplementedError("compiled code only")


def _end(parts: Parts, t: int, heard: np.ndarray) -> int:
    raise NotImplementedError("compiled code only")


Call = Callable[..., object]


def _calling(parts: types.Type, name: str, make: Callable[[Call], Call]) -> Call | None:
    """Return what numba compiles for a call of that kernel, None where the argument is no method's parts.

    ``make`` gives a function that closes over the kernel, a constant to numba: the kernel itself in its place
    would be compiled anew, with references counted.
    """
    kind = kind_of(parts)
    found = None if kind is None else _KERNELS.get(kind)
    return None if found is None else make(getattr(found, name))


# ruff: disable[PLW0108]
overloads(execute)(
    lambda parts, times, actors, samples, first, last: _calling(
        parts,
        "run",
        lambda run: (
            lambda parts, times, actors, samples, first, last: run(parts, times, actors, samples, first, last)
        ),
    )
)
overloads(fill_message)(
    lambda parts, i, time, out: _calling(
        parts, "outgoing", lambda write: lambda parts, i, time, out: write(parts, i, time, out)
    )
)
overloads(take_message)(
    lambda parts, edge, i, time, own, other: _calling(
        parts,
        "incoming",
        lambda take: lambda parts, edge, i, time, own, other: take(parts, edge, i, time, own, other),
    )
)
overloads(_begin)(
    lambda parts, t, last, out: _calling(
        parts, "begin", lambda begin: lambda parts, t, last, out: begin(parts, t, last, out)
    )
)
overloads(_end)(
    lambda parts, t, heard: _calling(parts, "end", lambda end: lambda parts, t, heard: end(parts, t, heard))
)
# ruff: enable[PLW0108]


# --------------------------------------------------------------------------- loops over rounds


@kernel
def row_products(rows: SparseRows, values: np.ndarray, out: np.ndarray) -> None:
    """Write the product of rows with values (m, d), each row summed in the order it is stored; (rows, d)."""
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
    out, heard = room
    products = 0
    while True:
        t = _begin(parts, t, last, out)
        if t >= last:
            return products
        if sums:
            _totals(out, heard)
        else:
            row_products(rows, out, heard)
        products += 1
        t = _end(parts, t, heard)


@kernel
def go_on(parts: Parts, t: int, last: int, out: np.ndarray, heard: np.ndarray, came: bool) -> int:
    """Take the product of round t if it ``came``, and go on until the next one is needed, as `begin` does."""
    if came:
        t = _end(parts, t, heard)
    return _begin(parts, t, last, out)


# --------------------------------------------------------------------------- fetching ahead

_LINE = 64  # bytes in a cache line
_MOST_LINES = 8  # beyond this the processor's own prefetcher has seen the pattern


def fetch_early(samples: Samples, duals: np.ndarray, j: int) -> None:
    """Ask for what belongs to row j besides the row itself; for CSR also for where the row is."""


def fetch_row(rows: Rows, j: int) -> None:
    """Ask for row j."""


def fetch_late(
    rows: Rows, centers: np.ndarray, slot: np.ndarray, ends: np.ndarray, actor: int, j: int
) -> None:
    """Ask for row j and the centre it moves, or for both centres of an exchange."""


@inlined
def _fetch_span(array: np.ndarray, start: np.int64, stop: np.int64) -> None:
    line = _LINE // array.itemsize
    end = min(stop, start + line * _MOST_LINES)
    for k in range(start, end, line):
        prefetch(array, k)
    prefetch(array, end - 1)


@overloads(fetch_early)
def _fetch_early(samples: types.Type, duals: types.Type, j: types.Type) -> Callable[..., object] | None:
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
            # A tip is K complex numbers of 16 bytes.
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


def _fetch_late(dense: bool) -> Callable[..., object]:
    def fetch(
        rows: Rows, centers: np.ndarray, slot: np.ndarray, ends: np.ndarray, actor: int, j: int
    ) -> None:
        width = np.int64(centers.shape[1])
        if j < 0:
            edge = actor - slot.size
            for end in range(2):
                i = np.int64(slot[ends[edge, end]])
                if i >= 0:
                    _fetch_span(centers, i * width, (i + 1) * width)
            return
        i = np.int64(slot[actor])
        fetch_row(rows, j)
        if dense:
            _fetch_span(centers, i * width, (i + 1) * width)

    return fetch


overloads(fetch_late)(lambda rows, centers, slot, ends, actor, j: _fetch_late(kind_of(rows) is DenseRows))
