"""Drawing an index with given probabilities in constant time, for schedules and for methods in rounds.

Alias tables by Walker's method in Vose's form: each of m columns of equal mass holds its own index below a
threshold and one other index, its alias, above. A draw picks a column, then a side. Masses are rounded to
integers that sum to exactly m full columns, and the table is built from those integers. No later step rounds,
so a row of weight 0 has threshold 0, is nobody's alias, and is never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import compiled, inlined, kernel
from adfs.errors import InputError
from adfs.schedule.philox import Domain, draw_pairs, philox

T = TypeVar("T", bound=np.generic)

_LOW = np.uint64(0xFFFFFFFF)
_1, _11, _32 = np.uint64(1), np.uint64(11), np.uint64(32)
_COIN, _SAMPLE = np.uint64(Domain.ROUND_COIN), np.uint64(Domain.ROUND_SAMPLE)
#: Bits of a threshold in a table of rows; the error of a row's probability is at most 2**-32 of the mean one.
_ROW_BITS = 32
#: Samples that a window of rounds draws together, few enough to stay in the fastest cache.
_WINDOW = 2048


def frozen(array: NDArray[T]) -> NDArray[T]:
    """Return a contiguous read-only array: the same one where it is read-only already, else a copy.

    Compiled loops rely on arrays that do not change, and numba compiles once more for writeable arrays.
    """
    array = np.ascontiguousarray(array)
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


@inlined
def draw_column(draw: np.uint64, columns: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Split a uniform draw into one of fewer than 2**32 columns and the position in it, without a division.

    They are the upper and the lower half of the 128-bit product draw × columns.
    """
    low = (draw & _LOW) * columns
    high = (draw >> _32) * columns + (low >> _32)
    return high >> _32, (high << _32) | (low & _LOW)


@inlined
def draw_sample(
    draw: np.uint64, packed: NDArray[np.uint64], begin: NDArray[np.int64], table: np.uint64
) -> np.int64:
    """Draw a row, an index into the flat rows, from one of the tables, which must not be empty.

    Table k is the entries of `packed` (see `AliasTables`) from ``begin[k]`` to ``begin[k + 1]``. The number
    of a table is unsigned, because numba tests signed indices for negative values.
    """
    first = np.uint64(begin[table])
    columns = np.uint64(begin[table + _1]) - first
    column, position = draw_column(draw, columns)
    entry = packed[first + column]
    chosen = column if (position >> _32) < (entry >> _32) else entry & _LOW
    return np.int64(first + chosen)


@compiled
def _integer_masses(weights: NDArray[np.float64], bits: int, mass: NDArray[np.int64]) -> bool:
    """Fill `mass` with integers of sum m · 2**bits, proportional to m weights; False if all of them are 0."""
    m = weights.shape[0]
    total = 0.0
    largest = 0
    for i in range(m):
        total += weights[i]
        if weights[i] > weights[largest]:
            largest = i
    if m == 0 or total <= 0.0:
        return False
    full_mass = np.int64(m) << bits
    extra = np.int64(0)
    running = 0.0
    before = np.int64(0)
    for i in range(m):
        # Differences of rounded running sums: they sum to the full mass, each has an error of about one unit
        # at most, and a weight of 0 gives 0. The running sum ends at `total`, bit for bit: the last ratio
        # is 1.
        running += weights[i]
        upto = np.int64(np.rint((running / total) * np.float64(full_mass)))
        mass[i] = upto - before
        before = upto
        # A positive weight is never rounded to 0; the largest mass pays for it.
        if mass[i] == 0 and weights[i] > 0.0:
            mass[i] = 1
            extra += 1
    mass[largest] -= extra
    return True


@compiled
def _vose(
    mass: NDArray[np.int64],
    bits: int,
    stack: NDArray[np.int32],
    threshold: NDArray[np.int64],
    alias: NDArray[np.int64],
) -> None:
    """Turn masses of sum m · 2**bits into thresholds below 2**bits and aliases; `mass` is overwritten."""
    m = mass.shape[0]
    full = np.int64(1) << bits
    small = 0  # the stack of columns below the mean grows from the front,
    large = m  # that of the others from the back
    for i in range(m - 1, -1, -1):
        if mass[i] < full:
            stack[small] = i
            small += 1
        else:
            large -= 1
            stack[large] = i
    # Each step completes one column below the mean with mass from one above. Such a column exists: the
    # remaining masses sum to exactly as many full columns as there are remaining columns.
    while small > 0:
        small -= 1
        low = stack[small]
        high = stack[large]
        threshold[low] = mass[low]
        alias[low] = high
        mass[high] -= full - mass[low]
        if mass[high] < full:
            large += 1
            stack[small] = high
            small += 1
    for k in range(large, m):
        # A full column is its own alias, so its threshold does not matter (2**bits would not fit).
        threshold[stack[k]] = 0
        alias[stack[k]] = stack[k]


