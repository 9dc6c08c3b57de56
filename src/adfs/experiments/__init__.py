"""Comparisons of methods: described in a few lines, run over seeds, drawn, tabulated; and the paper's own."""

from adfs.experiments.comparison import Comparison, DataSpec, DelaySpec, MethodSpec, read_comparison
from adfs.experiments.paper import reproduce
from adfs.experiments.report import make_page, remake_folder, write_folder
from adfs.experiments.runs import Results, load_results, run_comparison

__all__ = [
    "Comparison",
    "DataSpec",
    "DelaySpec",
    "MethodSpec",
    "Results",
    "load_results",
    "make_page",
    "read_comparison",
    "remake_folder",
    "reproduce",
    "run_comparison",
    "write_folder",
]
