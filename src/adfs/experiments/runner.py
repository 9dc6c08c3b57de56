"""Running comparisons: each method on the problem of each seed, in parallel, with every finished run kept."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor

from adfs._version import __version__
from adfs.algorithms.base import Method, get_method
from adfs.errors import AdfsError, ExitCode, InputError
from adfs.experiments.comparison import Comparison, DelaySpec, MethodSpec
from adfs.experiments.inputs import make_problem, without_defaults
from adfs.experiments.results import Results, load_runs, run_path
from adfs.files import JsonObject, load_modules, write_whole
from adfs.network import Network
from adfs.problem import Problem
from adfs.problem.evaluation import sum_in_order
from adfs.runtimes import Grid, Outcome, Record, Run, RunOptions
from adfs.runtimes import run_method as run_one
from adfs.runtimes.clock import Clock, position_at, with_times
from adfs.runtimes.options import describe
from adfs.runtimes.run import wanted_on_screen
from adfs.stages import rule_for
from adfs.theory import BlockParameters, Parameters, node_sizes
from adfs.threads import single_threaded

T = TypeVar("T")
R = TypeVar("R")

# A run continues to a tenth of its target, because the error of an accelerated method may rise again.
_SHARE_OF_TARGET = 0.1
# The passes after which a run ends if the comparison sets no limit.
_DEFAULT_PASSES = 2000.0
# Begins the first line of a folder's comparison.toml; the path of the original file follows.
_ORIGIN = "# from "


class RunsInterruptedError(AdfsError):
    """The runs were interrupted; finished ones are kept, and the same call continues from there."""

    exit_code = ExitCode.INTERRUPTED


# --------------------------------------------------------------------------- one run


def run_method(comparison: Comparison, entry: MethodSpec, seed: int) -> Run:
    """Run one method of a comparison with one seed.

    The run's frame has the columns ``suboptimality`` (mean over the nodes of F(θ_i) − F*), ``relative`` (that
    over F(0)), ``worst`` (of the nodes), ``consensus``, and ``time``, besides those of every run.
    """
    problem, network = make_problem(comparison, seed)
    method = get_method(entry.method)
    constants = constants_of(entry, problem, network, comparison.tau)
    delays = comparison.delays.make(comparison.tau, network)
    # The clock is started several times: to find the end of the run, and for its times.
    clock = functools.partial(
        Clock, method, constants, node_sizes(problem), network, delays, seed=seed, schedule=entry.schedule
    )
    last = _last_position(comparison, method, constants, problem, clock)
    # A run compares its error with an absolute target.
    target = comparison.target * (problem.value_at_zero if comparison.relative else 1.0)
    # The first record is at a thousandth of the longest run; later ones are spaced by a factor.
    grid = Grid(first=max(1.0, 1e-3 * last), per_decade=comparison.records, unit="events")
    adapts = rule_for(method, problem, entry.parameters) is not None
    # The pace of a run in stages changes, so such a run watches its clock itself.
    watched = comparison.max_time if adapts else None
    options = RunOptions(
        parameters=entry.parameters if adapts else constants,
        schedule=entry.schedule,
        tau=comparison.tau,
        seed=seed,
        tol=_SHARE_OF_TARGET * target / problem.value_at_zero,
        events=last if watched is None else None,
        max_passes=None if watched is None else comparison.max_passes,
        time=watched,
        delays=delays,
        record=Record(("suboptimality", "worst", "consensus"), grid=grid, stop_on="suboptimality"),
        read=entry.read,
        progress=False,
    )
    run = run_one(method, problem, network, options, dict(entry.options))
    # Besides the columns of every run, the error relative to F(0); besides its details, facts for the page.
    columns = run.columns | {"relative": run.columns["suboptimality"] / problem.value_at_zero}
    facts = {
        "nodes, n": problem.n_nodes,
        "edges": network.n_edges,
        "spectral gap, γ": network.gamma,
        "samples of all nodes": problem.n_samples,
        "features, d": problem.n_features,
        "κ_s": problem.kappa_s,
        "κ_b": problem.kappa_b,
    }
    details = run.details | {"problem": facts}
    return dataclasses.replace(run, columns=columns, details=details, dual=None)


def constants_of(entry: MethodSpec, problem: Problem, network: Network, tau: float) -> Any:
    """Return the parameters of a method on a problem for a τ."""
    method = get_method(entry.method)
    method.check(problem)
    # Methods of one machine get all the data and no network.
    if method.kind == "single":
        problem, network = problem.merged(), Network("path:1")
    parameters = method.parameters(problem, network, choice=entry.parameters, tau=tau)
    # As a run does that is given the name of its constants.
    parameters = method.refine(parameters, problem, lambda rows: sum_in_order(rows, np.zeros(rows.shape[1])))
    return method.adapt(parameters, dict(entry.options))


def _last_position(
    comparison: Comparison, method: Method, constants: object, problem: Problem, start: Callable[[], Clock]
) -> float:
    """Return the position at which a run ends if it has not reached its target: the first of its limits.

    ``start`` returns a new clock.
    """
    # Without any limit a run ends after a fixed number of passes.
    limits, time = [], comparison.max_time
    if comparison.max_passes is not None or time is None:
        passes = _DEFAULT_PASSES if comparison.max_passes is None else comparison.max_passes
        limits.append(method.position_of(constants, node_sizes(problem), passes))
    if time is not None and (clock := start()).latest < time:
        # Simulating the clock to the end may take longer than the run, which mostly ends before. A 64th of
        # the time gives the pace, unless that is less than 1000 events or rounds.
        sampled = 64.0 * position_at(clock, clock.latest + (time - clock.latest) / 64.0)
        limits.append(sampled if sampled >= 64_000.0 else position_at(start(), time))
    elif time is not None:
        limits.append(0.0)
    return float(max(1, math.ceil(min(limits))))


def fingerprint(comparison: Comparison, entry: MethodSpec, seed: int) -> str:
    """Return a hash of everything that a run depends on, except the contents of imported modules."""
    table = comparison.to_table()
    # Entries that do not change a run.
    for key in ("title", "methods", "seeds", "imports"):
        table.pop(key, None)
    method = dataclasses.asdict(dataclasses.replace(entry, label="-"))
    # A file is recognised by its size and date: hashing it would mean reading it for each run. A file that
    # is not there has neither, and the run reports it.
    stamp: list[float] = []
    with contextlib.suppress(OSError):
        status = Path(comparison.data.source).stat()
        stamp = [status.st_size, status.st_mtime_ns]
    text = json.dumps([__version__, table, method, seed, stamp], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _marks(comparison: Comparison, entry: MethodSpec, seed: int) -> JsonObject:
    """Return the details of a run that decide whether a later comparison can use it."""
    timing = {"tau": comparison.tau, "delays": without_defaults(comparison.delays)}
    return {"fingerprint": fingerprint(comparison, entry, seed), "timing": timing}


# --------------------------------------------------------------------------- finished runs


class Task(NamedTuple):
    """A run of a comparison, the file that it is kept in, and the idealised time after which it is given up.

    The file may hold a run that was given up at another time, if that was not earlier.
    """

    comparison: Comparison
    entry: MethodSpec
    seed: int
    path: Path
    patience: float = math.inf


def is_finished(task: Task, path: Path | None = None) -> bool:
    """Whether a task has a finished run, which gets new times if only the delays changed.

    ``path`` is another place to look for it: the file of a comparison that differs in the delays.
    """
    try:
        run = Run.load(path or task.path)
    except InputError:  # no run, or a damaged one
        return False
    kept = run.details.get("fingerprint")
    if kept == fingerprint(task.comparison, task.entry, task.seed):
        given_up = run.outcome is Outcome.OUT_OF_BUDGET
        return not given_up or bool(run.details.get("patience", math.inf) >= task.patience)
    # The same settings except the delays? A run of an earlier version does not have its delays.
    timing = run.details.get("timing")
    if timing is None:
        return False
    before = dataclasses.replace(task.comparison, tau=timing["tau"], delays=DelaySpec(**timing["delays"]))
    return kept == fingerprint(before, task.entry, task.seed) and _save_new_times(run, task, before.tau)


def _save_new_times(run: Run, task: Task, old_tau: float) -> bool:
    """Save a run that was made with other delays with the times of these delays, if its iterates stay.

    The iterates depend on the delays only through parameters that were tuned for τ or adapted during the run,
    and through the time at which a run ends. In these cases the run must be repeated.
    """
    comparison, entry, seed = task.comparison, task.entry, task.seed
    limited = comparison.max_time is not None or "patience" in run.details
    if run.history is not None or (limited and not run.converged):
        return False
    # The parameters for the old and for the new τ must be the same.
    problem, network = make_problem(comparison, seed)
    old, new = (constants_of(entry, problem, network, tau) for tau in (old_tau, comparison.tau))
    if isinstance(old, Parameters | BlockParameters):  # they hold the τ that they were chosen for
        old = dataclasses.replace(old, tau=new.tau)
    if describe(old) != describe(new):
        return False
    # The schedule of the run decides who waits for whom; the clock walks through it again.
    delays = comparison.delays.make(comparison.tau, network)
    timed = with_times(dataclasses.replace(run, parameters=new), problem, network, delays)
    # A run that takes longer now would have ended earlier.
    if comparison.max_time is not None and timed.columns["time"][-1] > comparison.max_time:
        return False
    details = timed.details | _marks(comparison, entry, seed)
    dataclasses.replace(timed, details=details).save(task.path)
    return True


def prepare(folder: Path, comparison: Comparison, origin: Path | None, fresh: bool) -> None:
    """Make the folder ready for a comparison."""
    description = folder / "comparison.toml"
    made_from = None
    if description.is_file() and not fresh:
        first = description.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        made_from = first.removeprefix(_ORIGIN) if first.startswith(_ORIGIN) else None
    # A folder belongs to one file: another file of the same name must not overwrite its results.
    if origin is not None and origin.resolve() != description.resolve():
        mine = os.path.relpath(origin.resolve(), folder.resolve())
        other = Path(os.path.normpath(folder / (made_from or mine)))
        if made_from not in (None, mine) and other.exists():
            raise InputError(
                f"{folder} holds the comparison of {other}, not of {origin}: "
                "name another folder with --out, or replace it with --fresh"
            )
        made_from = mine
    try:
        if fresh and (folder / "runs").is_dir():
            shutil.rmtree(folder / "runs")
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}") from None
    write_whole(description, (f"{_ORIGIN}{made_from}\n" if made_from else "") + comparison.toml())


# --------------------------------------------------------------------------- all runs


def run_comparison(
    comparison: Comparison,
    folder: str | Path,
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
    origin: Path | None = None,
) -> Results:
    """Run a comparison, or the part of it that is not finished yet.

    Parameters
    ----------
    comparison : Comparison
    folder : path
        The folder of the runs, which may hold finished ones.
    jobs : int
        Number of processes; with 1 all runs are made in this process.
    fresh : bool
        Remove the runs in the folder first.
    progress : bool, optional
        Print a line on standard error after each run; by default only on a terminal.
    origin : Path, optional
        The file that the comparison was read from. A folder with the comparison of another file is refused
        unless ``fresh``.

    Raises
    ------
    InputError
        If a method cannot run. The other runs are finished and kept before it is raised.
    """
    folder = Path(folder)
    comparison.check_names()
    prepare(folder, comparison, origin, fresh)
    tasks = [
        Task(comparison, entry, seed, run_path(folder, entry, seed))
        for seed in comparison.seeds
        for entry in comparison.methods
    ]
    missing = [task for task in tasks if not is_finished(task)]
    for outcome in in_processes(make_run, missing, jobs, progress, folder / "runs"):
        if isinstance(outcome, InputError):
            raise outcome
    return load_runs(comparison, folder)


def in_processes(
    make: Callable[[T], tuple[str, R]], tasks: Sequence[T], jobs: int, progress: bool | None, kept: Path
) -> list[R]:
    """Make each task, print how far they are, and return the results in the order of the tasks.

    ``make`` returns a line about a task and its result. A result may be an error, so that one task that
    cannot be made does not stop the others. ``kept`` is the folder of finished runs.
    """
    shown = wanted_on_screen(progress)
    begun, results = time.monotonic(), dict[int, R]()
    # With one job the runs are made in this process.
    parallel = joblib.Parallel(
        min(jobs, len(tasks)) or 1,
        backend="loky",
        return_as="generator_unordered",
        initializer=_start_worker,
    )
    try:
        for number, (line, result) in parallel(
            joblib.delayed(_numbered)(number, make, task) for number, task in enumerate(tasks)
        ):
            results[number] = result
            if shown and not isinstance(result, InputError):
                spent = time.monotonic() - begun
                sys.stderr.write(f"{len(results):>4}/{len(tasks)} {spent:6.0f} s  {line}\n")
    except BrokenProcessPool:
        raise AdfsError(
            "a process of the comparison ended unexpectedly, perhaps for lack of memory; "
            "try again with --jobs 1: finished runs are kept"
        ) from None
    except KeyboardInterrupt:
        raise RunsInterruptedError(
            f"finished runs are kept in {kept}; the same command continues from there"
        ) from None
    finally:
        # joblib would keep its processes, which have the working directory and the imports of this call.
        if jobs > 1:
            get_reusable_executor().shutdown(kill_workers=True)
    return [results[number] for number in range(len(tasks))]


def _numbered(number: int, make: Callable[[T], R], task: T) -> tuple[int, R]:
    return number, make(task)


def _start_worker() -> None:
    # Ctrl-C on a terminal reaches every process; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    single_threaded.__enter__()  # never left: there are as many processes as cores


def make_run(task: Task) -> tuple[str, InputError | None]:
    """Make one run and keep it; return its name and its last error, and the reason if it cannot run."""
    comparison, entry, seed, path, patience = task
    name = f"{path.parent.parent.name}: {entry.label}, seed {seed}"
    at_fault = ""
    try:
        load_modules(comparison.imports)  # a new process has not imported them yet
        # Errors in the data or the delays are found here, so that they do not name a method.
        _, network = make_problem(comparison, seed)
        comparison.delays.make(comparison.tau, network).pace(network, seed)
        at_fault = f"{entry.label}: "
        most = min(patience, comparison.max_time or math.inf)
        limited = dataclasses.replace(comparison, max_time=most) if most < math.inf else comparison
        run = run_method(limited, entry, seed)
    except InputError as error:
        return name, InputError(f"{at_fault}{error}")
    if run.outcome is Outcome.STOPPED:  # by Ctrl-C, which ends a run in order
        raise KeyboardInterrupt
    details = run.details | _marks(comparison, entry, seed)
    details |= {"patience": patience} if patience < math.inf else {}
    dataclasses.replace(run, details=details).save(path)
    return f"{name}: error {run.columns['suboptimality'][-1]:.1e}", None
