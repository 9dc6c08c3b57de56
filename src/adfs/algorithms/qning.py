"""QNing on one machine: quasi-Newton steps on the Moreau envelope, a shuffled dual pass for each."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from adfs.algorithms.base import Method, RoundEffort, Setting, Work, get_method, register_method
from adfs.algorithms.method_kernels import fetch_early, fetch_row
from adfs.algorithms.round_process import Gossip, RoundProcess, literal_prox_slope, no_gossip, prox_slope
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Problem, Samples
from adfs.problem.samples import label_at, row_column, row_entry, row_span
from adfs.theory import Facts, NodeSizes, NodeSummary
from adfs.theory.baselines import QningParameters
from adfs.threads import single_threaded

# A step that leaves the gradient of the envelope larger than this many times its smallest so far was led
# astray by inner solutions that are too rough: the pairs are forgotten, and each step takes twice as many
# passes. (Its size may well grow tenfold on the way: with 2 for 100 most ill-conditioned trials stalled.)
_WORSE = 100.0
_AHEAD = 6  # samples
_FLAT = 1e-12  # a pair that bends less than this, relative to its lengths, is noise


@kernel
def dual_pass(
    samples: Samples, beta: float, order: np.ndarray, total: float, duals: np.ndarray, theta: np.ndarray
) -> None:
    """Maximise the dual in one sample after another, in an order; θ (d,) follows the tips s (N,).

    θ is (κz − Σ x_js_j)/(σ + κ), ``total`` being σ + κ: a sample's own part taken out of its margin, the new
    s_j = wℓ'(u) solves u + w‖x_j‖²/(σ + κ) ℓ'(u) = x_jᵀθ without it.
    """
    rows = samples.rows
    for t in range(order.size):
        if t + 2 * _AHEAD < order.size:
            fetch_early(samples, duals, order[t + 2 * _AHEAD])
            fetch_row(rows, order[t + _AHEAD])
        j = np.uint64(order[t])
        start, stop = row_span(rows, j)
        margin, norm = 0.0, 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            margin += entry * theta[row_column(rows, j, k)]
            norm += entry * entry
        weight, share = samples.weights[j], norm / total
        without = margin + duals[j] * share
        label = label_at(samples.y, j)
        found = weight * prox_slope(samples.loss, beta, without, weight * share, label, margin)
        move = (duals[j] - found) / total
        duals[j] = found
        for k in range(start, stop):
            theta[row_column(rows, j, k)] += move * row_entry(rows, j, k)


def literal_dual_pass(
    problem: Problem, order: np.ndarray, total: float, center: np.ndarray, duals: np.ndarray
) -> np.ndarray:
    """Return the tips after one pass, by bisection, everything written out; ``center`` is κz, (d,)."""
    X = problem.X.toarray() if problem.sparse else problem.X
    duals = duals.copy()
    for j in order:
        weight, label = float(problem.weights[j]), label_at(problem.labels, j)
        without = X[j] @ (center - X.T @ duals + X[j] * duals[j]) / total
        share = weight * (X[j] @ X[j]) / total
        duals[j] = weight * literal_prox_slope(problem.loss, without, share, label)
    return duals


class QningProcess(RoundProcess):
    """QNing in progress: a round is a pass over the samples; after one or more, a step of the centre z."""

    at_iterate = True

    def __init__(self, setting: Setting[QningParameters]) -> None:
        super().__init__()
        self.problem, self.parameters, self.seed = setting.problem, setting.parameters, setting.seed
        self.samples = self.problem.samples
        self.rows = np.flatnonzero(self.problem.active)
        d, memory = self.problem.n_features, self.parameters.memory
        self.gossip_matrix = no_gossip(1)
        self.duals, self.theta, self.center = np.zeros(self.problem.n_samples), np.zeros(d), np.zeros(d)
        # The pairs of L-BFGS, the centre and gradient of the step before, and what is counted:
        # pairs kept (−1: no step yet), the smallest gradient so far, passes per step, passes since the last.
        self.pairs, self.before = np.zeros((memory, 2, d)), np.zeros((2, d))
        self.counts = np.array([-1.0, np.inf, 1.0, 0.0])

    def round(self, gossip: Gossip) -> None:
        kappa, sigma = self.parameters.kappa, float(self.problem.sigma[0])
        drawn = np.random.default_rng([self.seed, int(self.position)]).permutation(self.rows)
        dual_pass(self.samples, self.samples.loss.beta, drawn, sigma + kappa, self.duals, self.theta)
        self.position += 1.0
        self.work = Work(self.work.computations + self.problem.n_samples, 0, 0)
        self.counts[3] += 1.0
        if self.counts[3] >= self.counts[2]:
            self.counts[3] = 0.0
            step = self._step(kappa * (self.center - self.theta))
            self.center -= step
            self.theta -= (kappa / (sigma + kappa)) * step

    @single_threaded
    def _step(self, gradient: np.ndarray) -> np.ndarray:
        """Return what the centre moves back by: H·gradient, or the proximal step gradient/κ."""
        kept, smallest = int(min(self.counts[0], len(self.pairs))), self.counts[1]
        size = float(np.linalg.norm(gradient))
        if size > _WORSE * smallest:
            kept, smallest = 0, size
            self.counts[2] *= 2.0
        elif kept >= 0:
            kept = self._remember(kept, gradient)
        self.counts[0], self.counts[1] = max(kept, 0), min(size, smallest)
        self.before[0], self.before[1] = self.center, gradient
        return self._two_loops(gradient, kept) if kept > 0 else gradient / self.parameters.kappa

    def _remember(self, kept: int, gradient: np.ndarray) -> int:
        """Keep the last pair, in the place of the oldest; return how many there are."""
        moved, bent = self.center - self.before[0], gradient - self.before[1]
        if moved @ bent <= _FLAT * np.linalg.norm(moved) * np.linalg.norm(bent):
            return kept
        if kept == len(self.pairs):
            self.pairs[:-1] = self.pairs[1:].copy()
            kept -= 1
        self.pairs[kept, 0], self.pairs[kept, 1] = moved, bent
        return kept + 1

    def _two_loops(self, gradient: np.ndarray, kept: int) -> np.ndarray:
        """Return the inverse Hessian of L-BFGS times the gradient."""
        out, factors = gradient.copy(), np.empty(kept)
        for i in range(kept - 1, -1, -1):
            moved, bent = self.pairs[i]
            factors[i] = (moved @ out) / (moved @ bent)
            out -= factors[i] * bent
        moved, bent = self.pairs[kept - 1]
        out *= (moved @ bent) / (bent @ bent)
        for i in range(kept):
            moved, bent = self.pairs[i]
            out += (factors[i] - (bent @ out) / (moved @ bent)) * moved
        return out

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
        return state | {"pairs": self.pairs, "before": self.before, "counts": self.counts}


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
    kind = "single"
    warm_starts = True

    def can_solve(self, facts: Facts, n_nodes: int) -> bool:
        return super().can_solve(facts, n_nodes) and facts.curved

    def predicted_position(
        self, parameters: QningParameters, facts: Facts, summary: NodeSummary, tol: float
    ) -> float:
        # Trials took half of the passes of ADFS where these are few, and a tenth where they are many.
        passes = get_method("adfs").cost(facts, Network("path:1"), tol).passes
        return min(0.5 * passes, 10.0 + 0.1 * passes)

    record, process = QningParameters, QningProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: QningParameters.theory(problem, network)}
    )

    def effort(self, parameters: QningParameters, sizes: NodeSizes, network: Network) -> RoundEffort:
        return RoundEffort(sizes.n_samples, exchanges=0)


register_method(Qning())
