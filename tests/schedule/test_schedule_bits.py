from __future__ import annotations

import numpy as np
import pytest

from adfs.errors import InputError
from adfs.schedule.sampling import Domain, check_seed, draw_pairs
from schedule_twins import draws, philox

ONES = 0xFFFFFFFF
# The known answers that come with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_draw_pairs_gives_the_known_answers_of_philox(counter, key, answer):
    c0, c1, c2, c3 = counter
    first, second = (np.array([word], dtype=np.uint64) for word in (c1 << 32 | c0, c2 << 32))
    draw_pairs(1, np.uint64(c3), np.uint64(key[1] << 32 | key[0]), first, second)
    assert (int(first[0]), int(second[0])) == (answer[0] << 32 | answer[1], answer[2] << 32 | answer[3])
    assert philox(counter, key) == answer


def test_draw_pairs_follows_the_documented_layout():
    rng = np.random.default_rng(0)
    seed = 0xFEDCBA9876543210
    index = rng.integers(0, 2**63, 100, dtype=np.uint64)
    actor = rng.integers(0, 2**31, 100, dtype=np.uint64)
    k = rng.integers(0, 2**10, 100, dtype=np.uint64)
    first, second = index.copy(), actor << np.uint64(32) | k
    draw_pairs(100, np.uint64(3 << 24), np.uint64(seed), first, second)
    for i in range(100):
        assert (int(first[i]), int(second[i])) == draws(
            seed, int(index[i]), int(actor[i]), 3 << 24 | int(k[i])
        )


def test_draws_differ_between_domains_for_the_same_counter():
    assert len({draws(5, 7, 0, domain) for domain in Domain}) == len(Domain) == 8


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, np.uint64(2**63), np.int32(3)])
def test_check_seed_takes_whole_numbers_below_2_to_the_64(seed):
    assert check_seed(seed) == int(seed)
    assert type(check_seed(seed)) is int


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True, np.float64(2.0)])
def test_check_seed_refuses_other_seeds(seed):
    with pytest.raises(InputError, match="seed must"):
        check_seed(seed)
