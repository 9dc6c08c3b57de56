"""Rounds: a sample of block ADFS against an event of ADFS, and how much of the others' rounds is Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS, RoundProcess, Setting
from adfs.runtimes.cluster import OneProcess, Placement
from adfs.runtimes.exchange import GossipProduct
from adfs.runtimes.execution import ProcessTimes
from benchmarks.measure import Row, fastest, write_table

SAMPLES = 200_000
NETWORKS = {2: "path:2", 9: "grid:3x3", 100: "grid:10x10"}


def make_problem(n: int, m: int, kind: str) -> adfs.Problem:
    """Return n nodes of m samples: dense rows of so many columns, or CSR rows of 30 non-zeros among 1,000."""
    rng = np.random.default_rng(0)
    count = n * m
    y = np.where(rng.random(count) < 0.5, 1.0, -1.0)
    if kind == "sparse":
        columns = (rng.integers(0, 33, (count, 30)) + 33 * np.arange(30)).astype(np.int32)
        indptr = np.arange(0, 30 * count + 1, 30)
        X: Any = sp.csr_array((rng.standard_normal(30 * count), columns.ravel(), indptr), shape=(count, 1000))
    else:
        X = rng.standard_normal((count, int(kind))) + y[:, None]
    return adfs.Problem(X, y, sigma=0.01 * m, n_nodes=n)


def start(name: str, problem: adfs.Problem, network: adfs.Network) -> tuple[Any, GossipProduct | None]:
    """Return a method's process over all nodes, and its products."""
    method = METHODS[name]
    process = method.start(Setting(problem, network, method.parameters(problem, network)))
    if not isinstance(process, RoundProcess):
        return process, None
    placement = Placement(np.zeros(network.n_nodes, dtype=np.int64), network.edges, 1)
    return process, GossipProduct(OneProcess(), process.gossip_matrix, placement, ProcessTimes())


def contenders(n: int, m: int, kind: str) -> dict[str, Callable[[], None]]:
    """Return as many samples of ADFS and of block ADFS, both with their draws and their communications."""
    problem, network = make_problem(n, m, kind), adfs.Network(NETWORKS[n])
    events, _ = start("adfs", problem, network)
    rounds, gossip = start("adfs-block", problem, network)

    def adfs_steps() -> None:
        wanted = events.position + SAMPLES
        for end, window in events.schedule.windows(events.position, wanted):
            events.run(window, 0, window.time.size)
            events.position = end

    def block_rounds() -> None:
        rounds.run(gossip, rounds.position + SAMPLES // n)

    adfs_steps()
    block_rounds()
    return {"adfs": adfs_steps, "block": block_rounds}


def share_of_python(name: str, n: int, m: int) -> tuple[float, float]:
    """Return the seconds of a round, and which part of a slice of rounds is not its kernel."""
    problem, network = make_problem(n, m, "10"), adfs.Network(NETWORKS[n] if n > 1 else "path:1")
    process, gossip = start(name, problem, network)
    process.run(gossip, 10.0)
    # A call of no rounds is what Python takes, whatever the number of rounds.
    idle = fastest({"idle": lambda: process.run(gossip, process.position)}, 20)["idle"]
    count = 10.0
    while True:
        begun = time.perf_counter()
        process.run(gossip, process.position + count)
        seconds = time.perf_counter() - begun
        if seconds > 0.1:
            return seconds / count, idle / seconds
        count *= 4.0


def main() -> str:
    table = []
    for n, m in ((9, 3_000), (100, 1_000)):
        for kind in ("10", "54", "sparse"):
            best = fastest(contenders(n, m, kind))
            event, sample = (best[name] / SAMPLES * 1e9 for name in ("adfs", "block"))
            label = "30 non-zeros" if kind == "sparse" else f"d = {kind} dense"
            table.append(
                Row(
                    f"block ADFS, a node's share of a round, {n} nodes, {label}",
                    sample,
                    "ns",
                    f"an event of ADFS {event:.0f} ns",
                    sample / event,
                    1.5,
                )
            )
    for name in ("msda", "extra", "dsba", "dagd", "agd"):
        for n in (1,) if name == "agd" else (2, 9, 100):
            for m in (10, 100):
                seconds, share = share_of_python(name, n, m)
                words = f"of a slice of rounds, Python takes {share:.1e}"
                what = f"{name}, a round, {n} nodes of {m} samples"
                table.append(Row(what, seconds * 1e6, "µs", words, share, 0.1))
    notes = (
        "All nodes in one process. Rounds and events include drawing them and communicating. "
        "Minimum of seven, taking turns; the rounds of the other methods once."
    )
    return write_table("block", "Rounds", table, notes)
