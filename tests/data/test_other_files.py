"""NumPy archives, CSV and parquet; stacking tables; models as files; writing whole files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from adfs.data import LinearModel, ReadOptions, Table, read_source, read_table, read_tables, stack
from adfs.errors import InputError

X = np.array([[1.0, -2.5, 0.0], [0.0, 1e-300, 3.0], [4.0, 0.1, 0.2]])
Y = np.array([1.0, 0.0, 1.0])


def test_dense_archives_round_trip(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=X.astype(np.float32), y=np.array([1, 0, 1]), sample_weight=[1, 2, 3])
    table = read_table(tmp_path / "d.npz")
    assert table.X.dtype == np.float64
    assert np.array_equal(table.X, X.astype(np.float32))
    assert table.y.tolist() == [1.0, 0.0, 1.0]
    assert table.weights.tolist() == [1.0, 2.0, 3.0]
    assert table.index_base is None


def test_sparse_archives_round_trip(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    rows = sp.csr_matrix(X)
    sp.save_npz(buffer, rows)
    buffer.seek(0)
    with np.load(buffer) as saved:
        np.savez_compressed(tmp_path / "s.npz", y=np.array(["a", "b", "a"]), **saved)
    table = read_table(tmp_path / "s.npz")
    assert sp.issparse(table.X)
    assert np.array_equal(table.X.toarray(), X)
    assert table.y.tolist() == ["a", "b", "a"]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.bz2", ".csv.xz"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_round_trips(tmp_path: Path, ending: str, delimiter: str) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.insert(1, "label", ["yes", "no", "yes"])
    frame["w"] = [1.0, 2.0, 0.5]
    path = tmp_path / f"t{ending}"
    frame.to_csv(path, index=False, sep=delimiter)
    table = read_table(path, ReadOptions(weight="w"))
    assert np.array_equal(table.X, X)
    assert table.feature_names == ("a", "b", "c")
    assert table.y.tolist() == ["yes", "no", "yes"]
    assert table.weights.tolist() == [1.0, 2.0, 0.5]


def test_csv_without_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,0.5,2\n0,1.5,3\n\n")
    table = read_table(path, ReadOptions(label="0"))
    assert table.y.tolist() == [1.0, 0.0]
    assert table.X.tolist() == [[0.5, 2.0], [1.5, 3.0]]
    assert table.feature_names is None
    assert read_table(path, ReadOptions(label="-1")).y.tolist() == [2.0, 3.0]
    with pytest.raises(InputError, match=r"say which with --label: 0, 1, 2"):
        read_table(path)


def test_parquet_round_trips(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["target"] = ["yes", "no", "yes"]
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert np.array_equal(table.X, X)
    assert table.y.tolist() == ["yes", "no", "yes"]
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:200])
    with pytest.raises(InputError, match="not a parquet file, or is damaged"):
        read_table(tmp_path / "bad.parquet")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'adfs\[parquet\]'"):
        read_table(tmp_path / "t.parquet")


def test_stacking_keeps_the_rows_of_each_file() -> None:
    dense = Table(X, Y, None, "a")
    sparse = Table(sp.csr_array(X[:2]), Y[:2], np.array([2.0, 3.0]), "b")
    whole, parts = stack([dense, sparse])
    assert np.array_equal(whole.X.toarray(), np.vstack([X, X[:2]]))
    assert whole.weights.tolist() == [1.0, 1.0, 1.0, 2.0, 3.0]
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    with pytest.raises(InputError, match="some of the files have labels"):
        stack([dense, Table(X, None, None, "c")])
    with pytest.raises(InputError, match="numbers as labels and others text"):
        stack([dense, Table(X, np.array(["a", "b", "c"]), None, "c")])


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,v,y\n1,2,0\n")
    (tmp_path / "b.csv").write_text("u,w,y\n1,2,1\n")
    with pytest.raises(InputError, match="different columns"):
        read_tables([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_sources_by_name() -> None:
    table = read_source("sklearn:wine")
    assert np.allclose(table.X.mean(axis=0), 0.0, atol=1e-12)
    assert np.array_equal(read_source("synthetic:20x3", seed=5).X, read_source("synthetic:20x3", seed=5).X)
    for bad, message in {"sklearn:wien": "did you mean 'wine'", "synthetic:20": "samples x features"}.items():
        with pytest.raises(InputError, match=message):
            read_source(bad)


# --------------------------------------------------------------------------- models


@pytest.mark.parametrize("classes", [None, [-1, 1], ["ja", "nein", "ü"]])
def test_models_round_trip_bit_for_bit(tmp_path: Path, classes) -> None:
    rng = np.random.default_rng(0)
    rows = 1 if classes is None or len(classes) == 2 else len(classes)
    coef = rng.standard_normal((rows, 9)) * 10.0 ** rng.integers(-300, 300, (rows, 9))
    coef[0, 1:] = 0.0  # kept as its non-zero entries
    task = "regression" if classes is None else "classification"
    model = LinearModel(task, "logistic", coef, rng.standard_normal(rows), classes, label="y", index_base=1)
    model.save(tmp_path / "m.json")
    again = LinearModel.load(tmp_path / "m.json")
    assert np.array_equal(again.coef, coef)
    assert np.array_equal(again.intercept, model.intercept)
    assert (again.classes, again.task, again.label, again.index_base) == (classes, task, "y", 1)
    assert json.loads((tmp_path / "m.json").read_text())["format"] == "adfs-model"


def damaged(**changes) -> str:
    model = LinearModel("classification", "logistic", np.ones((1, 2)), np.zeros(1), [0, 1])
    return json.dumps(json.loads(model.to_json()) | changes)


NOT_MODELS = {
    "text": ("hello", "not JSON"),
    "cut": (damaged()[:60], "not JSON, or was cut short"),
    "list": ("[1, 2]", "is not an adfs model"),
    "other": ('{"format": "sklearn"}', "is not an adfs model"),
    "newer": (damaged(version=2), "of version 2, this program reads version 1"),
    "deep": ("[" * 100_000, "not JSON"),
    "shape": (damaged(coef=[[1.0, 2.0, 3.0]]), "is damaged"),
    "nan": (damaged(intercept=[float("nan")]), "a coefficient is not finite"),
    "classes": (damaged(classes=["a", 1]), "classes must be"),
    "task": (damaged(task="ranking"), "unknown task"),
    "missing": (damaged(classes=None), "classes and task"),
    "index": (damaged(coef=[{"indices": [7], "values": [1.0]}]), "outside the features"),
    "size": (damaged(n_features=-2), "n_features must be"),
}


@pytest.mark.parametrize("kind", NOT_MODELS)
def test_what_is_not_a_model_is_refused_with_a_sentence(tmp_path: Path, kind: str) -> None:
    text, message = NOT_MODELS[kind]
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        LinearModel.load(path)
    assert str(path) in str(caught.value)
