"""The rivals of 2019 to 2023: literal twins, rates on other networks, and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from adfs.network import changing_network
from adfs.schedule.events import LOST
from baseline_cases import TARGET, decay, drive, make_case, run_in_blocks, setting_of, slope, start
from literal_rivals import literal_dadao, literal_dvr, literal_gt_saga, literal_opapc, literal_sonata
from schedule_twins import coin, round_samples

RIVALS = ["opapc", "sonata", "dvr", "gt-saga", "dadao"]
INEXACT = 1e-8  # dual gradients are solved to a part of the distance moved


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("graph", [None, "complete:6"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_opapc_is_its_literal_twin(loss, graph):
    problem, network = make_case(loss=loss)
    network = network if graph is None else adfs.Network(graph)
    process = start("opapc", problem, network)
    assert (process.parameters.rounds == 1) == (graph is not None)
    close(drive(process, 40).primal(), literal_opapc(problem, network, process.parameters, 40))
    assert process.work.messages == 40 * process.parameters.rounds * 2 * network.n_edges


@pytest.mark.parametrize("choice", ["theory", "accelerated"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_sonata_is_its_literal_twin(loss, choice):
    problem, network = make_case(loss=loss)
    process = start("sonata", problem, network, choice=choice)
    p = process.parameters
    assert (p.inner > 1) == (choice == "accelerated")
    close(drive(process, 25).primal(), literal_sonata(problem, network, p, 25), INEXACT)
    assert process.work.messages == 25 * 2 * p.rounds * 2 * network.n_edges
    assert process.work.computations == 50 * problem.n_samples


def test_accelerated_sonata_has_its_rate():
    problem, network = make_case(3, loss="squared")
    positions, errors, rho = decay("sonata", problem, network, 0, choice="accelerated")
    assert errors[-1] <= TARGET
    assert slope(positions, errors) >= -np.log1p(-rho)


def test_sonata_measures_how_alike_the_nodes_are():
    problem, network = make_case(loss="squared")
    run = adfs.simulate("sonata", problem, network, max_passes=2)
    own = [s.X.T @ (s.weights[:, None] * s.X) for s in problem.shards]
    own = np.array(own) + problem.sigma[:, None, None] * np.eye(problem.n_features)
    exact = max(np.abs(np.linalg.eigvalsh(each - own.mean(axis=0))).max() for each in own)
    assert exact <= run.parameters.similarity <= exact * problem.n_nodes ** (1 / 32) * (1 + 1e-12)
    assert adfs.simulate("sonata", problem, network, max_passes=2, similarity=3).parameters.similarity == 3.0
    with pytest.raises(adfs.InputError, match="similarity must be finite and at least 0"):
        adfs.simulate("sonata", problem, network, similarity=-1.0)
    # With the same shard at every node the mean of the local solutions is the solution.
    shard = problem.shards[1]
    alike = adfs.Problem.from_shards([shard] * 4, "squared", np.full(4, 0.5))
    run = adfs.simulate("sonata", alike, "complete:4", tol=1e-10)
    assert run.parameters.similarity <= 1e-12 * exact
    assert run.columns["position"][-1] <= 2.0


def draws_of(process, rounds: int) -> list:
    """The samples of each round, None for gossip."""
    window = process.parts.window
    return [None if coin(window, t) < window.p_gossip else round_samples(window, t) for t in range(rounds)]


@pytest.mark.parametrize("choice", ["theory", "paper", "catalyst"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_dvr_is_its_literal_twin(loss, choice):
    problem, network = make_case(5, n=4, m=6, loss=loss)
    process = start("dvr", problem, network, choice=choice)
    draws = draws_of(process, 150)
    assert 0 < sum(samples is None for samples in draws) < 150
    close(drive(process, 150).primal(), literal_dvr(problem, network, process.parameters, draws))
    sampled = [row for samples in draws if samples is not None for row in samples if row >= 0]
    assert process.work.computations == problem.n_samples + len(sampled)


@pytest.mark.parametrize("choice", ["paper", "catalyst"])
def test_dvr_has_its_rate_with_the_paper_s_constants_and_with_catalyst(choice):
    problem, network = make_case(11)
    rates = []
    for seed in range(3):
        positions, errors, rho = decay("dvr", problem, network, seed, choice=choice)
        assert errors[-1] <= TARGET
        rates.append(slope(positions, errors))
    assert np.mean(rates) >= -np.log1p(-rho)


def test_dvr_needs_fewer_gradients_than_extra_and_catalyst_fewer_messages():
    """Figure 1(a) of the paper of DVR: κ_s is about 10 m, and κ_b is far above κ_s/m."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 10)) * np.geomspace(1.0, 0.02, 10)
    y = np.sign(X @ np.linspace(1.0, 10.0, 10) + rng.standard_normal(900))
    problem = adfs.Problem(X, y, sigma=0.04, n_nodes=9)
    network = adfs.Network("erdos-renyi:9,0.5", seed=1)
    passes, messages = [], []
    for choice in ("theory", "catalyst"):
        run = adfs.simulate("dvr", problem, network, parameters=choice, tol=1e-6, max_passes=500)
        assert run.gap <= 1e-6
        passes.append(run.columns["passes"][-1])
        messages.append(run.columns["messages"][-1])
    assert adfs.simulate("extra", problem, network, tol=1e-6, max_passes=2 * passes[0]).gap > 1e-6
    assert passes[1] <= 0.5 * passes[0]
    assert messages[1] <= 0.5 * messages[0]


