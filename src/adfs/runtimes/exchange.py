"""Events and gossip products when some neighbours live in other processes.

Events: post early, go on, wait when needed. Products are summed in a fixed order: the same bits wherever the
rows are computed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import EventProcess, Work
from adfs.algorithms.method_kernels import Parts, execute, fill_message, row_products, take_message
from adfs.compilation import kernel
from adfs.problem.samples import SparseRows
from adfs.schedule import Events
from adfs.schedule.events import empty_events

if TYPE_CHECKING:
    from adfs.runtimes.cluster import Cluster, Links, Placement
    from adfs.runtimes.execution import ProcessTimes

# Between two polls for messages there must not be much work, because some networks move a message only while
# their library is called: so many events at most, and so many numbers.
_EVENTS_PER_POLL, _NUMBERS_PER_POLL = 256, 1 << 17


class EventExchange:
    """Executes windows of events of a process, some of whose edges may lead to other processes.

    ``tau``, the time of a message in units of a sample's computation, limits the search for events that need
    not wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: EventProcess,
        links: Links,
        times: ProcessTimes,
        tau: float | None = None,
    ) -> None:
        self.cluster, self.process, self.links, self.times = cluster, process, links, times
        # While a message is under way, a process has the time for about τ samples. If more events wait, there
        # is little more to do, and every event that waits is tried again and again.
        self._ahead = int(min(max(256.0, 2.0 * (tau or 0.0)), 1 << 16))
        self._at_once = _EVENTS_PER_POLL
        # Room for the events that wait and for the next ones that are tried.
        room = self._ahead + self._at_once if links.edges.size else 0
        self._blocked = np.zeros(int((process.slot >= 0).sum()) if room else 0, dtype=np.uint8)
        self._waiting = np.zeros(room, dtype=np.int32)
        self._ready = np.zeros(room, dtype=np.int32)
        self._taken = empty_events(room)
        # By link: the node's place and the time of the exchange under way.
        self._pending: dict[int, tuple[int, float]] = {}
        self._own_place = np.array([process.end(int(edge)) for edge in links.edges], dtype=np.int64)
        # Links whose message has come and is still to be taken, with the times of their events; the messages
        # to send, by their places among the events.
        self._arrived = np.zeros(links.edges.size, dtype=np.int64)
        self._moments = np.zeros(links.edges.size)
        self._n_arrived = 0
        self._posted = np.zeros(links.edges.size, dtype=np.int64)

    def compile(self) -> None:
        """Compile the kernels, without a message."""
        self.process.run(self._taken, 0, 0)
        if self.links.edges.size:
            self._execute(empty_events(0), 0)

    def execute(self, events: Events) -> None:
        """Execute all the events of a window, and count the work; on return nothing is under way."""
        process, links, size = self.process, self.links, events.time.size
        computations = int(np.count_nonzero(events.sample >= 0))
        # Without links to other processes there is nothing to wait for.
        if not links.edges.size:
            begun = time.perf_counter()
            process.run(events, 0, size)
            self.times.computing += time.perf_counter() - begun
            process.count(computations, size - computations)
            return
        # A sparse row has far fewer numbers than a message.
        numbers = computations * process.row_length + (size - computations) * process.message_length
        self._at_once = max(8, min(_EVENTS_PER_POLL, int(_NUMBERS_PER_POLL * size / max(1.0, numbers))))
        self._execute(events, size)
        # Inside this process an exchange is two messages, one each way; with another process it is one.
        exchanged = events.actor[events.sample < 0] - process.slot.size
        across = int(np.count_nonzero(links.number[exchanged] >= 0))
        process.count(computations, exchanged.size - across)
        done = process.work
        messages = done.messages + across
        process.work = Work(done.computations, messages, messages * process.message_length)

    def _execute(self, events: Events, size: int) -> None:
        process, n = self.process, self.process.slot.size
        # Events are executed in an order that is valid for every node, not in the order of the schedule.
        done = n_waiting = 0
        while True:
            begun = time.perf_counter()
            # A node that waits for a message can do nothing else, and neither can its events.
            self._blocked[:] = 0
            for place, _ in self._pending.values():
                self._blocked[place] = 1
            last = min(size, done + min(self._at_once, self._ahead - n_waiting))
            n_ready, n_waiting = split_events(
                events.actor, done, last, process.ends, process.slot, self._blocked,
                self._waiting, n_waiting, self._ready,
            )  # fmt: skip
            done = last
            take_events(events, self._ready, n_ready, self._taken)
            posted = self._run(n_ready)
            self.times.computing += time.perf_counter() - begun
            begun = time.perf_counter()
            for position in posted:
                self._post(int(self._taken.actor[position]) - n, float(self._taken.time[position]))
            self.times.communicating += time.perf_counter() - begun
            if self._pending:
                # While there is something else to do, only poll.
                self._receive(wait=done == size or n_waiting >= self._ahead)
            elif done == size and n_waiting == 0 and not self._n_arrived:
                return

    def _run(self, n_ready: int) -> list[int]:
        """Take the messages that have come, execute events, and return the places of those to be posted."""
        process, links, taken = self.process, self.links, self._taken
        # One call of compiled code: unpacking its arguments costs more than the work.
        if process.kernels is not None:
            count = run_ready(
                process.parts, taken, n_ready, process.slot.size,
                (links.number, self._own_place, links.edges, links.out, links.into),
                self._arrived, self._moments, self._n_arrived, self._posted,
            )  # fmt: skip
            self._n_arrived = 0
            return [int(position) for position in self._posted[:count]]
        for link, moment in zip(self._arrived[: self._n_arrived], self._moments, strict=False):
            process.incoming(int(links.edges[link]), float(moment), links.out[link], links.into[link])
        self._n_arrived = first = 0
        posted = []
        # The process stops before each exchange with another process.
        while first < n_ready:
            first = process.run(taken, first, n_ready)
            if first < n_ready:
                edge = int(taken.actor[first]) - process.slot.size
                links.out[links.number[edge]] = process.outgoing(edge, float(taken.time[first]))
                posted.append(first)
                first += 1
        return posted

    def _post(self, edge: int, moment: float) -> None:
        links, link = self.links, int(self.links.number[edge])
        links.send(link)
        links.exchanges[link] += 1
        self._pending[link] = (int(self._own_place[link]), moment)

    def _receive(self, wait: bool) -> None:
        """Find the exchanges whose message has come; with ``wait``, wait until one has."""
        links, pending = self.links, list(self._pending)
        begun = time.perf_counter()
        # Take what has come; wait only if nothing else can be done.
        arrived = links.arrived(pending)
        if wait and not arrived:
            oldest, (_, moment) = next(iter(self._pending.items()))
            # The time in which this process itself was stopped is not a wait for others.
            begun -= self.cluster.suspended
            arrived = links.arrived(pending, self._event(oldest, moment))
            begun += self.cluster.suspended
            self.times.waited(begun, time.perf_counter(), int(links.peer[arrived[0]]))
            begun = time.perf_counter()
        for link in arrived:
            self._arrived[self._n_arrived] = link
            _, self._moments[self._n_arrived] = self._pending.pop(link)
            self._n_arrived += 1
        self.times.communicating += time.perf_counter() - begun

    def _event(self, link: int, moment: float) -> str:
        """Name the oldest exchange under way."""
        edge = int(self.links.edges[link])
        a, b = self.process.ends[edge]
        number = int(self.links.exchanges[link])
        where = f"edge {edge} between nodes {a} and {b}, its exchange {number} here"
        return f"at the event of time {moment:.17g} ({where})"


