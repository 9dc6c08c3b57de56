"""Files: samples (LIBSVM text, .npz, CSV, parquet) read into rows, labels and weights; and models."""

from adfs.data.model import LinearModel
from adfs.data.read import read_source, read_table, read_tables
from adfs.data.table import FORMATS, ReadOptions, Table, align, stack

__all__ = [
    "FORMATS",
    "LinearModel",
    "ReadOptions",
    "Table",
    "align",
    "read_source",
    "read_table",
    "read_tables",
    "stack",
]
