"""The sizes and condition numbers that parameters and predictions are computed from.

`NodeSummary` has a few numbers per node, which processes can share while their samples stay where they are.
`Facts` has the numbers of the problem as a whole, from which the planner predicts costs for any network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import (
    inner_product,
    loss_curvatures,
    node_maxima,
    node_sums,
    over_sigma,
    sampling_weights,
)


@dataclass(frozen=True)
class NodeSizes:
    """The number of samples of each node.

    Attributes
    ----------
    n_samples : ndarray of shape (n,)
        m_i.
    n_active : ndarray of shape (n,)
        The number of samples whose loss is not constant.
    n_features : ndarray of shape (n,)
        d, the same at every node.
    """

    n_samples: np.ndarray
    n_active: np.ndarray
    n_features: np.ndarray


@dataclass(frozen=True)
class NodeSummary(NodeSizes):
    """The sizes and condition numbers of each node, arrays of shape (n,).

    Attributes
    ----------
    sigma
        σ_i.
    kappa
        κ_i = Σ_j L_ij/σ_i (infinite for losses that are not smooth).
    batch_kappa
        λ_max(K_i), K_i = βX_iᵀW_iX_i/σ_i: at most κ_i.
    root_sums
        S_i = Σ_j √(1 + L_ij/σ_i) over the active samples.
    largest_smoothness
        max_j L_ij.
    """

    sigma: np.ndarray
    kappa: np.ndarray
    batch_kappa: np.ndarray
    root_sums: np.ndarray
    largest_smoothness: np.ndarray

    def with_other(self, **numbers: np.ndarray) -> NodeSummary:
        """Return a summary in which the given numbers replace those of the same name."""
        # `dataclasses.replace` would read, and so compute, the numbers that are replaced.
        names = [item.name for item in fields(NodeSummary) if item.name not in numbers]
        return NodeSummary(**{name: getattr(self, name) for name in names}, **numbers)


class _OneNode(NodeSummary):
    """The summary of one node.

    λ_max(K) takes many passes over the data and most methods on one node do not need it, so it is computed on
    first use.
    """

    def __init__(self, problem: FiniteSum, **numbers: np.ndarray) -> None:
        # The class is frozen, so the numbers go directly into the dictionary of the object.
        self.__dict__.update(numbers, _problem=problem)

    @cached_property
    def batch_kappa(self) -> np.ndarray:
        return over_sigma(self.__dict__["_problem"].batch_smoothness, self.sigma)


#: Parameters are computed from a problem or from the summary of its nodes.
Source = FiniteSum | NodeSummary


def node_sizes(problem: FiniteSum | NodeSizes) -> NodeSizes:
    """Return the sizes of a problem's nodes (sizes are returned as they are)."""
    if isinstance(problem, NodeSizes):
        return problem
    # The rows of a node are contiguous: node i has the rows from starts[i] to starts[i + 1].
    starts = problem.node_starts
    active = node_sums(problem.active, starts).astype(np.int64)
    return NodeSizes(np.diff(starts), active, np.full(active.size, problem.n_features))


def summarize(problem: Source, *, whole: bool = True) -> NodeSummary:
    """Return the summary of a problem's nodes (a summary is returned as it is).

    Parameters
    ----------
    problem : FiniteSum or NodeSummary
    whole : bool
        False for the part of a problem that one process holds: it may have no active sample.
    """
    if isinstance(problem, NodeSummary):
        return problem
    active, starts, sigma = problem.active, problem.node_starts, problem.sigma
    if whole and not active.any():
        raise InputError(
            "every sample is a zero row or has weight zero: the minimiser is theta = 0, "
            "there is nothing to run"
        )
    # These numbers take one pass over the data at most; λ_max takes many.
    numbers = {
        **vars(node_sizes(problem)),
        "sigma": sigma,
        "kappa": problem.kappa,
        "root_sums": node_sums(sampling_weights(problem.smoothness, active, starts, sigma), starts),
        "largest_smoothness": node_maxima(problem.smoothness, starts),
    }
    if problem.n_nodes == 1:
        return _OneNode(problem, **numbers)
    # Without an ℓ2 term no method needs λ_max.
    batch = problem.batch_smoothness if sigma.all() else numbers["kappa"]
    return NodeSummary(**numbers, batch_kappa=over_sigma(batch, sigma))


