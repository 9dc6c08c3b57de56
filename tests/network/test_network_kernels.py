"""Distances and bridges against networkx, Laplacian systems against dense ones, diameters by closed forms."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adfs.network import Network, diameter_bounds, distances, hop_distances
from adfs.network.distances import bridges, shared_neighbour_sums
from adfs.network.spectrum import GroundedLaplacian, factor_cost


@st.composite
def networks(draw: st.DrawFn) -> Network:
    n = draw(st.integers(1, 25))
    edges = {(draw(st.integers(0, k - 1)), k) for k in range(1, n)}
    if n > 1:
        pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1])
        edges |= draw(st.sets(pairs, max_size=12))
    weights = np.random.default_rng(n).uniform(0.5, 2, len(edges))
    return Network([(i, j, w) for (i, j), w in zip(sorted(edges), weights, strict=True)], n_nodes=n)


@settings(max_examples=60)
@given(networks())
def test_hop_distances_and_bridges_agree_with_networkx(network: Network) -> None:
    graph = network.to_networkx()
    flagged = {tuple(edge) for edge in network.edges[bridges(network)].tolist()}
    assert flagged == {tuple(sorted(edge)) for edge in nx.bridges(graph)}
    hops = nx.single_source_shortest_path_length(graph, 0)
    assert hop_distances(network, 0).tolist() == [hops[k] for k in range(network.n_nodes)]
    assert network.diameter == nx.diameter(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "EXACT_NODES", 0)
        patch.setattr(distances, "SEARCHES", 2)
        lower, upper = diameter_bounds(network)
    assert lower <= nx.diameter(graph) <= upper


@settings(max_examples=40)
@given(networks())
def test_shared_neighbour_sums_are_the_literal_ones(network: Network) -> None:
    products, series = np.empty(network.n_edges), np.empty(network.n_edges)
    weights = network.weights[network.incidence.edges]
    shared_neighbour_sums(
        network.incidence.indptr, network.incidence.neighbours, weights, network.edges, products, series
    )
    table = network.adjacency().toarray()
    for (k, j), product, conductance in zip(network.edges, products, series, strict=True):
        both = (table[k] > 0) & (table[j] > 0)
        u, v = table[k][both], table[j][both]
        assert product == pytest.approx(np.sum(u * v), rel=1e-12, abs=0)
        assert conductance == pytest.approx(np.sum(u * v / (u + v)), rel=1e-12, abs=0)


def test_shared_neighbour_sums_hold_at_a_hub() -> None:
    # a wheel: the hub's list is long enough for bisection
    rim = [(k, k % 60 + 1) for k in range(1, 61)]
    network = Network(rim + [(0, k) for k in range(1, 61)])
    products, series = np.empty(network.n_edges), np.empty(network.n_edges)
    shared_neighbour_sums(
        network.incidence.indptr,
        network.incidence.neighbours,
        np.ones(2 * network.n_edges),
        network.edges,
        products,
        series,
    )
    hub = network.edges[:, 0] == 0
    assert np.all(products[hub] == 2)
    assert np.all(products[~hub] == 1)
    assert np.all(series == products / 2)


@settings(max_examples=40)
@given(networks().filter(lambda network: network.n_nodes > 1))
def test_grounded_laplacian_solves_its_system(network: Network) -> None:
    right = np.random.default_rng(0).standard_normal(network.n_nodes)
    right -= right.mean()
    ground = network.n_nodes // 2
    for iterative in (False, True):
        solution = GroundedLaplacian(network, ground, iterative=iterative).solve(right)
        assert solution[ground] == 0.0
        assert network.laplacian() @ solution == pytest.approx(right, abs=1e-10)


def test_factor_cost_separates_thin_graphs_from_expanders() -> None:
    assert factor_cost(Network("path:5000")) == 5000
    assert factor_cost(Network("tree:5000")) == 5000
    assert factor_cost(Network("cycle:5000")) < 1e5
    assert factor_cost(Network("grid:70x70")) < 1e8
    assert factor_cost(Network("random-regular:5000,4")) > 5e9


@pytest.mark.parametrize(
    ("name", "diameter"),
    [
        ("path:9", 8),
        ("cycle:9", 4),
        ("star:9", 2),
        ("complete:9", 1),
        ("grid:5x8", 11),
        ("torus:6x7", 6),
        ("hypercube:9", 9),
        ("path:1", 0),
    ],
)
def test_diameter_is_the_closed_form(name: str, diameter: int) -> None:
    assert Network(name).diameter == diameter


def test_diameter_bounds_bracket_large_networks() -> None:
    assert diameter_bounds(Network("grid:100x90")) == (188, 188)
    lower, upper = diameter_bounds(Network("torus:90x90"))
    assert lower == 90 <= upper <= 110
    lower, upper = diameter_bounds(Network("tree:20000"))
    assert lower == upper
