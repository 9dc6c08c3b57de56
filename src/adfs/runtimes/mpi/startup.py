"""Before a run: all ranks must want the same, hold data that fits, and know the same few numbers of it.

What is wrong is found together and said once: every rank raises the same `RefusalError`, and rank 0 prints
it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from adfs.errors import AdfsError, InputError
from adfs.launching import let_rank_0_speak, what_the_launcher_says
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.problem.finite_sum import check_sigma
from adfs.problem.losses import get_loss
from adfs.problem.rows import sparse
from adfs.problem.shards import as_rows
from adfs.runtimes.mpi.driver import TeamSums
from adfs.runtimes.mpi.faults import RefusalError, say
from adfs.runtimes.mpi.placement import Placement, place
from adfs.runtimes.mpi.team import Team
from adfs.theory import NodeSummary, node_sizes, summarize

__all__ = [
    "READING",
    "Data",
    "adopt",
    "check_launcher",
    "describe",
    "gather_summary",
    "load",
    "place_together",
    "same_everywhere",
    "together",
]

T = TypeVar("T")
Shards = Sequence[Any] | Problem | GeneralProblem | Callable[[int], Any]


class Data(NamedTuple):
    """What a rank holds: its ``problem``, the network, where all nodes are, and the two ``classes``."""

    problem: Problem | GeneralProblem
    network: Network
    placement: Placement
    classes: list[Any] | None


def check_launcher(world_size: int | None = None) -> None:
    """Refuse to start when the launcher and the MPI library do not know each other.

    Each process then sits in a world of its own, and would solve its own shard as if it were all.
    """
    from mpi4py import MPI

    launch = what_the_launcher_says()
    size = MPI.COMM_WORLD.Get_size() if world_size is None else world_size
    if launch is not None and launch.size > 1 and size == 1:
        sentence = (
            f"the launcher started {launch.size} processes but each one's MPI library sees itself alone: "
            "mpiexec and mpi4py belong to different MPI installations; use the mpiexec of mpi4py's own"
        )
        let_rank_0_speak()
        say(sentence)
        raise SystemExit(2)


# Seconds beyond the deadline that other ranks may take to read and sum up their data.
READING = 3600.0


def together(team: Team, why: str, action: Callable[[], T], patience: float = 0.0) -> T:
    """Do something on every rank; if it fails on one, every rank raises the same `RefusalError`.

    ``patience`` is how many seconds beyond the deadline it may take others.
    """
    result: Any = None
    trouble = ""
    try:
        result = action()
    except (AdfsError, OSError) as error:
        trouble = str(error)
    found = team.gather_all(trouble, why, patience)
    failed = [rank for rank, words in enumerate(found) if words]
    if failed:
        alone = len(set(found)) > 1
        raise RefusalError(f"rank {failed[0]}: {found[failed[0]]}" if alone else found[0])
    done: T = result
    return done


def same_everywhere(team: Team, words: Mapping[str, Any]) -> None:
    """Refuse to start unless all ranks were given the same."""
    cards = team.gather_all({name: str(value) for name, value in words.items()}, "at the start")
    for name in words:
        for rank, card in enumerate(cards):
            if card.get(name) != cards[0].get(name):
                raise RefusalError(
                    f"the ranks were not started alike: {name} is {cards[0].get(name)} on rank 0 "
                    f"and {card.get(name)} on rank {rank}; give all ranks the same"
                )


def describe(value: Any) -> str:
    """Return words that are the same for the same value: for comparing what ranks were given."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stamp = hashlib.sha256()
        for item in dataclasses.fields(value):
            entry = getattr(value, item.name)
            stamp.update(entry.tobytes() if isinstance(entry, np.ndarray) else repr(entry).encode())
        return f"{type(value).__name__} {stamp.hexdigest()[:12]}"
    if isinstance(value, Network):
        stamp = hashlib.sha256(value.edges.tobytes() + value.weights.tobytes())
        return f"{value.name or 'a network'} with {value.n_nodes} nodes ({stamp.hexdigest()[:12]})"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]}"
    return repr(value)


# --------------------------------------------------------------------------- the data


