"""Newton's method with an ℓ1 term: its inner solver, the elastic net and the lasso, resumed runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_diabetes, load_svmlight_file, load_wine
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

import adfs
from adfs import ADFSClassifier, ADFSRegressor
from adfs.algorithms.coordinate_descent import (
    descend,
    face_step,
    minimise_model,
    minimise_on_rows,
    model_gap,
)
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import InputError
from adfs.planning import Facts, choose
from adfs.problem.gaps import soft
from adfs.problem.losses import LOSSES
from baseline_cases import gossip_here, start
from memory_cluster import Threads, on_threads

REUTERS = Path(__file__).parents[3] / "shared" / "data" / "reuters.money-fx.bz2"
SMOOTH = [name for name, loss in LOSSES.items() if loss.curvature_type != "kinks"]


def standardised(X: np.ndarray) -> np.ndarray:
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return X, y


def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X, y


def wine() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_wine(return_X_y=True)
    return X, y


def with_numbers(X: np.ndarray) -> np.ndarray:
    """Return X with a column of the rows' numbers, 1 … N."""
    return np.column_stack([X, np.arange(1.0, len(X) + 1.0)])


def targets(loss: str, signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return targets that a loss takes."""
    if loss == "multinomial":
        return np.argmax(signal[:, None] * [1.0, 0.0, -1.0] + rng.gumbel(size=(signal.size, 3)), axis=1)
    if adfs.problem.get_loss(loss).task == "classification":
        return np.where(signal + rng.standard_normal(signal.size) > 0.0, 1.0, -1.0)
    if loss == "poisson":
        return rng.poisson(np.exp(np.clip(signal, -2.0, 2.0))).astype(float)
    if loss in ("gamma", "tweedie"):
        return np.exp(np.clip(signal, -2.0, 2.0) + 0.3 * rng.standard_normal(signal.size))
    return signal + rng.standard_normal(signal.size)


# --------------------------------------------------------------------------- the inner solver


def model(seed: int, k: int = 12) -> tuple[np.ndarray, ...]:
    """Return H, g, θ, λ and σ of a model whose last column has no penalty."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((30, k)) * 10.0 ** rng.uniform(-2.0, 2.0, k)
    sigma = np.full(k, 0.1)
    lam = 3.0 * np.sqrt((rows * rows).sum(axis=0)) / 5.0
    lam[-1] = sigma[-1] = 0.0
    theta = rng.standard_normal(k) * (rng.random(k) < 0.5) / np.abs(rows).max(axis=0)
    return rows.T @ rows + np.diag(sigma), rows.T @ rng.standard_normal(30), theta, lam, sigma


def literal_sweep(H: np.ndarray, r: np.ndarray, z: np.ndarray, lam: np.ndarray) -> None:
    for k in range(z.size):
        new = float(soft(z[k] - r[k] / H[k, k], lam[k] / H[k, k]))
        r += (new - z[k]) * H[k]
        z[k] = new


def test_descend_is_its_literal_twin() -> None:
    H, g, theta, lam, sigma = model(0)
    z, r = theta.copy(), g.copy()
    gap = descend(H, r, z, lam, sigma, 10.0, 0.0, 1.0)  # the budget ends it after one sweep
    literal, rest = theta.copy(), g.copy()
    literal_sweep(H, rest, literal, lam)
    np.testing.assert_allclose(z, literal, rtol=1e-12)
    np.testing.assert_allclose(r, rest, rtol=1e-9, atol=1e-9 * np.abs(rest).max())
    assert gap == model_gap(r, z, lam, sigma, 10.0) > 0.0


@pytest.mark.parametrize("seed", range(2))
def test_minimise_model_finds_what_many_sweeps_find(seed: int) -> None:
    H, g, theta, lam, sigma = model(seed)
    z, gap = minimise_model(H, g, theta, lam, sigma, 10.0, 1e-12)
    literal, rest = theta.copy(), g.copy()
    for _ in range(20_000):
        literal_sweep(H, rest, literal, lam)
    assert gap <= 1e-12
    assert np.array_equal(z != 0.0, literal != 0.0)
    np.testing.assert_allclose(z, literal, rtol=1e-6)


def test_minimise_model_leaves_constant_columns_to_the_intercept() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.standard_normal(30), np.full(30, 7.0), np.ones(30)])
    g, lam = rows.T @ rng.standard_normal(30), np.array([1e-3, 1e-3, 0.0])
    z, _ = minimise_model(rows.T @ rows, g, np.zeros(3), lam, np.zeros(3), 10.0, 1e-14)
    assert z[1] == 0.0
    assert np.abs(soft((g + rows.T @ rows @ z)[[0, 2]], lam[[0, 2]] * 1.000001)).max() <= 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("free", [True, False])
