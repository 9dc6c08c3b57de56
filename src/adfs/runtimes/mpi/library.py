"""The few MPI functions that compiled code calls, by names of our own; each process looks up their addresses.

Only requests are handed over, as the addresses of their handles: what a handle is differs between MPI
libraries, and nothing here depends on it.
"""

from __future__ import annotations

import ctypes
import functools

import llvmlite.binding
from numba import types

from adfs.errors import InputError

__all__ = ["MPI_START", "MPI_TEST", "MPI_WTIME", "YIELD", "check_file_limit", "library_is_loaded"]

#: ``start(request)``, ``test(request, flag, status)``, ``wtime()`` and ``sched_yield()``; addresses are
#: integers.
MPI_START = types.ExternalFunction("adfs_mpi_start", types.int32(types.intp))
MPI_TEST = types.ExternalFunction("adfs_mpi_test", types.int32(types.intp, types.intp, types.intp))
MPI_WTIME = types.ExternalFunction("adfs_mpi_wtime", types.float64())
YIELD = types.ExternalFunction("adfs_yield", types.int32())

_NAMES = {"adfs_mpi_start": "MPI_Start", "adfs_mpi_test": "MPI_Test", "adfs_mpi_wtime": "MPI_Wtime"}


@functools.cache
def library_is_loaded() -> bool:
    """Make the functions known to compiled code; False where they are not found (then mpi4py calls them)."""
    from mpi4py import MPI

    try:
        library = ctypes.CDLL(MPI.__file__)
        found = {ours: getattr(library, theirs) for ours, theirs in _NAMES.items()}
        found["adfs_yield"] = ctypes.CDLL(None).sched_yield
    except (OSError, AttributeError, TypeError):
        return False
    for name, function in found.items():
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address is None:
            return False
        llvmlite.binding.add_symbol(name, address)
    return True


# What an MPI library writes for its shared memory, with some room.
_LEAST_FILE_BYTES = 16 << 20


def check_file_limit() -> None:
    """Raise where files may not be as large as MPI's shared memory: the library would die without a word."""
    try:
        import resource
    except ImportError:  # no limits where there is no such module
        return
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST_FILE_BYTES:
        raise InputError(
            f"files may not be larger than {limit >> 10} kB here (ulimit -f), and MPI needs "
            f"{_LEAST_FILE_BYTES >> 10} kB for its shared memory: raise the limit"
        )
