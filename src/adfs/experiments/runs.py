"""The runs of comparisons: made in parallel processes, kept one by one in a folder, and read together."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from adfs.errors import AdfsError, InputError
from adfs.experiments.comparison import Comparison, read_comparison
from adfs.experiments.data import load_modules, make_problem
from adfs.experiments.running import Task, finished_run, run_method, run_path
from adfs.files import write_whole
from adfs.runtimes.loop import Outcome
from adfs.runtimes.result import Run
from adfs.threads import single_threaded

#: What an error can be drawn against: column -> words.
AXES = {
    "time": "idealised time",
    "computations": "computations (samples, all nodes)",
    "messages": "messages (all nodes)",
    "bytes": "bytes sent (all nodes)",
}
#: Errors are drawn down to here; below it is rounding.
FLOOR = 1e-14
# Places of a curve, spaced evenly and as many again by factors.
_POINTS = 120

_POLL, _GRACE = 0.1, 1.0
# The share of a run that is done is in (0, 1] while it goes on, and this once it is kept.
_BEGUN, _FINISHED = 1e-9, 2.0
# Begins the first line of a folder's comparison.toml; the file it was made from follows, as seen from there.
_ORIGIN = "# from "


class RunsInterruptedError(AdfsError):
    """The runs were interrupted; what was finished is kept, and the same call goes on from there."""


class Curve(NamedTuple):
    """The error of a method over seeds, at places ``x`` that every seed reached; (P,) each."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of a comparison.

    Attributes
    ----------
    comparison : Comparison
    runs : dict
        (label, seed) -> Run; those that are finished.
    """

    comparison: Comparison
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods that have a run, in the order of the comparison."""
        return [one.label for one in self.comparison.methods if self.of(one.label)]

    @property
    def error(self) -> str:
        """The column of the errors: ``"suboptimality"`` or ``"relative"``."""
        return "relative" if self.comparison.relative else "suboptimality"

    def of(self, label: str) -> list[Run]:
        """Return the runs of a method, one per seed."""
        seeds = self.comparison.seeds
        return [self.runs[label, seed] for seed in seeds if (label, seed) in self.runs]

    def frame(self) -> pd.DataFrame:
        """Return all traces as one table, one row per recorded point."""
        parts = []
        for label in self.labels:
            for run in self.of(label):
                part = run.frame.rename(columns={"gap": "relative_gap"})
                part.insert(0, "label", label)
                part.insert(1, "method", run.method)
                part.insert(2, "seed", run.seed)
                parts.append(part)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def times(self, label: str, level: float, axis: str = "time") -> np.ndarray:
        """Return when each run came to stay at or below an error, inf where it did not; shape (seeds,)."""
        return np.array([time_to(run.frame, level, self.error, axis) for run in self.of(label)])

    def ends(self, label: str) -> np.ndarray:
        """Return when each run ended; shape (seeds,)."""
        return np.array([float(run.frame["time"].iloc[-1]) for run in self.of(label)])

    def median_time(self, label: str, level: float) -> tuple[float, bool]:
        """Return the median over seeds of :meth:`times`, and True; or a lower bound of it, and False.

        A run that ended above the level bounds its time from below by its end.
        """
        times = self.times(label, level)
        median = float(np.median(times))
        if math.isfinite(median):
            return median, True
        return float(np.median(np.minimum(times, self.ends(label)))), False

    def curve(self, label: str, axis: str = "time") -> Curve | None:
        """Return the median and the range of a method's errors over seeds; None without two points."""
        traces = []
        for run in self.of(label):
            x = run.frame[axis].to_numpy()
            y = np.log10(np.maximum(run.frame[self.error].to_numpy(), FLOOR))
            keep = np.isfinite(x) & np.isfinite(y)
            # A method that does not communicate at all has no axis of messages.
            if np.count_nonzero(keep) > 1 and x[keep][-1] > x[keep][0]:
                traces.append((x[keep], y[keep]))
        if not traces or len(traces) < len(self.of(label)):
            return None
        end = min(x[-1] for x, _ in traces)
        first = min(x[x > 0.0][0] for x, _ in traces)
        spaced = np.geomspace(first, end, _POINTS) if first < end else np.array([end])
        where = np.unique(np.concatenate([np.linspace(0.0, end, _POINTS), spaced]))
        heights = np.array([np.interp(where, x, y) for x, y in traces])
        middle, low, high = np.median(heights, axis=0), heights.min(axis=0), heights.max(axis=0)
        return Curve(where, *(10.0**one for one in (middle, low, high)))


