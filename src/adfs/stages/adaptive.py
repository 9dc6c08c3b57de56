"""Adaptive parameters: ADFS computes better parameters from its own certificates.

Tuned parameters are for the worst curvature of the loss. A certified gap G = F(θ) − D(s) bounds the distance
to the optimum: F is Σσ-strongly convex and so is −D as a function of θ(s) = θ, and both errors are in G, so
‖θ − θ*‖ ≤ √(G/Σσ). Each sample's optimal margin then lies in an interval, its optimal dual variable in a box,
and its curvature may be taken there (`adfs.problem.views`). Every theorem holds with the smaller curvatures.

``"adaptive-safe"`` uses that radius. ``"adaptive"`` uses a share of it, which is not proven; the certificate
is of the true problem, so it stays valid. Where a margin leaves its interval, the box was too small: the next
check widens it to the proven one, and a run whose gap stalls goes on with proven boxes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import node_sums, sampling_weights
from adfs.problem.views import BoxedProblem
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.stages import Stage, StageRule, Stages, has_stalled
from adfs.stages.boxes import intervals
from adfs.theory import BlockParameters, Parameters, tree_depth

#: The names of the choices, and the share of the proven radius that each one takes.
ADAPTIVE: Mapping[str, float] = {"adaptive": 0.2, "adaptive-safe": 1.0}

# A stage begins when the gap has fallen by a factor since the last one, and the predicted time is at most a
# share of the one before. Checks stop when even exact margins would not give that share.
_GAP_FACTOR, _TIME_SHARE = 4.0, 0.7
_LEAST_PASSES = 4.0  # before the first check, which takes one
_RADIUS_SLACK = 1.001  # for the rounding of θ and of the gap


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


class Adaptive(StageRule):
    """Begins stages with boxes from certificates; intervals have a ``share`` of the proven radius.

    ``keeps_all`` says that curvatures may fall but never vanish, so that every sample is still drawn.
    """

    def __init__(self, share: float, keeps_all: bool = False) -> None:
        self.share, self.keeps_all = share, keeps_all
        self.identity = f"adaptive, {share}"
        # The state of the rule: the gap where the stage began and at the last check; the share that is used
        # from now on; whether there is nothing more to gain; whether the intervals of the stage are proven;
        # and these.
        self._stage_gap, self._last_gap, self._used_share = 1.0, math.inf, share
        self._finished, self._proven = False, True
        self._margins: np.ndarray | None = None

    def state(self) -> dict[str, np.ndarray]:
        numbers = [self._stage_gap, self._last_gap, self._used_share, self._finished, self._proven]
        state = {"numbers": np.array(numbers, dtype=np.float64)}
        return state if self._margins is None else state | {"margins": self._margins}

    def restore(self, problem: FiniteSum, state: Mapping[str, np.ndarray]) -> FiniteSum:
        numbers = state["numbers"].tolist()
        self._stage_gap, self._last_gap, self._used_share = numbers[:3]
        self._finished, self._proven = (bool(flag) for flag in numbers[3:])
        self._margins = state.get("margins")
        return problem if self._margins is None else BoxedProblem(problem, self._margins)

    def prepare(self, problem: FiniteSum) -> None:
        small = problem.first_samples()
        if small is not None:
            radius = np.ones(small.n_samples)
            BoxedProblem(small, intervals(small, np.zeros(small.n_features), radius, 1.0, radius))

    def checks(self, stages: Stages) -> Iterator[float]:
        """Check when a stage has lasted as long as a check takes, then after 2, 4, … times that."""
        parameters, summary = stages.setting.parameters, stages.summary
        if self._margins is None and self.keeps_all and summary.n_active.any():
            # Even without any curvature each sample must still be drawn: is there something to gain?
            nothing = np.full(summary.sigma.size, np.finfo(np.float64).tiny)
            roots = summary.n_active.astype(np.float64)
            flat = summary.with_other(kappa=nothing, batch_kappa=nothing, root_sums=roots)
            wanted = _TIME_SHARE * predicted_time(parameters, stages.network, stages.tau)
            best = predicted_time(stages.parameters_for(flat), stages.network, stages.tau)
            self._finished = self._finished or best > wanted
        in_step = isinstance(parameters, BlockParameters)
        drawn = summary.n_samples.max() if in_step else summary.n_samples.sum()
        # A check is a pass and two sums over all nodes, whose messages go up and down a tree.
        message = 1.0 if stages.tau is None else stages.tau
        check = summary.n_samples.max() + 4.0 * tree_depth(stages.network) * message
        step = parameters.contraction * predicted_time(parameters, stages.network, stages.tau)
        at = max(check / step, _LEAST_PASSES * drawn / (1.0 - parameters.p_comm))
        while math.isfinite(at) and not self._finished:
            yield float(math.ceil(at))
            at = max(2.0 * at, math.ceil(at) + 1.0)

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        problem, gap = stages.problem, certificate.gap
        stalled, self._last_gap = has_stalled(gap, self._last_gap), gap
        if not math.isfinite(gap):
            return None
        outside = self._outside(stages, certificate)
        any_outside = stages.any(bool(outside.any()))
        if any_outside and stalled:
            self._used_share = 1.0
        if not any_outside and gap > self._stage_gap / _GAP_FACTOR:
            return None
        before = predicted_time(stages.setting.parameters, stages.network, stages.tau)
        margins = _intervals(stages, certificate, np.where(outside, 1.0, self._used_share))
        if self._proven and self._margins is not None:
            # The optimum is in the new intervals and in those before.
            high = np.minimum(margins[:, 1], self._margins[:, 1])
            low = np.minimum(np.maximum(margins[:, 0], self._margins[:, 0]), high)
            margins = np.stack([low, high], axis=1)
        boxed = BoxedProblem(problem, margins)
        if not stages.any(bool(boxed.active.any())):
            return None  # every dual variable is known, and no sample would be left to draw
        # Intervals that are too small are replaced whatever the time; others if that pays for a restart.
        most = math.inf if any_outside else _TIME_SHARE * before
        if any_outside or self._estimate(stages, boxed) <= most:
            stage = self._stage(stages, certificate, boxed, before, most)
            if stage is not None:
                return stage
        # Later checks can hardly gain more than exact margins would now.
        exact = np.repeat(problem.margins_at(certificate.theta)[:, None], 2, axis=1)
        self._finished = self._proven and self._estimate(stages, BoxedProblem(problem, exact)) > most
        return None

    def _outside(self, stages: Stages, certificate: Certificate) -> np.ndarray:
        """Return which margins have left their intervals, (N,); proven intervals are not asked.

        With the proven radius intervals are proven from the start. Others become so when the proven ones,
        which shrink as the gap does, lie inside them.
        """
        problem = stages.problem
        none = np.zeros(problem.n_samples, dtype=np.bool_)
        if self._margins is None:
            return none
        low, high = self._margins.T
        if not self._proven:
            proven = _intervals(stages, certificate, np.ones(problem.n_samples))
            inside = (proven[:, 0] >= low) & (proven[:, 1] <= high)
            self._proven = not stages.any(bool((problem.active & ~inside).any()))
        if self._proven:
            return none
        margins = problem.margins_at(certificate.theta)
        slack = 1e-9 * (1.0 + np.abs(margins))
        return np.asarray((margins < low - slack) | (margins > high + slack))

    def _estimate(self, stages: Stages, boxed: BoxedProblem) -> float:
        """Return about the predicted time with boxes, from a few numbers per node.

        λ_max(K_i) is taken to shrink as the trace does.
        """
        known, active, smoothness = stages.summary, boxed.active, boxed.smoothness
        roots = sampling_weights(smoothness, active, boxed.node_starts, boxed.sigma)
        own = [node_sums(values, boxed.node_starts) for values in (roots, smoothness, active)]
        root_sums, sums, n_active = stages.nodes.collect(np.stack(own, axis=1)).T
        if not n_active.any():
            return 0.0
        kappa = sums / known.sigma
        shrunk = np.divide(kappa, known.kappa, out=np.zeros_like(kappa), where=known.kappa > 0.0)
        batch_kappa = shrunk * known.batch_kappa if known.sigma.size > 1 else kappa
        summary = known.with_other(
            n_active=n_active, kappa=kappa, batch_kappa=batch_kappa, root_sums=root_sums
        )
        return predicted_time(stages.parameters_for(summary), stages.network, stages.tau)

    def _stage(
        self, stages: Stages, certificate: Certificate, boxed: BoxedProblem, before: float, most: float
    ) -> Stage | None:
        """Return the stage with boxes, unless its predicted time is above the most that it may be."""
        if stages.network.n_nodes > 1:
            # λ_max(K_i): a row of w entries adds w(w + 1)/2 products to a Gram matrix, and a sample's step is
            # 5w and a prox of about 75; or it takes products with vectors, 8 passes at most.
            width = boxed.entries_per_row or boxed.n_features
            stages.charge(passes=min(math.ceil(0.5 * width * (width + 1) / (5 * width + 75)), 8))
        stages.charge(sums=1)
        summary = stages.summarize(boxed)
        parameters = stages.parameters_for(summary)
        after = predicted_time(parameters, stages.network, stages.tau)
        if after > most:
            return None
        self._stage_gap, self._margins = certificate.gap, boxed.margins
        self._proven = self._used_share == 1.0
        drawn = float(summary.n_active.sum()) / float(summary.n_samples.sum())
        report = {"time_before": before, "time": after, "drawn": drawn, "share": self._used_share}
        assert certificate.duals is not None
        return Stage(boxed, summary, parameters, boxed.clip_to_domain(certificate.duals), report)


def _intervals(stages: Stages, certificate: Certificate, share: np.ndarray) -> np.ndarray:
    """Return intervals of margins with a share (N,) of the proven radius each; shape (N, 2)."""
    excess = certificate.absolute_gap
    assert certificate.duals is not None
    radius = _RADIUS_SLACK * math.sqrt(excess / stages.nodes.total_sigma) * share
    return intervals(stages.problem, certificate.theta, certificate.duals, excess, radius)
