"""GT-SAGA: gradient tracking with a table of past gradients at every node."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from adfs.algorithms.base import Setting, Source, without_tau
from adfs.algorithms.chebyshev import chebyshev_coefficients
from adfs.algorithms.method_kernels import RoundKernels, add_row, register_kernels, row_margin
from adfs.algorithms.opapc import summarize_gossip
from adfs.algorithms.round_process import RoundProcess, RoundWindow, SampleRounds, round_draws
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.problem.losses import derivative
from adfs.problem.samples import label_at
from adfs.theory.baselines import node_smoothness
from adfs.theory.records import ParameterRecord, shown


@dataclass(frozen=True, eq=False)
class GtSagaParameters(ParameterRecord):
    """GT-SAGA: L = max_i(m_i max_j L_ij + σ_i), μ the mean of σ_i, and s the second eigenvalue of W.

    W = I − 2Lap/(λ_2 + λ_max), so s = (1 − γ)/(1 + γ). The theory's step is the smaller of 1/(4μ max m) and
    (min m/max m)(1 − s²)²μ/(320L²); the practical one is min(1/(3L), (1 − s)²/(2 max M_i)), far longer.
    ``contraction`` is min(μα/2, 1/(8 max m)).
    """

    _title: ClassVar[str] = "Parameters of GT-SAGA"
    contraction: float = field(metadata=shown("contraction", ""))
    step: float = field(metadata=shown("step", "α"))
    smoothness: float = field(metadata=shown("smoothness of one draw", "L"))
    curvature: float = field(metadata=shown("strong convexity", "μ"))
    mixing: float = field(metadata=shown("second eigenvalue", "s"))

    @classmethod
    def theory(cls, problem: Source, network: Network, *, practical: bool = False) -> GtSagaParameters:
        """Return the constants with a step of the order that Xin, Khan and Kar prove, or the practical one.

        The factors 1/4 and 1/320 have not been compared with the paper's; the practical step has no proof.
        """
        summary = summarize_gossip("gt-saga", problem, network)
        counts, mu = summary.n_active[summary.n_active > 0], float(summary.sigma.mean())
        most, fewest = float(counts.max()), float(counts.min())
        # One draw stands for all samples of its node.
        largest = float((summary.n_active * summary.largest_smoothness + summary.sigma).max())
        gamma = min(1.0, network.gamma)
        s = (1.0 - gamma) / (1.0 + gamma)
        proven = min(0.25 / (mu * most), fewest / most * (1.0 - s * s) ** 2 * mu / (320.0 * largest**2))
        longer = min(1.0 / (3.0 * largest), 0.5 * (1.0 - s) ** 2 / float(node_smoothness(summary).max()))
        step = max(proven, longer) if practical else proven
        return cls(min(0.5 * mu * step, 0.125 / most), step, largest, mu, s)


class GtSagaState(NamedTuple):
    """The variables of a block of nodes.

    Attributes
    ----------
    x, tracker, estimate : (k, d)
        x, y and the last SAGA estimate g of ∇f_i.
    total : (k, d)
        The sum of the table's gradients.
    table : (N,)
        Each sample's wℓ' when it was last drawn; 0 before.
    """

    x: np.ndarray
    tracker: np.ndarray
    estimate: np.ndarray
    total: np.ndarray
    table: np.ndarray


class GtSagaParts(NamedTuple):
    """The arguments of the kernels; ``sizes`` (k,) are the numbers of samples that the nodes draw from."""

    samples: Samples
    sigma: np.ndarray
    sizes: np.ndarray
    step: float
    window: RoundWindow
    state: GtSagaState


@kernel
def _begin(parts: GtSagaParts, t: int, last: int, out: np.ndarray) -> int:
    x, tracker = parts.state.x, parts.state.tracker
    d = x.shape[1]
    if t < last:
        # One message has both vectors.
        for i in range(out.shape[0]):
            for k in range(d):
                out[i, k] = x[i, k]
                out[i, d + k] = tracker[i, k]
    return t


@kernel
def _end(parts: GtSagaParts, t: int, mixed: np.ndarray) -> int:
    samples, sigma, state, window = parts.samples, parts.sigma, parts.state, parts.window
    x, tracker, estimate, total = state.x, state.tracker, state.estimate, state.total
    draw, drawn_up_to = round_draws(window, t)
    d = x.shape[1]
    for i in range(x.shape[0]):
        # x moves along the tracked gradient; the mixed y loses the old estimate and gets the new one.
        for k in range(d):
            x[i, k] = mixed[i, k] - parts.step * tracker[i, k]
            tracker[i, k] = mixed[i, d + k] - estimate[i, k]
            estimate[i, k] = total[i, k] + sigma[i] * x[i, k]
        # Nodes without samples draw none.
        if draw < drawn_up_to and window.nodes[draw] == i:
            j = window.samples[draw]
            draw += 1
            slope = derivative(samples.loss, row_margin(samples.rows, j, x[i]), label_at(samples.y, j))
            change = samples.weights[j] * slope - state.table[j]
            state.table[j] += change
            # In the estimate one draw stands for all samples of the node; in the table it is itself alone.
            add_row(samples.rows, j, parts.sizes[i] * change, estimate[i])
            add_row(samples.rows, j, change, total[i])
        for k in range(d):
            tracker[i, k] += estimate[i, k]
    return t + 1


class GtSagaProcess(RoundProcess):
    """GT-SAGA in progress over a block of nodes."""

    kernels = register_kernels(GtSagaParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[GtSagaParameters]) -> None:
        problem, network = setting.problem, setting.network
        step = chebyshev_coefficients(network).step
        # Of all I − c·Lap this one has the second eigenvalue of smallest size.
        mixing = sp.eye_array(network.n_nodes, format="csr") - step * network.laplacian()
        super().__init__(setting, sp.csr_array(mixing))
        k, d = self.message_shape
        # x and y are mixed together, which halves the number of messages.
        self.message_shape = (k, 2 * d)
        self.parameters = setting.parameters
        x, tracker, estimate, total = np.zeros((4, k, d))
        self.state = GtSagaState(x, tracker, estimate, total, np.zeros(problem.n_samples))
        sizes = np.bincount(problem.node_of_row[problem.active], minlength=k).astype(np.float64)
        window = self.draw_samples(setting, problem.active.astype(np.float64))
        step = float(self.parameters.step)
        self.parts = GtSagaParts(self.samples, problem.sigma, sizes, step, window, self.state)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.state.x.copy()


class GtSaga(SampleRounds[GtSagaParameters]):
    """GT-SAGA: gradient tracking with the gradient estimates of SAGA.

    Problem
        min_θ Σ_i [Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖²] with a smooth loss.
    Algorithm
        x⁺ = Wx − αy; a sample drawn at every node gives the SAGA estimate g⁺ of ∇f_i(x⁺); y⁺ = Wy + g⁺ − g.
        The table has the losses' part alone, from zeros: the gradient of the ℓ2 term is exact.
    Guarantee
        The paper proves that the mean-squared error shrinks linearly, at a rate of the order of μα, for steps
        of the order of min(1/(μm), (1 − s²)²μ/L²), m the samples of a node. ``parameters="theory"`` has such
        a step; its factors 1/4 and 1/320 have not been compared with the paper's, and it is too short for
        use. The default is a longer step without a proof. Tests measure that the error shrinks by 1 − μα/2.

    References
    ----------
        Xin, Khan, Kar, "Variance-reduced decentralized stochastic optimization with accelerated
        convergence", IEEE Transactions on Signal Processing, 2020, arXiv 1912.04230.
    """

    name = "gt-saga"
    label = "GT-SAGA"
    needs_network = True
    observed_factor = 0.12
    baseline = True

    record, process = GtSagaParameters, GtSagaProcess
    choices = without_tau(
        {
            "practical": partial(GtSagaParameters.theory, practical=True),
            "theory": GtSagaParameters.theory,
        }
    )
