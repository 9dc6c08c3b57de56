"""Methods in rounds: the processes that all nodes go through together, and the draws of their rounds."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from adfs.algorithms.base import Method, P, Process, Setting, Work
from adfs.algorithms.costs import RoundEffort
from adfs.algorithms.method_kernels import Parts, RoundKernels, go_on, run_rounds
from adfs.compilation import compiled, kernel
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import inner_product
from adfs.problem.samples import SparseRows
from adfs.schedule import AliasTables
from adfs.schedule.sampling import Domain, draw_pairs, draw_sample, philox
from adfs.theory import NodeSizes

_LOW = np.uint64(0xFFFFFFFF)
_11, _32 = np.uint64(11), np.uint64(32)
_COIN, _SAMPLE = np.uint64(Domain.ROUND_COIN), np.uint64(Domain.ROUND_SAMPLE)
#: Samples that a window of rounds draws together, few enough to stay in the fastest cache.
_WINDOW = 2048


class Gossip(Protocol):
    """Products and sums over the nodes, which a runtime supplies to rounds.

    ``rows`` is the gossip matrix where all nodes are in this process: a compiled loop needs nothing else.
    """

    @property
    def rows(self) -> SparseRows | None: ...

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the block's rows of the matrix product, from the block's values (k, …)."""

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes in their order, (d,), from the block's values (k, d)."""

    def least(self, value: float) -> float:
        """Return the smallest of the values of all processes."""


@cache
def no_gossip(n: int) -> sp.csr_array:
    """Return the gossip matrix (n, n) of rounds that only take sums over all nodes."""
    return sp.csr_array((n, n))


class RoundProcess(Process):
    """All nodes go from round to round together.

    A method defines a round by two compiled functions (``kernels``) of one named tuple (``parts``). A method
    without them defines `round` itself and runs interpreted.

    Attributes
    ----------
    gossip_matrix : csr_array of shape (n, n)
        The matrix of the runtime's products. None is given for rounds that take sums over all nodes.
    sums : bool
        Whether the kernels take sums over all nodes in place of products.
    message_shape : tuple
        (k, d) of the values that the kernels write.
    messages_per_product, samples_per_round : int
        The messages of the block's nodes in one product or sum, and the samples that they process in a round.
    either : bool
        Whether a round has either samples or a product.
    """

    kernels: ClassVar[RoundKernels | None] = None
    parts: Parts = ()
    sums: ClassVar[bool] = False
    either: bool = False

    def __init__(self, setting: Setting, gossip_matrix: sp.csr_array | None = None) -> None:
        self.problem, self.samples = setting.problem, setting.problem.samples
        self.message_shape = (self.problem.n_nodes, self.problem.n_features)
        self.samples_per_round = int(self.problem.n_samples)
        if gossip_matrix is None:
            self.gossip_matrix = no_gossip(setting.network.n_nodes)
            # Up a spanning tree and down again: every node but node 0, the root, sends a message each way.
            self.messages_per_product = 2 * int(np.count_nonzero(setting.block))
        else:
            # A node sends its values to all nodes whose rows have an entry in its column.
            self.gossip_matrix = sp.csr_array(gossip_matrix)
            neighbours = np.diff(self.gossip_matrix.indptr) - (self.gossip_matrix.diagonal() != 0.0)
            self.messages_per_product = int(neighbours[setting.block].sum())

    def count(self, rounds: int, products: int) -> None:
        """Add to the work done."""
        with_samples = rounds - products if self.either else rounds
        computations = self.work.computations + with_samples * self.samples_per_round
        messages = self.work.messages + products * self.messages_per_product
        self.work = Work(computations, messages, messages * self.message_shape[1])

    def count_sum(self, up: int, down: int) -> None:
        """Add a sum over all nodes to the work done, with the numbers in a message each way."""
        # Every node but the root sends one message up the tree and gets one down.
        nodes = self.messages_per_product // 2
        numbers = self.work.numbers + nodes * (up + down)
        self.work = Work(self.work.computations, self.work.messages + 2 * nodes, numbers)

    def draw_samples(self, setting: Setting, weights: np.ndarray, p_gossip: float = 0.0) -> RoundWindow:
        """Return the draws of a sample per round and node, by weights of the rows (N,), 0 for never."""
        tables = AliasTables.build(weights, self.problem.node_starts, node_ids=setting.block)
        self.samples_per_round = int(np.count_nonzero(tables.drawable))
        self.either = p_gossip > 0.0
        return round_window(setting.seed, tables, p_gossip)

    def round(self, gossip: Gossip) -> None:
        """Do one round."""
        raise NotImplementedError(f"{type(self).__name__} has neither `kernels` nor its own `round`")

    def run(self, gossip: Gossip, last: float) -> None:
        """Do rounds until the position is at least ``last``."""
        if self.kernels is None:
            while self.position < last:
                self.round(gossip)
            return
        # Compiled: one loop if all nodes are here, otherwise one call from a product to the next.
        t, stop = int(self.position), math.ceil(last)
        out, received = np.empty(self.message_shape), np.empty(self.message_shape)
        products = 0
        if gossip.rows is not None:
            products = run_rounds(self.parts, gossip.rows, self.sums, t, stop, (out, received))
        else:
            t = go_on(self.parts, t, stop, out, received, False)
            while t < stop:
                received[...] = gossip.total(out) if self.sums else gossip(out)
                products += 1
                t = go_on(self.parts, t, stop, out, received, True)
        # Rounds that an earlier call has begun count where they end.
        self.count(max(0, stop - int(self.position)), products)
        self.position = max(self.position, float(stop))


