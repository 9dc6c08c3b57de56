"""Real processes over TCP on this machine: the same bits as one process, plain and with TLS."""

from __future__ import annotations

import random
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from adfs.algorithms import METHODS
from mpi_cases import Case, stamp
from tcp_launch import certificates, launch_peers, tls_files


def all_cases() -> list[Case]:
    """Return every method of several nodes, both schedules, dense and sparse."""
    cases = []
    for name, method in METHODS.items():
        if method.kind == "single":
            continue
        loss = "logistic" if method.needs_smooth else "hinge"
        for schedule in ("iid", "poisson") if method.kind == "events" else ("iid",):
            cases += [Case(method=name, schedule=schedule, sparse=kind, loss=loss) for kind in (False, True)]
    return [*cases, Case(network="erdos-renyi:17,0.3", schedule="poisson", width=40, sparse="mixed")]


# The methods by the kinds of messages that they send: with neighbours as they go, in rounds, and sums.
FEW = [Case(method=name, max_passes=3.0) for name in ("adfs", "adfs-block", "newton", "lbfgs", "msda")]
FEW += [Case(method="ns-adfs", loss="hinge", max_passes=3.0), Case(network="complete:9", max_passes=2.0)]
FEW += [Case("dadao", schedule="poisson", network="path:9", also="star:9", lost=0.3)]
FITS = ("softmax", "logistic", "squares chosen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tls")
    certificates(found, ["0", "1", "2", "3"])
    return found


def settings(tls: bool, folder: Path) -> dict[str, Any]:
    return {"deadline": 60.0} | ({"tls": tls_files(folder)} if tls else {})


def check_runs(size: int, cases: list[Case], **given: Any) -> None:
    expected = [stamp(case.simulate()) for case in cases]
    arguments = {"cases": [case.plain() for case in cases]}
    for one in launch_peers(size, "runs", arguments, timeout=300.0, **given):
        wrong = [case for case, a, b in zip(cases, one.result, expected, strict=True) if a != b]
        assert not wrong, wrong


@pytest.mark.parametrize("tls", [False, True])
def test_two_peers_have_the_bits_of_one_process(tls: bool, folder: Path) -> None:
    check_runs(2, FEW, **settings(tls, folder))


def test_estimators_on_two_peers_have_the_bits_of_one_process() -> None:
    found = launch_peers(2, "estimators", {"names": FITS}, timeout=300.0, deadline=60.0)[0].result
    assert len(found) == 4
    assert all(found.values()), found


@pytest.mark.soak
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_peers_have_the_bits_of_one_process_for_every_method(size: int, tls: bool, folder: Path) -> None:
    check_runs(size, all_cases(), **settings(tls, folder))


@pytest.mark.soak
@pytest.mark.parametrize(("size", "tls"), [(2, True), (3, False), (4, True)])
def test_estimators_on_peers_have_the_bits_of_one_process(size: int, tls: bool, folder: Path) -> None:
    found = launch_peers(size, "estimators", {}, timeout=300.0, **settings(tls, folder))[0].result
    assert len(found) == 15
    assert all(found.values()), found


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(30))
def test_run_survives_a_kill_at_any_moment(moment: int, tmp_path: Path, folder: Path) -> None:
    """The others say one sentence in time; started again, the run ends with the same bits."""
    case = Case(max_passes=3000.0, rows=40)
    rng = random.Random(moment)
    size, tls = rng.choice([2, 3, 4]), rng.random() < 0.5
    guilty, delay = rng.randrange(size), 4.0 * rng.random()
    arguments = {"folder": str(tmp_path / "run"), "case": case.plain()}

    def kill(processes: list[Popen[str]], addresses: list[str]) -> None:
        time.sleep(1.0 + delay)
        processes[guilty].kill()

    ended = launch_peers(
        size,
        "long_run",
        arguments,
        timeout=120.0,
        meanwhile=kill,
        **settings(tls, folder) | {"deadline": 10.0},
    )
    for rank, one in enumerate(ended):
        if rank != guilty and one.code != 0:  # it may have ended before
            assert one.code == 2, one.err
            assert [line[:6] for line in one.err.splitlines()] == ["adfs: "], one.err
            # Before all have met, a rank may wait for one that has ended because of the killed one.
            assert f"rank {guilty}" in one.sentence or "at the start" in one.sentence, one.err
    again = launch_peers(size, "long_run", arguments, timeout=120.0, **settings(tls, folder))
    expected = stamp(case.simulate())
    assert [one.result for one in again] == [expected] * size
