"""The schedule that all processes draw alike, the paper's iid events; and a schedule by its name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adfs.compilation import compiled, prefetch
from adfs.errors import InputError, unknown_name
from adfs.schedule.events import LEAST_EVENTS, Events, Schedule, first_of, room_for
from adfs.schedule.philox import DOMAIN_IID_EVENT, draw_pairs, seed_key
from adfs.schedule.poisson import PoissonSchedule
from adfs.schedule.sampling import AliasTables, build_actor_table, draw_column, draw_sample

_DOMAIN = np.uint64(DOMAIN_IID_EVENT)
_CHUNK = 512
#: Draws that a window goes through at most, however few of them concern the nodes asked for.
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

    An empty `wanted` stands for all. Chunk by chunk and pass by pass: each pass is a short loop without
    branches, and asks for the memory that the next will need. `tables` are those of
    `Schedule._tables_by_node`; `out` must have room for last − first events.
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
        for i in range(m):
            draw[i] = np.uint64(t + i)
            row_draw[i] = np.uint64(0)
        draw_pairs(m, _DOMAIN, key, draw, row_draw)
        for i in range(m):
            where, draw[i] = draw_column(draw[i], columns)
            column[i] = np.int64(where)
            prefetch(table, 2 * column[i])
        base = written
        for i in range(m):
            own = column[i]
            other = np.int64(table[own, 1])
            # A product where one would write a condition: a branch here would be a coin flip.
            actor = other + (own - other) * np.int64(draw[i] < table[own, 0])
            out_time[written] = np.float64(t + i + 1)
            out_actor[written] = actor
            row_draw[written - base] = row_draw[i]
            written += 1 if everything else int(wanted[actor])
        if packed.shape[0] == 0:
            out_sample[base:written] = -1
            continue
        for i in range(written - base):
            actor = np.int64(out_actor[base + i])
            # A communication draws from the first table, and what it draws is not used.
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
            yield stop, room_for(0)
            return
        mask, length = wanted, int(min(LEAST_EVENTS / share, _MOST_DRAWS))
        if wanted.all():
            mask, length = wanted[:0], LEAST_EVENTS
        first, key, tables = int(start), seed_key(self.seed), self._tables_by_node()
        out = room_for(int(min(length, stop - start)))
        while first < stop:
            last = int(min(first + length, stop))
            count = _iid_events(first, last, key, self._actor_table, mask, tables, out)
            yield float(last), first_of(out, count)
            first = last


SCHEDULES: dict[str, type[Schedule]] = {"iid": IidSchedule, "poisson": PoissonSchedule}


def make_schedule(
    kind: str,
    *,
    seed: int,
    n_nodes: int,
    edges: ArrayLike,
    node_probability: ArrayLike,
    edge_probability: ArrayLike,
    samples: AliasTables | None = None,
) -> Schedule:
    """Make a schedule by its name.

    Parameters
    ----------
    kind : str
        ``"iid"`` or ``"poisson"``.
    seed, n_nodes, edges, node_probability, edge_probability, samples
        As for `Schedule`.

    Examples
    --------
    >>> schedule = make_schedule(
    ...     "iid", seed=0, n_nodes=1, edges=[], node_probability=[1.0], edge_probability=[],
    ...     samples=AliasTables.build([1.0, 0.0, 1.0], [0, 3]),
    ... )
    >>> sorted(set(schedule.block(0, 100).sample.tolist()))
    [0, 2]
    """
    if kind not in SCHEDULES:
        raise unknown_name("schedule", kind, SCHEDULES)
    return SCHEDULES[kind](
        seed=seed,
        n_nodes=n_nodes,
        edges=np.asarray(edges),
        node_probability=np.asarray(node_probability, dtype=np.float64),
        edge_probability=np.asarray(edge_probability, dtype=np.float64),
        samples=samples,
    )
