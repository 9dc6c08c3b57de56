"""The cost of an event as the network grows, and the set-up of parameters."""

from __future__ import annotations

import time

import numpy as np

import adfs
from adfs.algorithms import METHODS, EventProcess, Setting
from adfs.theory import Parameters
from benchmarks.measure import Row, write_table

_SIZES = (100, 1_000, 10_000, 100_000)
_EVENTS = 6_000_000.0  # the same for all: of a longer stream, fewer fall into a quiet moment of the machine
_REPEATS = 10


def seconds_an_event(process: EventProcess, *, execute: bool) -> float:
    """Return the seconds per event of one whole stream, executing the events or not."""
    count, begun = 0, time.perf_counter()
    for _, events in process.schedule.windows(0.0, _EVENTS):
        count += events.time.size
        if execute:
            process.run(events, 0, events.time.size)
    seconds = time.perf_counter() - begun
    process.state.clocks[:] = [1.0, 0.0]  # the next stream starts at time 0 again
    return seconds / count


def main() -> str:
    rng = np.random.default_rng(0)
    processes, table = {}, []
    setup = float("nan")
    for n in _SIZES:
        y = np.where(rng.random(20 * n) < 0.5, 1.0, -1.0)
        problem = adfs.Problem(rng.standard_normal((20 * n, 10)) + y[:, None], y, sigma=1.0, n_nodes=n)
        network = adfs.Network(f"random-regular:{n},4", seed=0)
        begun = time.perf_counter()
        parameters = Parameters.tuned(problem, network, tau=5.0)
        setup = time.perf_counter() - begun
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
    notes = (
        "Random 4-regular graph, 20 samples per node, d = 10, logistic loss, Poisson schedule. "
        "Minimum of ten streams of six million events, the sizes by turns."
    )
    return write_table("scaling", "Growing networks", table, notes)
