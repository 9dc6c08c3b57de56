"""Poisson, Gamma and Tweedie regression: curvatures that are not bounded, files, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import d2_tweedie_score

import adfs
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import InputError
from adfs.estimators import ADFSRegressor


def data(loss: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, targets and exposures, with outliers."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 5)) * [3.0, 1.0, 1.0, 0.3, 1.0]
    exposure = rng.uniform(0.1, 3.0, 200)
    mean = exposure * np.exp(X @ [0.5, -0.5, 0.0, 1.0, 0.2])
    return X, rng.poisson(mean).astype(float) if loss == "poisson" else rng.gamma(0.7, mean / 0.7), exposure


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        ("adfs", "poisson"),
        ("adfs", "gamma"),
        ("adfs", "tweedie"),
        ("adfs-block", "gamma"),
        ("apcg", "poisson"),
    ],
)
def test_log_link_run_doubles_curvatures_that_were_assumed_too_small(method: str, loss: str) -> None:
    """Counts far from their mean: their curvature at the optimum is many times what was assumed."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    mean = np.exp(1.5 * X[:, 0])
    y = rng.poisson(mean).astype(float) if loss == "poisson" else mean * rng.gamma(1.0, 1.0, 80)
    if loss != "gamma":
        y[np.argsort(mean)[-4]] = 0.0
    problem = adfs.Problem(X, y, loss=loss, sigma=0.5, n_nodes=2, offset=0.1 * X[:, 1])
    run = adfs.simulate(method, problem, "path:2", tol=1e-10, max_passes=20_000)
    assert run.gap <= 1e-10
    retunings = run.details["retunings"]
    assert retunings
    assert all(entry["beyond"] >= 1.0 for entry in retunings)
    assert problem.objective(run.coef) - problem.optimum().value <= 1e-10 * problem.value_at_zero
    again = adfs.simulate(method, problem, "path:2", tol=1e-10, start=run.dual)
    assert again.columns["passes"][-1] < 0.2 * run.columns["passes"][-1]


def test_log_link_run_resumed_has_the_same_bits(tmp_path: Path) -> None:
    X, y, exposure = data("gamma")
    problem = adfs.Problem(X, y, loss="gamma", sigma=1.0, n_nodes=3, offset=np.log(exposure))
    options: dict[str, Any] = {"checkpoint": tmp_path / "c", "record": ("gap",)}
    whole = adfs.simulate("adfs", problem, "path:3", max_passes=60)
    assert len(whole.details["retunings"]) >= 2
    adfs.simulate("adfs", problem, "path:3", max_passes=31, **options)
    resumed = adfs.simulate("adfs", problem, "path:3", max_passes=60, resume=True, **options)
    assert resumed.coef.tobytes() == whole.coef.tobytes()


def test_log_link_losses_refuse_what_cannot_be_fitted_in_a_sentence() -> None:
    X = np.eye(3)
    with pytest.raises(InputError, match=r"'poisson' wants counts of at least 0, and row 1 has another one"):
        adfs.Problem(X, [1.0, -1.0, 2.0], loss="poisson")
    with pytest.raises(InputError, match="'gamma' wants targets above 0, and row 2 has another one"):
        adfs.Problem(X, [1.0, 1.0, 0.0], loss="gamma")
    with pytest.raises(InputError, match="offset contains NaN or infinity"):
        adfs.Problem(X, [1.0, 1.0, 0.0], loss="poisson", offset=[0.0, -np.inf, 0.0])
    with pytest.raises(InputError, match="all targets are 0"):
        adfs.simulate("adfs", adfs.Problem(X, np.zeros(3), loss="poisson"), max_passes=1)
    with pytest.raises(InputError, match="all targets are 0"):
        ADFSRegressor("poisson").fit(X, np.zeros(3))
    # Without an intercept the penalty keeps the coefficients finite, and newton needs no mean to begin with.
    assert np.isfinite(ADFSRegressor("poisson", fit_intercept=False).fit(X, np.zeros(3)).coef_).all()
    with pytest.raises(InputError, match="'poisson' wants counts of at least 0, and row 0 has another one"):
        ADFSRegressor("poisson").fit(X, -np.ones(3))
    with pytest.raises(InputError, match="'gamma' wants targets above 0, and row 0 has another one"):
        ADFSRegressor("gamma").fit(X, np.zeros(3))
    with pytest.raises(InputError, match="'tweedie' wants amounts of at least 0, and row 0 has another one"):
        ADFSRegressor("tweedie").fit(X, -np.ones(3))
    for power in (1.0, 2.0, np.nan):
        with pytest.raises(InputError, match="power must lie strictly between 1 and 2"):
            ADFSRegressor("tweedie", power=power).fit(X, np.ones(3))
    with pytest.raises(InputError, match="offset must lie between −500 and 500"):
        ADFSRegressor("poisson").fit(X, np.ones(3), offset=np.full(3, 800.0))
    with pytest.raises(InputError, match="needs a bound of the curvature"):
        adfs.simulate("extra", adfs.Problem(X, np.ones(3), loss="poisson"), max_passes=1)
    with pytest.raises(InputError, match="does not take the loss 'poisson'"):
        adfs.simulate(
            "adfs", adfs.Problem(X, np.ones(3), loss="poisson"), parameters="adaptive", max_passes=1
        )


