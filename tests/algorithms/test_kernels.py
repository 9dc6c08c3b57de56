"""The compiled kernels against their literal twins, over the events of real schedules."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from adfs.algorithms import METHODS, Setting, Work
from adfs.network import Network
from adfs.problem import LOSSES, Multinomial, Problem
from adfs.theory import AugmentedGraph, BlockParameters, NonSmoothParameters, Parameters
from baseline_cases import gossip_here
from literal_adfs import MeanLagAdfs
from literal_methods import LiteralBlockAdfs, VelocityNsAdfs
from loss_cases import ONE_OUTPUT, few_of
from schedule_twins import coin, round_samples

EVENTS = 10_000
SMOOTH = [name for name in ONE_OUTPUT if LOSSES[name]().smooth]
NETWORKS = {1: "path:1", 4: "star:4", 9: "grid:3x3"}


def make_problem(loss: str, n: int, *, sparse: bool = False, d: int = 3) -> Problem:
    """Nodes of one to four samples, some entries zero, weights and σ_i all different."""
    rng = np.random.default_rng([n, d, sorted(ONE_OUTPUT).index(loss)])
    shards = []
    for _ in range(n):
        m = int(rng.integers(1, 5))
        X = rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.7)
        y = rng.standard_normal(m)
        y = np.where(y > 0, 1.0, -1.0) if LOSSES[loss].task == "classification" else y
        shards.append((sp.csr_array(X) if sparse else X, y, rng.uniform(0.3, 2.0, m)))
    return Problem.from_shards(shards, loss=loss, sigma=rng.uniform(0.3, 2.0, n))


def widened(problem: Problem) -> Problem:
    """Return the same problem of sparse rows with one more column, which is empty."""
    rows = [shard.X for shard in problem.shards]
    wider = [sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], X.shape[1] + 1)) for X in rows]
    shards = [(X, shard.y, shard.weights) for X, shard in zip(wider, problem.shards, strict=True)]
    return Problem.from_shards(shards, loss=problem.loss, sigma=problem.sigma)


def run_kernel(method: str, setting: Setting, stop: float):
    return drive(METHODS[method].start(setting), stop)


def drive(process, stop: float):
    for end, events in process.schedule.windows(0.0, stop):
        assert process.run(events, 0, events.time.size) == events.time.size
        process.position = end
    return process


def augmented_events(graph: AugmentedGraph, process, stop: float):
    """The same events as (augmented edge, time), for the literal twin."""
    dual_of_row = np.full(graph.problem.n_samples, -1)
    dual_of_row[graph.tip_rows] = np.arange(graph.n_tips)
    n = graph.n_centers
    for _, events in process.schedule.windows(0.0, stop):
        for time, actor, sample in zip(*(array.tolist() for array in events), strict=True):
            edge = actor - n if actor >= n else graph.n_communication + dual_of_row[sample]
            yield edge, time


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(1e-300, np.abs(expected).max()))


def duals_as_vectors(problem: Problem, scalars: np.ndarray) -> np.ndarray:
    rows = problem.X.toarray() if problem.sparse else problem.X
    return (scalars[:, None] * rows)[problem.active]


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("schedule", ["iid", "poisson"])
@pytest.mark.parametrize("loss", few_of(SMOOTH))
def test_adfs_is_its_twin(loss: str, schedule: str, n: int) -> None:
    problem, network = make_problem(loss, n), Network(NETWORKS[n])
    parameters = Parameters.tuned(problem, network)
    setting = Setting(problem, network, parameters, seed=n, schedule=schedule)
    process = run_kernel("adfs", setting, EVENTS)
    graph = AugmentedGraph(problem, network, parameters)
    twin = MeanLagAdfs(graph)
    state = twin.start()
    for edge, time in augmented_events(graph, process, EVENTS):
        state = twin.step(state, edge, time)
    expected = twin.iterates(state, EVENTS)
    assert relative(process.primal("x") * problem.sigma[:, None], expected.x[:n]) < 1e-12
    assert relative(process.primal("v") * problem.sigma[:, None], expected.v[:n]) < 1e-12
    assert relative(duals_as_vectors(problem, process.dual()), expected.x[n:]) < 1e-12
    sparse = run_kernel(
        "adfs", Setting(make_problem(loss, n, sparse=True), network, parameters, n, schedule), EVENTS
    )
    assert np.array_equal(sparse.primal(), process.primal()), "dense and CSR must give the same bits"
    assert np.array_equal(sparse.dual(), process.dual())


def make_multinomial(n: int, classes: int, *, sparse: bool = False) -> Problem:
    rng = np.random.default_rng([n, classes])
    shards = []
    for _ in range(n):
        m = int(rng.integers(1, 5))
        X = rng.standard_normal((m, 3)) * (rng.random((m, 3)) < 0.7)
        y = rng.integers(classes, size=m).astype(float)
        shards.append((sp.csr_array(X) if sparse else X, y, rng.uniform(0.3, 2.0, m)))
    return Problem.from_shards(shards, Multinomial(classes), rng.uniform(0.3, 2.0, n))


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (4, 3), (9, 7)])
@pytest.mark.parametrize("kind", ["tuned", "paper"])
def test_adfs_with_several_outputs_is_its_twin(n: int, classes: int, kind: str) -> None:
    """The twin works on vectors of θ's space and solves each prox with a dense matrix."""
    stop = 3000
    problem, network = make_multinomial(n, classes), Network(NETWORKS[n])
    parameters = METHODS["adfs"].parameters(problem, network, choice=kind)
    process = run_kernel("adfs", Setting(problem, network, parameters, seed=n), stop)
    graph = AugmentedGraph(problem, network, parameters)
    twin = MeanLagAdfs(graph)
    state = twin.start()
    for edge, time in augmented_events(graph, process, stop):
        state = twin.step(state, edge, time)
    expected = twin.iterates(state, stop)
    sigma = problem.sigma[:, None]
    assert relative(process.primal("x") * sigma, expected.x[:n]) < 1e-11
    assert relative(process.primal("v") * sigma, expected.v[:n]) < 1e-11
    vectors = np.einsum("jk,jp->jkp", process.dual(), problem.X).reshape(problem.n_samples, -1)
    assert relative(vectors[problem.active], expected.x[n:]) < 1e-11
    other = Setting(make_multinomial(n, classes, sparse=True), network, parameters, seed=n)
    sparse = run_kernel("adfs", other, stop)
    assert np.array_equal(sparse.primal(), process.primal()), "dense and CSR must give the same bits"
    assert np.array_equal(sparse.dual(), process.dual())


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("schedule", ["iid", "poisson"])
@pytest.mark.parametrize("loss", few_of(ONE_OUTPUT))
def test_ns_adfs_is_its_twin(loss: str, schedule: str, n: int) -> None:
    problem, network = make_problem(loss, n), Network(NETWORKS[n])
    parameters = NonSmoothParameters.paper(problem, network)
    setting = Setting(problem, network, parameters, seed=n, schedule=schedule)
    process = run_kernel("ns-adfs", setting, EVENTS)
    graph = AugmentedGraph(problem, network, parameters)
    twin = VelocityNsAdfs(graph)
    state = twin.start()
    for edge, time in augmented_events(graph, process, EVENTS):
        state = twin.step(state, edge, time - 1.0)
    expected = twin.iterates(state, EVENTS)
    assert relative(process.primal("x") * problem.sigma[:, None], expected.x[:n]) < 1e-12
    # v takes steps that grow with t, and with them the rounding of what they multiply.
    assert relative(process.primal("v") * problem.sigma[:, None], expected.v[:n]) < 1e-11
    sparse = make_problem(loss, n, sparse=True)
    other = run_kernel("ns-adfs", Setting(sparse, network, parameters, n, schedule), EVENTS)
    assert np.array_equal(other.primal(), process.primal())
    assert np.array_equal(other.dual(), process.dual())


