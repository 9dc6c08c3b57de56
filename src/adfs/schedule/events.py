"""Events, the interface of schedules, and the paper's schedule."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import compiled, prefetch
from adfs.errors import InputError
from adfs.network import Faults
from adfs.schedule.sampling import (
    AliasTables,
    Domain,
    build_actor_table,
    check_seed,
    draw_column,
    draw_pairs,
    draw_sample,
    frozen,
)

if TYPE_CHECKING:
    import pandas as pd

#: The least number of events of a window, about, so that the cost of a call is spread over many. As many
#: draws are made together, few enough to stay in the cache of a core.
LEAST_EVENTS = 8192
_DOMAIN = np.uint64(Domain.IID_EVENT)
#: The most draws of a window, however few of them concern the nodes that were asked for.
_MOST_DRAWS = 2**20
#: The sample of an exchange that fails.
LOST = -2


class Events(NamedTuple):
    """Some events of a schedule, in a valid order.

    In a valid order the events of each node, its communications included, are sorted by time, and so are all
    communications (ties by edge number; a computation goes before a communication of the same time). Events
    that share no node may be in any order.

    Attributes
    ----------
    time : (T,) float64
        The time of the event.
    actor : (T,) int32
        Below n_nodes a computation of that node, otherwise a communication on edge ``actor − n_nodes``.
    sample : (T,) int32
        The row that a computation draws, an index into the flat rows of the process; −1 for a communication,
        and for every event of a schedule without tables; `LOST` for a communication that fails.
    """

    time: NDArray[np.float64]
    actor: NDArray[np.int32]
    sample: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Schedule(abc.ABC):
    """A seeded, stateless function from a range of time to its events.

    Parameters
    ----------
    seed : int
        0 ≤ seed < 2**64. The same seed gives the same events on every machine.
    n_nodes : int
        Number of nodes (n).
    edges : (n_edges, 2) int32
        The communication edges, i < j.
    node_probability : (n,) float64
        The probability that an event is a computation of that node (p_i^comp).
    edge_probability : (n_edges,) float64
        The probability that it is a communication on that edge (p_e); all together sum to 1.
    samples : AliasTables or None
        The tables from which nodes draw rows. A process that holds the tables of its own nodes only must ask
        for the events of those nodes. Without tables, sample is −1.
    faults : Faults or None
        How the edges fail, for clocks of their own. An edge then acts at the rate p_e/(1 − q), so that p_e
        of its exchanges get through in the mean, as if none were lost.
    """

    kind: ClassVar[str]
    #: Whether every event happens at a whole number.
    whole_times: ClassVar[bool]

    seed: int
    n_nodes: int
    edges: NDArray[np.int32]
    node_probability: NDArray[np.float64]
    edge_probability: NDArray[np.float64]
    samples: AliasTables | None = None
    faults: Faults | None = None
    #: The probabilities of all actors, nodes first: (n_actors,).
    probability: NDArray[np.float64] = field(init=False)
    #: How often actors act: the same, but for edges whose exchanges may fail.
    rate: NDArray[np.float64] = field(init=False)
    #: What compiled loops draw rows from: the number of each node's table, the starts of the tables, and
    #: their entries. A node without a table never draws and gets the number 0.
    tables: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]] = field(init=False)

    def __post_init__(self) -> None:
        # Arrays are checked and copied once here: compiled loops trust them.
        n, samples = int(self.n_nodes), self.samples
        edges = np.asarray(self.edges).reshape(-1, 2)
        if edges.size and edges.dtype.kind not in "iu":
            raise InputError(f"edges must be pairs of node numbers, but they are of type {edges.dtype}")
        nodes = np.asarray(self.node_probability, dtype=np.float64)
        links = np.asarray(self.edge_probability, dtype=np.float64)
        if n < 1:
            raise InputError(f"a schedule needs at least one node, but n_nodes is {n}")
        if edges.size and not (edges.min() >= 0 and edges.max() < n and (edges[:, 0] != edges[:, 1]).all()):
            raise InputError(f"every edge must join two different nodes of 0, …, {n - 1}")
        if nodes.shape != (n,) or links.shape != (len(edges),):
            raise InputError(
                f"node_probability must have shape ({n},) and edge_probability ({len(edges)},), "
                f"but they have {nodes.shape} and {links.shape}"
            )
        probability = frozen(np.concatenate([nodes, links]))
        total = float(nodes.sum() + links.sum())
        # Compared in this direction, so that nan fails too.
        if not (probability.min() >= 0.0 and abs(total - 1.0) <= 1e-9):
            raise InputError(f"probabilities must not be negative and must sum to 1, but sum to {total!r}")
        lost = 0.0 if self.faults is None else self.faults.lost
        if self.faults is not None and self.whole_times:
            raise InputError(
                f"the {self.kind} schedule has no lost exchanges and no networks that change: "
                "use schedule='poisson', whose edges have clocks of their own"
            )
        table_of = np.zeros(n, dtype=np.int32)
        tables = table_of, frozen(np.zeros(2, dtype=np.int64)), frozen(np.zeros(0, dtype=np.uint64))
        if samples is not None:
            ids = samples.node_ids
            if ids.size and ids.max() >= n:
                raise InputError(f"the sampling tables name node {ids.max()}, but there are {n} nodes")
            empty = ids[~samples.drawable & (nodes[ids] > 0.0)]
            if empty.size:
                raise InputError(
                    f"node {empty[0]} has a positive probability of computing but no row of positive weight: "
                    "give it probability 0, or rows"
                )
            table_of[ids] = np.arange(ids.size)
            tables = table_of, frozen(samples.node_starts), frozen(samples.packed)
        # The fields of a frozen dataclass are set past its own `__setattr__`.
        self.__dict__.update(
            seed=check_seed(self.seed),
            n_nodes=n,
            edges=frozen(edges.astype(np.int32, copy=False)),
            node_probability=probability[:n],
            edge_probability=probability[n:],
            probability=probability,
            rate=frozen(np.concatenate([nodes, links / (1.0 - lost)])),
            tables=tables,
        )

    def block(self, start: float, stop: float, nodes: ArrayLike | None = None) -> Events:
        """Return all the events with start < time ≤ stop.

        Parameters
        ----------
        start, stop : float
            0 ≤ start ≤ stop, both whole numbers for the iid schedule (its event t happens at time t + 1).
        nodes : array_like of int, optional
            Only the events that one of these nodes takes part in; all nodes by default.
        """
        if np.isinf(stop):
            raise InputError("a block must end: give a finite stop, or use windows")
        # Windows share their memory, and each overwrites the one before.
        blocks = [[array.copy() for array in events] for _, events in self.windows(start, stop, nodes)]
        return Events(*map(np.concatenate, zip(empty_events(0), *blocks, strict=True)))

    def windows(
        self, start: float, stop: float, nodes: ArrayLike | None = None
    ) -> Iterator[tuple[float, Events]]:
        """Yield the events with start < time ≤ stop, window after window, and the end of each window.

        Parameters
        ----------
        start, stop, nodes
            As in `block`; stop may be infinite.

        Yields
        ------
        end : float
        events : Events
            Possibly none; the next window overwrites them.
        """
        start, stop = float(start), float(stop)
        if not 0.0 <= start <= stop or np.isinf(start):
            raise InputError(f"a range of time needs 0 <= start <= stop, but is {start!r} to {stop!r}")
        if start > 2.0**52:  # from here on doubles are whole numbers
            raise InputError(
                f"a schedule can be asked up to time 2**52, beyond which the times of events coincide, "
                f"but the range is {start!r} to {stop!r}"
            )
        if self.whole_times and not (start.is_integer() and (np.isinf(stop) or stop.is_integer())):
            raise InputError(
                f"the {self.kind} schedule has whole times, but the range is {start!r} to {stop!r}"
            )
        # The nodes that were asked for; an edge is wanted when one of its ends is.
        chosen = np.ones(self.n_nodes, dtype=np.bool_)
        if nodes is not None:
            numbers = np.atleast_1d(np.asarray(nodes, dtype=np.int64))
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.n_nodes):
                raise InputError(
                    f"nodes must lie in 0, …, {self.n_nodes - 1}, "
                    f"but go from {numbers.min()} to {numbers.max()}"
                )
            chosen[:] = False
            chosen[numbers] = True
        # A process has the tables of its own nodes only. Nodes that never compute need none.
        if self.samples is not None:
            without = chosen & (self.node_probability > 0.0)
            without[self.samples.node_ids] = False
            missing = np.flatnonzero(without)
            if missing.size:
                raise InputError(
                    f"this schedule has no sampling table for node {missing[0]} "
                    f"(and {missing.size - 1} more): ask for the events of the process's own nodes"
                )
        found = self._windows(start, stop, np.concatenate([chosen, chosen[self.edges].any(axis=1)]))
        return found if self.faults is None else self._failing(found, self.faults)

    def _failing(
        self, windows: Iterator[tuple[float, Events]], faults: Faults
    ) -> Iterator[tuple[float, Events]]:
        """Leave out the exchanges of edges that are not there at their time, and mark those that fail."""
        threshold = np.uint64(int(faults.lost * 2.0**64))
        for end, events in windows:
            edge = events.actor - self.n_nodes
            graph = np.floor(events.time / faults.window) % len(faults.present)
            there = (edge < 0) | faults.present[graph.astype(np.int64), np.maximum(edge, 0)]
            time, actor, sample = events.time[there], events.actor[there], events.sample[there]
            # The time and the edge name an exchange, so that both ends know whether it fails.
            draw, name = time.copy().view(np.uint64), actor.astype(np.uint64) << np.uint64(32)
            draw_pairs(draw.size, np.uint64(Domain.LOST_EXCHANGE), np.uint64(self.seed), draw, name)
            sample[(actor >= self.n_nodes) & (draw < threshold)] = LOST
            yield end, Events(time, actor, sample)

    @abc.abstractmethod
    def _windows(
        self, start: float, stop: float, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[float, Events]]:
        """Yield the windows of the actors that are wanted."""


def empty_events(events: int) -> Events:
    """Allocate arrays for some events."""
    return Events(np.empty(events), np.empty(events, dtype=np.int32), np.empty(events, dtype=np.int32))


@compiled
def _iid_events(
    first: int,
    last: int,
    key: np.uint64,
    table: NDArray[np.uint64],
    wanted: NDArray[np.bool_],
    tables: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]],
    out: Events,
) -> int:
    """Write the events t = first, …, last − 1 whose actor is wanted, and return their number.

    `tables` are those of `Schedule`; `out` must be long enough for last − first events. The work goes through
    short loops without branches: the processor then reads the tables of many events at once.
    """
    table_of, begin, packed = tables
    out_time, out_actor, out_sample = out
    columns = np.uint64(table.shape[0])
    n_nodes = table_of.shape[0]
    draw = np.empty(LEAST_EVENTS, np.uint64)
    row_draw = np.empty(LEAST_EVENTS, np.uint64)
    written = 0
    for t in range(first, last, LEAST_EVENTS):
        m = min(LEAST_EVENTS, last - t)
        # Two draws per event: the first one chooses the actor, the second one the row of a computation.
        for i in range(m):
            draw[i] = np.uint64(t + i)
            row_draw[i] = np.uint64(0)
        draw_pairs(m, _DOMAIN, key, draw, row_draw)
        # Take a column's own actor or its alias, and keep the event if that actor is wanted.
        base = written
        for i in range(m):
            where, position = draw_column(draw[i], columns)
            column, alias = np.int64(where), np.int64(table[where, 1])
            # A product instead of a condition: the processor would mispredict every second branch.
            actor = alias + (column - alias) * np.int64(position < table[where, 0])
            out_time[written] = np.float64(t + i + 1)
            out_actor[written] = actor
            row_draw[written - base] = row_draw[i]
            written += int(wanted[actor])
        if packed.shape[0] == 0:
            out_sample[base:written] = -1
            continue
        # Find the table of each event, and prefetch the entry that it draws there; then read the entries.
        for k in range(base, written):
            # A communication draws from the first table, and its draw is not used.
            computes = np.int64(out_actor[k] < n_nodes)
            out_sample[k] = table_of[min(out_actor[k], n_nodes - 1)] * computes
            low = begin[out_sample[k]]
            where, _ = draw_column(row_draw[k - base], np.uint64(begin[out_sample[k] + 1] - low))
            prefetch(packed, low + np.int64(where))
        for k in range(base, written):
            row = draw_sample(row_draw[k - base], packed, begin, np.uint64(out_sample[k]))
            out_sample[k] = (row + 1) * np.int64(out_actor[k] < n_nodes) - 1
    return written


@dataclass(frozen=True, eq=False)
class IidSchedule(Schedule):
    """The paper's shared schedule: T independent draws from p; event t happens at time t + 1.

    Draw t is a function of (seed, t), so any process can compute any draw. A process that wants only its
    own nodes' events must still go through all draws (here some nanoseconds each); `PoissonSchedule` does
    not have to.

    Examples
    --------
    >>> schedule = IidSchedule(
    ...     seed=0, n_nodes=2, edges=[[0, 1]], node_probability=[0.25, 0.25], edge_probability=[0.5]
    ... )
    >>> schedule.block(0, 4).time
    array([1., 2., 3., 4.])
    """

    kind: ClassVar[str] = "iid"
    whole_times: ClassVar[bool] = True

    @functools.cached_property
    def _actor_table(self) -> NDArray[np.uint64]:
        return build_actor_table(self.probability)

    def _windows(
        self, start: float, stop: float, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[float, Events]]:
        share = float(self.probability[wanted].sum())
        if share == 0.0:
            yield stop, empty_events(0)
            return
        # With few wanted nodes a window goes through more draws, so that it holds enough events.
        length = int(min(LEAST_EVENTS / share, _MOST_DRAWS))
        first, key = int(start), np.uint64(self.seed)
        out = empty_events(int(min(length, stop - start)))
        while first < stop:
            last = int(min(first + length, stop))
            count = _iid_events(first, last, key, self._actor_table, wanted, self.tables, out)
            yield float(last), Events(out.time[:count], out.actor[:count], out.sample[:count])
            first = last


def frame(schedule: Schedule, first: int = 100, nodes: ArrayLike | None = None) -> pd.DataFrame:
    """Return the first events in the order of their times.

    Parameters
    ----------
    schedule : Schedule
    first : int
        The number of events.
    nodes : array_like of int, optional
        Only the events that one of these takes part in.

    Returns
    -------
    pandas.DataFrame
        Columns ``time``; ``kind``, "compute", "exchange" or "lost"; ``node``; ``neighbour`` and ``edge`` (−1
        for a computation); ``sample`` (negative for an exchange).
    """
    import pandas as pd

    n = schedule.n_nodes
    blocks = [empty_events(0)]
    # Windows do not overlap in time, so that the first of them hold the first events.
    for _, events in schedule.windows(0, np.inf, nodes):
        order = np.lexsort((events.actor, events.time))  # at one time nodes go before edges
        blocks.append(Events(events.time[order], events.actor[order], events.sample[order]))
        if sum(block.time.size for block in blocks) >= first:
            break
    time, actor, sample = (np.concatenate(arrays)[:first] for arrays in zip(*blocks, strict=True))
    # A computation has one node, an exchange the two ends of its edge.
    exchange = actor >= n
    ends = np.column_stack([actor, np.full(actor.size, -1)]).astype(np.int64)
    ends[exchange] = schedule.edges[actor[exchange] - n]
    return pd.DataFrame(
        {
            "time": time,
            "kind": np.where(sample == LOST, "lost", np.where(exchange, "exchange", "compute")),
            "node": ends[:, 0],
            "neighbour": ends[:, 1],
            "edge": np.where(exchange, actor - n, -1),
            "sample": sample,
        }
    )
