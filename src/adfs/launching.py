"""How processes are started together: MPI launchers and their start within a deadline; lists of hosts."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adfs.errors import InputError

# The variables of the number of ranks and of the own rank, by launcher: Open MPI, MPICH and Intel MPI
# (Hydra), MVAPICH2, Cray PALS.
_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PALS_SIZE", "PALS_RANKID"),
)


class Launch(NamedTuple):
    """The number of processes that were launched together, and the number of this one among them."""

    size: int
    rank: int


def launch_of(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Read the launcher's variables; None where this process was not launched by one.

    Examples
    --------
    >>> launch_of({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"})
    Launch(size=4, rank=2)
    >>> launch_of({}) is None
    True
    """
    variables = os.environ if environment is None else environment
    candidates = [*_VARIABLES]
    # A Slurm batch script has SLURM_NTASKS too: only a step that srun started with PMIx or PMI2 counts.
    if any(name in variables for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD")):
        candidates += [("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"), ("SLURM_NTASKS", "SLURM_PROCID")]
    for size, rank in candidates:
        if variables.get(size, "").isdigit() and variables.get(rank, "").isdigit():
            return Launch(int(variables[size]), int(variables[rank]))
    return None


def launched_by_mpi(environment: Mapping[str, str] | None = None) -> bool:
    """Whether an MPI launcher started this process as one of several; it does not load MPI.

    Examples
    --------
    >>> launched_by_mpi({"PMI_SIZE": "4", "PMI_RANK": "0"})
    True
    >>> launched_by_mpi({"PMI_SIZE": "1", "PMI_RANK": "0"})
    False
    """
    launch = launch_of(environment)
    return launch is not None and launch.size > 1


class Hosts(NamedTuple):
    """The addresses of processes that are started by hand, in the order of ranks, and their TLS files."""

    addresses: list[str]
    tls: dict[str, str] | None = None


def read_hosts(path: Path) -> Hosts:
    """Read a TOML file of addresses and, if they use TLS, its files, whose names are relative to it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML: {error}") from None
    addresses, tls = given.pop("addresses", None), given.pop("tls", None)
    if given or not isinstance(addresses, list) or not isinstance(tls, dict | None):
        raise InputError(
            f'{path} holds addresses = ["host:port", …], one per process in the order of ranks, and maybe a '
            f"table [tls]{', not ' + ', '.join(given) if given else ''}"
        )
    if tls is not None:
        tls = {str(what): str(path.parent / str(name)) for what, name in tls.items()}
    return Hosts([str(address) for address in addresses], tls)


# Seconds that the other ranks wait for the error message of rank 0 before they print their own.
_RANK_0_FIRST = 10.0


def wait_for_rank_0() -> None:
    """Wait a while on every rank but 0, before it fails for a reason that probably all ranks have.

    The launcher ends all ranks as soon as one of them fails, so that only the message of rank 0 is printed. A
    rank that fails alone prints its own message after the wait.
    """
    launch = launch_of()
    if launch is not None and launch.rank > 0:
        time.sleep(_RANK_0_FIRST)


# A watchdog: it waits until its standard input is closed, which the end of its parent does too.
_WATCHDOG = """
import os, select, signal, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    os.write(2, os.fsencode(f"adfs: {sys.argv[3]}\\n"))
    os.kill(int(sys.argv[2]), signal.SIGKILL)
"""


@contextlib.contextmanager
def killed_after(deadline: float, what: str) -> Iterator[None]:
    """Kill this rank with a message when the block, in which all ranks have to do ``what``, takes too long.

    A small child process prints the message and kills. A thread could not: `MPI_Init` and `MPI_Finalize` hold
    the interpreter's lock. The launcher then ends the other ranks, which leave rank 0 the time to be first.
    """
    launch = launch_of()
    rank = 0 if launch is None else launch.rank
    seconds = deadline if rank == 0 else deadline + _RANK_0_FIRST
    sentence = (
        f"rank {rank} waited {seconds:g} s for all ranks to {what} and gave up; "
        "check whether all of them were started, and which one stopped or ended"
    )
    arguments = ["-I", "-S", "-c", _WATCHDOG, str(seconds), str(os.getpid()), sentence]
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        try:
            yield
        finally:
            child.kill()


def load_mpi(deadline: float) -> Any:
    """Return mpi4py's ``MPI``; its import starts MPI, which waits for all ranks."""
    with contextlib.ExitStack() as limits:
        if "mpi4py.MPI" not in sys.modules:
            _check_file_limit()
            if launched_by_mpi():
                limits.enter_context(killed_after(deadline, "start MPI"))
        from mpi4py import MPI
    # Launcher and library may belong to different MPI installations. Each process would then be the only rank
    # of its own world, and solve its shard as if it were all the data.
    launch = launch_of()
    if launch is not None and launch.size > 1 and MPI.COMM_WORLD.Get_size() == 1:
        wait_for_rank_0()
        sys.stderr.write(
            f"adfs: the launcher started {launch.size} processes but each one's MPI library sees itself "
            "alone: mpiexec and mpi4py belong to different MPI installations; use the mpiexec of mpi4py's "
            "own\n"
        )
        raise SystemExit(2)
    return MPI


def _check_file_limit() -> None:
    """Raise if the limit of file sizes is too low for MPI's shared memory: MPI would end silently."""
    limit, needed = resource.getrlimit(resource.RLIMIT_FSIZE)[0], 16 << 20
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise InputError(
            f"files may not be larger than {limit >> 10} kB here (ulimit -f), and MPI needs "
            f"{needed >> 10} kB for its shared memory: raise the limit"
        )
