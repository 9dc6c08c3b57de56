"""Where the time of a process goes: computing, communicating, waiting and for whom."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from adfs.files import JsonObject

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LONGEST_LIST = 2000


class ProcessTimes:
    """Seconds of one process, and its longest waits for the time-line.

    Attributes
    ----------
    setting_up : float
        Before the first event: the summary of the data, parameters, tables, kernels.
    computing, communicating, waiting, evaluating : float
        Local events; packing, posting and taking messages; waiting for messages; certificates, records and
        agreements between ranks.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.setting_up = 0.0
        self.computing = self.communicating = self.waiting = self.evaluating = 0.0
        self.for_whom: dict[int, float] = {}
        self._waits: list[tuple[float, float, int]] = []

    def waited(self, begun: float, ended: float, rank: int) -> None:
        """Note a wait for another process."""
        self.add_waiting(ended - begun, rank)
        self.show_wait(begun, ended, rank)

    def add_waiting(self, seconds: float, rank: int) -> None:
        """Add to the seconds of waiting for another process."""
        self.waiting += seconds
        self.for_whom[rank] = self.for_whom.get(rank, 0.0) + seconds

    def show_wait(self, begun: float, ended: float, rank: int) -> None:
        """Keep a wait for the time-line, as long as there are not too many longer ones."""
        if len(self._waits) >= 2 * _LONGEST_LIST:
            # Of the short ones a picture shows nothing.
            self._waits = sorted(sorted(self._waits, key=lambda w: w[0] - w[1])[:_LONGEST_LIST])
        self._waits.append((begun - self.start, ended - self.start, rank))

    def report(self) -> JsonObject:
        """Return everything as what JSON can hold."""
        longest = sorted(sorted(self._waits, key=lambda w: w[0] - w[1])[:_LONGEST_LIST])
        return {
            "setting_up": self.setting_up,
            "computing": self.computing,
            "communicating": self.communicating,
            "waiting": self.waiting,
            "evaluating": self.evaluating,
            "total": time.perf_counter() - self.start,
            "waited_for": {str(rank): seconds for rank, seconds in sorted(self.for_whom.items())},
            "waits": [[round(a, 6), round(b, 6), rank] for a, b, rank in longest],
        }


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
    colours = plt.get_cmap("tab20")
    shown = set()
    for number, rank in enumerate(ranks):
        axes.barh(number, rank["total"], height=0.3, color="0.92", zorder=0)
        for peer in sorted({wait[2] for wait in rank["waits"]}):
            spans = [(a, b - a) for a, b, other in rank["waits"] if other == peer]
            label = None if peer in shown else f"rank {peer}"
            shown.add(peer)
            # Without edges, which have a width of their own: short waits would fill the line.
            bars = axes.broken_barh(
                spans, (number - 0.35, 0.7), facecolors=colours(peer % 20), linewidth=0.0, label=label
            )
            bars.set_snap(False)
    axes.set_yticks(range(len(ranks)), [f"rank {number}" for number in range(len(ranks))])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    if shown:
        axes.legend(title="waited for", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes
