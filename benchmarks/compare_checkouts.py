"""Do two checkouts compute the same bytes? ``python -m benchmarks.compare_checkouts OLD NEW [--speed]``.

Each case runs once with the package of either folder's ``src``, in a process of its own, on this machine and
with this Python. Everything but times must agree to the last bit; the exit code is 1 when something does not.
With ``--speed`` the two take turns, and the quickest of each is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

Found = dict[str, np.ndarray]

TURNS = 5
REPEATS = 3
NODES = 9
# What a model file tells of the time it took, where the data was, and which version wrote it.
NOT_COMPARED = {"seconds", "version", "adfs", "files", "file", "ranks", "date", "host"}


@dataclass(frozen=True)
class Case:
    """A run of ``adfs.simulate`` or ``adfs.fit_mpi``; what may change is compared, but never fails."""

    name: str
    method: str
    loss: str = "logistic"
    sparse: bool = False
    network: str = "grid:3x3"
    passes: float = 12.0
    may_change: bool = False
    options: dict[str, Any] = field(default_factory=dict)


POISSON = {"schedule": "poisson"}
SIMULATED = (
    Case("adfs tuned, dense", "adfs"),
    Case("adfs tuned, sparse", "adfs", sparse=True),
    Case("adfs paper, dense, tau", "adfs", options={"parameters": "paper", "tau": 5.0}),
    Case("adfs paper, sparse, read at v", "adfs", sparse=True, options={"parameters": "paper", "read": "v"}),
    Case("adfs tau, cycle", "adfs", network="cycle:9", options={"tau": 20.0}),
    Case("adfs random network, four measures", "adfs", network="erdos-renyi:9,0.5", options={"record": True}),
    Case("adfs to a tolerance", "adfs", passes=500.0, options={"tol": 1e-6}),
    Case("adfs squared", "adfs", "squared"),
    Case("adfs squared-hinge, sparse", "adfs", "squared-hinge", sparse=True),
    Case("adfs smoothed-hinge", "adfs", "smoothed-hinge"),
    Case("adfs huber, sparse", "adfs", "huber", sparse=True),
    Case("adfs smoothed-quantile", "adfs", "smoothed-quantile", options={"tau": 2.0}),
    Case("adfs idealised times", "adfs", options={"delays": {"tau": 3.0}}),
    Case("adfs budget of idealised time", "adfs", options={"delays": {"law": "fixed"}, "time": 150.0}),
    Case("adfs blocking, idealised times", "adfs", options={"delays": {"tau": 2.0, "blocking": True}}),
    Case("adfs poisson, dense", "adfs", may_change=True, options=POISSON),
    Case("adfs poisson, sparse, tau", "adfs", sparse=True, may_change=True, options=POISSON | {"tau": 5.0}),
    Case("adfs-block tuned", "adfs-block"),
    Case("adfs-block sparse, squared, tau", "adfs-block", "squared", sparse=True, options={"tau": 5.0}),
    Case("adfs-block idealised times", "adfs-block", options={"delays": {"tau": 3.0}}),
    Case("ns-adfs hinge", "ns-adfs", "hinge"),
    Case("ns-adfs hinge, sparse, cycle", "ns-adfs", "hinge", sparse=True, network="cycle:9"),
    Case("ns-adfs absolute, sparse", "ns-adfs", "absolute", sparse=True),
    Case("ns-adfs quantile", "ns-adfs", "quantile"),
    Case("ns-adfs epsilon-insensitive", "ns-adfs", "epsilon-insensitive"),
    Case("ns-adfs poisson", "ns-adfs", "hinge", may_change=True, options=POISSON),
    Case("msda dense", "msda"),
    Case("msda sparse, squared-hinge", "msda", "squared-hinge", sparse=True, network="cycle:9"),
    Case("esdacd dense", "esdacd"),
    Case("esdacd sparse, huber", "esdacd", "huber", sparse=True),
    Case("dsba dense", "dsba"),
    Case("dsba sparse, squared", "dsba", "squared", sparse=True),
    Case("extra dense, random network", "extra", network="erdos-renyi:9,0.5"),
    Case("extra sparse", "extra", sparse=True),
    Case("point-saga dense", "point-saga"),
    Case("point-saga sparse, smoothed-hinge", "point-saga", "smoothed-hinge", sparse=True),
    Case("agd dense", "agd"),
    Case("dagd sparse", "dagd", sparse=True),
    Case("dagd idealised times", "dagd", "squared", options={"delays": {"tau": 3.0}}),
    Case("apcg dense", "apcg"),
    Case("apcg sparse, squared", "apcg", "squared", sparse=True),
)
ON_RANKS = (
    Case("2 ranks: adfs dense", "adfs"),
    Case("2 ranks: adfs sparse, tau", "adfs", sparse=True, options={"tau": 5.0}),
    Case("2 ranks: adfs poisson", "adfs", may_change=True, options=POISSON),
    Case("2 ranks: ns-adfs dense", "ns-adfs", "hinge"),
    Case("2 ranks: ns-adfs sparse", "ns-adfs", "absolute", sparse=True),
    Case("2 ranks: adfs-block dense", "adfs-block", "squared"),
    Case("2 ranks: adfs-block sparse", "adfs-block", sparse=True),
    Case("2 ranks: msda dense", "msda"),
    Case("2 ranks: msda sparse", "msda", "squared-hinge", sparse=True),
)
MULTINOMIAL = "adfs multinomial"
MAY_CHANGE = {case.name for case in (*SIMULATED, *ON_RANKS) if case.may_change} | {MULTINOMIAL}
REGRESSION = {"squared", "huber", "smoothed-quantile", "absolute", "quantile", "epsilon-insensitive"}

# What each part times: nodes' network, rows per node, columns, share of non-zeros, events, options.
Timed = tuple[str, int, int, float, float, dict[str, Any]]
TIMED: dict[str, Timed] = {
    "local step, dense d=54, one node": ("path:1", 4000, 54, 1.0, 1e6, {}),
    "local step, dense d=54, nine nodes": ("grid:3x3", 500, 54, 1.0, 1e6, {"tau": 50.0}),
    "local step, sparse d=2000, one node": ("path:1", 4000, 2000, 0.01, 1e6, {}),
    "local step, sparse d=2000, nine nodes": ("grid:3x3", 500, 2000, 0.01, 3e5, {"tau": 50.0}),
    "mostly communication, 100 nodes": ("grid:10x10", 3, 54, 1.0, 1e6, {"tau": 0.01}),
    "poisson schedule, nine nodes": ("grid:3x3", 500, 54, 1.0, 1e6, {"tau": 50.0} | POISSON),
}
TIMED_ON_RANKS: dict[str, Timed] = {
    "2 ranks, mostly exchanges": ("path:2", 5, 54, 1.0, 2e4, {"tau": 0.01}),
    "2 ranks, nine nodes": ("grid:3x3", 500, 54, 1.0, 3e5, {"tau": 50.0}),
}


# ---------------------------------------------------------------- data, the same for both


def samples(rows: int, width: int, density: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (rows, width) with zeros among them, and their noisy targets (rows,)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, width)) * (rng.random((rows, width)) < density)
    return X, X[:, 0] - 0.5 * X[:, 1] + 0.3 * rng.standard_normal(rows)


def shard_of(case: Case, node: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return one node's data: sizes and weights differ, one row and one weight are zero."""
    X, y = samples(9 + node % 3, 7, 0.6, [5, node])
    weights = np.random.default_rng([6, node]).random(y.size) + 0.5
    X[2], weights[4] = 0.0, 0.0
    labels = y if case.loss in REGRESSION else np.where(y > 0.0, 1.0, -1.0)
    return (sp.csr_array(X) if case.sparse else X), labels, weights


