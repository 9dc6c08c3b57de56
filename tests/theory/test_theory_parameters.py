"""Parameters: what they promise of themselves, what they refuse, how they print."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.theory import (
    AugmentedGraph,
    NonSmoothParameters,
    Parameters,
    dual_curvature_of_split,
    smoothness_limit,
    summarize,
)
from literal_cases import cases, make_parameters, multinomial_terms, random_case, step_bound

Case = tuple[adfs.Problem, adfs.Network]
KINDS = st.sampled_from(("paper", "tuned"))


@settings(max_examples=60)
@given(case=cases(), kind=KINDS)
def test_parameters_keep_what_they_promise(case: Case, kind: str) -> None:
    problem, network = case
    parameters = make_parameters(kind, problem, network)
    sampled = parameters.sample_probability(problem)
    assert abs(parameters.p_comm + parameters.p_comp - 1.0) < 1e-12
    assert abs(sampled.sum() - parameters.p_comp) < 1e-12
    assert np.all(sampled[~problem.active] == 0.0)
    # The step and the mixing of a virtual edge stay in the domain of f*: ρ ≤ p_ij.
    assert np.all(parameters.contraction <= sampled[problem.active] * (1.0 + 1e-12))
    # ρ² = σ_A/S², S² = max_e M_e R_e/p_e², with the dense A, Σ and R.
    graph = AugmentedGraph(problem, network, parameters)
    bound = np.max(graph.directional_smoothness * graph.resistance / graph.probability**2)
    assert abs(parameters.contraction - math.sqrt(parameters.dual_curvature / bound)) < (
        1e-10 * parameters.contraction
    )
    assert parameters.largest_contraction == pytest.approx(parameters.contraction, rel=1e-12)
    assert parameters.decay == pytest.approx(math.exp(parameters.log_decay), rel=1e-12)
    step, mixing = parameters.edge_steps()
    np.testing.assert_allclose(
        mixing * parameters.edge_probability,
        parameters.contraction * parameters.edge_resistance,
        rtol=1e-14,
    )
    np.testing.assert_allclose(
        step * parameters.dual_curvature * parameters.edge_probability,
        parameters.contraction * network.weights,
        rtol=1e-14,
    )
    if kind == "paper":
        # σ_A was exact, so ρ is that of Theorem 2.
        assert parameters.dual_curvature <= graph.dual_curvature * (1.0 + 1e-12)


@settings(max_examples=40)
@given(case=cases(), kind=KINDS, scale=st.floats(1e-4, 1e4))
def test_parameters_do_not_depend_on_the_scale_of_mu(case: Case, kind: str, scale: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    one = make_parameters(kind, problem, network)
    other = make_parameters(kind, problem, network.with_weights(scale * network.weights))
    assert other.contraction == pytest.approx(one.contraction, rel=1e-10)
    np.testing.assert_allclose(other.edge_probability, one.edge_probability, rtol=1e-10)
    np.testing.assert_allclose(other.node_probability, one.node_probability, rtol=1e-10)
    # So do the steps that reach node variables: η̃ = ρμ²/(σ_A p).
    np.testing.assert_allclose(other.edge_steps()[0], one.edge_steps()[0], rtol=1e-10)
    first = AugmentedGraph(problem, network, one)
    second = AugmentedGraph(problem, network.with_weights(scale * network.weights), other)
    assert step_bound(second) / other.dual_curvature == pytest.approx(
        step_bound(first) / one.dual_curvature, rel=1e-9
    )


@settings(max_examples=40)
@given(case=cases(), split=st.floats(0.05, 0.95))
def test_parameters_tuned_have_optimal_probabilities(case: Case, split: float) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    parameters = Parameters.tuned(problem, network, r=split)
    roots = np.sqrt(network.weights * parameters.edge_resistance * parameters.edge_inverse_sigma)
    ends = network.edges
    np.testing.assert_allclose(
        parameters.edge_inverse_sigma, 1 / problem.sigma[ends[:, 0]] + 1 / problem.sigma[ends[:, 1]]
    )
    curvature = dual_curvature_of_split(
        network, problem.sigma, problem.batch_smoothness / problem.sigma, split
    )
    steps = parameters.root_sums.sum() / math.sqrt(split) + roots.sum() / math.sqrt(curvature)
    assert parameters.contraction == pytest.approx(1.0 / steps, rel=1e-12)
    assert parameters.split == split
    assert parameters.p_comm == pytest.approx(
        parameters.contraction * roots.sum() / math.sqrt(curvature), rel=1e-12
    )
    # No other probabilities do better: every edge has the same p/k.
    graph = AugmentedGraph(problem, network, parameters)
    rates = graph.probability / np.sqrt(graph.directional_smoothness * graph.resistance)
    np.testing.assert_allclose(rates, rates[0], rtol=1e-9)
    # η̃/L = 1/√(r(1 + L/σ)) on virtual edges.
    tips = graph.mu_squared[network.n_edges :]
    ratio = parameters.contraction * tips / (curvature * graph.probability[network.n_edges :])
    smooth = problem.smoothness[graph.tip_rows]
    own = problem.sigma[problem.node_of_row[graph.tip_rows]]
    np.testing.assert_allclose(ratio / smooth, 1.0 / np.sqrt(split * (1.0 + smooth / own)), rtol=1e-9)


@settings(max_examples=30)
@given(case=cases())
def test_parameters_tuned_split_falls_with_tau(case: Case) -> None:
    problem, network = case
    if network.n_nodes == 1:
        return
    splits = [Parameters.tuned(problem, network, tau=tau).split for tau in (0.0, 0.1, 1.0, 10.0, 1e3, 1e5)]
    assert all(0.0 < r <= 0.5 for r in splits)
    assert splits[0] == 0.5
    assert all(b <= a for a, b in itertools.pairwise(splits))
    assert splits[-1] < 0.2
    assert Parameters.tuned(problem, network).split == 0.5


def test_parameters_tuned_split_minimises_its_model_of_time() -> None:
    """r* = argmin a/√r + τ_eff·b/√(1 − r), where it is below 1/2."""
    problem, network = random_case(4, "logistic", n=5)
    tau = 50.0
    chosen = Parameters.tuned(problem, network, tau=tau).split
    half = Parameters.tuned(problem, network, r=0.5)
    roots = np.sqrt(half.edge_weights * half.edge_resistance * half.edge_inverse_sigma)
    a = half.root_sums.sum() / 5.0
    b = roots.sum() / 5.0 * math.sqrt(0.5 / half.dual_curvature)
    ends = np.zeros(5)
    for (i, j), root in zip(network.edges, roots, strict=True):
        ends[i] += root
        ends[j] += root
    effective = tau * 5.0 * ends.max() / roots.sum()

    def cost(r: float) -> float:
        return a / math.sqrt(r) + effective * b / math.sqrt(1.0 - r)

    assert chosen < 0.5
    assert cost(chosen) < min(cost(chosen * 1.01), cost(chosen * 0.99))


@pytest.mark.parametrize("kind", ["paper", "tuned"])
def test_parameters_of_one_node_have_the_rate_of_apcg(kind: str) -> None:
    problem, network = random_case(3, "logistic", n=1)
    parameters = make_parameters(kind, problem, network)
    expected = 1.0 / np.sqrt(1.0 + problem.smoothness[problem.active] / problem.sigma[0]).sum()
    assert parameters.contraction == pytest.approx(expected, rel=1e-14)
    assert parameters.p_comm == 0.0
    assert parameters.dual_curvature == 1.0
    assert AugmentedGraph(problem, network, parameters).dual_curvature == pytest.approx(1.0, rel=1e-12)


def test_parameters_take_nodes_without_samples() -> None:
    shards = [(np.eye(2), [1.0, -1.0]), (np.empty((0, 2)), np.empty(0)), (np.zeros((1, 2)), [1.0])]
    problem = adfs.Problem.from_shards(shards, loss="logistic", sigma=[1.0, 2.0, 3.0])
    network = adfs.Network("path:3")
    for parameters in (Parameters.paper(problem, network), Parameters.tuned(problem, network)):
        assert parameters.node_probability[1:].tolist() == [0.0, 0.0]
        assert parameters.root_sums[1:].tolist() == [0.0, 0.0]
        graph = AugmentedGraph(problem, network, parameters)
        assert graph.n_tips == 2
        assert graph.dual_curvature >= parameters.dual_curvature * (1.0 - 1e-12) or parameters.kind == "tuned"
    rough = NonSmoothParameters.paper(problem, network)
    assert rough.node_probability[1:].tolist() == [0.0, 0.0]


def test_parameters_need_a_summary_alone() -> None:
    problem, network = random_case(9, "huber", n=4, zeros=True)
    summary = summarize(problem)
    assert summarize(summary) is summary
    for make in (Parameters.paper, Parameters.tuned, NonSmoothParameters.paper):
        assert str(make(summary, network)) == str(make(problem, network))
    assert summary.n_active.sum() == np.count_nonzero(problem.active)
    np.testing.assert_allclose(summary.kappa, problem.kappa)
    assert np.all(summary.batch_kappa <= summary.kappa * (1.0 + 1e-12))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sigma": [1.0, math.nan, 1.0]}, "sigma must be one finite number of at least 0 per node or edge"),
        ({"edge_weights": [-1.0, 1.0]}, "edge_weights must be one finite number of at least 0"),
        ({"root_sums": [1.0, 2.0]}, "arrays of the nodes have different lengths"),
        ({"edge_probability": [0.1]}, "arrays of the edges have different lengths"),
        ({"contraction": 0.0}, "the contraction must lie in"),
        ({"contraction": 1.5}, "the contraction must lie in"),
        ({"dual_curvature": 0.0}, "the dual curvature σ_A must be above 0"),
        ({"dual_curvature": math.nan}, "the dual curvature σ_A must be above 0"),
        ({"node_probability": [0.5, 0.5, 0.5]}, "the probabilities sum to"),
        ({"contraction": 0.9}, "is above √σ_A·min p/k"),
    ],
)
def test_parameters_refuse_values_that_do_not_fit_each_other(
    changes: dict[str, object], sentence: str
) -> None:
    problem, _ = random_case(1, "logistic", n=3)
    parameters = Parameters.tuned(problem, adfs.Network("path:3"))
    with pytest.raises(adfs.InputError, match=sentence) as caught:
        dataclasses.replace(parameters, **changes)
    assert str(caught.value).startswith("Parameters of ADFS: ")
    assert "\n" not in str(caught.value)


def test_parameters_refuse_bad_probabilities() -> None:
    problem, _ = random_case(1, "logistic", n=3)
    parameters = Parameters.tuned(problem, adfs.Network("path:3"))
    edges = parameters.edge_probability
    with pytest.raises(adfs.InputError, match="every edge needs a probability above 0"):
        dataclasses.replace(parameters, edge_probability=[0.0, edges.sum()])
    nodes = parameters.node_probability
    with pytest.raises(adfs.InputError, match="exactly the nodes that hold samples"):
        dataclasses.replace(parameters, node_probability=[0.0, nodes[0] + nodes[1], nodes[2]])


def test_parameters_refuse_bad_choices() -> None:
    problem, network = random_case(1, "logistic", n=3)
    for make in (Parameters.paper, Parameters.tuned, NonSmoothParameters.paper):
        with pytest.raises(adfs.InputError, match="the problem has 3 nodes and the network 4"):
            make(problem, adfs.Network("path:4"))
    for r in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(adfs.InputError, match="the split r must lie strictly between 0 and 1"):
            Parameters.tuned(problem, network, r=r)
    for tau in (-1.0, math.inf):
        for make in (Parameters.paper, Parameters.tuned):
            with pytest.raises(adfs.InputError, match="tau must be finite and at least 0"):
                make(problem, network, tau=tau)
    hinge, _ = random_case(1, "hinge", n=3)
    for make in (Parameters.paper, Parameters.tuned):
        with pytest.raises(adfs.InputError, match="ADFS needs smooth losses"):
            make(hinge, network)
    nothing = adfs.Problem(np.zeros((3, 2)), [1, 1, -1], n_nodes=3)
    with pytest.raises(adfs.InputError, match="every sample is a zero row"):
        Parameters.tuned(nothing, network)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sigma": [1.0, -1.0, 1.0]}, "sigma must be one finite number"),
        ({"virtual_weight": [1.0]}, "arrays of the nodes have different lengths"),
        ({"edge_resistance": [1.0]}, "arrays of the edges have different lengths"),
        ({"edge_probability": [0.5, 0.6]}, "the probabilities sum to"),
        ({"step_bound": 0.0}, "the step bound S² must be above 0"),
        ({"offset": -1.0}, "offset must be at least 0"),
        ({"n_active": [0.0, 1.0, 1.0]}, "exactly the nodes that hold samples"),
    ],
)
def test_non_smooth_parameters_refuse_values_that_do_not_fit(
    changes: dict[str, object], sentence: str
) -> None:
    problem, _ = random_case(1, "hinge", n=3)
    parameters = NonSmoothParameters.paper(problem, adfs.Network("path:3"))
    with pytest.raises(adfs.InputError, match=sentence):
        dataclasses.replace(parameters, **changes)
    total = parameters.edge_probability.sum()
    with pytest.raises(adfs.InputError, match="every edge needs a probability above 0"):
        dataclasses.replace(parameters, edge_probability=[0.0, total])


def test_parameters_cannot_be_changed() -> None:
    problem, network = random_case(1, "logistic", n=3)
    parameters = Parameters.paper(problem, network)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters.contraction = 0.5  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        parameters.sigma[0] = 1.0


def test_parameters_print_a_table() -> None:
    problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], sigma=1.0, n_nodes=2)
    network = adfs.Network("path:2")
    text = str(Parameters.tuned(problem, network, tau=2.0))
    lines = text.splitlines()
    assert lines[0] == "Parameters of ADFS"
    rows = {line[2:20].strip(): line.split()[-1] for line in lines[1:]}
    assert rows["kind"] == "tuned"
    assert rows["curvature split"] == f"{Parameters.tuned(problem, network, tau=2.0).split:.6g}"
    assert rows["communication time"] == "2"
    assert rows["node curvature"] == "1"
    # What does not apply is left out: the paper's choice has no r, and no τ was given.
    paper = str(Parameters.paper(problem, network))
    assert "curvature split" not in paper
    assert "communication time" not in paper
    assert "edge weight" in str(Parameters.paper(adfs.Problem(np.eye(2), [1, -1]), adfs.Network("path:1")))
    assert str(NonSmoothParameters.paper(problem, network)).startswith("Parameters of NS-ADFS\n  step bound")


# ------------------------------------------------------------------ general terms


@pytest.mark.parametrize("r", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 3])
def test_with_smoothness_above_raises_it_only_where_needed(n: int, r: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((12, 2)) * np.exp(rng.uniform(-2.0, 2.0, (12, 1)))
    rows[3] = 0.0
    problem = multinomial_terms(
        rows, rng.integers(0, 3, 12), rng.uniform(0.5, 2.0, n), n_nodes=n, n_classes=3
    )
    network = adfs.Network("path", n_nodes=n)
    limit = smoothness_limit(problem.sigma, network, r=r)
    eased = problem.with_smoothness_above(limit)
    parameters = adfs.Parameters.tuned(eased, network, r=r)
    enough = ~problem.active | (problem.smoothness > 1.05 * limit[problem.node_of_row])
    assert np.array_equal(eased.smoothness[enough], problem.smoothness[enough])
    assert np.all(eased.smoothness >= problem.smoothness)
    assert np.array_equal(eased.active, problem.active)
    if n > 1:
        assert not enough.all()
    graph = AugmentedGraph(eased, network, parameters)
    tips = slice(network.n_edges, None)
    steps = (
        parameters.contraction
        * graph.mu_squared[tips]
        / (parameters.dual_curvature * graph.probability[tips])
    )
    assert np.all(steps < eased.smoothness[graph.tip_rows])


def test_smoothness_limit_refuses_a_split_outside_its_range() -> None:
    for r in (0.0, 1.0):
        with pytest.raises(adfs.InputError, match="the split r"):
            smoothness_limit(np.ones(3), adfs.Network("path:3"), r=r)
