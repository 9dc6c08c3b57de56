"""Each rank fits estimators together with the others, rank 0 all rows alone; it tells if the bits agree."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import KFold

import adfs


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


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 7)) * (rng.random((120, 7)) < 0.7)
    scores = X @ rng.standard_normal((7, 3)) + 0.5 * rng.standard_normal((120, 3))
    cuts = np.linspace(0, 120, size + 1).astype(int)
    own = slice(cuts[rank], cuts[rank + 1])
    cases: dict[str, tuple[Any, np.ndarray]] = {
        "softmax": (adfs.ADFSClassifier(multi_class="multinomial", random_state=1), scores.argmax(axis=1)),
        "one versus rest": (
            adfs.ADFSClassifier(class_weight="balanced", multi_class="ovr", random_state=1),
            scores.argmax(axis=1),
        ),
        "squared": (
            adfs.ADFSRegressor(standardize=True, inference=True, random_state=1),
            3.0 + scores[:, 0],
        ),
        "logistic": (adfs.ADFSClassifier(algorithm="adfs", random_state=1), scores[:, 0] > 0.0),
        "poisson": (
            adfs.ADFSRegressor("poisson", random_state=1),
            np.round(np.exp(0.3 * scores[:, 1])),
        ),
        "elastic net": (adfs.ADFSRegressor(alpha=3.0, l1_ratio=0.5, random_state=1), scores[:, 2]),
    }
    found: dict[str, bool] = {}
    for name, (estimator, y) in cases.items():
        # On sparse rows a few: each model is another set of kernels to compile.
        sparse = [("sparse", sp.csr_array(X))] if name in ("one versus rest", "squared", "logistic") else []
        for kind, rows in [("dense", X), *sparse]:
            # What rank 0 compiles by itself is on the disk for all of them.
            alone = bits(clone(estimator).set_params(n_nodes=size).fit(rows, y)) if rank == 0 else None
            ranks = clone(estimator).set_params(cluster=adfs.MpiRanks(comm)).fit(rows[own], y[own])
            everywhere = comm.gather(bits(ranks))
            found[f"{name}, {kind}"] = rank == 0 and all(each == alone for each in everywhere)
    # Rows that are no multiple of the folds, so that folds are not of one size.
    cuts = np.linspace(0, 113, size + 1).astype(int)
    own, parts = slice(cuts[rank], cuts[rank + 1]), [np.arange(a, b) for a, b in pairwise(cuts)]
    several: dict[str, tuple[Any, np.ndarray]] = {
        "classes chosen": (adfs.ADFSClassifierCV([0.01, 1.0], cv=4), scores.argmax(axis=1)),
        "squares chosen": (adfs.ADFSRegressorCV([1.0, 100.0], cv=KFold(4)), scores[:, 0]),
    }
    for name, (search, y) in several.items():
        kind = adfs.ADFSClassifier if name == "classes chosen" else adfs.ADFSRegressor
        whole = clone(search).set_params(estimator=kind(n_nodes=size, partition=parts, random_state=1))
        if name == "squares chosen":  # a splitter cuts the rows of a process
            whole.set_params(cv=folds_of_nodes(parts, search.cv))
        alone = of_search(whole.fit(X[:113], y[:113])) if rank == 0 else None
        ranks = search.set_params(estimator=kind(cluster=adfs.MpiRanks(comm), random_state=1))
        everywhere = comm.gather(of_search(ranks.fit(X[own], y[own])))
        found[name] = rank == 0 and all(each == alone for each in everywhere)
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
