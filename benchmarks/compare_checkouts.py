"""Do two checkouts compute the same bytes? ``python -m benchmarks.compare_checkouts OLD NEW [--speed]``.

The same cases run with the package of either folder's ``src``, on this machine and with this Python.
Everything but times must agree to the last bit; the exit code is 1 when something does not that must.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

import adfs

Found = dict[str, np.ndarray]

NODES, TURNS, REPEATS = 9, 5, 8
SIGMA = 0.2 + 0.1 * (np.arange(NODES) % 4)
# Entries of a model file that say how long it took, where its data was, and which version wrote it.
NOT_COMPARED = {"seconds", "version", "files", "ranks"}
REGRESSION = {"squared", "huber", "smoothed_quantile", "absolute", "quantile", "epsilon_insensitive"}


@dataclass(frozen=True)
class Case:
    """A run of ``adfs.simulate`` or ``adfs.fit_mpi``."""

    method: str
    loss: str = "logistic"
    sparse: bool = False
    network: str = "grid:3x3"
    options: dict[str, Any] = field(default_factory=dict)


# Every method, with these losses, on dense and on sparse rows, on one network after the other.
LOSSES = {
    "adfs": "logistic squared squared_hinge smoothed_hinge huber smoothed_quantile",
    "ns-adfs": "hinge absolute quantile epsilon_insensitive",
    "adfs-block": "logistic squared",
    "msda": "logistic squared_hinge",
    "esdacd": "logistic huber",
    "point-saga": "smoothed_hinge",
    **dict.fromkeys(("dsba", "extra", "agd", "dagd", "apcg"), "logistic squared"),
}
NETWORKS = ("grid:3x3", "cycle:9", "erdos-renyi:9,0.5")
SIMULATED = {
    f"{method} {loss}, {'sparse' if sparse else 'dense'}": Case(method, loss, sparse, NETWORKS[place % 3])
    for method, losses in LOSSES.items()
    for place, (loss, sparse) in enumerate(product(losses.split(), (False, True)))
} | {
    "adfs paper, dense": Case("adfs", options={"parameters": "paper"}),
    "adfs paper, sparse, read at v": Case("adfs", sparse=True, options={"parameters": "paper", "read": "v"}),
    "adfs tuned, tau": Case("adfs", options={"parameters": "tuned", "tau": 20.0}),
    "adfs tuned, quick messages": Case("adfs", options={"tau": 1e-3}),
    "adfs-block tuned, tau": Case("adfs-block", options={"parameters": "tuned", "tau": 5.0}),
    "adfs to a tolerance": Case("adfs", options={"passes": None, "tol": 1e-6}),
    "adfs four measures": Case("adfs", options={"record": ("gap", "objective", "distance", "consensus")}),
    "adfs fixed times, blocking": Case("adfs", options={"delays": {"law": "fixed", "blocking": True}}),
    "adfs budget of idealised time": Case("adfs", options={"delays": {"tau": 2.0}, "time": 150.0}),
    **{f"{name} idealised times": Case(name, options={"delays": {"tau": 3.0}}) for name in LOSSES},
    "adfs poisson, dense": Case("adfs", options={"schedule": "poisson"}),
    "adfs poisson, sparse": Case("adfs", sparse=True, options={"schedule": "poisson", "tau": 5.0}),
    "ns-adfs poisson": Case("ns-adfs", "hinge", options={"schedule": "poisson"}),
}
ON_RANKS = {
    f"2 ranks: {method}, {'sparse' if sparse else 'dense'}": Case(method, LOSSES[method].split()[0], sparse)
    for method, sparse in product(("adfs", "ns-adfs", "adfs-block", "msda"), (False, True))
} | {"2 ranks: adfs poisson": Case("adfs", options={"schedule": "poisson"})}

# What is timed: network, rows per node, columns, share of entries that are not 0, events, options.
Timed = tuple[str, int, int, float, float, dict[str, Any]]
TIMED: dict[str, Timed] = {
    "local step, dense d=54, one node": ("path:1", 4000, 54, 1.0, 1e5, {}),
    "local step, dense d=54, nine nodes": ("grid:3x3", 500, 54, 1.0, 1e5, {"tau": 50.0}),
    "local step, sparse d=2000, one node": ("path:1", 4000, 2000, 0.01, 1e5, {}),
    "local step, sparse d=2000, nine nodes": ("grid:3x3", 500, 2000, 0.01, 1e5, {"tau": 50.0}),
    "mostly communication, 100 nodes": ("grid:10x10", 3, 54, 1.0, 1e5, {"tau": 0.01}),
    "poisson, nine nodes": ("grid:3x3", 500, 54, 1.0, 1e5, {"tau": 50.0, "schedule": "poisson"}),
    "2 ranks, mostly exchanges": ("path:2", 5, 54, 1.0, 5e3, {"tau": 0.01}),
    "2 ranks, nine nodes": ("grid:3x3", 500, 54, 1.0, 1e5, {"tau": 50.0}),
}


def samples(rows: int, width: int, density: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (rows, width) with zeros among them, and their noisy targets (rows,)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < density)
    return X, X[:, 0] - 0.5 * X[:, 1] + 0.3 * rng.standard_normal(rows)


def shard_of(case: Case, node: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the rows, labels and weights of one node; nodes differ, one row and one weight are zero."""
    X, y = samples(9 + node % 3, 7, 0.6, [5, node])
    weights = np.random.default_rng([6, node]).random(y.size) + 0.5
    X[2], weights[4] = 0.0, 0.0
    labels = y if case.loss in REGRESSION else np.where(y > 0.0, 1.0, -1.0)
    return (sp.csr_array(X) if case.sparse else X), labels, weights


