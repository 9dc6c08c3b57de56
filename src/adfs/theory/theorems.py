"""The augmented graph as explicit matrices, one function per theorem of the paper, and its Table 1.

The functions include the corrections to the paper's statements, which docs/errata.md lists and derives. The
matrices are for small problems and for tests: every node becomes the centre of a star whose tips are its
active samples. Augmented nodes are the centres, then the tips in the order of the rows; augmented edges are
the communication edges, then one virtual edge per tip.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.terms import Term
from adfs.theory.parameters import NonSmoothParameters, Parameters
from adfs.theory.problem_summary import Source, check_tau, summarize, summarize_on
from adfs.theory.records import network_constant

if TYPE_CHECKING:
    import pandas as pd

_LARGEST_GRAPH = 3000


class AugmentedGraph:
    """A, Σ, μ, p and R of a problem, a network and their parameters.

    Attributes
    ----------
    edges : ndarray of shape (|E| + T, 2)
        Ends (i, j) of each augmented edge; on a virtual edge i is the centre and j the tip.
    n_centers, n_tips, n_augmented : int
        The numbers n of centres, T of tips, and of both.
    n_communication, n_edges : int
        The numbers of communication edges, and of all augmented edges.
    tip_rows : ndarray of shape (T,)
        The row of the problem behind each tip.
    sigma_diagonal : ndarray of shape (n + T,)
        Σ: σ_i at centres and L_ij at tips (infinite for NS-ADFS, whose tips have Σ⁻¹ = 0).
    inverse_sigma : ndarray of shape (n + T,)
        Σ⁻¹.
    step_resistance : ndarray of shape (|E| + T,)
        The R_e in the steps of the algorithms: 1 on virtual edges, and on communication edges the R_e of the
        parameters or their upper bounds, which must be the same in the step and in ρ.
    mu_squared, probability : ndarray of shape (|E| + T,)
    incidence : ndarray of shape (n + T, |E| + T)
        A; the column of edge (i, j) is μ_ij(e_i − e_j).
    """

    def __init__(
        self, problem: FiniteSum, network: Network, parameters: Parameters | NonSmoothParameters
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
        self.n_tips = int(self.tip_rows.size)
        self.n_augmented = self.n_centers + self.n_tips
        self.n_communication = network.n_edges
        self.n_edges = self.n_communication + self.n_tips
        if self.n_augmented > _LARGEST_GRAPH:
            raise InputError(
                f"the explicit augmented graph is for small cases (up to {_LARGEST_GRAPH} augmented nodes), "
                f"this one has {self.n_augmented}"
            )
        # A virtual edge joins each tip with the centre of its node.
        centers = problem.node_of_row[self.tip_rows]
        tips = self.n_centers + np.arange(self.n_tips)
        self.edges = np.concatenate([network.edges, np.stack([centers, tips], axis=1)]).astype(np.int64)
        # NS-ADFS does not use the curvature of the losses: its tips have Σ⁻¹ = 0.
        smooth = isinstance(parameters, Parameters)
        tip_curvature = problem.smoothness[self.tip_rows] if smooth else np.full(self.n_tips, np.inf)
        self.sigma_diagonal = np.concatenate([problem.sigma, tip_curvature])
        self.inverse_sigma = 1.0 / self.sigma_diagonal
        # Weights and probabilities of communication edges come first, as in `edges`.
        virtual = parameters.sample_virtual_weights(problem)[self.tip_rows]
        self.mu_squared = np.concatenate([parameters.edge_weights, virtual])
        sampled = parameters.sample_probability(problem)[self.tip_rows]
        self.probability = np.concatenate([parameters.edge_probability, sampled])
        self.step_resistance = np.concatenate([parameters.edge_resistance, np.ones(self.n_tips)])

    def is_virtual(self, edge: int) -> bool:
        """Whether an augmented edge links a centre with one of its tips."""
        return edge >= self.n_communication

    def term(self, edge: int) -> Term:
        """Return the term at the tip of a virtual edge."""
        return self.problem.term(int(self.tip_rows[edge - self.n_communication]))

    def tip_curvature(self, edge: int) -> float:
        """Return Σ at the tip of a virtual edge: L for ADFS, infinite for NS-ADFS."""
        return float(self.sigma_diagonal[self.edges[edge, 1]])

    @cached_property
    def incidence(self) -> np.ndarray:
        """A, shape (n + T, |E| + T)."""
        matrix = np.zeros((self.n_augmented, self.n_edges))
        columns = np.arange(self.n_edges)
        # Each column has two entries, +μ at the first end of its edge and −μ at the second.
        roots = np.sqrt(self.mu_squared)
        matrix[self.edges[:, 0], columns] = roots
        matrix[self.edges[:, 1], columns] = -roots
        return matrix

    @cached_property
    def pseudo_inverse(self) -> np.ndarray:
        """A⁺, shape (|E| + T, n + T)."""
        return np.asarray(np.linalg.pinv(self.incidence))

    @cached_property
    def resistance(self) -> np.ndarray:
        """R_e = e_eᵀA⁺A e_e, shape (|E| + T,), from dense matrices: 1 on virtual edges."""
        return np.diag(self.pseudo_inverse @ self.incidence).copy()

    @cached_property
    def dual_curvature(self) -> float:
        """σ_A = λ_min⁺(AᵀΣ⁻¹A), by all eigenvalues."""
        # There are |V⁺| − 1 positive ones when Σ⁻¹ > 0; where it is 0 at every tip, one per centre.
        positive = self.inverse_sigma > 0.0
        rank = int(np.count_nonzero(positive)) - (1 if np.all(positive) else 0)
        return float(self._eigenvalues(self.inverse_sigma)[rank - 1])

    @cached_property
    def largest_inverse_square(self) -> float:
        """λ_max(AᵀΣ⁻²A), in the constant of Theorem 2."""
        return float(self._eigenvalues(self.inverse_sigma**2)[0])

    @property
    def directional_smoothness(self) -> np.ndarray:
        """M_e = μ_e²(Σ_i⁻¹ + Σ_j⁻¹), without an inverse (erratum 2); shape (|E| + T,)."""
        inverse = self.inverse_sigma
        return np.asarray(self.mu_squared * (inverse[self.edges[:, 0]] + inverse[self.edges[:, 1]]))

    def _eigenvalues(self, diagonal: np.ndarray) -> np.ndarray:
        """Return the eigenvalues of AᵀDA, the largest first, for a diagonal D."""
        return np.asarray(scipy.linalg.svdvals(np.sqrt(diagonal)[:, None] * self.incidence) ** 2)

    # ------------------------------------------------------------------ the dual problem in node variables

    def dual_value(self, x: np.ndarray) -> float:
        """Return F*_A = Σ_i ‖x_i‖²/(2σ_i) + Σ_ij f*_ij(x_ij) at node variables x = Aλ, shape (n + T, d).

        A tip that lies outside the domain of its f* only by rounding is moved to the boundary; farther
        outside the value is infinite.
        """
        centers = x[: self.n_centers]
        total = 0.5 * float(np.sum(centers**2 / self.problem.sigma[:, None]))
        for number, row in enumerate(self.tip_rows):
            total += _conjugate(self.problem.term(int(row)), x[self.n_centers + number])
        # Inactive rows are constants: they have no tip, and f* at 0 is minus the constant.
        for row in np.flatnonzero(~self.problem.active):
            total += self.problem.term(int(row)).conjugate(np.zeros(x.shape[1]))
        return total

    def dual_optimum(self, theta: np.ndarray) -> np.ndarray:
        """Return the optimal node variables: σ_i θ* at centres and ∇f_ij(θ*) at tips, shape (n + T, d).

        Centres use −Σ tips/Σσ, which is θ* at the optimum. So the sum over all nodes is 0 even if θ* is only
        approximate, and the error of the dual value is of second order.

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
    """Return f*(tip); a tip just outside the domain is moved to its boundary."""
    value, rounding = term.conjugate(tip), 1e-12
    if np.isfinite(value):
        return value
    boundary = term.clip_to_domain(tip)
    if np.linalg.norm(boundary - tip) > rounding * np.linalg.norm(tip):
        return value
    # Domains contain 0: slightly towards it, the point lies inside despite the conjugate's own rounding.
    return term.conjugate((1.0 - rounding) * boundary)


