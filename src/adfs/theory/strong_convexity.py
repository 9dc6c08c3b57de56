"""σ_A = λ_min⁺(AᵀΣ⁻¹A), the strong convexity of the dual, by n × n eigenproblems.

With μ_ij² = α_i L_ij on virtual edges, an eigenvector of Σ^{-1/2}AAᵀΣ^{-1/2} for λ < min α_i is fixed by
its values u on the centres, where it solves Lap u = λ N(λ) u with N(λ) = diag(σ_i(1 + κ_i α_i/(α_i −
λ))). N grows with λ, so the smallest positive solution is the one fixed point of λ ↦ λ_2(Lap, N(λ)).
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from adfs.errors import InputError
from adfs.network import Network
from adfs.network.spectrum import second_eigenpair
from adfs.problem import Problem

__all__ = ["dual_curvature", "dual_curvature_of_split", "projected_dual_curvature"]

_MOST_SOLVES = 60
_ROUNDING = 2e-15
_ITERATIVE = 1e-10  # relative; what iterative eigensolvers can be trusted to
_CLOSE = 1e-5
_SLIVER = 1e-13  # a solution this near to the limit is taken for the limit


def dual_curvature_of_split(network: Network, sigma: np.ndarray, kappa: np.ndarray, split: float) -> float:
    """Return σ_A = λ_2(Lap, N_r), N_r = diag(σ_i(1 + κ_i/(1 − r))), for one α = σ_A/r at every node.

    Parameters
    ----------
    network : Network
        At least two nodes.
    sigma, kappa : ndarray of shape (n,)
        σ_i and κ_i; λ_max(K_i) in place of κ_i gives a larger number that is still valid in the linear case.
    split : float
        r in (0, 1).
    """
    return second_eigenpair(network, sigma * (1.0 + kappa / (1.0 - split))).value


def dual_curvature(
    network: Network, sigma: np.ndarray, kappa: np.ndarray, virtual_weight: np.ndarray
) -> float:
    """Return σ_A for any α_i, the ``virtual_weight`` of node i (μ_ij² = α_i L_ij), exactly.

    Newton's method on λ = λ_2(Lap, N(λ)), whose right side falls as λ grows, inside a bracket below min
    α_i. Where no solution lies below min α_i, that is the smallest eigenvalue: two tips of the node can
    move against each other at it. If the node has one tip only, it is a lower bound instead, which is all
    that ADFS needs.

    Parameters
    ----------
    network : Network
    sigma, kappa : ndarray of shape (n,)
        σ_i and κ_i.
    virtual_weight : ndarray of shape (n,)
        α_i; those of nodes without samples (κ_i = 0) do not count.
    """
    carrying = kappa > 0.0
    limit = float(virtual_weight[carrying].min()) if carrying.any() else np.inf
    if network.n_nodes == 1:
        return limit

    def growth(value: float) -> np.ndarray:
        return np.where(carrying, kappa * virtual_weight / (virtual_weight - value), 0.0)

    # For the paper's α_i the solution lies between half of the limit and the limit.
    low, high, value = 0.0, limit, 0.5 * limit if np.isfinite(limit) else 0.0
    nearest = limit * (1.0 - _SLIVER)
    for _ in range(_MOST_SOLVES):
        diagonal = sigma * (1.0 + growth(value))
        pair = second_eigenpair(network, diagonal)
        difference = pair.value - value
        if abs(difference) <= (_ROUNDING if pair.method == "dense" else _ITERATIVE) * pair.value:
            return pair.value
        if difference > 0.0:
            low, high = value, min(high, pair.value)
        else:
            high = value
        if high - low <= _ROUNDING * high or low >= nearest:
            break
        bend = np.where(carrying, kappa * sigma * virtual_weight / (virtual_weight - value) ** 2, 0.0)
        mass = pair.vector**2
        slope = -pair.value * float(bend @ mass) / float(diagonal @ mass)
        move = difference / (1.0 - slope)
        value += move
        if value >= high == limit and low < nearest:
            value = nearest  # is there a solution below the limit at all? One solve tells
        elif not low < value < high:
            value = 0.5 * (low + high)
        elif pair.method != "dense" and abs(move) <= _CLOSE * value:
            return value  # Newton squares the error: another solve would only confirm this one's
    return high if high == limit else low


def projected_dual_curvature(problem: Problem, network: Network, split: float) -> float:
    """Return σ_A of the linear case exactly: an nd × nd eigenproblem, N_r = blockdiag(σ_i(I + K_i/(1 − r))).

    Tips never leave the line of their sample, so only that direction of each counts. An oracle for small
    cases: the bound λ_max(K_i) used by tuned parameters never exceeds it.
    """
    n, d = problem.n_nodes, problem.n_features
    if n * d > 2000:
        raise InputError(
            f"the exact projected sigma_A is for small problems (n·d ≤ 2000), this one has {n * d}"
        )
    blocks = []
    for node, shard in enumerate(problem.shards):
        rows = shard.X.toarray() if problem.sparse else shard.X
        gram = problem.loss.beta * rows.T @ (shard.weights[:, None] * rows)
        blocks.append(problem.sigma[node] * np.eye(d) + gram / (1.0 - split))
    mass = scipy.linalg.block_diag(*blocks)
    laplacian = np.kron(network.laplacian().toarray(), np.eye(d))
    return float(scipy.linalg.eigh(laplacian, mass, eigvals_only=True)[d])
