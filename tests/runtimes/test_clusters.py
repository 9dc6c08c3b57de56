"""A run and a fit are the same bits on every cluster: one process, or several threads with queues."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import adfs
from adfs import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from adfs.algorithms import METHODS
from adfs.cli import fit_files
from adfs.cli.options import FitFileOptions, FitRunOptions, ModelOptions, SearchOptions
from adfs.errors import InputError
from adfs.runtimes import RunOptions, exchange, run_method
from adfs.runtimes.checkpoints import used_by_one_run
from adfs.runtimes.cluster import OneProcess, RefusalError
from adfs.runtimes.joint_problem import join_shards
from memory_cluster import Threads, on_threads
from mpi_cases import Case, stamp

NETWORKED = sorted(name for name, method in METHODS.items() if method.kind != "single")


def loss_of(method: str) -> str:
    return "logistic" if METHODS[method].needs_smooth else "hinge"


def run_on_threads(case: Case, size: int, **more: Any) -> list[adfs.Run]:
    return on_threads(size, lambda cluster: case.run_on(cluster, **more))


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize("method", NETWORKED)
def test_run_on_threads_has_the_bits_of_one_process_for_every_method(method: str, size: int) -> None:
    case = Case(method=method, loss=loss_of(method), max_passes=3.0, record=("gap", "objective", "consensus"))
    expected = stamp(case.simulate())
    assert [stamp(run) for run in run_on_threads(case, size)] == [expected] * size


@pytest.mark.parametrize("schedule", ["iid", "poisson"])
def test_run_on_threads_has_the_same_bits_on_sparse_rows_and_schedules(schedule: str) -> None:
    case = Case(schedule=schedule, sparse=True, max_passes=3.0)
    assert {stamp(run) for run in run_on_threads(case, 3)} == {stamp(case.simulate())}


@pytest.mark.parametrize("method", ["adfs", "ns-adfs", "dadao"])
def test_run_on_threads_loses_the_same_exchanges(method: str) -> None:
    case = Case(method, loss_of(method), "poisson", network="path:9", lost=0.3, max_passes=3.0)
    if METHODS[method].changing_networks:
        case = dataclasses.replace(case, also="star:9", max_passes=30.0)
    expected = case.simulate()
    assert {stamp(run) for run in run_on_threads(case, 3)} == {stamp(expected)}
    assert expected.gap < dataclasses.replace(case, max_passes=0.0).simulate().gap
    assert stamp(expected) != stamp(dataclasses.replace(case, lost=0.0).simulate())


@pytest.mark.parametrize("method", ["adfs", "extra"])
def test_run_on_threads_ends_by_its_tolerance_at_the_same_place(method: str) -> None:
    case = Case(method=method)
    asked = {"record": None, "tol": 1e-6, "max_passes": None}
    assert {stamp(run) for run in run_on_threads(case, 3, **asked)} == {stamp(case.simulate(**asked))}


class WideCase(Case):
    """A case with three numbers in each row of many columns."""

    def shard(self, node: int) -> tuple[Any, np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, node])
        columns, starts = rng.integers(0, self.width, 3 * self.rows), 3 * np.arange(self.rows + 1)
        X = sp.csr_array((rng.standard_normal(columns.size), columns, starts), (self.rows, self.width))
        return X, np.sign(rng.standard_normal(self.rows)), np.ones(self.rows)


def test_exchange_of_wide_sparse_rows_executes_many_events_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls end after some work, and a row of three numbers is little however long a message is."""
    counts, run = list[int](), exchange.run_ready

    def counted(*arguments: Any) -> int:
        counts.append(arguments[2])
        return run(*arguments)

    case = WideCase(network="path:2", rows=2000, width=20_000, max_passes=2.0)
    expected = stamp(case.simulate())
    monkeypatch.setattr(exchange, "run_ready", counted)
    assert {stamp(run) for run in run_on_threads(case, 2)} == {expected}
    assert sum(counts) > 7000
    assert np.mean(counts) > 50.0


