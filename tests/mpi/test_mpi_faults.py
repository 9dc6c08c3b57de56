"""Real faults: the others stop in time, each with one sentence; what was saved can be resumed, same bits."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from mpi_cases import Case, stamp
from mpi_launch import Launched, run_cases

pytestmark = pytest.mark.mpi

DEADLINE = 3.0
# Long enough to be interrupted, short enough to be finished afterwards.
CASE = Case(passes=4000.0)


def entry(
    folder: Path, *, resume: bool = False, fault: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    settings = {"deadline": DEADLINE, "checkpoint": str(folder), "checkpoint_every": 0.0, "resume": resume}
    return {"name": "a", "case": CASE.plain(), "more": settings | more} | ({"fault": fault} if fault else {})


@pytest.fixture(scope="module")
def expected() -> str:
    return stamp(CASE.simulate())


def manifest_names_files_that_exist(folder: Path, ranks: int) -> None:
    from adfs.runtimes.container import read_container

    header, _ = read_container(folder / "manifest", "checkpoint-set")
    for rank in range(ranks):
        name = f"rank-{rank:05d}-of-{ranks:05d}.{header['generation']:08d}.checkpoint"
        read_container(folder / name, "checkpoint")
    assert not (folder / "finished.json").exists()


def each_survivor_says_one_sentence(result: Launched, survivors: set[int]) -> None:
    speakers = [int(re.match(r"adfs: rank (\d+)", line).group(1)) for line in result.sentences]  # type: ignore[union-attr]
    assert len(speakers) == len(set(speakers)), result.sentences
    assert survivors <= set(speakers), result.err[-3000:]


@pytest.mark.parametrize("kind", ["kill", "stop", "raise", "disk"])
def test_the_others_stop_and_the_run_can_be_resumed(kind: str, expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    fault = {"rank": 1, "kind": kind, "position": 5000.0}
    result = run_cases(3, [entry(folder, fault=fault)], tmp_path, timeout=90.0)
    assert result.code != 0
    assert "RESULT" not in result.out
    # A rank that is stopped may say that it was told to stop when it is woken; one that is killed says
    # nothing.
    each_survivor_says_one_sentence(result, {0, 2} if kind in ("kill", "stop") else {0, 1, 2})
    words = " ".join(result.sentences)
    if kind == "raise":
        assert "rank 1 failed with ZeroDivisionError" in words
    elif kind == "disk":
        assert "rank 1 cannot write" in words
        assert "the checkpoint before is intact" in words
    else:
        assert re.search(
            r"rank [02] (waited 3 s|was told to stop while waiting) for rank 1 at the event of time", words
        )
    manifest_names_files_that_exist(folder, 3)

    again = run_cases(3, [entry(folder, resume=True)], tmp_path, timeout=90.0)
    assert again.results["a"]["stamp"] == expected
    assert json.loads((folder / "finished.json").read_text())["outcome"] == "out of budget"


def killed_at_random(times: int, expected: str, tmp_path: Path, seed: int) -> None:
    """Kill a random rank at a random moment, resume, kill again …, and finish."""
    folder, draw = tmp_path / "checkpoint", random.Random(seed)
    for _ in range(times):
        fault = {"rank": draw.randrange(3), "kind": "kill", "delay": draw.uniform(0.0, 0.5)}
        result = run_cases(3, [entry(folder, resume=True, fault=fault)], tmp_path, timeout=90.0)
        if result.code == 0:  # done before it was killed: start again
            assert result.results["a"]["stamp"] == expected
            for path in folder.iterdir():
                path.unlink()
    result = run_cases(3, [entry(folder, resume=True)], tmp_path, timeout=90.0)
    assert result.results["a"]["stamp"] == expected


def test_killed_at_random_and_resumed(expected: str, tmp_path: Path) -> None:
    killed_at_random(5, expected, tmp_path, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_often(seed: int, expected: str, tmp_path: Path) -> None:
    killed_at_random(10, expected, tmp_path, seed=100 + seed)


def test_a_damaged_or_foreign_checkpoint_is_refused(expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    fault = {"rank": 1, "kind": "raise", "position": 5000.0}
    run_cases(2, [entry(folder, fault=fault)], tmp_path, timeout=90.0)
    (part,) = folder.glob("rank-00001-*")
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    result = run_cases(2, [entry(folder, resume=True)], tmp_path, timeout=60.0)
    assert result.code != 0
    (sentence,) = result.sentences
    assert re.search(r"rank 1: .*rank-00001.* is damaged or was cut short", sentence)

    part.write_bytes(whole)
    result = run_cases(3, [entry(folder, resume=True)], tmp_path, timeout=60.0)
    (sentence,) = result.sentences
    assert "was written by 2 ranks and there are 3" in sentence
    result = run_cases(2, [entry(folder, resume=True, seed=8)], tmp_path, timeout=60.0)
    (sentence,) = result.sentences
    assert "is a checkpoint of another run" in sentence

    result = run_cases(2, [entry(folder, resume=True)], tmp_path, timeout=60.0)
    assert result.results["a"]["stamp"] == expected
