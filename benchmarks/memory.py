"""What a simulation holds in memory, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.measure import DATA, Row, write_table

CHILD = """
import json, sys, numpy as np, scipy.sparse as sp, adfs, resource
from adfs.algorithms import METHODS, Setting
from adfs.theory import Parameters
case = sys.argv[1]
if case == "a9a x 10":
    from sklearn.datasets import load_svmlight_file
    X, y = load_svmlight_file(sys.argv[2])
    X, y = sp.csr_array(sp.vstack([X] * 10)), np.tile(y, 10)
    n = 16
else:
    n = 10_000
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20 * n, 10)); y = np.sign(X[:, 0])
problem = adfs.Problem(X, y, n_nodes=n)
network = adfs.Network(f"random-regular:{n},4", seed=0)
parameters = Parameters.tuned(problem, network)
process = METHODS["adfs"].start(Setting(problem, network, parameters, schedule="poisson"))
for end, events in process.schedule.windows(0.0, 50_000.0):
    process.run(events, 0, events.time.size)
data = sum(a.nbytes for a in problem.rows) + problem.y.nbytes + problem.weights.nbytes
state = sum(a.nbytes for a in process.arrays().values())
tables = process.schedule.samples.nbytes
print(json.dumps({"N": problem.n_samples, "n": n, "d": problem.n_features, "data": data, "state": state,
                  "tables": tables, "tips": process.state.tips.nbytes, "centers":
                  process.state.centers.nbytes}))
"""


def main() -> str:
    table = []
    for case in ("a9a x 10", "n = 10,000"):
        path = DATA / "a9a.bz2"
        if case.startswith("a9a") and not path.exists():
            continue
        command = [sys.executable, "-c", CHILD, case, str(path)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        per_sample = found["tips"] / found["N"]
        tables = (found["tables"]) / found["N"]
        per_node = found["centers"] / found["n"] / found["d"] / 8
        table += [
            Row(f"{case}: state a sample", per_sample, "bytes", target=16.0),
            Row(f"{case}: sampling tables a sample", tables, "bytes", target=16.0),
            Row(f"{case}: centres, doubles a node and feature", per_node, "", target=4.0),
            Row(
                f"{case}: state and tables over the data",
                (found["state"] + found["tables"]) / 2**20,
                "MiB",
                f"data {found['data'] / 2**20:.1f} MiB",
            ),
        ]
    return write_table("memory", "Memory of a simulation", table)
