"""Constants that a run adapts: ADFS that re-tunes itself from its own certificate.

Tuned constants are for the worst curvature of the loss. A certified gap G = F(θ) − D(s) says how far the
optimum can still be: F is Σσ-strongly convex and so is what −D has of θ(s) = θ, and both errors are in G, so
‖θ − θ*‖ ≤ √(G/Σσ). Each sample's optimal margin then lies in an interval, its optimal dual variable in a box,
and its curvature may be taken there (`adfs.problem.boxes`). Every theorem holds with the smaller curvatures.

``"adaptive-safe"`` uses that radius. ``"adaptive"`` uses a share of it, which is not proven; the certificate,
which is of the true problem, cannot be fooled by it. Where a margin leaves its interval the box was too
small: the next look widens it to the proven one, and a run whose gap stalls goes on with proven ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum, Problem
from adfs.problem.boxes import BoxedProblem, can_be_boxed, intervals
from adfs.problem.labels import ShiftedLabels
from adfs.theory import BlockParameters, NodeSummary, Parameters

__all__ = ["ADAPTIVE", "Adaptive", "adaptive_retuner", "predicted_time"]

#: The names of the choices, and the share of the proven radius that each takes.
ADAPTIVE: Mapping[str, float] = {"adaptive": 0.2, "adaptive-safe": 1.0}

_FALLEN = 4.0  # the gap must have fallen so much since the last re-tuning
_QUICKER = 0.85  # and the predicted time must be at most this share
_FIRST, _APART = 1.5, 2.0  # looks at 1.5/ρ, 3/ρ, 6/ρ, …
_LEAST_GAP = 1e-13  # relative; below it rounding decides
_SLACK = 1.001  # on the radius, for the rounding of θ and of the gap
_STALLED = 0.5  # a gap above this share of the one a look before has not fallen


def predicted_time(parameters: Any, network: Network, tau: float | None) -> float:
    """Return the predicted time per factor e of the error, in units of one sample's computation.

    An event of ADFS is a sample at one node, or a message over one edge; a step of block-synchronous ADFS is
    a sample at every node or a message over every edge. Without τ a message takes as long as a sample.
    """
    message = 1.0 if tau is None else tau
    if isinstance(parameters, BlockParameters):
        return (1.0 - parameters.p_comm + message * parameters.p_comm) / parameters.contraction
    assert isinstance(parameters, Parameters)
    n = parameters.n_nodes
    own = np.bincount(network.edges.ravel(), weights=np.repeat(parameters.edge_probability, 2), minlength=n)
    busiest = float(own.max()) if own.size else 0.0
    return (parameters.p_comp / n + message * busiest) / parameters.contraction


class Adaptive(Retuner):
    """Re-tunes from certificates.

    Parameters
    ----------
    share : float
        The share of the proven radius that intervals have, 1 for proven ones.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        # What later decisions follow from: the gap of the last re-tuning and of the last look, the share that
        # is used from now on, and the intervals of the phase.
        self._tuned, self._looked, self._used = 1.0, math.inf, share
        self._margins: np.ndarray | None = None

    def words(self) -> str:
        return f"adaptive, {self.share}"

    def state(self) -> dict[str, np.ndarray]:
        numbers = {"numbers": np.array([self._tuned, self._looked, self._used])}
        return numbers if self._margins is None else numbers | {"margins": self._margins}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._tuned, self._looked, self._used = (float(number) for number in state["numbers"])
        self._margins = state.get("margins")
        if self._margins is None:
            return problem
        assert isinstance(problem, Problem)
        return BoxedProblem(problem, self._margins)

    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        at = _FIRST / parameters.contraction
        while math.isfinite(at):
            yield float(math.ceil(at))
            at = max(_APART * at, math.ceil(at) + 1.0)

    def decide(self, look: Look) -> Phase | None:
        problem = look.problem
        assert isinstance(problem, Problem)
        stalled, self._looked = look.gap > _STALLED * self._looked, look.gap
        if not _LEAST_GAP < look.gap < math.inf:
            return None
        outside = self._outside(look, problem)
        left = look.any(bool(outside.any()))
        if left and stalled:
            self._used = 1.0
        if not left and look.gap > self._tuned / _FALLEN:
            return None
        view = BoxedProblem(problem, self._new_margins(look, problem, outside))
        if not look.any(bool(view.active.any())):
            return None  # all are known, and nothing would be left to draw
        return self._phase(look, view, needed=left)

    def _outside(self, look: Look, problem: Problem) -> np.ndarray:
        """Return which margins have left their intervals: none of a phase without, or with proven ones."""
        if self._margins is None or self.share == 1.0:
            return np.zeros(problem.n_samples, dtype=np.bool_)
        margins, labels = problem.X @ look.theta, problem.labels
        if isinstance(labels, ShiftedLabels):
            margins = margins + labels.shift
        slack = 1e-9 * (1.0 + np.abs(margins))
        return np.asarray((margins < self._margins[:, 0] - slack) | (margins > self._margins[:, 1] + slack))

    def _new_margins(self, look: Look, problem: Problem, outside: np.ndarray) -> np.ndarray:
        proven = _SLACK * math.sqrt(look.excess / look.total_sigma)
        radius = np.where(outside, proven, self._used * proven)
        found = intervals(problem, look.theta, look.tips, look.excess, radius)
        if self.share == 1.0 and self._margins is not None:
            # Both hold of the optimum.
            found[:, 0] = np.maximum(found[:, 0], self._margins[:, 0])
            found[:, 1] = np.minimum(found[:, 1], self._margins[:, 1])
            found[:, 0] = np.minimum(found[:, 0], found[:, 1])
        return found

    def _phase(self, look: Look, view: BoxedProblem, *, needed: bool) -> Phase | None:
        """Return the phase with a view, unless it would not be worth its restart."""
        # For λ_max(K_i): Gram matrices of so many columns, or products with vectors, in units of a pass.
        width = view.entries_per_row or view.n_features
        look.charge(passes=min(math.ceil((width + 1) / 10), 8) if look.summary.n_nodes > 1 else 1, sums=1)
        summary = look.summarize(view)
        constants = look.constants(summary)
        before = predicted_time(look.parameters, look.network, look.tau)
        after = predicted_time(constants, look.network, look.tau)
        if not needed and after > _QUICKER * before:
            return None
        self._tuned, self._margins = look.gap, view.margins
        drawn, all_drawn = float(summary.n_active.sum()), float(summary.n_samples.sum())
        told = {"time_before": before, "time": after, "drawn": drawn / all_drawn, "share": self._used}
        return Phase(view, summary, constants, view.clip_to_domain(look.tips), told)


def adaptive_retuner(problem: FiniteSum, choice: object) -> Adaptive | None:
    """Return the retuner of a choice of parameters, None for one that is not adaptive."""
    if not isinstance(choice, str) or choice not in ADAPTIVE:
        return None
    if not isinstance(problem, Problem) or not can_be_boxed(problem.loss):
        raise InputError(
            f"parameters={choice!r} takes a linear model with the loss logistic, squared-hinge, huber, "
            f"smoothed-hinge or smoothed-quantile, not {problem.loss_name!r}; use 'tuned'"
        )
    return Adaptive(ADAPTIVE[choice])
