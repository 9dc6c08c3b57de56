"""The planner against runs: predicted times, whether its choice is the best, and seconds on MPI."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import adfs
from adfs.algorithms import METHODS, Method
from adfs.planning import Plan
from benchmarks.measure import DATA, RESULTS, machine

TOL = 1e-6
# The planner's constants come from other networks, sizes and seeds.
NETWORKS = ("torus:4x4", "path:10", "tree:15")
TAUS = (2.0, 40.0)
ROWS = (400, 1600)
WIDTHS = (12, 30)
# A method that needs more than this many times the best time is not the best, and its run is ended.
PATIENCE = 1.5
# Real data, the rows taken of it at most, and the penalty per row.
REAL = (("a9a.bz2", 50_000, 1e-4), ("ijcnn1.bz2", 50_000, 1e-4), ("w8a.bz2", 50_000, 1e-4))

# The candidates of each table, by its title.
TABLES: dict[str, Callable[[Method], bool]] = {
    "With the default candidates": lambda method: not method.solves_locally,
    "With msda among the candidates": lambda method: True,
    "Messages between neighbours only: no sums over all nodes": lambda method: (
        not (method.solves_locally or method.needs_sums)
    ),
}

NOTES = (
    f"To a certified relative gap of {TOL:g}, logistic loss, Gaussian classes, exponential delays, one seed "
    "each; time 1 is the computation of one sample. The planner's constants come from other networks, sizes "
    "and seeds of the same kind of data. Some factors were chosen after these settings had been run, so "
    "this is not a blind test. Methods that solve whole local problems, which the clock counts as one pass, "
    "are not recommended by default."
)


@dataclass(frozen=True)
class Outcome:
    """One setting: the recommended method, its predicted and simulated times, and the best that ran."""

    setting: str
    method: str
    predicted: float
    simulated: float
    best_method: str
    best: float

    @property
    def ratio(self) -> float:
        """Predicted over simulated."""
        return self.predicted / self.simulated

    @property
    def loss(self) -> float:
        """How much longer than the best the choice takes."""
        return self.simulated / self.best

    def cells(self) -> list[str]:
        """Return a row of the table."""
        return [
            self.setting,
            self.method,
            f"{self.predicted:,.0f}",
            f"{self.simulated:,.0f}",
            f"{self.ratio:.2f}",
            f"{self.best_method}, {self.best:,.0f}",
        ]


# --------------------------------------------------------------------------- idealised time


def classes(n_samples: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two Gaussian classes whose features are correlated: some directions are steeper than others."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n_samples) < 0.5, 1.0, -1.0)
    scale = np.arange(1, width + 1) ** -0.5
    X = (rng.standard_normal((n_samples, width)) + y[:, None] / math.sqrt(width)) * scale
    turn, _ = np.linalg.qr(rng.standard_normal((width, width)))
    return X @ turn, y


def simulated(name: str, problem: adfs.Problem, network: adfs.Network, tau: float, most: float) -> float:
    """Return the idealised time of a method to the target, infinite if it is longer than ``most``."""
    run = adfs.simulate(
        name,
        problem,
        network,
        tau=tau,
        tol=TOL,
        max_passes=20_000.0,
        time=most,
        delays=adfs.Delays(tau=tau),
        record=adfs.Record("gap", grid=adfs.Grid(first=0.3, per_decade=48)),
        progress=False,
    )
    gap, moment = run.columns["gap"], run.columns["time"]
    return float(moment[-1]) if gap[-1] <= TOL else math.inf


def run_all(
    plan: Plan,
    problem: adfs.Problem,
    network: adfs.Network,
    tau: float,
    known: dict[str, float],
) -> dict[str, float]:
    """Return the simulated time of every method that may be the best, infinite where it is not."""
    times: dict[str, float] = {}
    for one in plan.best_of_each():
        best = min(times.values(), default=math.inf)
        # A method that is predicted to take ten times the best time is not run.
        if one.time < 10.0 * best:
            most = 20.0 * one.time if math.isinf(best) else max(PATIENCE * best, 2.0 * one.time)
            again = math.isinf(known.get(one.method, math.inf))
            times[one.method] = (
                simulated(one.method, problem, network, tau, most) if again else known[one.method]
            )
    return times


def outcomes(name: str, tau: float, rows: int, width: int, seed: int) -> list[Outcome]:
    """Plan one setting with the candidates of each of `TABLES`, and run every method once."""
    network = adfs.Network(name)
    X, y = classes(rows * network.n_nodes, width, seed)
    penalty = (0.003, 0.02, 0.1)[seed % 3]
    problem = adfs.Problem(X, y, "logistic", penalty * rows, network.n_nodes)
    # ESDACD solves its local problems before its first event, and the clock does not count that.
    every = [one for one in METHODS if one != "esdacd"]
    times: dict[str, float] = {}
    found = []
    for allowed in TABLES.values():
        methods = [one for one in every if allowed(METHODS[one])]
        plan = adfs.plan(problem, network=[network], tau=tau, tol=TOL, methods=methods)
        times |= run_all(plan, problem, network, tau, times)
        first = min((one for one in times if one in methods), key=lambda one: times[one])
        words = f"{name}, τ = {tau:g}, m = {rows}, d = {width}, σ = {penalty:g} m"
        best = plan.best
        found.append(Outcome(words, best.method, best.time, times[best.method], first, times[first]))
    return found


def table(title: str, found: Sequence[Outcome]) -> list[str]:
    near = sum(1 / 1.5 <= one.ratio <= 1.5 for one in found)
    good = sum(one.loss <= 1.2 for one in found)
    heads = ["setting", "recommended", "predicted", "simulated", "ratio", "best of all that ran"]
    return [
        f"## {title}",
        "",
        f"Predicted within a factor 1.5 of simulated: **{near} of {len(found)}** settings.",
        f"Recommended within 20 % of the best: **{good} of {len(found)}**.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(one.cells())} |" for one in found),
        "",
    ]


# --------------------------------------------------------------------------- seconds on two ranks


def real_problem(name: str, most: int, penalty: float) -> adfs.Problem:
    from adfs.data import read_table

    found = read_table(DATA / name)
    rows = np.random.default_rng(0).permutation(found.n_samples)[:most]
    X, labels = found.X[rows], np.asarray(found.y)[rows]
    y = np.where(labels == labels.max(), 1.0, -1.0)
    return adfs.Problem(X, y, "logistic", penalty * y.size / 2, 2)


def worker() -> None:
    """Measure, plan and run on two ranks."""
    from mpi4py import MPI

    from adfs.runtimes.timing import bench_network

    comm = MPI.COMM_WORLD
    results: list[dict[str, Any]] = []
    for name, most, penalty in REAL:
        problem = real_problem(name, most, penalty)
        width, entries = problem.n_features, problem.entries_per_row
        bench = bench_network(comm, (width,), entries=None if entries is None else max(1, round(entries)))
        step, tau = float(np.median(bench.step)), float(bench.tau[0])
        plan = adfs.plan(
            problem,
            network=["path:2"],
            tau=tau,
            tol=TOL,
            methods=["adfs"],
            law="fixed",
            seconds_per_sample=step,
        )
        own = problem.shards[comm.Get_rank()]
        seconds = math.inf
        for _ in range(2):
            run = adfs.fit_mpi(
                comm, [tuple(own)], "path:2", sigma=float(problem.sigma[0]), tau=tau, tol=TOL, progress=False
            )
            seconds = min(seconds, run.seconds)
        results.append(
            {
                "data": name.partition(".")[0],
                "rows": problem.n_samples,
                "tau": tau,
                "predicted": float(plan.table["seconds"][0]),
                "measured": seconds,
            }
        )
    if comm.Get_rank() == 0:
        print("RESULT " + json.dumps(results), flush=True)


def on_ranks() -> list[str]:
    """Launch two ranks on this module; return the table, empty where the data is not there."""
    if not all((DATA / name).exists() for name, _, _ in REAL):
        return []
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy > 0.75 * cores:
        reason = f"Not measured: {busy:.0f} processes were running on {cores} cores."
        return ["## Seconds on two MPI ranks", "", reason, ""]
    launcher = Path(sys.executable).with_name("mpiexec")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(launcher), "-n", "2", sys.executable, "-m", "benchmarks.planner", "worker"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=900
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    near = sum(0.5 <= one["predicted"] / one["measured"] <= 2.0 for one in found)
    return [
        "## Seconds on two MPI ranks",
        "",
        f"Predicted within a factor 2 of measured: **{near} of {len(found)}** data sets.",
        "",
        "| data | rows | τ measured | predicted | measured | ratio |",
        "|---|---|---|---|---|---|",
        *(
            f"| {one['data']} | {one['rows']:,} | {one['tau']:.3g} | {one['predicted']:.3g} s | "
            f"{one['measured']:.3g} s | {one['predicted'] / one['measured']:.2f} |"
            for one in found
        ),
        "",
    ]


def main() -> str:
    ranks = on_ranks()  # first: a run of this very program is load too
    begun = time.perf_counter()
    found = []
    for seed, (name, tau, rows, width) in enumerate(product(NETWORKS, TAUS, ROWS, WIDTHS)):
        found.append(outcomes(name, tau, rows, width, 1000 + seed))
        print(*(" | ".join(one.cells()) for one in found[-1]), sep="\n", flush=True)
    tables = [table(title, column) for title, column in zip(TABLES, zip(*found, strict=True), strict=True)]
    lines = [
        "# The planner against runs",
        "",
        *(line for one in tables for line in one),
        NOTES,
        "",
        *ranks,
        f"{machine()} {time.perf_counter() - begun:.0f} s in all.",
    ]
    text = "\n".join(lines) + "\n"
    (RESULTS / "planner.md").write_text(text)
    return text


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else print(main())
