"""Eigenvalues against closed forms and dense solvers, at every size."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.linalg

from adfs.errors import AdfsError, InputError
from adfs.network import (
    EigenPair,
    Network,
    largest_eigenvalue,
    resistances,
    second_eigenpair,
    spectrum,
)
from adfs.network.spectrum import GroundedLaplacian


def path(n: int) -> np.ndarray:
    return 4 * np.sin(np.pi * np.arange(n) / (2 * n)) ** 2


def cycle(n: int) -> np.ndarray:
    return np.array([0.0, 2.0]) if n == 2 else np.sort(4 * np.sin(np.pi * np.arange(n) / n) ** 2)


def product(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.sort(np.add.outer(one, two).ravel())


CLOSED = [
    *((f"path:{n}", path(n)) for n in (2, 3, 5, 50, 400)),
    *((f"cycle:{n}", cycle(n)) for n in (3, 4, 8, 51, 400)),
    *((f"star:{n}", np.array([0.0] + [1.0] * (n - 2) + [n])) for n in (3, 5, 300)),
    *((f"complete:{n}", np.array([0.0] + [n] * (n - 1))) for n in (2, 4, 100)),
    ("grid:3x3", product(path(3), path(3))),
    ("grid:7x20", product(path(7), path(20))),
    ("torus:4x4", product(cycle(4), cycle(4))),
    ("torus:5x9", product(cycle(5), cycle(9))),
    ("torus:2x7", product(cycle(2), cycle(7))),
    *((f"hypercube:{d}", np.array([0.0, 2.0, 2.0 * d])) for d in (1, 2, 4, 8)),
]


@pytest.mark.parametrize(("name", "eigenvalues"), CLOSED)
def test_spectrum_is_the_closed_form(name: str, eigenvalues: np.ndarray) -> None:
    network = Network(name)
    assert network.algebraic_connectivity == pytest.approx(eigenvalues[1], rel=1e-12)
    assert network.laplacian_max == pytest.approx(eigenvalues[-1], rel=1e-12)
    assert network.gamma == pytest.approx(eigenvalues[1] / eigenvalues[-1], rel=1e-12)
    scaled = network.with_weights(0.5)
    assert scaled.algebraic_connectivity == pytest.approx(eigenvalues[1] / 2, rel=1e-12)
    assert scaled.gamma == pytest.approx(network.gamma, rel=1e-12)


def test_spectrum_of_a_single_node_follows_its_conventions() -> None:
    network = Network("path:1")
    assert network.algebraic_connectivity == math.inf
    assert network.laplacian_max == 0.0
    assert network.gamma == 1.0


MIDDLE = [
    "grid:15x20",
    "tree:300",
    "random-regular:300,4",
    "small-world:300,4,0.1",
    "barbell:100,30",
    "star:250",
]


def weighted(name: str, spread: float = 1.0) -> tuple[Network, np.ndarray]:
    generator = np.random.default_rng(5)
    network = Network(name)
    network = network.with_weights(generator.lognormal(0, spread, network.n_edges))
    return network, generator.lognormal(0, spread, network.n_nodes)


# The constants that decide for one of the four ways.
WAYS = {
    "dense": {"DENSE_NODES": 400},
    "factor": {"DENSE_NODES": 0, "FACTOR_COST_EACH": math.inf},
    "cg": {"DENSE_NODES": 0, "FACTOR_COST_EACH": 0.0, "EVEN_MASSES": 0.0},
    "lanczos": {"DENSE_NODES": 0, "FACTOR_COST_EACH": 0.0, "EVEN_MASSES": math.inf},
}


def by_way(way: str, network: Network, diagonal: np.ndarray | None = None) -> EigenPair:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WAYS[way].items():
            patch.setattr(spectrum, name, value)
        return second_eigenpair(network, diagonal)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MIDDLE)
def test_second_eigenpair_agrees_with_a_dense_solver_in_all_ways(name: str, way: str) -> None:
    network, diagonal = weighted(name)
    laplacian = network.laplacian().toarray()
    reference = scipy.linalg.eigh(laplacian, np.diag(diagonal), eigvals_only=True)
    pair = by_way(way, network, diagonal)
    assert pair.value == pytest.approx(reference[1], rel=1e-10)
    assert abs(diagonal @ pair.vector) <= 1e-9
    assert diagonal @ pair.vector**2 == pytest.approx(1, rel=1e-12)
    assert pair.error <= 2e-8
    assert pair.lower <= reference[1] + 1e-15 * reference[-1]


@pytest.mark.parametrize("name", MIDDLE)
@pytest.mark.parametrize("dense_nodes", [400, 2])
def test_largest_eigenvalue_agrees_with_a_dense_solver(
    name: str, dense_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectrum, "DENSE_NODES", dense_nodes)
    network, _ = weighted(name)
    assert largest_eigenvalue(network) == pytest.approx(
        np.linalg.eigvalsh(network.laplacian().toarray())[-1], rel=1e-12
    )


def test_second_eigenpair_of_two_nodes_is_the_closed_form() -> None:
    network = Network("path:2", weights=3.0)
    assert second_eigenpair(network, [2.0, 5.0]).value == pytest.approx(3 / 2 + 3 / 5, rel=1e-14)
    assert second_eigenpair(network, 2.0).value == pytest.approx(3.0, rel=1e-14)


def test_second_eigenpair_keeps_relative_accuracy_at_extreme_scales() -> None:
    # node 0 hangs by a weak edge: λ_2 is the weak edge over the two harmonic masses
    weak = 1e-9
    network = Network([(0, 1, weak), (1, 2, 1e3), (2, 3, 1e3), (1, 3, 1e3)])
    diagonal = np.array([1.0, 2.0, 3.0, 4.0])
    expected = weak * (1 / 1 + 1 / 9)
    assert second_eigenpair(network, diagonal).value == pytest.approx(expected, rel=1e-9)


def test_second_eigenpair_bounds_the_eigenvalue_from_above() -> None:
    for name in MIDDLE:
        network, diagonal = weighted(name)
        exact = by_way("dense", network, diagonal)
        for way in ("factor", "cg", "lanczos"):
            found = by_way(way, network, diagonal)
            assert found.value >= exact.value * (1 - 1e-14)
            assert found.lower <= exact.value


def test_second_eigenpair_has_the_same_bits_again() -> None:
    for way in WAYS:
        one = by_way(way, Network("small-world:400,4,0.1"))
        two = by_way(way, Network("small-world:400,4,0.1"))
        assert one.value == two.value
        assert np.array_equal(one.vector, two.vector)


def test_second_eigenpair_to_a_tolerance_stops_only_when_no_start_vector_hides_the_eigenvalue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps are those that the theorem asks for, which does not look at the residual."""
    network = Network("random-regular:100000,8")
    steps, three_term = [], spectrum._three_term

    def counted(*arguments: object) -> Iterator[tuple[float, float, np.ndarray]]:
        steps.append(0)
        for step in three_term(*arguments):  # type: ignore[arg-type]
            steps[-1] += 1
            yield step

    monkeypatch.setattr(spectrum, "_three_term", counted)
    exact, rough = second_eigenpair(network), second_eigenpair(network, tolerance=1e-2)
    full, few = steps[0], steps[2]
    share = 1e-2 * exact.value / (8 + 2 * math.sqrt(7))  # of the width of the spectrum
    assert 1.648 * math.sqrt(100_000) * math.exp(-(2 * few - 1) * math.sqrt(share)) <= 1e-9
    assert few < 0.8 * full
    assert rough.value == pytest.approx(exact.value, rel=1e-4)
    assert rough.error == pytest.approx(1e-2)
    assert network.connectivity_bound == rough.lower <= 0.991 * exact.value


