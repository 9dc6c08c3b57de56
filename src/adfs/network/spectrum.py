"""Extreme eigenvalues of a network's Laplacian, dense or sparse by size, always with a residual.

The rule that chooses a solver was measured at 100,000 nodes. Plain Lanczos needs some 300 to 1,500 products,
about a second, on expanders, small worlds and grids; it is hopeless on long thin graphs (a path has
λ_2 = 1e-9 there), and these are the ones whose factorisation costs next to nothing. So: dense up to
``DENSE_NODES``; the inverse through a sparse factorisation where its estimated cost is below that of a few
thousand products; Lanczos on the matrix itself otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from adfs.errors import AdfsError, InputError, unknown_name
from adfs.network.kernels import lanczos_step
from adfs.network.solver import GroundedFactor, factorise, level_cost

if TYPE_CHECKING:
    from adfs.network.network import Network

__all__ = ["EigenPair", "generalized_lambda2", "largest_eigenpair", "second_eigenpair"]

Floats = NDArray[np.float64]
Method = Literal["auto", "dense", "factor", "lanczos"]
METHODS = ("auto", "dense", "factor", "lanczos")

DENSE_NODES = 400
#: factorise up to this estimated cost for each node and edge: some 3,000 Lanczos steps take as long
FACTOR_COST_EACH = 1.5e5
#: when Lanczos does not converge, a factorisation up to this estimated cost (minutes) is still tried
LAST_RESORT_COST = 1e12
LANCZOS_STEPS = 20_000
SHORT_LANCZOS_STEPS = 500
#: Lanczos stops at this residual relative to the eigenvalue; the eigenvalue's error is about its square
LANCZOS_TOLERANCE = 1e-8
ACCEPTED_RESIDUAL = 1e-6


@dataclass(frozen=True, eq=False)
class EigenPair:
    """An eigenvalue with the evidence for it.

    Attributes
    ----------
    value : float
        The Rayleigh quotient Σ_e μ_e²(u_i − u_j)² / Σ_i N_i u_i² of ``vector``, free of cancellation. For
        λ_2 it is never below the true value but for rounding, for λ_max never above it.
    vector : (n,) array
        u with Σ_i N_i u_i² = 1 (and Σ_i N_i u_i = 0 for λ_2), its entry of largest modulus positive.
    residual : float
        ‖N^{-1/2}(Lap u − value·N u)‖: some eigenvalue lies within this distance of ``value``. It has been
        checked to be small against ``value``, up to the rounding of the product itself.
    method : str
        ``"dense"``, ``"factor"`` or ``"lanczos"``.
    """

    value: float
    vector: Floats
    residual: float
    method: str

    @property
    def lower(self) -> float:
        """``value - residual``, at least zero: the safe side where too large a λ_2 would do harm."""
        return max(self.value - self.residual, 0.0)


def second_eigenpair(
    network: Network, diagonal: ArrayLike | None = None, *, method: Method = "auto"
) -> EigenPair:
    """Smallest positive λ with Lap u = λ N u, and its vector.

    Parameters
    ----------
    network : Network
    diagonal : (n,) array or float, optional
        The positive diagonal of N; the identity by default.
    method : {"auto", "dense", "factor", "lanczos"}
        See the module's rule; start vectors are fixed, so that the same input gives the same bits.

    Returns
    -------
    EigenPair
        For a single node, which has no positive eigenvalue, the value is infinite.

    Notes
    -----
    The value errs upwards by about residual²/gap, that is by 1e-10 relative and less. ADFS is safe with a σ_A
    that is too small (it only gets slower) and tolerates one that is too large by several percent, far beyond
    this error; :attr:`EigenPair.lower` is there for proofs.
    """
    n = network.n_nodes
    scale = _check_diagonal(diagonal, n)
    _check_method(method)
    if n == 1:
        return EigenPair(float("inf"), np.zeros(1), 0.0, "dense")
    root = np.sqrt(scale)
    chosen = _choose(network) if method == "auto" else method
    vector = _SMALLEST[chosen](network, root)
    if vector is None and method == "auto" and level_cost(network) <= LAST_RESORT_COST:
        chosen = "factor"
        vector = _SMALLEST[chosen](network, root)
    if vector is None:
        raise _not_converged("smallest positive")
    u = vector / root
    u = u - (scale @ u) / scale.sum()
    return _certify(network, scale, u, chosen)


def generalized_lambda2(network: Network, diagonal: ArrayLike, *, method: Method = "auto") -> float:
    """λ_2(Lap, N): the smallest positive λ with Lap u = λ N u, N = diag(``diagonal``) positive.

    The theory's σ_A is this number for N_r = diag(σ_i(1 + κ_i/(1 − r))). :func:`second_eigenpair` gives the
    vector and the residual as well.

    Examples
    --------
    >>> from adfs.network import Network
    >>> round(generalized_lambda2(Network("path:2"), [1.0, 3.0]), 12)  # 1/1 + 1/3
    1.333333333333
    """
    return second_eigenpair(network, diagonal, method=method).value


def largest_eigenpair(network: Network, *, method: Method = "auto") -> EigenPair:
    """λ_max(Lap) and its vector, by the same rule as :func:`second_eigenpair`; zero for a single node."""
    n = network.n_nodes
    _check_method(method)
    scale = np.ones(n)
    if n == 1:
        return EigenPair(0.0, np.ones(1), 0.0, "dense")
    chosen: str = "dense" if method == "auto" and n <= DENSE_NODES else method
    if chosen == "dense":
        top = np.linalg.eigh(network.laplacian().toarray())[1][:, -1]
        return _certify(network, scale, top, chosen)
    laplacian = network.laplacian()
    vector: Floats | None = None
    if chosen == "auto":
        # high degrees stand apart and are found at once; only regular thin graphs need the factorisation
        vector = _lanczos(lambda v: laplacian @ v, n, None, largest=True, max_steps=SHORT_LANCZOS_STEPS)
        chosen = "lanczos" if vector is not None else _choose(network)
    if vector is None and chosen == "factor":
        # no eigenvalue exceeds the largest sum of two linked nodes' weighted degrees (Anderson and Morley):
        # just above it the shifted matrix is positive definite, however close to singular
        shift = network.weighted_degrees[network.edges].sum(axis=1).max() * (1 + 1e-12)
        factor = factorise((shift * scipy.sparse.eye_array(n) - laplacian).tocsr())
        vector = _lanczos(factor.solve, n, None, largest=True)
    elif vector is None:
        vector = _lanczos(lambda v: laplacian @ v, n, None, largest=True)
    if vector is None:
        raise _not_converged("largest")
    return _certify(network, scale, vector, chosen)


def _not_converged(which: str) -> AdfsError:
    return AdfsError(
        f"the {which} eigenvalue of the network's Laplacian did not converge in {LANCZOS_STEPS} Lanczos"
        " steps: try method='factor', or weights and diagonal that span fewer orders of magnitude"
    )


def _choose(network: Network) -> str:
    if network.n_nodes <= DENSE_NODES:
        return "dense"
    thin = level_cost(network) <= FACTOR_COST_EACH * (network.n_nodes + network.n_edges)
    return "factor" if thin else "lanczos"


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise unknown_name("eigenvalue method", method, METHODS)


def _check_diagonal(diagonal: ArrayLike | None, n: int) -> Floats:
    if diagonal is None:
        return np.ones(n)
    values = np.asarray(diagonal, dtype=np.float64)
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise InputError(
            f"the diagonal has shape {values.shape} but the network has {n} nodes: give one number a node"
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        raise InputError(
            f"the diagonal is {values[bad[0]]:g} at node {bad[0]}:"
            " every entry must be a positive finite number"
        )
    return values


def _certify(network: Network, scale: Floats, u: Floats, method: str) -> EigenPair:
    """Normalise, evaluate the Rayleigh quotient edge by edge and the residual; refuse what fails."""
    u = u / np.sqrt(scale @ u**2)
    if u[np.argmax(np.abs(u))] < 0:
        u = -u
    i, j = network.edges[:, 0], network.edges[:, 1]
    value = float(network.weights @ (u[i] - u[j]) ** 2) / float(scale @ u**2)
    defect = (network.laplacian() @ u - value * scale * u) / np.sqrt(scale)
    residual = float(np.linalg.norm(defect))
    largest = float(np.max(2 * network.weighted_degrees / scale))
    rounding = 64 * np.finfo(np.float64).eps * largest
    if not residual <= ACCEPTED_RESIDUAL * value + rounding:
        raise AdfsError(
            f"an eigenvalue of the network's Laplacian ({value:.6g}, method {method!r}) failed its check,"
            f" residual {residual:.1e}: try another method, or weights that span fewer orders of magnitude"
        )
    u.flags.writeable = False
    return EigenPair(value, u, residual, method)


def _smallest_dense(network: Network, root: Floats) -> Floats:
    """Eigenvector of N^{-1/2} Lap N^{-1/2}, sharpened by one inverse iteration (λ_2 may be tiny)."""
    laplacian = network.laplacian().toarray()
    scaled = laplacian / root[:, None] / root
    # all of them: LAPACK's search for a single one fails where hundreds coincide (complete graphs)
    vector = np.linalg.eigh(scaled)[1][:, 1]
    right = root * (vector - root * (root @ vector) / (root @ root))
    kept = np.delete(np.arange(network.n_nodes), np.argmax(network.weighted_degrees))
    try:
        factor = scipy.linalg.cho_factor(laplacian[np.ix_(kept, kept)])
    except np.linalg.LinAlgError:  # singular to rounding: the residual will decide about the vector as it is
        return vector
    solution = np.zeros_like(right)
    solution[kept] = scipy.linalg.cho_solve(factor, right[kept])
    result: Floats = root * solution
    return result


def _smallest_by_factor(network: Network, root: Floats) -> Floats | None:
    """Largest eigenvector of N^{1/2} Lap⁺ N^{1/2}, a few solves with a sparse factorisation."""
    factor = GroundedFactor(network)

    def apply(vector: Floats) -> Floats:
        return root * factor.solve(root * vector)

    vector = _lanczos(apply, network.n_nodes, root, largest=True)
    # one more application smooths the rounding of the sum of Lanczos vectors, which the residual would feel
    return None if vector is None else apply(vector / np.linalg.norm(vector))


def _smallest_by_lanczos(network: Network, root: Floats) -> Floats | None:
    inverse_root = scipy.sparse.diags_array(1.0 / root)
    scaled = (inverse_root @ network.laplacian() @ inverse_root).tocsr()
    return _lanczos(lambda v: scaled @ v, network.n_nodes, root, largest=False)


_SMALLEST: dict[str, Callable[[Network, Floats], Floats | None]] = {
    "dense": _smallest_dense,
    "factor": _smallest_by_factor,
    "lanczos": _smallest_by_lanczos,
}


def _lanczos(
    apply: Callable[[Floats], Any],
    n: int,
    deflate: Floats | None,
    *,
    largest: bool,
    max_steps: int = LANCZOS_STEPS,
) -> Floats | None:
    """One extreme eigenvector of a symmetric operator; None when it has not converged.

    Three-term recurrence without reorthogonalisation: extreme Ritz values do not suffer from it (copies of
    converged ones appear, which does no harm), and memory stays at a few vectors. ``deflate`` is a known
    eigenvector that is projected out at every step. A second pass with the same start vector sums up the
    Ritz vector.
    """
    kernel = None if deflate is None else deflate / np.linalg.norm(deflate)
    start = np.random.default_rng(0).standard_normal(n)
    diagonal: list[float] = []
    beside: list[float] = []
    coefficients: Floats | None = None
    next_check = 4
    size = 0.0
    for step, (alpha, beta, _) in enumerate(_three_term(apply, start, kernel), start=1):
        diagonal.append(alpha)
        beside.append(beta)
        size = max(size, abs(alpha))
        broken = (
            beta <= 1e-14 * size
        )  # the start vector lies in an invariant subspace: nothing is left to find
        if step < next_check and not broken and step < max_steps:
            continue
        next_check = int(next_check * 1.15) + 4
        if step == 1:
            coefficients = np.ones(1)
            break
        at = step - 1 if largest else 0
        values, vectors = scipy.linalg.eigh_tridiagonal(
            diagonal, beside[:-1], select="i", select_range=(at, at)
        )
        if broken or beta * abs(vectors[-1, 0]) <= LANCZOS_TOLERANCE * abs(values[0]):
            coefficients = np.asarray(vectors[:, 0], dtype=np.float64)
            break
        if step >= max_steps:
            return None
    assert coefficients is not None
    total = np.zeros(n)
    for coefficient, (_, _, basis) in zip(coefficients, _three_term(apply, start, kernel), strict=False):
        total += coefficient * basis
    if kernel is not None:
        total -= (kernel @ total) * kernel
    return total


def _three_term(
    apply: Callable[[Floats], Any], start: Floats, kernel: Floats | None
) -> Iterator[tuple[float, float, Floats]]:
    """Yield (α_k, β_k, q_k) of the Lanczos recurrence β_k q_{k+1} = A q_k − α_k q_k − β_{k−1} q_{k−1}."""
    current = start if kernel is None else start - (kernel @ start) * kernel
    current = current / np.linalg.norm(current)
    previous = np.zeros_like(current)
    deflated = np.empty(0) if kernel is None else kernel
    beta = 0.0
    while True:
        image = apply(current)
        alpha, beta = lanczos_step(image, current, previous, beta, deflated)
        yield alpha, beta, current
        previous, current = current, image
