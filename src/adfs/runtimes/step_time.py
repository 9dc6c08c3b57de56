"""Theorem 4 measured: the time a step of the idealised clock against its bound."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs.network import Network
from adfs.runtimes.clock import retime
from adfs.runtimes.delays import Delays
from adfs.theory import NodeSummary, Parameters, theorem4_step_time

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["theorem4_table"]


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
    """Measure the time a step against Theorem 4's bound, over graphs, p_comm, τ and kinds of clock.

    All nodes compute equally often and all edges are equally likely, as in the paper.

    Returns
    -------
    pandas.DataFrame
        One row a case: ``graph``, ``n_nodes``, ``p_comm``, ``tau``, ``law``, ``blocking``, ``measured``
        (time a step), ``bound`` (ν), ``constant`` (measured·n/(p_comp + τ·p_comm^max), 24 in the bound)
        and ``holds`` (whether what the proof assumes is true).
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
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
            for time in tau:
                bound = theorem4_step_time(parameters, network, time)
                for law in laws:
                    for waiting in blocking:
                        delays = Delays(tau=time, law=law, blocking=waiting)
                        found = retime("adfs", parameters, summary, network, delays, [events], seed=seed)
                        measured = float(found.latest[0]) / events
                        rows.append(
                            {
                                "graph": network.name,
                                "n_nodes": n,
                                "p_comm": share,
                                "tau": time,
                                "law": law,
                                "blocking": waiting,
                                "measured": measured,
                                "bound": bound.nu,
                                "constant": measured * n / (bound.p_comp + time * bound.p_comm_max),
                                "holds": bound.holds,
                            }
                        )
    return pd.DataFrame(rows)