def test_second_eigenpair_to_a_tolerance_has_all_digits_where_they_cost_less() -> None:
    for name in ("grid:30x30", "random-regular:5000,8", "small-world:2000,4,0.1"):
        network = Network(name)
        exact, rough = second_eigenpair(network), second_eigenpair(network, tolerance=1e-2)
        assert (rough.value, rough.lower) == (exact.value, exact.lower)
        assert np.array_equal(rough.vector, exact.vector)


@pytest.mark.parametrize(
    ("diagonal", "sentence"),
    [
        ([1.0, 1.0], r"diagonal has shape \(2,\) but the network has 3 nodes"),
        ([1.0, -1.0, 1.0], r"diagonal is -1 at node 1"),
        ([1.0, 1.0, np.nan], r"diagonal is nan at node 2"),
        (0.0, r"diagonal is 0 at node 0"),
    ],
)
def test_second_eigenpair_refuses_bad_diagonals(diagonal: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        second_eigenpair(Network("path:3"), diagonal)  # type: ignore[arg-type]


def test_second_eigenpair_refuses_a_value_that_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "LANCZOS_STEPS", 2)
    with pytest.raises(AdfsError, match="did not converge"):
        by_way("factor", Network("path:2000"))
    # Lanczos on the matrix itself falls back on the inverse
    monkeypatch.setattr(spectrum, "LANCZOS_STEPS", 400)
    assert by_way("lanczos", Network("path:420")).value == pytest.approx(path(420)[1], rel=1e-11)


