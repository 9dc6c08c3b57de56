"""What can be asked of a run: one record, and one documentation of it, for all its front doors."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.runtimes.delays import Delays
from adfs.runtimes.loop import Budget
from adfs.runtimes.recording import Record
from adfs.schedule import SCHEDULES
from adfs.schedule.philox import check_seed

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What can be asked of a run.

    Parameters
    ----------
    parameters : str or record, optional
        ``"tuned"`` or ``"paper"`` for ADFS, ``"adaptive"`` or ``"adaptive-safe"`` for constants that the run
        adapts to its own certificates, or a record of the method's constants.
    schedule : str
        ``"iid"`` (the paper's shared schedule) or ``"poisson"`` (one clock per node and edge).
    tau : float or "measure", optional
        Time of a communication in units of a sample's computation, for tuned parameters; ``"measure"``
        measures both before the run, where there are several processes.
    seed : int
        Same seed, same bits.
    tol : float, optional
        Stop when the certified gap, relative to F(0), is at most this. Where rounding keeps it above, the run
        goes on until its budget ends.
    max_passes, events, seconds : float, optional
        Budgets; the first one met ends the run. Without any: 100 passes, or as many as ``tol`` takes.
    time : float, optional
        A budget of idealised time, on the clock of ``delays``.
    delays : Delays, optional
        Adds the columns ``time`` and ``time_mean`` to the frame, the idealised time of each record. A budget
        of time without delays takes fixed ones, 1 per sample and ``tau`` per message.
    record : Record, str or tuple of str, optional
        What to record and when. Left out: the gap, on a logarithmic grid; with ``tol``, at the few points
        that it takes to stop in time. What needs the optimum can be recorded where one process holds all the
        data.
    read : str
        Read the nodes' iterates at ``"x"`` (quicker in practice) or at ``"v"`` (the one Theorem 2 speaks of).
    start : ndarray, optional
        Dual variables to start from, as in ``run.dual``: one number (or vector) per row of this process's
        problem. Methods that cannot start elsewhere start at zero.
    progress : bool, optional
        Show a progress bar; by default only on a terminal.
    checkpoint : path, optional
        Write a checkpoint here every ``checkpoint_every`` seconds and at the end: one file in one process, a
        folder for several (``finished.json`` appears in it when the run has converged).
    checkpoint_every : float
        Seconds.
    resume : bool
        Go on from the checkpoint if it is there; the bits are those of a run that never stopped.
    gather : bool
        Whether ``theta`` holds the iterates of all nodes in every process, or of its own nodes only.
    """

    parameters: object = None
    schedule: str = "iid"
    tau: float | str | None = None
    seed: int = 0
    tol: float | None = None
    max_passes: float | None = None
    events: float | None = None
    seconds: float | None = None
    time: float | None = None
    delays: Delays | None = None
    record: Record | Sequence[str] | None = None
    read: str = "x"
    start: np.ndarray | None = None
    progress: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0
    resume: bool = False
    gather: bool = False

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options."""
        return [item.name for item in dataclasses.fields(cls)]

    @classmethod
    def split(cls, arguments: Mapping[str, Any]) -> tuple[RunOptions, dict[str, object]]:
        """Return the options of a run among keyword arguments, and the rest: the method's own."""
        names = cls.names()
        own = {name: value for name, value in arguments.items() if name in names}
        return cls(**own), {name: value for name, value in arguments.items() if name not in names}

    def check(self) -> None:
        """Raise unless the options make sense, as far as can be told without data."""
        check_seed(self.seed)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.read not in ("x", "v"):
            raise unknown_name("place to read the iterate", self.read, ("x", "v"))
        if self.resume and self.checkpoint is None:
            raise InputError("resume wants a checkpoint to resume from: give its path as checkpoint")
        if isinstance(self.tau, str) and self.tau != "measure":
            raise InputError(f"tau must be a number or 'measure', got {self.tau!r}")
        if isinstance(self.tau, float | int) and not (math.isfinite(self.tau) and self.tau >= 0.0):
            raise InputError(f"tau must be finite and at least 0, got {self.tau!r}")
        Record.of(self.record)
        Budget(self.tol, self.max_passes, self.events, self.seconds)

    def words(self) -> dict[str, object]:
        """Return what all processes must have been given alike."""
        alike = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in ("start", "progress"):
            del alike[name]
        return {_SPOKEN.get(name, name): describe(value) for name, value in alike.items()}


# What an option is called in a sentence, where its name alone would not be understood.
_SPOKEN = {
    "parameters": "the choice of parameters",
    "schedule": "the schedule",
    "seed": "the seed",
    "record": "what to record",
}


def takes_run_options(function: F) -> F:
    """Give a function that takes ``**arguments`` the signature and the documentation of `RunOptions`."""
    own = inspect.signature(function)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    rest = [one for one in own.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
    names = {one.name for one in kept}
    shared = [one for one in inspect.signature(RunOptions).parameters.values() if one.name not in names]
    function.__signature__ = own.replace(parameters=[*kept, *shared, *rest])  # type: ignore[attr-defined]
    told = inspect.cleandoc(RunOptions.__doc__ or "").partition("----------\n")[2]
    text = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = text.replace("**arguments", f"{told}\n**options", 1)
    return function


def describe(value: object) -> str:
    """Return words that are the same for the same value: for comparing what processes were given."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stamp = hashlib.sha256()
        for item in dataclasses.fields(value):
            entry = getattr(value, item.name)
            stamp.update(entry.tobytes() if isinstance(entry, np.ndarray) else repr(entry).encode())
        return f"{type(value).__name__} {stamp.hexdigest()[:12]}"
    if isinstance(value, Network):
        stamp = hashlib.sha256(value.edges.tobytes() + value.weights.tobytes())
        return f"{value.name or 'a network'} with {value.n_nodes} nodes ({stamp.hexdigest()[:12]})"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]}"
    return repr(value)
