"""Interior points: the steps of the literal form, real data with kinks, certificates, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.svm import LinearSVC

import adfs
from adfs import ADFSClassifier, ADFSRegressor
from adfs.errors import InputError
from baseline_cases import drive, make_case, start
from literal_methods import literal_interior_point

KINKED = ("hinge", "absolute", "epsilon_insensitive")


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return 20.0 * X, (y - y.mean()) / y.std()


@pytest.mark.parametrize("loss", [*KINKED, "smoothed_hinge"])
def test_interior_point_takes_the_steps_of_the_literal_form(loss: str) -> None:
    problem, network = make_case(loss=loss)
    *_, (duals, theta) = itertools.islice(literal_interior_point(problem.merged()), 5)
    process = drive(start("interior-point", problem, network), 5)
    assert (process.primal() == process.primal()[0]).all()
    np.testing.assert_allclose(process.primal()[0], theta, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(process.dual(), duals, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", KINKED)
@pytest.mark.parametrize("sparse", [False, True])
def test_interior_point_needs_twenty_rounds_whatever_the_units(loss: str, sparse: bool) -> None:
    X, y = diabetes()
    X = X * np.logspace(-3, 3, X.shape[1])
    rows, labels = sp.csr_array(X) if sparse else X, np.sign(y) if loss == "hinge" else y
    problem = adfs.Problem(rows, labels, loss, sigma=0.25, n_nodes=4)
    run = adfs.simulate("interior-point", problem, "cycle:4", tol=1e-9)
    assert (run.converged, run.columns["position"][-1] <= 25) == (True, True)
    assert problem.objective(run.coef) - problem.optimum().value <= 1e-9 * problem.value_at_zero
    assert (np.diff(run.columns["passes"]) == 6.0).all()


def test_interior_point_is_chosen_for_kinks_and_few_features() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    models = [ADFSClassifier(loss="hinge", tol=1e-8, n_nodes=n, network="complete").fit(X, y) for n in (1, 3)]
    assert {model.method_ for model in models} == {"interior-point"}
    assert all(model.dual_gap_ <= 1e-8 and model.n_iter_ <= 200 for model in models)
    np.testing.assert_allclose(models[1].coef_, models[0].coef_, atol=1e-3)
    # LinearSVC penalises the intercept as it does the rest; so does ours when told to.
    same = ADFSClassifier(loss="hinge", tol=1e-10, intercept_scaling=1.0).fit(X, y)
    reference = LinearSVC(loss="hinge", tol=1e-9, max_iter=1_000_000, random_state=0).fit(X, y)
    np.testing.assert_allclose(same.coef_, reference.coef_, atol=1e-4)
    assert ADFSRegressor(loss="absolute", tau=1.0).fit(*diabetes()).method_ == "ns-adfs"
    wide = np.random.default_rng(0).standard_normal((40, 5001))
    assert ADFSRegressor(loss="absolute", tol=0.1).fit(wide, wide[:, 0]).method_ == "ns-adfs"


def test_interior_point_refuses_what_it_is_not_for() -> None:
    X, y = diabetes()
    with pytest.raises(InputError, match="lines and parabolas with bounded slopes"):
        adfs.simulate("interior-point", adfs.Problem(X, y, "squared"))
    with pytest.raises(InputError, match="takes at most 5000 features; use 'ns-adfs'"):
        adfs.simulate("interior-point", adfs.Problem(np.ones((2, 5001)), [1.0, -1.0], "hinge"))
