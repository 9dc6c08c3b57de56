"""Evaluating a run: the certificate and the measures of the nodes' iterates, over all processes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Process
from adfs.problem.evaluation import add_squares
from adfs.problem.finite_sum import FiniteSum
from adfs.runtimes.cluster import Cluster
from adfs.runtimes.placement import Placement
from adfs.runtimes.recording import Record

__all__ = ["AllNodes", "Certificate", "certify", "compare_with_optimum", "measure_nodes"]

# What two sums of many rounded terms may be off by, relative to them.
_ROUNDING = 4.0 * np.finfo(np.float64).eps


class Certificate(NamedTuple):
    """A point ``theta``, F there (``value``), a lower bound of F* (``lower``) and their relative ``gap``.

    The gap is a difference of two sums: it is never given as less than their rounding, about 1e-15 of F(0).
    Where terms have no conjugate nothing is certified: ``lower`` is −∞ and ``gap`` is nan.
    """

    theta: np.ndarray
    value: float
    lower: float
    gap: float


class AllNodes:
    """What is known of the nodes of all processes together, each computing from its own data.

    Numbers are collected in the order of the nodes and vectors added in that order, so a certificate has the
    same bits however the nodes are spread.

    Parameters
    ----------
    cluster : Cluster
    placement : Placement
    problem : FiniteSum
        This process's nodes.

    Attributes
    ----------
    why : str
        What the numbers are for, in the sentence of a process that waits.
    sigma : ndarray of shape (n,)
        σ_i of all nodes.
    """

    def __init__(self, cluster: Cluster, placement: Placement, problem: FiniteSum) -> None:
        self.cluster, self.placement, self.problem = cluster, placement, problem
        self.why = "to sum up the data"
        self.sigma = self.collect(problem.sigma)
        self.total_sigma = float(self.sigma.sum())
        self._at_zero: float | None = None

    @property
    def value_at_zero(self) -> float:
        """F(0), computed once."""
        if self.cluster.size == 1:
            return self.problem.value_at_zero
        if self._at_zero is None:
            zero = np.zeros(self.problem.n_features)
            self._at_zero = float(self.collect(self.problem.loss_sums(zero)).sum())
        return self._at_zero

    def collect(self, values: np.ndarray) -> np.ndarray:
        """Return one number or vector per node of this process as one per node of the network."""
        return self.cluster.collect(values, self.placement, self.why)

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes of this process's vectors (k, d), shape (d,)."""
        return self.cluster.add(values, self.placement, self.why)

    def add_rows(self, tips: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij over all nodes from the tips of this process, shape (d,)."""
        if self.cluster.size == 1:  # without one vector per node
            return self.problem.row_total(tips)
        return self.add(self.problem.row_sums(tips))

    def objectives(self, points: np.ndarray) -> np.ndarray:
        """Return F at each of some points (p, d), shape (p,)."""
        return add_squares(self.collect(self.problem.loss_sums(points)), self.total_sigma, points)

    def primal_from_dual(self, tips: np.ndarray) -> np.ndarray:
        """Return θ = −Σ x_ij s_ij / Σ σ_i, shape (d,)."""
        return np.asarray(-self.add_rows(tips) / self.total_sigma)


def certify(process: Process, nodes: AllNodes) -> Certificate:
    """Certify the point that a run's dual variables stand for.

    A method without dual variables is certified at the mean of its nodes: s = wℓ'(xᵀθ) is feasible for any θ.
    """
    problem = nodes.problem
    if not problem.certifiable:
        theta = nodes.add(process.primal()) / nodes.sigma.size
        return Certificate(theta, float(nodes.objectives(theta[None, :])[0]), -np.inf, np.nan)
    tips = process.dual()
    if tips is None:
        tips = problem.slopes(nodes.add(process.primal()) / nodes.sigma.size)
    held = any(np.may_share_memory(tips, array) for array in process.arrays().values())
    tips = problem.clip_to_domain(tips, in_place=not held)  # nothing more as long as the data
    theta = nodes.primal_from_dual(tips)
    quadratic = 0.5 * nodes.total_sigma * float(theta @ theta)
    value = float(nodes.collect(problem.loss_sums(theta)).sum()) + quadratic
    lower = -float(nodes.collect(problem.conjugate_sums(tips)).sum()) - quadratic
    at_zero = nodes.value_at_zero
    gap = max(value - lower, _ROUNDING * (abs(value) + abs(lower)))
    return Certificate(theta, value, lower, gap / (at_zero if at_zero > 0.0 else 1.0))


def compare_with_optimum(iterates: np.ndarray, values: np.ndarray, nodes: AllNodes) -> Certificate:
    """Return how good the nodes' own iterates (n, d) are, from F at each (n,), where F* is known.

    The point is their mean and the value the mean of theirs; ``lower`` is F* itself.
    """
    lower = nodes.problem.optimum().value
    error = float((values - lower).mean())
    return Certificate(iterates.mean(axis=0), lower + error, lower, error / nodes.value_at_zero)


def measure_nodes(
    record: Record, iterates: np.ndarray, values: np.ndarray | None, nodes: AllNodes
) -> dict[str, float]:
    """Return the asked measures of all nodes' iterates (n, d), reduced or one per node.

    ``values`` is F at each iterate (n,), where a measure needs it.
    """
    problem = nodes.problem
    found: dict[str, np.ndarray] = {}
    if values is not None and "objective" in record.measures:
        found["objective"] = values
    if values is not None and "suboptimality" in record.measures:
        found["suboptimality"] = values - problem.optimum().value
    if "distance" in record.measures:
        found["distance"] = np.linalg.norm(iterates - problem.optimum().theta, axis=1)
    out: dict[str, float] = {}
    if values is not None and "worst" in record.measures:
        out["worst"] = float((values - problem.optimum().value).max())
    if "consensus" in record.measures:
        found["consensus"] = np.linalg.norm(iterates - iterates.mean(axis=0), axis=1)
    for name, each in found.items():
        if record.nodes == "each":
            out.update({f"{name}[{node}]": float(value) for node, value in enumerate(each)})
        else:
            out[name] = float(each.mean() if record.nodes == "mean" else each.max())
    return out
