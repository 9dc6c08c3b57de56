"""The edges between ranks: a send and a receive each, made once and started again at every exchange."""

from __future__ import annotations

import numpy as np

from adfs.errors import InputError
from adfs.runtimes.mpi.placement import Placement
from adfs.runtimes.mpi.team import Team

__all__ = ["Links"]


class Links:
    """The ends of the cut edges that are on this rank.

    The messages of an edge have a tag of their own between the two ranks, so its k-th send meets its k-th
    receive: both ends go through the events of an edge in the same order. A receive is started before it is
    needed, so a message that comes early goes straight to its place.

    Attributes
    ----------
    edges : ndarray of shape (c,)
        The cut edges at this rank.
    number : ndarray of shape (|E|,), int32
        The place of each edge above, −1 for others.
    peer : ndarray of shape (c,)
        The rank at the other end.
    out, into : ndarray of shape (c, m)
        What was sent last, and what came last.
    exchanges : ndarray of shape (c,), int64
        How many exchanges there were.
    """

    def __init__(self, team: Team, placement: Placement, message_length: int) -> None:
        self.team = team
        ends = placement.rank_of_node[placement.edges]
        mine = placement.cut & (ends == team.rank).any(axis=1)
        self.edges = np.flatnonzero(mine)
        count = self.edges.size
        self.number = np.full(len(placement.edges), -1, dtype=np.int32)
        self.number[self.edges] = np.arange(count)
        at_edges = ends[self.edges]
        self.peer = np.where(at_edges[:, 0] == team.rank, at_edges[:, 1], at_edges[:, 0]).astype(np.int64)
        self.out, self.into = np.zeros((count, message_length)), np.zeros((count, message_length))
        self.exchanges = np.zeros(count, dtype=np.int64)
        tags = self._tags()
        comm = team.comm
        self.sends = [comm.Send_init(self.out[c], int(self.peer[c]), int(tags[c])) for c in range(count)]
        self.receives = [comm.Recv_init(self.into[c], int(self.peer[c]), int(tags[c])) for c in range(count)]
        self.started = False

    def _tags(self) -> np.ndarray:
        """Count the edges between each pair of ranks; both ends do so in the order of the edges."""
        tags = np.zeros(self.edges.size, dtype=np.int64)
        for peer in np.unique(self.peer):
            here = np.flatnonzero(self.peer == peer)
            tags[here] = _FIRST_TAG + np.arange(here.size)
        from mpi4py import MPI

        most = self.team.comm.Get_attr(MPI.TAG_UB)
        if isinstance(most, int) and tags.max(initial=0) > most:
            raise InputError(
                f"rank {self.team.rank} shares more edges with one rank than this MPI has tags ({most}): "
                "use more ranks, or a placement that cuts fewer edges"
            )
        return tags

    def open(self) -> None:
        """Start all receives."""
        if not self.started:
            for receive in self.receives:
                receive.Start()
            self.started = True

    def close(self) -> None:
        """Finish the sends, and drop the receives that nothing will come for."""
        why = "to take the last message"
        self.team.watch.wait(self.sends, self.peer.tolist(), lambda: why)
        for request in self.receives:
            if self.started:
                request.Cancel()
                request.Wait()
            request.Free()
        for request in self.sends:
            request.Free()
        self.sends, self.receives, self.started = [], [], False


_FIRST_TAG = 16