def sigma_of() -> np.ndarray:
    return 0.2 + 0.1 * (np.arange(NODES) % 4)


def write_files(folder: Path) -> None:
    """Write the data that the command line reads."""
    X, y = samples(90, 5, 0.8, [7])
    three = np.where(y > 0.5, "high", np.where(y < -0.5, "low", "middle"))
    names = ",".join(f"x{column}" for column in range(X.shape[1]))
    for name, labels in (("classes.csv", three), ("targets.csv", y)):
        lines = [f"{names},label"]
        lines += [f"{','.join(map(repr, x))},{b}" for x, b in zip(X.tolist(), labels.tolist(), strict=True)]
        (folder / name).write_text("\n".join(lines) + "\n")
    text = [
        f"{1 if b > 0 else -1} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(x) if v != 0.0)
        for x, b in zip(X.tolist(), y.tolist(), strict=True)
    ]
    for name, part in (("all", text), ("shard-0", text[:40]), ("shard-1", text[40:])):
        (folder / f"{name}.svm").write_text("\n".join(part) + "\n")


# ---------------------------------------------------------------- the cases, in a process of one checkout


def options_of(case: Case) -> dict[str, Any]:
    """Return a case's options as both checkouts take them."""
    import adfs

    options: dict[str, Any] = {"seed": 3, "passes": case.passes, "progress": False} | case.options
    if "delays" in options:
        kind = getattr(adfs, "Delays", None) or adfs.runtimes.Delays
        options["delays"] = kind(**options["delays"])
    if options.pop("record", False):
        options["record"] = ("gap", "objective", "suboptimality", "consensus")
    return options


