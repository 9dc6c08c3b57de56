"""The idealised clock: closed forms, its literal twin, and what must not change a time."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from adfs.runtimes.clock import Clock, position_at, retime, with_times
from adfs.runtimes.delays import Delays, Straggler
from adfs.schedule import make_schedule
from adfs.theory import BlockParameters, Parameters, summarize
from baseline_cases import make_case, start
from schedule_twins import coin, draws

FIXED = {"law": "fixed"}


def times_of(name, problem, network, delays, positions, *, seed=0, schedule="iid", choice=None):
    """The times of a method with its default parameters."""
    method = METHODS[name]
    if method.kind == "single":
        parameters = method.parameters(problem.merged(), adfs.Network("path:1"), choice=choice)
    else:
        parameters = method.parameters(problem, network, choice=choice)
    return retime(name, parameters, problem, network, delays, positions, seed=seed, schedule=schedule)


def literal_walk(parameters, network, delays, stop, *, seed=0, blocking=False, schedule="iid", work=None):
    """Fixed delays, event by event in plain Python; every node's time."""
    walk = make_schedule(
        schedule,
        seed=seed,
        n_nodes=network.n_nodes,
        edges=network.edges,
        node_probability=parameters.node_probability,
        edge_probability=parameters.edge_probability,
        faults=network.faults,
    ).block(0, stop)
    n, T = network.n_nodes, [0.0] * network.n_nodes
    tau = np.broadcast_to(delays.tau, (network.n_edges,))
    speed = np.broadcast_to(delays.speed, (n,))
    slow = {one.node: one for one in delays.stragglers}
    for actor in walk.actor:
        if actor < n:
            cost = (1.0 if work is None else float(work[actor])) / speed[actor]
            one = slow.get(int(actor))
            if one is not None and (T[actor] / one.period) % 1.0 < one.share:
                cost *= one.factor
            T[actor] += cost
        else:
            i, j = network.edges[actor - n]
            d = tau[actor - n]
            if blocking:
                T[i] = T[j] = max(T[i], T[j]) + d
            else:
                T[i], T[j] = max(T[i], T[j] + d), max(T[j], T[i] + d)
    return np.array(T)


# --------------------------------------------------------------------------- closed forms


