"""Graphs by name: a small registry of families, each a function from sizes to an edge array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from adfs.errors import InputError, unknown_name

Edges = NDArray[np.int64]
Number = int | float
Sizes = dict[str, Number]
#: draws of a random graph until one is connected
RETRIES = 100


# The families. Each function returns edges in any order and direction.


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
    # Link each node to the next one along every axis; without `wrap` the last one has none.
    index = np.arange(math.prod(sides)).reshape(sides)
    parts = []
    for axis, side in enumerate(sides):
        following = np.roll(index, -1, axis)
        stop = side if wrap else side - 1
        parts.append(_pairs(index.take(range(stop), axis), following.take(range(stop), axis)))
    return np.concatenate(parts)


def _hypercube(dimension: int) -> Edges:
    # Two nodes are linked when their numbers differ in one bit.
    nodes = np.arange(2**dimension)
    return _pairs(np.tile(nodes, dimension), nodes ^ (1 << np.arange(dimension))[:, None])


def _tree(n: int) -> Edges:
    child = np.arange(1, n)
    return _pairs((child - 1) // 2, child)


def _barbell(clique: int, path: int) -> Edges:
    # The path includes one node of each clique.
    left = _complete(clique)
    bar = _path(path + 2) + clique - 1
    return np.concatenate([left, bar, left + clique + path])


def _exponential(n: int) -> Edges:
    # Node i is linked to i ± 2^k, for all powers below n.
    nodes, powers = np.arange(n), 1 << np.arange((n - 1).bit_length())
    return _pairs(np.tile(nodes, powers.size), (nodes + powers[:, None]) % n)


def _erdos_renyi(n: int, p: float, generator: np.random.Generator) -> Edges:
    """Each pair with probability p: a binomial number of edges, then that many distinct pairs."""
    pairs = n * (n - 1) // 2
    chosen = generator.choice(pairs, size=generator.binomial(pairs, p), replace=False, shuffle=False)
    # Pair number t = j(j−1)/2 + i has the ends i < j. Solve for j; the rounded root can be off by one.
    larger = ((1 + np.sqrt(8.0 * chosen + 1.0)) // 2).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > chosen
    larger += larger * (larger + 1) // 2 <= chosen
    return _pairs(chosen - larger * (larger - 1) // 2, larger)


def _random_regular(n: int, degree: int, generator: np.random.Generator) -> Edges:
    """Random pairing of half-edges; loops and repeats are shuffled with other pairs until none is left.

    A dense graph is the complement of a sparse one.
    """
    if degree > (n - 1) // 2:
        # The pairing of a dense graph would hardly ever succeed.
        sparse = _random_regular(n, n - 1 - degree, generator)
        absent = ~np.eye(n, dtype=bool)
        absent[sparse[:, 0], sparse[:, 1]] = absent[sparse[:, 1], sparse[:, 0]] = False
        return _pairs(*np.nonzero(np.triu(absent)))
    ends = generator.permutation(np.repeat(np.arange(n), degree)).reshape(-1, 2)
    for _ in range(1000):
        # Find the loops, and all but the first of equal pairs.
        ends.sort(axis=1)
        _, first = np.unique(ends[:, 0] * n + ends[:, 1], return_index=True)
        bad = np.ones(len(ends), dtype=bool)
        bad[first] = False
        bad |= ends[:, 0] == ends[:, 1]
        if not bad.any():
            return ends
        # Shuffle their ends together with those of as many random pairs.
        helpers = generator.integers(len(ends), size=bad.sum() + 1)
        bad[helpers] = True
        ends[bad] = generator.permutation(ends[bad].ravel()).reshape(-1, 2)
    return np.empty((0, 2), np.int64)


def _geometric(n: int, radius: float, generator: np.random.Generator) -> Edges:
    # Slow to import, and needed here only.
    from scipy.spatial import cKDTree

    points = cKDTree(generator.random((n, 2)))
    return np.asarray(points.query_pairs(radius, output_type="ndarray"), dtype=np.int64).reshape(-1, 2)


def _small_world(n: int, neighbours: int, p: float, generator: np.random.Generator) -> Edges:
    """Watts and Strogatz: a ring of near neighbours, each edge's far end redrawn with probability p."""
    # Every node is linked to the nearest nodes after it on a ring.
    near = np.tile(np.arange(n), neighbours // 2)
    far = (near + np.repeat(np.arange(1, neighbours // 2 + 1), n)) % n
    moved = np.flatnonzero(generator.random(near.size) < p)
    for _ in range(1000):
        # Draw the far ends of these edges, and again where two edges coincide or an edge is a loop.
        far[moved] = generator.integers(n, size=moved.size)
        low, high = np.minimum(near, far), np.maximum(near, far)
        # Kept edges come first, so that of two equal pairs the redrawn one is drawn again.
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
    """Return the sides of the grid of n nodes that is closest to a square, or its columns for given rows."""
    # The largest divisor of n that is not above its square root.
    rows = int(given.get("rows", 0)) or next(s for s in range(math.isqrt(n), 0, -1) if n % s == 0)
    return {"rows": rows, "columns": max(1, n // max(1, rows))}


# Checks of sizes: the reason for which a graph does not exist, or "".


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
    """Return log(n)/n, the edge probability above which random graphs are connected."""
    return math.log(max(n, 2)) / max(n, 2)


# The registry.


@dataclass(frozen=True)
class Family:
    """One kind of graph.

    ``build`` makes the edges from the sizes (and a generator, when ``random``); loops and repeated pairs are
    removed afterwards. ``example`` is a full name. ``sizes`` are the names of its sizes, in the order in
    which they are written behind the colon; with ``more_sizes`` the last one can be repeated. ``check``
    returns the reason for which the sizes are impossible, or "". ``fill`` computes sizes from a number of
    nodes and the sizes that were given, ``count`` computes the number of nodes. ``advice`` is for the error
    message when no connected graph was drawn.
    """

    build: Callable[..., Edges]
    example: str
    sizes: tuple[str, ...] = ("n",)
    check: Callable[..., str] = _at_least_one
    fill: Callable[[int, Sizes], Sizes] = lambda n, given: {"n": n}
    count: Callable[..., int] = lambda n, *others: n
    random: bool = False
    more_sizes: bool = False
    advice: str = ""


_grid = functools.partial(
    Family,
    sizes=("rows", "columns"),
    fill=_squarest,
    count=lambda *sides: math.prod(sides),
    more_sizes=True,
)

GRAPHS: Mapping[str, Family] = {
    "path": Family(_path, "path:5"),
    "cycle": Family(_cycle, "cycle:8"),
    "star": Family(_star, "star:5"),
    "complete": Family(_complete, "complete:4"),
    "tree": Family(_tree, "tree:15"),
    "exponential": Family(_exponential, "exponential:16"),
    "grid": _grid(functools.partial(_lattice, wrap=False), "grid:3x3"),
    "torus": _grid(functools.partial(_lattice, wrap=True), "torus:4x4"),
    "hypercube": Family(
        _hypercube,
        "hypercube:4",
        ("dimension",),
        lambda dimension: "" if 0 <= dimension <= 24 else "the dimension must lie between 0 and 24",
        lambda n, given: {"dimension": n.bit_length() - 1},
        lambda dimension: 2**dimension,
    ),
    "barbell": Family(
        _barbell,
        "barbell:5,2",
        ("clique", "path"),
        lambda clique, path: "" if clique >= 1 and path >= 0 else "the cliques do not fit",
        lambda n, given: {
            "clique": (n - given.get("path", 0)) // 2,
            "path": n - 2 * given.get("clique", n // 2),
        },
        lambda clique, path: 2 * clique + path,
    ),
    "erdos-renyi": Family(
        _erdos_renyi,
        "erdos-renyi:50,0.1",
        ("n", "p"),
        _check_probability,
        lambda n, given: {"n": n, "p": min(1.0, 2 * _threshold(n))},
        random=True,
        advice="raise the probability well above log(n)/n",
    ),
    "random-regular": Family(
        _random_regular,
        "random-regular:100,4",
        ("n", "degree"),
        _check_regular,
        lambda n, given: {"n": n, "degree": min(4, n - 1)},
        random=True,
        advice="take a degree of at least 3",
    ),
    "geometric": Family(
        _geometric,
        "geometric:50,0.3",
        ("n", "radius"),
        lambda n, radius: (
            _at_least_one(n) or ("" if 0 < radius < math.inf else "the radius must be positive and finite")
        ),
        lambda n, given: {"n": n, "radius": math.sqrt(2 * _threshold(n) / math.pi)},
        random=True,
        advice="raise the radius well above sqrt(log(n)/(pi n))",
    ),
    "small-world": Family(
        _small_world,
        "small-world:50,4,0.1",
        ("n", "neighbours", "p"),
        _check_small_world,
        lambda n, given: {"n": n, "neighbours": min(4, (n - 1) // 2 * 2), "p": 0.1},
        random=True,
        advice="raise the number of nearest neighbours or lower the probability",
    ),
}


def _read_sizes(family: str, text: str, n_nodes: int | None) -> tuple[Number, ...]:
    """Read the sizes behind a colon, and compute those that were not given from the number of nodes."""
    entry = GRAPHS[family]
    pieces = text.replace("x", ",").split(",") if text.strip() else []
    if len(pieces) > len(entry.sizes) and not entry.more_sizes:
        raise InputError(
            f"the network {family!r} takes {len(entry.sizes)} size(s), not {len(pieces)}:"
            f" write it like '{entry.example}'"
        )
    values: list[Number] = []
    for position, piece in enumerate(pieces):
        try:
            value = float(piece)
        except ValueError:
            raise InputError(
                f"cannot read the size {piece!r} of the network '{family}:{text}':"
                f" write it like '{entry.example}'"
            ) from None
        # Probabilities and radii are real numbers, all other sizes are whole.
        name = entry.sizes[min(position, len(entry.sizes) - 1)]
        real = name in ("p", "radius")
        if not (real or value.is_integer()):
            raise InputError(
                f"the size {name!r} of the network {family!r} must be a whole number, not {value!r}"
            )
        values.append(value if real else int(value))
    given: Sizes = dict(zip(entry.sizes, values, strict=False))
    missing = entry.sizes[len(values) :]
    if not missing:
        return tuple(values)
    n = given.get("n") if n_nodes is None else n_nodes
    if n is None and family == "barbell" and given:
        return (*values, 0)  # two cliques without a path between them
    if n is None or n < 1:
        raise InputError(
            f"the network {family!r} needs its size {missing[0]!r}:"
            f" write it like '{entry.example}', or give n_nodes"
        )
    filled = entry.fill(int(n), given)
    return (*values, *(filled[name] for name in missing))


def components(n: int, edges: Edges) -> tuple[int, NDArray[np.int32]]:
    """Return the number of connected components, and the component of each node, (n,)."""
    pattern = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    count, component = connected_components(pattern, directed=False)
    return int(count), component


def build_graph(name: str, n_nodes: int | None, seed: int | None) -> tuple[int, Edges, str]:
    """Build a graph from a family's name, with its sizes behind a colon or from ``n_nodes``.

    Return n, the edges (|E|, 2) (each pair once with the smaller end first, in lexicographic order), and the
    name with all its sizes. The ``seed`` of a random family is 0 where there is none.
    """
    family, _, text = name.strip().lower().replace("_", "-").partition(":")
    family = family.strip()
    if family not in GRAPHS:
        raise unknown_name("network", family, GRAPHS)
    entry = GRAPHS[family]
    sizes = _read_sizes(family, text, n_nodes)
    separator = "x" if entry.more_sizes else ","
    full_name = f"{family}:{separator.join(f'{s:g}' if isinstance(s, float) else str(s) for s in sizes)}"
    # Refuse sizes without a graph, and a number of nodes that contradicts them.
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
    # A draw that is not connected is drawn again, from the next generator of the seed.
    for attempt in range(RETRIES):
        generator = np.random.default_rng([0 if seed is None else seed, attempt])
        edges = simple_edges(n, entry.build(*sizes, generator))
        if components(n, edges)[0] == 1:
            return n, edges, full_name
    raise InputError(
        f"no connected graph among {RETRIES} draws of '{full_name}': {entry.advice}, or take another seed"
    )


def simple_edges(n: int, edges: Edges) -> Edges:
    """Drop loops and repeats, put the smaller end first, sort."""
    # One integer per pair, whose order is that of the pairs.
    low, high = edges.min(axis=1), edges.max(axis=1)
    keys = np.unique((low * n + high)[low < high])
    return np.column_stack([keys // n, keys % n]).astype(np.int64)
