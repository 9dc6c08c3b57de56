"""What is recorded, and when: plain data handed to a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adfs.errors import InputError, unknown_name

#: What can be recorded besides the position and the work done.
MEASURES = ("gap", "objective", "suboptimality", "worst", "distance", "consensus")
#: Those that need the optimum, and so all the data in one process.
NEED_OPTIMUM = ("suboptimality", "worst", "distance")
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
        k = 0
        while True:
            if self.every is not None:
                yield (k + 1) * self.every
            else:
                yield self.first * 10.0 ** (k / self.per_decade)
            k += 1


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

    @classmethod
    def of(cls, wanted: Record | Sequence[str] | None) -> Record:
        """Return a record from what users give: a record, a measure or several, or nothing."""
        if wanted is None:
            return cls()
        return wanted if isinstance(wanted, Record) else cls(wanted)  # type: ignore[arg-type]

    @property
    def needs_optimum(self) -> tuple[str, ...]:
        """What is asked for that only a process with all the data can tell."""
        asked = (*self.measures, self.stop_on)
        return tuple(name for name in NEED_OPTIMUM if name in asked)

    @property
    def needs_values(self) -> bool:
        """Whether F at the nodes' iterates is needed."""
        asked = (*self.measures, self.stop_on)
        return any(name in asked for name in ("objective", "suboptimality", "worst"))