def count_rounds(process, network: Network, parameters: BlockParameters, rounds: int) -> Work:
    """What block ADFS must have done, from the coins and draws alone."""
    gossiping = [coin(process.parts.window, t) < parameters.p_comm for t in range(rounds)]
    drawing = np.count_nonzero(round_samples(process.parts.window, 0) >= 0)
    samples = drawing * (rounds - sum(gossiping))
    messages = 2 * network.n_edges * sum(gossiping)
    return Work(samples, messages, messages * process.message_shape[1])


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("loss", few_of(SMOOTH))
def test_block_adfs_is_its_twin(loss: str, n: int) -> None:
    problem, network = make_problem(loss, n), Network(NETWORKS[n])
    parameters = BlockParameters.tuned(problem, network, tau=3.0)
    processes = []
    for sparse in (False, True):
        data = make_problem(loss, n, sparse=sparse)
        process = METHODS["adfs-block"].start(Setting(data, network, parameters, seed=n))
        gossip = gossip_here(process)
        # Slices of any length are the same rounds.
        for stop in (1, 2, 700, 701, 2000) if sparse else range(1, 2001):
            process.run(gossip, stop)
        assert process.work == count_rounds(process, network, parameters, 2000)
        processes.append(process)
    twin = LiteralBlockAdfs(problem, network, parameters)
    state = twin.start()
    for t in range(2000):
        gossiping = coin(processes[0].parts.window, t) < parameters.p_comm
        state = twin.step(state, None if gossiping else round_samples(processes[0].parts.window, t))
    assert relative(processes[0].primal("x") * problem.sigma[:, None], state.x) < 1e-12
    assert relative(processes[0].primal("v") * problem.sigma[:, None], state.v) < 1e-12
    assert np.array_equal(processes[0].primal(), processes[1].primal())