def test_run_on_threads_takes_a_start_and_returns_its_duals() -> None:
    case = Case(max_passes=4.0)
    first = case.simulate()
    assert first.dual is not None
    again = case.simulate(start=first.dual, max_passes=4.0)
    fresh = case.simulate(max_passes=4.0)
    assert again.columns["gap"][0] == pytest.approx(first.gap, rel=1e-9)
    assert again.gap < fresh.gap
    counts = np.array([len(case.shard(node)[1]) for node in range(case.n_nodes())])
    bounds = np.concatenate([[0], np.cumsum(counts)])

    def run(cluster: Threads) -> adfs.Run:
        joint = case.join(cluster)
        block = joint.placement.block(cluster.rank)
        own = np.concatenate([first.dual[bounds[node] : bounds[node + 1]] for node in block])
        return case.run_on(cluster, joint, start=own)

    assert {stamp(run) for run in on_threads(2, run)} == {stamp(again)}


def test_checkpoint_of_several_processes_resumes_with_the_same_bits(tmp_path: Any) -> None:
    case = Case(max_passes=6.0)
    run_on_threads(case, 2, max_passes=2.0, checkpoint=tmp_path / "run")
    assert (tmp_path / "run" / "ended.json").exists()
    assert not (tmp_path / "run" / "finished.json").exists()
    resumed = run_on_threads(case, 2, checkpoint=tmp_path / "run", resume=True)
    expected = case.simulate()
    assert [run.coef.tobytes() for run in resumed] == [expected.coef.tobytes()] * 2
    assert [run.theta.tobytes() for run in resumed] == [expected.theta.tobytes()] * 2
    run_on_threads(case, 2, checkpoint=tmp_path / "run", resume=True, tol=1e-6, max_passes=500.0)
    assert (tmp_path / "run" / "finished.json").exists()
    assert not (tmp_path / "run" / "ended.json").exists()


def test_checkpoint_folder_of_a_live_run_refuses_a_second_run(tmp_path: Path) -> None:
    """Of several processes and of one; a lock that a dead run has left holds nothing."""
    case = Case(max_passes=2.0)

    def run(cluster: Threads) -> str:
        folder = tmp_path / "run"
        with used_by_one_run(cluster, folder), pytest.raises(RefusalError) as refusal:
            used_by_one_run(cluster, folder).__enter__()
        return str(refusal.value)

    told = on_threads(2, run)
    assert (
        told[0]
        == told[1]
        == (
            f"rank 0: another run keeps its checkpoints in {tmp_path / 'run'}: "
            "wait for its end, or name another place"
        )
    )
    with (
        used_by_one_run(OneProcess(), tmp_path / "one"),
        pytest.raises(InputError, match="another run keeps"),
    ):
        case.simulate(checkpoint=tmp_path / "one")
    for lock in (tmp_path / "run" / ".lock", tmp_path / ".one.lock"):
        assert not lock.exists()
        lock.touch()
    case.simulate(checkpoint=tmp_path / "one")
    run_on_threads(case, 2, checkpoint=tmp_path / "run")


def test_run_method_refuses_different_options_on_all_ranks() -> None:
    def run(cluster: Threads) -> str:
        with pytest.raises(RefusalError) as refusal:
            Case().run_on(cluster, seed=cluster.rank)
        return str(refusal.value)

    told = on_threads(2, run)
    assert told[0] == told[1]
    assert "the seed is 0 on rank 0 and 1 on rank 1" in told[0]


# --------------------------------------------------------------------------- fits


