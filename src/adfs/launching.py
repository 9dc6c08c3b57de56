"""What a launcher (mpiexec, srun) says of itself in the environment, and MPI's start within a deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# (variable of the size, variable of the rank): Open MPI, MPICH and Intel MPI (Hydra), MVAPICH2, Cray PALS.
_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PALS_SIZE", "PALS_RANKID"),
)


class Launch(NamedTuple):
    """How many processes were launched together (``size``), and which of them this one is (``rank``)."""

    size: int
    rank: int


def launch_of(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return what the launcher's variables say, or None where there was no launcher.

    Examples
    --------
    >>> launch_of({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"})
    Launch(size=4, rank=2)
    >>> launch_of({}) is None
    True
    """
    found = os.environ if environment is None else environment
    for size, rank in _VARIABLES:
        if found.get(size, "").isdigit() and found.get(rank, "").isdigit():
            return Launch(int(found[size]), int(found[rank]))
    # A Slurm batch script has SLURM_NTASKS too: only a step that srun started with PMIx or PMI2 counts.
    if "PMIX_RANK" in found or "PMI_RANK" in found or "PMI_FD" in found:
        size_words = found.get("SLURM_STEP_NUM_TASKS", found.get("SLURM_NTASKS", ""))
        if size_words.isdigit() and found.get("SLURM_PROCID", "").isdigit():
            return Launch(int(size_words), int(found["SLURM_PROCID"]))
    return None


def launched_by_mpi(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this process is one of several that an MPI launcher started; no MPI library is loaded to tell.

    Examples
    --------
    >>> launched_by_mpi({"PMI_SIZE": "4", "PMI_RANK": "0"})
    True
    >>> launched_by_mpi({"PMI_SIZE": "1", "PMI_RANK": "0"})
    False
    """
    launch = launch_of(environment)
    return launch is not None and launch.size > 1


# Seconds that other ranks leave rank 0 to speak, where no message can tell them that it has.
_TO_SPEAK = 10.0


def wait_for_rank_0() -> None:
    """Wait on every rank but 0, before it gives up for a reason that all ranks probably have.

    The launcher ends all ranks as soon as one fails: rank 0 says why, and the others are ended here. One that
    is alone with its trouble goes on after a while, and speaks itself.
    """
    launch = launch_of()
    if launch is not None and launch.rank > 0:
        time.sleep(_TO_SPEAK)


# Waits for its standard input to close, which this process's end does too.
_KILLER = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    os.write(2, os.fsencode(f"adfs: {sys.argv[3]}\\n"))
    os.kill(int(sys.argv[2]), signal.SIGKILL)
"""


@contextlib.contextmanager
def killed_after(deadline: float, what: str) -> Iterator[None]:
    """Let this rank say that it waited for all ranks to do ``what``, and end, unless the block ends in time.

    A small child process does both. A thread could not: `MPI_Init` and `MPI_Finalize` keep the interpreter's
    lock. The launcher then ends the other ranks, which leave it to rank 0 if that is there.
    """
    launch = launch_of()
    rank = 0 if launch is None else launch.rank
    seconds = deadline if rank == 0 else deadline + _TO_SPEAK
    sentence = (
        f"rank {rank} waited {seconds:g} s for all ranks to {what} and gave up; "
        "see whether all of them were started, and which one stopped or ended"
    )
    words = ["-I", "-S", "-c", _KILLER, str(seconds), str(os.getpid()), sentence]
    with subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        try:
            yield
        finally:
            child.kill()


def load_mpi(deadline: float) -> Any:
    """Return mpi4py's ``MPI``; importing it starts MPI, for which all ranks have to come."""
    if "mpi4py.MPI" in sys.modules or not launched_by_mpi():
        from mpi4py import MPI

        return MPI
    with killed_after(deadline, "start MPI"):
        from mpi4py import MPI
    return MPI
