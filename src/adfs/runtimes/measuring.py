"""Evaluating a run: the certificate and the measures of the nodes' iterates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Process
from adfs.problem import GeneralProblem, Problem
from adfs.problem.evaluation import loss_derivatives
from adfs.runtimes.recording import Record

__all__ = ["Certificate", "certify", "measure_nodes"]


class Certificate(NamedTuple):
    """A point θ (``theta``), F(θ) (``value``), a lower bound of F* (``lower``), and their relative difference (``gap``)."""

    theta: np.ndarray
    value: float
    lower: float
    gap: float


def certify(problem: Problem | GeneralProblem, process: Process) -> Certificate:
    """Certify the point that a run's dual variables stand for.

    A method without dual variables is certified at the mean of its nodes: s = wℓ'(xᵀθ) is feasible for any θ.
    """
    tips = process.dual()
    if isinstance(problem, GeneralProblem):
        assert tips is not None
        theta = problem.primal_from_dual(tips)
        value, gap = problem.objective(theta), problem.duality_gap(tips, relative=False)
        return Certificate(theta, value, value - gap, gap / (problem.value_at_zero or 1.0))
    if tips is None:
        center = process.primal().mean(axis=0)
        tips = problem.weights * loss_derivatives(problem.loss, problem.X @ center, problem.y)
    s = problem.clip_to_domain(tips)
    theta = problem.primal_from_dual(s)
    value, lower = problem.objective(theta), problem.dual_objective(s)
    scale = problem.value_at_zero if problem.value_at_zero > 0.0 else 1.0
    return Certificate(theta, value, lower, (value - lower) / scale)


def measure_nodes(problem: Problem | GeneralProblem, iterates: np.ndarray, record: Record) -> dict[str, float]:
    """Return the asked measures of the nodes' iterates (n, d), reduced or one a node."""
    found: dict[str, np.ndarray] = {}
    if "objective" in record.measures or "suboptimality" in record.measures:
        objective = np.asarray([problem.objective(theta) for theta in iterates]) if isinstance(problem, GeneralProblem) else problem.objective(iterates)
        if "objective" in record.measures:
            found["objective"] = objective
        if "suboptimality" in record.measures:
            found["suboptimality"] = objective - problem.optimum().value
    if "distance" in record.measures:
        found["distance"] = np.linalg.norm(iterates - problem.optimum().theta, axis=1)
    if "consensus" in record.measures:
        found["consensus"] = np.linalg.norm(iterates - iterates.mean(axis=0), axis=1)
    out: dict[str, float] = {}
    for name, values in found.items():
        if record.nodes == "each":
            out.update({f"{name}[{node}]": float(value) for node, value in enumerate(values)})
        else:
            out[name] = float(values.mean() if record.nodes == "mean" else values.max())
    return out
