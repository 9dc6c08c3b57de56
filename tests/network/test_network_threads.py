"""Numbers that enter a run are the same whatever the number of BLAS threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_info

from adfs.threads import single_threaded

PRINTED = """
import numpy as np
import adfs
from adfs.network import resistances
from adfs.theory import BlockParameters

for name in ("grid:5x10", "random-regular:300,4", "grid:25x40", "random-regular:12000,4"):
    network = adfs.Network(name)
    n = network.n_nodes
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3 * n, 3)) * np.exp(rng.uniform(-3.0, 3.0, (3 * n, 1)))
    problem = adfs.Problem(X, np.sign(X[:, 0]), n_nodes=n)
    print(name, network.gamma.hex(), network.resistances.values.tobytes().hex())
    for make in (adfs.Parameters.tuned, adfs.Parameters.paper, BlockParameters.tuned):
        parameters = make(problem, network, tau=3.0)
        for key, value in vars(parameters).items():
            print(key, value.tobytes().hex() if isinstance(value, np.ndarray) else value)
"""


def printed(threads: int) -> str:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", PRINTED], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_network_numbers_have_the_same_bits_for_any_number_of_threads() -> None:
    one = printed(1)
    assert len(one) > 10_000
    assert printed(4) == one


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_single_threaded_limits_threads_inside_and_restores_them_after() -> None:
    before = blas_threads()

    @single_threaded
    def inside() -> set[int]:
        return blas_threads()

    with single_threaded:
        assert inside() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before
    with pytest.raises(ValueError, match="as told"), single_threaded:
        raise ValueError("as told")
    assert blas_threads() == before
