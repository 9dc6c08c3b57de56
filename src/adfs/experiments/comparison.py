"""What a comparison is: its data, network, delays and methods, read from TOML, from flags or from Python."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from adfs.algorithms import get_method
from adfs.errors import InputError, unknown_name
from adfs.experiments.data import is_data_file, load_modules, plain_graph, with_paths
from adfs.files import JsonObject
from adfs.network import Network
from adfs.network.inputs import is_graph_file
from adfs.problem import get_loss
from adfs.problem.shards import PARTITIONS
from adfs.runtimes import RunOptions
from adfs.runtimes.delays import Delays, Straggler

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: What TOML gives.
TomlTable: TypeAlias = Mapping[str, Any]

_NORMALISATIONS = ("none", "rows", "columns")
_LABELS = {
    "adfs-block": "block ADFS",
    "point-saga": "Point-SAGA",
    "dagd": "distributed AGD",
    "newton": "Newton",
    "lbfgs": "L-BFGS",
    **{name: name.upper() for name in ("adfs", "ns-adfs", "msda", "esdacd", "dsba", "extra", "agd", "apcg")},
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
        ``"rows"`` to length 1, ``"columns"`` to mean 0 and variance 1 (refused where most values are 0, which
        centring would fill), or ``"none"``.
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
        _check_fields(self, "data: ")
        if not self.source:
            raise InputError(f"data: the source must be a name or a file, got {self.source!r}")
        for name in ("samples_per_node", "n_features"):
            value = getattr(self, name)
            if value is not None and value < 1:
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
        return is_data_file(self.source)


@dataclass(frozen=True)
class DelaySpec:
    """How long things take on the idealised clock, besides τ.

    The fields are those of :class:`adfs.runtimes.delays.Delays`. ``stragglers`` is a list of
    ``[node, factor]``, ``[node, factor, share]`` or ``[node, factor, share, period]``, as
    :class:`adfs.runtimes.delays.Straggler` describes them, and ``slow_links`` one of
    ``[node, node, factor]``: how many times τ a message between two neighbours takes.
    """

    law: str = "exponential"
    batch: str = "gamma"
    blocking: bool = False
    speed: float | tuple[float, ...] = 1.0
    stragglers: tuple[tuple[float, ...], ...] = ()
    seed: int | None = None
    slow_links: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, words, least, most in (
            ("stragglers", "[node, factor], [node, factor, share] or [node, factor, share, period]", 2, 4),
            ("slow_links", "[node, node, factor]", 3, 3),
        ):
            given = getattr(self, name)
            numbers = _fits(given, tuple[tuple[float, ...], ...])
            if not numbers or not all(least <= len(one) <= most for one in given):
                raise InputError(f"delays: {name} must be a list of {words}, got {_to_toml(given)}")
            nodes = [node for one in given for node in one[: 2 if name == "slow_links" else 1]]
            if any(node < 0 or node != int(node) for node in nodes):
                raise InputError(f"delays: the nodes of {name} are whole numbers from 0, got {nodes}")
        _check_fields(self, "delays: ")
        for link in self.slow_links:
            if not link[2] > 0.0:
                raise InputError(f"delays: the factor of a slow link must be above 0, got {list(link)}")

    def make(self, tau: float, network: Network | None = None) -> Delays:
        """Return the delays for a τ; without a network, as if no link were slower than others."""
        times: float | np.ndarray = tau
        if network is not None and self.slow_links:
            times = np.full(network.n_edges, tau, dtype=np.float64)  # TOML may say τ as a whole number
            for a, b, factor in self.slow_links:
                ends = sorted((int(a), int(b)))
                (found,) = np.nonzero((network.edges == ends).all(axis=1))
                if not found.size:
                    raise InputError(
                        f"delays: there is no link between nodes {ends[0]} and {ends[1]} to be slow"
                    )
                times[found] *= factor
        slow = tuple(Straggler(int(one[0]), *one[1:]) for one in self.stragglers)
        return Delays(times, self.law, self.speed, slow, self.batch, self.blocking, self.seed)


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
    options: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        _check_fields(self, f"method {self.method!r}: ")
        RunOptions(read=self.read, schedule=self.schedule).check()
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
    def parse(cls, entry: str | TomlTable | MethodSpec) -> MethodSpec:
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
        table = dict(entry) if isinstance(entry, Mapping) else {}
        if isinstance(entry, str):
            table["method"], _, rest = entry.partition(":")
            for part in filter(None, rest.split(",")):
                key, equals, value = part.partition("=")
                if not equals:
                    raise InputError(f"method {entry!r}: expected name:key=value,key=value, got {part!r}")
                table[key.strip()] = _read_word(value.strip())
        if not isinstance(table.get("method"), str):
            raise InputError(f"a method is a name or a table with the key method, got {entry!r}")
        known = set(_names(cls)) - {"options"}
        options = tuple(sorted((key, value) for key, value in table.items() if key not in known))
        return cls(**{key: value for key, value in table.items() if key in known}, options=options)


@dataclass(frozen=True)
class Comparison:
    """A comparison of methods on one problem and one network, over seeds.

    Parameters
    ----------
    data : DataSpec
    network : str, networkx graph, edge list, matrix or Network
        Name of the network, ``"grid:3x3"`` for instance; or a file, GraphML (.graphml) or an edge list, one
        edge per line; or the graph itself. What has no name is kept as its edges, ``(i, j)`` or
        ``(i, j, weight)``: numbers of nodes, or their labels where all labels are text.
    methods : tuple of MethodSpec
    title : str
    n_nodes : int, optional
        n, for a network whose name does not say it.
    network_seed : int
        Of a random network; the same network serves all seeds.
    partition : str
        How samples are split over the nodes.
    loss : str
        A registered name.
    sigma : float or tuple of float
        σ_i.
    tau : float
        Time of a message, one sample's computation taking 1.
    delays : DelaySpec
    seeds : tuple of int
        One run per method and seed.
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
        Modules, or .py files, to import first: they may register methods and losses.

    Examples
    --------
    >>> spec = Comparison(DataSpec("synthetic:90x3"), "grid:3x3", (MethodSpec("adfs"),), seeds=(0, 1))
    >>> spec.title
    'synthetic:90x3 on grid:3x3'
    """

    data: DataSpec
    network: Any
    methods: tuple[MethodSpec, ...]
    title: str = ""
    n_nodes: int | None = None
    network_seed: int = 0
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
        file = Path(self.network) if isinstance(self.network, str) and is_graph_file(self.network) else None
        if file is not None or not isinstance(self.network, str):
            object.__setattr__(self, "network", plain_graph(self.network, self.n_nodes))
        _check_fields(self)
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
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(
                f"seeds must be different whole numbers of at least 0, at least one, got {list(self.seeds)}"
            )
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        for name in ("target", "max_time", "max_passes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{name} must be a finite number above 0, got {value!r}")
        RunOptions(tau=self.tau).check()
        if self.records < 1:
            raise InputError(f"records must be a whole number of at least 1, got {self.records!r}")
        self.delays.make(self.tau)
        if not self.title:
            source = Path(self.data.source).name if self.data.is_file else self.data.source
            network = self.network_name if file is None else file.name
            object.__setattr__(self, "title", f"{source} on {network}")

    @property
    def network_name(self) -> str:
        """The name of the network, or its sizes where it has none."""
        if isinstance(self.network, str):
            return self.network
        nodes = {end for edge in self.network for end in edge[:2]}
        return f"{len(nodes)} nodes, {len(self.network)} edges"

    def check_names(self) -> None:
        """Import what is to be imported, and raise unless loss, methods and their options exist."""
        load_modules(self.imports)
        try:
            get_loss(self.loss)
        except TypeError:
            raise InputError(
                f"the loss {self.loss!r} cannot be used by its name: its constants need defaults"
            ) from None
        for entry in self.methods:
            method = get_method(entry.method)
            for option, _ in entry.options:
                if option not in method.options:
                    known = (*method.options, "label", "parameters", "read", "schedule")
                    raise unknown_name(f"option of {entry.method!r}", option, known)

    @classmethod
    def from_table(cls, table: TomlTable, base: Path | None = None) -> Comparison:
        """Build a comparison from plain data, as TOML gives it: the fields by name.

        ``data`` and ``delays`` may be one word (the source, the law) or tables; ``seeds`` a list or how many;
        ``methods`` names or tables. Paths are relative to ``base``, where it is given.
        """
        _check_keys(table, cls, "a comparison")
        for key in ("data", "network", "methods"):
            if key not in table:
                raise InputError(
                    f"a comparison needs {key!r}: say it in the file or by --{key.removesuffix('s')}"
                )
        values = dict(table) if base is None else with_paths(table, base)
        values["data"] = _read_record(DataSpec, "data", "source", values["data"])
        values["delays"] = _read_record(DelaySpec, "delays", "law", values.get("delays", {}))
        methods, seeds = values["methods"], values.get("seeds")
        if not isinstance(methods, Sequence) or isinstance(methods, str):
            raise InputError(f"methods must be a list of names or tables, got {methods!r}")
        values["methods"] = tuple(MethodSpec.parse(entry) for entry in methods)
        if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
            values["seeds"] = tuple(range(seeds))
        return cls(**values)

    def to_table(self) -> JsonObject:
        """Return the comparison as plain data; :meth:`from_table` reads it back."""
        table = {name: getattr(self, name) for name in _names(self) if getattr(self, name) is not None}
        methods = [_without_defaults(entry) | dict(entry.options) for entry in self.methods]
        parts = {"data": _without_defaults(self.data), "delays": _without_defaults(self.delays)}
        return table | parts | {"methods": methods}

    def toml(self) -> str:
        """Return the comparison as TOML; :func:`read_comparison` reads it back."""
        lines = []
        for key, value in self.to_table().items():
            if key == "methods":
                lines += ["methods = [", *(f"  {_to_toml(entry)}," for entry in value), "]"]
            else:
                lines.append(f"{key} = {_to_toml(value)}")
        return "\n".join(lines) + "\n"


def read_comparison(path: str | Path, overrides: TomlTable | None = None) -> Comparison:
    """Read a comparison from a TOML file; nothing that it names is imported.

    Parameters
    ----------
    path : path
    overrides : mapping, optional
        Fields that replace those of the file. Paths here are relative to the working directory.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    table = with_paths(table, path.parent.absolute())
    replaced = with_paths(overrides or {}, Path.cwd())
    if isinstance(table.get("data"), Mapping) and isinstance(replaced.get("data"), Mapping):
        replaced["data"] = {**table["data"], **replaced["data"]}
    try:
        return Comparison.from_table(table | replaced)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


