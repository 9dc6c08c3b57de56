"""The parts of a comparison: its data, its delays, its methods."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adfs.errors import InputError, unknown_name
from adfs.experiments.plain import check_kinds, is_count, read_word
from adfs.network import Network
from adfs.runtimes.delays import Delays
from adfs.schedule import SCHEDULES

__all__ = ["DataSpec", "DelaySpec", "MethodSpec"]

_NORMALISATIONS = ("none", "rows", "columns")
_LABELS = {
    "adfs": "ADFS",
    "adfs-block": "block ADFS",
    "ns-adfs": "NS-ADFS",
    "msda": "MSDA",
    "esdacd": "ESDACD",
    "dsba": "DSBA",
    "extra": "EXTRA",
    "point-saga": "Point-SAGA",
    "agd": "AGD",
    "dagd": "distributed AGD",
    "apcg": "APCG",
}


@dataclass(frozen=True)
class DataSpec:
    """Which samples.

    Parameters
    ----------
    source : str
        ``"gaussians"``: the paper's two classes, N(−1, I) and N(1, I), balanced at every node;
        ``"synthetic:900x10"``; ``"sklearn:breast_cancer"`` and its like; otherwise a file (LIBSVM text, .npz,
        CSV, parquet).
    samples_per_node : int, optional
        m. Needed for ``"gaussians"``; of other data so many random samples are taken for each node, all when
        left out.
    n_features : int, optional
        d: of ``"gaussians"`` (10 when left out), or of LIBSVM text.
    normalise : str
        ``"rows"`` to length 1, ``"columns"`` to mean 0 and variance 1, or ``"none"``.
    form, label : str
        Format of a file and its label column, where the file does not say them.
    seed : int, optional
        Of random data and of what is drawn from a file; that of the run when left out.
    """

    source: str = "gaussians"
    samples_per_node: int | None = None
    n_features: int | None = None
    normalise: str = "none"
    form: str = "auto"
    label: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "data: ")
        if not self.source:
            raise InputError(f"data: the source must be a name or a file, got {self.source!r}")
        for name in ("samples_per_node", "n_features"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise InputError(f"data: {name} must be a whole number of at least 1, got {value!r}")
        if self.normalise not in _NORMALISATIONS:
            raise unknown_name("normalisation", self.normalise, _NORMALISATIONS)
        if self.source == "gaussians" and self.samples_per_node is None:
            raise InputError(
                "data: gaussians need samples_per_node, as in {source = 'gaussians', samples_per_node = 1000}"
            )

    @property
    def is_file(self) -> bool:
        """Whether the source is a file."""
        return self.source != "gaussians" and not self.source.startswith(("sklearn:", "synthetic:"))


@dataclass(frozen=True)
class DelaySpec:
    """How long things take on the idealised clock, besides τ.

    The fields are those of :class:`adfs.runtimes.delays.Delays`, and ``slow_links``: two neighbours and how
    many times τ a message between them takes.
    """

    law: str = "exponential"
    batch: str = "gamma"
    blocking: bool = False
    speed: float | tuple[float, ...] = 1.0
    stragglers: tuple[tuple[float, ...], ...] = ()
    seed: int | None = None
    slow_links: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        check_kinds(self, "delays: ")

    def make(self, tau: float, network: Network | None = None) -> Delays:
        """Return the delays for a τ; without a network, as if no link were slower than others."""
        for link in self.slow_links:
            if len(link) != 3 or not link[2] > 0.0:
                raise InputError(
                    f"delays: a slow link is two nodes and a factor above 0, as [0, 1, 4.0], got {list(link)}"
                )
        slow: Any = tuple((int(one[0]), *one[1:]) for one in self.stragglers)
        times = tau if network is None or not self.slow_links else self._times(tau, network)
        return Delays(times, self.law, self.speed, slow, self.batch, self.blocking, self.seed)

    def _times(self, tau: float, network: Network) -> np.ndarray:
        """Return the τ of each edge."""
        times = np.full(network.n_edges, tau, dtype=np.float64)  # TOML may say τ as a whole number
        for a, b, factor in self.slow_links:
            ends = sorted((int(a), int(b)))
            (found,) = np.nonzero((network.edges == ends).all(axis=1))
            if not found.size:
                raise InputError(f"delays: there is no link between nodes {ends[0]} and {ends[1]} to be slow")
            times[found] *= factor
        return times


@dataclass(frozen=True)
class MethodSpec:
    """One curve of a comparison.

    Parameters
    ----------
    method : str
        A registered name.
    label : str
        How the curve is called; made from the rest when empty.
    parameters : str, optional
        The method's choice of constants, for instance ``"paper"``.
    read : str
        ``"x"`` or ``"v"``, where a method's iterate can be read at both.
    schedule : str
        ``"iid"`` or ``"poisson"``, for event-driven methods.
    options : tuple of pairs
        The method's own options.
    """

    method: str
    label: str = ""
    parameters: str | None = None
    read: str = "x"
    schedule: str = "iid"
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_kinds(self, f"method {self.method!r}: ")
        if self.read not in ("x", "v"):
            raise unknown_name("place to read the iterate", self.read, ("x", "v"))
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if not self.label:
            extra = [] if self.parameters is None else [self.parameters]
            extra += [] if self.read == "x" else [f"read at {self.read}"]
            extra += [] if self.schedule == "iid" else [self.schedule]
            extra += [f"{name}={value}" for name, value in self.options]
            name = _LABELS.get(self.method, self.method)
            object.__setattr__(self, "label", f"{name} ({', '.join(extra)})" if extra else name)

    @property
    def slug(self) -> str:
        """The label as part of a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-") or "method"

    @classmethod
    def parse(cls, entry: Any) -> MethodSpec:
        """Read ``"adfs"``, ``"adfs:parameters=paper,label=ADFS"`` or a table with these keys.

        Examples
        --------
        >>> MethodSpec.parse("adfs:parameters=paper").label
        'ADFS (paper)'
        >>> MethodSpec.parse({"method": "dsba", "step_factor": 1}).options
        (('step_factor', 1),)
        """
        if isinstance(entry, MethodSpec):
            return entry
        if isinstance(entry, str):
            name, _, rest = entry.partition(":")
            table: dict[str, Any] = {"method": name}
            for part in filter(None, rest.split(",")):
                key, equals, value = part.partition("=")
                if not equals:
                    raise InputError(f"method {entry!r}: expected name:key=value,key=value, got {part!r}")
                table[key.strip()] = read_word(value.strip())
        elif isinstance(entry, Mapping):
            table = dict(entry)
        else:
            raise InputError(f"a method is a name or a table with the key method, got {entry!r}")
        if not isinstance(table.get("method"), str):
            raise InputError(f"a method is a name or a table with the key method, got {entry!r}")
        known = {field.name for field in dataclasses.fields(cls)} - {"options"}
        options = tuple(sorted((key, value) for key, value in table.items() if key not in known))
        return cls(**{key: value for key, value in table.items() if key in known}, options=options)
