"""The facts that costs are predicted from: sizes and condition numbers, whatever the number of nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adfs.errors import InputError
from adfs.problem import FiniteSum, Loss
from adfs.problem.evaluation import row_norms_squared
from adfs.theory.summary import NodeSummary, summarize


def loss_facts(loss: Loss) -> dict[str, Any]:
    """Return the fields of `Facts` that a loss decides."""
    return {
        "n_outputs": loss.n_outputs,
        "curved": loss.curvature_type == "continuous",
        "quadratic": loss.curvature_type == "constant",
        "unbounded": loss.assumes_curvature,
    }


@dataclass(frozen=True, eq=False)
class Facts:
    """The sizes and condition numbers of a problem, as one machine with all the data sees it.

    Split evenly over n nodes, the objective stays the same: each has σ_i = Σσ/n, and so about the same κ.

    Parameters
    ----------
    n_samples, n_features : int
        N of all nodes together, and d.
    kappa_s : float
        ΣL_j/Σσ, the stochastic condition number; infinite for a loss that is not smooth.
    kappa_b : float
        1 + λ_max(βXᵀWX)/Σσ, the batch condition number.
    smoothness : ndarray of shape (N,), optional
        L_j/Σσ of each sample; all alike when left out.
    spread : float
        Σ w²‖x‖²/(F(0) Σσ), which the non-smooth method's time depends on.
    entries_per_row : float, optional
        Non-zeros per row of sparse data.
    n_outputs : int
    curved : bool
        Whether the curvature of the loss is continuous and not constant, on which QNing relies.
    quadratic : bool
        Whether the loss is a square, which one Newton step minimises.
    unbounded : bool
        Whether the curvature of the loss has no bound, so that no rate is known.
    l1, intercept : bool
        Whether there is an ℓ1 term, and an intercept without a penalty.
    own : NodeSummary, optional
        The summary of the nodes that the samples are on already.

    Examples
    --------
    >>> facts = Facts(n_samples=10_000, n_features=20, kappa_s=4000.0, kappa_b=300.0)
    >>> facts.summary(16).n_samples.max()
    np.int64(625)
    """

    n_samples: int
    n_features: int
    kappa_s: float
    kappa_b: float
    smoothness: np.ndarray | None = None
    spread: float = 1.0
    entries_per_row: float | None = None
    n_outputs: int = 1
    curved: bool = True
    quadratic: bool = False
    unbounded: bool = False
    l1: bool = False
    intercept: bool = False
    own: NodeSummary | None = None

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_features"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if not (self.kappa_s > 0.0 and self.kappa_b >= 1.0):
            raise InputError(
                f"kappa_s must be above 0 and kappa_b at least 1, got {self.kappa_s!r} and {self.kappa_b!r}"
            )
        if not self.kappa_b <= 1.0 + self.kappa_s * (1.0 + 1e-9):
            raise InputError(
                f"kappa_b is at most 1 + kappa_s (λ_max is at most the trace), got {self.kappa_b:g} "
                f"and {self.kappa_s:g}"
            )

    @property
    def smooth(self) -> bool:
        """Whether the loss is."""
        return math.isfinite(self.kappa_s)

    @classmethod
    def of(cls, problem: FiniteSum) -> Facts:
        """Return the facts of a problem, on however many nodes it is."""
        if not problem.linear:
            raise InputError("a plan is made for a linear model (adfs.Problem) or for adfs.planning.Facts")
        samples = problem.samples
        known = loss_facts(samples.loss) | {"l1": problem.l1 is not None}
        sigma, whole = problem.total_sigma, problem.merged()
        if not problem.smooth:
            norms = float(np.sum(samples.weights**2 * row_norms_squared(samples.rows, problem.n_samples)))
            return cls(
                n_samples=problem.n_samples,
                n_features=problem.n_features,
                kappa_s=math.inf,
                kappa_b=math.inf,
                spread=norms / (problem.value_at_zero * sigma),
                entries_per_row=problem.entries_per_row,
                **known,
            )
        smoothness = np.asarray(problem.smoothness / sigma)
        return cls(
            n_samples=problem.n_samples,
            n_features=problem.n_features,
            kappa_s=float(smoothness.sum()),
            kappa_b=1.0 + float(whole.batch_smoothness[0]) / sigma,
            smoothness=smoothness,
            entries_per_row=problem.entries_per_row,
            **known,
            own=summarize(problem) if problem.n_nodes > 1 else None,
        )

    @classmethod
    def of_summary(cls, summary: NodeSummary, n_features: int, **known: Any) -> Facts:
        """Return the facts of nodes that have said of their data what parameters are made of.

        One node has its κ_b at its upper bound 1 + κ_s, which is to the disadvantage of L-BFGS there: to
        compute λ_max would take longer than some fits. What else is known are fields by name.
        """
        total, sizes = float(summary.sigma.sum()), summary.n_samples
        smooth = bool(np.all(np.isfinite(summary.kappa)))
        kappa_s = float(summary.kappa @ summary.sigma) / total if smooth else math.inf
        batch = kappa_s
        if summary.n_nodes == 1:
            summary = summary.with_other(batch_kappa=summary.kappa)
        elif smooth:
            batch = min(kappa_s, float(summary.batch_kappa @ summary.sigma) / total)
        return cls(
            n_samples=int(sizes.sum()),
            n_features=n_features,
            kappa_s=kappa_s,
            kappa_b=1.0 + batch,
            own=summary,
            **known,
        )

    def batch_kappa(self, n_nodes: int) -> float:
        """Return about λ_max(βX_iᵀW_iX_i)/σ_i of one of n nodes.

        Few rows have a larger λ_max in proportion than many: (1 + √(e/m))² times that of endless data, with
        e = trace/λ_max the effective dimension.
        """
        whole = self.kappa_b - 1.0
        if not self.smooth or whole <= 0.0:
            return max(0.0, whole)
        effective = self.kappa_s / whole
        endless = whole / (1.0 + math.sqrt(effective / self.n_samples)) ** 2
        rows = self.n_samples / n_nodes
        return min(self.kappa_s, endless * (1.0 + math.sqrt(effective / rows)) ** 2)

    def summary(self, n_nodes: int) -> NodeSummary:
        """Return what n nodes that share the samples evenly would say of their data, with Σσ = 1.

        Of as many nodes as the problem is on, their own summary.
        """
        if self.own is not None and self.own.n_nodes == n_nodes:
            return self.own
        if not 1 <= n_nodes <= self.n_samples:
            raise InputError(f"{self.n_samples} samples cannot be shared by {n_nodes} nodes")
        counts = self.n_samples // n_nodes + (np.arange(n_nodes) < self.n_samples % n_nodes)
        share = counts / self.n_samples
        each = np.full(n_nodes, 1.0)
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = np.array([self.kappa_s / self.n_samples])
        roots = float(np.mean(np.sqrt(1.0 + n_nodes * smoothness)))
        return NodeSummary(
            n_samples=counts,
            n_active=counts,
            sigma=each / n_nodes,
            kappa=self.kappa_s * n_nodes * share,
            batch_kappa=self.batch_kappa(n_nodes) * each,
            root_sums=counts * roots,
            largest_smoothness=float(smoothness.max()) * each,
        )
