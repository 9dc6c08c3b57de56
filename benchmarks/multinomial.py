"""Seconds of whole fits of the softmax model to a certified gap, beside scikit-learn's solvers."""

from __future__ import annotations

import math
import time
import tracemalloc
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.linear_model import LogisticRegression

import adfs
from benchmarks.measure import DATA, Row, write_table

GAP = 1e-4
SECONDS = 20.0


def gaussians(n_samples: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of Gaussian classes around random centres, the same every time."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n_samples)
    centers = rng.standard_normal((n_classes, n_features)) / np.sqrt(n_features)
    return centers[labels] + rng.standard_normal((n_samples, n_features)) / np.sqrt(n_features) * 3.0, labels


def ours(X: np.ndarray, y: np.ndarray) -> tuple[float, adfs.ADFSClassifier]:
    model = adfs.ADFSClassifier(multi_class="multinomial", fit_intercept=False, tol=GAP, random_state=0)
    begun = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - begun, model


def theirs(solver: str, X: np.ndarray, y: np.ndarray, reached: Callable[[np.ndarray], bool]) -> float:
    """Return the seconds of the first of a ladder of budgets with which a solver has the accuracy."""
    for iterations in (round(3 * 1.5**k) for k in range(16)):
        model = LogisticRegression(
            solver=solver, C=1.0, fit_intercept=False, tol=1e-14, max_iter=iterations, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - begun
        if reached(model.coef_):
            return seconds
        if seconds > 10.0 * SECONDS:
            break
    return math.inf


def measured(name: str, X: np.ndarray, y: np.ndarray, target: float) -> list[Row]:
    ours(X[:200], y[:200])  # compiles
    seconds, model = min((ours(X, y) for _ in range(2)), key=lambda one: one[0])
    problem = adfs.Problem(X, y, loss="multinomial", sigma=1.0)
    lowest = problem.objective(model.coef_.ravel()) - model.dual_gap_ * problem.value_at_zero

    def reached(coef: np.ndarray) -> bool:
        return bool(problem.objective(coef.ravel()) - lowest <= GAP * problem.value_at_zero)

    others = {solver: theirs(solver, X, y, reached) for solver in ("lbfgs", "saga")}
    reference = ", ".join(f"{solver} {value:.2f} s" for solver, value in others.items())
    tracemalloc.start()
    ours(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n_samples, n_classes = y.size, model.classes_.size
    state = 8.0 * n_samples * n_classes
    return [
        Row(f"{name}, certified {GAP:g}", seconds, "s", reference, target=target),
        Row(
            f"{name}, memory beyond the data",
            peak / 2**20,
            "MiB",
            "8 N K bytes",
            peak / state,
        ),
    ]


def main() -> str:
    rows = measured("60,000 × 100, 10 classes", *gaussians(60_000, 100, 10), target=SECONDS)
    if (DATA / "usps.bz2").exists():
        from sklearn.datasets import load_svmlight_file

        X, y = load_svmlight_file(str(DATA / "usps.bz2"))
        rows += measured("usps", np.ascontiguousarray(X.toarray()), y.astype(int), target=SECONDS)
    notes = (
        "Whole fits with C = 1 and no intercept, compilation not counted. scikit-learn's solvers are run "
        "with growing budgets until their error is proven to be as small."
    )
    return write_table("multinomial", "The softmax model: seconds of whole fits", rows, notes)
