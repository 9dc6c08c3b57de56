"""Constants that rest on assumptions, which certificates check: a run that finds one wrong re-tunes itself.

A loss whose curvature has no bound (Poisson, Gamma) is given one for every sample
(`adfs.problem.curvatures`). Where a certificate finds margins beyond, the curvatures of those samples are
doubled, and the run goes on from its dual variables with constants for the new ones.

An ℓ1 term takes the curvature of the centres away where θ is 0, and with it the proof of the linear rate:
σ_A is then an assumption too. Where the certified gap does not fall, the run goes on from its dual variables
with a tenth of σ_A, and the ρ that follows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from adfs.algorithms.adaptive import ADAPTIVE, adaptive_retuner
from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.errors import InputError
from adfs.problem import FiniteSum, Problem
from adfs.problem.curvatures import beyond, first_curvatures, view_with
from adfs.problem.evaluation import node_sums
from adfs.theory import NodeSummary
from adfs.theory.records import Record

__all__ = ["Assumptions", "retuner_for"]

_FIRST, _APART = 1.0, 1.5  # looks at 1/ρ, 1.5/ρ, 2.25/ρ, …
_EVERY = 2.0  # with an ℓ1 term, at 2/ρ, 4/ρ, 6/ρ, …
_MORE = 2.0
_STALLED = 0.5  # a gap above this share of the one before has not fallen: exp(−2) was expected
_LESS = 0.1
_LEAST = 1e-6  # of what σ_A was tuned to
_LEAST_GAP = 1e-13  # relative; below it rounding decides


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
            assert isinstance(problem, Problem)
            self._beta = first_curvatures(problem, start, total)
        return self._view(problem)

    def _view(self, problem: FiniteSum) -> FiniteSum:
        if self._beta is None:
            return problem
        assert isinstance(problem, Problem)
        return view_with(problem, self._beta)

    def looks(self, parameters: Record, summary: NodeSummary) -> Iterator[float]:
        stride = (_EVERY if self._l1 else _FIRST) / parameters.contraction
        at = stride
        while math.isfinite(at):
            yield float(math.ceil(at))
            at = max(at + stride if self._l1 else _APART * at, math.ceil(at) + 1.0)

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
            constants = dataclasses.replace(
                constants,
                contraction=math.sqrt(self._share) * constants.contraction,
                dual_curvature=self._share * constants.dual_curvature,
            )
        told = {"beyond": beyond_now, "share": self._share}
        return Phase(view, summary, constants, view.clip_to_domain(look.tips), told)

    def _double(self, look: Look, beta: np.ndarray) -> float:
        """Double the curvatures of samples whose margins are beyond; return how many there are anywhere."""
        assert isinstance(look.problem, Problem)
        found = beyond(look.problem, look.theta, beta)
        here = node_sums(found.astype(np.float64), look.problem.offsets)
        self._beta = np.where(found, _MORE * beta, beta)
        return float(look.total(here[:, None])[0])


def retuner_for(problem: FiniteSum, choice: object) -> Retuner | None:
    """Return what a run of ADFS is re-tuned by: a choice that adapts, or what its constants assume."""
    if not problem.assumes_curvature and problem.l1 is None:
        return adaptive_retuner(problem, choice)
    if isinstance(choice, str) and choice in ADAPTIVE:
        what = "an l1 term" if problem.l1 is not None else f"the loss {problem.loss_name!r}"
        raise InputError(f"parameters={choice!r} does not take {what}; use 'tuned'")
    return Assumptions(l1=problem.l1 is not None)