def data(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((120, 7)) * (rng.random((120, 7)) < 0.7)
    scores = X @ rng.standard_normal((7, 3)) + 0.5 * rng.standard_normal((120, 3))
    weights = 0.5 + rng.random(120)
    if kind == "regression":
        return X, 3.0 + scores[:, 0], weights
    if kind == "binary":
        return X, np.where(scores[:, 0] > 0.3, "yes", "no"), weights
    return X, np.array(["a", "b", "c"])[scores.argmax(axis=1)], weights


FITS: dict[str, tuple[str, Any]] = {
    "binary": ("binary", ADFSClassifier(C=0.5)),
    "balanced": ("binary", ADFSClassifier(class_weight="balanced", loss="squared_hinge")),
    "one versus rest": ("classes", ADFSClassifier(C=2.0)),
    "softmax": ("classes", ADFSClassifier(multi_class="multinomial")),
    "not smooth": ("binary", ADFSClassifier(loss="hinge", tol=1e-2)),
    "squared": ("regression", ADFSRegressor(alpha=2.0)),
    "huber": ("regression", ADFSRegressor(loss="huber")),
    "block": ("binary", ADFSClassifier(method="adfs-block", tau=3.0)),
    "poisson": ("binary", ADFSClassifier(schedule="poisson", parameters="paper")),
}


# Each loss and method on sparse rows is another set of kernels to compile, and sums over the processes do not
# know how rows are stored.
DENSE_ONLY = ("balanced", "huber", "block")


@pytest.mark.parametrize(
    ("name", "sparse"),
    [(name, kind) for name in FITS for kind in (False, True) if not kind or name not in DENSE_ONLY],
)
def test_estimators_on_threads_have_the_bits_of_one_process(name: str, sparse: bool) -> None:
    kind, estimator = FITS[name]
    X, y, weights = data(kind)
    rows: Any = sp.csr_array(X) if sparse else X
    expected = clone(estimator).set_params(n_nodes=3, random_state=5).fit(rows, y, weights)
    cuts = [slice(0, 40), slice(40, 80), slice(80, 120)]

    def fit(cluster: Threads) -> Any:
        own = cuts[cluster.rank]
        model = clone(estimator).set_params(cluster=cluster, random_state=5)
        return model.fit(rows[own], y[own], weights[own])

    for model in on_threads(3, fit):
        assert model.coef_.tobytes() == expected.coef_.tobytes()
        assert np.asarray(model.intercept_).tobytes() == np.asarray(expected.intercept_).tobytes()
        assert model.node_coef_.tobytes() == expected.node_coef_.tobytes()
        assert model.dual_gap_ == expected.dual_gap_
        assert model.n_iter_ == expected.n_iter_
        if kind != "regression":
            assert model.classes_.tolist() == expected.classes_.tolist()
            assert model.predict(rows).tolist() == expected.predict(rows).tolist()


def test_classifier_fits_where_a_process_lacks_a_class() -> None:
    X, y, _ = data("binary")
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    expected = ADFSClassifier(n_nodes=2, random_state=0).fit(X, y)

    def fit(cluster: Threads) -> Any:
        own = slice(0, 60) if cluster.rank == 0 else slice(60, 120)
        return ADFSClassifier(cluster=cluster, random_state=0).fit(X[own], y[own])

    assert {model.coef_.tobytes() for model in on_threads(2, fit)} == {expected.coef_.tobytes()}


def test_classifier_makes_mixed_rows_sparse_everywhere() -> None:
    X, y, _ = data("binary")
    expected = ADFSClassifier(n_nodes=2, random_state=0).fit(sp.csr_array(X), y)

    def fit(cluster: Threads) -> Any:
        own = slice(0, 60) if cluster.rank == 0 else slice(60, 120)
        rows: Any = sp.csr_array(X[own]) if cluster.rank else X[own]
        return ADFSClassifier(cluster=cluster, random_state=0).fit(rows, y[own])

    assert {model.coef_.tobytes() for model in on_threads(2, fit)} == {expected.coef_.tobytes()}


def test_join_shards_counts_the_classes_of_all_processes() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.repeat([0, 1, 2, 1], 10)
    problem = adfs.Problem(X, y, loss="multinomial", n_nodes=2)
    expected = adfs.simulate("adfs", problem, "path:2", max_passes=3)

    def run(cluster: Threads) -> adfs.Run:
        own = slice(0, 20) if cluster.rank == 0 else slice(20, 40)
        with cluster:
            joint = join_shards(
                cluster, [(X[own], y[own])], None, nodes=None, loss="multinomial", sigma=1.0, n_features=None
            )
            options = RunOptions(max_passes=3, gather=True)
            return run_method(
                "adfs", joint.problem, joint.network, options, cluster=cluster, placement=joint.placement
            )

    for found in on_threads(2, run):
        assert found.theta.tobytes() == expected.theta.tobytes()


SECRET = "734.5125"
# What rank 1 holds besides a good sample; the other rank's data are good.
UNUSABLE_FILES = {
    "svm label": ("a.svm", f"x{SECRET} 1:1\n", "squared"),
    "svm value": ("a.svm", f"1 1:x{SECRET}\n", "squared"),
    "svm word": ("a.svm", f"1 {SECRET}\n", "squared"),
    "svm index": ("a.svm", f"1 {SECRET}:1\n", "squared"),
    "svm several labels": ("a.svm", f"1,{SECRET} 1:1\n", "squared"),
    "csv value": ("a.csv", f"a,b,y\n1,2,3\nx{SECRET},2,3\n", "squared"),
    "csv labels": ("a.csv", f"a,b,y\n1,2,x{SECRET}\n2,1,3\n", "squared"),
    "csv targets": ("a.csv", f"a,b,y\n1,2,x{SECRET}\n2,1,x{SECRET}\n", "squared"),
    "negative counts": ("a.csv", f"a,b,y\n1,2,-{SECRET}\n", "poisson"),
    "classes": ("a.csv", f"a,b,y\n1,2,{SECRET}\n1,2,{SECRET}\n", "logistic"),
    "weights": ("a.csv", f"a,b,y,w\n1,2,3,-{SECRET}\n", "squared"),
}


@pytest.mark.parametrize("kind", UNUSABLE_FILES)
def test_errors_carry_no_values_of_samples_to_other_ranks(kind: str, tmp_path: Path) -> None:
    name, text, loss = UNUSABLE_FILES[kind]
    (tmp_path / name).write_text(text, encoding="utf-8")
    good = "1 1:1\n2 2:1\n"
    if name == "a.csv":
        good = text.partition("\n")[0] + ("\n1,2,3,1\n2,1,1,1\n" if kind == "weights" else "\n1,2,3\n2,1,1\n")
    (tmp_path / f"good-{name}").write_text(good, encoding="utf-8")
    options = FitFileOptions(weight="w" if kind == "weights" else None)

    def told(cluster: Threads) -> str:
        with cluster:
            try:
                file = tmp_path / (name if cluster.rank else f"good-{name}")
                (table,) = fit_files._read(cluster, [(str(file), None)], options)
                estimator, _ = fit_files._estimator(fit_files.FitRequest(("",), ModelOptions(loss=loss)))
                fit_files._check_labels(cluster, table, [table], loss, 4)
                estimator.set_params(cluster=cluster, network="path").fit(table.X, table.y, table.weights)
            except adfs.InputError as error:
                return str(error)
            return "not refused"

    words, own = on_threads(2, told)
    assert "not refused" not in (words, own)
    assert SECRET not in words
    assert any(source in words for source in ("rank 1", "all files", "a.csv"))


def test_errors_keep_the_words_of_other_libraries_in_their_rank() -> None:
    def told(cluster: Threads) -> str:
        rows = np.array([["1", SECRET if cluster.rank == 0 else f"x{SECRET}"]] * 3, dtype=object)
        with cluster:
            try:
                ADFSRegressor(cluster=cluster, network="path").fit(rows, np.arange(3.0))
            except adfs.InputError as error:
                return str(error)
            return "not refused"

    words, own = on_threads(2, told)
    assert words == "rank 1: it failed to check the data (ValueError), its own message says more"
    assert f"x{SECRET}" in own


def test_privacy_page_tells_what_every_method_sends() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "privacy.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    told = {name.strip(" `"): row[2].strip() for row in rows for name in row[1].split(",")}
    assert set(told) == set(METHODS)
    assert {name for name, words in told.items() if not words.startswith("nothing")} == set(NETWORKED)


# --------------------------------------------------------------------------- estimators that differ


def named(rows: np.ndarray, names: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(names))


# What one process does differently, and the words that all are told.
DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "C": (ADFSClassifier(C=1), ADFSClassifier(C=50.0), "C is 1 on rank 0 and 50 on rank 1"),
    "alpha": (ADFSRegressor(alpha=1.0), ADFSRegressor(alpha=2.0), "alpha is 1 on rank 0 and 2 on"),
    "delta": (ADFSRegressor("huber"), ADFSRegressor("huber", delta=9.0), "delta is 1 on rank 0 and 9 on"),
    "quantile": (ADFSRegressor("quantile"), ADFSRegressor("quantile", quantile=0.1), "quantile is 0.5 on"),
    "method": (ADFSClassifier(), ADFSClassifier(method="msda"), "method is 'auto' on rank 0 and"),
    "standardize": (ADFSClassifier(), ADFSClassifier(standardize=True), "standardize is False on rank 0 and"),
    "intercept": (ADFSClassifier(), ADFSClassifier(fit_intercept=False), "fit_intercept is True on rank 0"),
    "class_weight": (ADFSClassifier(), ADFSClassifier(class_weight="balanced"), "class_weight is None on"),
    "inference": (ADFSRegressor(), ADFSRegressor(inference=True), "inference is False on rank 0 and True on"),
    "l1_ratio": (ADFSRegressor(), ADFSRegressor(l1_ratio=0.5), "l1_ratio is 0 on rank 0 and 0.5 on rank 1"),
    "tau": (ADFSClassifier(), ADFSClassifier(tau=3.0), "tau is None on rank 0"),
    "random_state": (ADFSClassifier(), ADFSClassifier(random_state=4), "random_state is None on rank 0 and"),
    "task": (
        ADFSClassifier(),
        ADFSRegressor(),
        "the estimator is ADFSClassifier on rank 0 and",
    ),
    "search": (
        ADFSClassifier(),
        ADFSClassifierCV(estimator=ADFSClassifier()),
        "the estimator is ADFSClassifier on rank 0 and ADFSClassifierCV on rank 1",
    ),
    "grid": (
        ADFSRegressorCV([1.0, 2.0], estimator=ADFSRegressor()),
        ADFSRegressorCV(np.array([1.0, 3.0]), estimator=ADFSRegressor()),
        "alphas is [1, 2] on rank 0 and [1, 3] on rank 1",
    ),
    "folds": (
        ADFSClassifierCV(cv=3, estimator=ADFSClassifier()),
        ADFSClassifierCV(cv=4, estimator=ADFSClassifier()),
        "cv is 3 on rank 0 and 4 on rank 1",
    ),
    "inside a search": (
        ADFSClassifierCV(estimator=ADFSClassifier(tol=1e-3)),
        ADFSClassifierCV(estimator=ADFSClassifier(tol=1e-4)),
        "estimator__tol is 0.001 on rank 0 and 0.0001 on rank 1",
    ),
    "columns": (
        ADFSClassifier(),
        lambda: (ADFSClassifier(), "abcdeXg"),
        "the name of column 5 is 'f' on rank 0 and 'X' on rank 1",
    ),
    "no names": (ADFSClassifier(), lambda: (ADFSClassifier(), ""), "whether columns have names is True on"),
}


def with_cluster(estimator: Any, cluster: Threads) -> Any:
    if hasattr(estimator, "estimator"):
        base = clone(estimator.estimator).set_params(cluster=cluster)
        return clone(estimator).set_params(estimator=base)
    return clone(estimator).set_params(cluster=cluster)


@pytest.mark.parametrize("name", DIFFERENT)
def test_estimators_that_differ_are_refused_everywhere(name: str) -> None:
    """And the cluster is in order afterwards: a fit on it has the bits of one process."""
    one, other, words = DIFFERENT[name]
    X, y, _ = data("binary")
    y = np.where(y == "yes", 1, 0)
    cuts = slice(0, 60), slice(60, 120)

    def fit(cluster: Threads) -> tuple[str, bytes]:
        own, names, estimator = cuts[cluster.rank], "abcdefg", other if cluster.rank else one
        if callable(estimator):
            estimator, names = estimator()
        rows = named(X[own], names) if names else X[own]
        with pytest.raises(RefusalError) as refusal:
            with_cluster(estimator, cluster).fit(rows, y[own])
        model = ADFSClassifier(cluster=cluster, random_state=0).fit(X[own], y[own])
        return str(refusal.value), model.coef_.tobytes()

    told, coefs = zip(*on_threads(2, fit), strict=True)
    assert told[0] == told[1]
    assert f"the ranks were not started alike: {words}" in told[0]
    assert set(coefs) == {ADFSClassifier(n_nodes=2, random_state=0).fit(X, y).coef_.tobytes()}


def request(**records: Any) -> fit_files.FitRequest:
    return fit_files.FitRequest(("a.svm", "b.svm"), **records)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (request(model=ModelOptions(C=50.0)), "-C is None on rank 0 and 50.0 on rank 1"),
        (request(model=ModelOptions(loss="squared")), "--loss is logistic on rank 0 and squared on rank 1"),
        (request(model=ModelOptions(tol=1e-3)), "--tol is 1e-06 on rank 0 and 0.001 on rank 1"),
        (request(model=ModelOptions(max_iter=3.0)), "--max-passes is 10000.0 on rank 0 and 3.0 on rank 1"),
        (request(model=ModelOptions(delta=2.0)), "--delta is 1.0 on rank 0 and 2.0 on rank 1"),
        (request(limits=FitRunOptions(seed=4)), "--seed is 0 on rank 0 and 4 on rank 1"),
        (request(reading=FitFileOptions(index_base=0)), "--index-base is None on rank 0 and 0 on rank 1"),
        (request(search=SearchOptions(cv=3)), "--cv is None on rank 0 and 3 on rank 1"),
    ],
)
def test_fit_command_refuses_different_command_lines_by_option(
    other: fit_files.FitRequest, words: str
) -> None:
    def fit(cluster: Threads) -> str:
        with pytest.raises(RefusalError) as refusal:
            fit_files._fit(cluster, other if cluster.rank else request(), lambda fitted: 0, [])
        return str(refusal.value)

    sentence = f"the ranks were not started alike: {words}; give all ranks the same"
    assert on_threads(2, fit) == [sentence, sentence]


def test_classifier_lets_what_belongs_to_a_process_differ() -> None:
    """Numbers of other kinds, random states that are objects, what is shown, and how rows are split."""
    X, y, _ = data("binary")

    def fit(cluster: Threads) -> bytes:
        own = slice(0, 40) if cluster.rank == 0 else slice(40, 120)
        model = ADFSClassifier(
            C=1 if cluster.rank else np.float32(1.0),
            random_state=np.random.RandomState(cluster.rank),
            verbose=cluster.rank == 5,
            n_nodes=1 + cluster.rank,
            partition="contiguous" if cluster.rank else "random",
            class_weight={"no": 1.0, "yes": 2} if cluster.rank else {"yes": 2.0, "no": 1},
            cluster=cluster,
        )
        return np.asarray(model.fit(X[own], y[own]).coef_).tobytes()

    assert len(set(on_threads(2, fit))) == 1
