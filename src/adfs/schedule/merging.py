"""Events of Poisson clocks into a valid order, without sorting them all.

A *step* of generation covers several windows. Its computations go into one list a window, node by node in the
order of their times, and its communications into another. Window by window, the communications alone are then
sorted; walking through them, each one is preceded by what its two nodes have to compute before it: a burst
each. What is left at the end of the window follows node by node.

Why several windows a step: the cost of looking at every clock is shared by all of them, while one window's
lists are short enough to stay in the cache although they are visited in random order.
"""

from __future__ import annotations

from typing import Any

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

#: A computation: its time, and its row and whether the entry after it is the same node's: 2(row + 1), or one
#: more if it is.
COMPUTATION = np.dtype([("time", np.float64), ("code", np.uint32)])
#: A communication: its time and its edge, counted among the caller's.
COMMUNICATION = np.dtype([("time", np.float64), ("edge", np.int32)])

_ONE = np.uint64(1)
_NO_MORE = np.uint64(0xFFFFFFFE)
_FINE_BITS = 9
_FINE = 1 << _FINE_BITS
#: How many communications ahead memory is asked for.
_FAR, _NEAR = 16, 8
#: So many computations on, one is in the same cache line or the next.
_LINE = 4


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
    first_actor: int,
    rate: NDArray[np.float64],
    table_of: NDArray[np.int32],
    table_begin: NDArray[np.int64],
    packed: NDArray[np.uint64],
    s: Scratch,
    own: NDArray[np.void],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    head: NDArray[np.int32],
    kept_head: NDArray[np.int32],
    tail: NDArray[np.int64],
    begin: NDArray[np.int64],
) -> bool:
    """Draw the computations of one step.

    Parameters
    ----------
    begins : bool
        Whether this is the first step: then nothing was carried over.
    bounds : (W + 2,) float64
        The ends of the step's W windows, its start before them and infinity after.
    key, actor, first_actor, rate
        As in `adfs.schedule.cells.draw_cells`: the clocks of nodes.
    table_of, table_begin, packed
        Their tables, see `adfs.schedule.cells.draw_samples`.
    s : Scratch
    own : COMPUTATION
        One list a window, one after the other, each after an entry that never falls due; last, what is
        carried over, node by node after an entry that means nothing: in, from the step before, and out.
    first, last : (W + 1,) int64
        Where each list's room begins, and where it ends; of the last list that is used up.
    head : (≥ W, nodes) int32
        Out: where each node's part of each window's list starts, counted from the list's first entry. A node
        without a part is sent to the entry that never falls due.
    kept_head : (nodes + 1,) int32
        In and out: where its part of what is carried over starts, and where the last one's ends.
    tail : (≥ W + 1,) int64
        Out: where each list ends.
    begin : (≥ W + 1,) int64
        Working memory.

    Returns
    -------
    bool
        Whether there was room. If there was not, what was carried over is lost.
    """
    windows = bounds.shape[0] - 2
    per_window = windows / (bounds[windows] - bounds[0])
    for w in range(windows + 1):
        own[first[w]].time = np.inf
        own[first[w]].code = 0
        tail[w] = first[w] + 1
        begin[w] = tail[w]
    if begins:
        kept_head[:] = 0
    # To the end of its room: what is carried over next grows behind the reading.
    size = int(kept_head[-1])
    kept = last[windows] - size
    for r in range(size - 1, 0, -1):
        own[kept + r] = own[first[windows] + r]
    for base in range(0, rate.shape[0], CLOCKS):
        listed = min(CLOCKS, rate.shape[0] - base)
        cells_of(bounds[0], bounds[windows], begins, rate, base, listed, s.first, s.fresh)
        done = 0
        while done < listed:
            upto, events = draw_cells(key, actor, first_actor, rate, base, done, listed, s)
            if events < 0:
                return False
            draw_samples(events, s, table_of, table_begin, packed)
            cell = 0
            for i in range(done, upto):
                node = base + i
                last[windows] = kept + kept_head[node + 1]  # what follows is still to be read
                for r in range(kept + kept_head[node], kept + kept_head[node + 1]):
                    code = own[r].code & _NO_MORE
                    if not _append(own[r].time, code, bounds, per_window, begin, last, tail, own):
                        return False
                for r in range(s.start[cell], s.start[cell + s.fresh[i]]):
                    if s.time[r] > bounds[0]:
                        code = np.uint32(s.sample[r] + 1) << _ONE
                        if not _append(s.time[r], code, bounds, per_window, begin, last, tail, own):
                            return False
                cell += s.fresh[i]
                for w in range(windows):
                    # A product where one would write a condition: a branch would be guessed wrongly.
                    head[w, node] = (begin[w] - first[w]) * int(tail[w] > begin[w])
                    begin[w] = tail[w]
                kept_head[node] = begin[windows] - first[windows]
                begin[windows] = tail[windows]
            done = upto
    kept_head[-1] = tail[windows] - first[windows]
    return True