def theorem1_lyapunov(
    graph: AugmentedGraph, x: np.ndarray, v: np.ndarray, optimum: np.ndarray, weight: float, mass: float
) -> float:
    """Theorem 1: B_t‖v_t − λ*‖²_{A⁺A} + 2A_t(F*_A(x_t) − F*), in expectation never above its value at t = 0.

    Parameters
    ----------
    graph : AugmentedGraph
    x, v : ndarray of shape (n + T, d)
        Node variables A x_t and A v_t.
    optimum : ndarray of shape (d,)
        The primal minimiser θ*.
    weight, mass : float
        A_t and B_t.
    """
    best = graph.dual_optimum(optimum)
    distance = graph.edge_norm_squared(v - best)
    return mass * distance + 2.0 * weight * (graph.dual_value(x) - graph.dual_value(best))


def theorem2_error(graph: AugmentedGraph, x: np.ndarray, v: np.ndarray, optimum: np.ndarray) -> float:
    """Theorem 2, left side: c_1 Σ_i‖v_i/σ_i − θ*‖² + 2(F*_A(x) − F*), the norm over centres only (erratum 6).

    c_1 = σ_A/λ_max(AᵀΣ⁻²A) with the σ_A that ρ was computed with. In tuned parameters it is larger than
    λ_min⁺(AᵀΣ⁻¹A), because the tips of a linear model stay on the line of their sample.

    Parameters
    ----------
    graph : AugmentedGraph
        Built with Parameters.
    x, v : ndarray of shape (n + T, d)
        Node variables.
    optimum : ndarray of shape (d,)
        The primal minimiser θ*.
    """
    n = graph.n_centers
    constant = _curvature(graph) / graph.largest_inverse_square
    distance = float(np.sum((v[:n] / graph.problem.sigma[:, None] - optimum) ** 2))
    return constant * distance + 2.0 * (graph.dual_value(x) - graph.dual_value(graph.dual_optimum(optimum)))


