"""The cost of an event as the network grows, the set-up of parameters, and a run on a million nodes."""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import time

import numpy as np

import adfs
from adfs.algorithms import METHODS, EventProcess, Setting
from adfs.theory import Parameters
from benchmarks.measure import Row, write_table

_SIZES = (100, 1_000, 10_000, 100_000)
_EVENTS = 6_000_000.0  # the same for all: of a longer stream, fewer fall into a quiet moment of the machine
_REPEATS = 10
_MILLION, _MILLION_TOLERANCE = 1_000_000, 1e-6
_MILLION_EVENTS = 30_000_000.0


def seconds_an_event(process: EventProcess, *, execute: bool, stop: float = _EVENTS) -> float:
    """Return the processor seconds per event of one whole stream, executing the events or not."""
    count, begun = 0, time.process_time()
    for _, events in process.schedule.windows(0.0, stop):
        count += events.time.size
        if execute:
            process.run(events, 0, events.time.size)
    seconds = time.process_time() - begun
    process.state.clocks[:] = [1.0, 0.0]  # the next stream starts at time 0 again
    return seconds / count


def make_data(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of d = 10 and their labels."""
    y = np.where(rng.random(count) < 0.5, 1.0, -1.0)
    X = rng.standard_normal((count, 10))
    X += y[:, None]
    return X, y


def million() -> dict[str, float]:
    """Run ADFS on a million nodes; return processor seconds, GB and the certified gap."""
    checks: list[float] = []
    handler = logging.Handler()
    handler.emit = lambda record: checks.append(time.process_time())  # type: ignore[method-assign]
    logger = logging.getLogger("adfs")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    X, y = make_data(np.random.default_rng(0), 10 * _MILLION)
    begun = time.process_time()
    problem = adfs.Problem(X, y, sigma=1.0, n_nodes=_MILLION)
    del X, y
    network = adfs.Network(f"random-regular:{_MILLION},8", seed=0)
    made = time.process_time()
    options = {"tau": 5.0, "schedule": "poisson"}
    run = adfs.simulate("adfs", problem, network, tol=_MILLION_TOLERANCE, **options)
    ended = time.process_time()
    found = {
        "made": made - begun,
        "setup": checks[1] - made,  # the first message is that of the start, the second that of a check
        "total": ended - begun,
        "gap": run.gap,
        "events": run.frame["position"].iloc[-1],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    setting = Setting(problem, network, run.parameters, schedule="poisson")
    del run
    process = METHODS["adfs"].start(setting)
    for name, execute in (("schedule", False), ("event", True)):
        streams = (seconds_an_event(process, execute=execute, stop=_MILLION_EVENTS) for _ in range(3))
        found[name] = min(streams)
    return found


def rows_of_a_million() -> list[Row]:
    """Return the rows of a million nodes, measured in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "import json; from benchmarks.scaling import million; print(json.dumps(million()))",
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(text.splitlines()[-1])
    what = "a million nodes"
    return [
        Row(f"{what}: schedule alone", found["schedule"] * 1e9, "ns per event"),
        Row(f"{what}: whole event", found["event"] * 1e9, "ns", target=450.0),
        Row(f"{what}: problem and network", found["made"], "s"),
        Row(f"{what}: set-up of the run", found["setup"], "s", target=60.0),
        Row(f"{what}: to a certified {_MILLION_TOLERANCE:g}", found["total"], "s", target=600.0),
        Row(f"{what}: events", found["events"] / 1e6, "million"),
        Row(f"{what}: certified gap", found["gap"], "", target=_MILLION_TOLERANCE),
        Row(f"{what}: peak of the process", found["peak"], "GB", target=3.0),
    ]


def main() -> str:
    rng = np.random.default_rng(0)
    processes, table = {}, []
    setup = float("nan")
    for n in _SIZES:
        problem = adfs.Problem(*make_data(rng, 20 * n), sigma=1.0, n_nodes=n)
        network = adfs.Network(f"random-regular:{n},4", seed=0)
        begun = time.process_time()
        parameters = Parameters.tuned(problem, network, tau=5.0)
        setup = time.process_time() - begun
        processes[n] = METHODS["adfs"].start(Setting(problem, network, parameters, schedule="poisson"))
    alone, whole = dict.fromkeys(_SIZES, np.inf), dict.fromkeys(_SIZES, np.inf)
    for _ in range(_REPEATS):  # the sizes by turns: a slow minute of the machine is then slow for all
        for n, process in processes.items():
            alone[n] = min(alone[n], seconds_an_event(process, execute=False))
            whole[n] = min(whole[n], seconds_an_event(process, execute=True))
    for n, seconds in alone.items():
        ratio = seconds / alone[100]
        table.append(Row(f"schedule alone, n = {n:,}", seconds * 1e9, "ns per event", "n = 100", ratio, 3.0))
    for n, seconds in whole.items():
        ratio = seconds / whole[100]
        table.append(Row(f"whole event, n = {n:,}", seconds * 1e9, "ns", "n = 100", ratio, 2.5))
    table.append(Row("set-up of tuned parameters, n = 100,000", setup, "s", target=60.0))
    table += rows_of_a_million()
    notes = (
        "Random 4-regular graph, 20 samples per node, d = 10, logistic loss, Poisson schedule. "
        "Minimum of ten streams of six million events, the sizes by turns. Seconds are of the processor. "
        "A million nodes: random 8-regular graph, 10 samples per node, τ = 5. The set-up is what "
        "`simulate` does before its first event, with the first certificate; the last seconds are those "
        "of the problem, the network, the set-up and the run together. Minimum of three streams of 30 "
        "million events."
    )
    return write_table("scaling", "Growing networks", table, notes)
