"""Fits on Dask workers: the bits of one process, lazy predictions, sentences for what goes wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import adfs
import adfs.engines.dask
from adfs.errors import InputError
from estimators.agreement_cases import real, standardised
from mpi_estimators import CASES, bits, of_search

distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")

from adfs.engines.dask import WorkerLostError  # noqa: E402


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def task(n_rows: int = 600) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, labels, weights and offsets."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n_rows, 5))
    labels = np.where(X[:, 0] + 0.7 * rng.standard_normal(n_rows) > 0.0, "yes", "no")
    return X, labels, rng.random(n_rows) + 0.5, 0.1 * rng.standard_normal(n_rows)


def cut(values: np.ndarray, sizes: tuple[int, ...]) -> Any:
    """Return a dask array of blocks of these numbers of rows, which may be 0."""
    rest = values.shape[1:]
    return da.from_array(values, chunks=(sizes, *rest), name=False)


def parts_of(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the parameters of an estimator in one process with the same partitions."""
    kept = [size for size in sizes if size]
    return {"n_nodes": len(kept), "partition": np.split(np.arange(sum(kept)), np.cumsum(kept)[:-1])}


def test_dask_fit_has_the_bits_of_one_process_and_predicts_lazily(client: Any) -> None:
    X, y, weights, offset = task()
    sizes = (200, 0, 150, 250)
    arrays = [cut(values, sizes) for values in (X, y, weights, offset)]
    one = adfs.ADFSClassifier(random_state=0, **parts_of(sizes)).fit(X, y, weights, offset)
    model = adfs.ADFSClassifier(random_state=0, cluster=adfs.DaskWorkers(client)).fit(*arrays)
    assert bits(model) == bits(one)
    assert model.classes_.tolist() == ["no", "yes"]
    rows, labels, masses, shift = arrays
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        lazy = getattr(model, name)(rows, shift)
        assert isinstance(lazy, da.Array)
        expected = getattr(one, name)(X, offset)
        assert lazy.shape == expected.shape
        assert lazy.dtype.kind == expected.dtype.kind
        computed = lazy.compute()
        if name == "predict":
            assert computed.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(computed, expected, rtol=1e-13, atol=1e-15)
    score = model.score(rows, labels, masses)
    assert isinstance(score, da.Array)
    assert float(score) == pytest.approx(one.score(X, y, weights), rel=1e-14)
    # A filter may leave blocks without rows.
    kept = X[:, 0] > np.sort(X[:, 0])[-2]
    few = rows[rows[:, 0] > np.sort(X[:, 0])[-2]]
    assert model.predict(few).compute().tolist() == one.predict(X[kept]).tolist()
    np.testing.assert_allclose(model.predict_proba(few), one.predict_proba(X[kept]), rtol=1e-13)
    # Rows in this process are predicted at once.
    assert model.predict(X).tolist() == one.predict(X).tolist()


def test_dask_fit_refuses_in_a_sentence_and_goes_on(client: Any) -> None:
    X, y, *_ = task(200)
    rows, labels = cut(X, (100, 100)), cut(y, (100, 100))
    workers = adfs.DaskWorkers(client)
    model = adfs.ADFSClassifier(cluster=workers)
    for message, refused in {
        "X must be a dask array or dataframe with DaskWorkers, got ndarray": (X, y),
        "y must be a dask array or dataframe, as X is, got ndarray": (rows, y),
        "y has 1 partitions and X has 2; repartition": (rows, cut(y[:150], (150,))),
        "partition 1 has 100 rows and 90 entries of y": (rows, da.concatenate([labels[:100], labels[110:]])),
        "a classifier needs samples of at least two classes": (rows, cut(np.ones(200), (100, 100))),
        "X has no rows": (cut(X[:0], (0,)), cut(y[:0], (0,))),
    }.items():
        with pytest.raises(InputError, match=re.escape(message)):
            model.fit(*refused)
    for message, parameters in {
        "C must be finite and above 0, got -1": {"C": -1},
        "warm_start=True needs the rows in this process": {"warm_start": True},
        "partition is that of the collection": {"partition": "random"},
        "the network 'grid:2x2' has 4 nodes but n_nodes is 2": {"network": "grid:2x2"},
    }.items():
        with pytest.raises(InputError, match=re.escape(message)):
            adfs.ADFSClassifier(cluster=workers, **parameters).fit(rows, labels)
    with pytest.raises(InputError, match="cv must be a number of folds"):
        adfs.ADFSClassifierCV(cv=[([0], [1])], estimator=model).fit(rows, labels)
    waiting = adfs.DaskWorkers(SimpleNamespace(asynchronous=True))
    with pytest.raises(InputError, match="a client without asynchronous=True"):
        adfs.ADFSClassifier(cluster=waiting).fit(rows, labels)
    with pytest.raises(InputError, match="for a run of a method give the processes themselves"):
        workers.allgather(1)
    with pytest.warns(ConvergenceWarning, match="ADFSClassifier stopped at a relative duality gap"):
        adfs.ADFSClassifier(cluster=workers, tol=1e-12, max_iter=2, method="adfs").fit(rows, labels)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.soak
