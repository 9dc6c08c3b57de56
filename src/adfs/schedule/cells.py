"""Poisson clocks, cell by cell: the compiled part that turns a range of time into event times and draws.

A clock of rate p has cells of width M/p, with M = `CELL_MEAN` the mean number of events in a cell. The number
of events in a cell is a Poisson variable of mean M, drawn by comparing 64 random bits with
`COUNT_THRESHOLDS`; the events lie independently and uniformly in the cell. Both are functions of (seed,
actor, cell) alone. This *is* a Poisson process, by its usual construction: its numbers in disjoint cells are
independent and Poisson, and given its number in a cell its points are independent and uniform there. So any
window can be drawn without those before it.

Times are computed by one addition and one multiplication from an integer cell and a position of 53 bits, so
they are the same on every platform: no logarithm, and nothing that a compiler could contract.

A cell is *opened* in the step in which it starts, and only then. Events beyond the end of the step are
carried over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import inlined, kernel
from adfs.schedule.philox import DOMAIN_POISSON_COUNT, DOMAIN_POISSON_EVENT, draw_pairs
from adfs.schedule.sampling import draw_sample

__all__ = [
    "CELL_MEAN",
    "CLOCKS",
    "COUNT_THRESHOLDS",
    "Scratch",
    "cells_of",
    "draw_cells",
    "draw_samples",
    "make_scratch",
]

CELL_MEAN = 2.0
#: P(at most k events in a cell) · 2**64, k = 0, 1, …, rounded. A cell has as many events as there are
#: thresholds not above its draw.
COUNT_THRESHOLDS = (
    0x22A555477F039740,
    0x67EFFFD67D0AC5BF,
    0xAD3AAA657B11F43F,
    0xDB6C716F79C16894,
    0xF28554F4791922BE,
    0xFBC27CC345A2A069,
    0xFED6DF5D89D074F7,
    0xFFB8201BE66FD644,
    0xFFF0704B7D97AE97,
    0xFFFCF3E449D96CE3,
    0xFFFF749C72B35FBF,
    0xFFFFE91B05C3BA72,
    0xFFFFFC85739BC990,
    0xFFFFFF82220BCBE3,
    0xFFFFFFEF5F898314,
    0xFFFFFFFDF044F0D6,
    0xFFFFFFFFC25C5E8E,
    0xFFFFFFFFF931F2FE,
    0xFFFFFFFFFF49AE27,
    0xFFFFFFFFFFEDDCCD,
    0xFFFFFFFFFFFE47DE,
    0xFFFFFFFFFFFFD829,
    0xFFFFFFFFFFFFFC8D,
    0xFFFFFFFFFFFFFFB7,
    0xFFFFFFFFFFFFFFFA,
)
#: Clocks whose cells are listed at once.
CLOCKS = 128
#: Cells that are drawn at once (more, where one clock alone has more): their arrays stay in the nearest
#: cache.
CELLS = 256

_THRESHOLDS = np.array(COUNT_THRESHOLDS, dtype=np.uint64)
(_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7) = (np.uint64(t) for t in COUNT_THRESHOLDS[:8])
_COUNT = np.uint64(DOMAIN_POISSON_COUNT)
_EVENT = np.uint64(DOMAIN_POISSON_EVENT)
_1, _2, _3, _32 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(32)
_11 = np.uint64(11)
_ULP = 2.0**-53


class Scratch(NamedTuple):
    """Working memory for the cells drawn at once.

    Attributes
    ----------
    first, fresh : (CLOCKS,) int64
        For each of some clocks, the first cell to open and how many.
    cell_clock, cell_number, cell_count : (cells,) int32, int64, int64
        The opened cells: the clock, counted from the first of the `CLOCKS`, the cell, its number of events.
    start : (cells + 1,) int64
        Where each cell's events start below.
    clock : (events,) int32
        Each event's clock.
    position, draw : (events,) uint64
        Counters, then random bits: those of the position, and those left for the caller.
    time : (events,) float64
    sample : (events,) int32
    """

    first: NDArray[np.int64]
    fresh: NDArray[np.int64]
    cell_clock: NDArray[np.int32]
    cell_number: NDArray[np.int64]
    cell_count: NDArray[np.int64]
    start: NDArray[np.int64]
    clock: NDArray[np.int32]
    position: NDArray[np.uint64]
    draw: NDArray[np.uint64]
    time: NDArray[np.float64]
    sample: NDArray[np.int32]


#: Entries that the loops without branches may write beyond the end.
PADDING = 8


def make_scratch(most_cells: int, slack: float) -> Scratch:
    """Allocate working memory.

    Parameters
    ----------
    most_cells : int
        How many cells one clock may open in one step.
    slack : float
        1, or more after an overflow.

    Returns
    -------
    Scratch
    """
    cells = max(CELLS, most_cells) + PADDING
    # Ten standard deviations above the mean, and never less than the fullest cell.
    enough = slack * (CELL_MEAN * cells + 10.0 * (CELL_MEAN * cells) ** 0.5)
    events = int(enough) + len(COUNT_THRESHOLDS) + PADDING
    return Scratch(
        np.zeros(CLOCKS, dtype=np.int64),
        np.zeros(CLOCKS, dtype=np.int64),
        np.zeros(cells, dtype=np.int32),
        np.zeros(cells, dtype=np.int64),
        np.zeros(cells, dtype=np.int64),
        np.zeros(cells + 1, dtype=np.int64),
        np.zeros(events, dtype=np.int32),
        np.zeros(events, dtype=np.uint64),
        np.zeros(events, dtype=np.uint64),
        np.zeros(events),
        np.zeros(events, dtype=np.int32),
    )


@inlined
def _last_cell(time: float, rate: float) -> int:
    """Return the last cell that starts at or before a time, as the float product of cell and width has it."""
    width = CELL_MEAN / rate
    cell = int(time * (rate / CELL_MEAN))  # off by one at most
    cell += int(float(cell + 1) * width <= time)
    cell -= int(float(cell) * width > time)
    return cell


@kernel
def cells_of(
    lower: float,
    stop: float,
    begins: bool,
    rate: NDArray[np.float64],
    from_clock: int,
    count: int,
    first: NDArray[np.int64],
    fresh: NDArray[np.int64],
) -> None:
    """List the cells that some clocks open in the step lower < time ≤ stop.

    Parameters
    ----------
    lower, stop : float
        The step.
    begins : bool
        Whether this is the first step: then the cells that hold its start are opened too.
    rate : (clocks,) float64
    from_clock, count : int
        Which clocks.
    first, fresh : (≥ count,) int64
        Out: each one's first cell, and how many.
    """
    after = 0 if begins else 1
    for i in range(count):
        p = rate[from_clock + i]
        begin = _last_cell(lower, p) + after
        # A clock of rate 0 has cells without end; what was computed for it means nothing.
        fresh[i] = _last_cell(stop, p) + 1 - begin if p > 0.0 else 0
        first[i] = begin


@kernel
def _count_events(cells: int, draws: NDArray[np.uint64], count: NDArray[np.int64]) -> None:
    for i in range(cells):
        d = draws[i]
        count[i] = (
            np.int64(d >= _T0)
            + np.int64(d >= _T1)
            + np.int64(d >= _T2)
            + np.int64(d >= _T3)
            + np.int64(d >= _T4)
            + np.int64(d >= _T5)
            + np.int64(d >= _T6)
            + np.int64(d >= _T7)
        )
    for i in range(cells):
        while count[i] >= 8 and count[i] < _THRESHOLDS.shape[0] and draws[i] >= _THRESHOLDS[count[i]]:
            count[i] += 1  # one cell in a thousand


@inlined
def _name(actor: NDArray[np.int32], first_actor: int, clock: int) -> np.uint64:
    """Return a clock's part of its counters."""
    return np.uint64(actor[clock] if actor.shape[0] > 0 else first_actor + clock) << _32


