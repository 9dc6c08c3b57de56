"""The parameters of all methods that are not a form of ADFS, one record per method.

In every record ``contraction`` is the guarantee of the theory: the squared error shrinks by a factor of
1 − contraction per event or per round (in expectation, if the method draws samples or edges at random).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh_tridiagonal

from adfs.errors import InputError
from adfs.network import ChebyshevCoefficients, Network, second_eigenpair
from adfs.network.spectrum import MISSED
from adfs.theory.problem_summary import NodeSummary, Source, summarize_on
from adfs.theory.records import ParameterRecord, edge_roots, inverse_sigma, shown
from adfs.threads import single_threaded


def node_smoothness(summary: NodeSummary) -> np.ndarray:
    """Return M_i = σ_i + λ_max(βX_iᵀW_iX_i), the smoothness of each node's objective; shape (n,)."""
    return np.asarray(summary.sigma * (1.0 + summary.batch_kappa))


@dataclass(frozen=True, eq=False)
class MsdaParameters(ParameterRecord):
    """MSDA: accelerated gradient on the dual, K Chebyshev gossip rounds per gradient; K = 1 is SSDA.

    ``step`` is η = α(1 + c²)/(1 + c)² and ``momentum`` is μ = ((1 + c)√k − 1 + c)/((1 + c)√k + 1 − c), with
    c = c1^K, α = min σ_i and k = max M_i/min σ_i. The condition number of the dual is k((1 + c)/(1 − c))²,
    and ``contraction`` is the inverse of its root.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], n_nodes=4)
    >>> MsdaParameters.theory(problem, adfs.Network("path:4")).rounds
    2
    """

    _title: ClassVar[str] = "Parameters of MSDA"
    contraction: float = field(metadata=shown("contraction", "1/√κ"))
    step: float = field(metadata=shown("dual step", "η"))
    momentum: float = field(metadata=shown("momentum", "μ"))
    rounds: int = field(metadata=shown("gossip rounds per gradient", "K"))
    gamma: float = field(metadata=shown("network's eigengap", "γ"))
    laplacian_max: float = field(metadata=shown("largest Laplacian eigenvalue", "λ_max"))
    condition: float = field(metadata=shown("condition number", "max M_i/min σ_i"))
    smallest_sigma: float = field(metadata=shown("smallest curvature", "min σ_i"))

    @classmethod
    def theory(cls, problem: Source, network: Network, *, rounds: int | None = None) -> MsdaParameters:
        """Return the constants of Scaman et al., with K = ⌊1/√γ⌋ unless ``rounds`` says otherwise."""
        summary = summarize_on(network, problem)
        smallest = float(summary.sigma.min())
        return cls._assemble(
            rounds,
            min(1.0, network.gamma),
            network.laplacian_max,
            float(node_smoothness(summary).max()) / smallest,
            smallest,
        )

    def with_rounds(self, rounds: int) -> MsdaParameters:
        """Return the constants for another number K of gossip rounds per gradient."""
        return self._assemble(rounds, self.gamma, self.laplacian_max, self.condition, self.smallest_sigma)

    @classmethod
    def _assemble(
        cls, rounds: int | None, gamma: float, laplacian_max: float, condition: float, smallest_sigma: float
    ) -> MsdaParameters:
        """Compute the fields that depend on K from the others."""
        gossip = ChebyshevCoefficients.from_spectrum(gamma, laplacian_max)
        k = gossip.rounds if rounds is None else rounds
        if k != int(k) or k < 1:
            raise InputError(f"rounds must be a whole number of at least 1, got {rounds!r}")
        if math.isinf(gossip.stretch):
            k = 1  # one round already averages exactly
        # K rounds of accelerated gossip contract differences between nodes to c.
        c, root = gossip.contraction**k, math.sqrt(condition)
        return cls(
            contraction=(1.0 - c) / ((1.0 + c) * root),
            step=smallest_sigma * (1.0 + c * c) / (1.0 + c) ** 2,
            momentum=((1.0 + c) * root - 1.0 + c) / ((1.0 + c) * root + 1.0 - c),
            rounds=int(k),
            gamma=gamma,
            laplacian_max=laplacian_max,
            condition=condition,
            smallest_sigma=smallest_sigma,
        )

    @property
    def chebyshev(self) -> ChebyshevCoefficients:
        """The coefficients of the accelerated gossip."""
        coefficients = ChebyshevCoefficients.from_spectrum(self.gamma, self.laplacian_max)
        return dataclasses.replace(coefficients, rounds=self.rounds)


