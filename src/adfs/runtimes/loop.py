"""The one loop of all runs: advance, check, record, stop."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adfs.problem.gaps import close_gap
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.options import Record, RunOptions

if TYPE_CHECKING:
    from adfs.runtimes.execution import Execution
    from adfs.runtimes.stages import Stages

# The budget of a run that was given none: in passes, without and with a tolerance.
_DEFAULT_PASSES, _MOST_PASSES_WITH_TOLERANCE = 100.0, 100_000.0
# A run diverges when its gap, and F relative to F at the start, are above these.
_DIVERGED_GAP, _DIVERGED_GROWTH = 1e12, 1e3
# A Ctrl-C goes to all processes. One that comes so long after the run was interrupted is another one.
_LATE_INTERRUPT_SECONDS = 2.0
# When nobody asked to record a run, it is checked after 1, 2, 3, 4, 6, 8, 11, 15, … passes: a factor of about
# 1.35 from one check to the next keeps the passes after the tolerance is met below a third.
_CHECK_FACTOR = 1.35
# Dual variables often lag behind the point they stand for. Within this factor of the tolerance passes of dual
# ascent are tried as long as each one at least halves the gap. If they do not reach the tolerance, they are
# tried again once the gap has fallen to this share.
_ASCENT_RANGE, _ASCENT_AGAIN = 300.0, 0.2


class Outcome(StrEnum):
    """How a run ended."""

    CONVERGED = "converged"
    OUT_OF_BUDGET = "out of budget"
    DIVERGED = "diverged"
    STOPPED = "stopped"


@dataclass
class LoopResult:
    """The result of the loop: outcome, recorded rows, last certificate, seconds of running."""

    outcome: Outcome
    rows: list[dict[str, float]]
    certificate: Certificate
    seconds: float


class Ending(NamedTuple):
    """The end and the result of a run: a run that is resumed after its end returns the same bits.

    Attributes
    ----------
    outcome : Outcome
    certificate : Certificate
        Of the returned point.
    exhausted : bool
        Whether the method could go no further, whatever its budget.
    planned : bool
        Whether the run would have recorded its last row at this position anyway. A run that goes on from
        here forgets a row that it recorded only because it was stopped, or because its budget was spent.
    """

    outcome: Outcome
    certificate: Certificate
    exhausted: bool
    planned: bool


@dataclass
class Progress:
    """The rows of a run, its seconds, the best point that it has certified, and its end if it has ended.

    A run that does not converge returns the best point.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    best: Certificate | None = None
    ending: Ending | None = None

    def keep_best(self, certificate: Certificate) -> None:
        """Keep a certificate if it is the best so far; an estimate proves nothing."""
        if certificate.is_estimate:
            return
        if self.best is None or _quality(certificate) < _quality(self.best):
            self.best = certificate._replace(theta=certificate.theta.copy(), duals=None)


def _quality(certificate: Certificate) -> tuple[float, float]:
    """Return the order of certificates: by the gap, and by F where nothing is certified."""
    gap = certificate.absolute_gap
    return (math.inf if math.isnan(gap) else gap), certificate.value


class Monitor:
    """Watches a run and may end it: a progress bar, or a comparison that was asked to stop."""

    def update(self, row: dict[str, float]) -> None:
        """Take note of a recorded row."""

    def stop(self) -> bool:
        """Whether the run should end now; asked a few times a second."""
        return False


