"""QNing on one machine: quasi-Newton steps on the Moreau envelope, a shuffled dual pass for each."""

from __future__ import annotations

import math

import numpy as np

from adfs.algorithms.base import Method, Setting, get_method, without_tau
from adfs.algorithms.costs import Cost, RoundEffort, dual_cost
from adfs.algorithms.lbfgs import CurvaturePairs
from adfs.algorithms.method_kernels import add_row, fetch_early, fetch_row, prox_slope
from adfs.algorithms.round_process import Gossip, RoundProcess
from adfs.compilation import AHEAD, kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.problem.evaluation import inner_product
from adfs.problem.samples import label_at, row_column, row_entry, row_span
from adfs.theory import Facts, NodeSizes
from adfs.theory.baselines import QningParameters

# A gradient of the envelope that is so many times its smallest so far comes from inner solutions that are
# too rough: the pairs are forgotten, and each step takes twice as many passes. (The gradient may well grow
# tenfold on the way: with 2 in place of 100 most ill-conditioned trials stalled.)
_WORSE = 100.0
_FLAT = 1e-12  # pairs with less curvature than this, relative to their lengths, are noise
_STEPS, _SMALLEST, _PASSES_PER_STEP, _PASSES_SINCE = range(4)


@kernel
def dual_pass(
    samples: Samples, beta: float, order: np.ndarray, total: float, duals: np.ndarray, theta: np.ndarray
) -> None:
    """Maximise the dual in one sample after another, in an order; θ (d,) follows the dual variables s (N,).

    θ is (κz − Σ x_js_j)/(σ + κ), ``total`` being σ + κ: a sample's own part taken out of its margin, the new
    s_j = wℓ'(u) solves u + w‖x_j‖²/(σ + κ) ℓ'(u) = x_jᵀθ without it.
    """
    rows = samples.rows
    for t in range(order.size):
        if t + 2 * AHEAD < order.size:
            fetch_early(samples, duals, order[t + 2 * AHEAD])
            fetch_row(rows, order[t + AHEAD])
        j = np.uint64(order[t])
        start, stop = row_span(rows, j)
        margin, norm = 0.0, 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            margin += entry * theta[row_column(rows, j, k)]
            norm += entry * entry
        # The margin without the sample's own part, then the root of the sample's equation.
        weight, share = samples.weights[j], norm / total
        without = margin + duals[j] * share
        label = label_at(samples.y, j)
        found = weight * prox_slope(samples.loss, beta, without, weight * share, label, margin)
        # θ follows the dual variable along the row.
        move = (duals[j] - found) / total
        duals[j] = found
        add_row(rows, j, move, theta)


class QningProcess(RoundProcess):
    """QNing in progress: a round is a pass over the samples; after one or more, a step of the centre z.

    Attributes
    ----------
    duals, theta, center : ndarray
        s (N,), θ (d,) and z (d,).
    before : ndarray of shape (2, d)
        The centre and the gradient of the envelope at the last step.
    counts : ndarray of shape (4,)
        Steps so far; the smallest gradient so far; passes per step; passes since the last step.
    """

    certify_iterate = True

    def __init__(self, setting: Setting[QningParameters]) -> None:
        super().__init__(setting)
        self.parameters, self.seed = setting.parameters, setting.seed
        self.rows = np.flatnonzero(self.problem.active)
        d = self.problem.n_features
        self.duals, self.theta, self.center = np.zeros(self.problem.n_samples), np.zeros(d), np.zeros(d)
        self.pairs, self.before = CurvaturePairs(self.parameters.memory, d), np.zeros((2, d))
        self.counts = np.array([0.0, np.inf, 1.0, 0.0])

    def round(self, gossip: Gossip) -> None:
        kappa, sigma = self.parameters.kappa, float(self.problem.sigma[0])
        # A new order for every pass, the same for the same seed and position.
        drawn = np.random.default_rng([self.seed, int(self.position)]).permutation(self.rows)
        dual_pass(self.samples, self.samples.loss.beta, drawn, sigma + kappa, self.duals, self.theta)
        self.position += 1.0
        self.count(1, 0)
        self.counts[_PASSES_SINCE] += 1.0
        if self.counts[_PASSES_SINCE] >= self.counts[_PASSES_PER_STEP]:
            # The gradient of the envelope at z is κ(z − θ). θ keeps its part of the centre that moves.
            self.counts[_PASSES_SINCE] = 0.0
            step = self._step(kappa * (self.center - self.theta))
            self.center -= step
            self.theta -= (kappa / (sigma + kappa)) * step

    def _step(self, gradient: np.ndarray) -> np.ndarray:
        """Return H·gradient, the step of the centre; without pairs it is the proximal step gradient/κ."""
        size, smallest = math.sqrt(inner_product(gradient, gradient)), self.counts[_SMALLEST]
        if size > _WORSE * smallest:
            self.pairs.clear()
            smallest = size
            self.counts[_PASSES_PER_STEP] *= 2.0
        elif self.counts[_STEPS] > 0.0:
            self.pairs.add(self.center - self.before[0], gradient - self.before[1], _FLAT)
        self.counts[_STEPS] += 1.0
        self.counts[_SMALLEST] = min(size, smallest)
        self.before[0], self.before[1] = self.center, gradient
        return self.pairs.multiply(gradient, np.full(gradient.size, 1.0 / self.parameters.kappa))

    def primal(self, read: str = "x") -> np.ndarray:
        return self.theta[None, :].copy()

    def dual(self) -> np.ndarray:
        return self.duals.copy()

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        self.duals[...] = duals
        self.theta[...] = self.center[...] = centers[0] / self.problem.sigma[0]
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        state = {"duals": self.duals, "theta": self.theta, "center": self.center}
        return state | self.pairs.arrays() | {"before": self.before, "counts": self.counts}


class Qning(Method[QningParameters]):
    """QNing: L-BFGS on the Moreau envelope of F, the inner problems by dual ascent, on one machine.

    Problem
        min_θ Σ_j w_j ℓ(x_jᵀθ; y_j) + (Σσ_i/2)‖θ‖² with a smooth loss, all samples in one place.
    Algorithm
        p(z) = argmin_θ F(θ) + (κ/2)‖θ − z‖², approximately: one pass of dual coordinate ascent over the
        samples, in a new order each time, from the dual variables before. z ← z − H·κ(z − p(z)), H by L-BFGS.
        A step that goes astray is followed by a proximal one, H = I/κ, and by twice as many passes for each.
    Guarantee
        None is proven with one pass per step. Exact proximal steps alone shrink F(θ) − F* by 1 − σ/(σ + κ)
        each; what it returns is certified like every other method's result.

    References
    ----------
        Lin, Mairal and Harchaoui, "An inexact variable metric proximal point algorithm for generic
        quasi-Newton acceleration", SIAM J. Optim. 29, 2019.
        Shalev-Shwartz and Zhang, "Stochastic dual coordinate ascent methods", JMLR 14, 2013.
    """

    name = "qning"
    label = "QNing"
    warm_starts = True
    kind = "single"
    needs_curvature = True

    record, process = QningParameters, QningProcess
    choices = without_tau({"theory": QningParameters.theory})

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Trials took half of the passes of ADFS where these are few, and a tenth where they are many.
        passes = get_method("adfs").cost(facts, network, tol).position / facts.n_samples
        passes = min(0.5 * passes, 10.0 + 0.1 * passes)
        return dual_cost(facts, passes, passes * facts.n_samples)

    def effort(self, parameters: QningParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0)
