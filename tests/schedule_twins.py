"""Schedules written out literally, in Python's own integers: what the compiled ones must equal."""

from __future__ import annotations

import math
import struct

import numpy as np

from adfs.algorithms.round_process import RoundWindow
from adfs.schedule import AliasTables, Schedule
from adfs.schedule.poisson import CELL_MEAN, COUNT_THRESHOLDS

LOW = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & LOW, (p0 >> 32) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0, c1, c2, c3


def draws(seed: int, index: int, actor: int, last: int) -> tuple[int, int]:
    """Two draws of 64 bits."""
    w0, w1, w2, w3 = philox((index & LOW, index >> 32, actor, last), (seed & LOW, seed >> 32))
    return w0 << 32 | w1, w2 << 32 | w3


def row_of(schedule: Schedule, actor: int, draw: int) -> int:
    """The row that an actor draws, −1 for an edge and without tables."""
    if actor >= schedule.n_nodes or schedule.samples is None:
        return -1
    return draw_row(schedule.samples, schedule.samples.node_ids.tolist().index(actor), draw)


def draw_row(tables: AliasTables | RoundWindow, k: int, draw: int) -> int:
    """Draw a row of the k-th node of the tables."""
    first, last = int(tables.node_starts[k]), int(tables.node_starts[k + 1])
    product = draw * (last - first)
    column, position = product >> 64, product >> 32 & LOW
    entry = int(tables.packed[first + column])
    return first + (column if position < entry >> 32 else entry & LOW)


def clock_events(schedule: Schedule, actor: int, stop: float) -> list[tuple[float, int, int]]:
    """All events of one Poisson clock up to a time."""
    rate = float(schedule.rate[actor])
    if rate == 0.0:
        return []
    width = CELL_MEAN / rate
    events = []
    cell = 0
    while cell * width <= stop:
        count = sum(draws(schedule.seed, cell, actor, 2 << 24)[0] >= t for t in COUNT_THRESHOLDS.tolist())
        for k in range(count):
            position, row = draws(schedule.seed, cell, actor, 3 << 24 | k)
            time = (cell + (position >> 11) * 2.0**-53) * width
            events.append((time, actor, row_of(schedule, actor, row)))
        cell += 1
    return [event for event in events if 0.0 < event[0] <= stop]


def poisson_events(schedule: Schedule, start: float, stop: float) -> list[tuple[float, int, int]]:
    """All events of all clocks, in the order of their times."""
    events = [
        event for actor in range(schedule.probability.size) for event in clock_events(schedule, actor, stop)
    ]
    return sorted(with_faults(schedule, [event for event in events if event[0] > start]))


def with_faults(schedule: Schedule, events: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """The events without exchanges of edges that are not there; −2 is the sample of one that fails."""
    if schedule.faults is None:
        return events
    (lost, window, present), found = schedule.faults, []
    for time, actor, sample in events:
        edge = actor - schedule.n_nodes
        if edge < 0:
            found.append((time, actor, sample))
        elif present[math.floor(time / window) % len(present)][edge]:
            (bits,) = struct.unpack("<Q", struct.pack("<d", time))
            fails = draws(schedule.seed, bits, actor, 8 << 24)[0] < int(lost * 2**64)
            found.append((time, actor, -2 if fails else -1))
    return found


def iid_events(
    schedule: Schedule, table: list[tuple[int, int]], start: int, stop: int
) -> list[tuple[float, int, int]]:
    """The events t = start, …, stop − 1, given the alias table over the actors."""
    events = []
    for t in range(start, stop):
        draw, row = draws(schedule.seed, t, 0, 1 << 24)
        product = draw * len(table)
        column, position = product >> 64, product & (2**64 - 1)
        threshold, alias = table[column]
        actor = column if position < threshold else alias
        events.append((float(t + 1), actor, row_of(schedule, actor, row)))
    return events


def coin(window: RoundWindow, t: int) -> float:
    """The uniform number in [0, 1) that all nodes share in round t; below p it is gossip."""
    return float(draws(int(window.key), t, 0, 4 << 24)[0] >> 11) * 2.0**-53


def round_samples(window: RoundWindow, t: int) -> np.ndarray:
    """The row that each node draws in round t, −1 for a node without any; shape (k,)."""
    rows = np.full(window.node_starts.size - 1, -1)
    for place, name in zip(window.places.tolist(), window.names.tolist(), strict=True):
        rows[place] = draw_row(window, place, draws(int(window.key), t, name, 5 << 24)[0])
    return rows