def found_in(run: Any) -> Found:
    """Return all of a run that is not a time."""
    frame = run.frame.drop(columns=["seconds"])
    columns = {f"frame {name}": frame[name].to_numpy(dtype=np.float64) for name in frame.columns}
    whole = {"theta": run.theta, "coef": run.coef, "gap": np.array(run.gap), "outcome": str(run.outcome)}
    return {name: np.asarray(value) for name, value in (whole | columns).items()}


def simulate(case: Case, **more: Any) -> Found:
    import adfs

    problem = adfs.Problem.from_shards([shard_of(case, i) for i in range(NODES)], case.loss, sigma_of())
    network = adfs.Network(case.network, seed=1 if case.network.startswith("erdos") else None)
    return found_in(adfs.simulate(case.method, problem, network, **(options_of(case) | more)))


def resumed(method: str, folder: Path) -> Found:
    """Run to some events, and go on from the checkpoint to more."""
    case, path = Case("", method), folder / f"{method}.ckpt"
    simulate(case, passes=None, events=150.0, checkpoint=path)
    return simulate(case, passes=None, events=400.0, checkpoint=path, resume=True)


def multinomial() -> Found:
    import adfs

    X, y = samples(45, 4, 0.8, [8])
    labels = np.digitize(y, [-0.5, 0.5])
    problem = adfs.GeneralProblem.multinomial(X, labels, sigma=sigma_of(), n_nodes=NODES)
    return found_in(adfs.simulate("adfs", problem, adfs.Network("grid:3x3"), seed=3, passes=4.0))


def estimate(kind: str, target: str, sparse: bool = False, **options: Any) -> Found:
    """Fit an estimator, and return what it learnt."""
    import adfs

    X, y = samples(90, 5, 0.7, [9])
    labels = {"binary": y > 0.4, "three": np.digitize(y, [-0.5, 0.5]), "targets": y}[target]
    model = getattr(adfs, kind)(random_state=4, n_nodes=4, **options)
    model.fit(sp.csr_array(X) if sparse else X, labels)
    return {
        name: np.asarray(getattr(model, name)) for name in ("coef_", "intercept_", "dual_gap_", "n_iter_")
    }


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield a model file's entries, but for times, versions and places; lists of numbers are arrays."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in NOT_COMPARED or (path == "" and key == "version"):
                yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list) and value and not all(isinstance(one, float | int) for one in value):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{number}")
    else:
        yield path, np.asarray(str(value) if value is None else value)


def fit_file(words: list[str], folder: Path, ranks: int = 1) -> Found:
    """Fit on the command line, and return the model file."""
    out = folder / "model.json"
    out.unlink(missing_ok=True)
    launcher = launch(ranks) if ranks > 1 else [sys.executable]
    command = [*launcher, "-m", "adfs", "fit", *words, "--out", str(out), "--no-progress"]
    subprocess.run(command, cwd=folder.parent, check=True, capture_output=True, text=True, timeout=300.0)
    return dict(leaves(json.loads(out.read_text())))


