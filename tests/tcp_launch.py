"""Launching peers over TCP on this machine: whatever happens, no test hangs and no process stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import adfs
from mpi_launch import environment

T = TypeVar("T")
WORKER = Path(__file__).with_name("tcp_worker.py")


@dataclass
class Ended:
    """How a process ended."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def result(self) -> Any:
        """Return what the worker printed."""
        lines = [line for line in self.out.splitlines() if line.startswith("RESULT ")]
        assert len(lines) == 1, f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return json.loads(lines[0].removeprefix("RESULT "))

    @property
    def sentence(self) -> str:
        """Return the last line of standard error."""
        return ([*self.err.splitlines(), ""])[-1 if self.err.endswith("\n") else 0] or self.err.splitlines()[
            -1
        ]


def listeners(count: int) -> list[socket.socket]:
    """Return sockets that listen at free ports of this machine."""
    found = []
    for _ in range(count):
        sock = socket.create_server(("127.0.0.1", 0))
        found.append(sock)
    return found


def addresses_of(sockets: Sequence[socket.socket]) -> list[str]:
    return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]


def free_addresses(count: int) -> list[str]:
    """Return addresses of consecutive ports at which nobody listens now.

    They are below the ports that the system gives to connections, one of which could be taken in between.
    """
    for first in range(20_000 + os.getpid() % 1_000 * 10, 32_000, count):
        try:
            with contextlib.ExitStack() as held:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        return [f"127.0.0.1:{port}" for port in range(first, first + count)]
    raise AssertionError("no free ports")


def launch_peers(
    size: int,
    task: str,
    arguments: dict[str, Any],
    *,
    timeout: float,
    meanwhile: Callable[[list[subprocess.Popen[str]], list[str]], None] | None = None,
    **settings: Any,
) -> list[Ended]:
    """Run a task of the worker in several processes that are peers; ``settings`` are those of `TcpPeers`.

    ``meanwhile`` gets the processes and their addresses once they are started.
    """
    sockets = listeners(size)
    addresses = addresses_of(sockets)
    commands = []
    for rank, sock in enumerate(sockets):
        given = {"addresses": addresses, "rank": rank, "listener": sock.fileno()} | settings
        commands.append([sys.executable, str(WORKER), task, json.dumps(given), json.dumps(arguments)])

    def act(processes: list[subprocess.Popen[str]]) -> None:
        for sock in sockets:
            sock.close()
        if meanwhile is not None:
            meanwhile(processes, addresses)

    return launch_all(commands, timeout=timeout, sockets=sockets, meanwhile=act)


def launch_all(
    commands: Sequence[Sequence[str]],
    *,
    timeout: float,
    sockets: Sequence[socket.socket] = (),
    meanwhile: Callable[[list[subprocess.Popen[str]]], None] | None = None,
    **options: Any,
) -> list[Ended]:
    """Run commands side by side; after the timeout all are killed, and the test fails."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        processes, streams = [], []
        for k, command in enumerate(commands):
            pair = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            fds = [sockets[k].fileno()] if sockets else []
            process = subprocess.Popen(
                command, stdout=pair[0], stderr=pair[1], env=environment(), pass_fds=fds, text=True, **options
            )
            stack.callback(_end, process)
            processes.append(process)
            streams.append(pair)
        if meanwhile is not None:
            meanwhile(processes)
        ended, seconds = [], [0.0] * len(processes)
        late = False
        while any(process.poll() is None for process in processes):
            for k, process in enumerate(processes):
                if process.poll() is not None and not seconds[k]:
                    seconds[k] = time.monotonic() - begun
            if time.monotonic() - begun > timeout:
                late = True
                for process in processes:
                    _end(process)
                break
            time.sleep(0.01)
        for process, pair, spent in zip(processes, streams, seconds, strict=True):
            texts = []
            for stream in pair:
                stream.seek(0)
                texts.append(stream.read())
            ended.append(Ended(process.returncode, *texts, spent or time.monotonic() - begun))
    if late:
        words = "\n".join(f"{one.code}\n{one.out[-1000:]}\n{one.err[-2000:]}" for one in ended)
        pytest.fail(f"{len(commands)} processes did not end within {timeout} s\n{words}")
    return ended


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait(10.0)


# ----------------------------------------------------------- peers in threads, and certificates


def on_peers(
    size: int, action: Callable[[adfs.TcpPeers], T], *, deadline: float = 20.0, **settings: Any
) -> list[T | BaseException]:
    """Do something in peers that are threads of this process; return each one's result, or its error."""
    sockets = listeners(size)
    addresses = addresses_of(sockets)
    found: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            peers = adfs.TcpPeers(addresses, rank, deadline=deadline, listener=sockets[rank], **settings)
            found[rank] = action(peers)
        except BaseException as error:  # noqa: BLE001  # it is returned
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
        assert not thread.is_alive(), f"a peer did not end: {found}"
    for sock in sockets:
        sock.close()
    return found


def certificates(folder: Path, names: Sequence[str], authority: str = "ca", days: int = 2) -> None:
    """Make an authority and certificates that it has signed, with the command ``openssl``."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl to make certificates")

    def run(*words: str) -> None:
        subprocess.run([program, *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    if not (folder / f"{authority}.pem").exists():
        run(
            "req",
            "-x509",
            *new,
            "-keyout",
            f"{authority}.key",
            "-out",
            f"{authority}.pem",
            "-subj",
            f"/CN={authority}",
        )
    for name in names:
        run("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        run("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem", "-days", str(days))


def tls_files(folder: Path, name: str = "{rank}", authority: str = "ca") -> dict[str, str]:
    return {
        "certificate": str(folder / f"{name}.pem"),
        "key": str(folder / f"{name}.key"),
        "authority": str(folder / f"{authority}.pem"),
    }
