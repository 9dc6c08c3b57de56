"""Losses that are not smooth, by ADFS on smooth ones: kinks are rounded, ever less as the gap falls.

A stage runs on the loss with its kinks rounded over a width. When that is solved to a share of the certified
gap of the loss itself, the next stage has half the width. Near the optimum most samples are far from their
kinks. A sample that is further from there than its margin has moved since the check before is taken to stay:
its dual variable is known, and it is not drawn (`adfs.problem.views`). Where a margin leaves its interval all
the same, the next check makes new intervals. Certificates are of the true problem and stay valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from adfs.problem import FiniteSum, Problem
from adfs.problem.evaluation import node_maxima, node_sums
from adfs.problem.views import BoxedProblem, smoothed
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.stages import Stage, StageRule, Stages

# The smooth problem is solved when its gap is at most this share of the certified one.
_SOLVED_SHARE = 0.7
# An interval has so many widths on each side, besides the distance that margins have moved.
_INTERVAL_WIDTHS = 4.0
_LEAST_WIDTH = float(np.finfo(np.float64).eps)  # of the first width


class Smoothing(StageRule):
    """Shrinks the width over which kinks are rounded."""

    identity = "smoothing"

    def __init__(self) -> None:
        # The state of the rule: the widths at first and now, the last check's margins, and the intervals.
        self._first_width, self._width = 1.0, 1.0
        self._last_margins: np.ndarray | None = None
        self._intervals: np.ndarray | None = None

    def state(self) -> dict[str, np.ndarray]:
        kept = {"margins": self._last_margins, "intervals": self._intervals}
        widths = {"widths": np.array([self._first_width, self._width])}
        return widths | {name: values for name, values in kept.items() if values is not None}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._first_width, self._width = (float(number) for number in state["widths"])
        self._last_margins, self._intervals = state.get("margins"), state.get("intervals")
        return self._problem(problem)

    def first_problem(
        self, problem: FiniteSum, start: np.ndarray | None, add: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        losses = problem.loss_sums(np.zeros(problem.n_features))
        sums = add(np.stack([losses, node_sums(problem.weights, problem.node_starts)], axis=1))
        # The mean loss at θ = 0 is about the distance of margins from their kinks.
        self._first_width = self._width = float(sums[0] / sums[1]) or 1.0
        if start is not None:
            # The width of a run that has come so far: the gap falls about as the square of the width.
            theta = -add(problem.row_sums(start)) / float(add(problem.sigma[:, None])[0])
            excess = float(add(problem.gap_parts(start, theta))[0])
            self._width *= min(1.0, math.sqrt(excess / sums[0])) if sums[0] > 0.0 else 1.0
            self._width = max(self._width, _LEAST_WIDTH * self._first_width)
            margins = self._last_margins = problem.margins_at(theta)
            self._intervals = _around(margins, 2.0 * _INTERVAL_WIDTHS * self._width)
            drawn = node_sums(self._problem(problem).active.astype(np.float64), problem.node_starts)
            if add(drawn[:, None])[0] == 0.0:
                self._intervals = None
        return self._problem(problem)

    def _problem(self, problem: FiniteSum) -> Problem:
        """Return the problem of a stage: smooth, and in boxes if there are intervals."""
        smooth = smoothed(problem, self._width)
        return smooth if self._intervals is None else BoxedProblem(smooth, self._intervals)

    def checks(self, stages: Stages) -> Iterator[float]:
        """Check at 1/ρ, 2/ρ, 3/ρ, … from the beginning of a stage."""
        stride, number = max(1.0, 1.0 / stages.setting.parameters.contraction), 1
        while True:
            yield float(math.ceil(number * stride))
            number += 1

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        problem, duals = stages.problem, certificate.duals
        assert duals is not None
        margins = problem.margins_at(certificate.theta)
        # The gap of the smooth problem, without its boxes.
        parts = smoothed(problem, self._width).gap_parts(duals, certificate.theta)
        stages.charge(passes=1.0, sums=2)
        smooth_gap = float(stages.nodes.add(parts)[0])
        solved = smooth_gap <= _SOLVED_SHARE * certificate.absolute_gap
        solved = solved and self._width > _LEAST_WIDTH * self._first_width
        before, self._last_margins = self._last_margins, margins
        left = False
        if self._intervals is not None:
            left = bool(np.any((margins < self._intervals[:, 0]) | (margins > self._intervals[:, 1])))
        # A stage goes on until it is solved, unless a sample that is not drawn should be.
        if not stages.any(left) and not solved:
            return None
        if solved:
            self._width *= 0.5
        self._intervals = None
        if before is not None:
            moved = node_maxima(np.abs(margins - before), problem.node_starts)[problem.node_of_row]
            self._intervals = _around(margins, moved + _INTERVAL_WIDTHS * self._width)
        following = self._problem(problem)
        if not stages.any(bool(following.active.any())):
            self._intervals = None  # every dual variable would be known, and no sample left to draw
            following = self._problem(problem)
        summary = stages.summarize(following)
        drawn = float(summary.n_active.sum() / summary.n_samples.sum())
        parameters, start = stages.parameters_for(summary), following.clip_to_domain(duals)
        return Stage(following, summary, parameters, start, {"width": self._width, "drawn": drawn})


def _around(margins: np.ndarray, distance: np.ndarray | float) -> np.ndarray:
    """Return intervals around margins (N,); shape (N, 2)."""
    return np.column_stack([margins - distance, margins + distance])
