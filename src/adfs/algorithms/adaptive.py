"""Constants that a run adapts: ADFS that re-tunes itself from its own certificate.

Tuned constants are for the worst curvature of the loss. A certified gap G = F(θ) − D(s) says how far the
optimum can still be: F is Σσ-strongly convex and so is what −D has of θ(s) = θ, and both errors are in G, so
‖θ − θ*‖ ≤ √(G/Σσ). Each sample's optimal margin then lies in an interval, its optimal dual variable in a box,
and its curvature may be taken there (`adfs.problem.views`). Every theorem holds with the smaller curvatures.

``"adaptive-safe"`` uses that radius. ``"adaptive"`` uses a share of it, which is not proven; the certificate,
which is of the true problem, cannot be fooled by it. Where a margin leaves its interval the box was too
small: the next look widens it to the proven one, and a run whose gap stalls goes on with proven ones.

Other constants rest on assumptions, which certificates check. A loss whose curvature has no bound (Poisson,
Gamma) is given one for every sample. Where a certificate finds margins beyond, the curvatures of those
samples are doubled, and the run goes on from its dual variables with constants for the new ones. An ℓ1 term
takes the curvature of the centres away where θ is 0, and with it the proof of the linear rate: σ_A is then an
assumption too. Where the certified gap does not fall, the run goes on from its dual variables with a tenth of
σ_A, and the ρ that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import node_sums, sampling_weights
from adfs.problem.views import (
    BoxedProblem,
    beyond,
    first_curvatures,
    intervals,
    view_with,
)
from adfs.theory import BlockParameters, NodeSummary, Parameters

#: The names of the choices, and the share of the proven radius that each takes.
ADAPTIVE: Mapping[str, float] = {"adaptive": 0.2, "adaptive-safe": 1.0}

_FALLEN = 4.0  # the gap must have fallen so much since the last re-tuning
_QUICKER = 0.7  # and the predicted time must be at most this share
_HOPED = 0.65  # a radius of 0 must give at least this, or later looks are not worth their certificates
_FIRST, _APART = 1.0, 2.0  # looks at 1/ρ, 2/ρ, 4/ρ, …
_PASSES = 4.0  # and not before so many passes, since a look takes one
_LEAST_GAP = 1e-13  # relative; below it rounding decides
_SLACK = 1.001  # on the radius, for the rounding of θ and of the gap
_STALLED = 0.5  # a gap above this share of the one a look before has not fallen
# Where assumptions are checked: at 1/ρ, 1.5/ρ, 2.25/ρ, …; with an ℓ1 term at 2/ρ, 4/ρ, 6/ρ, …
_ASSUMED_APART, _EVERY = 1.5, 2.0
_MORE, _LESS = 2.0, 0.1  # what a curvature, and σ_A, is multiplied by
_LEAST = 1e-6  # of what σ_A was tuned to


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
    """Re-tunes from certificates, with intervals that have a share of the proven radius (1: proven ones).

    ``all_stay`` says that curvatures may fall and never vanish, so that no sample leaves the schedule.
    """

    def __init__(self, share: float, all_stay: bool = False) -> None:
        self.share, self.all_stay = share, all_stay
        # What later decisions follow from: the gap of the last re-tuning and of the last look, the share that
        # is used from now on; by how much an estimate was wrong; whether there is nothing more to gain, and
        # whether the intervals of the phase are proven; and these.
        self._tuned, self._looked, self._used = 1.0, math.inf, share
        self._bias, self._over, self._proven = 1.0, False, True
        self._margins: np.ndarray | None = None

    def words(self) -> str:
        return f"adaptive, {self.share}"

    def state(self) -> dict[str, np.ndarray]:
        numbers = [self._tuned, self._looked, self._used, self._bias, self._over, self._proven]
        found = {"numbers": np.array(numbers, dtype=np.float64)}
        return found if self._margins is None else found | {"margins": self._margins}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._tuned, self._looked, self._used, self._bias = (float(one) for one in state["numbers"][:4])
        self._over, self._proven = (bool(flag) for flag in state["numbers"][4:])
        self._margins = state.get("margins")
        if self._margins is None:
            return problem
        return BoxedProblem(problem, self._margins)

    def prepare(self, problem: FiniteSum) -> None:
        small = problem.first_samples()
        if small is not None:
            radius = np.ones(small.n_samples)
            BoxedProblem(small, intervals(small, np.zeros(small.n_features), radius, 1.0, radius))

    def begin(
        self,
        parameters: Any,
        summary: NodeSummary,
        network: Network,
        tau: float | None,
        constants: Callable[[NodeSummary], Any],
    ) -> None:
        """Do not look at all where no curvature would do: every sample must still be drawn."""
        if self._margins is not None or not self.all_stay or not summary.n_active.any():
            return
        nothing = np.full(summary.n_nodes, np.finfo(np.float64).tiny)
        roots = summary.n_active.astype(np.float64)
        flat = summary.with_other(kappa=nothing, batch_kappa=nothing, root_sums=roots)
        hoped = _HOPED * predicted_time(parameters, network, tau)
        self._over = self._over or predicted_time(constants(flat), network, tau) > hoped

    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        in_step = isinstance(parameters, BlockParameters)
        drawn = summary.n_samples.max() if in_step else summary.n_samples.sum()
        at = max(_FIRST / parameters.contraction, _PASSES * drawn / (1.0 - parameters.p_comm))
        while math.isfinite(at) and not self._over:
            yield float(math.ceil(at))
            at = max(_APART * at, math.ceil(at) + 1.0)

    def decide(self, look: Look) -> Phase | None:
        problem = look.problem
        stalled, self._looked = look.gap > _STALLED * self._looked, look.gap
        if not _LEAST_GAP < look.gap < math.inf:
            return None
        outside = self._outside(look, problem)
        left = look.any(bool(outside.any()))
        if left and stalled:
            self._used = 1.0
        if not left and look.gap > self._tuned / _FALLEN:
            return None
        before = predicted_time(look.parameters, look.network, look.tau)
        margins = self._intervals(look, problem, np.where(outside, 1.0, self._used))
        if self._proven and self._margins is not None:
            margins = _both(margins, self._margins)
        view = BoxedProblem(problem, margins)
        if not look.any(bool(view.active.any())):
            return None  # all are known, and nothing would be left to draw
        estimate = math.inf if left else self._estimate(look, view)
        if left or self._bias * estimate <= _QUICKER * before:
            phase = self._phase(look, view, before, estimate)
            if phase is not None:
                return phase
        # What a radius of 0 would give is about the best that later looks may find.
        point = BoxedProblem(problem, np.repeat(problem.margins_at(look.theta)[:, None], 2, axis=1))
        self._over = self._proven and self._bias * self._estimate(look, point) > _HOPED * before
        return None

    def _outside(self, look: Look, problem: FiniteSum) -> np.ndarray:
        """Return which margins have left their intervals; nobody asks once these are proven.

        They are from the start with the proven radius, and else as soon as the proven intervals, which shrink
        as the gap does, lie inside them.
        """
        nothing = np.zeros(problem.n_samples, dtype=np.bool_)
        if self._margins is None:
            return nothing
        if not self._proven:
            proven = self._intervals(look, problem, np.ones(problem.n_samples))
            inside = (proven[:, 0] >= self._margins[:, 0]) & (proven[:, 1] <= self._margins[:, 1])
            self._proven = not look.any(bool((problem.active & ~inside).any()))
        if self._proven:
            return nothing
        margins = problem.margins_at(look.theta)
        slack = 1e-9 * (1.0 + np.abs(margins))
        return np.asarray((margins < self._margins[:, 0] - slack) | (margins > self._margins[:, 1] + slack))

    @staticmethod
    def _intervals(look: Look, problem: FiniteSum, share: np.ndarray) -> np.ndarray:
        """Return intervals of margins with some share of the proven radius each; shape (N, 2)."""
        radius = _SLACK * math.sqrt(look.excess / look.total_sigma) * share
        return intervals(problem, look.theta, look.duals, look.excess, radius)

    def _estimate(self, look: Look, view: BoxedProblem) -> float:
        """Return about the predicted time with a view: λ_max(K_i) is taken to shrink as the trace does.

        It takes nothing but a few numbers per node beside those of the certificate.
        """
        known, active, smoothness = look.summary, view.active, view.smoothness
        roots = sampling_weights(smoothness, active, view.node_starts, view.sigma)
        own = np.stack(
            [node_sums(values, view.node_starts) for values in (roots, smoothness, active)], axis=1
        )
        root_sums, sums, n_active = look.collect(own).T
        if not n_active.any():
            return 0.0
        kappa = sums / known.sigma
        shrunk = np.divide(kappa, known.kappa, out=np.zeros_like(kappa), where=known.kappa > 0.0)
        batch_kappa = shrunk * known.batch_kappa if known.n_nodes > 1 else kappa
        summary = known.with_other(
            n_active=n_active, kappa=kappa, batch_kappa=batch_kappa, root_sums=root_sums
        )
        return predicted_time(look.constants(summary), look.network, look.tau)

    def _phase(self, look: Look, view: BoxedProblem, before: float, estimate: float) -> Phase | None:
        """Return the phase with a view, unless it would not be worth its restart.

        It is begun whatever it is worth where the ``estimate`` is infinite.
        """
        if look.summary.n_nodes > 1:
            # λ_max(K_i): a row of w entries adds w(w + 1)/2 products to a Gram matrix, and a sample's step is
            # 5w and a prox of about 75; or it takes products with vectors, 8 passes at most.
            width = view.entries_per_row or view.n_features
            look.charge(passes=min(math.ceil(0.5 * width * (width + 1) / (5 * width + 75)), 8))
        look.charge(sums=1)
        summary = look.summarize(view)
        constants = look.constants(summary)
        after = predicted_time(constants, look.network, look.tau)
        if estimate < math.inf and after > _QUICKER * before:
            self._bias = after / estimate  # later estimates are mended by it
            return None
        self._tuned, self._margins, self._proven = look.gap, view.margins, self._used == 1.0
        drawn, all_drawn = float(summary.n_active.sum()), float(summary.n_samples.sum())
        told = {"time_before": before, "time": after, "drawn": drawn / all_drawn, "share": self._used}
        return Phase(view, summary, constants, view.clip_to_domain(look.duals), told)


def _both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return what two sets of intervals share, which hold the same points; (N, 2)."""
    low, high = np.maximum(first[:, 0], second[:, 0]), np.minimum(first[:, 1], second[:, 1])
    return np.stack([np.minimum(low, high), high], axis=1)


