"""What a rank may do instead of starting: come late or never, leave, be paused, or take long to read."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import adfs
from mpi_cases import Case, stamp

DEADLINE = 3.0


def main(kind: str) -> None:
    from mpi4py import MPI

    comm, case = MPI.COMM_WORLD, Case()
    guilty = comm.Get_rank() == 2
    if guilty and kind == "late":
        time.sleep(100.0)
    if guilty and kind == "gone":
        return
    if guilty and kind == "paused":
        os.kill(os.getpid(), signal.SIGSTOP)

    def shard(node: int) -> Any:
        if guilty and kind == "leaves":
            sys.exit(0)
        if guilty and kind == "paused while reading":
            os.kill(os.getpid(), signal.SIGSTOP)
        if guilty and kind == "reads long":
            time.sleep(0.8 * DEADLINE)  # for each of its nodes
        return case.shard(node)

    settings = {"loss": case.loss, "sigma": case.sigma(), "gather": True, "deadline": DEADLINE}
    run = adfs.fit_mpi(comm, shard, case.network, **settings, **case.options())
    if comm.Get_rank() == 0:
        print(f'RESULT {{"stamp": "{stamp(run)}"}}', flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