@kernel
def _list_events(
    cells: int,
    actor: NDArray[np.int32],
    first_actor: int,
    from_clock: int,
    cell_clock: NDArray[np.int32],
    cell_number: NDArray[np.int64],
    cell_count: NDArray[np.int64],
    start: NDArray[np.int64],
    clock: NDArray[np.int32],
    index: NDArray[np.uint64],
    name: NDArray[np.uint64],
) -> None:
    """Write the counters of all events of some cells."""
    to = np.uint64(0)  # unsigned: an index that cannot be negative is not checked for it
    for c in range(cells):
        start[c] = np.int64(to)
        who = from_clock + cell_clock[c]
        cell = np.uint64(cell_number[c])
        upper = _name(actor, first_actor, who)
        # Four without a branch: what is too much is overwritten by the next cell.
        clock[to] = who
        clock[to + _1] = who
        clock[to + _2] = who
        clock[to + _3] = who
        index[to] = cell
        index[to + _1] = cell
        index[to + _2] = cell
        index[to + _3] = cell
        name[to] = upper
        name[to + _1] = upper | _1
        name[to + _2] = upper | _2
        name[to + _3] = upper | _3
        if cell_count[c] > 4:
            for k in range(4, cell_count[c]):
                at = to + np.uint64(k)
                clock[at] = who
                index[at] = cell
                name[at] = upper | np.uint64(k)
        to += np.uint64(cell_count[c])
    start[cells] = np.int64(to)


