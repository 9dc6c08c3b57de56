"""Waits with a deadline, for every transport: a process that waits too long names those it waited for."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np

from adfs.errors import AdfsError, InputError
from adfs.runtimes.cluster import Cluster

# A process checks its messages far more often than this. A longer time between two checks means that the
# process itself was suspended, and the time does not count as waiting.
# A kernel uses it: this line makes adfs.compilation hash the file.
SUSPENDED_SECONDS = 1.0
#: The vectors of several nodes travel in one message, up to so many numbers.
NUMBERS_AT_ONCE = 65_536


class RankLostError(AdfsError, RuntimeError):
    """A rank did not answer within the deadline."""


def rank_names(ranks: Sequence[int]) -> str:
    """Name some ranks.

    >>> rank_names([3]), rank_names([1, 2]), rank_names([])
    ('rank 3', 'ranks 1, 2', 'the other ranks')
    """
    some = sorted(set(ranks))
    if not some:
        return "the other ranks"
    if len(some) == 1:
        return f"rank {some[0]}"
    return "ranks " + ", ".join(str(rank) for rank in some[:8]) + (", …" if len(some) > 8 else "")


class Waits(ABC):
    """The waits of a process for others.

    Attributes
    ----------
    deadline : float
        Seconds that a wait may last.
    patience : float
        Seconds that a wait with ``listen`` may last beyond that.
    waiting : callable or None
        During a wait, returns for whom it is and why, for the sentence that this rank reports when it ends.
    crowded : bool
        Whether there are more ranks than cores: then a waiting rank sleeps at once.
    """

    #: How often a wait checks before it rests for the first time.
    checks = 50

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self.cluster = cluster
        self.deadline = deadline
        self.patience = 0.0
        self.waiting: Callable[[], str] | None = None
        self.crowded = False

    @abstractmethod
    def rest(self, elapsed: float) -> float:
        """Leave the core to others until something may have arrived; return the seconds asked for.

        ``elapsed`` are the seconds since the wait began.
        """

    @abstractmethod
    def listen(self) -> Mapping[int, float]:
        """Return the time of the last sign of life of each rank."""

    @abstractmethod
    def signs_while_waiting(self, ranks: Sequence[int]) -> AbstractContextManager[None]:
        """Send signs of life to those who may wait for this rank while it waits for ``ranks``."""

    def until(
        self,
        ready: Callable[[], bool],
        missing: Callable[[], Sequence[int]],
        why: str | None = None,
        *,
        listen: bool = False,
        patience: float = 0.0,
    ) -> None:
        """Poll until ``ready`` returns True; raise `RankLostError` after the deadline.

        Parameters
        ----------
        ready
            Checks once, without waiting.
        missing
            Returns the ranks that the wait is for, none if they are not known.
        why
            The purpose of the wait; left out, the cluster's activity.
        listen
            Whether a rank that sends signs of life may take longer than the deadline.
        patience
            Seconds beyond the deadline.
        """
        begun, why = time.perf_counter(), why or self.cluster.activity
        allowed = self.deadline + patience + (self.patience if listen else 0.0)
        self.waiting = lambda: f"waiting for {rank_names(missing())} {why}"
        # Most waits are short: check without resting first, unless another rank needs the core.
        if not any(ready() for _ in range(1 if self.crowded else self.checks)):
            with self.signs_while_waiting(missing()) if listen else contextlib.nullcontext():
                while not ready():
                    suspended = self._rest(time.perf_counter() - begun)
                    begun += suspended
                    self.cluster.suspended += suspended
                    signs = self.listen() if listen else {}
                    now, ranks = time.perf_counter(), missing()
                    lost = [rank for rank in ranks if now - max(begun, signs.get(rank, begun)) > allowed]
                    if lost or (not ranks and now - begun > allowed):
                        raise RankLostError(
                            f"rank {self.cluster.rank} waited {allowed:g} s for {rank_names(lost)} {why} and "
                            f"gave up{self.hint(lost)}; see what happened there, and resume from the last "
                            "checkpoint if there is one"
                        )
        # After an exception this stays as it is, for the sentence that this rank reports.
        self.waiting = None

    def hint(self, lost: Sequence[int]) -> str:
        """Return more about ranks that do not answer, in brackets after a space, if the transport knows."""
        return ""

    def _rest(self, elapsed: float) -> float:
        """Rest; return the seconds for which this rank was suspended."""
        begun = time.perf_counter()
        asked = self.rest(elapsed)
        taken = time.perf_counter() - begun
        return taken if taken - asked > SUSPENDED_SECONDS else 0.0


class WaitingCluster(Cluster):
    """Processes that wait for each other with a deadline, and meet in the outermost ``with``.

    A transport implements `connect` and `disconnect`.
    """

    def __init__(self, deadline: float) -> None:
        if isinstance(deadline, bool) or not isinstance(deadline, int | float | np.number):
            raise InputError(f"deadline must be a number of seconds, got {deadline!r}")
        if not (math.isfinite(deadline) and deadline > 0.0):
            raise InputError(f"deadline must be a finite number of seconds above 0, got {deadline!r}")
        self.deadline = float(deadline)
        self._depth = 0

    @abstractmethod
    def connect(self) -> None:
        """Wait for all processes, and get in touch with them."""

    @abstractmethod
    def disconnect(self, error: object) -> None:
        """End the connections, in order or after an error."""

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return this object: one process alone cannot copy its connections."""
        return self

    def __enter__(self) -> Self:
        if self._depth == 0:
            self.activity = "at the start"
            self.connect()
        self._depth += 1
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.disconnect(error)

    def compare_hosts(self, waits: Waits, fact: Any = None) -> list[Any]:
        """Find out which processes share a host, and whether it has a core for each; return all facts."""
        cores = list(range(os.cpu_count() or 1))
        if hasattr(os, "sched_getaffinity"):
            cores = sorted(os.sched_getaffinity(0))
        cards = self.allgather([socket.gethostname(), cores, fact])
        self.hosts = [host for host, *_ in cards]
        # A launcher may bind each rank to a core: the cores of this host are those of all its ranks.
        host = self.hosts[self.rank]
        cores_of_host = {core for name, theirs, _ in cards if name == host for core in theirs}
        waits.crowded = self.hosts.count(host) > len(cores_of_host)
        return [fact for *_, fact in cards]
