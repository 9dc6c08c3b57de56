"""An event-driven method from outside the package runs compiled, in one process and on ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import adfs
from adfs.algorithms import METHODS, EventProcess, Setting, register_kernels
from adfs.algorithms.method_kernels import execute, fill_message, take_message
from adfs.compilation import kernel
from mpi_launch import launch
from outside_events import MeanProcess, PairwiseMeans, problem_of, shard

NETWORK = adfs.Network("cycle:4")


@kernel
def _as_a_compiled_exchange_does(parts, times, actors, drawn, edge, i, time, out, other):
    done = execute(parts, times, actors, drawn, 0, times.size)
    fill_message(parts, i, time, out)
    take_message(parts, edge, i, time, out, other)
    return done


# The kernels of ESDACD take the longest to compile.
@pytest.mark.parametrize(
    "name", ["pairwise-means", "adfs", "ns-adfs", pytest.param("esdacd", marks=pytest.mark.soak)]
)
def test_outside_method_kernels_are_called_by_compiled_code(name: str) -> None:
    """Nodes 0 and 1 of a cycle of 4: compiled code, and the process itself, up to an exchange and over it."""
    method = METHODS.get(name) or PairwiseMeans()
    whole = problem_of(range(4))
    constants = method.parameters(whole, NETWORK)
    block = np.array([0, 1])
    twins = [
        method.start(Setting(problem_of(range(2)), NETWORK, constants, 3, nodes=block)) for _ in range(2)
    ]
    events = twins[0].schedule.block(0, 500, block)
    other = np.array([0.3, -0.2, 0.1])
    for process in twins:
        assert isinstance(process, EventProcess)
    stopped = twins[0].run(events, 0, events.time.size)
    edge, time = int(events.actor[stopped]) - 4, float(events.time[stopped])
    own = twins[0].outgoing(edge, time)
    twins[0].incoming(edge, time, own, other)
    out = np.empty(3)
    ends = (edge, twins[1].end(edge), time, out, other)
    assert _as_a_compiled_exchange_does(twins[1].parts, *events, *ends) == stopped
    assert out.tobytes() == own.tobytes()
    for first, second in zip(twins[0].arrays().values(), twins[1].arrays().values(), strict=True):
        assert first.tobytes() == second.tobytes()


def test_outside_method_runs_and_gets_near_the_optimum() -> None:
    problem = problem_of(range(4))
    run = adfs.simulate(PairwiseMeans(), problem, NETWORK, max_passes=200.0, record=("suboptimality",))
    found = run.frame["suboptimality"]
    assert found.iloc[-1] < 0.05 * found.iloc[0]


@pytest.mark.mpi
@pytest.mark.soak
def test_outside_method_on_two_ranks_has_the_bits_of_one_process(tmp_path: Path) -> None:
    shards = [shard(node) for node in range(4)]
    problem = adfs.Problem.from_shards(shards, "squared", 0.1)
    run = adfs.simulate(PairwiseMeans(), problem, NETWORK, max_passes=20.0, seed=1)
    script = Path(__file__).parents[1] / "outside_events.py"
    found = launch(2, [sys.executable, str(script)], timeout=200.0).results
    assert np.array(found["theta"]).tobytes() == run.theta.tobytes()


def test_register_kernels_needs_parts_that_numba_knows() -> None:
    with pytest.raises(adfs.InputError, match="must be a NamedTuple, got list"):
        register_kernels(list, MeanProcess.kernels)
