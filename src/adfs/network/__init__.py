"""The communication network: graphs, spectra, gossip matrices and effective resistances."""

from adfs.network.distances import DiameterBounds, diameter_bounds, hop_distances
from adfs.network.gossip import (
    ChebyshevCoefficients,
    chebyshev_gossip,
    chebyshev_matrix,
    gossip_matrix,
    laplacian_gossip,
    lazy_gossip,
    metropolis_gossip,
    spectral_gap,
)
from adfs.network.graphs import GRAPHS
from adfs.network.network import Network
from adfs.network.resistance import Resistances, resistances
from adfs.network.spectrum import EigenPair, generalized_lambda2, largest_eigenpair, second_eigenpair

__all__ = [
    "GRAPHS",
    "ChebyshevCoefficients",
    "DiameterBounds",
    "EigenPair",
    "Network",
    "Resistances",
    "chebyshev_gossip",
    "chebyshev_matrix",
    "diameter_bounds",
    "generalized_lambda2",
    "gossip_matrix",
    "hop_distances",
    "laplacian_gossip",
    "largest_eigenpair",
    "lazy_gossip",
    "metropolis_gossip",
    "resistances",
    "second_eigenpair",
    "spectral_gap",
]
