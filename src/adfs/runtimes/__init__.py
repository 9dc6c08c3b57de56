"""Runtimes: they run a method on a problem, in one process or on a cluster."""

from adfs.runtimes.clock import retime, with_times
from adfs.runtimes.cluster import Cluster, OneProcess
from adfs.runtimes.delays import Delays
from adfs.runtimes.loop import Outcome
from adfs.runtimes.options import Grid, Record, RunOptions
from adfs.runtimes.result import Run
from adfs.runtimes.run import run_method, simulate

__all__ = [
    "Cluster",
    "Delays",
    "Grid",
    "OneProcess",
    "Outcome",
    "Record",
    "Run",
    "RunOptions",
    "retime",
    "run_method",
    "simulate",
    "with_times",
]
