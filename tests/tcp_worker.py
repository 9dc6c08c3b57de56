"""The program of each peer over TCP: a task with its arguments; prints what it found, or raises."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import adfs
from adfs.errors import AdfsError
from adfs.runtimes.tcp import TcpPeers
from mpi_cases import Case, stamp
from mpi_estimators import compare


def runs(peers: TcpPeers, cases: list[dict[str, Any]]) -> list[str]:
    """Return the stamps of cases, one after another; each meets and parts."""
    return [stamp(Case.of(case).run_on(peers)) for case in cases]


def estimators(peers: TcpPeers, names: list[str] | None = None) -> dict[str, bool]:
    """Fit estimators, and compare them with fits in one process."""
    return compare(peers) if names is None else compare(peers, tuple(names))


def long_run(peers: TcpPeers, folder: str, case: dict[str, Any]) -> str:
    """Run a case with checkpoints; say when it begins, so that a test can end a process."""
    print("BEGUN", flush=True)
    more = {"checkpoint": folder, "resume": True, "checkpoint_every": 0.05}
    return stamp(Case.of(case).run_on(peers, **more))


TASKS: dict[str, Any] = {function.__name__: function for function in (runs, estimators, long_run)}


def main(task: str, settings: dict[str, Any], arguments: dict[str, Any]) -> int:
    number = settings.pop("listener", None)
    listener = None if number is None else socket.socket(fileno=number)
    try:
        peers = adfs.TcpPeers(**settings, listener=listener)
        print("RESULT " + json.dumps(TASKS[task](peers, **arguments)), flush=True)
    except AdfsError as error:
        print(f"adfs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
