"""Losses that are not smooth, by ADFS on smooth ones: kinks are rounded, ever less as the gap falls.

A run is on the loss with its kinks rounded over a width. When that is solved to a share of the gap of the
loss itself, which certificates are of, the width shrinks. Near the optimum most samples are far from their
kinks: one whose margin is further from there than margins have moved since the look before is taken to stay,
its dual variable is known, and it is not drawn (`adfs.problem.views`). A margin that leaves its interval all
the same makes the next look draw new intervals, and no certificate is fooled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from adfs.algorithms.retuning import Look, Phase, Retuner
from adfs.problem import FiniteSum, Problem
from adfs.problem.evaluation import node_maxima, node_sums
from adfs.problem.views import BoxedProblem, smoothed
from adfs.theory import NodeSummary

# By what the width shrinks; at which share of the certified gap; and how many widths an interval has besides
# what margins have moved. Until the width is down to a share of the first, and from there on: by trial on six
# problems to 1e-6 (two real sets, three losses), and on the hinge of three sets to 1e-8.
_EARLY, _LATE = (0.5, 0.7, 4.0), (0.3, 0.3, 5.0)
_LATE_FROM = 0.01
_LEAST = 1e-14  # of the first width


class Smoothing(Retuner):
    """Shrinks the width of rounded kinks."""

    def __init__(self) -> None:
        # What later decisions follow from: the widths at first and now, the last look's margins, intervals.
        self._first, self._width = 1.0, 1.0
        self._before: np.ndarray | None = None
        self._intervals: np.ndarray | None = None

    def words(self) -> str:
        return "smoothing"

    def state(self) -> dict[str, np.ndarray]:
        kept = {"before": self._before, "intervals": self._intervals}
        widths = {"widths": np.array([self._first, self._width])}
        return widths | {name: values for name, values in kept.items() if values is not None}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        self._first, self._width = (float(number) for number in state["widths"])
        self._before, self._intervals = state.get("before"), state.get("intervals")
        return self._view(problem)

    def first_view(
        self, problem: FiniteSum, start: np.ndarray | None, total: Callable[[np.ndarray], np.ndarray]
    ) -> FiniteSum:
        losses = problem.loss_sums(np.zeros(problem.n_features))
        sums = total(np.stack([losses, node_sums(problem.weights, problem.node_starts)], axis=1))
        # The mean loss at θ = 0 is about how far margins are from their kinks.
        self._first = self._width = float(sums[0] / sums[1]) or 1.0
        if start is not None:
            # As a run that has come so far would be: the gap falls about as the square of the width.
            row_total = total(problem.row_sums(start))
            theta = -row_total / float(total(problem.sigma[:, None])[0])
            excess = float(total(problem.gap_parts(start, theta))[0])
            self._width *= min(1.0, math.sqrt(excess / sums[0])) if sums[0] > 0.0 else 1.0
            self._width = max(self._width, _LEAST * self._first)
            self._before = problem.margins_at(theta)
            reach = 2.0 * _LATE[2] * self._width
            self._intervals = np.column_stack([self._before - reach, self._before + reach])
            drawn = node_sums(self._view(problem).active.astype(np.float64), problem.node_starts)
            if total(drawn[:, None])[0] == 0.0:
                self._intervals = None
        return self._view(problem)

    def _view(self, problem: FiniteSum) -> Problem:
        view = smoothed(problem, self._width)
        return view if self._intervals is None else BoxedProblem(view, self._intervals)

    def looks(self, parameters: Any, summary: NodeSummary) -> Iterator[float]:
        stride = max(1.0, 1.0 / parameters.contraction)
        number = 1
        while True:
            yield float(math.ceil(number * stride))
            number += 1

    def decide(self, look: Look) -> Phase | None:
        problem = look.problem
        margins = problem.margins_at(look.theta)
        shrink, share, widths = _EARLY if self._width > _LATE_FROM * self._first else _LATE
        parts = smoothed(problem, self._width).gap_parts(look.duals, look.theta)
        look.charge(passes=1.0, sums=2)
        own = float(look.total(parts)[0])
        solved = own <= share * look.excess and self._width > _LEAST * self._first
        moved = math.inf if self._before is None else np.abs(margins - self._before)
        self._before = margins
        left = False
        if self._intervals is not None:
            left = bool(np.any((margins < self._intervals[:, 0]) | (margins > self._intervals[:, 1])))
        if not look.any(left) and not solved:
            return None
        if solved:
            self._width *= shrink
        self._intervals = None
        if isinstance(moved, np.ndarray):
            reach = node_maxima(moved, problem.node_starts)[problem.node_of_row] + widths * self._width
            self._intervals = np.column_stack([margins - reach, margins + reach])
        view = self._view(problem)
        if not look.any(bool(view.active.any())):
            self._intervals = None  # nothing would be left to draw
            view = self._view(problem)
        summary = look.summarize(view)
        drawn = float(summary.n_active.sum() / summary.n_samples.sum())
        told = {"width": self._width, "drawn": drawn}
        return Phase(view, summary, look.constants(summary), view.clip_to_domain(look.duals), told)
