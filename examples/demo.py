"""Train a classifier on a 3 × 3 grid of nodes that never see each other's samples, and certify every model.

Run with ``make demo``. The data is scikit-learn's breast cancer set, bundled with it.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import adfs

SEED = 0
TOLERANCE = 1e-8


def main() -> None:
    """Run the demo."""
    console = Console()
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
    if run.gap > TOLERANCE:
        raise SystemExit(f"the demo did not reach its tolerance: {run.gap:.1e}")


if __name__ == "__main__":
    main()
