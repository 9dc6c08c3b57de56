"""Newton's method and L-BFGS: their kernels, their certificates, raw data, and scikit-learn's answers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge

import adfs
from adfs.algorithms.hessians import fill_hessian, hessian_bands
from adfs.algorithms.lbfgs import node_values
from adfs.algorithms.newton import newton_move
from adfs.errors import InputError
from adfs.problem.evaluation import loss_curvatures
from adfs.problem.losses import get_loss
from adfs.problem.terms import LinearTerm
from baseline_cases import drive, make_case, start
from literal_methods import literal_newton


def raw_cancer() -> tuple[np.ndarray, np.ndarray]:
    """Breast cancer as it is, with a column of numbers up to 1e8 beside it."""
    X, y = load_breast_cancer(return_X_y=True)
    return np.hstack([X, 1e8 * np.random.default_rng(0).random((y.size, 1))]), np.where(y > 0, 1.0, -1.0)


def test_newton_is_its_literal_twin():
    problem, network = make_case()
    process = drive(start("newton", problem, network), 3)
    expected = literal_newton(problem, 3)
    assert np.abs(process.primal() - expected).max() <= 1e-11 * np.abs(expected).max()
    assert (process.primal() == process.primal()[0]).all()
    n, d = network.n_nodes, problem.n_features
    assert process.work.messages == 3 * 2 * (n - 1)
    assert process.work.numbers == 3 * (n - 1) * (d * (d + 1) // 2 + 2 * d + 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_hessian_bands_make_up_the_hessian(sparse):
    rng = np.random.default_rng(2)
    n, d = 23, 300  # neither fills the tiles
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.3)
    stored = sp.csr_array(X) if sparse else X
    problem = adfs.Problem(stored, np.sign(rng.standard_normal(n)), sigma=[0.3, 0.4], n_nodes=2)
    theta, head = rng.standard_normal(d), np.empty((2, d + 1))
    ridge = np.tile(problem.sigma[:, None], d)
    node_values(problem.samples, ridge, theta, np.empty(1), np.empty((2, d)), head)
    curvatures = problem.weights * loss_curvatures(problem.loss, problem.margins_at(theta), problem.labels)
    np.testing.assert_allclose(head.sum(axis=0)[:d], problem.gradient(theta), rtol=1e-12, atol=1e-12)
    assert head.sum(axis=0)[d] == pytest.approx(problem.objective(theta), rel=1e-13)
    bands = hessian_bands(d, 10_000)
    assert len(bands) > 3
    found = np.zeros((2, 0))
    for first, last in bands:
        band = np.empty((2, sum(d - row for row in range(first, last))))
        room = np.empty((last - first, d))
        fill_hessian(problem.samples.rows, problem.node_starts, ridge, curvatures, first, last, room, band)
        found = np.hstack([found, band])
    expected = problem.hessian(theta)[np.triu_indices(d)]
    np.testing.assert_allclose(found.sum(axis=0), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_newton_move_ignores_units_and_survives_a_singular_hessian():
    rng = np.random.default_rng(0)
    rows, gradient = rng.standard_normal((30, 5)), rng.standard_normal(5)
    units = 10.0 ** np.array([8.0, -6.0, 0.0, 3.0, -3.0])
    move = newton_move(rows.T @ rows, gradient)
    np.testing.assert_allclose(newton_move((units * rows).T @ (units * rows), units * gradient), move / units)
    flat = np.ones((4, 4))
    assert newton_move(flat, np.ones(4)) @ np.ones(4) < 0.0


def test_lbfgs_directions_are_those_of_the_pairs():
    """The two loops against the matrix that the updates of BFGS make."""
    problem, network = make_case(7, d=6)
    process = drive(start("lbfgs", problem, network), 9)
    count, (steps, changes) = len(process.pairs), process.pairs.pairs
    assert 3 <= count < 20
    steps, changes, newest = steps[:count], changes[:count], count - 1  # the oldest pair is first
    scales = np.diag(process.diagonal)
    inverse = steps[newest] @ changes[newest] / (changes[newest] @ scales @ changes[newest]) * scales
    for s, y in zip(steps, changes, strict=True):
        left = np.eye(6) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    found = process.pairs.multiply(process.gradient, process.diagonal)
    np.testing.assert_allclose(found, inverse @ process.gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", ["newton", "lbfgs"])
def test_newton_and_lbfgs_certify_by_the_gradient_and_start_from_duals(name):
    problem, network = make_case()
    run = adfs.simulate(name, problem, network, tol=1e-5)
    gradient = problem.gradient(run.coef)
    expected = gradient @ gradient / (2.0 * problem.total_sigma * problem.value_at_zero)
    assert run.gap == pytest.approx(expected, rel=1e-6, abs=1e-25)
    slopes = np.where(problem.active, problem.slopes(run.coef), 0.0)
    np.testing.assert_allclose(run.dual, slopes, rtol=1e-12, atol=1e-12)
    assert (problem.objective(run.coef) - problem.optimum().value) / problem.value_at_zero <= run.gap
    again = adfs.simulate(name, problem, network, tol=1e-5, start=run.dual)
    assert again.columns["gap"][0] < 1e-3
    assert again.columns["position"][-1] < run.columns["position"][-1]
    far = adfs.simulate(name, problem, network, tol=1e-5, start=1e6 * run.dual)  # worse than 0, so at 0
    assert far.coef.tobytes() == run.coef.tobytes()


@pytest.mark.parametrize(("loss", "most"), [("logistic", 15), ("huber", 10)])
def test_newton_takes_some_ten_rounds_on_raw_data(loss, most):
    X, y = raw_cancer()
    problem = adfs.Problem(X, y, loss, sigma=1.0 / 3.0, n_nodes=3)
    run = adfs.simulate("newton", problem, "path:3", tol=1e-8)
    assert run.converged
    assert run.columns["position"][-1] <= most
    primal = run.columns["primal"]
    assert (np.diff(primal) <= 1e-14 * primal[0]).all()  # the last round may move by a rounding
    assert adfs.simulate("lbfgs", problem, "path:3", tol=1e-8).converged


@pytest.mark.parametrize("name", ["newton", "lbfgs"])
def test_newton_and_lbfgs_give_the_answers_of_scikit_learn(name):
    X, y = load_breast_cancer(return_X_y=True)
    theirs = LogisticRegression(solver="newton-cholesky", C=0.01, fit_intercept=False, tol=1e-10).fit(X, y)
    ours = adfs.ADFSClassifier(C=0.01, fit_intercept=False, method=name, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-6 * np.abs(theirs.coef_).max())
    X, y = load_diabetes(return_X_y=True, scaled=False)
    ridge = Ridge(alpha=2.0, solver="cholesky").fit(X, y)
    model = adfs.ADFSRegressor(alpha=2.0, method=name, tol=1e-14).fit(X, y)
    np.testing.assert_allclose(model.coef_, ridge.coef_, rtol=0, atol=1e-6 * np.abs(ridge.coef_).max())
    assert model.method_ == name


@pytest.mark.parametrize("name", ["newton", "lbfgs"])
def test_newton_and_lbfgs_tell_gaps_by_the_gradient_until_certified(name):
    problem, network = make_case()
    run = adfs.simulate(name, problem, network, tol=1e-8)
    whole = adfs.simulate(name, problem, network, events=run.columns["position"][-1])
    # The last one has what rounding can hide, the others are the same but for that.
    assert run.gap == whole.gap <= 1e-8
    assert np.array_equal(run.coef, whole.coef)
    for position, gap in zip(run.columns["position"], run.columns["gap"], strict=True):
        seen = adfs.simulate(name, problem, network, events=position).gap
        assert position == 0 or gap == pytest.approx(seen, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize("name", ["newton", "lbfgs"])
def test_newton_and_lbfgs_end_where_rounding_ends_progress(name):
    problem, network = make_case()
    run = adfs.simulate(name, problem, network, tol=1e-40)
    assert str(run.outcome) == "out of budget"
    assert run.gap < 1e-25
    assert run.columns["position"][-1] < 1000


def test_newton_and_lbfgs_refuse_what_they_do_not_take():
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(InputError, match="'newton' needs a smooth loss and 'hinge' is not"):
        adfs.simulate("newton", adfs.Problem(X, y, "hinge"))
    terms = [[LinearTerm(x, b, 1.0, get_loss("logistic")) for x, b in zip(X, y, strict=True)]]
    with pytest.raises(InputError, match="'lbfgs' takes linear models"):
        adfs.simulate("lbfgs", adfs.GeneralProblem(terms, 4, 1.0))
    wide = sp.csr_array(([1.0, 1.0], ([0, 1], [0, 5000])), shape=(2, 5001))
    with pytest.raises(InputError, match=r"takes at most 5000 features; use 'adfs' or .*'lbfgs'"):
        adfs.simulate("newton", adfs.Problem(wide, [1.0, -1.0]))