@dataclass(frozen=True)
class CheckPlan:
    """Where a run is checked, and where it ends.

    Attributes
    ----------
    options : RunOptions
        With the budgets; the first one that is met ends the run.
    stages : Stages
        Turn passes over the data into positions.
    record : Record
        What is recorded at a check.
    n_samples : int
        Samples of all nodes.
    unrecorded : bool
        Whether nobody asked to record the run: checks are rare, and cheap far from the tolerance.
    """

    options: RunOptions
    stages: Stages
    record: Record
    n_samples: int
    unrecorded: bool

    @classmethod
    def of(cls, options: RunOptions, stages: Stages) -> CheckPlan:
        """Return the plan of a run."""
        unrecorded = options.record is None and options.tol is not None
        n_samples = int(stages.summary.n_samples.sum())
        return cls(options, stages, Record.of(options.record), n_samples, unrecorded)

    @property
    def last(self) -> float:
        """The whole position beyond which the run does not go."""
        options, limits = self.options, [self.stages.last_in_time]
        if options.max_passes is not None:
            limits.append(self.stages.position_of(options.max_passes))
        if options.events is not None:
            limits.append(float(options.events))
        last = min(limits)
        if len(limits) == 1 and options.time is None and options.seconds is None:
            default = _DEFAULT_PASSES if options.tol is None else _MOST_PASSES_WITH_TOLERANCE
            last = self.stages.position_of(default)
        return float(math.ceil(last)) if math.isfinite(last) else last

    def points(self, position: float) -> Iterator[float]:
        """Yield the positions at which to check the run from a position on, without end."""
        in_rounds = self.record.grid.unit != "passes"
        amounts = self.record.grid.points()
        if self.unrecorded and self.stages.method.checks_every_round:
            # The check costs next to nothing.
            in_rounds, amounts = True, itertools.count(0.0)
        elif self.unrecorded:
            rounded = (float(round(_CHECK_FACTOR**k)) for k in itertools.count())
            # The first powers of the factor round to the same numbers.
            amounts = itertools.chain([0.0], (amount for amount, _ in itertools.groupby(rounded)))
        for amount in amounts:
            point = math.ceil(amount if in_rounds else self.stages.position_of(amount))
            if point >= position:
                yield float(point)

    def tries_ascent(self, rows: list[dict[str, float]], gap: float) -> bool:
        """Whether to try dual ascent at a check that finds this gap, after those that are recorded.

        It depends on the recorded rows alone: a resumed run tries where one that never stopped does.
        """
        tol = self.options.tol
        if not self.unrecorded or tol is None or not rows:
            return False
        limit = _ASCENT_RANGE * tol
        for row in rows[1:]:  # the first is of the start, where ascent is not tried
            if tol < row["gap"] <= limit:
                limit = _ASCENT_AGAIN * row["gap"]
        return tol < gap <= limit

    def ends_at_once(self, progress: Progress, position: float) -> bool:
        """Whether a resumed run had ended already, and this budget does not let it go further."""
        ending, options = progress.ending, self.options
        if ending is None or ending.outcome is Outcome.STOPPED:
            return False
        converged = ending.outcome is Outcome.CONVERGED
        if converged and (options.tol is None or ending.certificate.gap > options.tol):
            return False
        if ending.planned and (converged or ending.outcome is Outcome.DIVERGED or ending.exhausted):
            return True
        # With a larger budget the run would not have been checked here, whatever the check found.
        late = options.seconds is not None and progress.seconds >= options.seconds
        return position >= self.last or late or self.spent(progress.rows[-1])

    def spent(self, row: dict[str, float]) -> bool:
        """Whether an unrecorded run has used up its passes: rounds and dual ascent take more than planned."""
        most = self.options.max_passes
        return self.unrecorded and most is not None and row["passes"] >= most


def run_loop(execution: Execution, plan: CheckPlan, monitor: Monitor, progress: Progress) -> LoopResult:
    """Run until the budget ends.

    Parameters
    ----------
    execution : Execution
        This process's part of the run.
    plan : CheckPlan
    monitor : Monitor
    progress : Progress
        How far a resumed run was.
    """
    if plan.ends_at_once(progress, execution.position):
        assert progress.ending is not None
        outcome, certificate, _, _ = progress.ending
        return LoopResult(outcome, progress.rows, certificate, progress.seconds)
    # The run goes on: a row that was recorded only because it had ended is forgotten.
    if progress.ending is not None and not progress.ending.planned:
        progress.rows.pop()
    progress.ending = None
    with _interrupts(execution, plan.options.checkpoint is not None):
        return _Loop(execution, plan, monitor, progress).run()


