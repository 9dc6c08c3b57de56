"""The paper's schedule: independent events, which every process draws alike from the shared seed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from adfs.compilation import compiled, prefetch
from adfs.errors import InputError
from adfs.schedule.events import LEAST_EVENTS, Events, Schedule, empty_events, first_events
from adfs.schedule.philox import Domain, draw_pairs, seed_key
from adfs.schedule.sampling import build_actor_table, draw_column, draw_sample

_DOMAIN = np.uint64(Domain.IID_EVENT)
#: Draws that are made together, few enough to stay in the fastest cache.
_CHUNK = 512
#: The most draws of a window, however few of them concern the nodes that were asked for.
_MOST_DRAWS = 2**20


@compiled
def _iid_events(
    first: int,
    last: int,
    key: np.uint64,
    table: NDArray[np.uint64],
    wanted: NDArray[np.bool_],
    tables: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]],
    out: Events,
) -> int:
    """Write the events t = first, …, last − 1 whose actor is wanted, and return their number.

    An empty `wanted` stands for all. `tables` are those of `Schedule._tables_by_node`; `out` must be long
    enough for last − first events. The work goes chunk by chunk, and each chunk goes through several short
    loops without branches; each loop prefetches the memory that the next one reads.
    """
    table_of, begin, packed = tables
    out_time, out_actor, out_sample = out
    everything = wanted.shape[0] == 0
    columns = np.uint64(table.shape[0])
    n_nodes = table_of.shape[0]
    draw = np.empty(_CHUNK, np.uint64)
    row_draw = np.empty(_CHUNK, np.uint64)
    column = np.empty(_CHUNK, np.int64)
    chosen = np.empty(_CHUNK, np.int64)
    written = 0
    for t in range(first, last, _CHUNK):
        m = min(_CHUNK, last - t)
        # Two draws per event: the first one chooses the actor, the second one the row of a computation.
        for i in range(m):
            draw[i] = np.uint64(t + i)
            row_draw[i] = np.uint64(0)
        draw_pairs(m, _DOMAIN, key, draw, row_draw)
        for i in range(m):
            where, draw[i] = draw_column(draw[i], columns)
            column[i] = np.int64(where)
            prefetch(table, 2 * column[i])
        # Take the column's own actor or its alias, and keep the event if that actor is wanted.
        base = written
        for i in range(m):
            chosen_column = column[i]
            alias = np.int64(table[chosen_column, 1])
            # A product instead of a condition: the processor would mispredict every second branch.
            actor = alias + (chosen_column - alias) * np.int64(draw[i] < table[chosen_column, 0])
            out_time[written] = np.float64(t + i + 1)
            out_actor[written] = actor
            row_draw[written - base] = row_draw[i]
            written += 1 if everything else int(wanted[actor])
        if packed.shape[0] == 0:
            out_sample[base:written] = -1
            continue
        # Find each event's table of rows, then the column of its draw, then the row.
        for i in range(written - base):
            actor = np.int64(out_actor[base + i])
            # A communication draws from the first table, and its draw is not used.
            chosen[i] = np.int64(table_of[min(actor, n_nodes - 1)]) * np.int64(actor < n_nodes)
            prefetch(begin, chosen[i])
        for i in range(written - base):
            low = begin[chosen[i]]
            where, _ = draw_column(row_draw[i], np.uint64(begin[chosen[i] + 1] - low))
            prefetch(packed, low + np.int64(where))
        for i in range(written - base):
            row = draw_sample(row_draw[i], packed, begin, np.uint64(chosen[i]))
            out_sample[base + i] = (row + 1) * np.int64(out_actor[base + i] < n_nodes) - 1
    return written


@dataclass(frozen=True, eq=False)
class IidSchedule(Schedule):
    """The paper's shared schedule: T independent draws from p; event t happens at time t + 1.

    Draw t is a function of (seed, t), so any process can compute any draw. A process that wants only its
    own nodes' events must still go through all draws (here some nanoseconds each); `PoissonSchedule` does
    not have to.

    Examples
    --------
    >>> schedule = IidSchedule(
    ...     seed=0, n_nodes=2, edges=[[0, 1]], node_probability=[0.25, 0.25], edge_probability=[0.5]
    ... )
    >>> schedule.block(0, 4).time
    array([1., 2., 3., 4.])
    """

    kind: ClassVar[str] = "iid"

    @functools.cached_property
    def _actor_table(self) -> NDArray[np.uint64]:
        return build_actor_table(self.probability)

    def _check_range(self, start: float, stop: float) -> tuple[float, float]:
        start, stop = super()._check_range(start, stop)
        if not start.is_integer() or not (np.isinf(stop) or stop.is_integer()):
            raise InputError(f"the iid schedule has whole times, but the range is {start!r} to {stop!r}")
        return start, stop

    def _windows(
        self, start: float, stop: float, wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[float, Events]]:
        share = float(self.probability[wanted].sum())
        if share == 0.0:
            yield stop, empty_events(0)
            return
        # With few wanted nodes a window goes through more draws, so that it holds enough events.
        mask, length = wanted, int(min(LEAST_EVENTS / share, _MOST_DRAWS))
        if wanted.all():
            mask, length = wanted[:0], LEAST_EVENTS
        first, key, tables = int(start), seed_key(self.seed), self._tables_by_node()
        out = empty_events(int(min(length, stop - start)))
        while first < stop:
            last = int(min(first + length, stop))
            count = _iid_events(first, last, key, self._actor_table, mask, tables, out)
            yield float(last), first_events(out, count)
            first = last
