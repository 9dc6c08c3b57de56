"""Estimators as model files: one file whoever writes it, and a loaded model that predicts the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError

import adfs
from adfs.cli import main
from adfs.data import LinearModel
from adfs.errors import InputError
from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
from memory_cluster import Threads, on_threads

FLOWERS, KINDS = load_iris(return_X_y=True)
PATIENTS, PROGRESS = load_diabetes(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])

ESTIMATORS: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {
    "two classes": (ADFSClassifier(), FLOWERS[:100], NAMES[KINDS[:100]]),
    "softmax": (ADFSClassifier(), FLOWERS, NAMES[KINDS].astype(object)),
    "one versus rest": (ADFSClassifier(multi_class="ovr"), FLOWERS, KINDS),
    "hinge": (ADFSClassifier("hinge"), FLOWERS[:100], KINDS[:100] == 1),
    "single precision": (ADFSRegressor(), PATIENTS.astype(np.float32), PROGRESS),
    "tweedie": (ADFSRegressor("tweedie", power=1.3), PATIENTS, PROGRESS),
    "classifier search": (ADFSClassifierCV([0.1, 1.0], cv=3), FLOWERS, KINDS),
    "regressor search": (ADFSRegressorCV([0.1, 1.0], cv=3), PATIENTS, PROGRESS),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_loaded_models_predict_as_the_estimators(name: str, tmp_path: Path) -> None:
    model, X, y = ESTIMATORS[name]
    model.fit(X, y).save(tmp_path / "model.json")
    loaded = adfs.load(str(tmp_path / "model.json"))
    assert isinstance(loaded, LinearModel)
    expected = model.predict(X)
    if expected.dtype.kind == "f":
        assert loaded.predict(X) == pytest.approx(expected, rel=1e-6 if X.dtype == np.float32 else 1e-14)
    else:
        assert np.array_equal(loaded.predict(X), expected)
    if hasattr(model, "predict_proba"):
        assert loaded.proba(X) == pytest.approx(model.predict_proba(X), abs=1e-14)
    assert loaded.training["n_samples"] == len(y)
    assert loaded.training["gap"] == model.dual_gap_
    if name == "tweedie":
        assert loaded.training["power"] == 1.3
    if name.endswith("search"):
        assert loaded.training["cv"]["folds"] == 3
        weight = "C" if "classifier" in name else "alpha"
        assert loaded.training[weight] == getattr(model, f"{weight}_")


def test_saved_file_is_the_file_of_adfs_fit(tmp_path: Path) -> None:
    table = pd.DataFrame(PATIENTS[:, :3], columns=["age", "sex", "bmi"])
    table.assign(y=PROGRESS).to_csv(tmp_path / "patients.csv", index=False)
    out, saved = tmp_path / "out.json", tmp_path / "saved.json"
    assert (
        main(["fit", str(tmp_path / "patients.csv"), "--label", "y", "--loss", "squared", "--out", str(out)])
        == 0
    )
    model = ADFSRegressor(random_state=0).fit(table, PROGRESS)
    model.save(saved)
    ours, theirs = (json.loads(path.read_text(encoding="utf-8")) for path in (saved, out))
    # What only files of samples have.
    assert theirs.pop("label") == "y"
    assert ours.pop("label") is None
    assert theirs["training"].pop("files") == ["patients.csv"]
    for content in (ours, theirs):
        content["training"].pop("seconds")
    assert ours == theirs
    # A later change of a parameter is not a change of the model.
    model.set_params(alpha=7.0).save(saved)
    assert json.loads(saved.read_text(encoding="utf-8"))["training"]["alpha"] == 1.0


def test_loaded_model_finds_columns_by_their_names(tmp_path: Path) -> None:
    table = pd.DataFrame(PATIENTS[:, :3], columns=["age", "sex", "bmi"])
    model = ADFSRegressor(random_state=0).fit(table, PROGRESS)
    model.save(tmp_path / "model.json")
    loaded = adfs.load(tmp_path / "model.json")
    assert loaded.feature_names == ("age", "sex", "bmi")
    assert loaded.predict(table[["bmi", "age", "sex"]]) == pytest.approx(model.predict(table), rel=1e-14)
    with pytest.raises(InputError, match="the table has no column 'sex', which the model wants"):
        loaded.predict(table[["bmi", "age"]])


def test_saving_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        ADFSRegressor().save(tmp_path / "model.json")
    with pytest.raises(NotFittedError):
        ADFSClassifierCV().save(tmp_path / "model.json")
    years = np.array(["2020", "2021"], dtype="datetime64[Y]")[KINDS[:100]]
    with pytest.raises(InputError, match="classes that are numbers or texts"):
        ADFSClassifier().fit(FLOWERS[:100], years).save(tmp_path / "model.json")
    assert list(tmp_path.iterdir()) == []


def test_saving_on_several_processes_is_done_by_process_0(tmp_path: Path) -> None:
    parts = np.array_split(np.arange(len(KINDS)), 2)

    def fit(ranks: Threads) -> None:
        own = parts[ranks.rank]
        model = ADFSClassifier(cluster=ranks, random_state=0).fit(FLOWERS[own], KINDS[own])
        model.save(tmp_path / f"rank-{ranks.rank}.json")

    on_threads(2, fit)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"]
    assert adfs.load(tmp_path / "rank-0.json").training["n_samples"] == len(KINDS)


def test_loaded_model_takes_the_raw_table_of_adfs_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame({"bmi": PATIENTS[:90, 2], "ward": np.array(["a", "b", "c"])[np.arange(90) % 3]})
    csv, out = str(tmp_path / "patients.csv"), str(tmp_path / "model.json")
    table.assign(y=PROGRESS[:90]).to_csv(csv, index=False)
    assert main(["fit", csv, "--label", "y", "--loss", "squared", "--out", out]) == 0
    capsys.readouterr()
    assert main(["predict", out, csv]) == 0
    found = [float(line) for line in capsys.readouterr().out.split()]
    assert adfs.load(out).predict(table[["ward", "bmi"]]).tolist() == found
