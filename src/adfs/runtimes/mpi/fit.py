"""Running a method on the ranks of an MPI program, each with its own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.algorithms.base import Method, get_method
from adfs.network import Network
from adfs.problem import Loss
from adfs.problem.losses import get_loss
from adfs.runtimes.joint_problem import ShardSource, join_shards
from adfs.runtimes.mpi.ranks import MpiRanks
from adfs.runtimes.result import Run
from adfs.runtimes.run import RunOptions, describe, run_method, takes_run_options

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["fit_mpi"]


@takes_run_options
def fit_mpi(
    comm: MPI.Intracomm,
    shards: ShardSource,
    network: Network | str | None = None,
    *,
    loss: str | Loss = "logistic",
    sigma: float | Sequence[float] | np.ndarray = 1.0,
    nodes: Sequence[int] | None = None,
    n_features: int | None = None,
    method: str | Method = "adfs",
    deadline: float = 60.0,
    **arguments: Any,
) -> Run:
    """Run a method on the ranks of an MPI program, each with its own data.

    All ranks call it together, with the same arguments apart from their shards. A rank's samples never leave
    it: neighbours exchange iterates, and the start and the certificates take a few sums. The numbers are
    those of `adfs.simulate` on the same problem, to the last bit, however the nodes are spread over ranks.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        For instance ``MPI.COMM_WORLD``; it is duplicated.
    shards : sequence, Problem, GeneralProblem or callable
        This rank's data. A sequence holds one ``(X, y)``, ``(X, y, weights)`` or ``(X, y, weights, offset)``
        per node; a problem holds its nodes; a callable is asked for the shard of a node, and only for this
        rank's nodes, which are then placed so that few edges are cut.
    network : Network or str, optional
        Links the nodes of all ranks; a name may leave out its sizes. Complete when left out.
    loss, sigma
        As in `adfs.Problem`, for shards that are not a problem; sigma is a number, or one per node of the
        network. Labels may be any two values; shards may have one of them only. Sparse shards may end before
        the last column.
    nodes : sequence of int, optional
        Which node of the network each of this rank's shards is; by default the ranks' shards are numbered in
        the order of ranks.
    n_features : int, optional
        The dimension, if it is more than the widest shard's.
    method : str or Method
        As in `adfs.simulate`.
    deadline : float
        Seconds that a rank waits for another before it gives up with a sentence.
    **arguments
        The method's own options.

    Returns
    -------
    Run
        On every rank: ``coef``, ``gap``, ``frame`` are the same everywhere; ``details`` holds each rank's
        times and messages.

    Raises
    ------
    InputError
        The same on every rank, before anything is run.
    RankLostError
        When another rank did not answer within the deadline. If nobody catches it, all ranks are ended.
    """
    with MpiRanks(comm, deadline=deadline) as cluster:
        options, own = RunOptions.split(arguments)

        def check() -> None:
            get_method(method).check_options(own, [*RunOptions.names(), "loss", "sigma", "nodes"])
            options.check()
            get_loss(loss)

        cluster.attempt("at the start", check)
        cluster.same(
            {
                "the loss": repr(get_loss(loss)),
                "sigma": describe(sigma),
                "the network": describe(network),
                "n_features": n_features,
            }
        )
        joint = join_shards(
            cluster, shards, network, nodes=nodes, loss=loss, sigma=sigma, n_features=n_features
        )
        run = run_method(
            method,
            joint.problem,
            joint.network,
            options,
            own,
            cluster=cluster,
            placement=joint.placement,
        )
    run.details["classes"] = joint.classes
    return run
