"""Elastic nets and lassos, raw and standardised, to a certified 1e-6, beside the solvers people use for them.

skglm, celer and glum belong to this table alone: where they are not installed (``pip install skglm celer
glum``) they are left out, and the notes name them. Ours is called as a user calls it. The tolerance of every
other solver is lowered until our lower bound certifies its point, which it would not know itself; its time is
that of the last fit alone. ``python -m benchmarks.l1 diabetes cadata`` measures these data sets again and
keeps the rows of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

import adfs
from benchmarks.measure import DATA, RESULTS, Row, write_table

ACCURACY = 1e-6
LEAST = 0.005  # seconds: shorter times count as this
LIMIT = 300.0  # seconds of another solver on one problem, over all of its tolerances
OUR_LIMIT = 60.0  # processor seconds of our fit, after which its ratio is infinite
PATIENCE = 3.0  # a fit that has taken so many times the time of the fastest solver so far is stopped,
SHORTEST_PATIENCE = 0.5  # after so many seconds at least
MOST_DIGITS = 13  # of a tolerance
LONG = 1.0  # seconds of a fit that is measured once
REPEATS = 5
OTHERS = ("skglm", "celer", "glum")
WARM: set[tuple[object, ...]] = set()  # rivals that have compiled, and for which rows
FILES = {
    "cadata": "cadata",
    "a9a": "a9a",
    "w8a": "w8a",
    "covtype": "covtype.libsvm.binary",
    "dorothea": "dorothea",
    "news20": "news20",
    "reuters": "reuters.money-fx",
}
SETS = ("diabetes", "breast cancer", "breast cancer with an ID", *FILES)

# From a tolerance to the coefficients and the intercept.
Fit = Callable[[float], tuple[np.ndarray, float]]


# --------------------------------------------------------------------------- data and problems


def read(name: str) -> tuple[Any, np.ndarray] | None:
    """Return the rows and the targets of a set; None if its file is not there."""
    from sklearn import datasets
    from sklearn.preprocessing import normalize

    if name == "diabetes":
        return datasets.load_diabetes(return_X_y=True, scaled=False)  # type: ignore[no-any-return]
    if name.startswith("breast cancer"):
        X, y = datasets.load_breast_cancer(return_X_y=True)
        return np.column_stack([X, 1e5 + np.arange(len(y))]) if "ID" in name else X, y
    path = DATA / f"{FILES[name]}.bz2"
    if not path.exists():
        return None
    X, y = datasets.load_svmlight_file(str(path))
    if name in ("cadata", "covtype"):
        return X.toarray(), y
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return (normalize(X), np.where(y >= 11.0, 1.0, -1.0)) if name == "news20" else (X, y)


def standardised(X: Any) -> Any:
    """Return columns with a standard deviation of 1; sparse ones are not centred."""
    from sklearn.preprocessing import StandardScaler

    return StandardScaler(with_mean=not sp.issparse(X)).fit_transform(X)


@dataclass(frozen=True)
class Task:
    """The problem Σℓ + alpha·(ratio·‖θ‖₁ + ½(1 − ratio)‖θ‖²), with an intercept that is not penalised.

    ``y`` has ±1 for the logistic loss; ``base`` is Σℓ of the best constant model.
    """

    name: str
    logistic: bool
    X: Any
    y: np.ndarray
    alpha: float
    ratio: float
    base: float

    def value(self, coef: np.ndarray, intercept: float) -> float:
        """Return the objective."""
        margins = np.asarray(self.X @ coef).ravel() + intercept
        penalty = self.ratio * np.abs(coef).sum() + 0.5 * (1.0 - self.ratio) * coef @ coef
        return float(losses(self.logistic, margins, self.y).sum() + self.alpha * penalty)


def losses(logistic: bool, margins: Any, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, -y * margins) if logistic else 0.5 * (margins - y) ** 2)


def tasks(name: str, X: Any, y: np.ndarray) -> Iterator[Task]:
    """Yield the problems of one set: two losses, two penalties, three strengths."""
    numbers = np.unique(y).size > 10
    for logistic in (False, True):
        target = y.astype(np.float64)
        if logistic or not numbers:  # targets above their median, or the second class
            target = np.where(y > np.median(y) if numbers else y == y.max(), 1.0, -1.0)
        mean = target.mean()
        level = math.log((1.0 + mean) / (1.0 - mean)) if logistic else mean
        slopes = -target / (1.0 + np.exp(target * level)) if logistic else level - target
        base = float(losses(logistic, level, target).sum())
        largest = float(np.abs(X.T @ slopes).max())  # all coefficients are 0 with this factor of ‖θ‖₁
        for ratio, words in ((1.0, "lasso"), (0.5, "elastic net")):
            default = 1.0 if logistic else float(len(y))
            strengths = {
                "λmax/10": largest / 10 / ratio,
                "λmax/100": largest / 100 / ratio,
                "default": default,
            }
            for strength, alpha in strengths.items():
                what = f"{name}, {'logistic ' if logistic else ''}{words}, {strength}"
                yield Task(what, logistic, X, target, alpha, ratio, base)


# --------------------------------------------------------------------------- solvers


def ours(task: Task, tol: float = ACCURACY) -> Any:
    """Return our estimator with its defaults."""
    if task.logistic:
        return adfs.ADFSClassifier(C=1.0 / task.alpha, l1_ratio=task.ratio, tol=tol, random_state=0)
    return adfs.ADFSRegressor(alpha=task.alpha, l1_ratio=task.ratio, tol=tol, random_state=0)


def rivals(task: Task) -> dict[str, Callable[[float], Any]]:
    """Return the other solvers by name, each a function from its tolerance to an estimator; quick ones first.

    celer's logistic regression has no intercept, and glum forms a dense matrix of d × d numbers.
    """
    from sklearn import linear_model

    there = {name: importlib.util.find_spec(name) is not None for name in OTHERS}
    alpha, ratio, found = task.alpha / len(task.y), task.ratio, {}
    common = {"alpha": alpha, "l1_ratio": ratio}
    if task.logistic:
        if there["skglm"]:
            import skglm

            found["skglm"] = lambda tol: skglm.SparseLogisticRegression(
                **common, tol=tol, max_iter=200, max_epochs=10_000
            )
        given: dict[str, Any] = {
            "C": 1.0 / task.alpha,
            "l1_ratio": ratio,
            "max_iter": 100_000,
            "random_state": 0,
        }
        if ratio == 1.0:  # it penalises its intercept, hardly with this scaling
            found["liblinear"] = lambda tol: linear_model.LogisticRegression(
                **given, solver="liblinear", intercept_scaling=1e4, tol=tol
            )
        found["saga"] = lambda tol: linear_model.LogisticRegression(**given, solver="saga", tol=tol)
    else:
        lasso, short = ratio == 1.0, {"alpha": alpha} if ratio == 1.0 else common
        if there["celer"]:
            import celer

            kind = celer.Lasso if lasso else celer.ElasticNet
            found["celer"] = lambda tol: kind(**short, tol=tol, max_iter=500)
        if there["skglm"]:
            import skglm

            other = skglm.Lasso if lasso else skglm.ElasticNet
            found["skglm"] = lambda tol: other(**short, tol=tol, max_iter=500)
        if not sp.issparse(task.X):
            found["scikit-learn with a Gram matrix"] = lambda tol: linear_model.ElasticNet(
                **common, tol=tol, max_iter=10**6, precompute=True
            )
        found["scikit-learn"] = lambda tol: linear_model.ElasticNet(**common, tol=tol, max_iter=10**6)
    if there["glum"] and task.X.shape[1] <= 2000:
        import glum

        family = "binomial" if task.logistic else "normal"
        found["glum"] = lambda tol: glum.GeneralizedLinearRegressor(
            **common, family=family, gradient_tol=tol, max_iter=1000
        )
    # Of few dense columns these are fast, and others need not be waited for.
    first = "glum" if task.logistic else "scikit-learn with a Gram matrix"
    dense = first in found and not sp.issparse(task.X)
    return {first: found[first], **found} if dense else found


def timed(make: Callable[[float], Any], tol: float, task: Task, name: str) -> tuple[float, np.ndarray, float]:
    """Return the time of a fit, its coefficients and its intercept."""
    y = (task.y > 0.0).astype(np.float64) if task.logistic and name == "glum" else task.y
    model = make(tol)
    seconds = seconds_of(lambda: model.fit(task.X, y))
    return seconds, np.ravel(model.coef_).astype(np.float64), float(np.ravel(model.intercept_)[0])


def seconds_of(fit: Callable[[], object]) -> float:
    """Return the time of a fit by the clock if it is short, and its processor time if it is long.

    Short fits are repeated, and some machines round their processor time; long ones are not.
    """
    begun, spent = time.perf_counter(), time.process_time()
    fit()
    elapsed = time.perf_counter() - begun
    return elapsed if elapsed < LONG else time.process_time() - spent


def warm_up(name: str, make: Callable[[float], Any], task: Task) -> None:
    """Let a rival compile what it needs for such rows: the processes that measure it start from here."""
    kind = name, task.logistic, task.ratio, sp.issparse(task.X)
    if kind in WARM:
        return
    WARM.add(kind)
    sides = task.y == task.y.max(), task.y != task.y.max()
    chosen = np.concatenate([np.flatnonzero(side)[:50] for side in sides])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timed(make, 1e-2, replace(task, X=task.X[chosen], y=task.y[chosen]), name)


def attempt(
    name: str, make: Callable[[float], Any], task: Task, lower: float, patience: float, results: Any
) -> None:
    """Lower the tolerance of a rival until its point is certified; send every fit's time, error and point.

    The process ends when a fit has taken so many seconds of processor time, or all of them the limit.
    """
    warnings.simplefilter("ignore")  # budgets that are met on purpose
    begun, digits = time.process_time(), 4
    while digits <= MOST_DIGITS:
        signal.setitimer(signal.ITIMER_PROF, min(patience, LIMIT - (time.process_time() - begun)))
        seconds, coef, intercept = timed(make, 10.0**-digits, task, name)
        error = (task.value(coef, intercept) - lower) / task.base
        results.send((seconds, error, coef))
        if error <= ACCURACY:
            for _ in range(repeats(seconds) - 1):
                results.send((timed(make, 10.0**-digits, task, name)[0], error, coef))
            break
        # The error is at most quadratic in the tolerance: no tolerance that would do is skipped.
        digits += max(1, int(0.5 * math.log10(error / ACCURACY))) if error < math.inf else 1


def repeats(seconds: float) -> int:
    """Return how often a fit is measured."""
    return REPEATS if seconds < LONG else 1


def measure_rival(
    name: str, make: Callable[[float], Any], task: Task, lower: float, patience: float
) -> tuple[float, np.ndarray | None]:
    """Return the least time and the coefficients of a rival's certified fits, in a process of its own."""
    here, there = multiprocessing.Pipe(duplex=False)
    given = name, make, task, lower, patience, there
    child = multiprocessing.get_context("fork").Process(target=attempt, args=given)
    child.start()
    there.close()
    best, point = math.inf, None
    with contextlib.suppress(EOFError):
        while True:
            seconds, error, coef = here.recv()
            if error <= ACCURACY:
                best, point = min(best, seconds), coef
    child.join()
    return best, point


