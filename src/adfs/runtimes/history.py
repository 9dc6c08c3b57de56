"""The phases that a run in phases went through, and how constants are kept in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adfs.theory import BlockParameters, NodeSizes, NonSmoothParameters, Parameters, baselines

__all__ = ["Consultation", "History", "PhaseRecord", "constants_in_words", "rebuild_constants"]

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
class PhaseRecord:
    """A phase of a run: where it began, after how many passes, with what constants and how many samples.

    ``told`` is what is told of the re-tuning that began it, nothing for phase 0.
    """

    position: float
    passes: float
    parameters: Any
    sizes: NodeSizes
    told: dict[str, float] = field(default_factory=dict)


class Consultation(NamedTuple):
    """A certificate that was consulted: where, passes and sums that this took, and if a phase began there."""

    position: float
    passes: float
    sums: float
    began: float


@dataclass(eq=False)
class History:
    """The phases of a run so far, and the certificates that were consulted."""

    phases: list[PhaseRecord]
    looks: list[Consultation] = field(default_factory=list)

    def kept(self) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """Return it as what JSON can hold, and arrays by name."""
        words = []
        arrays: dict[str, np.ndarray] = {"looks": np.array(self.looks, dtype=np.float64).reshape(-1, 4)}
        for number, phase in enumerate(self.phases):
            text, found = constants_in_words(phase.parameters)
            words.append(
                {"position": phase.position, "passes": phase.passes, "told": phase.told, "parameters": text}
            )
            arrays |= {f"{number}/{name}": value for name, value in found.items()}
            arrays |= {f"{number}/sizes": np.stack([phase.sizes.n_samples, phase.sizes.n_active])}
        return words, arrays

    @classmethod
    def from_kept(cls, words: list[dict[str, Any]], arrays: Mapping[str, np.ndarray]) -> History:
        """Return what :meth:`kept` was made from."""
        phases = []
        for number, word in enumerate(words):
            own = {
                name.removeprefix(f"{number}/"): value
                for name, value in arrays.items()
                if name.startswith(f"{number}/")
            }
            sizes = NodeSizes(*own.pop("sizes"))
            constants = rebuild_constants(word["parameters"], own)
            phases.append(PhaseRecord(word["position"], word["passes"], constants, sizes, word["told"]))
        return cls(phases, [Consultation(*row) for row in arrays["looks"].tolist()])

    def retunings(self) -> list[dict[str, float]]:
        """Return what is told of every re-tuning: its position, gap, ρ before and after, and more."""
        return [{"position": phase.position} | phase.told for phase in self.phases[1:]]


def _fields(parameters: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(parameters) or isinstance(parameters, type):
        return {}
    return {item.name: getattr(parameters, item.name) for item in dataclasses.fields(parameters)}


def constants_in_words(parameters: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a record's name, plain fields and text, and its arrays by name."""
    fields = _fields(parameters)
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if isinstance(value, str | int | float | bool | tuple)
    }
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return {"record": type(parameters).__name__, "fields": plain, "text": str(parameters)}, arrays


def rebuild_constants(description: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the record of a known kind; the text of any other."""
    cls = _PARAMETER_RECORDS.get(description["record"])
    if cls is None:
        return description["text"]
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in description["fields"].items()}
    return cls(**plain, **arrays)
