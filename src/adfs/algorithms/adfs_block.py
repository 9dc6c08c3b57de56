"""Block-synchronous ADFS: the same dual and the same steps, taken by all nodes together.

At each step a coin that all nodes share decides: every node does one sample, or all do one gossip round.
The tests hold it to a literal twin.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.adfs import LagProcess
from adfs.algorithms.adfs_kernels import AdfsParts, adfs_parts, compute, decay
from adfs.algorithms.base import Method, Setting
from adfs.algorithms.costs import UNKNOWN, Cost, RoundEffort, dual_cost, dual_gain, inverse_rate
from adfs.algorithms.method_kernels import RoundKernels, fetch_early, fetch_late, register_kernels
from adfs.algorithms.round_process import RoundProcess, RoundWindow, draw_rounds, round_window
from adfs.compilation import AHEAD, inlined, kernel
from adfs.network import Network
from adfs.problem.evaluation import sampling_weights
from adfs.problem.gaps import shrunk
from adfs.schedule import AliasTables
from adfs.theory import BlockParameters, Facts, NodeSizes


class BlockParts(NamedTuple):
    """The arguments of the kernels; ``step`` and ``mixing`` are those of a gossip round."""

    adfs: AdfsParts
    window: RoundWindow
    step: float
    mixing: float


@inlined
def _all_compute(parts: AdfsParts, window: RoundWindow, t: int) -> None:
    """Do one sample at every node that has any, and prefetch the rows of the coming rounds."""
    r = t - window.bounds[0]
    last = window.starts[window.gossips.size]
    for e in range(window.starts[r], window.starts[r + 1]):
        if e + 2 * AHEAD < last:
            fetch_early(parts.samples, parts.state.duals, window.samples[e + 2 * AHEAD])
            fetch_late(parts, window.actors[e + AHEAD], window.samples[e + AHEAD])
        compute(parts, np.uint64(window.nodes[e]), np.uint64(window.samples[e]), t + 1.0)


@inlined
def _all_iterates(parts: AdfsParts, time: float, out: np.ndarray) -> None:
    """Bring all nodes to a time and write x_i/σ_i, ``out`` (k, d)."""
    constants, state = parts.constants, parts.state
    for i in range(out.shape[0]):
        half = 0.5 * decay(parts, i, time)
        # Without fma, unlike the exchange of ADFS: the bits of recorded runs.
        for k in range(out.shape[1]):
            pair = state.centers[i, k]
            at_center = shrunk(constants.penalty, i, k, pair.real - half * pair.imag)
            out[i, k] = at_center * constants.nodes[i, 0]


@kernel
def _begin(parts: BlockParts, t: int, last: int, out: np.ndarray) -> int:
    """Do the samples up to the next gossip round, and write every node's x_i/σ_i there."""
    window = parts.window
    while t < last:
        # The draws of many rounds are made at once.
        if not window.bounds[0] <= t < window.bounds[1]:
            draw_rounds(window, t)
        if window.gossips[t - window.bounds[0]]:
            _all_iterates(parts.adfs, t + 1.0, out)
            return t
        # All rounds up to the next gossip, without leaving this loop.
        stop = min(last, window.bounds[1])
        while t < stop and not window.gossips[t - window.bounds[0]]:
            _all_compute(parts.adfs, window, t)
            t += 1
    return t


@kernel
def _end(parts: BlockParts, t: int, pulls: np.ndarray) -> int:
    """Move all centres by −step·pull."""
    state, step, mixing = parts.adfs.state, parts.step, parts.mixing
    # The jump of c and ê of ADFS, with the product of the Laplacian in place of one difference.
    to_mean = 0.5 * (1.0 + mixing) * step
    for i in range(pulls.shape[0]):
        to_lag = (1.0 - mixing) * step / state.clocks[i, 0]
        for k in range(pulls.shape[1]):
            pair = state.centers[i, k]
            state.centers[i, k] = complex(pair.real - to_mean * pulls[i, k], pair.imag - to_lag * pulls[i, k])
    return t + 1