# --------------------------------------------------------------------------- which events can be executed now


@kernel
def split_events(
    actors: np.ndarray,
    first: int,
    last: int,
    ends: np.ndarray,
    slot: np.ndarray,
    blocked: np.ndarray,
    waiting: np.ndarray,
    n_waiting: int,
    ready: np.ndarray,
) -> tuple[int, int]:
    """Split events into those that can be executed now and those that must wait; return how many of each.

    Parameters
    ----------
    actors : (T,) int32
        The events of a window.
    first, last : int
        New events, in their order.
    ends : (|E|, 2) int32
    slot : (n,) int32
        The place of each node in the block, −1 elsewhere.
    blocked : (k,) uint8
        Which nodes of the block wait for a message; on return also those with an event that must wait.
    waiting : (≥ T,) int32
        The events that waited before, and come first; on return those that wait now, in their order.
    n_waiting : int
        How many.
    ready : (≥ T,) int32
        On return, the events to execute, in their order. A node that communicates with another rank is the
        last of its events among them.
    """
    n = slot.size
    n_ready = 0
    kept = 0
    for position in range(n_waiting + last - first):
        t = waiting[position] if position < n_waiting else first + position - n_waiting
        actor = actors[t]
        other = -1
        if actor < n:
            one = slot[actor]
        else:
            one = slot[ends[actor - n, 0]]
            other = slot[ends[actor - n, 1]]
        if (one >= 0 and blocked[one]) or (other >= 0 and blocked[other]):
            if one >= 0:
                blocked[one] = 1
            if other >= 0:
                blocked[other] = 1
            waiting[kept] = t  # never beyond what has been read
            kept += 1
            continue
        ready[n_ready] = t
        n_ready += 1
        if actor >= n:
            if one < 0:
                blocked[other] = 1
            elif other < 0:
                blocked[one] = 1
    return n_ready, kept


@kernel
def take_events(events: Events, chosen: np.ndarray, count: int, out: Events) -> None:
    """Copy the chosen events one after the other."""
    for k in range(count):
        t = chosen[k]
        out.time[k] = events.time[t]
        out.actor[k] = events.actor[t]
        out.sample[k] = events.sample[t]