def test_dask_fits_have_the_bits_of_one_process(client: Any, name: str) -> None:
    source, estimator, sparse = CASES[name]
    X, y, weights = real(source)
    X = standardised(X)
    half = len(y) // 2
    sizes = (half, len(y) - half - 7, 7)
    estimator = type(estimator)(**estimator.get_params() | {"random_state": 1})
    for kind in ("dense", "sparse") if sparse else ("dense",):
        rows = sp.csr_matrix(X) if kind == "sparse" else X
        one = type(estimator)(**estimator.get_params() | parts_of(sizes)).fit(rows, y, weights)
        lazy = cut(X, sizes)
        lazy = lazy.map_blocks(sp.csr_matrix) if kind == "sparse" else lazy
        model = type(estimator)(**estimator.get_params() | {"cluster": adfs.DaskWorkers(client)})
        model.fit(lazy, cut(y, sizes), None if weights is None else cut(weights, sizes))
        assert bits(model) == bits(one)


@pytest.mark.soak
def test_dask_searches_choose_as_one_process_does(client: Any) -> None:
    X, y, weights, _ = task()
    sizes = (250, 200, 150)
    workers, targets = adfs.DaskWorkers(client), X @ np.arange(5.0) + weights
    for kind, search, labels in (
        (adfs.ADFSClassifier, adfs.ADFSClassifierCV([0.01, 1.0], cv=3), y),
        (adfs.ADFSRegressor, adfs.ADFSRegressorCV([0.1, 10.0], cv=4), targets),
    ):
        found = []
        for parameters, wrap in ((parts_of(sizes), lambda values: values), ({"cluster": workers}, None)):
            chosen = type(search)(**search.get_params() | {"estimator": kind(random_state=1, **parameters)})
            put = wrap or (lambda values: cut(values, sizes))
            found.append(chosen.fit(put(X), put(labels), put(weights)))
        assert of_search(found[0]) == of_search(found[1])
        rows = cut(X, sizes)
        np.testing.assert_allclose(
            found[1].score(rows, cut(labels, sizes)).compute(), found[0].score(X, labels), rtol=1e-14
        )
        assert found[1].predict(rows).compute().tolist() == pytest.approx(found[0].predict(X).tolist())


@pytest.mark.soak
def test_dask_dataframes_fit_with_the_names_of_their_columns(client: Any) -> None:
    X, _, weights, offset = task()
    frame = pd.DataFrame(X, columns=list("abcde")).assign(
        count=np.floor(np.exp(X[:, 0] + offset)), w=weights, o=offset
    )
    lazy, names = dd.from_pandas(frame, npartitions=4), list("abcde")
    sizes = tuple(lazy.map_partitions(len).compute())
    one = adfs.ADFSRegressor("poisson", random_state=0, **parts_of(sizes))
    one.fit(frame[names], frame["count"], frame["w"], frame["o"])
    model = adfs.ADFSRegressor("poisson", random_state=0, cluster=adfs.DaskWorkers(client))
    model.fit(lazy[names], lazy["count"], lazy["w"], lazy["o"])
    assert bits(model) == bits(one)
    assert model.feature_names_in_.tolist() == names
    predicted = model.predict(lazy[names], lazy["o"])
    np.testing.assert_allclose(predicted.compute(), one.predict(frame[names], frame["o"]), rtol=1e-13)
    score = model.score(lazy[names], lazy["count"], lazy["w"], lazy["o"])
    expected = one.score(frame[names], frame["count"], frame["w"], frame["o"])
    assert float(score) == pytest.approx(expected, rel=1e-13)


@pytest.mark.soak
def test_dask_placement_does_not_change_the_bits(client: Any) -> None:
    X, y, *_ = task()
    sizes = (100, 120, 80, 200, 100)
    first, second = client.scheduler_info(n_workers=-1)["workers"]
    one = bits(adfs.ADFSClassifier(method="adfs", random_state=0, **parts_of(sizes)).fit(X, y))
    for places in ([first] * 5, [second, first, first, second, first]):
        blocks = []
        for values in (X, y):
            cuts = np.split(values, np.cumsum(sizes)[:-1])
            # Labels lie on the other worker: they come to the rows.
            own = places if values is X else [second if place == first else first for place in places]
            pairs = zip(cuts, own, strict=True)
            held = [client.persist(cut(part, (len(part),)), workers=[where]) for part, where in pairs]
            blocks.append(da.concatenate(held))
        model = adfs.ADFSClassifier(method="adfs", random_state=0, cluster=adfs.DaskWorkers(client))
        assert bits(model.fit(*blocks)) == one