def test_minimise_on_rows_finds_what_minimise_model_finds(seed: int, free: bool) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((30, 50)) * (rng.random((30, 50)) < 0.3) * 10.0 ** rng.uniform(-1.0, 1.0, 50)
    X[:, -1] = 1.0
    sigma, lam, theta = np.full(50, 0.01), 2.0 * np.abs(X).sum(axis=0) / 30, np.zeros(50)
    theta[:10] = rng.standard_normal(10) / np.abs(X[:, :10]).max(axis=0)
    if free:  # and a constant column, which the intercept replaces
        X[:, 3], lam[-1], sigma[-1], sigma[3], theta[3] = 7.0, 0.0, 0.0, 0.0, 0.0
    curvatures, slopes = rng.uniform(0.0, 1.0, 30), 3.0 * rng.standard_normal(30)
    H, g = X.T @ (curvatures[:, None] * X) + np.diag(sigma), X.T @ slopes + sigma * theta
    expected, _ = minimise_model(H, g, theta, lam, sigma, 10.0, 1e-12)
    factor = sp.csr_array((np.sqrt(curvatures)[:, None] * X).T)
    # A model that hardly falls any more is left to the next one, which starts at its point.
    z, gap = theta, np.inf
    for _ in range(20):
        if gap > 1e-12:
            z, gap = minimise_on_rows(factor, g + H @ (z - theta), z, lam, sigma, 10.0, 1e-12)
    assert gap <= 1e-12
    assert np.array_equal(z != 0.0, expected != 0.0)
    np.testing.assert_allclose(z, expected, rtol=1e-6)


def test_face_step_solves_columns_that_are_nearly_collinear() -> None:
    rng = np.random.default_rng(0)
    one = rng.standard_normal(30)
    rows = np.column_stack([one, one + 1e-5 * rng.standard_normal(30)])
    H, g, lam = rows.T @ rows, rows.T @ rng.standard_normal(30), np.full(2, 1e-8)
    z = np.array([1.0, -1.0]) * np.sign(-np.linalg.solve(H, g))[0]
    start = z.copy()
    face_step(H, g + H @ z, z, lam)
    # The signs of the minimiser are those of the start, so one step finds it.
    expected = -np.linalg.solve(H, g + lam * np.sign(start))
    if np.array_equal(np.sign(expected), np.sign(start)):
        np.testing.assert_allclose(z, expected, rtol=1e-4)
    assert 0.5 * z @ H @ z + g @ z < 0.5 * start @ H @ start + g @ start


# --------------------------------------------------------------------------- scikit-learn's answers


@pytest.mark.parametrize("prepare", [np.asarray, standardised, with_numbers])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_newton_l1_gives_the_answers_of_lasso_and_elastic_net(
    prepare: Callable[[np.ndarray], np.ndarray], ratio: float
) -> None:
    X, y = diabetes()
    X = prepare(X)
    options: dict[str, Any] = {"alpha": 2.0, "tol": 1e-15, "max_iter": 10**6}
    theirs = Lasso(**options) if ratio == 1.0 else ElasticNet(l1_ratio=ratio, **options)
    theirs.fit(X, y)
    ours = ADFSRegressor(alpha=2.0 * len(y), l1_ratio=ratio, tol=1e-12).fit(X, y)
    assert ours.method_ == "newton"
    assert ours.dual_gap_ <= 1e-12
    assert np.array_equal(ours.coef_ != 0.0, theirs.coef_ != 0.0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=2e-6 * np.abs(theirs.coef_).max())


