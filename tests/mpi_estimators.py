"""Each rank fits estimators to its rows of real data, rank 0 to all rows alone; it tells if bits agree."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import KFold

from adfs import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV, MpiRanks
from adfs.runtimes.waiting import WaitingCluster
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


# A search of each kind, on rows that are no multiple of the folds, so that folds are not of one size.
SEARCHES: dict[str, tuple[str, Any]] = {
    "classes chosen": ("wine: classes", ADFSClassifierCV([0.01, 1.0], cv=4)),
    "squares chosen": ("diabetes: progression", ADFSRegressorCV([1.0, 100.0], cv=KFold(4))),
}


def compare(cluster: WaitingCluster, names: tuple[str, ...] = (*CASES, *SEARCHES)) -> dict[str, bool]:
    """Return of each case if every process of a cluster finds the bits that process 0 finds alone."""
    found: dict[str, bool] = {}
    with cluster:
        rank, size = cluster.rank, cluster.size

        def everywhere_as_alone(name: str, alone: list[bytes] | None, ours: list[bytes]) -> None:
            stamps = cluster.allgather(hashlib.sha256(b"".join(ours)).hexdigest())
            if alone is not None:
                found[name] = set(stamps) == {hashlib.sha256(b"".join(alone)).hexdigest()}

        for name in (name for name in CASES if name in names):
            source, estimator, sparse = CASES[name]
            X, y, weights = real(source)
            parts = np.array_split(np.arange(len(y)), size)
            own = parts[rank]
            estimator.set_params(random_state=1)
            for kind in ("dense", "sparse") if sparse else ("dense",):
                rows = sp.csr_array(standardised(X)) if kind == "sparse" else standardised(X)
                # What rank 0 compiles by itself is on the disk for all of them.
                one = clone(estimator).set_params(n_nodes=size, partition=parts)
                with cluster.busy():
                    alone = bits(one.fit(rows, y, weights)) if rank == 0 else None
                ranks = clone(estimator).set_params(cluster=cluster)
                everywhere_as_alone(
                    f"{name}, {kind}", alone, bits(ranks.fit(rows[own], y[own], weights[own]))
                )
        for name in (name for name in SEARCHES if name in names):
            source, search = SEARCHES[name]
            X, y, _ = real(source)
            X, y = standardised(X)[::2], y[::2]
            parts = np.array_split(np.arange(len(y)), size)
            own = parts[rank]
            sort = ADFSClassifier if name == "classes chosen" else ADFSRegressor
            whole = clone(search).set_params(estimator=sort(n_nodes=size, partition=parts, random_state=1))
            if name == "squares chosen":  # a splitter cuts the rows of a process
                whole.set_params(cv=folds_of_nodes(parts, search.cv))
            with cluster.busy():
                alone = of_search(whole.fit(X, y)) if rank == 0 else None
            search.set_params(estimator=sort(cluster=cluster, random_state=1))
            everywhere_as_alone(name, alone, of_search(search.fit(X[own], y[own])))
    return found


def main() -> None:
    from mpi4py import MPI

    found = compare(MpiRanks(MPI.COMM_WORLD))
    if MPI.COMM_WORLD.Get_rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