@kernel
def draw_cells(
    key: np.uint64,
    actor: NDArray[np.int32],
    first_actor: int,
    rate: NDArray[np.float64],
    from_clock: int,
    begin: int,
    end: int,
    s: Scratch,
) -> tuple[int, int]:
    """Draw the cells that `cells_of` listed, as many as are drawn at once.

    Parameters
    ----------
    key : uint64
    actor : (clocks,) int32
        What the schedule calls the clocks; empty: `first_actor`, `first_actor` + 1, ….
    first_actor : int
    rate : (clocks,) float64
    from_clock : int
        The first clock of the list.
    begin, end : int
        Which entries of the list: from `begin`, at most to `end`.
    s : Scratch
        Out: `start` for each cell; `clock`, `time` (in order within a cell) and `draw` for each event.

    Returns
    -------
    next : int
        The first entry that was not handled.
    events : int
        How many; −1 if they did not fit.
    """
    cells = 0
    i = begin
    while i < end and (i == begin or cells + s.fresh[i] <= CELLS):
        first = s.first[i]
        # Four without a branch, then the rest, which for many clocks in a short window are none.
        for r in range(4):
            s.cell_clock[cells + r] = i
            s.cell_number[cells + r] = first + r
        for r in range(4, s.fresh[i]):
            s.cell_clock[cells + r] = i
            s.cell_number[cells + r] = first + r
        cells += s.fresh[i]
        i += 1

    done = 0
    while done < cells:  # the event arrays serve as working memory, and may be shorter
        m = min(cells - done, s.position.shape[0])
        for c in range(m):
            s.position[c] = np.uint64(s.cell_number[done + c])
            s.draw[c] = _name(actor, first_actor, from_clock + s.cell_clock[done + c])
        draw_pairs(m, _COUNT, key, s.position, s.draw)
        _count_events(m, s.position, s.cell_count[done:])
        done += m

    events = 0
    for c in range(cells):
        events += s.cell_count[c]
    if events + len(COUNT_THRESHOLDS) > s.position.shape[0]:
        return i, -1
    _list_events(
        cells,
        actor,
        first_actor,
        from_clock,
        s.cell_clock,
        s.cell_number,
        s.cell_count,
        s.start,
        s.clock,
        s.position,
        s.draw,
    )
    draw_pairs(events, _EVENT, key, s.position, s.draw)
    _place(cells, rate, from_clock, s.start, s.cell_clock, s.cell_number, s.position, s.time)
    return i, events


@inlined
def _time(cell: float, draw: np.uint64, width: float) -> float:
    return (cell + np.float64(draw >> _11) * _ULP) * width


@kernel
def _place(
    cells: int,
    rate: NDArray[np.float64],
    from_clock: int,
    start: NDArray[np.int64],
    cell_clock: NDArray[np.int32],
    cell_number: NDArray[np.int64],
    position: NDArray[np.uint64],
    time: NDArray[np.float64],
) -> None:
    """Turn positions into times, sorted within each cell."""
    for c in range(cells):
        i = start[c]
        m = start[c + 1] - i
        cell = float(cell_number[c])
        width = CELL_MEAN / rate[from_clock + cell_clock[c]]
        if m <= 4:
            # A sorting network: no branch that would depend on random numbers. What is written beyond the
            # cell's own is overwritten by the next cell.
            at = np.uint64(i)
            t0 = _time(cell, position[at], width)
            t1 = _time(cell, position[at + _1], width)
            t2 = _time(cell, position[at + _2], width)
            t3 = _time(cell, position[at + _3], width)
            t1 = t1 if m > 1 else np.inf
            t2 = t2 if m > 2 else np.inf
            t3 = t3 if m > 3 else np.inf
            a0, a1 = min(t0, t1), max(t0, t1)
            a2, a3 = min(t2, t3), max(t2, t3)
            b1, b2 = min(a1, a3), max(a0, a2)
            time[at] = min(a0, a2)
            time[at + _1] = min(b1, b2)
            time[at + _2] = max(b1, b2)
            time[at + _3] = max(a1, a3)
        else:
            for r in range(i, i + m):
                t = _time(cell, position[r], width)
                q = r
                while q > i and time[q - 1] > t:
                    time[q] = time[q - 1]
                    q -= 1
                time[q] = t


@kernel
def draw_samples(
    events: int,
    s: Scratch,
    table_of: NDArray[np.int32],
    begin: NDArray[np.int64],
    packed: NDArray[np.uint64],
) -> None:
    """Draw each event's row from its clock's table; −1 without tables.

    Parameters
    ----------
    events : int
    s : Scratch
        In: `clock` and `draw`. Out: `sample`.
    table_of : (clocks,) int32
        Each clock's table.
    begin, packed
        The tables, see `adfs.schedule.sampling.draw_sample`.
    """
    if packed.shape[0] == 0:
        s.sample[:events] = -1
        return
    for i in range(events):
        table = np.uint64(table_of[np.uint32(s.clock[i])])
        s.sample[i] = draw_sample(s.draw[i], packed, begin, table)