def theorem2_initial_error(graph: AugmentedGraph, optimum: np.ndarray) -> float:
    """Theorem 2, right side without its factor (1 − ρ)^t: σ_A‖λ*‖² + 2(F*_A(0) − F*), θ* of shape (d,)."""
    best = graph.dual_optimum(optimum)
    return _curvature(graph) * graph.edge_norm_squared(best) + 2.0 * (
        graph.dual_value(np.zeros_like(best)) - graph.dual_value(best)
    )


def theorem3_bound(graph: AugmentedGraph, dual_optimum: np.ndarray, t: float) -> float:
    """Theorem 3 as corrected (erratum 9): E F*(x_t) − F* ≤ (‖λ*‖²_{A⁺A} + 2A_0Δ_0)/(2A_t), from x_0 = 0.

    Parameters
    ----------
    graph : AugmentedGraph
        Built with NonSmoothParameters.
    dual_optimum : ndarray of shape (n + T, d)
        Optimal node variables: σ_iθ* at centres and optimal subgradients at tips.
    t : float
        Number of events.
    """
    parameters = graph.parameters
    if not isinstance(parameters, NonSmoothParameters):
        raise InputError("Theorem 3 is about NS-ADFS: build the augmented graph with NonSmoothParameters")
    # The iterates start at 0, whose gap Δ_0 counts because A_0 is not 0.
    start = graph.dual_value(np.zeros_like(dual_optimum)) - graph.dual_value(dual_optimum)
    initial = graph.edge_norm_squared(dual_optimum) + 2.0 * parameters.weight_at(0) * start
    return initial / (2.0 * parameters.weight_at(t))


