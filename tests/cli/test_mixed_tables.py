"""`adfs predict` and `adfs score` take raw tables for models of mixed tables; numbers stay as they were."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adfs.cli import main
from adfs.data import LinearModel


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Write t.csv in a folder of its own; return its columns."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    found = pd.DataFrame({"a": rng.normal(size=60), "kind": rng.choice(["x", "y, z"], 60)})
    found["id"] = [f"n{k}" for k in range(60)]
    found["new"] = rng.random(60) < 0.5
    found["size"] = np.where(rng.random(60) < 0.2, np.nan, rng.normal(size=60))
    found["price"] = found["a"] + 2.0 * (found["kind"] == "x") + found["new"]
    found.to_csv("t.csv", index=False)
    return found


def fit(*words: str) -> LinearModel:
    assert main(["fit", "t.csv", "--label", "price", "--loss", "squared", "--out", "m.json", *words]) == 0
    return LinearModel.load(Path("m.json"))


def predictions(capsys: pytest.CaptureFixture[str], name: str) -> np.ndarray:
    capsys.readouterr()
    assert main(["predict", "m.json", name, "--json"]) == 0
    return np.array(json.loads(capsys.readouterr().out)["predictions"])


def test_predict_command_takes_the_raw_table_in_any_order_of_columns(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fit("--drop", "id")
    expected = model.predict(model.encoding.transform(frame))
    assert np.array_equal(predictions(capsys, "t.csv"), expected)
    frame[frame.columns[::-1]].drop(columns=["price", "id"]).to_csv("turned.csv", index=False)
    assert np.array_equal(predictions(capsys, "turned.csv"), expected)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("t.csv").read_bytes())))
    assert main(["score", "m.json", "-"]) == 0
    assert capsys.readouterr().out.startswith("r2 0.9")


def test_predict_command_says_once_that_a_level_is_unknown(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fit("--columns", "a,kind")
    assert model.encoding.dropped == ("id", "new", "size")
    capsys.readouterr()
    frame.assign(kind=frame["kind"].replace("x", "w")).to_csv("other.csv", index=False)
    assert main(["predict", "m.json", "other.csv", "--out", "p.txt"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    rows = (frame["kind"] == "x").sum()
    assert f"column 'kind' has unknown or rare levels in {rows} rows, which count as no level" in line
    assert len(Path("p.txt").read_text().splitlines()) == 60


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": "word"}, "column 'a' holds text in data row 1, and numbers in the training data"),
        ({"a": None}, "column 'a' is missing in data row 1, and never in the training data"),
        ({"extra": 1}, "has a column 'extra' that the model does not know"),
    ],
)
def test_predict_command_refuses_a_table_that_does_not_fit(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], change: dict[str, object], words: str
) -> None:
    fit("--drop", "id")
    capsys.readouterr()
    frame.assign(**change).to_csv("other.csv", index=False)
    assert main(["predict", "m.json", "other.csv"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_fit_command_shows_what_was_done_to_each_column(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    fit("--drop", "id", "--summary", "--reference-levels")
    lines = capsys.readouterr().out.splitlines()
    most = frame["kind"].mode()[0]
    assert lines[:3] == [
        "column  kind      features  treatment",
        "a       number    1",
        f"kind    category  1         reference {most}",
    ]
    assert lines[4].startswith("size    number    2         ")
    assert lines[5].split() == ["id", "dropped", "0"]
    assert not any("the data determine" in line for line in lines)


def test_fit_command_writes_models_of_numbers_as_before(frame: pd.DataFrame) -> None:
    frame[["a", "price"]].to_csv("t.csv", index=False)
    fit()
    content = json.loads(Path("m.json").read_text())
    assert content["version"] == 1
    assert "encoding" not in content
    assert content["feature_names"] == ["a"]


def test_predict_command_takes_truth_values_for_numbers_of_an_earlier_model(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    frame[["a", "new", "price"]].astype(float).to_csv("t.csv", index=False)
    fit()
    expected = predictions(capsys, "t.csv")
    frame[["a", "new", "price"]].to_csv("t.csv", index=False)
    assert np.array_equal(predictions(capsys, "t.csv"), expected)
