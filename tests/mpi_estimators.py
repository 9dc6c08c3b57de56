"""Each rank fits estimators together with the others, rank 0 all rows alone; it tells if the bits agree."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

import adfs


def bits(model: Any) -> list[bytes]:
    parts = ("dual_gap_", "coef_", "intercept_", "node_coef_")
    return [np.asarray(getattr(model, part)).tobytes() for part in parts]


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
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
