"""Constants that rest on assumptions, which certificates check: a run that finds one wrong re-tunes itself.

A loss whose curvature has no bound (Poisson, Gamma) is given one for every sample
(`adfs.problem.curvatures`). Where a certificate finds margins beyond, the curvatures of those samples are
doubled, and the run goes on from its dual variables with constants for the new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from adfs.algorithms.adaptive import adaptive_retuner
from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.errors import InputError
from adfs.problem import FiniteSum, Problem
from adfs.problem.curvatures import beyond, first_curvatures, view_with
from adfs.problem.evaluation import node_sums
from adfs.theory import NodeSummary

__all__ = ["Assumptions", "retuner_for"]

_FIRST, _APART = 1.0, 1.5  # looks at 1/ρ, 1.5/ρ, 2.25/ρ, …
_MORE = 2.0


class Assumptions(Retuner):
    """Checks what constants rest on at certificates, and corrects it."""

    def __init__(self) -> None:
        self._beta: np.ndarray | None = None

    def words(self) -> str:
        return "assumptions"

    def state(self) -> dict[str, np.ndarray]:
        return {} if self._beta is None else {"beta": self._beta}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._beta = state.get("beta")
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

    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        at = _FIRST / parameters.contraction
        while math.isfinite(at):
            yield float(math.ceil(at))
            at = max(_APART * at, math.ceil(at) + 1.0)

    def decide(self, look: Look) -> Phase | None:
        if self._beta is None:
            return None
        assert isinstance(look.problem, Problem)
        found = beyond(look.problem, look.theta, self._beta)
        here = node_sums(found.astype(np.float64), look.problem.offsets)
        count = float(look.total(here[:, None])[0])
        if count == 0.0:
            return None
        self._beta = np.where(found, _MORE * self._beta, self._beta)
        view = self._view(look.problem)
        look.charge(passes=1.0, sums=1)
        summary = look.summarize(view)
        constants = look.constants(summary)
        return Phase(view, summary, constants, view.clip_to_domain(look.tips), {"beyond": count})


def retuner_for(problem: FiniteSum, choice: object) -> Retuner | None:
    """Return what a run of ADFS is re-tuned by: a choice that adapts, or what its constants assume."""
    if not problem.assumes_curvature:
        return adaptive_retuner(problem, choice)
    if isinstance(choice, str) and choice.startswith("adaptive"):
        raise InputError(f"parameters={choice!r} does not take the loss {problem.loss_name!r}; use 'tuned'")
    return Assumptions()