@pytest.mark.parametrize("nodes", [2, 4])  # of two, every message goes between the halves
@pytest.mark.parametrize(("method", "classes"), [("adfs", 0), ("ns-adfs", 0), ("adfs", 3)])
def test_exchange_in_two_halves_gives_the_same_bits(method: str, classes: int, nodes: int) -> None:
    """Two blocks that send each other vectors do what one process does by itself, signs of zeros included."""
    plain = make_multinomial(nodes, classes) if classes else make_problem("logistic", nodes, sparse=True)
    problem = plain if classes else widened(plain)
    network = Network(f"cycle:{nodes}" if nodes > 2 else "path:2")
    parameters = METHODS[method].parameters(problem, network)
    whole = METHODS[method].start(Setting(problem, network, parameters, seed=3))
    whole.state.centers[:] = -0.0
    drive(whole, 3000)
    blocks, halves = [], np.split(np.arange(nodes), 2)
    for half in halves:
        own = Problem.from_shards([problem.shards[i] for i in half], problem.loss, problem.sigma[half])
        blocks.append(METHODS[method].start(Setting(own, network, parameters, seed=3, nodes=half)))
        blocks[-1].state.centers[:] = -0.0
    streams = [b.schedule.block(0, 3000, half) for b, half in zip(blocks, halves, strict=True)]
    place = [0, 0]
    while True:
        place = [b.run(s, p, s.time.size) for b, s, p in zip(blocks, streams, place, strict=True)]
        if place == [s.time.size for s in streams]:
            break
        edges = [int(s.actor[p]) - nodes for s, p in zip(streams, place, strict=True)]
        times = [float(s.time[p]) for s, p in zip(streams, place, strict=True)]
        assert edges[0] == edges[1]
        assert times[0] == times[1]
        sent = [b.outgoing(edges[0], times[0]) for b in blocks]
        blocks[0].incoming(edges[0], times[0], sent[0], sent[1])
        blocks[1].incoming(edges[0], times[0], sent[1], sent[0])
        place = [p + 1 for p in place]
    for block in blocks:
        block.position = 3000.0
    assert np.vstack([b.primal() for b in blocks]).tobytes() == whole.primal().tobytes()
    assert np.concatenate([b.dual() for b in blocks]).tobytes() == whole.dual().tobytes()


def total_of_augmented_nodes(process, problem: Problem) -> float:
    """|Σ over centres and tips|, of c and of e at one time, relative to the size of the centres."""
    rows = problem.X
    worst = 0.0
    for read, side in (("x", -1.0), ("v", 1.0)):
        centers = process.primal(read) * problem.sigma[:, None]
        from adfs.algorithms.adfs_kernels import dual_scalars

        duals = dual_scalars(process.parts, process.position, side)
        total = centers.sum(axis=0) + rows.T @ duals
        worst = max(worst, float(np.abs(total).max() / np.abs(centers).max()))
    return worst


def long_run(events: float) -> None:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(450) < 0.5, 1.0, -1.0)
    X = rng.standard_normal((450, 5)) + y[:, None]
    problem, network = Problem(X, y, sigma=0.5, n_nodes=9), Network("grid:3x3")
    parameters = Parameters.tuned(problem, network)
    process = run_kernel("adfs", Setting(problem, network, parameters, schedule="poisson"), events)
    assert total_of_augmented_nodes(process, problem) < 1e-9
    assert problem.duality_gap(problem.clip_to_domain(process.dual())) < 1e-12


def test_adfs_does_not_drift_over_a_million_events() -> None:
    long_run(1e6)


@pytest.mark.soak
def test_adfs_does_not_drift_over_a_hundred_million_events() -> None:
    long_run(1e8)


def test_adfs_folds_in_a_scale_that_vanishes() -> None:
    """One sample, hardly any curvature: λ is nearly 0 and every decay underflows the scale's range."""
    problem = Problem([[1e-4]], [1.0], loss="squared", sigma=1.0)
    network = Network("path:1")
    process = run_kernel("adfs", Setting(problem, network, Parameters.tuned(problem, network)), 500)
    assert np.all(np.isfinite(process.primal()))
    assert abs(process.primal()[0, 0] - problem.optimum().theta[0]) < 1e-15
