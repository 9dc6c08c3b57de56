"""The augmented graph as explicit matrices: the oracle for small cases.

Every node becomes the centre of a star whose tips are its active samples. Augmented nodes are numbered
centres first, then tips in the order of the rows; augmented edges are the communication edges first, then
one virtual edge per tip.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.linalg

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.terms import Term
from adfs.theory.parameters import Parameters
from adfs.theory.variants import NonSmoothParameters

_LARGEST = 3000
_FORGIVEN = 1e-12  # relative distance out of a domain that still passes for rounding


class AugmentedGraph:
    """A, Σ, μ, p and R of a problem, a network and their parameters.

    Attributes
    ----------
    edges : ndarray of shape (|E| + T, 2)
        Ends (i, j) of each augmented edge; on a virtual edge i is the centre and j the tip.
    n_centers, n_tips, n_communication : int
    tip_rows : ndarray of shape (T,)
        The row of the problem behind each tip.
    sigma_diagonal : ndarray of shape (n + T,)
        Σ: σ_i at centres and L_ij at tips (infinite for NS-ADFS, whose tips have Σ⁻¹ = 0).
    mu_squared, probability : ndarray of shape (|E| + T,)
    incidence : ndarray of shape (n + T, |E| + T)
        A; the column of edge (i, j) is μ_ij(e_i − e_j).
    """

    def __init__(
        self,
        problem: FiniteSum,
        network: Network,
        parameters: Parameters | NonSmoothParameters,
    ) -> None:
        if not problem.n_nodes == network.n_nodes == parameters.n_nodes:
            raise InputError(
                f"the problem has {problem.n_nodes} nodes, the network {network.n_nodes} and the parameters "
                f"{parameters.n_nodes}; they must be the same"
            )
        self.problem = problem
        self.network = network
        self.parameters = parameters
        self.n_centers = network.n_nodes
        self.tip_rows = np.flatnonzero(problem.active)
        self._smoothness = problem.smoothness[self.tip_rows]
        self.n_tips = int(self.tip_rows.size)
        self.n_communication = network.n_edges
        if self.n_centers + self.n_tips > _LARGEST:
            raise InputError(
                f"the explicit augmented graph is for small cases (up to {_LARGEST} augmented nodes), "
                f"this one has {self.n_centers + self.n_tips}"
            )
        centers = problem.node_of_row[self.tip_rows]
        tips = self.n_centers + np.arange(self.n_tips)
        self.edges = np.concatenate([network.edges, np.stack([centers, tips], axis=1)]).astype(np.int64)
        smooth = isinstance(parameters, Parameters)
        tip_curvature = self._smoothness if smooth else np.full(self.n_tips, np.inf)
        self.sigma_diagonal = np.concatenate([problem.sigma, tip_curvature])
        virtual = parameters.sample_virtual_weights(problem)[self.tip_rows]
        self.mu_squared = np.concatenate([parameters.edge_weights, virtual])
        sampled = parameters.sample_probability(problem)[self.tip_rows]
        self.probability = np.concatenate([parameters.edge_probability, sampled])

    @property
    def n_edges(self) -> int:
        """Number of augmented edges."""
        return int(self.edges.shape[0])

    @property
    def n_augmented(self) -> int:
        """Number of augmented nodes."""
        return self.n_centers + self.n_tips

    @property
    def inverse_sigma(self) -> np.ndarray:
        """Σ⁻¹ as a vector, shape (n + T,)."""
        return np.asarray(1.0 / self.sigma_diagonal)

    def is_virtual(self, edge: int) -> bool:
        """Whether an augmented edge links a centre with one of its tips."""
        return edge >= self.n_communication

    def term(self, edge: int) -> Term:
        """Return the term at the tip of a virtual edge."""
        return self.problem.term(int(self.tip_rows[edge - self.n_communication]))

    def tip_smoothness(self, edge: int) -> float:
        """Return L at the tip of a virtual edge."""
        return float(self._smoothness[edge - self.n_communication])

    def tip_curvature(self, edge: int) -> float:
        """Return Σ at the tip of a virtual edge: L for ADFS, infinite for NS-ADFS."""
        return float(self.sigma_diagonal[self.edges[edge, 1]])

    @cached_property
    def incidence(self) -> np.ndarray:
        """A, shape (n + T, |E| + T)."""
        matrix = np.zeros((self.n_augmented, self.n_edges))
        columns = np.arange(self.n_edges)
        roots = np.sqrt(self.mu_squared)
        matrix[self.edges[:, 0], columns] = roots
        matrix[self.edges[:, 1], columns] = -roots
        return matrix

    @cached_property
    def pseudo_inverse(self) -> np.ndarray:
        """A⁺, shape (|E| + T, n + T)."""
        return np.asarray(np.linalg.pinv(self.incidence))

    @cached_property
    def projector(self) -> np.ndarray:
        """A⁺A, the projector on the range of Aᵀ."""
        return np.asarray(self.pseudo_inverse @ self.incidence)

    @cached_property
    def resistance(self) -> np.ndarray:
        """R_e = e_eᵀA⁺A e_e, shape (|E| + T,), from the dense projector: 1 on virtual edges."""
        return np.diag(self.projector).copy()

    @cached_property
    def step_resistance(self) -> np.ndarray:
        """The R_e the algorithms step with, shape (|E| + T,).

        1 on virtual edges, and on communication edges what the parameters hold: R_e or an upper bound of
        it, which must be the same in the step and in ρ.
        """
        return np.concatenate([self.parameters.edge_resistance, np.ones(self.n_tips)])

    @cached_property
    def dual_curvature(self) -> float:
        """σ_A = λ_min⁺(AᵀΣ⁻¹A), by all eigenvalues."""
        return self._extreme(self.inverse_sigma, smallest=True)

    @cached_property
    def largest_inverse_square(self) -> float:
        """λ_max(AᵀΣ⁻²A), of Theorem 2's constant."""
        return self._extreme(self.inverse_sigma**2, smallest=False)

    @cached_property
    def smallest_gram(self) -> float:
        """λ_min⁺(AᵀA), of Theorem 3."""
        return self._extreme(np.ones(self.n_augmented), smallest=True)

    @property
    def directional_smoothness(self) -> np.ndarray:
        """M_e = μ_e²(Σ_i⁻¹ + Σ_j⁻¹), without an inverse (erratum 2); shape (|E| + T,)."""
        inverse = self.inverse_sigma
        return np.asarray(self.mu_squared * (inverse[self.edges[:, 0]] + inverse[self.edges[:, 1]]))

    def step_bound(self) -> float:
        """S² = max_e M_e R_e/p_e²."""
        return float(np.max(self.directional_smoothness * self.step_resistance / self.probability**2))

    def _extreme(self, diagonal: np.ndarray, *, smallest: bool) -> float:
        # AᵀDA has |V⁺| − 1 positive eigenvalues when D > 0; where D is 0 at every tip, one per centre.
        half = np.sqrt(diagonal)[:, None] * self.incidence
        values = scipy.linalg.svdvals(half) ** 2
        if not smallest:
            return float(values[0])
        rank = int(np.count_nonzero(diagonal > 0.0)) - (1 if np.all(diagonal > 0.0) else 0)
        return float(np.sort(values)[::-1][rank - 1])

    # ------------------------------------------------------------------ the dual problem in node variables

    def dual_value(self, x: np.ndarray) -> float:
        """Return F*_A = Σ_i ‖x_i‖²/(2σ_i) + Σ_ij f*_ij(x_ij) at node variables x = Aλ, shape (n + T, d).

        A tip that rounding has carried out of the domain of its f* counts as on the edge of it; farther out
        the value is infinite.
        """
        centers = x[: self.n_centers]
        total = 0.5 * float(np.sum(centers**2 / self.problem.sigma[:, None]))
        for number, row in enumerate(self.tip_rows):
            total += _conjugate(self.problem.term(int(row)), x[self.n_centers + number])
        for row in np.flatnonzero(~self.problem.active):
            total += self.problem.term(int(row)).conjugate(np.zeros(x.shape[1]))
        return total

    def dual_optimum(self, theta: np.ndarray) -> np.ndarray:
        """Return the optimal node variables: σ_i θ* at centres and ∇f_ij(θ*) at tips, shape (n + T, d).

        Centres take −Σ tips/Σσ for θ*, the same at the optimum: so the sum over all nodes is 0 whatever
        rounding θ* carries, and the value is wrong in second order only.

        Parameters
        ----------
        theta : ndarray of shape (d,)
            The primal minimiser θ*.
        """
        tips = np.array([self.problem.term(int(row)).gradient(theta) for row in self.tip_rows])
        center = -tips.sum(axis=0) / self.problem.sigma.sum()
        return np.vstack([self.problem.sigma[:, None] * center[None, :], tips])

    def edge_norm_squared(self, x: np.ndarray) -> float:
        """Return ‖λ‖²_{A⁺A} of edge variables λ from the node variables x = Aλ, shape (n + T, d)."""
        return float(np.sum((self.pseudo_inverse @ x) ** 2))


def _conjugate(term: Term, tip: np.ndarray) -> float:
    """Return f*(tip), rounding forgiven."""
    value = term.conjugate(tip)
    if np.isfinite(value):
        return value
    edge = term.clip_to_domain(tip)
    if np.linalg.norm(edge - tip) > _FORGIVEN * np.linalg.norm(tip):
        return value
    # Domains hold 0: a hair towards it, the edge lies inside whatever the conjugate's own rounding does.
    return term.conjugate((1.0 - _FORGIVEN) * edge)