def time_to(frame: pd.DataFrame, level: float, error: str, axis: str = "time") -> float:
    """Return where a trace comes to stay at or below a level, inf if it ends above it.

    Between two recorded points the logarithm of the error is taken to be straight.

    Examples
    --------
    >>> trace = pd.DataFrame({"time": [0.0, 10.0, 20.0], "error": [1.0, 1e-2, 1e-4]})
    >>> time_to(trace, 1e-3, "error"), time_to(trace, 1e-5, "error")
    (15.0, inf)
    """
    x, y = frame[axis].to_numpy(), frame[error].to_numpy()
    above = np.flatnonzero(~(y <= level))
    if above.size == 0:
        return float(x[0])
    last = int(above[-1])
    if last + 1 == y.size:
        return math.inf
    before, after = math.log(y[last]), math.log(max(float(y[last + 1]), FLOOR))
    share = (before - math.log(level)) / (before - after) if math.isfinite(before) else 1.0
    return float(x[last] + share * (x[last + 1] - x[last]))


# --------------------------------------------------------------------------- the folder


def load_results(folder: str | Path) -> Results:
    """Read the finished runs of a comparison back from its folder, as ``adfs compare`` wrote it."""
    folder = Path(folder)
    description = folder / "comparison.toml"
    if not description.is_file():
        raise InputError(f"{folder} is not the folder of a comparison: there is no comparison.toml in it")
    comparison = read_comparison(description)
    results = Results(comparison)
    for entry in comparison.methods:
        for seed in comparison.seeds:
            path = run_path(folder, entry, seed)
            if path.exists():
                results.runs[entry.label, seed] = Run.load(path)
    if not results.runs:
        raise InputError(f"{folder} holds no finished run yet: run adfs compare {description} first")
    return results


def _prepare(folder: Path, comparison: Comparison, origin: Path | None, fresh: bool) -> Comparison | None:
    """Make the folder ready for a comparison, and return the one that was there, None without any."""
    description = folder / "comparison.toml"
    before = made_from = None
    if description.is_file() and not fresh:
        first = description.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        made_from = first.removeprefix(_ORIGIN) if first.startswith(_ORIGIN) else None
        with contextlib.suppress(InputError):  # damaged, or of a module that is gone: all is run again
            before = read_comparison(description)
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
    return before


# --------------------------------------------------------------------------- making runs


# Told a task's number, the share of it that is done (above 1 once it is kept), and its error.
_Report = Callable[[int, float, float], None]


class _Flag(Protocol):
    """A number that all processes see."""

    value: int


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_comparison(
    comparison: Comparison,
    folder: str | Path,
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
    origin: Path | None = None,
) -> Results:
    """Run a comparison, or what is left of it.

    Parameters
    ----------
    comparison : Comparison
    folder : path
        Where the runs go, and where finished ones are found again.
    jobs : int
        Processes at once; with 1 everything happens in this one.
    fresh : bool
        Throw away the runs that are there.
    progress : bool, optional
        Show progress on standard error; by default only on a terminal.
    origin : Path, optional
        The file that the comparison was read from: a folder of another one is refused unless ``fresh``.
    """
    wanted = [(comparison, Path(folder))]
    return run_comparisons(wanted, jobs=jobs, fresh=fresh, progress=progress, origin=origin)[0]


def run_comparisons(
    wanted: Sequence[tuple[Comparison, Path]],
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
    origin: Path | None = None,
) -> list[Results]:
    """Run several comparisons under one display; as :func:`run_comparison`."""
    results: list[Results] = []
    tasks: list[Task] = []
    for comparison, folder in wanted:
        comparison.check_names()
        before = _prepare(folder, comparison, origin, fresh)
        found = Results(comparison)
        results.append(found)
        for seed in comparison.seeds:
            for entry in comparison.methods:
                task = Task(len(tasks), comparison, entry, seed, run_path(folder, entry, seed))
                run = finished_run(task, before)
                if run is None:
                    tasks.append(task)
                else:
                    found.runs[entry.label, seed] = run
    names = [f"{task.path.parent.parent.name}: {task.entry.label}, seed {task.seed}" for task in tasks]
    with _display(names, progress) as report:
        if jobs > 1 and len(tasks) > 1:
            _run_in_processes(tasks, min(jobs, len(tasks)), report)
        else:
            for task in tasks:
                if not _make(task, report, lambda: False):
                    raise _interrupted(task)
    for task in tasks:
        found = next(one for one in results if one.comparison is task.comparison)
        found.runs[task.entry.label, task.seed] = Run.load(task.path)
    return results


