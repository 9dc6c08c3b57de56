"""Draws for methods that go in rounds: a coin that all nodes share, and a sample for each node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled
from adfs.schedule.philox import DOMAIN_ROUND_COIN, DOMAIN_ROUND_SAMPLE, philox, seed_key
from adfs.schedule.sampling import AliasTables, draw_sample

__all__ = ["RoundDraws", "round_coin"]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_COIN = np.uint64(DOMAIN_ROUND_COIN)
_SAMPLE = np.uint64(DOMAIN_ROUND_SAMPLE)


@compiled
def round_coin(key: np.uint64, t: np.uint64) -> float:
    """Return the number in [0, 1) that all nodes share in round t, for compiled code."""
    w0, w1, _, _ = philox(t & _LOW, t >> _32, np.uint64(0), _COIN, key & _LOW, key >> _32)
    return float(((w0 << _32) | w1) >> np.uint64(11)) * 2.0**-53


@compiled
def _samples(
    key: np.uint64,
    t: np.uint64,
    node_ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    drawable: NDArray[np.bool_],
    packed: NDArray[np.uint64],
    out: NDArray[np.int64],
) -> None:
    for k in range(node_ids.size):
        out[k] = -1
        if drawable[k]:
            w0, w1, _, _ = philox(t & _LOW, t >> _32, np.uint64(node_ids[k]), _SAMPLE, key & _LOW, key >> _32)
            out[k] = draw_sample((w0 << _32) | w1, packed, offsets, np.uint64(k))


class RoundDraws:
    """The random choices of round t, a function of (seed, t) and of (seed, node, t) alone.

    Parameters
    ----------
    seed : int
    samples : AliasTables
        The tables of the nodes that a process holds.

    Examples
    --------
    >>> draws = RoundDraws(0, AliasTables.build([1.0, 1.0, 1.0], [0, 2, 3]))
    >>> 0.0 <= draws.coin(5) < 1.0, draws.samples(5)[1]
    (True, np.int64(2))
    """

    def __init__(self, seed: int, samples: AliasTables) -> None:
        self._key = seed_key(seed)
        self._tables = samples

    def coin(self, t: int) -> float:
        """Return the uniform number in [0, 1) that all nodes share in round t."""
        return round_coin(self._key, np.uint64(t))

    def samples(self, t: int) -> NDArray[np.int64]:
        """Return the row that each node draws in round t, −1 for a node without any; shape (k,)."""
        tables = self._tables
        out = np.empty(tables.node_ids.size, dtype=np.int64)
        _samples(
            self._key, np.uint64(t), tables.node_ids, tables.offsets, tables.drawable, tables.packed, out
        )
        return out
