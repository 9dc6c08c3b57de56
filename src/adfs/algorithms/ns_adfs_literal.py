"""NS-ADFS, for terms that need not be smooth: as the paper states it, and in the form without idle work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adfs.algorithms.adfs_literal import AdfsState
from adfs.errors import InputError
from adfs.theory.augmented import AugmentedGraph
from adfs.theory.variants import NonSmoothParameters

__all__ = ["LiteralNsAdfs", "NsLagState", "VelocityNsAdfs"]


class NsLagState(NamedTuple):
    """v (``velocity``) and u = A_t(x − v) (``momentum``) at every augmented node; both rest in idle nodes."""

    velocity: np.ndarray
    momentum: np.ndarray


def _non_smooth_parameters(graph: AugmentedGraph) -> NonSmoothParameters:
    if not isinstance(graph.parameters, NonSmoothParameters):
        raise InputError("NS-ADFS takes NonSmoothParameters")
    return graph.parameters


def _change(graph: AugmentedGraph, edge: int, v: np.ndarray, y: np.ndarray, increment: float) -> np.ndarray:
    """Return v_j⁺ − v_j at the far end j of an edge, the opposite of v_i⁺ − v_i. Σ⁻¹ is 0 at tips."""
    i, j = graph.edges[edge]
    eta = increment * graph.mu_squared[edge] / graph.probability[edge]
    inverse = graph.inverse_sigma
    pull = eta * (y[i] * inverse[i] - y[j] * inverse[j])
    if graph.is_virtual(edge):
        return np.asarray(graph.term(edge).dual_prox(v[j] + pull, eta, graph.tip_curvature(edge)) - v[j])
    return np.asarray(pull)


class LiteralNsAdfs:
    """NS-ADFS with x, y and v at every augmented node.

    Algorithm
        y = (1 − α_t)x + α_t v with α_t = a_{t+1}/A_{t+1}; v⁺ = v − a_{t+1}η_e W_eΣ⁻¹y with η_e =
        μ_e²/p_e, the tip then taking prox_{a_{t+1}η_e f*}; x⁺ = y + (α_t R_e/p_e)(v⁺ − v), with α_t and
        not ρ (erratum 8).
    Guarantee
        Theorem 3 with the bound of erratum 9: E F*(x_t) − F* ≤ (‖v_0 − λ*‖²_{A⁺A} + 2A_0Δ_0)/(2A_t).
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _non_smooth_parameters(graph)

    def start(self) -> AdfsState:
        """Return x_0 = v_0 = 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return AdfsState(zero, zero)

    def step(self, state: AdfsState, edge: int, t: int) -> AdfsState:
        """Return the state after event t."""
        weight, increment = self.parameters.weight_at(t), self.parameters.increment_at(t)
        alpha = increment / (weight + increment)
        i, j = self.graph.edges[edge]
        y = (1 - alpha) * state.x + alpha * state.v
        change = _change(self.graph, edge, state.v, y, increment)
        following = state.v.copy()
        following[i] -= change
        following[j] += change
        ratio = alpha * self.graph.step_resistance[edge] / self.graph.probability[edge]
        return AdfsState(y + ratio * (following - state.v), following)


class VelocityNsAdfs:
    """NS-ADFS in the variables v and u = A_t(x − v): an event touches its two ends and nothing else.

    Algorithm
        y = v + u/A_{t+1}; with δ the change of v at an end, v ← v + δ and u ← u + (a_{t+1}R_e/p_e −
        A_{t+1})δ.
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _non_smooth_parameters(graph)

    def start(self) -> NsLagState:
        """Return v = u = 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return NsLagState(zero, zero.copy())

    def step(self, state: NsLagState, edge: int, t: int) -> NsLagState:
        """Return the state after event t."""
        following, increment = self.parameters.weight_at(t + 1), self.parameters.increment_at(t)
        i, j = self.graph.edges[edge]
        velocity, momentum = state.velocity.copy(), state.momentum.copy()
        y = velocity + momentum / following
        change = _change(self.graph, edge, velocity, y, increment)
        ratio = increment * self.graph.step_resistance[edge] / self.graph.probability[edge] - following
        for k, sign in ((i, -1.0), (j, 1.0)):
            velocity[k] += sign * change
            momentum[k] += ratio * sign * change
        return NsLagState(velocity, momentum)

    def iterates(self, state: NsLagState, t: int) -> AdfsState:
        """Return x_t and v_t of all nodes after t events."""
        return AdfsState(state.velocity + state.momentum / self.parameters.weight_at(t), state.velocity)
