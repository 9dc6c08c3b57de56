"""A Poisson clock for every node and every edge: nobody needs to know what happens elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adfs.schedule.cells import CELL_MEAN, make_scratch
from adfs.schedule.events import MINIMUM_BLOCK, Events, Schedule, first_of, room_for
from adfs.schedule.merging import (
    COMMUNICATION,
    COMPUTATION,
    draw_communications,
    draw_computations,
    merge,
    sort_communications,
)
from adfs.schedule.philox import seed_key

__all__ = ["PoissonSchedule"]

#: Events a clock in a window: with fewer the loops over all nodes weigh, with more a window leaves the cache.
_EVENTS_A_CLOCK = 0.5
#: Events a clock in a step, and windows a step at most: with fewer, looking at every clock weighs; more cost
#: memory.
_EVENTS_A_CLOCK_A_STEP = 6.0
_WINDOWS_A_STEP = 12
#: What a few clocks, handled at once, may have carried over together.
_KEPT_AT_ONCE = 512


class _Clocks(NamedTuple):
    """The clocks that some nodes listen to, numbered locally: these nodes, then the edges at them."""

    n_local: int
    actor: NDArray[np.int32]
    rate: NDArray[np.float64]
    ends: NDArray[np.int32]
    first_row: NDArray[np.int64]
    n_rows: NDArray[np.uint64]
    packed: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class PoissonSchedule(Schedule):
    """Every actor has its own Poisson clock, of rate its probability; time is real, and all rates sum to 1.

    The events of a clock in a range of time are a function of (seed, actor, range), see
    `adfs.schedule.cells`. So a process computes its own nodes' events alone, from any time on, at a cost
    that does not depend on the size of the network. Seen from outside, events come at rate 1 and each is
    drawn from p, independently of the others: `IidSchedule` with real times.

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

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_edges_at", "_idle")}

    @functools.cached_property
    def _edges_at(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each node's edges: those of node i are ``numbers[begin[i]:begin[i + 1]]``."""
        flat = self.edges.ravel()
        begin = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=self.n_nodes))])
        return begin, np.argsort(flat, kind="stable") // 2

    @functools.cached_property
    def _idle(self) -> dict[bytes, _Steps]:
        """What the last stream that ended has left, by its nodes: the next one needs no new memory."""
        return {}

    def _clocks(self, nodes: NDArray[np.int64] | None) -> _Clocks:
        if nodes is None:
            nodes = np.arange(self.n_nodes)
            edges = np.arange(self.n_edges)
        else:
            begin, numbers = self._edges_at
            parts = [numbers[begin[i] : begin[i + 1]] for i in nodes]
            edges = np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
        edges = edges[self.edge_probability[edges] > 0.0]
        ends = self.edges[edges]
        if nodes.size == self.n_nodes:
            local = ends
        else:
            local = np.searchsorted(nodes, ends)
            found = nodes[np.minimum(local, max(nodes.size - 1, 0))] == ends if nodes.size else ends < 0
            local = np.where(found, local, -1)
        table_of, first_row, n_rows, packed = self._tables_by_node()
        tables = table_of[nodes]
        return _Clocks(
            nodes.size,
            np.concatenate([nodes, self.n_nodes + edges]).astype(np.int32),
            np.concatenate([self.node_probability[nodes], self.edge_probability[edges]]),
            np.ascontiguousarray(local, dtype=np.int32).reshape(-1, 2),
            first_row[tables],
            n_rows[tables],
            packed if self.samples is not None else packed[:0],
        )

    def _window(self, nodes: NDArray[np.int64] | None, block_events: int | None) -> float:
        clocks = self._clocks(nodes)
        return _window_length(clocks, block_events)

    def _block(self, start: float, stop: float, nodes: NDArray[np.int64] | None) -> Events:
        clocks = self._clocks(nodes)
        if start == stop:
            return room_for(0)
        steps = _Steps(self.seed, clocks)
        steps.draw(np.array([start, stop]))
        return first_of(*steps.events(0, room_for(0)))

    def _stream(
        self,
        start: float,
        stop: float,
        nodes: NDArray[np.int64] | None,
        block_events: int | None,
        reuse: bool,
    ) -> Iterator[tuple[float, Events]]:
        name = b"all" if nodes is None else nodes.tobytes()
        steps = self._idle.pop(name, None) or _Steps(self.seed, self._clocks(nodes))
        try:
            yield from self._walk(steps, start, stop, block_events, reuse)
        finally:
            steps.rewind()
            self._idle.clear()
            self._idle[name] = steps

    def _walk(
        self, steps: _Steps, start: float, stop: float, block_events: int | None, reuse: bool
    ) -> Iterator[tuple[float, Events]]:
        clocks = steps.clocks
        length = _window_length(clocks, block_events)
        if np.isinf(length):  # no clock ever rings
            yield stop, room_for(0)
            return
        events = length * float(clocks.rate.sum())
        wanted = np.ceil(_EVENTS_A_CLOCK_A_STEP * clocks.rate.size / events)
        per_step = int(np.clip(wanted, 1, _WINDOWS_A_STEP))
        out = room_for(int(events + 10.0 * events**0.5) + 64 if reuse else 0)
        windows = 0  # counted from the start, so that the bounds do not drift
        lower = start
        while lower < stop:
            ends = start + length * np.arange(windows + 1, windows + per_step + 1, dtype=np.float64)
            # A last window that reaches the end, and none beyond it.
            bounds = np.concatenate([[lower], ends[: np.searchsorted(ends, stop) + 1].clip(max=stop)])
            steps.draw(bounds)
            for w in range(bounds.size - 1):
                out, count = steps.events(w, out if reuse else room_for(0))
                yield float(bounds[w + 1]), first_of(out, count)
            windows += per_step
            lower = float(bounds[-1])


