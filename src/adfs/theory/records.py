"""What records of constants share: how they print, what is checked, and who acts how often."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import ClassVar

import numpy as np

from adfs.errors import InputError


def text_table(title: str, rows: Sequence[tuple[str, str, object]], notes: Sequence[str] = ()) -> str:
    """Lay out (what, symbol, value) rows under a title, notes below; what is not a number is left out.

    Examples
    --------
    >>> print(text_table("Sizes", [("nodes", "n", 3), ("gap", "γ", 0.25), ("degree", "d_i", np.arange(3))]))
    Sizes
      nodes   n    3
      gap     γ    0.25
      degree  d_i  0 … 2
    """
    cells = [(what, symbol, _as_text(value)) for what, symbol, value in rows if not _is_nan(value)]
    first = max((len(what) for what, _, _ in cells), default=0)
    second = max((len(symbol) for _, symbol, _ in cells), default=0)
    lines = [f"  {what:<{first}}  {symbol:<{second}}  {value}" for what, symbol, value in cells]
    return "\n".join([title, *lines, *(f"  note: {note}" for note in notes)])


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _as_text(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value.size == 0:
        return "none"
    low, high = float(value.min()), float(value.max())
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-12) else f"{low:.6g} … {high:.6g}"


def shown(what: str, symbol: str) -> Mapping[str, tuple[str, str]]:
    """Return the metadata of a field that is shown when its record is printed: as what, by which symbol."""
    return {"shown": (what, symbol)}


class Record:
    """A frozen record of constants, with a ``contraction`` among them; the fields that are `shown` print."""

    _title: ClassVar[str]
    contraction: float

    @classmethod
    @cache
    def _shown(cls) -> dict[str, tuple[str, str]]:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return {one.name: one.metadata["shown"] for one in fields if one.metadata}

    def __post_init__(self) -> None:
        for name, (what, symbol) in self._shown().items():
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                frozen = np.array(value)
                frozen.setflags(write=False)
                object.__setattr__(self, name, frozen)
            # As floats: an integer has no infinity to start from. Written so that nan fails too.
            if not float(np.min(np.asarray(value, dtype=np.float64), initial=math.inf)) >= 0.0:
                raise InputError(f"{self._title}: {what} ({symbol}) must be at least 0, got {value!r}")
        if not 0.0 < self.contraction <= 1.0:
            raise InputError(f"{self._title}: the contraction must lie in (0, 1], got {self.contraction!r}")

    @property
    def log_decay(self) -> float:
        """Log of (1 − ρ)/(1 + ρ) for a contraction ρ, without cancellation when it is small.

        At 1 it is finite, and its exponential 0: −∞ times an idle time of 0 would be nan.
        """
        return -2.0 * math.atanh(self.contraction) if self.contraction < 1.0 else -1e5

    def __str__(self) -> str:
        rows = [(what, symbol, getattr(self, name)) for name, (what, symbol) in self._shown().items()]
        return text_table(self._title, rows)


_SUM_TOLERANCE = 1e-9


class EventParameters:
    """The part of an event-driven method's constants that a schedule is made from.

    ``node_probability`` is p_i, ``edge_probability`` p_e, ``edge_weights`` the μ_e² of communication edges,
    ``sigma`` σ_i. The classes that derive from this one are frozen records, and hold these among others.
    """

    sigma: np.ndarray
    node_probability: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray

    def _freeze_arrays(self, *, nodes: tuple[str, ...], edges: tuple[str, ...], samples: str) -> None:
        """Make the named arrays float64 and unwritable, and raise unless they fit together.

        ``nodes`` are those with one number per node, ``edges`` those with one per edge; ``samples`` names the
        one that is above 0 at the nodes that hold samples.
        """
        for name in (*nodes, *edges):
            array = np.array(getattr(self, name), dtype=np.float64)
            if array.ndim != 1 or not np.all(np.isfinite(array)) or np.any(array < 0.0):
                raise InputError(
                    f"parameters: {name} must be one finite number of at least 0 per node or edge"
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if {getattr(self, name).size for name in nodes} != {self.sigma.size}:
            raise InputError("parameters: the arrays of the nodes have different lengths")
        if {getattr(self, name).size for name in edges} != {self.edge_weights.size}:
            raise InputError("parameters: the arrays of the edges have different lengths")
        total = float(self.node_probability.sum() + self.edge_probability.sum())
        if abs(total - 1.0) > _SUM_TOLERANCE:
            raise InputError(f"parameters: the probabilities sum to {total:.12g}, not 1")
        if np.any(self.edge_probability <= 0.0):
            raise InputError("parameters: every edge needs a probability above 0, or the nodes never agree")
        if np.any((self.node_probability > 0.0) != (getattr(self, samples) > 0.0)):
            raise InputError("parameters: exactly the nodes that hold samples need a probability above 0")

    @property
    def n_nodes(self) -> int:
        """N."""
        return int(self.sigma.size)

    @property
    def p_comm(self) -> float:
        """Probability that an event is a communication."""
        return float(self.edge_probability.sum())

    @property
    def p_comp(self) -> float:
        """Probability that an event is a computation."""
        return float(self.node_probability.sum())
