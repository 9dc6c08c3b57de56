"""Making a schedule by its name, from arrays or from the parameters of a method."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.errors import unknown_name
from adfs.problem.evaluation import sampling_weights
from adfs.schedule.events import Schedule
from adfs.schedule.iid import IidSchedule
from adfs.schedule.poisson import PoissonSchedule
from adfs.schedule.sampling import AliasTables

__all__ = ["SCHEDULES", "make_schedule", "make_schedule_for"]

SCHEDULES: dict[str, type[Schedule]] = {"iid": IidSchedule, "poisson": PoissonSchedule}


class HasProbabilities(Protocol):
    """The part of `adfs.theory.Parameters` that a schedule needs."""

    @property
    def node_probability(self) -> NDArray[np.float64]: ...
    @property
    def edge_probability(self) -> NDArray[np.float64]: ...
    @property
    def sigma(self) -> NDArray[np.float64]: ...


class HasEdges(Protocol):
    """The part of `adfs.network.Network` that a schedule needs."""

    @property
    def n_nodes(self) -> int: ...
    @property
    def ends(self) -> NDArray[np.int32]: ...


class HasRows(Protocol):
    """The part of `adfs.problem.Problem` that a schedule needs."""

    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def smoothness(self) -> NDArray[np.float64]: ...
    @property
    def active(self) -> NDArray[np.bool_]: ...


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


def make_schedule_for(
    parameters: HasProbabilities,
    network: HasEdges,
    problem: HasRows,
    kind: str,
    seed: int,
    *,
    node_ids: ArrayLike | None = None,
) -> Schedule:
    """Make the schedule of a method's parameters on a problem and a network.

    Parameters
    ----------
    parameters : Parameters
        Gives p_i^comp, p_e and σ_i.
    network : Network
    problem : Problem
        Gives the rows and their L_ij.
    kind : str
        ``"iid"`` or ``"poisson"``.
    seed : int
    node_ids : array_like of int, optional
        Which nodes of the network the problem's are, where a process holds some of them only.

    Returns
    -------
    Schedule
    """
    sigma = np.asarray(parameters.sigma, dtype=np.float64)
    if node_ids is not None:
        sigma = sigma[np.asarray(node_ids, dtype=np.int64)]
    weights = sampling_weights(problem.smoothness, problem.active, problem.offsets, sigma)
    return make_schedule(
        kind,
        seed=seed,
        n_nodes=network.n_nodes,
        edges=network.ends,
        node_probability=parameters.node_probability,
        edge_probability=parameters.edge_probability,
        samples=AliasTables.build(weights, problem.offsets, node_ids=node_ids),
    )