def summarize_on(
    network: Network, problem: Source, *, tau: float = math.nan, smooth: bool = True
) -> NodeSummary:
    """Return the summary of a problem, after checks of the network, of τ and (if ``smooth``) of the loss."""
    summary = summarize(problem)
    if not isinstance(network, Network):
        raise InputError(
            f"the network must be an adfs.Network, got {network!r}; make one with adfs.Network(…)"
        )
    if summary.sigma.size != network.n_nodes:
        raise InputError(
            f"the problem has {summary.sigma.size} nodes and the network {network.n_nodes}; "
            "they must be the same"
        )
    # Losses without a smooth gradient have L = ∞ and so κ = ∞.
    if smooth and not np.all(np.isfinite(summary.kappa)):
        raise InputError(
            "ADFS needs smooth losses; for hinge, absolute, quantile and epsilon_insensitive losses "
            "use 'ns-adfs' (NonSmoothParameters) or a smoothed loss"
        )
    check_tau(tau)
    return summary


def check_tau(tau: float) -> None:
    """Raise unless a communication time is at least 0 (or left out)."""
    # nan stands for a time that was not given.
    if not (math.isnan(tau) or 0.0 <= tau < math.inf):
        raise InputError(f"tau must be finite and at least 0, got {tau!r}")


def curvature_near_optimum(problem: FiniteSum) -> float | None:
    """Return the mean second derivative of the losses near the optimum, relative to its bound.

    For a linear model, at the best point along the first step of L-BFGS. None: the loss has several outputs,
    or the same second derivative everywhere.
    """
    loss, smoothness = problem.loss, problem.smoothness
    if loss.n_outputs > 1 or loss.curvature_type == "constant" or not problem.active.any():
        return None
    diagonal = loss.beta * problem.column_squares.sum(axis=0) + problem.total_sigma
    move = -problem.gradient(np.zeros(problem.n_features)) / diagonal
    # Bisect the logarithm of the length by the sign of the slope: 8 gradients find it between 1/256 and 256,
    # to 2 %.
    length, factor = 1.0, 16.0
    for _ in range(8):
        downhill = inner_product(problem.gradient(length * move), move) < 0.0
        length *= factor if downhill else 1.0 / factor
        factor = math.sqrt(factor)
    curvatures = loss_curvatures(loss, problem.margins_at(length * move), problem.labels)
    mean = float(curvatures @ smoothness) / (loss.beta * float(smoothness.sum()))
    # If all losses are flat there, the ℓ2 term decides.
    return min(1.0, max(mean, 1.0 / (1.0 + float(smoothness.sum()) / problem.total_sigma)))


