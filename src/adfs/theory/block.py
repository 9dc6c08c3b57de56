"""The constants of block-synchronous ADFS: all nodes compute, or all nodes gossip, at every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from adfs.errors import InputError
from adfs.network import Network
from adfs.theory.parameters import Parameters, check_network
from adfs.theory.strong_convexity import dual_curvature_of_split
from adfs.theory.summary import NodeSummary, Source, summarize
from adfs.theory.tables import text_table
from adfs.threads import single_threaded

__all__ = ["BlockParameters"]


@dataclass(frozen=True, eq=False)
class BlockParameters:
    """The constants of block-synchronous ADFS.

    A step is a gossip round with probability ``p_comm`` and otherwise one sample at every node, drawn in
    proportion to √(1 + L_ij/σ_i). 1/ρ = max_i S_i/√r + √(λ_max(D^{-1/2} Lap D^{-1/2})/σ_A); p_comm is ρ times
    the second term. The other names are those of :class:`Parameters`.
    """

    contraction: float
    dual_curvature: float
    split: float
    p_comm: float
    sigma: np.ndarray
    root_sums: np.ndarray
    virtual_weight: float
    tau: float = math.nan
    kind: str = "block"

    def __post_init__(self) -> None:
        if not 0.0 < self.contraction <= 1.0:
            raise InputError(f"parameters: the contraction ρ must lie in (0, 1], got {self.contraction!r}")
        if not 0.0 <= self.p_comm < 1.0:
            raise InputError(f"parameters: p_comm must lie in [0, 1), got {self.p_comm!r}")

    @property
    def log_decay(self) -> float:
        """Log λ = −2 atanh ρ."""
        return -2.0 * math.atanh(self.contraction) if self.contraction < 1.0 else -math.inf

    @classmethod
    def tuned(
        cls,
        problem: Source,
        network: Network,
        *,
        tau: float = math.nan,
        r: float | None = None,
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
        if not 0.0 < split < 1.0:
            raise InputError(f"the split r must lie strictly between 0 and 1, got {split!r}")
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

    def __str__(self) -> str:
        rows: list[tuple[str, str, object]] = [
            ("contraction", "ρ", self.contraction),
            ("dual curvature", "σ_A", self.dual_curvature),
            ("curvature split", "r", self.split),
            ("P(gossip round)", "p_comm", self.p_comm),
            ("virtual weight", "α", self.virtual_weight),
        ]
        return text_table("Parameters of block-synchronous ADFS", rows)


@single_threaded
def largest_scaled_laplacian(network: Network, sigma: np.ndarray) -> float:
    """Return λ_max(D^{-1/2} Lap D^{-1/2}), D = diag(σ), from above where it comes from Lanczos."""
    root = sp.diags_array(1.0 / np.sqrt(sigma))
    scaled = root @ network.laplacian() @ root
    if network.n_nodes <= 400:
        return float(np.linalg.eigvalsh(scaled.toarray())[-1])
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
