"""Philox4x32-10: random bits as a function of a key and a counter, without any state.

A schedule is the same for every process because draw number t is a function of (seed, t) alone. The
generator is the one of Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011):
ten rounds of two 32-bit multiplications on a counter of four words, under a key of two.

The key is the seed. The last word of the counter holds the *domain*, the purpose of the bits, so that two
purposes never share a bit.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import inlined, kernel
from adfs.errors import InputError


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


_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
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
    if isinstance(seed, bool | np.bool_) or not isinstance(seed, int | np.integer):
        raise InputError(f"seed must be an integer with 0 <= seed < 2**64, but is {seed!r}")
    if not 0 <= int(seed) < 2**64:
        raise InputError(f"seed must lie in 0 <= seed < 2**64, but is {int(seed)}")
    return int(seed)


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
