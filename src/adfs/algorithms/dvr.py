"""DVR: variance-reduced gradients of single samples and gossip, also with Catalyst acceleration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from adfs.algorithms.base import Setting, Source, without_tau
from adfs.algorithms.costs import RoundEffort
from adfs.algorithms.method_kernels import (
    RoundKernels,
    add_row,
    node_gradients,
    register_kernels,
    row_margin,
)
from adfs.algorithms.opapc import summarize_gossip
from adfs.algorithms.round_process import RoundProcess, RoundWindow, SampleRounds, round_draws
from adfs.compilation import kernel
from adfs.network import Network, second_eigenpair
from adfs.problem import Samples
from adfs.problem.losses import derivative
from adfs.problem.samples import label_at
from adfs.theory import NodeSizes, dual_curvature_of_split
from adfs.theory.records import ParameterRecord, largest_scaled_laplacian, shown


@dataclass(frozen=True, eq=False)
class DvrParameters(ParameterRecord):
    """DVR: η = 1/(λ + α max S_i) and p_comm = ηλ, λ = λ_max(D⁻¹Lap), D = diag(σ_i), S_i = Σ_j(1 + L_ij/σ_i).

    ``contraction`` is αη/2. With ``added`` curvature, that of Catalyst, σ_i + added replaces σ_i. The centre
    z of the added term moves after every ``inner`` rounds, one pass, with the momentum of q = σ/(σ + added);
    ``contraction`` is then the smaller of αη/4 and √q/inner.
    """

    _title: ClassVar[str] = "Parameters of DVR"
    contraction: float = field(metadata=shown("contraction", ""))
    step: float = field(metadata=shown("step", "η"))
    dual_weight: float = field(metadata=shown("weight of a sample's constraint", "α"))
    p_comm: float = field(metadata=shown("P(communication)", "p_comm"))
    sample_sums: np.ndarray = field(metadata=shown("sums over a node's samples", "S_i"))
    sigma: np.ndarray = field(metadata=shown("node curvature", "σ_i"))
    added: float = field(metadata=shown("added curvature", "β"))
    inner: int = field(metadata=shown("rounds per move of z", ""))
    momentum: float = field(metadata=shown("momentum of z", ""))

    @classmethod
    def theory(
        cls, problem: Source, network: Network, *, printed: bool = False, catalyst: bool = False
    ) -> DvrParameters:
        """Return the constants of Theorem 1, or those of Catalyst with one pass per move of z.

        The paper prints α = 2λ_2(Lap, diag(M_i)). The default is α = 2λ_2(Lap, diag(σ_i + 2(M_i − σ_i))), for
        which αη/2 is exact by the eigenvalue of the augmented graph (r = 1/2).
        """
        summary = summarize_gossip("dvr", problem, network)
        added = 0.0
        if catalyst:
            # As the authors run it: the mean curvature of a sample.
            most = np.maximum(summary.n_samples, 1)
            added = float((summary.sigma * (1.0 + summary.kappa) / most).max())
        sigma = summary.sigma + added
        batch, sums = summary.sigma * summary.batch_kappa, summary.sigma * summary.kappa / sigma
        if printed:
            alpha = 2.0 * second_eigenpair(network, sigma + batch).lower
        else:
            alpha = 2.0 * dual_curvature_of_split(network, sigma, batch / sigma, 0.5)
        sums = summary.n_active + sums
        largest = largest_scaled_laplacian(network, sigma)
        step = 1.0 / (largest + alpha * float(sums.max()))
        p_comm, rate, inner, momentum = step * largest, 0.5 * alpha * step, 0, 0.0
        if added > 0.0:
            smallest = float(summary.sigma.min())
            root = math.sqrt(smallest / (smallest + added))
            inner = math.ceil(float(summary.n_samples.max()) / (1.0 - p_comm))
            rate, momentum = min(0.5 * rate, root / inner), (1.0 - root) / (1.0 + root)
        return cls(rate, step, alpha, p_comm, sums, summary.sigma, added, inner, momentum)


class DvrState(NamedTuple):
    """The variables of a block of nodes.

    Attributes
    ----------
    theta : (k, d)
    margins, slopes : (N,)
        x_ijᵀz_ij of each sample's own point z_ij, and wℓ' there.
    center, last : (k, d)
        z, and θ when z moved last.
    """

    theta: np.ndarray
    margins: np.ndarray
    slopes: np.ndarray
    center: np.ndarray
    last: np.ndarray


class DvrParts(NamedTuple):
    """The arguments of the kernels.

    ``sigma`` (k,) includes the ``added`` curvature; ``share`` (N,) is αη/p_ij; ``step`` is η/p_comm.
    """

    samples: Samples
    sigma: np.ndarray
    share: np.ndarray
    step: float
    added: float
    inner: int
    momentum: float
    window: RoundWindow
    state: DvrState


@kernel
def _move_center(parts: DvrParts) -> None:
    """Move z, and θ with it: θ_i(σ_i + added) less added·z_i is a sum over the dual variables, which rest."""
    state, sigma, added = parts.state, parts.sigma, parts.added
    for i in range(state.theta.shape[0]):
        for k in range(state.theta.shape[1]):
            theta = state.theta[i, k]
            center = theta + parts.momentum * (theta - state.last[i, k])
            state.last[i, k] = theta
            state.theta[i, k] = theta + added / sigma[i] * (center - state.center[i, k])
            state.center[i, k] = center


@kernel
def _compute(parts: DvrParts, i: int, j: int) -> None:
    """Move the point of sample j towards θ_i, and θ_i by the change of the sample's gradient."""
    samples, state = parts.samples, parts.state
    margin, share = row_margin(samples.rows, j, state.theta[i]), parts.share[j]
    # Only the margin of z_ij enters anywhere, so a sample keeps one number in place of a vector.
    state.margins[j] = (1.0 - share) * state.margins[j] + share * margin
    label = label_at(samples.y, j)
    slope = samples.weights[j] * derivative(samples.loss, state.margins[j], label)
    add_row(samples.rows, j, (state.slopes[j] - slope) / parts.sigma[i], state.theta[i])
    state.slopes[j] = slope


