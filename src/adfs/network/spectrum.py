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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import daxpy, ddot, dscal
from scipy.sparse.linalg import cg, splu

from adfs.errors import AdfsError, InputError, unknown_name
from adfs.network.distances import hop_distances
from adfs.threads import single_threaded

if TYPE_CHECKING:
    from adfs.network.network import Network

Floats = NDArray[np.float64]
Operator = Callable[[Floats], Floats]
Method = Literal["auto", "dense", "factor", "cg", "lanczos"]
METHODS = ("auto", "dense", "factor", "cg", "lanczos")

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
        above 1e-2.
    method : str
        ``"dense"``, ``"factor"``, ``"cg"`` or ``"lanczos"``; ``"bound"`` for an upper bound of λ_max.
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
        The module explains the choice. Start vectors are fixed, so that the same input gives the same bits.

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
    masses = _check_diagonal(diagonal, n)
    if method not in METHODS:
        raise unknown_name("eigenvalue method", method, METHODS)
    if n == 1:
        return EigenPair(float("inf"), np.zeros(1), 0.0, "dense")
    chosen = _choose(network, masses) if method == "auto" else method
    if chosen == "lanczos":
        # The symmetric form N^{-1/2} Lap N^{-1/2}; its eigenvector of 0 is N^{1/2} times the constants.
        root = np.sqrt(masses)
        inverse_root = scipy.sparse.diags_array(1.0 / root)
        scaled = (inverse_root @ network.laplacian() @ inverse_root).tocsr()
        vector, converged = _lanczos(lambda v: scaled @ v, root / np.linalg.norm(root), largest=False)
        if converged:
            u = vector / root
            return _certify(network, masses, u - np.sum(masses * u) / masses.sum(), chosen)
        if method != "auto":
            raise _not_converged()
        chosen = "cg"
    return _InversePencil(network, masses, chosen).second_eigenpair()


@single_threaded
def largest_eigenpair(network: Network) -> EigenPair:
    """λ_max(Lap) and its vector; 0 for one node.

    Above 400 nodes, where Lanczos takes long, the value is an upper bound: no eigenvalue exceeds the largest
    sum of two linked nodes' weighted degrees (Anderson and Morley). Lanczos takes long on thin graphs whose
    nodes are alike (paths, grids), and there this bound is close.
    """
    n = network.n_nodes
    masses, laplacian = np.ones(n), network.laplacian()
    if n == 1:
        return EigenPair(0.0, masses, 0.0, "dense")
    if n <= DENSE_NODES:
        top = np.linalg.eigh(laplacian.toarray())[1][:, -1]
        return _certify(network, masses, top, "dense")
    vector, converged = _lanczos(
        lambda v: laplacian @ v, masses / np.sqrt(n), largest=True, max_steps=LANCZOS_STEPS // 20
    )
    pair = _certify(network, masses, vector, "lanczos")
    if converged:
        return pair
    bound = float(network.weighted_degrees[network.edges].sum(axis=1).max())
    return EigenPair(bound, pair.vector, 1.0 - pair.value / bound + ROUNDING, "bound")


def _choose(network: Network, masses: Floats) -> str:
    if network.n_nodes <= DENSE_NODES:
        return "dense"
    if factor_cost(network) <= FACTOR_COST_EACH * (network.n_nodes + network.n_edges):
        return "factor"
    # The diagonal of N^{-1} Lap spans about as many orders of magnitude as its spectrum does.
    rates = network.weighted_degrees / masses
    return "lanczos" if rates.max() <= EVEN_MASSES * rates.min() else "cg"


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


