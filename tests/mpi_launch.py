"""Launching ranks with a hard deadline: whatever happens, no test hangs and no process stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("mpi_worker.py")


def mpiexec() -> str:
    """Return the mpiexec beside this Python, or any other; without one the test is skipped."""
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec: pip install '.[mpi]'")
    return found


def environment(**more: str) -> dict[str, str]:
    return (
        {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))
        }
        | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        | more
    )


@dataclass
class Launched:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def results(self) -> dict[str, Any]:
        """Return what rank 0 printed."""
        lines = [line for line in self.out.splitlines() if line.startswith("RESULT ")]
        assert len(lines) == 1, f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
        return found

    @property
    def sentences(self) -> list[str]:
        """Return what our ranks said, without what the launcher said."""
        return [line for line in self.err.splitlines() if line.startswith("adfs: ")]


def launch(
    ranks: int,
    arguments: Sequence[str],
    *,
    timeout: float,
    options: Sequence[str] = ("--oversubscribe",),
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    until_ranks_are_gone: bool = False,
) -> Launched:
    """Run a program on some ranks; after the timeout everything it started is killed, and the test fails."""
    command = [*prefix, mpiexec(), "-n", str(ranks), *options, *arguments]
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    begun = time.monotonic()
    # Files rather than pipes: a helper that stays behind on another host would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env=(environment() if env is None else env) | {_MARK: mark},
            start_new_session=True,
        )
        code: int | None = None
        seen, rank = False, os.fsencode(sys.executable)
        while code is None and time.monotonic() - begun < timeout:
            try:
                code = process.wait(0.5)
            except subprocess.TimeoutExpired:
                # A launcher may wait for ever for a host that it cannot reach; that is not ours to end.
                alive = until_ranks_are_gone and any(words.startswith(rank) for _, words in marked(mark))
                if seen and not alive:
                    kill_marked(mark)
                    code = process.wait(10.0)
                seen = seen or alive
        seconds = time.monotonic() - begun
        kill_marked(mark)
        process.wait(10.0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
    if code is None:
        pytest.fail(f"{ranks} ranks did not end within {timeout} s\n{texts[0][-2000:]}\n{texts[1][-4000:]}")
    return Launched(code, *texts, seconds)


_MARK = "ADFS_TEST_LAUNCH"


def marked(mark: str) -> list[tuple[int, bytes]]:
    """List what a launch has started, wherever their parents went: process and command line."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append((int(path.name), (path / "cmdline").read_bytes()))
        except OSError:  # gone, or not ours
            continue
    return found


def kill_marked(mark: str) -> None:
    """Kill what a launch has left."""
    for process, _ in marked(mark):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def run_cases(ranks: int, entries: list[dict[str, Any]], folder: Path, *, timeout: float) -> Launched:
    """Run the worker on a list of entries."""
    path = folder / f"cases-{time.monotonic_ns()}.json"
    path.write_text(json.dumps(entries))
    return launch(ranks, [sys.executable, str(WORKER), str(path)], timeout=timeout)
