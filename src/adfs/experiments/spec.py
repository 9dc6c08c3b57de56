"""A comparison as data: what is solved, on which network, by which methods, and how far."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adfs.algorithms import get_method
from adfs.errors import InputError, unknown_name
from adfs.experiments.entries import DataSpec, DelaySpec, MethodSpec
from adfs.experiments.modules import load_modules
from adfs.experiments.plain import (
    check_kinds,
    frozen,
    is_count,
    is_number,
    read_record,
    shortened,
    thawed,
    to_toml,
)
from adfs.problem import get_loss
from adfs.problem.partitions import PARTITIONS

__all__ = ["Comparison", "DataSpec", "DelaySpec", "MethodSpec", "read_comparison"]


@dataclass(frozen=True)
class Comparison:
    """A comparison of methods on one problem and one network, over seeds.

    Parameters
    ----------
    data : DataSpec
    graph : str
        Name of the network, ``"grid:3x3"`` for instance.
    methods : tuple of MethodSpec
    title : str
    nodes : int, optional
        n, for a graph whose name does not say it.
    graph_seed : int
        Of a random graph; the same graph serves all seeds.
    partition : str
        How samples are split over the nodes.
    loss : str
    sigma : float or tuple of float
        σ_i.
    tau : float
        Time of a message, one sample's computation taking 1.
    delays : DelaySpec
    seeds : tuple of int
        One run a method and a seed.
    target : float
        Runs stop soon after the mean over the nodes of F(θ_i) − F* stays below it.
    relative : bool
        Whether the target, the tables and the figures are relative to F(0).
    max_time : float, optional
        Idealised time after which a run is given up.
    max_passes : float, optional
        Passes over the data after which a run is given up.
    records : int
        Recorded points for each factor of ten of work.
    imports : tuple of str
        Modules, or .py files, to import first: they may register methods.

    Examples
    --------
    >>> spec = Comparison(DataSpec("synthetic:90x3"), "grid:3x3", (MethodSpec("adfs"),), seeds=(0, 1))
    >>> spec.title
    'synthetic:90x3 on grid:3x3'
    """

    data: DataSpec
    graph: str
    methods: tuple[MethodSpec, ...]
    title: str = ""
    nodes: int | None = None
    graph_seed: int = 0
    partition: str = "random"
    loss: str = "logistic"
    sigma: float | tuple[float, ...] = 1.0
    tau: float = 5.0
    delays: DelaySpec = field(default_factory=DelaySpec)
    seeds: tuple[int, ...] = (0,)
    target: float = 1e-8
    relative: bool = False
    max_time: float | None = None
    max_passes: float | None = None
    records: int = 24
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kinds(self)
        if not self.methods:
            raise InputError(
                "a comparison needs at least one method: methods = ['adfs', 'msda'], or --method adfs"
            )
        for names, what in (
            ([one.label for one in self.methods], "label"),
            ([one.slug for one in self.methods], "file name"),
        ):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise InputError(f"two methods have the {what} {twice!r}: give one of them another label")
        if (
            not self.seeds
            or any(seed != 0 and not is_count(seed) for seed in self.seeds)
            or len(set(self.seeds)) < len(self.seeds)
        ):
            raise InputError(
                f"seeds must be different whole numbers of at least 0, at least one, got {list(self.seeds)}"
            )
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        get_loss(self.loss)
        for name in ("target", "max_time", "max_passes"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and math.isfinite(value) and value > 0.0):
                raise InputError(f"{name} must be a finite number above 0, got {value!r}")
        if not is_number(self.tau) or not (math.isfinite(self.tau) and self.tau >= 0.0):
            raise InputError(f"tau must be finite and at least 0, got {self.tau!r}")
        if not is_count(self.records):
            raise InputError(f"records must be a whole number of at least 1, got {self.records!r}")
        self.delays.make(self.tau)
        if not self.title:
            source = Path(self.data.source).name if self.data.is_file else self.data.source
            object.__setattr__(self, "title", f"{source} on {self.graph}")

    def check_methods(self) -> None:
        """Import what is to be imported, and raise unless every method exists and takes its options."""
        load_modules(self.imports)
        for entry in self.methods:
            method = get_method(entry.method)
            for option, _ in entry.options:
                if option not in method.options:
                    known = (*method.options, "label", "parameters", "read", "schedule")
                    raise unknown_name(f"option of {entry.method!r}", option, known)

    # ------------------------------------------------------------------ from and to plain data

    @classmethod
    def from_table(cls, table: Mapping[str, Any], base: Path | None = None) -> Comparison:
        """Build a comparison from plain data, as TOML gives it.

        Parameters
        ----------
        table : mapping
            The fields by name. ``data`` and ``delays`` may be one word (the source, the law) or tables;
            ``seeds`` a list or how many; ``methods`` names or tables.
        base : Path, optional
            Folder that paths in it are relative to.
        """
        known = [one.name for one in dataclasses.fields(cls)]
        for key in table:
            if key not in known:
                raise unknown_name("key of a comparison", key, known)
        for key in ("data", "graph", "methods"):
            if key not in table:
                raise InputError(
                    f"a comparison needs {key!r}: say it in the file or by --{key.removesuffix('s')}"
                )
        values = dict(table)
        data = read_record(DataSpec, "data", "source", table["data"])
        if base is not None and data.is_file:
            data = dataclasses.replace(data, source=str(base / data.source))
        values["data"] = data
        values["delays"] = read_record(DelaySpec, "delays", "law", table.get("delays", {}))
        if not isinstance(table["methods"], Sequence) or isinstance(table["methods"], str):
            raise InputError(f"methods must be a list of names or tables, got {table['methods']!r}")
        values["methods"] = tuple(MethodSpec.parse(entry) for entry in table["methods"])
        seeds = table.get("seeds", (0,))
        if is_count(seeds):
            seeds = range(seeds)
        if not isinstance(seeds, Iterable) or isinstance(seeds, str):
            raise InputError(f"seeds must be how many or a list of them, got {seeds!r}")
        values["seeds"] = tuple(seeds)
        modules = table.get("imports", ())
        if isinstance(modules, str) or not all(isinstance(name, str) for name in modules):
            raise InputError(f"imports must be a list of modules or .py files, got {modules!r}")
        values["imports"] = tuple(
            str(base / name) if base is not None and name.endswith(".py") else name for name in modules
        )
        try:
            return cls(**{key: frozen(value) for key, value in values.items()})
        except TypeError as error:
            raise InputError(f"the comparison has a value of the wrong kind: {error}") from None

    def to_table(self) -> dict[str, Any]:
        """Return the comparison as plain data; :meth:`from_table` reads it back."""
        table: dict[str, Any] = {}
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            if one.name == "methods":
                table["methods"] = [shortened(entry) | dict(entry.options) for entry in value]
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                table[one.name] = shortened(value)
            elif value is not None:
                table[one.name] = thawed(value)
        return table

    def toml(self) -> str:
        """Return the comparison as TOML; :func:`read_comparison` reads it back."""
        lines = []
        for key, value in self.to_table().items():
            if key == "methods":
                lines += ["methods = [", *(f"  {to_toml(entry)}," for entry in value), "]"]
            else:
                lines.append(f"{key} = {to_toml(value)}")
        return "\n".join(lines) + "\n"


def read_comparison(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Comparison:
    """Read a comparison from a TOML file.

    Parameters
    ----------
    path : path
    overrides : mapping, optional
        Fields that replace those of the file. A ``data`` source here is relative to the working directory.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    replaced = dict(overrides or {})
    if "imports" in replaced:
        replaced["imports"] = [
            str(Path(name).absolute()) if name.endswith(".py") else name for name in replaced["imports"]
        ]
    data = replaced.pop("data", None)
    if data is not None:
        given = {"source": data} if isinstance(data, str) else dict(data)
        before = table.get("data", {})
        if "source" in given and not given["source"].startswith(("gaussians", "sklearn:", "synthetic:")):
            given["source"] = str(Path(given["source"]).absolute())
        table["data"] = ({"source": before} if isinstance(before, str) else before) | given
    try:
        comparison = Comparison.from_table(table | replaced, base=path.parent.absolute())
        comparison.check_methods()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return comparison
