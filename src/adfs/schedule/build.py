"""Making a schedule by its name."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from adfs.errors import unknown_name
from adfs.schedule.events import Schedule
from adfs.schedule.iid import IidSchedule
from adfs.schedule.poisson import PoissonSchedule
from adfs.schedule.sampling import AliasTables

__all__ = ["SCHEDULES", "make_schedule"]

SCHEDULES: dict[str, type[Schedule]] = {"iid": IidSchedule, "poisson": PoissonSchedule}


def make_schedule(
    kind: str,
    *,
    seed: int,
    n_nodes: int,
    edges: ArrayLike,
    node_probability: ArrayLike,
    edge_probability: ArrayLike,
    samples: AliasTables | None = None,
) -> Schedule:
    """Make a schedule by its name.

    Parameters
    ----------
    kind : str
        ``"iid"`` or ``"poisson"``.
    seed : int
        0 ≤ seed < 2**64.
    n_nodes : int
        Number of nodes (n).
    edges : (n_edges, 2) array_like of int
    node_probability : (n,) array_like of float
        p_i^comp.
    edge_probability : (n_edges,) array_like of float
        p_e. All probabilities sum to 1.
    samples : AliasTables, optional
        How a node draws a row; without it every sample is −1.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> schedule = make_schedule(
    ...     "iid", seed=0, n_nodes=1, edges=[], node_probability=[1.0], edge_probability=[],
    ...     samples=AliasTables.build([1.0, 0.0, 1.0], [0, 3]),
    ... )
    >>> sorted(set(schedule.block(0, 100).sample.tolist()))
    [0, 2]
    """
    if kind not in SCHEDULES:
        raise unknown_name("schedule", kind, SCHEDULES)
    return SCHEDULES[kind](
        seed=seed,
        n_nodes=n_nodes,
        edges=np.asarray(edges),
        node_probability=np.asarray(node_probability, dtype=np.float64),
        edge_probability=np.asarray(edge_probability, dtype=np.float64),
        samples=samples,
    )
