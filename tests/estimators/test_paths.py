"""Paths of penalties: scikit-learn's grid, its choice, its scores, and warm starts from a primal point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import ElasticNetCV, LogisticRegressionCV
from sklearn.model_selection import KFold, StratifiedKFold

import adfs
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from adfs.runtimes.cluster import RefusalError
from memory_cluster import Threads, on_threads


def rows(seed: int, kind: str = "plain") -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return rows, targets and weights; a few of the columns matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((72, 10))
    if kind == "alike":  # columns that are nearly the same
        X[:, 5:] = X[:, :5] + 0.3 * X[:, 5:]
    if kind == "wide":
        X = rng.standard_normal((72, 50))
    if kind == "sparse":
        X[rng.random(X.shape) < 0.6] = 0.0
    y = X[:, :4] @ [2.0, -1.0, 1.0, 0.5] + 1.5 * rng.standard_normal(72) + 3.0
    if kind == "units":
        X *= np.logspace(-0.5, 0.5, 10)
    return (
        sp.csr_array(X) if kind == "sparse" else X,
        y,
        rng.uniform(0.2, 2.0, 72) if kind == "weights" else None,
    )


CASES = [
    ("plain", 0.3),
    ("plain", 1.0),
    ("alike", 0.5),
    ("alike", 1.0),
    ("units", 0.9),
    ("units", 1.0),
    ("wide", 0.7),
    ("wide", 1.0),
    ("sparse", 0.5),
    ("weights", 0.9),
    ("origin", 1.0),
    ("ratios", (0.2, 0.8, 1.0)),
]


@pytest.mark.parametrize(("kind", "ratio"), CASES)
def test_regressor_cv_chooses_as_elastic_net_cv_does(kind: str, ratio: Any) -> None:
    X, y, weights = rows(len(kind), kind)
    folds, intercept = list(KFold(4, shuffle=True, random_state=0).split(y)), kind != "origin"
    reference = ElasticNetCV(
        alphas=12, l1_ratio=ratio, cv=folds, fit_intercept=intercept, tol=1e-9, max_iter=100_000
    ).fit(X, y, sample_weight=weights)
    base = ADFSRegressor(fit_intercept=intercept, tol=1e-9, random_state=0)
    model = ADFSRegressorCV(
        12, l1_ratios=np.atleast_1d(ratio), cv=folds, scoring="neg_mean_squared_error", estimator=base
    ).fit(X, y, sample_weight=weights)
    total = len(y) if weights is None else weights.sum()
    assert np.allclose(model.alphas_, total * np.atleast_2d(reference.alphas_), rtol=1e-12)
    assert model.alpha_ == pytest.approx(total * reference.alpha_, rel=1e-12)
    assert model.l1_ratio_ == reference.l1_ratio_
    theirs = -reference.mse_path_.reshape(-1, 12, 4).transpose(2, 0, 1)
    assert np.allclose(model.scores_, theirs, rtol=1e-3)
    assert np.abs(model.coef_ - reference.coef_).max() <= 1e-3 * np.abs(reference.coef_).max()


@pytest.mark.parametrize(("kind", "ratio"), CASES)
def test_classifier_cv_chooses_as_logistic_regression_cv_does(kind: str, ratio: Any) -> None:
    X, y, weights = rows(len(kind), kind)
    labels = np.digitize(y, [2.0, 4.5] if kind == "alike" and ratio < 1.0 else [3.0])
    folds, intercept = list(StratifiedKFold(3).split(X, labels)), kind != "origin"
    base = ADFSClassifier(fit_intercept=intercept, tol=1e-8, random_state=0)
    ratios = list(np.atleast_1d(ratio))
    # The strongest of the grid of the first ratio: saga takes long for the others.
    search = ADFSClassifierCV(6, l1_ratios=ratios[:1], cv=folds, estimator=base)
    grid = search.fit(X, labels, weights).Cs_[0, :4]
    model = ADFSClassifierCV(grid, l1_ratios=ratios, cv=folds, scoring="neg_log_loss", estimator=base).fit(
        X, labels, weights
    )
    reference = LogisticRegressionCV(
        Cs=grid,
        l1_ratios=ratios,
        cv=folds,
        fit_intercept=intercept,
        solver="saga",
        scoring="neg_log_loss",
        tol=1e-6,
        max_iter=10_000,
        random_state=0,
        use_legacy_attributes=False,
    ).fit(X, labels, sample_weight=weights)
    assert (model.C_, model.l1_ratio_) == (reference.C_, reference.l1_ratio_)
    # Where all coefficients are 0, saga ends at once, before its intercept is found.
    there = reference.coefs_paths_[..., : X.shape[1]].any(axis=(-1, -2))
    assert np.allclose(model.scores_[there], reference.scores_[there], rtol=1e-2)
    assert np.abs(model.coef_ - reference.coef_).max() <= 1e-2 * np.abs(reference.coef_).max()


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber"])
@pytest.mark.parametrize("intercept", [True, False])
def test_penalty_grid_begins_where_all_coefficients_are_zero(loss: str, intercept: bool) -> None:
    X, y, weights = rows(1, "weights")
    options: dict[str, Any] = {"l1_ratio": 0.9, "fit_intercept": intercept, "tol": 1e-12, "random_state": 0}
    offset = 0.3 * X[:, 4]
    if loss == "logistic":
        y, estimator = (y > 4.0), ADFSClassifier(**options)
        first = ADFSClassifierCV(2, cv=2, estimator=estimator).fit(X, y, weights, offset).Cs_
        name, stronger = "C", first[0] / 1.001
        assert first[1] == pytest.approx(1e3 * first[0], rel=1e-12)
    else:
        y, estimator = np.exp(0.3 * y), ADFSRegressor(loss, **options)
        first = ADFSRegressorCV(2, cv=2, estimator=estimator).fit(X, y, weights, offset).alphas_
        name, stronger = "alpha", first[0] * 1.001
        assert first[1] == pytest.approx(1e-3 * first[0], rel=1e-12)
    weaker = first[0] ** 2 / stronger
    # Columns are not scaled here, and one of them enters as soon as the penalty is weaker.
    counts = [
        np.count_nonzero(estimator.set_params(**{name: value}).fit(X, y, weights, offset).coef_)
        for value in (stronger, weaker)
    ]
    assert counts[0] == 0
    assert counts[1] >= 1


def test_paths_of_a_lasso_save_passes_by_starting_from_the_fit_before() -> None:
    X, y, _ = rows(2, "alike")
    base = ADFSClassifier(l1_ratio=1.0, method="newton", random_state=0)
    path = ADFSClassifierCV(8, cv=2, estimator=base).fit(X, y > 3.0)
    alone = [ADFSClassifierCV([C], cv=2, estimator=base).fit(X, y > 3.0) for C in path.Cs_]
    assert path.n_iter_.sum() < 0.9 * sum(model.n_iter_.sum() for model in alone)
    assert np.allclose(path.scores_, np.hstack([model.scores_ for model in alone]), atol=0.03)


@pytest.mark.parametrize("kind", ["squares", "classes"])
def test_paths_on_ranks_have_the_bits_of_one_process(kind: str) -> None:
    X, y, _ = rows(3)
    parts = np.array_split(np.arange(len(y)), 3)
    options: dict[str, Any] = {"network": "complete", "standardize": True, "random_state": 0}
    search: Any = ADFSRegressorCV if kind == "squares" else ADFSClassifierCV
    estimator: Any = ADFSRegressor if kind == "squares" else ADFSClassifier
    labels = y if kind == "squares" else np.digitize(y, [3.0])
    scoring = "neg_mean_squared_error" if kind == "squares" else "neg_log_loss"

    def fit(mine: Any, **more: Any) -> bytes:
        base = estimator(**options, **more)
        model = search(3, l1_ratios=[0.5, 1.0], cv=2, scoring=scoring, estimator=base)
        model.fit(X[mine], labels[mine])
        grid = model.alphas_ if kind == "squares" else model.Cs_
        return b"".join(part.tobytes() for part in (grid, model.scores_, model.coef_))

    def run(cluster: Threads) -> bytes:
        return fit(parts[cluster.rank], cluster=cluster)

    assert set(on_threads(3, run)) == {fit(np.arange(len(y)), n_nodes=3, partition=parts)}


def test_run_starts_at_a_point_if_it_is_better_than_zero() -> None:
    X, y, _ = rows(0)
    problem = adfs.Problem(X, np.sign(y - 3.0), sigma=0.1, n_nodes=2)
    run = adfs.simulate("newton", problem, "path:2", tol=1e-10)
    again = adfs.simulate("newton", problem, "path:2", tol=1e-9, point=run.coef)
    assert again.columns["passes"][-1] == 0.0
    assert np.array_equal(again.coef, run.coef)
    worse = adfs.simulate("newton", problem, "path:2", tol=1e-10, point=-100.0 * run.coef)
    assert np.array_equal(worse.coef, run.coef)
    with pytest.raises(RefusalError, match=r"point must have shape \(10,\), got \(3,\)"):
        adfs.simulate("newton", problem, "path:2", tol=1e-9, point=np.ones(3))


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (
            ADFSRegressorCV(10),
            "a grid of 10 values begins at .* and there is none here: give an l1_ratio above 0, or the",
        ),
        (ADFSRegressorCV(0), "alphas must be a list of numbers above 0, or their number, got 0"),
        (ADFSRegressorCV([1.0], l1_ratios=[]), "l1_ratios must be a list of numbers from 0 to 1"),
        (ADFSRegressorCV([1.0], l1_ratios=[0.5, 2.0]), "l1_ratio must be"),
        (ADFSRegressorCV([1.0], scoring="r2"), "scoring must be None or 'neg_mean_squared_error' for"),
        (
            ADFSClassifierCV([1.0], scoring="neg_log_loss", estimator=ADFSClassifier("hinge")),
            "scoring must be None for the loss 'hinge'",
        ),
    ],
)
def test_paths_refuse_in_a_sentence(search: Any, words: str) -> None:
    X, y, _ = rows(0)
    with pytest.raises(InputError, match=words):
        search.fit(X, y > 3.0)


def test_fit_command_takes_a_number_of_values_several_ratios_and_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y, _ = rows(0)
    table, out = tmp_path / "table.csv", tmp_path / "model.json"
    lines = [",".join(map(str, row)) for row in np.column_stack([X, y])]
    table.write_text("\n".join([",".join("abcdefghij") + ",price", *lines]))
    fit = ["fit", str(table), "--label", "price", "--loss", "squared", "--cv", "3", "--out", str(out)]
    chosen = ["--alpha-grid", "4", "--scoring", "neg_mean_squared_error"]
    assert main([*fit, *chosen, "--l1-ratio", "0.9"]) == 0
    search = LinearModel.load(out).training["cv"]
    assert search["score"] == "neg_mean_squared_error"
    alphas = [entry["alpha"] for entry in search["tried"]]
    expected = ADFSRegressorCV(4, estimator=ADFSRegressor(l1_ratio=0.9, tol=0.1), cv=3).fit(X, y).alphas_
    assert np.allclose(alphas, expected, rtol=1e-12)
    assert all(entry["score"] < 0.0 for entry in search["tried"])
    # Several ratios have a grid each; the estimator's own file has the same entries.
    capsys.readouterr()
    assert main([*fit, *chosen, "--l1-ratios", "0.5,1"]) == 0
    told, training = capsys.readouterr().err, LinearModel.load(out).training
    search = ADFSRegressorCV(4, l1_ratios=[0.5, 1.0], cv=3, scoring=chosen[-1]).fit(X, y)
    assert f"alpha = {search.alpha_:g} and l1_ratio = {search.l1_ratio_:g}, the best of 8 on 3 folds" in told
    assert told.split()[:2] == ["alpha", "l1_ratio"]
    tried = training["cv"]["tried"]
    assert [entry["l1_ratio"] for entry in tried] == [0.5] * 4 + [1.0] * 4
    np.testing.assert_allclose([entry["alpha"] for entry in tried], search.alphas_.ravel(), rtol=1e-12)
    scores = np.moveaxis(search.scores_, 0, 2).reshape(8, 3)
    np.testing.assert_allclose([entry["scores"] for entry in tried], scores, rtol=1e-12)
    search.save(out)
    assert LinearModel.load(out).training["cv"]["tried"] == tried


def test_fit_command_refuses_a_number_of_values_without_l1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b\n" + "\n".join(f"{k},{k % 2}" for k in range(12)))
    assert main(["fit", str(table), "--label", "b", "--cv", "3", "--C-grid", "4"]) == 2
    assert "and there is none here: give an --l1-ratio above 0, or the values" in capsys.readouterr().err


def test_penalty_grid_is_refused_if_no_column_matters() -> None:
    search = ADFSRegressorCV(5, estimator=ADFSRegressor(l1_ratio=0.5))
    with pytest.raises(RefusalError, match="all coefficients are 0, and there is none here"):
        search.fit(np.zeros((12, 2)), np.arange(12.0))
