"""The inputs of a comparison: its problem and its network, and records from plain values."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp

from adfs.data import ReadOptions, Table, read_source
from adfs.data.read import check_name
from adfs.data.table import labels_for
from adfs.errors import InputError, unknown_name
from adfs.files import JsonObject
from adfs.network import Network, changing_network
from adfs.network.inputs import is_graph_file
from adfs.problem import Problem, get_loss
from adfs.problem.losses import Loss
from adfs.problem.samples import Matrix

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from adfs.experiments.comparison import Comparison, DataSpec

_Record = TypeVar("_Record", bound="DataclassInstance")

#: A table of TOML, or of options.
TomlTable: TypeAlias = Mapping[str, Any]
#: Two nodes each, by number or by label, and perhaps a weight.
Edges: TypeAlias = tuple[tuple[str | float, ...], ...]


def gaussians(n_samples: int, n_features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the paper's two classes, N(−1, I) and N(1, I), half of the samples each: rows and labels.

    The labels are −1 and 1 in turn: any run of samples is balanced.

    Examples
    --------
    >>> X, y = gaussians(1000, 3, seed=0)
    >>> np.round(X[y == 1].mean(), 1), y.sum()
    (np.float64(1.0), np.float64(0.0))
    """
    # Alternating labels make every contiguous part balanced.
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n_samples) % 2 == 0, 1.0, -1.0)
    return rng.standard_normal((n_samples, n_features)) + y[:, None], y


@lru_cache(maxsize=1)
def make_network(comparison: Comparison) -> Network:
    """Return the network, the same for all seeds."""
    spec, n_nodes, seed = comparison.network, comparison.n_nodes, comparison.network_seed
    if is_sequence(spec):
        network = changing_network(spec, window=comparison.window, n_nodes=n_nodes, seed=seed)
    else:
        network = Network(spec, n_nodes=n_nodes, seed=seed)
    return network.losing(comparison.lost)


def make_problem(comparison: Comparison, seed: int) -> tuple[Problem, Network]:
    """Return the problem of a seed and the network.

    The last problem is kept: the methods of a comparison share it, and its optimum is computed once.
    """
    # Comparisons that differ in these fields alone share it, too.
    return _make_problem(dataclasses.replace(comparison, title="-", tau=1.0, max_time=None), seed)


@lru_cache(maxsize=1)
def _make_problem(comparison: Comparison, seed: int) -> tuple[Problem, Network]:
    data, network, loss = comparison.data, make_network(comparison), get_loss(comparison.loss)
    chosen, partition = seed if data.seed is None else data.seed, comparison.partition
    if data.source == "gaussians":
        assert data.samples_per_node is not None
        if loss.task != "classification":
            raise InputError(f"gaussians are two classes, and the loss {loss.name!r} is for numbers")
        X, y = gaussians(data.samples_per_node * network.n_nodes, data.n_features or 10, chosen)
        # The paper's data are balanced at every node, unless they are to be split by label.
        weights, partition = None, partition if partition == "label" else "contiguous"
    else:
        table = _read_file(data) if is_data_file(data.source) else read_source(data.source, seed=chosen)
        X, y, weights = _samples(table, data, loss, network.n_nodes, chosen)
    settings: JsonObject = {"partition": partition, "sample_weight": weights, "seed": chosen}
    return Problem(X, y, loss, comparison.sigma, network.n_nodes, **settings), network


@lru_cache(maxsize=1)
def _read_file(data: DataSpec) -> Table:
    """Read a file once for all seeds."""
    return read_source(data.source, ReadOptions(data.form, data.label, n_features=data.n_features))


