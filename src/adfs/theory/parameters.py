"""The constants of ADFS: one frozen, validated record, built in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import sampling_weights
from adfs.theory.records import EventParameters, Record, text_table
from adfs.theory.strong_convexity import dual_curvature, dual_curvature_of_split
from adfs.theory.summary import NodeSummary, Source, summarize_smooth


def network_constant(network: Network, resistance: np.ndarray) -> float:
    """Return γ̃ = min_e λ_min⁺(Lap)·n²/(R_e|E|²) (a minimum: erratum 10); infinite for one node.

    The paper's weights are 1/2. For others 2μ_e²R_e stands for R_e: the same at 1/2, and free of their scale.
    """
    if network.n_nodes == 1:
        return math.inf
    largest = float(np.max(2.0 * network.weights * resistance))
    return network.algebraic_connectivity * network.n_nodes**2 / (largest * network.n_edges**2)


@dataclass(frozen=True, eq=False)
class Parameters(EventParameters, Record):
    """The constants of ADFS for one problem on one network, a few numbers per node and per edge.

    ``contraction`` is ρ, ``dual_curvature`` σ_A, ``edge_weights`` the μ_e² of communication edges,
    ``virtual_weight`` the α_i with μ_ij² = α_i L_ij on virtual edges, ``edge_probability`` p_e,
    ``node_probability`` p_i = Σ_j p_ij, ``edge_resistance`` R_e (or an upper bound of it),
    ``edge_inverse_sigma`` 1/σ_i + 1/σ_j, ``sigma`` σ_i and ``root_sums`` S_i = Σ_j √(1 + L_ij/σ_i). A
    sample's own constants follow from these: p_ij = p_i √(1 + L_ij/σ_i)/S_i.

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

    kind: str
    contraction: float
    dual_curvature: float
    split: float
    sigma: np.ndarray
    root_sums: np.ndarray
    node_probability: np.ndarray
    virtual_weight: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    edge_resistance: np.ndarray
    edge_inverse_sigma: np.ndarray
    tau: float = math.nan
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self._freeze_arrays(
            nodes=("sigma", "root_sums", "node_probability", "virtual_weight"),
            edges=("edge_weights", "edge_probability", "edge_resistance", "edge_inverse_sigma"),
            samples="root_sums",
        )
        if not 0.0 < self.contraction <= 1.0:
            raise InputError(f"parameters: the contraction ρ must lie in (0, 1], got {self.contraction!r}")
        if not self.dual_curvature > 0.0:
            raise InputError(
                f"parameters: the dual curvature σ_A must be above 0, got {self.dual_curvature!r}"
            )
        if self.contraction > self.largest_contraction * (1.0 + 1e-9):
            raise InputError(
                f"parameters: the contraction {self.contraction:.6g} is above √σ_A·min p/k = "
                f"{self.largest_contraction:.6g}, up to which the theory holds"
            )

    # ------------------------------------------------------------------ derived

    @property
    def decay(self) -> float:
        """λ = (1 − ρ)/(1 + ρ), by which the lag of an idle node shrinks per step."""
        return (1.0 - self.contraction) / (1.0 + self.contraction)

    @property
    def largest_contraction(self) -> float:
        """√σ_A · min_e p_e/k_e over all edges, k_e = √(μ_e² R_e (Σ_i⁻¹ + Σ_j⁻¹)): Theorem 2's limit for ρ."""
        return _largest_contraction(
            self.dual_curvature,
            self.root_sums,
            self.node_probability,
            self.virtual_weight,
            self.edge_probability,
            np.sqrt(self.edge_weights * self.edge_resistance * self.edge_inverse_sigma),
        )

    # ------------------------------------------------------------------ constants of samples and edges

    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return √(1 + L_ij/σ_i), to which p_ij is proportional in a node; 0 on inactive rows; shape (N,)."""
        return sampling_weights(problem.smoothness, problem.active, problem.node_starts, self.sigma)

    def sample_probability(self, problem: FiniteSum) -> np.ndarray:
        """Return p_ij, shape (N,)."""
        node = problem.node_of_row
        sums = np.where(self.root_sums > 0.0, self.root_sums, 1.0)
        return np.asarray(self.node_probability[node] * self.sample_weights(problem) / sums[node])

    def sample_virtual_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return μ_ij² = α_i L_ij, shape (N,)."""
        return np.asarray(self.virtual_weight[problem.node_of_row] * problem.smoothness)

    @property
    def edge_step(self) -> np.ndarray:
        """η̃_e = ρ μ_e²/(σ_A p_e) on communication edges, shape (|E|,)."""
        return np.asarray(
            self.contraction * self.edge_weights / (self.dual_curvature * self.edge_probability)
        )

    @property
    def edge_mixing(self) -> np.ndarray:
        """χ_e = ρ R_e/p_e on communication edges, shape (|E|,)."""
        return np.asarray(self.contraction * self.edge_resistance / self.edge_probability)

    def __str__(self) -> str:
        rows: list[tuple[str, str, object]] = [
            ("kind", "", self.kind),
            ("contraction", "ρ", self.contraction),
            ("decay of the lag", "λ", self.decay),
            ("dual curvature", "σ_A", self.dual_curvature),
            ("curvature split", "r", self.split),
            ("P(communication)", "p_comm", self.p_comm),
            ("P(computation)", "p_comp", self.p_comp),
            ("nodes, edges", "n, |E|", f"{self.n_nodes}, {self.edge_weights.size}"),
            ("node curvature", "σ_i", self.sigma),
            ("virtual weight", "α_i", self.virtual_weight),
            ("node probability", "p_i", self.node_probability),
            ("root sums", "S_i", self.root_sums),
            ("edge weight", "μ_e²", self.edge_weights),
            ("edge probability", "p_e", self.edge_probability),
            ("edge resistance", "R_e", self.edge_resistance),
            ("communication time", "τ", self.tau),
        ]
        return text_table("Parameters of ADFS", rows, self.notes)

    # ------------------------------------------------------------------ the two choices

    @classmethod
    def paper(cls, problem: Source, network: Network, *, tau: float = math.nan) -> Parameters:
        """Theorem 5's choice, its errata applied and σ_A computed to about eight digits, from below.

        α_i = λ_min⁺(Lap)/(σ_max(1 + κ_i)); every node computes equally often, samples in proportion to
        √(1 + L_ij/σ_i); edges are equally likely; p_comm = min(1/2, 1/(1 + √(γ̃/(1 + κ_min))·S_comp)).
        """
        summary = summarize_smooth(problem, network, tau)
        holding = summary.n_active > 0
        if network.n_nodes == 1:
            return cls._single(summary, "paper")
        resistance = network.resistances.values
        gamma = network_constant(network, resistance)
        mean_root_sum = float(summary.root_sums.sum()) / network.n_nodes
        p_comm = min(0.5, 1.0 / (1.0 + math.sqrt(gamma / (1.0 + float(summary.kappa.min()))) * mean_root_sum))
        alpha = network.algebraic_connectivity / (float(summary.sigma.max()) * (1.0 + summary.kappa))
        curvature = dual_curvature(network, summary.sigma, summary.kappa, summary.n_active, alpha)
        curvature *= _rounding_of_sums(summary)
        return cls._assemble(
            "paper",
            summary,
            network,
            split=math.nan,
            curvature=curvature,
            alpha=alpha,
            node_probability=np.where(holding, (1.0 - p_comm) / holding.sum(), 0.0),
            edge_probability=np.full(network.n_edges, p_comm / network.n_edges),
            tau=tau,
        )

    @classmethod
    def tuned(
        cls, problem: Source, network: Network, *, tau: float = math.nan, r: float | None = None
    ) -> Parameters:
        """Sharper constants than Theorem 5's: σ_A from batch condition numbers, best probabilities, r from τ.

        Parameters
        ----------
        problem, network
            As for :meth:`paper`.
        tau : float, optional
            Time of a communication in units of one sample's computation. It moves the split r below 1/2 when
            communication is what costs: r* = 1/(1 + (τ_eff·b/a)^(2/3)), at most 1/2.
        r : float, optional
            The split itself, in (0, 1); it overrides ``tau``.
        """
        summary = summarize_smooth(problem, network, tau)
        if r is not None:
            check_split(r)
        if network.n_nodes == 1:
            return cls._single(summary, "tuned")
        roots = edge_roots(network, summary.sigma)
        total_roots = float(roots.sum())
        split = r if r is not None else _best_split(summary, network, roots, tau)
        curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, split)
        curvature *= _rounding_of_sums(summary)
        # 1/ρ = S_tot/√r + G/√σ_A, shared between the two kinds of events in proportion.
        comp, comm = float(summary.root_sums.sum()) / math.sqrt(split), total_roots / math.sqrt(curvature)
        return cls._assemble(
            "tuned",
            summary,
            network,
            split=split,
            curvature=curvature,
            alpha=np.full(network.n_nodes, curvature / split),
            node_probability=comp / (comp + comm) * summary.root_sums / summary.root_sums.sum(),
            edge_probability=comm / (comp + comm) * roots / total_roots,
            tau=tau,
        )

    @classmethod
    def _single(cls, summary: NodeSummary, kind: str) -> Parameters:
        """One node, no communication: α = 1 and ρ = 1/Σ_j √(1 + L_j/σ), the rate of APCG."""
        return cls(
            kind=kind,
            contraction=min(1.0, 1.0 / float(summary.root_sums[0])),
            dual_curvature=1.0,
            split=math.nan,
            sigma=summary.sigma,
            root_sums=summary.root_sums,
            node_probability=np.ones(1),
            virtual_weight=np.ones(1),
            edge_weights=np.empty(0),
            edge_probability=np.empty(0),
            edge_resistance=np.empty(0),
            edge_inverse_sigma=np.empty(0),
        )

    @classmethod
    def _assemble(
        cls,
        kind: str,
        summary: NodeSummary,
        network: Network,
        *,
        split: float,
        curvature: float,
        alpha: np.ndarray,
        node_probability: np.ndarray,
        edge_probability: np.ndarray,
        tau: float,
    ) -> Parameters:
        found = network.resistances
        notes = () if found.exact else (f"edge resistances are {found.method} values, not exact ones",)
        roots = edge_roots(network, summary.sigma)
        rate = _largest_contraction(
            curvature, summary.root_sums, node_probability, alpha, edge_probability, roots
        )
        return cls(
            kind=kind,
            contraction=rate,
            dual_curvature=curvature,
            split=split,
            sigma=summary.sigma,
            root_sums=summary.root_sums,
            node_probability=node_probability,
            virtual_weight=alpha,
            edge_weights=network.weights,
            edge_probability=edge_probability,
            edge_resistance=found.values,
            edge_inverse_sigma=inverse_sigma(network, summary.sigma),
            tau=tau,
            notes=notes,
        )