class PrimalProcess(Process):
    """A process whose nodes all hold the same θ; dual variables follow from it, s = wℓ'(xᵀθ).

    Certificates are of that θ, where the gap is ‖∇F‖²/(2Σσ) without an ℓ1 term.

    Attributes
    ----------
    problem : FiniteSum
        The nodes of this process.
    point, gradient : ndarray of shape (d,)
        θ, and ∇F there (without an ℓ1 term), 0 until it is known; not copies. The gradient is the same in
        every process.
    """

    problem: FiniteSum
    point: np.ndarray
    gradient: np.ndarray

    @property
    @abstractmethod
    def value(self) -> float:
        """F at the point, the same in every process; 0 until it is known."""

    def expected_gap(self, total_sigma: float, lengths: np.ndarray | None = None) -> float:
        """Return the gap that ∇F promises, ‖∇F‖²/(2Σσ), rounding not counted; infinite without a ∇F.

        ``lengths`` (d,) multiply the entries of ∇F, if not all count alike.
        """
        gradient = self.gradient if lengths is None else lengths * self.gradient
        square = inner_product(gradient, gradient)
        return math.inf if square == 0.0 and self.position == 0.0 else square / (2.0 * total_sigma)

    def primal(self, read: str = "x") -> np.ndarray:
        return np.tile(self.point, (self.problem.n_nodes, 1))

    def dual(self) -> np.ndarray | None:
        return self.problem.clip_to_domain(self.problem.slopes(self.point), in_place=True)


# --------------------------------------------------------------------------- random draws of rounds


@compiled
def round_coin(key: np.uint64, t: np.uint64) -> float:
    """Return the uniform number in [0, 1) that all nodes share in round t."""
    w0, w1, _, _ = philox(t & _LOW, t >> _32, np.uint64(0), _COIN, key & _LOW, key >> _32)
    return float(((w0 << _32) | w1) >> _11) * 2.0**-53


class RoundWindow(NamedTuple):
    """The draws of some successive rounds, and the tables they come from; see `draw_rounds`.

    Attributes
    ----------
    key : uint64
        The seed.
    p_gossip : float
        The probability of a round of gossip, which draws no samples.
    packed, node_starts : ndarray
        The alias tables of the block's nodes.
    places, names : (a,) int64 and uint64
        The nodes that can draw: their places in the process's block, and their numbers in the network.
    bounds : (2,) int64
        The first round of the window, and the first one after it.
    gossips : (w,) bool
        Which of the rounds are gossip.
    starts : (w + 1,) int64
        The draws of the r-th round are number ``starts[r]`` … ``starts[r + 1] − 1``.
    nodes, actors, samples : (w·a,) int32, int32 and int64
        For each draw, the node's place in the block, its number in the network, and the row.
    counters, bits : (w·(a or 1),) uint64
        Working memory.
    """

    key: np.uint64
    p_gossip: float
    packed: NDArray[np.uint64]
    node_starts: NDArray[np.int64]
    places: NDArray[np.int64]
    names: NDArray[np.uint64]
    bounds: NDArray[np.int64]
    gossips: NDArray[np.bool_]
    starts: NDArray[np.int64]
    nodes: NDArray[np.int32]
    actors: NDArray[np.int32]
    samples: NDArray[np.int64]
    counters: NDArray[np.uint64]
    bits: NDArray[np.uint64]