class AdfsBlockProcess(LagProcess, RoundProcess):
    """Block-synchronous ADFS in progress over a block of nodes."""

    kernels = register_kernels(BlockParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[BlockParameters]) -> None:
        super().__init__(setting, setting.network.laplacian())
        problem, parameters, block = setting.problem, setting.parameters, setting.block
        # The constants of ADFS, with one probability of a computation for all nodes; edges have none.
        sigma, rho, p_comm = parameters.sigma[block], parameters.contraction, parameters.p_comm
        mixing = parameters.root_sums[block] * (rho / (1.0 - p_comm))
        steps = np.full(block.size, parameters.virtual_weight / parameters.dual_curvature)
        self.hold(adfs_parts(setting, mixing, steps, np.empty((0, 2))), problem)
        roots = sampling_weights(problem.smoothness, problem.active, problem.node_starts, sigma)
        tables = AliasTables.build(roots, problem.node_starts, node_ids=block)
        # A round of samples draws one sample at every node that has any.
        self.samples_per_round = int(np.count_nonzero(tables.drawable))
        window = round_window(setting.seed, tables, p_comm)
        # Without gossip (a single node) its constants are never used.
        step = rho / (parameters.dual_curvature * p_comm) if p_comm > 0.0 else 0.0
        gossip_mixing = rho / p_comm if p_comm > 0.0 else 0.0
        self.parts = BlockParts(self.adfs, window, step, gossip_mixing)

    def count(self, rounds: int, products: int) -> None:
        # A round has either samples or a product.
        super().count(rounds - products, products)


class AdfsBlock(Method[BlockParameters]):
    """Block-synchronous ADFS: every node computes one sample, or all gossip once, at each step.

    Guarantee
        Contraction 1 − ρ per step with 1/ρ = max_i S_i/√r + √(λ_max/σ_A).

    References
    ----------
        Hendrikx, Bach, Massoulié, "An optimal algorithm for decentralized finite-sum optimization", arXiv
        2005.10675.
    """

    name = "adfs-block"
    label = "block ADFS"
    warm_starts = True
    observed_factor = 0.6
    kind = "rounds"
    unbounded_curvature = True
    l1 = True
    stages = "adaptive"

    record, process = BlockParameters, AdfsBlockProcess
    choices = MappingProxyType(dict.fromkeys(("tuned", "adaptive", "adaptive-safe"), BlockParameters.tuned))

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # As for ADFS, but all nodes compute at once, and all of them gossip at once.
        if not facts.smooth:
            return UNKNOWN

        def parts(facts: Facts) -> tuple[float, float]:
            summary = facts.summary(network.n_nodes)
            # Theory has the largest S_i, but the samples of smaller nodes converge sooner: the mean of S_i
            # over all samples is nearer to runs.
            roots = summary.root_sums
            samples = float(roots @ roots) / float(roots.sum())
            if network.n_nodes == 1:
                return samples, 0.0
            return inverse_rate(samples, 1.0 / network.gamma, float(summary.batch_kappa.mean()), tau)

        samples, gossips = parts(facts)
        factor = self.observed_factor * math.log(1.0 / tol) * dual_gain(parts, facts)
        computations, messages = factor * samples * network.n_nodes, factor * gossips * 2.0 * network.n_edges
        return dual_cost(facts, factor * (samples + gossips), computations, messages)

    def effort(self, parameters: BlockParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort((sizes.n_active > 0).astype(np.int64), gossip_probability=parameters.p_comm)

    def position_of(self, parameters: BlockParameters, sizes: NodeSizes, passes: float) -> float:
        # Only rounds of samples count, each with one sample at every node that has any.
        a_round = (1.0 - parameters.p_comm) * float(np.count_nonzero(sizes.n_active > 0))
        return float(passes * sizes.n_samples.sum() / a_round)
