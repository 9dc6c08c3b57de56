"""Assumptions that certificates check: curvatures of losses without a bound, and σ_A with an ℓ1 term.

A loss whose curvature has no bound (Poisson, Gamma, Tweedie) is given one for every sample. Where a
certificate finds larger curvatures, those of the samples are doubled, and the next stage begins with
parameters for them. An ℓ1 term takes the curvature of the centres away where θ is 0, and with it the proof of
the linear rate: σ_A is then an assumption too. Where the certified gap does not fall, the next stage has a
tenth of σ_A, and the ρ that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from adfs.problem import FiniteSum
from adfs.problem.evaluation import node_sums
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.stages import Stage, StageRule, Stages, has_stalled
from adfs.stages.boxes import above_curvatures, first_curvatures, with_curvatures

_CURVATURE_FACTOR, _SIGMA_FACTOR = 2.0, 0.1  # by which a curvature, and σ_A, are multiplied


class Assumptions(StageRule):
    """Begins a stage with larger curvatures, or a smaller σ_A, where a certificate contradicts them."""

    def __init__(self, *, l1: bool) -> None:
        self._l1 = l1
        self.identity = f"assumptions, l1 {l1}"
        # The state of the rule: the assumed curvatures, the share of σ_A, and the gap at the last check.
        self._beta: np.ndarray | None = None
        self._share, self._last_gap = 1.0, math.inf

    def state(self) -> dict[str, np.ndarray]:
        state = {"numbers": np.array([self._share, self._last_gap])}
        return state if self._beta is None else state | {"beta": self._beta}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._beta = state.get("beta")
        self._share, self._last_gap = (float(number) for number in state["numbers"])
        return self._boxed(problem)

    def first_problem(
        self, problem: FiniteSum, start: np.ndarray | None, add: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        if problem.assumes_curvature:
            # Twice the curvatures at the start: most runs then never need a second stage.
            self._beta = _CURVATURE_FACTOR * first_curvatures(problem, start, add)
        return self._boxed(problem)

    def _boxed(self, problem: FiniteSum) -> FiniteSum:
        return problem if self._beta is None else with_curvatures(problem, self._beta)

    def checks(self, stages: Stages) -> Iterator[float]:
        """Check a stage at 1/ρ, 1.5/ρ, 2.25/ρ and so on; with an ℓ1 term at 2/ρ, 4/ρ, 6/ρ and so on."""
        stride = (2.0 if self._l1 else 1.0) / stages.setting.parameters.contraction
        at = stride
        while math.isfinite(at):
            yield float(math.ceil(at))
            at = max(at + stride if self._l1 else 1.5 * at, math.ceil(at) + 1.0)

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        too_large = self._raise_curvatures(stages, certificate.theta)
        stalled = self._l1 and has_stalled(certificate.gap, self._last_gap)
        self._last_gap = certificate.gap
        # A curvature that was too small explains a stalled gap: σ_A is lowered only without one.
        if stalled and too_large == 0.0:
            self._share *= _SIGMA_FACTOR
        elif too_large == 0.0:
            return None
        problem = self._boxed(stages.problem)
        stages.charge(passes=1.0, sums=1)
        summary = stages.summarize(problem)
        parameters = stages.parameters_for(summary)
        # ρ is proportional to √σ_A.
        if self._l1:
            parameters = replace(
                parameters,
                contraction=math.sqrt(self._share) * parameters.contraction,
                dual_curvature=self._share * parameters.dual_curvature,
            )
        report = {"beyond": too_large, "share": self._share}
        assert certificate.duals is not None
        return Stage(problem, summary, parameters, problem.clip_to_domain(certificate.duals), report)

    def _raise_curvatures(self, stages: Stages, theta: np.ndarray) -> float:
        """Raise the curvatures that are too small at θ; return how many there are in all processes."""
        if self._beta is None:
            return 0.0
        problem = stages.problem
        too_large = above_curvatures(problem, theta, self._beta)
        self._beta = np.where(too_large, _CURVATURE_FACTOR * self._beta, self._beta)
        # Counted node by node, so that every process has the same sum.
        counts = node_sums(too_large.astype(np.float64), problem.node_starts)
        return float(stages.nodes.add(counts[:, None])[0])