@pytest.mark.parametrize("choice", ["practical", "theory"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_gt_saga_is_its_literal_twin(loss, choice):
    problem, network = make_case(5, n=4, m=6, loss=loss)
    process = start("gt-saga", problem, network, choice=choice)
    draws = draws_of(process, 150)
    close(drive(process, 150).primal(), literal_gt_saga(problem, network, process.parameters, draws))
    # A message has x and y.
    assert process.work.numbers == process.work.messages * 2 * problem.n_features


@pytest.mark.parametrize("schedule", ["iid", "poisson", "failing"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_dadao_is_its_literal_twin(loss, schedule):
    problem, network = make_case(5, n=4, m=6, loss=loss)
    if schedule == "failing":
        network, schedule = changing_network(["path:4", "star:4"]).losing(0.3), "poisson"
    setting = dataclasses.replace(setting_of("dadao", problem, network), schedule=schedule)
    process = METHODS["dadao"].start(setting)
    block = process.schedule.block(0, 200, nodes=np.arange(4))
    order = np.argsort(block.time, kind="stable")
    order = order[block.sample[order] != LOST]
    events = [(float(block.time[k]), int(block.actor[k])) for k in order]
    drive(process, 200)
    process.position = events[-1][0]
    close(process.primal(), literal_dadao(problem, network, setting.parameters, events))
    computed = [actor for _, actor in events if actor < 4]
    assert process.work.computations == np.diff(problem.node_starts)[computed].sum()


def test_dadao_needs_as_many_gradients_on_a_path_as_on_a_complete_graph():
    """Gradients and exchanges are decoupled: the network decides how often nodes exchange, not compute."""
    problem, _ = make_case(7, n=8)
    passes = []
    for graph in ("path:8", "complete:8"):
        run = adfs.simulate("dadao", problem, graph, schedule="poisson", tol=1e-8, max_passes=5000)
        assert run.gap <= 1e-8
        passes.append(run.columns["passes"][-1])
    assert 0.7 <= passes[0] / passes[1] <= 1.4


def test_dadao_does_not_depend_on_the_scale_of_the_weights():
    """χ1 and χ2 are those of the rates, which stay the same."""
    problem, network = make_case(5)
    heavier = network.with_weights(9 * network.weights)
    one, other = (METHODS["dadao"].parameters(problem, net) for net in (network, heavier))
    np.testing.assert_allclose(other.edge_probability, one.edge_probability, rtol=1e-12)
    assert other.inverse_gap == pytest.approx(one.inverse_gap, rel=1e-12)
    rates = one.edge_probability * one.event_rate
    laplacian = adfs.Network(network, weights=rates).laplacian().toarray()
    assert one.inverse_gap == pytest.approx(1 / np.linalg.eigvalsh(laplacian)[1], rel=1e-9)
    ends = np.eye(6)[network.edges[:, 0]] - np.eye(6)[network.edges[:, 1]]
    resistance = np.einsum("ei,ij,ej->e", ends, np.linalg.pinv(laplacian), ends).max() / 2
    assert one.inverse_gap * resistance == pytest.approx(0.5, rel=1e-9)


def test_dadao_takes_its_constants_from_the_worst_graphs_of_a_network_that_changes():
    problem, _ = make_case(5)
    path, star = adfs.Network("path:6"), adfs.Network("star:6")
    both = METHODS["dadao"].parameters(problem, changing_network([path, star]))
    alone = METHODS["dadao"].parameters(problem, path)
    # The path mixes worst, and on trees all resistances are 1: the rates of its edges are the same.
    assert both.inverse_gap == pytest.approx(alone.inverse_gap, rel=1e-12)
    rates = both.edge_probability * both.event_rate
    np.testing.assert_allclose(rates, (alone.edge_probability * alone.event_rate)[0], rtol=1e-12)


def test_dadao_needs_rows_at_every_node():
    problem, _ = make_case(n=4)
    shard, empty = problem.shards[0], (np.empty((0, 4)), np.empty(0))
    lonely = adfs.Problem.from_shards([shard, empty], sigma=[1.0, 1.0])
    with pytest.raises(adfs.InputError, match="each node needs at least one row"):
        adfs.simulate("dadao", lonely, "path:2")


@pytest.mark.parametrize("graph", ["path:8", "complete:6"])
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_have_their_rate_on_other_networks(name, graph):
    network = adfs.Network(graph)
    problem, _ = make_case(7, n=network.n_nodes, loss="squared")
    positions, errors, rho = decay(name, problem, network, 0)
    assert errors[-1] <= TARGET
    assert slope(positions, errors) >= -np.log1p(-rho)


@pytest.mark.parametrize("name", sorted(set(RIVALS) - {"dadao"}))
def test_rivals_give_the_same_bits_with_nodes_in_several_processes(name):
    problem, network = make_case()
    setting = setting_of(name, problem, network)
    whole = drive(start(name, problem, network), 40).primal()
    np.testing.assert_array_equal(run_in_blocks(setting, name, [[0, 1, 2], [3, 4, 5]], 40), whole)
    np.testing.assert_array_equal(run_in_blocks(setting, name, [[5], [1, 3], [0, 2, 4]], 40), whole)


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_refuse_what_they_cannot_solve(name):
    problem, network = make_case()
    with pytest.raises(adfs.InputError, match="needs at least two of them"):
        adfs.simulate(name, problem.merged(), adfs.Network("path:1"))
    with pytest.raises(adfs.InputError, match="needs a smooth loss and 'hinge' is not"):
        adfs.simulate(name, make_case(loss="hinge")[0], network)
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(adfs.InputError, match="takes no l1 term"):
        adfs.simulate(name, adfs.Problem(X, y, l1=0.1, n_nodes=2), "path:2")
    parameters = setting_of(name, problem, network).parameters
    with pytest.raises(adfs.InputError, match="the contraction must lie in"):
        type(parameters)(**{**vars(parameters), "contraction": 0.0})


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_are_not_chosen_and_print_their_constants(name):
    problem, network = make_case()
    method = METHODS[name]
    assert method.baseline
    assert not method.warm_starts  # which "auto" asks for
    whole = method.parameters(problem, network)
    summary = method.parameters(adfs.theory.summarize(problem), network)
    for field, value in vars(whole).items():
        np.testing.assert_array_equal(value, vars(summary)[field])
    assert f"{whole.contraction:.6g}" in str(whole)
