"""The cost of an event as the network grows, and the set-up of parameters."""

from __future__ import annotations

import time

import numpy as np

import adfs
from adfs.algorithms import METHODS, EventProcess, Setting
from adfs.theory import Parameters
from benchmarks.measure import Row, write_table

_REPEATS = 7


def least_cost(process: EventProcess, span: float, *, execute: bool) -> float:
    """Return the least seconds an event of whole streams, executing the events or not."""
    best = float("inf")
    for _ in range(_REPEATS):
        count, begun = 0, time.perf_counter()
        for _, events in process.schedule.windows(0.0, span):
            count += events.time.size
            if execute:
                process.run(events, 0, events.time.size)
        best = min(best, (time.perf_counter() - begun) / count)
        process.state.clocks[:] = [1.0, 0.0]  # the next stream starts at time 0 again
    return best


def main() -> str:
    rng = np.random.default_rng(0)
    alone, whole, table = {}, {}, []
    setup = float("nan")
    for n in (100, 1_000, 10_000, 100_000):
        y = np.where(rng.random(20 * n) < 0.5, 1.0, -1.0)
        problem = adfs.Problem(rng.standard_normal((20 * n, 10)) + y[:, None], y, sigma=1.0, n_nodes=n)
        network = adfs.Network(f"random-regular:{n},4", seed=0)
        begun = time.perf_counter()
        parameters = Parameters.tuned(problem, network, tau=5.0)
        setup = time.perf_counter() - begun
        process = METHODS["adfs"].start(Setting(problem, network, parameters, schedule="poisson"))
        span = max(1_000_000.0, 60.0 * n)  # a stream draws about six events a clock ahead
        alone[n] = least_cost(process, span, execute=False)
        whole[n] = least_cost(process, span, execute=True)
    least = min(alone.values())
    for n, seconds in alone.items():
        ratio = seconds / least
        table.append(
            Row(f"schedule alone, n = {n:,}", seconds * 1e9, "ns an event", "the least of them", ratio, 1.25)
        )
    for n, seconds in whole.items():
        ratio = seconds / whole[100]
        table.append(Row(f"whole event, n = {n:,}", seconds * 1e9, "ns", "n = 100", ratio, 2.5))
    table.append(Row("set-up of tuned parameters, n = 100,000", setup, "s", target=60.0))
    notes = (
        "Random 4-regular graph, 20 samples a node, d = 10, logistic loss, Poisson schedule. "
        "Minimum of seven streams of sixty events a node or more."
    )
    return write_table("scaling", "Growing networks", table, notes)