def write_files(folder: Path) -> None:
    """Write the data that the command line reads."""
    X, y = samples(90, 5, 0.8, [7])
    three = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "middle"))
    for name, labels in (("classes.csv", three), ("targets.csv", y)):
        pd.DataFrame(X).add_prefix("x").assign(label=labels).to_csv(folder / name, index=False)
    for name, part in (("all", slice(90)), ("shard-0", slice(40)), ("shard-1", slice(40, 90))):
        dump_svmlight_file(X[part], np.sign(y[part]), str(folder / f"{name}.svm"), zero_based=False)


def found_in(run: Any) -> Found:
    """Return all of a run that is not a time."""
    columns = {f"frame {name}": run.frame[name].to_numpy() for name in run.frame if name != "seconds"}
    whole = {"theta": run.theta, "coef": run.coef, "gap": run.gap, "outcome": str(run.outcome)}
    return {name: np.asarray(value) for name, value in (whole | columns).items()}


def run_case(case: Case, comm: Any = None, **more: Any) -> Found:
    """Run a case in this process, or on the ranks of a communicator."""
    options: dict[str, Any] = {"method": case.method, "seed": 3, "passes": 12.0} | case.options | more
    if "delays" in options:
        kind = getattr(adfs, "Delays", None) or adfs.runtimes.Delays
        options["delays"] = kind(**options["delays"])
    network = adfs.Network(case.network, seed=1 if case.network.startswith("erdos") else None)
    if comm is not None:
        options |= {"loss": case.loss, "sigma": SIGMA, "gather": True}
        return found_in(adfs.fit_mpi(comm, lambda node: shard_of(case, node), network, **options))
    shards = [shard_of(case, node) for node in range(NODES)]
    problem = adfs.Problem.from_shards(shards, case.loss, SIGMA)
    return found_in(adfs.simulate(problem=problem, network=network, **options))


def resumed(method: str, folder: Path) -> Found:
    """Run to some events, and go on from the checkpoint to more."""
    keep = {"passes": None, "checkpoint": folder / f"{method}.ckpt", "resume": True}
    run_case(Case(method), events=150.0, **keep)
    return run_case(Case(method), events=400.0, **keep)


def multinomial() -> Found:
    X, y = samples(45, 4, 0.8, [8])
    problem = adfs.Problem(X, np.digitize(y, [-0.5, 0.5]), "multinomial", sigma=SIGMA, n_nodes=NODES)
    return found_in(adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), seed=3, max_passes=4.0))


