"""Standard errors beside those of statsmodels: formulas where there is a penalty, tables, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning

from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSRegressor
from adfs.estimators.inference import infer
from adfs.problem.losses import get_loss
from adfs.runtimes import OneProcess
from adfs.runtimes.cluster import RefusalError
from estimators.agreement_cases import standardised
from memory_cluster import Threads, on_threads


def two_irises() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return X[50:], y[50:] == 2


def test_summary_has_the_names_that_users_of_statsmodels_look_for() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = ADFSRegressor("gamma", alpha=1e-9, inference=True, tol=1e-14, random_state=0).fit(X, y)
    theirs = sm.GLM(y, sm.add_constant(X), family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-13)
    assert model.dispersion_ == pytest.approx(theirs.scale, rel=1e-6)
    assert np.allclose(model.z_values_, theirs.tvalues[1:], rtol=1e-4, atol=1e-5)
    assert np.allclose(model.p_values_, theirs.pvalues[1:], rtol=1e-3)
    ours = model.confidence_intervals(0.9)
    assert np.allclose(ours.loc[X.columns], theirs.conf_int(0.1).loc[X.columns], rtol=1e-4)
    assert ours.index[-1] == "intercept"
    header = model.summary(robust=True).header
    assert header["loss"] == "gamma"
    assert header["link"] == "log"
    assert header["rows"] == "442"
    assert header["df residuals"] == "431"
    assert header["dispersion"] == f"{theirs.scale:.6g}"
    assert header["std err"].startswith("robust")
    assert header["method"] == f"newton ({model.method_reason_})"
    assert "no cost is known for" in model.method_reason_
    named = ADFSRegressor(method="newton", random_state=0).fit(X, y)
    assert named.method_reason_ == ""
    assert not hasattr(model.set_params(inference=False).fit(X, y), "p_values_")


def test_summary_is_the_same_for_sparsified_coefficients() -> None:
    X, y = two_irises()
    model = ADFSClassifier(inference=True, random_state=0).fit(X, y)
    before = str(model.summary())
    assert model.summary().header["classes"] == "True against False"
    assert "dispersion" not in before
    assert str(model.sparsify().summary()) == before


def test_standard_errors_are_not_given_for_numbers_that_are_not_finite() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = ADFSRegressor("poisson", method="newton", max_iter=3, inference=True, random_state=0)
    with pytest.warns(ConvergenceWarning, match="stopped at a relative duality gap of") as told:
        model.fit(1e3 * X, y)
    assert len(told) == 1
    assert np.isfinite(model.coef_).all()  # the best point on the way, not where the steps ran away to
    ready = model._prepare(OneProcess(), (X, y, None, None), None, None)
    found = infer(ready.data, get_loss("squared"), np.full(11, np.nan), np.zeros(11), ready.solver)
    assert np.isnan(found.errors(robust=True)).all()


@pytest.mark.parametrize("standardize", [False, True])
def test_standard_errors_with_a_penalty_are_the_formula(standardize: bool) -> None:
    X, y = two_irises()
    model = ADFSClassifier(C=2.0, standardize=standardize, inference=True, tol=1e-10, random_state=0).fit(
        X, y
    )
    design = np.column_stack([X, np.ones(len(y))])
    p = 1.0 / (1.0 + np.exp(-model.decision_function(X)))
    information = design.T @ ((p * (1.0 - p))[:, None] * design)
    penalty = np.append(X.var(axis=0) if standardize else np.ones(4), 0.0) / 2.0
    inverse = np.linalg.inv(information + np.diag(penalty))
    errors = np.sqrt(np.diag(inverse @ information @ inverse))
    assert np.allclose(model.standard_errors_, errors[:4], rtol=1e-8)
    assert np.allclose(model.intercept_standard_error_, errors[4:], rtol=1e-8)
    slopes = design * (p - y)[:, None]
    robust = np.sqrt(np.diag(inverse @ (slopes.T @ slopes) @ inverse))
    assert np.allclose(model.robust_standard_errors_, robust[:4], rtol=1e-8)
    summary = model.summary()
    assert summary.table.index.tolist() == ["x0", "x1", "x2", "x3", "intercept"]
    assert summary.table.columns.tolist() == ["coef", "std err", "z", "P>|z|", "[0.025", "0.975]"]
    row = summary.table.loc["x2"]
    assert row["z"] == pytest.approx(row["coef"] / row["std err"], rel=1e-12)
    assert row["0.975]"] - row["coef"] == pytest.approx(1.959963984540054 * row["std err"], rel=1e-9)
    assert "by up to" in str(summary)
    assert model.summary(robust=True).table.loc["x2", "std err"] == pytest.approx(robust[2], rel=1e-8)


def test_summary_says_what_the_penalty_alone_determines() -> None:
    X, y = two_irises()
    X = np.column_stack([X, X[:, 0]])
    model = ADFSClassifier(inference=True, random_state=0).fit(X, y)
    assert "the data determine 5 of 6 coefficients" in model.summary().notes[0]
    diabetes = load_diabetes()
    huber = ADFSRegressor("huber", delta=50.0, inference=True, random_state=0)
    huber.fit(standardised(diabetes.data), diabetes.target)
    assert "no likelihood" in huber.summary().notes[0]
    assert np.array_equal(huber.standard_errors_, huber.robust_standard_errors_)


def test_inference_takes_several_classes_and_refuses_the_rest() -> None:
    X, y = load_iris(return_X_y=True)
    each = ADFSClassifier(multi_class="ovr", inference=True, random_state=0).fit(X, y.astype(float))
    assert each.standard_errors_.shape == each.p_values_.shape == (3, 4)
    summary = each.summary()
    assert summary.table.loc[("1", "x3"), "std err"] == pytest.approx(each.standard_errors_[1, 3])
    assert [note.split(":")[0] for note in summary.notes] == ["class 0", "class 1", "class 2"]
    doubled = ADFSClassifier(multi_class="ovr", inference=True, random_state=0).fit(np.hstack([X, X]), y)
    assert len(doubled.summary().notes) == 1  # what is true of all classes
    softmax = ADFSClassifier(multi_class="multinomial", inference=True)
    for estimator, rows, words in (
        (ADFSClassifier(inference=True), 150, "or more than two classes.*use multi_class='ovr'"),
        (softmax, 100, "softmax models .multinomial"),
        (ADFSClassifier("hinge", inference=True), 150, "the loss 'hinge' has no standard errors"),
    ):
        with pytest.raises(RefusalError, match=words):  # which one process says for all
            estimator.fit(X[:rows], y[:rows])
    with pytest.raises(InputError, match="fit with inference=True"):
        ADFSClassifier().fit(X, y).summary()


def test_inference_on_ranks_has_the_bits_of_one_process() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = standardised(X[:151]), y[:151]  # as wide as makes BLAS round a row by those beside it
    parts = [np.arange(77), np.arange(77, 151)]
    alone = ADFSClassifier(n_nodes=2, partition=parts, inference=True, random_state=0).fit(X, y)

    def one(ranks: Threads) -> Any:
        own = parts[ranks.rank]
        return ADFSClassifier(cluster=ranks, inference=True, random_state=0).fit(X[own], y[own])

    for model in on_threads(2, one):
        assert np.array_equal(model.standard_errors_, alone.standard_errors_)
        assert np.array_equal(model.robust_standard_errors_, alone.robust_standard_errors_)
