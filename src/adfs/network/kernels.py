"""Compiled walks over a graph in compressed sparse row form, and the selected inverse of a sparse factor.

Everywhere ``indptr`` (n+1,) and ``indices`` (2|E|,) describe the neighbours of a node in ascending order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled, kernel

__all__ = [
    "bfs_distances",
    "bridge_flags",
    "lanczos_step",
    "selected_inverse",
    "shared_neighbour_sums",
    "two_core",
]

Ints = NDArray[Any]
Floats = NDArray[np.float64]


@kernel
def _dot(a: Floats, b: Floats) -> float:
    """Sum in four strands: quicker than one after the other, and the same whatever the number of threads."""
    first = second = third = fourth = 0.0
    whole = a.size - a.size % 4
    for k in range(0, whole, 4):
        first += a[k] * b[k]
        second += a[k + 1] * b[k + 1]
        third += a[k + 2] * b[k + 2]
        fourth += a[k + 3] * b[k + 3]
    for k in range(whole, a.size):
        first += a[k] * b[k]
    return (first + second) + (third + fourth)


@kernel
def lanczos_step(
    image: Floats, current: Floats, previous: Floats, beta: float, deflated: Floats
) -> tuple[float, float]:
    """Turn A q_k (``image``) into q_{k+1} in place, and return α_k and β_k.

    β_k q_{k+1} = A q_k − β_{k−1} q_{k−1} − α_k q_k; a unit vector ``deflated`` is projected out unless empty.
    """
    for k in range(image.size):
        image[k] -= beta * previous[k]
    alpha = _dot(current, image)
    for k in range(image.size):
        image[k] -= alpha * current[k]
    if deflated.size:
        along = _dot(deflated, image)
        for k in range(image.size):
            image[k] -= along * deflated[k]
    length = math.sqrt(_dot(image, image))
    if length > 0.0:
        for k in range(image.size):
            image[k] /= length
    return alpha, length


@compiled
def bfs_distances(indptr: Ints, indices: Ints, source: int, distance: Ints, queue: Ints) -> int:
    """Write hop counts from ``source`` into ``distance`` (-1 where not reached); return how many are reached.

    ``queue`` (n,) is working space and holds the nodes in the order of their discovery afterwards.
    """
    distance[:] = -1
    distance[source] = 0
    queue[0] = source
    head = 0
    tail = 1
    while head < tail:
        node = queue[head]
        head += 1
        for position in range(indptr[node], indptr[node + 1]):
            other = indices[position]
            if distance[other] < 0:
                distance[other] = distance[node] + 1
                queue[tail] = other
                tail += 1
    return tail


@compiled
def two_core(indptr: Ints, indices: Ints) -> NDArray[np.bool_]:
    """Flag the nodes that remain after leaves have been removed again and again (a tree leaves none)."""
    n = indptr.size - 1
    degree = np.empty(n, np.int64)
    stack = np.empty(n, np.int64)
    kept = np.ones(n, np.bool_)
    top = 0
    for node in range(n):
        degree[node] = indptr[node + 1] - indptr[node]
        if degree[node] <= 1:
            kept[node] = False
            stack[top] = node
            top += 1
    while top > 0:
        top -= 1
        node = stack[top]
        for position in range(indptr[node], indptr[node + 1]):
            other = indices[position]
            if kept[other]:
                degree[other] -= 1
                if degree[other] <= 1:
                    kept[other] = False
                    stack[top] = other
                    top += 1
    return kept


@compiled
def bridge_flags(indptr: Ints, indices: Ints, edge_ids: Ints, n_edges: int) -> NDArray[np.bool_]:
    """Flag the edges whose removal disconnects a connected graph (Tarjan's low-link, without recursion)."""
    n = indptr.size - 1
    flags = np.zeros(n_edges, np.bool_)
    found = np.full(n, -1, np.int64)
    low = np.zeros(n, np.int64)
    parent_edge = np.full(n, -1, np.int64)
    cursor = indptr[:-1].copy()
    stack = np.empty(n, np.int64)
    stack[0] = 0
    found[0] = 0
    top = 1
    clock = 1
    while top > 0:
        node = stack[top - 1]
        position = cursor[node]
        if position < indptr[node + 1]:
            cursor[node] = position + 1
            other = indices[position]
            edge = edge_ids[position]
            if edge == parent_edge[node]:
                continue
            if found[other] < 0:
                found[other] = clock
                low[other] = clock
                clock += 1
                parent_edge[other] = edge
                stack[top] = other
                top += 1
            elif found[other] < low[node]:
                low[node] = found[other]
        else:
            top -= 1
            if top > 0:
                above = stack[top - 1]
                if low[node] < low[above]:
                    low[above] = low[node]
                if low[node] > found[above]:
                    flags[parent_edge[node]] = True
    return flags


@compiled
def shared_neighbour_sums(
    indptr: Ints, indices: Ints, weights: Floats, edges: Ints, products: Floats, series: Floats
) -> None:
    """Sum over the common neighbours m of each edge (k, l).

    w_km·w_ml goes into ``products``, the conductance in series w_km·w_ml/(w_km + w_ml) into ``series``.

    The shorter list is walked; the longer is searched by bisection when it is much longer (a star's hub),
    merged otherwise, so that neither a hub nor a dense graph makes it quadratic.
    """
    for e in range(edges.shape[0]):
        a = edges[e, 0]
        b = edges[e, 1]
        if indptr[a + 1] - indptr[a] > indptr[b + 1] - indptr[b]:
            a, b = b, a
        start = indptr[b]
        stop = indptr[b + 1]
        merge = stop - start <= 8 * (indptr[a + 1] - indptr[a])
        total_product = 0.0
        total_series = 0.0
        for position in range(indptr[a], indptr[a + 1]):
            node = indices[position]
            if merge:
                while start < stop and indices[start] < node:
                    start += 1
            else:
                start += np.searchsorted(indices[start:stop], node)
            if start == stop:
                break
            if indices[start] == node:
                u = weights[position]
                v = weights[start]
                total_product += u * v
                # written so that neither tiny nor huge weights leave the range of a double
                total_series += min(u, v) / (1.0 + min(u, v) / max(u, v))
        products[e] = total_product
        series[e] = total_series


@compiled
def selected_inverse(indptr: Ints, indices: Ints, lower: Floats, pivots: Floats) -> Floats:
    """Entries of (L D Lᵀ)⁻¹ on the pattern of L, by Takahashi's recurrence.

    Column j of the unit lower triangular L in compressed column form holds its diagonal first and then its
    rows in ascending order; D = diag(``pivots``). From Lᵀ Z = D⁻¹ L⁻¹, for i > j in the pattern of column j

        Z_ij = −Σ_k Z_ik L_kj,        Z_jj = 1/D_j − Σ_k Z_kj L_kj,        k over the pattern of column j,

    and every Z_ik needed lies in the pattern because a factor's pattern is chordal.
    """
    n = indptr.size - 1
    inverse = np.zeros(lower.size)
    place = np.full(n, -1, np.int64)
    column = np.zeros(n)
    for j in range(n - 1, -1, -1):
        first = indptr[j] + 1
        last = indptr[j + 1]
        for p in range(first, last):
            place[indices[p]] = p
            column[indices[p]] = 0.0
        for p in range(first, last):
            k = indices[p]
            factor = lower[p]
            column[k] -= inverse[indptr[k]] * factor
            for q in range(indptr[k] + 1, indptr[k + 1]):
                i = indices[q]
                at = place[i]
                if at >= 0:
                    # Z_ik with i > k serves the pair both ways round
                    column[i] -= inverse[q] * factor
                    column[k] -= inverse[q] * lower[at]
        diagonal = 1.0 / pivots[j]
        for p in range(first, last):
            i = indices[p]
            inverse[p] = column[i]
            diagonal -= column[i] * lower[p]
        inverse[indptr[j]] = diagonal
        for p in range(first, last):
            place[indices[p]] = -1
    return inverse
