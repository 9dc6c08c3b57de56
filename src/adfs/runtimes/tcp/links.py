"""The messages between neighbours in the network, over the connection of their processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adfs.runtimes.cluster import Links, Placement
from adfs.runtimes.tcp.frames import HEADER, FrameError

if TYPE_CHECKING:
    from adfs.runtimes.tcp.peers import TcpPeers


class TcpLinks(Links):
    """The ends of the cut edges that are in this process; see `adfs.runtimes.cluster.Links`."""

    def __init__(self, peers: TcpPeers, placement: Placement, message_length: int) -> None:
        super().__init__(peers.rank, placement, message_length)
        self._waits = peers.waits
        count = self.edges.size
        # Every message out stands behind the room for its header; of those in, two may have come.
        frames = np.zeros((count, HEADER.size + 8 * message_length), dtype=np.uint8)
        self.out = frames[:, HEADER.size :].view(np.float64)
        self._frames = [frame.data for frame in frames]
        self._inbox = np.zeros((count, 2, message_length))
        # The messages of each link are counted; the lowest bit of a count is the slot.
        self._arrived, self._taken = [0] * count, [0] * count
        self._place = {edge: k for k, edge in enumerate(self.edges.tolist())}
        found = peers.meet(self.peer.tolist())
        self._to = [found[rank] for rank in self.peer.tolist()]
        # A faster neighbour may have sent already: its connection has kept these messages until now.
        for connection in found.values():
            connection.take_links(self._take)

    def _take(self, edge: int, body: memoryview) -> None:
        """Keep a message that has come until it is asked for."""
        link = self._place.get(edge, -1)
        # A neighbour that has our last message may send its next one before we take its last, but no third:
        # that one waits for a message that we send after taking.
        if link < 0 or body.nbytes != self._inbox[0, 0].nbytes or self._arrived[link] - self._taken[link] > 1:
            raise FrameError(f"a message of {body.nbytes} bytes over edge {edge} that is not expected")
        self._inbox[link, self._arrived[link] & 1] = np.frombuffer(body)
        self._arrived[link] += 1

    def send(self, link: int) -> None:
        # The frame includes ``out``: nothing is copied, so ``out`` must rest until the frame has left.
        self._to[link].send_link(int(self.edges[link]), self._frames[link])

    def arrived(self, links: Sequence[int], why: str | None = None) -> list[int]:
        found: list[int] = []

        def ready() -> bool:
            for link in links:
                taken = self._taken[link]
                # The caller may overwrite ``out`` once a link is ready, so ``out`` must have left, too.
                if self._arrived[link] > taken and not self._to[link].unsent:
                    self.into[link] = self._inbox[link, taken & 1]
                    self._taken[link] = taken + 1
                    found.append(link)
            return bool(found)

        self._waits.poll(0.0)
        if not ready() and why is not None:
            self._waits.until(ready, self.peer[list(links)].tolist, why)
        return found

    def close(self) -> None:
        for connection in self._to:
            # The links of the next run may have taken over the connection: they keep it.
            if connection.take_link == self._take:
                connection.take_links(None)
