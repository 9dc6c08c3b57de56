"""The options of a run: one record, documented once for all front doors; and what to record when."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from adfs.errors import InputError, unknown_name
from adfs.network import Network, check_lost
from adfs.runtimes.delays import Delays
from adfs.schedule import SCHEDULES
from adfs.schedule.sampling import check_seed

F = TypeVar("F", bound=Callable[..., object])

#: The measures that can be recorded besides the position and the work done.
MEASURES = ("gap", "objective", "suboptimality", "worst", "distance", "consensus")
#: Those that need the optimum, and so all the data in one process.
NEED_OPTIMUM = ("suboptimality", "worst", "distance")
_DIGITS = 16  # of a hash in a description
_NODES = ("mean", "worst", "each")


@dataclass(frozen=True)
class Grid:
    """When to record, in passes over the data: at 0, then regularly or logarithmically.

    Parameters
    ----------
    every : float, optional
        Record every so many passes.
    first : float
        The first point of a logarithmic grid.
    per_decade : int
        Points for each factor of ten of a logarithmic grid.
    unit : str
        ``"passes"`` over the data, or ``"events"``: positions of the schedule, or rounds.

    Examples
    --------
    >>> from itertools import islice
    >>> list(islice(Grid(every=2.0).points(), 3))
    [0.0, 2.0, 4.0]
    """

    every: float | None = None
    first: float = 0.5
    per_decade: int = 24
    unit: str = "passes"

    def __post_init__(self) -> None:
        if self.every is not None and not (math.isfinite(self.every) and self.every > 0.0):
            raise InputError(f"record: every must be above 0 passes, got {self.every!r}")
        if not self.first > 0.0 or self.per_decade < 1:
            raise InputError("record: first must be above 0 and per_decade at least 1")
        if self.unit not in ("passes", "events"):
            raise unknown_name("unit of a grid", self.unit, ("passes", "events"))

    def points(self) -> Iterator[float]:
        """Yield the passes (or positions) at which to record, without end."""
        yield 0.0
        # Points are computed from their number, so that they do not drift.
        for k in itertools.count():
            yield self.first * 10.0 ** (k / self.per_decade) if self.every is None else (k + 1) * self.every


@dataclass(frozen=True)
class Record:
    """What to record, for which nodes, and when.

    Parameters
    ----------
    measures : tuple of str
        Any of ``"gap"`` (certified relative duality gap), ``"objective"`` (F at the nodes' iterates),
        ``"suboptimality"`` (F − F*), ``"worst"`` (the largest F − F* of all nodes), ``"distance"``
        (‖θ_i − θ*‖) and ``"consensus"`` (‖θ_i − mean‖).
    nodes : str
        ``"mean"``, ``"worst"`` or ``"each"``, for the measures of the nodes' own iterates.
    grid : Grid
    stop_on : str
        What ``tol`` bounds: ``"gap"``, the certified one; or ``"suboptimality"``, the mean over the nodes of
        F(θ_i) − F* over F(0), which needs the optimum and no certificate.
    """

    measures: str | tuple[str, ...] = ("gap",)
    nodes: str = "mean"
    grid: Grid = Grid()
    stop_on: str = "gap"

    def __post_init__(self) -> None:
        # One measure may be given without a tuple.
        measures = (self.measures,) if isinstance(self.measures, str) else self.measures
        if not isinstance(measures, Sequence):
            raise InputError(
                f"record must be a measure, several of them, or a Record, got {self.measures!r}; "
                f"measures are {', '.join(MEASURES)}"
            )
        measures = tuple(measures)
        for measure in measures:
            if measure not in MEASURES:
                raise unknown_name("measure", measure, MEASURES)
        object.__setattr__(self, "measures", measures)
        if self.nodes not in _NODES:
            raise unknown_name("choice of nodes", self.nodes, _NODES)
        if self.stop_on not in ("gap", "suboptimality"):
            raise unknown_name("thing to stop on", self.stop_on, ("gap", "suboptimality"))


_GAP_ALONE = Record()


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run.

    Parameters
    ----------
    parameters : str or record, optional
        ``"tuned"`` or ``"paper"`` for ADFS, ``"adaptive"`` or ``"adaptive-safe"`` for constants that the run
        adapts to its own certificates, or a record of the method's constants.
    schedule : str
        ``"iid"`` (the paper's shared schedule) or ``"poisson"`` (one clock per node and edge).
    lost : float
        The probability that an exchange fails at both ends, which then stay as they are; with the schedule
        ``"poisson"``. The seed decides which ones fail, and edges exchange 1/(1 − lost) times as often.
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
    point : ndarray of shape (d,), optional
        θ to start from, for methods that hold a θ (Newton, L-BFGS, …), which need no ``start`` then. They
        start at 0 if that is better. Other methods leave it.
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
    lost: float = 0.0
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
    point: np.ndarray | None = None
    progress: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0
    resume: bool = False
    gather: bool = False

    @classmethod
    def split(cls, arguments: Mapping[str, Any]) -> tuple[RunOptions, dict[str, object]]:
        """Return the options of a run among keyword arguments, and the rest: the method's own."""
        given = {name: value for name, value in arguments.items() if name in RUN_OPTIONS}
        return cls(**given), {name: value for name, value in arguments.items() if name not in RUN_OPTIONS}

    def check(self) -> Record:
        """Raise unless the options make sense, as far as that can be checked without data.

        Returns
        -------
        Record
            What is recorded.
        """
        check_seed(self.seed)
        if self.lost != 0.0:
            check_lost(self.lost)
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.read not in ("x", "v"):
            raise unknown_name("place to read the iterate", self.read, ("x", "v"))
        # Both are checked before any data is read.
        if self.resume and self.checkpoint is None:
            raise InputError("resume wants a checkpoint to resume from: give its path as checkpoint")
        if isinstance(self.tau, str) and self.tau != "measure":
            raise InputError(f"tau must be a number or 'measure', got {self.tau!r}")
        if isinstance(self.tau, float | int) and not (math.isfinite(self.tau) and self.tau >= 0.0):
            raise InputError(f"tau must be finite and at least 0, got {self.tau!r}")
        # A budget of 0 is a run that records its start.
        for name in ("tol", "max_passes", "events", "seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise InputError(f"{name} must be a number, got {value!r}")
            if not (value > 0.0 or (name != "tol" and value == 0.0)):
                raise InputError(f"{name} must be above 0, got {value!r}")
        if isinstance(self.record, Record):
            return self.record
        return _GAP_ALONE if self.record is None else Record(self.record)  # type: ignore[arg-type]


#: The names of all options of a run.
RUN_OPTIONS = tuple(item.name for item in dataclasses.fields(RunOptions))


def takes_run_options(function: F) -> F:
    """Give a function that takes ``**arguments`` the signature and the documentation of `RunOptions`."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()  # the last one is **arguments
    names = {parameter.name for parameter in own}
    shared = [p for p in inspect.signature(RunOptions).parameters.values() if p.name not in names]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *shared, rest]
    )
    # The section "Parameters" of the record goes where the function's docstring has its **arguments.
    documentation = inspect.cleandoc(RunOptions.__doc__ or "").partition("----------\n")[2]
    text = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = text.replace("**arguments", f"{documentation}\n**options", 1)
    return function


def describe(value: object) -> str:
    """Return a text that is the same for the same value: runs and processes are compared by it."""
    # Arrays, and records and networks made of them, are told apart by a hash; anything else by how it prints.
    if isinstance(value, np.ndarray):
        stamp = hashlib.sha256(np.ascontiguousarray(value).data)
        return f"array {value.shape} of {value.dtype} ({stamp.hexdigest()[:_DIGITS]})"
    if isinstance(value, Network):
        parts = [value.edges, value.weights, *(value.faults or ())]
        name = f"{value.name or 'a network'} with {value.n_nodes} nodes"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, item.name) for item in dataclasses.fields(value)]
        name = type(value).__name__
    else:
        return repr(value)
    stamp = hashlib.sha256(repr([describe(part) for part in parts]).encode())
    return f"{name} ({stamp.hexdigest()[:_DIGITS]})"
