"""ADFS as the paper states it, and in the form without idle work that fast code implements.

Both are literal NumPy over the whole augmented graph, so that they can be read beside the paper. They
take terms of either kind: samples of the linear case, or terms with a prox of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adfs.errors import InputError
from adfs.theory import AugmentedGraph
from adfs.theory.parameters import Parameters


class AdfsState(NamedTuple):
    """x_t and v_t at every augmented node, shape (n + T, d)."""

    x: np.ndarray
    v: np.ndarray


class LagState(NamedTuple):
    """c = (x + v)/2 (``mean``), e = v − x (``lag``), shape (n + T, d), as of their nodes' ``time``."""

    mean: np.ndarray
    lag: np.ndarray
    time: np.ndarray


def draw_edges(graph: AugmentedGraph, n_events: int, seed: int) -> np.ndarray:
    """Return i.i.d. draws of augmented edges from their probabilities, shape (n_events,)."""
    share = graph.probability / graph.probability.sum()
    return np.random.default_rng(seed).choice(graph.n_edges, size=n_events, p=share)


def _smooth_parameters(graph: AugmentedGraph) -> Parameters:
    if not isinstance(graph.parameters, Parameters):
        raise InputError("ADFS takes Parameters; for NonSmoothParameters use NS-ADFS")
    return graph.parameters


class LiteralAdfs:
    """Algorithm 2: x, y and v at every augmented node, mixed at every step.

    Problem
        min_θ Σ_i [Σ_j f_ij(θ) + (σ_i/2)‖θ‖²], through its dual on the augmented graph.
    Algorithm
        y = (x + ρv)/(1 + ρ); z = (1 − ρ)v + ρy − η̃_e W_e Σ⁻¹y with η̃_e = ρμ_e²/(σ_A p_e) (erratum 3); on a
        virtual edge the tip takes prox_{η̃f̃*}(z_tip) and the centre what it lost;
        x⁺ = y + (ρR_e/p_e)(v⁺ − (1 − ρ)v − ρy).
    Guarantee
        Theorem 2: the dual error and the distance at the centres contract by 1 − ρ per step, in expectation.

    References
    ----------
        Hendrikx, Bach, Massoulié, arXiv 1905.11394.
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _smooth_parameters(graph)

    def start(self) -> AdfsState:
        """Return x_0 = v_0 = 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return AdfsState(zero, zero)

    def step(self, state: AdfsState, edge: int) -> AdfsState:
        """Return the state after one event on an augmented edge."""
        graph, rho = self.graph, self.parameters.contraction
        i, j = graph.edges[edge]
        p = graph.probability[edge]
        eta = rho * graph.mu_squared[edge] / (self.parameters.dual_curvature * p)
        # The point y between x and v, and the mixture w that v would move to without a gradient.
        x, v = state
        y = (x + rho * v) / (1 + rho)
        w = (1 - rho) * v + rho * y
        # The gradient along the edge is the difference of its two ends.
        pull = eta * (y[i] / graph.sigma_diagonal[i] - y[j] / graph.sigma_diagonal[j])
        z = w.copy()
        z[i] -= pull
        z[j] += pull
        # A virtual edge ends at a sample, whose conjugate takes part by its prox; the sum is kept.
        following = z
        if graph.is_virtual(edge):
            tip = graph.term(edge).dual_prox(z[j], eta, graph.tip_curvature(edge))
            following = z.copy()
            following[j] = tip
            following[i] = z[i] + z[j] - tip
        return AdfsState(y + rho * graph.step_resistance[edge] / p * (following - w), following)

    def theta(self, state: AdfsState, *, read: str = "v") -> np.ndarray:
        """Return each node's primal iterate v_i/σ_i (or x_i/σ_i); centres only (erratum 6); shape (n, d)."""
        n = self.graph.n_centers
        return np.asarray(getattr(state, read)[:n] / self.graph.problem.sigma[:, None])


class MeanLagAdfs:
    """ADFS as a decay and a jump: while a node is idle c rests, and e shrinks by λ per unit of time.

    Algorithm
        At an event on edge (i, j) at time s: e_i ← λ^(s − s_i)e_i, the same for j; then with x = c − e/2,
        v = c + e/2 and g = x_i/Σ_i − x_j/Σ_j: on a communication edge δ_i = −η̃g; on a virtual edge
        δ_j = prox_{η̃f̃*}(v_j + η̃g) − v_j and δ_i = −δ_j. With χ = ρR/p, c ← c + ½(1 + χ)δ and
        e ← e + (1 − χ)δ at both ends.
    Guarantee
        The iterates of Algorithm 2 when event t is at time t + 1; with Poisson clocks time is real and
        nothing else changes.
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.parameters = _smooth_parameters(graph)

    def start(self) -> LagState:
        """Return c = e = 0 at time 0."""
        zero = np.zeros((self.graph.n_augmented, self.graph.problem.n_features))
        return LagState(zero, zero.copy(), np.zeros(self.graph.n_augmented))

    def step(self, state: LagState, edge: int, time: float) -> LagState:
        """Return the state after one event at a time; only the two ends of the edge change."""
        graph = self.graph
        ends = graph.edges[edge]
        i, j = ends
        p = graph.probability[edge]
        eta = self.parameters.contraction * graph.mu_squared[edge] / (self.parameters.dual_curvature * p)
        chi = self.parameters.contraction * graph.step_resistance[edge] / p
        # Only the two ends of the edge change: first the decay since their last events.
        mean, lag, last = state.mean.copy(), state.lag.copy(), state.time.copy()
        for k in ends:
            lag[k] *= self.parameters.decay ** (time - last[k])
        last[ends] = time
        # Then the step of coordinate descent, written for the far end; the near end moves the other way.
        x, v = mean - lag / 2, mean + lag / 2
        g = x[i] / graph.sigma_diagonal[i] - x[j] / graph.sigma_diagonal[j]
        if graph.is_virtual(edge):
            change = graph.term(edge).dual_prox(v[j] + eta * g, eta, graph.tip_curvature(edge)) - v[j]
        else:
            change = eta * g
        for k, sign in ((i, -1.0), (j, 1.0)):
            mean[k] += 0.5 * (1 + chi) * sign * change
            lag[k] += (1 - chi) * sign * change
        return LagState(mean, lag, last)

    def iterates(self, state: LagState, time: float) -> AdfsState:
        """Return x and v of all nodes as of one time."""
        lag = state.lag * (self.parameters.decay ** (time - state.time))[:, None]
        return AdfsState(state.mean - lag / 2, state.mean + lag / 2)
