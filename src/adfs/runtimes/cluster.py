"""Who holds which nodes, and how processes act together: one small interface, whatever carries the messages.

A run, a fit and a checkpoint are written once, against `Cluster`. `OneProcess` holds all nodes itself;
`adfs.runtimes.mpi.MpiRanks` spreads them over the ranks of an MPI program. Another transport implements the
abstract methods below, in a file of its own, and nothing else.

Every process calls every method in the same order with arguments that fit together: they act as one.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from adfs.errors import AdfsError, InputError
from adfs.problem.evaluation import sum_in_order

if TYPE_CHECKING:
    from adfs.algorithms.base import EventProcess
    from adfs.runtimes.exchange import EventExchange
    from adfs.runtimes.placement import Placement
    from adfs.runtimes.timing import ProcessTimes

T = TypeVar("T")
#: Arrays, each with the process that it goes to or comes from.
Parcels: TypeAlias = Sequence[tuple[int, np.ndarray]]


class RefusalError(InputError):
    """A run that all processes refuse to start, for the same reason; process 0 says it for all.

    ``own`` is whether the words are of this process alone, which then has to say them itself.
    """

    own = False


class Links(Protocol):
    """The ends of the cut edges that are in this process: one message out and one in per exchange.

    The k-th message sent over an edge meets the k-th one taken at its other end: both ends go through the
    events of an edge in the same order.

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

    edges: np.ndarray
    number: np.ndarray
    peer: np.ndarray
    out: np.ndarray
    into: np.ndarray
    exchanges: np.ndarray

    def open(self) -> None:
        """Be ready for messages."""

    def send(self, link: int) -> None:
        """Send ``out[link]``, without waiting."""

    def came(self, link: int) -> bool:
        """Whether the message of the exchange under way is in ``into[link]`` and the own one has left."""

    def renew(self, link: int) -> None:
        """Be ready for the next message, once the last one has been used."""

    def close(self) -> None:
        """Leave no message under way."""


