"""One run of a comparison: a method on the problem of a seed, measured against the optimum, and timed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import EventProcess, Method, Process, Setting, get_method
from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, MethodSpec
from adfs.experiments.data import make_problem
from adfs.network import Network
from adfs.problem import Problem
from adfs.runtimes.clock import Clock, position_at, retime
from adfs.runtimes.delays import Delays
from adfs.runtimes.loop import Budget, run_loop
from adfs.runtimes.measuring import Certificate
from adfs.runtimes.recording import Grid, Record
from adfs.runtimes.result import Run, as_columns
from adfs.runtimes.simulate import SimulatedRun, make_setting
from adfs.theory import node_sizes

__all__ = ["fingerprint", "run_method"]

# A run goes on to this share of its target: an accelerated method's error may rise again above it.
_BEYOND = 0.1
# Recording starts at this share of the longest run.
_FIRST = 1e-3
_DEFAULT_PASSES = 2000.0
# The pace of a clock is measured over this share of the time, if that is at least so many events or rounds.
_SAMPLED = 1.0 / 64.0
_ENOUGH = 1000.0

Report = Callable[[float, float], None]


class MeasuredRun(SimulatedRun):
    """A run on a problem whose optimum is known: its certificate is that of the nodes' own iterates.

    ``value`` is the mean over the nodes of F(θ_i), ``lower`` is F*.
    """

    def __init__(self, problem: Problem, process: Process, read: str, stop: Callable[[], bool]) -> None:
        super().__init__(problem, process, read, None, "")
        self._stop = stop
        self._optimum = problem.optimum()
        self._at = -1.0
        self._values = np.empty(0)

    def _out_of_time(self, deadline: float | None) -> bool:
        self.interrupted = self.interrupted or self._stop()
        return super()._out_of_time(deadline)

    def _evaluate(self) -> np.ndarray:
        """Return F(θ_i) − F* of each node, shape (n,)."""
        if self._at != self.position:
            assert isinstance(self.problem, Problem)
            self._values = self.problem.objective(self.process.primal(self.read)) - self._optimum.value
            self._at = self.position
        return self._values

    def certify(self) -> Certificate:
        """Return the nodes' mean iterate and the mean of their own errors."""
        error = float(self._evaluate().mean())
        mean = self.process.primal(self.read).mean(axis=0)
        lower = self._optimum.value
        return Certificate(mean, lower + error, lower, error / self.problem.value_at_zero)

    def measure(self, record: Record) -> dict[str, float]:
        """Return the nodes' errors and how far apart they are."""
        del record
        values, iterates = self._evaluate(), self.process.primal(self.read)
        spread = np.linalg.norm(iterates - iterates.mean(axis=0), axis=1)
        return {
            "suboptimality": float(values.mean()),
            "worst": float(values.max()),
            "consensus": float(spread.mean()),
        }


