"""From a problem to a certified solution: what the estimators and ``adfs fit`` have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfs.algorithms import get_method
from adfs.errors import InputError
from adfs.estimators.starting import Started
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.runtimes import Outcome, simulate
from adfs.theory import node_sizes, smoothness_limit

__all__ = ["Plan", "Solution", "make_network", "solve"]


@dataclass(frozen=True)
class Plan:
    """How a problem is solved.

    Attributes
    ----------
    tol : float
        Certified relative duality gap to reach.
    max_iter : float
        Passes over the data.
    seed : int
    network : Network, optional
        None for one node.
    method : str
        ``"auto"`` is ``"adfs"`` for smooth losses and ``"ns-adfs"`` for others.
    parameters, tau, schedule, seconds, checkpoint, resume, progress
        As for `adfs.simulate`.
    """

    tol: float = 1e-6
    max_iter: float = 1000.0
    seed: int = 0
    network: Network | None = None
    method: str = "auto"
    parameters: str | None = None
    tau: float | None = None
    schedule: str = "iid"
    seconds: float | None = None
    checkpoint: Path | None = None
    resume: bool = False
    progress: bool | None = False

    def part(self, before: Sequence[Solution]) -> Plan:
        """Return the plan of the next of several problems: its own checkpoint, and the time that is left."""
        left = None if self.seconds is None else max(self.seconds - sum(one.seconds for one in before), 0.0)
        path = self.checkpoint
        own = None if path is None else path.with_name(f"{path.name}.{len(before)}")
        return replace(self, checkpoint=own, seconds=left)


@dataclass(frozen=True)
class Solution:
    """What came out.

    Attributes
    ----------
    theta : ndarray of shape (d,)
        The certified point.
    node_theta : ndarray of shape (n_nodes, d)
        What each node ended with.
    dual : ndarray of shape (N,) or (N, d), or None
        The tips that certify it, in the order of the problem's rows.
    gap : float
        Certified relative duality gap.
    passes : float
    seconds : float
    frame : DataFrame
        The recorded rows.
    outcome : Outcome
    method : str
    """

    theta: np.ndarray
    node_theta: np.ndarray
    dual: np.ndarray | None
    gap: float
    passes: float
    seconds: float
    frame: pd.DataFrame
    outcome: Outcome
    method: str


def make_network(graph: Any, n_nodes: int, seed: int) -> Network | None:
    """Return the network of a graph's name or of a user's own graph; None for one node."""
    if n_nodes == 1:
        return None
    return graph if isinstance(graph, Network) else Network(graph, n_nodes=n_nodes, seed=seed)


def solve(problem: Problem | GeneralProblem, plan: Plan, start: np.ndarray | None = None) -> Solution:
    """Solve a problem to the plan's tolerance, or as far as its budget goes.

    Parameters
    ----------
    problem : Problem or GeneralProblem
    plan : Plan
    start : ndarray, optional
        Tips to start from, in the order of the problem's rows.
    """
    if not problem.active.any():
        return _nothing_to_do(problem)
    smooth = isinstance(problem, GeneralProblem) or problem.loss.smooth
    name = ("adfs" if smooth else "ns-adfs") if plan.method == "auto" else plan.method
    inner = get_method(name)
    if inner.kind == "single" and problem.n_nodes > 1:
        raise InputError(f"method {name!r} runs on one machine; fit with one node")
    method = Started(inner, start)
    network = plan.network if plan.network is not None else Network("path:1")
    inner.check(problem, {})
    tau = plan.tau
    if problem.steps_below_smoothness and plan.parameters is None:
        # Their prox needs dual steps below L, which is raised where it is too small.
        problem, tau = problem.with_smoothness_above(smoothness_limit(problem.sigma, network)), None
    constants = inner.parameters(problem, network, choice=plan.parameters, tau=tau)
    run = simulate(
        method,
        problem,
        network,
        parameters=constants,
        schedule=plan.schedule,
        tau=plan.tau,
        seed=plan.seed,
        tol=plan.tol,
        events=math.ceil(inner.position_of(constants, node_sizes(problem), plan.max_iter)),
        seconds=plan.seconds,
        progress=plan.progress,
        checkpoint=plan.checkpoint,
        resume=plan.resume,
    )
    dual = None if method.process is None else method.process.dual()
    return Solution(
        run.coef,
        run.theta,
        dual,
        max(run.gap, 0.0),
        float(run.frame["passes"].iloc[-1]),
        run.seconds,
        run.frame,
        run.outcome,
        name,
    )


def _nothing_to_do(problem: Problem | GeneralProblem) -> Solution:
    """Every term is a constant: θ = 0 is optimal."""
    n, d = problem.n_nodes, problem.n_features
    dual = np.zeros((problem.n_samples, *problem.tip_shape))
    frame = pd.DataFrame([{"position": 0.0, "passes": 0.0, "seconds": 0.0, "gap": 0.0}])
    return Solution(np.zeros(d), np.zeros((n, d)), dual, 0.0, 0.0, 0.0, frame, Outcome.CONVERGED, "none")
