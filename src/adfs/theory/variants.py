"""The constants of two variants of ADFS: for losses that need not be smooth, and in synchronous blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.theory.parameters import Parameters, check_split, inverse_sigma, network_constant
from adfs.theory.records import EventParameters, Record, shown, text_table
from adfs.theory.strong_convexity import dual_curvature_of_split
from adfs.theory.summary import NodeSummary, Source, check_network, summarize
from adfs.threads import single_threaded


@dataclass(frozen=True, eq=False)
class NonSmoothParameters(EventParameters):
    """The constants of NS-ADFS.

    ``step_bound`` is S² = max_e μ_e²R_e(Σ_i⁻¹ + Σ_j⁻¹)/p_e² with Σ⁻¹ = 0 at tips, ``offset`` t0. The
    coefficients follow in closed form, A_t = (t + t0)²/(4S²) and a_{t+1} = (2(t + t0) + 1)/(4S²): they
    satisfy a²S² ≤ A_{t+1}, and any node knows them without a recursion. t0 ≥ 2/min p_ij keeps the
    iterates inside the domain of f* (erratum 9; the paper's A_0 = 0 does not). ``virtual_weight`` is
    μ_ij² itself. Samples are equally likely.

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

    step_bound: float
    offset: float
    sigma: np.ndarray
    n_active: np.ndarray
    node_probability: np.ndarray
    virtual_weight: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    edge_resistance: np.ndarray
    kind: str = "non-smooth"

    def __post_init__(self) -> None:
        self._freeze_arrays(
            nodes=("sigma", "n_active", "node_probability", "virtual_weight"),
            edges=("edge_weights", "edge_probability", "edge_resistance"),
            samples="n_active",
        )
        if not (self.step_bound > 0.0 and self.offset >= 0.0):
            raise InputError("parameters: the step bound S² must be above 0 and the offset t0 at least 0")

    def weight_at(self, t: float) -> float:
        """Return A_t."""
        return (t + self.offset) ** 2 / (4.0 * self.step_bound)

    def increment_at(self, t: float) -> float:
        """Return a_{t+1} = A_{t+1} − A_t."""
        return (2.0 * (t + self.offset) + 1.0) / (4.0 * self.step_bound)

    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return 1 on active rows and 0 on others: samples of a node are equally likely; shape (N,)."""
        return problem.active.astype(np.float64)

    def sample_probability(self, problem: FiniteSum) -> np.ndarray:
        """Return p_ij, shape (N,)."""
        node = problem.node_of_row
        counts = np.where(self.n_active > 0, self.n_active, 1.0)
        return np.asarray(self.node_probability[node] * self.sample_weights(problem) / counts[node])

    def sample_virtual_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return μ_ij², shape (N,)."""
        return np.asarray(self.virtual_weight[problem.node_of_row])

    @classmethod
    def paper(cls, problem: Source, network: Network) -> NonSmoothParameters:
        """Choose as the paper does: μ_ij² = λ_min⁺(Lap)/(1 + m) and p_comm = min(1/2, 1/(1 + √(mγ̃))).

        Edges are equally likely, and so are samples; m is the largest number of samples per node.
        """
        summary = summarize(problem)
        check_network(summary, network)
        active = summary.n_active
        most = float(active.max())
        if network.n_nodes == 1:
            p_comm, weight = 0.0, 1.0
            edge_probability = resistance = np.empty(0)
        else:
            resistance = network.resistances.values
            p_comm = min(0.5, 1.0 / (1.0 + math.sqrt(most * network_constant(network, resistance))))
            weight = network.algebraic_connectivity / (1.0 + most)
            edge_probability = np.full(network.n_edges, p_comm / network.n_edges)
        sample_probability = (1.0 - p_comm) / float(active.sum())
        bounds = [float(np.max(weight / summary.sigma[active > 0])) / sample_probability**2]
        if network.n_edges:
            inverse = inverse_sigma(network, summary.sigma)
            bounds.append(float(np.max(network.weights * resistance * inverse / edge_probability**2)))
        return cls(
            step_bound=max(bounds),
            offset=float(math.ceil(2.0 / sample_probability)),
            sigma=summary.sigma,
            n_active=active,
            node_probability=sample_probability * active,
            virtual_weight=np.full(summary.n_nodes, weight),
            edge_weights=network.weights,
            edge_probability=edge_probability,
            edge_resistance=resistance,
        )

    def __str__(self) -> str:
        rows: list[tuple[str, str, object]] = [
            ("step bound", "S²", self.step_bound),
            ("offset", "t0", self.offset),
            ("P(communication)", "p_comm", self.p_comm),
            ("P(computation)", "p_comp", self.p_comp),
            ("nodes, edges", "n, |E|", f"{self.n_nodes}, {self.edge_weights.size}"),
            ("virtual weight", "μ_ij²", self.virtual_weight),
        ]
        return text_table("Parameters of NS-ADFS", rows)


@dataclass(frozen=True, eq=False)
class BlockParameters(Record):
    """The constants of block-synchronous ADFS.

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
    kind: str = "block"

    def __post_init__(self) -> None:
        if not 0.0 < self.contraction <= 1.0:
            raise InputError(f"parameters: the contraction ρ must lie in (0, 1], got {self.contraction!r}")
        if not 0.0 <= self.p_comm < 1.0:
            raise InputError(f"parameters: p_comm must lie in [0, 1), got {self.p_comm!r}")

    @classmethod
    def tuned(
        cls, problem: Source, network: Network, *, tau: float = math.nan, r: float | None = None
    ) -> BlockParameters:
        """Choose the split r (from ``tau`` as for ADFS unless given), and what follows from it."""
        summary = summarize(problem)
        check_network(summary, network)
        largest = float(summary.root_sums.max())
        if network.n_nodes == 1:
            single = Parameters.tuned(summary, network)
            return cls(single.contraction, 1.0, math.nan, 0.0, summary.sigma, summary.root_sums, 1.0, tau)
        spread = largest_scaled_laplacian(network, summary.sigma)
        split = r if r is not None else _best_split(summary, network, largest, spread, tau)
        check_split(split)
        curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, split)
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


@single_threaded
def largest_scaled_laplacian(network: Network, sigma: np.ndarray) -> float:
    """Return λ_max(D^{-1/2} Lap D^{-1/2}), D = diag(σ), from above: raised by what rounding can do."""
    root = sp.diags_array(1.0 / np.sqrt(sigma))
    scaled = root @ network.laplacian() @ root
    if network.n_nodes <= 400:
        exact = np.linalg.eigvalsh(scaled.toarray())[-1]
        return float(exact * (1.0 + 4.0 * network.n_nodes * np.finfo(np.float64).eps))
    start = np.random.default_rng(0).standard_normal(network.n_nodes)
    top = eigsh(scaled, k=1, which="LA", v0=start, tol=1e-8, return_eigenvectors=False)[0]
    return float(top) * (1.0 + 1e-7)


def _best_split(summary: NodeSummary, network: Network, largest: float, spread: float, tau: float) -> float:
    """Minimise a/√r + τb/√(1 − r): r* = 1/(1 + (τb/a)^(2/3)), at most 1/2."""
    if math.isnan(tau):
        return 0.5
    curvature = dual_curvature_of_split(network, summary.sigma, summary.batch_kappa, 0.5)
    gossiping = math.sqrt(0.5 * spread / curvature)
    return float(min(0.5, 1.0 / (1.0 + (tau * gossiping / largest) ** (2.0 / 3.0))))
