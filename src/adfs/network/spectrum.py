"""Extreme eigenvalues of a network's Laplacian, each with a bound of its error.

Up to 400 nodes they come from a dense eigenproblem. Above, one Lanczos recurrence serves for all of them:
on the matrix itself where the masses of the nodes are similar (expanders, small worlds), and on the inverse
where λ_2 lies many orders of magnitude below λ_max. The inverse is a sparse factorisation on thin graphs
(paths, trees, grids), where that is cheap, and conjugate gradients elsewhere. The recurrence is never
restarted: SciPy's ``eigsh``, which restarts, takes two to ten times as long at 100,000 nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import daxpy, ddot, dscal
from scipy.sparse.linalg import cg, splu

from adfs.errors import AdfsError, InputError
from adfs.network.distances import hop_distances
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]
Operator = Callable[[Floats], Floats]

DENSE_NODES = 400
#: factorise up to this estimated cost per node and edge, which is that of some 3,000 Lanczos steps
FACTOR_COST_EACH = 1.5e5
#: largest ratio of two nodes' degree over mass up to which Lanczos on the matrix itself is tried
EVEN_MASSES = 100.0
LANCZOS_STEPS = 20_000
#: the residual at which iterations stop, relative to the eigenvalue; the eigenvalue's error is its square
LANCZOS_TOLERANCE = 1e-8
#: the largest residual of a vector that is taken for an eigenvector
ACCEPTED_ERROR = 1e-2
#: the chance, over start vectors, that a recurrence that stops early has missed the eigenvalue
MISSED = 1e-9
#: rounding of sums and products in a value and its bound, relative
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class EigenPair:
    """An eigenvalue with the evidence for it.

    Attributes
    ----------
    value : float
        The Rayleigh quotient Σ_e μ_e²(u_i − u_j)² / Σ_i N_i u_i² of ``vector``, free of cancellation. For
        λ_2 it is never below the true value but for rounding.
    vector : (n,) array
        u with Σ_i N_i u_i² = 1 (and Σ_i N_i u_i = 0 for λ_2), its entry of largest modulus positive.
    error : float
        Relative: an eigenvalue lies within ``error * value`` of ``value``, rounding included. It comes from
        the residual of the pair, of which the true error is about the square; below 1e-8 as a rule, never
        above 1e-2. Where a recurrence stopped early, it is the tolerance that was asked for.
    lower : float
        ``value * (1 - error)``: the safe side where too large a λ_2 would do harm.
    """

    value: float
    vector: Floats
    error: float
    lower: float


@single_threaded
def second_eigenpair(
    network: Network, diagonal: ArrayLike | None = None, tolerance: float = 0.0
) -> EigenPair:
    """Smallest positive λ with Lap u = λ N u, and its vector.

    Start vectors are fixed, so that the same input gives the same bits.

    Parameters
    ----------
    network : Network
    diagonal : (n,) array or float, optional
        The positive diagonal of N, the masses of the nodes; the identity by default.
    tolerance : float, optional
        At most 1e-2: the relative error that is small enough. Lanczos on a large matrix then stops as soon as
        λ_2 is above ``lower`` for all but one in 10⁹ start vectors, whatever the other eigenvalues are.

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
    masses = np.asarray(1.0 if diagonal is None else diagonal, dtype=np.float64)
    if masses.shape not in ((), (n,)):
        raise InputError(
            f"the diagonal has shape {masses.shape} but the network has {n} nodes: give one number per node"
        )
    masses = np.array(np.broadcast_to(masses, n))
    bad = np.flatnonzero(~(np.isfinite(masses) & (masses > 0)))
    if bad.size:
        raise InputError(
            f"the diagonal is {masses[bad[0]]:g} at node {bad[0]}:"
            " every entry must be a positive finite number"
        )
    if n == 1:
        return EigenPair(np.inf, np.zeros(1), 0.0, np.inf)
    if n <= DENSE_NODES or factor_cost(network) <= FACTOR_COST_EACH * (n + network.n_edges):
        return _by_inverse(network, masses, iterative=False)
    # The diagonal of N^{-1} Lap spans about as many orders of magnitude as its spectrum does.
    rates = network.weighted_degrees / masses
    even = bool(rates.max() <= EVEN_MASSES * rates.min())
    pair = _by_lanczos(network, masses, LANCZOS_STEPS, largest=False, tolerance=tolerance) if even else None
    return _by_inverse(network, masses, iterative=True) if pair is None else pair


