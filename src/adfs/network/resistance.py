"""Effective resistances of edges: exact where that is cheap, elsewhere a proven bound or a random sketch.

R_e = μ_e² (e_k − e_l)ᵀ Lap⁺ (e_k − e_l) lies in (0, 1], equals 1 exactly on bridges, and Σ_e R_e = n − 1
(Foster). Every method of ADFS stays valid, a little slower, when R_e is replaced by something larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import NDArray

from adfs.compilation import compiled
from adfs.errors import AdfsError, InputError, unknown_name
from adfs.network.solver import GroundedFactor, conjugate_gradients, level_cost
from adfs.network.walks import Ints, bridge_flags
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]
METHODS = ("auto", "exact", "bound", "sketch")

#: exact by a dense inverse up to this many nodes, by a sparse factor up to this estimated cost (seconds)
DENSE_NODES = 1000
EXACT_COST = 3e10
#: accuracy of a sketch's linear solves, relative to the square root of a resistance
SOLVE_ERROR = 1e-3
SKETCH_BLOCK = 16


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


@dataclass(frozen=True, eq=False)
class Resistances:
    """R_e of every edge, or upper bounds of them.

    Attributes
    ----------
    values : (|E|,) array
        In (0, 1], in the order of ``network.edges``, read-only.
    method : str
        ``"exact"``, ``"bound"`` or ``"sketch"``.
    relative_error : float
        R_e ≤ values[e] ≤ (1 + relative_error) R_e on every edge, up to rounding.
    exact : bool
        Whether ``values`` are the R_e themselves (``relative_error`` is then the measured defect of
        Foster's sum).
    probability : float
        With which the bounds hold on all edges together; 1 unless ``method`` is ``"sketch"``.
    """

    values: Floats
    method: str
    relative_error: float
    exact: bool
    probability: float = 1.0


@single_threaded
def resistances(
    network: Network,
    method: Literal["auto", "exact", "bound", "sketch"] = "auto",
    *,
    epsilon: float = 0.5,
    failure_probability: float = 1e-3,
    seed: int = 0,
) -> Resistances:
    """Effective resistances R_e of all edges, each times its weight.

    Parameters
    ----------
    network : Network
    method : {"auto", "exact", "bound", "sketch"}
        - ``"exact"``: a dense inverse for small networks; above, the entries of the grounded Laplacian's
          inverse that stand on edges, from a sparse factorisation alone. Cheap on trees, grids and other
          graphs with small separators, not on large expanders.
        - ``"bound"``: an upper bound in O(Σ_e min degree), see Notes; tight on expanders of large degree.
        - ``"sketch"``: random projections of Spielman and Srivastava, raised by their stated error.
        - ``"auto"``: exact where its estimated cost is small, the bound otherwise.
    epsilon, failure_probability : float
        Of the sketch: with probability at least 1 − ``failure_probability``, R_e ≤ values[e] ≤ (1 +
        epsilon) R_e on all edges at once.
    seed : int
        Of the sketch.

    Returns
    -------
    Resistances

    Notes
    -----
    *Bound.* With b = e_k − e_l and any λ ≤ λ_2, the value is w_e times the smallest of three upper bounds
    of bᵀLap⁺b:

    1. 1/w_e, the resistance of the edge alone: removing the others never lowers it (Rayleigh).
    2. 1/(w_e + Σ_m w_km w_ml/(w_km + w_ml)), for the same reason: the edge and the paths of two hops
       through common neighbours m have no edge in common, hence their conductances add.
    3. For any number c, with r = b − c·Lap b (orthogonal to the constants), b = c·Lap b + r gives

           bᵀLap⁺b = c² bᵀLap b + 2c bᵀr + rᵀLap⁺r  ≤  2c bᵀb − c² bᵀLap b + ‖r‖²/λ,

       smallest at c = (t − 2λ)/(q − λt), where it is 2/λ − (t − 2λ)²/(λ(q − λt)), with t = bᵀLap b and
       q = ‖Lap b‖², sums over the neighbours of k and l. (It is the Gauss–Radau rule with its node at λ.)

    Conversely bᵀLap⁺b ≥ (bᵀb)²/bᵀLap b = 4/t by Cauchy and Schwarz, which is how ``relative_error`` is
    certified.

    *Sketch.* For g standard normal on the edges and z = Lap⁺ Bᵀ W^{1/2} g, √w_e (z_k − z_l) is normal with
    variance exactly R_e, so the mean square of p of them is R_e χ²_p/p: p is the smallest number for which
    the two quantiles at failure_probability/(2|E|) are within the factor 1 + epsilon of each other. A solve
    with residual s errs by at most √R_e ‖s‖/√λ_2 in √w_e (z_k − z_l), which is kept below 0.001 √R_e and
    counted.

    Examples
    --------
    >>> from adfs.network import Network
    >>> resistances(Network("cycle:4")).values.round(12).tolist()
    [0.75, 0.75, 0.75, 0.75]
    """
    if method not in METHODS:
        raise unknown_name("resistance method", method, METHODS)
    if method == "auto":
        cheap = network.n_nodes <= DENSE_NODES or level_cost(network) <= EXACT_COST
        method = "exact" if cheap else "bound"
    if network.n_edges == 0:
        return Resistances(_frozen(np.empty(0)), method, 0.0, True)
    if method == "exact":
        return _exact(network)
    if method == "bound":
        return _bound(network)
    return _sketch(network, epsilon, failure_probability, seed)


def _frozen(values: Floats) -> Floats:
    values.flags.writeable = False
    return values


def _exact(network: Network) -> Resistances:
    k, l = network.edges[:, 0], network.edges[:, 1]  # noqa: E741
    if network.n_nodes <= DENSE_NODES:
        ground = int(np.argmax(network.weighted_degrees))
        kept = np.delete(np.arange(network.n_nodes), ground)
        inverse = np.zeros((network.n_nodes, network.n_nodes))
        grounded = network.laplacian().toarray()[np.ix_(kept, kept)]
        try:
            factor = scipy.linalg.cho_factor(grounded)
        except np.linalg.LinAlgError:
            raise AdfsError(
                "the Laplacian is singular to rounding: the edge weights span too many orders of magnitude,"
                " use method='bound'"
            ) from None
        inverse[np.ix_(kept, kept)] = scipy.linalg.cho_solve(factor, np.eye(kept.size))
        diagonal, beside = np.diagonal(inverse), inverse[k, l]
    else:
        diagonal, beside = GroundedFactor(network).inverse_on_edges(network.edges)
    values = network.weights * ((diagonal[k] - beside) + (diagonal[l] - beside))
    bridges = bridge_flags(
        network.incidence_indptr, network.incidence_neighbours, network.incidence_edges, network.n_edges
    )
    values = np.where(bridges, 1.0, np.minimum(values, 1.0))
    defect = abs(float(values.sum()) - (network.n_nodes - 1)) / (network.n_nodes - 1)
    return Resistances(_frozen(values), "exact", defect, True)


def _bound(network: Network) -> Resistances:
    edges, weights, degrees = network.edges, network.weights, network.weighted_degrees
    products, series = np.empty(network.n_edges), np.empty(network.n_edges)
    shared_neighbour_sums(
        network.incidence_indptr,
        network.incidence_neighbours,
        weights[network.incidence_edges],
        edges,
        products,
        series,
    )
    squares = np.bincount(edges.ravel(), weights=np.repeat(weights**2, 2), minlength=network.n_nodes)
    t = degrees[edges].sum(axis=1) + 2 * weights
    values = np.minimum(1.0, weights / (weights + series))
    floor = network.second_eigenpair.lower
    q = (degrees**2 + squares)[edges].sum(axis=1) + 2 * weights * (t - 2 * weights) - 2 * products
    spare = q - floor * t
    gain = np.divide((t - 2 * floor) ** 2, floor * spare, out=np.zeros_like(t), where=spare > 0)
    # the difference of two large numbers: its rounding goes on top, to stay a bound
    spectral = 2 / floor - gain + 32 * np.finfo(np.float64).eps * 2 / floor
    values = np.minimum(values, weights * spectral)
    relative_error = float(np.max(values * t / (4 * weights))) - 1
    return Resistances(_frozen(values), "bound", max(relative_error, 0.0), False)


def _projections(epsilon: float, tail: float) -> tuple[int, float]:
    """Smallest number of projections for the stated error, and the factor that raises their mean square."""

    def ends(count: int) -> tuple[float, float]:
        from scipy.stats import chi2  # slow to import, and needed here only

        low = np.sqrt(chi2.ppf(tail, count) / count) - SOLVE_ERROR
        high = np.sqrt(chi2.isf(tail, count) / count) + SOLVE_ERROR
        return low, high

    def enough(count: int) -> bool:
        low, high = ends(count)
        return bool(low > 0 and (high / low) ** 2 <= 1 + epsilon)

    above = 1
    while not enough(above):
        above *= 2
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if enough(middle) else (above, middle)
    return above, float(ends(above)[0] ** -2)


def _sketch(network: Network, epsilon: float, failure_probability: float, seed: int) -> Resistances:
    if not 0.02 <= epsilon < np.inf:
        raise InputError(
            f"epsilon is {epsilon!r}: a sketch's relative error must be at least 0.02, use 'exact' below that"
        )
    if not 0 < failure_probability < 1:
        raise InputError(
            f"failure_probability is {failure_probability!r}: it must lie strictly between 0 and 1"
        )
    edges, roots = network.edges, np.sqrt(network.weights)
    count, raise_by = _projections(epsilon, failure_probability / (2 * network.n_edges))
    signs = np.tile([1.0, -1.0], network.n_edges) * np.repeat(roots, 2)
    incidence = scipy.sparse.csr_array(
        (signs, (edges.ravel(), np.repeat(np.arange(network.n_edges), 2))),
        shape=(network.n_nodes, network.n_edges),
    )
    factor = GroundedFactor(network) if level_cost(network) <= EXACT_COST else None
    laplacian = network.laplacian()
    tolerance = 0.0 if factor else SOLVE_ERROR * np.sqrt(network.second_eigenpair.lower)
    generator = np.random.default_rng(seed)
    total = np.zeros(network.n_edges)
    for start in range(0, count, SKETCH_BLOCK):
        width = min(SKETCH_BLOCK, count - start)
        right = incidence @ generator.standard_normal((network.n_edges, width))
        solution = factor.solve(right) if factor else conjugate_gradients(laplacian, right, tolerance)
        difference = incidence.T @ solution
        total += np.einsum("ij,ij->i", difference, difference)
    values = np.minimum(1.0, total / count * raise_by)
    return Resistances(_frozen(values), "sketch", epsilon, False, 1 - failure_probability)


@single_threaded
def pair_resistance(network: Network, i: int, j: int) -> float:
    """Effective resistance between two nodes, by one linear solve."""
    if i == j:
        return 0.0
    right = np.zeros(network.n_nodes)
    right[i], right[j] = 1.0, -1.0
    if network.n_nodes <= DENSE_NODES or level_cost(network) <= EXACT_COST:
        potential = GroundedFactor(network).solve(right)
    else:
        # the value below errs by at most ‖residual‖²/λ_2
        tolerance = 1e-7 * np.sqrt(network.second_eigenpair.lower)
        potential = conjugate_gradients(network.laplacian(), right[:, None], tolerance)[:, 0]
    k, l = network.edges[:, 0], network.edges[:, 1]  # noqa: E741
    energy = float(network.weights @ (potential[k] - potential[l]) ** 2)
    return 2 * float(potential[i] - potential[j]) - energy
