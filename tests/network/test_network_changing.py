"""Networks whose graph changes and whose exchanges are lost: their edges, their phases, what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import adfs
from adfs.errors import InputError
from adfs.network import Network, changing_network, phases
from adfs.runtimes.options import describe

PATH, STAR = [(0, 1), (1, 2), (2, 3)], [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0)]


def test_changing_network_has_the_edges_of_all_graphs_and_knows_those_of_each():
    network = changing_network(["path:4", "star:4"], window=7.0)
    assert network.edges.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [2, 3]]
    assert network.faults.present.astype(int).tolist() == [[1, 0, 0, 1, 1], [1, 1, 1, 0, 0]]
    assert (network.faults.window, network.lost, network.changes) == (7.0, 0.0, True)
    assert changing_network([PATH, STAR], window=7.0) == network
    assert changing_network([PATH, STAR]).faults.window == 4 + 5
    weighted = changing_network([[("a", "b", 2.0), ("b", "c", 3.0)], [("c", "a"), ("b", "a", 2.0)]])
    assert weighted.weights.tolist() == [2.0, 1.0, 3.0]
    assert weighted.labels == ("a", "b", "c")
    assert changing_network(["cycle:4"]) == Network("cycle:4")


def test_changing_network_keeps_its_faults_in_copies_and_differs_from_others():
    network = changing_network(["path:4", "star:4"]).losing(0.25)
    pickled = pickle.loads(pickle.dumps(network))  # noqa: S301
    for copy in (pickled, Network(network), network.losing(0.25)):
        assert copy == network
        assert hash(copy) == hash(network)
        assert describe(copy) == describe(network)
    assert repr(network) == "Network(n_nodes=4, n_edges=5, graphs=2, lost=0.25)"
    assert network.with_weights(2.0).faults is network.faults
    others = [
        Network(network.edges, n_nodes=4),
        network.losing(0.0),
        network.losing(0.3),
        changing_network(["star:4", "path:4"]).losing(0.25),
        changing_network(["path:4", "star:4"], window=3.0).losing(0.25),
    ]
    assert len({network, *others}) == len({describe(one) for one in (network, *others)}) == 6


def test_losing_keeps_what_was_computed_and_goes_back():
    network = Network("grid:3x3")
    connectivity = network.algebraic_connectivity
    lossy = network.losing(0.5)
    assert "second_eigenpair" in vars(lossy)
    assert lossy.algebraic_connectivity == connectivity
    assert lossy != network
    assert lossy.losing(0.0) == network
    assert lossy.losing(0.0).faults is None
    single = Network("path:1")
    assert single.losing(0.5) is single


def test_phases_are_the_graphs_or_their_mean_where_one_is_not_connected():
    assert phases(Network("cycle:5").losing(0.1)) == (Network("cycle:5").losing(0.1),)
    path, star = phases(changing_network(["path:5", "star:5"]))
    assert (path, star) == (Network(Network("path:5").edges), Network(Network("star:5").edges))
    (mean,) = phases(changing_network([[(0, 1, 3.0)], [(1, 2)], [(0, 1, 3.0)]], n_nodes=3))
    assert mean.edges.tolist() == [[0, 1], [1, 2]]
    np.testing.assert_allclose(mean.weights, [2.0, 1 / 3], rtol=1e-15)


@pytest.mark.parametrize(
    ("graphs", "options", "words"),
    [
        ("path:4", {}, r"takes a list such as \['path:9', 'star:9'\], got 'path:4'"),
        ([], {}, "takes a list"),
        (["path:4", "path:5"], {}, "must have the same nodes"),
        ([PATH, [(0, 1)]], {}, "must have the same nodes: give n_nodes"),
        ([PATH, [(0, 1, 2.0)]], {"n_nodes": 4}, "the same weight in all graphs"),
        ([[(0, 1)], [(2, 3)]], {"n_nodes": 4}, "the network is not connected"),
        (["path:4", "star:4"], {"window": 0.0}, "finite and above 0, got 0.0"),
        (["path:4", "star:4"], {"window": np.inf}, "finite and above 0"),
    ],
)
def test_changing_network_refuses_in_one_sentence(graphs, options, words):
    with pytest.raises(InputError, match=words):
        changing_network(graphs, **options)


@pytest.mark.parametrize("lost", [1.0, -0.1, np.nan, "0.3", True, None])
def test_losing_refuses_what_is_no_probability(lost):
    with pytest.raises(InputError, match=r"lost, .*, must be in \[0, 1\), got"):
        adfs.Network("path:3").losing(lost)
