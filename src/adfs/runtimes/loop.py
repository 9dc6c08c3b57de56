"""The one loop of all runs: advance, record, certify, stop."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adfs.errors import InputError
from adfs.problem.gaps import close_gap
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.recording import Record

if TYPE_CHECKING:
    from adfs.runtimes.execution import Execution

DEFAULT_PASSES = 100.0
_MOST_PASSES_WITH_TOLERANCE = 100_000.0
_DIVERGED, _GROWN = 1e12, 1e3  # a gap, and F over what it was
_SLICE_SECONDS = 0.25
_LATE_SECONDS = 2.0  # within which a Ctrl-C is taken for the one that another process had
# When nobody asked to record a run, it is checked after 1, 2, 3, 4, 6, 8, 11, 15, … passes: a factor of about
# 1.35 from one check to the next keeps what a run does too much below a third.
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


@dataclass(frozen=True)
class Budget:
    """How long a run may go on: the first limit that is met ends it.

    Parameters
    ----------
    tol : float, optional
        Stop when the certified relative duality gap is at most this.
    passes : float, optional
        Passes over the data.
    events : float, optional
        Events of the schedule, or rounds.
    seconds : float, optional
        Seconds of running, evaluation and compilation not counted.
    """

    tol: float | None = None
    passes: float | None = None
    events: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tol", "passes", "events", "seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise InputError(f"{name} must be a number, got {value!r}")
            if not (value > 0.0 or (name != "tol" and value == 0.0)):
                raise InputError(f"{name} must be above 0, got {value!r}")

    def last_position(self, position_of: Callable[[float], float]) -> float:
        """Return the whole position beyond which the run does not go."""
        limits = []
        if self.passes is not None:
            limits.append(position_of(self.passes))
        if self.events is not None:
            limits.append(float(self.events))
        if not limits and self.seconds is None:
            limits.append(
                position_of(_MOST_PASSES_WITH_TOLERANCE if self.tol is not None else DEFAULT_PASSES)
            )
        last = min(limits, default=math.inf)
        return float(math.ceil(last)) if math.isfinite(last) else last


@dataclass
class LoopResult:
    """What the loop hands back: outcome, recorded rows, last certificate, seconds of running."""

    outcome: Outcome
    rows: list[dict[str, float]]
    certificate: Certificate
    seconds: float


class Ending(NamedTuple):
    """How a run ended, and what it returned: a run that is resumed after its end returns the same bits.

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
    """What a run has recorded, its seconds, the best point that it has certified, and how it ended if it did.

    A run that does not converge returns the best point.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    best: Certificate | None = None
    ending: Ending | None = None

    def note(self, certificate: Certificate) -> None:
        """Keep a certificate if it is the best so far; a gap that only steers the run proves nothing."""
        if certificate.steers:
            return
        if self.best is None or _quality(certificate) < _quality(self.best):
            self.best = certificate._replace(theta=certificate.theta.copy(), duals=None)


def _quality(certificate: Certificate) -> tuple[float, float]:
    """Return what certificates are compared by: the gap, and F where nothing is certified."""
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
class Plan:
    """How far a run goes and where it records: budget, recorded grid, and how passes become positions.

    Attributes
    ----------
    budget : Budget
    record : Record
    position_of : callable
        Turns passes over the data into positions.
    n_samples : int
        Samples of all nodes.
    checkpoint_every : float, optional
        Seconds between checkpoints.
    unrecorded : bool
        Whether nobody asked to record the run: it is checked rarely, and cheaply where it is far from the
        tolerance.
    every_round : bool
        Whether an unrecorded run is checked after each round, because a check costs next to nothing.
    """

    budget: Budget
    record: Record
    position_of: Callable[[float], float]
    n_samples: int
    checkpoint_every: float | None = None
    unrecorded: bool = False
    every_round: bool = False

    @property
    def last(self) -> float:
        """The position beyond which the run does not go."""
        return self.budget.last_position(self.position_of)

    def points(self, position: float) -> Iterator[float]:
        """Yield the positions at which to check the run from a position on, without end."""
        in_rounds = self.every_round if self.unrecorded else self.record.grid.unit != "passes"
        for amount in self._amounts():
            point = math.ceil(amount if in_rounds else self.position_of(amount))
            if point >= position:
                yield float(point)

    def _amounts(self) -> Iterator[float]:
        """Yield the passes, or the rounds, at which to check the run."""
        if not self.unrecorded:
            yield from self.record.grid.points()
        elif self.every_round:
            yield from itertools.count()
        else:
            yield 0.0
            before = 0
            for k in itertools.count():
                amount = round(_CHECK_FACTOR**k)
                if amount > before:
                    yield float(amount)
                before = amount

    def tries_ascent(self, rows: Sequence[Mapping[str, float]], gap: float) -> bool:
        """Whether to try dual ascent at a check that finds this gap, after those that are recorded.

        It follows from the recorded rows alone: a resumed run tries where one that never stopped does.
        """
        tol = self.budget.tol
        if not self.unrecorded or tol is None:
            return False
        failed = math.inf  # the gap at the last try
        for row in rows[1:]:  # the first is of the start
            if _within_range(row["gap"], tol, failed):
                failed = row["gap"]
        return bool(rows) and _within_range(gap, tol, failed)

    def ends_at_once(self, progress: Progress, position: float) -> bool:
        """Whether a resumed run had ended already, and this budget does not let it go further."""
        ending, budget = progress.ending, self.budget
        if ending is None or ending.outcome is Outcome.STOPPED:
            return False
        converged = ending.outcome is Outcome.CONVERGED
        if converged and (budget.tol is None or ending.certificate.gap > budget.tol):
            return False
        if ending.planned and (converged or ending.outcome is Outcome.DIVERGED or ending.exhausted):
            return True
        # A larger budget would not have had the run checked here, whatever the check found.
        passes = progress.rows[-1]["passes"]
        spent = self.unrecorded and budget.passes is not None and passes >= budget.passes
        late = budget.seconds is not None and progress.seconds >= budget.seconds
        return position >= self.last or spent or late


def _within_range(gap: float, tol: float, failed: float) -> bool:
    return tol < gap <= min(_ASCENT_RANGE * tol, _ASCENT_AGAIN * failed)


def run_loop(execution: Execution, plan: Plan, monitor: Monitor, progress: Progress) -> LoopResult:
    """Run until the budget ends.

    Parameters
    ----------
    execution : Execution
        This process's part of the run.
    plan : Plan
    monitor : Monitor
    progress : Progress
        How far a resumed run was.
    """
    phases, rows = execution.phases, progress.rows
    if plan.ends_at_once(progress, execution.position):
        assert progress.ending is not None
        ending = progress.ending
        return LoopResult(ending.outcome, rows, ending.certificate, progress.seconds)
    if progress.ending is not None and not progress.ending.planned:
        rows.pop()
    progress.ending = None
    pace = _Pace(execution, monitor, progress)
    with _interrupts(execution, plan.checkpoint_every is not None):
        last, points = plan.last, plan.points(execution.position)
        point = next(points)
        while True:
            look = math.inf if phases is None else phases.next_look
            outcome = pace.go_to(min(point, last, look), plan)
            ends = outcome is not None or execution.position >= last
            # A run in phases that is good enough where it consults a certificate ends there.
            planned = not ends and execution.position >= (min(point, look) if plan.unrecorded else point)
            if ends or planned:
                certificate = _certify(execution, plan, rows, ends)
                if planned and execution.can_ascend and plan.tries_ascent(rows, certificate.gap):
                    certificate, outcome = pace.try_to_end(certificate, plan)
                    planned = outcome is None
                if not rows or rows[-1]["position"] < execution.position:
                    rows.append(_row(execution, plan, certificate, progress.seconds))
                    monitor.update(rows[-1])
                else:
                    planned = True
                if planned:  # a larger budget would not have had the run checked elsewhere
                    progress.note(certificate)
                if outcome is not Outcome.STOPPED:
                    outcome = _verdict(certificate, plan.budget, rows[0]["primal"]) or outcome
                exhausted = plan.budget.tol is not None and (execution.process.exhausted or certificate.last)
                # Rounds may take more passes than planned, and so may a run that tried to end.
                most = plan.budget.passes if plan.unrecorded else None
                spent = most is not None and rows[-1]["passes"] >= most
                if outcome is None and (exhausted or spent or execution.position >= last):
                    outcome = Outcome.OUT_OF_BUDGET
                if outcome is not None:
                    if certificate.steers:
                        certificate = _certify(execution, plan, rows, True)
                    if outcome is not Outcome.CONVERGED:
                        certificate = _best_point(execution, progress, certificate)
                    progress.ending = Ending(outcome, certificate, exhausted, planned)
                    if plan.checkpoint_every is not None:
                        execution.save_last(progress)
                    return LoopResult(outcome, rows, certificate, progress.seconds)
                point = next(points)
            if phases is not None and execution.position >= look:
                # What a run decides by is part of it, and counts in its seconds.
                progress.seconds += phases.look()
                changed = phases.plan(plan)
                if changed is not plan:
                    plan, last = changed, changed.last
                    points = plan.points(math.nextafter(execution.position, math.inf))
                    point = next(points)


class _Pace:
    """Goes from position to position in slices of time, with checkpoints and stops between them."""

    def __init__(self, execution: Execution, monitor: Monitor, progress: Progress) -> None:
        self.execution, self.monitor, self.progress = execution, monitor, progress
        self._saved = time.perf_counter()

    def go_to(self, point: float, plan: Plan) -> Outcome | None:
        """Go on to a position; return how the run ends if it does on the way."""
        execution, progress, seconds = self.execution, self.progress, plan.budget.seconds
        while execution.position < point:
            begun = time.perf_counter()
            left = _SLICE_SECONDS if seconds is None else min(_SLICE_SECONDS, seconds - progress.seconds)
            execution.advance(point, begun + left)
            progress.seconds += time.perf_counter() - begun
            execution.interrupted |= self.monitor.stop()
            due = plan.checkpoint_every is not None and (
                time.perf_counter() - self._saved >= plan.checkpoint_every
            )
            spent = seconds is not None and progress.seconds >= seconds
            due, stopped, spent = execution.agree(due, execution.interrupted, spent)
            if due:
                execution.save(progress)
                self._saved = time.perf_counter()
            if stopped or spent:
                execution.interrupted |= stopped  # whichever process was told to
                return Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET
        return None

    def try_to_end(self, certificate: Certificate, plan: Plan) -> tuple[Certificate, Outcome | None]:
        """Try passes of dual ascent; return where the run is then, and how it ends if they were cut short."""
        begun, seconds = time.perf_counter(), plan.budget.seconds
        deadline = math.inf if seconds is None else begun + seconds - self.progress.seconds
        certificate, cut_short = self.execution.dual_ascent(certificate, plan, deadline)
        self.progress.seconds += time.perf_counter() - begun
        if not cut_short:
            return certificate, None
        (stopped,) = self.execution.agree(self.execution.interrupted)
        return certificate, Outcome.STOPPED if stopped else Outcome.OUT_OF_BUDGET


def _certify(
    execution: Execution, plan: Plan, rows: Sequence[Mapping[str, float]], ends: bool
) -> Certificate:
    if not plan.unrecorded:
        return execution.certify(plan.record)
    assert plan.budget.tol is not None
    enough = math.inf if ends else plan.budget.tol
    lower = max((row["dual"] for row in rows), default=-math.inf)
    return execution.certify(plan.record, enough=enough, lower=lower)


def _best_point(execution: Execution, progress: Progress, last: Certificate) -> Certificate:
    """Return the best point that a run has certified, or θ = 0 if F is smaller there."""
    best, nodes = progress.best or last, execution.nodes
    if _quality(last) <= _quality(best):
        best = last
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
    # The dual variables of the run stay what `start` may go on from.
    return Certificate(zero, found.value, found.lower, found.gap / scale, absolute_gap=found.gap)


def _row(execution: Execution, plan: Plan, certificate: Certificate, seconds: float) -> dict[str, float]:
    work = execution.work()
    row = {
        "position": execution.position,
        "passes": work.computations / plan.n_samples,
        "computations": float(work.computations),
        "messages": float(work.messages),
        "bytes": 8.0 * work.numbers,
        "seconds": seconds,
        "gap": certificate.gap,
        "primal": certificate.value,
        "dual": certificate.lower,
    }
    if execution.phases is not None:
        row["phase"] = float(execution.phases.number)
    return row | execution.measure(plan.record)


def _verdict(certificate: Certificate, budget: Budget, first: float) -> Outcome | None:
    """Return how a run ends at a certificate, if it does; ``first`` is F where it began."""
    # Where columns have very different units gaps alone may be as large, F falling all the while.
    grown = certificate.gap > _DIVERGED and certificate.value > _GROWN * first
    if grown or not math.isfinite(certificate.value):
        return Outcome.DIVERGED
    if budget.tol is not None and certificate.gap <= budget.tol:
        return Outcome.CONVERGED
    return None


@contextmanager
def _interrupts(execution: Execution, keeps_checkpoints: bool) -> Iterator[None]:
    """Turn the first Ctrl-C into a request that the loop honours between blocks.

    A second one interrupts at once. One process that keeps checkpoints also ends in order when it is told to
    (SIGTERM): it writes one, and then ends as if nothing had caught the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    told, terminated = False, False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal told, terminated
        if number == signal.SIGTERM:
            terminated = True
        elif told:
            raise KeyboardInterrupt
        told = execution.interrupted = True

    def come_late(number: int, frame: FrameType | None) -> None:
        """Take a Ctrl-C that all processes were sent, and the others have honoured before it came here."""
        signal.signal(signal.SIGINT, before)
        if time.perf_counter() > ended + _LATE_SECONDS:  # another one, then
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, request)
    # Somebody who handles it has it end as a Ctrl-C does.
    unhandled = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ends_in_order = keeps_checkpoints and execution.alone and unhandled
    before_term = signal.signal(signal.SIGTERM, request) if ends_in_order else None
    try:
        yield
    finally:
        ended = time.perf_counter()
        by_others = execution.interrupted and not told and not execution.alone
        signal.signal(signal.SIGINT, come_late if by_others else before)
        if ends_in_order:
            signal.signal(signal.SIGTERM, before_term)
            if terminated:
                os.kill(os.getpid(), signal.SIGTERM)
