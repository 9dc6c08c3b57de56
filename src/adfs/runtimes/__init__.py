"""Runtimes: what carries an algorithm out, in one process or on a cluster."""

from adfs.runtimes.clock import Delays, retime, with_times
from adfs.runtimes.loop import Budget, Outcome
from adfs.runtimes.recording import Grid, Record
from adfs.runtimes.result import Run
from adfs.runtimes.simulate import simulate

__all__ = ["Budget", "Delays", "Grid", "Outcome", "Record", "Run", "retime", "simulate", "with_times"]
