"""Draws for methods that go in rounds: a coin that all nodes share, and a sample for each node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled, kernel
from adfs.schedule.philox import DOMAIN_ROUND_COIN, DOMAIN_ROUND_SAMPLE, draw_pairs, philox, seed_key
from adfs.schedule.sampling import AliasTables, draw_sample

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_COIN = np.uint64(DOMAIN_ROUND_COIN)
_SAMPLE = np.uint64(DOMAIN_ROUND_SAMPLE)
_WINDOW = 2048  # samples drawn at once: few enough to stay in the fastest memory


@compiled
def round_coin(key: np.uint64, t: np.uint64) -> float:
    """Return the number in [0, 1) that all nodes share in round t, for compiled code."""
    w0, w1, _, _ = philox(t & _LOW, t >> _32, np.uint64(0), _COIN, key & _LOW, key >> _32)
    return float(((w0 << _32) | w1) >> np.uint64(11)) * 2.0**-53


class RoundWindow(NamedTuple):
    """The draws of some rounds that follow each other, and what they are drawn from; see `draw_rounds`.

    Attributes
    ----------
    key : uint64
        The seed.
    p_gossip : float
        Rounds whose coin is below it are without samples.
    packed, offsets : ndarray
        The alias tables of the block's nodes.
    places, names : (a,) int64 and uint64
        The nodes with anything to draw: their places in the block, and in the network.
    bounds : (2,) int64
        The first round that has been drawn, and the first one after.
    gossips : (w,) bool
        Which of the rounds are without samples.
    starts : (w + 1,) int64
        The draws of the r-th round are number ``starts[r]`` … ``starts[r + 1] − 1``.
    nodes, actors, samples : (w·a,) int32, int32 and int64
        Of each draw the node's place in the block and in the network, and the row.
    counters, bits : (w·(a or 1),) uint64
        Room for drawing.
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
    """Draw the rounds from ``first`` on, as many as the window holds: a draw is a function of its round."""
    index, name, rounds = window.counters, window.bits, window.gossips.size
    window.bounds[0] = first
    window.bounds[1] = first + rounds
    if window.p_gossip > 0.0:
        for r in range(rounds):
            index[r] = np.uint64(first + r)
            name[r] = np.uint64(0)
        draw_pairs(rounds, _COIN, window.key, index, name)
        for r in range(rounds):
            window.gossips[r] = float(index[r] >> np.uint64(11)) * 2.0**-53 < window.p_gossip
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
        window = self.window(0.0, rounds=1)
        draw_rounds(window, t)
        out = np.full(self._tables.node_ids.size, -1, dtype=np.int64)
        out[window.nodes] = window.samples
        return out

    def window(self, p_gossip: float, rounds: int | None = None) -> RoundWindow:
        """Return room for the draws of some rounds (of about two thousand samples unless told otherwise)."""
        tables = self._tables
        places = np.flatnonzero(tables.drawable)
        w = max(1, _WINDOW // max(1, places.size)) if rounds is None else rounds
        return RoundWindow(
            key=self._key,
            p_gossip=float(p_gossip),
            packed=tables.packed,
            node_starts=tables.node_starts,
            places=places,
            names=tables.node_ids[places].astype(np.uint64),
            bounds=np.zeros(2, dtype=np.int64),
            gossips=np.zeros(w, dtype=np.bool_),
            starts=np.zeros(w + 1, dtype=np.int64),
            nodes=np.zeros(w * places.size, dtype=np.int32),
            actors=np.zeros(w * places.size, dtype=np.int32),
            samples=np.zeros(w * places.size, dtype=np.int64),
            counters=np.zeros(w * max(1, places.size), dtype=np.uint64),
            bits=np.zeros(w * max(1, places.size), dtype=np.uint64),
        )
