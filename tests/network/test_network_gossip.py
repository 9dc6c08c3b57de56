"""The gossip matrix, and Chebyshev acceleration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

from adfs.network import ChebyshevCoefficients, Network, lazy_gossip
from literal_methods import chebyshev_gossip

NAMES = [
    "path:7",
    "grid:3x4",
    "star:6",
    "complete:5",
    "barbell:4,2",
    "cycle:2",
    "path:1",
    "erdos-renyi:20,0.3",
]


def random_weights(name: str) -> Network:
    network = Network(name)
    return network.with_weights(np.random.default_rng(1).uniform(0.2, 3, network.n_edges))


@pytest.mark.parametrize("name", NAMES)
def test_lazy_gossip_keeps_means_and_mixes(name: str) -> None:
    network = random_weights(name)
    matrix = lazy_gossip(network, network.laplacian_max)
    dense = matrix.toarray()
    assert isinstance(matrix, scipy.sparse.csr_array)
    assert matrix.has_sorted_indices
    assert np.abs(dense - dense.T).max() <= 1e-15
    assert np.abs(dense.sum(axis=1) - 1).max() <= 1e-14
    values = np.linalg.eigvalsh(dense)
    assert values[-1] == pytest.approx(1, abs=1e-13)
    assert values[0] >= 0.5 - 1e-13
    if network.n_nodes > 1:
        assert 1 - values[-2] == pytest.approx(network.gamma / 2, rel=1e-11)
    # a node listens to its neighbours and itself only
    support = network.adjacency().toarray() + np.eye(network.n_nodes)
    assert np.all(dense[support == 0] == 0)


def chebyshev_matrix(network: Network) -> np.ndarray:
    """P(Lap) as a dense matrix."""
    return chebyshev_gossip(
        network.laplacian().toarray(),
        np.eye(network.n_nodes),
        ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max),
    )


def chebyshev(degree: int, x: np.ndarray) -> np.ndarray:
    """T_K by its coefficients, not by the recurrence."""
    return np.polynomial.chebyshev.chebval(x, [0] * degree + [1])


@pytest.mark.parametrize(
    "name", ["path:7", "path:30", "grid:3x4", "grid:3x3", "star:6", "cycle:12", "hypercube:4"]
)
def test_chebyshev_gossip_is_its_polynomial(name: str) -> None:
    network = random_weights(name)
    laplacian = network.laplacian()
    coefficients = ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)
    g = network.gamma
    assert coefficients.contraction == pytest.approx((1 - math.sqrt(g)) / (1 + math.sqrt(g)), rel=1e-15)
    assert coefficients.stretch == pytest.approx((1 + g) / (1 - g), rel=1e-15)
    assert coefficients.step == pytest.approx(2 / ((1 + g) * network.laplacian_max), rel=1e-15)
    assert coefficients.rounds == int(1 / math.sqrt(g))
    values, vectors = np.linalg.eigh(laplacian.toarray())
    k, c2, c3 = coefficients.rounds, coefficients.stretch, coefficients.step
    images = 1 - chebyshev(k, c2 * (1 - c3 * values)) / chebyshev(k, np.array(c2))
    explicit = (vectors * images) @ vectors.T
    assert chebyshev_matrix(network) == pytest.approx(explicit, abs=1e-12)
    theta = np.random.default_rng(0).standard_normal((network.n_nodes, 3))
    result = chebyshev_gossip(laplacian.toarray(), theta, coefficients)
    assert result == pytest.approx(explicit @ theta, abs=1e-11)
    # it vanishes at agreement, and acts almost like the identity elsewhere
    assert (
        np.abs(chebyshev_gossip(laplacian.toarray(), np.ones(network.n_nodes), coefficients)).max() <= 1e-12
    )
    power = coefficients.contraction**k
    spread = 2 * power / (1 + power**2)
    assert np.abs(images[1:] - 1).max() == pytest.approx(spread, rel=1e-9)


@pytest.mark.parametrize("name", ["complete:5", "path:2", "complete:100"])
def test_chebyshev_at_gamma_one_is_one_exact_average(name: str) -> None:
    network = Network(name, weights=0.7)
    coefficients = ChebyshevCoefficients.from_spectrum(network.gamma, network.laplacian_max)
    assert coefficients.rounds == 1
    n = network.n_nodes
    assert chebyshev_matrix(network) == pytest.approx(np.eye(n) - 1 / n, abs=1e-13)
    exact = ChebyshevCoefficients.from_spectrum(1.0, n * 0.7)
    assert exact.stretch == math.inf
    assert chebyshev_gossip(network.laplacian().toarray(), np.eye(n), exact) == pytest.approx(
        np.eye(n) - 1 / n, abs=1e-13
    )


def test_chebyshev_rounds_survive_rounding() -> None:
    for k in range(1, 60):
        for gamma in (np.nextafter(1 / k**2, 2), 1 / k**2, np.nextafter(1 / k**2, 0)):
            assert ChebyshevCoefficients.from_spectrum(gamma, 1.0).rounds == k


def test_chebyshev_on_a_single_node_is_zero() -> None:
    assert chebyshev_matrix(Network("path:1")).tolist() == [[0.0]]