class _Loop:
    """Goes from check to check, with checkpoints and stops between slices of the way."""

    def __init__(self, execution: Execution, plan: CheckPlan, monitor: Monitor, progress: Progress) -> None:
        self.execution, self.plan, self.monitor, self.progress = execution, plan, monitor, progress
        self.rows, self._saved = progress.rows, time.perf_counter()

    def run(self) -> LoopResult:
        """Run from where the execution is to the end."""
        execution, plan, progress, stages = self.execution, self.plan, self.progress, self.plan.stages
        last, points = plan.last, plan.points(execution.position)
        point = next(points)
        while True:
            stage_check = stages.next_check
            outcome = self._go_to(min(point, last, stage_check))
            ends = outcome is not None or execution.position >= last
            # An unrecorded run that is good enough where the rule of its stages checks it ends there.
            planned = not ends and execution.position >= (
                min(point, stage_check) if plan.unrecorded else point
            )
            if ends or planned:
                result = self._check(outcome, planned, last)
                if result is not None:
                    return result
                point = next(points)
            if execution.position >= stage_check:
                # The decisions of a run are part of it, and count in its seconds.
                progress.seconds += stages.check()
                last, points = plan.last, plan.points(math.nextafter(execution.position, math.inf))
                point = next(points)

    def _go_to(self, point: float) -> Outcome | None:
        """Go on to a position; return how the run ends if it does on the way."""
        execution, progress, options = self.execution, self.progress, self.plan.options
        budget = math.inf if options.seconds is None else options.seconds
        while execution.position < point:
            begun = time.perf_counter()
            execution.advance(point, budget - progress.seconds)
            progress.seconds += time.perf_counter() - begun
            execution.interrupted |= self.monitor.stop()
            due = options.checkpoint is not None and (
                time.perf_counter() - self._saved >= options.checkpoint_every
            )
            due, stopped, spent = execution.end_slice(due, execution.interrupted, progress.seconds >= budget)
            if due:
                execution.save(progress)
                self._saved = time.perf_counter()
            if stopped or spent:
                execution.interrupted |= stopped  # whichever process was interrupted
                return Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET
        return None

    def _check(self, outcome: Outcome | None, planned: bool, last: float) -> LoopResult | None:
        """Certify and record the run; return its result if it ends here."""
        execution, plan, progress, rows = self.execution, self.plan, self.progress, self.rows
        certificate = self._certify(ends=not planned)
        if planned and plan.tries_ascent(rows, certificate.gap) and execution.can_ascend:
            certificate, outcome = self._ascend(certificate)
            planned = outcome is None
        if not rows or rows[-1]["position"] < execution.position:
            rows.append(self._row(certificate))
            self.monitor.update(rows[-1])
        else:
            planned = True
        if planned:  # a check that only the budget asked for must not decide how a resumed run ends
            progress.keep_best(certificate)
        tol = plan.options.tol
        # Where columns have very different units the gap alone may be as large while F falls.
        grown = certificate.value > _DIVERGED_GROWTH * rows[0]["primal"] and certificate.gap > _DIVERGED_GAP
        if outcome is not Outcome.STOPPED and (grown or not math.isfinite(certificate.value)):
            outcome = Outcome.DIVERGED
        elif outcome is not Outcome.STOPPED and tol is not None and certificate.gap <= tol:
            outcome = Outcome.CONVERGED
        exhausted = tol is not None and (execution.process.exhausted or certificate.last)
        if outcome is None and (exhausted or plan.spent(rows[-1]) or execution.position >= last):
            outcome = Outcome.OUT_OF_BUDGET
        if outcome is None:
            return None
        if certificate.is_estimate:
            certificate = self._certify(ends=True)
        if outcome is not Outcome.CONVERGED:
            certificate = _best_point(execution, progress, certificate)
        progress.ending = Ending(outcome, certificate, exhausted, planned)
        if plan.options.checkpoint is not None:
            execution.save(progress)
        return LoopResult(outcome, rows, certificate, progress.seconds)

    def _certify(self, *, ends: bool) -> Certificate:
        plan = self.plan
        if not plan.unrecorded:
            return self.execution.certify(plan.record)
        # Far from the tolerance an estimate of the gap is enough, unless the run ends here.
        enough = math.inf if ends else plan.options.tol
        lower = max((row["dual"] for row in self.rows), default=-math.inf)
        return self.execution.certify(plan.record, enough=enough, lower=lower)

    def _ascend(self, certificate: Certificate) -> tuple[Certificate, Outcome | None]:
        """Try passes of dual ascent; return where the run is then, and how it ends if they were cut short."""
        begun, options = time.perf_counter(), self.plan.options
        seconds = math.inf if options.seconds is None else options.seconds - self.progress.seconds
        certificate, cut_short = self.execution.dual_ascent(certificate, self.plan, begun + seconds)
        self.progress.seconds += time.perf_counter() - begun
        if not cut_short:
            return certificate, None
        stopped = self.execution.any_process(self.execution.interrupted)
        return certificate, Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET

    def _row(self, certificate: Certificate) -> dict[str, float]:
        execution, work = self.execution, self.execution.work()
        row = {
            "position": execution.position,
            "passes": work.computations / self.plan.n_samples,
            "computations": float(work.computations),
            "messages": float(work.messages),
            "bytes": 8.0 * work.numbers,
            "seconds": self.progress.seconds,
            "gap": certificate.gap,
            "primal": certificate.value,
            "dual": certificate.lower,
        }
        if self.plan.stages.several:
            row["stage"] = float(self.plan.stages.number)
        return row | execution.measure(self.plan.record)


