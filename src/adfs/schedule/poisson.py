"""A Poisson clock for every node and every edge: nobody needs to know what happens elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adfs.errors import InputError
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
from adfs.schedule.sampling import frozen

__all__ = ["PoissonSchedule"]

#: Events a clock in a window: with fewer the loops over all nodes weigh, with more a window leaves the cache.
_EVENTS_A_CLOCK = 0.6
#: Events a clock in a step, and windows a step at most: with fewer, looking at every clock weighs; more cost
#: memory.
_EVENTS_A_CLOCK_A_STEP = 3.6
_WINDOWS_A_STEP = 12
#: From here on doubles are whole numbers.
_LATEST = 2.0**52
#: Entries a list has room for beyond what its mean and its deviation ask for.
_LEAST_ROOM = 64


class _Clocks(NamedTuple):
    """The clocks that some nodes listen to, numbered locally: these nodes, then the edges at them.

    Attributes
    ----------
    actor : (clocks,) int32
        What the schedule calls them; empty: 0, 1, ….
    node_rate : (nodes,) float64
    edge_rate : (edges,) float64
    ends : (edges, 2) int32
        Which of the nodes each edge joins; −1 for a node of others.
    table_of, table_begin, packed
        See `Schedule._tables_by_node`; `table_of` is of these nodes.
    """

    actor: NDArray[np.int32]
    node_rate: NDArray[np.float64]
    edge_rate: NDArray[np.float64]
    ends: NDArray[np.int32]
    table_of: NDArray[np.int32]
    table_begin: NDArray[np.int64]
    packed: NDArray[np.uint64]

    @property
    def rate(self) -> float:
        """Events in a unit of time."""
        return float(self.node_rate.sum() + self.edge_rate.sum())

    @property
    def size(self) -> int:
        """How many clocks."""
        return int(self.node_rate.size + self.edge_rate.size)

    @property
    def ringing(self) -> int:
        """How many clocks ever ring."""
        return int(np.count_nonzero(self.node_rate) + np.count_nonzero(self.edge_rate))


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
        return {name: value for name, value in self.__dict__.items() if name not in ("_edges_at", "_last")}

    @functools.cached_property
    def _edges_at(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each node's edges: those of node i are ``numbers[begin[i]:begin[i + 1]]``."""
        flat = self.edges.ravel()
        begin = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=self.n_nodes))])
        return begin, np.argsort(flat, kind="stable") // 2

    @functools.cached_property
    def _last(self) -> dict[bytes, _Clocks]:
        """The clocks asked for last, by their nodes: mostly those that will be asked for next."""
        return {}

    def _clocks(self, nodes: NDArray[np.int64] | None) -> _Clocks:
        name = b"all" if nodes is None else nodes.tobytes()
        found = self._last.get(name)
        if found is None:
            found = self._all_clocks() if nodes is None else self._clocks_of(nodes)
            self._last.clear()
            self._last[name] = found
        return found

    def _all_clocks(self) -> _Clocks:
        if not self.edge_probability.all():  # an edge that never rings is left out
            return self._clocks_of(np.arange(self.n_nodes))
        table_of, table_begin, packed = self._tables_by_node()
        return _Clocks(
            actor=np.zeros(0, dtype=np.int32),
            # Frozen already, unless they come out of a pickle.
            node_rate=frozen(self.node_probability),
            edge_rate=frozen(self.edge_probability),
            ends=frozen(self.edges),
            table_of=table_of,
            table_begin=table_begin,
            packed=packed,
        )

    def _clocks_of(self, nodes: NDArray[np.int64]) -> _Clocks:
        begin, numbers = self._edges_at
        parts = [numbers[begin[i] : begin[i + 1]] for i in nodes]
        edges = np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
        edges = edges[self.edge_probability[edges] > 0.0]
        place = np.full(self.n_nodes, -1, dtype=np.int32)
        place[nodes] = np.arange(nodes.size)
        table_of, table_begin, packed = self._tables_by_node()
        return _Clocks(
            actor=np.concatenate([nodes, self.n_nodes + edges]).astype(np.int32),
            node_rate=frozen(self.node_probability[nodes]),
            edge_rate=frozen(self.edge_probability[edges]),
            ends=frozen(place[self.edges[edges]]),
            table_of=table_of[nodes],
            table_begin=table_begin,
            packed=packed,
        )

    def _check_range(self, start: float, stop: float) -> tuple[float, float]:
        start, stop = super()._check_range(start, stop)
        if start > _LATEST:
            raise InputError(
                f"a Poisson schedule can be asked up to time 2**52, beyond which the times of events "
                f"coincide, but the range is {start!r} to {stop!r}"
            )
        return start, stop

    def _window(self, nodes: NDArray[np.int64] | None, block_events: int | None) -> float:
        return _window_length(self._clocks(nodes), block_events)

    def _block(self, start: float, stop: float, nodes: NDArray[np.int64] | None) -> Events:
        if start == stop:
            return room_for(0)
        steps = _Steps(self.seed, self._clocks(nodes), stop - start, 1)
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
        clocks = self._clocks(nodes)
        if start == stop:
            return
        if not clocks.ringing:
            yield stop, room_for(0)
            return
        length = min(_window_length(clocks, block_events), stop - start)
        events = length * clocks.rate
        wanted = np.ceil(_EVENTS_A_CLOCK_A_STEP * clocks.size / events - 1e-9)  # not one more by rounding
        per_step = int(min(max(wanted, 1), _WINDOWS_A_STEP, np.ceil((stop - start) / length)))
        steps = _Steps(self.seed, clocks, length, per_step)
        out = room_for(int(_likely(events)) if reuse else 0)
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
    events = block_events or max(MINIMUM_BLOCK, int(_EVENTS_A_CLOCK * clocks.ringing))
    return events / clocks.rate if clocks.ringing else np.inf