def estimate(kind: str, target: str, sparse: bool = False, **options: Any) -> Found:
    """Fit an estimator, and return what it learnt."""
    X, y = samples(90, 5, 0.7, [9])
    labels = {"binary": y > 0.4, "three": np.digitize(y, [-0.5, 0.5]), "targets": y}[target]
    model = getattr(adfs, f"ADFS{kind}")(random_state=4, n_nodes=4, **options)
    model.fit(sp.csr_array(X) if sparse else X, labels)
    return {k: np.asarray(getattr(model, k)) for k in ("coef_", "intercept_", "dual_gap_", "n_iter_")}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield a model file's entries with their paths; a list of numbers is one entry."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOT_COMPARED:
                yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{number}")
    else:
        yield path, np.asarray("none" if value is None else value)


def fit_file(line: str, folder: Path, ranks: int = 1) -> Found:
    """Fit on the command line, and return the model file."""
    out = folder / "model.json"
    command = [*python_on(ranks), "-m", "adfs", "fit", *line.split(), "--seed", "2", "--out", str(out)]
    done = subprocess.run(command, cwd=folder.parent, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"adfs fit {line}: {done.stderr}")
    return dict(leaves(json.loads(out.read_text())))


def cases_of(folder: Path, comm: Any = None) -> dict[str, Callable[[], Found]]:
    """Return the cases of one process, or those of a communicator's ranks, by name."""
    if comm is not None:
        return {name: partial(run_case, case, comm) for name, case in ON_RANKS.items()}
    return {name: partial(run_case, case) for name, case in SIMULATED.items()} | {
        **{f"{name} resumed": partial(resumed, name, folder) for name in ("adfs", "ns-adfs", "msda")},
        "adfs multinomial": multinomial,
        "classifier, binary": partial(estimate, "Classifier", "binary"),
        "classifier, three classes": partial(estimate, "Classifier", "three", C=2.0),
        "classifier, balanced": partial(estimate, "Classifier", "binary", class_weight="balanced"),
        "classifier, sparse": partial(estimate, "Classifier", "binary", True, loss="squared_hinge"),
        "regressor, squared": partial(estimate, "Regressor", "targets"),
        "regressor, squared, sparse": partial(estimate, "Regressor", "targets", True),
        "regressor, huber": partial(estimate, "Regressor", "targets", loss="huber", delta=0.7),
        "adfs fit, binary": partial(fit_file, "all.svm --nodes 4", folder),
        "adfs fit, three classes": partial(fit_file, "classes.csv --label label --nodes 4", folder),
        "adfs fit, squared": partial(fit_file, "targets.csv --label label --loss squared --nodes 4", folder),
        "adfs fit, 2 ranks": partial(fit_file, "shard-{rank}.svm", folder, ranks=2),
    }


def seconds_each(timed: Timed, comm: Any = None) -> float:
    """Return the least seconds of an event, be it a computation or a message."""
    name, rows, width, density, events, options = timed
    network = adfs.Network(name)
    shards = []
    for node in range(network.n_nodes):
        X, y = samples(rows, width, density, [10, node])
        X /= math.sqrt(width * density)
        shards.append((X if density == 1.0 else sp.csr_array(X), np.where(y > 0.0, 1.0, -1.0)))
    problem = adfs.Problem.from_shards(shards, "logistic", 0.01 * rows)
    common, best = options | {"events": events}, math.inf
    for _ in range(REPEATS):
        if comm is None:
            run = adfs.simulate("adfs", problem, network, **common)
        else:
            run = adfs.fit_mpi(comm, shards.__getitem__, network, sigma=problem.sigma, **common)
        done = run.frame["computations"].iloc[-1] + run.frame["messages"].iloc[-1]
        best = min(best, run.seconds / float(done))
    return best


def run_part(part: str, out: Path) -> None:
    """Run a part of the cases with the package that this process was given, and write what was found."""
    source, comm = os.environ["PYTHONPATH"], None
    if not Path(str(adfs.__file__)).is_relative_to(source):
        raise SystemExit(f"adfs came from {adfs.__file__}, not from {source}")
    if part.endswith("ranks"):
        from mpi4py import MPI  # importing it starts MPI

        comm = MPI.COMM_WORLD
    if part.startswith("time"):
        names = [name for name in TIMED if ("ranks" in name) != (comm is None)]
        found: dict[str, Any] = {name: seconds_each(TIMED[name], comm) for name in names}
    else:
        cases = cases_of(out.parent, comm)
        found = {f"{name}|{key}": value for name, case in cases.items() for key, value in case().items()}
    if comm is None or comm.Get_rank() == 0:
        np.savez(out, **found)


