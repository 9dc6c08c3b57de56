"""The rivals of 2019 to 2023: literal twins, rates on other networks, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS
from baseline_cases import TARGET, decay, drive, make_case, run_in_blocks, setting_of, slope, start
from literal_rivals import literal_opapc

RIVALS = ["opapc"]


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


@pytest.mark.parametrize("graph", ["path:8", "complete:6"])
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_have_their_rate_on_other_networks(name, graph):
    network = adfs.Network(graph)
    problem, _ = make_case(7, n=network.n_nodes, loss="squared")
    positions, errors, rho = decay(name, problem, network, 0)
    assert errors[-1] <= TARGET
    assert slope(positions, errors) >= -np.log1p(-rho)


@pytest.mark.parametrize("name", RIVALS)
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