@inlined
def _append(
    time: float,
    code: np.uint64,
    bounds: NDArray[np.float64],
    per_window: float,
    begin: NDArray[np.int64],
    last: NDArray[np.int64],
    tail: NDArray[np.int64],
    own: NDArray[np.void],
) -> bool:
    """Put a computation at the end of its window's list, in which its node's part starts at `begin`.

    Return whether there was room.
    """
    w = _window_of(time, bounds, per_window)
    to = tail[w]
    if to >= last[w]:
        return False
    own[to].time = time
    own[to].code = code
    # Before the node's first this is another node's last, or the entry that never falls due: 0 is right.
    own[to - 1].code |= np.uint32(to > begin[w])
    tail[w] = to + 1
    return True


@kernel
def draw_communications(
    begins: bool,
    bounds: NDArray[np.float64],
    key: np.uint64,
    actor: NDArray[np.int32],
    first_actor: int,
    rate: NDArray[np.float64],
    s: Scratch,
    kept: int,
    links: NDArray[np.void],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    tail: NDArray[np.int64],
) -> bool:
    """Draw the communications of one step, in no order.

    Parameters
    ----------
    begins, bounds, key, actor, first_actor, rate, s
        As in `draw_computations`: the clocks of edges.
    kept : int
        How many the step before has carried over.
    links : COMMUNICATION
        One list a window, one after the other; last, what is carried over: in, from the step before, and out.
    first, last : (W + 1,) int64
        Where each list's room begins, and where it ends.
    tail : (≥ W + 1,) int64
        Out: where each list ends.

    Returns
    -------
    bool
        Whether there was room. If there was not, what was carried over is lost.
    """
    windows = bounds.shape[0] - 2
    per_window = windows / (bounds[windows] - bounds[0])
    for w in range(windows + 1):
        tail[w] = first[w]
    if not begins:
        for r in range(first[windows], first[windows] + kept):
            window = _window_of(links[r].time, bounds, per_window)
            if tail[window] == last[window]:
                return False
            links[tail[window]] = links[r]  # what stays is moved up: nothing unread is written over
            tail[window] += 1
    for base in range(0, rate.shape[0], CLOCKS):
        listed = min(CLOCKS, rate.shape[0] - base)
        cells_of(bounds[0], bounds[windows], begins, rate, base, listed, s.first, s.fresh)
        done = 0
        while done < listed:
            done, events = draw_cells(key, actor, first_actor, rate, base, done, listed, s)
            if events < 0:
                return False
            for i in range(events):
                t = s.time[i]
                if t > bounds[0]:
                    window = _window_of(t, bounds, per_window)
                    to = tail[window]
                    if to == last[window]:
                        return False
                    links[to].time = t
                    links[to].edge = s.clock[i]
                    tail[window] = to + 1
    return True


