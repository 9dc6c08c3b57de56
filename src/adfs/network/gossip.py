"""Gossip matrices and Chebyshev-accelerated gossip."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from adfs.errors import InputError, unknown_name
from adfs.network.spectrum import DENSE_NODES, largest_eigenpair, second_eigenpair

if TYPE_CHECKING:
    from adfs.network.network import Network

__all__ = [
    "ChebyshevCoefficients",
    "chebyshev_gossip",
    "chebyshev_matrix",
    "gossip_matrix",
    "laplacian_gossip",
    "lazy_gossip",
    "metropolis_gossip",
    "spectral_gap",
]

Floats = NDArray[np.float64]


def laplacian_gossip(network: Network) -> scipy.sparse.csr_array:
    """W = I − Lap/λ_max, (n, n) CSR: symmetric, rows sum to one, eigenvalues in [0, 1], gap γ."""
    identity = scipy.sparse.eye_array(network.n_nodes, format="csr")
    if network.n_nodes == 1:
        return identity
    return scipy.sparse.csr_array(identity - network.laplacian() / network.laplacian_max)


def metropolis_gossip(network: Network) -> scipy.sparse.csr_array:
    """Metropolis–Hastings weights W_ij = 1/(1 + max(degree_i, degree_j)), (n, n) CSR.

    They need only the neighbours' degrees; the edge weights μ_e² play no part. W is symmetric,
    non-negative, and its rows sum to one.
    """
    larger = network.degrees[network.edges].max(axis=1) if network.n_edges else np.empty(0)
    steps = 1.0 / (1.0 + larger)
    ends = network.edges.ravel()
    rest = 1.0 - np.bincount(ends, weights=np.repeat(steps, 2), minlength=network.n_nodes)
    rows = np.concatenate([ends, np.arange(network.n_nodes)])
    columns = np.concatenate([network.edges[:, ::-1].ravel(), np.arange(network.n_nodes)])
    values = np.concatenate([np.repeat(steps, 2), rest])
    matrix = scipy.sparse.coo_array((values, (rows, columns)), shape=(network.n_nodes,) * 2).tocsr()
    matrix.sort_indices()
    return matrix


def lazy_gossip(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """(I + W)/2: the same gossip with half a step, whose eigenvalues are not negative."""
    return scipy.sparse.csr_array((scipy.sparse.eye_array(matrix.shape[0], format="csr") + matrix) / 2)


_KINDS: dict[str, Callable[[Network], scipy.sparse.csr_array]] = {
    "laplacian": laplacian_gossip,
    "metropolis": metropolis_gossip,
}


def gossip_matrix(
    network: Network, kind: Literal["laplacian", "metropolis"] = "laplacian", *, lazy: bool = False
) -> scipy.sparse.csr_array:
    """Build a gossip matrix by name.

    Parameters
    ----------
    network : Network
    kind : {"laplacian", "metropolis"}
    lazy : bool
        Take (I + W)/2 instead of W.

    Returns
    -------
    (n, n) CSR
    """
    if kind not in _KINDS:
        raise unknown_name("gossip matrix", kind, _KINDS)
    matrix = _KINDS[kind](network)
    return lazy_gossip(matrix) if lazy else matrix


def spectral_gap(matrix: Any) -> float:
    """1 − max |λ| over the eigenvalues of a symmetric gossip matrix, its 1 at the constants left out.

    Parameters
    ----------
    matrix : (n, n) dense or sparse
        Symmetric, rows summing to one. Above 400 nodes its off-diagonal entries must not be negative: then
        I − W is a Laplacian, and its two extreme eigenvalues decide.

    Returns
    -------
    float
    """
    from adfs.network.network import Network

    table = scipy.sparse.csr_array(matrix, dtype=np.float64)
    n = table.shape[0]
    if (
        table.shape != (n, n)
        or abs(table - table.T).max() > 1e-12
        or abs(table.sum(axis=1) - 1).max() > 1e-10
    ):
        raise InputError("a gossip matrix must be square and symmetric with rows that sum to one")
    if n == 1:
        return 1.0
    if n <= DENSE_NODES:
        # moving the constants' eigenvalue to zero leaves the others in place
        others = np.linalg.eigvalsh(table.toarray() - 1.0 / n)
        return float(1.0 - np.abs(others).max())
    network = Network(table - scipy.sparse.diags_array(table.diagonal()))
    return float(min(second_eigenpair(network).value, 2.0 - largest_eigenpair(network).value))


@dataclass(frozen=True)
class ChebyshevCoefficients:
    """The numbers of Chebyshev gossip for a network with γ = λ_2/λ_max.

    ``contraction`` is c1 = (1 − √γ)/(1 + √γ), ``stretch`` is c2 = (1 + γ)/(1 − γ) (infinite at γ = 1),
    ``step`` is c3 = 2/((1 + γ) λ_max), ``rounds`` is K = ⌊1/√γ⌋, at least 1.
    """

    contraction: float
    stretch: float
    step: float
    rounds: int

    @classmethod
    def from_network(cls, network: Network) -> ChebyshevCoefficients:
        """Take γ and λ_max from a network."""
        return cls.from_spectrum(network.gamma, network.laplacian_max)

    @classmethod
    def from_spectrum(cls, gamma: float, laplacian_max: float) -> ChebyshevCoefficients:
        """Compute the coefficients from γ in (0, 1] and λ_max (zero for a single node)."""
        # an eigenvalue ratio that is 1 or 1/K² but for rounding must not lose a round or leave (0, 1]
        gamma = min(gamma, 1.0)
        root = math.sqrt(gamma)
        return cls(
            contraction=(1 - root) / (1 + root),
            stretch=math.inf if gamma == 1 else (1 + gamma) / (1 - gamma),
            step=0.0 if laplacian_max == 0 else 2 / ((1 + gamma) * laplacian_max),
            rounds=max(1, math.floor(1 / root + 1e-9)),
        )


def chebyshev_gossip(
    laplacian: Callable[[Floats], Floats] | scipy.sparse.csr_array | Floats,
    values: Floats,
    coefficients: ChebyshevCoefficients,
) -> Floats:
    """Apply the accelerated gossip P(Lap) of MSDA to one vector (or row) a node.

    With W = Lap: a_0 = 1, a_1 = c2, X_0 = Θ, X_1 = c2 (I − c3 W)Θ, then a_{k+1} = 2 c2 a_k − a_{k−1} and
    X_{k+1} = 2 c2 (I − c3 W) X_k − X_{k−1}; the result is Θ − X_K/a_K. It vanishes at agreement, and on the
    rest its eigenvalues lie within 2 c1^K/(1 + c1^{2K}) of 1.

    Parameters
    ----------
    laplacian : callable or (n, n) matrix
        Θ ↦ Lap Θ; a runtime supplies its own exchange here. It is called K times.
    values : (n,) or (n, d) array
        Θ.
    coefficients : ChebyshevCoefficients

    Returns
    -------
    array of the shape of ``values``
    """
    apply: Callable[[Floats], Any] = laplacian if callable(laplacian) else lambda x: laplacian @ x
    if coefficients.rounds == 1:
        # one round is c3 W Θ whatever γ is; at γ = 1, c2 would be a division by zero
        return np.asarray(coefficients.step * apply(values))
    stretch, step = coefficients.stretch, coefficients.step
    scale_before, scale = 1.0, stretch
    before, current = values, stretch * (values - step * apply(values))
    for _ in range(coefficients.rounds - 1):
        before, current = current, 2 * stretch * (current - step * apply(current)) - before
        scale_before, scale = scale, 2 * stretch * scale - scale_before
    return np.asarray(values - current / scale)


def chebyshev_matrix(network: Network) -> Floats:
    """Return P(Lap) as a dense (n, n) array, for tests and small networks."""
    return chebyshev_gossip(
        network.laplacian(), np.eye(network.n_nodes), ChebyshevCoefficients.from_network(network)
    )
