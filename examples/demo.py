"""Train a classifier on a 3 × 3 grid of nodes that never see each other's samples, and certify every model.

Run with ``make demo``. The data is scikit-learn's breast cancer set, bundled with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import dump_svmlight_file, load_breast_cancer
from sklearn.preprocessing import StandardScaler

import adfs

SEED = 0
TOLERANCE = 1e-8


def two_ranks(X: np.ndarray, y: np.ndarray, console: Console) -> None:
    """Fit the same data on two real MPI ranks, each of which reads its own file only."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        console.print(
            "\nno mpiexec beside this Python: the two-rank run is left out (pip install 'adfs\\[mpi]')"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        for rank, rows in enumerate(np.array_split(np.arange(y.size), 2)):
            dump_svmlight_file(X[rows], y[rows], str(Path(folder) / f"shard-{rank}.svm"), zero_based=False)
        command = [
            "mpiexec",
            "-n",
            "2",
            "--oversubscribe",
            "adfs",
            "fit",
            "shard-{rank}.svm",
            "--graph",
            "path",
        ]
        command += ["-C", "1", "--tol", str(TOLERANCE), "--out", "model.json"]
        console.print(f"\n[bold]$ {' '.join(command)}[/bold]", highlight=False)
        command[0] = str(mpiexec)
        command[4:5] = [sys.executable, "-m", "mpi4py", "-m", "adfs"]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        subprocess.run(command, cwd=folder, env=os.environ | root, check=True, timeout=300)
        training = json.loads((Path(folder) / "model.json").read_text())["training"]
        console.print(
            f"{training['outcome']}: certified gap {training['gap']:.2e} after {training['passes']:.0f} "
            f"passes, {training['seconds']:.2f} s; no sample left its rank"
        )


def main() -> None:
    """Run the demo."""
    console = Console(width=120)
    X, classes = load_breast_cancer(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), 2.0 * classes - 1.0
    problem = adfs.Problem(X, y, loss="logistic", sigma=1.0 / 9, n_nodes=9, partition="random", seed=SEED)
    network = adfs.Network("grid:3x3")
    parameters = adfs.Parameters.tuned(problem, network, tau=5.0)
    console.print(f"{problem.n_samples} samples over {problem.n_nodes} nodes, {network.name}\n")
    console.print(str(parameters), "\n")

    run = adfs.simulate("adfs", problem, network, parameters=parameters, tol=TOLERANCE, seed=SEED)
    last = run.frame.iloc[-1]
    console.print(
        f"{run.outcome} after {last['passes']:.0f} passes and {last['messages']:.0f} messages of "
        f"{problem.n_features} numbers, {run.seconds:.2f} s\n"
    )

    # F* is at least the run's dual value: that certifies any point, each node's own included.
    table = Table("node", "samples", "certified gap", "accuracy on all data")
    for node, theta in enumerate(run.theta):
        gap = (problem.objective(theta) - last["dual"]) / problem.value_at_zero
        accuracy = np.mean(np.sign(problem.X @ theta) == problem.y)
        table.add_row(str(node), str(problem.shards[node].y.size), f"{gap:.2e}", f"{accuracy:.3f}")
    accuracy = np.mean(np.sign(problem.X @ run.coef) == problem.y)
    table.add_row("all", str(problem.n_samples), f"{run.gap:.2e}", f"{accuracy:.3f}")
    console.print(table)

    optimum = problem.optimum()
    console.print(
        f"\ndistance to the optimum found on one machine: {np.abs(run.coef - optimum.theta).max():.1e}"
    )
    console.print("\nTime to divide the error by e, constants left out (Table 1 of the paper), tau = 5:")
    console.print(adfs.theory.table1(problem, network, tau=5.0)[["time", "formula"]].to_string())
    two_ranks(X, y, console)
    if run.gap > TOLERANCE:
        raise SystemExit(f"the demo did not reach its tolerance: {run.gap:.1e}")


if __name__ == "__main__":
    main()
