"""Each refusal, one after another in one launch; prints what every rank was told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import adfs
from adfs.runtimes import run as run_module
from mpi_cases import Case


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    case = Case()

    def told(action: Callable[[], Any]) -> list[str]:
        try:
            action()
            message = "not refused"
        except adfs.InputError as error:
            message = str(error)
        messages: list[str] = comm.allgather(message)
        return messages

    def run(shards: Any = None, network: Any = "complete", **more: Any) -> Any:
        data = [case.shard(rank)] if shards is None else shards
        return adfs.fit_mpi(comm, data, network, **({"max_passes": 1.0, "deadline": 20.0} | more))

    def with_version(version: str) -> Any:
        run_module.__version__ = version  # type: ignore[attr-defined]
        try:
            return run()
        finally:
            run_module.__version__ = adfs.__version__  # type: ignore[attr-defined]

    def unreadable(node: int) -> Any:
        if node == 2:
            raise PermissionError(13, "Permission denied", "shard-2.svm")
        return case.shard(node)

    def fit(kind: Any = adfs.ADFSClassifier, **more: Any) -> Any:
        return kind(cluster=adfs.MpiRanks(comm, deadline=20.0), **more).fit(X, y)

    X, y, _ = case.shard(rank)
    broken = np.array(X)
    broken[0, 0] = np.nan if rank == 1 else 0.0
    wrong = adfs.Problem.from_shards([(X, y)], "squared" if rank == 1 else "huber", 1.0)
    found = {
        "version": told(lambda: with_version("0.0.9" if rank == 1 else "0.1.0")),
        "seed": told(lambda: run(seed=rank)),
        "loss": told(lambda: run(loss="squared" if rank == 1 else "logistic")),
        "parameters": told(lambda: run(parameters="paper" if rank == 1 else "tuned")),
        "no shards": told(lambda: run([] if rank == 2 else None)),
        "no rows": told(lambda: run([(X[:0], y[:0])] if rank == 1 else None)),
        "too many ranks": told(lambda: run(case.shard, "path:2")),
        "too few shards": told(lambda: run(network="grid:3x3")),
        "three classes": told(lambda: run([(X, np.full(len(y), rank))])),
        "bad data": told(lambda: run([(broken, y)])),
        "unreadable": told(lambda: run(unreadable)),
        "dense widths": told(lambda: run([(X[:, :5] if rank == 1 else X, y)])),
        "narrow": told(lambda: run(n_features=2)),
        "unknown method": told(lambda: run(method="adsf")),
        "misspelt argument": told(lambda: run(pases=3.0)),
        "single": told(lambda: run(method="apcg")),
        "optimum": told(lambda: run(record="distance")),
        "kinds of labels": told(lambda: run([(X, np.where(y > 0, "b", "a") if rank == 1 else y)])),
        "problem losses": told(lambda: run(wrong)),
        "nowhere to keep": told(lambda: run(checkpoint="/dev/null/kept")),
        "C": told(lambda: fit(C=50.0 if rank == 2 else 1.0)),
        "an algorithm": told(lambda: fit(method="msda" if rank == 1 else "auto")),
        "a task": told(lambda: fit(adfs.ADFSRegressor if rank == 1 else adfs.ADFSClassifier)),
        "alike": told(fit),
    }
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
