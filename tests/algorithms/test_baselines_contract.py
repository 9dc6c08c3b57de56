"""What every registered method keeps: bits, storage, resuming, and no compilation the second time."""

from __future__ import annotations

import numba.core.event
import numpy as np
import pytest
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS, get_method
from baseline_cases import drive, loss_of, make_case, start

ALL = sorted(METHODS)
STOP = 60


def test_get_method_knows_the_names_people_type():
    assert {
        "adfs",
        "adfs-block",
        "ns-adfs",
        "msda",
        "esdacd",
        "dsba",
        "extra",
        "point-saga",
        "agd",
        "apcg",
    } <= set(ALL)
    with pytest.raises(adfs.InputError, match="did you mean 'esdacd'"):
        get_method("esdadc")


@pytest.mark.parametrize("name", ALL)
def test_methods_give_the_same_bits_again_and_compile_once(name):
    problem, network = make_case(loss=loss_of(name))
    first = adfs.simulate(name, problem, network, seed=5, events=STOP)
    other, _ = make_case(12, loss=loss_of(name))
    with numba.core.event.install_recorder("numba:compile") as recorder:
        adfs.simulate(name, other, network, seed=6, events=STOP)
        second = adfs.simulate(name, problem, network, seed=5, events=STOP)
    assert not recorder.buffer
    np.testing.assert_array_equal(first.theta, second.theta)
    np.testing.assert_array_equal(
        first.frame.drop(columns="seconds").to_numpy(), second.frame.drop(columns="seconds").to_numpy()
    )


@pytest.mark.parametrize("name", ALL)
def test_methods_give_the_same_bits_on_dense_and_sparse_rows(name):
    problem, network = make_case(loss=loss_of(name))
    stored = [(sp.csr_array(shard.X), shard.y, shard.weights) for shard in problem.shards]
    sparse = adfs.Problem.from_shards(stored, loss=loss_of(name), sigma=problem.sigma)
    # The same constants: eigenvalues of sparse Gram matrices may differ in the last digit.
    setting = {"choice": start_parameters(name, problem, network)}
    a = drive(start(name, problem, network, **setting), STOP).primal()
    b = drive(start(name, sparse, network, **setting), STOP).primal()
    np.testing.assert_array_equal(a, b)


def start_parameters(name: str, problem: adfs.Problem, network: adfs.Network) -> object:
    method = METHODS[name]
    if method.kind == "single":
        return method.parameters(problem.merged(), adfs.Network("path:1"))
    return method.parameters(problem, network)


@pytest.mark.parametrize("name", ALL)
def test_methods_resume_exactly(name):
    problem, network = make_case(loss=loss_of(name))
    whole = drive(start(name, problem, network, seed=2), STOP)
    before = drive(start(name, problem, network, seed=2), STOP // 3)
    before.primal()  # looking changes nothing
    kept = {key: array.copy() for key, array in before.arrays().items()}
    after = start(name, problem, network, seed=2)
    for key, array in after.arrays().items():
        array[...] = kept[key]
    after.position, after.work = before.position, before.work
    drive(after, STOP)
    np.testing.assert_array_equal(after.primal(), whole.primal())
    assert after.work == whole.work
    for key, array in after.arrays().items():
        np.testing.assert_array_equal(array, whole.arrays()[key])


@pytest.mark.parametrize("name", ALL)
def test_methods_take_about_as_many_passes_as_asked(name):
    problem, network = make_case(loss=loss_of(name))
    run = adfs.simulate(name, problem, network, max_passes=40.0)
    assert 0.7 * 40 <= run.frame["passes"].iloc[-1] <= 1.3 * 40
