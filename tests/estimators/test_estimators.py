"""The estimators as scikit-learn's: its own checks, its tools, warm starts, warnings and sentences."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import adfs
from adfs import ADFSClassifier, ADFSRegressor
from adfs.errors import InputError
from adfs.estimators.solver import Solver
from adfs.runtimes import Outcome, simulate
from adfs.runtimes.loop import Loop
from estimators.agreement_cases import classification, regression

# These two compare two fits to 1e-7, which a certified gap does not promise; by Newton's method they hold.
TIGHT = {
    "check_sample_weight_equivalence_on_dense_data": "wants a smaller tol",
    "check_sample_weight_equivalence_on_sparse_data": "wants a smaller tol",
}


@pytest.mark.parametrize(
    ("estimator", "failing"),
    [(ADFSClassifier(), {}), (ADFSRegressor(), {}), (ADFSClassifier("hinge", tol=1e-4), TIGHT)],
    ids=str,
)
def test_estimators_pass_the_checks_of_scikit_learn(estimator: Any, failing: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its checks warn on purpose
        results = estimator_checks.check_estimator(estimator, expected_failed_checks=failing, on_skip=None)
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # we take NumPy arrays, and no other kind
    assert len(results) > 50


def test_regressor_refuses_numbers_too_large_to_square_without_warnings() -> None:
    X, y = regression("diabetes")
    with pytest.raises(
        InputError, match=r"X holds a number beyond ±1e\+150 in row \d+, whose square is no double"
    ):
        ADFSRegressor(method="newton").fit(1e200 * X, y)
    with pytest.raises(InputError, match=r"y holds a number beyond ±1e\+150 in row"):
        ADFSRegressor().fit(X, 1e200 * y)
    X = np.random.default_rng(0).standard_normal((60, 3))
    # Warnings are errors here.
    large, plain = (ADFSRegressor(method="newton").fit(X, size * np.sign(X[:, 0])) for size in (1e150, 1.0))
    assert np.allclose(large.coef_, 1e150 * plain.coef_, rtol=1e-9)


def test_classifier_works_in_pipelines_searches_and_pickles() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), ADFSClassifier(random_state=0))
    search = GridSearchCV(pipeline, {"adfsclassifier__C": [0.01, 10.0]}, cv=3).fit(X, y)
    assert search.best_params_ == {"adfsclassifier__C": 10.0}
    assert search.score(X, y) > 0.9
    model = search.best_estimator_[-1]
    again = pickle.loads(pickle.dumps(search.best_estimator_))  # noqa: S301
    assert np.array_equal(again.predict_proba(X), search.predict_proba(X))
    assert repr(clone(model)) == "ADFSClassifier(C=10.0, random_state=0)"


def test_classifier_takes_frames_sparse_rows_and_float32_as_the_same_data() -> None:
    X, y = classification("breast_cancer")
    small = X.astype(np.float32)
    names = [f"f{k}" for k in range(X.shape[1])]
    base = ADFSClassifier(tol=1e-12, random_state=3).fit(small.astype(np.float64), y)
    for rows in (small, sp.csr_array(small), sp.csc_matrix(small), pd.DataFrame(small, columns=names)):
        model = clone(base).fit(rows, y)
        assert model.coef_.dtype == np.float32  # single precision in, single precision out
        assert np.allclose(model.coef_, base.coef_, rtol=0.0, atol=1e-5)
        assert model.n_features_in_ == 30
    assert model.feature_names_in_.tolist() == names
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(small)


def test_classifier_gives_the_same_bits_for_the_same_random_state() -> None:
    X, y = classification("breast_cancer")
    first, second = (
        ADFSClassifier(n_nodes=4, partition="random", random_state=5).fit(X, y) for _ in range(2)
    )
    assert np.array_equal(first.coef_, second.coef_)
    assert np.array_equal(first.node_coef_, second.node_coef_)
    other = ADFSClassifier(n_nodes=4, partition="random", random_state=6).fit(X, y)
    assert not np.array_equal(first.coef_, other.coef_)


def test_classifier_by_one_versus_rest_has_attributes_per_class() -> None:
    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {k}" for k in range(10)])[y]
    model = ADFSClassifier(n_nodes=4, network=nx.star_graph(3), multi_class="ovr", random_state=0, n_jobs=2)
    model.fit(X / 16.0, names)
    assert model.classes_.tolist() == sorted(set(names))
    assert model.coef_.shape == (10, 64)
    assert model.intercept_.shape == (10,)
    assert model.node_coef_.shape == (10, 4, 64)
    assert model.node_intercept_.shape == (10, 4)
    assert set(model.history_["class"]) == set(names)
    assert model.history_.groupby("class")["gap"].last().max() == pytest.approx(model.dual_gap_, rel=1e-12)
    assert model.n_iter_ == np.ceil(model.history_["passes"].max())
    proba = model.predict_proba(X / 16.0)
    assert np.allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    assert np.array_equal(model.classes_[proba.argmax(axis=1)], model.predict(X / 16.0))
    one = clone(model).set_params(n_jobs=None).fit(X / 16.0, names)
    assert np.array_equal(one.coef_, model.coef_)  # threads change nothing


def test_classifier_takes_class_weights_as_sample_weights() -> None:
    X, y = classification("breast_cancer")
    weights = np.where(y == 1, 3.0, 0.5)
    by_class = ADFSClassifier(class_weight={0: 0.5, 1: 3.0}, random_state=0).fit(X, y)
    by_sample = ADFSClassifier(random_state=0).fit(X, y, weights)
    assert np.array_equal(by_class.coef_, by_sample.coef_)
    balanced = ADFSClassifier(class_weight="balanced", tol=1e-14, random_state=0).fit(X, y)
    reference = LogisticRegression(solver="newton-cholesky", class_weight="balanced", tol=1e-12).fit(X, y)
    assert np.abs(balanced.coef_ - reference.coef_).max() <= 1e-6


def test_classifier_has_probabilities_for_the_logistic_loss_alone() -> None:
    X, y = classification("breast_cancer")
    model = ADFSClassifier("squared_hinge").fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert model.decision_function(X).shape == (y.size,)
    logistic = ADFSClassifier().fit(X, y)
    assert np.allclose(np.exp(logistic.predict_log_proba(X)), logistic.predict_proba(X))


# --------------------------------------------------------------------------- warm starts


@pytest.mark.parametrize("n_nodes", [1, 4])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_warm_start_goes_on_from_where_it_was(loss: str, n_nodes: int) -> None:
    X, y = classification("breast_cancer")
    tol = 1e-9 if loss == "logistic" else 1e-4
    method = "adfs" if loss == "logistic" else "auto"
    model = ADFSClassifier(
        loss, n_nodes=n_nodes, tol=tol, method=method, warm_start=True, random_state=0
    ).fit(X, y)
    coef = model.coef_.copy()
    cold = model.n_iter_
    model.fit(X, y)
    if loss == "logistic":
        assert model.n_iter_ == 0  # the gap is certified before the first pass
        assert np.allclose(model.coef_, coef, rtol=0.0, atol=1e-12)
    else:  # around another intercept the gap of kinks is not quite what it was
        assert model.n_iter_ <= 0.25 * cold
    # Another C: the tips are those of the same coefficients.
    model.set_params(C=1.05).fit(X, y)
    again = clone(model).fit(X, y)
    assert model.dual_gap_ <= tol
    assert np.abs(model.coef_ - again.coef_).max() <= 30 * np.sqrt(tol)
    assert model.n_iter_ < cold or loss == "hinge"  # whose interior points start anew
    # Other data: it starts anew, with the bits of a cold start.
    model.fit(X[:-5], y[:-5])
    assert np.array_equal(model.coef_, clone(model).fit(X[:-5], y[:-5]).coef_)


def test_warm_start_works_for_the_regressor_and_the_softmax_model() -> None:
    X, y = regression("diabetes")
    for rows in (X, sp.csr_array(X)):
        model = ADFSRegressor(tol=1e-9, n_nodes=3, method="adfs", warm_start=True, random_state=0)
        assert model.fit(rows, y).n_iter_ > 1
        model.fit(rows, y)
        assert model.n_iter_ == 0
    X, y = load_iris(return_X_y=True)
    softmax = ADFSClassifier(C=0.01, multi_class="multinomial", warm_start=True, tol=1e-5, random_state=0)
    assert softmax.fit(X[::5], y[::5]).n_iter_ > 1
    assert softmax.fit(X[::5], y[::5]).n_iter_ <= 1


def test_warm_start_from_a_stronger_penalty_saves_passes() -> None:
    X, y = classification("breast_cancer")
    model = ADFSClassifier(C=1.0, method="newton", warm_start=True, random_state=0).fit(X, y)
    model.set_params(C=100.0).fit(X, y)
    assert model.n_iter_ < clone(model).fit(X, y).n_iter_


def test_simulate_starts_in_the_image_of_the_incidence_matrix() -> None:
    X, y = classification("breast_cancer")
    problem = adfs.Problem(X, 2.0 * y - 1.0, sigma=[0.2, 1.0, 0.5, 0.3], n_nodes=4)
    s = problem.clip_to_domain(-problem.y * np.random.default_rng(0).uniform(0.0, 1.0, y.size))
    started = simulate("adfs", problem, "cycle", start=s, events=0.0)
    assert started.dual is not None
    centers = problem.sigma[:, None] * started.theta
    total = centers.sum(axis=0) + problem.X.T @ started.dual
    assert np.abs(total).max() <= 1e-11  # the sum over all nodes of the augmented graph is zero
    assert np.allclose(started.theta, problem.primal_from_dual(s), rtol=1e-12)  # all nodes at the same θ(s)
    assert np.array_equal(started.dual, s)
    # From there it converges to the same optimum, at no slower a rate than from zero.
    run = simulate("adfs", problem, "cycle", start=s, tol=1e-12)
    assert np.abs(run.coef - problem.optimum().theta).max() <= 1e-5
    # Starting at the optimum is staying there.
    best = problem.optimum()
    still = simulate("adfs", problem, "cycle", start=best.dual, max_passes=20.0)
    assert still.frame["gap"].max() <= 1e-11


def test_classifier_balances_classes_by_sample_weights_as_scikit_learn() -> None:
    X, y = classification("breast_cancer")
    weights = np.random.default_rng(0).uniform(0.0, 3.0, y.size)
    reference = LogisticRegression(
        solver="newton-cholesky", class_weight="balanced", fit_intercept=False, tol=1e-12
    ).fit(X, y, weights)
    model = ADFSClassifier(class_weight="balanced", fit_intercept=False, tol=1e-13, random_state=0)
    assert np.abs(model.fit(X, y, weights).coef_ - reference.coef_).max() <= 1e-6


def test_simulate_refuses_a_start_of_another_shape() -> None:
    problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], n_nodes=2)
    with pytest.raises(InputError, match=r"start must have the shape of run.dual, \(4,\), got \(3,\)"):
        simulate("adfs", problem, "path", start=np.zeros(3), events=1.0)


# --------------------------------------------------------------------------- warnings and sentences


def test_estimators_warn_when_the_gap_was_not_reached() -> None:
    X, y = classification("breast_cancer")
    with pytest.warns(ConvergenceWarning, match=r"gap of .* after 3 passes, above tol"):
        model = ADFSClassifier(max_iter=3, method="adfs", random_state=0).fit(X, y)
    assert model.n_iter_ == 3
    assert model.dual_gap_ > 1e-6
    with pytest.warns(ConvergenceWarning):
        ADFSRegressor(max_iter=2, method="adfs", random_state=0).fit(sp.csr_array(X), y)


def test_classifier_passes_ctrl_c_on(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Solver.solve

    def stopped(solver: Solver, *args: Any) -> Any:
        return dataclasses.replace(solve(solver, *args), outcome=Outcome.STOPPED)

    monkeypatch.setattr(Solver, "solve", stopped)
    X, y = classification("breast_cancer")
    with pytest.raises(KeyboardInterrupt):
        ADFSClassifier().fit(X, y)


def test_classifier_stops_before_its_next_run_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dual method solves a problem per round of the intercept: a request between two runs is not lost."""
    check, ended = Loop._check, []

    def interrupted(loop: Loop, *args: Any) -> Any:
        ending = check(loop, *args)
        if ending is not None:
            ended.append(str(ending.outcome))
            if len(ended) == 1:
                signal.raise_signal(signal.SIGINT)
        return ending

    monkeypatch.setattr(Loop, "_check", interrupted)
    X, y = classification("breast_cancer")
    with pytest.raises(KeyboardInterrupt):
        ADFSClassifier(method="adfs", tol=1e-9, random_state=0).fit(X, y)
    assert ended == ["converged", "stopped"]
    ADFSClassifier(method="adfs", random_state=0).fit(X, y)  # a new fit is not stopped