# --------------------------------------------------------------------------- plain values and records

_Record = TypeVar("_Record", bound="DataclassInstance")


def _names(record: DataclassInstance | type[DataclassInstance]) -> list[str]:
    return [one.name for one in dataclasses.fields(record)]


def _check_keys(table: TomlTable, cls: type[DataclassInstance], what: str) -> None:
    for key in table:
        if key not in _names(cls):
            raise unknown_name(f"key of {what}", key, _names(cls))


def _read_record(cls: type[_Record], what: str, main: str, value: object) -> _Record:
    """Build a record from a table of its fields, or from the value of its main field."""
    if isinstance(value, cls):
        return value
    table = {main: value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        known = ", ".join(_names(cls))
        raise InputError(f"{what} must be one word or a table with some of {known}, got {value!r}")
    _check_keys(table, cls, what)
    return cls(**table)


def _check_fields(record: DataclassInstance, where: str = "") -> None:
    """Raise unless every field is of the kind that its annotation says; lists become tuples."""
    for name, hint in typing.get_type_hints(type(record)).items():
        value = getattr(record, name)
        if not _fits(value, hint):
            raise InputError(f"{where}{name} must be {_words(hint)}, got {value!r}")
        object.__setattr__(record, name, _frozen(value))


def _fits(value: object, hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, one) for one in inside)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        kinds = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return " or ".join(_words(one) for one in inside if one is not types.NoneType)
    if origin is tuple:
        return f"a list of entries that are each {_words(inside[0])}"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(hint, "as documented")


def _frozen(value: object) -> object:
    """Return lists as tuples, all the way down."""
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list | tuple) else value


def _read_word(text: str) -> int | float | bool | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def _without_defaults(record: DataclassInstance) -> JsonObject:
    """Return a record's fields that are not its defaults, its first field always."""
    first, *rest = (one for one in dataclasses.fields(record) if one.name != "options")
    changed = [one for one in rest if getattr(record, one.name) != one.default]
    return {one.name: getattr(record, one.name) for one in (first, *changed)}


def _to_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_to_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_to_toml(entry) for entry in value) + "]"
    # TOML writes text, numbers and truth values as JSON does, and keeps letters of all languages.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
