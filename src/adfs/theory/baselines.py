"""The constants of the methods ADFS is measured against: one frozen record each, from a few numbers per node.

``contraction`` is what theory promises in every one of them: the squared error shrinks by 1 − contraction per
event or per round (in expectation, where the method draws).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import eigh_tridiagonal

from adfs.errors import InputError
from adfs.network import ChebyshevCoefficients, Network, hop_distances, second_eigenpair
from adfs.theory.parameters import edge_roots, inverse_sigma
from adfs.theory.records import Record, shown
from adfs.theory.summary import NodeSummary, Source, check_network, check_smooth, summarize, summarize_smooth
from adfs.threads import single_threaded


def node_smoothness(summary: NodeSummary) -> np.ndarray:
    """Return M_i = σ_i + λ_max(βX_iᵀW_iX_i), the smoothness of a node's whole objective; shape (n,)."""
    return np.asarray(summary.sigma * (1.0 + summary.batch_kappa))


@dataclass(frozen=True, eq=False)
class MsdaParameters(Record):
    """MSDA: accelerated gradient on the dual, K Chebyshev gossip rounds per gradient; K = 1 is SSDA.

    ``step`` is η = α(1 + c^2)/(1 + c)² and ``momentum`` is μ = ((1 + c)√k − 1 + c)/((1 + c)√k + 1 − c), with
    c = c1^K, α = min σ_i and k = max M_i/min σ_i; the condition number of the dual is k((1 + c)/(1 − c))²,
    and its root's inverse the contraction.

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
        summary = summarize_smooth(problem, network)
        least = float(summary.sigma.min())
        condition = float(node_smoothness(summary).max()) / least
        return cls._assemble(min(1.0, network.gamma), network.laplacian_max, condition, least, rounds)

    def with_rounds(self, rounds: int) -> MsdaParameters:
        """Return the constants for another number K of gossip rounds per gradient."""
        return MsdaParameters._assemble(
            self.gamma, self.laplacian_max, self.condition, self.smallest_sigma, rounds
        )

    @classmethod
    def _assemble(
        cls, gamma: float, laplacian_max: float, condition: float, least: float, rounds: int | None
    ) -> MsdaParameters:
        best = ChebyshevCoefficients.from_spectrum(gamma, laplacian_max)
        k = best.rounds if rounds is None else rounds
        if k != int(k) or k < 1:
            raise InputError(f"rounds must be a whole number of at least 1, got {rounds!r}")
        if math.isinf(best.stretch):
            k = 1  # one round already averages exactly
        c, root = best.contraction**k, math.sqrt(condition)
        return cls(
            contraction=(1.0 - c) / ((1.0 + c) * root),
            step=least * (1.0 + c * c) / (1.0 + c) ** 2,
            momentum=((1.0 + c) * root - 1.0 + c) / ((1.0 + c) * root + 1.0 - c),
            rounds=int(k),
            gamma=gamma,
            laplacian_max=laplacian_max,
            condition=condition,
            smallest_sigma=least,
        )

    @property
    def chebyshev(self) -> ChebyshevCoefficients:
        """The coefficients of the accelerated gossip."""
        coefficients = ChebyshevCoefficients.from_spectrum(self.gamma, self.laplacian_max)
        return dataclasses.replace(coefficients, rounds=self.rounds)


@dataclass(frozen=True, eq=False)
class EsdacdParameters(Record):
    """ESDACD: accelerated coordinate descent on the dual, one edge per event, a dual gradient at both ends.

    ``contraction`` is ϑ = min_e p_e√(σ_A/(μ_e²R_e(1/σ_i + 1/σ_j))) and ``dual_curvature`` is σ_A = λ_2(Lap,
    diag M_i). ``node_activity`` is the chance that a node takes part in an event; nodes never act alone
    (``node_probability`` 0).
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
        """Keep the network's weights, with their best probabilities p_e ∝ √(μ_e²R_e(1/σ_i + 1/σ_j))."""
        summary = _read_many(problem, network)
        roots = edge_roots(network, summary.sigma)
        return cls._assemble(summary, network, roots / roots.sum())

    @classmethod
    def paper(cls, problem: Source, network: Network) -> EsdacdParameters:
        """Uniform probabilities and μ_e² = p_e²/(1/σ_i + 1/σ_j), as in the experiments of Hendrikx et al."""
        summary = _read_many(problem, network)
        probability = np.full(network.n_edges, 1.0 / network.n_edges)
        return cls._assemble(
            summary, network.with_weights(probability**2 / inverse_sigma(network, summary.sigma)), probability
        )

    @classmethod
    def _assemble(cls, summary: NodeSummary, network: Network, probability: np.ndarray) -> EsdacdParameters:
        inverse = inverse_sigma(network, summary.sigma)
        curvature = second_eigenpair(network, node_smoothness(summary)).lower
        smoothness = network.weights * network.resistances.values * inverse
        ends = network.edges.ravel()
        return cls(
            contraction=min(1.0, float(np.min(probability * np.sqrt(curvature / smoothness)))),
            dual_curvature=curvature,
            edge_weights=network.weights,
            edge_probability=probability,
            edge_inverse_sigma=inverse,
            node_probability=np.zeros(network.n_nodes),
            node_activity=np.bincount(ends, weights=np.repeat(probability, 2), minlength=network.n_nodes),
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


def _read_many(problem: Source, network: Network) -> NodeSummary:
    if network.n_nodes < 2:
        raise InputError("esdacd works on the edges of a network: it needs at least two nodes")
    return summarize_smooth(problem, network)


@dataclass(frozen=True, eq=False)
class DsbaParameters(Record):
    """DSBA: one sample's resolvent at every node and one gossip round, with a table of past gradients.

    ``step`` is ``step_factor``/(24L) with L = max_i(m_iβ max_j w_ijq_ij + σ_i). The theory is for factor 1;
    the paper of ADFS ran it with 4. ``contraction`` is min(γ/24, σ_min/(48L), 1/(3m)), what the theory
    promises at factor 1.
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
        summary = summarize_smooth(problem, network)
        drawn = summary.n_active * summary.largest_smoothness + summary.sigma
        largest, m = float(drawn.max()), float(summary.n_active.max())
        slowest = min(network.gamma / 24.0, float(summary.sigma.min()) / (48.0 * largest), 1.0 / (3.0 * m))
        return cls(
            slowest, 1.0 / (24.0 * largest), 1.0, largest, network.laplacian_max, summary.sigma
        ).scaled(step_factor)

    def scaled(self, step_factor: float) -> DsbaParameters:
        """Return the same with another factor of the step."""
        if not 0.0 < step_factor < math.inf:
            raise InputError(f"step_factor must be finite and above 0, got {step_factor!r}")
        step = float(step_factor) / (24.0 * self.smoothness)
        return dataclasses.replace(self, step=step, step_factor=float(step_factor))


@dataclass(frozen=True, eq=False)
class ExtraParameters(Record):
    """EXTRA: gradient steps and gossip, corrected by the step before.

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
        summary = summarize_smooth(problem, network)
        largest = float(node_smoothness(summary).max())
        slowest = min(0.5 * float(summary.sigma.min()) / largest, 0.5 * min(1.0, network.gamma))
        return cls(slowest, 0.5 / largest, largest, network.laplacian_max, summary.sigma)


@dataclass(frozen=True, eq=False)
class PointSagaParameters(Record):
    """Point-SAGA on one machine: μ = Σσ_i/N, L = β max wq + μ, N the samples that are more than constants.

    ``step`` is Defazio's γ = √((N − 1)² + 4NL/μ)/(2LN) − (1 − 1/N)/(2L); ``contraction`` is 1 − 1/(1 + μγ),
    of the measure that :class:`adfs.algorithms.saga.PointSaga` names. The table starts with the
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
        """Return Defazio's constants; a problem on several nodes counts as one."""
        summary = summarize(problem)
        check_smooth(summary)
        count = int(summary.n_active.sum())
        mu = float(summary.sigma.sum()) / count
        largest = float(summary.largest_smoothness.max()) + mu
        root = math.sqrt((count - 1.0) ** 2 + 4.0 * count * largest / mu)
        # The difference of nearly equal numbers, without the cancellation.
        step = 2.0 / (mu * (root + count - 1.0))
        return cls(mu * step / (1.0 + mu * step), step, mu, largest, count, zero_table)

    @property
    def node_probability(self) -> np.ndarray:
        """Every event is a sample of the one node."""
        return np.ones(1)

    @property
    def edge_probability(self) -> np.ndarray:
        """There are no edges."""
        return np.empty(0)


@dataclass(frozen=True, eq=False)
class QningParameters(Record):
    """QNing on one machine: the curvature κ that its proximal steps add, half the mean of the samples' L_j.

    Smaller ones make better use of a pass and leave the passes more to do; between a quarter of and twice the
    largest L_j passes differed by less than a half. ``contraction`` is that of exact proximal steps alone,
    which the quasi-Newton steps are there to better.
    """

    _title: ClassVar[str] = "Parameters of QNing"
    contraction: float = field(metadata=shown("contraction of proximal steps", "σ/(σ + κ)"))
    kappa: float = field(metadata=shown("added curvature", "κ"))
    memory: int = field(metadata=shown("pairs kept", ""))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> QningParameters:
        """Return the constants for a problem on one node."""
        summary = summarize_smooth(problem, network)
        sigma = float(summary.sigma.sum())
        mean = float((summary.kappa * summary.sigma).sum() / summary.n_active.sum())
        return cls(sigma / (sigma + 0.5 * mean), 0.5 * mean, 20)


@dataclass(frozen=True, eq=False)
class AgdParameters(Record):
    """Nesterov's accelerated gradient method with constant momentum (√k − 1)/(√k + 1), step 1/L.

    L = λ_max(βXᵀWX) + Σσ_i over all samples. From one number per node `theory` knows ΣM_i, which is at least
    that; a run takes λ_max itself, by products with vectors that the nodes sum (`with_smoothness`).
    ``hops`` counts the messages one after another of a sum over all nodes, up a tree and down: twice the
    diameter.
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
        summary = summarize_smooth(problem, network)
        hops = 2 * network.diameter if network.n_nodes > 1 else 0
        return cls._assemble(float(summary.sigma.sum()), float(node_smoothness(summary).sum()), hops)

    def with_smoothness(self, smoothness: float) -> AgdParameters:
        """Return the constants for a smaller L; a larger one changes nothing."""
        return self._assemble(self.curvature, min(self.smoothness, smoothness), self.hops)

    @classmethod
    def _assemble(cls, curvature: float, largest: float, hops: int) -> AgdParameters:
        root = math.sqrt(largest / curvature)
        return cls(1.0 / root, 1.0 / largest, (root - 1.0) / (root + 1.0), curvature, largest, hops)


@dataclass(frozen=True, eq=False)
class LbfgsParameters(Record):
    """L-BFGS with sums over the nodes: it has no constants but what its rounds take.

    ``contraction`` is 1/√k for k = ΣM_i/Σσ_i, that of accelerated gradient descent: what is seen is quicker,
    and what is proven is slower by far. It serves to plan. ``hops`` counts the messages one after another of
    a round's sum, up and down a breadth-first tree from the root that makes it lowest.
    """

    _title: ClassVar[str] = "Parameters of L-BFGS"
    contraction: float = field(metadata=shown("contraction, for planning", "1/√k"))
    hops: int = field(metadata=shown("messages of a sum", "2·depth"))

    @classmethod
    def theory(cls, problem: Source, network: Network) -> LbfgsParameters:
        """Return what the rounds take."""
        summary = summarize_smooth(problem, network)
        condition = float(node_smoothness(summary).sum()) / float(summary.sigma.sum())
        return cls(1.0 / math.sqrt(condition), 2 * tree_depth(network))


@dataclass(frozen=True, eq=False)
class NewtonParameters(Record):
    """Newton's method with sums over the nodes: it has no constants but what its rounds take.

    Its convergence is not linear: F falls by damped steps, how many no number per node tells, and then the
    digits double. ``contraction`` ½ per round is a stand-in and no promise; plan by `rounds_to`.

    ``row_effort`` is what a row of the data costs per round in units of a sample's step, which goes through
    its d entries twice: (d + 1)/2 for its d(d + 1)/2 products in the Hessian, and 1 for the gradient.
    ``hops`` counts the messages one after another of a round's sum, up and down a breadth-first tree from the
    root that makes it lowest: F and ∇F go up along with the Hessian, the direction comes down. (A step that
    is refused takes a sum more, which is not counted.) ``n_features`` is 0 where it is not known.
    """

    _title: ClassVar[str] = "Parameters of Newton's method"
    contraction: float = field(metadata=shown("contraction, a stand-in", ""))
    n_features: int = field(metadata=shown("features", "d"))
    hops: int = field(metadata=shown("messages of a round's sums", "2·depth each"))
    sums_per_round: ClassVar[int] = 1
    passes_per_round: ClassVar[float] = 1.0

    @classmethod
    def theory(cls, problem: Source, network: Network) -> Self:
        """Return what the rounds take; losses whose curvature has no bound may have them too."""
        check_network(summarize(problem), network)
        return cls(0.5, getattr(problem, "n_features", 0), 2 * cls.sums_per_round * tree_depth(network))

    @property
    def row_effort(self) -> float:
        """What a row costs per round, one sample's step taking 1."""
        return 0.5 * (self.n_features + 1.0) + self.passes_per_round

    @staticmethod
    def rounds_to(tol: float) -> float:
        """Return the rounds to plan for a relative error: a few on the way, then the digits double.

        Examples
        --------
        >>> round(NewtonParameters.rounds_to(1e-8), 1)
        7.3
        """
        return 3.0 + math.log2(1.0 + math.log(1.0 / tol))


@dataclass(frozen=True, eq=False)
class InteriorPointParameters(NewtonParameters):
    """Interior points with sums over the nodes: as `NewtonParameters`, with more of them per round.

    A round has five sums one after another (the matrix; two solutions; two steps' lengths) and goes through
    each row six times besides the matrix, once at a time: each counts for half of a sample's step.
    """

    _title: ClassVar[str] = "Parameters of interior points"
    sums_per_round: ClassVar[int] = 5
    passes_per_round: ClassVar[float] = 6.0

    @property
    def row_effort(self) -> float:
        """What a row costs per round, one sample's step taking 1."""
        return 0.5 * (self.n_features + 1.0) + 0.5 * self.passes_per_round

    @staticmethod
    def rounds_to(tol: float) -> float:
        """Return the rounds to plan for a relative error: a few on the way, then seven for four digits.

        Examples
        --------
        >>> InteriorPointParameters.rounds_to(1e-6)
        14.0
        """
        return 3.5 + 1.75 * math.log10(1.0 / tol)


_EXACT_NODES = 2000


def tree_depth(network: Network) -> int:
    """Return the depth of the lowest breadth-first tree; its root's candidates are few on large networks."""
    if network.n_nodes == 1:
        return 0
    if network.n_nodes <= _EXACT_NODES:
        return min(int(hop_distances(network, root).max()) for root in range(network.n_nodes))
    return min(network.diameter, int(hop_distances(network, int(np.argmax(network.degrees))).max()))


_MOST_PRODUCTS = 100
_CHANCE = 1e-9


@single_threaded
def largest_eigenvalue(product: Callable[[np.ndarray], np.ndarray], order: int) -> float:
    """Return λ_max of a positive semidefinite matrix from above, by Lanczos from a random start.

    Up to order 100 it is exact but for rounding. Beyond, k = 100 steps end within a part ε below λ_max but
    with a chance of 1.648 √d exp(−√ε(2k − 1)) (Kuczyński and Woźniakowski, 1992); for a chance of 1e-9 that
    is ε = 1.7 % at d = 10⁴, by which the value is raised. The number of products depends on the order alone:
    several processes stay together.
    """
    steps = min(order, _MOST_PRODUCTS)
    basis, diagonal, beside = np.zeros((steps + 1, order)), np.zeros(steps), np.zeros(steps)
    start = np.random.default_rng(0).standard_normal(order)
    basis[0] = start / np.linalg.norm(start)
    for k in range(steps):
        found = product(basis[k])
        diagonal[k] = basis[k] @ found
        for _ in range(2):  # once more, for what rounding left of the others
            found = found - basis[: k + 1].T @ (basis[: k + 1] @ found)
        beside[k] = np.linalg.norm(found)
        if beside[k] > 1e-14 * diagonal.max():
            basis[k + 1] = found / beside[k]
        else:  # nothing is left: zeros from here on
            beside[k] = 0.0
    top = float(eigh_tridiagonal(diagonal, beside[:-1], eigvals_only=True)[-1])
    if steps == order:
        return top * (1.0 + 1e-10)
    return top / (1.0 - (math.log(1.648 * math.sqrt(order) / _CHANCE) / (2 * steps - 1)) ** 2)
