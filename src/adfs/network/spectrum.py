"""Extreme eigenvalues of a network's Laplacian, dense or sparse by size, always with a bound of their error.

The rule that chooses a solver was measured at 100,000 nodes. Plain Lanczos needs some 300 to 1,500 products,
about a second, on expanders, small worlds and grids; it is hopeless on long thin graphs (a path has
λ_2 = 1e-9 there), and these are the ones whose factorisation costs next to nothing. So: dense up to
``DENSE_NODES``; the inverse through a sparse factorisation where its estimated cost is below that of a few
thousand products; otherwise Lanczos on the matrix itself where the masses of the nodes are much the same, and
on the inverse through conjugate gradients where they are not, because then the wanted end of the spectrum
lies many orders of magnitude below the other one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import kernel
from adfs.errors import AdfsError, InputError, unknown_name
from adfs.network.grounded import GroundedFactor, GroundedIterations, factorise, laplacian_product, level_cost
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]
Method = Literal["auto", "dense", "factor", "cg", "lanczos"]
METHODS = ("auto", "dense", "factor", "cg", "lanczos")

DENSE_NODES = 400
#: factorise up to this estimated cost for each node and edge: some 3,000 Lanczos steps take as long
FACTOR_COST_EACH = 1.5e5
#: largest ratio of two nodes' degree over mass up to which Lanczos on the matrix itself is tried
EVEN_MASSES = 100.0
LANCZOS_STEPS = 20_000
SHORT_LANCZOS_STEPS = 500
#: Lanczos stops at this residual relative to the eigenvalue; the eigenvalue's error is about its square
LANCZOS_TOLERANCE = 1e-8
#: beyond it a vector is taken for none of the eigenvectors
ACCEPTED_ERROR = 1e-2
#: relative error of a linear solve from which on every one is refined
LOST_DIGITS = 1e-10
#: what the rounding of sums and products may do to a value and to its bound, relative
ROUNDING = 1e-13


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
    error : float
        Relative: an eigenvalue lies within ``error * value`` of ``value``, rounding included. It comes from
        the residual of the pair, of which the true error is about the square; below 1e-8 as a rule, never
        above 1e-2.
    method : str
        ``"dense"``, ``"factor"``, ``"cg"`` or ``"lanczos"``.
    """

    value: float
    vector: Floats
    error: float
    method: str

    @property
    def lower(self) -> float:
        """``value * (1 - error)``: the safe side where too large a λ_2 would do harm."""
        return self.value * (1.0 - self.error)


@single_threaded
def second_eigenpair(
    network: Network, diagonal: ArrayLike | None = None, *, method: Method = "auto"
) -> EigenPair:
    """Smallest positive λ with Lap u = λ N u, and its vector.

    Parameters
    ----------
    network : Network
    diagonal : (n,) array or float, optional
        The positive diagonal of N, the masses of the nodes; the identity by default.
    method : {"auto", "dense", "factor", "cg", "lanczos"}
        See the module's rule; start vectors are fixed, so that the same input gives the same bits.

    Returns
    -------
    EigenPair
        For a single node, which has no positive eigenvalue, the value is infinite.

    Examples
    --------
    >>> from adfs.network import Network
    >>> round(second_eigenpair(Network("path:2"), [1.0, 3.0]).value, 12)  # 1/1 + 1/3
    1.333333333333
    """
    n = network.n_nodes
    scale = _check_diagonal(diagonal, n)
    _check_method(method, METHODS)
    if n == 1:
        return EigenPair(float("inf"), np.zeros(1), 0.0, "dense")
    chosen = _choose(network, scale) if method == "auto" else method
    if chosen == "lanczos":
        root = np.sqrt(scale)
        inverse_root = scipy.sparse.diags_array(1.0 / root)
        scaled = (inverse_root @ network.laplacian() @ inverse_root).tocsr()
        vector = _lanczos(lambda v: scaled @ v, n, root, largest=False)
        if vector is not None:
            u = vector / root
            return _certify(network, scale, u - np.sum(scale * u) / scale.sum(), chosen)
        if method != "auto":
            raise _not_converged("smallest positive")
        chosen = "cg"
    return _InversePencil(network, scale, chosen).second_eigenpair()


