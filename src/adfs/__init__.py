"""ADFS: decentralised accelerated stochastic optimisation over a network of nodes.

The names below are imported when they are first used, so that ``import adfs`` and ``adfs --version``
cost milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from adfs._version import __version__
from adfs.errors import AdfsError, InputError

if TYPE_CHECKING:
    from adfs import (
        algorithms,
        data,
        engines,
        estimators,
        experiments,
        network,
        planning,
        problem,
        runtimes,
        schedule,
        stages,
        theory,
    )
    from adfs.data import load
    from adfs.engines import DaskWorkers, spark
    from adfs.estimators import ADFSClassifier, ADFSClassifierCV, ADFSRegressor, ADFSRegressorCV
    from adfs.network import Network
    from adfs.planning import plan
    from adfs.problem import GeneralProblem, Problem
    from adfs.runtimes import Delays, Grid, Record, Run, simulate
    from adfs.runtimes.mpi import MpiRanks, fit_mpi
    from adfs.runtimes.tcp import TcpPeers
    from adfs.theory import Parameters

__all__ = [
    "ADFSClassifier",
    "ADFSClassifierCV",
    "ADFSRegressor",
    "ADFSRegressorCV",
    "AdfsError",
    "DaskWorkers",
    "Delays",
    "GeneralProblem",
    "Grid",
    "InputError",
    "MpiRanks",
    "Network",
    "Parameters",
    "Problem",
    "Record",
    "Run",
    "TcpPeers",
    "__version__",
    "algorithms",
    "data",
    "engines",
    "estimators",
    "experiments",
    "fit_mpi",
    "load",
    "network",
    "plan",
    "planning",
    "problem",
    "runtimes",
    "schedule",
    "simulate",
    "spark",
    "stages",
    "theory",
]

# The public names of each module. A new name goes here, in `__all__`, and in the block for the type checker
# above; a test holds the three together.
_NAMES = {
    "adfs.data": ("load",),
    "adfs.engines": ("DaskWorkers", "spark"),
    "adfs.estimators": ("ADFSClassifier", "ADFSClassifierCV", "ADFSRegressor", "ADFSRegressorCV"),
    "adfs.network": ("Network",),
    "adfs.planning": ("plan",),
    "adfs.problem": ("GeneralProblem", "Problem"),
    "adfs.runtimes": ("Delays", "Grid", "Record", "Run", "simulate"),
    "adfs.runtimes.mpi": ("MpiRanks", "fit_mpi"),
    "adfs.runtimes.tcp": ("TcpPeers",),
    "adfs.theory": ("Parameters",),
}
_OBJECTS = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name in _OBJECTS:
        module = _OBJECTS[name]
        value: object = getattr(import_module(module), name)
        if module.startswith("adfs.runtimes"):
            import_module("adfs.stages")  # the rules of runs in stages, which the runtimes do not import
        globals()[name] = value
        return value
    if name in __all__:  # a folder
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, those not imported yet included."""
    return sorted({*globals(), *__all__})