@dataclass(frozen=True, eq=False)
class Facts:
    """The sizes and condition numbers of a problem as if one machine held all the data.

    When the samples are split evenly over n nodes, the objective stays the same: each node has σ_i = Σσ/n,
    and so about the same κ.

    Parameters
    ----------
    n_samples, n_features : int
        N of all nodes together, and d.
    kappa_s : float
        ΣL_j/Σσ, the stochastic condition number; infinite for a loss that is not smooth.
    kappa_b : float
        1 + λ_max(βXᵀWX)/Σσ, the batch condition number.
    smoothness : ndarray of shape (N,), optional
        L_j/Σσ of each sample; all are equal when left out.
    spread : float
        Σ w²‖x‖²/(F(0) Σσ), on which the time of NS-ADFS depends.
    entries_per_row : float, optional
        Non-zeros per row of sparse data.
    n_outputs : int
    curvature_type : str
        That of the loss, see `adfs.problem.Loss`.
    l1, ridge, intercept : bool
        Whether there is an ℓ1 term, an ℓ2 term (without one condition numbers are infinite), and an intercept
        without a penalty.
    known_summary : NodeSummary, optional
        The summary of the nodes that hold the samples now.
    curvature : float, optional
        The mean second derivative of the losses near the optimum, relative to its bound; None: not known.

    Attributes
    ----------
    smooth : bool
        Whether the loss is smooth.
    row_entries : float
        The numbers that a row stores.

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
    curvature_type: str = "continuous"
    l1: bool = False
    ridge: bool = True
    intercept: bool = False
    known_summary: NodeSummary | None = None
    curvature: float | None = None
    smooth: bool = field(init=False)
    row_entries: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_features"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if not (self.kappa_s > 0.0 and self.kappa_b >= 1.0):
            raise InputError(
                f"kappa_s must be above 0 and kappa_b at least 1, got {self.kappa_s!r} and {self.kappa_b!r}"
            )
        # The factor allows for the rounding of the two numbers.
        if not self.kappa_b <= 1.0 + self.kappa_s * (1.0 + 1e-9):
            raise InputError(
                f"kappa_b is at most 1 + kappa_s (λ_max is at most the trace), got {self.kappa_b:g} "
                f"and {self.kappa_s:g}"
            )
        if self.curvature is not None and not 0.0 < self.curvature <= 1.0:
            raise InputError(f"curvature must be above 0 and at most 1, got {self.curvature!r}")
        # The class is frozen, so these go around its own assignment.
        lasso = not self.ridge and self.curvature_type != "kinks"
        object.__setattr__(self, "smooth", math.isfinite(self.kappa_s) or lasso)
        dense = self.n_features / self.n_outputs
        entries = dense if self.entries_per_row is None else self.entries_per_row
        object.__setattr__(self, "row_entries", entries)

    @classmethod
    def of(cls, problem: FiniteSum) -> Facts:
        """Return the facts of a problem, on however many nodes it is."""
        if not problem.linear:
            raise InputError("a plan is made for a linear model (adfs.Problem) or for adfs.planning.Facts")
        samples, sigma = problem.samples, problem.total_sigma
        known: dict[str, Any] = {
            "n_samples": problem.n_samples,
            "n_features": problem.n_features,
            "entries_per_row": problem.entries_per_row,
            "n_outputs": samples.loss.n_outputs,
            "curvature_type": samples.loss.curvature_type,
            "l1": problem.l1 is not None,
            "ridge": sigma > 0.0,
        }
        if not sigma > 0.0:
            return cls(kappa_s=math.inf, kappa_b=math.inf, **known)
        # Without condition numbers the time depends on the size of the subgradients.
        if not problem.smooth:
            norms = float(np.sum(samples.weights**2 * problem.row_norms_squared))
            spread = norms / (problem.value_at_zero * sigma)
            return cls(kappa_s=math.inf, kappa_b=math.inf, spread=spread, **known)
        # λ_max of all rows together, not of each node: the planner splits the rows in other ways.
        smoothness = np.asarray(problem.smoothness / sigma)
        return cls(
            kappa_s=float(smoothness.sum()),
            kappa_b=1.0 + float(problem.merged().batch_smoothness[0]) / sigma,
            smoothness=smoothness,
            known_summary=summarize(problem) if problem.n_nodes > 1 else None,
            curvature=curvature_near_optimum(problem),
            **known,
        )

    @classmethod
    def of_summary(cls, summary: NodeSummary, n_features: int, **known: Any) -> Facts:
        """Return the facts of a problem from the summary of its nodes; ``known`` are other fields by name.

        For one node κ_b takes its upper bound 1 + κ_s, because computing λ_max would take longer than some
        fits. This makes L-BFGS look more expensive than it is.
        """
        total = float(summary.sigma.sum())
        smooth = bool(np.all(np.isfinite(summary.kappa)))
        kappa_s = float(summary.kappa @ summary.sigma) / total if smooth else math.inf
        # λ_max of a sum is at most the sum of the nodes' λ_max, and at most the trace.
        batch = kappa_s
        if smooth and summary.sigma.size > 1:
            batch = min(kappa_s, float(summary.batch_kappa @ summary.sigma) / total)
        return cls(
            n_samples=int(summary.n_samples.sum()),
            n_features=n_features,
            kappa_s=kappa_s,
            kappa_b=1.0 + batch,
            ridge=total > 0.0,
            known_summary=summary,
            **known,
        )

    @cached_property
    def near_optimum(self) -> Facts:
        """The facts with the condition numbers near the optimum in place of their bounds, where known."""
        if self.curvature is None:
            return self
        share, known = self.curvature, self.known_summary
        if known is not None:
            # As if all samples of a node had the same L.
            squares = (known.root_sums / np.maximum(1, known.n_active)) ** 2
            known = known.with_other(
                kappa=share * known.kappa,
                batch_kappa=share * known.batch_kappa,
                root_sums=known.n_active * np.sqrt(np.maximum(1.0, 1.0 + share * (squares - 1.0))),
                largest_smoothness=share * known.largest_smoothness,
            )
        return replace(
            self,
            kappa_s=share * self.kappa_s,
            kappa_b=1.0 + share * (self.kappa_b - 1.0),
            smoothness=None if self.smoothness is None else share * self.smoothness,
            known_summary=known,
            curvature=None,
        )

    def _batch_kappa(self, n_nodes: int) -> float:
        """Return an estimate of λ_max(βX_iᵀW_iX_i)/σ_i for one of n nodes.

        Few rows have a larger λ_max in proportion than many: (1 + √(e/m))² times the limit for many rows,
        with e = trace/λ_max the effective dimension.
        """
        of_all_rows = self.kappa_b - 1.0
        if not math.isfinite(self.kappa_s) or of_all_rows <= 0.0:
            return max(0.0, of_all_rows)
        # First the limit for many rows, then the value for the rows of one node.
        effective = self.kappa_s / of_all_rows
        limit = of_all_rows / (1.0 + math.sqrt(effective / self.n_samples)) ** 2
        rows = self.n_samples / n_nodes
        return min(self.kappa_s, limit * (1.0 + math.sqrt(effective / rows)) ** 2)

    def summary(self, n_nodes: int) -> NodeSummary:
        """Return the summary of n nodes that share the samples evenly, with Σσ = 1.

        If the problem is on n nodes already, the summary of these nodes is returned.
        """
        if self.known_summary is not None and self.known_summary.sigma.size == n_nodes:
            return self.known_summary
        if not 1 <= n_nodes <= self.n_samples:
            raise InputError(f"{self.n_samples} samples cannot be shared by {n_nodes} nodes")
        # The first nodes have one sample more if n does not divide N.
        counts = self.n_samples // n_nodes + (np.arange(n_nodes) < self.n_samples % n_nodes)
        ones = np.ones(n_nodes)
        each = np.asarray(self.kappa_s / self.n_samples if self.smoothness is None else self.smoothness)
        return NodeSummary(
            n_samples=counts,
            n_active=counts,
            n_features=np.full(n_nodes, self.n_features),
            sigma=ones / n_nodes,
            kappa=self.kappa_s * n_nodes * (counts / self.n_samples),
            batch_kappa=self._batch_kappa(n_nodes) * ones,
            # Every node has about the same mean root as all samples together, for σ_i = Σσ/n.
            root_sums=counts * float(np.mean(np.sqrt(1.0 + n_nodes * each))),
            largest_smoothness=float(each.max()) * ones,
        )
