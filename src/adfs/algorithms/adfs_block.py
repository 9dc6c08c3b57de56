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
from adfs.algorithms.base import Setting
from adfs.algorithms.costs import Cost, inverse_rate, split_cost
from adfs.algorithms.method_kernels import RoundKernels, fetch_early, fetch_late, register_kernels
from adfs.algorithms.round_process import RoundProcess, RoundWindow, SampleRounds, round_draws
from adfs.compilation import AHEAD, inlined, kernel
from adfs.network import Network
from adfs.problem.evaluation import sampling_weights
from adfs.problem.gaps import shrunk
from adfs.theory import BlockParameters, Facts


class BlockParts(NamedTuple):
    """The arguments of the kernels; ``step`` and ``mixing`` are those of a gossip round."""

    adfs: AdfsParts
    window: RoundWindow
    step: float
    mixing: float


@inlined
def _all_compute(parts: AdfsParts, window: RoundWindow, first: int, last: int, time: float) -> None:
    """Do one sample at every node that has any, and prefetch the rows of the coming rounds."""
    for e in range(first, last):
        if e + 2 * AHEAD < window.starts[window.gossips.size]:
            fetch_early(parts.samples, parts.state.duals, window.samples[e + 2 * AHEAD])
            fetch_late(parts, window.actors[e + AHEAD], window.samples[e + AHEAD])
        compute(parts, np.uint64(window.nodes[e]), np.uint64(window.samples[e]), time)


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
        first, stop = round_draws(window, t)
        if window.gossips[t - window.bounds[0]]:
            _all_iterates(parts.adfs, t + 1.0, out)
            return t
        _all_compute(parts.adfs, window, first, stop, t + 1.0)
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
        window = self.draw_samples(setting, roots, p_comm)
        # Without gossip (a single node) its constants are never used.
        step = rho / (parameters.dual_curvature * p_comm) if p_comm > 0.0 else 0.0
        gossip_mixing = rho / p_comm if p_comm > 0.0 else 0.0
        self.parts = BlockParts(self.adfs, window, step, gossip_mixing)


class AdfsBlock(SampleRounds[BlockParameters]):
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
    unbounded_curvature = True
    l1 = True
    stages = "adaptive"

    record, process = BlockParameters, AdfsBlockProcess
    choices = MappingProxyType(dict.fromkeys(("tuned", "adaptive", "adaptive-safe"), BlockParameters.tuned))

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # As for ADFS, but all nodes compute at once, and all of them gossip at once.
        def parts(facts: Facts) -> tuple[float, float]:
            summary = facts.summary(network.n_nodes)
            # Theory has the largest S_i, but the samples of smaller nodes converge sooner: the mean of S_i
            # over all samples is nearer to runs.
            roots = summary.root_sums
            samples = float(roots @ roots) / float(roots.sum())
            if network.n_nodes == 1:
                return samples, 0.0
            return inverse_rate(samples, 1.0 / network.gamma, float(summary.batch_kappa.mean()), tau)

        factor = self.observed_factor * math.log(1.0 / tol)
        return split_cost(facts, factor, parts, network.n_nodes, network.n_edges)
