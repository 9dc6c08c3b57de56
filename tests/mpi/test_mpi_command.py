"""`adfs fit` under mpiexec: kinds of data and model beyond the plain case, and going on from a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from adfs.cli.app import NOT_CONVERGED
from adfs.data.model import LinearModel
from mpi_launch import Launched, environment, launch

pytestmark = pytest.mark.mpi


def fit_over_ranks(ranks: int, *arguments: str) -> Launched:
    """Run the command as `mpiexec -n ranks python -m mpi4py -m adfs fit …`."""
    command = [sys.executable, "-m", "mpi4py", "-m", "adfs", "fit", *arguments]
    return launch(ranks, command, timeout=120.0)


def test_a_regression_from_csv_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4)) + 3.0
    y = X @ [1.0, -2.0, 0.5, 0.0] + 7.0 + 0.1 * rng.standard_normal(90)
    table = pd.DataFrame(X, columns=list("abcd")).assign(target=y)
    for rank, part in enumerate((table[:50], table[50:])):
        part.to_csv(tmp_path / f"part-{rank}.csv", index=False)
    data = [str(tmp_path / "part-{rank}.csv"), "--label", "target", "--loss", "squared", "--alpha", "0.5"]
    accurate = [*data, "--tol", "1e-13"]
    whole = fit_over_ranks(2, *accurate, "--out", str(tmp_path / "whole.json"))
    assert whole.code == 0, whole.err

    kept = ["--checkpoint", str(tmp_path / "kept")]
    begun = fit_over_ranks(2, *accurate, *kept, "--max-passes", "5", "--out", str(tmp_path / "begun.json"))
    assert begun.code == NOT_CONVERGED, begun.err  # a model all the same
    shown = ["--timeline", str(tmp_path / "waits.svg"), "--progress"]
    resumed = fit_over_ranks(2, *accurate, *kept, "--resume", "--out", str(tmp_path / "resumed.json"), *shown)
    assert resumed.code == 0, resumed.err
    assert "waited for" in (tmp_path / "waits.svg").read_text(encoding="utf-8")
    assert "seconds, messages and bytes of each rank" in resumed.err
    assert "rank 0: nodes 0" in resumed.err  # the placement

    first, last, short = (
        LinearModel.load(tmp_path / f"{name}.json") for name in ("whole", "resumed", "begun")
    )
    assert first.coef.tobytes() == last.coef.tobytes()
    assert first.intercept.tobytes() == last.intercept.tobytes()
    assert not np.allclose(short.coef, last.coef, rtol=1e-9)
    ridge = Ridge(alpha=0.5).fit(X, y)
    np.testing.assert_allclose(last.coef.ravel(), ridge.coef_, rtol=1e-6)
    np.testing.assert_allclose(last.intercept, ridge.intercept_, rtol=1e-6)


def test_three_classes_on_two_nodes_a_rank_are_those_of_one_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((3, 5))
    names = []
    for node in range(4):
        labels = rng.integers(0, 3, 25)
        names.append(str(tmp_path / f"part-{node}.npz"))
        np.savez(names[-1], X=centers[labels] + 0.7 * rng.standard_normal((25, 5)), y=labels)
    common = ["--graph", "cycle", "--tol", "1e-9", "--seed", "3", "--parameters", "tuned", "--tau", "50"]
    alone = [*names, *common, "--out", str(tmp_path / "one.json"), "--no-progress"]
    command = [sys.executable, "-m", "adfs", "fit", *alone]
    found = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    pattern = [str(tmp_path / "part-{node}.npz"), "--nodes", "4", "--max-seconds", "100"]
    result = fit_over_ranks(2, *pattern, *common, "--out", str(tmp_path / "two.json"))
    assert result.code == 0, result.err
    one, two = (LinearModel.load(tmp_path / f"{name}.json") for name in ("one", "two"))
    assert one.classes == two.classes == [0, 1, 2]
    assert one.coef.tobytes() == two.coef.tobytes()
    assert [len(rank["nodes"]) for rank in two.training["ranks"]] == [2, 2]


def test_a_penalty_that_there_is_not_is_refused_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "a-0.npz", X=np.eye(2), y=[0, 1])
    np.savez(tmp_path / "a-1.npz", X=np.eye(2), y=[0, 1])
    result = fit_over_ranks(2, str(tmp_path / "a-{rank}.npz"), "--penalty", "l1")
    assert result.code == 2
    (sentence,) = result.sentences
    assert "L1 and elastic net are not part of this package" in sentence
