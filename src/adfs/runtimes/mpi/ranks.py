"""The ranks of an MPI program as a cluster, and `fit_mpi`, which runs a method on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.algorithms.base import EventProcess, Method, get_method
from adfs.errors import InputError
from adfs.launching import load_mpi
from adfs.network import Network
from adfs.problem import Loss
from adfs.problem.evaluation import sum_in_order
from adfs.problem.losses import get_loss
from adfs.runtimes.cluster import Links, Parcels, Placement, pack, unpack
from adfs.runtimes.exchange import EventExchange, runs
from adfs.runtimes.execution import ProcessTimes
from adfs.runtimes.joint_problem import ShardSource, join_shards
from adfs.runtimes.mpi.compiled_exchange import CompiledExchange, library_is_loaded
from adfs.runtimes.mpi.faults import Pulse, Tag, Watch, nothing
from adfs.runtimes.options import RUN_OPTIONS, RunOptions, describe, takes_run_options
from adfs.runtimes.result import Run
from adfs.runtimes.run import run_method, wanted_on_screen
from adfs.runtimes.waiting import NUMBERS_AT_ONCE, WaitingCluster

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiRanks(WaitingCluster):
    """The ranks of an MPI communicator; each holds its own nodes and their data.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        ``MPI.COMM_WORLD`` when left out; it is duplicated while it is in use.
    deadline : float
        Seconds that a rank waits for another before it raises `RankLostError`.

    Examples
    --------
    On every rank, each with its own rows::

        from mpi4py import MPI
        model = adfs.ADFSClassifier(cluster=adfs.MpiRanks(MPI.COMM_WORLD)).fit(X_of_this_rank, y_of_this_rank)
    """

    def __init__(self, comm: MPI.Intracomm | None = None, *, deadline: float = 60.0) -> None:
        super().__init__(deadline)
        # The communicator is looked up on first use: importing or pickling must not start MPI.
        self._comm = comm
        self._watch: Watch | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Leave out the communicator: a loaded model uses the one of its own program."""
        return partial(MpiRanks, deadline=self.deadline), ()

    def __repr__(self) -> str:
        return f"MpiRanks(deadline={self.deadline:g})"

    @property
    def watch(self) -> Watch:
        """The waits of this rank, and the duplicate of the communicator; only inside ``with``."""
        if self._watch is None:
            raise InputError("the ranks are not in touch: use `with cluster:` around what they do together")
        return self._watch

    # ------------------------------------------------------------------ beginning and end

    def connect(self) -> None:
        """Wait for all ranks, and duplicate the communicator: its messages never meet the user's."""
        mpi = load_mpi(self.deadline)
        comm = self._comm or mpi.COMM_WORLD
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        watch = self._watch = Watch(self, self.deadline)
        # From here on a rank that fails ends the others, which may already wait for it.
        watch.install_hooks(comm)
        self._meet(comm, watch)
        watch.comm, request = comm.Idup()
        watch.until(request.Test, list)
        watch.pulse = Pulse(watch.comm, self.deadline)
        # Without signs of life, a rank that reads or compiles must be allowed to be silent for an hour.
        if not all(self.compare_hosts(watch, watch.pulse.possible)):
            watch.patience = 3600.0

    def disconnect(self, error: object) -> None:
        watch, self._watch = self.watch, None
        # After an error the hooks stay: another rank may end this one before it has reported.
        if error is None:
            watch.restore_hooks()
            watch.pulse.close()
            watch.comm.Free()

    def _meet(self, comm: MPI.Intracomm, watch: Watch) -> None:
        """Wait until all ranks are there, so that rank 0 can name those that are not.

        This uses the user's communicator, because all ranks must be there to make another one. The tag is the
        largest possible one, which nobody else uses.
        """
        from mpi4py import MPI

        most = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        tag = most if isinstance(most, int) else 32_767
        if self.rank != 0:
            sent = comm.Isend(nothing(), 0, tag)
            watch.wait([comm.Irecv(nothing(), 0, tag)], [0])
            # Rank 0 is there and reports the missing ranks. This rank waits 3 s longer, so that rank 0 can
            # end an incomplete start.
            both = [sent, comm.Irecv(nothing(), 0, tag)]
            watch.until(lambda: MPI.Request.Testall(both), list, patience=3.0)
            return
        others = range(1, self.size)
        signs = [comm.Isend(nothing(), r, tag) for r in others]
        watch.wait([comm.Irecv(nothing(), r, tag) for r in others], others)
        signs += [comm.Isend(nothing(), r, tag) for r in others]
        watch.wait(signs, [*others, *others])

    # ------------------------------------------------------------------ through rank 0

    # MPI's own collectives wait without a limit and do not say for which rank. Here everything goes through
    # rank 0, which knows the ranks that have not answered. This takes longer, which does not matter: it
    # happens a few times per second at most.

    def allgather(self, item: Any) -> list[Any]:
        data = np.frombuffer(pack(item), dtype=np.uint8)
        lengths = self._allgather(np.array([data.size]), [1] * self.size)
        parts = self._allgather(data, [int(length[0]) for length in lengths])
        return [unpack(part.tobytes()) for part in parts]

    def _allgather(self, values: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return every rank's array, of known sizes."""
        everything = np.empty(sum(sizes), dtype=values.dtype)
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        if self.rank == 0:
            parts[0][:] = values
            self._wait([self.watch.comm.Irecv(parts[r], r, Tag.NUMBERS) for r in range(1, self.size)])
        else:
            self._wait([self.watch.comm.Isend(values, 0, Tag.NUMBERS)])
        self._bcast(everything)
        return parts

    def _bcast(self, values: np.ndarray) -> None:
        """Overwrite an array by the array of rank 0."""
        comm = self.watch.comm
        if self.rank == 0:
            self._wait([comm.Isend(values, r, Tag.NUMBERS) for r in range(1, self.size)])
        else:
            self._wait([comm.Irecv(values, 0, Tag.NUMBERS)])

    def _wait(self, requests: Sequence[MPI.Request], rank: int = 0) -> None:
        """Wait for messages with a rank, on rank 0 by default with all other ranks."""
        ranks = range(1, self.size) if self.rank == rank == 0 else [rank]
        self.watch.wait(requests, ranks, listen=True)

    def allreduce(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Return the sum over all nodes; rank 0 adds vectors as they arrive, and holds only a few at a time.

        ``values`` (k, d) belong to this rank's nodes, in increasing order.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        width, comm, rank_of_node = values.shape[1], self.watch.comm, placement.rank_of_node
        at_once = max(1, NUMBERS_AT_ONCE // width)
        total = np.zeros(width)
        if self.rank == 0:
            # The vectors of each rank that have arrived and are not yet added, and the number still to come.
            rows = [values] + [np.empty((0, width))] * (self.size - 1)
            missing = np.bincount(rank_of_node, minlength=self.size)
            # Consecutive nodes of one rank are added in one call.
            for rank, start, stop in runs(rank_of_node):
                count = stop - start
                while count > 0:
                    if len(rows[rank]) == 0:
                        rows[rank] = np.empty((min(at_once, int(missing[rank])), width))
                        self._wait([comm.Irecv(rows[rank], rank, Tag.ROWS)], rank)
                        missing[rank] -= len(rows[rank])
                    taken = min(count, len(rows[rank]))
                    total = sum_in_order(rows[rank][:taken], total)
                    rows[rank], count = rows[rank][taken:], count - taken
        else:
            for first in range(0, len(values), at_once):
                self._wait([comm.Isend(values[first : first + at_once], 0, Tag.ROWS)])
        self._bcast(total)
        return total

    # ------------------------------------------------------------------ between neighbours

    def sendrecv(self, outgoing: Parcels, incoming: Parcels) -> None:
        comm = self.watch.comm
        # Receives start before sends, so that messages go directly into their buffers.
        requests = [comm.Irecv(array, rank, Tag.PARCEL) for rank, array in incoming]
        requests += [comm.Isend(array, rank, Tag.PARCEL) for rank, array in outgoing]
        self.watch.wait(requests, [rank for rank, _ in (*incoming, *outgoing)])

    def links(self, placement: Placement, message_length: int) -> MpiLinks:
        return MpiLinks(self, placement, message_length)

    def events(
        self, process: EventProcess, placement: Placement, times: ProcessTimes, tau: float | None = None
    ) -> EventExchange:
        """Return the compiled exchange if the process has kernels and the MPI library is found."""
        links = self.links(placement, process.message_length)
        # A rank without links to other ranks has nothing to exchange.
        if links.edges.size and process.kernels is not None and library_is_loaded():
            return CompiledExchange(self, process, links, times, tau)
        return EventExchange(self, process, links, times, tau)

    def busy(self) -> AbstractContextManager[None]:
        return self.watch.pulse.beating()


class MpiLinks(Links):
    """The ends of the cut edges that are on this rank; see `adfs.runtimes.cluster.Links`.

    The messages of an edge have their own tag between the two ranks, so its k-th send meets its k-th receive.
    """

    def __init__(self, ranks: MpiRanks, placement: Placement, message_length: int) -> None:
        super().__init__(ranks.rank, placement, message_length)
        self._watch = ranks.watch
        # The buffers stay in place, because the requests keep their addresses.
        comm, all_tags = ranks.watch.comm, self._tags()
        ends = list(zip(self.out, self.into, self.peer.tolist(), all_tags.tolist(), strict=True))
        self.sends = [comm.Send_init(out, peer, tag) for out, _, peer, tag in ends]
        self.receives = [comm.Recv_init(into, peer, tag) for _, into, peer, tag in ends]

    def _tags(self) -> np.ndarray:
        """Return the tag of each link: both ranks number their common edges in the order of the edges."""
        tags = np.zeros(self.edges.size, dtype=np.int64)
        for peer in np.unique(self.peer):
            here = np.flatnonzero(self.peer == peer)
            tags[here] = Tag.FIRST_LINK + np.arange(here.size)
        from mpi4py import MPI

        most = self._watch.comm.Get_attr(MPI.TAG_UB)
        if isinstance(most, int) and tags.max(initial=0) > most:
            raise InputError(
                f"rank {self._watch.cluster.rank} shares more edges with one rank than this MPI has tags "
                f"({most}): use more ranks, or a placement that cuts fewer edges"
            )
        return tags

    def send(self, link: int) -> None:
        self.receives[link].Start()
        self.sends[link].Start()

    def arrived(self, links: Sequence[int], why: str | None = None) -> list[int]:
        found: list[int] = []

        def ready() -> bool:
            found.extend(k for k in links if self.receives[k].Test() and self.sends[k].Test())
            return bool(found)

        if not ready() and why is not None:
            self._watch.until(ready, self.peer[list(links)].tolist, why)
        return found

    def close(self) -> None:
        for request in (*self.sends, *self.receives):
            request.Free()


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
            get_method(method).check_options(method_options, [*RUN_OPTIONS, "loss", "sigma", "nodes"])
            options.check()
            get_loss(loss)

        # Ranks with different arguments would wait for each other without end: compare them first.
        cluster.attempt("at the start", check)
        cluster.same(
            lambda: {
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
        if joint.placement.n_ranks > 1 and wanted_on_screen(options.progress):
            cluster.say(str(joint.placement))
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
