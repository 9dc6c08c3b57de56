"""No rank ever holds another's samples: others' files are unreadable to it, its memory does not grow."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from adfs.data import LinearModel
from mpi_launch import environment, launch

pytestmark = pytest.mark.mpi

# Each rank makes 40 MB of its own, so that one copy too many would be seen.
GROWING = """
import json, resource
import numpy as np
from mpi4py import MPI
import adfs
comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
X = rng.standard_normal((100_000, 50))
y = np.where(X[:, 0] > 0.0, 1.0, -1.0)
run = adfs.fit_mpi(comm, [(X, y)], "complete", max_passes=0.1, deadline=60.0)
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
found = comm.gather([most, run.theta.shape], root=0)
if comm.rank == 0:
    print("RESULT " + json.dumps({"ranks": found}))
"""


@pytest.mark.soak
def test_mpi_ranks_need_no_more_memory_when_there_are_more() -> None:
    used = {}
    for ranks in (2, 4):
        found = launch(ranks, [sys.executable, "-c", GROWING], timeout=120.0).results["ranks"]
        assert [shape for _, shape in found] == [[1, 50]] * ranks  # its own iterate only
        used[ranks] = max(megabytes for megabytes, _ in found)
    # Another rank's samples would be 40 MB.
    assert used[4] - used[2] < 20, used


def write_shards(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(8)
    for node in range(count):
        lines = []
        for _ in range(30 + node):
            x = np.round(rng.standard_normal(8) * (rng.random(8) < 0.6), 4)
            label = 1 if node == 0 else 1 + int(x @ direction > 0.0)  # one file has one class only
            width = 8 if node != 1 else 7  # and one does not reach the last column
            lines.append(f"{label} " + " ".join(f"{k + 1}:{x[k]:g}" for k in range(width) if x[k]))
        (folder / f"shard-{node}.svm").write_text("\n".join(lines) + "\n")


@pytest.mark.soak
def test_fit_over_ranks_reads_own_files_only_and_gives_the_same_model(tmp_path: Path) -> None:
    write_shards(tmp_path, 4)
    common = ["--network", "cycle", "--tol", "1e-8", "--class-weight", "balanced", "--no-progress"]
    names = [str(tmp_path / f"shard-{node}.svm") for node in range(4)]
    alone = subprocess.run(
        [sys.executable, "-m", "adfs", "fit", *names, *common, "--out", str(tmp_path / "one.json")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    # Each rank finds its own files under names that exist for it alone.
    open_only = (
        "import os, sys, builtins, adfs.files as streams\n"
        "rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "real = streams.open_bytes\n"
        "opened = []\n"
        "def guarded(path, *rest):\n"
        "    opened.append(path.name)\n"
        "    return real(path, *rest)\n"
        "import adfs.data.read as read\n"
        "read.open_bytes = guarded\n"
        "from adfs.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print('OPENED', rank, sorted(set(opened)), flush=True)\n"
        "sys.exit(code)\n"
    )
    arguments = ["fit", str(tmp_path / "shard-{rank}.svm"), *common, "--out", str(tmp_path / "four.json")]
    result = launch(4, [sys.executable, "-c", open_only, *arguments], timeout=120.0)
    assert result.code == 0, result.err
    opened = sorted(line for line in result.out.splitlines() if line.startswith("OPENED"))
    assert opened == [f"OPENED {rank} ['shard-{rank}.svm']" for rank in range(4)]
    one, four = (LinearModel.load(tmp_path / f"{name}.json") for name in ("one", "four"))
    assert one.classes == four.classes == [1, 2]
    assert one.coef.tobytes() == four.coef.tobytes()
    assert one.intercept.tobytes() == four.intercept.tobytes()
    assert [len(rank["nodes"]) for rank in four.training["ranks"]] == [1] * 4


# A rank reads as a user of its own, who cannot read the shard of the other.
AS_ANOTHER_USER = """
import os, sys
from mpi4py import MPI
import sklearn.datasets  # the other user may not read the libraries
import adfs
from adfs.data import read_tables
folder, user = sys.argv[1], 61001 + MPI.COMM_WORLD.rank
def shard(node):
    os.seteuid(user)
    try:
        table, = read_tables([os.path.join(folder, f"shard-{node}.svm")])
    finally:
        os.seteuid(0)
    return table.X, table.y
try:
    shard(1 - MPI.COMM_WORLD.rank)
except adfs.InputError:
    run = adfs.fit_mpi(MPI.COMM_WORLD, shard, "path:2", tol=1e-6)
    print("DONE", run.outcome, flush=True)
"""


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can read as other users")
def test_mpi_ranks_fit_shards_that_only_their_own_user_can_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, 2)
        folder.chmod(0o755)
        for node in range(2):
            path = folder / f"shard-{node}.svm"
            path.chmod(0o400)
            os.chown(path, 61001 + node, 61001 + node)
        result = launch(2, [sys.executable, "-c", AS_ANOTHER_USER, name], timeout=120.0)
    assert result.out.count("DONE converged") == 2, result.out + result.err[-3000:]
