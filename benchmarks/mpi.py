"""What MPI costs: an exchange beyond its messages, a local step beside another rank, the speed-up of two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.algorithms.base import EventProcess
from adfs.runtimes.certificates import AllNodes
from adfs.runtimes.cluster import Placement
from adfs.runtimes.execution import Execution, ProcessTimes
from adfs.runtimes.joint_problem import place
from adfs.runtimes.mpi import MpiRanks
from adfs.runtimes.timing import message_seconds
from adfs.runtimes.waiting import WaitingCluster
from adfs.schedule import Events
from benchmarks.measure import Row, write_table

REPEATS = 40


def own_problem(nodes: np.ndarray, rows: int, width: int) -> adfs.Problem:
    shards = []
    for node in nodes:
        rng = np.random.default_rng(int(node))
        X = rng.standard_normal((rows, width)) / np.sqrt(width)
        shards.append((X, np.where(X[:, 0] + 0.1 * rng.standard_normal(rows) > 0.0, 1.0, -1.0)))
    return adfs.Problem.from_shards(shards, "logistic", 0.01 * rows)


def whole_parameters(network: adfs.Network, rows: int, width: int, tau: float) -> Any:
    problem = own_problem(np.arange(network.n_nodes), rows, width)
    return METHODS["adfs"].parameters(problem, network, tau=tau)


def time_exchange(ranks: WaitingCluster, width: int, repeats: int = REPEATS) -> tuple[float, float]:
    """Return the seconds of an exchange of the runtime and of net-bench, taking turns."""
    network = adfs.Network("path:2")
    placement = place(network, 2)
    parameters = whole_parameters(network, 50, width, 1.0)
    block = placement.block(ranks.rank)
    process = METHODS["adfs"].start(
        Setting(own_problem(block, 50, width), network, parameters, 0, "iid", block)
    )
    assert isinstance(process, EventProcess)
    exchange = ranks.events(process, placement, ProcessTimes())
    exchange.compile()
    ours, plain, at = np.inf, np.inf, 0
    count = 500
    for _ in range(repeats):
        moments = np.arange(at + 1, at + count + 1).astype(np.float64)
        at += count
        events = Events(moments, np.full(count, 2, dtype=np.int32), np.full(count, -1, dtype=np.int32))
        ranks.allgather(None)
        begun = time.perf_counter()
        exchange.execute(events)
        ours = min(ours, (time.perf_counter() - begun) / count)
        if _ % 8 == 0:
            plain = min(plain, message_seconds(ranks, (0, 1), width))
    exchange.links.close()
    return ours, plain


def execution_of(
    ranks: MpiRanks, placement: Placement, network: adfs.Network, parameters: Any, sizes: tuple[int, int]
) -> Execution:
    block = placement.block(ranks.rank)
    problem = own_problem(block, *sizes)
    setting = Setting(problem, network, parameters, 0, "iid", block)
    nodes = AllNodes(ranks, placement, problem)
    execution = Execution(METHODS["adfs"].start(setting), nodes)
    execution.compile(METHODS["adfs"], setting)
    return execution


def alone(block: np.ndarray, network: adfs.Network, parameters: Any, sizes: tuple[int, int]) -> EventProcess:
    """Return a simulator of some nodes, none of whose edges leads elsewhere."""
    inside = np.isin(network.edges, block).all(axis=1)
    numbers = {int(node): place for place, node in enumerate(block)}
    part = adfs.Network([(numbers[int(a)], numbers[int(b)]) for a, b in network.edges[inside]])
    problem = own_problem(block, *sizes)
    process = METHODS["adfs"].start(
        Setting(problem, part, METHODS["adfs"].parameters(problem, part, tau=50.0))
    )
    assert isinstance(process, EventProcess)
    return process


def steps(process: EventProcess, events: float) -> float:
    """Return the seconds a local step of a simulator takes, its schedule included."""
    begun, count = time.perf_counter(), 0
    for end, window in process.schedule.windows(process.position, process.position + events):
        process.run(window, 0, window.time.size)
        count += int(np.count_nonzero(window.sample >= 0))
        process.position = end
    return (time.perf_counter() - begun) / count


def worker() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with MpiRanks(comm, deadline=120.0) as ranks, MpiRanks(MPI.COMM_SELF, deadline=120.0) as lone:
        found = measure(ranks, lone)
        if ranks.rank == 0:
            print("RESULT " + json.dumps(found), flush=True)


def measure(ranks: MpiRanks, lone: MpiRanks) -> dict[str, Any]:
    """Return what two ranks measured, taking turns."""
    found: dict[str, Any] = {}
    for width in (10, 1000):
        found[f"exchange {width}"] = time_exchange(ranks, width)
    sizes = (4000, 100)
    network = adfs.Network("path:8")
    parameters = whole_parameters(network, *sizes, tau=50.0)
    placement = place(network, 2)
    block = placement.block(ranks.rank)
    apart = alone(block, network, parameters, sizes)
    steps(apart, 1000.0)
    driver = execution_of(ranks, placement, network, parameters, sizes)
    everything = Placement(np.zeros(8, dtype=np.int64), network.edges, 1)
    single = execution_of(lone, everything, network, parameters, sizes) if ranks.rank == 0 else None
    window = 40_000.0
    rounds: dict[str, list[float]] = {
        name: [] for name in ("alone", "side by side", "mpi step", "one rank", "two ranks")
    }

    def all_begin() -> None:
        ranks.allgather(None)

    for _ in range(REPEATS):
        all_begin()
        if ranks.rank == 0:
            rounds["alone"].append(steps(apart, window / 2))
        all_begin()
        both = max(ranks.allgather(steps(apart, window / 2)))
        rounds["side by side"].append(both)
        all_begin()
        times, done = driver.times, driver.process.work.computations
        elsewhere = times.waiting + times.communicating
        begun = time.perf_counter()
        driver.slice = window  # in one slice
        driver.advance(driver.position + window, np.inf)
        took = time.perf_counter() - begun
        local = took - (times.waiting + times.communicating - elsewhere)
        mine = np.array([took, local / (driver.process.work.computations - done)])
        parts = ranks.allgather(mine)
        rounds["two ranks"].append(max(part[0] for part in parts))
        rounds["mpi step"].append(max(part[1] for part in parts))
        all_begin()
        if single is not None:
            begun = time.perf_counter()
            single.slice = window
            single.advance(single.position + window, np.inf)
            rounds["one rank"].append(time.perf_counter() - begun)
    assert driver.exchange is not None
    driver.exchange.links.close()
    return found | rounds


def main() -> str:
    """Launch two ranks on this module, and write the table."""
    launcher = Path(sys.executable).with_name("mpiexec")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(launcher), "-n", "2", sys.executable, "-m", "benchmarks.mpi", "worker"]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, timeout=900
    ).stdout
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    rows = []
    for width in (10, 1000):
        ours, plain = (1e6 * value for value in found[f"exchange {width}"])
        beyond = Row(
            f"exchange at d = {width}, beyond its messages", ours - plain, "µs", f"net-bench {plain:.2f} µs"
        )
        rows.append(beyond if width != 10 else Row(*_fields(beyond), target=5.0))
    times = {
        name: np.array(found[name]) for name in ("alone", "side by side", "mpi step", "one rank", "two ranks")
    }
    ratio = float(np.median(times["mpi step"] / times["side by side"]))
    step = 1e9 * float(np.median(times["mpi step"]))
    rows.append(Row("local step, two ranks", step, "ns", "two simulators side by side", ratio, 1.15))
    possible = float(np.median(2.0 * times["alone"] / times["side by side"]))
    speed_up = float(np.median(times["one rank"] / times["two ranks"]))
    rows.append(
        Row(
            "what two copies reach ÷ speed-up of two ranks",
            speed_up,
            "×",
            f"{possible:.2f} ×",
            possible / speed_up,
            1 / 0.85,
        )
    )
    notes = (
        f"Local steps and speed-ups: medians of the ratios of {REPEATS} rounds, in each of which all take a "
        "turn of some milliseconds. Two virtual cores share a real one at times, and a minimum would compare "
        "the luckiest moment of one with that of another."
    )
    return write_table("mpi", "What MPI costs: two ranks on one machine", rows, notes)


def _fields(row: Row) -> tuple[str, float, str, str, float]:
    return row.what, row.figure, row.unit, row.reference, row.ratio


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else print(main())