@compiled
def _build_rows(
    weights: NDArray[np.float64], node_starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return one table per node, packed as in `AliasTables`, and which nodes have a positive weight."""
    packed = np.zeros(weights.shape[0], np.uint64)
    drawable = np.empty(node_starts.shape[0] - 1, np.bool_)
    longest = 0
    for k in range(drawable.shape[0]):
        longest = max(longest, node_starts[k + 1] - node_starts[k])
    mass = np.empty(longest, np.int64)
    threshold = np.empty(longest, np.int64)
    alias = np.empty(longest, np.int64)
    stack = np.empty(longest, np.int32)
    for k in range(drawable.shape[0]):
        first, m = node_starts[k], node_starts[k + 1] - node_starts[k]
        drawable[k] = _integer_masses(weights[first : first + m], _ROW_BITS, mass[:m])
        if drawable[k]:
            _vose(mass[:m], _ROW_BITS, stack[:m], threshold[:m], alias[:m])
            for i in range(m):
                packed[first + i] = (np.uint64(threshold[i]) << _32) | np.uint64(alias[i])
    return packed, drawable


@compiled
def build_actor_table(probability: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Build the alias table over all actors, with thresholds as fine as 64-bit integers allow.

    Row by row a column's threshold in units of 2**-64, and its alias: (n_actors, 2) uint64.
    """
    m = probability.shape[0]
    # The masses sum to m · 2**bits, which must stay below 2**63.
    bits = 63
    while m >> (63 - bits) > 0:
        bits -= 1
    mass = np.empty(m, np.int64)
    _integer_masses(probability, bits, mass)
    threshold = np.empty(m, np.int64)
    alias = np.empty(m, np.int64)
    _vose(mass, bits, np.empty(m, np.int32), threshold, alias)
    table = np.empty((m, 2), np.uint64)
    for i in range(m):
        table[i, 0] = np.uint64(threshold[i]) << np.uint64(64 - bits)
        table[i, 1] = np.uint64(alias[i])
    return table


@dataclass(frozen=True, eq=False)
class AliasTables:
    """One alias table per node, over the rows that a process holds: 8 bytes per row.

    Parameters
    ----------
    packed : (N,) uint64
        Upper half: the column's threshold in units of 2**-32. Lower half: its alias, counted from the
        node's first row.
    node_starts : (k+1,) int64
        The k-th node here holds the rows ``node_starts[k]:node_starts[k+1]``.
    node_ids : (k,) int64
        Which nodes of the network these are.
    drawable : (k,) bool
        Whether a node has a row of positive weight.

    Examples
    --------
    >>> AliasTables.build([1.0, 0.0, 3.0, 0.0], [0, 3, 4]).drawable
    array([ True, False])
    """

    packed: NDArray[np.uint64]
    node_starts: NDArray[np.int64]
    node_ids: NDArray[np.int64]
    drawable: NDArray[np.bool_]

    @classmethod
    def build(
        cls, weights: ArrayLike, node_starts: ArrayLike, *, node_ids: ArrayLike | None = None
    ) -> AliasTables:
        """Build the tables from weights, which need not sum to anything in particular.

        Parameters
        ----------
        weights : (N,) array_like of float
            Not negative. Row j of node i is drawn with probability w_ij / Σ_j w_ij, and never where w_ij = 0.
        node_starts : (k+1,) array_like of int
            Where each node's rows start and end.
        node_ids : (k,) array_like of int, optional
            Which nodes these are, where they are not 0, …, k−1.
        """
        # The compiled builder trusts these arrays, so that every defect is refused here.
        row_weights = np.ascontiguousarray(weights, dtype=np.float64)
        bounds = np.ascontiguousarray(node_starts, dtype=np.int64)
        if row_weights.ndim != 1 or bounds.ndim != 1 or bounds.size == 0:
            raise InputError("weights and node_starts must be vectors, and node_starts must not be empty")
        if bounds[0] != 0 or bounds[-1] != row_weights.size or (np.diff(bounds) < 0).any():
            raise InputError(f"node_starts must rise from 0 to the number of rows, {row_weights.size}")
        if row_weights.size >= 2**31:
            raise InputError(f"a process can draw from fewer than 2**31 rows, but has {row_weights.size}")
        # The minimum and the maximum are nan where an entry is, and need no mask as long as the rows.
        if row_weights.size and not (row_weights.min() >= 0.0 and row_weights.max() < np.inf):
            raise InputError("row weights must be finite and not negative")
        k = bounds.size - 1
        ids = np.arange(k) if node_ids is None else np.ascontiguousarray(node_ids, dtype=np.int64)
        if ids.shape != (k,) or np.unique(ids).size != k or (k and ids.min() < 0):
            raise InputError(f"node_ids must be {k} different node numbers, one for each pair of node_starts")
        packed, drawable = _build_rows(row_weights, bounds)
        packed.flags.writeable = drawable.flags.writeable = False  # new arrays, which `frozen` would copy
        return cls(packed, frozen(bounds), frozen(ids), drawable)


# --------------------------------------------------------------------------- methods in rounds


@compiled
def round_coin(key: np.uint64, t: np.uint64) -> float:
    """Return the uniform number in [0, 1) that all nodes share in round t."""
    w0, w1, _, _ = philox(t & _LOW, t >> _32, np.uint64(0), _COIN, key & _LOW, key >> _32)
    return float(((w0 << _32) | w1) >> _11) * 2.0**-53


class RoundWindow(NamedTuple):
    """The draws of some successive rounds, and the tables they come from; see `draw_rounds`.

    Attributes
    ----------
    key : uint64
        The seed.
    p_gossip : float
        The probability of a round of gossip, which draws no samples.
    packed, node_starts : ndarray
        The alias tables of the block's nodes.
    places, names : (a,) int64 and uint64
        The nodes that can draw: their places in the process's block, and their numbers in the network.
    bounds : (2,) int64
        The first round of the window, and the first one after it.
    gossips : (w,) bool
        Which of the rounds are gossip.
    starts : (w + 1,) int64
        The draws of the r-th round are number ``starts[r]`` … ``starts[r + 1] − 1``.
    nodes, actors, samples : (w·a,) int32, int32 and int64
        For each draw, the node's place in the block, its number in the network, and the row.
    counters, bits : (w·(a or 1),) uint64
        Working memory.
    """

    key: np.uint64
    p_gossip: float
    packed: NDArray[np.uint64]
    node_starts: NDArray[np.int64]
    places: NDArray[np.int64]
    names: NDArray[np.uint64]
    bounds: NDArray[np.int64]
    gossips: NDArray[np.bool_]
    starts: NDArray[np.int64]
    nodes: NDArray[np.int32]
    actors: NDArray[np.int32]
    samples: NDArray[np.int64]
    counters: NDArray[np.uint64]
    bits: NDArray[np.uint64]


@kernel
def draw_rounds(window: RoundWindow, first: int) -> None:
    """Draw the rounds from ``first`` on, as many as the window holds."""
    index, name, rounds = window.counters, window.bits, window.gossips.size
    window.bounds[0] = first
    window.bounds[1] = first + rounds
    # One coin per round decides for all nodes whether it is gossip.
    if window.p_gossip > 0.0:
        for r in range(rounds):
            index[r] = np.uint64(first + r)
            name[r] = np.uint64(0)
        draw_pairs(rounds, _COIN, window.key, index, name)
        for r in range(rounds):
            window.gossips[r] = float(index[r] >> _11) * 2.0**-53 < window.p_gossip
    # In every other round each node draws a sample, from a counter of the round and the node alone.
    count = 0
    for r in range(rounds):
        window.starts[r] = count
        if not window.gossips[r]:
            for k in range(window.places.size):
                index[count] = np.uint64(first + r)
                name[count] = window.names[k] << _32
                window.nodes[count] = window.places[k]
                window.actors[count] = window.names[k]
                count += 1
    window.starts[rounds] = count
    draw_pairs(count, _SAMPLE, window.key, index, name)
    for e in range(count):
        window.samples[e] = draw_sample(
            index[e], window.packed, window.node_starts, np.uint64(window.nodes[e])
        )


def round_window(seed: int, tables: AliasTables, p_gossip: float = 0.0) -> RoundWindow:
    """Return a window for rounds of about two thousand samples, to be filled by `draw_rounds`.

    The draws of round t are a function of (seed, t) and of (seed, node, t) alone.

    Parameters
    ----------
    seed : int
    tables : AliasTables
        The tables of the nodes that a process holds.
    p_gossip : float
        The probability of a round of gossip.
    """
    # Nodes without a positive weight never draw.
    places = np.flatnonzero(tables.drawable)
    rounds = max(1, _WINDOW // max(1, places.size))
    draws = rounds * places.size
    return RoundWindow(
        key=np.uint64(seed),
        p_gossip=float(p_gossip),
        packed=tables.packed,
        node_starts=tables.node_starts,
        places=places,
        names=tables.node_ids[places].astype(np.uint64),
        bounds=np.zeros(2, dtype=np.int64),
        gossips=np.zeros(rounds, dtype=np.bool_),
        starts=np.zeros(rounds + 1, dtype=np.int64),
        nodes=np.zeros(draws, dtype=np.int32),
        actors=np.zeros(draws, dtype=np.int32),
        samples=np.zeros(draws, dtype=np.int64),
        counters=np.zeros(max(draws, rounds), dtype=np.uint64),
        bits=np.zeros(max(draws, rounds), dtype=np.uint64),
    )