def own_cases(folder: Path) -> dict[str, Callable[[], Found]]:
    """Return the cases of one process, by name."""
    cases: dict[str, Callable[[], Found]] = {
        case.name: lambda case=case: simulate(case) for case in SIMULATED
    }
    cases[MULTINOMIAL] = multinomial
    for method in ("adfs", "ns-adfs", "msda"):
        cases[f"{method} resumed"] = lambda method=method: resumed(method, folder)
    classifier, regressor = "ADFSClassifier", "ADFSRegressor"
    several = ["--nodes", "4", "--seed", "2"]
    return cases | {
        "classifier, binary": lambda: estimate(classifier, "binary"),
        "classifier, three classes": lambda: estimate(classifier, "three", C=2.0),
        "classifier, balanced": lambda: estimate(classifier, "binary", class_weight="balanced"),
        "classifier, sparse": lambda: estimate(classifier, "binary", True, loss="squared_hinge"),
        "regressor, squared": lambda: estimate(regressor, "targets"),
        "regressor, squared, sparse": lambda: estimate(regressor, "targets", True),
        "regressor, huber": lambda: estimate(regressor, "targets", loss="huber", delta=0.7),
        "adfs fit, binary": lambda: fit_file(["all.svm", *several], folder),
        "adfs fit, three classes": lambda: fit_file(["classes.csv", "--label", "label", *several], folder),
        "adfs fit, squared": lambda: fit_file(
            ["targets.csv", "--label", "label", "--loss", "squared", "--alpha", "3", *several], folder
        ),
        "adfs fit, 2 ranks": lambda: fit_file(["shard-{rank}.svm", "--seed", "2"], folder, ranks=2),
    }


def rank_cases() -> dict[str, Callable[[], Found]]:
    """Return the cases of two ranks, by name; every rank runs them all."""
    import adfs
    from mpi4py import MPI

    def fit(case: Case) -> Found:
        run = adfs.fit_mpi(
            MPI.COMM_WORLD,
            lambda node: shard_of(case, node),
            adfs.Network(case.network),
            method=case.method,
            loss=case.loss,
            sigma=sigma_of(),
            gather=True,
            **options_of(case),
        )
        return found_in(run)

    return {case.name: lambda case=case: fit(case) for case in ON_RANKS}


def seconds_each(timed: Timed, on_ranks: bool) -> float:
    """Return the least seconds of an event: a computation, or a message."""
    import adfs

    graph, rows, width, density, events, options = timed
    network = adfs.Network(graph)
    shards = []
    for node in range(network.n_nodes):
        X, y = samples(rows, width, density, [10, node])
        X = X / math.sqrt(width * density)
        shards.append((X if density == 1.0 else sp.csr_array(X), np.where(y > 0.0, 1.0, -1.0)))
    common = {"events": events, "progress": False} | options
    best = math.inf
    for _ in range(REPEATS):
        if on_ranks:
            from mpi4py import MPI

            run = adfs.fit_mpi(
                MPI.COMM_WORLD, lambda node: shards[node], network, sigma=0.01 * rows, **common
            )
        else:
            problem = adfs.Problem.from_shards(shards, "logistic", 0.01 * rows)
            run = adfs.simulate("adfs", problem, network, **common)
        done = run.frame[["computations", "messages"]].iloc[-1].sum()
        best = min(best, run.seconds / float(done))
    return best


def run_part(part: str, out: Path) -> None:
    """Run a part of the cases with the package that this process was given, and write what was found."""
    import adfs

    source = os.environ["PYTHONPATH"]
    if not Path(str(adfs.__file__)).is_relative_to(source):
        raise SystemExit(f"adfs came from {adfs.__file__}, not from {source}")
    found: Found = {}
    if part in ("time", "time-ranks"):
        timed = TIMED if part == "time" else TIMED_ON_RANKS
        found = {name: np.array(seconds_each(one, part == "time-ranks")) for name, one in timed.items()}
    else:
        cases = own_cases(out.parent) if part == "own" else rank_cases()
        for name, case in cases.items():
            try:
                found |= {f"{name}|{key}": value for key, value in case().items()}
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{name}: {error.stderr}") from None
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        np.savez(out, **{name.replace("/", "\\"): value for name, value in found.items()})


# ---------------------------------------------------------------- comparing, in the first process


