"""`adfs fit` with a rank that stops, is killed or leaves: before MPI starts, or after the last event."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def break_down(kind: str) -> None:
    if kind == "leaves":
        os._exit(0)
    elif kind == "late":
        time.sleep(100.0)
    else:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[kind])


def broken(function: Callable[..., Any], kind: str, after: bool = False) -> Callable[..., Any]:
    """Return a function before or after which this rank breaks down."""

    def call(*given: Any, **named: Any) -> Any:
        found = function(*given, **named) if after else None
        break_down(kind)
        return found

    return call


def main(kind: str, guilty: str, where: str, arguments: list[str]) -> int:
    if os.environ["OMPI_COMM_WORLD_RANK"] == guilty:
        if where == "before imports":
            break_down(kind)
        from adfs.runtimes.execution import Execution
        from adfs.runtimes.mpi import faults

        if where == "after the last event":
            Execution.account = broken(Execution.account, kind)  # type: ignore[method-assign]
        elif where == "after the fit":
            from adfs.cli import fit_files

            fit_files._results = broken(fit_files._results, kind)
        elif where == "when ranks part":
            faults.Watch.restore_hooks = broken(faults.Watch.restore_hooks, kind)  # type: ignore[method-assign]
        elif where == "at the end of MPI":
            faults._end_mpi = broken(faults._end_mpi, kind)
    from adfs.cli.app import main

    return main(["fit", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4], sys.argv[4:]))
