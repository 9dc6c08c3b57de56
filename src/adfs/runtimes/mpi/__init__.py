"""The runtime for clusters: many nodes a rank, messages through MPI, the same bits as the simulator.

``fit_mpi`` runs a method; ``launched_by_mpi`` tells whether this process is one of several. The MPI library
is loaded (and started) by the program that hands over a communicator, never by importing this package.
"""

from __future__ import annotations

from adfs.launching import launched_by_mpi, what_the_launcher_says
from adfs.runtimes.mpi.fit import fit_mpi
from adfs.runtimes.mpi.placement import Placement, place
from adfs.runtimes.mpi.timing import draw_timeline, edge_table, rank_table

__all__ = [
    "Placement",
    "draw_timeline",
    "edge_table",
    "fit_mpi",
    "launched_by_mpi",
    "place",
    "rank_table",
    "what_the_launcher_says",
]
