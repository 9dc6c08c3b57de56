"""Whether this process is one of several that an MPI launcher started, told without importing MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["own_rank", "world_size"]

#: What launchers tell the processes they start: Open MPI; MPICH, Intel MPI and srun --mpi=pmi2; MVAPICH.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")


def world_size(environment: Mapping[str, str] | None = None) -> int:
    """Return how many processes were started together, 1 without a launcher.

    Examples
    --------
    >>> world_size({"OMPI_COMM_WORLD_SIZE": "4"}), world_size({})
    (4, 1)
    """
    told = os.environ if environment is None else environment
    # Slurm sets its own count in every job step; only with PMIx does it start an MPI world.
    names = (*_SIZES, "SLURM_STEP_NUM_TASKS") if "PMIX_RANK" in told else _SIZES
    sizes = [int(told[name]) for name in names if told.get(name, "").isdigit()]
    return max(sizes, default=1)


def own_rank(environment: Mapping[str, str] | None = None) -> int:
    """Return which of the processes started together this one is, 0 without a launcher.

    Examples
    --------
    >>> own_rank({"PMI_SIZE": "4", "PMI_RANK": "2"}), own_rank({})
    (2, 0)
    """
    told = os.environ if environment is None else environment
    names = (*_RANKS, "SLURM_PROCID") if "PMIX_RANK" in told else _RANKS
    ranks = [int(told[name]) for name in names if told.get(name, "").isdigit()]
    return max(ranks, default=0)
