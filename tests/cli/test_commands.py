"""The commands: what they write, print and return."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from typer.main import get_command

import adfs
from adfs.cli import app, main
from adfs.cli.options import ModelOptions, option_names
from adfs.data import LinearModel
from adfs.launching import launch_of
from adfs.problem.losses import LOSSES

ROOT = Path(__file__).parents[2]
A9A = ROOT.parent / "shared" / "data" / "a9a.bz2"


def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same samples in every format, as the working directory."""
    X, y = cancer()
    dump_svmlight_file(X, y, str(tmp_path / "t.svm"), zero_based=False)
    np.savez(tmp_path / "dense.npz", X=X, y=y)
    rows = sp.csr_array(X)
    parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": rows.shape}
    np.savez(tmp_path / "sparse.npz", y=y, **parts)
    frame = pd.DataFrame(X, columns=[f"f{k}" for k in range(X.shape[1])])
    frame["label"] = y
    frame.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*arguments: str) -> int:
    return main(["fit", *arguments])


def test_fit_command_gives_the_model_of_scikit_learn_from_every_format(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = cancer()
    reference = LogisticRegression(solver="newton-cholesky", C=2.0, tol=1e-13).fit(X, y)
    for name in ("t.svm", "dense.npz", "sparse.npz", "t.csv"):
        assert fit(name, "-C", "2", "--tol", "1e-14", "--out", "m.json") == 0
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("adfs: converged to a certified relative gap of ")
        assert captured.err.endswith("; the model is in m.json\n")
        assert captured.err.count("\n") == 1  # nothing else unasked
        model = LinearModel.load(folder / "m.json")
        assert np.allclose(model.coef, reference.coef_, rtol=0.0, atol=1e-6)
        assert np.allclose(model.intercept, reference.intercept_, rtol=0.0, atol=1e-6)
        assert model.training["gap"] <= 1e-12
        assert model.training["C"] == 2.0
        for other in ("t.svm", "dense.npz", "sparse.npz"):
            assert main(["score", "m.json", other, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["score"] == pytest.approx(
                reference.score(X, y), abs=1e-12
            )


def test_predict_command_predicts_and_finds_columns_by_their_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = cancer()
    assert fit("t.csv", "--out", "m.json") == 0
    model = LinearModel.load(folder / "m.json")
    assert main(["predict", "m.json", "t.csv"]) == 0
    labels = [int(line) for line in capsys.readouterr().out.split()]
    assert labels == model.predict(X).tolist()
    assert np.mean(labels == y) > 0.95
    # Columns are found by their names, the label may be missing, other columns are refused unless told.
    frame = pd.read_csv("t.csv").drop(columns="label")
    frame[frame.columns[::-1]].to_csv("turned.csv", index=False)
    assert main(["predict", "m.json", "turned.csv", "--out", "p.txt"]) == 0
    assert [int(line) for line in Path("p.txt").read_text().split()] == labels
    frame.assign(extra=1.0).to_csv("more.csv", index=False)
    assert main(["predict", "m.json", "more.csv"]) == 2
    assert "has a column 'extra' that the model does not know" in capsys.readouterr().err
    assert main(["predict", "m.json", "more.csv", "--ignore-extra-features", "--proba"]) == 0
    table = pd.read_csv(__import__("io").StringIO(capsys.readouterr().out))
    assert list(table.columns) == ["0", "1"]
    assert np.allclose(table.to_numpy(), model.proba(X), rtol=1e-12)
    assert main(["predict", "m.json", "t.csv", "--decision", "--json"]) == 0
    assert np.allclose(json.loads(capsys.readouterr().out)["predictions"], model.decision(X), rtol=1e-12)
    assert main(["predict", "t.csv", "t.csv"]) == 2
    assert capsys.readouterr().err == "adfs: t.csv is not an adfs model: it is not JSON, or was cut short\n"


def test_predict_command_refuses_unseen_features_unless_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.svm").write_text("1 1:1 2:1\n-1 1:-1 2:2\n")
    Path("b.svm").write_text("1 2:1 5:1\n-1 1:-1\n")
    assert fit("a.svm", "--out", "m.json") == 0
    assert main(["predict", "m.json", "b.svm"]) == 2
    assert "has 5 features, 2 are wanted" in capsys.readouterr().err
    assert main(["predict", "m.json", "b.svm", "--ignore-extra-features"]) == 0
    assert len(capsys.readouterr().out.split()) == 2


def test_fit_command_takes_regression_three_classes_and_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    X.assign(price=y).to_csv("r.csv", index=False)
    assert (
        fit(
            "r.csv",
            "--label",
            "price",
            "--loss",
            "squared",
            "--alpha",
            "0.5",
            "--tol",
            "1e-13",
            "--out",
            "r.json",
        )
        == 0
    )
    reference = Ridge(alpha=0.5).fit(X, y)
    model = LinearModel.load(folder / "r.json")
    assert np.allclose(model.coef[0], reference.coef_, rtol=1e-6, atol=1e-6 * np.abs(reference.coef_).max())
    assert model.intercept[0] == pytest.approx(reference.intercept_, rel=1e-9)
    assert main(["score", "r.json", "r.csv"]) == 0  # the model remembers its label column
    assert capsys.readouterr().out.startswith(f"r2 {reference.score(X, y):.6f} ")
    X, y = load_iris(return_X_y=True, as_frame=True)
    X.assign(kind=np.array(["setosa", "versicolor", "virginica"])[y]).to_csv("i.csv", index=False)
    assert fit("i.csv", "--label", "kind", "--out", "i.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "converged"
    assert main(["predict", "i.json", "i.csv"]) == 0
    assert set(capsys.readouterr().out.split()) == {"setosa", "versicolor", "virginica"}


def test_fit_command_takes_files_as_nodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = cancer()
    for node, rows in enumerate(np.array_split(np.arange(y.size), 3)):
        dump_svmlight_file(X[rows], y[rows], f"s{node}.svm", zero_based=False)
    shards = ["s0.svm", "s1.svm", "s2.svm"]
    assert fit(*shards, "--network", "path", "--tol", "1e-13", "--out", "three.json") == 0
    assert fit("t.svm", "--nodes", "3", "--network", "path", "--tol", "1e-13", "--out", "split.json") == 0
    assert fit("t.svm", "--tol", "1e-13", "--out", "one.json") == 0
    three, split, one = (LinearModel.load(Path(name)) for name in ("three.json", "split.json", "one.json"))
    assert np.array_equal(three.coef, split.coef)  # the same nodes, the same schedule: the same bits
    assert np.allclose(three.coef, one.coef, rtol=0.0, atol=1e-6)
    assert three.training["n_nodes"] == 3
    capsys.readouterr()
    assert fit(*shards, "--nodes", "4", "--out", "m.json") == 2
    assert "3 files make 3 nodes" in capsys.readouterr().err
    assert fit(*shards, "--partition", "random", "--out", "m.json") == 2
    assert "--partition is for one file" in capsys.readouterr().err


def test_fit_command_that_does_not_converge_exits_with_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("t.svm", "--max-passes", "2", "--tol", "1e-9", "--out", "m.json", "--history", "h.csv") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("adfs: stopped (out of budget) at a gap of ")
    model = LinearModel.load(Path("m.json"))
    assert model.training["outcome"] == "out of budget"
    history = pd.read_csv("h.csv")
    assert history["gap"].iloc[-1] == pytest.approx(model.training["gap"], rel=1e-9)
    assert history["passes"].is_monotonic_increasing


REQUESTS = {
    "l1": (["--penalty", "l1"], "--penalty l1 is not available; use 'l2', or 'elasticnet' with --l1-ratio"),
    "l1 ratio": (["--l1-ratio", "1.5"], "--l1-ratio must be between 0 and 1, got 1.5"),
    "lasso": (["--l1-ratio", "1", "--loss", "hinge"], "needs a smooth loss"),
    "loss": (["--loss", "logstic"], "did you mean 'logistic'?"),
    "alpha": (["--alpha", "1"], "takes -C"),
    "C": (["--loss", "squared", "-C", "1"], "takes --alpha"),
    "C < 0": (["-C", "-1"], "C must be finite and above 0"),
    "classes": (["--loss", "squared", "--class-weight", "balanced"], "are for classification"),
    "weights": (["--class-weight", "heavy"], "balanced or left out"),
    "tol": (["--tol", "0"], "--tol must be above 0, got 0"),
    "graph": (["--nodes", "4", "--network", "cicle"], "did you mean 'cycle'?"),
    "method": (["--method", "adsf"], "did you mean 'adfs'?"),
    "smooth": (["--loss", "hinge", "--method", "adfs"], "needs a smooth loss"),
    "parameters": (["--parameters", "papers"], "did you mean 'paper'?"),
    "schedule": (["--schedule", "poison"], "did you mean 'poisson'?"),
    "format": (["--format", "xls"], "unknown format 'xls'"),
    "resume": (["--resume"], "--checkpoint"),
    "base": (["--index-base", "2"], "must be 0 or 1"),
    "multi": (["--multi-class", "both"], "--multi-class must be auto, ovr or multinomial, got 'both'"),
    "softmax": (["--multi-class", "multinomial", "--loss", "hinge"], "is for the logistic loss"),
    "option": (["--no-such-option"], "--no-such-option"),
    "number": (["-C", "much"], "Invalid value for '-C'"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_fit_command_refuses_a_bad_request_in_one_line(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, message = REQUESTS[kind]
    assert fit("t.svm", "--out", "m.json", *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("m.json").exists()


def test_fit_command_with_json_needs_a_place_for_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("t.svm", "--json") == 2
    assert "--out" in capsys.readouterr().err
    assert fit("t.svm") == 0
    assert LinearModel.from_json(capsys.readouterr().out).n_features == 30


@pytest.mark.parametrize("option", ["--tol", "--max-passes", "--max-seconds"])
def test_fit_command_refuses_limits_below_zero_by_their_option(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "t.svm", option, "-3"]) == 2
    assert capsys.readouterr().err == f"adfs: {option} must be above 0, got -3\n"


def test_fit_command_asks_for_mpiexec_if_files_are_named_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "shard-{rank}.svm"]) == 2
    assert "start them with mpiexec -n" in capsys.readouterr().err


def test_debug_option_may_stand_anywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("none.svm", "--debug") == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith("adfs: cannot read none.svm: No such file or directory\n")


def test_fit_command_shows_progress_on_standard_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit("t.svm", "--progress", "--out", "m.json") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "gap" in captured.err


# --------------------------------------------------------------------------- simulate, rates


def test_simulate_command_writes_the_run_and_its_history(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["simulate", "dense.npz", "--nodes", "9", "--network", "grid:3x3", "--seed", "4"]
    assert main([*common, "--tol", "1e-8", "--json", "--out", "run.npz", "--history", "h.csv"]) == 0
    summary = json.loads(capsys.readouterr().out)
    X, y = cancer()
    problem = adfs.Problem(X, np.where(y == 1, 1.0, -1.0), n_nodes=9)
    run = adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), seed=4, tol=1e-8)
    assert summary["gap"] == run.gap  # the same bits as from Python
    assert np.array_equal(adfs.Run.load("run.npz").theta, run.theta)
    assert len(pd.read_csv("h.csv")) == len(run.frame)
    assert main([*common, "--tol", "1e-8", "--max-passes", "1"]) == 1
    assert main([*common, "--max-passes", "1"]) == 0  # no tolerance was asked for
    assert "out of budget" in capsys.readouterr().out
    assert main(["simulate", "sklearn:iris"]) == 2
    assert "has 3 classes" in capsys.readouterr().err


def test_simulate_and_compare_commands_lose_exchanges(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["simulate", "dense.npz", "--nodes", "9", "--network", "grid:3x3", "--max-passes", "3"]
    assert main([*common, "--schedule", "poisson", "--lost", "0.3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    X, y = cancer()
    problem = adfs.Problem(X, np.where(y == 1, 1.0, -1.0), n_nodes=9)
    run = adfs.simulate("adfs", problem, "grid:3x3", schedule="poisson", lost=0.3, max_passes=3)
    assert (summary["gap"], summary["messages"]) == (run.gap, run.columns["messages"][-1])
    assert main([*common, "--lost", "0.3"]) == 2
    assert "the iid schedule has no lost exchanges" in capsys.readouterr().err
    compare = ["compare", "--data", "dense.npz", "--network", "grid:3x3", "--jobs", "1", "--max-passes", "2"]
    assert main([*compare, "--lost", "0.3", "--method", "adfs:schedule=poisson"]) == 0
    assert "lost = 0.3" in Path("comparison/comparison.toml").read_text(encoding="utf-8")


def test_rates_command_prints_parameters_and_table_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["sklearn:breast_cancer", "--network", "grid:3x3", "--tau", "5"]
    assert main(["rates", *options, "--json"]) == 0
    rates = json.loads(capsys.readouterr().out)
    X, y = cancer()
    problem = adfs.Problem(X, np.where(y == 1, 1.0, -1.0), n_nodes=9)
    network = adfs.Network("grid:3x3")
    parameters = adfs.Parameters.tuned(problem, network, tau=5)
    assert rates["kappa_s"] == pytest.approx(problem.kappa_s, rel=1e-12)
    assert rates["kappa_b"] == pytest.approx(problem.kappa_b, rel=1e-9)
    assert rates["gamma"] == pytest.approx(network.gamma, rel=1e-12)
    assert rates["events_to_divide_by_e"] * parameters.contraction == pytest.approx(1.0, rel=1e-12)
    table = adfs.theory.table1(problem, network, tau=5)
    assert rates["table1"] == pytest.approx(dict(table["time"]), rel=1e-9)
    assert main(["rates", *options, "--parameters", "paper"]) == 0
    text = capsys.readouterr().out
    assert "κ_s" in text
    assert "m + √(m κ_s) + (1 + τ) √(κ_s/γ)" in text
    assert "paper" in text
    assert main(["rates", "sklearn:breast_cancer", "--json"]) == 0  # one node: γ is not a number
    assert json.loads(capsys.readouterr().out)["n_nodes"] == 1
    Path("sites.txt").write_text("oslo rome\nrome bonn\n")
    assert main(["rates", "sklearn:breast_cancer", "--network", "sites.txt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_nodes"], found["network"]) == (3, "sites.txt")
    assert main(["rates", "sklearn:breast_cancer", "--network", "sights.txt"]) == 2
    assert "graph sights.txt: cannot be read: No such file" in capsys.readouterr().err
    assert main(["rates", "sklearn:diabetes", "--loss", "absolute"]) == 2
    assert "needs a smooth loss" in capsys.readouterr().err


# --------------------------------------------------------------------------- the command line as a whole


@pytest.mark.parametrize("command", app.COMMANDS)
def test_commands_have_an_example_and_a_help_for_every_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"adfs {command} " in text.partition("Options:")[2]
    described = get_command(app.build({})).commands[command]
    assert [parameter.name for parameter in described.params if not parameter.help] == []


def test_fit_command_has_the_defaults_of_the_estimators() -> None:
    defaults = dataclasses.asdict(ModelOptions())
    for estimator in (adfs.ADFSClassifier(), adfs.ADFSRegressor()):
        known = estimator.get_params()
        shared = set(defaults) & set(known) - {"loss", "C", "alpha"}  # these three depend on the task
        assert {name: defaults[name] for name in shared} == {name: known[name] for name in shared}
    # Every field is a parameter of one of them, and no two options have the same name.
    parameters = {*adfs.ADFSClassifier().get_params(), *adfs.ADFSRegressor().get_params()}
    assert set(defaults) <= parameters
    assert len(set(option_names().values())) == len(option_names())


def test_help_names_every_loss(capsys: pytest.CaptureFixture[str]) -> None:
    named = [name for name in LOSSES if name != "multinomial"]  # which is multi-class logistic
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    for command in ("fit", "plan", "simulate"):
        assert main([command, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        for name in named:
            assert name in text
            assert f"`{name}`" in guide


def test_help_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 60
    for command in app.COMMANDS:
        assert f"\n  {command} " in text
    assert "    adfs fit " in text


def test_completion_offers_commands_and_options() -> None:
    def complete(words: str) -> str:
        count = str(len(words.split(" ")) - 1)
        asked = {"_ADFS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
        environment = os.environ | asked | {"PYTHONPATH": str(ROOT / "src")}
        code = "from adfs.cli import main; main()"
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        ).stdout

    assert set(app.COMMANDS) <= set(complete("adfs ").split())
    assert "--max-passes" in complete("adfs fit --max-p")


def test_launch_of_sees_mpi_without_importing_it(folder: Path) -> None:
    slurm = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}
    assert launch_of({}) is None
    assert launch_of(slurm) is None  # a job step without MPI
    assert launch_of(slurm | {"PMIX_RANK": "3"}) == (8, 3)
    assert launch_of({"PMI_SIZE": "2", "PMI_RANK": "1"}) == (2, 1)
    assert fit("t.svm", "--out", "m.json") == 0
    assert "mpi4py" not in sys.modules


def test_score_command_of_an_archive_starts_without_heavy_libraries(folder: Path) -> None:
    """LIBSVM text is read by scikit-learn and CSV by pandas, which take a second to import."""
    assert fit("t.svm", "--out", "m.json") == 0
    code = (
        "import sys; from adfs.cli import main; assert main(['score', 'm.json', 'dense.npz']) == 0;"
        "print(sorted({'sklearn', 'pandas', 'networkx'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


@pytest.mark.skipif(not A9A.exists(), reason="the file a9a.bz2 is not here")
def test_fit_command_solves_a9a(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.json"
    assert fit(str(A9A), "--loss", "logistic", "-C", "1", "--out", str(out), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["gap"] <= 1e-6
    assert summary["n_samples"] == 32561
    assert summary["passes"] < 60
    assert main(["score", str(out), str(A9A.with_name("a9a.t.bz2")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] > 0.84
