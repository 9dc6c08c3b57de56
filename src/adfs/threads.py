"""One BLAS thread for numbers that enter a run: the rounding of sums depends on the number of threads."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from functools import cache
from typing import Any


@cache
def _libraries() -> Any:
    """Find the loaded BLAS libraries, once."""
    # SciPy has a BLAS of its own, which must be loaded to be found. Few processes need these two imports.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _SingleThreaded(ContextDecorator):
    """Limits BLAS from the first entry to the last exit, whichever Python threads they come from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


#: ``with single_threaded:`` around a block, or ``@single_threaded`` on a function, that calls LAPACK or BLAS
single_threaded = _SingleThreaded()
