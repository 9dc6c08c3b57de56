"""Chebyshev gossip: the accelerated averaging over a network that MSDA, OPAPC and SONATA share."""

from __future__ import annotations

import numpy as np

from adfs.algorithms.round_process import Gossip
from adfs.network import ChebyshevCoefficients, Network


def chebyshev_coefficients(network: Network) -> ChebyshevCoefficients:
    """Return the coefficients of Chebyshev gossip for a network."""
    return ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)


def chebyshev_gossip(gossip: Gossip, values: np.ndarray, chebyshev: ChebyshevCoefficients) -> np.ndarray:
    """Return P(Lap)·values, (k, d): the values less nearly their mean over the nodes, by K products.

    1 − P(λ) = T_K(c2(1 − c3λ))/T_K(c2) is 1 at agreement, and at most 2c1^K/(1 + c1^{2K}) on the rest.
    """
    stretch, step = chebyshev.stretch, chebyshev.step
    pull = step * gossip(values)
    # With one product the polynomial is the matrix itself; c2 may be infinite then.
    if chebyshev.rounds == 1:
        return np.asarray(pull)
    # The recurrence of the Chebyshev polynomials, for the vectors and for the number that divides them.
    before, current = values, stretch * (values - pull)
    scale_before, scale = 1.0, stretch
    for _ in range(chebyshev.rounds - 1):
        before, current = current, 2.0 * stretch * (current - step * gossip(current)) - before
        scale_before, scale = scale, 2.0 * stretch * scale - scale_before
    return np.asarray(values - current / scale)
