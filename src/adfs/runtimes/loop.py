"""The one loop of all runs: advance, check, record, stop."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from adfs.errors import FileError
from adfs.runtimes.certificates import (
    Certificate,
    Certifier,
    better,
    can_ascend,
    certify_after_pass,
    measure_nodes,
    or_zero,
)
from adfs.runtimes.execution import Execution
from adfs.runtimes.options import Record

if TYPE_CHECKING:
    from adfs.runtimes.checkpoints import Checkpoints
    from adfs.runtimes.stages import Stages
    from adfs.runtimes.timing import ProgressBar

# The budget of a run that was given none: in passes, without and with a tolerance.
_DEFAULT_PASSES, _MOST_PASSES_WITH_TOLERANCE = 100.0, 100_000.0
# A run diverges when F, relative to F(0), is above this.
_DIVERGED_GROWTH = 1e12
# A Ctrl-C goes to all processes. One that comes so long after the run was interrupted is another one.
_LATE_INTERRUPT_SECONDS = 2.0
# When nobody asked to record a run, it is checked after 1, 2, 3, 4, 6, 8, 11, 15, … passes: a factor of about
# 1.35 from one check to the next keeps the passes after the tolerance is met below a third.
_CHECK_FACTOR = 1.35
# Dual variables often lag behind the point they stand for. A check that finds a gap within this factor of the
# tolerance tries passes of dual ascent as long as each one at least halves the gap.
_ASCENT_RANGE = 300.0


class Outcome(StrEnum):
    """How a run ended."""

    CONVERGED = "converged"
    OUT_OF_BUDGET = "out of budget"
    DIVERGED = "diverged"
    STOPPED = "stopped"


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


class Loop:
    """Goes from check to check, with checkpoints and stops between slices of the way.

    Parameters
    ----------
    stages : Stages
        With the options of the run; they turn passes over the data into positions.
    execution : Execution
        This process's part of the run.
    record : Record
        What is recorded at a check.
    certifier : Certifier
    checkpoints : Checkpoints or None
    progress : Progress
        How far a resumed run was. The loop brings it to the end of the run.

    Attributes
    ----------
    last : float
        The whole position beyond which the run does not go.
    """

    def __init__(
        self,
        stages: Stages,
        execution: Execution,
        record: Record,
        certifier: Certifier,
        checkpoints: Checkpoints | None,
        progress: Progress,
    ) -> None:
        self.stages, self.execution, self.progress = stages, execution, progress
        self._record, self._certifier, self._checkpoints = record, certifier, checkpoints
        options = self._options = stages.options
        self._bar: ProgressBar | None = None
        self._saved = time.perf_counter()
        self.interrupted = execution.cluster.interrupted
        self.last = self._last_position()
        # Nobody asked to record the run: checks are rare, and cheap far from the tolerance.
        self._unrecorded = options.record is None and options.tol is not None
        self._n_samples = int(stages.summary.n_samples.sum())
        self._seconds = math.inf if options.seconds is None else options.seconds
        # Rounds and dual ascent take more passes than planned: they count in an unrecorded run.
        self._most_passes = math.inf
        if self._unrecorded and options.max_passes is not None:
            self._most_passes = options.max_passes

    def run(self, bar: ProgressBar | None) -> Ending:
        """Run to the end of the budget; a bar shows how far the run is."""
        execution, progress, stages = self.execution, self.progress, self.stages
        ending, self._bar = progress.ending, bar
        if ending is not None and self._stays_ended(ending):
            return ending
        # The run goes on: a row that was recorded only because it had ended is forgotten.
        if ending is not None and not ending.planned:
            progress.rows.pop()
        progress.ending = ending = None
        if self._checkpoints is not None:
            self._checkpoints.begin()
        points = self._points(execution.position)
        point = next(points)
        with _interrupts(self, self._checkpoints is not None):
            while ending is None:
                stage_check = stages.next_check
                outcome = self._go_to(min(point, self.last, stage_check))
                ends = outcome is not None or execution.position >= self.last
                # An unrecorded run that is good enough where the rule of its stages checks it ends there.
                next_check = min(point, stage_check) if self._unrecorded else point
                planned = not ends and execution.position >= next_check
                if ends or planned:
                    ending = self._check(outcome, planned)
                    point = next(points)
                if ending is None and execution.position >= stage_check:
                    # The decisions of a run are part of it, and count in its seconds.
                    progress.seconds += stages.check(execution)
                    self.last = self._last_position()
                    points = self._points(math.nextafter(execution.position, math.inf))
                    point = next(points)
        # A request that came after the last slice is for the next run of the fit, if there is one.
        execution.cluster.interrupted = self.interrupted and ending.outcome is not Outcome.STOPPED
        return ending

    # ------------------------------------------------------------------ where to check, and where to end

    def _last_position(self) -> float:
        options, stages = self._options, self.stages
        limits = [stages.last_in_time]
        if options.max_passes is not None:
            limits.append(stages.position_of(options.max_passes))
        if options.events is not None:
            limits.append(float(options.events))
        last = min(limits)
        if len(limits) == 1 and options.time is None and options.seconds is None:
            default = _DEFAULT_PASSES if options.tol is None else _MOST_PASSES_WITH_TOLERANCE
            last = stages.position_of(default)
        return float(math.ceil(last)) if math.isfinite(last) else last

    def _points(self, position: float) -> Iterator[float]:
        """Yield the positions at which to check the run from a position on, without end."""
        in_rounds, grid = False, self._record.grid
        amounts: Iterator[float]
        if not self._unrecorded:
            in_rounds, amounts = grid.unit != "passes", grid.points()
        elif self.stages.method.checks_every_round:
            # The check costs next to nothing.
            in_rounds, amounts = True, itertools.count(0.0)
        else:
            rounded = (float(round(_CHECK_FACTOR**k)) for k in itertools.count())
            # The first powers of the factor round to the same numbers.
            amounts = itertools.chain([0.0], (amount for amount, _ in itertools.groupby(rounded)))
        for amount in amounts:
            point = math.ceil(amount if in_rounds else self.stages.position_of(amount))
            if point >= position:
                yield float(point)

    def _stays_ended(self, ending: Ending) -> bool:
        """Whether this budget does not let a run that had ended go further."""
        options, progress = self._options, self.progress
        if ending.outcome is Outcome.STOPPED:
            return False
        converged = ending.outcome is Outcome.CONVERGED
        if converged and (options.tol is None or ending.certificate.gap > options.tol):
            return False
        if ending.planned and (converged or ending.outcome is Outcome.DIVERGED or ending.exhausted):
            return True
        # With a larger budget the run would not have been checked here, whatever the check found.
        late, passes = progress.seconds >= self._seconds, progress.rows[-1]["passes"]
        return late or self.execution.position >= self.last or passes >= self._most_passes

    # ------------------------------------------------------------------ going on

    def _go_to(self, point: float) -> Outcome | None:
        """Go on to a position; return how the run ends if it does on the way."""
        execution, progress = self.execution, self.progress
        while execution.position < point:
            begun = time.perf_counter()
            execution.advance(point, self._seconds - progress.seconds)
            now = time.perf_counter()
            progress.seconds += now - begun
            due = self._checkpoints is not None and now - self._saved >= self._options.checkpoint_every
            spent = progress.seconds >= self._seconds
            due, stopped, spent = execution.end_slice(due, self.interrupted, spent)
            if due:
                self._save()
                self._saved = time.perf_counter()
            if stopped or spent:
                self.interrupted |= stopped  # whichever process was interrupted
                return Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET
        return None

    def _save(self) -> None:
        """Write a checkpoint; no message is under way at a position, so the processes' parts fit.

        At the end the result is worth more than the checkpoint: if that fails, there is a warning.
        """
        begun = time.perf_counter()
        assert self._checkpoints is not None
        try:
            self._checkpoints.save(self.execution.process, self.progress, self.stages.state())
        except FileError as error:
            if self.progress.ending is None:
                raise
            warnings.warn(f"the last checkpoint could not be written: {error}", RuntimeWarning, stacklevel=2)
        self.execution.times.evaluating += time.perf_counter() - begun

    # ------------------------------------------------------------------ checks

    def _check(self, outcome: Outcome | None, planned: bool) -> Ending | None:
        """Certify and record the run; return how it ends if it ends here."""
        execution, progress, rows = self.execution, self.progress, self.progress.rows
        tol = self._options.tol
        certificate, measures = self._evaluate(ends=not planned)
        if planned and self._tries_ascent(certificate.gap):
            certificate, outcome = self._ascend(certificate)
            planned = outcome is None
        if not rows or rows[-1]["position"] < execution.position:
            rows.append(self._row(certificate) | measures)
            if self._bar is not None:
                self._bar.update(rows[-1])
        else:
            planned = True
        facts = rows[-1]["passes"], certificate.gap, certificate.value
        execution.cluster.log(logging.DEBUG, "check after %.4g passes: gap %.2e, objective %.8g", *facts)
        # A check that only the budget asked for must not decide how a resumed run ends.
        best = progress.best
        if planned and not certificate.is_estimate and (best is None or better(certificate, best)):
            progress.best = certificate._replace(theta=certificate.theta.copy(), duals=None)
        # Not by the gap: where columns have very different units it may be as large while F falls.
        grown = certificate.value > _DIVERGED_GROWTH * execution.nodes.scale
        if outcome is not Outcome.STOPPED and (grown or not math.isfinite(certificate.value)):
            outcome = Outcome.DIVERGED
        elif outcome is not Outcome.STOPPED and tol is not None and certificate.gap <= tol:
            outcome = Outcome.CONVERGED
        exhausted = tol is not None and execution.process.exhausted
        spent = rows[-1]["passes"] >= self._most_passes or execution.position >= self.last
        if outcome is None and not (exhausted or spent):
            return None
        outcome = outcome or Outcome.OUT_OF_BUDGET
        if certificate.is_estimate:
            certificate, _ = self._evaluate(ends=True)
        if outcome is not Outcome.CONVERGED:
            if progress.best is not None and better(progress.best, certificate):
                certificate = progress.best
            certificate = or_zero(certificate, execution.nodes)
        progress.ending = Ending(outcome, certificate, exhausted, planned)
        if self._checkpoints is not None:
            self._save()
        return progress.ending

    def _evaluate(self, *, ends: bool) -> tuple[Certificate, dict[str, float]]:
        """Return the certificate of the current point, and the measures of the nodes' iterates."""
        begun, record, execution = time.perf_counter(), self._record, self.execution
        process, nodes = execution.process, execution.nodes
        nodes.cluster.activity = f"to certify at position {execution.position:.17g} of the schedule"
        error, measures = None, dict[str, float]()
        if {*record.measures, record.stop_on} != {"gap"}:
            error, measures = measure_nodes(record, nodes.collect(process.primal(self._options.read)), nodes)
        # Far from the tolerance an estimate of the gap is enough, unless the run ends here.
        enough, lower = None, -math.inf
        if self._unrecorded:
            enough = math.inf if ends else self._options.tol
            lower = max((row["dual"] for row in self.progress.rows), default=-math.inf)
        certificate = error or self._certifier(process, nodes, enough=enough, lower=lower)
        execution.times.evaluating += time.perf_counter() - begun
        return certificate, measures

    def _row(self, certificate: Certificate) -> dict[str, float]:
        stages, work = self.stages, self.execution.work()
        row = {
            "position": self.execution.position,
            "passes": work.computations / self._n_samples,
            "computations": float(work.computations),
            "messages": float(work.messages),
            "bytes": 8.0 * work.numbers,
            "seconds": self.progress.seconds,
            "gap": certificate.gap,
            "primal": certificate.value,
            "dual": certificate.lower,
        }
        return row | {"stage": float(stages.number)} if stages.rule is not None else row

    # ------------------------------------------------------------------ dual ascent

    def _tries_ascent(self, gap: float) -> bool:
        """Whether to try dual ascent at a check that finds this gap; not at the start of a run."""
        tol, stages = self._options.tol, self.stages
        if not self._unrecorded or tol is None or not self.progress.rows:
            return False
        near = tol < gap <= _ASCENT_RANGE * tol
        one_stage = stages.number == 0 and stages.next_check == math.inf
        return near and one_stage and can_ascend(self.execution.process, self.execution.nodes)

    def _ascend(self, now: Certificate) -> tuple[Certificate, Outcome | None]:
        """Try whether passes of dual ascent end the run, as many as its budget has; go there if they do.

        They go on as long as each one at least halves the gap. On several nodes, which do not hear of each
        other on the way, they soon gain little.

        Returns
        -------
        certificate : Certificate
            Of the point that the run is at afterwards.
        outcome : Outcome or None
            How the run ends if its budget ended, or it was interrupted, before the result was known. The run
            is then where it was, so that one that is resumed here tries again.
        """
        begun, execution, tol = time.perf_counter(), self.execution, self._options.tol
        process, nodes, cluster = execution.process, execution.nodes, execution.cluster
        problem = nodes.problem
        deadline = begun + self._seconds - self.progress.seconds
        passes_left = self._most_passes - execution.work().computations / self._n_samples
        cluster.activity = f"to try dual ascent at position {execution.position:.17g} of the schedule"
        duals = process.dual()
        assert duals is not None
        assert tol is not None
        duals = problem.clip_to_domain(duals, in_place=True)
        theta = nodes.add(problem.sigma[:, None] * process.primal()) / nodes.total_sigma
        passes, after, halved = 0, now, True
        outcome: Outcome | None = None
        # Each pass starts from the dual variables and the θ of the one before.
        while halved and after.gap > tol:
            late = self.interrupted or time.perf_counter() >= deadline
            if passes + 1 > passes_left or any(cluster.allgather(late)):
                stopped = any(cluster.allgather(self.interrupted))
                outcome = Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET
                break
            before, after = after, certify_after_pass(nodes, duals, theta, passes)
            theta, passes = after.theta, passes + 1
            halved = after.gap <= 0.5 * before.gap
        if after.gap <= tol:
            process.place(duals, problem.sigma[:, None] * theta)
        if outcome is None:
            computations = process.work.computations + passes * problem.n_samples
            process.work = process.work._replace(computations=computations)
        took = time.perf_counter() - begun
        execution.times.computing += took
        self.progress.seconds += took
        return (after if after.gap <= tol else now), outcome


@contextmanager
def _interrupts(loop: Loop, keeps_checkpoints: bool) -> Iterator[None]:
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
        interrupted_here = loop.interrupted = True

    def take_late_interrupt(number: int, frame: FrameType | None) -> None:
        """Ignore a Ctrl-C that all processes were sent, if the others had ended the run before it came."""
        signal.signal(signal.SIGINT, before)
        if time.perf_counter() > ended + _LATE_INTERRUPT_SECONDS:  # another one, then
            os.kill(os.getpid(), signal.SIGINT)

    several = loop.execution.cluster.size > 1
    before = signal.signal(signal.SIGINT, request_stop)
    # A program with its own handler of SIGTERM decides itself.
    unhandled = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ends_in_order = keeps_checkpoints and not several and unhandled
    before_term = signal.signal(signal.SIGTERM, request_stop) if ends_in_order else None
    try:
        yield
    finally:
        ended = time.perf_counter()
        by_others = loop.interrupted and not interrupted_here and several
        signal.signal(signal.SIGINT, take_late_interrupt if by_others else before)
        if ends_in_order:
            signal.signal(signal.SIGTERM, before_term)
            if terminated:
                os.kill(os.getpid(), signal.SIGTERM)