def python_on(ranks: int) -> list[str]:
    """Return the beginning of a command that runs this Python on some ranks."""
    if ranks == 1:
        return [sys.executable]
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise SystemExit("there is no mpiexec: pip install '.[mpi]'")
    return [found, "-n", str(ranks), "--oversubscribe", sys.executable]


def found_by(checkout: Path, kind: str, folder: Path) -> Found:
    """Run what is compared (``""``) or timed (``"time"``) in a checkout."""
    folder.mkdir(exist_ok=True)
    ones = ("PYTHONSAFEPATH", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    more = dict.fromkeys((*ones, "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    more["PYTHONPATH"] = str(checkout / "src")
    found: Found = {}
    for part, ranks in ((f"{kind} alone", 1), (f"{kind} on ranks", 2)):
        out = folder / "found.npz"
        command = [*python_on(ranks), __file__, "--part", part, str(out)]
        code = subprocess.run(command, env=os.environ | more, check=False).returncode
        if code != 0:
            raise SystemExit(f"{checkout}: what runs{part} ended with exit code {code}")
        with np.load(out) as file:
            found |= dict(file)
    return found


def difference(old: np.ndarray | None, new: np.ndarray | None) -> float | None:
    """Return None if the bytes are the same, or the largest relative difference, inf if there is none."""
    if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
        return math.inf
    if old.tobytes() == new.tobytes():
        return None
    if old.dtype.kind == "U" or not np.array_equal(np.isfinite(old), np.isfinite(new)):
        return math.inf
    a, b = old.astype(np.float64), new.astype(np.float64)
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.finfo(np.float64).tiny)
    return float(np.nanmax(np.abs(a - b) / largest, initial=0.0))


def compare(old: Found, new: Found, may_change: list[str]) -> int:
    """Print one row per case, and return how many differ that must not."""
    apart: dict[str, dict[str, float]] = {}
    for key in dict.fromkeys((*old, *new)):
        name, _, part = key.partition("|")
        found = difference(old.get(key), new.get(key))
        apart.setdefault(name, {}).update({} if found is None else {part: found})
    failed = 0
    for name, parts in apart.items():
        allowed = any(word in name for word in may_change)
        failed += bool(parts) and not allowed
        verdict = "same" if not parts else "differs, as it may" if allowed else "DIFFERENT"
        worst = max(parts, key=lambda part: parts[part], default="")
        print(f"{name:42} {verdict}" + (f", most in {worst}: {parts[worst]:.1e}" if parts else ""))
    print(f"{len(apart)} cases, {failed} of them different that must be the same")
    return failed


def compare_speed(checkouts: list[Path], folder: Path) -> None:
    """Print what an event takes in each checkout; they take turns, so that a busy spell hits both alike."""
    best = {name: [math.inf, math.inf] for name in TIMED}
    for _, (side, checkout) in product(range(TURNS), enumerate(checkouts)):
        for name, value in found_by(checkout, "time", folder).items():
            best[name][side] = min(best[name][side], float(value))
    print(f"\nns per event, load {os.getloadavg()[0]:<22.1f} {'old':>10} {'new':>9} {'new/old':>8}")
    for name, (before, after) in best.items():
        print(f"{name:42} {1e9 * before:9.1f} {1e9 * after:9.1f} {after / before:8.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--speed", action="store_true", help="compare what an event takes as well")
    parser.add_argument("--may-change", nargs="*", default=["poisson", "multinomial"], metavar="WORD")
    chosen = parser.parse_args()
    checkouts = [chosen.old.resolve(), chosen.new.resolve()]
    for checkout in checkouts:
        if not (checkout / "src" / "adfs").is_dir():
            parser.error(f"{checkout} has no src/adfs: give the folder of a checkout")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        old, new = (found_by(one, "", folder / str(side)) for side, one in enumerate(checkouts))
        failed = compare(old, new, chosen.may_change)
        if chosen.speed:
            compare_speed(checkouts, folder / "time")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        run_part(sys.argv[2], Path(sys.argv[3]))
    else:
        raise SystemExit(main())
