"""What both schedules promise, each test over both."""

from __future__ import annotations

import itertools
import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adfs.errors import InputError
from adfs.schedule import AliasTables, make_schedule, poisson
from adfs.schedule import events as iid
from adfs.schedule.sampling import build_actor_table
from schedule_twins import iid_events, poisson_events

EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]])
KINDS = ("iid", "poisson")
both = pytest.mark.parametrize("kind", KINDS)


def make(kind, seed=5, *, node_ids=None):
    """Node 5 has no edge, nodes 2 and 3 do not compute, edge 1 is never used, some rows have weight 0."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.2, 1.0, 11)
    p[[3, 7]] = 0.0
    p /= p.sum()
    node_starts = np.array([0, 3, 8, 8, 8, 20, 25])
    weights = rng.random(25)
    weights[[0, 4, 10, 11, 19, 24]] = 0.0
    p[5] += p[2]
    p[2] = 0.0
    if node_ids is None:
        tables = AliasTables.build(weights, node_starts)
    else:
        parts = [weights[node_starts[i] : node_starts[i + 1]] for i in node_ids]
        own = np.concatenate([[0], np.cumsum([part.size for part in parts])])
        tables = AliasTables.build(np.concatenate(parts), own, node_ids=node_ids)
    schedule = make_schedule(
        kind,
        seed=seed,
        n_nodes=6,
        edges=EDGES,
        node_probability=p[:6],
        edge_probability=p[6:],
        samples=tables,
    )
    return schedule, weights, node_starts


def as_list(events):
    return list(zip(events.time.tolist(), events.actor.tolist(), events.sample.tolist(), strict=True))


def small_windows(events):
    """Have windows of about so many events."""
    return mock.patch.multiple(iid, LEAST_EVENTS=events), mock.patch.multiple(poisson, LEAST_EVENTS=events)


def streamed(schedule, start, stop, nodes=None, *, size):
    """All events, window by window; each window must hold what lies between its ends."""
    found, lower = [], start
    for_iid, for_poisson = small_windows(size)
    with for_iid, for_poisson:
        for end, events in schedule.windows(start, stop, nodes):
            assert ((events.time > lower) & (events.time <= end)).all()
            assert_valid_order(events, 6, EDGES)
            found += as_list(events)
            lower = end
    assert lower == stop
    return found


def touching(nodes):
    """The actors that some nodes take part in."""
    return set(nodes) | {6 + e for e, (i, j) in enumerate(EDGES.tolist()) if i in nodes or j in nodes}


def seen_by(events, node):
    return [event for event in as_list(events) if event[1] in touching([node])]


def twin(schedule, start, stop):
    if schedule.kind == "poisson":
        return poisson_events(schedule, start, stop)
    return iid_events(schedule, build_actor_table(schedule.probability).tolist(), int(start), int(stop))


def assert_valid_order(events, n_nodes, edges):
    time, actor, _ = events
    order = np.lexsort((actor, actor >= n_nodes, time))
    exchanges = order[actor[order] >= n_nodes]
    assert np.array_equal(exchanges, np.flatnonzero(actor >= n_nodes))
    for node in range(n_nodes):
        mine = actor == node
        mine[actor >= n_nodes] = (edges[actor[actor >= n_nodes] - n_nodes] == node).any(axis=1)
        assert np.array_equal(order[mine[order]], np.flatnonzero(mine))


@both
@pytest.mark.parametrize(("start", "stop"), [(0, 250), (0, 0), (17, 18), (90, 300)])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_schedule_block_equals_the_literal_twin(kind, start, stop, seed):
    schedule, _, _ = make(kind, seed)
    events = schedule.block(start, stop)
    assert [array.dtype for array in events] == [np.float64, np.int32, np.int32]
    assert sorted(as_list(events)) == sorted(twin(schedule, start, stop))
    assert_valid_order(events, 6, EDGES)


@both
@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 400), min_size=3, max_size=6),
    shift=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_schedule_cut_anywhere_gives_the_same_events_in_the_same_order(kind, cuts, shift, seed):
    schedule, _, _ = make(kind, seed)
    marks = sorted(cut + (shift if kind == "poisson" else 0) for cut in cuts)
    whole = schedule.block(marks[0], marks[-1])
    parts = [schedule.block(a, b) for a, b in itertools.pairwise(marks)]
    joined = [event for part in parts for event in as_list(part)]
    assert sorted(joined) == sorted(as_list(whole))
    for node in range(6):
        assert [event for event in joined if event[1] in touching([node])] == seen_by(whole, node)


@both
@settings(max_examples=25)
@given(size=st.integers(1, 300), start=st.integers(0, 50), length=st.integers(1, 300))
def test_schedule_windows_of_any_size_give_the_same_events(kind, size, start, length):
    schedule, _, _ = make(kind)
    whole = schedule.block(start, start + length)
    found = streamed(schedule, start, start + length, size=size)
    assert sorted(found) == sorted(as_list(whole))
    for node in range(6):
        assert [event for event in found if event[1] in touching([node])] == seen_by(whole, node)


@both
def test_schedule_stream_can_be_resumed_wherever_a_window_ended(kind):
    schedule, _, _ = make(kind)
    whole = sorted(as_list(schedule.block(0, 300)))
    for_iid, for_poisson = small_windows(7)
    with for_iid, for_poisson:
        before = []
        for end, events in schedule.windows(0, 300):
            before += as_list(events)
            assert sorted(before + as_list(schedule.block(end, 300))) == whole


@both
@pytest.mark.parametrize("nodes", [[0], [1], [2], [3], [4], [5], [0, 4], [4, 0, 0], [5, 2, 1], range(6), []])
def test_schedule_of_some_nodes_has_what_the_global_one_has_for_them(kind, nodes):
    schedule, _, _ = make(kind)
    whole = schedule.block(30, 430)
    own = schedule.block(30, 430, nodes)
    assert sorted(as_list(own)) == sorted(event for event in as_list(whole) if event[1] in touching(nodes))
    assert_valid_order(own, 6, EDGES)
    for node in nodes:
        assert seen_by(own, node) == seen_by(whole, node)
    assert sorted(streamed(schedule, 30, 430, nodes, size=9)) == sorted(as_list(own))


@both
def test_schedule_with_the_tables_of_one_process_draws_the_same_rows(kind):
    schedule, _, node_starts = make(kind)
    mine, _, _ = make(kind, node_ids=[4, 1])
    shift = {4: node_starts[4], 1: node_starts[1] - (node_starts[5] - node_starts[4])}
    expected = [(t, a, s + shift.get(a, 0)) for t, a, s in as_list(mine.block(0, 500, [1, 4]))]
    assert expected == as_list(schedule.block(0, 500, [1, 4]))
    with pytest.raises(InputError, match="no sampling table for node 0"):
        mine.block(0, 500)
    # Node 3 never computes: it needs no table.
    assert as_list(mine.block(0, 500, [3])) == as_list(schedule.block(0, 500, [3]))


@both
def test_schedule_has_the_same_bits_for_the_same_seed_alone(kind):
    first, again, other = (make(kind, seed)[0].block(0, 300) for seed in (5, 5, 6))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    assert as_list(first) != as_list(other)
    sent = pickle.loads(pickle.dumps(make(kind)[0]))  # noqa: S301 (our own bytes)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, sent.block(0, 300), strict=True))


GOLDEN = {
    "iid": (
        [float(t) for t in range(1, 13)],
        [2, 0, 3, 2, 3, 0, 0, 2, 1, 3, 0, 2],
        [8, 3, -1, 8, -1, 0, 1, 6, 4, -1, 3, 6],
    ),
    "poisson": (
        [
            "0x1.2597d5c726138p+0",
            "0x1.53f4af0d97f48p+1",
            "0x1.0379a8c24ff0fp+2",
            "0x1.09102c1046d8cp+2",
            "0x1.93bde09f918aap+2",
            "0x1.cac040d052a0ap+2",
            "0x1.4b76647d5acfep+3",
            "0x1.5728c821f4f1dp+3",
        ],
        [2, 4, 0, 3, 3, 4, 4, 0],
        [9, -1, 1, -1, -1, -1, -1, 1],
    ),
}
GOLDEN_FAR = {
    "iid": ([2.0**40 + t for t in range(1, 5)], [3, 1, 3, 2], [-1, 4, -1, 8]),
    "poisson": (
        ["0x1.000000000273fp+40", "0x1.00000000032bdp+40", "0x1.00000000010f9p+40"],
        [3, 3, 2],
        [-1, -1, 6],
    ),
}


@both
def test_schedule_events_never_change_for_a_seed(kind):
    """These never change: a saved run refers to its schedule by kind and seed."""
    schedule = make_schedule(
        kind,
        seed=20190527,
        n_nodes=3,
        edges=[[0, 1], [1, 2]],
        node_probability=[0.25, 0.125, 0.25],
        edge_probability=[0.25, 0.125],
        samples=AliasTables.build([1, 2, 0, 4, 1, 1, 3, 2, 5, 1], [0, 4, 6, 10]),
    )
    for events, (time, actor, sample) in (
        (schedule.block(0, 12), GOLDEN[kind]),
        (schedule.block(2**40, 2**40 + 4), GOLDEN_FAR[kind]),
    ):
        assert events.time.tolist() == [float.fromhex(t) if isinstance(t, str) else t for t in time]
        assert events.actor.tolist() == actor
        assert events.sample.tolist() == sample


@both
def test_schedule_draws_actors_and_rows_by_their_probabilities(kind):
    schedule, weights, node_starts = make(kind, seed=99)
    events = schedule.block(0, 200_000)
    seen = np.bincount(events.actor, minlength=11)
    p = schedule.probability
    assert (seen[p == 0.0] == 0).all()
    assert stats.chisquare(seen[p > 0], p[p > 0] * seen.sum()).pvalue > 1e-3
    rows = np.bincount(events.sample[events.sample >= 0], minlength=25)
    assert (rows[weights == 0.0] == 0).all()
    for node in (0, 1, 4, 5):
        mine, w = (array[node_starts[node] : node_starts[node + 1]] for array in (rows, weights))
        assert mine.sum() == seen[node]
        assert stats.chisquare(mine[w > 0], w[w > 0] / w.sum() * mine.sum()).pvalue > 1e-3
    assert ((events.sample >= 0) == (events.actor < 6)).all()


@both
def test_schedule_takes_one_node_without_edges(kind):
    schedule = make_schedule(
        kind,
        seed=1,
        n_nodes=1,
        edges=[],
        node_probability=[1.0],
        edge_probability=[],
        samples=AliasTables.build([1.0, 2.0], [0, 2]),
    )
    events = schedule.block(0, 20_000)
    assert (events.actor == 0).all()
    assert (np.diff(events.time) >= 0).all()
    assert abs(events.time.size - 20_000) < (1 if kind == "iid" else 700)
    assert abs(events.sample.mean() - 2 / 3) < 0.02
    joined = np.concatenate([part.time.copy() for _, part in schedule.windows(0, 20_000)])
    assert joined.tolist() == events.time.tolist()


@both
def test_schedule_without_tables_has_samples_of_minus_one(kind):
    schedule = make_schedule(
        kind, seed=1, n_nodes=2, edges=[[0, 1]], node_probability=[0.4, 0.3], edge_probability=[0.3]
    )
    events = schedule.block(0, 1000)
    assert (events.sample == -1).all()
    assert set(events.actor.tolist()) == {0, 1, 2}


@both
def test_schedule_may_have_only_communications(kind):
    schedule = make_schedule(
        kind,
        seed=1,
        n_nodes=2,
        edges=[[0, 1]],
        node_probability=[0.0, 0.0],
        edge_probability=[1.0],
        samples=AliasTables.build([], [0, 0, 0]),
    )
    assert set(schedule.block(0, 100).actor.tolist()) == {2}
    assert set(schedule.block(0, 100, [1]).actor.tolist()) == {2}


@both
def test_schedule_may_have_a_node_that_nothing_happens_to(kind):
    schedule = make_schedule(
        kind, seed=1, n_nodes=2, edges=[], node_probability=[1.0, 0.0], edge_probability=[]
    )
    assert schedule.block(0, 1000, [1]).time.size == 0
    ((end, events),) = schedule.windows(0, np.inf, [1])  # not for ever
    assert (end, events.time.size) == (np.inf, 0)


@both
def test_schedule_stream_without_an_end_goes_on_where_it_was(kind):
    schedule, _, _ = make(kind)
    stream = schedule.windows(0, np.inf)
    ends, found = [], []
    for end, events in itertools.islice(stream, 3):
        assert abs(events.time.size - 8192) < 600
        found += as_list(events)
        ends.append(end)
    assert sorted(found) == sorted(as_list(schedule.block(0, ends[-1])))


@both
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"n_nodes": 0}, "at least one node"),
        ({"edges": [[0, 2]]}, "every edge"),
        ({"edges": [[1, 1]]}, "every edge"),
        ({"edges": [[0.0, 1.0]]}, "node numbers"),
        ({"node_probability": [0.5]}, "shape"),
        ({"edge_probability": []}, "shape"),
        ({"node_probability": [0.5, 0.6]}, "sum to 1"),
        ({"node_probability": [0.75, -0.25]}, "negative"),
        ({"node_probability": [0.25, np.nan]}, "sum to 1"),
        ({"samples": AliasTables.build([1.0], [0, 1, 1])}, "node 1 has a positive probability"),
        ({"samples": AliasTables.build([1.0], [0, 1], node_ids=[2])}, "name node 2"),
    ],
)
def test_make_schedule_refuses_bad_input(kind, change, match):
    good = {
        "seed": 0,
        "n_nodes": 2,
        "edges": [[0, 1]],
        "node_probability": [0.25, 0.25],
        "edge_probability": [0.5],
    }
    make_schedule(kind, **good)
    with pytest.raises(InputError, match=match):
        make_schedule(kind, **{**good, **change})


@both
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((-1, 3), "start"),
        ((4, 3), "start"),
        ((0, np.nan), "start"),
        ((0, np.inf), "finite"),
        ((0, 3, [6]), "nodes must"),
        ((0, 3, [-1]), "nodes must"),
    ],
)
def test_schedule_block_refuses_bad_ranges(kind, arguments, match):
    with pytest.raises(InputError, match=match):
        make(kind)[0].block(*arguments)


def test_schedule_refuses_half_times_and_unknown_kinds():
    with pytest.raises(InputError, match="whole times"):
        make("iid")[0].block(0.5, 2)
    with pytest.raises(InputError, match="did you mean 'poisson'"):
        make_schedule("poison", seed=0, n_nodes=1, edges=[], node_probability=[1.0], edge_probability=[])


def test_schedule_cannot_be_changed():
    schedule, _, _ = make("iid")
    with pytest.raises(ValueError, match="read-only"):
        schedule.node_probability[0] = 1.0
    with pytest.raises(AttributeError):
        schedule.seed = 3