SENTENCES = [
    (ADFSClassifier(penalty="l1"), "penalty='l1' is not available; use"),
    (ADFSRegressor(l1_ratio=1.5), "l1_ratio must be between 0 and 1"),
    (ADFSClassifier(loss="logstic"), "did you mean 'logistic'"),
    (ADFSClassifier(loss="huber"), "loss='huber' is for regression: use ADFSRegressor"),
    (ADFSRegressor(loss="hinge"), "use ADFSClassifier"),
    (ADFSClassifier(C=0.0), "C must be finite and above 0"),
    (ADFSRegressor(alpha=0.0), "alpha must be finite and above 0"),
    (ADFSRegressor(alpha="big"), "alpha must be finite and above 0, got 'big'"),
    (ADFSClassifier(tol=float("nan")), "tol must be"),
    (ADFSClassifier(max_iter=0), "max_iter must be"),
    (ADFSClassifier(n_nodes=2.5), "n_nodes must be a whole number"),
    (ADFSClassifier(n_nodes=1000), "cannot be split over 1000 nodes"),
    (ADFSClassifier(n_nodes=3, network="cicle"), "did you mean 'cycle'"),
    (ADFSClassifier(n_nodes=3, network="grid:2x2"), "4 nodes but n_nodes is 3"),
    (ADFSClassifier(partition="randm"), "did you mean 'random'"),
    (ADFSClassifier(multi_class="both"), "multi_class must be auto"),
    (ADFSClassifier("hinge", multi_class="multinomial"), "is for the logistic loss"),
    (ADFSRegressor("huber", delta=-1.0), "huber"),
    (ADFSRegressor("quantile", quantile=2.0), "quantile"),
]


