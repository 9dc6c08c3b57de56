"""Adaptive constants: intervals that hold the optimum, kernels that keep to boxes, runs that re-tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.errors import InputError
from adfs.experiments.inputs import gaussians
from adfs.problem.views import BoxedProblem
from adfs.runtimes import Delays, Grid, Record, Run, RunOptions, run_method
from adfs.runtimes.certificates import Certificate
from adfs.runtimes.joint_problem import join_shards
from adfs.runtimes.stages import STAGE_RULES, Stage, Stages
from adfs.stages.adaptive import Adaptive
from adfs.stages.boxes import intervals
from adfs.theory import AugmentedGraph, BlockParameters, Parameters
from adfs.theory.theorems import theorem2_error
from baseline_cases import gossip_here
from literal_adfs import LagState, MeanLagAdfs
from literal_methods import BoxedTerms, LiteralBlockAdfs
from memory_cluster import Threads, on_threads
from mpi_cases import Case, stamp
from schedule_twins import coin, round_samples

LOSSES = ["logistic", "squared_hinge", "smoothed_hinge", "huber", "smoothed_quantile"]
# Each kind of kernel takes seconds to compile: the other losses have the same prox, and are soaked.
QUICK = LOSSES[:2]
ALL_LOSSES = [*QUICK, *(pytest.param(loss, marks=pytest.mark.soak) for loss in LOSSES[2:])]


def make_problem(
    loss: str, seed: int, *, n: int = 4, m: int = 8, d: int = 3, sparse: bool = False, sigma: float = 0.3
) -> adfs.Problem:
    rng = np.random.default_rng([seed, n, m])
    X = rng.standard_normal((n * m, d)) * np.exp(rng.uniform(-0.5, 0.5, (n * m, 1)))
    y = X @ rng.standard_normal(d) * 2.0 + 0.3 * rng.standard_normal(n * m)
    if loss in ("logistic", "squared_hinge", "smoothed_hinge"):
        y = np.where(y > 0.0, 1.0, -1.0)
    weights = rng.uniform(0.3, 2.0, n * m)
    return adfs.Problem(sp.csr_array(X) if sparse else X, y, loss, sigma, n, sample_weight=weights)


def boxed(problem: adfs.Problem, excess: float) -> tuple[BoxedProblem, np.ndarray]:
    """Return a view with boxes around a rough solution, some of them too small, and where to start in it."""
    theta = 0.9 * problem.optimum().theta
    duals = problem.clip_to_domain(problem.slopes(theta))
    radius = np.full(problem.n_samples, np.sqrt(excess / problem.total_sigma))
    view = BoxedTerms(problem, intervals(problem, theta, duals, excess, radius))
    return view, view.clip_to_domain(duals)


def run_boxed(
    view: BoxedProblem, network: adfs.Network, parameters: Parameters, duals: np.ndarray, stop: int
) -> Any:
    process = METHODS["adfs"].start(Setting(view, network, parameters, seed=5))
    process.place(duals, view.sigma[:, None] * view.primal_from_dual(duals))
    for end, events in process.schedule.windows(0.0, stop):
        process.run(events, 0, events.time.size)
        process.position = end
    return process


@pytest.mark.soak
def test_boxed_problem_has_the_same_bits_dense_and_sparse() -> None:
    network = adfs.Network("cycle:4")
    view, duals = boxed(make_problem("logistic", 1), 0.05)
    parameters = Parameters.tuned(view, network)
    other = BoxedProblem(make_problem("logistic", 1, sparse=True), view.margins)
    first, second = (run_boxed(one, network, parameters, duals, 4000) for one in (view, other))
    assert np.array_equal(first.primal(), second.primal())
    assert np.array_equal(first.dual(), second.dual())


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_adfs_in_boxes_is_its_twin(loss: str) -> None:
    problem, network, stop = make_problem(loss, 1), adfs.Network("cycle:4"), 4000
    view, duals = boxed(problem, 0.05)
    parameters = Parameters.tuned(view, network)
    centers = problem.sigma[:, None] * problem.primal_from_dual(duals)
    process = run_boxed(view, network, parameters, duals, stop)
    graph = AugmentedGraph(view, network, parameters)
    twin = MeanLagAdfs(graph)
    start = np.concatenate([centers, (duals[:, None] * problem.X)[graph.tip_rows]])
    state = LagState(start, np.zeros_like(start), np.zeros(graph.n_augmented))
    dual_of_row = {int(row): number for number, row in enumerate(graph.tip_rows)}
    for _, events in process.schedule.windows(0.0, stop):
        for time, actor, sample in zip(*(array.tolist() for array in events), strict=True):
            edge = actor - 4 if actor >= 4 else graph.n_communication + dual_of_row[sample]
            state = twin.step(state, edge, time)
    expected = twin.iterates(state, stop)
    assert relative(process.primal() * problem.sigma[:, None], expected.x[:4]) < 1e-12
    scalars = process.dual()
    assert relative((scalars[:, None] * problem.X)[graph.tip_rows], expected.x[4:]) < 1e-12
    # Every dual variable is in its box, and some rest at its end.
    low, high = (problem.weights * view.boxed.ends[:, side] for side in (2, 3))
    assert np.all((scalars >= low - 1e-12) & (scalars <= high + 1e-12))
    assert np.any((np.abs(scalars - low) < 1e-9) | (np.abs(scalars - high) < 1e-9))


@pytest.mark.parametrize("loss", ["logistic", pytest.param("huber", marks=pytest.mark.soak)])
def test_block_adfs_in_boxes_is_its_twin(loss: str) -> None:
    problem, network = make_problem(loss, 2), adfs.Network("cycle:4")
    view, duals = boxed(problem, 0.05)
    parameters = BlockParameters.tuned(view, network, tau=3.0)
    centers = problem.sigma[:, None] * problem.primal_from_dual(duals)
    process = METHODS["adfs-block"].start(Setting(view, network, parameters, seed=5))
    process.place(duals, centers)
    process.run(gossip_here(process), 1500)
    twin = LiteralBlockAdfs(view, network, parameters)
    state = twin.start()._replace(x=centers, v=centers, dual_x=duals, dual_v=duals)
    for t in range(1500):
        gossiping = coin(process.parts.window, t) < parameters.p_comm
        state = twin.step(state, None if gossiping else round_samples(process.parts.window, t))
    assert relative(process.primal() * problem.sigma[:, None], state.x) < 1e-12
    assert relative(process.dual(), state.dual_x) < 1e-12


# --------------------------------------------------------------------------- what is proven


class Watched(Adaptive):
    """Keeps the stages that it begins."""

    def __init__(self, share: float, keeps_all: bool = False) -> None:
        super().__init__(share, keeps_all)
        self.begun: list[Stage] = []

    def decide(self, stages: Stages, certificate: Certificate) -> Stage | None:
        stage = super().decide(stages, certificate)
        if stage is not None:
            self.begun.append(stage)
        return stage


def watch(name: str, share: float = 1.0) -> tuple[Any, Watched]:
    rule = Watched(share)
    cls = type(METHODS[name])
    STAGE_RULES["watched"] = lambda problem, choice: rule
    return type(cls.__name__, (cls,), {"stages": "watched"})(), rule


def check_optimum_in_boxes(seed: int, losses: list[str]) -> int:
    """Run on a random problem; return how often it re-tuned."""
    rng = np.random.default_rng(seed)
    loss = losses[seed % len(losses)]
    sigma = float(np.exp(rng.uniform(-4.0, 1.0)))
    problem = make_problem(loss, seed, m=int(rng.integers(3, 40)), sigma=sigma)
    optimum = problem.optimum(1e-14)
    margins, reach = problem.X @ optimum.theta, np.sqrt(2.0 * optimum.gap * problem.value_at_zero)
    slack = reach / np.sqrt(problem.total_sigma) * np.sqrt(problem.row_norms_squared)
    method, rule = watch("adfs-block" if loss == "logistic" and seed % 4 else "adfs")
    run = adfs.simulate(method, problem, adfs.Network("cycle:4"), tol=1e-9, tau=20.0, seed=seed)
    assert run.converged
    for stage in rule.begun:
        view = stage.problem
        assert isinstance(view, BoxedProblem)
        assert np.all(margins >= view.margins[:, 0] - slack)
        assert np.all(margins <= view.margins[:, 1] + slack)
        assert np.all(stage.start == view.clip_to_domain(stage.start))
    return len(rule.begun)


def test_boxes_hold_the_optimum() -> None:
    assert sum(check_optimum_in_boxes(seed, QUICK) for seed in range(20)) >= 10


@pytest.mark.soak
def test_boxes_hold_the_optimum_of_many_problems() -> None:
    assert sum(check_optimum_in_boxes(seed, LOSSES) for seed in range(20, 220)) >= 100


@pytest.mark.soak
def test_theorem_2_holds_from_each_restart() -> None:
    """Over 200 seeds, with the new ρ: E error_t ≤ (1 − ρ)^t (σ_A‖λ_0 − λ*‖² + 2(F*(x_0) − F*))."""
    problem, network = make_problem("logistic", 3, sigma=0.02), adfs.Network("cycle:4")
    method, rule = watch("adfs")
    adfs.simulate(method, problem, network, tol=1e-10, tau=20.0)
    assert len(rule.begun) >= 2
    optimum = problem.optimum(1e-14).theta
    for stage in rule.begun:
        view, parameters, duals = stage.problem, stage.parameters, stage.start
        graph = AugmentedGraph(view, network, parameters)
        centers = problem.sigma[:, None] * problem.primal_from_dual(duals)
        start = np.concatenate([centers, (duals[:, None] * problem.X)[graph.tip_rows]])
        best = graph.dual_optimum(optimum)
        first = parameters.dual_curvature * graph.edge_norm_squared(start - best)
        first += 2.0 * (graph.dual_value(start) - graph.dual_value(best))
        stops = [int(k / parameters.contraction) for k in (0.5, 1.0, 2.0, 4.0)]
        errors = np.zeros((200, len(stops)))
        for seed in range(200):
            process = METHODS["adfs"].start(Setting(view, network, parameters, seed=seed))
            process.place(duals, centers)
            for column, stop in enumerate(stops):
                for end, events in process.schedule.windows(process.position, stop):
                    process.run(events, 0, events.time.size)
                    process.position = end
                x, v = _augmented(process, problem, graph)
                errors[seed, column] = theorem2_error(graph, x, v, optimum)
        bound = first * (1.0 - parameters.contraction) ** np.array(stops)
        noise = 3.0 * errors.std(axis=0) / np.sqrt(200.0)
        assert np.all(errors.mean(axis=0) <= bound + noise)


def _augmented(process: Any, problem: adfs.Problem, graph: AugmentedGraph) -> tuple[np.ndarray, np.ndarray]:
    duals = (process.dual()[:, None] * problem.X)[graph.tip_rows]
    sigma = problem.sigma[:, None]
    # Theorem 2 takes v at the centres alone.
    x, v = (np.concatenate([process.primal(side) * sigma, duals]) for side in ("x", "v"))
    return x, v


# --------------------------------------------------------------------------- runs


CASES = [(method, choice) for method in ("adfs", "adfs-block") for choice in ("adaptive", "adaptive-safe")]


TAU = 30.0


def make_case(method: str, choice: str) -> Case:
    return Case(method=method, parameters=choice, max_passes=10.0, rows=40, width=1)


def simulate(method: str, choice: str, **more: Any) -> Run:
    return make_case(method, choice).simulate(gather=True, tau=TAU, **more)


@pytest.mark.parametrize(("method", "choice"), CASES)
def test_adaptive_run_has_the_same_bits_on_every_cluster_and_resumed(
    method: str, choice: str, tmp_path: Path
) -> None:
    whole = simulate(method, choice)
    retunings = whole.details["retunings"]
    assert retunings
    assert all(found["rho"] > found["rho_before"] for found in retunings)
    case = make_case(method, choice)
    network = adfs.Network(case.network)

    def run(cluster: Threads) -> Run:
        with cluster:
            joint = join_shards(
                cluster, case.shard, network, nodes=None, loss=case.loss, sigma=case.sigma(), n_features=None
            )
            settings = case.options() | {"gather": True, "tau": TAU}
            settings.pop("method")
            asked = RunOptions(**settings)
            return run_method(
                method, joint.problem, network, asked, cluster=cluster, placement=joint.placement
            )

    for size in (2, 4):
        assert {stamp(run) for run in on_threads(size, run)} == {stamp(whole)}
    # Stopped before, at and after the first re-tuning, and resumed.
    at = retunings[0]["position"]
    for events in (at - 5.0, at, at + 5.0, None):
        budget = {"events": events, "max_passes": None} if events else {}
        kept = {"checkpoint": tmp_path / "run", "resume": True}
        part = simulate(method, choice, **budget, **kept)
    assert part.coef.tobytes() == whole.coef.tobytes()
    assert part.theta.tobytes() == whole.theta.tobytes()
    assert part.details["retunings"] == retunings


def test_adaptive_run_draws_fewer_samples_and_takes_fewer_passes() -> None:
    problem = make_problem("squared_hinge", 4, m=60)
    network = adfs.Network("cycle:4")
    fixed = adfs.simulate("adfs", problem, network, tol=1e-10)
    run = adfs.simulate("adfs", problem, network, tol=1e-10, parameters="adaptive-safe")
    assert run.converged
    assert run.details["retunings"][-1]["drawn"] < 0.8
    assert run.columns["passes"][-1] < 0.9 * fixed.columns["passes"][-1]
    assert problem.objective(run.coef) - problem.optimum(1e-14).value <= 1e-9 * problem.value_at_zero


def test_adaptive_run_tunes_one_node_again() -> None:
    problem = make_problem("squared_hinge", 3, n=1, m=80, sigma=0.5)
    run = adfs.simulate("adfs", problem, parameters="adaptive", tol=1e-8)
    assert run.converged
    assert run.details["retunings"]


@pytest.mark.parametrize("method", ["adfs", "adfs-block"])
def test_boxes_far_too_small_are_given_up(method: str) -> None:
    """With a millionth of the proven radius the boxes are wrong at once: the run goes on with proven ones."""
    problem = make_problem("logistic", 5, m=40)
    chosen, rule = watch(method, share=1e-6)
    run = adfs.simulate(chosen, problem, adfs.Network("cycle:4"), tol=1e-9, max_passes=3000.0)
    assert run.converged
    assert rule.begun[-1].report["share"] == 1.0
    assert problem.objective(run.coef) - problem.optimum(1e-14).value <= 1e-9 * problem.value_at_zero


@pytest.mark.parametrize("method", ["adfs", "adfs-block"])
def test_adaptive_run_makes_no_checks_where_computation_is_all(method: str) -> None:
    """With many samples per node each must be drawn whatever its curvature: the run is the one without."""
    problem, network = make_problem("logistic", 6, m=400, sigma=200.0), adfs.Network("cycle:4")
    runs = [
        adfs.simulate(method, problem, network, tol=1e-9, tau=1.0, parameters=choice)
        for choice in ("tuned", "adaptive")
    ]
    assert runs[1].history is not None
    assert runs[1].history.checks == []
    assert runs[0].theta.tobytes() == runs[1].theta.tobytes()


@pytest.mark.parametrize("tau", [5.0, 500.0])
def test_first_check_comes_when_a_stage_has_lasted_as_long_as_a_check(tau: float) -> None:
    """A check is a pass and two sums; it waits for four passes where messages are quick, never for 1/ρ."""
    X, y = gaussians(1600, 10, seed=3)
    problem, network = adfs.Problem(X, y, n_nodes=16), adfs.Network("cycle:16")
    parameters = BlockParameters.tuned(problem, network, tau=tau)
    p, passes = parameters.p_comm, 100.0 / (1.0 - parameters.p_comm)
    # Sums go up and down eight levels.
    lasting = (100.0 + 2 * 2 * 8 * tau) / (1.0 - p + p * tau)
    expected = max(lasting, 4.0 * passes)
    assert (expected == 4.0 * passes) == (tau == 5.0)
    run = adfs.simulate("adfs-block", problem, network, tau=tau, tol=1e-6, parameters="adaptive")
    assert run.history is not None
    assert run.history.checks[0].position == np.ceil(expected)
    assert tau == 5.0 or expected < 0.7 / parameters.contraction


def test_adaptive_run_with_slow_messages_takes_less_than_two_thirds_of_the_time() -> None:
    X, y = gaussians(1600, 10, seed=4)
    problem, network = adfs.Problem(X, y, n_nodes=16), adfs.Network("cycle:16")
    record = Record("suboptimality", stop_on="suboptimality")
    options = {"tau": 500.0, "tol": 1e-6, "delays": Delays(tau=500.0), "record": record}
    times = [
        adfs.simulate("adfs-block", problem, network, parameters=choice, **options).columns["time"][-1]
        for choice in ("tuned", "adaptive")
    ]
    assert times[1] < 2.0 / 3.0 * times[0]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "drawn", "passes"), [("a9a", 0.7, 0.9), ("w8a", 0.4, 0.7)])
@pytest.mark.parametrize("nodes", [1, 9])
def test_adaptive_run_reaches_the_objective_of_linear_svc_on_real_data(
    name: str, drawn: float, passes: float, nodes: int
) -> None:
    """The objective is LinearSVC's, whose intercept is one more column; passes count all samples."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.svm import LinearSVC

    data = Path(__file__).parents[3] / "shared" / "data" / f"{name}.bz2"
    if not data.exists():
        pytest.skip(f"there is no {data.name} beside the checkout")
    X, y = load_svmlight_file(str(data))
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    theirs = LinearSVC(C=0.05, dual=False, tol=1e-9, max_iter=100_000).fit(X, y)
    rows = sp.csr_array(sp.hstack([X, np.ones((y.size, 1))]))
    problem = adfs.Problem(rows, y, "squared_hinge", 10.0 / nodes, nodes)
    network = adfs.Network("path:1" if nodes == 1 else "grid:3x3")
    often = adfs.Record(("gap",), grid=adfs.Grid(every=0.5))  # so that passes can be compared
    fixed = adfs.simulate("adfs", problem, network, tol=4e-10, record=often)
    run = adfs.simulate("adfs", problem, network, tol=4e-10, record=often, parameters="adaptive")
    assert run.converged
    assert run.details["retunings"][-1]["drawn"] < drawn
    assert run.columns["passes"][-1] < passes * fixed.columns["passes"][-1]
    value = problem.objective(np.append(theirs.coef_, theirs.intercept_))
    assert problem.objective(run.coef) == pytest.approx(value, rel=1e-8)