def _curvature(graph: AugmentedGraph) -> float:
    if not isinstance(graph.parameters, Parameters):
        raise InputError("Theorem 2 is about ADFS: build the augmented graph with Parameters")
    return graph.parameters.dual_curvature


class StepTime(NamedTuple):
    """Theorem 4's bound ``nu`` of the time per step, and whether the assumptions of its proof hold."""

    nu: float
    p_comp: float
    p_comm_max: float
    holds: bool


def theorem4_step_time(
    parameters: Parameters | NonSmoothParameters, network: Network, tau: float
) -> StepTime:
    """Theorem 4: a schedule of t events takes at most νt as t grows, ν = (9·p_comp + 24·τ·p_comm^max)/n.

    p_comm^max = n·max_i Σ_{j∼i} p_ij. The proof (Lemma 3) assumes that all nodes compute equally often, each
    at most in every second event, and at least as often as any of them communicates; ``holds`` says whether
    this is so.

    Parameters
    ----------
    parameters : Parameters or NonSmoothParameters
    network : Network
    tau : float
        Time of a communication, one sample's computation taking 1.
    """
    check_tau(tau)
    n = parameters.n_nodes
    # The node with the most communications limits the speed of the others.
    communicating = network.sum_at_nodes(parameters.edge_probability)
    p_max = float(n * communicating.max()) if network.n_edges else 0.0
    node = parameters.node_probability
    # The first assumption of the proof, up to rounding.
    equal = bool(np.all(np.abs(node - node.mean()) <= 1e-9 * node.mean()))
    comp, comm = 9.0, 24.0  # Lemma 3 of the paper's appendix
    nu = (comp * parameters.p_comp + comm * tau * p_max) / n
    # A single node never waits. Where the proof's p_c = 4·p_comm^max/n is above 1/2, n is below 8, and νt is
    # more than the time of all events one after another.
    rare = n == 1 or bool(node.max() <= 0.5 and p_max <= n * node.max() * (1.0 + 1e-9))
    return StepTime(nu, parameters.p_comp, p_max, equal and rare)


class ExecutionTime(NamedTuple):
    """Theorem 5's ``bound`` of the time to divide the error by e, and the numbers it is computed from."""

    bound: float
    samples: float
    network: float
    p_comm: float
    gamma_tilde: float
    r_kappa: float
    c_tau: float
    delta_p: float
    sigma_spread: float