def test_second_eigenpair_refuses_a_vector_that_is_no_eigenvector(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_apply: object, known: np.ndarray, _steps: int, **_options: object) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(known.size)

    monkeypatch.setattr(spectrum, "_lanczos", wrong)
    for way in ("factor", "lanczos"):
        with pytest.raises(AdfsError, match="failed its check"):
            by_way(way, Network("path:50"))


@pytest.mark.parametrize("name", ["path:300", "path:1500", "random-regular:300,4", "random-regular:1000,4"])
def test_second_eigenpair_takes_masses_over_fourteen_orders_of_magnitude(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two heavy nodes, whose eigenvalue is known, and a light rest; then any masses, in two ways."""
    network = Network(name)
    n = network.n_nodes
    rng = np.random.default_rng(1)
    one, two = 0, n // 2
    masses = 1e-14 * 10 ** rng.uniform(-1, 1, n)
    masses[[one, two]] = 1.0, 3.0
    pair = second_eigenpair(network, masses)
    # as if the rest weighed nothing: 1/R(1/m + 1/m'), but for their share in the masses
    potential = GroundedLaplacian(network, two, iterative=False).solve(np.eye(n)[one])
    expected = (1 + 1 / 3) / potential[one]
    assert pair.value == pytest.approx(expected, rel=1e-7)
    assert pair.lower <= expected
    assert pair.error <= 1e-8
    wild = 10 ** rng.uniform(-14, 0, n)
    monkeypatch.setitem(WAYS["dense"], "DENSE_NODES", n)
    factor = by_way("factor", network, wild)
    other = by_way("dense" if name.startswith("path") else "cg", network, wild)
    assert factor.value == pytest.approx(other.value, rel=1e-12)
    assert max(factor.error, other.error) <= 1e-8


def check_large(name: str, second: float | None, top: float | None, rel: float) -> None:
    network = Network(name)
    pair, last = second_eigenpair(network), largest_eigenvalue(network)
    assert pair.error <= 1e-7
    if second is not None:
        assert pair.value == pytest.approx(second, rel=rel)
    if top is not None:
        # perhaps a bound where Lanczos takes long: never below, and close
        thin = name.startswith(("path", "cycle", "grid", "torus"))
        assert last == pytest.approx(top, rel=1e-4 if thin else rel)
        assert last >= top * (1.0 - rel)


@pytest.mark.parametrize(
    ("name", "second", "top"),
    [
        ("path:20000", path(20000)[1], path(20000)[-1]),
        ("cycle:20001", cycle(20001)[1], cycle(20001)[-1]),
        ("grid:141x142", path(142)[1], path(141)[-1] + path(142)[-1]),
        ("torus:120x140", cycle(140)[1], 8.0),
        ("star:20000", 1.0, 20000.0),
        ("hypercube:14", 2.0, 28.0),
        ("random-regular:20000,4", None, None),
        ("small-world:20000,4,0.1", None, None),
    ],
)
def test_spectrum_of_twenty_thousand_nodes_is_accurate(
    name: str, second: float | None, top: float | None
) -> None:
    check_large(name, second, top, 1e-11)


def test_spectrum_of_a_random_regular_graph_ends_where_theory_says() -> None:
    # Friedman: the non-trivial eigenvalues of the adjacency are within 2√(d−1) + o(1)
    network = Network("random-regular:20000,4")
    assert network.algebraic_connectivity == pytest.approx(4 - 2 * math.sqrt(3), rel=0.02)
    assert network.laplacian_max == pytest.approx(4 + 2 * math.sqrt(3), rel=0.01)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "second", "top"),
    [
        ("path:100000", path(100000)[1], path(100000)[-1]),
        ("cycle:100000", cycle(100000)[1], 4.0),
        ("grid:316x316", path(316)[1], 2 * path(316)[-1]),
        ("torus:316x316", cycle(316)[1], 8.0),
        ("tree:100000", None, None),
        ("random-regular:100000,4", None, None),
        ("random-regular:100000,20", None, None),
        ("erdos-renyi:100000,0.0002", None, None),
        ("small-world:100000,4,0.1", None, None),
        ("small-world:100000,4,0.01", None, None),
        ("geometric:100000,0.008", None, None),
    ],
)
def test_spectrum_of_a_hundred_thousand_nodes_is_accurate(
    name: str, second: float | None, top: float | None
) -> None:
    check_large(name, second, top, 1e-10)
    network = Network(name)
    diagonal = np.random.default_rng(0).lognormal(0, 0.5, network.n_nodes)
    assert second_eigenpair(network, diagonal).error <= 1e-7
    found = resistances(network)
    total = found.values.sum() / (network.n_nodes - 1)
    assert total == pytest.approx(1, rel=1e-9) if found.exact else total >= 1
    assert network.diameter >= 1