def _likely(mean: Any) -> Any:
    """Return more events than there will be: too few are noticed and made more, which costs a new start."""
    return mean + 10.0 * np.sqrt(mean) + _LEAST_ROOM


class _Steps:
    """The walk through time of one stream: what was drawn and not yet handed out, and the memory for it.

    Parameters
    ----------
    seed : int
    clocks : _Clocks
    length : float
        The longest window.
    windows : int
        How many of them a step has at most.
    """

    def __init__(self, seed: int, clocks: _Clocks, length: float, windows: int) -> None:
        self._key = seed_key(seed)
        self._clocks = clocks
        self._length = length
        self._windows = windows
        self._slack = 1.0
        nodes = clocks.node_rate.size
        self._bounds = np.zeros(1)
        self._own_tail = np.zeros(windows + 1, dtype=np.int64)
        self._own_begin = np.zeros(windows + 1, dtype=np.int64)
        self._own_head = np.zeros((windows, nodes), dtype=np.int32)
        self._kept_head = np.zeros(nodes + 1, dtype=np.int32)
        self._link_tail = np.zeros(windows + 1, dtype=np.int64)
        self._allocate()

    def _allocate(self) -> None:
        """Make the lists, and forget what was carried over."""
        c = self._clocks
        top = max(c.node_rate.max(initial=0.0), c.edge_rate.max(initial=0.0))
        self._scratch = make_scratch(int(self._windows * self._length * top / CELL_MEAN) + 3, self._slack)
        self._own_rooms = self._rooms(c.node_rate)
        self._link_rooms = self._rooms(c.edge_rate)
        self._own = np.empty(self._own_rooms[-1], dtype=COMPUTATION)
        self._links = np.empty(self._link_rooms[-1], dtype=COMMUNICATION)
        self._spare = np.empty(self._link_rooms[1], dtype=COMMUNICATION)
        self._joined = np.empty((self._link_rooms[1], 2), dtype=np.int32)
        self._kept_links = 0
        self._begins = True

    def _rooms(self, rate: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return where each list begins and the last ends: one a window, one for what all may carry over."""
        mean = np.append(np.full(self._windows, self._length * float(rate.sum())), CELL_MEAN * rate.size)
        return np.concatenate([[0], np.cumsum((self._slack * _likely(mean)).astype(np.int64))])

    def draw(self, bounds: NDArray[np.float64]) -> None:
        """Draw the windows between these bounds, which must go on from where the last call ended."""
        self._bounds = bounds
        while not self._try_draw(np.append(bounds, np.inf)):
            # Once in a long while: begin here, with more room.
            self._slack *= 2.0
            self._allocate()
        self._begins = False

    def _try_draw(self, bounds: NDArray[np.float64]) -> bool:
        c = self._clocks
        windows = bounds.size - 2
        # The lists of fewer windows, it may be, and always the last.
        lists = np.append(np.arange(windows), self._windows)
        nodes = c.node_rate.size
        common = (self._begins, bounds, self._key)
        drawn = draw_computations(
            *common,
            c.actor[:nodes],
            0,
            c.node_rate,
            c.table_of,
            c.table_begin,
            c.packed,
            self._scratch,
            self._own,
            self._own_rooms[lists],
            self._own_rooms[lists + 1],
            self._own_head,
            self._kept_head,
            self._own_tail,
            self._own_begin,
        ) and draw_communications(
            *common,
            c.actor[nodes:],
            nodes,
            c.edge_rate,
            self._scratch,
            self._kept_links,
            self._links,
            self._link_rooms[lists],
            self._link_rooms[lists + 1],
            self._link_tail,
        )
        self._kept_links = int(self._link_tail[windows] - self._link_rooms[-2])
        return drawn

    def events(self, window: int, out: Events) -> tuple[Events, int]:
        """Write one of the windows drawn last into `out`, or a longer one; return it and their number."""
        c = self._clocks
        lower, stop = float(self._bounds[window]), float(self._bounds[window + 1])
        links = self._links[self._link_rooms[window] : self._link_tail[window]]
        own = self._own[self._own_rooms[window] : self._own_tail[window]]
        size = own.size + links.size
        if out.time.size < size:
            out = room_for(size if out.time.size == 0 else int(1.1 * size))
        sort_communications(lower, stop, links, self._spare)
        count = merge(stop, c.ends, own, self._own_head[window], links, self._joined, c.actor, *out)
        return out, count
