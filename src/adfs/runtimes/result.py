"""The result of a run, the stages it went through, and its file."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adfs._version import __version__
from adfs.algorithms import METHODS
from adfs.errors import InputError
from adfs.files import JsonObject, read_arrays, reading_error, write_whole
from adfs.runtimes.loop import Outcome
from adfs.theory import NodeSizes

if TYPE_CHECKING:
    import pandas as pd


_MAGIC = b"adfs-file 1 "
_DIGEST = 64
# The plain entries in the header of a run's file, and their types.
_PLAIN: dict[str, tuple[type, ...]] = {
    "method": (str,),
    "schedule": (str,),
    "details": (dict,),
    "gap": (int, float),
    "seed": (int,),
    "seconds": (int, float),
}


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run.

    See :doc:`/glossary` for words such as pass, position and gap.

    Attributes
    ----------
    method : str
    outcome : Outcome
        ``"converged"``, ``"out of budget"``, ``"diverged"`` or ``"stopped"``.
    theta : ndarray of shape (n_nodes, d)
        Each node's own final iterate.
    coef : ndarray of shape (d,)
        The certified point: F at it is within ``absolute_gap`` of the optimum, which is ``gap``·F(0).
    gap : float
        Certified relative duality gap of ``coef``.
    absolute_gap : float
        The same before it is divided by F(0), or by F of the best constant model if a fit has an intercept.
    columns : dict of str to ndarray
        The records, one number per point, not to be changed: ``position``, ``passes``,
        ``computations``, ``messages``, ``bytes``, ``seconds``, ``gap``, ``primal``, ``dual``,
        and the measures that were asked for.
    frame : pandas.DataFrame
        The columns, side by side; columns that you add are saved too.
    parameters : object
    seed : int
    seconds : float
        Time of running, evaluation and compilation not counted.
    dual : ndarray of shape (N,) or (N, k), or None
        The dual variables at the end, one number (or vector) per row of this process's problem, where the
        method has them; another run takes them as ``start``. Not kept in a file.
    history : History or None
        The stages of a run that may have several; ``parameters`` are those of the last one.
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
    details: JsonObject = field(default_factory=dict)
    dual: np.ndarray | None = field(default=None, repr=False)
    history: History | None = field(default=None, repr=False)
    absolute_gap: float = math.nan

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The records, one row per point (made when first asked for: pandas is slow to import)."""
        import pandas as pd

        return pd.DataFrame(self.columns)

    def recorded(self) -> dict[str, np.ndarray]:
        """Return the columns, with those that were added to the frame."""
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
        # Columns that were added to the frame are saved with the recorded ones.
        recorded = self.recorded()
        words, own = parameters_to_arrays(self.parameters)
        header: JsonObject = {name: getattr(self, name) for name in _PLAIN} | {
            "version": __version__,
            "outcome": str(self.outcome),
            "absolute_gap": self.absolute_gap,
            "columns": list(recorded),
            "parameters": words,
        }
        arrays = {"theta": self.theta, "coef": self.coef, "frame": np.column_stack(list(recorded.values()))}
        arrays |= {f"parameters/{name}": value for name, value in own.items()}
        if self.history is not None:
            header["stages"], kept = self.history.to_arrays()
            arrays |= {f"stages/{name}": value for name, value in kept.items()}
        write_container(path, "run", header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run back from its file; anything else is refused with one sentence."""
        header, arrays = read_container(path, "run")
        with refused_as_damaged(path):
            history = None
            if "stages" in header:
                history = History.from_arrays(header["stages"], arrays_under("stages/", arrays))
            columns, theta, coef, frame = header["columns"], arrays["theta"], arrays["coef"], arrays["frame"]
            check_array("theta", theta, (*theta.shape[:1], coef.size))
            check_array("coef", coef, (coef.size,))
            check_array("frame", frame, (len(frame), len(columns)))
            # Entries of the wrong kind would fail much later, far from the file.
            plain = {name: header[name] for name in _PLAIN}
            for name, kinds in _PLAIN.items():
                if not isinstance(plain[name], kinds) or isinstance(plain[name], bool):
                    raise ValueError(f"its {name} is of the wrong kind")
            return cls(
                **plain,
                outcome=Outcome(header["outcome"]),
                theta=theta,
                coef=coef,
                columns=dict(zip(columns, np.ascontiguousarray(frame.T), strict=True)),
                parameters=parameters_from_arrays(header["parameters"], arrays_under("parameters/", arrays)),
                history=history,
                absolute_gap=header.get("absolute_gap", math.nan),  # files of 0.2 have none
            )

    def __repr__(self) -> str:
        n, d = self.theta.shape
        return (
            f"Run({self.method!r}, {str(self.outcome)!r}, gap={self.gap:.2e}, n_nodes={n}, n_features={d}, "
            f"records={len(next(iter(self.columns.values()), ()))})"
        )


def arrays_under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


# --------------------------------------------------------------------------- stages and parameters


@dataclass(frozen=True, eq=False)
class StageRecord:
    """A stage of a run: where it began, after how many passes, its parameters and its numbers of samples.

    ``report`` describes the decision that began it; stage 0 has none.
    """

    position: float
    passes: float
    parameters: Any
    sizes: NodeSizes
    report: dict[str, float] = field(default_factory=dict)


class StageCheck(NamedTuple):
    """A check of a run in stages: its position, passes and sums over all nodes, and if a stage began."""

    position: float
    passes: float
    sums: float
    began: float


@dataclass(eq=False)
class History:
    """The stages of a run so far, and the checks at which further ones were decided."""

    stages: list[StageRecord]
    checks: list[StageCheck] = field(default_factory=list)

    def to_arrays(self) -> tuple[list[JsonObject], dict[str, np.ndarray]]:
        """Return an entry per stage for the header of a file, and arrays by name."""
        entries = []
        arrays: dict[str, np.ndarray] = {"checks": np.array(self.checks, dtype=np.float64).reshape(-1, 4)}
        # The arrays of a stage are told apart by its number.
        for number, stage in enumerate(self.stages):
            text, found = parameters_to_arrays(stage.parameters)
            entry = {"position": stage.position, "passes": stage.passes, "report": stage.report}
            entries.append(entry | {"parameters": text})
            arrays |= {f"{number}/{name}": value for name, value in found.items()}
            sizes = stage.sizes
            arrays[f"{number}/sizes"] = np.stack([sizes.n_samples, sizes.n_active, sizes.n_features])
        return entries, arrays

    @classmethod
    def from_arrays(cls, entries: list[JsonObject], arrays: Mapping[str, np.ndarray]) -> History:
        """Return the history that :meth:`to_arrays` was called on."""
        stages = []
        for number, entry in enumerate(entries):
            own = arrays_under(f"{number}/", arrays)
            sizes = NodeSizes(*own.pop("sizes"))
            parameters = parameters_from_arrays(entry["parameters"], own)
            stages.append(StageRecord(entry["position"], entry["passes"], parameters, sizes, entry["report"]))
        return cls(stages, [StageCheck(*row) for row in arrays["checks"].tolist()])


def parameters_to_arrays(parameters: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a record's name, plain fields and text, and its arrays by name."""
    is_record = dataclasses.is_dataclass(parameters) and not isinstance(parameters, type)
    names = [item.name for item in dataclasses.fields(parameters)] if is_record else []
    fields = {name: getattr(parameters, name) for name in names}
    # JSON has lists instead of tuples.
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if isinstance(value, str | int | float | bool | tuple)
    }
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return {"record": type(parameters).__name__, "fields": plain, "text": str(parameters)}, arrays


