"""Terms as objects: the prox is the argmin, the dual prox Moreau's, multinomial logistic scikit-learn's."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from adfs.errors import InputError
from adfs.problem import GeneralProblem, LinearTerm, MultinomialLogisticTerm, Problem, Term, losses
from adfs.problem.losses import Loss, get_loss
from literal_cases import multinomial_terms
from loss_cases import CASES, SMOOTH, case_id


def linear(loss: Loss, seed: int, weight: float = 1.3) -> LinearTerm:
    rng = np.random.default_rng(seed)
    label = float(rng.choice([-1.0, 1.0])) if loss.task == "classification" else float(rng.standard_normal())
    return LinearTerm(rng.standard_normal(4), label, weight, loss)


# --------------------------------------------------------------------------- one sample of the linear case


@pytest.mark.parametrize("loss", CASES, ids=case_id)
@pytest.mark.parametrize("step", [1e-3, 0.5, 1e3])
def test_linear_prox_is_the_argmin(loss: Loss, step: float) -> None:
    for seed in range(10):
        term = linear(loss, seed)
        center = np.random.default_rng(100 + seed).standard_normal(4)
        theta = term.prox(center, step)
        # The minimiser moves along x; there the optimality condition is one-dimensional.
        moved = (center - theta) / step
        s = float(moved @ term.x) / term.norm_squared
        np.testing.assert_allclose(moved, s * term.x, rtol=0, atol=1e-12 * (1.0 + 1.0 / step))
        low, high = losses.domain(loss, term.label)
        clipped = min(max(s / term.weight, low), high)
        assert term.weight * clipped == pytest.approx(s, abs=1e-12 * (1.0 + 1.0 / step))
        margin = float(term.x @ theta)
        conjugate = losses.conjugate(loss, clipped, term.label)
        young = losses.value(loss, margin, term.label) + conjugate - clipped * margin
        assert abs(young) <= 1e-11 * (1.0 + step)

        def value(point: np.ndarray, term: LinearTerm = term, center: np.ndarray = center) -> float:
            return term.value(point) + float((point - center) @ (point - center)) / (2.0 * step)

        for nudge in 1e-3 * np.random.default_rng(seed).standard_normal((5, 4)):
            assert value(theta) <= value(theta + nudge) + 1e-13 * (1.0 + value(theta))


@pytest.mark.parametrize("loss", CASES, ids=case_id)
def test_linear_dual_prox_equals_the_form_of_moreau(loss: Loss) -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        term = linear(loss, seed)
        own = term.smoothness
        z = rng.standard_normal(4)
        for share in (1e-3, 0.3, 0.9):
            step = share * own if loss.smooth else share
            # Any L at least the term's own is valid; both forms must know which was meant.
            for smoothness in (own, 1.7 * own, 100.0 * own):
                scalar = term.dual_prox(z, step, smoothness)
                general = Term.dual_prox(term, z, step, smoothness)
                np.testing.assert_allclose(scalar, general, rtol=0, atol=1e-12 / (1.0 - min(share, 0.9)))


@pytest.mark.parametrize("loss", SMOOTH, ids=case_id)
def test_linear_dual_prox_needs_no_condition_on_the_step(loss: Loss) -> None:
    term = linear(loss, 3)
    z = np.random.default_rng(1).standard_normal(4)
    step = 8.0 * term.smoothness
    v = term.dual_prox(z, step, term.smoothness)

    def value(s: float) -> float:
        v = s * term.x
        quadratic = float((v - z) @ (v - z)) / (2.0 * step) - float(v @ v) / (2.0 * term.smoothness)
        return quadratic + term.weight * losses.conjugate(loss, s / term.weight, term.label)

    s = float(v @ term.x) / term.norm_squared
    low, high = losses.domain(loss, term.label)
    grid = np.linspace(max(term.weight * low, -30.0), min(term.weight * high, 30.0), 20_001)
    inside = min(max(s, grid[0]), grid[-1])
    assert value(inside) <= min(value(float(point)) for point in grid) + 1e-12
    with pytest.raises(InputError, match=r"the dual step .* is not below the smoothness"):
        Term.dual_prox(term, z, step, term.smoothness)


def test_problem_terms_are_its_samples() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 3)), rng.choice([-1.0, 1.0], 6)
    weights = rng.uniform(0.5, 2.0, 6)
    theta = rng.standard_normal(3)
    for given_rows in (X, sp.csr_array(X)):
        problem = Problem(given_rows, y, "logistic", 0.5, 2, sample_weight=weights)
        terms = [problem.term(j) for j in range(6)]
        value = sum(term.value(theta) for term in terms) + 0.5 * theta @ theta
        assert problem.objective(theta) == pytest.approx(value, rel=1e-14)
        gradient = sum(term.gradient(theta) for term in terms) + theta
        np.testing.assert_allclose(problem.gradient(theta), gradient, rtol=0, atol=1e-14)
        np.testing.assert_allclose([term.smoothness for term in terms], problem.smoothness, rtol=1e-14)


@pytest.mark.parametrize("loss", CASES, ids=case_id)
def test_linear_conjugate_is_finite_in_its_domain(loss: Loss) -> None:
    term = linear(loss, 5)
    theta = np.random.default_rng(2).standard_normal(4)
    s = term.gradient(theta)
    assert term.value(theta) + term.conjugate(s) == pytest.approx(float(s @ theta), abs=1e-12)
    assert term.conjugate(s + 1e-3 * np.linalg.norm(s) * np.ones(4) + 1e-3) == math.inf  # off the line of x
    far = term.clip_to_domain(1e6 * np.ones(4) * np.sign(term.x))
    assert math.isfinite(term.conjugate(term.clip_to_domain(far * (1.0 - 1e-15))))
    np.testing.assert_allclose(term.clip_to_domain(s), s, rtol=0, atol=1e-14)


@pytest.mark.parametrize("constant", ["row", "weight"])
def test_linear_term_may_be_constant(constant: str) -> None:
    loss = get_loss("logistic")
    x = np.zeros(2) if constant == "row" else np.ones(2)
    term = LinearTerm(x, 1.0, 0.0 if constant == "weight" else 2.0, loss)
    assert term.constant
    z = np.array([0.3, -0.4])
    np.testing.assert_array_equal(term.prox(z, 0.7), z)
    np.testing.assert_array_equal(term.dual_prox(z, 0.7, 0.0), 0.0)
    assert term.conjugate(np.zeros(2)) == -term.value(np.zeros(2))
    assert term.conjugate(z) == math.inf
    assert not term.clip_to_domain(z).any()


# --------------------------------------------------------------------------- multinomial logistic


def multinomial(seed: int = 0, n_classes: int = 3, weight: float = 1.4) -> MultinomialLogisticTerm:
    rng = np.random.default_rng(seed)
    return MultinomialLogisticTerm(rng.standard_normal(4), int(rng.integers(n_classes)), n_classes, weight)


def test_multinomial_value_and_gradient_are_the_literal_ones() -> None:
    term = multinomial()
    theta = np.random.default_rng(1).standard_normal(12)
    margins = theta.reshape(3, 4) @ term.x
    expected = 1.4 * (np.log(np.exp(margins).sum()) - margins[int(term.label)])
    assert term.value(theta) == pytest.approx(expected, rel=1e-14)
    step = 1e-6
    slopes = [(term.value(theta + step * e) - term.value(theta - step * e)) / (2 * step) for e in np.eye(12)]
    np.testing.assert_allclose(term.gradient(theta), slopes, rtol=0, atol=1e-9)
    for size in (1e3, 1e6, 1e300):
        assert math.isfinite(term.value(size * theta))
        assert np.all(np.isfinite(term.gradient(size * theta)))


def test_multinomial_gradient_keeps_its_digits_at_certainty() -> None:
    x = np.array([1.0, 2.0])
    term = MultinomialLogisticTerm(x, 0, 3)
    theta = np.zeros((3, 2))
    theta[0] = 20.0
    others = math.exp(-60.0)
    expected = np.outer([-2.0 * others, others, others], x).ravel()
    np.testing.assert_allclose(term.gradient(theta.ravel()), expected, rtol=1e-13)


def test_multinomial_smoothness_is_the_sharp_constant() -> None:
    term = multinomial(n_classes=2)
    assert term.smoothness == pytest.approx(0.5 * 1.4 * term.x @ term.x)
    direction = np.concatenate([term.x, -term.x]) / np.sqrt(2.0 * term.x @ term.x)
    step = 1e-4
    bend = (term.gradient(step * direction) - term.gradient(-step * direction)) @ direction / (2 * step)
    assert bend == pytest.approx(term.smoothness, rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_classes=st.integers(1, 6),
    step=st.floats(-6.0, 6.0),
    size=st.floats(-2.0, 3.0),
)
def test_multinomial_prox_meets_its_condition(seed: int, n_classes: int, step: float, size: float) -> None:
    """θ + γ∇f(θ) = z, relative to the sizes of its terms."""
    term = multinomial(seed, n_classes)
    center = 10.0**size * np.random.default_rng(seed).standard_normal(4 * n_classes)
    theta = term.prox(center, 10.0**step)
    residual = theta + 10.0**step * term.gradient(theta) - center
    sizes = 1.0 + np.abs(center).max(), 1.0 + 10.0**step
    # The margins are rounded relative to the centre, and the step multiplies that.
    assert np.abs(residual).max() <= 1e-12 * sum(sizes) + 1e-14 * math.prod(sizes)


def test_multinomial_prox_agrees_with_a_general_solver() -> None:
    term = multinomial(4)
    center = np.random.default_rng(0).standard_normal(12)

    def value(theta: np.ndarray) -> float:
        return term.value(theta) + float((theta - center) @ (theta - center)) / 1.4

    def gradient(theta: np.ndarray) -> np.ndarray:
        return np.asarray(term.gradient(theta) + (theta - center) / 0.7)

    found = minimize(value, center, jac=gradient, tol=1e-12)
    np.testing.assert_allclose(term.prox(center, 0.7), found.x, rtol=0, atol=1e-7)


def test_multinomial_dual_prox_is_that_of_moreau() -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        term = multinomial(seed)
        z = rng.standard_normal(12)
        for share in (1e-2, 0.5, 0.95):
            step = share * term.smoothness
            direct = term.dual_prox(z, step, term.smoothness)
            np.testing.assert_allclose(
                direct, Term.dual_prox(term, z, step, term.smoothness), rtol=0, atol=1e-12 / (1.0 - share)
            )
            assert math.isfinite(term.conjugate(direct))
    with pytest.raises(InputError, match="raise the smoothness"):
        Term.dual_prox(term, z, term.smoothness, term.smoothness)


def test_multinomial_conjugate_meets_fenchel_young() -> None:
    rng = np.random.default_rng(3)
    for seed in range(10):
        term = multinomial(seed)
        theta, other = rng.standard_normal((2, 12))
        s = term.gradient(theta)
        assert term.value(theta) + term.conjugate(s) == pytest.approx(float(s @ theta), abs=1e-13)
        assert term.value(other) + term.conjugate(s) >= float(s @ other) - 1e-13
        np.testing.assert_allclose(term.clip_to_domain(s), s, rtol=0, atol=1e-14)
        assert term.conjugate(1.5 * np.abs(s)) == math.inf
        assert term.conjugate(s + 1e-3 * rng.standard_normal(12)) == math.inf
        assert math.isfinite(term.conjugate(term.clip_to_domain(s + 1e-3 * rng.standard_normal(12))))


# --------------------------------------------------------------------------- problems of general terms


def multinomial_problem() -> tuple[GeneralProblem, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = np.argmax(X @ rng.standard_normal((3, 4)) + rng.gumbel(size=(40, 4)), axis=1)
    return multinomial_terms(X, y, [0.5, 0.2, 0.3], 3, n_classes=4), X, y


def test_general_problem_gap_is_a_bound() -> None:
    problem, _, _ = multinomial_problem()
    rng = np.random.default_rng(0)
    best = minimize(problem.objective, np.zeros(12), jac=problem.gradient, tol=1e-12).fun
    for _ in range(20):
        duals = problem.clip_to_domain(rng.standard_normal((40, 12)))
        gap = problem.duality_gap(duals, relative=False)
        theta = problem.primal_from_dual(duals)
        assert problem.objective(theta) - best <= gap + 1e-9
        assert problem.duality_gap(duals) == pytest.approx(gap / (40 * math.log(4.0)), rel=1e-12)
    assert problem.duality_gap(rng.standard_normal((40, 12))) == math.inf


def test_general_problem_of_linear_terms_is_the_linear_problem() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 3)), rng.choice([-1.0, 1.0], 9)
    linear_problem = Problem(X, y, "logistic", [0.5, 1.0], 2)
    cuts = linear_problem.node_starts
    terms = [[linear_problem.term(j) for j in range(cuts[i], cuts[i + 1])] for i in range(2)]
    general = GeneralProblem(terms, 3, [0.5, 1.0])
    theta = rng.standard_normal(3)
    assert general.objective(theta) == pytest.approx(linear_problem.objective(theta), rel=1e-14)
    np.testing.assert_allclose(general.gradient(theta), linear_problem.gradient(theta), rtol=0, atol=1e-14)
    np.testing.assert_allclose(general.kappa, linear_problem.kappa, rtol=1e-14)
    assert general.kappa_s == pytest.approx(linear_problem.kappa_s)
    assert general.kappa_b >= linear_problem.kappa_b
    np.testing.assert_array_equal(general.active, linear_problem.active)
    np.testing.assert_array_equal(general.node_of_row, linear_problem.node_of_row)
    s = linear_problem.clip_to_domain(rng.standard_normal(9))
    duals = s[:, None] * linear_problem.X
    assert general.duality_gap(duals) == pytest.approx(linear_problem.duality_gap(s), rel=1e-12)
    np.testing.assert_allclose(
        general.primal_from_dual(duals), linear_problem.primal_from_dual(s), atol=1e-14
    )
    np.testing.assert_allclose(
        general.clip_to_domain(3.0 * duals),
        linear_problem.clip_to_domain(3.0 * s)[:, None] * linear_problem.X,
        atol=1e-14,
    )


def test_general_problem_keeps_a_larger_smoothness() -> None:
    problem, _, _ = multinomial_problem()
    terms = [problem.terms[a:b] for a, b in pairwise(problem.node_starts)]
    raised = GeneralProblem(terms, 12, problem.sigma, smoothness=2.0 * problem.smoothness)
    np.testing.assert_allclose(raised.kappa, 2.0 * problem.kappa)
    assert raised.objective(np.ones(12)) == problem.objective(np.ones(12))
    with pytest.raises(InputError, match="smoothness must be one number per term, none below the term's own"):
        GeneralProblem(terms, 12, problem.sigma, smoothness=0.5 * problem.smoothness)


def test_general_problem_takes_constant_terms_and_empty_nodes() -> None:
    zero = MultinomialLogisticTerm(np.zeros(2), 1, 3)
    problem = GeneralProblem([[zero], []], 6, 1.0)
    assert zero.constant
    assert not problem.active.any()
    assert problem.objective(np.zeros(6)) == pytest.approx(math.log(3.0))
    assert problem.duality_gap(np.zeros((1, 6))) == pytest.approx(0.0, abs=1e-15)
    assert problem.duality_gap(np.ones((1, 6))) == math.inf
    assert not problem.clip_to_domain(np.ones((1, 6))).any()
    empty = GeneralProblem([[]], 2, 1.0)
    assert empty.duality_gap(empty.clip_to_domain(np.empty((0, 2)))) == 0.0
    assert repr(empty) == "GeneralProblem(n_nodes=1, n_samples=0, n_features=2)"


class Ball(Term):
    """A user's own term with nothing but what is asked: ½‖θ − c‖²."""

    def __init__(self, center: np.ndarray) -> None:
        self.center = center

    @property
    def smoothness(self) -> float:
        return 1.0

    def value(self, theta: np.ndarray) -> float:
        return 0.5 * float((theta - self.center) @ (theta - self.center))

    def prox(self, center: np.ndarray, step: float) -> np.ndarray:
        return (center + step * self.center) / (1.0 + step)


def test_general_problem_takes_a_term_from_outside() -> None:
    rng = np.random.default_rng(0)
    term = Ball(rng.standard_normal(3))
    problem = GeneralProblem([[term], [Ball(np.zeros(3))]], 3, 0.5)
    assert problem.objective(np.zeros(3)) == pytest.approx(term.value(np.zeros(3)))
    z = rng.standard_normal(3)
    # f*(v) − ‖v‖²/2 is c·v: the dual prox is z − ηc.
    np.testing.assert_allclose(term.dual_prox(z, 0.4, 1.0), z - 0.4 * term.center, rtol=0, atol=1e-15)
    with pytest.raises(NotImplementedError, match="Ball has no gradient"):
        problem.gradient(z)
    assert not problem.certifiable
    with pytest.raises(InputError, match="Ball has no conjugate, without which there is no duality gap"):
        problem.duality_gap(np.zeros((2, 3)))
    assert multinomial_problem()[0].certifiable
