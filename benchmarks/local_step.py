"""A local step, and a communication, against C loops that do the same work."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import adfs
from adfs.algorithms import METHODS, Setting
from adfs.algorithms.adfs_kernels import run_events
from adfs.compilation import kernel
from adfs.theory import Parameters
from benchmarks.measure import Row, fastest, write_table

EVENTS = 200_000


def compile_c() -> ctypes.CDLL:
    """Compile the C loops with the machine's own instructions."""
    folder = Path(tempfile.mkdtemp())
    library = folder / "local_step.so"
    source = Path(__file__).with_name("local_step.c")
    command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def rows_of_kind(kind: str, n: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """Dense rows of 10, or CSR rows of a given number of non-zeros among 1,000 columns."""
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    if kind == "dense":
        return rng.standard_normal((n, 10)) + y[:, None], y
    width = int(kind)
    parts = []
    for first in range(0, n, 10_000):
        draws = rng.random((min(10_000, n - first), 1000), dtype=np.float32)
        parts.append(np.sort(np.argpartition(draws, width, axis=1)[:, :width], axis=1).astype(np.int32))
    indices = np.concatenate(parts)
    indptr = np.arange(0, n * width + 1, width, dtype=np.int32)
    return sp.csr_array((rng.standard_normal(n * width), indices.ravel(), indptr), shape=(n, 1000)), y


def contenders(library: ctypes.CDLL, kind: str, n: int) -> dict[str, Any]:
    """Return the two loops, ours with its schedule (drawing events is part of a step) and the one in C."""
    rng = np.random.default_rng(0)
    X, y = rows_of_kind(kind, n, rng)
    problem = adfs.Problem(X, y, sigma=1.0)
    network = adfs.Network("path:1")
    process = METHODS["adfs"].start(Setting(problem, network, Parameters.tuned(problem, network)))
    place = [0.0]

    def ours() -> None:
        for end, events in process.schedule.windows(place[0], place[0] + EVENTS):
            process.run(events, 0, events.time.size)
            place[0] = end

    double, d = ctypes.c_double, problem.n_features
    arrays = [np.zeros((n, 2)), np.zeros(d), np.zeros(d)]
    threshold = np.full(n, 2**31, dtype=np.uint32)
    alias = rng.integers(0, n, n).astype(np.int32)
    seed = [1]
    rows = [X] if kind == "dense" else [X.data, X.indices, X.indptr]
    function = library.run_dense if kind == "dense" else library.run_sparse
    function.restype = double

    def in_c() -> None:
        seed[0] += 1
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in [*rows, y, *arrays, threshold, alias]]
        sizes = [ctypes.c_int64(EVENTS), ctypes.c_int64(n), *([ctypes.c_int64(d)] if kind == "dense" else [])]
        function(*sizes, *pointers, double(0.05), double(0.9), double(1 - 1e-6), ctypes.c_uint64(seed[0]))

    ours()
    ours()
    in_c()
    return {"ours": ours, "c": in_c}


@kernel
def _read_and_write(vectors: np.ndarray, factor: float, times: int) -> None:
    """Read and write four vectors, c and ê of two nodes, so many times."""
    for _ in range(times):
        for k in range(vectors.size):
            vectors[k] *= factor
        factor = -factor  # so that no sweep can be left out


def communication(d: int) -> dict[str, Any]:
    """Return exchanges on one edge, local steps of the same dimension, and the passes over four vectors."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000 if d <= 100 else 40, d))
    problem = adfs.Problem(X, np.sign(X[:, 0]), sigma=1.0, n_nodes=2)
    network = adfs.Network("path:2")
    process = METHODS["adfs"].start(Setting(problem, network, Parameters.tuned(problem, network)))
    count = 20_000 if d <= 100 else 500
    times = np.arange(1.0, count + 1.0)
    edge = np.full(count, 2, dtype=np.int32)
    none = np.full(count, -1, dtype=np.int32)
    node = np.zeros(count, dtype=np.int32)
    sample = rng.integers(0, problem.node_starts[1], count).astype(np.int32)
    state = process.state
    vectors = np.ones(4 * d)

    def run(actors: np.ndarray, samples: np.ndarray) -> None:
        run_events(process.parts, times, actors, samples, 0, count)
        state.clocks[:, 1] = 0.0
        state.clocks[:, 0] = 1.0

    return {
        "exchange": lambda: run(edge, none),
        "local": lambda: run(node, sample),
        "sweep": lambda: _read_and_write(vectors, 1.0, count),
        "count": count,
    }


def main() -> str:
    library = compile_c()
    table = []
    for kind, sizes in {
        "dense": (4_000, 30_000, 490_000),
        "14": (4_000, 30_000, 490_000),
        "74": (4_000, 30_000, 490_000),
    }.items():
        for n in sizes:
            best = fastest(contenders(library, kind, n))
            label = "d = 10 dense" if kind == "dense" else f"{kind} non-zeros"
            ours, c = (best[name] / EVENTS * 1e9 for name in ("ours", "c"))
            table.append(
                Row(
                    f"local step, logistic, {label}, {n:,} rows",
                    ours,
                    "ns",
                    f"C loop {c:.0f} ns",
                    ours / c,
                    1.3,
                )
            )
    small = communication(10)
    count = small.pop("count")
    best = fastest(small)
    exchange, local = best["exchange"] / count * 1e9, best["local"] / count * 1e9
    table.append(
        Row("communication, d = 10", exchange, "ns", f"local step {local:.0f} ns", exchange / local, 3.0)
    )
    large = communication(10_000)
    count = large.pop("count")
    best = fastest(large)
    exchange, sweep = best["exchange"] / count * 1e6, best["sweep"] / count * 1e6
    reference = f"reading and writing its four vectors {sweep:.2f} µs"
    table.append(Row("communication, d = 10,000", exchange, "µs", reference, exchange / sweep, 1.5))
    notes = (
        "Ours includes drawing the events; the C loop (`local_step.c`, gcc -O3 -march=native) draws with an "
        "alias table, and takes three Newton steps. Minimum of seven, taking turns."
    )
    return write_table("local_step", "A local step and a communication", table, notes)