@pytest.mark.soak
def test_dask_shows_progress_in_the_client(client: Any, capfd: pytest.CaptureFixture[str]) -> None:
    X, y, *_ = task()
    model = adfs.ADFSClassifier(method="adfs", cluster=adfs.DaskWorkers(client), verbose=1)
    model.fit(cut(X, (300, 300)), cut(y, (300, 300)))
    shown = capfd.readouterr().err
    assert "adfs: run: adfs, loss logistic" in shown
    assert re.search(r"adfs: check after [\d.]+ passes: gap", shown)


@pytest.mark.soak
def test_dask_refuses_a_worker_of_another_version_by_name(client: Any) -> None:
    X, y, *_ = task(200)
    rows, labels = cut(X, (100, 100)), cut(y, (100, 100))
    worker = min(client.scheduler_info(n_workers=-1)["workers"])
    client.run(pretend, "0.4.0", workers=[worker])
    rows, labels = client.persist([rows, labels], workers=[worker])
    try:
        with pytest.raises(InputError, match=f"the worker {worker} has adfs 0.4.0 and this program has"):
            adfs.ADFSClassifier(cluster=adfs.DaskWorkers(client)).fit(rows, labels)
    finally:
        client.run(pretend, adfs.__version__, workers=[worker])


def pretend(version: str) -> None:
    """Be another version."""
    adfs.__version__ = version


# --------------------------------------------------------------------------- workers that end


def long_fit(client: Any, **options: Any) -> Any:
    """Return an estimator whose fit takes some 1200 sums over the nodes."""
    workers = adfs.DaskWorkers(client, deadline=20.0, **options)
    return adfs.ADFSClassifier(method="dagd", tol=1e-15, max_iter=1500, random_state=0, cluster=workers)


def slow_down(seconds: float) -> None:
    """Let every sum over the nodes take so long in this process."""
    add = adfs.TcpPeers.allreduce

    def slow(*arguments: Any, **named: Any) -> np.ndarray:
        time.sleep(seconds)
        return add(*arguments, **named)

    if add.__name__ != "slow":
        adfs.TcpPeers.allreduce = slow  # type: ignore[method-assign]


def spread(client: Any, X: np.ndarray, y: np.ndarray) -> list[Any]:
    """Return arrays of four blocks, two in the memory of each worker."""
    while True:
        held, places = list[Any](), list(client.nthreads())
        for part, sizes, place in zip((0, 1), ((160, 140), (180, 120)), places, strict=True):
            halves = [cut(np.split(values, 2)[part], sizes) for values in (X, y)]
            # If the worker is lost, another one computes them again.
            held.append(client.persist(halves, workers=[place], allow_other_workers=True))
        distributed.wait(held)
        if all(
            where == (place,) for half, place in zip(held, places, strict=True) for where in of(client, half)
        ):
            return [da.concatenate(halves) for halves in zip(*held, strict=True)]


def of(client: Any, arrays: list[Any]) -> list[tuple[str, ...]]:
    """Return the workers that hold each block of some arrays."""
    return [tuple(found) for array in arrays for found in client.who_has(array).values()]


def end_at(client: Any, seconds: float, *, kill: bool) -> threading.Thread:
    """Kill or retire a worker so many seconds after a fit has begun there."""

    def end() -> None:
        while not any(client.run(lambda: len(adfs.engines.dask._RANKS)).values()):
            time.sleep(0.01)
        time.sleep(seconds)
        worker, number = max(client.run(os.getpid).items())
        if kill:
            os.kill(number, signal.SIGKILL)
        else:
            client.retire_workers([worker])

    thread = threading.Thread(target=end)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("kill", "number"),
    [pytest.param(True, k, id=f"killed-{k}") for k in range(30)]
    + [pytest.param(False, k, id=f"retired-{k}") for k in range(4)],
)
@pytest.mark.soak
def test_dask_tells_of_a_lost_worker_or_resumes_to_the_same_bits(
    kill: bool, number: int, tmp_path: Path
) -> None:
    X, y, *_ = task()
    alone = {"cluster": None} | parts_of((160, 140, 180, 120))
    # Each loss has workers of its own: when a lost one is replaced is Dask's affair.
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        expected = bits(long_fit(client).set_params(**alone).fit(X, y))
        rows, labels = spread(client, X, y)
        client.run(slow_down, 0.004)  # workers that start later are faster
        ending = end_at(client, 3.0 * np.random.default_rng(number).random(), kill=kill)
        told = contextlib.nullcontext()
        if number % 2:
            model = long_fit(client, checkpoint=tmp_path, checkpoint_every=0.2)
        else:
            model, told = long_fit(client), contextlib.suppress(WorkerLostError)
            if kill:  # a retired worker may take leave so slowly that the fit ends before
                told = pytest.raises(WorkerLostError, match="ended or was retired during the fit; fit again")
        with told:
            assert bits(model.fit(rows, labels)) == expected
        ending.join()
