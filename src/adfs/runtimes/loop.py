"""The one loop of all runs: advance, record, certify, stop. What differs between runtimes is a driver."""

from __future__ import annotations

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from adfs.algorithms.base import Work
from adfs.errors import InputError
from adfs.runtimes.measuring import Certificate
from adfs.runtimes.recording import Record

__all__ = ["Budget", "Driver", "LoopResult", "Outcome", "run_loop"]

DEFAULT_PASSES = 100.0
_MOST_PASSES_WITH_TOLERANCE = 100_000.0
_DIVERGED = 1e12
_SLICE_SECONDS = 0.25


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


class Driver(ABC):
    """What a runtime does for the loop."""

    @property
    @abstractmethod
    def position(self) -> float:
        """Where the run is."""

    @abstractmethod
    def advance(self, stop: float, deadline: float | None) -> bool:
        """Go on to a position; return False when interrupted, or when the deadline passed first."""

    @abstractmethod
    def work(self) -> Work:
        """Return what has been done by all nodes."""

    @abstractmethod
    def certify(self) -> Certificate:
        """Certify the current point."""

    @abstractmethod
    def measure(self, record: Record) -> dict[str, float]:
        """Evaluate the nodes' iterates."""

    @abstractmethod
    def save(self, rows: list[dict[str, float]], seconds: float) -> None:
        """Write a checkpoint, if the run keeps any."""

    @abstractmethod
    def agree(self, flag: bool) -> bool:
        """Return whether any process of the run raises this flag."""

    def round_up(self, position: float) -> float:
        """Return the first position at which the run can stand, at or after one."""
        return float(math.ceil(position))

    interrupted: bool = False


@dataclass
class LoopResult:
    """What the loop hands back: outcome, recorded rows, last certificate, seconds of running."""

    outcome: Outcome
    rows: list[dict[str, float]]
    certificate: Certificate
    seconds: float


def run_loop(
    driver: Driver,
    *,
    budget: Budget,
    record: Record,
    position_of: Callable[[float], float],
    n_samples: int,
    report: Callable[[dict[str, float]], None] | None = None,
    checkpoint_every: float | None = None,
    rows: list[dict[str, float]] | None = None,
    seconds: float = 0.0,
) -> LoopResult:
    """Run until the budget ends.

    Parameters
    ----------
    driver : Driver
    budget, record
    position_of : callable
        Turns passes over the data into positions.
    n_samples : int
        Samples of all nodes.
    report : callable, optional
        Called with each recorded row.
    checkpoint_every : float, optional
        Seconds between checkpoints.
    rows, seconds
        What a resumed run had already.
    """
    rows = [] if rows is None else rows
    last = budget.last_position(position_of)
    saved = time.perf_counter()
    outcome: Outcome | None = None
    with _interrupts(driver):
        for point in _grid(driver, record, position_of, last):
            while driver.position < point:
                begun = time.perf_counter()
                left = (
                    _SLICE_SECONDS
                    if budget.seconds is None
                    else min(_SLICE_SECONDS, budget.seconds - seconds)
                )
                driver.advance(point, begun + left)
                seconds += time.perf_counter() - begun
                if checkpoint_every is not None and driver.agree(
                    time.perf_counter() - saved >= checkpoint_every
                ):
                    driver.save(rows, seconds)
                    saved = time.perf_counter()
                if driver.agree(driver.interrupted):
                    outcome = Outcome.STOPPED
                elif budget.seconds is not None and driver.agree(seconds >= budget.seconds):
                    outcome = Outcome.OUT_OF_BUDGET
                if outcome is not None:
                    break
            certificate = driver.certify()
            if not rows or rows[-1]["position"] < driver.position:
                rows.append(_row(driver, record, certificate, n_samples, seconds))
                if report is not None:
                    report(rows[-1])
            outcome = outcome or _verdict(certificate, budget)
            if outcome is None and driver.position >= last:
                outcome = Outcome.OUT_OF_BUDGET
            if outcome is not None:
                if checkpoint_every is not None:
                    driver.save(rows, seconds)
                return LoopResult(outcome, rows, certificate, seconds)
    raise AssertionError("the grid has no end")


def _grid(
    driver: Driver, record: Record, position_of: Callable[[float], float], last: float
) -> Iterator[float]:
    for passes in record.grid.points():
        point = driver.round_up(position_of(passes))
        if point >= driver.position:
            yield min(point, last)


def _row(
    driver: Driver, record: Record, certificate: Certificate, n_samples: int, seconds: float
) -> dict[str, float]:
    work = driver.work()
    row = {
        "position": driver.position,
        "passes": work.computations / n_samples,
        "computations": float(work.computations),
        "messages": float(work.messages),
        "bytes": 8.0 * work.numbers,
        "seconds": seconds,
        "gap": certificate.gap,
        "primal": certificate.value,
        "dual": certificate.lower,
    }
    return row | driver.measure(record)


def _verdict(certificate: Certificate, budget: Budget) -> Outcome | None:
    if not math.isfinite(certificate.value) or certificate.gap > _DIVERGED:
        return Outcome.DIVERGED
    if budget.tol is not None and certificate.gap <= budget.tol:
        return Outcome.CONVERGED
    return None


@contextmanager
def _interrupts(driver: Driver) -> Iterator[None]:
    """Turn the first Ctrl-C into a request that the loop honours between blocks.

    A second one interrupts at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: Any) -> None:
        if driver.interrupted:
            raise KeyboardInterrupt
        driver.interrupted = True

    before = signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
