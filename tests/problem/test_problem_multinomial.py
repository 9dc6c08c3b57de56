"""Linear models with several outputs: the prox as the argmin it is, sums, the optimum, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import adfs
from adfs.algorithms import METHODS
from adfs.errors import InputError
from adfs.problem import GeneralProblem, Multinomial, MultinomialLogisticTerm, Problem
from adfs.problem.logistic import ROOM_ROWS, multinomial_dual_prox
from literal_cases import multinomial_terms


def prox(zeta: np.ndarray, h: float, label: int, weight: float, guess: np.ndarray) -> np.ndarray:
    dual, room = zeta.copy(), np.zeros((ROOM_ROWS, zeta.size))
    room[0] = guess
    multinomial_dual_prox(dual, h, label, weight, room)
    return dual


# --------------------------------------------------------------------------- the prox


@settings(max_examples=400)
@given(
    seed=st.integers(0, 10_000),
    classes=st.sampled_from([1, 2, 3, 10, 100]),
    log_h=st.floats(-9.0, 9.0),
    size=st.floats(-3.0, 3.0),
    log_weight=st.floats(-4.0, 4.0),
    guess=st.floats(-3.0, 4.0),
)
def test_multinomial_prox_meets_its_condition(
    seed: int, classes: int, log_h: float, size: float, log_weight: float, guess: float
) -> None:
    """At u = ζ/h − C∇ℓ the probabilities are softmax(u), as well as u itself is known; C of both signs."""
    rng = np.random.default_rng(seed)
    label, weight = int(rng.integers(classes)), 10.0**log_weight
    h, zeta = weight * 10.0**log_h, weight * 10.0**size * rng.standard_normal(classes)
    s = prox(zeta, h, label, weight, 10.0**guess * rng.standard_normal(classes))
    slopes, scale = s / weight, weight / h - 2.0
    assert scale > -2.0
    others = np.delete(slopes, label)
    assert np.all(others >= 0.0)
    assert slopes[label] == pytest.approx(-others.sum(), rel=1e-15, abs=1e-300)
    u = zeta / h - scale * slopes
    expected = np.exp(u - u.max())
    expected /= expected.sum()
    found = slopes + (np.arange(classes) == label)
    known = min(1.0, 1e-14 * (np.abs(zeta / h).max() + abs(scale)))
    assert np.all(np.abs(found - expected) <= known * np.maximum(found, expected) + 1e-12)


@pytest.mark.parametrize("classes", [2, 5, 30])
@pytest.mark.parametrize("log_h", [-6.0, -2.0, 0.0, 2.0, 6.0])
def test_multinomial_prox_is_the_argmin(classes: int, log_h: float) -> None:
    """No feasible point near it is better, h above and below where the Moreau form would need it."""
    rng = np.random.default_rng(int(10 + log_h))
    loss, label, weight = Multinomial(classes), 1, 1.7
    for _ in range(5):
        h = weight * 10.0**log_h
        zeta = weight * rng.standard_normal(classes)
        s = prox(zeta, h, label, weight, rng.standard_normal(classes))

        def value(s: np.ndarray, h: float = h, zeta: np.ndarray = zeta) -> float:
            conjugate = weight * Multinomial.conjugate(loss, s / weight, float(label))
            return float((s - zeta) @ (s - zeta) / (2 * h) + conjugate - s @ s / weight)

        best = value(s)
        assert math.isfinite(best)
        for length in (1e-2, 1e-4):
            for _ in range(20):
                # A little of the way to another point of the domain: p of a random softmax.
                p = np.exp(2.0 * rng.standard_normal(classes))
                p /= p.sum()
                other = weight * (p - (np.arange(classes) == label))
                near = s + length * (other - s)
                near[label] = -np.delete(near, label).sum()
                assert value(near) >= best - 1e-13 * (1.0 + abs(best) + abs(float(zeta @ zeta)) / h)


@pytest.mark.parametrize("classes", [2, 4])
def test_multinomial_prox_is_that_of_the_literal_term(classes: int) -> None:
    rng = np.random.default_rng(0)
    for share in (1e-3, 0.5, 0.99, 3.0, 50.0):
        x, weight, label = rng.standard_normal(3), 0.6, classes - 1
        term = MultinomialLogisticTerm(x, label, classes, weight)
        zeta = rng.standard_normal(classes)
        step = share * term.smoothness
        z = np.outer(zeta, x).ravel()
        expected = term.dual_prox(z, step, term.smoothness)
        found = prox(zeta, step / term.norm_squared, label, weight, np.zeros(classes))
        np.testing.assert_allclose(np.outer(found, x).ravel(), expected, rtol=0, atol=1e-13)


# --------------------------------------------------------------------------- the problem


def made(
    n: int = 3, classes: int = 4, *, sparse: bool = False, extra: int = 0
) -> tuple[Problem, GeneralProblem]:
    """The same problem linear and as terms; weights of its own, a zero row and a row without weight."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = np.argmax(X @ rng.standard_normal((3, classes)) + rng.gumbel(size=(40, classes)), axis=1)
    X[7], weights = 0.0, rng.uniform(0.5, 2.0, 40)
    weights[11] = 0.0
    sigma = rng.uniform(0.2, 0.8, n)
    linear = Problem(
        sp.csr_array(X) if sparse else X, y, Multinomial(classes + extra), sigma, n, sample_weight=weights
    )
    return linear, multinomial_terms(X, y, sigma, n, n_classes=classes + extra, sample_weight=weights)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("extra", [0, 2])
