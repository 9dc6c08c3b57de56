"""Point-SAGA on one machine: a prox of one sample a step, with a table of one scalar a sample."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms.base import (
    EventEffort,
    EventProcess,
    Method,
    Setting,
    Work,
    pick_record,
    register_method,
)
from adfs.algorithms.local import prox_slope
from adfs.compilation import kernel
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.problem.evaluation import loss_derivatives, weighted_row_total
from adfs.problem.losses import derivative
from adfs.problem.rows import row_column, row_entry, row_span
from adfs.schedule import Events
from adfs.theory import NodeSizes, NodeSummary
from adfs.theory.baselines import PointSagaParameters

__all__ = ["PointSaga", "PointSagaProcess", "PointSagaState", "literal_point_saga"]

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


def literal_point_saga(problem: Problem, parameters: PointSagaParameters, samples: np.ndarray) -> np.ndarray:
    """Return x after the draws ``samples``, (d,): whole vectors in the table, each prox by bisection."""
    X = problem.X.toarray() if problem.sparse else problem.X
    gamma, mu, loss = parameters.step, parameters.curvature, problem.loss
    x = np.zeros(problem.n_features)
    table = np.zeros((problem.n_samples, problem.n_features))
    if not parameters.zero_table:
        for row in np.flatnonzero(problem.active):
            table[row] = problem.weights[row] * derivative(loss, 0.0, float(problem.y[row])) * X[row]
    mean = table.sum(axis=0) / parameters.n_terms
    for row in samples:
        z, shrink = x + gamma * (table[row] - mean), 1.0 + gamma * mu
        a, weight, b = X[row], float(problem.weights[row]), float(problem.y[row])
        bend, target = gamma * weight * float(a @ a) / shrink, float(a @ z) / shrink

        def excess(u: float, b: float = b, bend: float = bend, target: float = target) -> float:
            return u + bend * derivative(loss, u, b) - target

        reach = 1.0
        while excess(target - reach) > 0.0 or excess(target + reach) < 0.0:
            reach *= 2.0
        low, high = target - reach, target + reach
        for _ in range(200):
            u = 0.5 * (low + high)
            low, high = (low, u) if excess(u) > 0.0 else (u, high)
        pull = weight * derivative(loss, 0.5 * (low + high), b) * a
        x = (z - gamma * pull) / shrink
        mean = mean + (pull - table[row]) / parameters.n_terms
        table[row] = pull
    return x


@kernel
def _run(
    loss: Any,
    rows: Any,
    y: np.ndarray,
    weights: np.ndarray,
    beta: float,
    step: float,
    curvature: float,
    n_terms: int,
    state: PointSagaState,
    samples: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Take the steps of the samples first … last − 1."""
    shrink = 1.0 / (1.0 + step * curvature)
    vectors = state.vectors
    a, b = state.scales[0], state.scales[1]
    for t in range(first, last):
        j = samples[t]
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
        found = weights[j] * prox_slope(loss, beta, target, step * weights[j] * norm * shrink, y[j], margin)
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


class PointSagaProcess(EventProcess):
    """Point-SAGA in progress: every event of the one node's schedule is a step."""

    def __init__(self, setting: Setting) -> None:
        problem = setting.problem
        super().__init__(setting, problem.active.astype(np.float64))
        self.problem = problem
        self.parameters: PointSagaParameters = setting.parameters
        self.state = PointSagaState(
            np.zeros((problem.n_features, 2)), np.array([1.0, 0.0]), np.zeros(problem.n_samples)
        )
        if not self.parameters.zero_table:
            slopes = loss_derivatives(problem.loss, np.zeros(problem.n_samples), problem.y)
            self.state.table[...] = np.where(problem.active, problem.weights * slopes, 0.0)
            total = weighted_row_total(problem.rows, problem.offsets, self.state.table, problem.n_features)
            self.state.vectors[:, 1] = total / self.parameters.n_terms
            self.work = Work(problem.n_samples, 0, 0)

    def run(self, events: Events, first: int, last: int) -> int:
        p, q = self.problem, self.parameters
        _run(
            p.loss,
            p.rows,
            p.y,
            p.weights,
            p.loss.beta,
            q.step,
            q.curvature,
            q.n_terms,
            self.state,
            events.sample,
            first,
            last,
        )
        return last

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        raise InputError("point-saga runs on one machine and sends nothing")

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        raise InputError("point-saga runs on one machine and receives nothing")

    def primal(self, read: str = "x") -> np.ndarray:
        return np.asarray(self.state.vectors @ self.state.scales)[None, :]

    def arrays(self) -> dict[str, np.ndarray]:
        return self.state._asdict()


class PointSaga(Method):
    """Point-SAGA: the variance-reduced proximal method that is accelerated by itself, on one machine.

    Problem
        min_θ Σ_j w_j ℓ(x_jᵀθ; y_j) + (Σσ_i/2)‖θ‖² with a smooth loss, all samples in one place.
    Algorithm
        z = x + γ(φ_j − ḡ); x⁺ = prox_{γf_j}(z); φ_j ← the new gradient. The table holds the losses'
        part alone. It starts with the gradients at 0, as its paper has it (a pass, which is counted);
        ``parameters="zero-table"`` starts with zeros, which is quicker where most samples end up with a
        small gradient.
    Guarantee
        The squared error shrinks by 1/(1 + μγ) a sample in expectation.

    References
    ----------
        Defazio, "A simple practical accelerated method for finite sums", NeurIPS 2016.
    """

    name = "point-saga"
    kind = "single"

    def parameters(
        self,
        problem: Problem | GeneralProblem | NodeSummary,
        network: Network,
        *,
        choice: Any = None,
        tau: float | None = None,
    ) -> PointSagaParameters:
        theory = functools.partial(PointSagaParameters.theory, problem, network)
        makers = {"theory": theory, "zero-table": functools.partial(theory, zero_table=True)}
        record: PointSagaParameters = pick_record(choice, PointSagaParameters, makers)
        return record

    def start(self, setting: Setting) -> PointSagaProcess:
        return PointSagaProcess(setting)

    def position_of(self, parameters: Any, sizes: NodeSizes, passes: float) -> float:
        return max(0.0, passes - (0.0 if parameters.zero_table else 1.0)) * float(sizes.n_samples.sum())

    def effort(self, parameters: Any, sizes: NodeSizes, network: Network) -> EventEffort:
        first = 0 if parameters.zero_table else int(sizes.n_samples.sum())
        return EventEffort(np.zeros(network.n_nodes, dtype=np.int64), at_start=first)


register_method(PointSaga())
