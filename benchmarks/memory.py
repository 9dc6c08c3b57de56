"""What a simulation holds in memory at its peak, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.measure import DATA, Row, write_table

CONSTANTS = 2**20

CHILD = """
import json, sys, tracemalloc, numpy as np, scipy.sparse as sp, adfs
from adfs.theory import Parameters
case, schedule, path = sys.argv[1:]
if case == "a9a x 10":
    from sklearn.datasets import load_svmlight_file
    X, y = load_svmlight_file(path)
    X, y = sp.csr_array(sp.vstack([X] * 10)), np.tile(y, 10)
    n = 16
else:
    n = 10_000
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20 * n, 10)); y = np.sign(X[:, 0])

problem = adfs.Problem(X, y, n_nodes=n)
network = adfs.Network(f"random-regular:{n},4", seed=0)
parameters = Parameters.tuned(problem, network)

def peak():
    tracemalloc.start()
    adfs.simulate("adfs", problem, network, parameters=parameters, schedule=schedule, max_passes=3.0)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found

peak()  # compiles, and imports what is imported late
data = sum(array.nbytes for array in problem.samples.rows) + problem.y.nbytes + problem.weights.nbytes
print(json.dumps({"N": problem.n_samples, "n": n, "d": problem.n_features, "data": data, "peak": peak(),
                  "clocks": n + network.n_edges}))
"""


def main() -> str:
    table = []
    for case in ("a9a x 10", "n = 10,000"):
        path = DATA / "a9a.bz2"
        if case.startswith("a9a") and not path.exists():
            continue
        peaks = {}
        for schedule in ("iid", "poisson"):
            command = [sys.executable, "-c", CHILD, case, schedule, str(path)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            formula = 32 * found["N"] + 32 * found["d"] * found["n"] + CONSTANTS
            reference = f"allowed {formula / 2**20:.1f} MiB; the data are {found['data'] / 2**20:.1f} MiB"
            peaks[schedule] = found["peak"]
            what = f"{case}, {schedule}: peak of `simulate`"
            bound = 1.0 if schedule == "iid" else 1.5
            table.append(Row(what, found["peak"] / 2**20, "MiB", reference, found["peak"] / formula, bound))
    notes = (
        "All allocations of NumPy and Python (tracemalloc) beyond the problem, the network and the "
        "parameters, certificates included. Allowed are 16 bytes of state and 16 of sampling table per "
        "sample, 4 d doubles per node, and 1 MiB; for Poisson half as much again. A Poisson stream draws "
        "events ahead: at n = 10,000 its peak is "
        f"{(peaks['poisson'] - peaks['iid']) / found['clocks']:.0f} bytes per node or edge above that of iid."
    )
    return write_table("memory", "Memory of a simulation", table, notes)
