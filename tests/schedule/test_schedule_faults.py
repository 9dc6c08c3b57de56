"""Exchanges that are lost, and edges that are there in some windows only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from adfs.errors import InputError
from adfs.network import Network, changing_network
from adfs.schedule import AliasTables, frame, make_schedule
from adfs.schedule.events import LOST
from schedule_twins import poisson_events

CHANGING = changing_network(["path:4", "star:4", [(0, 3)]], window=30.0, n_nodes=4)


def make(network, seed=5, *, kind="poisson"):
    rng = np.random.default_rng(3)
    p = rng.uniform(0.5, 1.5, network.n_nodes + network.n_edges)
    p /= p.sum()
    n = network.n_nodes
    return make_schedule(
        kind,
        seed=seed,
        n_nodes=n,
        edges=network.edges,
        node_probability=p[:n],
        edge_probability=p[n:],
        samples=AliasTables.build(np.ones(3 * n), 3 * np.arange(n + 1)),
        faults=network.faults,
    )


def as_list(events):
    return list(zip(*(array.tolist() for array in events), strict=True))


@pytest.mark.parametrize("network", [Network("grid:2x2").losing(0.3), CHANGING, CHANGING.losing(0.6)])
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_failing_schedule_equals_its_literal_twin(network, seed):
    schedule = make(network, seed)
    events = schedule.block(40.0, 400.0)
    assert sorted(as_list(events)) == poisson_events(schedule, 40.0, 400.0)
    assert [array.dtype for array in events] == [np.float64, np.int32, np.int32]
    assert (LOST in events.sample) == (network.lost > 0.0)


def test_failing_schedule_is_the_same_in_parts_and_at_both_ends_of_an_edge():
    schedule = make(CHANGING.losing(0.4))
    whole = schedule.block(0.0, 900.0)
    parts = [schedule.block(a, b) for a, b in itertools.pairwise([0.0, 17.3, 30.0, 444.4, 900.0])]
    assert sorted(event for part in parts for event in as_list(part)) == sorted(as_list(whole))
    alone = [set(as_list(schedule.block(0.0, 900.0, [node]))) for node in range(4)]
    for node, events in enumerate(alone):
        touching = {node, *(4 + e for e, ends in enumerate(schedule.edges.tolist()) if node in ends)}
        assert events == {event for event in as_list(whole) if event[1] in touching}


def test_failing_schedule_lets_as_many_exchanges_through_as_if_none_were_lost():
    """What gets through is a Poisson process of the rate p_e, and so is what is lost, of its own rate."""
    schedule = make(Network("cycle:3").losing(0.3), seed=11)
    stop = 60_000.0
    events = schedule.block(0.0, stop)
    for actor, p in enumerate(schedule.probability):
        mine = events.actor == actor
        through = events.time[mine & (events.sample != LOST)]
        assert stats.kstest(np.diff(through) * p, "expon").pvalue > 1e-3
        failed = np.count_nonzero(mine & (events.sample == LOST))
        expected = 0.0 if actor < 3 else stop * p * 0.3 / 0.7
        assert abs(failed - expected) <= 4.5 * np.sqrt(expected)
    # Whether an exchange fails does not depend on those before it.
    flags = (events.sample == LOST)[events.actor == 4].astype(float)
    assert abs(stats.pearsonr(flags[:-1], flags[1:]).statistic) < 4.0 / np.sqrt(flags.size)


def test_failing_schedule_rings_as_without_a_loss_at_the_same_rates():
    """A larger loss speeds up the clocks of edges and leaves those of nodes alone."""
    few, many = (make(Network("cycle:3").losing(lost)).block(0.0, 500.0) for lost in (0.1, 0.9))
    computations = [sorted(event for event in as_list(events) if event[1] < 3) for events in (few, many)]
    assert computations[0] == computations[1]
    ratio = np.count_nonzero(many.actor >= 3) / np.count_nonzero(few.actor >= 3)
    assert 7.5 < ratio < 10.5


def test_changing_schedule_exchanges_on_the_edges_of_the_window_only():
    schedule = make(CHANGING)
    events = schedule.block(0.0, 3000.0)
    exchanges = events.actor >= 4
    graph = (events.time[exchanges] // 30.0).astype(int) % 3
    seen = np.zeros((3, CHANGING.n_edges), dtype=bool)
    seen[graph, events.actor[exchanges] - 4] = True
    assert np.array_equal(seen, CHANGING.faults.present)


def test_frame_names_lost_exchanges():
    table = frame(make(Network("cycle:3").losing(0.5)), first=200)
    assert set(table["kind"]) == {"compute", "exchange", "lost"}
    assert (table.loc[table["kind"] != "compute", "edge"] >= 0).all()


@pytest.mark.parametrize("network", [Network("cycle:3").losing(0.5), CHANGING])
def test_iid_schedule_refuses_edges_that_fail(network):
    with pytest.raises(InputError, match=r"the iid schedule has no lost exchanges .* use schedule='poisson'"):
        make(network, kind="iid")
