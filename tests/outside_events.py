"""An event-driven method as somebody outside would write it: gradient steps and pairwise means."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

import adfs
from adfs.algorithms import (
    EventKernels,
    EventProcess,
    Method,
    Setting,
    register_kernels,
    register_method,
)
from adfs.compilation import kernel
from adfs.problem import FiniteSum, Samples
from adfs.problem.losses import derivative
from adfs.problem.samples import row_column, row_entry, row_span
from adfs.theory import summarize


@dataclass(frozen=True)
class Rates:
    step: float
    node_probability: np.ndarray
    edge_probability: np.ndarray

    @classmethod
    def uniform(cls, problem: object, network: adfs.Network) -> Rates:
        holding = summarize(problem).n_active > 0
        node = 0.5 * holding / holding.sum()
        return cls(0.05, node, np.full(network.n_edges, 0.5 / network.n_edges))


class MeanParts(NamedTuple):
    samples: Samples
    step: float
    theta: np.ndarray
    ends: np.ndarray
    slot: np.ndarray


@kernel
def run(
    parts: MeanParts, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    n = parts.slot.size
    for t in range(first, last):
        if actors[t] < n:
            _descend(parts, parts.slot[actors[t]], drawn[t])
            continue
        i, j = parts.slot[parts.ends[actors[t] - n, 0]], parts.slot[parts.ends[actors[t] - n, 1]]
        if i < 0 or j < 0:
            return t
        for k in range(parts.theta.shape[1]):
            mean = 0.5 * (parts.theta[i, k] + parts.theta[j, k])
            parts.theta[i, k] = mean
            parts.theta[j, k] = mean
    return last


@kernel
def _descend(parts: MeanParts, i: int, j: int) -> None:
    rows, theta = parts.samples.rows, parts.theta[i]
    start, stop = row_span(rows, j)
    margin = 0.0
    for k in range(start, stop):
        margin += row_entry(rows, j, k) * theta[row_column(rows, j, k)]
    pull = parts.samples.weights[j] * derivative(parts.samples.loss, margin, parts.samples.y[j])
    for k in range(start, stop):
        theta[row_column(rows, j, k)] -= parts.step * pull * row_entry(rows, j, k)


@kernel
def outgoing(parts: MeanParts, i: int, time: float, out: np.ndarray) -> None:
    for k in range(out.size):
        out[k] = parts.theta[i, k]


@kernel
def incoming(parts: MeanParts, edge: int, i: int, time: float, own: np.ndarray, other: np.ndarray) -> None:
    for k in range(own.size):
        parts.theta[i, k] = 0.5 * (own[k] + other[k])


class MeanProcess(EventProcess):
    parts: MeanParts
    kernels = register_kernels(MeanParts, EventKernels(run, outgoing, incoming))

    def __init__(self, setting: Setting[Rates]) -> None:
        problem = setting.problem
        super().__init__(setting, problem.active.astype(np.float64))
        theta = np.zeros((problem.n_nodes, problem.n_features))
        self.parts = MeanParts(problem.samples, setting.parameters.step, theta, self.ends, self.slot)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.parts.theta.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.parts.theta}


class PairwiseMeans(Method[Rates]):
    name = "pairwise-means"
    kind = "events"
    record = Rates
    choices = MappingProxyType({"uniform": lambda problem, network, tau: Rates.uniform(problem, network)})

    def start(self, setting: Setting[Rates]) -> MeanProcess:
        return MeanProcess(setting)


def shard(node: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([4, node])
    X = rng.standard_normal((6, 3))
    return X, X @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.standard_normal(6)


def problem_of(nodes: range) -> FiniteSum:
    return adfs.Problem.from_shards([shard(node) for node in nodes], "squared", 0.1)


def main() -> None:
    """On each rank: run it; rank 0 prints what came out."""
    from mpi4py import MPI

    register_method(PairwiseMeans())
    comm = MPI.COMM_WORLD
    run = adfs.fit_mpi(
        comm, shard, adfs.Network("cycle:4"), method="pairwise-means", loss="squared", sigma=0.1,
        max_passes=20.0, seed=1, gather=True,
    )  # fmt: skip
    if comm.Get_rank() == 0:
        print("RESULT " + json.dumps({"theta": run.theta.tolist()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
