"""Run the benchmarks: ``python -m benchmarks [NAME …]``; the tables go to ``benchmarks/results``."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "local_step",
    "block",
    "scaling",
    "networks",
    "memory",
    "startup",
    "solvers",
    "one_machine",
    "l1",
    "stopping",
    "multinomial",
    "small_data",
    "raw_data",
    "kinks",
    "mpi",
    "wall_clock",
    "engines",
    "planner",
    "adaptive",
    "map",
    "reproduction",
    "rivals",
    "variants",
)

if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        print(importlib.import_module(f"benchmarks.{name}").main())
