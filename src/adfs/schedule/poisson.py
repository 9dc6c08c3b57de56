"""A Poisson clock for every node and every edge, which each process draws without the clocks of the others.

A clock of rate p divides time into cells of width M/p, with M = `CELL_MEAN` the mean number of events in a
cell. The number of events in a cell is a Poisson variable of mean M, and they lie independently and uniformly
in it; both are functions of (seed, actor, cell) alone. This is the usual construction of a Poisson process,
and any part of it can be drawn without the rest.

A stream goes from window to window. A cell is drawn in the window in which it begins, and those of its events
that lie after the window wait for a later one. All exchanges of a window are sorted. Each is preceded by the
computations that its two nodes have to do before it, so that a node's vectors are still in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import AHEAD, compiled, inlined, kernel, prefetch
from adfs.schedule.events import LEAST_EVENTS, Events, Schedule, empty_events
from adfs.schedule.sampling import Domain, draw_pairs, draw_sample

CELL_MEAN = 2.0


def _count_thresholds() -> NDArray[np.uint64]:
    """Return P(at most k events in a cell) · 2**64, k = 0, 1, …, by decimals: the same on every machine."""
    thresholds: list[int] = []
    with localcontext(prec=60):
        term = total = Decimal(-CELL_MEAN).exp()
        while (rounded := int((total * 2**64).to_integral_value())) < 2**64:
            thresholds.append(rounded)
            term *= Decimal(CELL_MEAN) / len(thresholds)
            total += term
    return np.array(thresholds, dtype=np.uint64)


#: The number of events in a cell is the number of thresholds that its draw reaches.
COUNT_THRESHOLDS = _count_thresholds()
#: Cells drawn together, in arrays that stay in the fastest cache, and the most events they can have.
_CELLS = 128
_MOST_EVENTS = _CELLS * COUNT_THRESHOLDS.size
#: Events of a window from which on the sort of exchanges by 16 bits leaves more than a few ties.
_LONG_WINDOW = 2.0**19

_COUNT, _EVENT = np.uint64(Domain.POISSON_COUNT), np.uint64(Domain.POISSON_EVENT)
_11, _32 = np.uint64(11), np.uint64(32)

#: An event before it is yielded, with the number of its clock in the stream.
DRAWN = np.dtype([("time", np.float64), ("clock", np.int32), ("sample", np.int32)])
Drawn = NDArray[np.void]


class _Clocks(NamedTuple):
    """The clocks of a stream: first those of the nodes, then those of the edges.

    Attributes
    ----------
    key : uint64
    start : float64
        The beginning of the stream: events up to then are left out.
    actor : (clocks,) int32
    width : (clocks,) float64
        The width of a cell.
    next_cell : (clocks,) int64
        The first cell that was not drawn yet.
    ends : (edges, 2) int32
        The clocks of an edge's two nodes; −1 for a node that is not part of the stream.
    run : (nodes, 2) int32
        Working memory: the range of a node's computations that were not yielded yet.
    table_of, table_begin, packed
        See `Schedule.tables`; `table_of` is of these nodes.
    """

    key: np.uint64
    start: np.float64
    actor: NDArray[np.int32]
    width: NDArray[np.float64]
    next_cell: NDArray[np.int64]
    ends: NDArray[np.int32]
    run: NDArray[np.int32]
    table_of: NDArray[np.int32]
    table_begin: NDArray[np.int64]
    packed: NDArray[np.uint64]


@compiled
def _draw(clocks: _Clocks, upper: float, waiting: Drawn, out: Drawn) -> int:
    """Write the waiting events and all events of the cells that begin up to a time, in the order of clocks.

    Returns the number of events, or −1 when `out` is too short for them.
    """
    clock_of, cell_of = np.empty(_CELLS, np.int64), np.empty(_CELLS, np.int64)
    draw, unused = np.empty(_CELLS, np.uint64), np.empty(_CELLS, np.uint64)
    index = np.empty(_MOST_EVENTS, np.int64)
    position, row = np.empty(_MOST_EVENTS, np.uint64), np.empty(_MOST_EVENTS, np.uint64)
    with_table = clocks.table_of.size if clocks.packed.size > 0 else 0
    clock = taken = written = 0
    while clock < clocks.actor.size:
        # Collect the next cells, of one clock after the other.
        cells = 0
        while clock < clocks.actor.size and cells < _CELLS:
            cell = clocks.next_cell[clock]
            if not np.float64(cell) * clocks.width[clock] <= upper:  # nan too: a width may be infinite
                clock += 1
                continue
            clock_of[cells], cell_of[cells] = clock, cell
            draw[cells] = np.uint64(cell)
            unused[cells] = np.uint64(clocks.actor[clock]) << _32
            clocks.next_cell[clock] = cell + 1
            cells += 1
        # Draw their numbers of events, and name each event by its clock, its cell and its number there.
        draw_pairs(cells, _COUNT, clocks.key, draw, unused)
        events = 0
        for c in range(cells):
            number = 0
            for k in range(8):  # nearly always enough, and free of branches that depend on random numbers
                number += int(draw[c] >= COUNT_THRESHOLDS[k])
            while 8 <= number < COUNT_THRESHOLDS.size and draw[c] >= COUNT_THRESHOLDS[number]:
                number += 1
            name = np.uint64(clocks.actor[clock_of[c]]) << _32
            for k in range(number):
                index[events + k] = c
                position[events + k] = np.uint64(cell_of[c])
                row[events + k] = name | np.uint64(k)
            events += number
        draw_pairs(events, _EVENT, clocks.key, position, row)
        if written + events + waiting.size - taken > out.size:
            return -1
        # Write them, each clock's waiting events first.
        for e in range(events):
            own_clock = clock_of[index[e]]
            while taken < waiting.size and waiting[taken].clock <= own_clock:
                out[written] = waiting[taken]
                taken += 1
                written += 1
            # One sum and one product of exact numbers give the same bits on every machine.
            place = np.float64(cell_of[index[e]]) + np.float64(position[e] >> _11) * 2.0**-53
            out[written].time = place * clocks.width[own_clock]
            out[written].clock = own_clock
            out[written].sample = -1
            if own_clock < with_table:
                table = np.uint64(clocks.table_of[own_clock])
                out[written].sample = draw_sample(row[e], clocks.packed, clocks.table_begin, table)
            written += int(out[written].time > clocks.start)
    for i in range(taken, waiting.size):
        out[written] = waiting[i]
        written += 1
    return written


@kernel
def _sort(events: Drawn, first: int, last: int) -> None:
    """Sort a few events, or many that are nearly sorted, by (time, clock): stable, by insertion."""
    for i in range(first + 1, last):
        time, clock, sample = events[i].time, events[i].clock, events[i].sample
        k = i
        while k > first and (
            events[k - 1].time > time or (events[k - 1].time == time and events[k - 1].clock > clock)
        ):
            events[k] = events[k - 1]
            k -= 1
        events[k].time, events[k].clock, events[k].sample = time, clock, sample


@kernel
def _split(events: Drawn, upper: float, run: NDArray[np.int32], exchanges: Drawn) -> tuple[int, int, int]:
    """Sort each node's computations, and move the window's exchanges from `events` to `exchanges`.

    Returns the number of computations, of computations in the window, and of exchanges in the window.
    """
    # The events are in the order of the clocks, so that each node's computations are a range.
    i = number = 0
    for node in range(run.shape[0]):
        run[node, 0] = i
        while i < events.size and events[i].clock == node:
            number += int(events[i].time <= upper)
            i += 1
        run[node, 1] = i
        _sort(events, run[node, 0], i)
    # The exchanges that lie after the window take the places of those that were moved.
    inside = 0
    for x in range(i, events.size):
        if events[x].time <= upper:
            exchanges[inside] = events[x]
            inside += 1
        else:
            events[x - inside] = events[x]
    return i, number, inside


@inlined
def _yield_event(event: Any, out: Events, to: int) -> int:
    out.time[to], out.actor[to], out.sample[to] = event.time, event.clock, event.sample
    return to + 1


@kernel
def _merge(
    clocks: _Clocks, upper: float, events: Drawn, computations: int, exchanges: Drawn, out: Events
) -> int:
    """Write a window's events to `out` in a valid order; move those after it to the front of `events`.

    Returns the number of events after the window.
    """
    run, nodes = clocks.run, clocks.run.shape[0]
    written = kept = 0
    _sort(exchanges, 0, exchanges.size)
    for x in range(exchanges.size):
        # Prefetch in three stages: an edge's ends, their ranges of computations, and the first of these.
        if x + 3 * AHEAD < exchanges.size:
            prefetch(clocks.ends, 2 * np.int64(exchanges[x + 3 * AHEAD].clock - nodes))
            for side in range(2):
                prefetch(run, 2 * np.int64(clocks.ends[exchanges[x + 2 * AHEAD].clock - nodes, side]))
                node = max(clocks.ends[exchanges[x + AHEAD].clock - nodes, side], 0)
                prefetch(events, np.int64(run[node, 0]))
        # The computations of both ends up to the exchange, then the exchange.
        for side in range(2):
            node = clocks.ends[exchanges[x].clock - nodes, side]
            if node >= 0:
                i = run[node, 0]
                while i < run[node, 1] and events[i].time <= exchanges[x].time:
                    written = _yield_event(events[i], out, written)
                    i += 1
                run[node, 0] = i
        written = _yield_event(exchanges[x], out, written)
    # The computations after each node's last exchange.
    for node in range(nodes):
        for i in range(run[node, 0], run[node, 1]):
            if events[i].time <= upper:
                written = _yield_event(events[i], out, written)
            else:
                events[kept] = events[i]
                kept += 1
    for x in range(computations, events.size - exchanges.size):
        events[kept] = events[x]
        kept += 1
    return kept


@dataclass(frozen=True, eq=False)
class PoissonSchedule(Schedule):
    """Every actor has its own Poisson clock, whose rate is its probability unless exchanges are lost.

    A process computes only its own nodes' events, from any time on, at a cost that does not depend on the
    size of the network. All clocks together ring at rate 1, and the actor of each event is drawn from p,
    independently of the others: this is `IidSchedule` with real times. Where a share q of the exchanges is
    lost, the clock of an edge has the rate p_e/(1 − q), and what gets through has the law above.

    Examples
    --------
    >>> schedule = PoissonSchedule(
    ...     seed=0, n_nodes=2, edges=[[0, 1]], node_probability=[0.25, 0.25], edge_probability=[0.5]
    ... )
    >>> events = schedule.block(0.0, 1000.0)
    >>> bool(abs(len(events.time) - 1000) < 150)
    True
    >>> alone = schedule.block(0.0, 1000.0, nodes=[0])
    >>> bool((alone.time == events.time[events.actor != 1]).all())
    True
    """

    kind: ClassVar[str] = "poisson"
    whole_times: ClassVar[bool] = False

    def _clocks(self, start: float, actors: NDArray[np.int32]) -> _Clocks:
        width = CELL_MEAN / self.rate[actors]
        nodes, edges = np.split(actors, [np.searchsorted(actors, self.n_nodes)])
        place = np.full(self.n_nodes, -1, dtype=np.int32)
        place[nodes] = np.arange(nodes.size)
        table_of, table_begin, packed = self.tables
        return _Clocks(
            key=np.uint64(self.seed),
            start=np.float64(start),
            actor=actors,
            width=width,
            # A little less than the quotient: a cell earlier than needed does no harm, a later one would.
            next_cell=(start / width * (1.0 - 2.0**-50)).astype(np.int64),
            ends=place[self.edges[edges - self.n_nodes]],
            run=np.empty((nodes.size, 2), dtype=np.int32),
            table_of=table_of[nodes],
            table_begin=table_begin,
            packed=packed,
        )

    def _windows(
        self, start: float, stop: float, wanted: NDArray[np.bool_], slack: float = 1.05
    ) -> Iterator[tuple[float, Events]]:
        actors = np.flatnonzero(wanted & (self.rate > 0.0)).astype(np.int32)
        if actors.size == 0:
            yield stop, empty_events(0)
            return
        # A cell per clock: with fewer, the visit of every clock costs too much. Long windows have many
        # exchanges with the same 16 bits; the sum of both costs is least at the root of the number of clocks.
        cells = CELL_MEAN * actors.size
        events = max(LEAST_EVENTS, math.sqrt(cells * min(cells, _LONG_WINDOW)))
        rate = float((self.rate * wanted).sum())
        length = min(events / rate, stop - start)
        clocks = self._clocks(start, actors)
        # About one cell per clock can reach into the next window, since the cells of all clocks may coincide.
        size = int(slack * (length * rate + cells)) + _MOST_EVENTS
        drawn, waiting, out = np.empty(size, dtype=DRAWN), np.empty(size, dtype=DRAWN), empty_events(0)
        kept, windows, lower = 0, 0, start
        while lower < stop:
            windows += 1  # multiples of the length: the bounds do not accumulate rounding
            upper = min(start + windows * length, stop)
            count = _draw(clocks, upper, waiting[:kept], drawn)
            if count < 0:  # very rare: begin again here, with longer arrays
                yield from self._windows(lower, stop, wanted, 2.0 * slack)
                return
            computations, number, inside = _split(drawn[:count], upper, clocks.run, waiting)
            # NumPy sorts 16-bit integers without comparisons; `_merge` sorts the few remaining ties.
            position = (waiting["time"][:inside] - lower) / (upper - lower)
            order = np.argsort((position * 65535.0).astype(np.uint16), kind="stable")
            exchanges = waiting[:inside][order]
            number += inside
            if number > out.time.size:
                out = empty_events(int(1.1 * number))
            kept = _merge(clocks, upper, drawn[:count], computations, exchanges, out)
            if actors.size < wanted.size:
                out.actor[:number] = actors[out.actor[:number]]
            yield upper, Events(out.time[:number], out.actor[:number], out.sample[:number])
            drawn, waiting = waiting, drawn
            lower = upper