def parameters_from_arrays(description: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the record of a known kind; the text of any other."""
    # A method from outside may do without a record.
    named = [method.record for method in METHODS.values() if hasattr(method, "record")]
    records = {record.__name__: record for record in named}
    # A file must not choose a class of somebody else's module.
    cls = records.get(description["record"])
    if cls is None or not cls.__module__.startswith("adfs."):
        return description["text"]
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in description["fields"].items()}
    return cls(**plain, **arrays)


@contextmanager
def refused_as_damaged(path: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse a file with wrong or missing entries in one sentence: it was changed after it was written."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"{path} is damaged: it has no entry {error}") from None
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def check_array(
    name: str, found: np.ndarray, shape: tuple[int, ...], kind: np.dtype[Any] | None = None
) -> None:
    """Raise a `ValueError` unless an array from a file has the shape and the type, float64 by default."""
    kind = np.dtype(np.float64) if kind is None else kind
    if found.shape != shape or found.dtype != kind:
        raise ValueError(
            f"the array {name!r} has shape {found.shape} of {found.dtype}, {shape} of {kind} was expected"
        )


# --------------------------------------------------------------------------- files
# A magic line, a checksum, a readable header, plain arrays. Nothing in them can run code.


def write_container(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, object], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a header (of types that JSON has) and arrays (numbers, booleans, text) to one file, atomically.

    ``kind`` names the kind of file, for instance ``"run"``; readers ask for it.
    """
    buffer = io.BytesIO()
    np.savez(
        buffer, allow_pickle=False, **{f"array/{name}": np.asarray(value) for name, value in arrays.items()}
    )
    # The length of the header comes first, so that the arrays can be found behind it.
    text = json.dumps(dict(header), sort_keys=True).encode()
    body = len(text).to_bytes(8, "big") + text + buffer.getvalue()
    content = _MAGIC + kind.encode() + b"\n" + hashlib.sha256(body).hexdigest().encode() + body
    write_whole(path, content, make_folder=True)


def read_container(path: str | os.PathLike[str], kind: str) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Read a file of a kind back as its header and arrays; refuse anything else with one sentence."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path} is a directory, not an adfs {kind} file") from None
    except OSError as error:
        raise reading_error(path, error) from None
    # The first line says what the file is, before anything of it is trusted.
    line, newline, rest = content.partition(b"\n")
    if not line.startswith(_MAGIC) or not newline:
        raise InputError(f"{path} is not an adfs {kind} file")
    found = line[len(_MAGIC) :].decode(errors="replace")
    if found != kind:
        raise InputError(f"{path} is an adfs {found} file, not a {kind} file")
    digest, body = rest[:_DIGEST], rest[_DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise InputError(f"{path} is damaged or was cut short (its checksum does not match); use another one")
    # The checksum is right: what cannot be read now was written by something else.
    try:
        size = int.from_bytes(body[:8], "big")
        header = json.loads(body[8 : 8 + size])
        # Files of this package are not compressed: no array is larger than the file.
        found_arrays = read_arrays(io.BytesIO(body[8 + size :]), len(body))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as an adfs {kind} file: {error}") from None
    if not isinstance(header, dict):
        raise InputError(f"{path} cannot be read as an adfs {kind} file: its header is no table")
    return header, {name.removeprefix("array/"): value for name, value in found_arrays.items()}
