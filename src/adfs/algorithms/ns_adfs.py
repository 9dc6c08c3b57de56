"""Compiled NS-ADFS, for losses that need not be smooth.

The form is that of the literal twin in the tests: while a node is idle, neither v nor u = A_t(x − v) changes.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms.adfs import AdfsProcess, CenterProcess
from adfs.algorithms.adfs_kernels import (
    center_iterate,
    center_products,
    compute,
    move_center,
    moves_at,
    receive,
    run_events,
    share_at,
)
from adfs.algorithms.base import EventProcess, Method, Setting
from adfs.algorithms.costs import Cost, dual_cost, network_links
from adfs.algorithms.method_kernels import EventKernels, register_kernels
from adfs.compilation import inlined, overloads
from adfs.network import Network
from adfs.problem import Loss, Samples
from adfs.problem.gaps import Penalty
from adfs.problem.losses import weighted_conjugate_prox
from adfs.problem.samples import kind_of, label_at
from adfs.theory import Facts, NonSmoothParameters, Parameters


class NsState(NamedTuple):
    """``centers`` (n, d) hold v + i·u of each centre, ``duals`` (N,) the same as multiples of each row."""

    centers: np.ndarray
    duals: np.ndarray


class NsConstants(NamedTuple):
    """The constants of an event.

    ``quarter`` is 1/(4S²) and ``offset`` t0, so that A_t = (t + t0)²·quarter; ``nodes`` (n, 3) are 1/σ_i, and
    μ_ij²/p_ij and 1/p_ij of a node's samples; ``edges`` (E, 2) are μ_e²/p_e and R_e/p_e; the rest as in ADFS.
    """

    quarter: float
    offset: float
    beta: float
    nodes: np.ndarray
    edges: np.ndarray
    ends: np.ndarray
    slot: np.ndarray
    penalty: Penalty


@inlined
def _coefficients(constants: NsConstants, time: float) -> tuple[float, float]:
    """Return a_{t+1} and A_{t+1} at the event of a time s = t + 1."""
    shifted = time - 1.0 + constants.offset
    return (2.0 * shifted + 1.0) * constants.quarter, (shifted + 1.0) * (shifted + 1.0) * constants.quarter


class NsParts(NamedTuple):
    """The arguments of the kernels."""

    samples: Samples
    constants: NsConstants
    state: NsState


def _compute(parts: NsParts, i: np.uint64, j: np.uint64, time: float) -> None:
    samples, constants, state = parts.samples, parts.constants, parts.state
    rows = samples.rows
    increment, weight_after = _coefficients(constants, time)
    # The margin of the sample at y = v + u/A_{t+1}.
    center = state.centers[i]
    along_v, along_u, norm = center_products(rows, j, center, np.uint64(0))
    margin = (along_v + along_u / weight_after) * constants.nodes[i, 0]
    # The prox of a_{t+1}η·wℓ*(·/w), in units of the row.
    h = increment * constants.nodes[i, 1] / norm
    dual = state.duals[j]
    zeta, weight = dual.real + h * margin, samples.weights[j]
    moved = weighted_conjugate_prox(
        samples.loss, constants.beta, zeta, h, label_at(samples.y, j), weight, margin
    )
    # v jumps by the change, u by (a_{t+1}R/p − A_{t+1}) times it; the centre by the opposite, along the row.
    change = moved - dual.real
    to_u = (increment * constants.nodes[i, 2] - weight_after) * change
    state.duals[j] = complex(moved, dual.imag + to_u)
    move_center(rows, j, center, np.uint64(0), change, to_u)


# Exchanges are those of ADFS with these numbers: the ends exchange y = v + u/A_{t+1}, v jumps by the
# difference and u by (a_{t+1}R/p − A_{t+1}) times it.


def _share(parts: NsParts, i: int, time: float) -> float:
    return 1.0 / _coefficients(parts.constants, time)[1]


def _moves(parts: NsParts, edge: int, i: int, time: float) -> tuple[float, float, float]:
    constants = parts.constants
    increment, weight_after = _coefficients(constants, time)
    to_u = increment * constants.edges[edge, 1] - weight_after
    return increment * constants.edges[edge, 0], 1.0, to_u


overloads(compute)(lambda parts, i, j, time: _compute if kind_of(parts) is NsParts else None)
overloads(share_at)(lambda parts, i, time: _share if kind_of(parts) is NsParts else None)
overloads(moves_at)(lambda parts, edge, i, time: _moves if kind_of(parts) is NsParts else None)


class NsAdfsProcess(CenterProcess, EventProcess):
    """NS-ADFS in progress over a block of nodes."""

    parts: NsParts
    kernels = register_kernels(NsParts, EventKernels(run_events, center_iterate, receive))

    def __init__(self, setting: Setting[NonSmoothParameters]) -> None:
        problem, parameters, block = setting.problem, setting.parameters, setting.block
        # Samples are drawn uniformly: without smoothness none matters more than another.
        super().__init__(setting, problem.active.astype(np.float64))
        # A node without samples never acts: any numbers do.
        counts = np.where(parameters.n_active > 0, parameters.n_active, 1.0)
        probability = np.where(parameters.node_probability > 0.0, parameters.node_probability / counts, 1.0)
        nodes = 1.0 / parameters.sigma, parameters.virtual_weight / probability, 1.0 / probability
        chances = parameters.edge_probability[:, None]
        self.constants = NsConstants(
            quarter=1.0 / (4.0 * parameters.step_bound),
            offset=parameters.offset,
            beta=problem.samples.loss.beta,
            nodes=np.stack(nodes, axis=1)[block],
            edges=np.stack([parameters.edge_weights, parameters.edge_resistance], axis=1) / chances,
            ends=self.ends,
            slot=self.slot,
            penalty=problem.penalty,
        )
        centers = np.zeros((problem.n_nodes, problem.n_features), np.complex128)
        self.state = NsState(centers, np.zeros(problem.n_samples, np.complex128))
        self.parts = NsParts(problem.samples, self.constants, self.state)

    def _shift(self, read: str) -> float:
        """Return the share of u in x = v + u/A_t; v itself has none."""
        weight = (self.position + self.constants.offset) ** 2 * self.constants.quarter
        return 1.0 / weight if read == "x" else 0.0

    def primal(self, read: str = "x") -> np.ndarray:
        iterate = self.state.centers.real + self._shift(read) * self.state.centers.imag
        return np.asarray(iterate * self.constants.nodes[:, 0, None])

    def dual(self) -> np.ndarray:
        return np.asarray(self.state.duals.real + self._shift("x") * self.state.duals.imag)


class NsAdfs(Method[Any]):
    """NS-ADFS: ADFS for losses that need not be smooth, such as the hinge or the absolute loss.

    Algorithm
        The paper's non-smooth variant, with α_t in the x-update (erratum 8) and a start that keeps the
        iterates in the domain of the conjugates (erratum 9).
        With ``parameters="smoothing"`` it is ADFS on the loss with rounded kinks, whose width shrinks with
        the certified gap (`adfs.stages.smoothing`).
    Guarantee
        Theorem 3: the dual error falls as 1/t², in expectation. None is proven with smoothing, and the gap is
        certified all the same.
    """

    name = "ns-adfs"
    label = "NS-ADFS"
    warm_starts = True
    observed_factor = 0.65
    lost_exchanges = True
    kind = "events"
    needs_smooth = False
    reference_order = 5
    stages = "smoothing"

    record = NonSmoothParameters
    # Theory offers one choice for this method; "tuned" is what people ask of every other.
    choices = MappingProxyType(
        {
            "paper": NonSmoothParameters.paper,
            "tuned": NonSmoothParameters.paper,
            "smoothing": Parameters.tuned,
        }
    )

    def parameters_for(self, loss: Loss, given: object) -> object:
        # Smoothing takes a fraction of the passes.
        return "smoothing" if given is None and loss.smoothed(1.0) is not None else given

    def start(self, setting: Setting[Any]) -> NsAdfsProcess | AdfsProcess:
        return AdfsProcess(setting) if isinstance(setting.parameters, Parameters) else NsAdfsProcess(setting)

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Theorem 3: the gap is at most (‖λ*‖² + 2A_0Δ_0)/(2A_t) with A_t = (t + t0)²/(4S²); ‖λ*‖² is about
        # Σ s²‖x‖²/μ², Δ_0 is 1, and ``bound`` is S²Σσ/μ² for the paper's probabilities.
        n, count, p_comm = network.n_nodes, float(facts.n_samples), 0.0
        if n > 1:
            links, most = network_links(network), count / n
            p_comm = min(0.5, 1.0 / (1.0 + n * math.sqrt(most / links)))
            bound = n * max((count / (1.0 - p_comm)) ** 2, (1.0 + most) * links / p_comm**2)
        else:
            bound = count**2
        offset = 2.0 * count / (1.0 - p_comm)
        position = self.observed_factor * math.sqrt((2.0 * bound * facts.spread + offset**2) / tol)
        return dual_cost(facts, position, (1.0 - p_comm) * position, 2.0 * p_comm * position)
