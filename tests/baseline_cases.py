"""Starting and driving the processes of any method, whole or in blocks, for the tests of the baselines."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import adfs
from adfs.algorithms import METHODS, EventProcess, Process, RoundProcess, Setting
from adfs.runtimes.cluster import OneProcess
from adfs.runtimes.gossip import GossipProduct, row_products
from adfs.runtimes.placement import Placement
from adfs.runtimes.timing import ProcessTimes
from literal_cases import random_case, random_network, random_problem

__all__ = ["drive", "make_case", "random_case", "run_in_blocks", "setting_of", "start"]


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
            process.run(events, 0, events.time.size)
            computations = int(np.count_nonzero(events.sample >= 0))
            process.count(computations, events.time.size - computations)
            process.position = end
    else:
        assert isinstance(process, RoundProcess)
        n = process.gossip_matrix.shape[0]
        everything = Placement(np.zeros(n, dtype=np.int64), np.empty((0, 2), dtype=np.int64), 1)
        gossip = GossipProduct(OneProcess(), process.gossip_matrix, everything, ProcessTimes())
        while process.position < stop:
            process.round(gossip)
    return process


def _shared_gossip(
    blocks: list[np.ndarray], n: int
) -> Callable[[int, Any], Callable[[np.ndarray], np.ndarray]]:
    """Products for processes in threads: each puts in its rows, waits for the others, and takes its own."""
    barrier = threading.Barrier(len(blocks))
    board: dict[int, np.ndarray] = {}

    def of_block(number: int, matrix: Any) -> Callable[[np.ndarray], np.ndarray]:
        own = matrix.tocsr()[blocks[number]]
        own.sort_indices()

        def gossip(values: np.ndarray) -> np.ndarray:
            board[number] = values.copy()
            barrier.wait()
            whole = np.empty((n, values.shape[1]))
            for other, nodes in enumerate(blocks):
                whole[nodes] = board[other]
            barrier.wait()
            return row_products(own.data, own.indices, own.indptr, whole)

        return gossip

    return of_block


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
        shared = _shared_gossip(nodes, n)

        def run(number: int) -> None:
            process = processes[number]
            gossip = shared(number, process.gossip_matrix)
            while process.position < stop:
                process.round(gossip)

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
