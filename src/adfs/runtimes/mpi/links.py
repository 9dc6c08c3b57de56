"""The edges between ranks: one persistent send and one persistent receive per edge.

Compiled code starts and tests these requests by the few MPI functions at the end, whose addresses each
process looks up. It gets the addresses of the requests' handles, because the type of a handle differs between
MPI libraries.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import llvmlite.binding
import numpy as np
from numba import types

from adfs.errors import InputError
from adfs.runtimes.cluster import Links, Placement
from adfs.runtimes.mpi.faults import Tag

if TYPE_CHECKING:
    from adfs.runtimes.mpi.ranks import MpiRanks


class MpiLinks(Links):
    """The ends of the cut edges that are on this rank; see `adfs.runtimes.cluster.Links`.

    The messages of an edge have their own tag between the two ranks, so its k-th send meets its k-th receive.
    A receive is started before it is needed, so that an early message goes directly into its buffer.
    """

    def __init__(self, ranks: MpiRanks, placement: Placement, message_length: int) -> None:
        super().__init__(ranks.rank, placement, message_length)
        self._watch = ranks.watch
        # The buffers stay in place, because the requests keep their addresses.
        comm, all_tags = ranks.watch.comm, self._tags()
        ends = list(zip(self.out, self.into, self.peer.tolist(), all_tags.tolist(), strict=True))
        self.sends = [comm.Send_init(out, peer, tag) for out, _, peer, tag in ends]
        self.receives = [comm.Recv_init(into, peer, tag) for _, into, peer, tag in ends]
        self.started = False

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

    def open(self) -> None:
        if not self.started:
            for receive in self.receives:
                receive.Start()
            self.started = True

    def send(self, link: int) -> None:
        self.sends[link].Start()

    def arrived(self, links: Sequence[int], why: str | None = None) -> list[int]:
        found: list[int] = []

        def ready() -> bool:
            found.extend(k for k in links if self.receives[k].Test() and self.sends[k].Test())
            return bool(found)

        if not ready() and why is not None:
            self._watch.until(ready, self.peer[list(links)].tolist, why)
        return found

    def renew(self, link: int) -> None:
        self.receives[link].Start()

    def close(self) -> None:
        """Finish the sends, and cancel the receives, for which no message will come."""
        self._watch.wait(self.sends, self.peer.tolist(), "to take the last message")
        for request in self.receives:
            if self.started:
                request.Cancel()
                request.Wait()
            request.Free()
        for request in self.sends:
            request.Free()
        self.sends, self.receives, self.started = [], [], False


# --------------------------------------------------------------------------- for compiled code

#: ``start(request)``, ``test(request, flag, status)``, ``wtime()`` and ``sched_yield()``; addresses are
#: integers.
MPI_START = types.ExternalFunction("adfs_mpi_start", types.int32(types.intp))
# Kernels use these names: this line makes adfs.compilation hash the file.
MPI_TEST = types.ExternalFunction("adfs_mpi_test", types.int32(types.intp, types.intp, types.intp))
MPI_WTIME = types.ExternalFunction("adfs_mpi_wtime", types.float64())
YIELD = types.ExternalFunction("adfs_yield", types.int32())

_NAMES = {"adfs_mpi_start": "MPI_Start", "adfs_mpi_test": "MPI_Test", "adfs_mpi_wtime": "MPI_Wtime"}


@functools.cache
def library_is_loaded() -> bool:
    """Make the functions known to compiled code; return False if one is not found (mpi4py is used then)."""
    from mpi4py import MPI

    # mpi4py is linked to the MPI library, so its extension module leads to the functions.
    try:
        library = ctypes.CDLL(MPI.__file__)
        functions = {ours: getattr(library, theirs) for ours, theirs in _NAMES.items()}
        functions["adfs_yield"] = ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError, TypeError):
        return False
    for name, function in functions.items():
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is None:
            return False
        llvmlite.binding.add_symbol(name, address)
    return True
