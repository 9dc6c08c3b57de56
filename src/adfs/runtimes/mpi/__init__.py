"""The runtime for clusters: many nodes per rank, messages through MPI, the same bits as the simulator.

``fit_mpi`` runs a method; ``launched_by_mpi`` tells whether this process is one of several. The MPI library
is loaded (and started) by the program that hands over a communicator, never by importing this package.
"""

from __future__ import annotations

from adfs.launching import launch_of, launched_by_mpi
from adfs.runtimes.cluster import Placement
from adfs.runtimes.joint_problem import place
from adfs.runtimes.mpi.ranks import MpiRanks, fit_mpi
from adfs.runtimes.timing import draw_timeline, edge_table, rank_table

__all__ = [
    "MpiRanks",
    "Placement",
    "draw_timeline",
    "edge_table",
    "fit_mpi",
    "launch_of",
    "launched_by_mpi",
    "place",
    "rank_table",
]
