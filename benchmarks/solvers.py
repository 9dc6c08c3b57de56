"""Seconds to an accuracy: the paper's largest setting, and one node against scikit-learn's solvers on a9a."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import numpy as np

import adfs
from adfs.runtimes import Grid, Record
from benchmarks.measure import DATA, Row, write_table

Attempt = Callable[[float], tuple[float, bool]]


def large_setting() -> Row:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(490_000) < 0.5, 1.0, -1.0)
    problem = adfs.Problem(rng.standard_normal((490_000, 10)) + y[:, None], y, sigma=50.0, n_nodes=49)
    seconds = float("inf")
    for _ in range(2):
        run = adfs.simulate("adfs", problem, adfs.Network("grid:7x7"), tau=5.0, tol=1e-10)
        seconds = min(seconds, run.seconds)
    return Row("7 × 7, m = 10,000, σ = 50, certified 1e-10", seconds, "s", target=10.0)


def budget_for(reached: Attempt, budgets: list[float]) -> float:
    """Return the first of a solver's own budgets with which it reaches the accuracy."""
    return next((budget for budget in budgets if reached(budget)[1]), math.inf)


def one_node(C: float) -> list[Row]:
    from sklearn.datasets import load_svmlight_file
    from sklearn.linear_model import LogisticRegression

    X, y = load_svmlight_file(str(DATA / "a9a.bz2"))
    # scikit-learn's solvers want indices of 32 bits.
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    problem = adfs.Problem(X, y, sigma=1.0, sample_weight=np.full(y.size, C))
    best = problem.optimum()
    start = problem.value_at_zero - best.value

    def accurate(theta: np.ndarray) -> bool:
        return (problem.objective(theta) - best.value) / start <= 1e-6

    def ours(passes: float) -> tuple[float, bool]:
        run = adfs.simulate("adfs", problem, max_passes=passes, record=Record(grid=Grid(every=passes)))
        return run.seconds, accurate(run.theta[0])

    def theirs(solver: str, extra: dict[str, object]) -> Attempt:
        def reached(iterations: float) -> tuple[float, bool]:
            model = LogisticRegression(
                C=C,
                fit_intercept=False,
                solver=solver,
                tol=1e-16,
                max_iter=int(iterations),
                random_state=0,
                **extra,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                begun = time.perf_counter()
                model.fit(X, y)
                return time.perf_counter() - begun, accurate(model.coef_.ravel())

        return reached

    ladder = [float(round(2 * 1.15**k)) for k in range(60)]
    contenders: dict[str, Attempt] = {
        "ours": ours,
        "saga": theirs("saga", {}),
        "liblinear": theirs("liblinear", {"dual": True, "intercept_scaling": 1.0}),
    }
    budgets = {name: budget_for(reached, ladder) for name, reached in contenders.items()}
    best_time = dict.fromkeys(contenders, math.inf)
    for _ in range(3):  # taking turns
        for name, reached in contenders.items():
            best_time[name] = min(best_time[name], reached(budgets[name])[0])
    mine, saga, liblinear = best_time.values()
    other = min(saga, liblinear)
    reference = f"saga {saga:.2f} s, liblinear dual {liblinear:.2f} s"
    target = 1.0 if C > 1.0 else 1.5
    return [
        Row(
            f"a9a, C = {C:g}, one node, 1e-6 of the starting error",
            mine,
            "s",
            reference,
            mine / other,
            target,
        )
    ]


def main() -> str:
    table = [large_setting()]
    if (DATA / "a9a.bz2").exists():
        for C in (1.0, 100.0):
            table += one_node(C)
    notes = "Evaluation and compilation are not counted for ours; scikit-learn's times are those of `fit`."
    return write_table("solvers", "Seconds to an accuracy", table, notes)
