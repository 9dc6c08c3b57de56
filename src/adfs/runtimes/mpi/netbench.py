"""Measure the time of a message between ranks and of a local step: τ is their ratio."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adfs.runtimes.mpi.faults import Tag
from adfs.runtimes.timing import step_seconds

if TYPE_CHECKING:
    import pandas as pd
    from mpi4py import MPI

    from adfs.runtimes.mpi.collectives import Team
    from adfs.runtimes.mpi.ranks import MpiRanks

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


def message_seconds(team: Team, pair: tuple[int, int], width: int, spent: float) -> float:
    """Return the seconds of a message between two ranks, one way; 0 on other ranks.

    This is half of the median round trip: a single message may arrive before its receiver begins to wait.
    The measurement takes about ``spent`` seconds.
    """
    if team.rank not in pair:
        return 0.0
    first = team.rank == pair[0]
    peer = pair[1] if first else pair[0]
    why = "to measure a message"
    buffer = np.zeros(width)
    send = team.comm.Send_init(buffer, peer, Tag.BENCHMARK)
    receive = team.comm.Recv_init(buffer, peer, Tag.BENCHMARK)

    def finish(request: MPI.Request) -> None:
        team.watch.wait([request], [peer], lambda: why)

    def round_trip() -> float:
        begun = time.perf_counter()
        for request in (send, receive) if first else (receive, send):
            request.Start()
            finish(request)
        return time.perf_counter() - begun

    def median(count: int) -> float:
        result = np.array([np.median([round_trip() for _ in range(count)])])
        # Both ranks use the result of the one that begins: its clock measures complete round trips.
        start = team.comm.Isend if first else team.comm.Irecv
        finish(start(result, peer, Tag.BENCHMARK_RESULT))
        return float(result[0])

    # Five round trips tell how many fit into the given time.
    seconds = median(int(min(2000, max(7, spent / max(median(5), 1e-7)))))
    for prepared in (send, receive):
        prepared.Free()
    return 0.5 * seconds


def measure_exchanges(
    ranks: MpiRanks, widths: tuple[int, ...], spent: float = 0.1
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return pairs of ranks, and the seconds of a message of each width between them, (pairs, widths).

    Each of them takes about ``spent`` seconds.
    """
    team = ranks.team
    pairs = [(a, b) for a in range(team.size) for b in range(a + 1, team.size)]
    # Many ranks have too many pairs. The pairs of a ring are some within hosts and some between them.
    if len(pairs) > 28:
        ring = [(rank, (rank + 1) % team.size) for rank in range(team.size)]
        pairs = [(min(pair), max(pair)) for pair in ring]
    seconds = np.zeros((len(pairs), len(widths)))
    why = "to measure the network"
    for number, pair in enumerate(pairs):
        # Wait for all ranks, so that one pair is measured at a time.
        team.gather_all(0, why)
        for column, width in enumerate(widths):
            seconds[number, column] = message_seconds(team, pair, width, spent)
    parts = team.share(seconds, [seconds.size] * team.size, why)
    return pairs, np.max([part.reshape(seconds.shape) for part in parts], axis=0)


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
        pairs, messages = measure_exchanges(ranks, measured)
        latency, slowest = (float(np.median(messages[:, measured.index(WIDTHS[k])])) for k in (0, -1))
        exchange = messages[:, [measured.index(size) for size in sizes]]
        why = "to measure the network"

        def measure(width: int) -> float:
            return step_seconds(width, None if entries is None else min(entries, width))

        # The first call compiles: one rank after another, so that they share the cache.
        ranks.in_turns(lambda: measure(sizes[0]), why)
        # Then all ranks measure at once, because cores may share the bandwidth of the memory.
        steps = [ranks.gather(measure(width), why) for width in sizes]
        return NetBench(
            pairs,
            sizes,
            exchange,
            np.array(steps).T,
            list(ranks.hosts),
            latency,
            8.0 * WIDTHS[-1] / slowest,
        )