# --------------------------------------------------------------------------- the table


class TooLongError(Exception):
    """Our fit has taken the time that it may take."""


def limited(fit: Callable[[], Any]) -> Any:
    """Return the result of our fit; raise when it has taken too long."""

    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, OUR_LIMIT)
    try:
        return fit()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def compare(task: Task) -> Row:
    """Measure one problem."""
    try:
        exact = limited(lambda: ours(task, 1e-9).fit(task.X, task.y))  # compiles, and gives the lower bound
    except TooLongError:
        return Row(f"{task.name}, OURS STOPPED", 1e3 * OUR_LIMIT, "ms", "not measured", math.inf, 5.0)
    scale = task.alpha if task.logistic else 1.0  # the classifier's objective is divided by alpha
    coef, intercept = np.ravel(exact.coef_), float(np.ravel(exact.intercept_)[0])
    lower = task.value(coef, intercept) - scale * exact.absolute_gap_
    mine, left = math.inf, REPEATS
    while left:
        model = ours(task)
        seconds = seconds_of(lambda model=model: model.fit(task.X, task.y))
        mine, left = min(mine, seconds), min(left, repeats(seconds)) - 1
    point, shift = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    if model.dual_gap_ <= ACCURACY and (task.value(point, shift) - lower) / task.base > 1.01 * ACCURACY:
        raise AssertionError(f"{task.name}: the fit is not as accurate as it says")
    times: dict[str, float] = {}
    nearest: np.ndarray | None = None
    for name, make in rivals(task).items():
        warm_up(name, make, task)
        fastest = min(times.values(), default=math.inf)
        patience = max(SHORTEST_PATIENCE, PATIENCE * min(mine, fastest))
        seconds, theirs = measure_rival(name, make, task, lower, patience)
        if seconds < fastest:
            nearest = theirs
        times[name] = seconds
    reached = sorted((seconds, name) for name, seconds in times.items() if seconds < math.inf)
    words = [f"{name} {1e3 * seconds:.3g}" for seconds, name in reached]
    late = [name for name, seconds in times.items() if seconds == math.inf]
    reference = ", ".join(words) + (f"; not: {', '.join(late)}" if late else "")
    support = np.count_nonzero(coef)
    what = f"{task.name} ({model.method_}), {support} of {coef.size}"
    if nearest is not None:
        common = np.count_nonzero((nearest != 0.0) & (coef != 0.0))
        apart = np.linalg.norm(nearest - coef) / (np.linalg.norm(coef) or 1.0)
        what += f", theirs {np.count_nonzero(nearest)}, common {common}, {apart:.0e} apart"
    if model.dual_gap_ > ACCURACY:
        what += f", GAP {model.dual_gap_:.0e}"
    # Without any other time the ratio is at most this.
    other = reached[0][0] if reached else max(SHORTEST_PATIENCE, PATIENCE * mine)
    return Row(what, 1e3 * mine, "ms", reference, max(mine, LEAST) / max(other, LEAST), 5.0)


