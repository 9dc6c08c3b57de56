"""Networks from names, graphs, matrices and lists: order, content, errors."""

from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from adfs.errors import InputError
from adfs.network import GRAPHS, Network


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("path:5", nx.path_graph(5)),
        ("path:1", nx.path_graph(1)),
        ("cycle:8", nx.cycle_graph(8)),
        ("cycle:2", nx.path_graph(2)),
        ("star:5", nx.star_graph(4)),
        ("complete:4", nx.complete_graph(4)),
        ("complete:1", nx.path_graph(1)),
        ("barbell:5", nx.barbell_graph(5, 0)),
        ("barbell:5,2", nx.barbell_graph(5, 2)),
        ("exponential:9", nx.circulant_graph(9, [1, 2, 4, 8])),
        ("exponential:16", nx.circulant_graph(16, [1, 2, 4, 8])),
        ("tree:15", nx.balanced_tree(2, 3)),
        ("hypercube:4", nx.convert_node_labels_to_integers(nx.hypercube_graph(4), ordering="sorted")),
        ("grid:3x4", nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4), ordering="sorted")),
        ("torus:3x4", nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4, periodic=True))),
        ("torus:2x3", nx.ladder_graph(3)),
        ("grid:2x3x4", nx.convert_node_labels_to_integers(nx.grid_graph((4, 3, 2)), ordering="sorted")),
        ("small-world:12,4,0", nx.circulant_graph(12, [1, 2])),
        ("erdos-renyi:7,1", nx.complete_graph(7)),
        ("geometric:6,1.5", nx.complete_graph(6)),
        ("random-regular:6,5", nx.complete_graph(6)),
    ],
)
def test_network_of_a_name_is_the_graph_it_says(name: str, reference: nx.Graph) -> None:
    network = Network(name)
    if name == "torus:2x3":  # the prism: a ladder closed at its ends
        reference = nx.circular_ladder_graph(3)
    if "torus" in name:
        assert nx.is_isomorphic(network.to_networkx(), reference)
    else:
        assert network.edges.tolist() == sorted(sorted(edge) for edge in reference.edges)
    assert network.n_nodes == reference.number_of_nodes()
    assert network.name == (name if name != "barbell:5" else "barbell:5,0")
    assert np.all(network.weights == 1.0)


@pytest.mark.parametrize(
    "name", ["erdos-renyi:60,0.1", "random-regular:60,3", "geometric:60,0.3", "small-world:60,4,0.3"]
)
def test_network_of_a_random_family_depends_on_the_seed_alone(name: str) -> None:
    network = Network(name, seed=3)
    assert Network(name, seed=3) == network
    assert Network(name, seed=4) != network
    assert Network(name) == Network(name, seed=0)
    assert nx.is_connected(network.to_networkx())


@pytest.mark.parametrize(("n", "degree"), [(10, 3), (10, 6), (9, 4), (50, 7), (2000, 5)])
def test_network_of_a_random_regular_name_is_regular(n: int, degree: int) -> None:
    assert np.all(Network(f"random-regular:{n},{degree}").degrees == degree)


def test_network_of_a_random_family_has_the_right_size() -> None:
    n, p = 400, 0.05
    expected = p * n * (n - 1) / 2
    counts = [Network(f"erdos-renyi:{n},{p}", seed=s).n_edges for s in range(20)]
    assert abs(np.mean(counts) - expected) < 4 * np.sqrt(expected / 20)
    ends = np.concatenate([Network(f"erdos-renyi:{n},{p}", seed=s).edges.ravel() for s in range(20)])
    assert np.all(np.abs(np.bincount(ends, minlength=n) - 2 * expected * 20 / n) < 6 * np.sqrt(400))
    world = Network("small-world:500,6,0.2")
    assert world.n_edges == 1500
    apart = np.minimum(np.diff(world.edges)[:, 0], 500 - np.diff(world.edges)[:, 0])
    assert 0.1 < np.mean(apart > 3) < 0.3