@kernel
def draw_rounds(window: RoundWindow, first: int) -> None:
    """Draw the rounds from ``first`` on, as many as the window holds."""
    index, name, rounds = window.counters, window.bits, window.gossips.size
    window.bounds[0] = first
    window.bounds[1] = first + rounds
    # One coin per round decides for all nodes whether it is gossip.
    if window.p_gossip > 0.0:
        for r in range(rounds):
            index[r] = np.uint64(first + r)
            name[r] = np.uint64(0)
        draw_pairs(rounds, _COIN, window.key, index, name)
        for r in range(rounds):
            window.gossips[r] = float(index[r] >> _11) * 2.0**-53 < window.p_gossip
    # In every other round each node draws a sample, from a counter of the round and the node alone.
    count = 0
    for r in range(rounds):
        window.starts[r] = count
        if not window.gossips[r]:
            for k in range(window.places.size):
                index[count] = np.uint64(first + r)
                name[count] = window.names[k] << _32
                window.nodes[count] = window.places[k]
                window.actors[count] = window.names[k]
                count += 1
    window.starts[rounds] = count
    draw_pairs(count, _SAMPLE, window.key, index, name)
    for e in range(count):
        window.samples[e] = draw_sample(
            index[e], window.packed, window.node_starts, np.uint64(window.nodes[e])
        )


@kernel
def round_draws(window: RoundWindow, t: int) -> tuple[int, int]:
    """Return the number of the first draw of round t, and of the first one after it."""
    # The draws of many rounds are made at once: they do not depend on the iterates.
    if not window.bounds[0] <= t < window.bounds[1]:
        draw_rounds(window, t)
    r = t - window.bounds[0]
    return window.starts[r], window.starts[r + 1]


def round_window(seed: int, tables: AliasTables, p_gossip: float = 0.0) -> RoundWindow:
    """Return a window for rounds of about two thousand samples, to be filled by `draw_rounds`.

    The draws of round t are a function of (seed, t) and of (seed, node, t) alone.

    Parameters
    ----------
    seed : int
    tables : AliasTables
        The tables of the nodes that a process holds.
    p_gossip : float
        The probability of a round of gossip.
    """
    # Nodes without a positive weight never draw.
    places = np.flatnonzero(tables.drawable)
    rounds = max(1, _WINDOW // max(1, places.size))
    draws = rounds * places.size
    return RoundWindow(
        key=np.uint64(seed),
        p_gossip=float(p_gossip),
        packed=tables.packed,
        node_starts=tables.node_starts,
        places=places,
        names=tables.node_ids[places].astype(np.uint64),
        bounds=np.zeros(2, dtype=np.int64),
        gossips=np.zeros(rounds, dtype=np.bool_),
        starts=np.zeros(rounds + 1, dtype=np.int64),
        nodes=np.zeros(draws, dtype=np.int32),
        actors=np.zeros(draws, dtype=np.int32),
        samples=np.zeros(draws, dtype=np.int64),
        counters=np.zeros(max(draws, rounds), dtype=np.uint64),
        bits=np.zeros(max(draws, rounds), dtype=np.uint64),
    )


class SampleRounds(Method[P]):
    """A method in whose rounds every node that has samples goes through one of them.

    With a ``p_comm`` in the constants, all nodes share a coin: a round has either samples or gossip.
    """

    kind: ClassVar[str] = "rounds"

    def position_of(self, parameters: P, sizes: NodeSizes, passes: float) -> float:
        # Only rounds of samples count, each with one sample at every node that has any.
        with_samples = 1.0 - getattr(parameters, "p_comm", 0.0)
        a_round = with_samples * float(np.count_nonzero(sizes.n_active > 0))
        return passes * float(sizes.n_samples.sum()) / a_round

    def effort(self, parameters: P, sizes: NodeSizes, network: Network) -> RoundEffort:
        p_comm = getattr(parameters, "p_comm", None)
        each = (sizes.n_active > 0).astype(np.int64)
        return RoundEffort(each, gossip_first=p_comm is None, gossip_probability=p_comm)
