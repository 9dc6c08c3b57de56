"""Schedules: who acts when, as data that is seeded, streams, and does not depend on who executes it.

An *actor* is a node (it computes) or a communication edge (its two ends exchange): actor a < n_nodes is
node a, any other is edge a − n_nodes. `IidSchedule` is the paper's, `PoissonSchedule` gives every actor its
own clock.
"""

from __future__ import annotations

from adfs.schedule.events import Counts, Events, Schedule, counts, frame, plot
from adfs.schedule.poisson import PoissonSchedule
from adfs.schedule.rounds import RoundDraws, RoundWindow, draw_rounds
from adfs.schedule.sampling import AliasTables
from adfs.schedule.shared import SCHEDULES, IidSchedule, make_schedule

__all__ = [
    "SCHEDULES",
    "AliasTables",
    "Counts",
    "Events",
    "IidSchedule",
    "PoissonSchedule",
    "RoundDraws",
    "RoundWindow",
    "Schedule",
    "counts",
    "draw_rounds",
    "frame",
    "make_schedule",
    "plot",
]
