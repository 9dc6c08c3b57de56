"""Real faults: the others stop in time, each with one sentence; what was saved can be resumed, same bits."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import adfs
from adfs.runtimes.result import read_container
from mpi_cases import Case, stamp
from mpi_launch import Launched, launch, run_cases

pytestmark = pytest.mark.mpi

DEADLINE = 3.0
# Long enough to be interrupted, short enough to be finished afterwards.
CASE = Case(max_passes=1500.0)
KINDS = ("kill", "stop", "raise", "disk")


def entry(
    folder: Path, *, resume: bool = True, fault: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    settings = {"deadline": DEADLINE, "checkpoint": str(folder), "checkpoint_every": 0.0, "resume": resume}
    found = {"name": "a", "case": CASE.plain(), "more": settings | more}
    return found | ({"fault": fault} if fault else {})


@pytest.fixture(scope="module")
def run() -> adfs.Run:
    return CASE.simulate()


@pytest.fixture(scope="module")
def expected(run: adfs.Run) -> str:
    return stamp(run)


def position_saved(folder: Path, ranks: int) -> float:
    """Return where the last complete set of checkpoints is, after looking at every file of it."""
    header, _ = read_container(folder / "manifest", "checkpoint-set")
    for rank in range(ranks):
        name = f"rank-{rank:05d}-of-{ranks:05d}.{header['generation']:08d}.checkpoint"
        assert read_container(folder / name, "checkpoint")[0]["position"] == header["position"]
    return float(header["position"])


def speakers_of(result: Launched) -> set[int]:
    """Return which ranks said a sentence, after checking that none said two."""
    speakers = [int(line.split()[2].rstrip(":")) for line in result.sentences]
    assert len(speakers) == len(set(speakers)), result.sentences
    return set(speakers)


def test_mpi_ranks_stop_after_each_fault_of_one_and_the_run_goes_on(
    run: adfs.Run, expected: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    saved, end = 0.0, float(run.frame["position"].iloc[-1])
    spoke: set[int] = set()
    for kind in KINDS:
        fault = {"rank": 1, "kind": kind, "position": saved + 0.2 * (end - saved)}
        result = run_cases(3, [entry(folder, fault=fault)], tmp_path, timeout=90.0)
        if kind == "disk" and result.code == 0:
            # Done before the next checkpoint was due: only the last one failed, and the result is kept.
            assert result.results["a"]["stamp"] == expected
            assert "the last checkpoint could not be written" in result.err
            continue
        assert result.code != 0, kind
        assert "RESULT" not in result.out
        # A stopped rank says that it was told to stop when it is woken; a killed one says nothing. Once one
        # has ended, Open MPI leaves the others a fifth of a second: too little for all on a busy machine.
        speakers = speakers_of(result)
        assert speakers & ({0, 2} if kind in ("kill", "stop") else {0, 1, 2}), result.err[-3000:]
        spoke |= speakers
        words = " ".join(result.sentences)
        if kind == "raise":
            assert "rank 1 failed with ZeroDivisionError: a defect of the test" in words
        elif kind == "disk":
            assert re.search(r"rank 0: rank 1 cannot write .* the checkpoint before is intact", words)
        else:
            waiting = r"rank [02] (waited 3 s|was told to stop while waiting) for ranks? [0-2, ]*1"
            assert re.search(waiting, words), words
            assert "at the event of time" in words
        if kind == "stop":
            assert result.seconds < DEADLINE + 60.0
        assert not (folder / "finished.json").exists()
        assert position_saved(folder, 3) >= saved
        saved = position_saved(folder, 3)

    assert spoke == {0, 1, 2}
    finished = run_cases(3, [entry(folder)], tmp_path, timeout=90.0)
    assert finished.results["a"]["stamp"] == expected
    # It did not converge, and does not look as if it had.
    assert json.loads((folder / "ended.json").read_text())["outcome"] == "out of budget"
    assert not (folder / "finished.json").exists()


def killed_at_random(times: int, expected: str, tmp_path: Path, seed: int) -> None:
    """Kill a random rank at a random moment, resume, kill again …, and finish."""
    folder, draw = tmp_path / "checkpoint", random.Random(seed)
    resumed = 0
    for _ in range(times):
        resumed += (folder / "manifest").exists() and position_saved(folder, 2) > 0.0
        fault = {"rank": draw.randrange(2), "kind": "kill", "delay": draw.uniform(0.0, 0.4)}
        result = run_cases(2, [entry(folder, fault=fault)], tmp_path, timeout=90.0)
        if result.code == 0:  # done before it was killed: start again
            assert result.results["a"]["stamp"] == expected
            for path in folder.iterdir():
                path.unlink()
    assert run_cases(2, [entry(folder)], tmp_path, timeout=90.0).results["a"]["stamp"] == expected
    assert resumed >= times // 3  # from somewhere on the way, not from the start each time


@pytest.mark.soak
def test_mpi_run_killed_at_random_resumes_with_the_same_bits(expected: str, tmp_path: Path) -> None:
    killed_at_random(3, expected, tmp_path, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_mpi_run_killed_at_random_often_resumes_with_the_same_bits(
    seed: int, expected: str, tmp_path: Path
) -> None:
    killed_at_random(10, expected, tmp_path, seed=100 + seed)


@pytest.mark.soak
def test_mpi_run_refuses_a_damaged_or_foreign_checkpoint(expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    fault = {"rank": 1, "kind": "raise", "position": 8000.0}
    run_cases(2, [entry(folder, fault=fault)], tmp_path, timeout=90.0)
    (part,) = folder.glob("rank-00001-*")
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    damaged = entry(folder) | {"name": "damaged", "refused": True}
    found = run_cases(2, [damaged], tmp_path, timeout=60.0).results
    assert re.search(r"rank 1: .*rank-00001.* is damaged or was cut short", found["damaged"]["refused"])

    part.write_bytes(whole)
    other = entry(folder, seed=8) | {"name": "other seed", "refused": True}
    found = run_cases(2, [other], tmp_path, timeout=60.0).results
    assert "is a checkpoint of another run" in found["other seed"]["refused"]
    more = entry(folder) | {"name": "more ranks", "refused": True}
    found = run_cases(3, [more], tmp_path, timeout=60.0).results
    assert "was written by 2 ranks and there are 3" in found["more ranks"]["refused"]
    assert run_cases(2, [entry(folder)], tmp_path, timeout=60.0).results["a"]["stamp"] == expected


PAUSED = """
import json, os, subprocess, sys
from mpi4py import MPI
import adfs
from adfs.runtimes.execution import Execution
from mpi_cases import Case
comm, case, original = MPI.COMM_WORLD, Case(), Execution.advance
def advance(self, *rest):
    if Execution.advance is advance:
        Execution.advance = original
        # Rank 0 is stopped for 4 s; rank 1, which waits for it, for 2 s of them.
        first, pause = ("0.2", "4") if comm.rank == 0 else ("1.2", "2")
        pid = os.getpid()
        words = f"sleep {first}; kill -STOP {pid}; sleep {pause}; kill -CONT {pid}"
        subprocess.Popen(["sh", "-c", words])
    return original(self, *rest)
Execution.advance = advance
settings = {"loss": case.loss, "sigma": case.sigma(), "method": sys.argv[1], "seconds": 6.0}
settings["max_passes"] = 1e12
run = adfs.fit_mpi(comm, case.shard, case.network, **settings)
if comm.rank == 0:
    print("RESULT " + json.dumps([rank["waiting"] for rank in run.details["ranks"]]))
"""


@pytest.mark.soak
@pytest.mark.parametrize("method", ["adfs", "extra"])
def test_process_times_do_not_count_an_own_pause_as_waiting(method: str) -> None:
    """Compiled exchanges and rounds."""
    result = launch(2, [sys.executable, "-c", PAUSED, method], timeout=90.0)
    other, paused = result.results
    assert paused - other < 3.0  # what both wait for a turn on a core is about the same
