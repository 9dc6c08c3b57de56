"""What each rank runs in the tests: a list of cases in one launch; rank 0 prints what came out, as JSON.

An entry may ask for a fault: a rank that kills, stops or ends itself, or cannot write, from some position on.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import adfs
from adfs.runtimes.execution import Execution
from adfs.runtimes.mpi import ranks
from mpi_cases import Case, stamp


def break_down(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "raise":
        raise ZeroDivisionError("a defect of the test")
    elif kind == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


def plan(fault: dict[str, Any]) -> None:
    """Break down at a position, or some seconds after the run began."""
    original = Execution.advance
    begun = threading.Event()

    def advance(self: Execution, stop: float, seconds: float) -> None:
        if not begun.is_set():
            begun.set()
            print("BEGUN", flush=True)
            if "delay" in fault:
                timer = threading.Timer(fault["delay"], break_down, (fault["kind"],))
                timer.daemon = True
                timer.start()
        # At the stretch that passes the position: stretches are as long as the machine is quick, and one that
        # begins beyond it may never come.
        if min(stop, self.position + self.slice) >= fault.get("position", float("inf")):
            break_down(fault["kind"])
        original(self, stop, seconds)

    Execution.advance = advance  # type: ignore[method-assign]


def shards_of(case: Case, entry: dict[str, Any], comm: Any) -> Any:
    """Return the case's data as this entry wants to hand it over."""
    rank, size, n = comm.Get_rank(), comm.Get_size(), case.n_nodes()
    if entry.get("shards") == "list":  # numbered by ranks, unequally many
        bounds = [0, *(1 + (r + 1) * (n - 1) // size for r in range(size))]
        return [case.shard(node) for node in range(bounds[rank], bounds[rank + 1])]
    mine = list(range(rank, n, size))
    if entry.get("shards") == "general":
        return case.general(mine)
    if entry.get("shards") == "problem":
        return adfs.Problem.from_shards([case.shard(node) for node in mine], case.loss, case.sigma()[mine])
    return case.shard


def main(path: str) -> None:
    from mpi4py import MPI  # importing it starts MPI: never in the process that collects tests

    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    loaded = ranks.library_is_loaded
    found = {}
    for entry in json.loads(Path(path).read_text()):
        case = Case.of(entry["case"])
        fault = entry.get("fault")
        if fault and fault["rank"] == rank:
            plan(fault)
        more = entry.get("more", {}) | entry.get("of_rank", {}).get(str(rank), {})
        if entry.get("shards") in ("problem", "general"):
            more["nodes"] = list(range(rank, case.n_nodes(), comm.Get_size()))
        ranks.library_is_loaded = (lambda: False) if entry.get("engine") == "python" else loaded
        settings = {"loss": case.loss, "sigma": case.sigma(), "gather": True} | case.options() | more
        try:
            run = adfs.fit_mpi(comm, shards_of(case, entry, comm), case.links(), **settings)
        except adfs.InputError as error:
            if not entry.get("refused"):
                raise
            found[entry["name"]] = {"refused": str(error)}
            continue
        found[entry["name"]] = {
            "stamp": stamp(run),
            "gap": run.gap,
            "outcome": str(run.outcome),
            "ranks": run.details["ranks"],
            "edges": run.details["edges"],
        }
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
