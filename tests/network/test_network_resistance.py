"""Effective resistances: closed forms, rational oracles, bounds that bound."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adfs.network import Network, distances, resistances


def determinant(rows: list[list[Fraction]]) -> Fraction:
    rows = [list(row) for row in rows]
    value = Fraction(1)
    for k in range(len(rows)):
        pivot = next((r for r in range(k, len(rows)) if rows[r][k] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != k:
            rows[k], rows[pivot] = rows[pivot], rows[k]
            value = -value
        value *= rows[k][k]
        for r in range(k + 1, len(rows)):
            factor = rows[r][k] / rows[k][k]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[k], strict=True)]
    return value


def tree_weight(n: int, edges: list[tuple[int, int]], weights: list[Fraction]) -> Fraction:
    """Sum over spanning trees of the product of their weights (Kirchhoff), in rational numbers."""
    table = [[Fraction(0)] * n for _ in range(n)]
    for (i, j), w in zip(edges, weights, strict=True):
        table[i][i] += w
        table[j][j] += w
        table[i][j] -= w
        table[j][i] -= w
    return determinant([row[1:] for row in table[1:]])


def exact_resistances(network: Network) -> np.ndarray:
    """R_e is the share of the spanning trees that use e."""
    edges = [(int(i), int(j)) for i, j in network.edges]
    weights = [Fraction(w) for w in network.weights]
    total = tree_weight(network.n_nodes, edges, weights)
    without = [
        tree_weight(network.n_nodes, edges[:e] + edges[e + 1 :], weights[:e] + weights[e + 1 :])
        for e in range(len(edges))
    ]
    return np.array([float(1 - part / total) for part in without])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("path:6", 1.0),
        ("path:400", 1.0),
        ("star:7", 1.0),
        ("tree:40", 1.0),
        ("cycle:3", 2 / 3),
        ("cycle:51", 50 / 51),
        ("cycle:400", 399 / 400),
        ("complete:2", 1.0),
        ("complete:9", 2 / 9),
        ("complete:200", 2 / 200),
        ("hypercube:3", 7 / 12),
        ("hypercube:7", 127 / 448),
        ("torus:5x5", 24 / 50),
    ],
)
def test_resistances_are_the_closed_forms(name: str, value: float) -> None:
    network = Network(name, weights=0.3)
    found = network.resistances
    assert found.exact
    assert found.values == pytest.approx(np.full(network.n_edges, value), rel=1e-12)


@st.composite
def small_networks(draw: st.DrawFn) -> Network:
    n = draw(st.integers(2, 7))
    edges = {(draw(st.integers(0, k - 1)), k) for k in range(1, n)}
    edges |= draw(
        st.sets(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=10
        )
    )
    return Network([(i, j, draw(st.floats(0.01, 100))) for i, j in edges])


def bounds(network: Network) -> np.ndarray:
    """The bounds of a small network, as if it were a large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "EXACT_NODES", 1)
        found = resistances(network)
    assert not found.exact
    return found.values


@given(small_networks())
def test_resistances_agree_with_rational_arithmetic_and_stay_below_bounds(network: Network) -> None:
    truth = exact_resistances(network)
    exact = resistances(network)
    assert exact.exact
    assert exact.values == pytest.approx(truth, rel=1e-10)
    assert exact.values.sum() == pytest.approx(network.n_nodes - 1, rel=1e-12)
    bound = bounds(network)
    assert np.all(bound >= truth * (1 - 1e-12))
    assert np.all(bound <= 1)


@pytest.mark.parametrize(
    "name", ["random-regular:300,20", "random-regular:300,4", "erdos-renyi:300,0.05", "barbell:20,5"]
)
def test_resistances_stay_below_their_bounds_on_middle_sizes(name: str) -> None:
    network = Network(name)
    truth, bound = resistances(network).values, bounds(network)
    assert np.all(bound >= truth * (1 - 1e-12))
    if name == "random-regular:300,20":
        assert np.all(bound < 1.1 * truth)  # nearly tight on expanders
    if name == "random-regular:300,4":
        assert bound.mean() < 0.85


def test_resistance_bounds_survive_a_tiny_lambda() -> None:
    # the weak edge's λ_2 is below the rounding of the strong ones' sums
    network = Network([(0, 1, 1e-14), (1, 2, 1e3), (2, 3, 1e3), (1, 3, 1e3)])
    assert network.algebraic_connectivity == pytest.approx(4 / 3 * 1e-14, rel=1e-9)
    bound = bounds(network)
    assert bound == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3], rel=1e-12)
    assert resistances(network).values == pytest.approx(bound, rel=1e-12)


def test_resistances_are_exact_up_to_two_thousand_nodes() -> None:
    """Exact up to 2,000 nodes: trees have only bridges, and Foster's sum holds elsewhere."""
    assert np.all(resistances(Network("tree:2000")).values == 1.0)
    small_world = resistances(Network("small-world:1200,4,0.05"))
    assert small_world.exact
    assert small_world.values.sum() == pytest.approx(1199, rel=1e-12)
    assert not resistances(Network("grid:45x45")).exact
    assert np.all(resistances(Network("tree:2001")).values == 1.0)
    expander = resistances(Network("random-regular:10000,4"))
    assert not expander.exact
    assert 1 <= expander.values.sum() / 9999 < 1.7
    assert resistances(Network("path:1")).values.size == 0
