"""Offsets of the margins: ℓ(xᵀθ + o; y)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS
from adfs.errors import InputError
from adfs.problem import Loss
from adfs.problem.losses import conjugate, get_loss, value
from adfs.runtimes import RunOptions, run_method
from adfs.runtimes.joint_problem import join_shards
from literal_cases import random_network, random_problem
from loss_cases import ONE_OUTPUT
from memory_cluster import Threads, on_threads

RNG = np.random.default_rng(11)


def often(names: Iterable[str], *chosen: str) -> list[Any]:
    """All names; those that are not chosen are checked with the expensive tests, for each has its kernels."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.soak) for name in sorted(names)]


def with_offset(name: str, n_nodes: int = 3, *, zeros: bool = False) -> adfs.Problem:
    rng = np.random.default_rng(5)
    plain = random_problem(name, [4] * n_nodes, 3, rng, zeros=zeros)
    shards = [(*shard[:3], rng.normal(0.0, 2.0, shard.y.size)) for shard in plain.shards]
    return adfs.Problem.from_shards(shards, loss=name, sigma=plain.sigma)


def softmax_case() -> adfs.Problem:
    X, offset = RNG.standard_normal((12, 2)), RNG.normal(0.0, 2.0, (12, 3))
    labels = np.arange(12) % 3
    return adfs.Problem(X, labels, loss="multinomial", sigma=0.3, n_nodes=3, offset=offset)


@pytest.mark.parametrize("name", ["logistic", "hinge", "huber"])
def test_offset_shifts_the_margins_in_every_sum(name: str) -> None:
    problem = with_offset(name, zeros=True)
    loss, theta = get_loss(name), RNG.standard_normal(3)
    assert problem.offset is not None
    margins = problem.X @ theta + problem.offset
    losses = [value(loss, u, b) for u, b in zip(margins, problem.y, strict=True)]
    expected = problem.weights @ losses + 0.5 * problem.total_sigma * theta @ theta
    assert problem.objective(theta) == pytest.approx(expected, rel=1e-14)
    assert np.allclose(problem.objective(np.array([theta, theta])), expected, rtol=1e-14, atol=0.0)
    terms = sum(problem.term(j).value(theta) for j in range(problem.n_samples))
    assert problem.loss_sums(theta).sum() == pytest.approx(terms, rel=1e-13)

    duals = problem.clip_to_domain(RNG.standard_normal(problem.n_samples))
    chosen = problem.active
    stars = [
        w * conjugate(loss, s / w, b) - s * o
        for s, w, b, o in zip(
            duals[chosen], problem.weights[chosen], problem.y[chosen], problem.offset[chosen], strict=True
        )
    ]
    still = ~chosen & (problem.weights > 0.0)
    rest = problem.weights[still] @ np.array(losses)[still]
    assert problem.conjugate_sums(duals).sum() == pytest.approx(sum(stars) - rest, rel=1e-12)
    gap = problem.objective(problem.primal_from_dual(duals)) - problem.dual_objective(duals)
    assert problem.duality_gap(duals, relative=False) == pytest.approx(gap, rel=1e-10)


def test_offset_of_zero_changes_no_bit_and_a_whole_shift_is_a_column() -> None:
    plain, theta = random_problem("logistic", [5, 4], 3, RNG), RNG.standard_normal(3)
    zero = adfs.Problem(plain.X, plain.y, sigma=1.0, sample_weight=plain.weights, offset=np.zeros(9))
    same = adfs.Problem(plain.X, plain.y, sigma=1.0, sample_weight=plain.weights)
    assert zero.objective(theta) == same.objective(theta)
    assert np.array_equal(zero.optimum().theta, same.optimum().theta)
    along = adfs.Problem(plain.X, plain.y, sigma=1.0, sample_weight=plain.weights, offset=plain.X @ theta)
    assert along.loss_sums(-theta).sum() == pytest.approx(same.loss_sums(np.zeros(3)).sum(), rel=1e-14)


@pytest.mark.parametrize("name", often(ONE_OUTPUT, "logistic", "hinge"))
def test_optimum_with_offsets_is_where_the_shifted_slopes_balance(name: str) -> None:
    problem = with_offset(name)
    found = problem.optimum()
    assert found.gap <= 1e-12
    if problem.smooth:
        slopes = [problem.term(j).gradient(found.theta) for j in range(problem.n_samples)]
        assert np.allclose(np.sum(slopes, axis=0), -problem.total_sigma * found.theta, atol=1e-9)


