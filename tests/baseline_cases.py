"""Starting and driving the processes of any method, whole or in blocks, for the tests of the baselines."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np

import adfs
from adfs.algorithms import METHODS, EventProcess, Process, RoundProcess, Setting
from adfs.runtimes.cluster import OneProcess, Placement
from adfs.runtimes.exchange import GossipProduct
from adfs.runtimes.execution import ProcessTimes, without_lost
from literal_cases import random_case, random_network, random_problem

__all__ = [
    "TARGET",
    "decay",
    "drive",
    "gossip_here",
    "loss_of",
    "make_case",
    "random_case",
    "run_in_blocks",
    "setting_of",
    "slope",
    "start",
]

TARGET = 1e-10
FASTER_THAN_PROMISED = ("dsba", "sonata")


def loss_of(name: str) -> str:
    """The loss that a method is tried on: logistic, unless it is for losses with kinks alone."""
    return "hinge" if name == "interior-point" else "logistic"


def make_case(
    seed: int = 3, *, n: int = 6, m: int = 12, d: int = 4, loss: str = "logistic", zeros: bool = True
):
    """A heterogeneous problem with some zero rows and weights, on a random weighted connected network."""
    rng = np.random.default_rng(seed)
    problem = random_problem(loss, rng.integers(2, m + 1, n).tolist(), d, rng, zeros=zeros)
    return problem, random_network(n, rng)


def setting_of(
    name: str,
    problem: adfs.Problem,
    network: adfs.Network,
    *,
    seed: int = 0,
    choice: Any = None,
    **options: Any,
) -> Setting:
    """What the simulator starts a method from."""
    method = METHODS[name]
    if method.kind == "single":
        problem, network = problem.merged(), adfs.Network("path:1")
    parameters = method.adapt(method.parameters(problem, network, choice=choice), options)
    return Setting(problem, network, parameters, seed, "iid", None, options)


def start(name: str, problem: adfs.Problem, network: adfs.Network, **keywords: Any) -> Process:
    return METHODS[name].start(setting_of(name, problem, network, **keywords))


def drive(process: Process, stop: float) -> Process:
    """Take a process that holds all nodes to a position."""
    if isinstance(process, EventProcess):
        for end, events in process.schedule.windows(process.position, stop):
            events = without_lost(process, events)
            process.run(events, 0, events.time.size)
            computations = int(np.count_nonzero(events.sample >= 0))
            process.count(computations, events.time.size - computations)
            process.position = end
    else:
        assert isinstance(process, RoundProcess)
        process.run(gossip_here(process), stop)
    return process


def gossip_here(process: RoundProcess) -> GossipProduct:
    """The products of a process that holds all nodes."""
    n = process.gossip_matrix.shape[0]
    everything = Placement(np.zeros(n, dtype=np.int64), np.empty((0, 2), dtype=np.int64), 1)
    return GossipProduct(OneProcess(), process.gossip_matrix, everything, ProcessTimes())


def decay(name: str, problem: adfs.Problem, network: adfs.Network, seed: int, **keywords: object):
    """The relative suboptimality, mean over the nodes, at even steps until it is below the target."""
    process = start(name, problem, network, seed=seed, **keywords)
    whole = problem.merged() if METHODS[name].kind == "single" else problem
    best, scale = whole.optimum().value, whole.value_at_zero - whole.optimum().value
    # L-BFGS has no rate of its own: it is at least as fast as accelerated gradient descent.
    with_rate = "dagd" if name == "lbfgs" else name
    rho = setting_of(with_rate, problem, network, **keywords).parameters.contraction
    # Some constants are far from tight: these methods need finer steps to be seen on their way.
    stride = max(1, round(1.0 / rho) // (100 if name in FASTER_THAN_PROMISED else 4))
    found = []
    for k in range(1, 1000):
        drive(process, float(k * stride))
        found.append(float((whole.objective(process.primal()) - best).mean() / scale))
        if found[-1] <= 0.1 * TARGET:
            break
    return stride * np.arange(1, len(found) + 1), np.array(found), rho


def slope(positions: np.ndarray, errors: np.ndarray) -> float:
    """−d log(error)/d(position), from 1e-2 down."""
    inside = (errors < 1e-2) & (errors > 0.0)
    assert inside.sum() >= 3
    return float(-np.polyfit(positions[inside], np.log(errors[inside]), 1)[0])


class _SharedGossip:
    """Products for processes in threads: each puts in its rows, waits for the others, and takes its own."""

    rows = None

    def __init__(self, blocks: list[np.ndarray], number: int, board: dict[int, np.ndarray], barrier: Any):
        self.blocks, self.number, self.board, self.barrier = blocks, number, board, barrier
        self.matrix: Any = None

    def _whole(self, values: np.ndarray) -> np.ndarray:
        self.board[self.number] = values.copy()
        self.barrier.wait()
        whole = np.empty((sum(block.size for block in self.blocks), values.shape[1]))
        for other, nodes in enumerate(self.blocks):
            whole[nodes] = self.board[other]
        self.barrier.wait()
        return whole

    def __call__(self, values: np.ndarray) -> np.ndarray:
        whole = self._whole(values)
        out = np.zeros_like(values)
        for place, node in enumerate(self.blocks[self.number]):
            row = self.matrix.tocsr()[[node]].tocoo()
            for column, weight in sorted(zip(row.col, row.data, strict=True)):
                out[place] += weight * whole[column]
        return out

    def total(self, values: np.ndarray) -> np.ndarray:
        return sum(self._whole(values), np.zeros(values.shape[1]))

    def least(self, value: float) -> float:
        nodes = self.blocks[self.number].size
        return float(self._whole(np.full((nodes, 1), value)).min())


def run_in_blocks(setting: Setting, method: str, blocks: list[list[int]], stop: int) -> np.ndarray:
    """Every node's iterate after a run over several processes that see their own data alone; (n, d)."""
    problem, n = setting.problem, setting.network.n_nodes
    nodes = [np.array(block) for block in blocks]
    processes = []
    for block in nodes:
        part = adfs.Problem.from_shards(
            [problem.shards[i] for i in block], loss=problem.loss, sigma=problem.sigma[block]
        )
        processes.append(METHODS[method].start(dataclasses.replace(setting, problem=part, nodes=block)))
    if isinstance(processes[0], EventProcess):
        _events_in_blocks(processes, n, stop)
    else:
        board: dict[int, np.ndarray] = {}
        barrier = threading.Barrier(len(nodes))

        def run(number: int) -> None:
            process = processes[number]
            gossip = _SharedGossip(nodes, number, board, barrier)
            gossip.matrix = process.gossip_matrix
            while process.position < stop:  # slices that differ between the processes
                process.run(gossip, min(stop, process.position + 1.0 + 2.0 * number))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(nodes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    out = np.empty((n, problem.n_features))
    for block, process in zip(nodes, processes, strict=True):
        out[block] = process.primal()
    return out


def _events_in_blocks(processes: list[Any], n: int, stop: int) -> None:
    schedule = processes[0].schedule
    events = (
        schedule.block(0, stop, nodes=np.arange(n)) if schedule.samples is None else schedule.block(0, stop)
    )
    for t, (time, actor) in enumerate(zip(events.time, events.actor, strict=True)):
        edge = int(actor) - n
        ends = processes[0].ends[edge]
        here = [process for process in processes if (process.slot[ends] >= 0).any()]
        if len(here) == 1:
            assert here[0].run(events, t, t + 1) == t + 1
        else:
            assert here[0].run(events, t, t + 1) == t
            sent = [process.outgoing(edge, float(time)) for process in here]
            for process, own, other in zip(here, sent, sent[::-1], strict=True):
                process.incoming(edge, float(time), own, other)
    for process in processes:
        process.position = float(stop)
