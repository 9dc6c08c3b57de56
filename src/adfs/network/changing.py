"""Networks whose graph changes: a sequence of graphs over the time of the schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adfs.errors import InputError
from adfs.network.graphs import components
from adfs.network.inputs import GraphArrays, check_connected, check_weights
from adfs.network.network import Faults, Network, read_graph


def changing_network(
    graphs: Sequence[object],
    *,
    window: float | None = None,
    n_nodes: int | None = None,
    seed: int | None = None,
) -> Network:
    """Return a network that has one graph after another: window k has graph k mod G.

    The network has the edges of all graphs, and an edge exchanges in the windows only whose graph has it.
    The edges of all graphs together must connect the nodes, those of one graph need not.

    Parameters
    ----------
    graphs : sequence
        Each as `Network` takes it. All have the same nodes, and an edge has the same weight in each.
    window : float, optional
        How long a window is, in the time of the schedule, of which a unit has one event in the mean as long
        as all edges are there. By default n + |E|: in a window each node and each edge acts about once.
    n_nodes, seed
        As for `Network`; edge lists need the number of nodes.

    Examples
    --------
    >>> network = changing_network(["path:4", [(0, 2), (1, 3)]], n_nodes=4)
    >>> network
    Network(n_nodes=4, n_edges=5, graphs=2)
    >>> network.faults.present.sum(axis=1).tolist(), network.faults.window
    ([3, 2], 9.0)
    """
    if not isinstance(graphs, list | tuple) or not graphs:
        raise InputError(f"a changing network takes a list such as ['path:9', 'star:9'], got {graphs!r}")
    read, names = zip(*(read_graph(graph, n_nodes, seed) for graph in graphs), strict=True)
    if len({(each.n_nodes, each.labels) for each in read}) > 1:
        raise InputError("the graphs of a changing network must have the same nodes: give n_nodes, or names")
    # The union of all edges, in the order that networks have, and the places of each graph's edges in it.
    edges, places = np.unique(np.concatenate([each.edges for each in read]), axis=0, return_inverse=True)
    own = np.concatenate([check_weights(each.weights, each) for each in read])
    weights, places = np.ones(len(edges)), places.ravel()
    weights[places] = own
    if not np.array_equal(weights[places], own):
        raise InputError("an edge must have the same weight in all graphs of a changing network")
    union = replace(read[0], edges=edges, weights=weights)
    check_connected(union)
    present = np.zeros((len(read), len(edges)), dtype=np.bool_)
    present[np.repeat(np.arange(len(read)), [len(each.edges) for each in read]), places] = True
    length = float(union.n_nodes + len(edges) if window is None else window)
    if not (math.isfinite(length) and length > 0.0):
        raise InputError(f"the window of a changing network must be finite and above 0, got {window!r}")
    name = names[0] if len(set(names)) == 1 else None
    return Network.from_arrays(union, name, Faults(0.0, length, present) if len(read) > 1 else None)


def phases(network: Network) -> tuple[Network, ...]:
    """Return the graphs of a network, in turn; if one of them is not connected, their mean alone.

    In the mean an edge has its weight times the share of the graphs that have it. A network that does not
    change is its only phase.
    """
    if network.faults is None or not network.changes:
        return (network,)
    n, edges, weights = network.n_nodes, network.edges, network.weights
    shares: np.ndarray = network.faults.present
    if any(components(n, edges[kept])[0] > 1 for kept in shares):
        shares = shares.mean(axis=0, keepdims=True)
    # Edges whose share is 0 are left out.
    graphs = [GraphArrays(n, edges[s > 0], (weights * s)[s > 0], None) for s in shares]
    return tuple(map(Network.from_arrays, graphs))
