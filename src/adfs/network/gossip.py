"""A gossip matrix, and Chebyshev-accelerated gossip."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]


def lazy_gossip(network: Network, laplacian_max: float) -> scipy.sparse.csr_array:
    """(I + W)/2 with W = I − Lap/λ_max, (n, n) CSR: symmetric, rows sum to one, eigenvalues in [1/2, 1]."""
    identity = scipy.sparse.eye_array(network.n_nodes, format="csr")
    if network.n_nodes == 1:
        return scipy.sparse.csr_array(identity)
    matrix = scipy.sparse.csr_array(identity - network.laplacian() / (2.0 * laplacian_max))
    matrix.sort_indices()
    return matrix


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
    """Apply the accelerated gossip P(Lap) of MSDA to one vector (or row) per node.

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
    apply: Callable[[Floats], Floats] = laplacian if callable(laplacian) else lambda x: laplacian @ x
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
