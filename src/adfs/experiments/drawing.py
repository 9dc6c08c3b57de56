"""The network as a picture."""

from __future__ import annotations

import html
import re

import numpy as np

from adfs.network import Network

__all__ = ["layout", "network_svg"]

_MOST_NODES = 600
_SIZE = 380.0
_RING_FAMILIES = ("cycle", "complete", "exponential")


def layout(network: Network) -> np.ndarray:
    """Return a place in the unit square for each node, shape (n, 2): lattices as lattices, rings as rings.

    Examples
    --------
    >>> layout(Network("grid:2x3"))[[0, 2, 5]].tolist()
    [[0.0, 0.25], [1.0, 0.25], [1.0, 0.75]]
    """
    n, name = network.n_nodes, network.name or ""
    family = name.partition(":")[0]
    lattice = re.fullmatch(r"(?:grid|torus):(\d+)x(\d+)", name)
    if n == 1:
        return np.array([[0.5, 0.5]])
    if lattice:
        columns = int(lattice[2])
        row, column = np.divmod(np.arange(n), columns)
        return _fitted(np.column_stack([column, row]).astype(np.float64))
    if family == "path":
        return np.column_stack([np.linspace(0.0, 1.0, n), np.full(n, 0.5)])
    if family in _RING_FAMILIES or n == 2:
        angle = 2.0 * np.pi * np.arange(n) / n - 0.5 * np.pi
        return _fitted(np.column_stack([np.cos(angle), np.sin(angle)]))
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(network.edges.tolist())
    places = nx.kamada_kawai_layout(graph) if n <= 120 else nx.spring_layout(graph, seed=0)
    return _fitted(np.array([places[node] for node in range(n)]))


def _fitted(places: np.ndarray) -> np.ndarray:
    """Return the places moved and scaled into the unit square, in the middle, in proportion."""
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray(0.5 + (places - 0.5 * (low + high)) / max(float((high - low).max()), 1e-12))


def network_svg(network: Network) -> str:
    """Return the network as an SVG element; a sentence when it has too many nodes to be seen."""
    n = network.n_nodes
    if n > _MOST_NODES:
        return f"<p>{n} nodes and {network.n_edges} edges: too many to draw.</p>"
    places = 16.0 + (_SIZE - 32.0) * layout(network)
    radius = float(np.clip(70.0 / np.sqrt(n), 2.5, 11.0))
    lines = []
    for ends in network.edges:
        (x1, y1), (x2, y2) = places[ends]
        lines.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    circles = []
    for node, (x, y) in enumerate(places):
        degree = int(network.degrees[node])
        label = html.escape(f"node {network.labels[node]}, {degree} neighbour{'s' * (degree != 1)}")
        circles.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{label}</title></circle>')
    top = places[:, 1].min() - 16.0
    height = max(places[:, 1].max() - top + 16.0, 40.0)
    box = f"0 {top:.1f} {_SIZE:.0f} {height:.1f}"
    name = html.escape(f"The network {network.name or ''}")
    return f'<svg viewBox="{box}" role="img" aria-label="{name}">{"".join(lines)}{"".join(circles)}</svg>'
