"""Transports and engines: whole fits over TCP next to MPI, and on engines next to their own estimators."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import adfs
from adfs.runtimes.waiting import WaitingCluster
from benchmarks.engine_fits import engine_rows
from benchmarks.measure import DATA, Row, write_table
from benchmarks.mpi import time_exchange
from benchmarks.wall_clock import CONDITIONS, shard, smoothness

ACCURACY = 1e-6
METHODS = ("auto", "adfs", "adfs-block")
REPEATS = 5
# What was asked for: times of whole calls over those of MPI, and of an exchange over a ping-pong.
ASKED = {"tcp": 1.3, "tls": 1.5, "exchange": 3.0}


# --------------------------------------------------------------------------- transports


def certificates(folder: Path) -> dict[str, str]:
    """Make an authority and one certificate per rank with the command ``openssl``."""

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for rank in ("0", "1"):
        run("req", *new, "-keyout", f"{rank}.key", "-out", f"{rank}.csr", "-subj", f"/CN={rank}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        run("x509", "-req", "-in", f"{rank}.csr", *signer, "-out", f"{rank}.pem")
    files = {"certificate": "{rank}.pem", "key": "{rank}.key", "authority": "ca.pem"}
    return {what: str(folder / name) for what, name in files.items()}


def free_addresses() -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (one, other)]


def ping_pong(rank: int, address: str, width: int, trips: int) -> Callable[[], float]:
    """Return a function that measures a round trip of so many numbers, as one writes it in Python."""
    host, _, port = address.partition(":")
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            sock, _ = listener.accept()
    else:
        while True:
            try:
                sock = socket.create_connection((host, int(port)))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out, into = np.zeros(width).data, np.zeros(width).data.cast("B")

    def receive() -> None:
        taken = 0
        while taken < into.nbytes:
            taken += sock.recv_into(into[taken:])

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(trips):
            if rank == 0:
                sock.sendall(out)
                receive()
            else:
                receive()
                sock.sendall(out)
        return (time.perf_counter() - begun) / trips

    return measure


def exchanges(clusters: dict[str, WaitingCluster], address: str, width: int) -> dict[str, float]:
    """Return the least seconds of an exchange over each transport, and of a ping-pong, taking turns."""
    mpi = clusters["mpi"]
    ping = ping_pong(mpi.rank, address, width, 500)
    found = dict.fromkeys((*clusters, "ping-pong"), np.inf)
    for _ in range(5):
        for name, cluster in clusters.items():
            found[name] = min(found[name], time_exchange(cluster, width, 5)[0])
        mpi.allgather(None)
        found["ping-pong"] = min(found["ping-pong"], *(ping() for _ in range(5)))
    return found


def whole_fits(clusters: dict[str, WaitingCluster], name: str, kappa: float) -> dict[str, Any]:
    """Return the seconds of whole calls of each method over each transport, taking turns."""
    mpi = clusters["mpi"]
    X, y = shard(name, mpi.rank)
    sigma = sum(mpi.allgather(smoothness(X))) / mpi.size / kappa
    found: dict[str, Any] = {}
    for method in METHODS:
        seconds: dict[str, list[float]] = {transport: [] for transport in clusters}
        bits = set()
        for turn in range(REPEATS + 1):
            for transport, cluster in clusters.items():
                model = adfs.ADFSClassifier(
                    C=1.0 / sigma,
                    method=method,
                    fit_intercept=False,
                    tol=ACCURACY,
                    cluster=cluster,
                    max_iter=3000,
                    random_state=0,
                )
                mpi.allgather(None)
                begun = time.perf_counter()
                model.fit(X, y)
                if turn:  # the first one compiles
                    seconds[transport].append(max(mpi.allgather(time.perf_counter() - begun)))
                    bits.add(model.coef_.tobytes())
        assert len(bits) == 1
        least = {transport: min(times) for transport, times in seconds.items()}
        found[method] = least | {"method": model.method_, "gap": model.dual_gap_}
        if mpi.rank == 0:  # a while passes between these
            print(f"{name} {kappa:g} {method}: {found[method]}", file=sys.stderr, flush=True)
    return found


def transport_worker(settings: dict[str, Any]) -> None:
    """Measure in one of two MPI ranks, which are also peers over TCP, plain and with TLS."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    plain, secret, other = settings["addresses"]
    clusters: dict[str, WaitingCluster] = {
        "mpi": adfs.MpiRanks(MPI.COMM_WORLD, deadline=300.0),
        "tcp": adfs.TcpPeers(plain, rank, deadline=300.0),
        "tls": adfs.TcpPeers(secret, rank, deadline=300.0, tls=settings["tls"]),
    }
    with clusters["mpi"]:
        with clusters["tcp"], clusters["tls"]:
            found: dict[str, Any] = {"exchange 10": exchanges(clusters, other[0], 10)}
        for name in settings["sets"]:
            for kappa in CONDITIONS:
                found[f"{name} {kappa:g}"] = whole_fits(clusters, name, kappa)
    if rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


def transport_rows() -> list[Row]:
    """Launch two ranks on this module, and return what they measured."""
    launcher = Path(sys.executable).with_name("mpiexec")
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sets = ["sparse"] + (["covtype"] if (DATA / "covtype.libsvm.binary.scale.bz2").exists() else [])
    with tempfile.TemporaryDirectory() as folder:
        settings = json.dumps(
            {
                "addresses": [free_addresses() for _ in range(3)],
                "tls": certificates(Path(folder)),
                "sets": sets,
            }
        )
        command = [
            str(launcher),
            "-n",
            "2",
            sys.executable,
            "-m",
            "benchmarks.engines",
            "transport",
            settings,
        ]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=3000
        )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    exchange = {name: 1e6 * seconds for name, seconds in found.pop("exchange 10").items()}
    rows = []
    for transport in ("tcp", "tls"):
        ratio = exchange[transport] / exchange["ping-pong"]
        words = f"a ping-pong in Python {exchange['ping-pong']:.1f} µs; over MPI {exchange['mpi']:.1f} µs"
        target = ASKED["exchange"] if transport == "tcp" else float("nan")
        rows.append(
            Row(f"exchange at d = 10 over {transport}", exchange[transport], "µs", words, ratio, target)
        )
    for setting, methods in found.items():
        name, kappa = setting.split()
        for method, times in methods.items():
            for transport in ("tcp", "tls"):
                target = ASKED[transport] if method == "auto" else float("nan")
                chosen = f"auto ({times['method']})" if method == "auto" else method
                what = f"{name}, κ = {kappa}: {chosen} over {transport}"
                ratio = times[transport] / times["mpi"]
                rows.append(Row(what, times[transport], "s", f"over MPI {times['mpi']:.3g} s", ratio, target))
    return rows


# --------------------------------------------------------------------------- all


def main() -> str:
    """Measure, and write the table."""
    notes = (
        "Transports: two processes of one machine, the same ones for all of them, which take turns; seconds "
        f"of whole fits to a certified 1e-6, compiled before, the least of {REPEATS}. The models have the "
        "same bits over all transports. An exchange is one message each way; a ping-pong is one there and "
        "one back. Engines: covtype in memory on two workers, no intercept; warm fits to an error of 1e-6, "
        f"adfs the least of {REPEATS}, the engine's own estimator once, after a fit "
        "with the same tolerance."
    )
    return write_table("engines", "Transports and engines", [*transport_rows(), *engine_rows()], notes)


if __name__ == "__main__":
    transport_worker(json.loads(sys.argv[2])) if sys.argv[1:2] == ["transport"] else print(main())
