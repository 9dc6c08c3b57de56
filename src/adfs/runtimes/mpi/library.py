"""The few MPI functions that compiled code calls, by names of our own; each process looks up their addresses.

Only requests are handed over, as the addresses of their handles: what a handle is differs between MPI
libraries, and nothing here depends on it.
"""

from __future__ import annotations

import ctypes
import functools

import llvmlite.binding
from numba import types

__all__ = ["MPI_START", "MPI_TEST", "MPI_WTIME", "YIELD", "library_is_loaded"]

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