def kept_rows() -> dict[str, list[Row]]:
    """Return the rows of the table that is there, by data set."""
    found: dict[str, list[Row]] = {name: [] for name in SETS}
    path = RESULTS / "l1.md"
    for line in path.read_text().splitlines() if path.exists() else ():
        cells = line.strip("| ").split(" | ")
        name = cells[0].partition(" raw,")[0].partition(" standardised,")[0]
        if name in found:
            figure, unit = cells[1].split()
            found[name].append(Row(cells[0], float(figure), unit, cells[2], float(cells[3]), 5.0))
    return found


def written(rows: list[Row]) -> str:
    """Write the table."""
    ratios = [row.ratio for row in rows]
    missing = [name for name in OTHERS if importlib.util.find_spec(name) is None]
    above = sum(ratio > 2.0 for ratio in ratios)
    notes = (
        f"Milliseconds of whole fits with one thread: the least of {REPEATS} by the clock, or the processor "
        f"time of one that takes more than {LONG:g} s. Every point has a certified error of {ACCURACY:g}, "
        "relative to F of the best constant model. The ratio is to the fastest of the others; times below "
        f"5 ms count as 5 ms. Asked for: a median ratio of at most 2 ({np.median(ratios):.2f} here), nowhere "
        f"above 5 ({max(ratios):.2f} here), of {len(ratios)} problems; {above} are above 2. A solver is "
        f"stopped when one fit has taken {PATIENCE:g} times as long as the fastest solver before it and at "
        f"least {SHORTEST_PATIENCE:g} s (the tolerance may still be too large then), or all of its fits "
        f"{LIMIT:g} s: it stands after “not”. Ours is stopped after {OUR_LIMIT:g} s, "
        "and its ratio is then infinite. Where no other is left, the ratio is at most "
        f"1/{PATIENCE:g}, and that is shown. After our method: the numbers of coefficients that are not 0, "
        "ours, those of the fastest other, and common ones, and the distance of the coefficients "
        "relative to their length."
    )
    if missing:
        notes += f" Not installed: {', '.join(missing)}."
    return write_table("l1", "Elastic nets and lassos", rows, notes)


def main(names: tuple[str, ...] = SETS) -> str:
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return "l1 compares the time of one thread: start it with OMP_NUM_THREADS=1\n"
    kept, text = kept_rows(), ""
    for name in names:
        data = read(name)
        if data is None:
            continue
        kept[name] = []
        for form in ("raw", "standardised"):
            X = data[0] if form == "raw" else standardised(data[0])
            for task in tasks(f"{name} {form}", X, data[1]):
                kept[name].append(last := compare(task))
                print(f"{last.what}: {last.figure:.1f} ms; {last.reference}; {last.ratio:.2f}", flush=True)
        # A run that is ended keeps the sets that it has measured.
        text = written([row for rows in kept.values() for row in rows])
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *SETS])
    print(main(tuple(parser.parse_args().names) or SETS))
