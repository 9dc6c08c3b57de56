"""λ_2, λ_max, resistances and tuned parameters of networks of 100,000 nodes."""

from __future__ import annotations

import time

import numpy as np

import adfs
from adfs.theory import NodeSummary, Parameters
from benchmarks.measure import Row, write_table

NAMES = (
    "path:100000",
    "grid:316x316",
    "torus:316x316",
    "tree:100000",
    "random-regular:100000,4",
    "random-regular:100000,20",
    "erdos-renyi:100000,0.0002",
    "small-world:100000,4,0.1",
    "small-world:100000,4,0.01",
    "geometric:100000,0.008",
)


def node_summary(n: int) -> NodeSummary:
    """Return nodes of 20 samples each, their condition numbers all different."""
    rng = np.random.default_rng(0)
    kappa = 50.0 * rng.lognormal(0.0, 0.5, n)
    return NodeSummary(
        sigma=np.ones(n),
        kappa=kappa,
        batch_kappa=kappa / 5.0,
        root_sums=20.0 * np.sqrt(1.0 + kappa / 20.0),
        largest_smoothness=kappa / 10.0,
        n_samples=np.full(n, 20),
        n_active=np.full(n, 20),
        n_features=np.full(n, 10),
    )


def main() -> str:
    rows = []
    for name in NAMES:
        begun = time.perf_counter()
        network = adfs.Network(name, seed=0)
        Parameters.tuned(node_summary(network.n_nodes), network, tau=5.0)
        seconds = time.perf_counter() - begun
        kind = "exact" if network.resistances.exact else "bound"
        what = f"{name}, {network.n_edges:,} edges, resistances {kind}"
        rows.append(Row(what, seconds, "s", target=60.0))
    return write_table("networks", "Building a network of 100,000 nodes and tuning ADFS for it", rows)