@single_threaded
def largest_eigenpair(network: Network, *, method: Method = "auto") -> EigenPair:
    """λ_max(Lap) and its vector, by the rule of :func:`second_eigenpair` without "cg"; 0 for one node."""
    n = network.n_nodes
    _check_method(method, tuple(name for name in METHODS if name != "cg"))
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
        chosen = "factor" if vector is None and _thin(network) else "lanczos"
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


class _InversePencil:
    """The inverse of (Lap, N), whose largest eigenvalue is 1/λ_2.

    With a heavy node g grounded (x_g = 0) and u = x − Σ_i N_i x_i/ΣN, which sums to zero under N,

        uᵀLap u = xᵀLap x,        uᵀN u = xᵀ(N − N11ᵀN/ΣN)x = ‖C N^{1/2}x‖²,        C = I − c·vvᵀ,

    where v = N^{1/2}1/√ΣN, its entry g set to 0, and c = 1/(1 + √(N_g/ΣN)). So 1/λ_2 is the largest
    eigenvalue of C N^{1/2} Lap_g⁻¹ N^{1/2} C (row and column g are 0). Rounding is relative to that
    eigenvalue, however many orders of magnitude N spans; in N^{-1/2} Lap N^{-1/2} it is relative to the
    other end of the spectrum.
    """

    def __init__(self, network: Network, scale: Floats, method: str) -> None:
        self.network, self.scale, self.method = network, scale, method
        # heavy, so that removing means does not cancel, and well connected, so that the rest is not singular
        ground = int(np.argmax(scale * network.weighted_degrees))
        self.total = float(scale.sum())
        self.root = np.sqrt(scale)
        self.root[ground] = 0.0
        self.along: Floats = self.root / np.sqrt(self.total)
        self.shrink = 1.0 / (1.0 + float(np.sqrt(scale[ground] / self.total)))
        system = GroundedIterations if method == "cg" else GroundedFactor
        self.system: GroundedIterations | GroundedFactor = system(network, ground)
        self.refinements = 0
        trial = self.root * np.random.default_rng(0).standard_normal(scale.size)
        rough, better = self._solve(trial), self._solve(trial, 1)
        lost = np.max(self.root * np.abs(better - rough)) / np.max(self.root * np.abs(better))
        self.refinements = int(lost > LOST_DIGITS)

    def _solve(self, right: Floats, refinements: int | None = None) -> Floats:
        """Solve Lap_g x = right.

        A refinement gives x all its digits: flows along edges, unlike products with the Laplacian, do not
        cancel.
        """
        x = self.system.solve(right)
        for _ in range(self.refinements if refinements is None else refinements):
            x += self.system.solve(right - laplacian_product(self.network, x))
        return x

    def second_eigenpair(self) -> EigenPair:
        """Return 1/(largest eigenvalue) and its vector."""
        n = self.network.n_nodes
        if self.method == "dense":
            matrix = np.stack([self._applied(column) for column in np.eye(n)])
            # all of them: LAPACK's search for a single one fails where hundreds coincide (complete graphs)
            top: Floats | None = np.linalg.eigh(matrix)[1][:, -1]
        else:
            top = _lanczos(self._applied, n, None, largest=True)
        if top is None:
            raise _not_converged("smallest positive")
        # one more application smooths the rounding of the sum of Lanczos vectors
        return self._certify(self._centred(self._solve(self.root * self._turned(top))))

    def _turned(self, vector: Floats) -> Floats:
        """Multiply by C."""
        share = self.shrink * float(np.sum(self.along * vector))
        return vector - share * self.along

    def _applied(self, vector: Floats) -> Floats:
        """Multiply by C N^{1/2} Lap_g⁻¹ N^{1/2} C."""
        return self._turned(self.root * self._solve(self.root * self._turned(vector)))

    def _centred(self, x: Floats) -> Floats:
        """Make Σ_i N_i x_i zero."""
        return np.asarray(x - np.sum(self.scale * x) / self.total)

    def _certify(self, u: Floats) -> EigenPair:
        """Check the pair: an eigenvalue of the inverse lies within ‖z − θu‖_N of θ = uᵀN z, z = Lap⁺N u."""
        u = _normalised(self.scale, u)
        right = self.scale * u
        image = self._centred(self._solve(right, 2))
        theta = float(np.sum(right * image))
        residual = float(np.sqrt(np.sum(self.scale * (image - theta * u) ** 2)))
        value = _quotient(self.network, self.scale, u)
        return _accepted(value, u, 1.0 - 1.0 / (value * (theta + residual)), self.method)