def _samples(
    table: Table, data: DataSpec, loss: Loss, n_nodes: int, seed: int
) -> tuple[Matrix, np.ndarray, np.ndarray | None]:
    """Return rows, labels and weights: so many as the description says, labels ±1, rows normalised."""
    X, y, weights = table.X, table.y, table.weights
    assert y is not None  # a file without labels was refused
    if data.samples_per_node is not None:
        count = data.samples_per_node * n_nodes
        if count > y.size:
            raise InputError(
                f"{table.source} has {y.size} samples, fewer than {n_nodes} nodes x {data.samples_per_node}: "
                "lower samples_per_node or take fewer nodes"
            )
        rows = np.sort(np.random.default_rng(seed).permutation(y.size)[:count])
        X, y, weights = X[rows], y[rows], None if weights is None else weights[rows]
    labels = labels_for(y, loss.task, loss.name, table.source)
    return _normalised(X, data.normalise, table.source), labels, weights


def _normalised(X: Matrix, how: str, source: str) -> Matrix:
    from sklearn.preprocessing import normalize, scale

    sparse = bool(sp.issparse(X))
    if how == "columns":
        # Centring makes a matrix dense, which is refused if the dense one is larger than the sparse one.
        if sparse and 8 * X.shape[0] * X.shape[1] > X.data.nbytes + X.indices.nbytes:
            raise InputError(
                f"{source}: {1.0 - X.nnz / np.prod(X.shape):.0%} of its values are 0, which centred "
                "columns would fill; use normalise = 'rows'"
            )
        return scale(X.toarray() if sparse else X)
    return normalize(X) if how == "rows" else X


def plain_graph(graph: object, nodes: int | None) -> str | Edges:
    """Return the edges of a graph or of a file, with their weights where these are not all 1."""
    # A file is named by the error itself, other graphs are not.
    try:
        network = Network(graph, n_nodes=nodes)
    except InputError as error:
        raise InputError(str(error) if isinstance(graph, str) else f"network: {error}") from None
    if network.faults is not None:
        raise InputError("network: give the graphs of a changing network as a list, and lost as a number")
    if network.n_nodes == 1:
        return "path:1"
    labels = network.labels
    names = [label for label in labels if isinstance(label, str)]
    ends: Sequence[str | int] = names if len(names) == len(labels) else range(len(labels))
    # Weights are written only if they are not all 1.
    edges = [(ends[i], ends[j]) for i, j in network.edges.tolist()]
    if (network.weights == 1.0).all():
        return tuple(edges)
    return tuple((*edge, weight) for edge, weight in zip(edges, network.weights.tolist(), strict=True))


def is_sequence(network: object) -> bool:
    """Whether the network of a comparison is a list of graphs, names or edge lists, and not one edge list."""
    graphs = network if isinstance(network, list | tuple) else ()
    # The ends of an edge are numbers or labels, and the first entry of a list of edges is an edge.
    return any(
        isinstance(graph, str) or (isinstance(graph, list | tuple) and np.ndim(graph[:1]) > 1)
        for graph in graphs
    )


def is_data_file(source: str) -> bool:
    """Whether the source of samples is a file."""
    return source != "gaussians" and not source.startswith(("sklearn:", "synthetic:"))


# --------------------------------------------------------------------------- records as plain values

# The types of fields that are checked -> their names in an error message.
_TYPES = {
    "str": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "tuple[int, ...]": "a list of whole numbers",
    "tuple[str, ...]": "a list of texts",
    "float | tuple[float, ...]": "a number or a list of numbers",
}


def has_type(value: object, kind: str) -> bool:
    """Whether a value from TOML has a type, given as in the annotation of a field."""
    if " | " in kind:
        return any(has_type(value, part) for part in kind.split(" | "))
    if kind.startswith("tuple["):
        entries = kind.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, list | tuple) and all(has_type(entry, entries) for entry in value)
    if isinstance(value, bool) or value is None:  # True is not a number here
        return kind == ("None" if value is None else "bool")
    return isinstance(value, {"str": str, "int": int, "float": int | float}.get(kind, ()))


