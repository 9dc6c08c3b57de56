"""Graphs by name: a small registry of families, each a function from sizes to an edge array."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from adfs.errors import InputError, unknown_name

Edges = NDArray[np.int64]
Number = int | float
Sizes = dict[str, Number]
RETRIES = 100


@dataclass(frozen=True)
class Family:
    """One kind of graph.

    ``sizes`` names its sizes, in the order in which they stand behind the colon. ``build`` makes the edges
    from them (and a generator, when ``random``); loops and repeated pairs are removed afterwards. ``check``
    says what is wrong with them, if anything, and ``example`` is how a user writes the whole. ``fill`` gives
    sizes by name from a number of nodes and the sizes already given (only those not given are used),
    ``count`` the number of nodes, and ``advice`` says what to change when no connected graph was drawn.
    """

    sizes: tuple[str, ...]
    build: Callable[..., Edges]
    check: Callable[..., str]
    example: str
    fill: Callable[[int, Sizes], Sizes] = lambda n, given: {"n": n}
    count: Callable[..., int] = lambda n, *others: n
    random: bool = False
    advice: Callable[..., str] = lambda *sizes: ""


def _pairs(first: np.ndarray, second: np.ndarray) -> Edges:
    return np.column_stack([np.ravel(first), np.ravel(second)]).astype(np.int64)


def _path(n: int) -> Edges:
    return _pairs(np.arange(n - 1), np.arange(1, n))


def _cycle(n: int) -> Edges:
    return _pairs(np.arange(n), (np.arange(n) + 1) % n)


def _star(n: int) -> Edges:
    return _pairs(np.zeros(n - 1), np.arange(1, n))


def _complete(n: int) -> Edges:
    return _pairs(*np.triu_indices(n, 1))


def _lattice(*sides: int, wrap: bool) -> Edges:
    """Cartesian product of paths (or of cycles), node numbers in row-major order."""
    index = np.arange(math.prod(sides)).reshape(sides)
    parts = []
    for axis, side in enumerate(sides):
        following = np.roll(index, -1, axis)
        stop = side if wrap else side - 1
        parts.append(_pairs(index.take(range(stop), axis), following.take(range(stop), axis)))
    return np.concatenate(parts)


def _hypercube(dimension: int) -> Edges:
    nodes = np.arange(2**dimension)
    parts = [_pairs(nodes, nodes ^ (1 << bit)) for bit in range(dimension)]
    return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)


def _tree(n: int) -> Edges:
    child = np.arange(1, n)
    return _pairs((child - 1) // 2, child)


def _barbell(clique: int, path: int) -> Edges:
    one = _complete(clique)
    bar = _path(path + 2) + clique - 1
    return np.concatenate([one, bar, one + clique + path])


def _exponential(n: int) -> Edges:
    nodes = np.arange(n)
    parts = [_pairs(nodes, (nodes + 2**k) % n) for k in range((n - 1).bit_length())]
    return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)


def _erdos_renyi(n: int, p: float, generator: np.random.Generator) -> Edges:
    """Each pair with probability p: a binomial number of edges, then that many distinct pairs."""
    pairs = n * (n - 1) // 2
    chosen = generator.choice(pairs, size=generator.binomial(pairs, p), replace=False, shuffle=False)
    # pair number t lies in the row of the larger end j, t = j(j−1)/2 + i; the root is exact up to one
    larger = ((1 + np.sqrt(8.0 * chosen + 1.0)) // 2).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > chosen
    larger += larger * (larger + 1) // 2 <= chosen
    return _pairs(chosen - larger * (larger - 1) // 2, larger)


def _random_regular(n: int, degree: int, generator: np.random.Generator) -> Edges:
    """Random pairing of half-edges; loops and repeats are shuffled with other pairs until none is left.

    A dense graph is the complement of a sparse one.
    """
    if degree > (n - 1) // 2:
        sparse = _random_regular(n, n - 1 - degree, generator)
        absent = ~np.eye(n, dtype=bool)
        absent[sparse[:, 0], sparse[:, 1]] = absent[sparse[:, 1], sparse[:, 0]] = False
        return _pairs(*np.nonzero(np.triu(absent)))
    ends = generator.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    for _ in range(1000):
        ends.sort(axis=1)
        _, first = np.unique(ends[:, 0] * n + ends[:, 1], return_index=True)
        bad = np.ones(len(ends), dtype=bool)
        bad[first] = False
        bad |= ends[:, 0] == ends[:, 1]
        if not bad.any():
            return ends
        helpers = generator.integers(len(ends), size=bad.sum() + 1)
        bad[helpers] = True
        ends[bad] = generator.permutation(ends[bad].ravel()).reshape(-1, 2)
    return np.empty((0, 2), np.int64)


def _geometric(n: int, radius: float, generator: np.random.Generator) -> Edges:
    from scipy.spatial import cKDTree  # slow to import, and needed here only

    points = cKDTree(generator.random((n, 2)))
    return np.asarray(points.query_pairs(radius, output_type="ndarray"), dtype=np.int64).reshape(-1, 2)


def _small_world(n: int, neighbours: int, p: float, generator: np.random.Generator) -> Edges:
    """Watts and Strogatz: a ring of near neighbours, each edge's far end redrawn with probability p."""
    near = np.tile(np.arange(n), neighbours // 2)
    far = (near + np.repeat(np.arange(1, neighbours // 2 + 1), n)) % n
    moved = np.flatnonzero(generator.random(near.size) < p)
    for _ in range(1000):
        far[moved] = generator.integers(n, size=moved.size)
        low, high = np.minimum(near, far), np.maximum(near, far)
        # kept edges come first, so that of two equal pairs the redrawn one is redrawn again
        order = np.concatenate([np.setdiff1d(np.arange(near.size), moved), moved])
        _, first = np.unique((low * n + high)[order], return_index=True)
        clash = np.ones(near.size, dtype=bool)
        clash[order[first]] = False
        clash |= near == far
        moved = np.flatnonzero(clash)
        if moved.size == 0:
            return _pairs(near, far)
    return np.empty((0, 2), np.int64)


def _squarest(n: int, given: Sizes) -> Sizes:
    if given:
        return {
            name: max(1, n // max(1, int(next(iter(given.values()))))) for name in ("rows", "columns")
        } | given
    side = next(s for s in range(math.isqrt(n), 0, -1) if n % s == 0)
    return {"rows": side, "columns": n // side}


def _at_least_one(*sizes: Number) -> str:
    return "" if min(sizes) >= 1 else "every size must be at least 1"


def _check_probability(n: int, p: float) -> str:
    return _at_least_one(n) or ("" if 0 <= p <= 1 else "the probability must lie in [0, 1]")


def _check_regular(n: int, degree: int) -> str:
    if n < 1 or not 0 <= degree < n:
        return "the degree must be at least 0 and below the number of nodes"
    return "nodes times degree must be even" if n * degree % 2 else ""


def _check_small_world(n: int, neighbours: int, p: float) -> str:
    if neighbours < 2 or neighbours % 2 or neighbours >= n:
        return "the number of nearest neighbours must be even, at least 2 and below the number of nodes"
    return _check_probability(n, p)


def _threshold(n: int) -> float:
    return math.log(max(n, 2)) / max(n, 2)


def _simple(build: Callable[[int], Edges], example: str) -> Family:
    return Family(("n",), build, _at_least_one, example)


def _box(example: str, *, wrap: bool) -> Family:
    build = functools.partial(_lattice, wrap=wrap)
    return Family(("rows", "columns"), build, _at_least_one, example, _squarest, lambda *s: math.prod(s))


GRAPHS: Mapping[str, Family] = {
    "path": _simple(_path, "path:5"),
    "cycle": _simple(_cycle, "cycle:8"),
    "star": _simple(_star, "star:5"),
    "complete": _simple(_complete, "complete:4"),
    "tree": _simple(_tree, "tree:15"),
    "exponential": _simple(_exponential, "exponential:16"),
    "grid": _box("grid:3x3", wrap=False),
    "torus": _box("torus:4x4", wrap=True),
    "hypercube": Family(
        ("dimension",),
        _hypercube,
        lambda dimension: "" if 0 <= dimension <= 24 else "the dimension must lie between 0 and 24",
        "hypercube:4",
        lambda n, given: {"dimension": n.bit_length() - 1},
        lambda dimension: 2**dimension,
    ),
    "barbell": Family(
        ("clique", "path"),
        _barbell,
        lambda clique, path: "" if clique >= 1 and path >= 0 else "the cliques do not fit",
        "barbell:5,2",
        lambda n, given: {
            "clique": (n - given.get("path", 0)) // 2,
            "path": n - 2 * given.get("clique", n // 2),
        },
        lambda clique, path: 2 * clique + path,
    ),
    "erdos-renyi": Family(
        ("n", "p"),
        _erdos_renyi,
        _check_probability,
        "erdos-renyi:50,0.1",
        lambda n, given: {"n": n, "p": min(1.0, 2 * _threshold(n))},
        random=True,
        advice=lambda n, p: f"raise the probability well above log(n)/n = {_threshold(n):.3g}",
    ),
    "random-regular": Family(
        ("n", "degree"),
        _random_regular,
        _check_regular,
        "random-regular:100,4",
        lambda n, given: {"n": n, "degree": min(4, n - 1)},
        random=True,
        advice=lambda n, degree: "take a degree of at least 3",
    ),
    "geometric": Family(
        ("n", "radius"),
        _geometric,
        lambda n, radius: _at_least_one(n) or ("" if radius > 0 else "the radius must be positive"),
        "geometric:50,0.3",
        lambda n, given: {"n": n, "radius": math.sqrt(2 * _threshold(n) / math.pi)},
        random=True,
        advice=lambda n, radius: (
            f"raise the radius well above sqrt(log(n)/(pi n)) = {math.sqrt(_threshold(n) / math.pi):.3g}"
        ),
    ),
    "small-world": Family(
        ("n", "neighbours", "p"),
        _small_world,
        _check_small_world,
        "small-world:50,4,0.1",
        lambda n, given: {"n": n, "neighbours": min(4, (n - 1) // 2 * 2), "p": 0.1},
        random=True,
        advice=lambda n, neighbours, p: "raise the number of nearest neighbours or lower the probability",
    ),
}

_REAL_SIZES = {"p", "radius"}


def _parse(text: str, family: str) -> tuple[Number, ...]:
    entry = GRAPHS[family]
    values: list[Number] = []
    for piece in text.replace("x", ",").split(","):
        try:
            values.append(float(piece))
        except ValueError:
            raise InputError(
                f"cannot read the size {piece!r} of the network '{family}:{text}':"
                f" write it like '{entry.example}'"
            ) from None
    return tuple(values)


def _complete_sizes(
    family: str, given: tuple[Number, ...], named: Mapping[str, Number], n_nodes: int | None
) -> tuple[Number, ...]:
    """Join sizes behind the colon, sizes by keyword and the number of nodes into one full tuple."""
    entry = GRAPHS[family]
    extra: tuple[Number, ...] = given[len(entry.sizes) :]
    if extra and family not in ("grid", "torus"):
        raise InputError(
            f"the network {family!r} takes {len(entry.sizes)} size(s), not {len(given)}:"
            f" write it like '{entry.example}'"
        )
    slots: Sizes = dict(zip(entry.sizes, given, strict=False))
    for name, value in named.items():
        if name not in entry.sizes:
            raise unknown_name(f"size of the network {family!r}", name, entry.sizes)
        if name in slots:
            raise InputError(f"the size {name!r} of the network {family!r} was given twice: give it once")
        slots[name] = value
    checked: list[tuple[str, Any]] = [*slots.items(), *(("side", side) for side in extra)]
    for name, value in checked:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise InputError(
                f"the size {name!r} of the network {family!r} must be a finite number, not {value!r}"
            )
        if name not in _REAL_SIZES and not float(value).is_integer():
            raise InputError(
                f"the size {name!r} of the network {family!r} must be a whole number, not {value!r}"
            )
    if family == "barbell" and "clique" in slots and n_nodes is None:
        slots.setdefault("path", 0)
    missing = [name for name in entry.sizes if name not in slots]
    if missing:
        n = slots.get("n") if n_nodes is None else n_nodes
        if n is None or n < 1:
            raise InputError(
                f"the network {family!r} needs its size {missing[0]!r}:"
                f" write it like '{entry.example}', or give n_nodes"
            )
        slots = entry.fill(int(n), slots) | slots
    full = [slots[name] for name in entry.sizes]
    return tuple(
        float(v) if name in _REAL_SIZES else int(v) for name, v in zip(entry.sizes, full, strict=True)
    ) + tuple(int(side) for side in extra)


def components(n: int, edges: Edges) -> tuple[int, NDArray[np.int32]]:
    """Return the number of pieces that n nodes make, and the piece of each, (n,)."""
    pattern = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    count, piece = connected_components(pattern, directed=False)
    return int(count), piece


def build_graph(
    name: str, n_nodes: int | None, seed: int | None, named: Mapping[str, Number]
) -> tuple[int, Edges, str]:
    """Build a graph from a family's name, with its sizes behind a colon or ``named``, or from ``n_nodes``.

    Return n, the edges (|E|, 2) (each pair once with the smaller end first, in lexicographic order), and the
    name with all its sizes. The ``seed`` of a random family is 0 where there is none.
    """
    family, _, text = name.strip().lower().replace("_", "-").partition(":")
    family = family.strip()
    if family not in GRAPHS:
        raise unknown_name("network", family, GRAPHS)
    entry = GRAPHS[family]
    sizes = _complete_sizes(family, _parse(text, family) if text.strip() else (), named, n_nodes)
    separator = "x" if family in ("grid", "torus") else ","
    full_name = f"{family}:{separator.join(f'{s:g}' if isinstance(s, float) else str(s) for s in sizes)}"
    wrong = entry.check(*sizes)
    if wrong:
        raise InputError(f"the network '{full_name}' does not exist: {wrong}")
    n = entry.count(*sizes)
    if n_nodes is not None and n != n_nodes:
        raise InputError(
            f"the network '{full_name}' has {n} nodes but n_nodes is {n_nodes}: change one so that they agree"
        )
    if not entry.random:
        return n, simple_edges(n, entry.build(*sizes)), full_name
    for attempt in range(RETRIES):
        edges = simple_edges(
            n, entry.build(*sizes, np.random.default_rng([0 if seed is None else seed, attempt]))
        )
        if components(n, edges)[0] == 1:
            return n, edges, full_name
    raise InputError(
        f"no connected graph among {RETRIES} draws of '{full_name}':"
        f" {entry.advice(*sizes)}, or take another seed"
    )


def simple_edges(n: int, edges: Edges) -> Edges:
    """Drop loops and repeats, put the smaller end first, sort."""
    low, high = edges.min(axis=1), edges.max(axis=1)
    keys = np.unique((low * n + high)[low < high])
    return np.column_stack([keys // n, keys % n]).astype(np.int64)
