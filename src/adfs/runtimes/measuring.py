"""Evaluating a run: the certificate and the measures of the nodes' iterates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Process
from adfs.errors import InputError
from adfs.problem import FiniteSum, GeneralProblem, Problem
from adfs.problem.evaluation import add_squares, sum_in_order
from adfs.problem.optimum import Optimum
from adfs.runtimes.recording import Record

__all__ = ["Certificate", "LocalSums", "NodeSums", "certify", "measure_nodes"]

AnyProblem = FiniteSum
Objective = Callable[[AnyProblem, np.ndarray], np.ndarray]


# What two sums of many rounded terms may be off by, relative to them.
_ROUNDING = 4.0 * np.finfo(np.float64).eps


class Certificate(NamedTuple):
    """A point ``theta``, F there (``value``), a lower bound of F* (``lower``) and their relative ``gap``.

    The gap is a difference of two sums: it is never given as less than their rounding, about 1e-15 of F(0).
    """

    theta: np.ndarray
    value: float
    lower: float
    gap: float


class NodeSums(ABC):
    """Sums over all nodes, whoever holds them, of what each computes from its own data.

    They are added in the order of the nodes, so a certificate has the same bits in every runtime.
    """

    @abstractmethod
    def sigma(self, problem: AnyProblem) -> np.ndarray:
        """Return σ_i of all nodes, shape (n,)."""

    @abstractmethod
    def value_at_zero(self, problem: AnyProblem) -> float:
        """Return F(0)."""

    @abstractmethod
    def collect(self, values: np.ndarray) -> np.ndarray:
        """Return one number a node of the block (k,) as one a node of the network (n,)."""

    @abstractmethod
    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the network's nodes of the block's vectors (k, d), shape (d,)."""

    @abstractmethod
    def add_rows(self, problem: AnyProblem, tips: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij over all nodes from the tips of the block, shape (d,)."""


class LocalSums(NodeSums):
    """The sums of a process that holds all nodes."""

    def sigma(self, problem: AnyProblem) -> np.ndarray:
        """Return σ_i."""
        return problem.sigma

    def value_at_zero(self, problem: AnyProblem) -> float:
        """Return F(0), which the problem keeps."""
        return problem.value_at_zero

    def collect(self, values: np.ndarray) -> np.ndarray:
        """Return the values."""
        return values

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return their sum."""
        return sum_in_order(values, np.zeros(values.shape[1]))

    def add_rows(self, problem: AnyProblem, tips: np.ndarray) -> np.ndarray:
        """Return Σ x_ij s_ij, without one vector a node."""
        return problem.row_total(tips)


def certify(problem: AnyProblem, process: Process, sums: NodeSums | None = None) -> Certificate:
    """Certify the point that a run's dual variables stand for.

    A method without dual variables is certified at the mean of its nodes: s = wℓ'(xᵀθ) is feasible for any θ.

    Parameters
    ----------
    problem, process
        Those of a block of nodes.
    sums : NodeSums, optional
        Adds over all nodes; left out, the block is all of them.
    """
    sums = LocalSums() if sums is None else sums
    sigma = sums.sigma(problem)
    total_sigma = float(sigma.sum())
    tips = process.dual()
    if tips is None:
        assert isinstance(problem, Problem)
        tips = problem.slopes(sums.add(process.primal()) / sigma.size)
    if isinstance(problem, Problem):
        held = any(np.may_share_memory(tips, array) for array in process.arrays().values())
        tips = problem.clip_to_domain(tips, in_place=not held)  # nothing more as long as the data
    else:
        tips = problem.clip_to_domain(tips)
    theta = np.asarray(-sums.add_rows(problem, tips) / total_sigma)
    quadratic = 0.5 * total_sigma * float(theta @ theta)
    value = float(sums.collect(problem.loss_sums(theta)).sum()) + quadratic
    lower = -float(sums.collect(problem.conjugate_sums(tips)).sum()) - quadratic
    at_zero = sums.value_at_zero(problem)
    gap = max(value - lower, _ROUNDING * (abs(value) + abs(lower)))
    return Certificate(theta, value, lower, gap / (at_zero if at_zero > 0.0 else 1.0))


def node_objectives(problem: AnyProblem, iterates: np.ndarray) -> np.ndarray:
    """Return F at each row of the iterates (k, d), shape (k,)."""
    return add_squares(problem.loss_sums(iterates), problem.total_sigma, iterates)


def _optimum(problem: AnyProblem) -> Optimum:
    if isinstance(problem, GeneralProblem):
        raise InputError("the optimum of general terms is unknown: record 'gap', 'objective' or 'consensus'")
    return problem.optimum()


def measure_nodes(
    problem: AnyProblem, iterates: np.ndarray, record: Record, objective: Objective = node_objectives
) -> dict[str, float]:
    """Return the asked measures of all nodes' iterates (n, d), reduced or one a node."""
    found: dict[str, np.ndarray] = {}
    if "objective" in record.measures or "suboptimality" in record.measures:
        values = objective(problem, iterates)
        if "objective" in record.measures:
            found["objective"] = values
        if "suboptimality" in record.measures:
            found["suboptimality"] = values - _optimum(problem).value
    if "distance" in record.measures:
        found["distance"] = np.linalg.norm(iterates - _optimum(problem).theta, axis=1)
    if "consensus" in record.measures:
        found["consensus"] = np.linalg.norm(iterates - iterates.mean(axis=0), axis=1)
    out: dict[str, float] = {}
    for name, values in found.items():
        if record.nodes == "each":
            out.update({f"{name}[{node}]": float(value) for node, value in enumerate(values)})
        else:
            out[name] = float(values.mean() if record.nodes == "mean" else values.max())
    return out
