"""Effective resistances of edges: exact where that is cheap, elsewhere a proven bound.

R_e = μ_e² (e_k − e_l)ᵀ Lap⁺ (e_k − e_l) lies in (0, 1], equals 1 exactly on bridges, and Σ_e R_e = n − 1
(Foster). Every method of ADFS stays valid, a little slower, when R_e is replaced by something larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from adfs.compilation import compiled
from adfs.errors import AdfsError, unknown_name
from adfs.network.grounded import GroundedFactor, level_cost
from adfs.network.walks import Ints, bridge_flags
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]
METHODS = ("auto", "exact", "bound")

#: exact by a dense inverse up to this many nodes, by a sparse factor up to this estimated cost (seconds)
DENSE_NODES = 1000
EXACT_COST = 3e10


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
        ``"exact"`` or ``"bound"``.
    relative_error : float
        R_e ≤ values[e] ≤ (1 + relative_error) R_e on every edge, up to rounding.
    exact : bool
        Whether ``values`` are the R_e themselves (``relative_error`` is then the measured defect of
        Foster's sum).
    """

    values: Floats
    method: str
    relative_error: float
    exact: bool


@single_threaded
def resistances(network: Network, method: Literal["auto", "exact", "bound"] = "auto") -> Resistances:
    """Effective resistances R_e of all edges, each times its weight.

    Parameters
    ----------
    network : Network
    method : {"auto", "exact", "bound"}
        - ``"exact"``: a dense inverse for small networks; above, the entries of the grounded Laplacian's
          inverse that stand on edges, from a sparse factorisation alone. Cheap on trees, grids and other
          graphs with small separators, not on large expanders.
        - ``"bound"``: an upper bound in O(Σ_e min degree), see Notes; tight on expanders of large degree.
        - ``"auto"``: exact where its estimated cost is small, the bound otherwise.

    Notes
    -----
    With b = e_k − e_l and any λ ≤ λ_2, the value is w_e times the smallest of three upper bounds
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
    return _exact(network) if method == "exact" else _bound(network)


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
