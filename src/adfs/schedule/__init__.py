"""Schedules: which node or edge acts when, as seeded data that does not depend on the executing process.

An *actor* is a node (it computes) or a communication edge (its two ends exchange): actor a < n_nodes is
node a, any other is edge a − n_nodes. `IidSchedule` is the paper's, `PoissonSchedule` gives every actor its
own clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import unknown_name
from adfs.network import Faults
from adfs.schedule.events import Events, IidSchedule, Schedule, frame
from adfs.schedule.poisson import PoissonSchedule
from adfs.schedule.sampling import AliasTables

__all__ = [
    "SCHEDULES",
    "AliasTables",
    "Events",
    "IidSchedule",
    "PoissonSchedule",
    "Schedule",
    "frame",
    "make_schedule",
]

#: The schedules by the names that users write.
SCHEDULES: dict[str, type[Schedule]] = {cls.kind: cls for cls in (IidSchedule, PoissonSchedule)}


def make_schedule(
    kind: str,
    *,
    seed: int,
    n_nodes: int,
    edges: ArrayLike,
    node_probability: ArrayLike,
    edge_probability: ArrayLike,
    samples: AliasTables | None = None,
    faults: Faults | None = None,
) -> Schedule:
    """Make a schedule by its name.

    Parameters
    ----------
    kind : str
        ``"iid"`` or ``"poisson"``.
    seed, n_nodes, edges, node_probability, edge_probability, samples, faults
        As for `Schedule`.

    Examples
    --------
    >>> schedule = make_schedule(
    ...     "iid", seed=0, n_nodes=1, edges=[], node_probability=[1.0], edge_probability=[],
    ...     samples=AliasTables.build([1.0, 0.0, 1.0], [0, 3]),
    ... )
    >>> sorted(set(schedule.block(0, 100).sample.tolist()))
    [0, 2]
    """
    # The constructor checks all other arguments.
    if kind not in SCHEDULES:
        raise unknown_name("schedule", kind, SCHEDULES)
    probabilities = np.asarray(node_probability), np.asarray(edge_probability)
    return SCHEDULES[kind](seed, n_nodes, np.asarray(edges), *probabilities, samples, faults)
