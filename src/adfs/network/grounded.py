"""Solving Laplacian systems: a sparse factorisation of the grounded Laplacian, or conjugate gradients.

A Laplacian is singular along the constant vector. Deleting the row and the column of one node (*grounding*
it) leaves a positive definite matrix; for a right side that sums to zero, its solution with a zero put back
at the ground solves the whole system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

from adfs.compilation import compiled
from adfs.errors import AdfsError
from adfs.network.walks import Ints, bfs_distances, two_core

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]

#: residual of conjugate gradients relative to the right side, where they stand in for a factorisation
ITERATIONS_TOLERANCE = 1e-12
MOST_ITERATIONS = 20_000


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


def factorise(matrix: scipy.sparse.csr_array) -> SuperLU:
    """Sparse LU of a symmetric positive definite matrix, symmetrically ordered, pivots on the diagonal."""
    try:
        return splu(
            matrix.tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError:
        raise AdfsError(
            "the Laplacian is singular to rounding: the edge weights span too many orders of magnitude"
        ) from None


def laplacian_product(network: Network, vector: Floats) -> Floats:
    """Lap times a vector (n,) by the flow along each edge: exact where large neighbouring values cancel."""
    i, j = network.edges[:, 0], network.edges[:, 1]
    flow = network.weights * (vector[i] - vector[j])
    n = network.n_nodes
    return np.asarray(np.bincount(i, weights=flow, minlength=n) - np.bincount(j, weights=flow, minlength=n))


def level_cost(network: Network) -> float:
    """Estimate the work of a factorisation: Σ s_l³ over the breadth-first levels (sizes s_l) of the 2-core.

    Trees hanging off the 2-core are eliminated without fill. Eliminating the rest level by level fills
    blocks of s_l × s_l, and a minimum-degree ordering does as well or (on grids, by a factor of 10 to 100)
    better. The levels are those of a search from a node far away from the first one. A path costs n, a 316
    x 316 grid 5e9, an expander of n nodes about n³/10.
    """
    indptr, indices = network.incidence_indptr, network.incidence_neighbours
    core = two_core(indptr, indices)
    if not core.any():
        return float(network.n_nodes)
    distance = np.empty(network.n_nodes, np.int64)
    queue = np.empty_like(distance)
    start = int(np.flatnonzero(core)[0])
    for _ in range(2):
        bfs_distances(indptr, indices, start, distance, queue)
        start = int(np.argmax(np.where(core, distance, -1)))
    sizes = np.bincount(distance[core]).astype(np.float64)
    return float(np.sum(sizes**3)) + network.n_nodes


class GroundedFactor:
    """Factorisation of the Laplacian, of at least two nodes, grounded at one.

    By default at that of largest weighted degree, which keeps the entries of the inverse small.
    """

    def __init__(self, network: Network, ground: int | None = None) -> None:
        self.n_nodes = network.n_nodes
        self.ground = int(np.argmax(network.weighted_degrees)) if ground is None else ground
        self.kept = np.delete(np.arange(self.n_nodes), self.ground)
        self._factor = factorise(network.laplacian()[self.kept][:, self.kept])

    def solve(self, right: Floats) -> Floats:
        """Solve Lap x = right but for the ground's row, x zero there; ``right`` is (n,) or (n, k)."""
        solution = np.zeros_like(right)
        solution[self.kept] = self._factor.solve(np.ascontiguousarray(right[self.kept]))
        return solution

    def inverse_on_edges(self, edges: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Entries of the grounded inverse that edges need: its diagonal (n,), and one entry per edge (|E|,).

        Both are zero at the ground. They come from the factor alone (Takahashi's recurrence) at about the
        cost of the factorisation; no column of the inverse is formed.
        """
        factor = self._factor
        if not np.array_equal(factor.perm_r, factor.perm_c):
            raise AdfsError(
                "the factorisation left the diagonal: the edge weights span too many orders of magnitude"
            )
        lower = factor.L.tocsc()
        lower.sort_indices()
        pivots = factor.U.diagonal()
        entries = selected_inverse(
            lower.indptr.astype(np.int64),
            lower.indices.astype(np.int64),
            lower.data,
            np.ascontiguousarray(pivots),
        )
        # SuperLU moves row i of the matrix to row perm_r[i]
        position = np.full(self.n_nodes, -1, np.int64)
        position[self.kept] = factor.perm_r
        diagonal = np.zeros(self.n_nodes)
        diagonal[self.kept] = entries[lower.indptr[:-1]][factor.perm_r]
        at_edges = np.zeros(len(edges))
        ends = position[edges]
        inside = (ends >= 0).all(axis=1)
        row, column = ends[inside].max(axis=1), ends[inside].min(axis=1)
        n = self.n_nodes
        keys = np.repeat(np.arange(n - 1), np.diff(lower.indptr)) * n + lower.indices
        at_edges[inside] = entries[np.searchsorted(keys, column * n + row)]
        return diagonal, at_edges


class GroundedIterations:
    """What :class:`GroundedFactor` does, by conjugate gradients: for large expanders, whose factors fill up.

    As with a factorisation, it is for the caller to look at the residual.
    """

    def __init__(self, network: Network, ground: int) -> None:
        self.ground = ground
        self._laplacian = network.laplacian()

    def solve(self, right: Floats) -> Floats:
        """Solve Lap x = right but for the ground's row, x zero there; ``right`` is (n,)."""
        balanced = right.copy()
        balanced[self.ground] = 0.0
        balanced[self.ground] = -balanced.sum()
        size = float(np.sqrt(np.sum(balanced**2)))
        if size == 0.0:
            return balanced
        # scaled, so that neither tiny nor huge numbers leave the range of a double when squared
        found = _descend(self._laplacian, balanced[:, None] / size)
        return np.asarray(size * (found[:, 0] - found[self.ground]))


def _descend(laplacian: scipy.sparse.csr_array, residual: Floats) -> Floats:
    """Run conjugate gradients from zero, preconditioned by the diagonal.

    ``residual``, the right side as a column (n, 1), becomes the recurrence's residual.
    """
    inverse_diagonal = 1.0 / laplacian.diagonal()[:, None]
    solution = np.zeros_like(residual)
    preconditioned = inverse_diagonal * residual
    direction = preconditioned.copy()
    energy = np.einsum("ij,ij->j", residual, preconditioned)
    for _ in range(MOST_ITERATIONS):
        image = laplacian @ direction
        step = energy / np.einsum("ij,ij->j", direction, image)
        solution += step * direction
        residual -= step * image
        if np.linalg.norm(residual) <= ITERATIONS_TOLERANCE:
            break
        preconditioned = inverse_diagonal * residual
        following = np.einsum("ij,ij->j", residual, preconditioned)
        direction *= following / energy
        direction += preconditioned
        energy = following
    return solution
