"""What the Poisson schedule alone promises: its law, its cost, and what happens at the ends of the ranges."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from adfs.errors import InputError
from adfs.schedule import AliasTables, make_schedule, poisson
from schedule_twins import poisson_events


def ring(n, seed=0, *, chance=0.3, rows=3):
    edges = np.sort(np.column_stack([np.arange(n), (np.arange(n) + 1) % n]), axis=1)
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    rng = np.random.default_rng(n)
    nodes, links = rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, n)
    return make_schedule(
        "poisson",
        seed=seed,
        n_nodes=n,
        edges=edges,
        node_probability=(1.0 - chance) * nodes / nodes.sum(),
        edge_probability=chance * links / links.sum(),
        samples=AliasTables.build(np.ones(n * rows), np.arange(n + 1) * rows),
    )


def test_poisson_thresholds_are_the_poisson_law():
    count = np.arange(poisson.COUNT_THRESHOLDS.size)
    expected = stats.poisson.sf(count, poisson.CELL_MEAN)  # the upper tail, to all its digits
    tail = [2.0**-64 * (2**64 - threshold) for threshold in poisson.COUNT_THRESHOLDS.tolist()]
    np.testing.assert_allclose(tail, expected, rtol=1e-12, atol=2.0**-64)
    assert stats.poisson.sf(count.size, poisson.CELL_MEAN) < 2.0**-64


def test_poisson_schedule_has_exponential_times_between_events():
    schedule = ring(3, seed=11)
    events = schedule.block(0, 60_000)
    merged = np.sort(events.time)
    assert stats.kstest(np.diff(merged), "expon").pvalue > 1e-3
    for actor in range(schedule.probability.size):
        gaps = np.diff(events.time[events.actor == actor]) * schedule.probability[actor]
        assert stats.kstest(gaps, "expon").pvalue > 1e-3
        # Memory would show here: a cell is about this long.
        assert abs(stats.pearsonr(gaps[:-1], gaps[1:]).statistic) < 4.0 / np.sqrt(gaps.size)


@pytest.mark.parametrize("length", [0.37, 1.0, 2.0, 5.3])
def test_poisson_schedule_has_independent_poisson_counts_in_windows(length):
    """Windows shorter and longer than a cell, whose length is 2 here."""
    schedule = make_schedule(
        "poisson", seed=4, n_nodes=1, edges=[], node_probability=[1.0], edge_probability=[]
    )
    windows = 40_000
    events = schedule.block(0, windows * length)
    number = np.bincount(np.ceil(events.time / length).astype(int) - 1, minlength=windows)[:windows]
    most = int(stats.poisson.isf(20.0 / windows, length))
    expected = stats.poisson.pmf(np.arange(most + 1), length)
    expected[-1] += stats.poisson.sf(most, length)
    seen = np.bincount(np.minimum(number, most), minlength=most + 1)
    assert stats.chisquare(seen, expected * windows).pvalue > 1e-3
    assert abs(stats.pearsonr(number[:-1], number[1:]).statistic) < 4.0 / np.sqrt(windows)


def test_poisson_schedule_has_independent_clocks():
    schedule = ring(4, seed=2)
    events = schedule.block(0, 80_000)
    number = np.zeros((schedule.probability.size, 8000), dtype=int)
    np.add.at(number, (events.actor, np.ceil(events.time / 10).astype(int) - 1), 1)
    correlation = np.corrcoef(number) - np.eye(schedule.probability.size)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(8000)


def test_poisson_schedule_of_many_nodes_is_the_same_over_many_windows():
    schedule = ring(5000, seed=8)
    stop = 60_000.0
    whole = schedule.block(0, stop)
    assert len(list(schedule.windows(0, stop))) > 2
    marks = np.linspace(0, stop, 7)
    parts = [schedule.block(a, b) for a, b in itertools.pairwise(marks)]
    joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    order, joined_order = (np.lexsort((e[1], e[0])) for e in (whole, joined))
    for one, other in zip(whole, joined, strict=True):
        assert np.array_equal(one[order], other[joined_order])
    some = schedule.block(0, stop, [17, 4999])
    mine = np.isin(whole.actor, [17, 4999])
    mine |= (whole.actor >= 5000) & np.isin(schedule.edges[whole.actor - 5000], [17, 4999]).any(axis=1)
    assert some.time.size == mine.sum()
    assert sorted(some.time.tolist()) == sorted(whole.time[mine].tolist())


def test_poisson_schedule_never_loses_or_doubles_events_at_ends_of_cells():
    """A range may begin and end right where a cell does, as rounding has it."""
    rate = 0.3
    schedule = make_schedule(
        "poisson", seed=3, n_nodes=2, edges=[], node_probability=[rate, 1.0 - rate], edge_probability=[]
    )
    width = poisson.CELL_MEAN / rate
    for cell in (1, 7, 1234, 10**6 + 1, 10**12 + 7):
        edge = cell * width
        marks = [max(edge - 9.0, 0.0), np.nextafter(edge, 0.0), edge, np.nextafter(edge, np.inf), edge + 9.0]
        parts = [schedule.block(a, b, [0]).time for a, b in itertools.pairwise(marks)]
        assert np.concatenate(parts).tolist() == schedule.block(marks[0], marks[-1], [0]).time.tolist()


@pytest.mark.parametrize("size", [3, 40, 8192])
def test_poisson_schedule_takes_clocks_of_very_different_rates(monkeypatch, size):
    """Cells far longer than a window wait for many, cells far shorter open many at once."""
    monkeypatch.setattr(poisson, "LEAST_EVENTS", size)
    rates = np.array([1e-6, 3e-4, 0.02, 1.0, 5e-5, 0.1, 1e-3])
    rates /= rates.sum()
    schedule = make_schedule(
        "poisson",
        seed=12,
        n_nodes=4,
        edges=[[0, 1], [1, 2], [2, 3]],
        node_probability=rates[:4],
        edge_probability=rates[4:],
    )
    expected = poisson_events(schedule, 700.0, 9000.0)
    events = schedule.block(700.0, 9000.0)
    found = zip(events.time.tolist(), events.actor.tolist(), strict=True)
    assert sorted(found) == [event[:2] for event in expected]
    far = schedule.block(3e6, 3e6 + 50.0)
    slow = schedule.block(0.0, 1e7, [0])
    assert 0 < (slow.actor == 0).sum() < 40
    assert far.time.size > 0
    assert ((far.time > 3e6) & (far.time <= 3e6 + 50.0)).all()


@pytest.mark.parametrize("nodes", [None, [3, 4, 40]])
def test_poisson_stream_that_runs_out_of_room_begins_again_with_more(monkeypatch, nodes):
    schedule = ring(50)
    expected = schedule.block(0, 30_000, nodes)
    draw, failed = poisson._draw, []

    def fail_now_and_then(*arguments):
        count = draw(*arguments)
        if len(failed) < 5 and arguments[2].size > 0:  # some events wait, and are lost now
            failed.append(arguments[1])
            return -1
        return count

    monkeypatch.setattr(poisson, "_draw", fail_now_and_then)
    monkeypatch.setattr(poisson, "LEAST_EVENTS", 500)
    found = schedule.block(0, 30_000, nodes)
    assert len(set(failed)) == 5
    orders = [np.lexsort((events.actor, events.time)) for events in (expected, found)]
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(one[orders[0]], other[orders[1]])


def test_poisson_stream_notices_too_little_room():
    schedule = ring(50)
    everyone = np.ones(schedule.probability.size, dtype=bool)
    found = schedule._windows(0.0, 40_000.0, everyone, slack=0.2)
    times = np.concatenate([events.time.copy() for _, events in found])
    assert sorted(times.tolist()) == sorted(schedule.block(0, 40_000).time.tolist())


def test_poisson_schedule_keeps_its_own_copies_of_arrays():
    schedule = ring(6)
    nodes, links = np.array(schedule.node_probability), np.array(schedule.edge_probability)
    edges = np.array(schedule.edges)
    mine = make_schedule(
        "poisson", seed=0, n_nodes=6, edges=edges, node_probability=nodes, edge_probability=links
    )
    expected = mine.block(0, 500)
    nodes *= 1e4
    links *= 1e4
    edges[:] = 2**30
    assert mine.block(0, 500).time.tolist() == expected.time.tolist()


def test_poisson_schedule_needs_little_memory_for_a_short_range():
    schedule = ring(6)
    schedule.block(0, 100)
    tracemalloc.start()
    schedule.block(0, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6


def test_poisson_schedule_refuses_times_that_cannot_be_told_apart():
    schedule = ring(6)
    assert schedule.block(2.0**52, 2.0**52 + 50.0).time.size > 0
    for ask in (schedule.block, schedule.windows):
        with pytest.raises(InputError, match=r"up to time 2\*\*52"):
            ask(2.0**53, 2.0**53 + 50.0)


def test_poisson_stream_needs_some_two_hundred_bytes_per_clock():
    schedule = ring(20_000)
    next(schedule.windows(0, np.inf))  # compiled
    tracemalloc.start()
    for _ in itertools.islice(schedule.windows(0, np.inf), 20):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 250 * schedule.probability.size


def test_poisson_windows_of_many_clocks_hold_fewer_events_than_clocks():
    """A window of a cell per clock would be as long as everything else that a million nodes need."""
    schedule = ring(1_000_000, rows=1)
    _, events = next(schedule.windows(0, np.inf))
    assert events.time.size == pytest.approx(np.sqrt(4e6 * 2**19), rel=0.01)


def test_poisson_streams_by_turns_do_not_share_events(monkeypatch):
    schedule = ring(50)
    expected = [schedule.block(0, 3000), schedule.block(1234.5, 4000)]
    monkeypatch.setattr(poisson, "LEAST_EVENTS", 300)
    streams = [schedule.windows(0, 3000), schedule.windows(1234.5, 4000)]
    found = [[], []]
    for parts in itertools.zip_longest(*streams):  # by turns
        for times, part in zip(found, parts, strict=True):
            times.extend([] if part is None else part[1].time.tolist())
    for times, block in zip(found, expected, strict=True):
        assert sorted(times) == sorted(block.time.tolist())


def test_poisson_schedule_of_one_node_costs_what_that_node_has():
    """A node among many generates its own events alone: so many in each window, from its clocks only."""
    schedule = ring(20_000)
    mine = (schedule.edges == 3).any(axis=1)
    end, events = next(schedule.windows(0, np.inf, [3]))
    assert abs(events.time.size - 8192) < 600
    assert end == pytest.approx(8192 / (schedule.node_probability[3] + schedule.edge_probability[mine].sum()))
    assert set(events.actor.tolist()) == {3, *(20_000 + np.flatnonzero(mine)).tolist()}
    computations = np.count_nonzero(schedule.block(0, 1e6, [3]).actor == 3)
    expected = schedule.node_probability[3] * 1e6
    assert abs(computations - expected) < 6 * np.sqrt(expected)


def test_poisson_schedule_orders_equal_times_by_edges():
    """At time 2**52 times are whole numbers, and many are equal."""
    schedule = ring(40, chance=0.9)
    time, actor, _ = schedule.block(2.0**52 - 100.0, 2.0**52 + 1000.0)
    exchanges = actor >= 40
    assert np.unique(time[exchanges]).size < exchanges.sum()
    order = np.lexsort((actor[exchanges], time[exchanges]))
    assert (np.diff(order) > 0).all()