@pytest.mark.parametrize(("estimator", "message"), SENTENCES, ids=lambda value: str(value)[:60])
def test_estimators_refuse_what_cannot_be_done_in_a_sentence(estimator: Any, message: str) -> None:
    X, y = classification("breast_cancer")
    with pytest.raises(InputError, match=message):
        estimator.fit(X, y)


def test_estimators_take_degenerate_data_or_refuse_them() -> None:
    X = np.zeros((6, 2))
    y = np.array([0, 1, 0, 1, 0, 0])
    model = ADFSClassifier(fit_intercept=False).fit(X, y)
    assert not model.coef_.any()
    assert model.dual_gap_ == 0.0
    flat = ADFSRegressor().fit(sp.csr_array(np.eye(6)), np.full(6, 3.0))
    assert flat.intercept_ == pytest.approx(3.0, rel=1e-12)
    assert np.abs(flat.coef_).max() <= 1e-12
    with pytest.raises(InputError, match="one class"):
        ADFSClassifier().fit(np.eye(3), [1, 1, 1])


@pytest.mark.parametrize("estimator", [ADFSClassifier(), ADFSRegressor()], ids=["classes", "numbers"])
@pytest.mark.parametrize("kind", ["string", "string[pyarrow]", "arrow", "object", "list"])
def test_estimators_refuse_missing_labels_in_a_sentence(estimator: Any, kind: str) -> None:
    labels = ["a", "b", None, "b", None]
    y: Any = labels
    if kind == "arrow":
        y = pytest.importorskip("pyarrow").array(labels)
    elif kind != "list":
        y = pd.Series(labels, dtype=kind)
    with pytest.raises(InputError, match="labels are missing in y, first in row 2"):
        estimator.fit(np.eye(5), y)


def test_package_imports_estimators_when_they_are_asked_for() -> None:
    look = "print('sklearn' in sys.modules)"
    code = f"import sys, adfs; {look}; adfs.ADFSClassifier; {look}"
    source = str(Path(adfs.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == ["False", "True"], run.stderr