def _window_length(clocks: _Clocks, block_events: int | None) -> float:
    ringing = int(np.count_nonzero(clocks.rate))
    events = block_events or max(MINIMUM_BLOCK, int(_EVENTS_A_CLOCK * ringing))
    return events / float(clocks.rate.sum()) if ringing else np.inf


def _at_least(memory: NDArray[np.void], size: int) -> NDArray[np.void]:
    """Return the memory, or more of its kind where that is too little."""
    return memory if memory.size >= size else np.empty(int(1.02 * size), dtype=memory.dtype)


def _copied(entries: NDArray[np.void], memory: NDArray[np.void]) -> NDArray[np.void]:
    """Copy entries to the beginning of some memory, or of more where that is too little; return it."""
    memory = _at_least(memory, entries.size)
    memory[: entries.size].view(np.uint64)[:] = entries.view(np.uint64)  # field by field it is slower
    return memory


class _Steps:
    """The walk through time of one stream: what was drawn and not yet handed out, and the memory for it."""

    def __init__(self, seed: int, clocks: _Clocks) -> None:
        self._key = seed_key(seed)
        self.clocks = clocks
        self._node_rate = float(clocks.rate[: clocks.n_local].sum())
        self._edge_rate = float(clocks.rate[clocks.n_local :].sum())
        self._top_rate = float(clocks.rate.max(initial=0.0))
        self._begins = True
        self._slack = 1.0
        # Lists one after the other: one a window, and one for what is carried over.
        self._own_first = np.zeros(2, dtype=np.int64)
        self._link_first = np.zeros(2, dtype=np.int64)
        self._bounds = np.zeros(1)
        self._own = np.zeros(1, dtype=COMPUTATION)
        self._head = np.zeros((1, clocks.n_local + 1), dtype=np.int32)
        self._own_tail = np.ones(1, dtype=np.int64)
        self._begin = np.ones(1, dtype=np.int64)
        self._links = np.zeros(0, dtype=COMMUNICATION)
        self._link_tail = np.zeros(1, dtype=np.int64)
        self._spare = np.zeros(1, dtype=COMMUNICATION)
        self._kept = np.zeros(0, dtype=COMPUTATION)
        self._kept_head = np.zeros(clocks.n_local + 1, dtype=np.int32)
        self._kept_links = np.zeros(0, dtype=COMMUNICATION)
        self._scratch = make_scratch(0, 1.0)

    def rewind(self) -> None:
        """Forget what was drawn, but keep the memory: for a stream that starts anywhere."""
        self._begins = True

    def draw(self, bounds: NDArray[np.float64]) -> None:
        """Draw the windows between these bounds, which must go on from where the last call ended."""
        kept, kept_head, kept_links = self._carried()
        self._bounds = bounds
        while not self._try_draw(np.append(bounds, np.inf), kept, kept_head, kept_links):
            # Once in a long while. What was carried over is still there: draw it all again, with more room.
            self._slack *= 2.0
            self._scratch = make_scratch(self._scratch.start.size, self._slack)
        self._begins = False

    def _carried(self) -> tuple[NDArray[np.void], NDArray[np.int32], NDArray[np.void]]:
        """Return what the last step has carried over, out of the way of what comes next."""
        if self._begins:
            self._kept_head[:] = 0
            return self._kept[:0], self._kept_head, self._kept_links[:0]
        last = self._bounds.size - 1
        own = self._own[self._own_first[last] : self._own_tail[last]]
        links = self._links[self._link_first[last] : self._link_tail[last]]
        self._kept = _copied(own, self._kept)
        self._kept_head[:] = self._head[last]
        self._kept_links = _copied(links, self._kept_links)
        return self._kept[: own.size], self._kept_head, self._kept_links[: links.size]

    def _try_draw(
        self,
        bounds: NDArray[np.float64],
        kept: NDArray[np.void],
        kept_head: NDArray[np.int32],
        kept_links: NDArray[np.void],
    ) -> bool:
        c = self.clocks
        most_cells = int((bounds[-2] - bounds[0]) * self._top_rate / CELL_MEAN) + 3
        if self._scratch.start.size <= most_cells:
            self._scratch = make_scratch(most_cells, self._slack)
        self._own_first = self._rooms(bounds, self._node_rate, c.n_local)
        self._link_first = self._rooms(bounds, self._edge_rate, len(c.ends))
        lists = bounds.size - 1
        if self._own_tail.size < lists:
            self._head = np.empty((lists, c.n_local + 1), dtype=np.int32)
            self._own_tail = np.empty(lists, dtype=np.int64)
            self._begin = np.empty(lists, dtype=np.int64)
            self._link_tail = np.empty(lists, dtype=np.int64)
        self._own = _at_least(self._own, int(self._own_first[-1]))
        self._links = _at_least(self._links, int(self._link_first[-1]))
        self._spare = _at_least(self._spare, int(np.diff(self._link_first)[:-1].max()))
        common = (self._begins, bounds, self._key, c.actor, c.rate, c.n_local)
        tables = (c.first_row, c.n_rows, c.packed)
        return draw_computations(
            *common,
            *tables,
            self._scratch,
            kept,
            kept_head,
            self._own,
            self._own_first,
            self._head,
            self._own_tail,
            self._begin,
        ) and draw_communications(
            *common, c.ends, self._scratch, kept_links, self._links, self._link_first, self._link_tail
        )

    def _rooms(self, bounds: NDArray[np.float64], rate: float, clocks: int) -> NDArray[np.int64]:
        """Return where each list begins: one a window, then one for what all clocks may carry over."""
        mean = np.append(np.diff(bounds[:-1]) * rate, CELL_MEAN * clocks)
        # Ten standard deviations above the mean, and room for what is handled at once, wherever it falls.
        at_once = self._scratch.time.size + _KEPT_AT_ONCE
        room = self._slack * (mean + 10.0 * np.sqrt(mean)) + at_once
        return np.concatenate([[0], np.cumsum(room.astype(np.int64))])

    def events(self, window: int, out: Events) -> tuple[Events, int]:
        """Write one of the windows drawn last into `out`, or a longer one; return it and their number."""
        c = self.clocks
        lower, stop = float(self._bounds[window]), float(self._bounds[window + 1])
        links = self._links[self._link_first[window] : self._link_tail[window]]
        own = self._own[self._own_first[window] : self._own_tail[window]]
        size = own.size + links.size
        if out.time.size < size:
            out = room_for(size if out.time.size == 0 else int(1.1 * size))
        sort_communications(lower, stop, links, self._spare)
        count = merge(stop, c.actor, c.n_local, own, self._head[window], links, *out)
        return out, count
