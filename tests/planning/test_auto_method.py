"""What ``method="auto"`` chooses, and that it says so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import adfs
from adfs import ADFSClassifier, ADFSRegressor
from adfs.planning import Facts, choose
from memory_cluster import Threads, on_threads


def chosen(problem: adfs.Problem, network: str = "path:1", **changes: object) -> tuple[str, str]:
    facts = Facts.of_summary(
        adfs.theory.summarize(problem),
        problem.n_features,
        entries_per_row=problem.entries_per_row,
        n_outputs=problem.loss.n_outputs,
        curvature_type=problem.loss.curvature_type,
    )
    found = choose(dataclasses.replace(facts, **changes), adfs.Network(network), 1e-6)
    return found.method, found.reason


def made(n: int, d: int, scale: float = 1.0, loss: str = "logistic", n_nodes: int = 1) -> adfs.Problem:
    rng = np.random.default_rng(0)
    X = scale * rng.standard_normal((n, d))
    return adfs.Problem(X, np.sign(X[:, 0]), loss, n_nodes=n_nodes)


def test_choose_takes_the_method_with_the_least_work():
    name, reason = chosen(made(2000, 10))
    assert name == "newton"
    assert "passes are predicted" in reason
    assert "times the work for" in reason
    assert chosen(made(300, 400, 0.05))[0] == "qning"
    assert chosen(made(300, 400, 0.05, "squared_hinge"))[0] != "qning"
    assert chosen(made(300, 400, 0.05, n_nodes=2), "path:2")[0] != "qning"
    # What ADFS needs grows with the condition number, Newton's method is as it was.
    assert chosen(made(300, 400, 1e3))[0] == "newton"
    assert chosen(made(400, 5, n_nodes=4), "cycle:4")[0] == "newton"
    assert chosen(made(50, 3), n_features=5001)[0] != "newton"


def test_estimators_report_the_method_and_the_reason():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 3))
    y = X[:, 0] + rng.standard_normal(60)
    assert ADFSRegressor().fit(X, y).method_ == "newton"
    assert ADFSRegressor().fit(sp.csr_array(X), y).method_ == "newton"
    assert ADFSRegressor(tau=1.0).fit(X, y).method_ == "adfs"
    assert ADFSRegressor(method="adfs").fit(X, y).method_ == "adfs"
    constant = ADFSRegressor(fit_intercept=False).fit(np.zeros((4, 2)), np.ones(4))
    assert constant.coef_.tolist() == [0.0, 0.0]


# Little data all together, and in each process but not all together.
@pytest.mark.parametrize(("n_samples", "width"), [(60, 3), (1200, 30)])
def test_choose_is_the_same_in_all_processes(n_samples: int, width: int) -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n_samples, width))
    y = X[:, 0] + rng.standard_normal(n_samples) > 0.0
    middle = n_samples // 2
    rows = [slice(0, 10), slice(10, middle), slice(middle, n_samples)]
    parts = [np.arange(n_samples)[part] for part in rows]
    whole = ADFSClassifier(n_nodes=3, network="path", partition=parts, tol=1e-2).fit(X, y)

    def fit(cluster: Threads) -> ADFSClassifier:
        part = rows[cluster.rank]
        return ADFSClassifier(network="path", cluster=cluster, tol=1e-2).fit(X[part], y[part])

    for model in on_threads(3, fit):
        assert model.method_ == whole.method_
        assert model.coef_.tobytes() == whole.coef_.tobytes()


def word_counts(n_samples: int, width: int) -> tuple[sp.csr_array, np.ndarray]:
    """Return counts of words, some far more frequent than others, and targets that depend on a few."""
    rng = np.random.default_rng(0)
    share = 1.0 / np.arange(1, width + 1)
    columns = [np.unique(rng.choice(width, size=60, p=share / share.sum())) for _ in range(n_samples)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    indices = np.concatenate(columns)
    X = sp.csr_array((rng.poisson(1.0, indices.size) + 1.0, indices, indptr), shape=(n_samples, width))
    y = X @ (rng.standard_normal(width) * (rng.random(width) < 0.05)) + rng.standard_normal(n_samples)
    return X, y


def test_auto_on_sparse_rows_with_more_columns_than_rows_converges_soon():
    model = ADFSRegressor(random_state=0).fit(*word_counts(500, 1200))
    assert model.method_ != "qning"
    assert np.max(model.n_iter_) < 500


def test_auto_takes_newton_on_many_rows_of_two_nodes():
    """The facts of covtype on two ranks with a strong penalty: products of matrices are quick."""
    facts = Facts(n_samples=581_012, n_features=54, kappa_s=12_281.0, kappa_b=7_870.0)
    assert choose(facts, adfs.Network("path:2"), 1e-6).method == "newton"


def test_auto_counts_the_column_of_an_intercept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that takes as many columns as the data has cannot take one more."""
    X = np.random.default_rng(0).standard_normal((300, 8))
    model = ADFSClassifier(fit_intercept=False).fit(X, X[:, 0] > 0.1)
    assert model.method_ == "newton"
    monkeypatch.setattr(type(adfs.algorithms.METHODS["newton"]), "most_features", 8)
    assert ADFSClassifier(fit_intercept=False).fit(X, X[:, 0] > 0.1).method_ == "newton"
    assert ADFSClassifier().fit(X, X[:, 0] > 0.1).method_ != "newton"


def test_auto_takes_lbfgs_on_sparse_rows_with_uneven_columns():
    """The diagonal scaling of L-BFGS makes up for columns of very different lengths."""
    X, y = word_counts(2000, 6000)
    model = ADFSClassifier(n_nodes=2, network="path", random_state=0).fit(X, y > np.median(y))
    assert model.method_ == "lbfgs"


@pytest.mark.parametrize("intercept", [True, False])
def test_auto_replaces_a_method_that_takes_far_more_passes_than_predicted(
    intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = word_counts(500, 1200)
    labels = y > np.median(y)
    options = {"fit_intercept": intercept, "random_state": 0, "tol": 1e-7}
    plain = ADFSClassifier(**options).fit(X, labels)
    monkeypatch.setattr("adfs.planning.choice.PATIENCE", 0.2)
    model = ADFSClassifier(**options).fit(X, labels)
    assert f"{plain.method_} was chosen" in model.method_reason_
    assert f"so {model.method_} went on" in model.method_reason_
    assert model.method_ != plain.method_
    assert model.dual_gap_ <= 1e-7
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-2 * np.abs(plain.coef_).max())
    assert np.all(np.diff(model.history_["passes"]) >= 0.0)

    def fit(cluster: Threads) -> ADFSClassifier:
        part = slice(0, 200) if cluster.rank == 0 else slice(200, None)
        return ADFSClassifier(network="path", cluster=cluster, **options).fit(X[part], labels[part])

    parts = [np.arange(200), np.arange(200, 500)]
    whole = ADFSClassifier(n_nodes=2, network="path", partition=parts, **options).fit(X, labels)
    for other in on_threads(2, fit):
        assert other.method_reason_ == whole.method_reason_
        assert other.coef_.tobytes() == whole.coef_.tobytes()
    # A budget of fewer passes is kept to.
    with pytest.warns(ConvergenceWarning):
        short = ADFSClassifier(max_iter=1, **options).fit(X, labels)
    assert "went on" not in short.method_reason_
