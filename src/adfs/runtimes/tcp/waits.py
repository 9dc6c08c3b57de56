"""Waits for messages on sockets: the system wakes a process when something has come."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from adfs.runtimes.tcp.frames import Connection, FrameError
from adfs.runtimes.waiting import RankLostError, Waits

if TYPE_CHECKING:
    from adfs.runtimes.tcp.peers import TcpPeers

T = TypeVar("T")


class SocketWaits(Waits):
    """The waits for messages on sockets, which the system interrupts when something has come."""

    # A rest ends as soon as something has come: more checks would only take the core from others.
    checks = 1
    cluster: TcpPeers

    def __init__(self, peers: TcpPeers, deadline: float) -> None:
        super().__init__(peers, deadline)
        self._busy = 0
        self._silent: Sequence[int] = ()

    def poll(self, seconds: float, *, ending: bool = False) -> None:
        """Send and receive what is possible, waiting so long for the first of it.

        Unless this process is ``ending`` itself, raise if another one has ended or said something wrong.
        """
        # A closed socket is always ready, and every rest would end at once.
        watched = {one.socket.fileno(): one for one in self.cluster._connections.values() if not one.ended}
        poll = select.poll()
        for number, connection in watched.items():
            # A full connection is not read, and TCP slows its sender down. Room to write is asked for only
            # while bytes wait for it: a socket nearly always has some, and no rest would last.
            reading = 0 if connection.full else select.POLLIN
            poll.register(number, reading | (select.POLLOUT if connection.unsent else 0))
        for number, event in poll.poll(1000.0 * seconds):
            connection = watched[number]
            if event & select.POLLOUT:
                connection.flush()
            try:
                # Errors and closed connections are reported without being asked for: reading tells which.
                if event & ~select.POLLOUT:
                    connection.receive()
            except FrameError as error:
                if not ending:
                    raise self._wrong(connection, error) from None
                # This process is ending: what another one sends now no longer matters to it.
                connection.ended = True
            if not ending and (connection.ended or connection.lost is not None):
                self._raise_lost(connection)

    def _raise_lost(self, connection: Connection) -> None:
        peers, rank = self.cluster, connection.rank
        # The first process that failed knows why: its sentence goes through the network as it is.
        if connection.lost is not None:
            raise RankLostError(connection.lost.decode(errors="replace"))
        raise RankLostError(
            f"rank {peers.rank} lost rank {rank} {peers.activity}: its process has ended; see what happened "
            "there, and resume from the last checkpoint if there is one"
        )

    def _wrong(self, connection: Connection, error: FrameError) -> RankLostError:
        return RankLostError(
            f"rank {connection.rank} sent rank {self.cluster.rank} {error} ({self.cluster.activity}); start "
            "the processes again"
        )

    def checked(self, connection: Connection, take: Callable[[Connection], T]) -> T:
        """Return what ``take`` makes of the frame that has arrived first."""
        try:
            return take(connection)
        except FrameError as error:
            raise self._wrong(connection, error) from None

    # ------------------------------------------------------------------ signs of life, and pauses

    def rest(self, elapsed: float) -> float:
        # A message ends a rest. The deadline is checked after each, so a rest is a small part of it.
        # A process that calls for the first time ends none: the first rests are short.
        asked = min(0.1, self.deadline / 8.0, 0.001 + 0.25 * elapsed)
        self.poll(asked)
        return asked

    def listen(self) -> Mapping[int, float]:
        return {rank: one.heard for rank, one in self.cluster._connections.items()}

    def signs_while_waiting(self, ranks: Sequence[int]) -> AbstractContextManager[None]:
        # Those for whom this process waits get none: two that wait for each other must not do so for ever.
        return self.beating(ranks)

    @contextmanager
    def beating(self, silent: Sequence[int]) -> Iterator[None]:
        """Send signs of life, but not to some, until the block ends."""
        # A wait inside a busy block has silent ranks of its own, and those of the block come back.
        before, self._silent = self._silent, silent
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._silent = before

    def beat(self) -> None:
        """Send a sign of life, in the thread that does so, if this process is busy."""
        if self._busy:
            # This is a copy, because the main thread may add a connection meanwhile.
            for rank, connection in list(self.cluster._connections.items()):
                if rank not in self._silent:
                    connection.sign()

    def hint(self, lost: Sequence[int]) -> str:
        refusal = self.cluster._listener.last_refusal
        return f" ({refusal})" if refusal else ""