def test_log_link_models_are_fitted_predicted_and_scored_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y, exposure = data("poisson")
    table = np.column_stack([y, np.log(exposure), X])
    path, out = tmp_path / "counts.csv", tmp_path / "model.json"
    header = "count,exposure," + ",".join(f"x{k}" for k in range(X.shape[1]))
    np.savetxt(path, table, delimiter=",", header=header, comments="", fmt="%.17g")
    read = [str(path), "--label", "count", "--offset", "exposure"]
    assert main(["fit", *read, "--loss", "poisson", "--tol", "1e-12", "--out", str(out)]) == 0
    model = ADFSRegressor("poisson", tol=1e-12, random_state=0).fit(X, y, offset=np.log(exposure))
    assert LinearModel.load(out).coef[0] == pytest.approx(model.coef_, abs=1e-5)
    capsys.readouterr()
    assert main(["predict", str(out), *read]) == 0
    found = [float(line) for line in capsys.readouterr().out.split()]
    assert found == pytest.approx(model.predict(X, offset=np.log(exposure)), rel=1e-4)
    assert main(["score", str(out), *read]) == 0
    assert capsys.readouterr().out.startswith("d2 0.")


def test_tweedie_model_file_keeps_its_power(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y, exposure = data("gamma")
    y[::3] = 0.0
    path, out = tmp_path / "paid.csv", tmp_path / "model.json"
    header = "paid,exposure," + ",".join(f"x{k}" for k in range(X.shape[1]))
    np.savetxt(
        path,
        np.column_stack([y, np.log(exposure), X]),
        delimiter=",",
        header=header,
        comments="",
        fmt="%.17g",
    )
    read = [str(path), "--label", "paid", "--offset", "exposure"]
    assert (
        main(["fit", *read, "--loss", "tweedie", "--power", "1.2", "--tol", "1e-12", "--out", str(out)]) == 0
    )
    model = ADFSRegressor("tweedie", power=1.2, tol=1e-12, random_state=0).fit(X, y, offset=np.log(exposure))
    assert LinearModel.load(out).coef[0] == pytest.approx(model.coef_, abs=1e-5)
    capsys.readouterr()
    assert main(["score", str(out), *read]) == 0
    score = float(capsys.readouterr().out.split()[1])
    assert score == pytest.approx(model.score(X, y, offset=np.log(exposure)), abs=1e-5)
    assert score == pytest.approx(
        d2_tweedie_score(y, model.predict(X, np.log(exposure)), power=1.2), abs=1e-5
    )
    assert main(["fit", *read, "--loss", "tweedie", "--power", "2"]) == 2
    assert "power must lie strictly between 1 and 2" in capsys.readouterr().err


def test_tweedie_elastic_net_meets_its_optimality_conditions() -> None:
    X, y, exposure = data("gamma")
    y[::3] = 0.0
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    model = ADFSRegressor("tweedie", power=1.7, alpha=60.0, l1_ratio=0.5, tol=1e-13, random_state=0)
    model.fit(X, y, weights, offset=np.log(exposure))
    mean = model.predict(X, offset=np.log(exposure))
    slopes = weights * (mean - y) * mean**-0.7
    residual = X.T @ slopes + 30.0 * model.coef_
    assert abs(slopes.sum()) <= 1e-4
    away = model.coef_ != 0.0
    assert 0 < away.sum() < away.size
    assert residual[away] == pytest.approx(-30.0 * np.sign(model.coef_[away]), abs=1e-3)
    assert np.abs(residual[~away]).max() <= 30.0


def test_log_link_losses_are_planned_with_methods_of_known_cost() -> None:
    X, y, _ = data("poisson")
    for loss in ("poisson", "tweedie"):
        plan = adfs.plan(adfs.Problem(X, y, loss=loss), nodes=[1, 4], network="cycle")
        assert plan.best.method == "newton"
        assert all(np.isfinite(one.time) for one in plan.predictions)


def test_simulate_command_runs_in_a_process_of_its_own() -> None:
    """Nothing else has imported the rules of runs in stages there."""
    command = [sys.executable, "-m", "adfs", "simulate", "synthetic:60x3", "--nodes", "3", "--tol", "1e-3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
