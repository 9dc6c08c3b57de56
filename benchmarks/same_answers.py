"""Whether a change left the answers as they were: fits, runs to the bit, model files, a figure of the paper.

``python -m benchmarks.same_answers record`` writes what this checkout answers to
``benchmarks/results/same_answers.json``; ``python -m benchmarks.same_answers`` compares with it and prints
every difference. Coefficients may differ within the tolerance that was asked for; runs may not.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

import adfs
from adfs.cli import main as command

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "same_answers.json"
sys.path[:0] = [str(ROOT / "tests")]

# A loss, its constants and penalty, and the tolerance. Each is fitted in one process and in four.
FITS: dict[str, tuple[dict[str, Any], float]] = {
    "logistic": ({}, 1e-8),
    "logistic, elastic net": ({"penalty": "elasticnet", "l1_ratio": 0.3}, 1e-6),
    "logistic, adfs": ({"solver": "adfs"}, 1e-6),
    "softmax": ({}, 1e-6),
    "squared_hinge": ({}, 1e-7),
    "smoothed_hinge": ({}, 1e-6),
    "hinge": ({}, 1e-6),
    "squared": ({}, 1e-8),
    "squared, elastic net": ({"penalty": "elasticnet", "l1_ratio": 0.3}, 1e-6),
    "huber": ({}, 1e-7),
    "absolute": ({}, 1e-6),
    "quantile": ({"quantile": 0.2}, 1e-6),
    "smoothed_quantile": ({"quantile": 0.2}, 1e-6),
    "epsilon_insensitive": ({}, 1e-6),
    "poisson": ({}, 1e-7),
    "gamma": ({}, 1e-7),
}
# Methods on schedules and rows, on one process and on two.
RUNS = [
    ("adfs", "logistic", "iid", False),
    ("adfs", "logistic", "poisson", True),
    ("adfs", "squared", "iid", True),
    ("adfs-block", "logistic", "iid", False),
    ("adfs-block", "logistic", "iid", True),
    ("ns-adfs", "hinge", "iid", False),
    ("ns-adfs", "hinge", "poisson", True),
    ("msda", "logistic", "iid", False),
    ("esdacd", "logistic", "iid", False),
    ("dsba", "logistic", "iid", True),
    ("extra", "logistic", "iid", False),
    ("dagd", "logistic", "iid", False),
]


def _named(function: Any, **given: Any) -> dict[str, Any]:
    """Return arguments under the names that this version has for them."""
    names = inspect.signature(function).parameters
    old = {"solver": "method", "network": "graph", "passes": "max_iter"}
    new = {"solver": "method", "network": "network", "passes": "max_iter"}
    return {(new if new.get(k, k) in names else old).get(k, k): value for k, value in given.items()}


def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "softmax":
        X, y = load_iris(return_X_y=True)
    elif name.split(",", maxsplit=1)[0] in ("logistic", "squared_hinge", "smoothed_hinge", "hinge"):
        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, y = load_diabetes(return_X_y=True)
        y = y if name == "gamma" else np.round(y / 20.0) if name == "poisson" else (y - y.mean()) / y.std()
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def _fit(name: str, nodes: int) -> Any:
    settings, tol = FITS[name]
    classifies = name.split(",", maxsplit=1)[0] in (
        "logistic",
        "softmax",
        "squared_hinge",
        "smoothed_hinge",
        "hinge",
    )
    kind = adfs.ADFSClassifier if classifies else adfs.ADFSRegressor
    loss = "logistic" if name == "softmax" else name.split(",", maxsplit=1)[0]
    given = {"loss": loss, "tol": tol, "random_state": 0, **settings}
    X, y = _data(name)
    if nodes == 1:
        return kind(**_named(kind, **given)).fit(X, y)
    from memory_cluster import on_threads

    def part(cluster: Any) -> Any:
        own = np.array_split(np.arange(len(y)), nodes)[cluster.rank]
        return kind(**_named(kind, network="cycle", cluster=cluster, **given)).fit(X[own], y[own])

    return on_threads(nodes, part)[0]


def _fits() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in FITS:
        for nodes in (1, 4):
            model = _fit(name, nodes)
            coef = np.append(np.ravel(model.coef_), np.ravel(model.intercept_))
            used = getattr(model, "method_", None) or model.method_
            passes = float(np.max(model.history_["passes"]))
            yield (
                f"{name}, {nodes} processes",
                {"coef": coef.tolist(), "gap": model.dual_gap_, "method": used, "passes": passes},
            )


def _runs() -> Iterator[tuple[str, dict[str, Any]]]:
    from mpi_cases import Case

    for method, loss, schedule, sparse in RUNS:
        case = Case(method=method, loss=loss, schedule=schedule, sparse=sparse)
        run = case.simulate()
        stamp = hashlib.sha256(run.theta.tobytes() + run.columns["gap"].tobytes()).hexdigest()[:16]
        words = ", ".join([method, loss, schedule, "CSR" if sparse else "dense"])
        yield words, {"theta": hashlib.sha256(run.theta.tobytes()).hexdigest()[:16], "all": stamp}


def _models() -> Iterator[tuple[str, dict[str, Any]]]:
    from adfs.data import LinearModel

    with tempfile.TemporaryDirectory() as folder:
        X, y = load_breast_cancer(return_X_y=True)
        np.savez(f"{folder}/a.npz", X=X, y=y)
        rows = sp.csr_array(np.where(np.median(X, axis=0) < X, 1.0, 0.0))
        parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": rows.shape}
        np.savez(f"{folder}/b.npz", y=y, **parts)
        X, y = load_iris(return_X_y=True)
        np.savez(f"{folder}/c.npz", X=X, y=y)
        X, y = load_diabetes(return_X_y=True)
        np.savez(f"{folder}/d.npz", X=X, y=y)
        options = {"a": ["--standardize"], "b": [], "c": [], "d": ["--loss", "squared", "--alpha", "0.1"]}
        for name, more in options.items():
            out = f"{folder}/{name}.json"
            assert command(["fit", f"{folder}/{name}.npz", "--tol", "1e-8", *more, "--out", out]) == 0
            model = LinearModel.load(Path(out))
            coef = np.append(model.coef.ravel(), model.intercept.ravel())
            yield f"model {name}", {"coef": coef.tolist(), "gap": model.training["gap"]}


def _figure() -> Iterator[tuple[str, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        assert command(["reproduce", "small", "--quick", "--out", folder]) in (0, None)
        for path in sorted(Path(folder).rglob("*.csv")):
            yield f"figure {path.name}", {"stamp": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}


def answers() -> dict[str, dict[str, Any]]:
    """Return what this checkout answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: found for part in (_fits, _runs, _models, _figure) for name, found in part()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Say what differs more than it may."""
    lines, ratios = [], []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            lines.append(f"{name}: not answered any more")
            continue
        if "coef" in old:
            apart = np.abs(np.array(old["coef"]) - np.array(new["coef"])).max() / np.abs(old["coef"]).max()
            # The objective is strongly convex: a gap of g leaves coefficients within about √g.
            allowed = 10.0 * np.sqrt(max(old["gap"], new["gap"], 1e-15))
            if apart > allowed:
                lines.append(f"{name}: coefficients differ by {apart:.1e}, {allowed:.1e} is allowed")
        if "passes" in old:
            ratios.append(new["passes"] / max(old["passes"], 1.0))
            if ratios[-1] > 1.3 or new["method"] != old["method"]:
                was, now = (
                    f"{old['passes']:.1f} by {old['method']}",
                    f"{new['passes']:.1f} by {new['method']}",
                )
                lines.append(f"{name}: {now} passes, {was} before")
        lines += [
            f"{name}: other bits ({key})" for key in ("theta", "all", "stamp") if old.get(key) != new.get(key)
        ]
    return [*lines, f"passes: {np.mean(ratios):.2f} × on average, {np.max(ratios):.2f} × at most"]


if __name__ == "__main__":
    now = answers()
    if sys.argv[1:] == ["record"]:
        KEPT.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    else:
        print("\n".join(differences(json.loads(KEPT.read_text(encoding="utf-8")), now)))