# --------------------------------------------------------------------------- intercepts


def test_intervals_take_the_penalty_of_the_intercept() -> None:
    """A column of c is an intercept with the penalty σ_b = σ/c²: √(G(‖x‖²/Σσ + 1/Σσ_b)) around its margin."""
    rng = np.random.default_rng(7)
    X, y, c, center, excess = (
        rng.standard_normal((12, 3)),
        np.where(np.arange(12) % 3, 1.0, -1.0),
        2.5,
        0.7,
        0.05,
    )
    # With so small weights the dual variables' own curvature says nothing.
    weights = np.full(12, 0.01)
    rows = np.column_stack([X, np.full(12, c)])
    problem = adfs.Problem(rows, y, "logistic", 0.3, 2, sample_weight=weights, offset=np.full(12, center))
    theta = rng.standard_normal(4)
    radius = np.full(12, np.sqrt(excess / problem.total_sigma))
    found = intervals(problem, theta, np.zeros(12), excess, radius)
    margins = problem.X[:, :3] @ theta[:3] + (center + c * theta[3])
    total = problem.total_sigma
    away = np.sqrt(excess * ((problem.X[:, :3] ** 2).sum(axis=1) / total + c**2 / total))
    assert np.allclose(found, np.column_stack([margins - away, margins + away]), rtol=1e-9, atol=1e-9)


