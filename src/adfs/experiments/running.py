"""One run of a comparison: a method on the problem of a seed, measured, timed, kept, and timed anew."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adfs._version import __version__
from adfs.algorithms.base import Method, get_method
from adfs.errors import InputError
from adfs.experiments.comparison import Comparison, MethodSpec
from adfs.experiments.data import make_problem
from adfs.network import Network
from adfs.problem import Problem
from adfs.runtimes import Grid, Record, Run, RunOptions
from adfs.runtimes import run_method as run_one
from adfs.runtimes.clock import Clock, position_at, with_times
from adfs.runtimes.loop import Monitor
from adfs.stages import may_have_stages
from adfs.theory import BlockParameters, Parameters, node_sizes

# A run goes on to this share of its target: an accelerated method's error may rise again above it.
_BEYOND = 0.1
# Recording starts at this share of the longest run.
_FIRST = 1e-3
_DEFAULT_PASSES = 2000.0
# The pace of a clock is measured over this share of the time, if that is at least so many events or rounds.
_SAMPLED = 1.0 / 64.0
_ENOUGH = 1000.0

Report = Callable[[float, float], None]


class _Watch(Monitor):
    """Tells how much of a run is done, and ends it when it is asked to."""

    def __init__(
        self, report: Report | None, stop: Callable[[], bool], start: float, end: float, last: float
    ):
        self._report, self._stop = report, stop
        self._start, self._end, self._last = start, end, last

    def update(self, row: dict[str, float]) -> None:
        """Tell the share that is done: of the decades of the error, or of the longest run."""
        if self._report is None:
            return
        error, start = row["suboptimality"], self._start
        fallen = math.log(start / error) / math.log(start / self._end) if 0.0 < error < start else 0.0
        self._report(min(1.0, max(row["position"] / self._last, fallen)), error)

    def stop(self) -> bool:
        """Whether the comparison was asked to stop."""
        return self._stop()


def run_method(
    comparison: Comparison,
    entry: MethodSpec,
    seed: int,
    *,
    report: Report | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Run one method of a comparison with one seed.

    ``report`` is called with the share that is done, in [0, 1], and the current error; ``stop`` is asked now
    and then, and the run ends early (outcome ``"stopped"``) once it says True. The run's frame has the
    columns ``suboptimality`` (mean over the nodes of F(θ_i) − F*), ``relative`` (that over F(0)), ``worst``
    (of the nodes), ``consensus``, and ``time``, besides those of every run.
    """
    problem, network = make_problem(comparison, seed)
    method = get_method(entry.method)
    own = dict(entry.options)
    constants = constants_of(entry, problem, network, comparison.tau)
    delays = comparison.delays.make(comparison.tau, network)
    clock = functools.partial(
        Clock, method, constants, node_sizes(problem), network, delays, seed=seed, schedule=entry.schedule
    )
    last = _last_position(comparison, method, constants, problem, clock)
    target = comparison.target * (problem.value_at_zero if comparison.relative else 1.0)
    optimum = problem.optimum().value
    watch = _Watch(report, stop, problem.value_at_zero - optimum, _BEYOND * target, last)
    grid = Grid(first=max(1.0, _FIRST * last), per_decade=comparison.records, unit="events")
    adapts = may_have_stages(method, problem, entry.parameters)
    run = run_one(
        method,
        problem,
        network,
        RunOptions(
            parameters=entry.parameters if adapts else constants,
            schedule=entry.schedule,
            tau=comparison.tau,
            seed=seed,
            tol=_BEYOND * target / problem.value_at_zero,
            events=last,
            delays=delays,
            record=Record(("suboptimality", "worst", "consensus"), grid=grid, stop_on="suboptimality"),
            read=entry.read,
            progress=False,
        ),
        own,
        monitor=watch,
    )
    columns = dict(run.columns)
    columns["relative"] = columns["suboptimality"] / problem.value_at_zero
    details = {
        "label": entry.label,
        "tau": comparison.tau,
        "read": entry.read,
        "optimum": optimum,
        "value_at_zero": problem.value_at_zero,
        "problem": _facts(problem, network),
        "fingerprint": fingerprint(comparison, entry, seed),
    }
    if adapts:
        details["retunings"] = run.details["retunings"]
    return dataclasses.replace(run, columns=columns, details=details, dual=None)


