"""The time of a step: of a sample on this machine, and of the idealised clock against Theorem 4's bound."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import EventProcess, Setting, get_method
from adfs.network import Network
from adfs.problem import Problem
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.samples import Matrix
from adfs.runtimes.clock import retime
from adfs.runtimes.cluster import Cluster
from adfs.runtimes.delays import Delays
from adfs.theory import NodeSummary, Parameters, theorem4_step_time

if TYPE_CHECKING:
    import pandas as pd

_BATCHES = 5
_BATCH_SECONDS = 0.02


def measured_tau(cluster: Cluster, problem: FiniteSum) -> float:
    """Return τ for the messages of a problem, measured: a message's seconds over those of a sample."""
    return measured_tau_of(cluster, problem.n_features, problem.entries_per_row, problem.n_samples)


def measured_tau_of(cluster: Cluster, width: int, entries_per_row: float | None, n_samples: int) -> float:
    """Return the same from the dimension, and this process's non-zeros per row (None: dense) and rows."""
    why = "to measure the network"
    message = cluster.exchange_seconds(width)
    cards = cluster.gather([entries_per_row, n_samples], why)
    total = sum(count for _, count in cards)
    sparse = any(mean is not None for mean, _ in cards)
    mean = sum((mean or width) * count for mean, count in cards) / total
    entries = max(1, round(mean)) if sparse else None
    cluster.in_turns(lambda: step_seconds(width, entries), why)
    steps = cluster.gather(step_seconds(width, entries), why)
    return float(message / np.median(steps))


def step_seconds(width: int, entries: int | None = None, seed: int = 0) -> float:
    """Return the seconds of one sample's computation in this process alone, the best of several batches.

    Rows have ``width`` columns and some non-zero ``entries`` each; they are dense when that is left out.
    """
    rng = np.random.default_rng(seed)
    rows = int(min(2000, max(20, 2_000_000 // max(1, entries or width))))
    X: Matrix
    if entries is None:
        X = rng.standard_normal((rows, width)) / np.sqrt(width)
    else:
        columns = np.sort(rng.integers(0, width, (rows, entries)), axis=1).ravel()
        data = rng.standard_normal(rows * entries) / np.sqrt(entries)
        X = sp.csr_array((data, columns, np.arange(0, rows * entries + 1, entries)), shape=(rows, width))
        X.sum_duplicates()
    y = np.where(rng.random(rows) < 0.5, 1.0, -1.0)
    problem, network, method = Problem(X, y, "logistic", 1.0), Network("path:1"), get_method("adfs")
    parameters = method.parameters(problem, network)
    process = method.start(Setting(problem, network, parameters, seed))
    assert isinstance(process, EventProcess)
    events = process.schedule.block(0.0, 20_000.0)
    process.run(events, 0, 0)
    best, first = np.inf, 0
    for _ in range(_BATCHES):
        begun = time.perf_counter()
        last = first
        while last < events.time.size and time.perf_counter() - begun < _BATCH_SECONDS:
            last = process.run(events, last, min(last + 200, events.time.size))
        if last > first:
            best = min(best, (time.perf_counter() - begun) / (last - first))
        first = last
    return float(best)


def theorem4_table(
    graphs: tuple[str | Network, ...] = ("cycle:16", "grid:4x4", "complete:8"),
    p_comm: tuple[float, ...] = (0.1, 0.3, 0.5),
    tau: tuple[float, ...] = (1.0, 5.0),
    *,
    laws: tuple[str, ...] = ("fixed", "exponential"),
    blocking: tuple[bool, ...] = (True, False),
    events: int = 100_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure the time per step against Theorem 4's bound, over graphs, p_comm, τ and kinds of clock.

    All nodes compute equally often and all edges are equally likely, as in the paper.

    Returns
    -------
    pandas.DataFrame
        One row per case: ``graph``, ``n_nodes``, ``p_comm``, ``tau``, ``law``, ``blocking``, ``measured``
        (time per step), ``bound`` (ν), ``constant`` (measured·n/(p_comp + τ·p_comm^max), 24 in the bound)
        and ``holds`` (whether what the proof assumes is true).
    """
    import pandas as pd

    rows: list[dict[str, object]] = []
    for graph in graphs:
        network = Network(graph)
        n = network.n_nodes
        one = np.ones(n)
        count = np.ones(n, dtype=np.int64)
        summary = NodeSummary(count, count, one, one, one, one, one)
        paper = Parameters.paper(summary, network)
        for share in p_comm:
            # A clock reads nothing but the probabilities; the contraction is put where any of them allow it.
            parameters = dataclasses.replace(
                paper,
                contraction=1e-9,
                node_probability=np.full(n, (1.0 - share) / n),
                edge_probability=np.full(network.n_edges, share / network.n_edges),
            )
            for message in tau:
                bound = theorem4_step_time(parameters, network, message)
                for law in laws:
                    for waiting in blocking:
                        delays = Delays(tau=message, law=law, blocking=waiting)
                        found = retime("adfs", parameters, summary, network, delays, [events], seed=seed)
                        measured = float(found.latest[0]) / events
                        rows.append(
                            {
                                "graph": network.name,
                                "n_nodes": n,
                                "p_comm": share,
                                "tau": message,
                                "law": law,
                                "blocking": waiting,
                                "measured": measured,
                                "bound": bound.nu,
                                "constant": measured * n / (bound.p_comp + message * bound.p_comm_max),
                                "holds": bound.holds,
                            }
                        )
    return pd.DataFrame(rows)
