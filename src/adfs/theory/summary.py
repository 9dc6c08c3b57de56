"""The few numbers per node that parameters are made of: these can be gathered, the samples cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import node_maxima, node_sums, sampling_weights


@dataclass(frozen=True)
class NodeSizes:
    """How many samples each node has, arrays of shape (n,).

    Attributes
    ----------
    n_samples, n_active
        m_i, and how many of them are more than constants.
    """

    n_samples: np.ndarray
    n_active: np.ndarray

    @property
    def n_nodes(self) -> int:
        """N."""
        return int(self.n_samples.size)


@dataclass(frozen=True)
class NodeSummary(NodeSizes):
    """What each node says of its own data, arrays of shape (n,): more than its sizes.

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
        """Return a summary with other numbers, by name; of one node those are not computed first."""
        names = [item.name for item in fields(NodeSummary) if item.name not in numbers]
        return NodeSummary(**{name: getattr(self, name) for name in names}, **numbers)


class _OneNode(NodeSummary):
    """The summary of one node, each number computed when asked for: Newton's method never does."""

    def __init__(self, problem: FiniteSum) -> None:
        sizes = node_sizes(problem)
        self.__dict__.update(vars(sizes), sigma=problem.sigma, _problem=problem)

    @property
    def _own(self) -> FiniteSum:
        problem: FiniteSum = self.__dict__["_problem"]
        return problem

    @cached_property
    def kappa(self) -> np.ndarray:
        return self._own.kappa

    @cached_property
    def batch_kappa(self) -> np.ndarray:
        return np.asarray(self._own.batch_smoothness / self.sigma)

    @cached_property
    def root_sums(self) -> np.ndarray:
        return _root_sums(self._own)

    @cached_property
    def largest_smoothness(self) -> np.ndarray:
        return node_maxima(self._own.smoothness, self._own.node_starts)


def _root_sums(problem: FiniteSum) -> np.ndarray:
    roots = sampling_weights(problem.smoothness, problem.active, problem.node_starts, problem.sigma)
    return node_sums(roots, problem.node_starts)


#: What parameters are computed from: a problem, or what its nodes say of their data.
Source = FiniteSum | NodeSummary


def node_sizes(problem: FiniteSum | NodeSizes) -> NodeSizes:
    """Return the sizes of a problem's nodes (sizes are returned as they are)."""
    if isinstance(problem, NodeSizes):
        return problem
    return NodeSizes(
        np.diff(problem.node_starts), node_sums(problem.active, problem.node_starts).astype(np.int64)
    )


def summarize(problem: Source, *, whole: bool = True) -> NodeSummary:
    """Return the summary of a problem's nodes (a summary is returned as it is).

    A ``whole`` problem must have a sample that is more than a constant; a part of one need not.
    """
    if isinstance(problem, NodeSummary):
        return problem
    active = problem.active
    if whole and not active.any():
        raise InputError(
            "every sample is a zero row or has weight zero: the minimiser is theta = 0, "
            "there is nothing to run"
        )
    if problem.n_nodes == 1:
        return _OneNode(problem)
    return NodeSummary(
        **vars(node_sizes(problem)),
        sigma=problem.sigma,
        kappa=problem.kappa,
        batch_kappa=problem.batch_smoothness / problem.sigma,
        root_sums=_root_sums(problem),
        largest_smoothness=node_maxima(problem.smoothness, problem.node_starts),
    )


def summarize_smooth(problem: Source, network: Network, tau: float = math.nan) -> NodeSummary:
    """Return the summary of a problem with smooth losses on a network of as many nodes, both checked."""
    summary = summarize(problem)
    check_network(summary, network)
    check_smooth(summary)
    check_tau(tau)
    return summary


def check_network(summary: NodeSummary, network: Network) -> None:
    """Raise unless there is a network, of as many nodes as the problem has."""
    if not isinstance(network, Network):
        raise InputError(
            f"the network must be an adfs.Network, got {network!r}; make one with adfs.Network(…)"
        )
    if summary.n_nodes != network.n_nodes:
        raise InputError(
            f"the problem has {summary.n_nodes} nodes and the network {network.n_nodes}; "
            "they must be the same"
        )


def check_tau(tau: float) -> None:
    """Raise unless a communication time is at least 0 (or left out)."""
    if not (math.isnan(tau) or 0.0 <= tau < math.inf):
        raise InputError(f"tau must be finite and at least 0, got {tau!r}")


def check_smooth(summary: NodeSummary) -> None:
    """Raise unless every loss is smooth."""
    if not np.all(np.isfinite(summary.kappa)):
        raise InputError(
            "ADFS needs smooth losses; for hinge, absolute, quantile and epsilon_insensitive losses "
            "use 'ns-adfs' (NonSmoothParameters) or a smoothed loss"
        )
