"""Processes that go in rounds, and what they share: gradients of the nodes' objectives, one sample's prox."""

from __future__ import annotations

import math
from functools import cache
from typing import ClassVar, Protocol

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Process, Setting, Work
from adfs.algorithms.method_kernels import Parts, RoundKernels, go_on, run_rounds
from adfs.compilation import inlined, kernel
from adfs.problem import Samples
from adfs.problem.losses import Loss, derivative, dual_prox
from adfs.problem.samples import Label, SparseRows, label_at, row_column, row_entry, row_span


class Gossip(Protocol):
    """What a runtime supplies to methods that go in rounds.

    Attributes
    ----------
    rows : SparseRows or None
        The whole gossip matrix, where all nodes are in this process: a compiled loop needs nothing else.
    """

    @property
    def rows(self) -> SparseRows | None: ...

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the block's rows of the matrix product, from the block's values (k, …)."""

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes in their order, (d,), from the block's values (k, d)."""

    def least(self, value: float) -> float:
        """Return the smallest of the values of all blocks."""


@cache
def no_gossip(n: int) -> sp.csr_array:
    """Return the gossip matrix (n, n) of rounds that do no more than sum over all nodes."""
    return sp.csr_array((n, n))


class RoundProcess(Process):
    """All nodes go from round to round together.

    A method says what a round does by two compiled functions (``kernels``) of one named tuple (``parts``),
    and what it took by `count`; one without them defines `round` itself and runs interpreted.

    Attributes
    ----------
    gossip_matrix : csr_array of shape (n, n)
        The matrix whose product the runtime supplies, rows of the block's nodes times values of all.
    kernels : RoundKernels or None
    parts : tuple
        A named tuple of all that the kernels need.
    sums : bool
        Whether the kernels want sums over all nodes in place of products.
    message_shape : tuple
        (k, d) of the values that the kernels write.
    """

    gossip_matrix: sp.csr_array
    kernels: ClassVar[RoundKernels | None] = None
    parts: Parts = ()
    sums: ClassVar[bool] = False
    message_shape: tuple[int, int] = (0, 0)

    def count(self, rounds: int, products: int) -> None:
        """Add to the work done."""
        raise NotImplementedError(f"{type(self).__name__} has `kernels` and no `count`")

    def round(self, gossip: Gossip) -> None:
        """Do one round."""
        raise NotImplementedError(f"{type(self).__name__} has neither `kernels` nor its own `round`")

    def run(self, gossip: Gossip, last: float) -> None:
        """Do rounds until the position is at least ``last``."""
        if self.kernels is None:
            while self.position < last:
                self.round(gossip)
            return
        t, stop = int(self.position), math.ceil(last)
        out, heard = np.empty(self.message_shape), np.empty(self.message_shape)
        products = 0
        if gossip.rows is not None:
            products = run_rounds(self.parts, gossip.rows, self.sums, t, stop, (out, heard))
        else:
            t = go_on(self.parts, t, stop, out, heard, False)
            while t < stop:
                heard[...] = gossip.total(out) if self.sums else gossip(out)
                products += 1
                t = go_on(self.parts, t, stop, out, heard, True)
        self.count(max(0, stop - int(self.position)), products)
        self.position = max(self.position, float(stop))


@kernel
def node_gradients(samples: Samples, sigma: np.ndarray, theta: np.ndarray, out: np.ndarray) -> None:
    """Write ∇f_i(θ_i) = Σ_j w_ij ℓ'(x_ijᵀθ_i) x_ij + σ_iθ_i for each node, ``theta`` and ``out`` (k, d)."""
    rows, node_starts = samples.rows, samples.node_starts
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = sigma[i] * theta[i, k]
        for j in range(node_starts[i], node_starts[i + 1]):
            start, stop = row_span(rows, j)
            margin = 0.0
            for k in range(start, stop):
                margin += row_entry(rows, j, k) * theta[i, row_column(rows, j, k)]
            pull = samples.weights[j] * derivative(samples.loss, margin, label_at(samples.y, j))
            for k in range(start, stop):
                out[i, row_column(rows, j, k)] += pull * row_entry(rows, j, k)


@inlined
def prox_slope(loss: Loss, beta: float, target: float, step: float, b: Label, start: float) -> float:
    """Return ℓ'(u) at the root of u + step·ℓ'(u) = target: the prox of any smooth ℓ, through its dual."""
    h = 1.0 / (step + 1.0 / beta)
    return dual_prox(loss, target * h, h, b, start)


def literal_prox_slope(loss: Loss, target: float, step: float, b: Label) -> float:
    """Return the same by bisection, for the literal forms."""

    def excess(u: float) -> float:
        return u + step * derivative(loss, u, b) - target

    reach = 1.0
    while excess(target - reach) > 0.0 or excess(target + reach) < 0.0:
        reach *= 2.0
    low, high = target - reach, target + reach
    for _ in range(200):
        u = 0.5 * (low + high)
        low, high = (low, u) if excess(u) > 0.0 else (u, high)
    return derivative(loss, 0.5 * (low + high), b)


@inlined
def extrapolate(now: np.ndarray, before: np.ndarray, out: np.ndarray) -> None:
    """Write 2·now − before, all (k, d)."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = 2.0 * now[i, k] - before[i, k]


class LocalRounds(RoundProcess):
    """A round-driven method over a block of nodes: its data, its gossip matrix and its counters.

    All nodes of the block go through ``samples_per_round`` and send ``messages_per_product``.
    """

    def __init__(self, setting: Setting, gossip_matrix: sp.csr_array | None = None) -> None:
        super().__init__()
        self.problem, self.samples = setting.problem, setting.problem.samples
        self.message_shape = (self.problem.n_nodes, self.problem.n_features)
        if gossip_matrix is None:  # sums over all nodes
            self.gossip_matrix = no_gossip(setting.network.n_nodes)
            # Up a spanning tree and down again, every node but its root has a message each way.
            self.messages_per_product = 2 * int(np.count_nonzero(setting.block))
        else:
            self.gossip_matrix = sp.csr_array(gossip_matrix)
            own = np.diff(self.gossip_matrix.indptr) - (self.gossip_matrix.diagonal() != 0.0)
            self.messages_per_product = int(own[setting.block].sum())
        self.samples_per_round = int(self.problem.n_samples)

    def count(self, rounds: int, products: int) -> None:
        computations = self.work.computations + rounds * self.samples_per_round
        messages = self.work.messages + products * self.messages_per_product
        self.work = Work(computations, messages, messages * self.message_shape[1])
