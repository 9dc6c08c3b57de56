"""Each rank fits estimators to its rows of real data, rank 0 to all rows alone; it tells if bits agree."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import KFold

from adfs import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV, MpiRanks
from estimators.agreement_cases import real, standardised


def bits(model: Any) -> list[bytes]:
    parts = ("dual_gap_", "coef_", "intercept_", "node_coef_")
    return [np.asarray(getattr(model, part)).tobytes() for part in parts]


def of_search(search: Any) -> list[bytes]:
    chosen = search.best_estimator_.get_params()["C" if hasattr(search, "C_") else "alpha"]
    return [search.scores_.tobytes(), np.float64(chosen).tobytes(), *bits(search.best_estimator_)]


def folds_of_nodes(parts: list[np.ndarray], splitter: KFold) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the folds that all nodes make of their own rows, one after the other, as folds of all rows."""
    cut = [[(rows[a], rows[b]) for a, b in splitter.split(rows)] for rows in parts]
    return [
        (np.concatenate([train for train, _ in pairs]), np.concatenate([test for _, test in pairs]))
        for pairs in zip(*cut, strict=True)
    ]


# What is learned from which data, by what, and if on sparse rows too: each is another set of kernels.
CASES: dict[str, tuple[str, Any, bool]] = {
    "softmax": ("wine: classes", ADFSClassifier(), False),
    "one versus rest": ("iris: classes", ADFSClassifier(class_weight="balanced", multi_class="ovr"), True),
    "logistic": ("breast_cancer: classes", ADFSClassifier(method="adfs"), True),
    "hinge": ("breast_cancer: a class", ADFSClassifier("hinge"), False),
    "squared": ("diabetes: progression", ADFSRegressor(standardize=True, inference=True), True),
    "elastic net": ("diabetes: progression", ADFSRegressor(alpha=3e3, l1_ratio=0.5), False),
    "huber": ("diabetes: progression", ADFSRegressor("huber", delta=50.0), False),
    "poisson": ("linnerud: sit-ups", ADFSRegressor("poisson"), False),
    "gamma": ("wine: colour", ADFSRegressor("gamma"), False),
    "tweedie": ("wine: colour", ADFSRegressor("tweedie", power=1.3, method="adfs"), False),
}


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    found: dict[str, bool] = {}
    for name, (source, estimator, sparse) in CASES.items():
        X, y, weights = real(source)
        parts = np.array_split(np.arange(len(y)), size)
        own = parts[rank]
        estimator.set_params(random_state=1)
        for kind in ("dense", "sparse") if sparse else ("dense",):
            rows = sp.csr_array(standardised(X)) if kind == "sparse" else standardised(X)
            # What rank 0 compiles by itself is on the disk for all of them.
            one = clone(estimator).set_params(n_nodes=size, partition=parts)
            alone = bits(one.fit(rows, y, weights)) if rank == 0 else None
            ranks = clone(estimator).set_params(cluster=MpiRanks(comm))
            everywhere = comm.gather(bits(ranks.fit(rows[own], y[own], weights[own])))
            found[f"{name}, {kind}"] = rank == 0 and all(each == alone for each in everywhere)
    # Rows that are no multiple of the folds, so that folds are not of one size.
    several: dict[str, tuple[str, Any]] = {
        "classes chosen": ("wine: classes", ADFSClassifierCV([0.01, 1.0], cv=4)),
        "squares chosen": ("diabetes: progression", ADFSRegressorCV([1.0, 100.0], cv=KFold(4))),
    }
    for name, (source, search) in several.items():
        X, y, _ = real(source)
        X, y = standardised(X)[::2], y[::2]
        parts = np.array_split(np.arange(len(y)), size)
        own = parts[rank]
        kind = ADFSClassifier if name == "classes chosen" else ADFSRegressor
        whole = clone(search).set_params(estimator=kind(n_nodes=size, partition=parts, random_state=1))
        if name == "squares chosen":  # a splitter cuts the rows of a process
            whole.set_params(cv=folds_of_nodes(parts, search.cv))
        alone = of_search(whole.fit(X, y)) if rank == 0 else None
        ranks = search.set_params(estimator=kind(cluster=MpiRanks(comm), random_state=1))
        everywhere = comm.gather(of_search(ranks.fit(X[own], y[own])))
        found[name] = rank == 0 and all(each == alone for each in everywhere)
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
