"""What the Poisson schedule alone promises: its law, its constants, its cost."""

from __future__ import annotations

import copy
import itertools
import tracemalloc
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from adfs.errors import InputError
from adfs.schedule import AliasTables, counts, make_schedule
from adfs.schedule import poisson as poisson_module
from adfs.schedule.cells import CELL_MEAN, COUNT_THRESHOLDS, cells_of
from adfs.schedule.merging import COMMUNICATION, merge, sort_communications
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


def test_thresholds_are_the_poisson_law_to_the_last_bit():
    with localcontext() as context:
        context.prec = 60
        term = Decimal(-CELL_MEAN).exp()
        total = Decimal(0)
        expected = []
        while True:
            total += term
            threshold = int((total * 2**64).to_integral_value())
            if threshold >= 2**64:
                break
            expected.append(threshold)
            term = term * Decimal(CELL_MEAN) / len(expected)
    assert list(COUNT_THRESHOLDS) == expected


def test_times_between_events_are_exponential():
    schedule = ring(3, seed=11)
    events = schedule.block(0, 60_000)
    merged = np.sort(events.time)
    assert stats.kstest(np.diff(merged), "expon").pvalue > 1e-3
    for actor in range(schedule.n_actors):
        gaps = np.diff(events.time[events.actor == actor]) * schedule.probability[actor]
        assert stats.kstest(gaps, "expon").pvalue > 1e-3
        # Memory would show here: a cell is about this long.
        assert abs(stats.pearsonr(gaps[:-1], gaps[1:]).statistic) < 4.0 / np.sqrt(gaps.size)


@pytest.mark.parametrize("length", [0.37, 1.0, 2.0, 5.3])
def test_counts_in_disjoint_windows_are_poisson_and_independent(length):
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


def test_clocks_are_independent():
    schedule = ring(4, seed=2)
    events = schedule.block(0, 80_000)
    number = np.zeros((schedule.n_actors, 8000), dtype=int)
    np.add.at(number, (events.actor, np.ceil(events.time / 10).astype(int) - 1), 1)
    correlation = np.corrcoef(number) - np.eye(schedule.n_actors)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(8000)


def test_bursts_are_contiguous():
    """Between two communications stand the computations of the second one's ends, side by side."""
    schedule = ring(20)
    time, actor, _ = schedule.block(0, 2000)
    exchanges = np.flatnonzero(actor >= 20)
    for before, after in itertools.pairwise(exchanges):
        nodes = actor[before + 1 : after]
        ends = schedule.edges[actor[after] - 20].tolist()
        assert [ends.index(node) for node in nodes] == sorted(ends.index(node) for node in nodes)
        assert (time[before + 1 : after] <= time[after]).all()
    assert (np.diff(actor[exchanges[-1] + 1 :]) >= 0).all()


def test_many_nodes_through_many_windows():
    schedule = ring(5000, seed=8)
    stop = 60_000.0
    whole = schedule.block(0, stop)
    parts = list(schedule.stream(0, stop))
    assert len(parts) > 3
    joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    order, joined_order = (np.lexsort((e[1], e[0])) for e in (whole, joined))
    for one, other in zip(whole, joined, strict=True):
        assert np.array_equal(one[order], other[joined_order])
    some = schedule.block(0, stop, [17, 4999])
    mine = np.isin(whole.actor, [17, 4999])
    mine |= (whole.actor >= 5000) & np.isin(schedule.edges[whole.actor - 5000], [17, 4999]).any(axis=1)
    assert some.time.size == mine.sum()
    assert sorted(some.time.tolist()) == sorted(whole.time[mine].tolist())


def test_a_cell_starts_where_its_times_do():
    """At the bounds of cells rounding decides, and it must decide as it does for the times."""
    rng = np.random.default_rng(5)
    first, fresh = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for rate in rng.uniform(1e-6, 1.0, 400):
        width = CELL_MEAN / rate
        for cell in (1, 7, int(rng.integers(2, 10**6)), int(rng.integers(10**9, 10**12))):
            edge = cell * width
            for time in (np.nextafter(edge, 0.0), edge, np.nextafter(edge, np.inf)):
                cells_of(0.0, time, True, np.array([rate]), 0, 1, first, fresh)
                last = int(first[0] + fresh[0]) - 1
                assert last * width <= time < (last + 1) * width


