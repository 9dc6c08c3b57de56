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

from adfs.algorithms.base import EventEffort, Method, Process, RoundEffort, Setting
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.theory import NodeSizes, NodeSummary

__all__ = ["Started"]


class Started(Method):
    """A method that starts at a dual point (zero when None), and whose process can be asked for afterwards.

    Parameters
    ----------
    inner : Method
    dual : ndarray, optional
        The tips to start from, in the order of the problem's rows; clipped into their domains. A method that
        cannot start elsewhere than 0 starts there.

    Attributes
    ----------
    process : Process or None
        The process of the last run.
    """

    def __init__(self, inner: Method, dual: np.ndarray | None = None) -> None:
        # What a method says of itself is said of its class; here it is that of the one inside.
        facts = ("name", "kind", "smooth_only", "general", "several_outputs", "options")
        vars(self).update({fact: getattr(inner, fact) for fact in facts})
        self.inner = inner
        self.dual = dual
        self.process: Process | None = None

    def parameters(
        self,
        problem: FiniteSum | NodeSummary,
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
            problem = setting.problem
            tips = problem.clip_to_domain(self.dual)
            self.process.place(tips, problem.sigma[:, None] * problem.primal_from_dual(tips))
        return self.process

    def position_of(self, parameters: Any, sizes: NodeSizes, passes: float) -> float:
        """Return the position of the method inside."""
        return self.inner.position_of(parameters, sizes, passes)

    def adapt(self, parameters: Any, options: Mapping[str, Any]) -> Any:
        """Return the constants as the method inside adapts them."""
        return self.inner.adapt(parameters, options)

    def effort(self, parameters: Any, sizes: NodeSizes, network: Network) -> EventEffort | RoundEffort:
        """Return what a clock must know of the method inside."""
        return self.inner.effort(parameters, sizes, network)

    def check(self, problem: FiniteSum, options: Mapping[str, Any]) -> None:
        """Raise unless the method inside can run."""
        self.inner.check(problem, options)
