"""σ_A = λ_min⁺(AᵀΣ⁻¹A), the strong convexity of the dual, by sparse eigenproblems of at most 2n rows.

With μ_ij² = α_i L_ij on virtual edges, the tips of node i differ in their mass L_ij only, so that an
eigenvector of (AAᵀ, Σ) does one of two things. Either tips of one node move against each other and everything
else rests: that takes two tips, and the eigenvalue is α_i. Or all tips of a node move alike, by α_i/(α_i − λ)
times its centre, and the centres' values u solve

    Lap u = λ N(λ) u,        N(λ) = diag(σ_i(1 + κ_i α_i/(α_i − λ))).

N grows with λ up to the smallest α_i, so the smallest positive solution below it, if there is one, is the
fixed point of λ ↦ λ_2(Lap, N(λ)), which falls. If there is none, that α_i is σ_A where its node has two tips.
Where it has one, the search goes on above α_i with that tip as a node of mass κ_iσ_i on an edge of weight
α_iκ_iσ_i.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.sparse

from adfs.errors import InputError
from adfs.network import Network, second_eigenpair
from adfs.network.spectrum import ROUNDING
from adfs.problem import Problem

_MOST_SOLVES = 60


def dual_curvature_of_split(network: Network, sigma: np.ndarray, kappa: np.ndarray, split: float) -> float:
    """Return σ_A = λ_2(Lap, N_r), N_r = diag(σ_i(1 + κ_i/(1 − r))), for one α = σ_A/r at every node.

    It is too small by the eigensolver's own bound of its error, as a rule below 1e-8, and never too large.

    Parameters
    ----------
    network : Network
        At least two nodes.
    sigma, kappa : ndarray of shape (n,)
        σ_i and κ_i; λ_max(K_i) in place of κ_i gives a larger number that is still valid in the linear case.
    split : float
        r in (0, 1).
    """
    return second_eigenpair(network, sigma * (1.0 + kappa / (1.0 - split))).lower


def dual_curvature(
    network: Network, sigma: np.ndarray, kappa: np.ndarray, n_tips: np.ndarray, virtual_weight: np.ndarray
) -> float:
    """Return σ_A for any α_i, the ``virtual_weight`` of node i (μ_ij² = α_i L_ij).

    As exact as `dual_curvature_of_split`, from the same network, σ_i and κ_i.

    Parameters
    ----------
    network, sigma, kappa
    n_tips : ndarray of shape (n,)
        Numbers of tips, that is of samples that are more than constants.
    virtual_weight : ndarray of shape (n,)
        α_i; those of nodes without tips do not count.
    """
    alpha = np.where(n_tips > 0, virtual_weight, np.inf)
    masses = kappa * sigma
    end = float(np.min(alpha[n_tips > 1], initial=np.inf))
    shown = np.zeros(network.n_nodes, dtype=bool)
    value = 0.0
    while True:
        hidden = np.where(shown, np.inf, alpha)
        limit = float(hidden.min())
        drawn, own = _with_tips(network, sigma, masses, np.flatnonzero(shown), alpha)
        value = _solution_below(limit, drawn, own, masses, hidden, value)
        if value < _just_below(limit) or limit == end:
            return value
        # Nothing up to the limit, and the node there has a single tip: on with its tip as a node, and with
        # those that would come next.
        shown |= (n_tips == 1) & (alpha <= 1.25 * limit)


def _just_below(limit: float) -> float:
    return limit * (1.0 - ROUNDING)


def _with_tips(
    network: Network, sigma: np.ndarray, masses: np.ndarray, nodes: np.ndarray, alpha: np.ndarray
) -> tuple[Network, np.ndarray]:
    """Return the network with the tips of some nodes as nodes at the end, and the masses σ of all."""
    if nodes.size == 0:
        return network, sigma
    size = network.n_nodes + nodes.size
    ends = np.concatenate([network.edges, np.stack([nodes, np.arange(network.n_nodes, size)], axis=1)])
    weights = np.concatenate([network.weights, alpha[nodes] * masses[nodes]])
    one_way = scipy.sparse.coo_array((weights, (ends[:, 0], ends[:, 1])), shape=(size, size))
    return Network(one_way + one_way.T), np.concatenate([sigma, masses[nodes]])


def _solution_below(
    limit: float, network: Network, own: np.ndarray, masses: np.ndarray, alpha: np.ndarray, low: float
) -> float:
    """Solve λ = λ_2(Lap, N(λ)) between ``low`` and ``limit``, or return what is just below the limit.

    Newton's method inside a bracket. ``own`` are the masses of all nodes, ``alpha`` and ``masses`` those of
    the tips that are not nodes (α infinite where there are none).
    """
    hidden = np.flatnonzero(np.isfinite(alpha))
    if hidden.size == 0:
        return second_eigenpair(network, own).lower
    masses, alpha = masses[hidden], alpha[hidden]
    # For the paper's α_i the solution lies between half of the smallest of them and that.
    high, value = limit, max(low, 0.5 * limit)
    for _ in range(_MOST_SOLVES):
        diagonal = own.copy()
        diagonal[hidden] += masses * alpha / (alpha - value)
        pair = second_eigenpair(network, diagonal)
        difference = pair.value - value
        # λ_2 falls, so the solution lies between any λ and λ_2 there: the smaller of them is not too large.
        if abs(difference) <= pair.error * value or (difference > 0.0 and value >= _just_below(limit)):
            return min(value, pair.lower)
        low, high = (value, high) if difference > 0.0 else (low, value)
        bend = masses * alpha / (alpha - value) ** 2
        slope = -pair.value * float(np.sum(bend * pair.vector[hidden] ** 2))
        value = min(value + difference / (1.0 - slope), _just_below(limit))
        if not low < value < high:
            value = 0.5 * (low + high)
    return low


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