@compiled
def sort_communications(lower: float, stop: float, links: NDArray[np.void], spare: NDArray[np.void]) -> None:
    """Sort communications by time, ties by edge, in a time proportional to their number.

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
            e = links[i].edge
            spare[0] = links[i]
            q = i
            while q > 0 and (links[q - 1].time > t or (links[q - 1].time == t and links[q - 1].edge > e)):
                links[q] = links[q - 1]
                q -= 1
            links[q] = spare[0]


@inlined
def _row(code: np.uint64) -> int:
    return int(code >> _ONE) - 1


@inlined
def _more(code: np.uint64) -> int:
    return int(code & _ONE)


@inlined
def _burst(
    until: float,
    node: Any,
    own: NDArray[np.void],
    head: NDArray[np.int32],
    to: int,
    out_time: NDArray[np.float64],
    out_actor: NDArray[np.int32],
    out_sample: NDArray[np.int32],
) -> int:
    """Write what a node computes up to a time; return where to go on."""
    r = int(head[node])
    # The first without a branch (if it is not due, the next overwrites it): bursts are short, and whether
    # there is any is guessed wrongly every other time.
    out_time[to] = own[r].time
    out_actor[to] = node
    out_sample[to] = _row(own[r].code)
    due = int(own[r].time <= until)
    to += due
    r += due * ((r + 1) * _more(own[r].code) - r)
    while own[r].time <= until:
        out_time[to] = own[r].time
        out_actor[to] = node
        out_sample[to] = _row(own[r].code)
        to += 1
        r = (r + 1) * _more(own[r].code)
    head[node] = r
    return to


@kernel
def merge(
    stop: float,
    ends: NDArray[np.int32],
    own: NDArray[np.void],
    head: NDArray[np.int32],
    links: NDArray[np.void],
    joined: NDArray[np.int32],
    actor: NDArray[np.int32],
    out_time: NDArray[np.float64],
    out_actor: NDArray[np.int32],
    out_sample: NDArray[np.int32],
) -> int:
    """Write one window's events in a valid order.

    Parameters
    ----------
    stop : float
        The window's end.
    ends : (edges, 2) int32
        Which of the nodes each edge joins; −1 for a node of others.
    own : (k,) COMPUTATION
        One window's computations.
    head : (nodes,) int32
        Where each node's part of them starts; used up.
    links : (k,) COMMUNICATION
        Its communications, sorted.
    joined : (≥ k, 2) int32
        Working memory.
    actor : (nodes + edges,) int32
        Their names; empty: 0, 1, ….
    out_time, out_actor, out_sample : (events + 1,)
        Out.

    Returns
    -------
    int
        How many events.
    """
    n = links.shape[0]
    nodes = head.shape[0]
    for i in range(n):
        prefetch(ends, 2 * links[min(i + _FAR, n - 1)].edge)
        e = np.uint32(links[i].edge)
        joined[i, 0] = ends[e, 0]
        joined[i, 1] = ends[e, 1]
    to = 0
    for i in range(n):
        far = min(i + _FAR, n - 1)
        prefetch(head, joined[far, 0])
        prefetch(head, joined[far, 1])
        near = min(i + _NEAR, n - 1)
        prefetch(own, head[joined[near, 0]])
        prefetch(own, head[joined[near, 1]])
        # A burst may go on into the next cache line.
        prefetch(own, head[joined[near, 0]] + _LINE)
        prefetch(own, head[joined[near, 1]] + _LINE)
        t = links[i].time
        if joined[i, 0] >= 0:
            to = _burst(t, np.uint32(joined[i, 0]), own, head, to, out_time, out_actor, out_sample)
        if joined[i, 1] >= 0:
            to = _burst(t, np.uint32(joined[i, 1]), own, head, to, out_time, out_actor, out_sample)
        out_time[to] = t
        out_actor[to] = nodes + links[i].edge
        out_sample[to] = -1
        to += 1
    for node in range(nodes):
        to = _burst(stop, np.uint32(node), own, head, to, out_time, out_actor, out_sample)
    if actor.shape[0] > 0:
        for i in range(to):
            out_actor[i] = actor[np.uint32(out_actor[i])]
    return to
