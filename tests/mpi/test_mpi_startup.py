"""What cannot work is refused at the start, with one sentence from rank 0; what differs harmlessly is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mpi_cases import Case
from mpi_launch import WORKER, environment, launch

pytestmark = pytest.mark.mpi

REFUSER = Path(__file__).parents[1] / "mpi_refusals.py"


def test_mpi_ranks_refuse_what_cannot_work_in_one_sentence(tmp_path: Path) -> None:
    found = launch(3, [sys.executable, str(REFUSER)], timeout=120.0).results
    expected = {
        "version": "the version of adfs is 0.",
        "seed": "the seed is 0 on rank 0 and 1 on rank 1",
        "loss": "the loss is",
        "parameters": "the choice of parameters is",
        "no shards": "rank 2 has no data",
        "no rows": "rank 1 has no data",
        "too many ranks": "2 nodes cannot be placed on 3 ranks",
        "too few shards": "the network has 9 nodes and the 3 ranks hold 3 shards together",
        "three classes": "all ranks together have 3",
        "bad data": "rank 1: the X of node 1 contains NaN",
        "unreadable": "rank 2: ",
        "dense widths": "rank 1: a dense shard has 5 columns and there are 6",
        "narrow": "n_features is 2 and a shard has 6 columns",
        "unknown method": "unknown method 'adsf': did you mean 'adfs'?",
        "misspelt argument": "unknown option of 'adfs' 'pases': did you mean 'max_passes'?",
        "single": "runs on one machine",
        "optimum": "needs the optimum",
        "kinds of labels": "numbers as labels and others text; give all the same kind",
        "problem losses": "the loss is",
        "nowhere to keep": "cannot write checkpoints into /dev/null/kept",
        "C": "C is 1 on rank 0 and 50 on rank 2",
        "an algorithm": "method is 'auto' on rank 0 and 'msda' on rank 1",
        "a task": "the estimator is ADFSClassifier on rank 0 and ADFSRegressor on rank 1",
        "alike": "not refused",  # the communicator is in order
    }
    assert set(found) == set(expected)
    for name, words in expected.items():
        messages = found[name]
        assert len(set(messages)) == 1, (name, messages)  # the same on every rank
        assert words in messages[0], (name, messages[0])


def test_mpi_rank_0_prints_the_one_sentence_of_a_refusal(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"name": "a", "case": Case().plain(), "of_rank": {"1": {"seed": 4}}},
    ]
    (tmp_path / "cases.json").write_text(json.dumps(entries))
    command = [sys.executable, "-m", "mpi4py", str(WORKER), str(tmp_path / "cases.json")]
    result = launch(3, command, timeout=60.0)
    assert result.code != 0
    assert "MPI_ABORT" not in result.err
    (sentence,) = result.sentences
    assert sentence == (
        "adfs: the ranks were not started alike: the seed is 3 on rank 0 and 4 on rank 1; "
        "give all ranks the same"
    )
    assert "Traceback" not in result.err


def test_fit_mpi_refuses_a_launcher_of_another_mpi(tmp_path: Path) -> None:
    """Processes that each see themselves alone would each solve their own shard."""
    code = (
        "import os, sys, time\n"
        "rank = os.environ.pop('OMPI_COMM_WORLD_RANK'); size = os.environ.pop('OMPI_COMM_WORLD_SIZE')\n"
        "for name in list(os.environ):\n"
        "    if name.startswith(('OMPI_', 'PMIX_', 'PRTE_')): del os.environ[name]\n"
        "os.environ |= {'PMI_RANK': rank, 'PMI_SIZE': size}\n"  # as another launcher says it
        "from mpi4py import MPI\n"
        "assert MPI.COMM_WORLD.size == 1\n"
        "import adfs\n"
        "if rank == '0': time.sleep(1)\n"  # the launcher kills it if another rank gives up first
        "adfs.fit_mpi(MPI.COMM_WORLD, [([[1.0], [2.0]], [1, -1])], max_passes=1)\n"
        "print('ran')\n"
    )
    result = launch(2, [sys.executable, "-c", code], timeout=60.0, env=environment())
    assert result.code != 0
    assert "ran" not in result.out
    (sentence,) = result.sentences
    assert "the launcher started 2 processes but each one's MPI library sees itself alone" in sentence


MEASURED = """
import json
from mpi4py import MPI
import adfs
from mpi_cases import Case
case = Case(sparse=True)
run = adfs.fit_mpi(MPI.COMM_WORLD, case.shard, case.network, tau="measure", max_passes=3.0, tol=1e-12)
if MPI.COMM_WORLD.rank == 0:
    found = {"tau": run.details["tau"], "used": run.parameters.tau, "nodes": run.details["nodes"]}
    print("RESULT " + json.dumps(found))
"""


def test_mpi_run_measures_tau_and_uses_it() -> None:
    found = launch(2, [sys.executable, "-c", MEASURED], timeout=120.0).results
    assert found["tau"] == found["used"] > 0.0
    assert len(found["nodes"]) in (4, 5)  # this rank's own


def test_net_bench_command_prints_tau() -> None:
    command = [sys.executable, "-m", "adfs", "net-bench", "-d", "10", "-d", "1000", "--json"]
    result = launch(3, command, timeout=120.0)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert [row["numbers"] for row in found["rows"]] == [10, 1000]
    assert len(found["hosts"]) == 3
    for row in found["rows"]:
        assert row["tau"] == pytest.approx(row["message µs"] / row["local step µs"])
        assert 0.0 < row["best pair"] <= row["message µs"] <= row["worst pair"]
