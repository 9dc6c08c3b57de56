"""The methods with a table of past gradients: Point-SAGA on one machine, and DSBA over a network.

A step is the prox of one sample. The table has one scalar per sample, the slope of its loss when it was last
drawn.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from adfs.algorithms.adfs_kernels import SMALLEST_SCALE, center_products, move_center
from adfs.algorithms.base import EventProcess, Method, Options, Setting, Work, without_tau
from adfs.algorithms.costs import EventEffort
from adfs.algorithms.method_kernels import (
    RoundKernels,
    add_row,
    extrapolate,
    prox_slope,
    register_kernels,
)
from adfs.algorithms.round_process import RoundProcess, RoundWindow, SampleRounds, round_draws
from adfs.compilation import kernel
from adfs.network import Network, lazy_gossip
from adfs.problem import Samples
from adfs.problem.samples import label_at, row_column, row_entry, row_span
from adfs.schedule import Events
from adfs.theory import NodeSizes
from adfs.theory.baselines import DsbaParameters, PointSagaParameters


class PointSagaState(NamedTuple):
    """The variables of Point-SAGA.

    Attributes
    ----------
    vectors : (d,) complex
        p + i·ḡ; the iterate is x = a·p + b·ḡ, so that a sample costs its non-zeros although ḡ
        and the ℓ2 term move all of x at every step. ḡ is the mean of the table's gradients.
    scales : (2,)
        a and b.
    table : (N,)
        Each sample's wℓ' when it was last drawn; before, at 0, or none.
    """

    vectors: np.ndarray
    scales: np.ndarray
    table: np.ndarray


class PointSagaParts(NamedTuple):
    """The arguments of the kernel; ``step`` is γ, ``curvature`` the strong convexity μ of a term."""

    samples: Samples
    beta: float
    step: float
    curvature: float
    n_terms: int
    state: PointSagaState


@kernel
def _point_saga_run(parts: PointSagaParts, drawn: np.ndarray, first: int, last: int) -> int:
    """Take the steps of the samples drawn[first], …, drawn[last − 1]."""
    loss, rows, y, weights = parts.samples.loss, parts.samples.rows, parts.samples.y, parts.samples.weights
    _, beta, step, curvature, n_terms, state = parts
    shrink = 1.0 / (1.0 + step * curvature)
    vectors = state.vectors
    a, b = state.scales[0], state.scales[1]
    for t in range(first, last):
        j = drawn[t]
        # The products of the row with p and ḡ, from which its product with x = a·p + b·ḡ follows.
        along, along_mean, norm = center_products(rows, j, vectors, np.uint64(0))
        margin = a * along + b * along_mean
        # The prox in the margin u: u + bend·ℓ'(u) = target. Its slope is the new entry of the table.
        known = state.table[j]
        target = (margin + step * (known * norm - along_mean)) * shrink
        bend = step * weights[j] * norm * shrink
        found = weights[j] * prox_slope(loss, beta, target, bend, label_at(y, j), margin)
        change = found - known
        state.table[j] = found
        # x shrinks by the ℓ2 term, which only changes a and b.
        a *= shrink
        b = (b - step) * shrink
        to_mean = change / n_terms
        # x⁺ = (x − γḡ − γ·change·x_j)/(1 + γμ), written with the new ḡ
        to_own = -(b * to_mean + step * shrink * change) / a
        move_center(rows, j, vectors, np.uint64(0), -to_own, -to_mean)
        if a < SMALLEST_SCALE:
            for k in range(vectors.size):
                vectors[k] = complex(a * vectors[k].real, vectors[k].imag)
            a = 1.0
    state.scales[0] = a
    state.scales[1] = b
    return last


class PointSagaProcess(EventProcess):
    """Point-SAGA in progress: every event of the one node's schedule is a step."""

    parts: PointSagaParts

    def __init__(self, setting: Setting[PointSagaParameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        super().__init__(setting, problem.active.astype(np.float64))
        self.parameters, samples = parameters, problem.samples
        self.state = PointSagaState(
            np.zeros(problem.n_features, np.complex128), np.array([1.0, 0.0]), np.zeros(problem.n_samples)
        )
        constants = (samples.loss.beta, parameters.step, parameters.curvature, parameters.n_terms)
        self.parts = PointSagaParts(samples, *constants, self.state)
        # The first pass fills the table with the gradients at 0; ``zero_table`` leaves it out.
        if not parameters.zero_table:
            slopes = problem.slopes(np.zeros(problem.n_features))
            self.state.table[...] = np.where(problem.active, slopes, 0.0)
            self.state.vectors.imag = problem.row_total(self.state.table) / parameters.n_terms
            self.work = Work(problem.n_samples, 0, 0)

    def run(self, events: Events, first: int, last: int) -> int:
        return _point_saga_run(self.parts, events.sample, first, last)

    def primal(self, read: str = "x") -> np.ndarray:
        # The two parts of the complex numbers, side by side.
        vectors = self.state.vectors.view(np.float64).reshape(-1, 2)
        return np.asarray(vectors @ self.state.scales)[None, :]


class PointSaga(Method[PointSagaParameters]):
    """Point-SAGA: the variance-reduced proximal method that is accelerated by itself, on one machine.

    Problem
        min_θ Σ_j w_j ℓ(x_jᵀθ; y_j) + (Σσ_i/2)‖θ‖² with a smooth loss, all samples in one place.
    Algorithm
        z = x + γ(φ_j − ḡ); x⁺ = prox_{γf_j}(z), f_j a sample's loss and a share (μ/2)‖θ‖² of the ℓ2 term;
        φ_j ← the loss's gradient at x⁺. Defazio's table has the gradients of f_j, ours the losses' part
        alone: one number per sample. It starts with the gradients at 0, as its paper has it (a pass,
        which is counted); ``parameters="zero-table"`` starts with zeros, which is quicker where most
        samples end up with a small gradient.
    Guarantee
        With s = μγ, ℓ = L − μ and a = γ² + 2γ(1 + s)/ℓ, the expectation of
        (1 + s)²‖x − x*‖² + a Σ_j ‖φ_j − φ_j*‖² shrinks by max(1/(1 + s)², 1 − 2(1 + s)/(N(γℓ + 2(1 + s))))
        per sample, which is at most 1/(1 + s) with Defazio's γ: his rate holds for this table too.

        Why: less its value at the optimum, (1 + s)x⁺ + γφ_j⁺ = x + γ(φ_j − ḡ). Square both sides. On the
        right the mean over j is at most ‖x − x*‖² + γ²/N Σ ‖φ_j − φ_j*‖², on the left the inner product is at
        least ‖φ_j⁺ − φ_j*‖²/ℓ, and one entry of the table in N is replaced. γ solves Nγ²Lμ + (N − 1)γμ = 1,
        from which 1 − (N − 3)s − (N − 2)s² ≥ 2s(1 + s) ≥ 0: that is the comparison with 1/(1 + s).

    References
    ----------
        Defazio, "A simple practical accelerated method for finite sums", NeurIPS 2016.
    """

    name = "point-saga"
    label = "Point-SAGA"
    kind = "single"
    baseline = True

    record, process = PointSagaParameters, PointSagaProcess
    choices = without_tau(
        {
            "theory": PointSagaParameters.theory,
            "zero-table": partial(PointSagaParameters.theory, zero_table=True),
        }
    )

    def position_of(self, parameters: PointSagaParameters, sizes: NodeSizes, passes: float) -> float:
        return max(0.0, passes - (0.0 if parameters.zero_table else 1.0)) * float(sizes.n_samples.sum())

    def effort(self, parameters: PointSagaParameters, sizes: NodeSizes, network: Network) -> EventEffort:
        first = 0 if parameters.zero_table else int(sizes.n_samples.sum())
        return EventEffort(np.zeros(network.n_nodes, dtype=np.int64), at_start=first)


# --------------------------------------------------------------------------- DSBA


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
    """The arguments of the kernels; ``sizes`` (k,) are the numbers of samples that the nodes draw from."""

    samples: Samples
    sigma: np.ndarray
    sizes: np.ndarray
    beta: float
    step: float
    window: RoundWindow
    state: DsbaState


@kernel
def _dsba_begin(parts: DsbaParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        extrapolate(parts.state.now, parts.state.before, out)
    return t


@kernel
def _dsba_end(parts: DsbaParts, t: int, mixed: np.ndarray) -> int:
    """One round of every node: ``mixed`` (k, d) holds (I + W)/2·(2z − z before) and is used up."""
    loss, rows, y, weights = parts.samples.loss, parts.samples.rows, parts.samples.y, parts.samples.weights
    sigma, sizes, step, state = parts.sigma, parts.sizes, parts.step, parts.state
    window = parts.window
    draw, drawn_up_to = round_draws(window, t)
    d = mixed.shape[1]
    for i in range(mixed.shape[0]):
        m = float(sizes[i])
        shrink = 1.0 / (1.0 + step * sigma[i])
        # ψ: the gossiped iterate, less the gradient estimate of the round before.
        psi = mixed[i]
        for k in range(d):
            psi[k] += step * sigma[i] * state.now[i, k]
        row = state.last_row[i]
        if row >= 0:
            add_row(rows, row, step * (m - 1.0) * state.last_change[i], psi)
        state.last_row[i] = -1
        # Nodes without samples draw none.
        if draw < drawn_up_to and window.nodes[draw] == i:
            j = window.samples[draw]
            draw += 1
            known = state.table[j]
            start, stop = row_span(rows, j)
            along, guess, norm = 0.0, 0.0, 0.0
            for k in range(start, stop):
                entry = row_entry(rows, j, k)
                column = row_column(rows, j, k)
                along += entry * psi[column]
                guess += entry * state.now[i, column]
                norm += entry * entry
            # The prox of the drawn sample in its margin, as for Point-SAGA.
            target = (along + step * m * known * norm) * shrink
            curvature = step * m * weights[j] * norm * shrink
            found = prox_slope(loss, parts.beta, target, curvature, label_at(y, j), guess)
            change = weights[j] * found - known
            state.table[j] = known + change
            add_row(rows, j, -(step * m * change), psi)
            state.last_row[i] = j
            state.last_change[i] = change
        # The ℓ2 term is part of the prox: it shrinks the whole iterate.
        for k in range(d):
            state.before[i, k] = state.now[i, k]
            state.now[i, k] = psi[k] * shrink
    return t + 1


class DsbaProcess(RoundProcess):
    """DSBA in progress over a block of nodes."""

    kernels = register_kernels(DsbaParts, RoundKernels(_dsba_begin, _dsba_end))

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
        # A node's m in the SAGA estimate counts the samples that it draws from.
        sizes = np.bincount(problem.node_of_row[problem.active], minlength=k)
        window = self.draw_samples(setting, problem.active.astype(np.float64))
        beta = self.samples.loss.beta
        self.parts = DsbaParts(self.samples, problem.sigma, sizes, beta, self.step, window, self.state)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.state.now.copy()


class Dsba(SampleRounds[DsbaParameters]):
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
    label = "DSBA"
    needs_network = True
    observed_factor = 0.12
    baseline = True
    options = ("step_factor",)

    record, process = DsbaParameters, DsbaProcess
    choices = without_tau(
        {"paper": partial(DsbaParameters.theory, step_factor=4.0), "theory": DsbaParameters.theory}
    )

    def adapt(self, parameters: DsbaParameters, options: Options) -> DsbaParameters:
        return parameters.scaled(options["step_factor"]) if "step_factor" in options else parameters