@single_threaded
def largest_eigenvalue(network: Network) -> float:
    """Return λ_max(Lap); 0 for one node. Above 400 nodes it may be an upper bound (`largest_or_bound`)."""
    n = network.n_nodes
    if n == 1:
        return 0.0
    if n <= DENSE_NODES:
        return _checked(network, np.ones(n), np.linalg.eigh(network.laplacian().toarray())[1][:, -1]).value
    return largest_or_bound(network, np.ones(n))


def largest_or_bound(network: Network, masses: Floats) -> float:
    """Return the largest λ with Lap u = λ N u, N = diag(masses), or an upper bound where Lanczos takes long.

    No λ exceeds the largest sum of two linked nodes' weighted degrees, each over its mass (Anderson and
    Morley). Lanczos takes long on thin graphs whose nodes are alike (paths, grids), and there this bound is
    close.
    """
    pair = _by_lanczos(network, masses, LANCZOS_STEPS // 20, largest=True)
    rates = network.weighted_degrees / masses
    return float(rates[network.edges].sum(axis=1).max()) if pair is None else pair.value


def factor_cost(network: Network) -> float:
    """Estimate the work of a sparse factorisation of the Laplacian.

    Eliminating the breadth-first levels (sizes s_l) one by one fills blocks of s_l × s_l and takes Σ s_l³
    operations; the levels are those of a search from a node far away from the first one. Without c of its
    edges the network is a tree, which is eliminated without fill, so that c³ + n is enough too. A path costs
    n, a 316 x 316 grid 5e9, an expander of n nodes about n³/10.
    """
    hops = hop_distances(network, int(np.argmax(hop_distances(network, 0))))
    cycles = float(network.n_edges - network.n_nodes + 1)
    return min(float(np.sum(np.bincount(hops).astype(np.float64) ** 3)), cycles**3) + network.n_nodes


class GroundedLaplacian:
    """The Laplacian without the row and the column of one node, which makes it positive definite.

    A Laplacian is singular along the constant vector. It is factorised, or (``iterative``) conjugate
    gradients work on the whole matrix and a right side that sums to zero.
    """

    def __init__(self, network: Network, ground: int, *, iterative: bool) -> None:
        self.network, self.ground, self.iterative = network, ground, iterative
        self.laplacian = network.laplacian()
        self.kept = np.delete(np.arange(network.n_nodes), ground)
        if iterative:
            return
        # A positive definite matrix needs no pivots, so the order of elimination can be that of least fill.
        try:
            self.factor = splu(
                self.laplacian[self.kept][:, self.kept].tocsc(),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:
            raise AdfsError(
                "the Laplacian is singular to rounding: the edge weights span too many orders of magnitude"
            ) from None

    def solve(self, right: Floats, refinements: int = 0) -> Floats:
        """Solve Lap x = right in all rows but that of the ground, where x is zero.

        A refinement gives x all its digits.
        """
        x = self._solve_once(right)
        i, j = self.network.edges.T
        for _ in range(refinements):
            # Flows along edges, unlike products with the Laplacian, do not cancel.
            flow = self.network.weights * (x[i] - x[j])
            out = np.bincount(i, weights=flow, minlength=x.size)
            x += self._solve_once(right - (out - np.bincount(j, weights=flow, minlength=x.size)))
        return x

    def _solve_once(self, right: Floats) -> Floats:
        if not self.iterative:
            x = np.zeros_like(right)
            x[self.kept] = self.factor.solve(right[self.kept])
            return x
        balanced = right.copy()
        balanced[self.ground] = -right[self.kept].sum()
        # scaled, so that neither tiny nor huge numbers leave the range of a double when squared
        size = float(np.max(np.abs(balanced))) or 1.0
        precondition = scipy.sparse.diags_array(1.0 / self.laplacian.diagonal())
        # as with a factorisation, the caller checks the result
        found, _ = cg(self.laplacian, balanced / size, rtol=1e-12, maxiter=LANCZOS_STEPS, M=precondition)
        return np.asarray(size * (found - found[self.ground]))


def _by_lanczos(
    network: Network, masses: Floats, max_steps: int, *, largest: bool, tolerance: float = 0.0
) -> EigenPair | None:
    """Find the pair of (Lap, N) at an end of its positive spectrum; None where that takes more steps."""
    # The symmetric form N^{-1/2} Lap N^{-1/2}; its eigenvector of 0 is N^{1/2} times the constants.
    root, scaled = np.sqrt(masses), network.laplacian()
    scaled.data *= np.repeat(1.0 / root, np.diff(scaled.indptr))
    scaled.data *= (1.0 / root)[scaled.indices]
    known = root / np.linalg.norm(root)
    vector = _lanczos(lambda v: scaled @ v, known, max_steps, largest=largest, tolerance=tolerance)
    if vector is None:
        return None
    u = vector / root
    pair = _checked(network, masses, u - np.sum(masses * u) / masses.sum())
    # A residual says that an eigenvalue is near, and only a small one that it is the one at the end.
    if pair.error <= 2.0 * LANCZOS_TOLERANCE:
        return pair
    error = max(pair.error, tolerance)
    return replace(pair, error=error, lower=pair.value * (1.0 - error))


def _by_inverse(network: Network, masses: Floats, *, iterative: bool) -> EigenPair:
    """Find the pair of (Lap, N) from its inverse, whose largest eigenvalue is 1/λ_2.

    With a heavy node g grounded (x_g = 0) and u = x − Σ_i N_i x_i/ΣN, which sums to zero under N,

        uᵀLap u = xᵀLap x,        uᵀN u = xᵀ(N − N11ᵀN/ΣN)x = ‖C N^{1/2}x‖²,        C = I − c·vvᵀ,

    where v = N^{1/2}1/√ΣN, its entry g set to 0, and c = 1/(1 + √(N_g/ΣN)). So 1/λ_2 is the largest
    eigenvalue of C N^{1/2} Lap_g⁻¹ N^{1/2} C (zero at g). Rounding is relative to that eigenvalue, however
    many orders of magnitude N spans; in N^{-1/2} Lap N^{-1/2} it is relative to the spectrum's other end.
    """
    # heavy, so that removing means does not cancel, and well connected, so that the rest is not singular
    ground = int(np.argmax(masses * network.weighted_degrees))
    inverse = GroundedLaplacian(network, ground, iterative=iterative)
    total, root = float(masses.sum()), np.sqrt(masses)
    root[ground] = 0.0
    along = root / np.sqrt(total)
    shrink = 1.0 / (1.0 + float(np.sqrt(masses[ground] / total)))
    # Refine every solution when a trial solution has fewer than ten correct digits.
    start = np.random.default_rng(0).standard_normal(masses.size)
    rough, better = inverse.solve(root * start), inverse.solve(root * start, 1)
    lost = np.max(root * np.abs(better - rough)) / np.max(root * np.abs(better))
    refinements = int(lost > 1e-10)

    def applied(vector: Floats) -> tuple[Floats, Floats]:
        """Return x = Lap_g⁻¹ N^{1/2} C vector, and C N^{1/2} x."""
        turned = vector - shrink * float(np.sum(along * vector)) * along
        x = inverse.solve(root * turned, refinements)
        image = root * x
        return x, image - shrink * float(np.sum(along * image)) * along

    if root.size <= DENSE_NODES:
        matrix = np.stack([applied(column)[1] for column in np.eye(root.size)])
        # all of them: LAPACK's search for a single one fails where hundreds coincide (complete graphs)
        top = np.linalg.eigh(matrix)[1][:, -1]
    else:
        nothing = np.zeros_like(root)
        found = _lanczos(lambda vector: applied(vector)[1], nothing, LANCZOS_STEPS, largest=True)
        if found is None:
            raise AdfsError(
                "the smallest positive eigenvalue of the network's Laplacian did not converge in"
                f" {LANCZOS_STEPS} Lanczos steps: take weights that span fewer orders of magnitude"
            )
        top = found
    # One more application removes the rounding of the sum of Lanczos vectors.
    x = applied(top)[0]
    return _checked(network, masses, x - np.sum(masses * x) / total, inverse)


def _checked(
    network: Network, masses: Floats, u: Floats, inverse: GroundedLaplacian | None = None
) -> EigenPair:
    """Return the pair of a vector with a bound of its error, or refuse it."""
    # The sign of an eigenvector is arbitrary: fix it, so that every method returns the same vector.
    u = u / np.sqrt(np.sum(masses * u**2))
    u = -u if u[np.argmax(np.abs(u))] < 0 else u
    # The Rayleigh quotient, edge by edge.
    across = u[network.edges[:, 0]] - u[network.edges[:, 1]]
    value = float(np.sum(network.weights * across**2) / np.sum(masses * u**2))
    if inverse is None:
        # An eigenvalue lies within ‖N^{-1/2}(Lap u − value·N u)‖ of the value.
        defect = (network.laplacian() @ u - value * masses * u) / np.sqrt(masses)
        error = float(np.sqrt(np.sum(defect**2))) / value
    else:
        # An eigenvalue of the inverse lies within ‖z − θu‖_N of θ = uᵀN z, z = Lap⁺N u.
        right = masses * u
        image = inverse.solve(right, 2)
        image = np.asarray(image - np.sum(masses * image) / float(masses.sum()))
        theta = float(np.sum(right * image))
        residual = float(np.sqrt(np.sum(masses * (image - theta * u) ** 2)))
        error = 1.0 - 1.0 / (value * (theta + residual))
    if not error <= ACCEPTED_ERROR:
        raise AdfsError(
            f"an eigenvalue of the network's Laplacian ({value:.6g}) failed its check, relative error"
            f" {error:.1e}: take weights that span fewer orders of magnitude"
        )
    u.flags.writeable = False
    error = max(error, 0.0) + ROUNDING
    return EigenPair(value, u, error, value * (1.0 - error))


def _lanczos(
    apply: Operator, known: Floats, max_steps: int, *, largest: bool, tolerance: float = 0.0
) -> Floats | None:
    """Return one extreme eigenvector of a symmetric operator, None where it does not converge.

    Extreme Ritz values do not suffer from the missing reorthogonalisation (copies of converged ones appear,
    which does no harm), and memory stays at a few vectors. ``known`` is a unit eigenvector that is projected
    out, or zero. A second run of the recurrence, from the same start, sums up the Ritz vector.

    Notes
    -----
    A small residual may be that of another eigenvalue. From a random start, k steps leave the extreme Ritz
    value farther than ε times the spectrum's width from its eigenvalue with a probability of at most
    1.648 √n exp(−(2k − 1)√ε), whatever the spectrum is: Kuczyński and Woźniakowski, "Estimating the largest
    eigenvalue by the power and Lanczos algorithms with a random start", SIAM J. Matrix Anal. Appl. 13 (1992).
    """
    diagonal: list[float] = []
    beside: list[float] = []
    next_check, size = 4, 0.0
    for alpha, beta, _ in _three_term(apply, known):
        diagonal.append(alpha)
        beside.append(beta)
        steps, size = len(diagonal), max(size, abs(alpha))
        # The start vector lies in an invariant subspace: no direction is left to explore.
        exhausted = beta <= 1e-14 * size
        if steps < min(next_check, max_steps) and not exhausted:
            continue
        # Checks get rarer, because their cost grows with the number of steps.
        next_check = int(next_check * 1.15) + 4
        at = steps - 1 if largest else 0
        values, vectors = scipy.linalg.eigh_tridiagonal(
            diagonal, beside[:-1], select="i", select_range=(at, at)
        )
        residual, value = beta * abs(vectors[-1, 0]), abs(values[0])
        if exhausted or residual <= LANCZOS_TOLERANCE * value:
            break
        # The Gershgorin bound of the tridiagonal matrix is above the width of the spectrum but for the top
        # Ritz value's error.
        share = tolerance * value / (max(diagonal) + 2.0 * max(beside))
        missed = 1.648 * math.sqrt(known.size) * math.exp((1 - 2 * steps) * math.sqrt(share))
        if residual <= tolerance * value and missed <= MISSED:
            break
        if steps >= max_steps:
            return None
    # The basis vectors were not kept, for lack of memory: the same recurrence makes them again.
    total = np.zeros_like(known)
    for coefficient, (_, _, basis) in zip(vectors[:, 0], _three_term(apply, known), strict=False):
        total = daxpy(basis, total, a=coefficient)
    return np.asarray(daxpy(known, total, a=-ddot(known, total)))


def _three_term(apply: Operator, known: Floats) -> Iterator[tuple[float, float, Floats]]:
    """Yield (α_k, β_k, q_k) of the Lanczos recurrence β_k q_{k+1} = A q_k − α_k q_k − β_{k−1} q_{k−1}."""
    # BLAS works in place: at a million nodes the temporary arrays of NumPy would cost half as much again.
    start = np.random.default_rng(0).standard_normal(known.size)
    image, current, beta = daxpy(known, start, a=-ddot(known, start)), np.zeros_like(known), 0.0
    while True:
        previous, current = current, dscal(1.0 / math.sqrt(ddot(image, image)), image)
        image = daxpy(previous, apply(current), a=-beta)
        alpha = ddot(current, image)
        image = daxpy(current, image, a=-alpha)
        image = daxpy(known, image, a=-ddot(known, image))
        beta = math.sqrt(ddot(image, image))
        yield alpha, beta, current
