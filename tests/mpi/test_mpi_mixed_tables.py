"""Tables with text, missing values, truth values and quoted commas, from `adfs fit` to `adfs predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from adfs.cli import main
from adfs.data import LinearModel, ReadOptions, find_encoding
from mpi_launch import launch

pytestmark = pytest.mark.mpi
COMMON = ["--loss", "squared", "--alpha", "0.5", "--tol", "1e-10", "--no-progress"]


def houses(seed: int = 0, n: int = 120) -> pd.DataFrame:
    """Return the rows of two regions, each with cities of its own, sorted by region."""
    rng = np.random.default_rng(seed)
    north = rng.random(n) < 0.5
    cities = np.where(north, rng.choice(["Oslo", "Bergen"], n), rng.choice(["Rome", "Bari, BA"], n))
    frame = pd.DataFrame({"north": north, "rooms": rng.integers(1, 6, n), "city": cities})
    frame["garden"] = np.where(rng.random(n) < 0.2, np.nan, rng.normal(40.0, 1.0, n).round(2))
    frame["heating"] = rng.choice(["gas", "wood", None], n)
    frame.loc[0, "heating"] = "coal"  # one house only
    frame["price"] = (50.0 * frame["rooms"] + 30.0 * (cities == "Rome") + rng.normal(0.0, 5.0, n)).round(1)
    return frame.sort_values("north").reset_index(drop=True)


def write_shards(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Write one file per rank, with different cities."""
    for rank, north in enumerate((False, True)):
        frame[frame["north"] == north].to_csv(folder / f"s-{rank}.csv", index=False)
    return [str(folder / "s-{rank}.csv"), "--label", "price"]


def write_european(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Write semicolons and decimal commas, without names."""
    for name, rows in {"s-0": frame[:70], "s-1": frame[70:], "all": frame}.items():
        rows.to_csv(folder / f"{name}.csv", index=False, header=False, sep=";", decimal=",")
    words = ["--no-header", "--decimal", ",", "--label", "-1", "--drop", "0", "--categories", "1"]
    return [str(folder / "s-{rank}.csv"), *words]


def write_folder(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Write a partitioned folder, of which each rank reads its part."""
    pytest.importorskip("pyarrow")
    frame.to_parquet(folder / "parts", partition_cols=["north"], row_group_size=25)
    return [str(folder / "parts"), "--nodes", "2", "--label", "price", "--reference-levels"]


def write_bad_cell(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Write a text into a column of numbers of rank 1."""
    words = write_shards(frame.astype({"rooms": object}), folder)
    second = pd.read_csv(folder / "s-1.csv", dtype={"rooms": object})
    second.loc[2, "rooms"] = "secret"
    second.to_csv(folder / "s-1.csv", index=False)
    return words


def write_other_columns(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Write a file of rank 1 that lacks a column."""
    words = write_shards(frame, folder)
    pd.read_csv(folder / "s-1.csv").drop(columns="garden").to_csv(folder / "s-1.csv", index=False)
    return words


GOOD = (write_shards, write_european, write_folder)
BAD = {
    write_bad_cell: "s-1.csv: column 'rooms' holds text in data row 3, and mostly numbers",
    write_other_columns: "have different columns; give them the same",
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[str], Any]]:
    """Fit all tables on two ranks, in one launch; return folders, options, and how each rank ended."""
    places, commands = {}, []
    for write in (*GOOD, *BAD):
        folder = tmp_path_factory.mktemp(write.__name__)
        houses().to_csv(folder / "all.csv", index=False)
        places[write.__name__] = folder, write(houses(), folder)
        commands.append(["fit", *places[write.__name__][1], *COMMON, "--out", str(folder / "two.json")])
    worker = Path(__file__).parents[1] / "mpi_commands.py"
    ends = launch(2, [sys.executable, str(worker), json.dumps(commands)], timeout=120.0).results["ends"]
    return {
        name: (folder, words, end) for (name, (folder, words)), end in zip(places.items(), ends, strict=True)
    }


@pytest.mark.parametrize("write", GOOD)
def test_fit_of_a_mixed_table_has_the_same_bits_on_two_ranks(
    write, fitted, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (name, *words), ends = fitted[write.__name__]
    alone = [name.replace("{rank}", str(rank)) for rank in range(2 if "{rank}" in name else 1)]
    assert main(["fit", *alone, *words, *COMMON, "--out", str(folder / "one.json")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "converged" not in line]
    assert [code for code, _ in ends] == [0, 0]
    # Rank 0 says it for all.
    assert [line for line in ends[0][1] if "converged" not in line] == said
    assert ends[1][1] == []
    one, two = (LinearModel.load(folder / f"{name}.json") for name in ("one", "two"))
    assert one.encoding == two.encoding
    assert one.coef.tobytes() == two.coef.tobytes()
    assert one.intercept.tobytes() == two.intercept.tobytes()
    # The model takes the raw table, and equals scikit-learn's on the same features.
    assert main(["predict", str(folder / "two.json"), str(folder / "all.csv"), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["predictions"]
    frame, european = houses(), write is write_european
    columns = frame.drop(columns=["price", "north"] if european else "price")
    reading = ReadOptions(categories="rooms" if european else None, reference_levels=write is write_folder)
    X = find_encoding([columns], reading).transform(columns)
    expected = Ridge(alpha=0.5, solver="sparse_cg", tol=1e-12).fit(X, frame["price"]).predict(X)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)


@pytest.mark.parametrize("write", BAD)
def test_fit_over_ranks_refuses_a_table_of_one_rank_alike_and_without_its_values(write, fitted) -> None:
    folder, _, ends = fitted[write.__name__]
    (first, said), (second, other) = ends
    assert (first, second) == (2, 2)
    assert said == other
    (sentence,) = said
    assert BAD[write] in sentence
    assert "secret" not in sentence
    assert not (folder / "two.json").exists()
