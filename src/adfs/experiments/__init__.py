"""Comparisons of methods over seeds, with tables, figures and a page; and the paper's experiments."""

from adfs.experiments.comparison import Comparison, DataSpec, DelaySpec, MethodSpec, read_comparison
from adfs.experiments.grid import Grid, read_grid, run_grid, winners
from adfs.experiments.paper import reproduce
from adfs.experiments.report import make_page, remake_folder, write_folder
from adfs.experiments.results import Results, load_results
from adfs.experiments.runner import run_comparison

__all__ = [
    "Comparison",
    "DataSpec",
    "DelaySpec",
    "Grid",
    "MethodSpec",
    "Results",
    "load_results",
    "make_page",
    "read_comparison",
    "read_grid",
    "remake_folder",
    "reproduce",
    "run_comparison",
    "run_grid",
    "winners",
    "write_folder",
]
