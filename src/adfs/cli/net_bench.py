"""``adfs net-bench``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from adfs.cli import options

EXAMPLES = """\b
Examples:
  mpiexec -n 2 adfs net-bench
  mpiexec -n 4 --hostfile hosts adfs net-bench --numbers 124 --entries 14

\b
tau is what `adfs fit --tau` and `adfs.Parameters.tuned(tau=…)` take.
"""


def run(
    numbers: Annotated[
        list[int] | None,
        typer.Option(
            "--numbers", "-d", help="Numbers in a message (the dimension); may be given several times."
        ),
    ] = None,
    entries: Annotated[
        int | None,
        typer.Option("--entries", help="Non-zeros per row, for the local step; dense when left out."),
    ] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds to wait for another rank.")] = 60.0,
    as_json: options.Json = False,
) -> int:
    """Measure exchanges between MPI ranks and the time of a local step, and print their ratio tau.

    Run it with the launcher, the ranks and the hosts of the run that it is for.
    """
    from adfs.errors import InputError
    from adfs.launching import launched_by_mpi
    from adfs.runtimes.mpi.netbench import WIDTHS, bench_network

    options.check_positive({"--deadline": deadline, "--entries": entries, "--numbers": min(numbers or [1])})
    if not launched_by_mpi():
        raise InputError(
            "net-bench measures messages between MPI ranks: start it as mpiexec -n 2 adfs net-bench"
        )
    widths = tuple(sorted(numbers)) if numbers else WIDTHS
    with options.all_ranks() as world:
        rank = world.Get_rank()
        found = bench_network(world, widths, entries=entries, deadline=deadline)
    if rank != 0:
        return 0
    table = found.table()
    if as_json:
        figures = {"latency": found.latency, "bandwidth": found.bandwidth}
        print(json.dumps({"hosts": found.hosts} | figures | {"rows": table.to_dict("records")}))
        return 0
    print(f"{len(found.hosts)} ranks on {len(set(found.hosts))} hosts, {len(found.pairs)} pairs")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(f"latency {1e6 * found.latency:.1f} µs, bandwidth {found.bandwidth / 1e6:.3g} MB/s one way")
    return 0
