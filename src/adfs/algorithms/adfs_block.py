"""Block-synchronous ADFS: the same dual and the same steps, taken by all nodes together.

At each step a coin that all nodes share says whether every node does one sample, or all do one gossip round.
The literal twin is :class:`LiteralBlockAdfs`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.adfs import (
    AdfsConstants,
    AdfsParts,
    AdfsState,
    adfs_parts,
    bounded_log,
    center_iterates,
    compute,
    decay,
    node_constants,
    tip_scalars,
)
from adfs.algorithms.base import (
    Gossip,
    Method,
    RoundEffort,
    RoundProcess,
    Setting,
    Work,
    block_slots,
    register_method,
)
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Problem
from adfs.problem.evaluation import sampling_weights
from adfs.schedule import AliasTables, RoundDraws
from adfs.theory import BlockParameters, NodeSizes

__all__ = ["AdfsBlock", "AdfsBlockProcess", "BlockState", "LiteralBlockAdfs"]


class BlockState(NamedTuple):
    """x and v of the centres (n, d), and of the tips (N,) as multiples of their rows."""

    x: np.ndarray
    v: np.ndarray
    tip_x: np.ndarray
    tip_v: np.ndarray


class LiteralBlockAdfs:
    """The same, literally: x, y and v mixed at every step, on dense rows.

    Algorithm
        y = (x + ρv)/(1 + ρ), w = (1 − ρ)v + ρy. Gossip: Δ = −(ρ/(σ_A p_comm)) Lap D⁻¹y at the centres, χ =
        ρ/p_comm. Samples: at each node the step of ADFS with p_ij = p_comp π_ij. Then v⁺ = w + Δ and x⁺ = y +
        χΔ.
    """

    def __init__(self, problem: Problem, network: Network, parameters: BlockParameters) -> None:
        self.problem = problem
        self.smoothness = problem.smoothness
        self.laplacian = network.laplacian().toarray()
        self.parameters = parameters

    def start(self) -> BlockState:
        """Return zero everywhere."""
        n, d, m = self.problem.n_nodes, self.problem.n_features, self.problem.n_samples
        return BlockState(np.zeros((n, d)), np.zeros((n, d)), np.zeros(m), np.zeros(m))

    def step(self, state: BlockState, samples: np.ndarray | None) -> BlockState:
        """Return the state after a gossip round (``samples`` None) or after one sample at every node."""
        p, rho = self.parameters, self.parameters.contraction
        y, tip_y = (state.x + rho * state.v) / (1 + rho), (state.tip_x + rho * state.tip_v) / (1 + rho)
        w, tip_w = (1 - rho) * state.v + rho * y, (1 - rho) * state.tip_v + rho * tip_y
        sigma = self.problem.sigma[:, None]
        if samples is None:
            change = -(rho / (p.dual_curvature * p.p_comm)) * (self.laplacian @ (y / sigma))
            return BlockState(y + rho / p.p_comm * change, w + change, tip_y, tip_w)
        x, v, tip_x, tip_v = y.copy(), w.copy(), tip_y.copy(), tip_w.copy()
        for node, row in enumerate(samples):
            if row < 0:
                continue
            term, smoothness = self.problem.term(int(row)), self.smoothness[row]
            share = np.sqrt(1 + smoothness / self.problem.sigma[node]) / p.root_sums[node]
            probability = (1 - p.p_comm) * share
            eta = rho * p.virtual_weight * smoothness / (p.dual_curvature * probability)
            pull = y[node] / self.problem.sigma[node] - tip_y[row] * term.x / smoothness
            moved = term.dual_prox(tip_w[row] * term.x + eta * pull, eta, smoothness)
            change = float(moved @ term.x) / term.norm_squared - tip_w[row]
            chi = rho / probability
            tip_v[row] += change
            tip_x[row] += chi * change
            v[node] -= change * term.x
            x[node] -= chi * change * term.x
        return BlockState(x, v, tip_x, tip_v)


@kernel
def _all_compute(parts: AdfsParts, drawn: np.ndarray, time: float) -> None:
    """One sample at every node that has any."""
    for i in range(drawn.size):
        if drawn[i] >= 0:
            compute(parts, np.uint64(i), np.uint64(drawn[i]), time)


@kernel
def _all_iterates(parts: AdfsParts, time: float, out: np.ndarray) -> None:
    """Bring all nodes to a time and write x_i/σ_i, ``out`` (k, d)."""
    constants, state = parts.constants, parts.state
    for i in range(out.shape[0]):
        half = 0.5 * decay(parts, i, time)
        for k in range(out.shape[1]):
            pair = state.centers[i, k]
            out[i, k] = (pair.real - half * pair.imag) * constants.nodes[i, 0]


@kernel
def _all_move(state: AdfsState, step: float, mixing: float, pulls: np.ndarray) -> None:
    """Move all centres by −step·pull."""
    to_mean = 0.5 * (1.0 + mixing) * step
    for i in range(pulls.shape[0]):
        to_lag = (1.0 - mixing) * step / state.clocks[i, 0]
        for k in range(pulls.shape[1]):
            pair = state.centers[i, k]
            state.centers[i, k] = complex(pair.real - to_mean * pulls[i, k], pair.imag - to_lag * pulls[i, k])


class AdfsBlockProcess(RoundProcess):
    """Block-synchronous ADFS in progress over a block of nodes."""

    def __init__(self, setting: Setting[BlockParameters]) -> None:
        super().__init__()
        problem, parameters, block = setting.problem, setting.parameters, setting.block
        self.problem = problem
        self.parameters = parameters
        self.gossip_matrix = sp.csr_array(setting.network.laplacian())
        self.degree_sum = int(setting.network.degrees[block].sum())
        self.constants = AdfsConstants(
            log_decay=bounded_log(parameters.log_decay),
            beta=problem.samples.loss.beta,
            nodes=node_constants(
                parameters.sigma[block],
                parameters.root_sums[block],
                np.full(block.size, parameters.contraction / (1.0 - parameters.p_comm)),
                np.full(block.size, parameters.virtual_weight / parameters.dual_curvature),
            ),
            edge_step=np.empty(0),
            edge_mixing=np.empty(0),
            ends=setting.network.ends,
            slot=block_slots(setting.network, block),
        )
        sigma = parameters.sigma[block]
        roots = sampling_weights(problem.smoothness, problem.active, problem.offsets, sigma)
        self.draws = RoundDraws(setting.seed, AliasTables.build(roots, problem.offsets, node_ids=block))
        self.parts = adfs_parts(problem, self.constants)
        self.state = self.parts.state

    def round(self, gossip: Gossip) -> None:
        t = int(self.position)
        time = t + 1.0
        problem, done = self.problem, self.work
        if self.draws.coin(t) < self.parameters.p_comm:
            iterates = np.empty((problem.n_nodes, problem.n_features))
            _all_iterates(self.parts, time, iterates)
            rho, p_comm = self.parameters.contraction, self.parameters.p_comm
            step = rho / (self.parameters.dual_curvature * p_comm)
            _all_move(self.state, step, rho / p_comm, gossip(iterates))
            messages = done.messages + self.degree_sum
            self.work = Work(done.computations, messages, messages * problem.n_features)
        else:
            drawn = self.draws.samples(t)
            _all_compute(self.parts, drawn, time)
            self.work = done._replace(computations=done.computations + int(np.count_nonzero(drawn >= 0)))
        self.position = time

    def primal(self, read: str = "x") -> np.ndarray:
        return center_iterates(self.constants, self.state, self.position, read)

    def dual(self) -> np.ndarray:
        return tip_scalars(self.parts, self.position, -1.0)

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict()


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
    kind = "rounds"

    record = BlockParameters
    choices = MappingProxyType(
        {"tuned": lambda problem, network, tau: BlockParameters.tuned(problem, network, tau=tau)}
    )

    def effort(self, parameters: BlockParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort((sizes.n_active > 0).astype(np.int64), gossip_probability=parameters.p_comm)

    def start(self, setting: Setting[BlockParameters]) -> AdfsBlockProcess:
        return AdfsBlockProcess(setting)

    def position_of(self, parameters: BlockParameters, sizes: NodeSizes, passes: float) -> float:
        a_round = (1.0 - parameters.p_comm) * float(np.count_nonzero(sizes.n_active > 0))
        return float(passes * sizes.n_samples.sum() / a_round)


register_method(AdfsBlock())
