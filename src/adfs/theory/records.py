"""The base class of all records of parameters: checks, read-only arrays, and the printed table."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from adfs.errors import InputError
from adfs.problem import FiniteSum


def shown(what: str, symbol: str) -> Mapping[str, tuple[str, str]]:
    """Return the metadata of a field that is printed: its description and its symbol."""
    return {"shown": (what, symbol)}


def _as_text(value: object) -> str:
    """Return a number, or the range of an array, with six digits."""
    if not isinstance(value, np.ndarray):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value.size == 0:
        return "none"
    low, high = float(value.min()), float(value.max())
    return f"{low:.6g}" if math.isclose(low, high, rel_tol=1e-12) else f"{low:.6g} … {high:.6g}"


class ParameterRecord(ABC):
    """The parameters of one method, a frozen dataclass; `str` of it is a table.

    Arrays become read-only float64. No number may be negative, and a ``contraction`` must lie in (0, 1]. A
    number that does not apply is nan, and is not printed. The table has the fields that are `shown`, then the
    properties in ``_derived``.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    _title: ClassVar[str]
    _derived: ClassVar[dict[str, tuple[str, str]]] = {}
    contraction: float
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            # Annotations are strings here. A copy keeps the caller's array writable.
            if one.type == "np.ndarray":
                value = np.array(value, dtype=np.float64)
                if value.ndim != 1 or not np.all(np.isfinite(value)) or np.any(value < 0.0):
                    self._refuse(f"{one.name} must be one finite number of at least 0 per node or edge")
                value.setflags(write=False)
                object.__setattr__(self, one.name, value)
            elif one.name == "contraction" and not 0.0 < value <= 1.0:
                self._refuse(f"the contraction must lie in (0, 1], got {value!r}")
            # A comparison with nan is False, so numbers that do not apply pass.
            elif isinstance(value, float | int) and value < 0:
                self._refuse(f"{one.name} must be at least 0, got {value!r}")

    def _refuse(self, sentence: str) -> None:
        raise InputError(f"{self._title}: {sentence}")

    @property
    def log_decay(self) -> float:
        """Log of (1 − ρ)/(1 + ρ) for the contraction ρ, without cancellation when ρ is small.

        At ρ = 1 it is finite, and its exponential is 0: −∞ times an idle time of 0 would be nan.
        """
        return -2.0 * math.atanh(self.contraction) if self.contraction < 1.0 else -1e5

    def __str__(self) -> str:
        names = {
            one.name: one.metadata["shown"] for one in dataclasses.fields(self) if one.metadata
        } | self._derived
        values = [(*labels, getattr(self, name)) for name, labels in names.items()]
        # Leave out the numbers that do not apply.
        rows = [row for row in values if not (isinstance(row[2], float) and math.isnan(row[2]))]
        # Single numbers come first, then the arrays.
        rows.sort(key=lambda row: isinstance(row[2], np.ndarray))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [
            f"  {what:<{widths[0]}}  {symbol:<{widths[1]}}  {_as_text(value)}" for what, symbol, value in rows
        ]
        return "\n".join([self._title, *lines, *(f"  note: {note}" for note in self.notes)])


class EventParameters(ParameterRecord):
    """The parameters of a method whose events are drawn at random: a schedule is made from them.

    ``node_probability`` is p_i, ``edge_probability`` p_e, ``edge_weights`` the μ_e² of communication edges,
    ``sigma`` σ_i. Arrays whose name begins with ``edge_`` have one number per edge, all others one per node.
    ``_sums_of_weights`` names the field with the sum of the `sample_weights` of each node.
    """

    _sums_of_weights: ClassVar[str]
    sigma: np.ndarray
    node_probability: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    _derived: ClassVar[dict[str, tuple[str, str]]] = {
        "p_comm": ("P(communication)", "p_comm"),
        "p_comp": ("P(computation)", "p_comp"),
        "sizes": ("nodes, edges", "n, |E|"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [one.name for one in dataclasses.fields(self) if one.type == "np.ndarray"]
        for kind, size in (("nodes", self.sigma.size), ("edges", self.edge_weights.size)):
            alike = [name for name in names if name.startswith("edge_") == (kind == "edges")]
            if any(getattr(self, name).size != size for name in alike):
                self._refuse(f"the arrays of the {kind} have different lengths")
        # The probabilities of all events sum to 1, up to rounding.
        total = float(self.node_probability.sum()) + float(self.edge_probability.sum())
        if not math.isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
            self._refuse(f"the probabilities sum to {total:.12g}, not 1")
        if np.any(self.edge_probability <= 0.0):
            self._refuse("every edge needs a probability above 0, or the nodes never agree")
        if np.any((self.node_probability > 0.0) != (getattr(self, self._sums_of_weights) > 0.0)):
            self._refuse("exactly the nodes that hold samples need a probability above 0")

    @abstractmethod
    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return the numbers to which p_ij is proportional in a node, 0 on inactive rows; shape (N,)."""

    def sample_probability(self, problem: FiniteSum) -> np.ndarray:
        """Return p_ij, shape (N,)."""
        node, sums = problem.node_of_row, getattr(self, self._sums_of_weights)
        # A node without active samples has no weight to divide.
        sums = np.where(sums > 0.0, sums, 1.0)
        return np.asarray(self.node_probability[node] * self.sample_weights(problem) / sums[node])

    @property
    def n_nodes(self) -> int:
        """The number n of nodes."""
        return int(self.sigma.size)

    @property
    def sizes(self) -> str:
        """The numbers of nodes and edges, for the printed table."""
        return f"{self.n_nodes}, {self.edge_weights.size}"

    @property
    def p_comm(self) -> float:
        """Probability that an event is a communication."""
        return float(self.edge_probability.sum())

    @property
    def p_comp(self) -> float:
        """Probability that an event is a computation."""
        return float(self.node_probability.sum())
