"""The communication network: graphs, spectra, gossip matrices and effective resistances."""

from adfs.network.changing import changing_network, phases
from adfs.network.distances import Resistances, diameter_bounds, hop_distances, resistances
from adfs.network.graphs import GRAPHS
from adfs.network.network import ChebyshevCoefficients, Faults, Network, check_lost, lazy_gossip
from adfs.network.spectrum import EigenPair, largest_eigenvalue, second_eigenpair

__all__ = [
    "GRAPHS",
    "ChebyshevCoefficients",
    "EigenPair",
    "Faults",
    "Network",
    "Resistances",
    "changing_network",
    "check_lost",
    "diameter_bounds",
    "hop_distances",
    "largest_eigenvalue",
    "lazy_gossip",
    "phases",
    "resistances",
    "second_eigenpair",
]
