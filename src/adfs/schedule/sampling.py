"""Drawing an index with given probabilities in constant time: alias tables in integer arithmetic.

Walker's method in Vose's form: of m columns of equal mass each holds its own index below a threshold and
one other index, its alias, above. A draw picks a column, then a side. Masses are rounded to integers that
sum to exactly m full columns, and the table is built from those integers. Nothing is rounded afterwards, so
a row of weight 0 has threshold 0, is nobody's alias, and is never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import compiled, inlined
from adfs.errors import InputError

T = TypeVar("T", bound=np.generic)

_LOW = np.uint64(0xFFFFFFFF)
_1, _32 = np.uint64(1), np.uint64(32)
#: Bits of a threshold in a table of rows; a row's probability is off by at most 2**-32 of the mean one.
_ROW_BITS = 32
_MAX_ROWS = 2**31 - 1


def frozen(array: NDArray[T]) -> NDArray[T]:
    """Return a contiguous array that cannot be written to: a copy, unless it is one.

    Compiled loops trust what they were given at the start; and numba compiles again for arrays that can be
    written to.
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

    Table k is the entries of `packed` (see `AliasTables`) from ``begin[k]`` to ``begin[k + 1]``. Its number
    is unsigned: an index that cannot be negative is not checked for it.
    """
    first = np.uint64(begin[table])
    columns = np.uint64(begin[table + _1]) - first
    column, position = draw_column(draw, columns)
    entry = packed[first + column]
    chosen = column if (position >> _32) < (entry >> _32) else entry & _LOW
    return np.int64(first + chosen)


@compiled
def _integer_masses(weights: NDArray[np.float64], bits: int, mass: NDArray[np.int64]) -> bool:
    """Fill `mass` with integers in proportion to m weights that sum to m · 2**bits; False if all are 0."""
    m = weights.shape[0]
    total = 0.0
    largest = 0
    for i in range(m):
        total += weights[i]
        if weights[i] > weights[largest]:
            largest = i
    if m == 0 or total <= 0.0:
        return False
    whole = np.int64(m) << bits
    extra = np.int64(0)
    running = 0.0
    before = np.int64(0)
    for i in range(m):
        # Differences of rounded running sums: they sum to the whole, none is off by more than about one
        # unit, and a weight of 0 gives 0. The running sum ends at `total`, bit for bit, so the last ratio
        # is 1.
        running += weights[i]
        upto = np.int64(np.rint((running / total) * np.float64(whole)))
        mass[i] = upto - before
        before = upto
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
    """Turn masses that sum to m · 2**bits into thresholds below 2**bits and aliases; `mass` is used up."""
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
    while small > 0:
        small -= 1
        low = stack[small]
        high = stack[large]  # exists: the masses left sum to exactly as many full columns as there are left
        threshold[low] = mass[low]
        alias[low] = high
        mass[high] -= full - mass[low]
        if mass[high] < full:
            large += 1
            stack[small] = high
            small += 1
    for k in range(large, m):
        # A full column: its own alias, so the threshold (2**bits would not fit) does not matter.
        threshold[stack[k]] = 0
        alias[stack[k]] = stack[k]


@compiled
def _build_rows(
    weights: NDArray[np.float64],
    node_starts: NDArray[np.int64],
    packed: NDArray[np.uint64],
    drawable: NDArray[np.bool_],
) -> None:
    longest = 0
    for k in range(node_starts.shape[0] - 1):
        longest = max(longest, node_starts[k + 1] - node_starts[k])
    mass = np.empty(longest, np.int64)
    threshold = np.empty(longest, np.int64)
    alias = np.empty(longest, np.int64)
    stack = np.empty(longest, np.int32)
    for k in range(node_starts.shape[0] - 1):
        first, m = node_starts[k], node_starts[k + 1] - node_starts[k]
        drawable[k] = _integer_masses(weights[first : first + m], _ROW_BITS, mass[:m])
        if drawable[k]:
            _vose(mass[:m], _ROW_BITS, stack[:m], threshold[:m], alias[:m])
            for i in range(m):
                packed[first + i] = (np.uint64(threshold[i]) << _32) | np.uint64(alias[i])
        else:
            packed[first : first + m] = 0


@compiled
def _build_actors(weights: NDArray[np.float64], bits: int, table: NDArray[np.uint64]) -> None:
    m = weights.shape[0]
    mass = np.empty(m, np.int64)
    _integer_masses(weights, bits, mass)
    threshold = np.empty(m, np.int64)
    alias = np.empty(m, np.int64)
    _vose(mass, bits, np.empty(m, np.int32), threshold, alias)
    for i in range(m):
        table[i, 0] = np.uint64(threshold[i]) << np.uint64(64 - bits)
        table[i, 1] = np.uint64(alias[i])


@dataclass(frozen=True, eq=False)
class AliasTables:
    """One alias table per node, over the rows that a process holds: 8 bytes per row.

    Parameters
    ----------
    packed : (N,) uint64
        Upper half: the column's threshold in units of 2**-32. Lower half: its alias, counted from the
        node's first row.
    offsets : (k+1,) int64
        The k-th node here holds the rows ``offsets[k]:offsets[k+1]``.
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
        offsets : (k+1,) array_like of int
            Where each node's rows start and end.
        node_ids : (k,) array_like of int, optional
            Which nodes these are, where they are not 0, …, k−1.
        """
        row_weights = np.ascontiguousarray(weights, dtype=np.float64)
        bounds = np.ascontiguousarray(node_starts, dtype=np.int64)
        if row_weights.ndim != 1 or bounds.ndim != 1 or bounds.size == 0:
            raise InputError("weights and offsets must be one-dimensional, and offsets must not be empty")
        if bounds[0] != 0 or bounds[-1] != row_weights.size or (np.diff(bounds) < 0).any():
            raise InputError(f"node_starts must rise from 0 to the number of rows, {row_weights.size}")
        if row_weights.size > _MAX_ROWS:
            raise InputError(
                f"a process can draw from at most {_MAX_ROWS} rows, but was given {row_weights.size}"
            )
        # min and max also catch nan, and need no mask as long as the rows.
        if row_weights.size and not (row_weights.min() >= 0.0 and row_weights.max() < np.inf):
            raise InputError("row weights must be finite and not negative")
        k = bounds.size - 1
        ids = np.arange(k) if node_ids is None else np.ascontiguousarray(node_ids, dtype=np.int64)
        if ids.shape != (k,) or np.unique(ids).size != k or (k and ids.min() < 0):
            raise InputError(f"node_ids must be {k} different node numbers, one for each pair of node_starts")
        packed = np.empty(row_weights.size, dtype=np.uint64)
        drawable = np.empty(k, dtype=np.bool_)
        _build_rows(row_weights, bounds, packed, drawable)
        packed.flags.writeable = drawable.flags.writeable = False  # our own: no need of a copy
        return cls(packed, frozen(bounds), frozen(ids), drawable)


def build_actor_table(probability: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Build the alias table over all actors, with thresholds as fine as 64-bit integers allow.

    Row by row a column's threshold in units of 2**-64, and its alias: (n_actors, 2) uint64.
    """
    # The masses sum to n_actors · 2**bits, which must stay below 2**63.
    bits = 63 - int(probability.size).bit_length()
    table = np.empty((probability.size, 2), dtype=np.uint64)
    _build_actors(np.ascontiguousarray(probability, dtype=np.float64), bits, table)
    return table