def test_multinomial_problem_has_the_sums_of_its_terms(sparse: bool, extra: int) -> None:
    linear, general = made(sparse=sparse, extra=extra)
    rng = np.random.default_rng(1)
    d = linear.n_features
    assert (d, linear.n_outputs, linear.dual_shape) == (3 * (4 + extra), 4 + extra, (4 + extra,))
    assert general.n_features == d
    points = rng.standard_normal((3, d))
    np.testing.assert_allclose(linear.objective(points), [general.objective(t) for t in points], rtol=1e-14)
    for theta in points:
        assert linear.objective(theta) == pytest.approx(general.objective(theta), rel=1e-14)
        np.testing.assert_allclose(linear.gradient(theta), general.gradient(theta), rtol=0, atol=1e-12)
    np.testing.assert_allclose(linear.smoothness, general.smoothness, rtol=1e-14)
    np.testing.assert_array_equal(linear.active, general.active)
    assert np.all(linear.batch_smoothness <= general.batch_smoothness * (1.0 + 1e-12))

    def vectors(duals: np.ndarray) -> np.ndarray:
        rows = linear.X.toarray() if sparse else linear.X
        return np.einsum("jk,jp->jkp", duals, rows).reshape(40, d)

    for duals in (linear.slopes(points[0]), rng.standard_normal((40, linear.n_outputs))):
        inside = linear.clip_to_domain(duals)
        # A tip of a zero row or a row without weight has no vector; both are constants.
        expected = general.clip_to_domain(vectors(duals))
        np.testing.assert_allclose(vectors(inside), expected, rtol=0, atol=1e-13)
        np.testing.assert_allclose(linear.clip_to_domain(inside), inside, rtol=0.0, atol=4e-16)
        np.testing.assert_allclose(linear.row_sums(inside), general.row_sums(expected), rtol=0, atol=1e-12)
        np.testing.assert_allclose(linear.row_total(inside), general.row_total(expected), rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            linear.conjugate_sums(inside), general.conjugate_sums(expected), rtol=1e-12
        )
        assert linear.duality_gap(inside) == pytest.approx(general.duality_gap(expected), rel=1e-10)
    assert linear.duality_gap(rng.standard_normal((40, linear.n_outputs))) == math.inf
    assert linear.term(3).value(points[0]) == pytest.approx(general.term(3).value(points[0]), rel=1e-14)


def test_multinomial_problem_has_the_same_bits_dense_and_sparse() -> None:
    dense, sparse = made()[0], made(sparse=True)[0]
    theta = np.random.default_rng(0).standard_normal(dense.n_features)
    duals = dense.slopes(theta)
    for name, argument in (
        ("loss_sums", theta),
        ("slopes", theta),
        ("row_sums", duals),
        ("row_total", duals),
    ):
        assert getattr(dense, name)(argument).tobytes() == getattr(sparse, name)(argument).tobytes()