def run_method(
    comparison: Comparison,
    entry: MethodSpec,
    seed: int,
    *,
    report: Report | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Run one method of a comparison with one seed.

    Parameters
    ----------
    comparison, entry, seed
    report : callable, optional
        Called with the share that is done, in [0, 1], and the current error.
    stop : callable
        Asked now and then; the run ends early (outcome ``"stopped"``) once it says True.

    Returns
    -------
    Run
        Its frame has the columns ``suboptimality`` (mean over the nodes of F(θ_i) − F*), ``relative`` (that
        over F(0)), ``worst`` (of the nodes), ``consensus``, and ``time``, besides those of every run.
    """
    problem, network = make_problem(comparison, seed)
    method = get_method(entry.method)
    options = dict(entry.options)
    setting = make_setting(
        method, problem, network, entry.parameters, entry.schedule, comparison.tau, seed, options
    )
    constants = setting.parameters
    clocked = _Clocked(comparison, entry, method, constants, problem, network, seed)
    last = _last_position(comparison, method, setting, constants, clocked)
    target = comparison.target * (problem.value_at_zero if comparison.relative else 1.0)
    tolerance = _BEYOND * target / problem.value_at_zero
    driver = MeasuredRun(problem, method.start(setting), entry.read, stop)
    driver.compile(method, setting)
    start = problem.value_at_zero - problem.optimum().value

    def tell(row: dict[str, float]) -> None:
        if report is None:
            return
        error = row["suboptimality"]
        fallen = (
            math.log(start / error) / math.log(start / (_BEYOND * target)) if 0.0 < error < start else 0.0
        )
        report(min(1.0, max(row["position"] / last, fallen)), error)

    result = run_loop(
        driver,
        budget=Budget(tol=tolerance, events=last),
        record=Record((), grid=Grid(first=max(1.0, _FIRST * last), per_decade=comparison.records)),
        position_of=lambda position: position,
        n_samples=problem.n_samples,
        report=tell,
    )
    columns = as_columns(result.rows)
    columns["relative"] = columns["suboptimality"] / problem.value_at_zero
    columns["time"] = clocked.times(columns["position"])
    return Run(
        method=method.name,
        outcome=result.outcome,
        theta=driver.process.primal(entry.read),
        coef=result.certificate.theta,
        gap=result.certificate.gap,
        columns=columns,
        parameters=constants,
        seed=seed,
        seconds=result.seconds,
        schedule=entry.schedule if isinstance(driver.process, EventProcess) else "",
        details={
            "label": entry.label,
            "tau": comparison.tau,
            "read": entry.read,
            "optimum": problem.optimum().value,
            "value_at_zero": problem.value_at_zero,
            "problem": _facts(problem, network),
            "fingerprint": fingerprint(comparison, entry, seed),
        },
    )


def _facts(problem: Problem, network: Network) -> dict[str, float]:
    return {
        "n_nodes": problem.n_nodes,
        "n_edges": network.n_edges,
        "gamma": network.gamma,
        "n_samples": problem.n_samples,
        "n_features": problem.n_features,
        "kappa_s": problem.kappa_s,
        "kappa_b": problem.kappa_b,
    }


@dataclasses.dataclass(frozen=True)
class _Clocked:
    """The idealised clock of one run."""

    comparison: Comparison
    entry: MethodSpec
    method: Method
    constants: Any
    problem: Problem
    network: Network
    seed: int

    @property
    def delays(self) -> Delays:
        return self.comparison.delays.make(self.comparison.tau, self.network)

    def start(self) -> Clock:
        """Return the clock at time 0."""
        return Clock(
            self.method,
            self.constants,
            node_sizes(self.problem),
            self.network,
            self.delays,
            seed=self.seed,
            schedule=self.entry.schedule,
        )

    def times(self, positions: np.ndarray) -> np.ndarray:
        """Return the time by which everything up to each position has happened."""
        return retime(
            self.method,
            self.constants,
            node_sizes(self.problem),
            self.network,
            self.delays,
            positions,
            seed=self.seed,
            schedule=self.entry.schedule,
        ).latest


def _last_position(
    comparison: Comparison, method: Method, setting: Setting, constants: Any, clocked: _Clocked
) -> float:
    """Return where a run is given up: the first of its limits."""
    limits = []
    if comparison.max_time is not None:
        limits.append(_position_in_time(clocked, comparison.max_time))
    if comparison.max_passes is not None or not limits:
        passes = _DEFAULT_PASSES if comparison.max_passes is None else comparison.max_passes
        limits.append(method.position_of(constants, node_sizes(setting.problem), passes))
    return float(max(1, math.ceil(min(limits))))


def _position_in_time(clocked: _Clocked, time: float) -> float:
    """Return about how far a run comes within a time.

    Walking all the way may take longer than the run itself, which mostly ends before: a short walk gives the
    pace.
    """
    clock = clocked.start()
    begun = clock.latest
    if begun >= time:
        return 0.0
    sampled = position_at(clock, begun + _SAMPLED * (time - begun))
    return sampled / _SAMPLED if sampled >= _ENOUGH else position_at(clocked.start(), time)


def fingerprint(comparison: Comparison, entry: MethodSpec, seed: int) -> str:
    """Return a mark of all that a run depends on, apart from the contents of imported modules."""
    table = comparison.to_table()
    for key in ("title", "methods", "seeds", "imports"):
        table.pop(key, None)
    own = dataclasses.asdict(dataclasses.replace(entry, label="-"))
    stamp: list[float] = []
    if comparison.data.is_file:
        try:
            found = Path(comparison.data.source).stat()
            stamp = [found.st_size, found.st_mtime_ns]
        except OSError as error:
            raise InputError(f"cannot read {comparison.data.source}: {error.strerror or error}") from None
    text = json.dumps([__version__, table, own, seed, stamp], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
