"""What a run gives back, and the file it is kept in."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adfs._version import __version__
from adfs.runtimes.array_files import read_container, write_container
from adfs.runtimes.loop import Outcome
from adfs.theory import BlockParameters, NonSmoothParameters, Parameters, baselines

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "as_columns"]

_PARAMETER_RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        Parameters,
        NonSmoothParameters,
        BlockParameters,
        baselines.MsdaParameters,
        baselines.EsdacdParameters,
        baselines.DsbaParameters,
        baselines.ExtraParameters,
        baselines.PointSagaParameters,
        baselines.AgdParameters,
    )
}


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run.

    Attributes
    ----------
    method : str
    outcome : Outcome
        ``"converged"``, ``"out of budget"``, ``"diverged"`` or ``"stopped"``.
    theta : ndarray of shape (n_nodes, d)
        Each node's own final iterate.
    coef : ndarray of shape (d,)
        The certified point: F at it is within ``gap``·F(0) of the optimum.
    gap : float
        Certified relative duality gap of ``coef``.
    columns : dict of str to ndarray
        What was recorded, one number per point, not to be changed: ``position``, ``passes``,
        ``computations``, ``messages``, ``bytes``, ``seconds``, ``gap``, ``primal``, ``dual``,
        and what else was asked for.
    frame : pandas.DataFrame
        The columns, side by side; what you add to it is saved too.
    parameters : object
    seed : int
    seconds : float
        Time of running, evaluation and compilation not counted.
    dual : ndarray of shape (N,) or (N, k), or None
        The dual variables at the end, one number (or vector) per row of this process's problem, where the
        method has them: what ``start`` takes. Not kept in a file.
    """

    method: str
    outcome: Outcome
    theta: np.ndarray
    coef: np.ndarray
    gap: float
    columns: dict[str, np.ndarray]
    parameters: Any
    seed: int
    seconds: float
    schedule: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    dual: np.ndarray | None = field(default=None, repr=False)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """What was recorded, one row per point (made when first asked for: pandas is slow to import)."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    def recorded(self) -> dict[str, np.ndarray]:
        """Return the columns, with what was added to the frame."""
        frame = vars(self).get("frame")
        if frame is None:
            return dict(self.columns)
        return {name: frame[name].to_numpy(dtype=np.float64) for name in frame.columns}

    @property
    def converged(self) -> bool:
        """Whether the tolerance was reached."""
        return self.outcome is Outcome.CONVERGED

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file; :meth:`load` brings it back."""
        recorded = self.recorded()
        header = {
            "version": __version__,
            "method": self.method,
            "outcome": str(self.outcome),
            "gap": self.gap,
            "seed": self.seed,
            "seconds": self.seconds,
            "schedule": self.schedule,
            "details": self.details,
            "columns": list(recorded),
            "parameters": _describe(self.parameters),
        }
        arrays = {"theta": self.theta, "coef": self.coef, "frame": np.column_stack(list(recorded.values()))}
        arrays |= {f"parameters/{name}": value for name, value in _parameter_arrays(self.parameters).items()}
        write_container(path, "run", header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run back from its file; anything else is refused with one sentence."""
        header, arrays = read_container(path, "run")
        return cls(
            method=header["method"],
            outcome=Outcome(header["outcome"]),
            theta=arrays["theta"],
            coef=arrays["coef"],
            gap=header["gap"],
            columns=dict(zip(header["columns"], np.ascontiguousarray(arrays["frame"].T), strict=True)),
            parameters=_rebuild(header["parameters"], arrays),
            seed=header["seed"],
            seconds=header["seconds"],
            schedule=header["schedule"],
            details=header["details"],
        )

    def __repr__(self) -> str:
        n, d = self.theta.shape
        return (
            f"Run({self.method!r}, {str(self.outcome)!r}, gap={self.gap:.2e}, n_nodes={n}, n_features={d}, "
            f"records={len(next(iter(self.columns.values()), ()))})"
        )


def as_columns(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return recorded rows column by column; what a row does not have is nan."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


def _fields(parameters: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(parameters) or isinstance(parameters, type):
        return {}
    return {item.name: getattr(parameters, item.name) for item in dataclasses.fields(parameters)}


def _parameter_arrays(parameters: Any) -> dict[str, np.ndarray]:
    return {name: value for name, value in _fields(parameters).items() if isinstance(value, np.ndarray)}


def _describe(parameters: Any) -> dict[str, Any]:
    """Return a record's name, plain fields and text; arrays go beside."""
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in _fields(parameters).items()
        if isinstance(value, str | int | float | bool | tuple)
    }
    return {"record": type(parameters).__name__, "fields": plain, "text": str(parameters)}


def _rebuild(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """Return the record of a known kind; the text of any other."""
    cls = _PARAMETER_RECORDS.get(description["record"])
    if cls is None:
        return description["text"]
    prefix = "parameters/"
    values = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in description["fields"].items()}
    return cls(**plain, **values)