def launch(ranks: int) -> list[str]:
    """Return the beginning of a command that runs this Python on some ranks."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise SystemExit("there is no mpiexec: pip install 'adfs[mpi]'")
    return [found, "-n", str(ranks), "--oversubscribe", sys.executable]


def found_by(checkout: Path, part: str, folder: Path, ranks: int = 1) -> Found:
    """Run a part of the cases in a checkout."""
    folder.mkdir(exist_ok=True)
    out = folder / f"{part}.npz"
    launcher = launch(ranks) if ranks > 1 else [sys.executable]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))
    }
    environment |= {
        "PYTHONPATH": str(checkout / "src"),
        "PYTHONSAFEPATH": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([*launcher, __file__, "--part", part, str(out)], env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{checkout}: the cases of part {part!r} ended with exit code {done.returncode}")
    with np.load(out) as file:
        return {name.replace("\\", "/"): file[name] for name in file.files}


def stamp(value: np.ndarray | None) -> str:
    """Return a hash of an array's bytes, its type and its shape."""
    if value is None:
        return "missing"
    about = f"{value.dtype} {value.shape} ".encode()
    return hashlib.sha256(about + np.ascontiguousarray(value).tobytes()).hexdigest()


def apart(old: np.ndarray | None, new: np.ndarray | None) -> float:
    """Return the largest relative difference of two arrays; inf where there is none to be told."""
    if old is None or new is None or old.shape != new.shape or old.dtype.kind in "US":
        return math.inf
    a, b = old.astype(np.float64), new.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return math.inf
    largest = np.maximum(np.abs(a), np.abs(b))
    return float(np.nanmax(np.abs(a - b) / np.where(largest > 0.0, largest, 1.0), initial=0.0))


def compare(old: Found, new: Found) -> int:
    """Print one row per case, and return how many differ that must not."""
    names = list(dict.fromkeys(key.partition("|")[0] for key in (*old, *new)))
    failed = 0
    for name in names:
        keys = [key for key in dict.fromkeys((*old, *new)) if key.partition("|")[0] == name]
        changed = [key for key in keys if stamp(old.get(key)) != stamp(new.get(key))]
        verdict = "same"
        if changed:
            by = {key.partition("|")[2]: apart(old.get(key), new.get(key)) for key in changed}
            worst = max(by, key=lambda part: by[part])
            verdict = f"{len(changed)} of {len(keys)} parts, most by {by[worst]:.1e} ({worst})"
            verdict = ("differs, as it may: " if name in MAY_CHANGE else "DIFFERENT: ") + verdict
            failed += name not in MAY_CHANGE
        print(f"{name:42} {verdict}")
    print(f"{len(names)} cases, {failed} of them different that must be the same")
    return failed


def compare_speed(old: Path, new: Path, folder: Path) -> None:
    """Print what an event takes in each checkout; they take turns, so that a busy spell hits both alike."""
    best: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for side, checkout in enumerate((old, new)):
            for part, ranks in (("time", 1), ("time-ranks", 2)):
                for name, value in found_by(checkout, part, folder, ranks).items():
                    both = best.setdefault(name, [math.inf, math.inf])
                    both[side] = min(both[side], float(value))
    print(f"{'ns per event':42} {'old':>9} {'new':>9} {'new/old':>8}")
    for name, (before, after) in best.items():
        print(f"{name:42} {1e9 * before:9.1f} {1e9 * after:9.1f} {after / before:8.3f}")


def main() -> int:
    if sys.argv[1:2] == ["--part"]:
        run_part(sys.argv[2], Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--speed", action="store_true", help="compare what an event takes as well")
    chosen = parser.parse_args()
    old, new = chosen.old.resolve(), chosen.new.resolve()
    for checkout in (old, new):
        if not (checkout / "src" / "adfs").is_dir():
            parser.error(f"{checkout} has no src/adfs: give the folder of a checkout")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        sides = []
        for side, checkout in (("old", old), ("new", new)):
            own = found_by(checkout, "own", folder / side)
            sides.append(own | found_by(checkout, "ranks", folder / side, ranks=2))
        failed = compare(*sides)
        if chosen.speed:
            compare_speed(old, new, folder)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
