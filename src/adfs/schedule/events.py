"""What a schedule is, the events that it hands out, and how they look: counts, a data frame, a picture."""

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
    from matplotlib.axes import Axes

#: Events that a window holds at least, about, so that the cost of a call is spread over many.
LEAST_EVENTS = 8192


class Events(NamedTuple):
    """Some events of a schedule, in a valid order.

    Valid: the events of any one node, its communications included, are in the order of their times, and so
    are all the communications (ties by edge number; a computation goes before a communication of the same
    time). Events that share no node may be in any order.

    Attributes
    ----------
    time : (T,) float64
        When (s).
    actor : (T,) int32
        Who: below n_nodes a computation of that node, otherwise a communication on edge ``actor − n_nodes``.
    sample : (T,) int32
        Which row a computation draws, an index into the flat rows of the process; −1 for a communication, and
        for every event of a schedule without tables.
    """

    time: NDArray[np.float64]
    actor: NDArray[np.int32]
    sample: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Schedule(abc.ABC):
    """Who acts when: a seeded, stateless function from a range of time to its events.

    Parameters
    ----------
    seed : int
        0 ≤ seed < 2**64. The same seed gives the same events on every machine.
    n_nodes : int
        Number of nodes (n).
    edges : (n_edges, 2) int32
        The communication edges, i < j.
    node_probability : (n,) float64
        The chance that an event is a computation of that node (p_i^comp).
    edge_probability : (n_edges,) float64
        The chance that it is a communication on that edge (p_e); all together sum to 1.
    samples : AliasTables or None
        How a node draws a row. A process may hold the tables of its own nodes only, and then asks for the
        events of those. Without tables, sample is −1.
    """

    kind: ClassVar[str]

    seed: int
    n_nodes: int
    edges: NDArray[np.int32]
    node_probability: NDArray[np.float64]
    edge_probability: NDArray[np.float64]
    samples: AliasTables | None = None

    def __post_init__(self) -> None:
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
        # Written so that nan fails too.
        if not (min(nodes.min(), links.min(initial=0.0)) >= 0.0 and abs(total - 1.0) <= 1e-9):
            raise InputError(f"probabilities must not be negative and must sum to 1, but sum to {total!r}")
        _check_tables(self.samples, nodes)
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
        return joined([copied(events) for _, events in self.windows(start, stop, nodes)])

    def windows(
        self, start: float, stop: float, nodes: ArrayLike | None = None
    ) -> Iterator[tuple[float, Events]]:
        """Yield the events with start < time ≤ stop, window after window, and when each window ends.

        Parameters
        ----------
        start, stop, nodes
            As in `block`; stop may be infinite.

        Yields
        ------
        end : float
        events : Events
            Possibly none; overwritten by the next ones.
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
        """Say for each actor whether one of the nodes takes part; each must have a table if any has."""
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
        """Return each node's table number, where the tables begin, and all of them one after the other.

        Table k is the entries from ``begin[k]`` to ``begin[k + 1]``. A node without one, which never draws,
        is given the first. Without any tables there are no entries.
        """
        table_of = np.zeros(self.n_nodes, dtype=np.int32)
        if self.samples is None:
            return table_of, frozen(np.zeros(2, dtype=np.int64)), frozen(np.zeros(0, dtype=np.uint64))
        table_of[self.samples.node_ids] = np.arange(self.samples.node_ids.size)
        return table_of, frozen(self.samples.node_starts), frozen(self.samples.packed)


def room_for(events: int) -> Events:
    """Allocate memory for some events."""
    return Events(np.empty(events), np.empty(events, dtype=np.int32), np.empty(events, dtype=np.int32))


def first_of(events: Events, count: int) -> Events:
    """Return the first events, in the same memory."""
    return Events(events.time[:count], events.actor[:count], events.sample[:count])


def copied(events: Events) -> Events:
    """Return the events in memory of their own."""
    return Events(events.time.copy(), events.actor.copy(), events.sample.copy())


def joined(blocks: list[Events]) -> Events:
    """Return blocks one after the other, as one."""
    if len(blocks) == 1:
        return blocks[0]
    return Events(*(np.concatenate(arrays) for arrays in zip(room_for(0), *blocks, strict=True)))


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


class Counts(NamedTuple):
    """How many events each actor has over a range of time, and how many are expected.

    Attributes
    ----------
    node_expected, node_actual : (n_nodes,) float64, int64
        Computations.
    edge_expected, edge_actual : (n_edges,) float64, int64
        Communications.
    """

    node_expected: NDArray[np.float64]
    node_actual: NDArray[np.int64]
    edge_expected: NDArray[np.float64]
    edge_actual: NDArray[np.int64]


def counts(schedule: Schedule, start: float, stop: float, nodes: ArrayLike | None = None) -> Counts:
    """Count the events with start < time ≤ stop, a window at a time.

    Parameters
    ----------
    schedule : Schedule
    start, stop : float
    nodes : array_like of int, optional
        Only the events that one of these takes part in; the counts of all other actors are 0.
    """
    n = schedule.n_nodes
    if np.isinf(stop):
        raise InputError("events can be counted up to a finite time only")
    actual = np.zeros(schedule.n_actors, dtype=np.int64)
    for _, events in schedule.windows(start, stop, nodes):
        actual += np.bincount(events.actor, minlength=schedule.n_actors)
    expected = schedule.probability * (stop - start)
    expected[~schedule._wanted(nodes)] = 0.0
    return Counts(expected[:n], actual[:n], expected[n:], actual[n:])


def in_time_order(events: Events) -> Events:
    """Return events in the order of their times; at one time by the number of the actor, nodes first."""
    order = np.lexsort((events.actor, events.time))
    return Events(events.time[order], events.actor[order], events.sample[order])


def frame(schedule: Schedule, first: int = 100, nodes: ArrayLike | None = None) -> pd.DataFrame:
    """Return the first events in the order of their times.

    Parameters
    ----------
    schedule : Schedule
    first : int
        How many.
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
    found: list[Events] = []
    total = 0
    # Windows do not overlap in time, so enough of them hold the first events.
    for _, events in schedule.windows(0, np.inf, nodes):
        found.append(in_time_order(events))
        total += events.time.size
        if total >= first:
            break
    time, actor, sample = first_of(joined(found), first)
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


def plot(schedule: Schedule, start: float = 0, stop: float | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw who does what when: a row per node, a tick per computation, a line between two rows per exchange.

    Parameters
    ----------
    schedule : Schedule
    start, stop : float
        The range of time; by default long enough for some ten events per node.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    n = schedule.n_nodes
    if stop is None:
        stop = start + 10 * n
    time, actor, _ = schedule.block(start, stop)
    computes = actor < n
    ends = schedule.edges[actor[~computes] - n]
    if ax is None:
        height = float(np.clip(0.3 * n, 2.0, 12.0))
        ax = plt.subplots(figsize=(9.0, height), layout="constrained")[1]
    ax.hlines(np.arange(n), start, stop, color="0.85", linewidth=0.8, zorder=1)
    ax.plot(time[computes], actor[computes], "|", color="tab:blue", label="computation", zorder=2)
    ax.vlines(
        time[~computes], ends[:, 0], ends[:, 1], color="tab:red", linewidth=1.0, label="exchange", zorder=3
    )
    ax.plot(np.repeat(time[~computes], 2), ends.ravel(), ".", color="tab:red", markersize=4, zorder=3)
    ax.set(
        xlabel="time",
        ylabel="node",
        xlim=(start, stop),
        ylim=(-0.5, n - 0.5),
        title=f"{schedule.kind} schedule",
    )
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper right", frameon=False)
    return ax