def inverse_sigma(network: Network, sigma: np.ndarray) -> np.ndarray:
    """Return 1/σ_i + 1/σ_j for each edge, shape (|E|,)."""
    return np.asarray(1.0 / sigma[network.edges[:, 0]] + 1.0 / sigma[network.edges[:, 1]])


def edge_roots(network: Network, sigma: np.ndarray) -> np.ndarray:
    """Return k_e = √(μ_e²R_e(1/σ_i + 1/σ_j)) for each edge, shape (|E|,)."""
    inverse = inverse_sigma(network, sigma)
    return np.asarray(np.sqrt(network.weights * network.resistances.values * inverse))


def _rounding_of_sums(summary: NodeSummary) -> float:
    """Return the factor by which σ_A goes down, lest κ_i, sums of rounded numbers, are too small."""
    return 1.0 - float(np.finfo(np.float64).eps) * float(summary.n_active.max())


def _largest_contraction(
    curvature: float,
    root_sums: np.ndarray,
    node_probability: np.ndarray,
    virtual_weight: np.ndarray,
    edge_probability: np.ndarray,
    edge_roots: np.ndarray,
) -> float:
    """Return √σ_A · min_e p_e/k_e; ``edge_roots`` are the k_e of communication edges."""
    holding = root_sums > 0.0
    # On a virtual edge k = √(α_i(1 + L/σ_i)) and p = p_i√(1 + L/σ_i)/S_i: one value per node.
    own = node_probability[holding] / (root_sums[holding] * np.sqrt(virtual_weight[holding]))
    return math.sqrt(curvature) * float(np.min(np.concatenate([own, edge_probability / edge_roots])))


