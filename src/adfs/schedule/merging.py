"""Events of Poisson clocks into a valid order, without sorting them all.

A *step* of generation covers several windows. Its computations go into one list a window, node by node in the
order of their times, and its communications into another. Window by window, the communications alone are then
sorted; walking through them, each one is preceded by what its two nodes have to compute before it: a burst
each. What is left at the end of the window follows node by node.

Why several windows a step: the cost of looking at every clock is shared by all of them, while one window's
lists are short enough to stay in the cache although they are visited in random order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled, inlined, kernel
from adfs.intrinsics import prefetch
from adfs.schedule.cells import CLOCKS, Scratch, cells_of, draw_cells, draw_samples

__all__ = [
    "COMMUNICATION",
    "COMPUTATION",
    "draw_communications",
    "draw_computations",
    "merge",
    "sort_communications",
]

#: A computation: its time, its row, and whether the entry after it is the same node's (1) or not (0).
COMPUTATION = np.dtype([("time", np.float64), ("sample", np.int32), ("more", np.int32)])
#: A communication: its time, its actor, and which of the caller's nodes are at its ends (−1: not one of
#: them).
COMMUNICATION = np.dtype(
    [
        ("time", np.float64),
        ("actor", np.int32),
        ("first", np.int32),
        ("second", np.int32),
        ("unused", np.int32),
    ]
)

_ONE = np.uint64(1)
_FINE_BITS = 9
_FINE = 1 << _FINE_BITS
#: How many communications ahead memory is asked for.
_FAR, _NEAR = 16, 8


@inlined
def _window_of(time: float, bounds: NDArray[np.float64], per_window: float) -> np.uint64:
    """Return w with bounds[w] < time ≤ bounds[w + 1]; the last bound is infinite."""
    last = np.float64(bounds.shape[0] - 2)
    guess = (time - bounds[0]) * per_window
    # Unsigned: an index that cannot be negative is not checked for it.
    w = np.uint64(min(guess, last))
    w += np.uint64(time > bounds[w + _ONE])
    w -= np.uint64(time <= bounds[w])
    return w


@kernel
def draw_computations(
    begins: bool,
    bounds: NDArray[np.float64],
    key: np.uint64,
    actor: NDArray[np.int32],
    rate: NDArray[np.float64],
    n_local: int,
    first_row: NDArray[np.int64],
    n_rows: NDArray[np.uint64],
    packed: NDArray[np.uint64],
    s: Scratch,
    kept: NDArray[np.void],
    kept_head: NDArray[np.int32],
    own: NDArray[np.void],
    first: NDArray[np.int64],
    head: NDArray[np.int32],
    tail: NDArray[np.int64],
    begin: NDArray[np.int64],
) -> bool:
    """Draw the computations of one step.

    Parameters
    ----------
    begins : bool
        Whether this is the first step.
    bounds : (W + 2,) float64
        The ends of the step's W windows, its start before them and infinity after.
    key, actor, rate
        As in `adfs.schedule.cells.draw_cells`; nodes are the first clocks.
    n_local : int
        How many.
    first_row, n_rows, packed
        Their tables.
    s : Scratch
    kept : (k,) COMPUTATION, kept_head : (n_local + 1,) int32
        What the step before has carried over, node by node.
    own : COMPUTATION
        Out: one list a window, one after the other, each after an entry that never falls due; last, what is
        carried over, after an entry that means nothing.
    first : (W + 2,) int64
        Where each list's room begins, and where the last one's ends.
    head : (W + 1, n_local + 1) int32
        Out: where each node's part of each list starts, counted from that first entry. In the lists of
        windows, a node without a part is sent to the entry that never falls due.
    tail : (W + 1,) int64
        Out: where each list ends.

    Returns
    -------
    bool
        Whether there was room.
    """
    windows = bounds.shape[0] - 2
    per_window = windows / (bounds[windows] - bounds[0])
    for w in range(windows + 1):
        own[first[w]].time = np.inf
        tail[w] = first[w] + 1
        begin[w] = tail[w]
    for base in range(0, n_local, CLOCKS):
        listed = min(CLOCKS, n_local - base)
        cells_of(bounds[0], bounds[windows], begins, rate, base, listed, s.first, s.fresh)
        done = 0
        while done < listed:
            upto, _, events = draw_cells(key, actor, rate, base, done, listed, s)
            needed = events + kept_head[base + upto] - kept_head[base + done]
            for w in range(windows + 1):
                if events < 0 or tail[w] + needed > first[w + 1]:
                    return False
            draw_samples(events, s, first_row, n_rows, packed)
            cell = 0
            for i in range(done, upto):
                node = base + i
                for r in range(kept_head[node], kept_head[node + 1]):
                    _append(kept[r].time, kept[r].sample, bounds, per_window, begin, tail, own)
                for r in range(s.start[cell], s.start[cell + s.fresh[i]]):
                    if s.time[r] > bounds[0]:
                        _append(s.time[r], s.sample[r], bounds, per_window, begin, tail, own)
                cell += s.fresh[i]
                for w in range(windows):
                    head[w, node] = begin[w] - first[w] if tail[w] > begin[w] else 0
                    begin[w] = tail[w]
                head[windows, node] = begin[windows] - first[windows]
                begin[windows] = tail[windows]
            done = upto
    head[windows, n_local] = tail[windows] - first[windows]
    return True


@inlined
def _append(
    time: float,
    sample: int,
    bounds: NDArray[np.float64],
    per_window: float,
    begin: NDArray[np.int64],
    tail: NDArray[np.int64],
    own: NDArray[np.void],
) -> None:
    """Put a computation at the end of its window's list, in which its node's part starts at `begin`."""
    w = _window_of(time, bounds, per_window)
    to = tail[w]
    own[to].time = time
    own[to].sample = sample
    own[to].more = 0
    # Before the node's first this is another node's last, or the entry that never falls due: 0 is right.
    own[to - 1].more = to > begin[w]
    tail[w] = to + 1


@kernel
def draw_communications(
    begins: bool,
    bounds: NDArray[np.float64],
    key: np.uint64,
    actor: NDArray[np.int32],
    rate: NDArray[np.float64],
    n_local: int,
    ends: NDArray[np.int32],
    s: Scratch,
    kept: NDArray[np.void],
    links: NDArray[np.void],
    first: NDArray[np.int64],
    tail: NDArray[np.int64],
) -> bool:
    """Draw the communications of one step, in no order.

    Parameters
    ----------
    begins, bounds, key, actor, rate, n_local, s
        As in `draw_computations`; the clocks from `n_local` on are edges.
    ends : (edges, 2) int32
        Which of the caller's nodes each joins; −1 for a node of others.
    kept : (k,) COMMUNICATION
        What the step before has carried over.
    links : COMMUNICATION, tail : (W + 1,) int64
        Out: one list a window, one after the other, and where each ends; last, what is carried over.
    first : (W + 2,) int64
        Where each list begins, and where the room of the last one ends.

    Returns
    -------
    bool
        Whether there was room.
    """
    windows = bounds.shape[0] - 2
    per_window = windows / (bounds[windows] - bounds[0])
    for w in range(windows + 1):
        tail[w] = first[w]
    for r in range(kept.shape[0]):
        window = _window_of(kept[r].time, bounds, per_window)
        if tail[window] == first[window + 1]:
            return False
        links[tail[window]] = kept[r]
        tail[window] += 1
    for base in range(n_local, actor.shape[0], CLOCKS):
        listed = min(CLOCKS, actor.shape[0] - base)
        cells_of(bounds[0], bounds[windows], begins, rate, base, listed, s.first, s.fresh)
        done = 0
        while done < listed:
            done, _, events = draw_cells(key, actor, rate, base, done, listed, s)
            for w in range(windows + 1):
                if events < 0 or tail[w] + events > first[w + 1]:
                    return False
            for i in range(events):
                t = s.time[i]
                if t > bounds[0]:
                    clock = s.clock[i]
                    window = _window_of(t, bounds, per_window)
                    to = tail[window]
                    links[to].time = t
                    links[to].actor = actor[clock]
                    links[to].first = ends[clock - n_local, 0]
                    links[to].second = ends[clock - n_local, 1]
                    tail[window] = to + 1
    return True


@compiled
def sort_communications(lower: float, stop: float, links: NDArray[np.void], spare: NDArray[np.void]) -> None:
    """Sort communications by time, ties by actor, in a time proportional to their number.

    Their times are close to evenly spread, so a place proportional to the time is nearly the right one. First
    into coarse buckets of some hundred, then within each, where everything is near.

    Parameters
    ----------
    lower, stop : float
        The window.
    links : (k,) COMMUNICATION
        In any order; sorted on return.
    spare : (≥ k,) COMMUNICATION
        Working memory.
    """
    n = links.shape[0]
    coarse = (n >> (_FINE_BITS - 1)) + 1
    top = coarse * _FINE - 1
    scale = float(coarse * _FINE) / (stop - lower)
    place = np.zeros(coarse + 1, np.int64)
    for i in range(n):
        place[(min(int((links[i].time - lower) * scale), top) >> _FINE_BITS) + 1] += 1
    for b in range(coarse):
        place[b + 1] += place[b]
    for i in range(n):
        b = min(int((links[i].time - lower) * scale), top) >> _FINE_BITS
        spare[place[b]] = links[i]
        place[b] += 1
    fine = np.empty(_FINE, np.int64)
    low = 0
    for b in range(coarse):
        high = place[b]
        fine[:] = 0
        for i in range(low, high):
            fine[min(int((spare[i].time - lower) * scale), top) & (_FINE - 1)] += 1
        upto = low
        for f in range(_FINE):
            here = fine[f]
            fine[f] = upto
            upto += here
        for i in range(low, high):
            f = min(int((spare[i].time - lower) * scale), top) & (_FINE - 1)
            links[fine[f]] = spare[i]
            fine[f] += 1
        low = high
    for i in range(1, n):
        if links[i].time <= links[i - 1].time:
            t = links[i].time
            a = links[i].actor
            spare[0] = links[i]
            q = i
            while q > 0 and (links[q - 1].time > t or (links[q - 1].time == t and links[q - 1].actor > a)):
                links[q] = links[q - 1]
                q -= 1
            links[q] = spare[0]


@inlined
def _burst(
    until: float,
    node: int,
    actor: NDArray[np.int32],
    own: NDArray[np.void],
    head: NDArray[np.int32],
    to: int,
    out_time: NDArray[np.float64],
    out_actor: NDArray[np.int32],
    out_sample: NDArray[np.int32],
) -> int:
    """Write what a node computes up to a time; return where to go on."""
    r = int(head[node])
    who = actor[node]
    # The first without a branch (if it is not due, the next overwrites it): bursts are short, and whether
    # there is any is guessed wrongly every other time.
    out_time[to] = own[r].time
    out_actor[to] = who
    out_sample[to] = own[r].sample
    due = int(own[r].time <= until)
    to += due
    r += due * ((r + 1) * int(own[r].more) - r)
    while own[r].time <= until:
        out_time[to] = own[r].time
        out_actor[to] = who
        out_sample[to] = own[r].sample
        to += 1
        r = (r + 1) * int(own[r].more)
    head[node] = r
    return to


@kernel
def merge(
    stop: float,
    actor: NDArray[np.int32],
    n_local: int,
    own: NDArray[np.void],
    head: NDArray[np.int32],
    links: NDArray[np.void],
    out_time: NDArray[np.float64],
    out_actor: NDArray[np.int32],
    out_sample: NDArray[np.int32],
) -> int:
    """Write one window's events in a valid order.

    Parameters
    ----------
    stop : float
        The window's end.
    actor : (clocks,) int32
    n_local : int
    own : (k,) COMPUTATION
        One window's computations.
    head : (n_local + 1,) int32
        Where each node's part of them starts; used up.
    links : (k,) COMMUNICATION
        Its communications, sorted.
    out_time, out_actor, out_sample : (events + 1,)
        Out.

    Returns
    -------
    int
        How many events.
    """
    n = links.shape[0]
    to = 0
    for i in range(n):
        far = links[min(i + _FAR, n - 1)]
        prefetch(head, far.first)
        prefetch(head, far.second)
        prefetch(actor, far.first)
        prefetch(actor, far.second)
        near = links[min(i + _NEAR, n - 1)]
        prefetch(own, head[near.first])
        prefetch(own, head[near.second])
        t = links[i].time
        if links[i].first >= 0:
            to = _burst(t, links[i].first, actor, own, head, to, out_time, out_actor, out_sample)
        if links[i].second >= 0:
            to = _burst(t, links[i].second, actor, own, head, to, out_time, out_actor, out_sample)
        out_time[to] = t
        out_actor[to] = links[i].actor
        out_sample[to] = -1
        to += 1
    for node in range(n_local):
        to = _burst(stop, node, actor, own, head, to, out_time, out_actor, out_sample)
    return to