def test_clocks_of_very_different_rates():
    """Cells far longer than a step are carried over many times, cells far shorter open many at once."""
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
    for size in (3, 40, 100_000):
        parts = list(schedule.stream(700.0, 9000.0, block_events=size))
        time, actor = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        assert sorted(zip(time.tolist(), actor.tolist(), strict=True)) == [event[:2] for event in expected]
    far = schedule.block(3e6, 3e6 + 50.0)
    slow = schedule.block(0.0, 1e7, [0])
    assert 0 < (slow.actor == 0).sum() < 40
    assert far.time.size > 0
    assert ((far.time > 3e6) & (far.time <= 3e6 + 50.0)).all()


@pytest.mark.parametrize("short", ["a window", "what is carried over", "both"])
@pytest.mark.parametrize("clocks", ["nodes", "edges"])
def test_lists_that_are_too_short_are_made_longer(monkeypatch, clocks, short):
    schedule = ring(50)
    expected = schedule.block(0, 3000)
    windows = {size: windows_of(schedule, size) for size in (100, 500)}
    rooms, allocate = poisson_module._Steps._rooms, poisson_module._Steps._allocate
    slacks = set()

    def short_rooms(self, rate):
        sizes = np.diff(rooms(self, rate))
        if (rate is self._clocks.node_rate) == (clocks == "nodes"):
            if short != "what is carried over":
                sizes[:-1] = int(12 * self._slack)
            if short != "a window":
                sizes[-1] = int(60 * self._slack)  # of 50 clocks, with 100 events when their cells begin
        return np.concatenate([[0], np.cumsum(sizes)])

    def noted(self):
        slacks.add(self._slack)
        allocate(self)

    monkeypatch.setattr(poisson_module._Steps, "_rooms", short_rooms)
    monkeypatch.setattr(poisson_module._Steps, "_allocate", noted)
    again = schedule.block(0, 3000)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, again, strict=True))
    for size, parts in windows.items():
        assert windows_of(schedule, size) == parts
    assert len(slacks) > 1, "no list was too short"


@pytest.mark.parametrize("nodes", [None, [3, 4, 40]])
def test_a_stream_begins_again_wherever_it_runs_out_of_room(monkeypatch, nodes):
    schedule = ring(50)
    expected = windows_of(schedule, 60, nodes)
    attempt = poisson_module._Steps._try_draw
    restarts = []

    def fail_now_and_then(self, bounds):
        begins, drawn = self._begins, attempt(self, bounds)
        if not begins and len(restarts) < 6:  # what was carried over is lost by then
            restarts.append(float(bounds[0]))
            return False
        return drawn

    monkeypatch.setattr(poisson_module._Steps, "_try_draw", fail_now_and_then)
    assert windows_of(schedule, 60, nodes) == expected
    assert len(set(restarts)) >= 4


def windows_of(schedule, size, nodes=None):
    parts = schedule.stream(0, 3000, nodes, block_events=size)
    return [[array.tolist() for array in part] for part in parts]


def test_what_the_caller_does_to_his_arrays_later_changes_nothing():
    schedule = ring(6)
    nodes, links = np.array(schedule.node_probability), np.array(schedule.edge_probability)
    edges = np.array(schedule.edges)
    mine = make_schedule(
        "poisson", seed=0, n_nodes=6, edges=edges, node_probability=nodes, edge_probability=links
    )
    expected = mine.block(0, 500)
    stream = mine.stream(0, 500, block_events=50)
    parts = [next(stream)]
    nodes *= 1e4
    links *= 1e4
    edges[:] = 2**30
    parts.extend(stream)
    assert sorted(np.concatenate([part.time for part in parts]).tolist()) == sorted(expected.time.tolist())