def check_split(r: float) -> None:
    """Raise unless a split lies strictly between 0 and 1."""
    if not 0.0 < r < 1.0:
        raise InputError(f"the split r must lie strictly between 0 and 1, got {r!r}")


def _best_split(summary: NodeSummary, network: Network, roots: np.ndarray, tau: float) -> float:
    """r* = 1/(1 + (τ_eff·b/a)^(2/3)), at most 1/2, from time ≈ a/√r + τ_eff·b/√(1 − r)."""
    if math.isnan(tau):
        return 0.5
    curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, 0.5)
    per_sample = float(summary.root_sums.sum()) / network.n_nodes
    per_message = float(roots.sum()) / network.n_nodes * math.sqrt(0.5 / curvature)
    ends = np.bincount(network.edges.ravel(), weights=np.repeat(roots, 2), minlength=network.n_nodes)
    effective = tau * network.n_nodes * float(ends.max()) / float(roots.sum())
    return min(0.5, 1.0 / (1.0 + math.pow(effective * per_message / per_sample, 2.0 / 3.0)))


def smoothness_limit(sigma: np.ndarray, network: Network, *, r: float = 0.5) -> np.ndarray:
    """Return σ_i(1/r − 1), above which L must lie for dual steps below L; 0 for one node; shape (k,).

    The Moreau form of a term's dual prox needs η̃ < L. Tuned parameters with the split r have η̃ < L exactly
    where L > σ_i(1/r − 1), and on one node for any L > 0. Any larger L is valid, so a problem is made ready
    by `adfs.problem.FiniteSum.with_smoothness_above`.

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
