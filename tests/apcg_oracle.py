"""Generalised APCG with arbitrary sampling (Algorithm 1), on the edge variables of the augmented graph.

Literal, dense and slow: the oracle that the node-variable forms are held to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adfs.theory import AugmentedGraph


class Coefficients(NamedTuple):
    """α_t, β_t and a_{t+1}/B_{t+1} of one step, with A_t and B_t for the Lyapunov function."""

    alpha: float
    beta: float
    step: float
    weight: float
    mass: float


def constant_coefficients(contraction: float, dual_curvature: float, t: int) -> Coefficients:
    """α = β = ρ and A_t = B_t/σ_A = (1 − ρ)^{−t}, for a strongly convex dual."""
    weight = math.exp(-t * math.log1p(-contraction)) if contraction < 1.0 else math.inf
    return Coefficients(
        contraction, contraction, contraction / dual_curvature, weight, dual_curvature * weight
    )


def non_smooth_coefficients(weight: float, increment: float) -> Coefficients:
    """β = 0 and B = 1, for a dual that is not strongly convex; ``weight`` is A_t, ``increment`` a_{t+1}."""
    return Coefficients(increment / (weight + increment), 0.0, increment, weight, 1.0)


class ApcgState(NamedTuple):
    """The sequences x_t and v_t, edge variables of shape (|E⁺|, d)."""

    x: np.ndarray
    v: np.ndarray


class GeneralizedApcg:
    """Minimise q_A(λ) + ψ(λ) over edge variables, one coordinate block per step.

    Problem
        q_A(λ) = ½ λᵀAᵀΣ⁻¹Aλ and ψ_ij(λ_ij) = f*_ij(−μ_ij λ_ij) − μ_ij²/(2L_ij)‖λ_ij‖² on virtual edges
        (f* whole where the tips have Σ⁻¹ = 0).
    Algorithm
        y = ((1 − α)x + α(1 − β)v)/(1 − αβ), w = (1 − β)v + βy, v⁺ = prox_{ηψ}(w − η∇_e q_A(y)) in
        coordinate e with η = a_{t+1}/(B_{t+1} p_e), x⁺ = y + (αR_e/p_e)(v⁺ − w).
    Guarantee
        Theorem 1: E[B_t‖v_t − λ*‖²_{A⁺A} + 2A_t(F(x_t) − F*)] is at most its value at t = 0.

    Parameters
    ----------
    graph : AugmentedGraph
    """

    def __init__(self, graph: AugmentedGraph) -> None:
        self.graph = graph
        self.hessian = graph.incidence.T @ (graph.inverse_sigma[:, None] * graph.incidence)

    def start(self) -> ApcgState:
        """Return x_0 = v_0 = 0."""
        zero = np.zeros((self.graph.n_edges, self.graph.problem.n_features))
        return ApcgState(zero, zero)

    def step(self, state: ApcgState, edge: int, coefficients: Coefficients) -> ApcgState:
        """Return the state after an update of one edge."""
        alpha, beta = coefficients.alpha, coefficients.beta
        p = self.graph.probability[edge]
        x, v = state
        if alpha * beta == 1.0:  # the limit of the quotient as α = β → 1
            y = (x + v) / 2
        else:
            y = ((1 - alpha) * x + alpha * (1 - beta) * v) / (1 - alpha * beta)
        w = (1 - beta) * v + beta * y
        eta = coefficients.step / p
        following = w.copy()
        following[edge] -= eta * (self.hessian[edge] @ y)
        if self.graph.is_virtual(edge):
            following[edge] = self._prox(edge, following[edge], eta)
        return ApcgState(y + alpha * self.graph.step_resistance[edge] / p * (following - w), following)

    def _prox(self, edge: int, z: np.ndarray, eta: float) -> np.ndarray:
        """Return prox_{ηψ}(z); with ṽ = −μv it is the dual prox of the term with step ημ²."""
        mu = math.sqrt(self.graph.mu_squared[edge])
        step = eta * self.graph.mu_squared[edge]
        return -self.graph.term(edge).dual_prox(-mu * z, step, self.graph.tip_curvature(edge)) / mu