def check_types(record: DataclassInstance, where: str = "") -> None:
    """Raise unless the plain fields have the right types; lists become tuples, which can be hashed."""
    for each in dataclasses.fields(record):
        value, kind = getattr(record, each.name), str(each.type)
        words = _TYPES.get(kind.removesuffix(" | None"))
        if words is not None and not has_type(value, kind):
            raise InputError(f"{where}{each.name} must be {words}, got {value!r}")
        object.__setattr__(record, each.name, _frozen(value))


def _frozen(value: object) -> object:
    """Return lists as tuples, all the way down."""
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list | tuple) else value


def field_names(record: DataclassInstance | type[DataclassInstance]) -> list[str]:
    """Return the names of a record's fields."""
    return [each.name for each in dataclasses.fields(record)]


def check_keys(table: TomlTable, cls: type[DataclassInstance], what: str) -> None:
    """Raise unless the keys of a table are fields of a record."""
    for key in table:
        if key not in field_names(cls):
            raise unknown_name(f"key of {what}", key, field_names(cls))


def read_record(cls: type[_Record], what: str, main: str, value: object) -> _Record:
    """Build a record from a table of its fields, or from the value of its main field."""
    table = {main: value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        known = ", ".join(field_names(cls))
        raise InputError(f"{what} must be one word or a table with some of {known}, got {value!r}")
    check_keys(table, cls, what)
    return cls(**table)


def read_word(text: str) -> int | float | bool | str:
    """Return the value of ``key=value`` on the command line as TOML would read it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def without_defaults(record: DataclassInstance) -> JsonObject:
    """Return the fields of a record that differ from the defaults, and the first field always."""
    # The first field identifies the record, so it is always written.
    first, *rest = (each for each in dataclasses.fields(record) if each.name != "options")
    changed = [each for each in rest if getattr(record, each.name) != each.default]
    return {each.name: getattr(record, each.name) for each in (first, *changed)}


def to_toml(value: object) -> str:
    """Return a plain value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(entry) for entry in value) + "]"
    # TOML writes text, numbers and truth values as JSON does, and keeps letters of all languages.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


# --------------------------------------------------------------------------- files


def read_table(path: str | Path, overrides: TomlTable | None = None) -> JsonObject:
    """Read the table of a comparison from a TOML file; see `adfs.experiments.read_comparison`."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    # Paths in the file are relative to it, paths of flags to the working directory.
    table = with_paths(table, path.parent.absolute())
    replaced = with_paths(overrides or {}, Path.cwd())
    # A flag about the data replaces one key of the table, not the table.
    if isinstance(table.get("data"), Mapping) and isinstance(replaced.get("data"), Mapping):
        replaced["data"] = {**table["data"], **replaced["data"]}
    return table | replaced


def with_one_network(table: TomlTable) -> JsonObject:
    """Return the table of a comparison with its ``networks`` as ``network``."""
    if {"network", "networks"} <= set(table):
        raise InputError("a comparison has a network or networks, not both: remove one of the keys")
    return {"network" if key == "networks" else key: value for key, value in table.items()}


def with_paths(table: TomlTable, base: Path) -> JsonObject:
    """Return the table of a comparison with absolute paths; malformed entries are left for later checks."""
    values = with_one_network(table)
    network, imports = values.get("network"), values.get("imports", ())
    if isinstance(values.get("data"), str):
        values["data"] = {"source": values["data"]}
    data = values.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    if isinstance(source, str) and is_data_file(source):
        check_name(source)  # before an address looks like a path
        if source == "-":
            raise InputError(
                "a comparison reads its data again and again, which standard input (-) does not allow"
            )
        values["data"] = {**values["data"], "source": str(base / source)}
    if isinstance(network, str) and is_graph_file(network):
        values["network"] = str(base / network)
    if imports and has_type(imports, "tuple[str, ...]"):
        values["imports"] = [str(base / name) if name.endswith(".py") else name for name in imports]
    return values