def grounded_solver(network: Network, ground: int, method: str) -> Operator:
    """Return a function that solves Lap x = right in all rows but that of ``ground``, where x is zero.

    A Laplacian is singular along the constant vector. Without the row and the column of one node (*grounding*
    it) it is positive definite. Method "cg" iterates on the whole matrix and a right side that sums to zero.
    """
    laplacian = network.laplacian()
    kept = np.delete(np.arange(network.n_nodes), ground)
    if method == "cg":
        inverse_diagonal = scipy.sparse.diags_array(1.0 / laplacian.diagonal())

        def iterate(right: Floats) -> Floats:
            balanced = right.copy()
            balanced[ground] = -right[kept].sum()
            # scaled, so that neither tiny nor huge numbers leave the range of a double when squared
            size = float(np.max(np.abs(balanced))) or 1.0
            # as with a factorisation, the caller checks the result
            x, _ = cg(laplacian, balanced / size, rtol=1e-12, maxiter=LANCZOS_STEPS, M=inverse_diagonal)
            return np.asarray(size * (x - x[ground]))

        return iterate
    try:
        factor = splu(
            laplacian[kept][:, kept].tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError:
        raise AdfsError(
            "the Laplacian is singular to rounding: the edge weights span too many orders of magnitude"
        ) from None

    def solve(right: Floats) -> Floats:
        x = np.zeros_like(right)
        x[kept] = factor.solve(np.ascontiguousarray(right[kept]))
        return x

    return solve


class _InversePencil:
    """The inverse of (Lap, N), whose largest eigenvalue is 1/λ_2.

    With a heavy node g grounded (x_g = 0) and u = x − Σ_i N_i x_i/ΣN, which sums to zero under N,

        uᵀLap u = xᵀLap x,        uᵀN u = xᵀ(N − N11ᵀN/ΣN)x = ‖C N^{1/2}x‖²,        C = I − c·vvᵀ,

    where v = N^{1/2}1/√ΣN, its entry g set to 0, and c = 1/(1 + √(N_g/ΣN)). So 1/λ_2 is the largest
    eigenvalue of C N^{1/2} Lap_g⁻¹ N^{1/2} C (zero at g). Rounding is relative to that eigenvalue, however
    many orders of magnitude N spans; in N^{-1/2} Lap N^{-1/2} it is relative to the spectrum's other end.
    """

    def __init__(self, network: Network, masses: Floats, method: str) -> None:
        self.network, self.masses, self.method = network, masses, method
        # heavy, so that removing means does not cancel, and well connected, so that the rest is not singular
        ground = int(np.argmax(masses * network.weighted_degrees))
        self.total = float(masses.sum())
        self.root = np.sqrt(masses)
        self.root[ground] = 0.0
        self.along: Floats = self.root / np.sqrt(self.total)
        self.shrink = 1.0 / (1.0 + float(np.sqrt(masses[ground] / self.total)))
        self.solve_once = grounded_solver(network, ground, method)
        self.refinements = 0
        # Refine every solution when a trial solution has fewer than ten correct digits.
        trial = self.root * np.random.default_rng(0).standard_normal(masses.size)
        rough, better = self._solve(trial), self._solve(trial, 1)
        lost = np.max(self.root * np.abs(better - rough)) / np.max(self.root * np.abs(better))
        self.refinements = int(lost > 1e-10)

    def _solve(self, right: Floats, refinements: int | None = None) -> Floats:
        """Solve Lap_g x = right; a refinement gives x all its digits."""
        x = self.solve_once(right)
        i, j = self.network.edges.T
        for _ in range(self.refinements if refinements is None else refinements):
            # Flows along edges, unlike products with the Laplacian, do not cancel.
            flow = self.network.weights * (x[i] - x[j])
            out = np.bincount(i, weights=flow, minlength=x.size)
            x += self.solve_once(right - (out - np.bincount(j, weights=flow, minlength=x.size)))
        return x

    def second_eigenpair(self) -> EigenPair:
        """Return 1/(largest eigenvalue) and its vector."""
        if self.method == "dense":
            matrix = np.stack([self._applied(column) for column in np.eye(self.root.size)])
            # all of them: LAPACK's search for a single one fails where hundreds coincide (complete graphs)
            top, converged = np.linalg.eigh(matrix)[1][:, -1], True
        else:
            top, converged = _lanczos(self._applied, np.zeros_like(self.root), largest=True)
        if not converged:
            raise _not_converged()
        # One more application removes the rounding of the sum of Lanczos vectors.
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
        return np.asarray(x - np.sum(self.masses * x) / self.total)

    def _certify(self, u: Floats) -> EigenPair:
        """Check the pair: an eigenvalue of the inverse lies within ‖z − θu‖_N of θ = uᵀN z, z = Lap⁺N u."""
        u = _normalised(self.masses, u)
        right = self.masses * u
        image = self._centred(self._solve(right, 2))
        theta = float(np.sum(right * image))
        residual = float(np.sqrt(np.sum(self.masses * (image - theta * u) ** 2)))
        value = _quotient(self.network, self.masses, u)
        return _accepted(value, u, 1.0 - 1.0 / (value * (theta + residual)), self.method)


def _normalised(masses: Floats, u: Floats) -> Floats:
    u = u / np.sqrt(np.sum(masses * u**2))
    return -u if u[np.argmax(np.abs(u))] < 0 else u


def _quotient(network: Network, masses: Floats, u: Floats) -> float:
    """Return the Rayleigh quotient, edge by edge."""
    across = u[network.edges[:, 0]] - u[network.edges[:, 1]]
    return float(np.sum(network.weights * across**2) / np.sum(masses * u**2))


def _certify(network: Network, masses: Floats, u: Floats, method: str) -> EigenPair:
    """Check the pair: an eigenvalue lies within ‖N^{-1/2}(Lap u − value·N u)‖ of ``value``."""
    u = _normalised(masses, u)
    value = _quotient(network, masses, u)
    defect = (network.laplacian() @ u - value * masses * u) / np.sqrt(masses)
    return _accepted(value, u, float(np.sqrt(np.sum(defect**2))) / value, method)


def _accepted(value: float, u: Floats, error: float, method: str) -> EigenPair:
    if not error <= ACCEPTED_ERROR:
        raise AdfsError(
            f"an eigenvalue of the network's Laplacian ({value:.6g}, method {method!r}) failed its check,"
            f" relative error {error:.1e}: try another method, or weights that span fewer orders of magnitude"
        )
    u.flags.writeable = False
    return EigenPair(value, u, max(error, 0.0) + ROUNDING, method)


def _not_converged() -> AdfsError:
    return AdfsError(
        f"the smallest positive eigenvalue of the network's Laplacian did not converge in {LANCZOS_STEPS}"
        " Lanczos steps: try method='factor', or weights that span fewer orders of magnitude"
    )


def _check_diagonal(diagonal: ArrayLike | None, n: int) -> Floats:
    values = np.asarray(1.0 if diagonal is None else diagonal, dtype=np.float64)
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
    apply: Operator, known: Floats, *, largest: bool, max_steps: int | None = None
) -> tuple[Floats, bool]:
    """Return one extreme eigenvector of a symmetric operator, and whether it converged.

    Extreme Ritz values do not suffer from the missing reorthogonalisation (copies of converged ones appear,
    which does no harm), and memory stays at a few vectors. ``known`` is a unit eigenvector that is projected
    out, or zero. A second run of the recurrence, from the same start, sums up the Ritz vector.
    """
    max_steps = LANCZOS_STEPS if max_steps is None else max_steps
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
        converged = exhausted or beta * abs(vectors[-1, 0]) <= LANCZOS_TOLERANCE * abs(values[0])
        if converged or steps >= max_steps:
            break
    total = np.zeros_like(known)
    for coefficient, (_, _, basis) in zip(vectors[:, 0], _three_term(apply, known), strict=False):
        total = daxpy(basis, total, a=coefficient)
    return daxpy(known, total, a=-ddot(known, total)), bool(converged)


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
