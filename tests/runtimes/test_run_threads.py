"""A whole run, a fit, an optimum and a checkpoint are the same whatever the number of BLAS threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Large enough for OpenBLAS to share products of matrices and vectors among its threads.
RUNS = """
import hashlib, sys, warnings
import numpy as np
import adfs
from adfs.algorithms import METHODS

def show(name, *arrays):
    print(name, [hashlib.sha256(array.tobytes()).hexdigest()[:12] for array in arrays])

warnings.simplefilter("ignore")  # fits that are not to converge
rng = np.random.default_rng(0)
X = rng.standard_normal((1200, 600)) / 20.0
y = np.sign(X[:, 0] + 0.1 * rng.standard_normal(1200))
problem = adfs.Problem(X, y, sigma=0.5, n_nodes=4)
for name in sorted(set(METHODS) - {"ns-adfs", "interior-point"}):
    run = adfs.simulate(name, problem, "grid:2x2", max_passes=1, record=("gap", "objective"))
    show(name, run.theta, run.frame.drop(columns="seconds").to_numpy())
for model, target in ((adfs.ADFSRegressor(), X[:, 1] + y), (adfs.ADFSClassifier(), y)):
    model.set_params(n_nodes=4, network="grid", max_iter=2, random_state=0).fit(X, target)
    show(type(model).__name__, model.coef_, np.array(model.dual_gap_))
three = adfs.ADFSClassifier(multi_class="multinomial", n_nodes=2, max_iter=2, random_state=0)
show("softmax", three.fit(X, np.digitize(X[:, 0], [-0.02, 0.02])).coef_)
show("optimum", problem.optimum().theta)
# The second process goes on with what the first one kept, and so on.
passes = float(sys.argv[2])
kept = adfs.simulate(
    "adfs", problem, "grid:2x2", max_passes=passes, checkpoint=sys.argv[1], resume=passes != 1.0
)
print(kept.columns["passes"][-1] >= passes - 0.1, file=sys.stderr)
"""


def test_run_does_not_depend_on_the_threads_of_blas(tmp_path: Path) -> None:
    found: list[str] = []
    for stage, threads in enumerate(("1", "4"), start=1):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        command = [sys.executable, "-c", RUNS, str(tmp_path / "kept"), str(stage)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "True"
        found.append(done.stdout)
    assert found[0] == found[1]
