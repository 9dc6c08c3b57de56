"""Two hosts: two network namespaces joined by a cable of their own; TCP only, and the cable can be cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpi_cases import Case, stamp
from mpi_launch import WORKER, environment, launch

pytestmark = pytest.mark.mpi

NETWORK = "10.177.42"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[tuple[list[str], list[str], str]]:
    """Yield what goes before mpiexec and after it, and the name of the second host's end of the cable."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("two network namespaces need the commands ip and unshare")
    number = os.getpid()
    spaces = [f"adfs-{number}-a", f"adfs-{number}-b"]
    cables = [f"ad{number}a", f"ad{number}b"]
    try:
        ip("netns", "add", spaces[0])
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"this machine does not permit network namespaces: {error}")
    try:
        ip("netns", "add", spaces[1])
        ip(
            "link",
            "add",
            cables[0],
            "netns",
            spaces[0],
            "type",
            "veth",
            "peer",
            "name",
            cables[1],
            "netns",
            spaces[1],
        )
        for place in (0, 1):
            ip("-n", spaces[place], "addr", "add", f"{NETWORK}.{place + 1}/24", "dev", cables[place])
            ip("-n", spaces[place], "link", "set", "lo", "up")
            ip("-n", spaces[place], "link", "set", cables[place], "up")
        # Instead of ssh: run the launcher's helper in the other namespace, under a name of its own.
        agent = tmp_path / "agent.sh"
        agent.write_text(
            f'#!/bin/sh\nshift\nexec ip netns exec {spaces[1]} unshare --uts sh -c "hostname adfs-b; $*"\n'
        )
        agent.chmod(0o755)
        options = ["--host", f"{NETWORK}.1:1,{NETWORK}.2:1", "--prtemca", "plm_ssh_agent", str(agent)]
        options += ["--prtemca", "oob_tcp_if_include", f"{NETWORK}.0/24", "--mca", "pml", "ob1"]
        options += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", f"{NETWORK}.0/24"]
        yield ["ip", "netns", "exec", spaces[0]], options, f"{spaces[1]} {cables[1]}"
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True, timeout=20)


def write(folder: Path, entry: dict[str, object]) -> str:
    path = folder / "cases.json"
    path.write_text(json.dumps([entry]))
    return str(path)


def test_mpi_run_on_two_hosts_has_the_bits_of_the_simulator(two_hosts, tmp_path: Path) -> None:
    prefix, options, _ = two_hosts
    case = Case(max_passes=20.0)
    path = write(tmp_path, {"name": "a", "case": case.plain()})
    result = launch(
        2,
        [sys.executable, str(WORKER), path],
        timeout=120.0,
        options=options,
        prefix=prefix,
        env=environment(),
    )
    found = result.results["a"]
    assert found["stamp"] == stamp(case.simulate())
    assert len({rank["host"] for rank in found["ranks"]}) == 2


def test_mpi_ranks_on_both_sides_end_when_the_link_is_cut(two_hosts, tmp_path: Path) -> None:
    prefix, options, second = two_hosts
    space, cable = second.split()
    folder = tmp_path / "checkpoint"
    case = Case(max_passes=1e6)
    more = {"deadline": 4.0, "checkpoint": str(folder), "checkpoint_every": 0.0}
    path = write(tmp_path, {"name": "a", "case": case.plain(), "more": more})
    cut_at = []

    def cut() -> None:
        """Cut the cable once there is a checkpoint."""
        for _ in range(900):
            if (folder / "manifest").exists():
                time.sleep(0.5)
                ip("-n", space, "link", "set", cable, "down")
                cut_at.append(time.monotonic())
                return
            time.sleep(0.1)

    cutter = threading.Thread(target=cut)
    cutter.start()
    result = launch(
        2,
        [sys.executable, str(WORKER), path],
        timeout=150.0,
        options=options,
        prefix=prefix,
        env=environment(),
        until_ranks_are_gone=True,
    )
    ended = time.monotonic()
    cutter.join()
    assert cut_at, result.err[-3000:]
    assert result.code != 0
    assert any("waited 4 s for rank" in line for line in result.sentences), result.err[-3000:]
    assert ended - cut_at[0] < 60.0
    assert (folder / "manifest").exists()
    assert not (folder / "finished.json").exists()
