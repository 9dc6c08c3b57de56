"""The decisive test: the simulator, 2 ranks, 4 ranks and one rank a node give the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adfs.algorithms import METHODS
from mpi_cases import Case, stamp
from mpi_launch import run_cases

pytestmark = pytest.mark.mpi


def loss_of(method: str) -> str:
    return "logistic" if METHODS[method].needs_smooth else "hinge"


def all_cases() -> dict[str, dict[str, Any]]:
    """Return every method of several nodes, both schedules, dense and CSR; then what else may differ."""
    cases: dict[str, dict[str, Any]] = {}
    for name, method in METHODS.items():
        if method.kind == "single":
            continue
        for schedule in ("iid", "poisson") if method.kind == "events" else ("iid",):
            for sparse in (False, True):
                case = Case(method=name, schedule=schedule, sparse=sparse, loss=loss_of(name))
                cases[f"{name} {schedule} {'csr' if sparse else 'dense'}"] = {"case": case}
    measures = ("gap", "objective", "consensus")
    cases["measures"] = {"case": Case(record=measures, read="v", parameters="paper", loss="squared")}
    cases["another graph"] = {
        "case": Case(network="erdos-renyi:17,0.3", schedule="poisson", width=40, sparse=True)
    }
    cases["dense and sparse"] = {"case": Case(sparse="mixed", width=40)}
    cases["far ahead"] = {"case": Case(), "more": {"tau": 5000.0}}
    cases["shards in a list"] = {"case": Case(rows=20), "shards": "list"}
    cases["a problem a rank"] = {"case": Case(rows=20, schedule="poisson"), "shards": "problem"}
    cases["terms of one's own"] = {"case": Case(max_passes=2.0), "shards": "general"}
    cases["python"] = {"case": Case(schedule="poisson"), "engine": "python"}
    cases["python, iid"] = {"case": Case(network="complete:9"), "engine": "python"}
    for name, choice in (("adfs", "adaptive"), ("adfs-block", "adaptive-safe")):
        case = Case(method=name, parameters=choice, rows=40, width=1)
        cases[f"{name} {choice}"] = {"case": case, "more": {"tau": 30.0}}
    lost = Case(schedule="poisson", network="path:9", lost=0.3)
    cases["lost"] = {"case": lost}
    changing = replace(lost, method="dadao", also="star:9", max_passes=30.0)
    cases["lost, on a network that changes"] = {"case": changing}
    cases["lost, python"] = {"case": changing, "engine": "python"}
    cases["one column"] = {"case": Case(width=1, loss="squared", method="adfs-block")}
    return cases


CASES = all_cases()
# With two ranks each schedule comes with one kind of rows; dense and sparse rows have the same bits anyway.
LEFT_OUT = [name for name in CASES if name.endswith((" iid csr", " poisson dense"))]
QUICK = {name: case for name, case in CASES.items() if name not in LEFT_OUT}


def simulated(cases: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        name: stamp(entry["case"].simulate(general=entry.get("shards") == "general", **entry.get("more", {})))
        for name, entry in cases.items()
    }


def entries(cases: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name} | entry | {"case": entry["case"].plain()} for name, entry in cases.items()]


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [(2, QUICK), *(pytest.param(ranks, CASES, marks=pytest.mark.soak) for ranks in (4, 9))],
    ids=["2", "4", "9"],
)
def test_mpi_ranks_give_the_bits_of_the_simulator(
    ranks: int, cases: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    found = run_cases(ranks, entries(cases), tmp_path, timeout=400.0).results
    stamps = {name: result["stamp"] for name, result in found.items()}
    assert stamps == simulated(cases)
    for result in found.values():
        assert len(result["ranks"]) == ranks
        assert sum(len(rank["nodes"]) for rank in result["ranks"]) in (9, 17)


def test_stamp_notices_a_bit() -> None:
    run = Case(max_passes=1.0).simulate()
    before = stamp(run)
    run.theta[0, 0] *= 1.0 + 2.3e-16
    assert stamp(run) != before


def test_mpi_ranks_count_work_and_exchanges_as_the_simulator_does(tmp_path: Path) -> None:
    case = Case(max_passes=5.0, schedule="poisson")
    found = run_cases(3, [{"name": "a", "case": case.plain()}], tmp_path, timeout=120.0).results["a"]
    frame = case.simulate().frame
    assert sum(rank["computations"] for rank in found["ranks"]) == frame["computations"].iloc[-1]
    assert sum(rank["messages"] for rank in found["ranks"]) == frame["messages"].iloc[-1]
    assert sum(rank["bytes"] for rank in found["ranks"]) == frame["bytes"].iloc[-1]
    across = sum(count for *_, count in found["edges"])
    assert 0 < 2 * across < frame["messages"].iloc[-1]
    for rank in found["ranks"]:
        parts = rank["computing"] + rank["communicating"] + rank["waiting"] + rank["evaluating"]
        assert 0.0 < parts <= rank["total"]


@pytest.mark.soak
def test_mpi_ranks_one_a_node_give_the_same_bits_on_the_grid_of_the_paper(tmp_path: Path) -> None:
    case = Case(network="grid:7x7", rows=300, width=20, max_passes=30.0)
    result = run_cases(
        49, [{"name": "a", "case": case.plain(), "more": {"deadline": 600.0}}], tmp_path, timeout=3000.0
    )
    assert result.results["a"]["stamp"] == stamp(case.simulate())
