"""DSBA: one sample's prox at every node and one gossip round, with a table of past gradients."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Method, Options, RoundEffort, Setting, register_method
from adfs.algorithms.method_kernels import RoundKernels, register_round_kernels
from adfs.algorithms.round_process import LocalRounds, extrapolate, prox_slope
from adfs.compilation import kernel
from adfs.network import Network, lazy_gossip
from adfs.problem import Samples
from adfs.problem.samples import label_at, row_column, row_entry, row_span
from adfs.schedule import AliasTables, RoundDraws, RoundWindow, draw_rounds
from adfs.theory import NodeSizes
from adfs.theory.baselines import DsbaParameters


class DsbaState(NamedTuple):
    """The variables of a block of nodes.

    Attributes
    ----------
    now, before : (k, d)
        z and the one before.
    table : (N,)
        φ: each sample's wℓ' when it was last drawn; 0 before.
    last_row, last_change : (k,)
        The sample each node drew last (−1: none), and by how much its table entry moved then.
    """

    now: np.ndarray
    before: np.ndarray
    table: np.ndarray
    last_row: np.ndarray
    last_change: np.ndarray


class DsbaParts(NamedTuple):
    """All that the kernels below need; ``sizes`` (k,) are the samples that a node draws from."""

    samples: Samples
    sigma: np.ndarray
    sizes: np.ndarray
    beta: float
    step: float
    window: RoundWindow
    state: DsbaState


@kernel
def _begin(parts: DsbaParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        extrapolate(parts.state.now, parts.state.before, out)
    return t


@kernel
def _end(parts: DsbaParts, t: int, mixed: np.ndarray) -> int:
    """One round of every node: ``mixed`` (k, d) holds (I + W)/2·(2z − z before) and is used up."""
    loss, rows, y, weights = parts.samples.loss, parts.samples.rows, parts.samples.y, parts.samples.weights
    sigma, sizes, step, state = parts.sigma, parts.sizes, parts.step, parts.state
    window = parts.window
    if not window.bounds[0] <= t < window.bounds[1]:
        draw_rounds(window, t)
    draw = window.starts[t - window.bounds[0]]
    drawn_up_to = window.starts[t - window.bounds[0] + 1]
    d = mixed.shape[1]
    for i in range(mixed.shape[0]):
        m = float(sizes[i])
        shrink = 1.0 / (1.0 + step * sigma[i])
        psi = mixed[i]
        for k in range(d):
            psi[k] += step * sigma[i] * state.now[i, k]
        row = state.last_row[i]
        if row >= 0:
            push = step * (m - 1.0) * state.last_change[i]
            start, stop = row_span(rows, row)
            for k in range(start, stop):
                psi[row_column(rows, row, k)] += push * row_entry(rows, row, k)
        j = np.int64(-1)
        if draw < drawn_up_to and window.nodes[draw] == i:
            j = window.samples[draw]
            draw += 1
        change = 0.0
        if j >= 0:
            known = state.table[j]
            start, stop = row_span(rows, j)
            along = 0.0
            guess = 0.0
            norm = 0.0
            for k in range(start, stop):
                entry = row_entry(rows, j, k)
                column = row_column(rows, j, k)
                along += entry * psi[column]
                guess += entry * state.now[i, column]
                norm += entry * entry
            target = (along + step * m * known * norm) * shrink
            curvature = step * m * weights[j] * norm * shrink
            found = prox_slope(loss, parts.beta, target, curvature, label_at(y, j), guess)
            change = weights[j] * found - known
            state.table[j] = known + change
            for k in range(start, stop):
                psi[row_column(rows, j, k)] -= step * m * change * row_entry(rows, j, k)
        for k in range(d):
            state.before[i, k] = state.now[i, k]
            state.now[i, k] = psi[k] * shrink
        state.last_row[i] = j
        state.last_change[i] = change
    return t + 1


class DsbaProcess(LocalRounds):
    """DSBA in progress over a block of nodes."""

    kernels = register_round_kernels(DsbaParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[DsbaParameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        super().__init__(setting, lazy_gossip(setting.network, parameters.laplacian_max))
        self.step = float(parameters.step)
        k, d = problem.n_nodes, problem.n_features
        self.state = DsbaState(
            np.zeros((k, d)),
            np.zeros((k, d)),
            np.zeros(problem.n_samples),
            np.full(k, -1, dtype=np.int64),
            np.zeros(k),
        )
        sizes = np.bincount(problem.node_of_row[problem.active], minlength=k)
        tables = AliasTables.build(
            problem.active.astype(np.float64), problem.node_starts, node_ids=setting.block
        )
        self.draws = RoundDraws(setting.seed, tables)
        self.samples_per_round = int(np.count_nonzero(tables.drawable))
        beta = self.samples.loss.beta
        self.parts = DsbaParts(
            self.samples, problem.sigma, sizes, beta, self.step, self.draws.window(0.0), self.state
        )

    def primal(self, read: str = "x") -> np.ndarray:
        return self.state.now.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict()


class Dsba(Method[DsbaParameters]):
    """DSBA: variance-reduced stochastic backward steps with gossip.

    Problem
        min_θ Σ_i [Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖²] with a smooth loss.
    Algorithm
        z⁺ = (I + W)/2·(2z − z before) − α(difference of the SAGA estimates of two rounds), the newer
        one taken at z⁺: a prox of one sample. Step 1/(24L) times ``step_factor``: 4 by default, as in
        the paper of ADFS; 1 is the theory's.
    Guarantee
        At factor 1 the squared error shrinks by 1 − min(γ/24, σ_min/(48L), 1/(3m)) per round in expectation.

    References
    ----------
        Shen, Mokhtari, Zhou, Zhao, Qian, "Towards more efficient stochastic decentralized learning:
        faster convergence and sparse communication", ICML 2018.
    """

    name = "dsba"
    needs_network = True
    observed_factor = 0.12
    kind = "rounds"
    options = ("step_factor",)

    record, process = DsbaParameters, DsbaProcess
    choices = MappingProxyType(
        {
            "paper": lambda problem, network, tau: DsbaParameters.theory(problem, network, step_factor=4.0),
            "theory": lambda problem, network, tau: DsbaParameters.theory(problem, network),
        }
    )

    def adapt(self, parameters: DsbaParameters, options: Options) -> DsbaParameters:
        return parameters.scaled(options["step_factor"]) if "step_factor" in options else parameters

    def position_of(self, parameters: DsbaParameters, sizes: NodeSizes, passes: float) -> float:
        return passes * float(sizes.n_samples.sum()) / float(np.count_nonzero(sizes.n_active > 0))

    def effort(self, parameters: DsbaParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort((sizes.n_active > 0).astype(np.int64), gossip_first=True)


register_method(Dsba())
