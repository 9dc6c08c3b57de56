"""Whole fits on engines next to the engines' own estimators: covtype in memory, two workers."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import sklearn

import adfs
from benchmarks.measure import DATA, Row

SIGMAS = (58.0, 0.58)
ACCURACY = 1e-6
REPEATS = 5
RIVAL_TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
# Times over those of MPI plus half a second, and over those of the engines' own estimators.
ASKED = {"dask": 1.5, "dask-ml": 1.0 / 10.0, "spark.ml": 1.0 / 4.0}


@functools.cache
def covtype() -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, and labels 0 and 1."""
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(DATA / "covtype.libsvm.binary.scale.bz2"))
    return X.toarray(), (y == 2.0).astype(np.float64)


def objective(theta: np.ndarray, sigma: float) -> float:
    X, y = covtype()
    return float(np.logaddexp(0.0, (1.0 - 2.0 * y) * (X @ theta)).sum() + 0.5 * sigma * (theta @ theta))


@functools.cache
def optimum(sigma: float) -> float:
    model = classifier(sigma, tol=1e-12).fit(*covtype())
    return objective(model.coef_[0], sigma)


def error(theta: Any, sigma: float) -> float:
    """Return the relative error of an objective."""
    return objective(np.asarray(theta).ravel(), sigma) / optimum(sigma) - 1.0


def classifier(sigma: float, **parameters: Any) -> adfs.ADFSClassifier:
    return adfs.ADFSClassifier(
        **{"C": 1.0 / sigma, "fit_intercept": False, "tol": ACCURACY, "random_state": 0} | parameters
    )


def measure(fit: Callable[[], Any], sigma: float, repeats: int = REPEATS) -> tuple[float, float]:
    """Return the least seconds of warm fits, and the largest error of their models."""
    fit()
    seconds, errors = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        theta = fit()
        seconds.append(time.perf_counter() - begun)
        errors.append(error(theta, sigma))
    return min(seconds), max(errors)


def rival_at(fit: Callable[[float], Any], sigma: float) -> tuple[float, str]:
    """Return the seconds of a rival's fit with the largest tolerance that gives our accuracy, in words too.

    The fits before warm it up. If no tolerance is enough, the last one counts.
    """
    for tol in RIVAL_TOLERANCES:
        wrong = error(fit(tol), sigma)
        if wrong <= ACCURACY:
            break
    begun = time.perf_counter()
    fit(tol)
    seconds = time.perf_counter() - begun
    return seconds, f"{seconds:.3g} s, tolerance {tol:.0e}, error {wrong:.0e}"


# --------------------------------------------------------------------------- MPI


def mpi_worker() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    X, y = covtype()
    own = np.array_split(np.arange(len(y)), comm.size)[comm.rank]
    found = {}
    for sigma in SIGMAS:
        seconds = []
        for _ in range(REPEATS + 1):
            model = classifier(sigma, cluster=adfs.MpiRanks(comm, deadline=300.0))
            comm.Barrier()
            begun = time.perf_counter()
            model.fit(X[own], y[own])
            seconds.append(comm.allreduce(time.perf_counter() - begun, MPI.MAX))
        found[str(sigma)] = min(seconds[1:])
    if comm.rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


def mpi_seconds() -> dict[float, float]:
    """Return the seconds of fits on two ranks."""
    folders = [
        Path(sys.executable).parent,
        *(Path(p).parents[2] / "bin" for p in sys.path if p.endswith("packages")),
    ]
    launcher = next(folder / "mpiexec" for folder in folders if (folder / "mpiexec").exists())
    command = [str(launcher), "-n", "2", sys.executable, "-m", "benchmarks.engine_fits", "mpi"]
    extra = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | extra, timeout=3000
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {float(name): seconds for name, seconds in json.loads(line.removeprefix("RESULT ")).items()}


# --------------------------------------------------------------------------- Dask