def _make(task: Task, report: _Report, stop: Callable[[], bool]) -> bool:
    """Make one run and keep it; return whether it was finished."""

    def tell(share: float, error: float) -> None:
        report(task.number, max(share, _BEGUN), error)

    tell(0.0, math.nan)
    # What is wrong with the data or the delays is not told as if it were the method's.
    _, network = make_problem(task.comparison, task.seed)
    task.comparison.delays.make(task.comparison.tau, network).pace(network, task.seed)
    try:
        run = run_method(task.comparison, task.entry, task.seed, report=tell, stop=stop)
    except InputError as error:
        raise InputError(f"{task.entry.label}: {error}") from None
    if run.outcome is Outcome.STOPPED:
        return False
    run.save(task.path)
    tell(_FINISHED, float(run.frame["suboptimality"].iloc[-1]))
    return True


def _interrupted(task: Task) -> RunsInterruptedError:
    return RunsInterruptedError(
        f"finished runs are kept in {task.path.parent}; the same command goes on from there"
    )


class _Worker(NamedTuple):
    """What a process that makes runs shares with the one that started it."""

    shares: MutableSequence[float]
    errors: MutableSequence[float]
    stop: _Flag


_workers: list[_Worker] = []


def _start_worker(worker: _Worker, modules: tuple[str, ...]) -> None:
    # Ctrl-C reaches every process of a terminal: this one is told by the flag instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(worker.stop, os.getppid()), daemon=True).start()
    single_threaded.__enter__()  # for good: there are as many processes as cores
    load_modules(modules)
    _workers.append(worker)


def _watch(stop: _Flag, parent: int) -> None:
    """End this process when it is told to stop and does not (it may be compiling), or has lost its parent."""
    while not stop.value and os.getppid() == parent:
        time.sleep(_POLL)
    time.sleep(_GRACE)
    os._exit(1)


def _work(task: Task) -> bool:
    (worker,) = _workers

    def report(number: int, share: float, error: float) -> None:
        worker.shares[number], worker.errors[number] = share, error

    return _make(task, report, lambda: bool(worker.stop.value))


def _run_in_processes(tasks: Sequence[Task], jobs: int, report: _Report) -> None:
    # Spawned, not forked: the parent may hold threads (BLAS, the display) that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(tasks), lock=False)
    errors = context.Array("d", [math.nan] * len(tasks), lock=False)
    stop = context.Value("i", 0, lock=False)
    modules = tuple(dict.fromkeys(name for task in tasks for name in task.comparison.imports))
    start = (_Worker(shares, errors, stop), modules)
    with ProcessPoolExecutor(jobs, context, _start_worker, start) as pool:
        complete = False
        waiting: set[Future[bool]] = {pool.submit(_work, task) for task in tasks}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
                for number in range(len(tasks)):
                    report(number, shares[number], errors[number])
                for future in done:
                    future.result()
            complete = True
        except BrokenProcessPool:
            raise AdfsError(
                "a process of the comparison ended unexpectedly, perhaps for lack of memory; "
                "try again with --jobs 1: finished runs are kept"
            ) from None
        except KeyboardInterrupt:
            raise _interrupted(tasks[0]) from None
        finally:
            stop.value = int(not complete)
            pool.shutdown(cancel_futures=True)


# --------------------------------------------------------------------------- progress


@contextlib.contextmanager
def _display(names: Sequence[str], show: bool | None) -> Iterator[_Report]:
    """Show how far some runs are, on standard error, as the function it gives is told.

    On a terminal: a bar for all and a line for each run in progress. Elsewhere, if asked for, a line for each
    run that ends. ``show`` says whether to show anything; None means only on a terminal.
    """
    shares = [0.0] * len(names)
    begun = time.monotonic()

    def count() -> str:
        return f"{sum(share > 1.0 for share in shares)}/{len(names)}"

    def write_lines(number: int, share: float, error: float) -> None:
        ended, shares[number] = share > 1.0 >= shares[number], share
        if ended and show:
            spent = time.monotonic() - begun
            sys.stderr.write(f"{count():>7} {spent:6.0f} s  {names[number]}: error {error:.1e}\n")

    if not sys.stderr.isatty() or show is False:
        yield write_lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")
    bars: dict[int, TaskID] = {}

    def move_bars(number: int, share: float, error: float) -> None:
        shares[number] = share
        progress.update(whole, completed=sum(min(one, 1.0) for one in shares), note=f"{count()} runs")
        if 0.0 < share <= 1.0:
            if number not in bars:
                bars[number] = progress.add_task(names[number], total=1.0, note="")
            progress.update(bars[number], completed=share, note=f"error {error:.1e}")
        elif number in bars:
            progress.remove_task(bars.pop(number))

    with Progress(*words, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        whole = progress.add_task("all runs", total=float(len(names)), note="")
        try:
            yield move_bars
        finally:
            for bar in bars.values():
                progress.remove_task(bar)