@dataclass(frozen=True, eq=False)
class EsdacdParameters(ParameterRecord):
    """ESDACD: accelerated coordinate descent on the dual, one edge per event, a dual gradient at both ends.

    ``contraction`` is ϑ = min_e p_e√(σ_A/(μ_e²R_e(1/σ_i + 1/σ_j))) and ``dual_curvature`` is σ_A = λ_2(Lap,
    diag M_i). ``node_activity`` is the probability that a node takes part in an event. No event has a single
    node, so ``node_probability`` is 0.
    """

    _title: ClassVar[str] = "Parameters of ESDACD"
    contraction: float = field(metadata=shown("contraction", "ϑ"))
    dual_curvature: float = field(metadata=shown("dual curvature", "σ_A"))
    edge_weights: np.ndarray = field(metadata=shown("edge weight", "μ_e²"))
    edge_probability: np.ndarray = field(metadata=shown("edge probability", "p_e"))
    edge_inverse_sigma: np.ndarray = field(metadata=shown("inverse curvatures", "1/σ_i + 1/σ_j"))
    node_probability: np.ndarray = field(metadata=shown("node probability", "p_i"))
    node_activity: np.ndarray = field(metadata=shown("node activity", "Σ_e p_e"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> EsdacdParameters:
        """Return the best probabilities for the network's weights, p_e ∝ √(μ_e²R_e(1/σ_i + 1/σ_j))."""
        summary = cls._summary(problem, network)
        roots = edge_roots(network, summary.sigma)
        return cls._assemble(summary, network, roots / roots.sum())

    @classmethod
    def paper(cls, problem: Source, network: Network) -> EsdacdParameters:
        """Return uniform probabilities and μ_e² = p_e²/(1/σ_i + 1/σ_j), as Hendrikx et al. ran it."""
        summary = cls._summary(problem, network)
        probability = np.full(network.n_edges, 1.0 / network.n_edges)
        weights = probability**2 / inverse_sigma(network, summary.sigma)
        return cls._assemble(summary, network.with_weights(weights), probability)

    @classmethod
    def _summary(cls, problem: Source, network: Network) -> NodeSummary:
        if network.n_nodes < 2:
            raise InputError("esdacd works on the edges of a network: it needs at least two nodes")
        return summarize_on(network, problem)

    @classmethod
    def _assemble(cls, summary: NodeSummary, network: Network, probability: np.ndarray) -> EsdacdParameters:
        inverse = inverse_sigma(network, summary.sigma)
        # The lower bound of the eigenvalue keeps the guarantee valid.
        curvature = second_eigenpair(network, node_smoothness(summary)).lower
        smoothness = network.weights * network.resistances.values * inverse
        return cls(
            contraction=min(1.0, float(np.min(probability * np.sqrt(curvature / smoothness)))),
            dual_curvature=curvature,
            edge_weights=network.weights,
            edge_probability=probability,
            edge_inverse_sigma=inverse,
            node_probability=np.zeros(network.n_nodes),
            node_activity=network.sum_at_nodes(probability),
        )

    @property
    def mean_step(self) -> np.ndarray:
        """The step of x, 1/(1/σ_i + 1/σ_j); shape (|E|,)."""
        return np.asarray(1.0 / self.edge_inverse_sigma)

    @property
    def momentum_step(self) -> np.ndarray:
        """The step of v, ϑμ_e²/(p_eσ_A); shape (|E|,)."""
        return np.asarray(
            self.contraction * self.edge_weights / (self.edge_probability * self.dual_curvature)
        )


@dataclass(frozen=True, eq=False)
class DsbaParameters(ParameterRecord):
    """DSBA: one sample's resolvent at every node and one gossip round, with a table of past gradients.

    ``step`` is ``step_factor``/(24L) with L = max_i(m_iβ max_j w_ijq_ij + σ_i). The theory is for the factor
    1; the paper of ADFS ran DSBA with 4. ``contraction`` is min(γ/24, σ_min/(48L), 1/(3m)), the rate for the
    factor 1.
    """

    _title: ClassVar[str] = "Parameters of DSBA"
    contraction: float = field(metadata=shown("contraction", ""))
    step: float = field(metadata=shown("step", "α"))
    step_factor: float = field(metadata=shown("step over 1/(24L)", ""))
    smoothness: float = field(metadata=shown("smoothness of one draw", "L"))
    laplacian_max: float = field(metadata=shown("largest Laplacian eigenvalue", "λ_max"))
    sigma: np.ndarray = field(metadata=shown("node curvature", "σ_i"))

    @classmethod
    def theory(cls, problem: Source, network: Network, *, step_factor: float = 1.0) -> DsbaParameters:
        """Return the constants for a step of ``step_factor``/(24L)."""
        summary = summarize_on(network, problem)
        # One draw stands for all m_i samples of its node.
        largest = float((summary.n_active * summary.largest_smoothness + summary.sigma).max())
        m, smallest = float(summary.n_active.max()), float(summary.sigma.min())
        rate = min(network.gamma / 24.0, smallest / (48.0 * largest), 1.0 / (3.0 * m))
        step = 1.0 / (24.0 * largest)
        return cls(rate, step, 1.0, largest, network.laplacian_max, summary.sigma).scaled(step_factor)

    def scaled(self, step_factor: float) -> DsbaParameters:
        """Return the constants with another factor of the step."""
        if not 0.0 < step_factor < math.inf:
            raise InputError(f"step_factor must be finite and above 0, got {step_factor!r}")
        step = float(step_factor) / (24.0 * self.smoothness)
        return dataclasses.replace(self, step=step, step_factor=float(step_factor))


@dataclass(frozen=True, eq=False)
class ExtraParameters(ParameterRecord):
    """EXTRA: gradient steps and gossip, with a correction from the step before.

    ``step`` is λ_min((I + W)/2)/max M_i = 1/(2 max M_i) for W = I − Lap/λ_max. ``contraction`` is
    min(σ_min/(2 max M_i), γ/2).
    """

    _title: ClassVar[str] = "Parameters of EXTRA"
    contraction: float = field(metadata=shown("contraction", ""))
    step: float = field(metadata=shown("step", "α"))
    smoothness: float = field(metadata=shown("smoothness", "max M_i"))
    laplacian_max: float = field(metadata=shown("largest Laplacian eigenvalue", "λ_max"))
    sigma: np.ndarray = field(metadata=shown("node curvature", "σ_i"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> ExtraParameters:
        """Return the standard step."""
        summary = summarize_on(network, problem)
        largest = float(node_smoothness(summary).max())
        rate = min(0.5 * float(summary.sigma.min()) / largest, 0.5 * min(1.0, network.gamma))
        return cls(rate, 0.5 / largest, largest, network.laplacian_max, summary.sigma)


@dataclass(frozen=True, eq=False)
class PointSagaParameters(ParameterRecord):
    """Point-SAGA on one machine: μ = Σσ_i/N and L = β max wq + μ for the N active samples.

    ``step`` is Defazio's γ = √((N − 1)² + 4NL/μ)/(2LN) − (1 − 1/N)/(2L). ``contraction`` is 1 − 1/(1 + μγ);
    :class:`adfs.algorithms.saga.PointSaga` says for which measure of the error. The table starts with the
    gradients at 0, which takes a pass, or with zeros (``zero_table``).
    """

    _title: ClassVar[str] = "Parameters of Point-SAGA"
    contraction: float = field(metadata=shown("contraction", "μγ/(1 + μγ)"))
    step: float = field(metadata=shown("step", "γ"))
    curvature: float = field(metadata=shown("strong convexity of a term", "μ"))
    smoothness: float = field(metadata=shown("smoothness of a term", "L"))
    n_terms: int = field(metadata=shown("terms", "N"))
    zero_table: bool = False

    @classmethod
    def theory(cls, problem: Source, network: Network, *, zero_table: bool = False) -> PointSagaParameters:
        """Return Defazio's constants; a problem on several nodes is treated as if it were on one."""
        summary = summarize_on(network, problem)
        count = int(summary.n_active.sum())
        mu = float(summary.sigma.sum()) / count
        largest = float(summary.largest_smoothness.max()) + mu
        root = math.sqrt((count - 1.0) ** 2 + 4.0 * count * largest / mu)
        # The formula of the class, rearranged: it has no difference of nearly equal numbers.
        step = 2.0 / (mu * (root + count - 1.0))
        return cls(mu * step / (1.0 + mu * step), step, mu, largest, count, zero_table)

    @property
    def node_probability(self) -> np.ndarray:
        """Every event is a sample of the single node."""
        return np.ones(1)

    @property
    def edge_probability(self) -> np.ndarray:
        """There are no edges."""
        return np.empty(0)


@dataclass(frozen=True, eq=False)
class QningParameters(ParameterRecord):
    """QNing on one machine: its proximal steps add the curvature κ, half the mean of the samples' L_j.

    A smaller κ needs fewer proximal steps, but each of them takes longer. ``contraction`` is the rate of
    exact proximal steps; the quasi-Newton steps improve on it.
    """

    _title: ClassVar[str] = "Parameters of QNing"
    contraction: float = field(metadata=shown("contraction of proximal steps", "σ/(σ + κ)"))
    kappa: float = field(metadata=shown("added curvature", "κ"))
    memory: int = field(metadata=shown("pairs kept", ""))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> QningParameters:
        """Return the constants for a problem on one node."""
        summary = summarize_on(network, problem)
        sigma = float(summary.sigma.sum())
        mean = float((summary.kappa * summary.sigma).sum() / summary.n_active.sum())
        return cls(sigma / (sigma + 0.5 * mean), 0.5 * mean, 20)


@dataclass(frozen=True, eq=False)
class AgdParameters(ParameterRecord):
    """Nesterov's accelerated gradient method with constant momentum (√k − 1)/(√k + 1), step 1/L.

    L = λ_max(βXᵀWX) + Σσ_i over all samples. `theory` has one number per node and takes the upper bound ΣM_i.
    A run computes λ_max itself from products that the nodes sum (`with_smoothness`). ``hops`` is the number
    of consecutive messages of a sum over all nodes, up and down a tree: twice the diameter.
    """

    _title: ClassVar[str] = "Parameters of accelerated gradient descent"
    contraction: float = field(metadata=shown("contraction", "1/√k"))
    step: float = field(metadata=shown("step", "1/L"))
    momentum: float = field(metadata=shown("momentum", "(√k − 1)/(√k + 1)"))
    curvature: float = field(metadata=shown("strong convexity", "Σσ_i"))
    smoothness: float = field(metadata=shown("smoothness", "L"))
    hops: int = field(metadata=shown("messages of a sum", "2·diameter"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> AgdParameters:
        """Return the constants for a problem on one node or on several, with L = ΣM_i."""
        summary = summarize_on(network, problem)
        # A sum over all nodes goes up a tree and comes down again.
        hops = 2 * network.diameter
        return cls._assemble(float(summary.sigma.sum()), float(node_smoothness(summary).sum()), hops)

    def with_smoothness(self, smoothness: float) -> AgdParameters:
        """Return the constants for a smaller L; a larger one changes nothing."""
        return self._assemble(self.curvature, min(self.smoothness, smoothness), self.hops)

    @classmethod
    def _assemble(cls, curvature: float, largest: float, hops: int) -> AgdParameters:
        root = math.sqrt(largest / curvature)
        return cls(1.0 / root, 1.0 / largest, (root - 1.0) / (root + 1.0), curvature, largest, hops)


@dataclass(frozen=True)
class NoParameters:
    """The record of methods without constants: Newton's method, interior points and L-BFGS."""


@single_threaded
def largest_eigenvalue(product: Callable[[np.ndarray], np.ndarray], order: int) -> float:
    """Return an upper bound of λ_max of a positive semidefinite matrix, by Lanczos from a random start.

    Up to order 100 it is exact up to rounding. For larger orders, k = 100 steps end below (1 − ε)λ_max with a
    probability of at most 1.648 √d exp(−√ε(2k − 1)) (Kuczyński and Woźniakowski, 1992). The value is raised
    by the ε for which this is 1e-9: 1.7 % at d = 10⁴. The number of products depends on the order alone, so
    that processes that compute the products together stay in step.
    """
    steps = min(order, 100)
    basis, diagonal, beside = np.zeros((steps + 1, order)), np.zeros(steps), np.zeros(steps)
    # The fixed seed gives every process the same start.
    start = np.random.default_rng(0).standard_normal(order)
    basis[0] = start / np.linalg.norm(start)
    for k in range(steps):
        vector = product(basis[k])
        diagonal[k] = basis[k] @ vector
        # Orthogonalise twice: the second time removes what rounding left.
        for _ in range(2):
            vector = vector - basis[: k + 1].T @ (basis[: k + 1] @ vector)
        beside[k] = np.linalg.norm(vector)
        if beside[k] > 1e-14 * diagonal.max():
            basis[k + 1] = vector / beside[k]
        else:  # the basis spans an invariant subspace: the remaining steps add zeros
            beside[k] = 0.0
    top = float(eigh_tridiagonal(diagonal, beside[:-1], eigvals_only=True)[-1])
    if steps == order:
        return top * (1.0 + 1e-10)
    return top / (1.0 - (math.log(1.648 * math.sqrt(order) / MISSED) / (2 * steps - 1)) ** 2)