def theorem5_time(problem: Source, network: Network, tau: float) -> ExecutionTime:
    """Theorem 5: T/log(1/ε) ≤ (√2·C/Δ_p)((m + √(mκ_s))/√r_κ + (1 + 2c_ττ)√((1 + κ_s)/γ̃)).

    For the parameters of :meth:`Parameters.paper`. m is the largest number of samples per node, r_κ = (1 +
    κ_min)/(1 + κ_s), c_τ = p_comm^max/p_comm, and Δ_p the largest number with p_ij ≥ p_comp Δ_p √(1 +
    L_ij/σ_i)/(nS_comp). The paper proves it for one σ; for several the bound is multiplied by √(max_e
    σ_max(1/σ_i + 1/σ_j)/2), which is 1 for one σ. C is 24: ν of Theorem 4 is at most
    24(p_comp + τ·p_comm^max)/n.

    Parameters
    ----------
    problem, network
        As for :meth:`Parameters.paper`.
    tau : float
        Time of a communication, one sample's computation taking 1.
    """
    summary = summarize(problem)
    parameters = Parameters.paper(summary, network, tau)
    m, kappa = float(summary.n_active.max()), float(summary.kappa.max())
    r_kappa = (1.0 + float(summary.kappa.min())) / (1.0 + kappa)
    gamma = network_constant(network, parameters.edge_resistance)
    # c_τ compares the busiest node with the average one.
    step = theorem4_step_time(parameters, network, tau)
    c_tau = step.p_comm_max / parameters.p_comm if parameters.p_comm else 0.0
    # Δ_p is below 1 where nodes with many or hard samples compute no more often than others.
    mean_root_sum = float(summary.root_sums.sum()) / network.n_nodes
    holding = summary.root_sums > 0.0
    shares = parameters.node_probability[holding] / summary.root_sums[holding]
    delta = min(1.0, float(shares.min()) * network.n_nodes * mean_root_sum / parameters.p_comp)
    # The two terms of the bound: computations, then communications.
    samples = (m + math.sqrt(m * kappa)) / math.sqrt(r_kappa)
    links = (1.0 + 2.0 * c_tau * tau) * math.sqrt((1.0 + kappa) / gamma)
    # The correction for nodes with different σ_i.
    largest = float(np.max(parameters.edge_inverse_sigma, initial=0.0))
    spread = max(1.0, 0.5 * float(summary.sigma.max()) * largest)
    constant = 24.0  # C: the larger one of Theorem 4
    bound = math.sqrt(2.0 * spread) * constant / delta * (samples + links)
    return ExecutionTime(bound, samples, links, parameters.p_comm, gamma, r_kappa, c_tau, delta, spread)


def table1(problem: Source, network: Network, tau: float) -> pd.DataFrame:
    """Return the time each method takes to divide the error by e, constants left out (the paper's Table 1).

    Parameters
    ----------
    problem : Problem
        m is its largest number of samples per node, n·m its number of samples.
    network : Network
    tau : float
        Time of a communication, one sample's computation taking 1.

    Returns
    -------
    pandas.DataFrame
        One row per method, indexed by its name, with columns ``distributed``, ``asynchronous``,
        ``stochastic``, ``time`` and ``formula``.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> X = np.random.default_rng(0).standard_normal((90, 3))
    >>> problem = adfs.Problem(X, np.sign(X[:, 0]), n_nodes=9)
    >>> frame = adfs.theory.table1(problem, adfs.Network("grid:3x3"), tau=5)
    >>> list(frame.index)
    ['point-saga', 'agd', 'msda', 'esdacd', 'dsba', 'adfs']
    """
    import pandas as pd

    summary = summarize_on(network, problem, tau=tau)
    m, total = float(summary.n_samples.max()), float(summary.n_samples.sum())
    # The stochastic and the batch condition number are the worst ones of all nodes.
    kappa_s = float(summary.kappa.max())
    kappa_b = 1.0 + float(summary.batch_kappa.max())
    gamma = network.gamma
    adfs = m + math.sqrt(m * kappa_s) + (1.0 + tau) * math.sqrt(kappa_s / gamma)
    rows = [
        ("point-saga", False, False, True, total + math.sqrt(total * kappa_s), "nm + √(nm κ_s)"),
        ("agd", False, False, False, total * math.sqrt(kappa_b), "nm √κ_b"),
        ("msda", True, False, False, math.sqrt(kappa_b) * (m + tau / math.sqrt(gamma)), "√κ_b (m + τ/√γ)"),
        ("esdacd", True, True, False, (m + tau) * math.sqrt(kappa_b / gamma), "(m + τ) √(κ_b/γ)"),
        ("dsba", True, False, True, (m + kappa_s + 1.0 / gamma) * (1.0 + tau), "(m + κ_s + 1/γ)(1 + τ)"),
        ("adfs", True, True, True, adfs, "m + √(m κ_s) + (1 + τ) √(κ_s/γ)"),
    ]
    columns = ["method", "distributed", "asynchronous", "stochastic", "time", "formula"]
    return pd.DataFrame(rows, columns=columns).set_index("method")
