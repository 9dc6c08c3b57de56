"""The baselines against their literal twins, and against themselves with the nodes in several processes."""

from __future__ import annotations

import numpy as np
import pytest

import adfs
from adfs.errors import InputError
from adfs.theory import DsbaParameters, EsdacdParameters, MsdaParameters, PointSagaParameters
from baseline_cases import drive, loss_of, make_case, run_in_blocks, setting_of, start
from literal_methods import (
    LiteralEsdacd,
    literal_agd,
    literal_dsba,
    literal_extra,
    literal_msda,
    literal_point_saga,
)
from schedule_twins import round_samples

INEXACT = 1e-8  # dual gradients are solved to a part of the distance moved


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-11) -> None:
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("choice", [None, "ssda"])
def test_msda_is_its_literal_twin(choice):
    problem, network = make_case()
    process = start("msda", problem, network, choice=choice)
    assert (process.parameters.rounds == 1) == (choice == "ssda")
    close(drive(process, 25).primal(), literal_msda(problem, network, process.parameters, 25), INEXACT)


def test_msda_with_the_option_rounds_is_ssda():
    problem, network = make_case()
    a = start("msda", problem, network, rounds=1)
    b = start("msda", problem, network, choice="ssda")
    np.testing.assert_array_equal(drive(a, 5).primal(), drive(b, 5).primal())
    with pytest.raises(InputError, match="rounds must be a whole number of at least 1"):
        MsdaParameters.theory(problem, network, rounds=0)


@pytest.mark.parametrize("graph", ["complete:4", "path:2", "path:1"])
def test_msda_reaches_the_optimum_where_one_round_averages_exactly(graph):
    network = adfs.Network(graph)
    problem, _ = make_case(n=network.n_nodes)
    process = drive(start("msda", problem, network), 300)
    assert process.parameters.rounds == 1
    assert np.abs(process.primal() - problem.optimum().theta).max() <= 1e-7


@pytest.mark.parametrize("choice", ["theory", "paper"])
def test_esdacd_is_its_literal_twin(choice):
    problem, network = make_case(4, n=4, m=6)
    setting = setting_of("esdacd", problem, network, choice=choice)
    literal = LiteralEsdacd(problem, network, setting.parameters)
    v = y = np.zeros((4, problem.n_features))
    process = start("esdacd", problem, network, choice=choice)
    for actor in process.schedule.block(0, 150).actor:
        v, y = literal.step(v, y, int(actor) - 4)
    drive(process, 150)
    # y is x after one more idle event, and v − y the lag after it but for the weights.
    theta = setting.parameters.contraction
    factor = np.exp(process.parts.log_decay * (150 - process.state.time))[:, None]
    mean, lag = process.state.mean, factor * process.state.lag
    close(mean + 0.5 * lag, v, INEXACT)
    close(mean - 0.5 * (1 - theta) / (1 + theta) * lag, y, INEXACT)


def test_esdacd_counts_the_samples_of_both_ends_and_needs_two_nodes():
    problem, network = make_case(4, n=4, m=6)
    process = drive(start("esdacd", problem, network), 50)
    edges = network.edges[process.schedule.block(0, 50).actor - 4]
    assert process.work.computations == np.diff(problem.node_starts)[edges].sum()
    assert process.work.messages == 100
    with pytest.raises(InputError, match="at least two nodes"):
        EsdacdParameters.theory(problem.merged(), adfs.Network("path:1"))


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_dsba_is_its_literal_twin(loss):
    problem, network = make_case(5, n=4, m=6, loss=loss)
    process = start("dsba", problem, network)
    draws = [round_samples(process.parts.window, t) for t in range(200)]
    close(
        drive(process, 200).primal(),
        literal_dsba(problem, network, setting_of("dsba", problem, network).parameters, draws),
    )


def test_dsba_takes_four_times_the_theory_s_step_unless_told_otherwise():
    problem, network = make_case()
    theory = DsbaParameters.theory(problem, network)
    assert start("dsba", problem, network).step == 4.0 * theory.step
    assert start("dsba", problem, network, step_factor=1).step == theory.step
    assert start("dsba", problem, network, choice="theory").step == theory.step
    with pytest.raises(InputError, match="step_factor must be finite and above 0"):
        start("dsba", problem, network, step_factor=0.0)


def test_extra_is_its_literal_twin():
    problem, network = make_case()
    process = start("extra", problem, network)
    parameters = setting_of("extra", problem, network).parameters
    close(drive(process, 60).primal(), literal_extra(problem, network, parameters, 60))


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("choice", ["theory", "zero-table"])
def test_point_saga_is_its_literal_twin(loss, choice):
    problem, network = make_case(6, n=3, m=6, loss=loss)
    process = start("point-saga", problem, network, choice=choice)
    # Long enough for the stored part of the iterate to be folded in many times.
    samples = process.schedule.block(0, 4000).sample
    close(drive(process, 4000).primal()[0], literal_point_saga(problem.merged(), process.parameters, samples))
    assert process.work.computations == 4000 + (problem.n_samples if choice == "theory" else 0)


def test_point_saga_has_the_printed_step():
    problem, network = make_case()
    found = PointSagaParameters.theory(problem, network)
    n, mu, largest = found.n_terms, found.curvature, found.smoothness
    printed = np.sqrt((n - 1) ** 2 + 4 * n * largest / mu) / (2 * largest * n) - (1 - 1 / n) / (2 * largest)
    assert found.step == pytest.approx(printed, rel=1e-12)


def test_agd_is_its_literal_twin_on_one_machine_and_over_a_network():
    problem, network = make_case()
    process = start("agd", problem, network)
    close(drive(process, 40).primal()[0], literal_agd(problem, process.parameters, 40))
    spread = drive(start("dagd", problem, network), 40)
    close(spread.primal()[0], literal_agd(problem, spread.parameters, 40))
    assert (spread.primal() == spread.primal()[0]).all()
    assert spread.work.messages == 40 * 2 * (network.n_nodes - 1)


ROUNDS = ["adfs-block", "msda", "dsba", "extra", "dagd", "esdacd", "newton", "lbfgs", "interior-point"]


@pytest.mark.parametrize("name", ROUNDS)
def test_methods_give_the_same_bits_with_nodes_in_several_processes(name):
    problem, network = make_case(loss=loss_of(name))
    setting = setting_of(name, problem, network)
    whole = drive(start(name, problem, network), 30).primal()
    np.testing.assert_array_equal(run_in_blocks(setting, name, [[0, 1, 2], [3, 4, 5]], 30), whole)
    np.testing.assert_array_equal(run_in_blocks(setting, name, [[5], [1, 3], [0, 2, 4]], 30), whole)