def _best_point(execution: Execution, progress: Progress, last: Certificate) -> Certificate:
    """Return the best point that a run has certified, or θ = 0 if F is smaller there."""
    best, nodes = progress.best or last, execution.nodes
    if _quality(last) <= _quality(best):
        best = last
    # A run that did not converge may have certified nothing better than θ = 0.
    if best.value <= nodes.value_at_zero:
        return best
    zero, problem = np.zeros_like(best.theta), nodes.problem
    if math.isnan(best.gap):
        return Certificate(zero, nodes.value_at_zero, best.lower, best.gap)
    duals = np.zeros((problem.n_samples, *problem.dual_shape))  # which stand for it
    found = close_gap(nodes.collect(problem.gap_parts(duals, zero)), zero, zero, nodes.total_sigma)
    if best.value <= found.value + found.rounding:
        return best
    found = found.above(best.lower)
    scale = best.absolute_gap / best.gap if 0.0 < best.gap < math.inf else nodes.scale
    # The dual variables of the run are kept: another run may start from them.
    return Certificate(zero, found.value, found.lower, found.gap / scale, absolute_gap=found.gap)


@contextmanager
def _interrupts(execution: Execution, keeps_checkpoints: bool) -> Iterator[None]:
    """Turn the first Ctrl-C into a request that the loop honours between slices.

    A second one interrupts at once. One process that keeps checkpoints also ends in order at a SIGTERM: it
    writes a checkpoint, and then ends as if nothing had caught the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    interrupted_here = terminated = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted_here, terminated
        if number == signal.SIGTERM:
            terminated = True
        elif interrupted_here:
            raise KeyboardInterrupt
        interrupted_here = execution.interrupted = True

    def take_late_interrupt(number: int, frame: FrameType | None) -> None:
        """Ignore a Ctrl-C that all processes were sent, if the others had ended the run before it came."""
        signal.signal(signal.SIGINT, before)
        if time.perf_counter() > ended + _LATE_INTERRUPT_SECONDS:  # another one, then
            os.kill(os.getpid(), signal.SIGINT)

    several = execution.cluster.size > 1
    before = signal.signal(signal.SIGINT, request_stop)
    # A program with its own handler of SIGTERM decides itself.
    unhandled = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ends_in_order = keeps_checkpoints and not several and unhandled
    before_term = signal.signal(signal.SIGTERM, request_stop) if ends_in_order else None
    try:
        yield
    finally:
        ended = time.perf_counter()
        by_others = execution.interrupted and not interrupted_here and several
        signal.signal(signal.SIGINT, take_late_interrupt if by_others else before)
        if ends_in_order:
            signal.signal(signal.SIGTERM, before_term)
            if terminated:
                os.kill(os.getpid(), signal.SIGTERM)
