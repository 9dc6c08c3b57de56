"""Point-SAGA on one machine: a prox of one sample per step, with a table of one scalar per sample."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import EventEffort, EventProcess, Method, Setting, Work, register_method
from adfs.algorithms.method_kernels import EventKernels, register_event_kernels
from adfs.algorithms.round_process import prox_slope
from adfs.compilation import kernel
from adfs.network import Network
from adfs.problem import Samples
from adfs.problem.samples import label_at, row_column, row_entry, row_span
from adfs.theory import NodeSizes
from adfs.theory.baselines import PointSagaParameters

# The part of the iterate that is stored apart grows as its scale shrinks: fold it in long before either
# end of the range.
_SMALLEST_SCALE = 1e-60


class PointSagaState(NamedTuple):
    """The variables.

    Attributes
    ----------
    vectors : (d, 2)
        p and ḡ, interleaved; the iterate is x = a·p + b·ḡ, so that a sample costs its non-zeros although ḡ
        and the ℓ2 term move all of x at every step. ḡ is the mean of the table's gradients.
    scales : (2,)
        a and b.
    table : (N,)
        Each sample's wℓ' when it was last drawn; before, at 0, or none.
    """

    vectors: np.ndarray
    scales: np.ndarray
    table: np.ndarray


class PointSagaConstants(NamedTuple):
    """The smoothness of the loss, the step γ, the strong convexity μ of a term, and N."""

    beta: float
    step: float
    curvature: float
    n_terms: int


class PointSagaParts(NamedTuple):
    """All that the kernel below needs."""

    samples: Samples
    constants: PointSagaConstants
    state: PointSagaState


@kernel
def _run(
    parts: PointSagaParts, times: np.ndarray, actors: np.ndarray, drawn: np.ndarray, first: int, last: int
) -> int:
    """Take the steps of the samples drawn[first], …, drawn[last − 1]."""
    loss, rows, y, weights = parts.samples.loss, parts.samples.rows, parts.samples.y, parts.samples.weights
    beta, step, curvature, n_terms = parts.constants
    state = parts.state
    shrink = 1.0 / (1.0 + step * curvature)
    vectors = state.vectors
    a, b = state.scales[0], state.scales[1]
    for t in range(first, last):
        j = drawn[t]
        start, stop = row_span(rows, j)
        along = 0.0
        along_mean = 0.0
        norm = 0.0
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            column = row_column(rows, j, k)
            along += entry * vectors[column, 0]
            along_mean += entry * vectors[column, 1]
            norm += entry * entry
        margin = a * along + b * along_mean
        known = state.table[j]
        target = (margin + step * (known * norm - along_mean)) * shrink
        bend = step * weights[j] * norm * shrink
        found = weights[j] * prox_slope(loss, beta, target, bend, label_at(y, j), margin)
        change = found - known
        state.table[j] = found
        a *= shrink
        b = (b - step) * shrink
        to_mean = change / n_terms
        # x⁺ = (x − γḡ − γ·change·x_j)/(1 + γμ), written with the new ḡ
        to_own = -(b * to_mean + step * shrink * change) / a
        for k in range(start, stop):
            entry = row_entry(rows, j, k)
            column = row_column(rows, j, k)
            vectors[column, 0] += to_own * entry
            vectors[column, 1] += to_mean * entry
        if a < _SMALLEST_SCALE:
            for k in range(vectors.shape[0]):
                vectors[k, 0] *= a
            a = 1.0
    state.scales[0] = a
    state.scales[1] = b
    return last


class PointSagaProcess(EventProcess):
    """Point-SAGA in progress: every event of the one node's schedule is a step."""

    kernels = register_event_kernels(PointSagaParts, EventKernels(_run))

    def __init__(self, setting: Setting[PointSagaParameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        super().__init__(setting, problem.active.astype(np.float64))
        self.parameters, samples = parameters, problem.samples
        self.state = PointSagaState(
            np.zeros((problem.n_features, 2)), np.array([1.0, 0.0]), np.zeros(problem.n_samples)
        )
        constants = PointSagaConstants(
            samples.loss.beta, parameters.step, parameters.curvature, parameters.n_terms
        )
        self.parts = PointSagaParts(samples, constants, self.state)
        if not parameters.zero_table:
            slopes = problem.slopes(np.zeros(problem.n_features))
            self.state.table[...] = np.where(problem.active, slopes, 0.0)
            self.state.vectors[:, 1] = problem.row_total(self.state.table) / parameters.n_terms
            self.work = Work(problem.n_samples, 0, 0)

    def primal(self, read: str = "x") -> np.ndarray:
        return np.asarray(self.state.vectors @ self.state.scales)[None, :]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict()


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
    kind = "single"

    record, process = PointSagaParameters, PointSagaProcess
    choices = MappingProxyType(
        {
            "theory": lambda problem, network, tau: PointSagaParameters.theory(problem, network),
            "zero-table": lambda problem, network, tau: PointSagaParameters.theory(
                problem, network, zero_table=True
            ),
        }
    )

    def position_of(self, parameters: PointSagaParameters, sizes: NodeSizes, passes: float) -> float:
        return max(0.0, passes - (0.0 if parameters.zero_table else 1.0)) * float(sizes.n_samples.sum())

    def effort(self, parameters: PointSagaParameters, sizes: NodeSizes, network: Network) -> EventEffort:
        first = 0 if parameters.zero_table else int(sizes.n_samples.sum())
        return EventEffort(np.zeros(network.n_nodes, dtype=np.int64), at_start=first)


register_method(PointSaga())
