"""The ranks of an MPI program as a cluster, and `fit_mpi`, which runs a method on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from adfs.algorithms.base import EventProcess, Method, get_method
from adfs.errors import InputError
from adfs.launching import launch_of, load_mpi, wait_for_rank_0
from adfs.network import Network
from adfs.problem import Loss
from adfs.problem.losses import get_loss
from adfs.runtimes.cluster import Cluster, Parcels
from adfs.runtimes.exchange import EventExchange
from adfs.runtimes.joint_problem import ShardSource, join_shards
from adfs.runtimes.mpi.collectives import Team
from adfs.runtimes.mpi.compiled_exchange import CompiledExchange
from adfs.runtimes.mpi.faults import Tag, say
from adfs.runtimes.mpi.links import MpiLinks, library_is_loaded
from adfs.runtimes.options import RunOptions, describe, takes_run_options
from adfs.runtimes.placement import Placement
from adfs.runtimes.result import Run
from adfs.runtimes.run import run_method, tell_placement
from adfs.runtimes.timing import ProcessTimes

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiRanks(Cluster):
    """The ranks of an MPI communicator; each holds its own nodes and their data.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        ``MPI.COMM_WORLD`` when left out; it is duplicated while it is in use.
    deadline : float
        Seconds that a rank waits for another before it raises `RankLostError`.
    compiled : bool
        Whether compiled code exchanges the messages if possible; the bits are the same.

    Examples
    --------
    On every rank, each with its own rows::

        from mpi4py import MPI
        model = adfs.ADFSClassifier(cluster=adfs.MpiRanks(MPI.COMM_WORLD)).fit(X_of_this_rank, y_of_this_rank)
    """

    def __init__(
        self, comm: MPI.Intracomm | None = None, *, deadline: float = 60.0, compiled: bool = True
    ) -> None:
        if isinstance(deadline, bool) or not isinstance(deadline, int | float | np.number):
            raise InputError(f"deadline must be a number of seconds, got {deadline!r}")
        if not (math.isfinite(deadline) and deadline > 0.0):
            raise InputError(f"deadline must be a finite number of seconds above 0, got {deadline!r}")
        # The communicator is looked up on first use: importing or pickling must not start MPI.
        self._comm = comm
        self.deadline = float(deadline)
        self.compiled = compiled
        # The ranks connect in the outermost of nested `with` blocks.
        self._team: Team | None = None
        self._depth = 0
        self._open = ExitStack()

    def __deepcopy__(self, memo: dict[int, object]) -> MpiRanks:
        """Return this object: one rank alone cannot copy a communicator."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Leave out the communicator: a loaded model uses the one of its own program."""
        return _load, (self.deadline, self.compiled)

    def __repr__(self) -> str:
        return f"MpiRanks(deadline={self.deadline:g})"

    @property
    def comm(self) -> MPI.Intracomm:
        """The given communicator, or the one of all ranks."""
        if self._comm is None:
            self._comm = load_mpi(self.deadline).COMM_WORLD
        return self._comm

    @property
    def team(self) -> Team:
        """The connected ranks; only inside ``with``."""
        if self._team is None:
            raise InputError("the ranks are not in touch: use `with cluster:` around what they do together")
        return self._team

    def __enter__(self) -> Self:
        if self._depth == 0:
            check_launcher()
            # All ranks get here together; the constructor waits for them.
            self._team = Team(self.comm, self.deadline)
            self.rank, self.size = self._team.rank, self._team.size
            self.hosts = self._team.hosts
            self._open = ExitStack()
            self._open.enter_context(self._team.watch.reporting_sigterm())
        self._depth += 1
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            team, self._team = self.team, None
            if kind is None:
                self._open.close()
                team.close()
            # After an error the hooks stay: another rank may end this one before it has reported.

    @property
    def doing(self) -> Callable[[], str]:
        return self.team.watch.doing

    @doing.setter
    def doing(self, words: Callable[[], str]) -> None:
        self.team.watch.doing = words

    @property
    def paused(self) -> float:
        return self.team.watch.paused

    def busy(self) -> AbstractContextManager[None]:
        return self.team.pulse.beating()

    def gather(self, item: Any, why: str) -> list[Any]:
        return self.team.gather_all(item, why)

    def share(self, values: np.ndarray, sizes: Sequence[int], why: str) -> list[np.ndarray]:
        return self.team.share(values, sizes, why)

    def spread(self, values: np.ndarray, why: str) -> None:
        self.team.spread(values, why)

    def add(self, values: np.ndarray, placement: Placement, why: str) -> np.ndarray:
        """Return the sum over all nodes; see `Team.add_in_order`."""
        nodes = placement.block(self.rank)
        return self.team.add_in_order(values, nodes, placement.rank_of_node, why)

    def swap(self, outgoing: Parcels, incoming: Parcels, why: Callable[[], str]) -> None:
        comm = self.team.comm
        # Receives start before sends, so that messages go directly into their buffers.
        requests = [comm.Irecv(array, rank, Tag.SWAP) for rank, array in incoming]
        requests += [comm.Isend(array, rank, Tag.SWAP) for rank, array in outgoing]
        ranks = [rank for rank, _ in incoming] + [rank for rank, _ in outgoing]
        self.team.watch.wait(requests, ranks, why)

    def links(self, placement: Placement, message_length: int) -> MpiLinks:
        return MpiLinks(self.team, placement, message_length)

    def events(
        self, process: EventProcess, placement: Placement, times: ProcessTimes, tau: float | None = None
    ) -> EventExchange:
        """Return the compiled exchange if the process has kernels and the MPI library is found."""
        links = self.links(placement, process.message_length)
        # A rank without links to other ranks has nothing to exchange.
        if self.compiled and links.edges.size and process.kernels is not None and library_is_loaded():
            return CompiledExchange(self, process, links, times, tau)
        return EventExchange(self, process, links, times, tau)

    def wait_until(
        self, ready: Callable[[], bool], missing: Callable[[], Sequence[int]], why: Callable[[], str]
    ) -> None:
        self.team.watch.until(ready, missing, why)

    def say(self, sentence: str) -> None:
        if self.rank == 0:
            say(sentence)

    def exchange_seconds(self, width: int) -> float:
        """Return the seconds of a message of ``width`` numbers, the median over pairs of ranks."""
        from adfs.runtimes.mpi.netbench import measure_exchanges

        if self.size == 1:
            return 0.0
        # This happens before each run, so it takes a fifth of the time of `bench_network`.
        return float(np.median(measure_exchanges(self, (width,), spent=0.02)[1]))


