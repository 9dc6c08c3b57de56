"""The elastic net: against scikit-learn, on every cluster, certified, re-tuned where needed, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import adfs
from adfs.algorithms import METHODS
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSRegressor
from memory_cluster import Threads, on_threads


def wide() -> tuple[np.ndarray, np.ndarray]:
    """Return more columns than rows, of which a few matter."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 120))
    return X, X[:, :5] @ [2.0, -1.0, 1.0, 0.5, -0.5] + 0.1 * rng.standard_normal(60) + 3.0


def test_elastic_net_on_ranks_has_the_bits_of_one_process() -> None:
    X, y = wide()
    parts = np.array_split(np.arange(len(X)), 3)
    options: dict[str, Any] = {"alpha": 3.0, "l1_ratio": 0.9, "method": "adfs-block", "random_state": 0}
    model = ADFSRegressor(n_nodes=3, partition=parts, network="complete", **options).fit(X, y)

    def run(cluster: Threads) -> np.ndarray:
        mine = parts[cluster.rank]
        return ADFSRegressor(cluster=cluster, network="complete", **options).fit(X[mine], y[mine]).coef_

    assert {found.tobytes() for found in on_threads(3, run)} == {model.coef_.tobytes()}


@pytest.mark.parametrize("method", ["adfs", "adfs-block"])
def test_elastic_net_starts_where_dual_variables_say(method: str) -> None:
    """Nodes with σ_i and λ_i that have nothing to do with each other, two sets of them with the same sums."""
    X, y = wide()
    rng = np.random.default_rng(2)
    sigma, l1 = rng.uniform(0.1, 1.0, 4), rng.uniform(0.5, 3.0, 4)
    problem = adfs.Problem(X, y, loss="squared", sigma=sigma, l1=l1, n_nodes=4)
    run = adfs.simulate(method, problem, "cycle:4", tol=1e-10, max_passes=5000)
    best = problem.optimum()
    assert best.gap <= 1e-12
    assert np.array_equal(run.coef != 0.0, best.theta != 0.0)
    assert np.abs(run.coef - best.theta).max() <= 1e-4
    again = adfs.simulate(method, problem, "cycle:4", tol=1e-9, start=run.dual)
    assert again.columns["passes"][-1] == 0.0
    assert np.abs(again.theta - run.coef).max() <= 1e-12 * np.abs(run.coef).max()
    even = adfs.Problem(X, y, loss="squared", sigma=sigma.mean(), l1=l1.mean(), n_nodes=4)
    assert np.abs(even.optimum().theta - best.theta).max() <= 1e-9


@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from(["squared", "logistic", "poisson"]),
    log_l1=st.floats(-3.0, 1.0),
    log_sigma=st.floats(-4.0, 0.0),
)
@settings(max_examples=25, deadline=None)
def test_elastic_net_certificate_is_never_below_the_true_error(
    seed: int, loss: str, log_l1: float, log_sigma: float
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 5)) * 10.0 ** rng.uniform(-1.0, 1.0, 5)
    y = X @ rng.normal(size=5)
    y = {"logistic": np.where(y > 0.0, 1.0, -1.0), "poisson": np.ones(12) + rng.poisson(2.0, 12)}.get(loss, y)
    options = {"sigma": 10.0**log_sigma, "l1": 10.0**log_l1, "offset": 0.1 * X[:, 0]}
    problem = adfs.Problem(X, y, loss=loss, n_nodes=3, **options)
    best = problem.optimum()
    assert best.gap <= 1e-10
    for tol in (1e-2, 1e-5, 1e-9):
        run = adfs.simulate("adfs", problem, "path:3", tol=tol, max_passes=200)
        error = (problem.objective(run.coef) - best.value) / problem.value_at_zero
        assert error <= run.gap + 1e-13
        theta = rng.normal(size=5) * (rng.uniform(size=5) < 0.5)
        found = problem.gap_at(run.dual, problem.row_total(run.dual), theta)
        direct = problem.objective(theta) - problem.dual_objective(run.dual)
        assert found.gap == pytest.approx(direct, rel=1e-9, abs=1e-9 * problem.value_at_zero)


def test_elastic_net_refuses_what_cannot_be_done_in_a_sentence() -> None:
    X, y = wide()
    problem = adfs.Problem(X, y, loss="squared", l1=1.0)
    for method in ("extra", "dagd", "point-saga", "msda", "ns-adfs"):
        with pytest.raises(InputError, match="takes no l1 term"):
            adfs.simulate(method, problem, max_passes=1)
    with pytest.raises(InputError, match="'adaptive' does not take an l1 term"):
        adfs.simulate("adfs", adfs.Problem(X, y, loss="huber", l1=1.0), parameters="adaptive", max_passes=1)
    with pytest.raises(InputError, match="l1 must be finite and at least 0 at every node, node 0 has -1"):
        adfs.Problem(X, y, loss="squared", l1=-1.0)
    for method in ("auto", "ns-adfs"):
        with pytest.raises(InputError, match=r"needs a smooth loss .* 'hinge' is not"):
            ADFSClassifier("hinge", l1_ratio=0.5, method=method).fit(np.eye(3), [0, 1, 1])
    with pytest.raises(InputError, match="l1_ratio must be between 0 and 1"):
        ADFSRegressor(l1_ratio=1.5).fit(X, y)
    with pytest.raises(InputError, match="penalty='l1' is not available"):
        ADFSRegressor(penalty="l1").fit(X, y)
    with pytest.raises(InputError, match="have no standard errors"):
        ADFSRegressor(l1_ratio=0.5, inference=True).fit(X, y)


def test_elastic_net_is_fitted_to_files(tmp_path: Path) -> None:
    X, y = wide()
    path, out = tmp_path / "rows.csv", tmp_path / "model.json"
    header = "y," + ",".join(f"x{k}" for k in range(X.shape[1]))
    np.savetxt(path, np.column_stack([y, X]), delimiter=",", header=header, comments="", fmt="%.17g")
    options = ["--label", "y", "--loss", "squared", "--alpha", "3", "--l1-ratio", "0.9", "--tol", "1e-10"]
    assert main(["fit", str(path), *options, "--out", str(out)]) == 0
    found = LinearModel.load(out)
    expected = ADFSRegressor(alpha=3.0, l1_ratio=0.9, tol=1e-10, random_state=0).fit(X, y)
    assert np.array_equal(found.coef[0] != 0.0, expected.coef_ != 0.0)
    assert found.training["l1_ratio"] == 0.9


@pytest.mark.parametrize("method", ["adfs", "adfs-block"])
def test_elastic_net_lowers_its_dual_curvature_if_the_gap_does_not_fall(method: str) -> None:
    """A σ_A that is far too large stands for one that does not hold off the support."""
    X, y = wide()
    problem = adfs.Problem(X, y - y.mean(), loss="squared", sigma=0.1, l1=2.0, n_nodes=4)
    network = adfs.Network("cycle:4")
    tuned = METHODS[method].parameters(problem, network)
    assert adfs.simulate(method, problem, network, tol=1e-6).details["retunings"] == []
    wrong = replace(tuned, dual_curvature=300.0 * tuned.dual_curvature, contraction=17.0 * tuned.contraction)
    run = adfs.simulate(method, problem, network, parameters=wrong, tol=1e-8, max_passes=3000)
    assert run.gap <= 1e-8
    (told,) = run.details["retunings"]
    assert told["share"] == 0.1
    assert run.parameters.dual_curvature == pytest.approx(0.1 * tuned.dual_curvature)
    assert run.parameters.contraction == pytest.approx(np.sqrt(0.1) * tuned.contraction)
