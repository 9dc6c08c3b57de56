"""A third cluster: several "ranks" in one process, a thread each, and queues for messages.

It implements the interface of `adfs.runtimes.cluster.Cluster` and nothing else, and so shows what a new
transport takes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from adfs.runtimes.cluster import Cluster, Links
from adfs.runtimes.placement import Placement

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


class QueueLinks:
    def __init__(self, board: Board, rank: int, placement: Placement, message_length: int) -> None:
        ends = placement.rank_of_node[placement.edges]
        self.edges = np.flatnonzero(placement.cut & (ends == rank).any(axis=1))
        self.number = np.full(len(placement.edges), -1, dtype=np.int32)
        self.number[self.edges] = np.arange(self.edges.size)
        own = ends[self.edges]
        self.peer = np.where(own[:, 0] == rank, own[:, 1], own[:, 0])
        shape = (self.edges.size, message_length)
        self.out, self.into = np.zeros(shape), np.zeros(shape)
        self.exchanges = np.zeros(self.edges.size, dtype=np.int64)
        self._to = [board.queue("edge", e, rank, p) for e, p in zip(self.edges, self.peer, strict=True)]
        self._from = [board.queue("edge", e, p, rank) for e, p in zip(self.edges, self.peer, strict=True)]

    def open(self) -> None: ...

    def close(self) -> None: ...

    def renew(self, link: int) -> None: ...

    def send(self, link: int) -> None:
        self._to[link].put(self.out[link].copy())

    def came(self, link: int) -> bool:
        try:
            self.into[link] = self._from[link].get_nowait()
        except queue.Empty:
            return False
        return True


class Threads(Cluster):
    """One of the threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, board.size
        self.hosts = [f"thread {k}" for k in range(board.size)]

    def gather(self, item: Any, why: str) -> list[Any]:
        return self.board.all_items(self.rank, item)

    def share(self, values: np.ndarray, sizes: Sequence[int], why: str) -> list[np.ndarray]:
        parts = self.board.all_items(self.rank, np.array(values, dtype=np.float64).ravel())
        assert [part.size for part in parts] == list(sizes)
        return parts

    def spread(self, values: np.ndarray, why: str) -> None:
        values[...] = self.board.all_items(self.rank, values.copy())[0]

    def swap(
        self,
        outgoing: Sequence[tuple[int, np.ndarray]],
        incoming: Sequence[tuple[int, np.ndarray]],
        why: Callable[[], str],
    ) -> None:
        for peer, array in outgoing:
            self.board.queue("swap", self.rank, peer).put(array.copy())
        for peer, array in incoming:
            array[...] = self.board.queue("swap", peer, self.rank).get(timeout=_SECONDS)

    def links(self, placement: Placement, message_length: int) -> Links:
        return QueueLinks(self.board, self.rank, placement, message_length)

    def wait_until(
        self, ready: Callable[[], bool], missing: Callable[[], Sequence[int]], why: Callable[[], str]
    ) -> None:
        begun = time.monotonic()
        while not ready():
            assert time.monotonic() - begun < _SECONDS, f"waited for {missing()} {why()}"
            time.sleep(1e-5)


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