@kernel
def run_ready(
    parts: Parts,
    events: Events,
    n_ready: int,
    n: int,
    links: tuple[np.ndarray, ...],
    arrived: np.ndarray,
    moments: np.ndarray,
    n_arrived: int,
    posted: np.ndarray,
) -> int:
    """Take messages, then execute events; return how many of them are exchanges to be posted.

    Parameters
    ----------
    parts, events, n_ready
        The state of the process, and the events to execute.
    n
        The number of nodes of the network.
    links
        The arrays ``number``, ``edges``, ``out`` and ``into`` of `adfs.runtimes.cluster.Links`; after the
        first of them the place of the node of each link.
    arrived, moments, n_arrived
        The links whose message is taken, and the times of their events.
    posted : (c,) int64
        On return, the places of the events whose message is in ``out``.
    """
    number, places, edges, out, into = links
    for k in range(n_arrived):
        link = arrived[k]
        edge, i = int(np.int64(edges[link])), int(np.int64(places[link]))
        take_message(parts, edge, i, moments[k], out[link], into[link])
    first = count = 0
    while first < n_ready:
        first = execute(parts, events.time, events.actor, events.sample, first, n_ready)
        if first < n_ready:
            link = number[events.actor[first] - n]
            fill_message(parts, int(np.int64(places[link])), events.time[first], out[link])
            posted[count] = first
            count += 1
            first += 1
    return count


# --------------------------------------------------------------------------- gossip


class GossipProduct:
    """The product of this process's rows of a matrix with the values of all nodes, and sums over all nodes.

    A row is summed in the order of its columns, wherever the values come from: the same bits. ``rows`` is the
    whole matrix (n, n) where all nodes are in this process.
    """

    def __init__(
        self, cluster: Cluster, matrix: sp.csr_array, placement: Placement, times: ProcessTimes
    ) -> None:
        self.cluster, self.placement, self.times = cluster, placement, times
        self.products = 0
        csr = matrix if matrix.has_sorted_indices else matrix.sorted_indices()
        block = placement.block(cluster.rank)
        self.rows = SparseRows(csr.data, csr.indices, csr.indptr) if block.size == csr.shape[0] else None
        if self.rows is not None:
            self._own = self.rows
            return
        # The rows of this process, and the columns that it needs from others.
        own = sp.csr_array(csr[block])
        own.sort_indices()
        needed = np.setdiff1d(own.indices, block)  # in the order of nodes
        owner = placement.rank_of_node[needed]
        # This process's nodes first, then the needed ones grouped by the process that has them.
        order = np.argsort(owner, kind="stable")
        needed, owner = needed[order], owner[order]
        place = np.full(csr.shape[0], -1, dtype=np.int64)
        place[block] = np.arange(block.size)
        place[needed] = block.size + np.arange(needed.size)
        self._own = SparseRows(own.data, place[own.indices].astype(csr.indices.dtype), own.indptr)
        self._needed = needed.size
        self._sources = [(rank, slice(block.size + a, block.size + b)) for rank, a, b in runs(owner)]
        # The values of this process that the rows of others need, in the order of nodes.
        self._targets = []
        pattern = csr[:, block].tocoo()
        rows, columns = placement.rank_of_node[pattern.row], pattern.col
        for rank in np.unique(rows):
            if rank != cluster.rank:
                self._targets.append((int(rank), np.unique(columns[rows == rank])))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the rows of the product, of the shape of this process's values (k, …)."""
        # Kernels take one row of numbers per node.
        flat = np.ascontiguousarray(values.reshape(values.shape[0], -1))
        if self.rows is None:
            flat = self._with_neighbours(flat)
        out = np.empty((values.shape[0], flat.shape[1]))
        row_products(self._own, flat, out)
        return out.reshape(values.shape)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes in their order, (d,), from this process's values (k, d)."""
        self.products += 1
        begun = time.perf_counter()
        self.cluster.activity = f"in sum {self.products} over the nodes"
        found = self.cluster.allreduce(values, self.placement)
        self.times.communicating += time.perf_counter() - begun
        return found

    def least(self, value: float) -> float:
        """Return the smallest of the values of all processes."""
        begun = time.perf_counter()
        self.cluster.activity = "to find the length of a step"
        found = float(min(self.cluster.allgather(value)))
        self.times.communicating += time.perf_counter() - begun
        return found

    def _with_neighbours(self, flat: np.ndarray) -> np.ndarray:
        """Return the values here followed by those needed of other processes."""
        begun = time.perf_counter()
        everything = np.empty((flat.shape[0] + self._needed, flat.shape[1]))
        everything[: flat.shape[0]] = flat
        outgoing = [(rank, np.ascontiguousarray(flat[places])) for rank, places in self._targets]
        incoming = [(rank, everything[part]) for rank, part in self._sources]
        posted = time.perf_counter()
        self.times.communicating += posted - begun
        self.products += 1
        self.cluster.activity = f"in gossip product {self.products}"
        posted -= self.cluster.suspended
        self.cluster.sendrecv(outgoing, incoming)
        if incoming:
            self.times.waited(posted + self.cluster.suspended, time.perf_counter(), incoming[0][0])
        return everything


def runs(values: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (value, start, stop) of each run of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    stops = np.append(starts[1:], values.size)[: starts.size]  # none where there are no values
    return [(int(values[a]), int(a), int(b)) for a, b in zip(starts, stops, strict=True)]