class Cluster(ABC):
    """The processes of a run, as each of them sees it.

    Used as a context: messages are possible inside ``with cluster:``, which may be nested.

    Attributes
    ----------
    rank, size : int
        Which process this is, and how many there are.
    hosts : list of str
        The machine of each process.
    one_file : bool
        Whether a checkpoint is one file of this process (otherwise a folder with one file per process).
    doing : callable
        Returns a description of the current work, for the sentence of a process that gives up.
    """

    rank: int = 0
    size: int = 1
    hosts: Sequence[str] = ("",)
    one_file: bool = False
    doing: Callable[[], str] = staticmethod(lambda: "starting")

    # ------------------------------------------------------------------ implemented by a transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None

    @abstractmethod
    def gather(self, item: Any, why: str) -> list[Any]:
        """Return every process's item (of types that JSON has), in every process.

        ``why`` is the purpose, in the sentence of a process that waits.
        """

    @abstractmethod
    def share(self, values: np.ndarray, sizes: Sequence[int], why: str) -> list[np.ndarray]:
        """Return every process's numbers, ``sizes[rank]`` of each, in every process."""

    @abstractmethod
    def spread(self, values: np.ndarray, why: str) -> None:
        """Overwrite an array by that of process 0."""

    @abstractmethod
    def swap(self, outgoing: Parcels, incoming: Parcels, why: Callable[[], str]) -> None:
        """Send arrays to some processes and fill arrays from others, one each way per pair at most."""

    @abstractmethod
    def links(self, placement: Placement, message_length: int) -> Links | None:
        """Return the links over the edges that this process shares with others, None without such."""

    def wait_until(
        self, ready: Callable[[], bool], missing: Callable[[], Sequence[int]], why: Callable[[], str]
    ) -> None:
        """Wait until something is ready; ``missing`` are the processes it depends on.

        A transport gives up after its deadline, and says for whom it waited.
        """
        while not ready():
            time.sleep(0.0)

    @property
    def paused(self) -> float:
        """Seconds for which this process itself was stopped while it waited, as far as a transport tells."""
        return 0.0

    def busy(self) -> AbstractContextManager[None]:
        """Let the others be patient while this process reads, compiles or writes, however long it takes."""
        return nullcontext()

    def say(self, sentence: str) -> None:
        """Show one line, from one place: process 0 says it for all."""
        if self.rank == 0:
            sys.stderr.write(f"adfs: {sentence}\n")
            sys.stderr.flush()

    def exchange_seconds(self, width: int) -> float:
        """Return the seconds that a message of some numbers takes, the same in every process."""
        raise InputError("tau='measure' measures messages between processes, and this run sends none")

    # ------------------------------------------------------------------ built on these

    def add(self, values: np.ndarray, placement: Placement, why: str) -> np.ndarray:
        """Return the sum over all nodes, in their order, of one vector per node.

        ``values`` (k, d) are those of this process's nodes. A transport may do so without holding all.
        """
        width = values.shape[1]
        return sum_in_order(self.collect(values, placement, why), np.zeros(width))

    def collect(self, values: np.ndarray, placement: Placement, why: str) -> np.ndarray:
        """Return one number or vector per node of all processes, in the order of the nodes."""
        if self.size == 1:
            return values
        # Processes send their nodes one after the other; the result has all nodes in their order.
        blocks = [placement.block(rank) for rank in range(self.size)]
        width = int(np.prod(values.shape[1:], dtype=np.int64))
        parts = self.share(values, [block.size * width for block in blocks], why)
        out = np.empty((placement.rank_of_node.size, *values.shape[1:]))
        for block, part in zip(blocks, parts, strict=True):
            out[block] = part.reshape(block.size, *values.shape[1:])
        return out

    def events(
        self, process: EventProcess, placement: Placement, times: ProcessTimes, tau: float | None = None
    ) -> EventExchange:
        """Return the exchange that executes windows of events, with messages over the edges that are cut.

        ``tau`` is the time of a message in units of a sample's computation, where it is known.
        """
        from adfs.runtimes.exchange import EventExchange

        return EventExchange(self, process, self.links(placement, process.message_length), times, tau)

    def any(self, flag: bool, why: str) -> bool:
        """Return whether any process raises a flag."""
        return flag if self.size == 1 else any(self.gather(flag, why))

    def attempt(self, why: str, action: Callable[[], T]) -> T:
        """Do something in every process; if it fails in one, all raise the same `RefusalError`."""
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
            trouble = f"it failed {why} ({type(error).__name__}), its own message says more"
        found = self.gather(trouble, why)
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

    def same(self, words: Mapping[str, object]) -> None:
        """Raise `RefusalError` unless all processes were given the same."""
        if self.size == 1:
            return
        cards = self.gather({name: str(value) for name, value in words.items()}, "at the start")
        # Every process compares all, and so all raise the same sentence.
        for name in dict.fromkeys(name for card in cards for name in card):
            for rank, card in enumerate(cards):
                if card.get(name) != cards[0].get(name):
                    raise RefusalError(
                        f"the ranks were not started alike: {name} is {cards[0].get(name)} on rank 0 "
                        f"and {card.get(name)} on rank {rank}; give all ranks the same"
                    )

    def in_turns(self, action: Callable[[], object], why: str) -> None:
        """Do something that leaves its result on the disk: once per machine, then everywhere."""
        # The first process of a machine fills its cache on the disk, the others then read it.
        first_here = self.hosts.index(self.hosts[self.rank]) == self.rank
        for turn in (True, False):
            if first_here is turn:
                with self.busy():
                    action()
            if self.size > 1:
                self.gather(0, why)


class OneProcess(Cluster):
    """All nodes in this process: nothing is sent."""

    one_file = True

    def gather(self, item: Any, why: str) -> list[Any]:
        """Return the item."""
        return [item]

    def share(self, values: np.ndarray, sizes: Sequence[int], why: str) -> list[np.ndarray]:
        """Return the numbers."""
        return [values]

    def spread(self, values: np.ndarray, why: str) -> None:
        """Leave the array as it is."""

    def swap(self, outgoing: Parcels, incoming: Parcels, why: Callable[[], str]) -> None:
        """Send nothing."""

    def links(self, placement: Placement, message_length: int) -> Links | None:
        """Return None: every edge is inside this process."""
        return None
