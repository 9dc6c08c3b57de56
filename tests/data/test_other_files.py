"""NumPy archives, CSV and parquet; stacking tables; models as files; writing whole files."""

from __future__ import annotations

import base64
import io
import json
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from adfs.data import LinearModel, ReadOptions, Table, read_source, read_table, read_tables, stack
from adfs.errors import InputError
from adfs.problem import LOSSES

X = np.array([[1.0, -2.5, 0.0], [0.0, 1e-300, 3.0], [4.0, 0.1, 0.2]])
Y = np.array([1.0, 0.0, 1.0])


def test_read_table_round_trips_dense_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=X.astype(np.float32), y=np.array([1, 0, 1]), sample_weight=[1, 2, 3])
    table = read_table(tmp_path / "d.npz")
    assert table.X.dtype == np.float64
    assert np.array_equal(table.X, X.astype(np.float32))
    assert table.y.tolist() == [1.0, 0.0, 1.0]
    assert table.weights.tolist() == [1.0, 2.0, 3.0]
    assert table.index_base is None


def test_read_table_round_trips_sparse_archives(tmp_path: Path) -> None:
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
def test_read_table_round_trips_csv(tmp_path: Path, ending: str, delimiter: str) -> None:
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


def test_read_table_takes_csv_without_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,0.5,2\n0,1.5,3\n\n")
    table = read_table(path, ReadOptions(label="0"))
    assert table.y.tolist() == [1.0, 0.0]
    assert table.X.tolist() == [[0.5, 2.0], [1.5, 3.0]]
    assert table.feature_names is None
    assert read_table(path, ReadOptions(label="-1")).y.tolist() == [2.0, 3.0]
    with pytest.raises(InputError, match=r"say which with --label: 0, 1, 2"):
        read_table(path)


def test_read_table_takes_numbered_columns_beside_a_named_one_as_names(tmp_path: Path) -> None:
    frame = pd.DataFrame(X).assign(kind=["yes", "no", "yes"])
    frame.to_csv(tmp_path / "numbered.csv", index=False)
    table = read_table(tmp_path / "numbered.csv", ReadOptions(label="kind"))
    assert table.feature_names == ("0", "1", "2")
    assert np.array_equal(table.X, X)


def test_read_table_round_trips_parquet(tmp_path: Path) -> None:
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


def test_read_table_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="needs pyarrow: pip install pyarrow"):
        read_table(tmp_path / "t.parquet")


def test_stack_keeps_the_rows_of_each_file() -> None:
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


