"""Random bits that depend on a seed and a counter alone, and drawing an index with given probabilities.

A schedule is the same for every process because draw number t is a function of (seed, t) alone. The bits are
those of Philox4x32-10 by Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011):
ten rounds of two 32-bit multiplications on a counter of four words, under a key of two. The key is the seed.
The last word of the counter holds the *domain*, the purpose of the bits, so that two purposes never share a
bit.

Alias tables by Walker's method in Vose's form draw an index in constant time: each of m columns of equal mass
holds its own index below a threshold and one other index, its alias, above. A draw picks a column, then a
side. Masses are rounded to integers that sum to exactly m full columns, and the table is built from those
integers. No later step rounds, so a row of weight 0 has threshold 0, is nobody's alias, and is never drawn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import compiled, inlined, kernel
from adfs.errors import InputError

T = TypeVar("T", bound=np.generic)


# --------------------------------------------------------------------------- random bits


class Domain(IntEnum):
    """The purposes of random bits, in the top byte of the counter's last word; a new one takes a new number.

    The comments give the four words of each domain's counters.
    """

    IID_EVENT = 1 << 24  # (t low, t high, 0, domain)
    POISSON_COUNT = 2 << 24  # events in a cell of a clock: (cell low, cell high, actor, domain)
    POISSON_EVENT = 3 << 24  # event k of a cell: (cell low, cell high, actor, domain | k)
    ROUND_COIN = 4 << 24  # the coin that all nodes share in a round: (t low, t high, 0, domain)
    ROUND_SAMPLE = 5 << 24  # the sample of a node in a round: (t low, t high, node, domain)
    COMPUTATION_TIME = 6 << 24  # of a node's k-th computation: (k low, k high, node, domain | attempt)
    MESSAGE_TIME = 7 << 24  # of an edge's k-th pair of messages: (k low, k high, edge, domain)
    LOST_EXCHANGE = 8 << 24  # whether an exchange fails: (its time's bits low, high, actor, domain)


_LOW = np.uint64(0xFFFFFFFF)
_1, _32 = np.uint64(1), np.uint64(32)
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)

Word = np.uint64
Words = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


def _weyl(increment: int) -> tuple[np.uint64, ...]:
    """Return the multiples of a key's increment, one per round of the generator."""
    return tuple(np.uint64(increment * k & 0xFFFFFFFF) for k in range(10))


# The two increments of the paper's key schedule.
_K0 = _weyl(0x9E3779B9)
_K1 = _weyl(0xBB67AE85)


@inlined
def _round(c0: Word, c1: Word, c2: Word, c3: Word, k0: Word, k1: Word) -> Words:
    # Words are 64-bit integers whose upper half is zero: LLVM then uses the widening 32-bit multiplication,
    # of which a vector register does several at once.
    p0 = _MULTIPLIER_0 * c0
    p1 = _MULTIPLIER_1 * c2
    return (p1 >> _32) ^ c1 ^ (k0 & _LOW), p1 & _LOW, (p0 >> _32) ^ c3 ^ (k1 & _LOW), p0 & _LOW


@inlined
def philox(c0: Word, c1: Word, c2: Word, c3: Word, k0: Word, k1: Word) -> Words:
    """Return the four words of one counter (c0 to c3) under one key (k0, k1), each below 2**32."""
    # Written out, not looped: a loop inside would keep LLVM from vectorising the caller's.
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[1], k1 + _K1[1])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[2], k1 + _K1[2])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[3], k1 + _K1[3])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[4], k1 + _K1[4])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[5], k1 + _K1[5])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[6], k1 + _K1[6])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[7], k1 + _K1[7])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _K0[8], k1 + _K1[8])
    return _round(c0, c1, c2, c3, k0 + _K0[9], k1 + _K1[9])


@kernel
def draw_pairs(
    count: int, domain: Word, key: Word, index: NDArray[np.uint64], name: NDArray[np.uint64]
) -> None:
    """Draw 2 × 64 bits for each of `count` counters, in place.

    `key` is the seed. On entry `index` holds the first two words of each counter, low half first; `name`
    holds the third word in its upper half and the number that is added to the domain in its lower half. On
    exit they hold the first and the second draw.
    """
    # In place, because LLVM vectorises a loop over few arrays only: it must test that they do not overlap.
    k0 = key & _LOW
    k1 = key >> _32
    for i in range(count):
        w0, w1, w2, w3 = philox(
            index[i] & _LOW, index[i] >> _32, name[i] >> _32, (domain + (name[i] & _LOW)) & _LOW, k0, k1
        )
        index[i] = (w0 << _32) | w1
        name[i] = (w2 << _32) | w3


def check_seed(seed: object) -> int:
    """Return a seed, an integer with 0 ≤ seed < 2**64, as an int; refuse anything else."""
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**64:
        return int(seed)
    raise InputError(f"seed must be an integer with 0 <= seed < 2**64, but is {seed!r}")


def stage_seed(seed: int, stage: int) -> int:
    """Return the seed of a stage of a run: a hash of both, and for stage 0 the run's own.

    Examples
    --------
    >>> stage_seed(7, 0), stage_seed(7, 1) == stage_seed(8, 0)
    (7, False)
    """
    if stage == 0:
        return seed
    # The word in the text stays as it was: it decides the bits of recorded runs.
    return int.from_bytes(hashlib.sha256(f"seed {int(seed)}, phase {stage}".encode()).digest()[:8], "little")


# --------------------------------------------------------------------------- alias tables


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
    # A threshold is half of an entry: the error of a row's probability is at most 2**-32 of the mean one.
    bits = 32
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
        drawable[k] = _integer_masses(weights[first : first + m], bits, mass[:m])
        if drawable[k]:
            _vose(mass[:m], bits, stack[:m], threshold[:m], alias[:m])
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
