"""How long a second process takes until it has run something: what an earlier one compiled is on disk."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Row, fastest, write_table

DEPENDENCIES = "import numpy, scipy.linalg, scipy.sparse.linalg, numba"
FIRST_RUN = """
import numpy as np, adfs
rng = np.random.default_rng(0)
X = rng.standard_normal((900, 10))
problem = adfs.Problem(X, np.sign(X[:, 0] + 0.3 * rng.standard_normal(900)), sigma=1.0, n_nodes=9)
run = adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), schedule="{schedule}", tol=1e-8)
assert run.converged
"""


def main() -> str:
    programs = {
        "dependencies": DEPENDENCIES,
        "iid": FIRST_RUN.format(schedule="iid"),
        "poisson": FIRST_RUN.format(schedule="poisson"),
    }

    def start(program: str) -> None:
        subprocess.run([sys.executable, "-c", program], check=True)

    for program in programs.values():
        start(program)  # the first process, which compiles
    best = fastest({name: lambda text=text: start(text) for name, text in programs.items()}, repeats=10)
    reference = f"NumPy, SciPy and numba imported and no more: {best['dependencies']:.2f} s"
    rows = [
        Row(
            f"from nothing to the end of a first certified run, {schedule}",
            best[schedule],
            "s",
            reference,
            target=1.0,
        )
        for schedule in ("iid", "poisson")
    ]
    notes = (
        "A process of its own, from its start to its end, interpreter included; 900 samples on a 3 × 3 grid "
        "to a gap of 1e-8. Minimum of ten."
    )
    return write_table("startup", "The start of a second process", rows, notes)
