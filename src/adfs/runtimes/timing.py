"""The progress of a run on the screen; where its time went, as tables and a time-line; the time of one step.

The time of a step is measured for a sample on this machine, and on the clock of Theorem 4's bound.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from functools import partial
from itertools import product
from types import TracebackType
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
from adfs.runtimes.clock import retime
from adfs.runtimes.cluster import Cluster
from adfs.runtimes.delays import Delays
from adfs.runtimes.options import RunOptions
from adfs.theory import NodeSummary, Parameters, theorem4_step_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from rich.progress import Progress, TaskID


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
        self._task: TaskID | None = None
        self._last_line: float | None = None

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
                transient=False,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=1.0, gap=math.nan, passes=0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, row: dict[str, float]) -> None:
        """Show a recorded row."""
        # A gap may rise for a while; a bar does not leave its ends.
        done = min(max(self._share_done(row), 0.0), 1.0)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, gap=row["gap"], passes=row["passes"])
        elif self._last_line is None or time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
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
    names = ("nodes", *times, "messages", "bytes")
    rows = []
    for number, rank in enumerate(details["ranks"]):
        # The rank that this one waited for most.
        longest = max(rank["waited_for"].items(), key=lambda item: item[1], default=("", 0.0))
        row = {name: len(rank["nodes"]) if name == "nodes" else rank[name] for name in names}
        rows.append({"rank": number} | row | {"waited most for": longest[0]})
    return pd.DataFrame(rows).set_index("rank").rename(columns={"setting_up": "setting up"})


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


# --------------------------------------------------------------------------- the time of a step

_BATCHES = 5
_BATCH_SECONDS = 0.02


def measured_tau_of(cluster: Cluster, width: int, entries_per_row: float | None, n_samples: int) -> float:
    """Return τ, measured: the seconds of a message of ``width`` numbers over those of a sample.

    This process has so many rows, with so many non-zeros each (None: dense).
    """
    from adfs.runtimes.netbench import measure_messages

    if cluster.one_file:
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
    cluster.in_turns("to measure the network", partial(step_seconds, width, entries))
    steps = cluster.allgather(step_seconds(width, entries))
    return float(message / np.median(steps))


def step_seconds(width: int, entries: int | None = None, seed: int = 0) -> float:
    """Return the seconds of one sample's computation in this process alone, the best of several batches.

    Rows have ``width`` columns and some non-zero ``entries`` each; they are dense when that is left out.
    """
    rng = np.random.default_rng(seed)
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
    process = method.start(Setting(problem, network, parameters, seed))
    assert isinstance(process, EventProcess)
    events = process.schedule.block(0.0, 20_000.0)
    # Compile first: the batches measure steps alone.
    process.run(events, 0, 0)
    best, first = np.inf, 0
    # The best batch is the one that nothing else interrupted.
    for _ in range(_BATCHES):
        begun = time.perf_counter()
        last = first
        while last < events.time.size and time.perf_counter() - begun < _BATCH_SECONDS:
            last = process.run(events, last, min(last + 200, events.time.size))
        if last > first:
            best = min(best, (time.perf_counter() - begun) / (last - first))
        first = last
    return float(best)


def theorem4_table(
    networks: tuple[str | Network, ...] = ("cycle:16", "grid:4x4", "complete:8"),
    p_comm: tuple[float, ...] = (0.1, 0.3, 0.5),
    tau: tuple[float, ...] = (1.0, 5.0),
    *,
    laws: tuple[str, ...] = ("fixed", "exponential"),
    blocking: tuple[bool, ...] = (True, False),
    events: int = 100_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure the time per step against Theorem 4's bound, over graphs, p_comm, τ and kinds of clock.

    All nodes compute equally often and all edges are equally likely, as in the paper.

    Returns
    -------
    pandas.DataFrame
        One row per case: ``network``, ``n_nodes``, ``p_comm``, ``tau``, ``law``, ``blocking``, ``measured``
        (time per step), ``bound`` (ν), ``constant`` (measured·n/(p_comp + τ·p_comm^max), 24 in the bound)
        and ``holds`` (whether the assumptions of the proof hold).
    """
    import pandas as pd

    rows: list[dict[str, object]] = []
    for network in (Network(name) for name in networks):
        # A problem with one sample per node: only the probabilities matter to a clock.
        n = network.n_nodes
        one, count = np.ones(n), np.ones(n, dtype=np.int64)
        summary = NodeSummary(count, count, count, one, one, one, one, one)
        paper = Parameters.paper(summary, network)
        for share, message, law, waiting in product(p_comm, tau, laws, blocking):
            # A clock reads nothing but the probabilities; the contraction is put where any of them allow it.
            parameters = dataclasses.replace(
                paper,
                contraction=1e-9,
                node_probability=np.full(n, (1.0 - share) / n),
                edge_probability=np.full(network.n_edges, share / network.n_edges),
            )
            bound = theorem4_step_time(parameters, network, message)
            delays = Delays(tau=message, law=law, blocking=waiting)
            found = retime("adfs", parameters, summary, network, delays, [events], seed=seed)
            measured = float(found.latest[0]) / events
            rows.append(
                {
                    "network": network.name,
                    "n_nodes": n,
                    "p_comm": share,
                    "tau": message,
                    "law": law,
                    "blocking": waiting,
                    "measured": measured,
                    "bound": bound.nu,
                    "constant": measured * n / (bound.p_comp + message * bound.p_comm_max),
                    "holds": bound.holds,
                }
            )
    return pd.DataFrame(rows)
