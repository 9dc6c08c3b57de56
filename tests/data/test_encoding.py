"""Columns become features: kinds, levels, missing values, and one encoding for all processes."""

from __future__ import annotations

import datetime
import io
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import OneHotEncoder

import adfs
from adfs.data import Encoding, ReadOptions, find_encoding, read_table, read_tables
from adfs.errors import InputError
from memory_cluster import on_threads


def table(n: int = 200, seed: int = 0) -> pd.DataFrame:
    """Return numbers, text, truth values, and both kinds of missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "city": rng.choice(["Oslo", "New York, NY", "Rome"], n),
            "smoker": rng.random(n) < 0.3,
            "income": rng.normal(30.0, 1e3, n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "income"] = np.nan
    frame.loc[rng.random(n) < 0.1, "city"] = None
    return frame


def test_encoding_has_the_features_of_one_hot_and_mean() -> None:
    frame = table()
    encoding = find_encoding([frame])
    X = encoding.transform(frame)
    assert sp.issparse(X)
    assert encoding.feature_names == (
        *("age", "city=New York, NY", "city=Oslo", "city=Rome", "city is missing"),
        *("smoker=False", "smoker=True", "income", "income is missing"),
    )
    expected = OneHotEncoder(sparse_output=False).fit_transform(frame[["city", "smoker"]])
    assert np.array_equal(X.toarray()[:, 1:7], expected)
    present = frame["income"].dropna()
    mean = math.fsum(present) / present.size
    assert np.array_equal(X.toarray()[:, 7], frame["income"].fillna(mean))
    assert np.array_equal(X.toarray()[:, 8], frame["income"].isna())


def test_encoding_of_any_split_over_processes_is_the_same() -> None:
    frame = table(400).sort_values("city")  # so that the processes see different levels
    whole = find_encoding([frame])
    cuts = np.array_split(np.arange(400), 5)
    assert find_encoding([frame.iloc[rows] for rows in cuts]) == whole

    def own(cluster) -> tuple[Encoding, int]:
        rows = np.concatenate(cuts[:4]) if cluster.rank == 0 else cuts[4]
        part = frame.iloc[rows]
        return find_encoding([part], gather=cluster.allgather), part["city"].nunique()

    found, levels = zip(*on_threads(2, own), strict=True)
    assert set(levels) == {2, 1} or levels[0] != levels[1]
    assert found == (whole, whole)


def test_encoding_survives_the_model_file() -> None:
    encoding = find_encoding([table()], ReadOptions(reference_levels=True, decimal=","))
    assert Encoding.from_entries(json.loads(json.dumps(encoding.to_entries()))) == encoding


def test_encoding_puts_rare_and_unknown_levels_into_other() -> None:
    frame = pd.DataFrame({"size": ["S"] * 4 + ["M"] * 3 + ["XL", "XXL", "other"]})
    encoding = find_encoding([frame])
    assert encoding.feature_names == ("size=M", "size=S", "size=other")
    assert encoding.columns[0].rare == 2
    assert encoding.notes == ["levels with fewer than 3 rows count as 'other' in size"]
    later = pd.DataFrame({"size": ["S", "new", None, 42]})
    assert encoding.transform(later).toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    # Without other levels, an unknown one has no feature.
    plain = find_encoding([frame[:7]])
    assert plain.transform(later[:2]).toarray().tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_encoding_with_reference_levels_leaves_out_the_most_frequent_one() -> None:
    frame = pd.DataFrame({"size": ["S"] * 4 + ["M"] * 3, "new": [True] * 4 + [False] * 3})
    encoding = find_encoding([frame], ReadOptions(reference_levels=True))
    assert encoding.feature_names == ("size=M", "new=False")
    assert encoding.transform(frame).toarray().tolist() == [[0, 0]] * 4 + [[1, 1]] * 3
    assert "reference S" in str(encoding)


def test_encoding_spells_levels_alike_whatever_the_column_holds() -> None:
    numbers = pd.DataFrame({"size": [40, 42, 42], "flag": [True, True, False]})
    words = pd.DataFrame({"size": ["42.0", "40", "XL"], "flag": ["true", "maybe", "FALSE"]})
    options = ReadOptions(categories="size")
    encoding = find_encoding([numbers, numbers, numbers, words], options)
    assert encoding.feature_names == (
        "size=40",
        "size=42",
        "size=other",
        "flag=False",
        "flag=True",
        "flag=other",
    )
    assert encoding.transform(words).toarray()[0].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]


def test_encoding_leaves_out_empty_columns_and_keeps_constant_ones() -> None:
    frame = pd.DataFrame({"none": [None] * 4, "one": [1.5] * 4, "word": ["a"] * 4, "x": [1.0, 2, 3, 4]})
    encoding = find_encoding([frame[:2], frame[2:]])
    assert encoding.feature_names == ("one", "word=a", "x")
    assert encoding.notes == ["left out, because all values are missing: none"]
    assert str(encoding).splitlines()[1:3] == [
        "none    empty     0         all values are missing",
        "one     number    1",
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 2.0, "secret"], "column 'c' holds text in data row 3, and mostly numbers"),
        ([datetime.date(2024, 1, day) for day in (1, 2, 3)], "holds dates"),
        (pd.to_datetime(["2024-01-01", "2024-01-02", None]), "holds dates"),
        (["31.12.2024", "1.1.2025 12:30", None], "holds dates"),
        ([[1], [2], [3]], "neither numbers nor text"),
        ([b"secret", b"b", b"c"], "neither numbers nor text"),
        ([1.0, np.inf, 2.0], "is infinite in data row 2"),
        ([1.7e308, 1.7e308, None], "too large for a mean"),
    ],
)
def test_find_encoding_refuses_a_column_in_all_processes_alike(values, words: str) -> None:
    bad, good = pd.DataFrame({"c": values}), pd.DataFrame({"c": [1.0, 2.0]})

    def own(cluster) -> str:
        with pytest.raises(InputError) as caught:
            find_encoding([bad if cluster.rank == 1 else good], gather=cluster.allgather)
        return str(caught.value)

    first, second = on_threads(2, own)
    assert first == second
    assert words in first
    assert "secret" not in first


def test_find_encoding_refuses_tables_with_other_columns() -> None:
    with pytest.raises(InputError, match="a and b have different columns"):
        find_encoding([pd.DataFrame({"x": [1]}), pd.DataFrame({"y": [1]})], sources=["a", "b"])


def test_encoding_refuses_later_tables_that_do_not_fit() -> None:
    encoding = find_encoding([table()])
    frame = table(seed=1)
    for wrong, words in {
        "has no column 'city'": frame.drop(columns="city"),
        "column 'age' holds text in data row 2, and numbers": frame.astype({"age": object}).replace(
            {"age": {frame["age"][1]: "secret"}}
        ),
        "column 'age' is missing in data row 1, and never": frame.assign(age=np.nan),
    }.items():
        with pytest.raises(InputError, match=wrong) as caught:
            encoding.transform(words)
        assert "secret" not in str(caught.value)


# --------------------------------------------------------------------------- files


def test_read_table_of_numbers_has_no_encoding(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,b,y\n1,2.5,0\n3,4,1\n")
    found = read_table(tmp_path / "n.csv")
    assert found.encoding is None
    assert found.feature_names == ("a", "b")
    assert isinstance(found.X, np.ndarray)
    assert found.X.tolist() == [[1.0, 2.5], [3.0, 4.0]]


def test_read_table_takes_decimal_commas_and_lines_without_names(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('red;1,5;"a, b";0\nblue;-2,25;c;1\nred;;c;1\n' * 3)
    options = ReadOptions(label="-1", decimal=",", no_header=True, drop="2")
    found = read_table(path, options)
    assert found.feature_names == ("0=blue", "0=red", "1", "1 is missing")
    assert found.X.toarray()[:3, 2].tolist() == [1.5, -2.25, -0.375]
    assert found.y.tolist() == [0.0, 1.0, 1.0] * 3
    assert found.encoding.dropped == ("2",)
    kept = read_table(path, ReadOptions(label="3", decimal=",", no_header=True, columns=("0", "2")))
    assert kept.feature_names == ("0=blue", "0=red", "2=a, b", "2=c")
    for wrong in ({"decimal": ";"}, {"missing": "median"}):
        with pytest.raises(InputError, match="must be"):
            ReadOptions(**wrong)


def test_read_tables_give_several_files_one_encoding(tmp_path: Path) -> None:
    frame = table().assign(y=1.0)
    frame[frame["city"] == "Rome"].to_csv(tmp_path / "rome.csv", index=False)
    frame[frame["city"] != "Rome"].to_csv(tmp_path / "rest.csv", index=False)
    one, other = read_tables([tmp_path / "rome.csv", tmp_path / "rest.csv"])
    assert one.encoding == other.encoding
    assert "city=Rome" in other.feature_names


def test_read_table_takes_zstd_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    text = table().assign(y=1.0).to_csv(index=False).encode()
    (tmp_path / "t.csv").write_bytes(text)
    (tmp_path / "t.csv.zst").write_bytes(pa.compress(text, codec="zstd", asbytes=True))
    expected = read_table(tmp_path / "t.csv")
    compressed = read_table(tmp_path / "t.csv.zst")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    piped = read_table("-")
    for found in (compressed, piped):
        assert np.array_equal(found.X.toarray(), expected.X.toarray())
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match="zstd needs pyarrow: pip install pyarrow"):
        read_table(tmp_path / "t.csv.zst")


def test_read_table_takes_partitioned_folders_and_their_parts(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = table().assign(y=1.0)
    frame.to_parquet(tmp_path / "folder", partition_cols=["smoker"], row_group_size=30)
    whole = read_table(tmp_path / "folder")
    assert whole.n_samples == 200
    assert "smoker=True" in whole.feature_names
    parts = [read_tables([tmp_path / "folder"], ReadOptions(part=(k, 3)))[0] for k in range(3)]
    assert [part.n_samples for part in parts] == [67, 67, 66]
    ages = [part.X[:, [part.feature_names.index("age")]].toarray() for part in parts]
    assert np.array_equal(np.vstack(ages), whole.X[:, [whole.feature_names.index("age")]].toarray())
    (tmp_path / "folder" / "smoker=true" / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read as one table"):
        read_table(tmp_path / "folder")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_estimators_keep_the_names_of_columns(library: str) -> None:
    module = pytest.importorskip(library)
    columns = {"age": [1.0, 2.0, 3.0, 4.0], "income": [4.0, 1.0, 0.0, 2.0]}
    made = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    assert find_encoding([made]).transform(made).tolist() == pd.DataFrame(columns).to_numpy().tolist()
    model = adfs.ADFSRegressor().fit(made, [1.0, 2.0, 3.0, 5.0])
    assert model.feature_names_in_.tolist() == ["age", "income"]
    assert np.array_equal(model.predict(made), model.predict(pd.DataFrame(columns)))