def dask_rows() -> Iterator[Row]:
    import dask.array as da
    import distributed

    X, y = covtype()
    half = (len(y) + 1) // 2
    over_mpi = mpi_seconds()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        rows = client.persist(da.from_array(X, chunks=(half, X.shape[1])))
        labels = client.persist(da.from_array(y, chunks=half))
        distributed.wait([rows, labels])
        for sigma in SIGMAS:
            workers = adfs.DaskWorkers(client, deadline=300.0)

            def own(sigma: float = sigma, workers: Any = workers) -> Any:
                return classifier(sigma, cluster=workers).fit(rows, labels).coef_

            seconds, wrong = measure(own, sigma)
            limit = over_mpi[sigma] + 0.5 / ASKED["dask"]
            words = f"over MPI {over_mpi[sigma]:.3g} s, and half a second; error {wrong:.0e}"
            yield Row(
                f"covtype, σ = {sigma:g}: adfs on Dask next to MPI",
                seconds,
                "s",
                words,
                seconds / limit,
                ASKED["dask"],
            )
            if find_spec("dask_ml") is None:
                continue
            with rival_of_dask() as model:

                def rival(tol: float, sigma: float = sigma, model: Any = model) -> Any:
                    return model(sigma, tol).fit(rows, labels).coef_

                theirs, words = rival_at(rival, sigma)
            yield Row(
                f"covtype, σ = {sigma:g}: adfs on Dask next to dask-ml",
                seconds,
                "s",
                f"dask-ml {words}",
                seconds / theirs,
                ASKED["dask-ml"],
            )


@contextlib.contextmanager
def rival_of_dask() -> Iterator[Callable[[float, float], Any]]:
    """Yield what makes dask-ml's estimator of the same objective, with a tolerance."""
    from dask_ml.linear_model import LogisticRegression

    with sklearn.config_context(assume_finite=False):
        yield lambda sigma, tol: LogisticRegression(
            C=1.0 / sigma,
            fit_intercept=False,
            solver="lbfgs",
            tol=tol,
            max_iter=1000,
            solver_kwargs={"normalize": False},
        )


# --------------------------------------------------------------------------- Spark


def spark_rows() -> Iterator[Row]:
    import pandas as pd
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.ERROR)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "3g").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
        "spark.sql.execution.arrow.pyspark.enabled", "true"
    )
    spark = builder.getOrCreate()
    X, y = covtype()
    names = [f"x{k}" for k in range(X.shape[1])]
    with contextlib.closing(_Stopped(spark)):
        frame = spark.createDataFrame(pd.DataFrame(X, columns=names).assign(y=y)).repartition(2).cache()
        vectors = VectorAssembler(inputCols=names, outputCol="x").transform(frame).select("x", "y").cache()
        frame.count(), vectors.count()
        for sigma in SIGMAS:

            def own(sigma: float = sigma) -> Any:
                return adfs.spark.fit(classifier(sigma), frame, names, deadline=300.0).coef_

            def rival(tol: float, sigma: float = sigma) -> Any:
                model = LogisticRegression(
                    featuresCol="x",
                    labelCol="y",
                    regParam=sigma / len(y),
                    standardization=False,
                    fitIntercept=False,
                    tol=tol,
                    maxIter=1000,
                )
                return model.fit(vectors).coefficients.toArray()

            seconds, wrong = measure(own, sigma)
            theirs, words = rival_at(rival, sigma)
            yield Row(
                f"covtype, σ = {sigma:g}: adfs on Spark next to spark.ml",
                seconds,
                "s",
                f"spark.ml {words}; error of adfs {wrong:.0e}",
                seconds / theirs,
                ASKED["spark.ml"],
            )


class _Stopped:
    """Stops a session at the end of a block."""

    def __init__(self, spark: Any) -> None:
        self.close = spark.stop


def engine_rows() -> Iterator[Row]:
    """Yield the rows of the engines that are installed."""
    if not (DATA / "covtype.libsvm.binary.scale.bz2").exists():
        return
    for package, rows in {"distributed": dask_rows, "pyspark": spark_rows}.items():
        if find_spec(package) is not None:
            for row in rows():
                print(row, file=sys.stderr, flush=True)  # a while passes between these
                yield row


if __name__ == "__main__":
    if sys.argv[1:2] == ["mpi"]:
        mpi_worker()
    else:
        names = {"dask": dask_rows, "spark": spark_rows}
        for line in names[sys.argv[1]]():
            print(line, flush=True)