@pytest.mark.parametrize(
    ("family", "n", "name"),
    [
        ("grid", 12, "grid:3x4"),
        ("torus", 36, "torus:6x6"),
        ("grid", 7, "grid:1x7"),
        ("path", 5, "path:5"),
        ("hypercube", 16, "hypercube:4"),
        ("barbell", 11, "barbell:5,1"),
        ("random-regular", 10, "random-regular:10,4"),
        ("random-regular", 3, "random-regular:3,2"),
        ("small-world", 20, "small-world:20,4,0.1"),
        ("exponential", 1, "exponential:1"),
        ("erdos-renyi", 1, None),
        ("geometric", 30, None),
        ("erdos-renyi", 30, None),
    ],
)
def test_network_name_is_completed_by_the_number_of_nodes(family: str, n: int, name: str | None) -> None:
    network = Network(family, n_nodes=n)
    assert network.n_nodes == n
    assert name is None or network.name == name


def test_network_sizes_are_completed_by_the_number_of_nodes() -> None:
    assert Network("grid:2", n_nodes=6) == Network("grid:2x3")
    assert Network("Erdos_Renyi:40,0.2") == Network("erdos-renyi:40,0.2", n_nodes=40)
    assert Network("small-world:30").name == "small-world:30,4,0.1"
    assert Network("barbell:3", n_nodes=8) == Network("barbell:3,2")
    assert Network("barbell:3") == Network("barbell:3,0")


def test_graphs_have_an_example_that_works() -> None:
    for family, entry in GRAPHS.items():
        assert Network(entry.example).name == entry.example
        assert entry.example.startswith(family)


@st.composite
def connected_graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, float]]]:
    n = draw(st.integers(2, 8))
    edges = {(draw(st.integers(0, k - 1)), k) for k in range(1, n)}
    edges |= draw(
        st.sets(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=8
        )
    )
    return n, [(i, j, draw(st.floats(0.1, 10))) for i, j in edges]


@given(connected_graphs(), st.randoms(use_true_random=False))
def test_network_order_is_frozen_whatever_the_insertion(
    graph: tuple[int, list[tuple[int, int, float]]], random: object
) -> None:
    n, edges = graph
    reference = Network(sorted(edges), n_nodes=n)
    assert reference.edges.tolist() == sorted([i, j] for i, j, _ in edges)
    assert reference.weights.tolist() == [w for _, _, w in sorted(edges)]
    shuffled = [(j, i, w) if random.random() < 0.5 else (i, j, w) for i, j, w in edges]  # type: ignore[attr-defined]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Network(shuffled) == reference
    assert hash(Network(shuffled)) == hash(reference)
    inserted = nx.Graph()
    inserted.add_weighted_edges_from(shuffled)
    assert Network(inserted) == reference
    dense = np.zeros((n, n))
    for i, j, w in edges:
        dense[i, j] = dense[j, i] = w
    for matrix in (dense, scipy.sparse.csr_array(dense), scipy.sparse.coo_matrix(dense)):
        assert Network(matrix) == reference
    assert Network(np.array(shuffled) if len(shuffled) != 3 else shuffled) == reference
    assert Network(reference) == reference
    assert Network(reference.to_networkx()) == reference
    names = [f"node-{k}" for k in range(n)]
    named = Network([(names[i], names[j], w) for i, j, w in shuffled])
    assert named.labels == tuple(names)
    assert named.edges.tolist() == reference.edges.tolist()
    assert named != reference