@kernel
def _begin(parts: DvrParts, t: int, last: int, out: np.ndarray) -> int:
    window, theta = parts.window, parts.state.theta
    while t < last:
        first, stop = round_draws(window, t)
        # z moves when a round begins: a run that stops before it and goes on later moves z once.
        if parts.inner > 0 and t > 0 and t % parts.inner == 0:
            _move_center(parts)
        # All nodes share the coin: every process stops for a product in the same round.
        if window.gossips[t - window.bounds[0]]:
            for i in range(out.shape[0]):
                for k in range(out.shape[1]):
                    out[i, k] = theta[i, k]
            return t
        for e in range(first, stop):
            _compute(parts, window.nodes[e], window.samples[e])
        t += 1
    return t


@kernel
def _end(parts: DvrParts, t: int, pulls: np.ndarray) -> int:
    theta = parts.state.theta
    for i in range(pulls.shape[0]):
        for k in range(pulls.shape[1]):
            theta[i, k] -= parts.step / parts.sigma[i] * pulls[i, k]
    return t + 1


class DvrProcess(RoundProcess):
    """DVR in progress over a block of nodes."""

    kernels = register_kernels(DvrParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[DvrParameters]) -> None:
        problem, p = setting.problem, setting.parameters
        super().__init__(setting, setting.network.laplacian())
        self.parameters = p
        sigma, node = problem.sigma + p.added, problem.node_of_row
        # 1 + L_ij/σ_i, to which the probabilities of a node's samples are proportional.
        weights = np.where(problem.active, 1.0 + problem.smoothness / sigma[node], 0.0)
        window = self.draw_samples(setting, weights, p.p_comm)
        # A sample is drawn with p_ij = (1 − p_comm)(1 + L_ij/σ_i)/S_i, and its share is αη/p_ij.
        rate = p.dual_weight * p.step / (1.0 - p.p_comm) * p.sample_sums[setting.block]
        share = rate[node] / np.where(problem.active, weights, 1.0)
        # Every sample's point starts at 0, and θ where the sum of its dual variables is: one pass.
        first, zero = np.empty(self.message_shape), np.zeros(self.message_shape)
        node_gradients(self.samples, problem.sigma, zero, first)
        slopes = np.where(problem.active, problem.slopes(np.zeros(problem.n_features)), 0.0)
        theta = -first / sigma[:, None]
        self.state = DvrState(theta, np.zeros(problem.n_samples), slopes, zero, np.zeros_like(zero))
        self.work = self.work._replace(computations=int(problem.n_samples))
        step, catalyst = p.step / p.p_comm, (p.added, p.inner, p.momentum)
        self.parts = DvrParts(self.samples, sigma, share, step, *catalyst, window, self.state)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.state.theta.copy()


class Dvr(SampleRounds[DvrParameters]):
    """DVR: variance-reduced gradients of single samples, without a prox.

    Problem
        min_θ Σ_i [Σ_j f_ij(θ) + (σ_i/2)‖θ‖²] with smooth f_ij.
    Algorithm
        A coin that all nodes share decides. With p_comm all nodes gossip, θ −= (η/p_comm)D⁻¹Lap θ. Otherwise
        each draws a sample with p_ij ∝ 1 + L_ij/σ_i: z_ij moves by αη/p_ij of the way to θ_i, and θ_i by
        −(∇f_ij(z⁺) − ∇f_ij(z))/σ_i. It is Bregman coordinate descent on the dual of ADFS.
        ``parameters="catalyst"`` is Algorithm 2: it adds (β/2)‖θ − z_i‖² and moves z_i after each pass.
    Guarantee
        Theorem 1: the squared error shrinks by 1 − αη/2 per round in expectation, which takes of the order
        of m + κ_s samples per node and factor e. Theorem 2, for Catalyst: m + √(mκ_s), up to logarithms.
        ``parameters="paper"`` has the paper's larger α.

    References
    ----------
        Hendrikx, Bach, Massoulié, "Dual-free stochastic decentralized optimization with variance
        reduction", NeurIPS 2020, arXiv 2006.14384.
    """

    name = "dvr"
    label = "DVR"
    needs_network = True
    observed_factor = 0.4
    baseline = True

    record, process = DvrParameters, DvrProcess
    choices = without_tau(
        {
            "theory": DvrParameters.theory,
            "paper": partial(DvrParameters.theory, printed=True),
            "catalyst": partial(DvrParameters.theory, catalyst=True),
        }
    )

    def effort(self, parameters: DvrParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        # The first gradient is a pass.
        return replace(super().effort(parameters, sizes, network), at_start=sizes.n_samples)
