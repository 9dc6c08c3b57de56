"""The interface of schedules, and the events that they yield."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.errors import InputError
from adfs.schedule.philox import check_seed
from adfs.schedule.sampling import AliasTables, frozen

if TYPE_CHECKING:
    import pandas as pd

#: The least number of events of a window, about, so that the cost of a call is spread over many.
LEAST_EVENTS = 8192


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
        and for every event of a schedule without tables.
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
    """

    kind: ClassVar[str]

    seed: int
    n_nodes: int
    edges: NDArray[np.int32]
    node_probability: NDArray[np.float64]
    edge_probability: NDArray[np.float64]
    samples: AliasTables | None = None

    def __post_init__(self) -> None:
        # Arrays are checked and copied once here: compiled loops trust them.
        n = int(self.n_nodes)
        edges = np.asarray(self.edges).reshape(-1, 2)
        if edges.size and edges.dtype.kind not in "iu":
            raise InputError(f"edges must be pairs of node numbers, but they are of type {edges.dtype}")
        nodes = frozen(np.asarray(self.node_probability, dtype=np.float64))
        links = frozen(np.asarray(self.edge_probability, dtype=np.float64))
        if n < 1:
            raise InputError(f"a schedule needs at least one node, but n_nodes is {n}")
        if n + len(edges) > 2**31 - 1:
            raise InputError(
                f"a schedule holds at most 2**31 − 1 nodes and edges, but was given {n + len(edges)}"
            )
        if edges.size and not (edges.min() >= 0 and edges.max() < n and (edges[:, 0] != edges[:, 1]).all()):
            raise InputError(f"every edge must join two different nodes of 0, …, {n - 1}")
        if nodes.shape != (n,) or links.shape != (len(edges),):
            raise InputError(
                f"node_probability must have shape ({n},) and edge_probability ({len(edges)},), "
                f"but they have {nodes.shape} and {links.shape}"
            )
        total = float(nodes.sum() + links.sum())
        # Compared in this direction, so that nan fails too.
        if not (min(nodes.min(), links.min(initial=0.0)) >= 0.0 and abs(total - 1.0) <= 1e-9):
            raise InputError(f"probabilities must not be negative and must sum to 1, but sum to {total!r}")
        _check_tables(self.samples, nodes)
        # The fields of a frozen dataclass are set past its own `__setattr__`.
        for field, value in (
            ("seed", check_seed(self.seed)),
            ("n_nodes", n),
            ("edges", frozen(edges.astype(np.int32, copy=False))),
            ("node_probability", nodes),
            ("edge_probability", links),
        ):
            object.__setattr__(self, field, value)

    @property
    def n_edges(self) -> int:
        """Number of communication edges."""
        return len(self.edges)

    @property
    def n_actors(self) -> int:
        """Number of nodes and edges together."""
        return self.n_nodes + self.n_edges

    @property
    def probability(self) -> NDArray[np.float64]:
        """The probabilities of all actors, nodes first: (n_actors,)."""
        return np.concatenate([self.node_probability, self.edge_probability])

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
        return joined([copied(events) for _, events in self.windows(start, stop, nodes)])

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
        start, stop = self._check_range(start, stop)
        return self._windows(start, stop, self._wanted(nodes))

    @abc.abstractmethod
    def _windows(
        self, start: float, stop: float, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[float, Events]]:
        """Yield the windows of the actors that are wanted."""

    def _check_range(self, start: float, stop: float) -> tuple[float, float]:
        start, stop = float(start), float(stop)
        if not 0.0 <= start <= stop or np.isinf(start):
            raise InputError(f"a range of time needs 0 <= start <= stop, but is {start!r} to {stop!r}")
        return start, stop

    def _wanted(self, nodes: ArrayLike | None) -> NDArray[np.bool_]:
        """Flag the actors in which one of the nodes takes part; refuse nodes that lack their table."""
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
        return np.concatenate([chosen, chosen[self.edges].any(axis=1)])

    def _tables_by_node(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]]:
        """Return the number of each node's table, the starts of the tables, and their entries.

        Table k is the entries from ``begin[k]`` to ``begin[k + 1]``. A node without a table never draws and
        gets the number 0. Without any tables there are no entries.
        """
        table_of = np.zeros(self.n_nodes, dtype=np.int32)
        if self.samples is None:
            return table_of, frozen(np.zeros(2, dtype=np.int64)), frozen(np.zeros(0, dtype=np.uint64))
        table_of[self.samples.node_ids] = np.arange(self.samples.node_ids.size)
        return table_of, frozen(self.samples.node_starts), frozen(self.samples.packed)


def empty_events(events: int) -> Events:
    """Allocate arrays for some events."""
    return Events(np.empty(events), np.empty(events, dtype=np.int32), np.empty(events, dtype=np.int32))


def first_events(events: Events, count: int) -> Events:
    """Return the first events, in the same memory."""
    return Events(events.time[:count], events.actor[:count], events.sample[:count])


def copied(events: Events) -> Events:
    """Return a copy of the events."""
    return Events(events.time.copy(), events.actor.copy(), events.sample.copy())


def joined(blocks: list[Events]) -> Events:
    """Return all events of some blocks, in order, as one block."""
    return Events(*(np.concatenate(arrays) for arrays in zip(empty_events(0), *blocks, strict=True)))


def _check_tables(samples: AliasTables | None, node_probability: NDArray[np.float64]) -> None:
    if samples is None:
        return
    ids = samples.node_ids
    if ids.size and ids.max() >= node_probability.size:
        raise InputError(
            f"the sampling tables name node {ids.max()}, but there are {node_probability.size} nodes"
        )
    empty = ids[~samples.drawable & (node_probability[ids] > 0.0)]
    if empty.size:
        raise InputError(
            f"node {empty[0]} has a positive probability of computing but no row of positive weight: "
            "give it probability 0, or rows"
        )


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
        Columns ``time``; ``kind``, "compute" or "exchange"; ``node``; ``neighbour`` and ``edge`` (−1 for a
        computation); ``sample`` (−1 for an exchange).
    """
    import pandas as pd

    n = schedule.n_nodes
    blocks: list[Events] = []
    # Windows do not overlap in time, so that the first of them hold the first events.
    for _, events in schedule.windows(0, np.inf, nodes):
        order = np.lexsort((events.actor, events.time))  # at one time nodes go before edges
        blocks.append(Events(events.time[order], events.actor[order], events.sample[order]))
        if sum(block.time.size for block in blocks) >= first:
            break
    time, actor, sample = first_events(joined(blocks), first)
    # A computation has one node, an exchange the two ends of its edge.
    exchange = actor >= n
    ends = np.column_stack([actor, np.full(actor.size, -1)]).astype(np.int64)
    ends[exchange] = schedule.edges[actor[exchange] - n]
    return pd.DataFrame(
        {
            "time": time,
            "kind": np.where(exchange, "exchange", "compute"),
            "node": ends[:, 0],
            "neighbour": ends[:, 1],
            "edge": np.where(exchange, actor - n, -1),
            "sample": sample,
        }
    )
