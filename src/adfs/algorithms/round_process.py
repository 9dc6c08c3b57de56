"""Methods in rounds: the processes that all nodes go through together."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache
from typing import ClassVar, Protocol

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Process, Setting, Work
from adfs.algorithms.method_kernels import Parts, RoundKernels, go_on, run_rounds
from adfs.problem import FiniteSum
from adfs.problem.samples import SparseRows


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
    """

    kernels: ClassVar[RoundKernels | None] = None
    parts: Parts = ()
    sums: ClassVar[bool] = False

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
        computations = self.work.computations + rounds * self.samples_per_round
        messages = self.work.messages + products * self.messages_per_product
        self.work = Work(computations, messages, messages * self.message_shape[1])

    def count_sum(self, up: int, down: int) -> None:
        """Add a sum over all nodes to the work done, with the numbers in a message each way."""
        # Every node but the root sends one message up the tree and gets one down.
        nodes = self.messages_per_product // 2
        numbers = self.work.numbers + nodes * (up + down)
        self.work = Work(self.work.computations, self.work.messages + 2 * nodes, numbers)

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

    Certificates are of that θ, where the gap is ‖∇F‖²/(2Σσ).

    Attributes
    ----------
    problem : FiniteSum
        The nodes of this process.
    point, gradient : ndarray of shape (d,)
        θ, and ∇F there, 0 until it is known; not copies. The gradient is the same in every process.
    """

    problem: FiniteSum
    point: np.ndarray
    gradient: np.ndarray

    @property
    @abstractmethod
    def value(self) -> float:
        """F at the point, the same in every process; 0 until it is known."""

    def primal(self, read: str = "x") -> np.ndarray:
        return np.tile(self.point, (self.problem.n_nodes, 1))

    def dual(self) -> np.ndarray | None:
        return self.problem.clip_to_domain(self.problem.slopes(self.point), in_place=True)