def test_clock_of_two_nodes_with_fixed_delays_has_its_closed_form():
    """Both ends do the same at the same times, so every method has its closed form."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10, 3))
    problem, network = adfs.Problem(X, np.sign(X[:, 0]), n_nodes=2), adfs.Network("path:2")
    delays, at = Delays(tau=3.0, **FIXED), [0, 7, 50]
    m, tau, k = 5.0, 3.0, np.array(at, dtype=float)
    for name, expected in {
        "esdacd": k * (m + tau),
        "msda": k * (m + tau),
        "extra": k * (m + tau),
        "dsba": k * (1.0 + tau),
        "gt-saga": k * (1.0 + tau),
        "opapc": k * (m + tau),
        "sonata": k * (2.0 * m + 2.0 * tau),
        "dagd": k * (m + 2.0 * tau),
        "lbfgs": k * (m + 2.0 * tau),
        "newton": k * ((0.5 * (3.0 + 1.0) + 1.0) * m + 2.0 * tau),
        "interior-point": k * ((0.5 * (3.0 + 1.0) + 3.0) * m + 10.0 * tau),
        "agd": k * 10.0,
        "apcg": k,
        "point-saga": 10.0 + k,
    }.items():
        found = times_of(name, problem, network, delays, at)
        np.testing.assert_array_equal(found.latest, expected, err_msg=name)
        np.testing.assert_array_equal(found.mean, expected, err_msg=name)
    zero = times_of("point-saga", problem, network, delays, at, choice="zero-table")
    np.testing.assert_array_equal(zero.latest, k)


def test_clock_of_block_adfs_follows_its_coins():
    problem, network = make_case()
    parameters = BlockParameters.tuned(problem, network)
    process = start("adfs-block", problem, network, seed=4)
    gossips = np.array([coin(process.parts.window, t) < parameters.p_comm for t in range(200)])
    found = retime("adfs-block", parameters, problem, network, Delays(tau=3.0, **FIXED), [200], seed=4)
    assert found.latest[0] == 3.0 * gossips.sum() + (~gossips).sum()


def test_clock_of_dadao_counts_all_samples_of_a_gradient_and_that_of_dvr_its_first_pass():
    problem, network = make_case()
    sizes, delays = np.diff(problem.node_starts), Delays(tau=3.0, **FIXED)
    parameters = METHODS["dadao"].parameters(problem, network)
    walk = literal_walk(parameters, network, delays, 200, work=sizes)
    found = retime("dadao", parameters, problem, network, delays, [200])
    assert found.latest[0] == walk.max()
    assert times_of("dvr", problem, network, delays, [0]).latest[0] == sizes.max()


def test_clock_of_one_node_takes_the_sum_of_its_draws():
    problem = make_case()[0].merged()
    network = adfs.Network("path:1")
    uniforms = np.array([((draws(9, k, 0, 6 << 24)[0] >> 11) + 1) * 2.0**-53 for k in range(100)])
    found = times_of("adfs", problem, network, Delays(), np.arange(101), seed=9)
    np.testing.assert_allclose(found.latest[1:], np.cumsum(-np.log(uniforms)), rtol=1e-13)


def test_clock_without_communication_lets_nodes_go_their_own_ways():
    problem, network = make_case()
    n = network.n_nodes
    alone = SimpleNamespace(node_probability=np.full(n, 1.0 / n), edge_probability=np.zeros(network.n_edges))
    clock = Clock("adfs", alone, problem, network, Delays(tau=100.0, **FIXED), seed=1)
    clock.advance(500)
    walk = make_schedule("iid", seed=1, n_nodes=n, edges=network.edges, **vars(alone)).block(0, 500)
    np.testing.assert_array_equal(clock.times, np.bincount(walk.actor, minlength=n))


# --------------------------------------------------------------------------- the twin


@pytest.mark.parametrize("schedule", ["iid", "poisson"])
@pytest.mark.parametrize("blocking", [False, True])
def test_clock_times_events_as_its_twin_does(schedule, blocking):
    problem, network = make_case()
    parameters = Parameters.tuned(problem, network)
    rng = np.random.default_rng(2)
    delays = Delays(
        tau=rng.uniform(0.5, 5.0, network.n_edges),
        speed=rng.uniform(0.5, 2.0, network.n_nodes),
        stragglers=(Straggler(2, 5.0, 0.3, 40.0), Straggler(4, 2.0)),
        blocking=blocking,
        **FIXED,
    )
    clock = Clock("adfs", parameters, problem, network, delays, seed=3, schedule=schedule)
    clock.advance(400.0)
    expected = literal_walk(parameters, network, delays, 400.0, seed=3, blocking=blocking, schedule=schedule)
    np.testing.assert_allclose(clock.times, expected, rtol=1e-12)


def test_clock_rounds_wait_for_neighbours_and_for_nobody_else():
    problem, _ = make_case(n=5)
    network = adfs.Network("path:5")
    delays = Delays(tau=[1.0, 2.0, 3.0, 4.0], speed=[1.0, 1.0, 1.0, 1.0, 0.01], **FIXED)
    clock = Clock("extra", METHODS["extra"].parameters(problem, network), problem, network, delays)
    sizes, T = np.diff(problem.node_starts), np.zeros(5)
    for _ in range(3):
        T = T + sizes / delays.speed
        old = T.copy()
        for (i, j), d in zip(network.edges, delays.tau, strict=True):
            T[i], T[j] = max(T[i], old[j] + d), max(T[j], old[i] + d)
    clock.advance(3)
    np.testing.assert_allclose(clock.times, T, rtol=1e-13)
    # After three rounds the slow end of the path is felt three edges away, and not at the other end.
    assert clock.times[0] < sizes[4] / 0.01 < clock.times[1]


def test_schedule_is_the_same_with_and_without_sampling_tables():
    problem, network = make_case()
    for kind in ("iid", "poisson"):
        process = METHODS["adfs"].start(
            adfs.algorithms.Setting(problem, network, Parameters.tuned(problem, network), 5, kind)
        )
        bare = dataclasses.replace(process.schedule, samples=None)
        for a, b in zip(bare.block(0, 300)[:2], process.schedule.block(0, 300)[:2], strict=True):
            np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------- what holds for all


@pytest.mark.parametrize("name", ["adfs", "adfs-block", "msda", "esdacd", "dagd", "point-saga"])
def test_clock_times_are_the_same_again_and_wherever_one_looks(name):
    problem, network = make_case()
    positions = [0, 1, 17, 60, 60, 200]
    first = times_of(name, problem, network, Delays(tau=4.0), positions, seed=8)
    again = times_of(name, problem, network, Delays(tau=4.0), positions, seed=8)
    at_once = times_of(name, problem, network, Delays(tau=4.0), [200], seed=8)
    np.testing.assert_array_equal(first.latest, again.latest)
    assert first.latest[-1] == at_once.latest[0]
    assert (np.diff(first.latest) >= 0.0).all()
    assert (first.mean <= first.latest).all()
    other = times_of(name, problem, network, Delays(tau=4.0, seed=1), positions, seed=8)
    assert other.latest[-1] != first.latest[-1]


def test_clock_times_of_poisson_events_are_the_same_wherever_one_looks():
    problem, network = make_case()
    many = times_of("adfs", problem, network, Delays(tau=4.0), np.linspace(0, 300, 41), schedule="poisson")
    once = times_of("adfs", problem, network, Delays(tau=4.0), [300.0], schedule="poisson")
    assert many.latest[-1] == once.latest[0]


@pytest.mark.parametrize("law", ["fixed", "exponential"])
@pytest.mark.parametrize("name", ["adfs", "msda", "adfs-block", "dagd"])
def test_clock_times_are_homogeneous_in_all_delays_and_grow_with_tau(name, law):
    problem, network = make_case()
    at = np.arange(0, 300, 30)
    one = times_of(name, problem, network, Delays(tau=3.0, law=law), at).latest
    double = times_of(name, problem, network, Delays(tau=6.0, law=law, speed=0.5), at).latest
    np.testing.assert_array_equal(double, 2.0 * one)
    last = np.zeros(at.size)
    for tau in (0.0, 1.0, 3.0, 10.0):
        now = times_of(name, problem, network, Delays(tau=tau, law=law), at).latest
        assert (now >= last).all()
        last = now


def test_clock_takes_longer_with_blocking_and_stragglers():
    problem, network = make_case()
    at = np.arange(0, 2000, 100)
    free = times_of("adfs", problem, network, Delays(tau=3.0, **FIXED), at).latest
    blocked = times_of("adfs", problem, network, Delays(tau=3.0, blocking=True, **FIXED), at).latest
    assert (blocked >= free).all()
    assert blocked[-1] > 1.05 * free[-1]
    slow = Delays(tau=3.0, stragglers=(Straggler(0, 10.0, 0.5, 100.0),), **FIXED)
    assert times_of("adfs", problem, network, slow, at).latest[-1] > 1.05 * free[-1]


def test_position_at_turns_a_budget_of_time_into_one_of_events():
    problem, network = make_case()
    for name, schedule in (("adfs", "iid"), ("adfs", "poisson"), ("msda", "iid")):
        parameters = METHODS[name].parameters(problem, network)
        clock = Clock(name, parameters, problem, network, Delays(tau=2.0), seed=1, schedule=schedule)
        found = position_at(clock, 1234.5)
        assert clock.position == found
        assert clock.latest <= 1234.5
        in_steps = clock.schedule is None or clock.schedule.kind == "iid"
        clock.advance(np.floor(found) + 1.0 if in_steps else found + 5.0)
        assert clock.latest > 1234.5
    with pytest.raises(adfs.InputError, match="budget of time must be finite"):
        position_at(clock, 1.0)


def test_with_times_gives_a_run_its_times_and_others_for_another_tau():
    problem, network = make_case()
    for name in ("adfs", "point-saga", "agd", "dsba"):
        run = adfs.simulate(name, problem, network, seed=2, max_passes=20)
        near, far = (with_times(run, problem, network, Delays(tau=tau)) for tau in (1.0, 10.0))
        assert list(near.frame["position"]) == list(run.frame["position"])
        np.testing.assert_array_equal(near.theta, run.theta)
        assert (np.diff(near.frame["time"]) >= 0.0).all()
        assert (near.frame["time_mean"] <= near.frame["time"]).all()
        if METHODS[name].kind == "single":
            assert list(far.frame["time"]) == list(near.frame["time"])
        else:
            assert far.frame["time"].iloc[-1] > near.frame["time"].iloc[-1]
        assert near.details["delays"] == "Delays(tau=1, law='exponential')"
    assert list(with_times(near, problem, network, Delays(tau=10.0)).frame["time"]) == list(far.frame["time"])


def test_clock_needs_the_sizes_of_the_nodes_and_no_other_data():
    problem, network = make_case()
    for name in ("msda", "esdacd", "point-saga", "agd"):
        a = times_of(name, problem, network, Delays(), [0, 30])
        whole = problem.merged() if METHODS[name].kind == "single" else problem
        place = adfs.Network("path:1") if METHODS[name].kind == "single" else network
        parameters = METHODS[name].parameters(whole, place)
        b = retime(name, parameters, summarize(problem), network, Delays(), [0, 30])
        np.testing.assert_array_equal(a.latest, b.latest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": -1.0}, "tau must be finite and at least 0"),
        ({"tau": [1.0, 2.0]}, "tau must be one number or one per edge"),
        ({"speed": 0.0}, "speed must be finite and above 0"),
        ({"law": "fixd"}, "unknown law of delays 'fixd': did you mean 'fixed'"),
        ({"batch": "sum"}, "unknown kind of batch"),
        ({"stragglers": (Straggler(99, 2.0),)}, "no node 99"),
        ({"stragglers": (Straggler(1, 0.0),)}, "factor above 0"),
        ({"stragglers": (Straggler(1, 2.0), Straggler(1, 3.0))}, "once only"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_delays_refuse_what_makes_no_sense(change, message):
    problem, network = make_case()
    with pytest.raises(adfs.InputError, match=message):
        Clock("adfs", Parameters.tuned(problem, network), problem, network, Delays(**change))


def test_clock_positions_must_go_forward():
    problem, network = make_case()
    with pytest.raises(adfs.InputError, match="do not decrease"):
        times_of("adfs", problem, network, Delays(), [5, 3])
    clock = Clock("adfs", Parameters.tuned(problem, network), problem, network, Delays())
    clock.advance(10)
    with pytest.raises(adfs.InputError, match="cannot go back"):
        clock.advance(5)