@pytest.mark.soak
def test_boxes_follow_the_intercepts_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of a fit with a free intercept has its own boxes, and each of them holds its optimum."""
    from sklearn.linear_model import LogisticRegression

    made: list[Watched] = []

    class Kept(Watched):
        def __init__(self, share: float, keeps_all: bool = False) -> None:
            super().__init__(share, keeps_all)
            made.append(self)

    monkeypatch.setattr("adfs.stages.Adaptive", Kept)
    rng = np.random.default_rng(8)
    X = rng.standard_normal((400, 3))
    y = (X @ [2.0, -1.0, 0.5] + 2.0 + 0.5 * rng.standard_normal(400) > 0.0).astype(int)
    model = adfs.ADFSClassifier(
        C=5.0, tol=1e-10, n_nodes=4, network="cycle", method="adfs", parameters="adaptive-safe", tau=20.0
    ).fit(X, y)
    theirs = LogisticRegression(C=5.0, tol=1e-12, max_iter=10_000).fit(X, y)
    assert np.allclose(model.coef_, theirs.coef_, atol=1e-3)
    assert np.allclose(model.intercept_, theirs.intercept_, atol=1e-3)
    centres = set()
    for stage in (stage for rule in made for stage in rule.begun):
        view = stage.problem
        assert isinstance(view, BoxedProblem)
        optimum = view.whole.optimum(1e-14)
        shift = view.whole.offset
        assert shift is not None
        margins = view.X @ optimum.theta + shift
        slack = np.sqrt(
            2.0 * optimum.gap * view.whole.value_at_zero / view.total_sigma * view.row_norms_squared
        )
        assert np.all((margins >= view.margins[:, 0] - slack) & (margins <= view.margins[:, 1] + slack))
        centres.add(float(shift[0]))
    assert len(centres) > 1


def test_adaptive_run_charges_the_clock_whatever_is_recorded() -> None:
    delays = Delays(tau=5.0, law="fixed")
    run = simulate("adfs-block", "adaptive", delays=delays)
    seldom = Record(("gap",), grid=Grid(every=7.0))
    bare = simulate("adfs-block", "adaptive", delays=delays, record=seldom)
    assert bare.details["retunings"] == run.details["retunings"]
    assert bare.coef.tobytes() == run.coef.tobytes()
    assert run.history is not None
    assert bare.history is not None
    assert run.history.checks == bare.history.checks


def test_adaptive_parameters_refuse_other_losses_and_methods() -> None:
    network = adfs.Network("cycle:4")
    with pytest.raises(InputError, match="takes a linear model with the loss logistic"):
        adfs.simulate("adfs", make_problem("squared", 1), network, parameters="adaptive")
    X = np.random.default_rng(0).standard_normal((12, 2))
    several = adfs.Problem(X, np.arange(12) % 3, "multinomial", 1.0, 4)
    with pytest.raises(InputError, match="not 'multinomial'; use 'tuned'"):
        adfs.simulate("adfs", several, network, parameters="adaptive")
    with pytest.raises(InputError, match="choice of parameters"):
        adfs.simulate("msda", make_problem("logistic", 1), network, parameters="adaptive")