def _load(deadline: float, compiled: bool) -> MpiRanks:
    return MpiRanks(deadline=deadline, compiled=compiled)


def check_launcher(world_size: int | None = None) -> None:
    """Refuse to start if the launcher and the MPI library do not belong together.

    Each process would then be the only rank of its own world, and solve its shard as if it were all the data.
    """
    from mpi4py import MPI

    launch = launch_of()
    size = MPI.COMM_WORLD.Get_size() if world_size is None else world_size
    if launch is not None and launch.size > 1 and size == 1:
        sentence = (
            f"the launcher started {launch.size} processes but each one's MPI library sees itself alone: "
            "mpiexec and mpi4py belong to different MPI installations; use the mpiexec of mpi4py's own"
        )
        # All processes fail alike: rank 0 writes the sentence first, and its end ends the others.
        wait_for_rank_0()
        say(sentence)
        raise SystemExit(2)


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
        Seconds that a rank waits for another before it raises `RankLostError`.
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
        options, method_options = RunOptions.split(arguments)

        def check() -> None:
            get_method(method).check_options(method_options, [*RunOptions.names(), "loss", "sigma", "nodes"])
            options.check()
            get_loss(loss)

        # Ranks with different arguments would wait for each other without end: compare them first.
        cluster.attempt("at the start", check)
        cluster.same(
            {
                "the loss": repr(get_loss(loss)),
                "sigma": describe(sigma),
                "the network": describe(network),
                "n_features": n_features,
            }
        )
        # From here on every rank knows the network and the placement of all nodes.
        joint = join_shards(
            cluster, shards, network, nodes=nodes, loss=loss, sigma=sigma, n_features=n_features
        )
        tell_placement(cluster, joint.placement, options.progress)
        run = run_method(
            method,
            joint.problem,
            joint.network,
            options,
            method_options,
            cluster=cluster,
            placement=joint.placement,
        )
    run.details["classes"] = joint.classes
    return run
