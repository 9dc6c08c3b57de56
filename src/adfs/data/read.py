"""Reading files of samples by name: the format is told by the ending, the compression by the first bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adfs.data.columns import read_csv, read_parquet
from adfs.data.libsvm import read_libsvm
from adfs.data.npz import read_npz
from adfs.data.streams import COMPRESSED_SUFFIXES
from adfs.data.table import Table, align, machine_memory
from adfs.errors import InputError, unknown_name

__all__ = ["FORMATS", "ReadOptions", "read_table", "read_tables"]

#: Format -> the endings that say it. Any other ending is taken for LIBSVM text, which often has none.
FORMATS = {
    "libsvm": (".svm", ".libsvm", ".svmlight", ".txt", ".t"),
    "npz": (".npz",),
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
}
# One node of a run keeps about so many vectors of d numbers.
_VECTORS = 8


@dataclass(frozen=True)
class ReadOptions:
    """How files are read.

    Parameters
    ----------
    form : str
        ``"auto"`` or one of `FORMATS`.
    label, weight : str, optional
        The columns with the labels and the sample weights, for CSV and parquet.
    n_features : int, optional
        d, where the files do not say it.
    index_base : int, optional
        0 or 1, for LIBSVM text.
    labels_needed : bool
    ignore_extra : bool
        Leave out features beyond ``n_features``.
    """

    form: str = "auto"
    label: str | None = None
    weight: str | None = None
    n_features: int | None = None
    index_base: int | None = None
    labels_needed: bool = True
    ignore_extra: bool = False

    def __post_init__(self) -> None:
        if self.form != "auto" and self.form not in FORMATS:
            raise unknown_name("format", self.form, ("auto", *FORMATS))
        needed, there = 8 * _VECTORS * (self.n_features or 0), machine_memory()
        if needed > there:
            raise InputError(
                f"--n-features {self.n_features} needs about {needed / 1e9:.3g} GB per node, this machine "
                f"has {there / 1e9:.3g} GB; give the number of features that the data has, or leave it out"
            )


def format_of(path: Path) -> str:
    """Return the format that a file's name says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return next((form for form, endings in FORMATS.items() if last in endings), "libsvm")


def read_table(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Table:
    """Read one file; the columns of LIBSVM text are settled afterwards by `align`."""
    options = options or ReadOptions()
    path = Path(path)
    form = format_of(path) if options.form == "auto" else options.form
    if form == "libsvm":
        return read_libsvm(path)
    if form == "npz":
        return read_npz(path, labels_needed=options.labels_needed)
    reader = read_csv if form == "csv" else read_parquet
    return reader(path, label=options.label, weight=options.weight, labels_needed=options.labels_needed)


def read_tables(paths: Sequence[str | os.PathLike[str]], options: ReadOptions | None = None) -> list[Table]:
    """Read several files and bring them to the same columns."""
    options = options or ReadOptions()
    return align(
        [read_table(path, options) for path in paths],
        n_features=options.n_features,
        index_base=options.index_base,
        ignore_extra=options.ignore_extra,
    )
