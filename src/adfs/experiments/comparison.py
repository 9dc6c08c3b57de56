"""The description of a comparison: data, network, delays, methods and seeds, as TOML or in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from adfs.algorithms import METHODS, get_method
from adfs.errors import InputError, unknown_name
from adfs.experiments.inputs import (
    TomlTable,
    check_keys,
    check_types,
    field_names,
    has_type,
    is_sequence,
    plain_graph,
    read_record,
    read_table,
    read_word,
    to_toml,
    with_one_network,
    with_paths,
    without_defaults,
)
from adfs.files import JsonObject, load_modules
from adfs.network import Network
from adfs.network.inputs import is_graph_file
from adfs.problem import get_loss
from adfs.problem.shards import PARTITIONS
from adfs.runtimes import RunOptions
from adfs.runtimes.delays import DEFAULT_TAU, Delays, Straggler


@dataclass(frozen=True)
class DataSpec:
    """The samples of a comparison.

    Parameters
    ----------
    source : str
        ``"gaussians"``: the paper's two classes, N(−1, I) and N(1, I), balanced at every node unless they are
        split by label; ``"synthetic:900x10"``; ``"sklearn:breast_cancer"`` and its like; otherwise a file
        (LIBSVM text, .npz, CSV, parquet).
    samples_per_node : int, optional
        m. Needed for ``"gaussians"``. Of other data so many random samples are taken for each node; all by
        default.
    n_features : int, optional
        d: of ``"gaussians"`` (10 when left out), or of LIBSVM text.
    normalise : str
        ``"rows"`` to length 1, ``"columns"`` to mean 0 and variance 1 (refused if most values are 0, because
        centring would make them dense), or ``"none"``.
    form, label : str
        Format of a file and its label column, if the file does not determine them.
    seed : int, optional
        Seed of random data and of the samples that are drawn from a file; by default the seed of the run.
    """

    source: str = "gaussians"
    samples_per_node: int | None = None
    n_features: int | None = None
    normalise: str = "none"
    form: str = "auto"
    label: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_types(self, "data: ")
        for name in ("samples_per_node", "n_features"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"data: {name} must be a whole number of at least 1, got {value!r}")
        if self.normalise not in (known := ("none", "rows", "columns")):
            raise unknown_name("normalisation", self.normalise, known)
        if self.source == "gaussians" and self.samples_per_node is None:
            raise InputError(
                "data: gaussians need samples_per_node, as in {source = 'gaussians', samples_per_node = 1000}"
            )


@dataclass(frozen=True)
class DelaySpec:
    """The delays of the idealised clock, besides τ.

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
        straggler = "[node, factor], [node, factor, share] or [node, factor, share, period]"
        for name, words, sizes, n_nodes in (
            ("stragglers", straggler, (2, 3, 4), 1),
            ("slow_links", "[node, node, factor]", (3,), 2),
        ):
            given = getattr(self, name)
            rows = given if has_type(given, "tuple[tuple[float, ...], ...]") else [()]
            if not all(
                len(row) in sizes and all(node >= 0 and node == int(node) for node in row[:n_nodes])
                for row in rows
            ):
                raise InputError(
                    f"delays: {name} must be a list of {words}, whose nodes are whole numbers from 0, "
                    f"got {to_toml(given)}"
                )
        check_types(self, "delays: ")

    def make(self, tau: float, network: Network | None = None) -> Delays:
        """Return the delays for a τ; without a network the slow links are left out."""
        # One τ for all links, or one per link if some are slower.
        times: float | np.ndarray = tau
        if network is not None and self.slow_links:
            times = np.full(network.n_edges, tau, dtype=np.float64)  # TOML may say τ as a whole number
            for a, b, factor in self.slow_links:
                ends = sorted((int(a), int(b)))
                (places,) = np.nonzero((network.edges == ends).all(axis=1))
                if not places.size:
                    raise InputError(
                        f"delays: there is no link between nodes {ends[0]} and {ends[1]} to be slow"
                    )
                times[places] *= factor
        slow = tuple(Straggler(int(node), *rest) for node, *rest in self.stragglers)
        return Delays(times, self.law, self.speed, slow, self.batch, self.blocking, self.seed)


