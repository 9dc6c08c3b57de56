"""The parameters of ADFS and of its two variants, NS-ADFS and block-synchronous ADFS."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import sampling_weights
from adfs.theory.problem_summary import NodeSummary, Source, summarize_on
from adfs.theory.records import (
    EventParameters,
    ParameterRecord,
    dual_curvature,
    dual_curvature_of_split,
    edge_roots,
    inverse_sigma,
    largest_scaled_laplacian,
    network_constant,
    shown,
)

# --------------------------------------------------------------------------- the split r


def check_split(r: float) -> None:
    """Raise unless a split lies strictly between 0 and 1."""
    if not 0.0 < r < 1.0:
        raise InputError(f"the split r must lie strictly between 0 and 1, got {r!r}")


def best_split(cost_ratio: float) -> float:
    """Return the r up to 1/2 that minimises a/√r + b/√(1 − r), where ``cost_ratio`` is b/a."""
    return min(0.5, 1.0 / (1.0 + math.pow(cost_ratio, 2.0 / 3.0)))


def smoothness_limit(sigma: np.ndarray, network: Network, *, r: float = 0.5) -> np.ndarray:
    """Return σ_i(1/r − 1), above which L must lie for dual steps below L; 0 for one node; shape (k,).

    The Moreau form of a term's dual prox needs η̃ < L. Tuned parameters with the split r have η̃ < L exactly
    where L > σ_i(1/r − 1), and on one node for any L > 0. A larger L is always valid:
    `adfs.problem.FiniteSum.with_smoothness_above` raises it where necessary.

    Parameters
    ----------
    sigma : ndarray of shape (k,)
        σ_i of some of the network's nodes.
    network : Network
    r : float
        The split, in (0, 1).
    """
    check_split(r)
    return sigma * (1.0 / r - 1.0 if network.n_nodes > 1 else 0.0)


# --------------------------------------------------------------------------- ADFS


@dataclass(frozen=True, eq=False)
class Parameters(EventParameters):
    """The parameters of ADFS for one problem on one network, a few numbers per node and per edge.

    ``contraction`` is ρ (nan: the largest valid one), ``dual_curvature`` σ_A, ``edge_weights`` the μ_e² of
    communication edges, ``virtual_weight`` the α_i with μ_ij² = α_i L_ij on virtual edges,
    ``edge_probability`` p_e, ``node_probability`` p_i = Σ_j p_ij, ``edge_resistance`` R_e (or an upper bound
    of it), ``edge_inverse_sigma`` 1/σ_i + 1/σ_j, ``sigma`` σ_i and ``root_sums`` S_i = Σ_j √(1 + L_ij/σ_i).
    The constants of a sample follow from these: p_ij = p_i √(1 + L_ij/σ_i)/S_i.

    Build it with :meth:`paper` or :meth:`tuned`.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> X = np.eye(4)
    >>> problem = adfs.Problem(X, [1, -1, 1, -1], n_nodes=2)
    >>> parameters = adfs.Parameters.tuned(problem, adfs.Network("path:2"))
    >>> round(parameters.p_comm + parameters.p_comp, 12)
    1.0
    """

    _title: ClassVar[str] = "Parameters of ADFS"
    _sums_of_weights: ClassVar[str] = "root_sums"
    _derived: ClassVar[dict[str, tuple[str, str]]] = {
        "decay": ("decay of the lag", "λ")
    } | EventParameters._derived
    kind: str = field(metadata=shown("kind", ""))
    contraction: float = field(metadata=shown("contraction", "ρ"))
    dual_curvature: float = field(metadata=shown("dual curvature", "σ_A"))
    split: float = field(metadata=shown("curvature split", "r"))
    sigma: np.ndarray = field(metadata=shown("node curvature", "σ_i"))
    root_sums: np.ndarray = field(metadata=shown("root sums", "S_i"))
    node_probability: np.ndarray = field(metadata=shown("node probability", "p_i"))
    virtual_weight: np.ndarray = field(metadata=shown("virtual weight", "α_i"))
    edge_weights: np.ndarray = field(metadata=shown("edge weight", "μ_e²"))
    edge_probability: np.ndarray = field(metadata=shown("edge probability", "p_e"))
    edge_resistance: np.ndarray = field(metadata=shown("edge resistance", "R_e"))
    edge_inverse_sigma: np.ndarray
    tau: float = field(default=math.nan, metadata=shown("communication time", "τ"))
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.contraction):
            object.__setattr__(self, "contraction", self.largest_contraction)
        super().__post_init__()
        if not self.dual_curvature > 0.0:
            self._refuse(f"the dual curvature σ_A must be above 0, got {self.dual_curvature!r}")
        # A smaller ρ is valid too; the factor allows for rounding.
        largest = self.largest_contraction
        if self.contraction > largest * (1.0 + 1e-9):
            self._refuse(
                f"the contraction {self.contraction:.6g} is above √σ_A·min p/k = {largest:.6g}, "
                "up to which the theory holds"
            )

    @property
    def decay(self) -> float:
        """λ = (1 − ρ)/(1 + ρ), by which the lag of an idle node shrinks per step."""
        return (1.0 - self.contraction) / (1.0 + self.contraction)

    @property
    def largest_contraction(self) -> float:
        """√σ_A · min_e p_e/k_e over all edges, k_e = √(μ_e² R_e (Σ_i⁻¹ + Σ_j⁻¹)): Theorem 2's limit for ρ."""
        holding = self.root_sums > 0.0
        # On a virtual edge k = √(α_i(1 + L/σ_i)) and p = p_i√(1 + L/σ_i)/S_i: one value per node.
        virtual_roots = self.root_sums[holding] * np.sqrt(self.virtual_weight[holding])
        roots = np.sqrt(self.edge_weights * self.edge_resistance * self.edge_inverse_sigma)
        rates = [self.node_probability[holding] / virtual_roots, self.edge_probability / roots]
        return math.sqrt(self.dual_curvature) * float(np.min(np.concatenate(rates)))

    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return √(1 + L_ij/σ_i), to which p_ij is proportional in a node; 0 on inactive rows; shape (N,)."""
        return sampling_weights(problem.smoothness, problem.active, problem.node_starts, self.sigma)

    def sample_virtual_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return μ_ij² = α_i L_ij, shape (N,)."""
        return np.asarray(self.virtual_weight[problem.node_of_row] * problem.smoothness)

    def edge_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return η̃_e = ρ μ_e²/(σ_A p_e) and χ_e = ρ R_e/p_e of communication edges, each of shape (|E|,)."""
        steps = self.contraction * self.edge_weights / (self.dual_curvature * self.edge_probability)
        return steps, self.contraction * self.edge_resistance / self.edge_probability

    @classmethod
    def paper(cls, problem: Source, network: Network, tau: float = math.nan) -> Parameters:
        """Return Theorem 5's choice with its errata; σ_A is computed to about eight digits, from below.

        α_i = λ_min⁺(Lap)/(σ_max(1 + κ_i)); every node computes equally often, samples in proportion to
        √(1 + L_ij/σ_i); edges are equally likely; p_comm = min(1/2, 1/(1 + √(γ̃/(1 + κ_min))·S_comp)).
        """
        summary = summarize_on(network, problem, tau=tau)
        if network.n_nodes == 1:
            return cls._of_one_node("paper", summary, network)
        # Only nodes with active samples compute.
        holding = summary.n_active > 0
        gamma = network_constant(network, network.resistances.values)
        mean_root_sum = float(summary.root_sums.sum()) / network.n_nodes
        p_comm = min(0.5, 1.0 / (1.0 + math.sqrt(gamma / (1.0 + float(summary.kappa.min()))) * mean_root_sum))
        alpha = network.algebraic_connectivity / (float(summary.sigma.max()) * (1.0 + summary.kappa))
        curvature = dual_curvature(network, summary.sigma, summary.kappa, summary.n_active, alpha)
        return cls._assemble(
            "paper",
            summary,
            network,
            dual_curvature=curvature * _rounding_of_sums(summary),
            virtual_weight=alpha,
            node_probability=np.where(holding, (1.0 - p_comm) / holding.sum(), 0.0),
            edge_probability=np.full(network.n_edges, p_comm / network.n_edges),
            tau=tau,
        )

    @classmethod
    def tuned(
        cls, problem: Source, network: Network, tau: float = math.nan, *, r: float | None = None
    ) -> Parameters:
        """Return better parameters than Theorem 5's: σ_A from batch condition numbers, best probabilities.

        Parameters
        ----------
        problem, network
            As for :meth:`paper`.
        tau : float, optional
            Time of a communication in units of one sample's computation. Where communication is expensive,
            the split r is below 1/2: r* = 1/(1 + (τ_eff·b/a)^(2/3)).
        r : float, optional
            The split itself, in (0, 1); it overrides ``tau``.
        """
        summary = summarize_on(network, problem, tau=tau)
        if r is not None:
            check_split(r)
        if network.n_nodes == 1:
            return cls._of_one_node("tuned", summary, network)
        roots = edge_roots(network, summary.sigma)
        split = 0.5 if r is None else r
        if r is None and not math.isnan(tau):
            split = best_split(_cost_ratio(summary, network, roots, tau))
        curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, split)
        curvature *= _rounding_of_sums(summary)
        # 1/ρ = S_tot/√r + G/√σ_A: each kind of event gets a probability in proportion to its term.
        comp = float(summary.root_sums.sum()) / math.sqrt(split)
        comm = float(roots.sum()) / math.sqrt(curvature)
        return cls._assemble(
            "tuned",
            summary,
            network,
            split=split,
            dual_curvature=curvature,
            virtual_weight=np.full(network.n_nodes, curvature / split),
            node_probability=comp / (comp + comm) * summary.root_sums / summary.root_sums.sum(),
            edge_probability=comm / (comp + comm) * roots / float(roots.sum()),
            tau=tau,
        )

    @classmethod
    def _of_one_node(cls, kind: str, summary: NodeSummary, network: Network) -> Parameters:
        """Return the parameters without communication: α = 1 and ρ = 1/Σ_j √(1 + L_j/σ), the rate of APCG."""
        # All events are computations of the single node.
        one, none = np.ones(1), np.empty(0)
        return cls._assemble(
            kind,
            summary,
            network,
            dual_curvature=1.0,
            virtual_weight=one,
            node_probability=one,
            edge_probability=none,
        )

    @classmethod
    def _assemble(
        cls,
        kind: str,
        summary: NodeSummary,
        network: Network,
        *,
        split: float = math.nan,
        tau: float = math.nan,
        **chosen: Any,
    ) -> Parameters:
        """Add the constants of the network and of the nodes, and take the largest valid contraction."""
        resistances = network.resistances
        note = "edge resistances are upper bounds, not exact values"
        return cls(
            kind=kind,
            contraction=math.nan,
            split=split,
            sigma=summary.sigma,
            root_sums=summary.root_sums,
            edge_weights=network.weights,
            edge_resistance=resistances.values,
            edge_inverse_sigma=inverse_sigma(network, summary.sigma),
            tau=tau,
            notes=() if resistances.exact else (note,),
            **chosen,
        )


def _rounding_of_sums(summary: NodeSummary) -> float:
    """Return a factor for σ_A just below 1: κ_i is a sum of rounded numbers and may be too small."""
    return 1.0 - float(np.finfo(np.float64).eps) * float(summary.n_active.max())


def _cost_ratio(summary: NodeSummary, network: Network, roots: np.ndarray, tau: float) -> float:
    """Return τ_eff·b/a for the model a/√r + τ_eff·b/√(1 − r) of the time per digit."""
    curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, 0.5)
    # a and b of the model, with b such that the model is exact at r = 1/2.
    per_sample = float(summary.root_sums.sum()) / network.n_nodes
    per_message = float(roots.sum()) / network.n_nodes * math.sqrt(0.5 / curvature)
    # The busiest node decides how long the messages take.
    busiest = float(network.sum_at_nodes(roots).max())
    effective = tau * network.n_nodes * busiest / float(roots.sum())
    return effective * per_message / per_sample


# --------------------------------------------------------------------------- variants of ADFS


@dataclass(frozen=True, eq=False)
class NonSmoothParameters(EventParameters):
    """The parameters of NS-ADFS.

    ``step_bound`` is S² = max_e μ_e²R_e(Σ_i⁻¹ + Σ_j⁻¹)/p_e² with Σ⁻¹ = 0 at the samples, ``offset`` t0. The
    coefficients are A_t = (t + t0)²/(4S²) and a_{t+1} = (2(t + t0) + 1)/(4S²): they satisfy a²S² ≤ A_{t+1},
    and every node knows them without a recursion. t0 ≥ 2/min p_ij keeps the iterates inside the domain of f*
    (erratum 9; the paper's A_0 = 0 does not). ``virtual_weight`` is μ_ij² itself. Samples are equally likely.

    Build it with :meth:`paper`.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], loss="hinge", n_nodes=2)
    >>> parameters = NonSmoothParameters.paper(problem, adfs.Network("path:2"))
    >>> alpha = parameters.increment_at(0) / parameters.weight_at(1)
    >>> alpha < float(parameters.sample_probability(problem).min())
    True
    """

    _title: ClassVar[str] = "Parameters of NS-ADFS"
    _sums_of_weights: ClassVar[str] = "n_active"
    step_bound: float = field(metadata=shown("step bound", "S²"))
    offset: float = field(metadata=shown("offset", "t0"))
    sigma: np.ndarray
    n_active: np.ndarray
    node_probability: np.ndarray
    virtual_weight: np.ndarray = field(metadata=shown("virtual weight", "μ_ij²"))
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    edge_resistance: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_bound > 0.0:
            self._refuse(f"the step bound S² must be above 0, got {self.step_bound!r}")

    def weight_at(self, t: float) -> float:
        """Return A_t."""
        return (t + self.offset) ** 2 / (4.0 * self.step_bound)

    def increment_at(self, t: float) -> float:
        """Return a_{t+1} = A_{t+1} − A_t."""
        return (2.0 * (t + self.offset) + 1.0) / (4.0 * self.step_bound)

    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return 1 on active rows and 0 on others: samples of a node are equally likely; shape (N,)."""
        return problem.active.astype(np.float64)

    def sample_virtual_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return μ_ij², shape (N,)."""
        return np.asarray(self.virtual_weight[problem.node_of_row])

    @classmethod
    def paper(cls, problem: Source, network: Network, tau: float = math.nan) -> NonSmoothParameters:
        """Return the paper's choice: μ_ij² = λ_min⁺(Lap)/(1 + m) and p_comm = min(1/2, 1/(1 + √(mγ̃))).

        Edges are equally likely, and so are samples; m is the largest number of samples per node. They do not
        depend on τ.
        """
        summary = summarize_on(network, problem, smooth=False)
        active, resistance = summary.n_active, network.resistances.values
        most, p_comm, weight = float(active.max()), 0.0, 1.0
        if network.n_nodes > 1:
            p_comm = min(0.5, 1.0 / (1.0 + math.sqrt(most * network_constant(network, resistance))))
            weight = network.algebraic_connectivity / (1.0 + most)
        edge_probability = np.full(network.n_edges, p_comm / max(1, network.n_edges))
        sample_probability = (1.0 - p_comm) / float(active.sum())
        # S² is the largest value of μ²R(Σ_i⁻¹ + Σ_j⁻¹)/p² over communication and virtual edges.
        inverse = inverse_sigma(network, summary.sigma)
        of_edges = network.weights * resistance * inverse / edge_probability**2
        of_samples = float(np.max(weight / summary.sigma[active > 0])) / sample_probability**2
        return cls(
            step_bound=float(np.max(of_edges, initial=of_samples)),
            offset=float(math.ceil(2.0 / sample_probability)),
            sigma=summary.sigma,
            n_active=active,
            node_probability=sample_probability * active,
            virtual_weight=np.full(network.n_nodes, weight),
            edge_weights=network.weights,
            edge_probability=edge_probability,
            edge_resistance=resistance,
        )


@dataclass(frozen=True, eq=False)
class BlockParameters(ParameterRecord):
    """The parameters of block-synchronous ADFS.

    A step is a gossip round with probability ``p_comm`` and otherwise one sample at every node, drawn in
    proportion to √(1 + L_ij/σ_i). 1/ρ = max_i S_i/√r + √(λ_max(D^{-1/2} Lap D^{-1/2})/σ_A); p_comm is ρ times
    the second term. The other names are those of :class:`Parameters`.
    """

    _title: ClassVar[str] = "Parameters of block-synchronous ADFS"
    contraction: float = field(metadata=shown("contraction", "ρ"))
    dual_curvature: float = field(metadata=shown("dual curvature", "σ_A"))
    split: float = field(metadata=shown("curvature split", "r"))
    p_comm: float = field(metadata=shown("P(gossip round)", "p_comm"))
    sigma: np.ndarray
    root_sums: np.ndarray
    virtual_weight: float = field(metadata=shown("virtual weight", "α"))
    tau: float = math.nan

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.p_comm < 1.0:
            self._refuse(f"p_comm must lie in [0, 1), got {self.p_comm!r}")

    @classmethod
    def tuned(
        cls, problem: Source, network: Network, tau: float = math.nan, *, r: float | None = None
    ) -> BlockParameters:
        """Return the parameters for a split r, chosen from ``tau`` as for ADFS unless it is given."""
        summary = summarize_on(network, problem, smooth=False)
        if network.n_nodes == 1:
            rate = Parameters.tuned(summary, network).contraction
            return cls(rate, 1.0, math.nan, 0.0, summary.sigma, summary.root_sums, 1.0, tau)
        largest = float(summary.root_sums.max())
        spread = largest_scaled_laplacian(network, summary.sigma)
        split = 0.5 if r is None else r
        # The same model of the time as for ADFS; all nodes gossip at once, so the degree does not matter.
        if r is None and not math.isnan(tau):
            half = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, 0.5)
            split = best_split(tau * math.sqrt(0.5 * spread / half) / largest)
        check_split(split)
        curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, split)
        # The two terms of 1/ρ: the slowest node's computations, and the gossip rounds.
        computing, gossiping = largest / math.sqrt(split), math.sqrt(spread / curvature)
        rho = 1.0 / (computing + gossiping)
        return cls(
            contraction=rho,
            dual_curvature=curvature,
            split=split,
            p_comm=rho * gossiping,
            sigma=summary.sigma,
            root_sums=summary.root_sums,
            virtual_weight=curvature / split,
            tau=tau,
        )