def load(
    team: Team,
    shards: Shards,
    network: Network | str | None,
    nodes: Sequence[int] | None,
    loss: Any,
    sigma: Any,
    n_features: int | None,
) -> Data:
    """Return this rank's problem, with the dimension and the labels of all ranks."""
    graph, placement = _place(team, shards, network, nodes)
    block = placement.block(team.rank)
    if isinstance(shards, Problem | GeneralProblem):
        return Data(_same_width(team, shards, n_features), graph, placement, None)
    parts = together(team, "to read the data", lambda: _read(shards, block, nodes), READING)
    if not sum(len(part[1]) for part in parts):
        trouble = f"rank {team.rank} has no data: every rank needs at least one sample; start fewer ranks"
    else:
        trouble = ""
    widest = max((int(part[0].shape[1]) for part in parts), default=0)
    classification = get_loss(loss).task == "classification"
    labels: list[Any] = []
    if classification:
        labels = np.unique(np.concatenate([np.asarray(part[1]).ravel() for part in parts])).tolist()[:8]
    cards = team.gather_all([trouble, widest, labels], "to compare the data")
    for words, _, _ in cards:
        if words:
            raise RefusalError(words)
    width = max(card[1] for card in cards)
    if n_features is not None:
        if n_features < width:
            raise RefusalError(
                f"n_features is {n_features} and a shard has {width} columns; give at least {width}"
            )
        width = int(n_features)
    classes = _two_classes([label for card in cards for label in card[2]]) if classification else None

    def build() -> Problem:
        own = check_sigma(sigma, graph.n_nodes)[block]
        fitted = [(_widen(X, width), _signs(y, classes), *rest) for X, y, *rest in parts]
        return Problem.from_shards(fitted, loss, own)

    return Data(together(team, "to check the data", build, READING), graph, placement, classes)


def _place(
    team: Team, shards: Shards, network: Network | str | None, nodes: Sequence[int] | None
) -> tuple[Network, Placement]:
    """Say which nodes are where: as the shards that were given have it, or so that few edges are cut."""
    if callable(shards):
        graph = together(team, "to build the network", lambda: _network(network, None, team.size))
        return graph, place_together(team, graph)
    count = shards.n_nodes if isinstance(shards, Problem | GeneralProblem) else len(shards)
    given = None if nodes is None else [int(node) for node in nodes]
    cards = team.gather_all([count, given], "to place the nodes")
    for rank, (held, _) in enumerate(cards):
        if held == 0:
            raise RefusalError(
                f"rank {rank} has no data: every rank needs at least one shard; start fewer ranks"
            )
    total = sum(held for held, _ in cards)
    graph = together(team, "to build the network", lambda: _network(network, total, team.size))
    if any(own is None for _, own in cards):
        rank_of_node = np.repeat(np.arange(team.size), [held for held, _ in cards])
    else:
        rank_of_node = np.full(total, -1)
        for rank, (held, own) in enumerate(cards):
            if len(own) != held:
                raise RefusalError(
                    f"rank {rank} names {len(own)} nodes and holds {held} shards; name one node a shard"
                )
            if sorted(own) != own and isinstance(shards, Problem | GeneralProblem):
                raise RefusalError(f"rank {rank} must name the nodes of its problem in increasing order")
            inside = [node for node in own if 0 <= node < total]
            rank_of_node[inside] = rank
        if (rank_of_node < 0).any() or sum(len(set(own)) for _, own in cards) != total:
            raise RefusalError(f"the nodes that the ranks name must be 0, …, {total - 1}, each once")
    return graph, Placement(rank_of_node, graph.edges, team.size)


def place_together(team: Team, network: Network) -> Placement:
    """Return rank 0's placement of a network's nodes: eigenvectors may differ between machines."""
    chosen = together(team, "to place the nodes", lambda: place(network, team.size))
    ranks = chosen.rank_of_node.astype(np.float64)
    team.spread(ranks, "to place the nodes")
    return Placement(ranks.astype(np.int64), network.edges, team.size)


def _network(network: Network | str | None, n_nodes: int | None, n_ranks: int) -> Network:
    if isinstance(network, Network):
        graph = network
    elif network is None:
        graph = Network("complete", n_nodes=n_nodes or n_ranks)
    else:
        try:
            graph = Network(network)
        except InputError:  # a name without sizes
            graph = Network(network, n_nodes=n_nodes or n_ranks)
    if n_nodes is not None and graph.n_nodes != n_nodes:
        raise InputError(
            f"the network has {graph.n_nodes} nodes and the {n_ranks} ranks hold {n_nodes} shards together: "
            "start as many ranks as the shards need, or give the network that links them"
        )
    return graph


