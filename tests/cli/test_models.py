"""`adfs fit` with offsets, standardised columns, standard errors and cross-validation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from adfs import ADFSClassifier, ADFSClassifierCV
from adfs.cli import main
from adfs.data import LinearModel


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(np.arange(50, 150))
    frame = pd.DataFrame(X[order] * [1.0, 1.0, 100.0, 1.0], columns=["a", "b", "c", "d"])
    frame["before"] = np.sin(np.arange(100.0))
    frame["kind"] = np.where(y[order] == 2, "virginica", "versicolor")
    frame.to_csv("d.csv", index=False)
    return frame


def test_fit_command_takes_offsets_standard_errors_and_scaled_columns(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--label", "kind", "--offset", "before", "--standardize"]
    assert main(["fit", "d.csv", *words, "--summary", "--tol", "1e-12", "--out", "m.json"]) == 0
    table = capsys.readouterr().out
    X, y, offset = (
        frame[["a", "b", "c", "d"]].to_numpy(),
        frame["kind"].to_numpy(),
        frame["before"].to_numpy(),
    )
    own = ADFSClassifier(standardize=True, inference=True, tol=1e-12, random_state=0)
    own.fit(X, y, offset=offset)
    model = LinearModel.load(Path("m.json"))
    assert np.allclose(model.coef, own.coef_, atol=1e-4)
    assert model.training["standardized"] is True
    assert model.training["offset"] == "before"
    assert model.feature_names == ("a", "b", "c", "d")
    lines = table.splitlines()
    first = lines.index("") + 1
    header = dict(line.split("  ", 1) for line in lines[: first - 1])
    assert [header[name].strip() for name in ("loss", "link", "rows")] == ["logistic", "logit", "100"]
    assert header["df residuals"].strip() == "95"
    assert header["method"].strip() == f"newton ({own.method_reason_})"
    assert lines[first].split() == ["coef", "std", "err", "z", "P>|z|", "[0.025", "0.975]"]
    assert [line.split()[0] for line in lines[first + 1 : first + 6]] == ["a", "b", "c", "d", "intercept"]
    assert float(lines[first + 3].split()[2]) == pytest.approx(own.standard_errors_[0, 2], rel=1e-3)
    robust = ["--summary", "--robust", "--json", "--tol", "1e-12", "--out", "m.json"]
    assert main(["fit", "d.csv", *words, *robust]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["n_samples"] == 100  # the table is beside it, on standard error
    (line,) = (line for line in shown.err.splitlines() if line.startswith("c "))
    assert float(line.split()[2]) == pytest.approx(own.robust_standard_errors_[0, 2], rel=1e-3)
    assert main(["predict", "m.json", "d.csv", "--decision"]) == 0
    scores = [float(line) for line in capsys.readouterr().out.split()]
    assert np.allclose(scores, own.decision_function(X, offset), atol=1e-3)


def decisions(capsys: pytest.CaptureFixture[str], *words: str) -> np.ndarray:
    assert main(["predict", "m.json", "--decision", *words]) == 0
    return np.array([float(line) for line in capsys.readouterr().out.split()])


def test_predict_command_uses_the_offset_column_of_the_training_data(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = frame["before"].to_numpy()
    assert main(["fit", "d.csv", "--label", "kind", "--offset", "-2", "--out", "m.json"]) == 0
    model = LinearModel.load(Path("m.json"))
    assert model.offset == "before"  # by its name, so that the order of the columns does not matter
    frame[["before", "kind", "d", "c", "b", "a"]].to_csv("turned.csv", index=False)
    frame.rename(columns={"before": "earlier"}).to_csv("renamed.csv", index=False)
    frame.drop(columns="before").to_csv("without.csv", index=False)
    plain = decisions(capsys, "d.csv", "--no-offset")
    assert np.array_equal(decisions(capsys, "without.csv", "--no-offset"), plain)
    assert np.allclose(decisions(capsys, "d.csv"), plain + offset)
    assert np.allclose(decisions(capsys, "turned.csv"), plain + offset)
    assert np.allclose(decisions(capsys, "renamed.csv", "--offset", "earlier"), plain + offset)
    for command in ("predict", "score"):
        assert main([command, "m.json", "without.csv"]) == 2
        line = capsys.readouterr().err
        assert "without.csv has no column 'before' of offsets, which the model was fitted with" in line
        assert "--no-offset" in line
    assert main(["predict", "m.json", "d.csv", "--offset", "before", "--no-offset"]) == 2
    assert "take one" in capsys.readouterr().err


def test_predict_command_uses_the_offset_of_an_archive(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    X, offset = frame[["a", "b", "c", "d"]].to_numpy(), frame["before"].to_numpy()
    y = np.where(frame["kind"] == "virginica", 1.0, -1.0)
    np.savez("d.npz", X=X, y=y, offset=offset)
    np.savez("without.npz", X=X, y=y)
    assert main(["fit", "d.npz", "--out", "m.json"]) == 0
    plain = decisions(capsys, "d.npz", "--no-offset")
    assert np.allclose(decisions(capsys, "d.npz"), plain + offset)
    assert np.array_equal(decisions(capsys, "without.npz", "--no-offset"), plain)
    assert main(["predict", "m.json", "without.npz"]) == 2
    assert "has no column 'offset' of offsets" in capsys.readouterr().err
    assert main(["fit", "without.npz", "--offset", "before", "--out", "m.json"]) == 2
    assert "has no offsets" in capsys.readouterr().err


def test_score_command_takes_weights(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "d.csv", "--label", "kind", "--out", "m.json"]) == 0
    model = LinearModel.load(Path("m.json"))
    right = model.predict(frame[["a", "b", "c", "d", "before"]].to_numpy()) == frame["kind"]
    frame["mass"] = np.where(right, 1.0, 3.0)
    frame.to_csv("weighted.csv", index=False)
    capsys.readouterr()
    assert main(["score", "m.json", "weighted.csv", "--weight", "mass", "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["score"]
    assert score == pytest.approx(np.average(right, weights=frame["mass"]))
    assert score < right.mean()
    frame.assign(mass=-1.0).to_csv("weighted.csv", index=False)
    assert main(["score", "m.json", "weighted.csv", "--weight", "mass"]) == 2
    assert "the weights must be at least 0" in capsys.readouterr().err


def test_fit_command_chooses_the_penalty_by_cross_validation(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--cv", "3", "--C-grid", "0.001,1", "--tol", "1e-10"]
    words = ["--label", "kind", "--standardize", "--nodes", "2", "--json", "--out", "m.json"]
    assert main(["fit", "d.csv", *grid, *words]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert " with C = 1, the best of 2 on 3 folds; the model is in m.json" in shown.err
    base = ADFSClassifier(standardize=True, n_nodes=2, tol=1e-10, random_state=0)
    X, y = frame[["a", "b", "c", "d", "before"]].to_numpy(), frame["kind"].to_numpy()
    own = ADFSClassifierCV([0.001, 1.0], cv=3, estimator=base).fit(X, y)
    assert found["C"] == own.C_ == 1.0
    assert found["cv"]["folds"] == 3
    scores = [one["score"] for one in found["cv"]["tried"]]
    assert scores == pytest.approx(own.scores_.mean(axis=0).tolist(), rel=1e-12)
    assert np.array_equal([one["scores"] for one in found["cv"]["tried"]], own.scores_.T)
    # Without --json a table, and how many fits of the folds ended early.
    short = ["--label", "kind", "--method", "adfs", "--max-passes", "2", "--out", "m.json"]
    assert main(["fit", "d.csv", "--cv", "3", "--C-grid", "0.001,1", *short]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0].split() == ["C", "accuracy", "lowest", "highest"]
    assert [line.split()[0] for line in told[1:3]] == ["0.001", "1"]
    assert "on 3 folds (6 of 6 fits ended above --tol) at a gap of" in told[3]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--l1-ratios", "1"],
            "--C-grid, --alpha-grid, --l1-ratios and --scoring are for cross-validation: add --cv 5",
        ),
        (
            ["--cv", "3", "--l1-ratio", "1", "--l1-ratios", "0.5,1"],
            "--l1-ratio is one value and --l1-ratios are",
        ),
        (["--cv", "3", "--alpha-grid", "1"], "the loss 'logistic' takes --C-grid, not --alpha-grid"),
        (
            ["--cv", "3", "--C-grid", "1,x"],
            "--C-grid takes numbers above 0 with commas, such as 0.01,0.1,1, got '1,x'",
        ),
        (
            ["--cv", "3", "--C-grid", "0"],
            "--C-grid takes numbers above 0 with commas, such as 0.01,0.1,1, got '0'",
        ),
        (["--cv", "3", "-C", "1"], "--cv chooses the weight itself"),
        (["--offset", "nothing"], "has no column 'nothing'"),
        (["--summary"], "--summary prints a table: give the file of the model with --out"),
        (["--robust"], "--robust is about the standard errors of --summary"),
        (["--summary", "--l1-ratio", "0.5", "--out", "m.json"], "--summary needs --l1-ratio 0: coefficients"),
    ],
)
def test_fit_command_refuses_options_that_do_not_fit_together(
    frame: pd.DataFrame, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "d.csv", "--label", "kind", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_summary_option_numbers_classes_as_in_the_file(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = load_iris(return_X_y=True)
    pd.DataFrame(X).assign(kind=y).to_csv("three.csv", index=False)
    words = ["fit", "three.csv", "--label", "kind", "--summary", "--out", "m.json"]
    assert main([*words, "--multi-class", "ovr"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:1].isdigit()] == ["0", "1", "2"]
    assert [line.split(":")[1] for line in lines if line.startswith("note")] == [
        f" class {k}" for k in range(3)
    ]
    assert main(words) == 2
    assert "with --summary use --multi-class ovr" in capsys.readouterr().err