def test_network_keeps_the_labels_of_nodes() -> None:
    one_based = Network([(2, 3), (1, 2)])
    assert one_based.labels == (1, 2, 3)
    assert one_based.edges.tolist() == [[0, 1], [1, 2]]
    mixed = nx.Graph([("b", 1), (1, "a")])
    assert Network(mixed).labels == ("b", 1, "a")  # not sortable: as inserted
    assert set(Network(mixed).to_networkx().nodes) == {"a", "b", 1}
    assert Network("path:3").labels == (0, 1, 2)
    assert Network(nx.grid_2d_graph(2, 2)).labels == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_network_does_not_change() -> None:
    network = Network("cycle:5")
    for array in (
        network.edges,
        network.weights,
        network.degrees,
        network.weighted_degrees,
        network.incidence.indptr,
        network.incidence.edges,
        network.incidence.neighbours,
        network.neighbours(0),
        network.resistances.values,
        network.second_eigenpair.vector,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    with pytest.raises(AttributeError, match="does not change"):
        network.n_nodes = 3
    with pytest.raises(AttributeError, match="does not change"):
        del network.edges
    weights = np.ones(5)
    copied = network.with_weights(weights)
    weights[0] = 9
    assert copied == network


def test_network_pickles_compares_and_prints() -> None:
    network = Network([("a", "b", 2.0), ("b", "c", 0.5)])
    assert network.gamma > 0  # cached values do not get in the way
    copy = pickle.loads(pickle.dumps(network))  # noqa: S301
    assert copy == network
    assert hash(copy) == hash(network)
    assert copy.labels == ("a", "b", "c")
    assert copy != "network"
    assert not copy.weights.flags.writeable
    assert repr(network) == "Network(n_nodes=3, n_edges=2, weights=0.5..2)"
    assert repr(Network("path:2", weights=0.5)) == "Network('path:2', n_nodes=2, n_edges=1, weights=0.5)"
    assert network.with_weights(1.0) != network
    assert Network("path:2", weights=0.5).with_weights(1).name == "path:2"


def test_network_takes_weights() -> None:
    network = Network("path:3", weights=[2, 3])
    assert network.weights.tolist() == [2.0, 3.0]
    assert Network(network, weights=4).weights.tolist() == [4.0, 4.0]
    assert network.with_weights([1.0, 5.0]).weights.tolist() == [1.0, 5.0]
    assert network.weighted_degrees.tolist() == [2.0, 5.0, 3.0]
    graph = nx.Graph()
    graph.add_edge(0, 1, weight=2.5)
    graph.add_edge(1, 2)
    assert Network(graph).weights.tolist() == [2.5, 1.0]
    assert Network(np.array([[0, True], [True, 0]], dtype=bool)).weights.tolist() == [1.0]


def test_network_incidence_is_that_of_its_edges() -> None:
    network = Network("random-regular:30,4", seed=1)
    graph = network.to_networkx()
    for node in range(30):
        first, last = network.incidence.indptr[node : node + 2]
        edges, neighbours = network.incidence.edges[first:last], network.neighbours(node)
        assert neighbours.tolist() == sorted(graph[node])
        assert edges.tolist() == sorted(edges.tolist())
        for edge, other in zip(edges, neighbours, strict=True):
            assert sorted((node, int(other))) == network.edges[edge].tolist()
    assert network.incidence.indptr[-1] == 2 * network.n_edges
    assert network.incidence.edges.dtype == np.int64
    single = Network("path:1")
    assert single.neighbours(0).size == 0
    assert single.degrees.tolist() == [0]
    assert single.laplacian().toarray().tolist() == [[0.0]]


def test_network_leaves_a_given_adjacency_as_it_was() -> None:
    stored = scipy.sparse.csr_array(
        (np.array([1.0, 0.0, 1.0, 0.0]), np.array([1, 2, 0, 0]), np.array([0, 2, 3, 4])), shape=(3, 3)
    )
    with pytest.raises(InputError, match="not connected"):
        Network(stored)
    assert stored.nnz == 4  # its explicit zeros are still there


ONE = np.array([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ([(0, 1), (2, 3), (4, 5)], {}, r"not connected, it has 3 components and node 2 cannot be reached"),
        (
            nx.Graph([("a", "b"), ("c", "d")]),
            {},
            r"2 components and node 'c' cannot be reached from node 'a'",
        ),
        ([(0, 1)], {"n_nodes": 3}, r"node 2 cannot be reached"),
        (nx.DiGraph([(0, 1)]), {}, r"directed"),
        (nx.MultiGraph([(0, 1), (0, 1)]), {}, r"multigraph"),
        ([(0, 1), (1, 0)], {}, r"edge \(0, 1\) is given more than once"),
        ([[0, 1], [1, 0]], {}, r"pass an adjacency matrix as a NumPy or SciPy array"),
        ([(0, 1), (1, 1)], {}, r"node 1 is linked to itself"),
        (nx.Graph([("a", "b"), ("b", "b")]), {}, r"node 'b' is linked to itself"),
        (ONE + np.eye(2), {}, r"node 0 is linked to itself \(2 self-loop\(s\)\).*set the diagonal to 0"),
        ([], {}, r"edge list is empty"),
        (nx.Graph(), {}, r"has no nodes"),
        (np.zeros((0, 0)), {}, r"has no nodes"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), {}, r"edge \(0, 1\) has weight -1: weights must be positive"),
        ([(0, 1, 0.0)], {}, r"has weight 0"),
        ([(0, 1, float("nan"))], {}, r"has weight nan"),
        ([(0, 1, "heavy")], {}, r"weight is not a number"),
        (ONE * np.nan, {}, r"not a finite number"),
        (np.array([[0.0, np.inf], [np.inf, 0.0]]), {}, r"not a finite number"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), {}, r"not symmetric, entries \(0, 1\) and \(1, 0\) differ"),
        (scipy.sparse.csr_array(np.array([[0.0, 1.0], [0.0, 0.0]])), {}, r"not symmetric"),
        (np.ones((2, 5)), {}, r"is square, not of shape \(2, 5\)"),
        (np.ones(4), {}, r"is square, not of shape \(4,\)"),
        (ONE.astype(complex), {}, r"real numbers, not complex128"),
        ("gird:3x3", {}, r"unknown network 'gird': did you mean 'grid'\?"),
        ("grid:3xq", {}, r"cannot read the size 'q'"),
        ("path:2,3", {}, r"takes 1 size\(s\), not 2: write it like 'path:5'"),
        ("path:2.5", {}, r"size 'n' of the network 'path' must be a whole number"),
        ("grid", {}, r"needs its size 'rows': write it like 'grid:3x3', or give n_nodes"),
        ("grid:4", {}, r"needs its size 'columns'"),
        ("grid:3x3", {"n_nodes": 8}, r"'grid:3x3' has 9 nodes but n_nodes is 8"),
        ("hypercube", {"n_nodes": 12}, r"'hypercube:3' has 8 nodes but n_nodes is 12"),
        ("grid:5", {"n_nodes": 12}, r"'grid:5x2' has 10 nodes"),
        ("path:0", {}, r"every size must be at least 1"),
        ("path:inf", {}, r"size 'n' of the network 'path' must be a whole number"),
        ("geometric:20,inf", {}, r"radius must be positive and finite"),
        ("path", {"n_nodes": 0}, r"n_nodes must be a whole number of at least 1"),
        ("path", {"n_nodes": 2.0}, r"n_nodes must be a whole number"),
        (ONE, {"n_nodes": 3}, r"has 2 nodes but n_nodes is 3"),
        ([("a", "b")], {"n_nodes": 3}, r"has 2 nodes but n_nodes is 3"),
        ([(0, 5)], {"n_nodes": 3}, r"names node 5 but n_nodes is 3"),
        ([(0, 1, 2, 3)], {}, r"edge number 0 is \(0, 1, 2, 3\)"),
        ([(0, 1), "ab"], {}, r"edge number 1 is 'ab'"),
        ([({}, 1)], {}, r"cannot name a node"),
        (5, {}, r"cannot be made from int"),
        ("random-regular:5,3", {}, r"nodes times degree must be even"),
        ("random-regular:5,5", {}, r"below the number of nodes"),
        ("small-world:10,3,0.1", {}, r"must be even"),
        ("small-world:10,4,1.5", {}, r"probability must lie in \[0, 1\]"),
        ("erdos-renyi:10,2", {}, r"probability must lie in \[0, 1\]"),
        (
            "erdos-renyi:200,0.001",
            {},
            r"no connected graph among 100 draws.*raise the probability.*log\(n\)/n",
        ),
        ("geometric:200,0.01", {}, r"raise the radius"),
        ("geometric:20,-1", {}, r"radius must be positive"),
        ("random-regular:20,1", {}, r"take a degree of at least 3"),
        ("hypercube:40", {}, r"between 0 and 24"),
        ("barbell", {"n_nodes": 1}, r"cliques do not fit"),
        ("path:3", {"weights": [1.0]}, r"weights have shape \(1,\) but the network has 2 edges"),
        ("path:3", {"weights": -1.0}, r"edge \(0, 1\) has weight -1"),
    ],
)
def test_network_refuses_bad_input_in_one_sentence(
    spec: object, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        Network(spec, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_network_neighbours_refuse_bad_node_numbers() -> None:
    network = Network("path:3")
    with pytest.raises(InputError, match="there is no node 3: nodes are numbered 0 to 2"):
        network.neighbours(3)