def _normalised(scale: Floats, u: Floats) -> Floats:
    u = u / np.sqrt(np.sum(scale * u**2))
    return -u if u[np.argmax(np.abs(u))] < 0 else u


def _quotient(network: Network, scale: Floats, u: Floats) -> float:
    """Return the Rayleigh quotient, edge by edge."""
    across = u[network.edges[:, 0]] - u[network.edges[:, 1]]
    return float(np.sum(network.weights * across**2) / np.sum(scale * u**2))


def _certify(network: Network, scale: Floats, u: Floats, method: str) -> EigenPair:
    """Check the pair: an eigenvalue lies within ‖N^{-1/2}(Lap u − value·N u)‖ of ``value``."""
    u = _normalised(scale, u)
    value = _quotient(network, scale, u)
    defect = (network.laplacian() @ u - value * scale * u) / np.sqrt(scale)
    return _accepted(value, u, float(np.sqrt(np.sum(defect**2))) / value, method)


def _accepted(value: float, u: Floats, error: float, method: str) -> EigenPair:
    if not error <= ACCEPTED_ERROR:
        raise AdfsError(
            f"an eigenvalue of the network's Laplacian ({value:.6g}, method {method!r}) failed its check,"
            f" relative error {error:.1e}: try another method, or weights that span fewer orders of magnitude"
        )
    u.flags.writeable = False
    return EigenPair(value, u, max(error, 0.0) + ROUNDING, method)


def _not_converged(which: str) -> AdfsError:
    return AdfsError(
        f"the {which} eigenvalue of the network's Laplacian did not converge in {LANCZOS_STEPS} Lanczos"
        " steps: try method='factor', or weights that span fewer orders of magnitude"
    )


def _thin(network: Network) -> bool:
    """Whether a factorisation is cheaper than Lanczos would be."""
    return level_cost(network) <= FACTOR_COST_EACH * (network.n_nodes + network.n_edges)


def _choose(network: Network, scale: Floats) -> str:
    if network.n_nodes <= DENSE_NODES:
        return "dense"
    if _thin(network):
        return "factor"
    own = network.weighted_degrees / scale
    return "lanczos" if own.max() <= EVEN_MASSES * own.min() else "cg"


def _check_method(method: str, known: tuple[str, ...]) -> None:
    if method not in known:
        raise unknown_name("eigenvalue method", method, known)


def _check_diagonal(diagonal: ArrayLike | None, n: int) -> Floats:
    if diagonal is None:
        return np.ones(n)
    values = np.asarray(diagonal, dtype=np.float64)
    if values.ndim == 0:
        values = np.full(n, float(values))
    if values.shape != (n,):
        raise InputError(
            f"the diagonal has shape {values.shape} but the network has {n} nodes: give one number per node"
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if bad.size:
        raise InputError(
            f"the diagonal is {values[bad[0]]:g} at node {bad[0]}:"
            " every entry must be a positive finite number"
        )
    return values


def _lanczos(
    apply: Callable[[Floats], Floats],
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
    along = None if deflate is None else deflate / np.linalg.norm(deflate)
    start = np.random.default_rng(0).standard_normal(n)
    diagonal: list[float] = []
    beside: list[float] = []
    coefficients: Floats | None = None
    next_check = 4
    size = 0.0
    for step, (alpha, beta, _) in enumerate(_three_term(apply, start, along), start=1):
        diagonal.append(alpha)
        beside.append(beta)
        size = max(size, abs(alpha))
        # the start vector lies in an invariant subspace: nothing is left to find
        broken = beta <= 1e-14 * size
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
    for coefficient, (_, _, basis) in zip(coefficients, _three_term(apply, start, along), strict=False):
        total += coefficient * basis
    if along is not None:
        total -= (along @ total) * along
    return total


def _three_term(
    apply: Callable[[Floats], Floats], start: Floats, along: Floats | None
) -> Iterator[tuple[float, float, Floats]]:
    """Yield (α_k, β_k, q_k) of the Lanczos recurrence β_k q_{k+1} = A q_k − α_k q_k − β_{k−1} q_{k−1}."""
    current = start if along is None else start - (along @ start) * along
    current = current / np.linalg.norm(current)
    previous = np.zeros_like(current)
    deflated = np.empty(0) if along is None else along
    beta = 0.0
    while True:
        image = apply(current)
        alpha, beta = lanczos_step(image, current, previous, beta, deflated)
        yield alpha, beta, current
        previous, current = current, image
