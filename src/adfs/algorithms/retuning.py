"""Runs in phases: at a certificate a run may begin anew, with other constants for another view of its data.

A *retuner* decides. It has its own fixed positions at which it looks at a certificate, whatever is recorded
and whenever the run is to stop; at each it goes on as before, or returns a `Phase`: a view of the problem
(other curvatures, boxes, a larger smoothness), the constants for it, and the dual variables to start from.
All that a run counts carries over: positions, work, seconds, rows, budgets, checkpoints, the idealised clock.
The draws of phase k come from (seed, k), those of phase 0 from the seed as ever.

To add a retuner:

1. Derive from `Retuner`: say where to `looks`, and what to `decide` there. Every process calls `decide` with
   its own part of the data and the same certificate, and all must decide alike: from numbers of `Look` that
   are the same everywhere (``gap``, what `Look.summarize`, `Look.constants`, `Look.total`, `Look.collect` and
   `Look.any` return), in the same order of calls.
2. What a decision follows from besides the look (a gap remembered, a curvature doubled) goes into `state` and
   comes back in `restore`, so that a resumed run has the same bits.
3. Say with `Look.charge` what a decision takes besides its certificate, for the idealised clock.
4. Return it from `Method.retuner` for the problems, or the choice of parameters, that it is for. The method
   must be able to start anywhere (`Process.place`) and to run on the views that the retuner makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.theory import NodeSummary


@dataclass(frozen=True, eq=False)
class Phase:
    """What a run goes on with.

    Attributes
    ----------
    problem : FiniteSum
        This process's view of its nodes. Certificates and measures are of the true problem all the same.
    summary : NodeSummary
        Of the views of all processes.
    parameters : object
        The method's constants, the same in every process.
    start : ndarray of shape (N, *tip_shape)
        This process's dual variables, in the domains of the view; the nodes start at their θ.
    told : mapping of str to float
        What `Run.details` tells of this re-tuning, besides its position, gap and ρ.
    """

    problem: FiniteSum
    summary: NodeSummary
    parameters: Any
    start: np.ndarray
    told: Mapping[str, float] = field(default_factory=dict)


class Look(ABC):
    """A certificate as a retuner sees it, and what it may ask of all processes together.

    Attributes
    ----------
    phase : int
        The number of the phase that the run is in.
    position : float
        Of the run, not of the phase.
    problem : FiniteSum
        This process's nodes, the true problem.
    view : FiniteSum
        The same as the phase sees it.
    summary : NodeSummary
        Of the views of all processes.
    parameters : object
        The constants of the phase.
    network : Network
        The whole network.
    tau : float or None
        Time of a message in units of a sample's computation, where it is known.
    theta : ndarray of shape (d,)
        The point that the dual variables stand for.
    tips : ndarray of shape (N, *tip_shape)
        This process's dual variables, inside the domains of the true problem.
    gap : float
        The certified relative duality gap of both.
    excess : float
        The same as it is, not relative to F(0).
    total_sigma : float
        Σ_i σ_i over all nodes.
    """

    phase: int
    position: float
    problem: FiniteSum
    view: FiniteSum
    summary: NodeSummary
    parameters: Any
    network: Network
    tau: float | None
    theta: np.ndarray
    duals: np.ndarray
    gap: float
    excess: float
    total_sigma: float

    @abstractmethod
    def summarize(self, view: FiniteSum) -> NodeSummary:
        """Return the summary of the views of all processes."""

    @abstractmethod
    def constants(self, summary: NodeSummary) -> Any:
        """Return the method's default constants for a summary, the same in every process."""

    @abstractmethod
    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over all nodes, in their order, of one vector per node of this process (k, d)."""

    @abstractmethod
    def collect(self, values: np.ndarray) -> np.ndarray:
        """Return one number or vector per node of this process as one per node of the network."""

    @abstractmethod
    def any(self, flag: bool) -> bool:
        """Return whether any process raises a flag."""

    @abstractmethod
    def charge(self, *, passes: float = 0.0, sums: int = 0) -> None:
        """Say what the decision takes: passes over each node's samples, and sums over all nodes.

        The certificate itself, one pass and two sums, and the sum of a restart are charged already.
        """


class Retuner(ABC):
    """Decides at certificates whether a run goes on in a new phase; see the module's docstring."""

    @abstractmethod
    def words(self) -> str:
        """Return what its decisions follow from, the same for the same retuner: checkpoints compare it."""

    def prepare(self, problem: FiniteSum) -> None:  # noqa: B027  # most have nothing to compile
        """Compile what a decision calls, outside the time of the run."""

    def first_view(
        self, problem: FiniteSum, start: np.ndarray | None, total: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        """Return the view of the first phase, the problem itself unless told otherwise.

        Every process calls it, with the tips that the run starts from (in their domains) and a function that
        sums one vector per node of this process over all nodes.
        """
        return problem

    def begin(  # noqa: B027  # most know nothing before they look
        self,
        parameters: Any,
        summary: NodeSummary,
        network: Network,
        tau: float | None,
        constants: Callable[[NodeSummary], Any],
    ) -> None:
        """Take note of what a phase begins with, before it is asked where to look.

        Every process calls it; ``constants`` are the method's for a summary, the same in every process.
        """

    @abstractmethod
    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        """Yield how far from its beginning to look in a phase with these constants.

        Whole numbers above 0 that rise, and depend on nothing else but what was decided before.
        """

    @abstractmethod
    def decide(self, look: Look) -> Phase | None:
        """Return what to go on with, or None to go on as before."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what later decisions and the view of the phase follow from, for this process's nodes."""
        return {}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        """Take a state back, and return the view of the phase that it was written in."""
        return problem
