"""Looking at a schedule: how often each actor acts, its first events as a data frame, and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.errors import InputError
from adfs.schedule.events import Events, Schedule, first_of, joined

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Counts(NamedTuple):
    """How many events each actor has over a range of time, and how many are expected.

    Attributes
    ----------
    node_expected, node_actual : (n_nodes,) float64, int64
        Computations.
    edge_expected, edge_actual : (n_edges,) float64, int64
        Communications.
    """

    node_expected: NDArray[np.float64]
    node_actual: NDArray[np.int64]
    edge_expected: NDArray[np.float64]
    edge_actual: NDArray[np.int64]


def counts(schedule: Schedule, start: float, stop: float, nodes: ArrayLike | None = None) -> Counts:
    """Count the events with start < time ≤ stop, a window at a time.

    Parameters
    ----------
    schedule : Schedule
    start, stop : float
    nodes : array_like of int, optional
        Only the events that one of these takes part in; the counts of all other actors are 0.

    Returns
    -------
    Counts
    """
    n = schedule.n_nodes
    if np.isinf(stop):
        raise InputError("events can be counted up to a finite time only")
    actual = np.zeros(schedule.n_actors, dtype=np.int64)
    for _, events in schedule.windows(start, stop, nodes):
        actual += np.bincount(events.actor, minlength=schedule.n_actors)
    expected = schedule.probability * (stop - start)
    expected[~schedule._wanted(nodes)] = 0.0
    return Counts(expected[:n], actual[:n], expected[n:], actual[n:])


def in_time_order(events: Events) -> Events:
    """Return events in the order of their times; at one time by the number of the actor, nodes first."""
    order = np.lexsort((events.actor, events.time))
    return Events(events.time[order], events.actor[order], events.sample[order])


def frame(schedule: Schedule, first: int = 100, nodes: ArrayLike | None = None) -> pd.DataFrame:
    """Return the first events in the order of their times.

    Parameters
    ----------
    schedule : Schedule
    first : int
        How many.
    nodes : array_like of int, optional
        Only the events that one of these takes part in.

    Returns
    -------
    pandas.DataFrame
        Columns ``time``; ``kind``, "compute" or "exchange"; ``node``; ``neighbour`` and ``edge`` (−1 for a
        computation); ``sample`` (−1 for an exchange).
    """
    import pandas as pd

    n = schedule.n_nodes
    found: list[Events] = []
    total = 0
    # Windows do not overlap in time, so enough of them hold the first events.
    for _, events in schedule.windows(0, np.inf, nodes):
        found.append(in_time_order(events))
        total += events.time.size
        if total >= first:
            break
    time, actor, sample = first_of(joined(found), first)
    exchange = actor >= n
    ends = np.column_stack([actor, np.full(actor.size, -1)]).astype(np.int64)
    ends[exchange] = schedule.edges[actor[exchange] - n]
    return pd.DataFrame(
        {
            "time": time,
            "kind": np.where(exchange, "exchange", "compute"),
            "node": ends[:, 0],
            "neighbour": ends[:, 1],
            "edge": np.where(exchange, actor - n, -1),
            "sample": sample,
        }
    )


def plot(schedule: Schedule, start: float = 0, stop: float | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw who does what when: a row per node, a tick per computation, a line between two rows per exchange.

    Parameters
    ----------
    schedule : Schedule
    start, stop : float
        The range of time; by default long enough for some ten events per node.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    n = schedule.n_nodes
    if stop is None:
        stop = start + 10 * n
    time, actor, _ = schedule.block(start, stop)
    computes = actor < n
    ends = schedule.edges[actor[~computes] - n]
    if ax is None:
        height = float(np.clip(0.3 * n, 2.0, 12.0))
        ax = plt.subplots(figsize=(9.0, height), layout="constrained")[1]
    ax.hlines(np.arange(n), start, stop, color="0.85", linewidth=0.8, zorder=1)
    ax.plot(time[computes], actor[computes], "|", color="tab:blue", label="computation", zorder=2)
    ax.vlines(
        time[~computes], ends[:, 0], ends[:, 1], color="tab:red", linewidth=1.0, label="exchange", zorder=3
    )
    ax.plot(np.repeat(time[~computes], 2), ends.ravel(), ".", color="tab:red", markersize=4, zorder=3)
    ax.set(
        xlabel="time",
        ylabel="node",
        xlim=(start, stop),
        ylim=(-0.5, n - 0.5),
        title=f"{schedule.kind} schedule",
    )
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper right", frameon=False)
    return ax
