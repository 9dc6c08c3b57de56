"""All runs of some comparisons, in parallel processes, each kept as soon as it is finished."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adfs.data.files import write_text
from adfs.errors import AdfsError, InputError
from adfs.experiments.entries import MethodSpec
from adfs.experiments.modules import load_modules
from adfs.experiments.progress import Display
from adfs.experiments.results import Results, run_path
from adfs.experiments.running import fingerprint, run_method
from adfs.experiments.spec import Comparison
from adfs.runtimes.loop import Outcome
from adfs.runtimes.result import Run

__all__ = ["RunsInterruptedError", "available_cores", "run_comparison", "run_comparisons"]

_POLL, _GRACE = 0.1, 1.0
_BEGUN, _FINISHED = 1e-9, 2.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class RunsInterruptedError(AdfsError):
    """The runs were interrupted; what was finished is kept, and the same call goes on from there."""


@dataclass(frozen=True)
class _Task:
    """One run to be made: its number in the display, and where it goes."""

    number: int
    comparison: Comparison
    entry: MethodSpec
    seed: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.path.parent.parent.name}: {self.entry.label}, seed {self.seed}"


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

    Returns
    -------
    Results
    """
    return run_comparisons([(comparison, Path(folder))], jobs=jobs, fresh=fresh, progress=progress)[0]


def run_comparisons(
    wanted: Sequence[tuple[Comparison, Path]],
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool | None = None,
) -> list[Results]:
    """Run several comparisons under one display; as :func:`run_comparison`."""
    results: list[Results] = []
    tasks: list[_Task] = []
    for comparison, folder in wanted:
        comparison.check_methods()
        _prepare(folder, comparison, fresh)
        found = Results(comparison)
        results.append(found)
        for seed in comparison.seeds:
            for entry in comparison.methods:
                path = run_path(folder, entry, seed)
                run = _finished(path, fingerprint(comparison, entry, seed))
                if run is None:
                    tasks.append(_Task(len(tasks), comparison, entry, seed, path))
                else:
                    found.runs[entry.label, seed] = run
    with Display([task.name for task in tasks], progress) as display:
        if jobs > 1 and len(tasks) > 1:
            _run_in_processes(tasks, min(jobs, len(tasks)), display)
        else:
            _run_here(tasks, display)
    for task in tasks:
        found = next(one for one in results if one.comparison is task.comparison)
        found.runs[task.entry.label, task.seed] = Run.load(task.path)
    return results


def _prepare(folder: Path, comparison: Comparison, fresh: bool) -> None:
    try:
        if fresh and (folder / "runs").is_dir():
            shutil.rmtree(folder / "runs")
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}") from None
    write_text(folder / "comparison.toml", comparison.toml())


def _finished(path: Path, mark: str) -> Run | None:
    """Return the run that is kept there; None for none, one of other settings, or a damaged one."""
    if not path.exists():
        return None
    try:
        run = Run.load(path)
    except InputError:
        return None
    return run if run.details.get("fingerprint") == mark else None


def _make(task: _Task, shares: Any, errors: Any, stop: Any) -> bool:
    """Make one run and keep it; return whether it was finished."""

    def report(share: float, error: float) -> None:
        shares[task.number], errors[task.number] = max(share, _BEGUN), error

    shares[task.number] = _BEGUN
    try:
        run = run_method(task.comparison, task.entry, task.seed, report=report, stop=lambda: bool(stop.value))
    except InputError as error:
        raise InputError(f"{task.entry.label}: {error}") from None
    if run.outcome is Outcome.STOPPED:
        return False
    run.save(task.path)
    shares[task.number], errors[task.number] = _FINISHED, float(run.frame["suboptimality"].iloc[-1])
    return True


# --------------------------------------------------------------------------- in this process


class _Flag:
    value = 0


def _run_here(tasks: Sequence[_Task], display: Display) -> None:
    shares, errors = _Watched(display, len(tasks)), [float("nan")] * len(tasks)
    shares.errors = errors
    for task in tasks:
        if not _make(task, shares, errors, _Flag):
            raise RunsInterruptedError(_told(task.path))


class _Watched(list[float]):
    """Shares that are shown whenever one changes."""

    errors: list[float]

    def __init__(self, display: Display, size: int) -> None:
        super().__init__([0.0] * size)
        self._display = display

    def __setitem__(self, number: Any, share: Any) -> None:
        super().__setitem__(number, share)
        self._display.update(self, self.errors)


# --------------------------------------------------------------------------- in others

_shared: dict[str, Any] = {}


def _start_worker(shares: Any, errors: Any, stop: Any, modules: tuple[str, ...]) -> None:
    # Ctrl-C reaches every process of a terminal: this one is told by the flag instead.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(stop, os.getppid()), daemon=True).start()
    load_modules(modules)
    _shared.update(shares=shares, errors=errors, stop=stop)


def _watch(stop: Any, parent: int) -> None:
    """End this process when it is told to stop and does not (it may be compiling), or has lost its parent."""
    while not stop.value and os.getppid() == parent:
        time.sleep(_POLL)
    time.sleep(_GRACE)
    os._exit(1)


def _work(task: _Task) -> bool:
    return _make(task, _shared["shares"], _shared["errors"], _shared["stop"])


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let new processes compute with one thread each: there are as many as cores."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run_in_processes(tasks: Sequence[_Task], jobs: int, display: Display) -> None:
    # Spawned, not forked: the parent may hold threads (BLAS, the display) that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    shares = context.Array("d", len(tasks), lock=False)
    errors = context.Array("d", [float("nan")] * len(tasks), lock=False)
    stop = context.Value("i", 0, lock=False)
    modules = tuple(dict.fromkeys(name for task in tasks for name in task.comparison.imports))
    with (
        _one_thread_each(),
        ProcessPoolExecutor(jobs, context, _start_worker, (shares, errors, stop, modules)) as pool,
    ):
        complete = False
        waiting: set[Future[bool]] = {pool.submit(_work, task) for task in tasks}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED)
                display.update(shares, errors)
                for future in done:
                    future.result()
            display.update(shares, errors)
            complete = True
        except BrokenProcessPool:
            raise AdfsError(
                "a process of the comparison ended unexpectedly, perhaps for lack of memory; "
                "try again with --jobs 1: finished runs are kept"
            ) from None
        except KeyboardInterrupt:
            raise RunsInterruptedError(_told(tasks[0].path)) from None
        finally:
            stop.value = int(not complete)
            pool.shutdown(cancel_futures=True)


def _told(path: Path) -> str:
    return f"finished runs are kept in {path.parent}; the same command goes on from there"