@dataclass(frozen=True)
class MethodSpec:
    """One curve of a comparison.

    Parameters
    ----------
    method : str
        A registered name.
    label : str
        The name of the curve; by default made from the other fields.
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
        check_types(self, f"method {self.method!r}: ")
        RunOptions(read=self.read, schedule=self.schedule).check()
        if not self.label:
            # Only the settings that differ from the defaults are part of the label.
            extra = [] if self.parameters is None else [self.parameters]
            extra += [] if self.read == "x" else [f"read at {self.read}"]
            extra += [] if self.schedule == "iid" else [self.schedule]
            extra += [f"{name}={value}" for name, value in self.options]
            # A method from outside may be registered later, by an import of the comparison.
            name = getattr(METHODS.get(self.method), "label", self.method)
            object.__setattr__(self, "label", f"{name} ({', '.join(extra)})" if extra else name)

    @property
    def slug(self) -> str:
        """The label as part of a file's name."""
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-") or "method"

    @classmethod
    def parse(cls, entry: str | TomlTable) -> MethodSpec:
        """Read ``"adfs"``, ``"adfs:parameters=paper,label=ADFS"`` or a table with these keys.

        Examples
        --------
        >>> MethodSpec.parse("adfs:parameters=paper").label
        'ADFS (paper)'
        >>> MethodSpec.parse({"method": "dsba", "step_factor": 1}).options
        (('step_factor', 1),)
        """
        table = dict(entry) if isinstance(entry, Mapping) else {}
        # The short form, as the command line and lists in TOML have it.
        if isinstance(entry, str):
            table["method"], _, rest = entry.partition(":")
            for part in filter(None, rest.split(",")):
                key, equals, value = part.partition("=")
                if not equals:
                    raise InputError(f"method {entry!r}: expected name:key=value,key=value, got {part!r}")
                table[key.strip()] = read_word(value.strip())
        if not isinstance(table.get("method"), str):
            raise InputError(f"a method is a name or a table with the key method, got {entry!r}")
        # Keys that are not fields are options of the method itself.
        known = set(field_names(cls)) - {"options"}
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
        edge per line; or the graph itself. A graph without a name is stored as its edges, ``(i, j)`` or
        ``(i, j, weight)``: numbers of nodes, or their labels if all labels are text. A list of names and edge
        lists (``networks`` in TOML) is a network that changes from one graph to the next.
    methods : tuple of MethodSpec
    title : str
    n_nodes : int, optional
        n, if the name of the network does not contain it.
    network_seed : int
        Seed of a random network, which is the same for all seeds of the comparison.
    window : float, optional
        How long a graph of a changing network lasts, in the time of the schedule.
    lost : float
        The probability that an exchange fails at both ends.
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
        Idealised time after which a run ends.
    max_passes : float, optional
        Passes over the data after which a run ends.
    records : int
        Recorded points for each factor of ten of work.
    imports : tuple of str
        Modules or .py files to import first, which may register methods and losses.

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
    window: float | None = None
    lost: float = 0.0
    partition: str = "random"
    loss: str = "logistic"
    sigma: float | tuple[float, ...] = 1.0
    tau: float = DEFAULT_TAU
    delays: DelaySpec = field(default_factory=DelaySpec)
    seeds: tuple[int, ...] = (0,)
    target: float = 1e-8
    relative: bool = False
    max_time: float | None = None
    max_passes: float | None = None
    records: int = 24
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A graph, or a file of edges, is replaced by its edges: the description must not need the file.
        name = Path(self.network).name if isinstance(self.network, str) else None
        if is_sequence(self.network):
            if any(isinstance(graph, str) and is_graph_file(graph) for graph in self.network):
                raise InputError("networks takes names and lists of edges: give the edges of each file")
        elif name is None or is_graph_file(self.network):
            object.__setattr__(self, "network", plain_graph(self.network, self.n_nodes))
        check_types(self)
        if not self.methods:
            raise InputError(
                "a comparison needs at least one method: methods = ['adfs', 'msda'], or --method adfs"
            )
        # The files of the runs are named after the labels.
        slugs = [entry.slug for entry in self.methods]
        twice = next((slug for slug in slugs if slugs.count(slug) > 1), None)
        if twice is not None:
            raise InputError(f"two methods have the file name {twice!r}: give one of them another label")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(
                f"seeds must be different whole numbers of at least 0, at least one, got {list(self.seeds)}"
            )
        if self.partition not in PARTITIONS:
            raise unknown_name("partition", self.partition, PARTITIONS)
        RunOptions(lost=self.lost).check()
        for key in ("target", "max_time", "max_passes", "records", "window"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{key} must be a finite number above 0, got {value!r}")
        self.delays.make(self.tau)
        if not self.title:
            data = Path(self.data.source).name
            object.__setattr__(self, "title", f"{data} on {name or self.network_name}")

    @property
    def network_name(self) -> str:
        """The name of the network, or its sizes where it has none."""
        if isinstance(self.network, str):
            return self.network
        if is_sequence(self.network):
            return " / ".join(graph if isinstance(graph, str) else "edges" for graph in self.network)
        nodes = {end for edge in self.network for end in edge[:2]}
        return f"{len(nodes)} nodes, {len(self.network)} edges"

    def check_names(self) -> None:
        """Import the modules, and raise unless loss, methods and their options exist."""
        load_modules(self.imports)
        # A loss is made by its name alone, so its constants need defaults.
        try:
            get_loss(self.loss)
        except TypeError:
            raise InputError(
                f"the loss {self.loss!r} cannot be used by its name: its constants need defaults"
            ) from None
        for entry in self.methods:
            also = ("label", "parameters", "read", "schedule")
            get_method(entry.method).check_options(dict(entry.options), also)

    @classmethod
    def from_table(cls, table: TomlTable, base: Path | None = None) -> Comparison:
        """Build a comparison from plain data, as TOML gives it: the fields by name.

        ``data`` and ``delays`` may be one word (the source, the law) or tables; ``seeds`` a list or how many;
        ``methods`` names or tables. Paths are relative to ``base``, where it is given.
        """
        table = with_one_network(table)
        check_keys(table, cls, "a comparison")
        for key in ("data", "network", "methods"):
            if key not in table:
                raise InputError(
                    f"a comparison needs {key!r}: add it to the file or give --{key.removesuffix('s')}"
                )
        values = dict(table) if base is None else with_paths(table, base)
        # Data and delays may be given as one word, or as tables.
        values["data"] = read_record(DataSpec, "data", "source", values["data"])
        values["delays"] = read_record(DelaySpec, "delays", "law", values.get("delays", {}))
        methods, seeds = values["methods"], values.get("seeds")
        if not isinstance(methods, Sequence) or isinstance(methods, str):
            raise InputError(f"methods must be a list of names or tables, got {methods!r}")
        values["methods"] = tuple(MethodSpec.parse(entry) for entry in methods)
        # A single number is the number of seeds.
        if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds >= 1:
            values["seeds"] = tuple(range(seeds))
        return cls(**values)

    def to_table(self) -> JsonObject:
        """Return the comparison as plain data; :meth:`from_table` reads it back."""
        table = {name: getattr(self, name) for name in field_names(self) if getattr(self, name) is not None}
        # The options of a method stand beside its other keys.
        methods = [without_defaults(entry) | dict(entry.options) for entry in self.methods]
        parts = {"data": without_defaults(self.data), "delays": without_defaults(self.delays)}
        if is_sequence(self.network):
            table["networks"] = table.pop("network")
        return table | parts | {"methods": methods}

    def toml(self) -> str:
        """Return the comparison as TOML; :func:`read_comparison` reads it back."""
        lines = []
        for key, value in self.to_table().items():
            if key == "methods":
                lines += ["methods = [", *(f"  {to_toml(entry)}," for entry in value), "]"]
            else:
                lines.append(f"{key} = {to_toml(value)}")
        return "\n".join(lines) + "\n"


def read_comparison(path: str | Path, overrides: TomlTable | None = None) -> Comparison:
    """Read a comparison from a TOML file; nothing that it names is imported.

    Parameters
    ----------
    path : path
    overrides : mapping, optional
        Fields that replace those of the file. Paths here are relative to the working directory.
    """
    table = read_table(path, overrides)
    try:
        return Comparison.from_table(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