def constants_of(entry: MethodSpec, problem: Problem, network: Network, tau: float) -> Any:
    """Return the constants that a method has on a problem for a τ."""
    method, own = get_method(entry.method), dict(entry.options)
    method.check(problem, own)
    if method.kind == "single":
        problem, network = problem.merged(), Network("path:1")
    return method.adapt(method.parameters(problem, network, choice=entry.parameters, tau=tau), own)


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


def _last_position(
    comparison: Comparison, method: Method, constants: object, problem: Problem, clock: Callable[[], Clock]
) -> float:
    """Return where a run is given up: the first of its limits."""
    limits = []
    if comparison.max_time is not None:
        limits.append(_position_in_time(clock, comparison.max_time))
    if comparison.max_passes is not None or not limits:
        passes = _DEFAULT_PASSES if comparison.max_passes is None else comparison.max_passes
        limits.append(method.position_of(constants, node_sizes(problem), passes))
    return float(max(1, math.ceil(min(limits))))


def _position_in_time(start: Callable[[], Clock], time: float) -> float:
    """Return about how far a run comes within a time, on a clock that starts anew when it is asked for.

    Walking all the way may take longer than the run itself, which mostly ends before: a short walk gives the
    pace.
    """
    clock = start()
    begun = clock.latest
    if begun >= time:
        return 0.0
    sampled = position_at(clock, begun + _SAMPLED * (time - begun))
    return sampled / _SAMPLED if sampled >= _ENOUGH else position_at(start(), time)


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


# --------------------------------------------------------------------------- runs that are kept


def run_path(folder: Path, entry: MethodSpec, seed: int) -> Path:
    """Return where a run is kept."""
    return folder / "runs" / f"{entry.slug}-{seed}.run"


class Task(NamedTuple):
    """One run to be made: its number in the display, and where it goes."""

    number: int
    comparison: Comparison
    entry: MethodSpec
    seed: int
    path: Path


def finished_run(task: Task, before: Comparison | None) -> Run | None:
    """Return the run that is kept, timed anew if need be; None if there is none that can be used."""
    if not task.path.exists():
        return None
    try:
        run = Run.load(task.path)
    except InputError:
        return None
    if run.details.get("fingerprint") == fingerprint(task.comparison, task.entry, task.seed):
        return run
    if before is not None:
        before = dataclasses.replace(
            task.comparison, tau=run.details.get("tau", before.tau), delays=before.delays
        )
        if run.details.get("fingerprint") == fingerprint(before, task.entry, task.seed):
            return _with_new_times(run, task, before)
    return None


def _with_new_times(run: Run, task: Task, before: Comparison) -> Run | None:
    """Return a run of a comparison that had other delays with the times of this one, and keep it.

    Iterates do not depend on delays, unless by constants that are tuned for τ or adapted on the way, or by
    where a run is given up: None in these cases.
    """
    comparison, entry, seed = task.comparison, task.entry, task.seed
    if run.history is not None or (comparison.max_time is not None and not run.converged):
        return None
    problem, network = make_problem(comparison, seed)
    old, new = (constants_of(entry, problem, network, tau) for tau in (before.tau, comparison.tau))
    if isinstance(old, Parameters | BlockParameters):  # they also tell the τ they were chosen for
        old = dataclasses.replace(old, tau=new.tau)
    if not _same(old, new):
        return None
    delays = comparison.delays.make(comparison.tau, network)
    timed = with_times(dataclasses.replace(run, parameters=new), problem, network, delays)
    if comparison.max_time is not None and timed.columns["time"][-1] > comparison.max_time:
        return None
    marks = {"tau": comparison.tau, "fingerprint": fingerprint(comparison, entry, seed)}
    columns = {name: timed.columns[name] for name in run.columns}
    run = dataclasses.replace(run, columns=columns, parameters=new, details=run.details | marks)
    run.save(task.path)
    return run


def _same(first: object, second: object) -> bool:
    """Whether two records of constants, or numbers or arrays, are the same to the bit, nan included."""
    if dataclasses.is_dataclass(first) and type(first) is type(second):
        names = [one.name for one in dataclasses.fields(first)]
        return all(_same(getattr(first, name), getattr(second, name)) for name in names)
    one, other = np.asarray(first), np.asarray(second)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
