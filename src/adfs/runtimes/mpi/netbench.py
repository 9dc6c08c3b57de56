"""How long an exchange between ranks takes, and how long a local step: τ is their ratio."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.algorithms.base import EventProcess, Setting, get_method
from adfs.network import Network
from adfs.problem import Problem
from adfs.runtimes.mpi.team import Team

if TYPE_CHECKING:
    import pandas as pd
    from mpi4py import MPI

__all__ = ["NetBench", "bench_network", "exchange_seconds", "measure_tau", "step_seconds"]

WIDTHS = (1, 10, 100, 1_000, 10_000, 100_000)
_BATCHES = 5
_BATCH_SECONDS = 0.02
_MOST_PAIRS = 28
_TAG = 12


@dataclass(frozen=True)
class NetBench:
    """What was measured.

    Attributes
    ----------
    pairs : list of (int, int)
        The pairs of ranks, measured one after the other.
    widths : tuple of int
        Numbers in a message (d).
    exchange : ndarray of shape (pairs, widths)
        Seconds of an exchange, a message each way at once.
    step : ndarray of shape (ranks, widths)
        Seconds of one sample's computation with dense rows of that width, all ranks computing at once.
    hosts : list of str
        Of each rank.
    """

    pairs: list[tuple[int, int]]
    widths: tuple[int, ...]
    exchange: np.ndarray
    step: np.ndarray
    hosts: list[str]

    @property
    def tau(self) -> np.ndarray:
        """The median exchange in units of the median local step, for each width."""
        return np.asarray(np.median(self.exchange, axis=0) / np.median(self.step, axis=0))

    @property
    def latency(self) -> float:
        """Seconds of the shortest message, the median over pairs."""
        return float(np.median(self.exchange[:, 0]))

    @property
    def bandwidth(self) -> float:
        """Bytes a second each way with the longest message, the median over pairs."""
        return 8.0 * self.widths[-1] / float(np.median(self.exchange[:, -1]))

    def table(self) -> pd.DataFrame:
        """Return one row a width: the exchange (best, median and worst pair), the local step, and τ."""
        import pandas as pd

        micro = 1e6 * self.exchange
        return pd.DataFrame(
            {
                "numbers": self.widths,
                "exchange µs": np.median(micro, axis=0),
                "best pair": micro.min(axis=0),
                "worst pair": micro.max(axis=0),
                "local step µs": 1e6 * np.median(self.step, axis=0),
                "tau": self.tau,
            }
        )


def exchange_seconds(team: Team, pair: tuple[int, int], width: int) -> float:
    """Return the seconds of an exchange between two ranks, the best of several batches; 0 on other ranks."""
    if team.rank not in pair:
        return 0.0
    peer = pair[1] if team.rank == pair[0] else pair[0]
    out, into = np.zeros(width), np.zeros(width)
    send, receive = team.comm.Send_init(out, peer, _TAG), team.comm.Recv_init(into, peer, _TAG)
    requests: list[Any] = [receive, send]

    def batch(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            receive.Start()
            send.Start()
            team.watch.wait(requests, [peer, peer], lambda: "to measure an exchange")
        return (time.perf_counter() - begun) / count

    first = np.array([batch(3)])
    if team.rank == pair[0]:  # both ends must do as many
        team.watch.wait([team.comm.Isend(first, peer, _TAG + 1)], [peer], lambda: "to measure an exchange")
    else:
        team.watch.wait([team.comm.Irecv(first, peer, _TAG + 1)], [peer], lambda: "to measure an exchange")
    count = int(min(2000, max(3, _BATCH_SECONDS / max(float(first[0]), 1e-7))))
    best = min(batch(count) for _ in range(_BATCHES))
    for request in requests:
        request.Free()
    return best


def step_seconds(width: int, entries: int | None = None, seed: int = 0) -> float:
    """Return the seconds of one sample's computation on this rank alone, the best of several batches.

    Parameters
    ----------
    width : int
        d.
    entries : int, optional
        Non-zeros a row; dense rows when left out.
    """
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    rows = int(min(2000, max(20, 2_000_000 // max(1, entries or width))))
    X: Any
    if entries is None:
        X = rng.standard_normal((rows, width)) / np.sqrt(width)
    else:
        columns = np.sort(rng.integers(0, width, (rows, entries)), axis=1).ravel()
        data = rng.standard_normal(rows * entries) / np.sqrt(entries)
        X = sp.csr_array((data, columns, np.arange(0, rows * entries + 1, entries)), shape=(rows, width))
        X.sum_duplicates()
    y = np.where(rng.random(rows) < 0.5, 1.0, -1.0)
    problem, network, method = Problem(X, y, "logistic", 1.0), Network("path:1"), get_method("adfs")
    parameters = method.parameters(problem, network)
    process = method.start(Setting(problem, network, parameters, seed))
    assert isinstance(process, EventProcess)
    events = process.schedule.block(0.0, 20_000.0)
    process.run(events, 0, 0)
    best, first = np.inf, 0
    for _ in range(_BATCHES):
        begun = time.perf_counter()
        last = first
        while last < events.time.size and time.perf_counter() - begun < _BATCH_SECONDS:
            last = process.run(events, last, min(last + 200, events.time.size))
        if last > first:
            best = min(best, (time.perf_counter() - begun) / (last - first))
        first = last
    return float(best)


def bench_network(
    comm: MPI.Intracomm,
    widths: tuple[int, ...] = WIDTHS,
    *,
    entries: int | None = None,
    deadline: float = 60.0,
) -> NetBench:
    """Measure exchanges between ranks and local steps; all ranks call it together.

    Parameters
    ----------
    comm : Intracomm
    widths : tuple of int
        Numbers in a message (d).
    entries : int, optional
        Non-zeros a row, for the local step; dense rows when left out.
    deadline : float
        Seconds that a rank waits for another.

    Returns
    -------
    NetBench
        The same on every rank.
    """
    team = Team(comm, deadline)
    with team.watch.last_words():
        found = _bench(team, tuple(int(width) for width in widths), entries)
    team.close()
    return found


def _bench(team: Team, widths: tuple[int, ...], entries: int | None) -> NetBench:
    pairs = [(a, b) for a in range(team.size) for b in range(a + 1, team.size)]
    if len(pairs) > _MOST_PAIRS:  # a ring has short and long ways
        pairs = [tuple(sorted((rank, (rank + 1) % team.size))) for rank in range(team.size)]  # type: ignore[misc]
    exchange = np.zeros((len(pairs), len(widths)))
    why = "to measure the network"
    for number, pair in enumerate(pairs):
        team.gather_all(0, why)  # one pair at a time
        for column, width in enumerate(widths):
            exchange[number, column] = exchange_seconds(team, pair, width)
    parts = team.share(exchange, [exchange.size] * team.size, why)
    exchange = np.max([part.reshape(exchange.shape) for part in parts], axis=0)
    for turn in (True, False):  # compile on one rank a host first
        if team.first_on_host is turn:
            step_seconds(widths[0], None if entries is None else min(entries, widths[0]))
        team.gather_all(0, why, patience=900.0)
    steps = []
    for width in widths:
        team.gather_all(0, why)
        steps.append(step_seconds(width, None if entries is None else min(entries, width)))
    step = np.array(team.share(np.array(steps), [len(widths)] * team.size, why))
    return NetBench(pairs, widths, exchange, step, team.hosts)


def measure_tau(team: Team, width: int, entries: int | None = None) -> float:
    """Return τ for messages of a width, the same on every rank: what `tuned` parameters take."""
    if team.size == 1:
        return 0.0
    return float(_bench(team, (width,), entries).tau[0])
