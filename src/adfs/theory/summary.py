"""The few numbers per node that parameters are made of: these can be gathered, the samples cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


class _OneNode(NodeSummary):
    """The summary of one node: λ_max(K) is computed when asked for, which ADFS on one node never does."""

    def __init__(self, problem: FiniteSum, **numbers: np.ndarray) -> None:
        super().__init__(batch_kappa=np.empty(0), **numbers)
        self.__dict__["_problem"] = problem
        del self.__dict__["batch_kappa"]

    @cached_property
    def batch_kappa(self) -> np.ndarray:
        problem: FiniteSum = self.__dict__["_problem"]
        return np.asarray(problem.batch_smoothness / problem.sigma)


#: What parameters are computed from: a problem, or what its nodes say of their data.
Source = FiniteSum | NodeSummary


def node_sizes(problem: FiniteSum | NodeSizes) -> NodeSizes:
    """Return the sizes of a problem's nodes (sizes are returned as they are)."""
    if isinstance(problem, NodeSizes):
        return problem
    return NodeSizes(np.diff(problem.offsets), node_sums(problem.active, problem.offsets).astype(np.int64))


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
    smoothness, offsets = problem.smoothness, problem.offsets
    numbers: dict[str, np.ndarray] = {
        "sigma": problem.sigma,
        "kappa": problem.kappa,
        "root_sums": node_sums(sampling_weights(smoothness, active, offsets, problem.sigma), offsets),
        "largest_smoothness": node_maxima(smoothness, offsets),
        **vars(node_sizes(problem)),
    }
    if problem.n_nodes == 1:
        return _OneNode(problem, **numbers)
    return NodeSummary(batch_kappa=problem.batch_smoothness / problem.sigma, **numbers)


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
            "ADFS needs smooth losses; for hinge, absolute, quantile and epsilon-insensitive losses "
            "use 'ns-adfs' (NonSmoothParameters) or a smoothed loss"
        )
