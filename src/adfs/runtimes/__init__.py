"""Runtimes: what carries an algorithm out, in one process or on a cluster."""

from adfs.runtimes.loop import Budget, Outcome
from adfs.runtimes.recording import Grid, Record
from adfs.runtimes.result import Run
from adfs.runtimes.simulate import simulate

__all__ = ["Budget", "Grid", "Outcome", "Record", "Run", "simulate"]