def test_multinomial_problem_keeps_its_digits_where_a_class_is_certain() -> None:
    """Θx of 40 between the classes: slopes, conjugates and gaps down to exp(−40) of the others."""
    problem = Problem(np.eye(2), [0, 1], "multinomial", 1e-3)
    theta = np.array([[20.0, -20.0], [-20.0, 20.0]]).ravel()
    small = math.exp(-40.0)
    np.testing.assert_allclose(problem.slopes(theta), small * np.array([[-1, 1], [1, -1]]), rtol=1e-13)
    assert float(problem.loss_sums(theta)[0]) == pytest.approx(2.0 * small, rel=1e-13)
    duals = problem.slopes(theta)
    young = (
        problem.loss_sums(theta).sum()
        + problem.conjugate_sums(duals).sum()
        - theta @ problem.row_total(duals)
    )
    assert abs(young) <= 1e-13 * small * 40.0


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 9), log_weight=st.floats(-3.0, 3.0))
def test_clip_to_domain_finds_the_nearest_point_of_the_simplex(
    seed: int, classes: int, log_weight: float
) -> None:
    rng = np.random.default_rng(seed)
    weight, label = 10.0**log_weight, int(rng.integers(classes))
    problem = Problem([[1.0]], [label], Multinomial(classes), 1.0, sample_weight=[weight])
    point = rng.standard_normal(classes) * 10.0 ** rng.uniform(-3.0, 1.0)
    found = problem.clip_to_domain(weight * point[None])[0] / weight + (np.arange(classes) == label)
    given_ = point + (np.arange(classes) == label)
    # Of the nearest point: p_k = max(given_k − shift, 0) with one shift.
    assert found.min() >= -1e-15
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    shift = (given_ - found)[found > 1e-12]
    assert np.ptp(shift) <= 1e-12 * (1.0 + np.abs(given_).max())
    assert np.all((given_ - shift.mean())[found <= 1e-12] <= 1e-11)


@pytest.mark.parametrize("sparse", [False, True])
def test_multinomial_optimum_is_that_of_scikit_learn(sparse: bool) -> None:
    problem, _ = made(sparse=sparse)
    found = problem.optimum()
    assert found.gap <= 1e-12
    assert found.dual.shape == (40, 4)
    rows = problem.X.toarray() if sparse else problem.X
    model = LogisticRegression(
        C=1.0 / problem.total_sigma, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=1000
    )
    model.fit(rows, problem.y, sample_weight=problem.weights)
    np.testing.assert_allclose(found.theta.reshape(4, 3), model.coef_, rtol=0, atol=1e-6)
    scale = np.linalg.norm(problem.gradient(np.zeros(problem.n_features)))
    assert np.linalg.norm(problem.gradient(found.theta)) <= 1e-10 * scale


def test_multinomial_problem_counts_classes_and_its_parts_keep_them() -> None:
    problem = Problem(np.eye(3), [0, 4, 1], "multinomial", n_nodes=3)
    assert problem.loss == Multinomial(5)
    assert problem.merged().loss == problem.loss
    first = problem.first_samples()
    assert first is not None
    assert first.loss == problem.loss
    wider = Problem(sp.csr_array(np.eye(3)), [0, 4, 1], "multinomial").widened(5 * 7)
    assert wider.X.shape == (3, 7)
    with pytest.raises(InputError, match="theta has 35 entries here and 36 elsewhere"):
        wider.widened(36)
    assert problem.identity()[0] == [Multinomial(5)]


@pytest.mark.parametrize("name", METHODS)
def test_methods_run_a_multinomial_problem_or_say_what_does(name: str) -> None:
    problem, _ = made(1)
    if not METHODS[name].obstacle(problem):
        assert METHODS[name].several_outputs
        run = adfs.simulate(name, problem, tol=1e-9)
        assert run.converged
        np.testing.assert_allclose(run.coef, problem.optimum().theta, rtol=0, atol=1e-4)
        return
    sentence = "takes one output per sample and the loss 'multinomial' has 4; use"
    if name == "newton":
        sentence = "'newton' takes the loss 'multinomial' with an l1 term only; use"
    with pytest.raises(InputError, match=sentence):
        adfs.simulate(name, problem, max_passes=1.0)


@pytest.mark.parametrize("schedule", ["iid", "poisson"])
def test_simulate_records_every_measure_of_a_multinomial_problem(schedule: str) -> None:
    problem, _ = made(4)
    measures = ("suboptimality", "distance", "consensus")
    run = adfs.simulate("adfs", problem, "cycle:4", schedule=schedule, tol=1e-10, record=measures)
    assert run.converged
    assert run.frame["suboptimality"].iloc[-1] < 1e-6
    assert run.theta.shape == (4, 12)


def test_multinomial_problem_of_two_classes_is_the_logistic_one() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 3)), rng.choice([-1.0, 1.0], 12)
    several = Problem(X, (y > 0).astype(int), "multinomial", sigma=1.0)
    theta = rng.standard_normal(3)
    # Θ = (−θ, θ)/2 has the margin difference xᵀθ; its ℓ2 term is half of that of θ.
    value = several.objective(np.concatenate([-theta, theta]) / 2.0)
    assert value == pytest.approx(Problem(X, y, "logistic", 0.5).objective(theta), rel=1e-14)
