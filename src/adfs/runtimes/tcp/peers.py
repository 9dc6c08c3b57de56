"""Processes on any hosts as a cluster, joined by TCP sockets.

Sums and agreements go up a tree, in which process k has the children 2k + 1 and 2k + 2, and down again:
every process has few connections, and the root adds in the order of the nodes. Neighbours in the network have
a connection of their own, opened when they first need it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adfs._version import __version__
from adfs.errors import InputError
from adfs.problem.evaluation import sum_in_order
from adfs.runtimes.cluster import Links, Parcels, Placement, RefusalError, pack, unpack
from adfs.runtimes.exchange import runs
from adfs.runtimes.tcp.frames import Connection, FrameError, Kind
from adfs.runtimes.tcp.links import TcpLinks
from adfs.runtimes.tcp.meeting import (
    Listener,
    Refusal,
    call,
    close_socket,
    explain,
    for_good,
    listen,
    load_tls,
    read_address,
    taken,
)
from adfs.runtimes.tcp.waits import SocketWaits
from adfs.runtimes.waiting import NUMBERS_AT_ONCE, RankLostError, WaitingCluster

T = TypeVar("T")


class TcpPeers(WaitingCluster):
    """Processes on any hosts, each started by hand or by an engine; each holds its own nodes and their data.

    Parameters
    ----------
    addresses : sequence of str
        The ``"host:port"`` of every process, in the order of ranks; the same list in all of them.
    rank : int
        The place of this process in the list.
    deadline : float
        Seconds that a process waits for another before it raises `RankLostError`.
    tls : mapping, optional
        The files of TLS 1.3, as PEM: ``certificate`` and ``key`` of this process, and the ``authority`` that
        signed the certificates of all. ``{rank}`` in a name stands for the rank.
    listener : socket.socket, optional
        A socket that is bound to this process's port and will be closed by this object. Without it, the port
        of the own address is bound when the processes meet.

    Examples
    --------
    In each of two processes, with its own rank and its own rows::

        peers = adfs.TcpPeers(["node-1:47001", "node-2:47001"], rank)
        model = adfs.ADFSClassifier(cluster=peers).fit(X_of_this_process, y_of_this_process)
    """

    def __init__(
        self,
        addresses: Sequence[str],
        rank: int,
        *,
        deadline: float = 60.0,
        tls: Mapping[str, str | Path] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(deadline)
        self.addresses = [str(address) for address in addresses]
        self._endpoints = [read_address(address) for address in self.addresses]
        if len(set(self._endpoints)) != len(self._endpoints) or not self._endpoints:
            raise InputError("addresses must be one host:port per process, each of them once")
        if isinstance(rank, bool) or not 0 <= int(rank) < len(self._endpoints):
            raise InputError(f"rank must be from 0 to {len(self._endpoints) - 1}, got {rank!r}")
        self.rank, self.size = int(rank), len(self._endpoints)
        self.tls = None if tls is None else dict(tls)
        self._given_socket = listener
        # A process that was started again has the same rank: the name tells it from the first.
        self._process = f"{socket.gethostname()} {os.getpid()} {os.urandom(6).hex()}"
        # The tree; the parent is a list of one, or of none at the root.
        self._parent = [(self.rank - 1) // 2] if self.rank else []
        self._children = [k for k in (2 * self.rank + 1, 2 * self.rank + 2) if k < self.size]
        # By process, through which of these its messages come.
        self._source = _sources(self.rank, self.size)
        self._connections: dict[int, Connection] = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Leave out the connections: a loaded model makes new ones."""
        return partial(TcpPeers, deadline=self.deadline, tls=self.tls), (self.addresses, self.rank)

    def __repr__(self) -> str:
        return f"TcpPeers({self.addresses}, {self.rank}, deadline={self.deadline:g})"

    # ------------------------------------------------------------------ beginning and end

    def connect(self) -> None:
        answering, self._calling = load_tls(self.tls, self.rank)
        # A given socket serves one meeting; a later one binds the port again.
        listener, self._given_socket = self._given_socket, None
        if listener is None:
            listener = listen(self._endpoints[self.rank], self.rank)
        self.waits = SocketWaits(self, self.deadline)
        # Several signs of life fit in a deadline, so that one of them may be late.
        pause = min(1.0, self.deadline / 8.0)
        self._listener = Listener(listener, self._check, answering, self.waits.beat, pause)
        try:
            self.meet([*self._parent, *self._children])
            self.compare_hosts(self.waits)
        except BaseException as error:
            self.disconnect(error)
            raise

    def disconnect(self, error: object) -> None:
        try:
            # A refusal is raised in all processes: their connections end in order.
            if error is None or isinstance(error, RefusalError):
                self._tell(Kind.BYE, b"", self.deadline)
            else:
                # The values of samples stay in their process: only our own sentences are passed on.
                why = f"{self.activity} ({type(error).__name__}), its own message says more"
                lost = isinstance(error, RankLostError)
                words = str(error) if lost else f"rank {self.rank} failed {why}"
                self._tell(Kind.LOST, words.encode(), 1.0)
        finally:
            # Its thread ends first, because it sends signs of life on the sockets that are closed next.
            self._listener.close()
            for connection in self._connections.values():
                close_socket(connection.socket)
            self._connections.clear()

    def _tell(self, kind: Kind, words: bytes, seconds: float) -> None:
        """Tell the others that this process ends, and wait until they end too, but not for longer."""
        for connection in self._connections.values():
            connection.send(kind, words)
        # To close a socket with unread bytes discards what was sent: each end waits for the other's word.
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and not all(
            one.ended or (not one.unsent and (one.bye or one.lost is not None))
            for one in self._connections.values()
        ):
            self.waits.poll(0.05, ending=True)

    # ------------------------------------------------------------------ meeting

    def _card(self, rank: int) -> dict[str, Any]:
        """Return what this process says about itself when it calls another."""
        return {
            "version": f"adfs {__version__}",
            "number of processes": self.size,
            "list of addresses": hashlib.sha256(json.dumps(self.addresses).encode()).hexdigest()[:16],
            "rank": self.rank,
            "to": rank,
            "process": self._process,
        }

    def _check(self, card: Mapping[str, Any]) -> Refusal | None:
        """Return why a caller cannot be connected, if so."""
        own, rank = self._card(self.rank), card.get("rank")
        if not isinstance(rank, int) or not isinstance(card.get("process"), str):
            return Refusal("it did not say who it is")
        for what in ("version", "number of processes", "list of addresses"):
            if card.get(what) != own[what]:
                return Refusal(
                    f"the {what} is {card.get(what)} on rank {rank} and {own[what]} on rank {self.rank}; "
                    "give all processes the same",
                    final=True,
                )
        if card.get("to") != self.rank:
            return Refusal(
                f"rank {self.rank} answers at the address of rank {card.get('to')}; start each process on "
                "the host of its address, with the rank of its place in the list",
                final=True,
            )
        # A process whose welcome was lost calls again by its own name, and a connection that ended is free.
        before = self._connections.get(rank)
        free = before is None or before.ended or before.process == card["process"]
        return None if self.rank < rank < self.size and free else taken(rank)

    def meet(self, ranks: Sequence[int]) -> dict[int, Connection]:
        """Return the connections to some processes, which do the same: this one calls those before it."""
        new = sorted({rank for rank in ranks if rank not in self._connections})
        # Of two processes the later one calls, and it makes its calls before it answers any. Rank 0 calls
        # nobody, rank 1 only rank 0, and so on: the waits cannot form a circle.
        for rank in new:
            if rank < self.rank:
                self._call(rank)
        expected = [rank for rank in new if rank > self.rank]

        def answered() -> bool:
            expected[:] = [rank for rank in expected if not self._answer(rank)]
            return not expected

        if expected:
            # Those that are here already wait for this process: signs of life tell them not to give up first.
            self.waits.until(answered, lambda: expected, listen=True)
        return {rank: self._connections[rank] for rank in ranks}

    def _answer(self, rank: int) -> bool:
        """Welcome a process if it has called."""
        connection = self._listener.caller(rank)
        if connection is None:
            return False
        # A caller that has given up closed its end, which only reading shows.
        connection.receive()
        if connection.ended:  # it did not wait, and will call again
            close_socket(connection.socket)
            return False
        connection.send(Kind.WELCOME)
        self._connections[rank] = connection
        return True

    def _call(self, rank: int) -> None:
        """Call a process until it welcomes this one."""
        until, host, trouble = time.perf_counter() + self.deadline, self.addresses[rank], ""
        pause, look_around = 0.001, partial(self.waits.poll, 0.0)
        while time.perf_counter() < until:
            try:
                # The other process may start much later than this one: calls that fail are repeated.
                self._connections[rank] = call(
                    self._endpoints[rank], self._card(rank), self._calling, until, look_around
                )
                return
            except InputError:  # it refuses this process for good
                raise
            except (OSError, FrameError, ValueError, TypeError, RecursionError) as error:
                trouble = explain(error)
                if for_good(error):
                    raise InputError(
                        f"rank {self.rank} cannot use TLS with rank {rank} at {host}: {trouble}; give all "
                        "processes certificates that one authority has signed and that are still valid, "
                        "or use TLS in none"
                    ) from None
            # Another process may have ended meanwhile.
            look_around()
            # Processes that start together meet within milliseconds; the wait for a late one costs little.
            time.sleep(pause)
            pause = min(2.0 * pause, 0.05)
        raise RankLostError(
            f"rank {self.rank} waited {self.deadline:g} s for rank {rank} at {host} {self.activity} and gave "
            f"up: {trouble}; start all processes, and let the ports through"
        )

    # ------------------------------------------------------------------ up and down the tree

    def allgather(self, item: Any) -> list[Any]:
        # Items go up the tree one by one, in the order of ranks, and those that a process lacks come down.
        own = pack(item)
        found = {self.rank: (own, unpack(own))}
        for child in self._children:
            for rank in np.flatnonzero(self._source == child).tolist():
                found[rank] = self._receive(child, _take_item)
        for parent in self._parent:
            for rank in sorted(found):
                self._send(parent, Kind.ITEMS, found[rank][0])
            for rank in np.flatnonzero(self._source < 0).tolist():
                found[rank] = self._receive(parent, _take_item)
        for child in self._children:
            for rank in np.flatnonzero(self._source != child).tolist():
                self._send(child, Kind.ITEMS, found[rank][0])
        return [found[rank][1] for rank in range(self.size)]

    def allreduce(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Return the sum over all nodes; no process holds the vectors of all of them.

        Every process sends the vectors of the nodes below it in the order of the nodes, so that its parent
        merges two such streams and its own vectors, and the root adds what arrives.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        width = values.shape[1]
        at_once = max(1, NUMBERS_AT_ONCE // width)
        # Whence the vector of each node comes: a child, this process, or −1 if it does not pass here.
        source = self._source[placement.rank_of_node]
        waiting = {rank: np.empty((0, width)) for rank in self._children} | {self.rank: values}
        total = np.zeros(width)
        # The order of the nodes decides whose vectors are next, not that in which they arrive: the sum has
        # the bits that one process would find.
        for rank, start, stop in runs(source[source >= 0]):
            count = stop - start
            while count > 0:
                if len(waiting[rank]) == 0:
                    waiting[rank] = self._receive(rank, lambda one: one.take_numbers(Kind.ROWS, (-1, width)))
                taken = min(count, at_once, len(waiting[rank]))
                rows, waiting[rank] = waiting[rank][:taken], waiting[rank][taken:]
                if self._parent:
                    self._send(self._parent[0], Kind.ROWS, rows)
                else:
                    total = sum_in_order(rows, total)
                count -= taken
        for parent in self._parent:
            total = self._receive(parent, lambda one: one.take_numbers(Kind.SUM, (width,)))
        for child in self._children:
            self._send(child, Kind.SUM, total)
        return total

    def _send(self, rank: int, kind: Kind, payload: Any) -> None:
        connection = self._connections[rank]
        connection.send(kind, payload)
        # The payload may change after this call, so it has to leave first. The wait also reads: two processes
        # that send to each other would otherwise both be stuck with full sockets.
        self._wait(rank, lambda: not connection.unsent)

    def _receive(self, rank: int, take: Callable[[Connection], T]) -> T:
        """Wait for a frame of a process, and return what ``take`` makes of it."""
        connection = self._connections[rank]
        self._wait(rank, lambda: bool(connection.inbox))
        return self.waits.checked(connection, take)

    def _wait(self, rank: int, ready: Callable[[], bool]) -> None:
        if not ready():
            self.waits.until(ready, lambda: [rank], listen=True)

    # ------------------------------------------------------------------ between neighbours

    def sendrecv(self, outgoing: Parcels, incoming: Parcels) -> None:
        self.meet([rank for rank, _ in (*outgoing, *incoming)])
        # All parcels are on their way before this process waits for any: no two can wait for each other.
        for rank, array in outgoing:
            self._connections[rank].send(Kind.PARCEL, np.ascontiguousarray(array))
        left, sent = list(incoming), [self._connections[rank] for rank, _ in outgoing]

        def done() -> bool:
            left[:] = [(rank, array) for rank, array in left if not self._fill(rank, array)]
            return not left and not any(one.unsent for one in sent)

        self.waits.until(done, lambda: [rank for rank, _ in left or (*incoming, *outgoing)])

    def _fill(self, rank: int, array: np.ndarray) -> bool:
        """Fill an array with the parcel of a process, if it has arrived."""
        connection = self._connections[rank]
        if not connection.inbox:
            return False
        array[...] = self.waits.checked(connection, lambda one: one.take_numbers(Kind.PARCEL, array.shape))
        return True

    def links(self, placement: Placement, message_length: int) -> Links:
        return TcpLinks(self, placement, message_length)

    def busy(self) -> AbstractContextManager[None]:
        return self.waits.beating(())


def _sources(rank: int, size: int) -> np.ndarray:
    """Return through which child of a process the messages of each process come: itself for its own, or −1.

    >>> _sources(1, 8)
    array([-1,  1, -1,  3,  4, -1, -1,  3])
    """
    found = np.full(size, -1)
    found[rank] = rank
    for other in range(rank + 1, size):
        parent = (other - 1) // 2
        found[other] = other if parent == rank else found[parent]
    return found


def _take_item(connection: Connection) -> tuple[bytes, Any]:
    """Return the item that has arrived first, as bytes and as it is."""
    data = connection.take(Kind.ITEMS).tobytes()
    try:
        return data, unpack(data)
    except (ValueError, TypeError, RecursionError):
        raise FrameError("items that cannot be read") from None
