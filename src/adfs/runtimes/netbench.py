"""Measure the time of a message between ranks and of a local step: τ is their ratio."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adfs.runtimes.cluster import Cluster
from adfs.runtimes.timing import step_seconds

if TYPE_CHECKING:
    import pandas as pd
    from mpi4py import MPI

#: The default lengths of messages, in numbers.
WIDTHS = tuple(10**k for k in range(6))


@dataclass(frozen=True)
class NetBench:
    """The measured times.

    Attributes
    ----------
    pairs : list of (int, int)
        The pairs of ranks, measured one after the other.
    widths : tuple of int
        Numbers in a message (d).
    exchange : ndarray of shape (pairs, widths)
        Seconds of a message one way: half of a round trip, the median of many.
    step : ndarray of shape (ranks, widths)
        Seconds of one sample's computation with dense rows of that width, all ranks computing at once.
    hosts : list of str
        The host of each rank.
    latency : float
        Seconds of a message of one number, the median over pairs.
    bandwidth : float
        Bytes per second one way with the longest message of `WIDTHS`, the median over pairs.
    """

    pairs: list[tuple[int, int]]
    widths: tuple[int, ...]
    exchange: np.ndarray
    step: np.ndarray
    hosts: list[str]
    latency: float
    bandwidth: float

    @property
    def tau(self) -> np.ndarray:
        """The median message in units of the median local step, for each width."""
        return np.asarray(np.median(self.exchange, axis=0) / np.median(self.step, axis=0))

    def table(self) -> pd.DataFrame:
        """Return one row per width: a message one way (median, best and worst pair), a local step, τ."""
        import pandas as pd

        micro = 1e6 * self.exchange
        return pd.DataFrame(
            {
                "numbers": self.widths,
                "message µs": np.median(micro, axis=0),
                "best pair": micro.min(axis=0),
                "worst pair": micro.max(axis=0),
                "local step µs": 1e6 * np.median(self.step, axis=0),
                "tau": self.tau,
            }
        )


def message_seconds(cluster: Cluster, pair: tuple[int, int], width: int, spent: float = 0.1) -> float:
    """Return the seconds of a message between two processes, one way; 0 in other processes.

    This is half of the median round trip: a single message may arrive before its receiver begins to wait.
    The measurement takes about ``spent`` seconds.
    """
    if cluster.rank not in pair:
        return 0.0
    first = cluster.rank == pair[0]
    peer = pair[1] if first else pair[0]

    def pass_on(buffer: np.ndarray, *, send: bool) -> None:
        parcel = [(peer, buffer)]
        cluster.sendrecv(parcel if send else [], [] if send else parcel)

    def median(count: int) -> float:
        buffer, seconds = np.zeros(width), np.zeros(count)
        for trip in range(count):
            begun = time.perf_counter()
            pass_on(buffer, send=first)
            pass_on(buffer, send=not first)
            seconds[trip] = time.perf_counter() - begun
        # Both use the result of the one that begins: its clock measures complete round trips.
        result = np.array([np.median(seconds)])
        pass_on(result, send=first)
        return float(result[0])

    # Five round trips tell how many fit into the given time.
    return 0.5 * median(int(min(2000, max(7, spent / max(median(5), 1e-7)))))


def measure_messages(
    cluster: Cluster, widths: tuple[int, ...], spent: float = 0.1
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return pairs of processes, and the seconds of a message of each width between them, (pairs, widths).

    Each of them takes about ``spent`` seconds.
    """
    cluster.activity = "to measure the network"
    ranks = range(len(cluster.hosts))
    pairs = list(itertools.combinations(ranks, 2))
    # Many processes have too many pairs. The pairs of a ring are some within hosts and some between them.
    if len(pairs) > 28:
        pairs = [(0, ranks[-1]), *itertools.pairwise(ranks)]
    seconds = np.zeros((len(pairs), len(widths)))
    for number, pair in enumerate(pairs):
        # Wait for all processes, so that one pair is measured at a time.
        cluster.allgather(None)
        for column, width in enumerate(widths):
            seconds[number, column] = message_seconds(cluster, pair, width, spent)
    return pairs, np.max(cluster.allgather(seconds), axis=0)


def bench_network(
    comm: MPI.Intracomm,
    widths: tuple[int, ...] = WIDTHS,
    *,
    entries: int | None = None,
    deadline: float = 60.0,
) -> NetBench:
    """Measure messages between ranks and local steps; all ranks call it together.

    Parameters
    ----------
    comm : Intracomm
    widths : tuple of int
        Numbers in a message (d).
    entries : int, optional
        Non-zeros per row, for the local step; dense rows when left out.
    deadline : float
        Seconds that a rank waits for another.

    Returns
    -------
    NetBench
        The same on every rank.
    """
    from adfs.runtimes.mpi.ranks import MpiRanks

    sizes = tuple(int(width) for width in widths)
    with MpiRanks(comm, deadline=deadline) as ranks:
        # The latency needs short messages and the bandwidth long ones, whatever widths were asked for.
        measured = tuple(sorted({WIDTHS[0], *sizes, WIDTHS[-1]}))
        pairs, messages = measure_messages(ranks, measured)
        latency, slowest = (float(np.median(messages[:, measured.index(WIDTHS[k])])) for k in (0, -1))
        exchange = messages[:, [measured.index(size) for size in sizes]]

        def measure(width: int) -> float:
            return step_seconds(width, None if entries is None else min(entries, width))

        # The first call compiles: one rank after another, so that they share the cache.
        ranks.in_turns("to measure the network", lambda: measure(sizes[0]))
        # Then all ranks measure at once, because cores may share the bandwidth of the memory.
        steps = [ranks.allgather(measure(width)) for width in sizes]
        return NetBench(
            pairs,
            sizes,
            exchange,
            np.array(steps).T,
            list(ranks.hosts),
            latency,
            8.0 * WIDTHS[-1] / slowest,
        )