def _read(shards: Any, block: np.ndarray, nodes: Sequence[int] | None) -> list[tuple[Any, ...]]:
    """Return this rank's shards in the order of its nodes."""
    if callable(shards):
        given = [shards(int(node)) for node in block]
    else:
        order = range(len(shards)) if nodes is None else np.argsort(np.asarray(nodes))
        given = [shards[k] for k in order]
    parts = []
    for node, shard in zip(block, given, strict=True):
        if len(shard) not in (2, 3):
            raise InputError(
                f"the shard of node {node} must be (X, y) or (X, y, weights), got {len(shard)} parts"
            )
        parts.append((as_rows(shard[0], f"the X of node {node}"), *shard[1:]))
    return parts


def _same_width(
    team: Team, problem: Problem | GeneralProblem, n_features: int | None
) -> Problem | GeneralProblem:
    """Give a rank's problem the width of the widest."""
    loss = problem.loss if isinstance(problem, Problem) else "general terms"
    same_everywhere(team, {"the loss": repr(loss)})
    cards = team.gather_all([problem.n_features, problem.n_samples], "to compare the data")
    for rank, (_, samples) in enumerate(cards):
        if samples == 0:
            raise RefusalError(
                f"rank {rank} has no data: every rank needs at least one sample; start fewer ranks"
            )
    width = max([n_features or 0, *(card[0] for card in cards)])
    if isinstance(problem, GeneralProblem):
        if any(card[0] != width for card in cards):
            raise RefusalError("the ranks' general problems have different dimensions; give them the same")
        return problem
    if problem.n_features == width:
        return problem
    shards = [(_widen(X, width), y, weights) for X, y, weights in problem.shards]
    return Problem.from_shards(shards, problem.loss, problem.sigma)


def _widen(X: Any, width: int) -> Any:
    """Add columns of zeros on the right of sparse rows, which may end before the last column."""
    if X.shape[1] == width:
        return X
    if not sparse(X):
        raise InputError(
            f"a dense shard has {X.shape[1]} columns and there are {width}; give all shards the same columns"
        )
    return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], width))


def _two_classes(labels: list[Any]) -> list[Any] | None:
    """Return the two labels of all ranks, the one for −1 first; None when they are ±1 already."""
    union = sorted(set(labels))
    if set(union) <= {-1, 1}:
        return None
    if len(union) != 2:
        raise RefusalError(
            f"a classification loss takes two classes and all ranks together have {len(union)} "
            f"({', '.join(map(str, union[:6]))}); pick two, or give labels -1 and 1"
        )
    return union


def _signs(y: Any, classes: list[Any] | None) -> np.ndarray:
    return np.asarray(y) if classes is None else np.where(np.asarray(y) == classes[1], 1.0, -1.0)


# --------------------------------------------------------------------------- the few numbers


def gather_summary(team: Team, problem: Problem | GeneralProblem, sums: TeamSums) -> NodeSummary:
    """Return the summary of all nodes: a few numbers each, never the data."""
    if problem.active.any():
        own = together(team, "to sum up the data", lambda: summarize(problem), READING)
    else:  # some rank may hold nothing but constants
        own = together(team, "to sum up the data", lambda: _constants(problem), READING)
    sums.why = "to sum up the data"
    fields = {item.name: getattr(own, item.name) for item in dataclasses.fields(own)}
    found = {name: sums.collect(values).astype(values.dtype) for name, values in fields.items()}
    if not found["n_active"].any():
        raise RefusalError(
            "every sample of every rank is a zero row or has weight zero: theta = 0 is the minimiser"
        )
    return NodeSummary(**found)


def _constants(problem: Problem | GeneralProblem) -> NodeSummary:
    zero = np.zeros(problem.n_nodes)
    return NodeSummary(
        **vars(node_sizes(problem)),
        sigma=problem.sigma,
        kappa=zero,
        batch_kappa=zero,
        root_sums=zero,
        largest_smoothness=zero,
    )


def adopt(team: Team, record: Any) -> Any:
    """Return rank 0's constants: eigenvalues may differ in their last bit between machines."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        same_everywhere(team, {"the parameters": describe(record)})
        return record
    why = "to share the parameters"
    changed: dict[str, Any] = {}
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            shared = np.array(value)
            team.spread(shared, why)
            changed[item.name] = shared
        elif isinstance(value, float):
            number = np.array([value])
            team.spread(number, why)
            changed[item.name] = float(number[0])
    adopted: Any = dataclasses.replace(record, **changed)
    same_everywhere(team, {"the parameters": describe(adopted)})
    return adopted
