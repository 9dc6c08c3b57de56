"""The progress of a run on the screen, and its time: where it went, as tables and a time-line.

The times of a message between ranks and of a local step are measured here too: τ is their ratio.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import EventProcess, Setting, get_method
from adfs.errors import InputError
from adfs.files import JsonObject
from adfs.network import Network
from adfs.pages import COLORS
from adfs.problem import Problem
from adfs.problem.samples import Matrix
from adfs.runtimes.cluster import Cluster
from adfs.runtimes.options import RunOptions

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from mpi4py import MPI
    from rich.progress import Progress

_SECONDS_BETWEEN_LINES = 5.0


class ProgressBar:
    """A bar on a terminal; elsewhere a line every few seconds.

    The options have the tolerance and the seconds that the run goes to; ``last`` is the last position of a
    run without a tolerance.
    """

    def __init__(self, title: str, options: RunOptions, last: float) -> None:
        self._title, self._options, self._last = title, options, last
        self._first_gap: float | None = None
        self._bar: Progress | None = None
        self._last_line = -math.inf

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Imported here because most runs show nothing.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("gap {task.fields[gap]:.1e}  {task.fields[passes]:.0f} passes"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._bar.add_task(self._title, total=1.0, gap=math.nan, passes=0.0)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, row: dict[str, float]) -> None:
        """Show a recorded row."""
        # A gap may rise for a while; a bar does not leave its ends.
        done = min(max(self._share_done(row), 0.0), 1.0)
        if self._bar is not None:
            (task,) = self._bar.task_ids
            self._bar.update(task, completed=done, gap=row["gap"], passes=row["passes"])
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            way = f", {100.0 * done:.0f} % of the way" if done >= 0.01 else ""  # at the start nobody knows
            sys.stderr.write(
                f"adfs: {self._title}: gap {row['gap']:.1e} after {row['passes']:.0f} passes and "
                f"{row['seconds']:.0f} s{way}\n"
            )
            sys.stderr.flush()

    def _share_done(self, row: dict[str, float]) -> float:
        """Return how much of the run is done: the first limit that will be met decides."""
        # Of the position, the seconds and the decades of the gap the furthest counts.
        shares = [row["position"] / self._last if math.isfinite(self._last) else 0.0]
        if self._options.seconds:
            shares.append(row["seconds"] / self._options.seconds)
        if self._options.tol is not None and 0.0 < row["gap"] < math.inf:  # a start may have no certificate
            # Decades are counted from the first gap that was certified.
            self._first_gap = self._first_gap or row["gap"]
            decades = math.log(self._first_gap / self._options.tol)
            shares.append(math.log(self._first_gap / row["gap"]) / decades if decades > 0.0 else 1.0)
        return max(shares)


# --------------------------------------------------------------------------- where the time went


def rank_table(details: JsonObject) -> pd.DataFrame:
    """Return a run's times and messages as a table, one row per rank.

    Parameters
    ----------
    details : dict
        ``run.details`` of a run on several ranks.
    """
    import pandas as pd

    times = ("setting_up", "computing", "communicating", "waiting", "evaluating", "total")
    table = pd.DataFrame(details["ranks"]).rename_axis("rank")
    table["nodes"] = table["nodes"].map(len)
    # Every rank has the seconds that it waited for each of the others.
    table["waited most for"] = [max(waits, key=waits.get, default="") for waits in table["waited_for"]]
    columns = ["nodes", *times, "messages", "bytes", "waited most for"]
    return table[columns].rename(columns={"setting_up": "setting up"})


def edge_table(details: JsonObject) -> pd.DataFrame:
    """Return how many exchanges each edge between ranks carried, one row per edge."""
    import pandas as pd

    return pd.DataFrame(details["edges"], columns=["edge", "node", "other node", "exchanges"]).set_index(
        "edge"
    )


def draw_timeline(details: JsonObject, axes: Axes | None = None) -> Axes:
    """Draw who waited for whom: one line per rank, one bar per wait in the colour of the one waited for."""
    import matplotlib.pyplot as plt

    ranks = details["ranks"]
    if axes is None:
        _, axes = plt.subplots(figsize=(9.0, 1.2 + 0.35 * len(ranks)), layout="constrained")
    shown = set()
    for number, rank in enumerate(ranks):
        axes.barh(number, rank["total"], height=0.3, color="0.5", alpha=0.2, zorder=0)
        for peer in sorted({wait[2] for wait in rank["waits"]}):
            spans = [(a, b - a) for a, b, other in rank["waits"] if other == peer]
            label = None if peer in shown else f"rank {peer}"
            shown.add(peer)
            # Without edges, which have a width of their own: short waits would fill the line.
            bars = axes.broken_barh(
                spans, (number - 0.35, 0.7), facecolors=COLORS[peer % len(COLORS)], linewidth=0.0, label=label
            )
            bars.set_snap(False)
    axes.set_yticks(range(len(ranks)), [f"rank {number}" for number in range(len(ranks))])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    if shown:
        axes.legend(title="waited for", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


# --------------------------------------------------------------------------- steps and messages

#: The default lengths of messages, in numbers.
WIDTHS = tuple(10**k for k in range(6))
# Of a measurement of local steps.
_STEP_SECONDS = 0.1


def measured_tau_of(cluster: Cluster, width: int, entries_per_row: float | None, n_samples: int) -> float:
    """Return τ, measured: the seconds of a message of ``width`` numbers over those of a sample.

    This process has so many rows, with so many non-zeros each (None: dense).
    """
    if cluster.size == 1:
        raise InputError("tau='measure' measures messages between processes, and this run sends none")
    # Both times are measured now, on the machines of the run. Messages get a fifth of the time of a network
    # benchmark, because they are measured before each run.
    pairs, seconds = measure_messages(cluster, (width,), spent=0.02)
    message = float(np.median(seconds)) if pairs else 0.0
    cards = cluster.allgather([entries_per_row, n_samples])
    total = sum(count for _, count in cards)
    sparse = any(mean is not None for mean, _ in cards)
    mean = sum((mean or width) * count for mean, count in cards) / total
    entries = max(1, round(mean)) if sparse else None
    return float(message / np.median(measure_steps(cluster, (width,), entries)))


def step_seconds(width: int, entries: int | None = None) -> float:
    """Return the seconds of one sample's computation in this process alone, the median of many batches.

    Rows have ``width`` columns and some non-zero ``entries`` each; they are dense when that is left out.
    """
    rng = np.random.default_rng(0)
    # Enough rows that they do not all stay in the cache, and not so many that making them takes long.
    rows = int(min(2000, max(20, 2_000_000 // max(1, entries or width))))
    X: Matrix
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
    process = method.start(Setting(problem, network, parameters))
    assert isinstance(process, EventProcess)
    events, batch = process.schedule.block(0.0, 20_000.0), 200
    # Compile first: the batches measure steps alone.
    process.run(events, 0, 0)
    seconds: list[float] = []
    for first in range(0, events.time.size, batch):
        begun = time.perf_counter()
        process.run(events, first, first + batch)
        seconds.append(time.perf_counter() - begun)
        if sum(seconds) > _STEP_SECONDS:
            break
    # The median leaves out the batches that something else interrupted.
    return float(np.median(seconds)) / batch


def measure_steps(cluster: Cluster, widths: tuple[int, ...], entries: int | None) -> np.ndarray:
    """Return the seconds of a sample's computation in each process for each width, (processes, widths)."""

    def measure(width: int) -> float:
        return step_seconds(width, None if entries is None else min(entries, width))

    # The first call compiles: one process after another, so that they share the cache.
    cluster.in_turns("to measure the network", lambda: measure(widths[0]))
    # Then all measure at once, because cores may share the bandwidth of the memory.
    return np.array([cluster.allgather(measure(width)) for width in widths]).T


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

        steps = measure_steps(ranks, sizes, entries)
        bandwidth = 8.0 * WIDTHS[-1] / slowest
        return NetBench(pairs, sizes, exchange, steps, list(ranks.hosts), latency, bandwidth)