def test_a_copied_schedule_is_compiled_for_already():
    schedule = ring(6)
    expected = schedule.block(0, 100)
    known = len(merge.signatures)
    again = copy.deepcopy(schedule).block(0, 100)  # as out of a pickle: its arrays can be written to
    assert all(a.tobytes() == b.tobytes() for a, b in zip(expected, again, strict=True))
    assert len(merge.signatures) == known


def test_a_long_window_of_a_short_range_needs_little_memory():
    schedule = ring(6)
    expected = schedule.block(0, 100)
    tracemalloc.start()
    (part,) = schedule.stream(0, 100, block_events=10**11)
    (again,) = schedule.stream(0, 100, block_events=10**11, reuse=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.time.tolist() == again.time.tolist() == expected.time.tolist()
    assert peak < 10**6


def test_times_that_cannot_be_told_apart_are_refused():
    schedule = ring(6)
    assert schedule.block(2.0**52, 2.0**52 + 50.0).time.size > 0
    for ask in (schedule.block, schedule.stream):
        with pytest.raises(InputError, match=r"up to time 2\*\*52"):
            ask(2.0**53, 2.0**53 + 50.0)


def test_a_stream_needs_about_a_hundred_bytes_a_clock():
    schedule = ring(20_000)
    list(itertools.islice(schedule.stream(reuse=True), 1))  # compiled, its clocks known
    tracemalloc.start()
    for _ in itertools.islice(schedule.stream(reuse=True), 50):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 120 * schedule.n_actors


def test_streams_by_turns_do_not_share_events():
    schedule = ring(50)
    expected = [schedule.block(0, 3000), schedule.block(1234.5, 4000)]
    for _ in range(2):
        streams = [
            schedule.stream(0, 3000, block_events=300, reuse=True),
            schedule.stream(1234.5, 4000, block_events=300, reuse=True),
        ]
        found = [[], []]
        for parts in itertools.zip_longest(*streams):  # by turns
            for times, part in zip(found, parts, strict=True):
                times.extend([] if part is None else part.time.tolist())
        for times, block in zip(found, expected, strict=True):
            assert sorted(times) == sorted(block.time.tolist())


@pytest.mark.parametrize("spread", ["even", "one place", "ties"])
@pytest.mark.parametrize("size", [0, 1, 2, 255, 3000])
def test_communications_are_sorted_whatever_their_times(size, spread):
    rng = np.random.default_rng(size)
    links = np.zeros(size, dtype=COMMUNICATION)
    links["time"] = {
        "even": rng.uniform(2.0, 7.0, size),
        "one place": rng.uniform(6.999, 7.0, size),
        "ties": rng.integers(3, 8, size).astype(float),
    }[spread]
    links["edge"] = rng.permutation(size)
    expected = np.sort(links, order=["time", "edge"])
    sort_communications(2.0, 7.0, links, np.empty(size + 1, dtype=COMMUNICATION))
    assert np.array_equal(links, expected)


def test_window_grows_with_the_clocks_and_one_node_asks_for_its_own():
    small, large = ring(10), ring(20_000)
    assert small.window() == pytest.approx(8192)
    assert large.window() > 2 * small.window()
    one = large.window([3])
    rate = large.node_probability[3] + large.edge_probability[(large.edges == 3).any(axis=1)].sum()
    assert one == pytest.approx(8192 / rate)
    assert small.window(block_events=100) == pytest.approx(100)


def test_one_node_of_a_large_network_costs_what_it_has():
    """A node among many generates its own events alone: the memory of a stream says so."""
    schedule = ring(20_000)
    clocks = schedule._clocks(np.array([3]))
    assert clocks.actor.tolist() == [3, *(20_000 + np.flatnonzero((schedule.edges == 3).any(axis=1)))]
    seen = counts(schedule, 0, 1e6, [3])
    assert seen.node_actual.sum() == seen.node_actual[3]
    assert seen.edge_actual.sum() == seen.edge_actual[(schedule.edges == 3).any(axis=1)].sum()
    assert abs(seen.node_actual[3] - seen.node_expected[3]) < 6 * np.sqrt(seen.node_expected[3])
