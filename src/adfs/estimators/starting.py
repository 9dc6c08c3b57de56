"""Starting a method from a dual point other than zero, and keeping its end.

APCG may start anywhere: with x_0 = v_0 = Aλ_0 its guarantee speaks of the distance from λ_0. On a connected
graph Aλ_0 is any choice of tips and centres whose sum over all nodes is zero. So tips s fix the total of the
centres, −Σ x_ij s_ij, and the natural share of node i is σ_i/Σσ of it: every node then starts at the same
θ(s).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adfs.algorithms.adfs import AdfsProcess
from adfs.algorithms.adfs_general import GeneralAdfsProcess
from adfs.algorithms.base import EventEffort, Method, Process, RoundEffort, Setting
from adfs.algorithms.ns_adfs import NsAdfsProcess
from adfs.network import Network
from adfs.problem import GeneralProblem, Problem
from adfs.theory import NodeSummary

__all__ = ["Started", "place"]


def place(process: Process, problem: Problem | GeneralProblem, dual: np.ndarray) -> bool:
    """Put a process that is at position 0 at a dual point; return whether its kind can.

    Parameters
    ----------
    process : Process
        ADFS or NS-ADFS over all nodes.
    problem : Problem or GeneralProblem
    dual : ndarray of shape (N,), or (N, d) for general terms
        The tips, in the order of the problem's rows; clipped into the domain.
    """
    tips = problem.clip_to_domain(dual)
    centers = problem.sigma[:, None] * problem.primal_from_dual(tips)
    if isinstance(process, AdfsProcess | NsAdfsProcess):
        # The imaginary parts are the lags (or u): zero, so that x, v and their mean are all there.
        process.state.tips[...] = tips
        process.state.centers[...] = centers
        return True
    if isinstance(process, GeneralAdfsProcess):
        process.tip_mean[...] = tips
        process.mean[...] = centers
        return True
    return False


class Started(Method):
    """A method that starts at a dual point (zero when None), and whose process can be asked for afterwards.

    Parameters
    ----------
    inner : Method
    dual : ndarray, optional
        The tips to start from, in the order of the problem's rows.

    Attributes
    ----------
    process : Process or None
        The process of the last run.
    """

    def __init__(self, inner: Method, dual: np.ndarray | None = None) -> None:
        # What a method says of itself is said of its class; here it is that of the one inside.
        facts = ("name", "kind", "smooth_only", "general", "options")
        vars(self).update({fact: getattr(inner, fact) for fact in facts})
        self.inner = inner
        self.dual = dual
        self.process: Process | None = None

    def parameters(
        self,
        problem: Problem | GeneralProblem | NodeSummary,
        network: Network,
        *,
        choice: Any = None,
        tau: float | None = None,
    ) -> Any:
        """Return the constants of the method inside."""
        return self.inner.parameters(problem, network, choice=choice, tau=tau)

    def start(self, setting: Setting) -> Process:
        """Return a process at position 0, at the dual point."""
        self.process = self.inner.start(setting)
        if self.dual is not None:
            place(self.process, setting.problem, self.dual)
        return self.process

    def position_of(self, parameters: Any, summary: NodeSummary, passes: float) -> float:
        """Return the position of the method inside."""
        return self.inner.position_of(parameters, summary, passes)

    def adapt(self, parameters: Any, options: Mapping[str, Any]) -> Any:
        """Return the constants as the method inside adapts them."""
        return self.inner.adapt(parameters, options)

    def effort(self, parameters: Any, summary: NodeSummary, network: Network) -> EventEffort | RoundEffort:
        """Return what a clock must know of the method inside."""
        return self.inner.effort(parameters, summary, network)

    def check(self, problem: Problem | GeneralProblem, options: Mapping[str, Any]) -> None:
        """Raise unless the method inside can run."""
        self.inner.check(problem, options)