def test_read_tables_refuses_files_with_other_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,v,y\n1,2,0\n")
    (tmp_path / "b.csv").write_text("u,w,y\n1,2,1\n")
    with pytest.raises(InputError, match="different columns"):
        read_tables([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_read_source_takes_names_of_data_sets() -> None:
    table = read_source("sklearn:wine")
    assert np.allclose(table.X.mean(axis=0), 0.0, atol=1e-12)
    assert np.array_equal(read_source("synthetic:20x3", seed=5).X, read_source("synthetic:20x3", seed=5).X)
    for bad, message in {"sklearn:wien": "did you mean 'wine'", "synthetic:20": "samples x features"}.items():
        with pytest.raises(InputError, match=message):
            read_source(bad)


# --------------------------------------------------------------------------- models


@pytest.mark.parametrize("classes", [None, [-1, 1], ["ja", "nein", "ü"]])
def test_linear_model_round_trips_bit_for_bit(tmp_path: Path, classes) -> None:
    rng = np.random.default_rng(0)
    rows = 1 if classes is None or len(classes) == 2 else len(classes)
    coef = rng.standard_normal((rows, 9)) * 10.0 ** rng.integers(-300, 300, (rows, 9))
    coef[0, 1:] = 0.0  # kept as its non-zero entries
    task = "regression" if classes is None else "classification"
    loss = "squared" if classes is None else "logistic"
    model = LinearModel(task, loss, coef, rng.standard_normal(rows), classes, label="y", index_base=1)
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
    "newer": (damaged(version=4), "of version 4, this program reads versions 1 to 3; update adfs"),
    "no encoding": (damaged(version=3), "has no entry 'encoding'"),
    "another encoding": (
        damaged(version=3, encoding={"columns": [], "dropped": [], "no_header": False, "decimal": "."}),
        "the encoding and feature_names do not fit together",
    ),
    "encoding without a mean": (
        damaged(version=3, encoding={"columns": [{"name": "a", "missing": 1}]}),
        "a column of the encoding is not described as columns are",
    ),
    "deep": ("[" * 100_000, "not JSON"),
    "shape": (damaged(coef=[[1.0, 2.0, 3.0]]), "is damaged"),
    "nan": (damaged(intercept=[float("nan")]), "a coefficient is not finite"),
    "classes": (damaged(classes=["a", 1]), "classes must be"),
    "task": (damaged(task="ranking"), "unknown task"),
    "missing": (damaged(classes=None), "classes and task"),
    "index": (damaged(coef=[{"indices": [7], "values": [1.0]}]), "outside the features"),
    "size": (damaged(n_features=-2), "n_features must be"),
    "no such size": (damaged(n_features=10**14), "coefficients do not fit into this machine's memory"),
    "loss": (damaged(loss="foo", link=None), "'foo' is no loss of a classification"),
    "loss of another task": (
        damaged(loss="squared", link=None),
        "'squared' is no loss of a classification",
    ),
    "link": (damaged(link="probit"), "'probit' is no link of a classification"),
    "link of another task": (damaged(link="log"), "'log' is no link of a classification"),
    "loss as a list": (damaged(loss=["logistic"]), "is no loss of a classification"),
    "task as a list": (damaged(task=["ranking"]), "unknown task"),
    "same class twice": (damaged(classes=[1, 1]), "the class 1 is there twice"),
    "same text twice": (damaged(classes=["a", "b", "a"]), "the class 'a' is there twice"),
    "intercept as text": (damaged(intercept=["0.5"]), "intercept must be a list of numbers"),
    "intercept as a number": (damaged(intercept=0.5), "intercept must be a list of numbers"),
    "two intercepts": (damaged(intercept=[0.5, 1.0]), "intercept must be 1 numbers"),
    "coef as text": (damaged(coef=[["1", "2"]]), "a row of coef must be a list of numbers"),
    "coef with a hole": (damaged(coef=[[1.0, None]]), "a row of coef must be a list of numbers"),
    "nan in coef": (damaged(coef=[[1.0, float("nan")]]), "a coefficient is not finite"),
    "rows": (damaged(coef=[[1.0, 2.0]] * 2), "coef must have 1 rows"),
    "row of text": (damaged(coef=["ab"]), "a row of coef must be a list of numbers, or"),
    "half an index": (damaged(coef=[{"indices": [0.5], "values": [1.0]}]), "outside the features"),
    "index twice": (damaged(coef=[{"indices": [0, 0], "values": [1.0, 2.0]}]), "not in ascending order"),
    "no values": (damaged(coef=[{"indices": [0]}]), "has no entry 'values'"),
    "softmax": (damaged(softmax="no"), "softmax true or false"),
    "names": (damaged(feature_names="ab"), "feature_names must be"),
    "training": (damaged(training=[]), "training an object"),
    "an entry short": (damaged().replace('"loss"', '"lost"'), "has no entry 'loss'"),
}


@pytest.mark.parametrize("kind", NOT_MODELS)
def test_linear_model_refuses_other_files_in_one_sentence(tmp_path: Path, kind: str) -> None:
    text, message = NOT_MODELS[kind]
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        LinearModel.load(path)
    assert str(path) in str(caught.value)


def test_linear_model_keeps_every_loss_of_the_package() -> None:
    for name, loss in LOSSES.items():
        if name == "multinomial":  # a model of several classes is a logistic one, fitted as one softmax model
            continue
        classes = [0, 1] if loss.task == "classification" else None
        model = LinearModel(loss.task, name, np.ones((1, 2)), np.zeros(1), classes)
        assert LinearModel.from_json(model.to_json()).loss == name


# --------------------------------------------------------------------------- large models


def large(n_classes: int, n_features: int, zeros: float) -> LinearModel:
    rng = np.random.default_rng(1)
    coef = rng.standard_normal((n_classes, n_features))
    coef[rng.random(coef.shape) < zeros] = 0.0
    coef[0, :3] = -0.0, 5e-324, 1.7e308
    intercept, classes = rng.standard_normal(n_classes), list(range(n_classes))
    return LinearModel("classification", "logistic", coef, intercept, classes)


@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_linear_model_writes_readable_numbers_that_keep_every_bit(tmp_path: Path, zeros: float) -> None:
    model = large(30, 800, zeros)
    model.save(tmp_path / "m.json")
    content = json.loads((tmp_path / "m.json").read_text())
    assert (content["version"], content["link"], content["classes"]) == (1, "logit", model.classes)
    rows = [row if isinstance(row, list) else row["values"] for row in content["coef"]]
    assert [[value for value in row if value] for row in rows] == [
        row[row != 0.0].tolist() for row in model.coef
    ]
    again = LinearModel.load(tmp_path / "m.json")
    assert np.array_equal(again.coef.view(np.int64), model.coef.view(np.int64))
    assert np.array_equal(again.intercept, model.intercept)


def packed_array(values: np.ndarray) -> str:
    """Return numbers of 8 bytes as version 0.2 packed them."""
    transposed = np.ascontiguousarray(np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8).T)
    return base64.b64encode(zlib.compress(transposed.tobytes())).decode()


