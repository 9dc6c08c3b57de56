"""A third cluster: several "ranks" in one process, a thread each, and queues for messages.

It implements the interface of `adfs.runtimes.cluster.Cluster` and nothing else, and so shows what a new
transport takes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from adfs.runtimes.cluster import Cluster, Links, Parcels, Placement, pack, unpack

T = TypeVar("T")
_SECONDS = 60.0


class Board:
    """What the threads share: a barrier, a place for each one's item, and one queue per pair and purpose."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=_SECONDS)
        self.items: list[Any] = [None] * size
        self.queues: dict[Any, queue.Queue[np.ndarray]] = defaultdict(queue.Queue)
        self.lock = threading.Lock()

    def queue(self, *name: Any) -> queue.Queue[np.ndarray]:
        with self.lock:
            return self.queues[name]

    def all_items(self, rank: int, item: Any) -> list[Any]:
        self.items[rank] = item
        self.barrier.wait()
        found = list(self.items)
        self.barrier.wait()
        return found


class QueueLinks(Links):
    def __init__(self, board: Board, rank: int, placement: Placement, message_length: int) -> None:
        super().__init__(rank, placement, message_length)
        self._to = [board.queue("edge", e, rank, p) for e, p in zip(self.edges, self.peer, strict=True)]
        self._from = [board.queue("edge", e, p, rank) for e, p in zip(self.edges, self.peer, strict=True)]

    def send(self, link: int) -> None:
        self._to[link].put(self.out[link].copy())

    def arrived(self, links: Sequence[int], why: str | None = None) -> list[int]:
        begun, found = time.monotonic(), []
        while True:
            for link in links:
                with contextlib.suppress(queue.Empty):
                    self.into[link] = self._from[link].get_nowait()
                    found.append(link)
            if found or why is None:
                return found
            assert time.monotonic() - begun < _SECONDS, f"waited for {self.peer[list(links)]} {why}"
            time.sleep(1e-5)


class Threads(Cluster):
    """One of the threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, board.size
        self.hosts = [f"thread {k}" for k in range(board.size)]

    def allgather(self, item: Any) -> list[Any]:
        return [unpack(part) for part in self.board.all_items(self.rank, pack(item))]

    def sendrecv(self, outgoing: Parcels, incoming: Parcels) -> None:
        for peer, array in outgoing:
            self.board.queue(self.rank, peer).put(array.copy())
        for peer, array in incoming:
            array[...] = self.board.queue(peer, self.rank).get(timeout=_SECONDS)

    def links(self, placement: Placement, message_length: int) -> Links:
        return QueueLinks(self.board, self.rank, placement, message_length)


def on_threads(size: int, action: Callable[[Threads], T]) -> list[T]:
    """Do something in several threads together; return each one's result, or raise the first error."""
    board = Board(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = action(Threads(board, rank))
        except BaseException as error:  # noqa: BLE001  # it is raised below
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _SECONDS)
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return results
