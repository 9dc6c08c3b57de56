"""Files: samples (LIBSVM text, .npz, CSV, parquet) read into rows, labels and weights; and models."""

from adfs.data.encoding import Column, Encoding
from adfs.data.joint_encoding import encode_tables, find_encoding
from adfs.data.model import LinearModel, load
from adfs.data.read import read_raw, read_source, read_table, read_tables
from adfs.data.table import FORMATS, RawTable, ReadOptions, Table, align, stack

__all__ = [
    "FORMATS",
    "Column",
    "Encoding",
    "LinearModel",
    "RawTable",
    "ReadOptions",
    "Table",
    "align",
    "encode_tables",
    "find_encoding",
    "load",
    "read_raw",
    "read_source",
    "read_table",
    "read_tables",
    "stack",
]