@pytest.mark.parametrize("name", often(METHODS, "adfs", "dsba"))
def test_methods_reach_the_optimum_with_offsets(name: str) -> None:
    problem = with_offset("logistic" if METHODS[name].needs_smooth else "hinge")
    network = random_network(3, np.random.default_rng(2))
    method = METHODS[name]
    passes = 20_000 if name == "ns-adfs" else 3000
    run = adfs.simulate(name, problem, network, tol=1e-5 if name == "ns-adfs" else 1e-10, max_passes=passes)
    best = problem.optimum()
    away = 1e-2 if name == "ns-adfs" else 1e-4
    assert method.name == name
    assert run.gap <= 1e-5
    assert np.abs(run.coef - best.theta).max() < away


def test_multinomial_problem_with_offsets_is_its_literal_form() -> None:
    problem = softmax_case()
    assert problem.offset is not None
    theta = RNG.standard_normal(6)
    terms = [problem.term(j) for j in range(12)]
    assert problem.loss_sums(theta).sum() == pytest.approx(sum(t.value(theta) for t in terms), rel=1e-13)
    gradient = sum(t.gradient(theta) for t in terms) + problem.total_sigma * theta
    assert np.allclose(problem.gradient(theta), gradient, atol=1e-13)
    duals = problem.clip_to_domain(RNG.uniform(-0.5, 0.5, (12, 3)))
    vectors = [np.outer(dual, x).ravel() for dual, x in zip(duals, problem.X, strict=True)]
    stars = sum(t.conjugate(v) for t, v in zip(terms, vectors, strict=True))
    assert problem.conjugate_sums(duals).sum() == pytest.approx(stars, rel=1e-11)
    run = adfs.simulate("adfs", problem, adfs.Network("path:3"), tol=1e-12, max_passes=3000)
    assert run.converged
    assert np.allclose(run.coef, problem.optimum().theta, atol=1e-5)
    moved = [t.dual_prox(v, 0.05, 0.5 * (x @ x)) for t, v, x in zip(terms, vectors, problem.X, strict=True)]
    # The prox of f*: 0 is in (v − z)/η + ∂f*(v) − v/L, and ∂f*(v) holds the θ with ∇f(θ) = v.
    for term, v, z, x in zip(terms, moved, vectors, problem.X, strict=True):
        assert np.allclose(term.gradient(v / (0.5 * (x @ x)) - (v - z) / 0.05), v, atol=1e-9)


def test_problem_parts_keep_their_offsets() -> None:
    offset = np.arange(6.0)
    X = sp.csr_array(RNG.standard_normal((6, 2)))
    problem = adfs.Problem(X, [1, -1] * 3, n_nodes=2, partition="random", seed=3, offset=offset)
    assert problem.offset is not None
    assert np.array_equal(problem.offset, offset[problem.row_index])
    for other in (problem.merged(), problem.widened(4)):
        assert np.array_equal(other.offset, problem.offset)
    assert np.array_equal(problem.shards[1].offset, problem.offset[problem.node_starts[1] :])
    assert len(problem.identity()[1]) == len(adfs.Problem(X, [1, -1] * 3).identity()[1]) + 1
    mixed = adfs.Problem.from_shards([([[1.0]], [1.0]), ([[1.0]], [1.0], None, [2.0])])
    assert mixed.offset is not None
    assert mixed.offset.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"offset": [1.0]}, "offset must have shape (2,), one per row, got (1,)"),
        ({"offset": [1.0, np.inf]}, "offset contains NaN or infinity"),
        ({"offset": ["a", "b"]}, "offset cannot be read as numbers"),
        (
            {"offset": [1.0, 2.0], "loss": "multinomial"},
            "offset must have shape (2, K), one per row and class, got (2,)",
        ),
    ],
)
def test_problem_refuses_bad_offsets(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        adfs.Problem(np.eye(2), [1.0, 1.0], **arguments)


def test_loss_says_whether_it_takes_an_offset_as_a_target() -> None:
    for name in ONE_OUTPUT:
        loss: Loss = get_loss(name)
        b = 0.7 if loss.task == "regression" else 1.0
        if loss.translates:
            assert value(loss, 0.4, b) == pytest.approx(value(loss, 0.4 + 0.3, b + 0.3), rel=1e-12)
    assert {name for name in ONE_OUTPUT if not get_loss(name).translates} == {
        "logistic",
        "squared_hinge",
        "smoothed_hinge",
        "hinge",
    }


def test_join_shards_keeps_offsets() -> None:
    problem = with_offset("logistic")
    alone = adfs.simulate("adfs", problem, adfs.Network("path:3"), max_passes=20, seed=1)

    def one(ranks: Threads) -> Any:
        own = [tuple(problem.shards[ranks.rank])]
        joint = join_shards(
            ranks, own, "path", nodes=None, loss="logistic", sigma=problem.sigma, n_features=None
        )
        options = RunOptions(max_passes=20.0, seed=1, gather=True)
        return run_method(
            "adfs", joint.problem, joint.network, options, cluster=ranks, placement=joint.placement
        )

    for run in on_threads(3, one):
        assert run.gap == alone.gap
        assert np.array_equal(run.coef, alone.coef)
