"""Who holds which nodes, and how processes act together: one small interface, whatever carries the messages.

A run, a fit and a checkpoint are written once, against `Cluster`. `OneProcess` holds all nodes itself;
`adfs.runtimes.mpi.MpiRanks` spreads them over the ranks of an MPI program. Another transport implements the
abstract methods below, in a file of its own, and nothing else.

Every process calls every method in the same order with arguments that fit together: they act as one.
"""

from __future__ import annotations

import json
import logging
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from adfs.errors import AdfsError, InputError
from adfs.problem.evaluation import sum_in_order

if TYPE_CHECKING:
    from adfs.algorithms.base import EventProcess
    from adfs.runtimes.exchange import EventExchange
    from adfs.runtimes.execution import ProcessTimes

# Silent unless the program that uses the package asks for more.
_LOG = logging.getLogger("adfs")
_LOG.addHandler(logging.NullHandler())

T = TypeVar("T")
#: Arrays, each with the process that it goes to or comes from.
Parcels: TypeAlias = Sequence[tuple[int, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Placement:
    """The rank of every node.

    Attributes
    ----------
    rank_of_node : ndarray of shape (n,), int64
    edges : ndarray of shape (|E|, 2)
        The network's.
    n_ranks : int
    """

    rank_of_node: np.ndarray
    edges: np.ndarray
    n_ranks: int

    def block(self, rank: int) -> np.ndarray:
        """Return the nodes of a rank, in increasing order."""
        return np.flatnonzero(self.rank_of_node == rank)

    @property
    def cut(self) -> np.ndarray:
        """Which edges join two ranks, shape (|E|,), bool."""
        ends = self.rank_of_node[self.edges]
        return np.asarray(ends[:, 0] != ends[:, 1])

    def __str__(self) -> str:
        """Return the placement as a table, one line per rank."""
        ends, cut = self.rank_of_node[self.edges], self.cut
        lines = [
            f"{self.rank_of_node.size} nodes on {self.n_ranks} ranks, {cut.sum()} of {cut.size} edges cut"
        ]
        for rank in range(self.n_ranks):
            here = (ends == rank).any(axis=1)
            inside, between = int((here & ~cut).sum()), int((here & cut).sum())
            nodes = _short(self.block(rank))
            lines.append(f"  rank {rank}: nodes {nodes} ({inside} edges inside, {between} to other ranks)")
        return "\n".join(lines)


def _short(nodes: np.ndarray) -> str:
    """Write increasing numbers as ranges, at most eight of them.

    >>> _short(np.array([0, 1, 2, 7, 9, 10]))
    '0-2, 7, 9-10'
    """
    runs = np.split(nodes, np.flatnonzero(np.diff(nodes) > 1) + 1)
    words = [str(run[0]) if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs if run.size]
    return ", ".join(words[:8]) + (", …" if len(words) > 8 else "")


class RefusalError(InputError):
    """A run that all processes refuse to start, for the same reason; process 0 says it for all.

    ``own`` is whether the words are of this process alone, which then has to say them itself.
    """

    own = False


class Links:
    """The ends of the cut edges that are in this process: one message out and one in per exchange.

    The k-th message sent over an edge meets the k-th one taken at its other end: both ends go through the
    events of an edge in the same order. A transport implements the methods; in one process no edge is cut and
    none of them is called.

    Attributes
    ----------
    edges : ndarray of shape (c,)
        The cut edges at this process.
    number : ndarray of shape (|E|,), int32
        The place of each edge above, −1 for others.
    peer : ndarray of shape (c,)
        The process at the other end.
    out, into : ndarray of shape (c, m)
        The next message out, and the last one in.
    exchanges : ndarray of shape (c,), int64
        How many exchanges there were.
    """

    def __init__(self, rank: int, placement: Placement, message_length: int) -> None:
        ends = placement.rank_of_node[placement.edges]
        self.edges = np.flatnonzero(placement.cut & (ends == rank).any(axis=1))
        self.number = np.full(len(ends), -1, dtype=np.int32)
        self.number[self.edges] = np.arange(self.edges.size)
        one, other = ends[self.edges].T
        self.peer = np.where(one == rank, other, one).astype(np.int64)
        self.out, self.into = np.zeros((2, self.edges.size, message_length))
        self.exchanges = np.zeros(self.edges.size, dtype=np.int64)

    def send(self, link: int) -> None:
        """Send ``out[link]``, and begin to receive ``into[link]``, without waiting."""
        raise NotImplementedError

    def arrived(self, links: Sequence[int], why: str | None = None) -> list[int]:
        """Return those of some links whose message is in ``into`` and whose own message has left.

        With ``why``, wait until there is one. A transport gives up after its deadline, and says for whom it
        waited and why.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the memory of the transport; no message is under way."""


class Cluster(AbstractContextManager["Cluster"]):
    """The processes of a run, as each of them sees it.

    Used as a context: messages are possible inside ``with cluster:``, which may be nested. A transport
    implements `allgather`, `sendrecv` and `links`, and perhaps `busy` and the context. All other methods are
    built on these.

    Attributes
    ----------
    rank, size : int
        Which process this is, and how many there are.
    hosts : list of str
        The machine of each process.
    one_file : bool
        Whether a checkpoint is one file of this process (otherwise a folder with one file per process).
    interrupted : bool
        Whether a request to stop came while a run was ending for another reason: the next run of the same fit
        stops.
    activity : str
        The purpose of the messages from now on, for the sentence of a process that waits too long: "rank 0
        waited 60 s for rank 1 *to read the data* and gave up". `attempt` and `in_turns` set it; other code
        assigns it where it begins something else.
    suspended : float
        Seconds for which this process itself was stopped while it waited, if the transport can tell.
    """

    rank: int = 0
    size: int = 1
    hosts: Sequence[str] = ("",)
    one_file: bool = False
    interrupted: bool = False
    activity: str = "at the start"
    suspended: float = 0.0

    # ------------------------------------------------------------------ implemented by a transport

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None

    @abstractmethod
    def allgather(self, item: Any) -> list[Any]:
        """Return every process's item, in every process.

        An item is an array of floats or consists of the types of JSON; `pack` makes bytes of it.
        """

    def sendrecv(self, outgoing: Parcels, incoming: Parcels) -> None:
        """Send arrays to some processes and fill arrays from others, one each way per pair at most."""
        raise NotImplementedError

    def links(self, placement: Placement, message_length: int) -> Links:
        """Return the links over the edges that this process shares with others."""
        return Links(self.rank, placement, message_length)

    def busy(self) -> AbstractContextManager[None]:
        """Let the others be patient while this process reads, compiles or writes, however long it takes."""
        return nullcontext()

    # ------------------------------------------------------------------ built on these

    def bcast(self, item: T) -> T:
        """Return process 0's item in every process."""
        return item if self.size == 1 else self.allgather(item if self.rank == 0 else None)[0]

    def allgatherv(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Return one number or vector per node of all processes, in the order of the nodes."""
        if self.size == 1:
            return values
        out = np.empty((placement.rank_of_node.size, *values.shape[1:]))
        for rank, part in enumerate(self.allgather(np.asarray(values, dtype=np.float64))):
            out[placement.block(rank)] = part
        return out

    def allreduce(self, values: np.ndarray, placement: Placement) -> np.ndarray:
        """Return the sum over all nodes, in their order, of one vector per node of this process (k, d).

        A transport may compute it without holding the vectors of all nodes.
        """
        return sum_in_order(self.allgatherv(values, placement), np.zeros(values.shape[1]))

    def events(
        self, process: EventProcess, placement: Placement, times: ProcessTimes, tau: float | None = None
    ) -> EventExchange:
        """Return the exchange that executes windows of events, with messages over the edges that are cut.

        ``tau`` is the time of a message in units of a sample's computation, where it is known.
        """
        from adfs.runtimes.exchange import EventExchange

        return EventExchange(self, process, self.links(placement, process.message_length), times, tau)

    def attempt(self, activity: str, action: Callable[[], T]) -> T:
        """Do something in every process; if it fails in one, all raise the same `RefusalError`."""
        self.activity = activity
        if self.size == 1:
            return action()
        # The errors of all processes are compared before anybody raises one: nobody is left waiting.
        result: list[T] = []
        trouble = private = ""
        cause: Exception | None = None
        try:
            with self.busy():
                result.append(action())
        except (AdfsError, OSError) as error:
            trouble, cause = str(error) or type(error).__name__, error
        except (ValueError, TypeError) as error:
            # Other libraries quote the values that they cannot use, and samples stay in their process.
            private = str(error) or type(error).__name__
            trouble = f"it failed {activity} ({type(error).__name__}), its own message says more"
        self.activity = activity  # the action may have had activities of its own
        found = self.allgather(trouble)
        # One process that failed is named; if all failed alike, the message is enough.
        failed = [rank for rank, words in enumerate(found) if words]
        if private:
            refusal = RefusalError(f"rank {self.rank}: {private}")
            refusal.own = True
            raise refusal
        if failed:
            alone = len(set(found)) > 1
            if not alone and isinstance(cause, InputError):  # which names the parameters it is about
                raise RefusalError(cause.template, **cause.parameters)
            raise RefusalError(f"rank {failed[0]}: {found[failed[0]]}" if alone else found[0])
        return result[0]

    def same(self, words: Callable[[], Mapping[str, object]]) -> None:
        """Raise `RefusalError` unless all processes were given the same."""
        if self.size == 1:
            return
        cards = self.allgather({name: str(value) for name, value in words().items()})
        # Every process compares all, and so all raise the same sentence.
        for name in dict.fromkeys(name for card in cards for name in card):
            for rank, card in enumerate(cards):
                if card.get(name) != cards[0].get(name):
                    raise RefusalError(
                        f"the ranks were not started alike: {name} is {cards[0].get(name)} on rank 0 "
                        f"and {card.get(name)} on rank {rank}; give all ranks the same"
                    )

    def in_turns(self, activity: str, action: Callable[[], object]) -> None:
        """Do something that leaves its result on the disk: once per machine, then everywhere."""
        self.activity = activity
        if self.size == 1:
            action()
            return
        # The first process of a machine fills its cache on the disk, the others then read it.
        first_here = self.hosts.index(self.hosts[self.rank]) == self.rank
        for turn in (True, False):
            if first_here is turn:
                with self.busy():
                    action()
            self.allgather(None)

    def say(self, words: str) -> None:
        """Show a line or several, from one place: process 0 says them for all."""
        if self.rank == 0:
            sys.stderr.writelines(f"adfs: {line}\n" for line in words.split("\n"))
            sys.stderr.flush()

    def log(self, level: int, sentence: str, *values: object) -> None:
        """Log a line under the name ``adfs``, in process 0 alone; values are formatted if anyone listens."""
        if self.rank == 0:
            _LOG.log(level, sentence, *values, stacklevel=2)


class OneProcess(Cluster):
    """All nodes in this process: nothing is sent."""

    one_file = True

    def allgather(self, item: Any) -> list[Any]:
        """Return the item."""
        return [item]


def numbered(cluster: Cluster, count: int, nodes: Sequence[int] | None) -> np.ndarray:
    """Return the process of every node, shape (n,), each process holding ``count`` of them.

    They are numbered in the order of processes, unless each process names its own.
    """
    cards = cluster.allgather([count, None if nodes is None else list(nodes)])
    counts = [held for held, _ in cards]
    if any(own is None for _, own in cards):
        return np.repeat(np.arange(len(cards)), counts)
    total = sum(counts)
    rank_of_node = np.full(total, -1)
    for rank, (held, own) in enumerate(cards):
        if len(own) != held:
            raise RefusalError(
                f"rank {rank} names {len(own)} nodes and holds {held} shards; name one node per shard"
            )
        rank_of_node[[node for node in own if 0 <= node < total]] = rank
    if (rank_of_node < 0).any() or sum(len(set(own)) for _, own in cards) != total:
        raise RefusalError(f"the nodes that the ranks name must be 0, …, {total - 1}, each once")
    return rank_of_node


def pack(item: Any) -> bytes:
    """Return an item of `Cluster.allgather` as bytes, without pickling.

    >>> unpack(pack([1, None])), unpack(pack(np.ones((1, 2))))
    ([1, None], array([[1., 1.]]))
    """
    if isinstance(item, np.ndarray):
        # The shape is one line of JSON; the numbers follow.
        return json.dumps(item.shape).encode() + b"\n" + item.tobytes()
    return json.dumps(item).encode()


def unpack(data: bytes) -> Any:
    """Return the item that `pack` made bytes of; JSON of one line has no line break."""
    head, line_break, numbers = data.partition(b"\n")
    found = json.loads(head)
    return np.frombuffer(bytearray(numbers)).reshape(found) if line_break else found