class Assumptions(Retuner):
    """Checks what constants rest on at certificates, and corrects it."""

    def __init__(self, *, l1: bool) -> None:
        self._l1 = l1
        # What later decisions follow from: the curvatures assumed, the share of σ_A, the last look's gap.
        self._beta: np.ndarray | None = None
        self._share, self._looked = 1.0, math.inf

    def words(self) -> str:
        return f"assumptions, l1 {self._l1}"

    def state(self) -> dict[str, np.ndarray]:
        numbers = {"numbers": np.array([self._share, self._looked])}
        return numbers if self._beta is None else numbers | {"beta": self._beta}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._beta = state.get("beta")
        self._share, self._looked = (float(number) for number in state["numbers"])
        return self._view(problem)

    def first_view(
        self, problem: FiniteSum, start: np.ndarray | None, total: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        if problem.assumes_curvature:
            self._beta = first_curvatures(problem, start, total)
        return self._view(problem)

    def _view(self, problem: FiniteSum) -> FiniteSum:
        if self._beta is None:
            return problem
        return view_with(problem, self._beta)

    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        stride = (_EVERY if self._l1 else _FIRST) / parameters.contraction
        at = stride
        while math.isfinite(at):
            yield float(math.ceil(at))
            at = max(at + stride if self._l1 else _ASSUMED_APART * at, math.ceil(at) + 1.0)

    def decide(self, look: Look) -> Phase | None:
        beyond_now = 0.0 if self._beta is None else self._double(look, self._beta)
        stalled = self._l1 and look.gap > _LEAST_GAP and look.gap > _STALLED * self._looked
        self._looked = look.gap
        if stalled and beyond_now == 0.0 and self._share > _LEAST:
            self._share *= _LESS
        elif beyond_now == 0.0:
            return None
        view = self._view(look.problem)
        look.charge(passes=1.0, sums=1)
        summary = look.summarize(view)
        constants = look.constants(summary)
        if self._l1:
            constants = replace(
                constants,
                contraction=math.sqrt(self._share) * constants.contraction,
                dual_curvature=self._share * constants.dual_curvature,
            )
        told = {"beyond": beyond_now, "share": self._share}
        return Phase(view, summary, constants, view.clip_to_domain(look.duals), told)

    def _double(self, look: Look, beta: np.ndarray) -> float:
        """Double the curvatures of samples whose margins are beyond; return how many there are anywhere."""
        found = beyond(look.problem, look.theta, beta)
        here = node_sums(found.astype(np.float64), look.problem.node_starts)
        self._beta = np.where(found, _MORE * beta, beta)
        return float(look.total(here[:, None])[0])


def retuner_for(problem: FiniteSum, choice: object) -> Retuner | None:
    """Return what a run of ADFS is re-tuned by: a choice that adapts, or what its constants assume."""
    adapts = isinstance(choice, str) and choice in ADAPTIVE
    if problem.assumes_curvature or problem.l1 is not None:
        if adapts:
            what = "an l1 term" if problem.l1 is not None else f"the loss {problem.loss_name!r}"
            raise InputError(f"parameters={choice!r} does not take {what}; use 'tuned'")
        return Assumptions(l1=problem.l1 is not None)
    if not adapts:
        return None
    if not problem.loss.can_be_boxed:
        raise InputError(
            f"parameters={choice!r} takes a linear model with the loss logistic, squared_hinge, huber, "
            f"smoothed_hinge or smoothed_quantile, not {problem.loss_name!r}; use 'tuned'"
        )
    # The other losses have their full curvature or none.
    return Adaptive(ADAPTIVE[str(choice)], all_stay=problem.loss_name == "logistic")