def packed_file(zeros: float, **changes) -> str:
    """Return the text of a file that version 0.2 wrote: no link, names with hyphens, packed coefficients."""
    model = large(30, 8000, zeros)
    coef = {"packing": "little-endian, bytes transposed, zlib, base64", "shape": [30, 8000]}
    if zeros:
        rows, columns = np.nonzero(model.coef.view(np.int64))
        coef["counts"] = np.bincount(rows, minlength=30).tolist()
        coef |= {"indices": packed_array(columns), "values": packed_array(model.coef[rows, columns])}
    else:
        coef["values"] = packed_array(model.coef)
    content = json.loads(model.to_json())
    del content["link"]
    return json.dumps(content | {"version": 2, "coef": coef | changes})


@pytest.mark.parametrize("zeros", [0.0, 0.9])
def test_linear_model_reads_packed_files_of_earlier_versions(zeros: float) -> None:
    again, model = LinearModel.from_json(packed_file(zeros)), large(30, 8000, zeros)
    assert np.array_equal(again.coef.view(np.int64), model.coef.view(np.int64))
    assert again.link == "logit"


def test_linear_model_reads_names_of_losses_of_earlier_versions() -> None:
    content = json.loads(damaged(loss="squared-hinge"))
    del content["link"]
    model = LinearModel.from_json(json.dumps(content))
    assert (model.loss, model.link) == ("squared_hinge", "identity")


def packed(count: int, value: int) -> str:
    return packed_array(np.full(count, value, dtype="<i8"))


TAMPERED = {
    "another packing": (packed_file(0.0, packing="pickle"), "packed in a way that is known here"),
    "shape": (packed_file(0.0, shape=[30, 8001]), "the shape that classes and n_features say"),
    "not base64": (packed_file(0.0, values="%%%"), "cannot be decompressed"),
    "not zlib": (packed_file(0.0, values="aGVsbG8="), "cannot be decompressed"),
    "too few": (packed_file(0.0, values=packed(9, 0)), "does not hold 240000 numbers"),
    "too many": (packed_file(0.0, values=packed(10**6, 0)), "does not hold 240000 numbers"),
    "a number": (packed_file(0.0, values=7), "must be text"),
    "nan": (packed_file(0.0, values=packed(240_000, 0x7FF8 << 48)), "a coefficient is not finite"),
    "counts": (packed_file(0.9, counts=[1] * 29), "how many entries each row has"),
    "negative count": (packed_file(0.9, counts=[-1] * 30), "how many entries each row has"),
    "one column often": (
        packed_file(0.9, counts=[9] * 30, indices=packed(270, 4), values=packed(270, 0)),
        "not in ascending order",
    ),
    "outside": (
        packed_file(0.9, counts=[1] * 30, indices=packed(30, 8000), values=packed(30, 0)),
        "outside the features",
    ),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_linear_model_refuses_a_large_file_that_was_tampered_with(kind: str) -> None:
    text, message = TAMPERED[kind]
    with pytest.raises(InputError, match=message):
        LinearModel.from_json(text, "m.json")


# --------------------------------------------------------------------------- what separates columns


@pytest.mark.parametrize("mark", [",", ";", "\t", "|", " ", "   ", ", ", " | "])
@pytest.mark.parametrize("named", [True, False])
def test_read_table_finds_the_separator_of_columns(tmp_path: Path, mark: str, named: bool) -> None:
    rows = [["2.5", "-1", "1"], ["0.25", "3e2", "0"], ["7", "8", "1"]]
    lines = [["first", "second", "label"], *rows] if named else rows
    (tmp_path / "t.csv").write_text("".join(mark.join(line) + "\n" for line in lines))
    table = read_table(tmp_path / "t.csv", ReadOptions(label=None if named else "-1"))
    assert table.X.tolist() == [[2.5, -1.0], [0.25, 300.0], [7.0, 8.0]]
    assert table.y.tolist() == [1.0, 0.0, 1.0]
    assert table.feature_names == (("first", "second") if named else None)


def test_read_table_ignores_what_only_looks_like_a_separator(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('sepal length (cm),petal; width,"kind, or class"\n5.1,3.5,Iris setosa\n4.9,3.0,Iris v.\n')
    table = read_table(path, ReadOptions(label="kind, or class"))
    assert table.feature_names == ("sepal length (cm)", "petal; width")
    assert table.y.tolist() == ["Iris setosa", "Iris v."]
    path.write_text("\t".join(["12345678"] * 15_000) + "\n")  # one long field, for the other separators
    assert read_table(path, ReadOptions(label="0")).X.shape == (1, 14_999)
    path.write_text("a:b:y\n1:2:0\n")
    with pytest.raises(InputError, match="has one column only, 'a:b:y'; separate columns by commas"):
        read_table(path)