@pytest.mark.parametrize("prepare", [np.asarray, standardised, with_numbers])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_newton_l1_gives_the_answers_of_logistic_regression(
    prepare: Callable[[np.ndarray], np.ndarray], ratio: float
) -> None:
    X, y = cancer()
    X, C = prepare(X), 0.05
    ours = ADFSClassifier(C=C, l1_ratio=ratio, tol=1e-10).fit(X, y)
    assert ours.method_ == "newton"
    assert ours.dual_gap_ <= 1e-10
    if prepare is standardised:
        theirs = LogisticRegression(solver="saga", C=C, l1_ratio=ratio, tol=1e-9, max_iter=10**5).fit(X, y)
        assert np.array_equal(ours.coef_ != 0.0, theirs.coef_ != 0.0)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-4 * np.abs(theirs.coef_).max())
    else:
        # saga does not converge on raw columns: the conditions of optimality instead.
        margins = X @ ours.coef_[0] + ours.intercept_
        slopes = -C * (y - 1.0 / (1.0 + np.exp(-margins)))
        gradient = X.T @ slopes + (1.0 - ratio) * ours.coef_[0]
        kept = ours.coef_[0] != 0.0
        assert 0 < kept.sum() < X.shape[1]
        assert np.abs(gradient[~kept]).max() <= ratio * (1.0 + 1e-4)
        np.testing.assert_allclose(gradient[kept], -ratio * np.sign(ours.coef_[0][kept]), rtol=1e-3)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_newton_l1_gives_the_answers_of_softmax_regression(ratio: float) -> None:
    X, y = wine()
    X, C = standardised(X), 0.1
    ours = ADFSClassifier(C=C, l1_ratio=ratio, tol=1e-12).fit(X, y)
    theirs = LogisticRegression(solver="saga", C=C, l1_ratio=ratio, tol=1e-10, max_iter=10**5).fit(X, y)
    assert ours.method_ == "newton"
    assert ours.dual_gap_ <= 1e-12
    assert ours.coef_.shape == (3, 13)
    assert np.array_equal(ours.coef_ != 0.0, theirs.coef_ != 0.0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=1e-6)
    # Units of the features do not matter: raw columns get as far.
    raw = ADFSClassifier(C=C, l1_ratio=ratio).fit(wine()[0], y)
    assert raw.dual_gap_ <= 1e-6
    none = ADFSClassifier(C=1e-3, l1_ratio=ratio).fit(X, y)
    assert none.dual_gap_ <= 1e-6
    assert not none.coef_.any()
    shares = np.bincount(y) / y.size
    np.testing.assert_allclose(none.predict_proba(X), np.tile(shares, (y.size, 1)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [np.asarray, sp.csr_array])
def test_newton_sums_the_hessian_of_several_outputs(rows: Callable[[np.ndarray], Any]) -> None:
    rng = np.random.default_rng(0)
    X, theta = rng.standard_normal((30, 7)) * (rng.random((30, 7)) < 0.7), rng.standard_normal(21)
    y, weights = rng.integers(0, 3, 30), rng.uniform(0.0, 2.0, 30)
    problem = adfs.Problem(rows(X), y, "multinomial", 0.3, 2, sample_weight=weights, l1=1.0)
    network = adfs.Network("path:2")
    process = start("newton", problem, network)
    process.point[:] = theta
    columns = np.array([0, 3, 8, 9, 20])
    chances = softmax(problem.X @ theta.reshape(3, 7).T, axis=1)
    expected = 0.6 * np.eye(21)
    for j, p in enumerate(chances):
        x = problem.term(j).x
        expected += problem.weights[j] * np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
    found = process.sum_hessian(gossip_here(process), process.curvatures(), columns)
    np.testing.assert_allclose(found, np.triu(expected[np.ix_(columns, columns)]), rtol=0, atol=1e-13)


# --------------------------------------------------------------------------- every loss, any cluster


@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_newton_l1_solves_every_smooth_loss(loss: str, sigma: float) -> None:
    """Offsets, weights and rows of zeros, on one node and on four, dense and sparse, to the bit."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 150)) * (rng.random((80, 150)) < 0.5)
    X[7] = 0.0
    y = targets(loss, X[:, :3].sum(axis=1), rng)
    shape = (80, 3) if loss == "multinomial" else 80
    given = {"sample_weight": rng.uniform(0.0, 2.0, 80), "offset": 0.1 * rng.standard_normal(shape)}
    problem = adfs.Problem(X, y, loss, sigma / 4.0, 4, l1=1.0, **given)
    run = adfs.simulate("newton", problem, "path:4", tol=1e-9)
    assert run.converged
    assert 0 < np.count_nonzero(run.coef) < 100
    best = problem.optimum()
    assert best.method == "newton"
    assert best.gap <= 1e-12
    assert (problem.objective(run.coef) - best.value) / problem.value_at_zero <= run.gap + 1e-15
    again = adfs.simulate("newton", problem.with_sparse_rows(), "path:4", tol=1e-9)
    np.testing.assert_allclose(again.coef, run.coef, rtol=1e-7, atol=1e-9)
    one = adfs.simulate("newton", problem.merged(), tol=1e-9)
    np.testing.assert_allclose(one.coef, run.coef, rtol=0.0, atol=1e-3 * np.abs(run.coef).max())


@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize("load", [cancer, wine])
def test_newton_l1_on_ranks_has_the_bits_of_one_process(load: Callable[[], Any], ratio: float) -> None:
    X, y = load()
    X = sp.csr_array(X)
    parts = np.array_split(np.arange(len(y)), 4)
    options: dict[str, Any] = {"l1_ratio": ratio, "tol": 1e-8, "network": "complete"}
    whole = ADFSClassifier(n_nodes=4, partition=parts, **options).fit(X, y)

    def run(cluster: Threads) -> tuple[bytes, float]:
        mine = parts[cluster.rank]
        found = ADFSClassifier(cluster=cluster, **options).fit(X[mine], y[mine])
        return found.coef_.tobytes(), found.dual_gap_

    assert whole.method_ == "newton"
    assert set(on_threads(4, run)) == {(whole.coef_.tobytes(), whole.dual_gap_)}
    alone = ADFSClassifier(**options | {"network": "path"}).fit(X, y)
    assert np.array_equal(alone.coef_ != 0.0, whole.coef_ != 0.0)
    np.testing.assert_allclose(alone.coef_, whole.coef_, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "logistic", "multinomial"])
def test_newton_l1_resumes_to_the_bit(loss: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 400)) * 10.0 ** rng.uniform(-2.0, 2.0, 400)
    y = targets(loss, (X / np.abs(X).max(axis=0))[:, :9].sum(axis=1), rng)
    lam = 0.05 * float(np.abs(X.T @ y).max())
    problem = adfs.Problem(X, y, loss, 0.0, 3, l1=lam / 3.0)
    whole = adfs.simulate("newton", problem, "path:3", tol=1e-9)
    rounds = int(whole.columns["position"][-1])
    assert rounds >= 3
    for stop in range(1, rounds):
        path = tmp_path / f"{stop}.ckpt"
        adfs.simulate("newton", problem, "path:3", tol=1e-9, events=stop, checkpoint=path)
        again = adfs.simulate("newton", problem, "path:3", tol=1e-9, checkpoint=path, resume=True)
        assert again.coef.tobytes() == whole.coef.tobytes()
        assert again.dual.tobytes() == whole.dual.tobytes()
        for name in ("position", "gap", "primal", "messages", "bytes"):
            assert np.array_equal(again.columns[name], whole.columns[name]), name


# --------------------------------------------------------------------------- columns and penalties


@pytest.mark.parametrize("loss", ["squared", "logistic", "gamma"])
@pytest.mark.parametrize("factor", [1.0 + 1e-9, 3.0])
def test_newton_l1_certifies_that_all_coefficients_are_zero(loss: str, factor: float) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 6)), targets(loss, rng.standard_normal(50), rng)
    free = adfs.Problem(X, y, loss)
    largest = float(np.abs(X.T @ free.slopes(np.zeros(6))).max())
    run = adfs.simulate("newton", adfs.Problem(X, y, loss, 0.0, l1=factor * largest), tol=1e-9)
    assert run.converged
    assert not run.coef.any()
    # With an intercept the best constant model is certified.
    make = ADFSClassifier if loss == "logistic" else ADFSRegressor
    weight = {"C": 1.0 / (1.5 * largest)} if loss == "logistic" else {"alpha": 3.0 * largest}
    fitted = make(loss, l1_ratio=1.0, tol=1e-9, **weight).fit(X, y)
    assert not fitted.coef_.any()
    assert fitted.dual_gap_ <= 1e-9


@pytest.mark.parametrize("ratio", [1.0, 0.9])
@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_newton_l1_takes_constant_duplicate_and_zero_columns(loss: str, ratio: float) -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4))
    odd = np.column_stack([X, X[:, 0], -2.0 * X[:, 1], np.zeros(60), np.full(60, 3.0), np.full(60, 1e6)])
    y = targets(loss, X.sum(axis=1), rng)
    make = ADFSClassifier if loss == "logistic" else ADFSRegressor
    for rows in (odd, sp.csr_array(odd)):
        fitted = make(loss, l1_ratio=ratio, tol=1e-9).fit(rows, y)
        assert fitted.dual_gap_ <= 1e-9
        coef = np.ravel(fitted.coef_)
        assert coef[6] == 0.0
        assert np.abs(coef[7:]).max() <= 1e-9
    plain = make(loss, l1_ratio=ratio, tol=1e-9).fit(X, y)
    if ratio == 1.0:  # a column counts with its larger copy, which costs less
        values = odd @ np.ravel(fitted.coef_) - X @ np.ravel(plain.coef_)
        assert np.ptp(values) < 1.0
    # Without an intercept the rounding of 1e6·Σs is far above that of λ.
    no_intercept = make(loss, l1_ratio=ratio, tol=1e-7, fit_intercept=False).fit(odd, y)
    assert no_intercept.dual_gap_ <= 1e-7


def test_newton_l1_takes_more_features_than_a_matrix_of_all_could_have() -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((60, 20_000), density=0.01, format="csr", rng=rng)
    y = np.asarray(X[:, :50].sum(axis=1)).ravel() + 0.1 * rng.standard_normal(60)
    fitted = ADFSRegressor(alpha=0.1, l1_ratio=1.0, tol=1e-8).fit(X, y)
    assert fitted.method_ == "newton"
    assert fitted.dual_gap_ <= 1e-8
    assert 0 < np.count_nonzero(fitted.coef_) <= 60


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_newton_l1_on_one_node_takes_models_of_rows_where_working_sets_are_large(loss: str) -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 2000), density=0.01, format="csr", rng=rng)
    y = targets(loss, np.asarray(X[:, :400].sum(axis=1)).ravel(), rng)
    options: dict[str, Any] = {"loss": loss, "l1_ratio": 0.9, "tol": 1e-9}
    weight = {"C": 20.0} if loss == "logistic" else {"alpha": 0.05}
    make = ADFSClassifier if loss == "logistic" else ADFSRegressor
    one, two = (make(n_nodes=n, **options, **weight).fit(X, y) for n in (1, 2))
    assert max(one.dual_gap_, two.dual_gap_) <= 1e-9
    assert np.count_nonzero(one.coef_) ** 2 > X.nnz
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=0, atol=1e-3 * np.abs(two.coef_).max())


def test_auto_takes_newton_with_an_l1_term() -> None:
    for features, entries in ((10, None), (1000, None), (100_000, 50.0)):
        facts = Facts(10_000, features, 4000.0, 300.0, l1=True, entries_per_row=entries)
        assert choose(facts, adfs.Network("path:1"), 1e-6).method == "newton"


# --------------------------------------------------------------------------- refusals and the command line


def test_lasso_is_refused_in_one_sentence_where_a_method_needs_an_l2_term() -> None:
    X, y = diabetes()
    problem = adfs.Problem(X, y, "squared", 0.0, l1=1.0)
    with pytest.raises(InputError, match=r"'adfs' needs an l2 term beside the l1 term .*; use 'newton'$"):
        adfs.simulate("adfs", problem)
    with pytest.raises(InputError, match="sigma must be finite and above 0 at every node, node 0 has 0"):
        adfs.Problem(X, y, "squared", 0.0)
    with pytest.raises(InputError, match="sigma must be finite and above 0 at every node, node 1 has 0"):
        adfs.Problem(X, y, "squared", [1.0, 0.0], 2, l1=1.0)
    with pytest.raises(InputError, match=r"needs a smooth loss .* 'absolute' is not"):
        ADFSRegressor("absolute", l1_ratio=1.0).fit(X, y)


def test_lasso_has_infinite_condition_numbers() -> None:
    X, y = diabetes()
    problem = adfs.Problem(X, y, "squared", 0.0, 2, l1=1.0)
    assert problem.kappa_s == problem.kappa_b == np.inf
    facts = Facts.of(problem)
    assert facts.smooth
    assert not facts.ridge
    assert problem.dual_objective(np.zeros(len(y))) == -0.0
    assert problem.dual_objective(np.ones(len(y))) == -np.inf


def test_lasso_is_fitted_to_files(tmp_path: Path) -> None:
    X, y = diabetes()
    path, out = tmp_path / "rows.csv", tmp_path / "model.json"
    header = "y," + ",".join(f"x{k}" for k in range(X.shape[1]))
    np.savetxt(path, np.column_stack([y, X]), delimiter=",", header=header, comments="", fmt="%.17g")
    options = ["--label", "y", "--loss", "squared", "--alpha", "800", "--l1-ratio", "1", "--tol", "1e-10"]
    assert main(["fit", str(path), *options, "--out", str(out)]) == 0
    expected = ADFSRegressor(alpha=800.0, l1_ratio=1.0, tol=1e-10).fit(X, y)
    assert np.array_equal(LinearModel.load(out).coef[0], expected.coef_)


@pytest.mark.skipif(not REUTERS.exists(), reason="the data set reuters.money-fx is not there")
def test_newton_l1_keeps_working_sets_small_where_the_penalty_is_weak() -> None:
    X, y = load_svmlight_file(str(REUTERS))
    scaled = StandardScaler(with_mean=False).fit_transform(X)
    rows = sp.csr_array(sp.hstack([scaled, np.ones((len(y), 1))]))
    problem = adfs.Problem(rows, y, "logistic", 0.0, 2, l1=0.05)
    run = adfs.simulate("newton", problem, "path:2", tol=1e-6, record="gap")
    assert run.converged
    # The largest sum over the nodes is the Hessian of the largest working set, k(k + 1)/2 numbers.
    numbers = np.diff(run.columns["bytes"]).max() / 8.0 / 2.0
    assert np.sqrt(2.0 * numbers) < 3.0 * np.count_nonzero(run.coef)
