"""Bad files: one clear line, exit code 2, and nothing half-written."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adfs.cli import main

GOOD = b"".join(b"%d 1:%d 2:%d\n" % (1 - 2 * (k % 2), k, k * k) for k in range(2000))


def npz(**arrays) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def cut_npz(path: Path) -> None:
    np.savez(path, X=np.ones((50, 4)), y=np.ones(50))
    path.write_bytes(path.read_bytes()[:900])


def pickled_npz(path: Path) -> None:
    np.savez(path, X=np.array([{}, {}], dtype=object), y=np.ones(2))


def huge_npz(path: Path) -> None:
    """Write an archive whose X says that it has 10¹² rows, and has two."""
    np.savez(path, X=np.ones((2, 2)), y=np.ones(2))
    text = path.read_bytes()
    header = b"'shape': (2, 2), }" + b" " * 12
    assert header in text
    with zipfile.ZipFile(path, "w") as archive, zipfile.ZipFile(io.BytesIO(text)) as old:
        for name in old.namelist():
            forged = b"'shape': (1000000000000, 2), }"
            archive.writestr(name, old.read(name).replace(header, forged.ljust(len(header))))


def bomb_npz(path: Path) -> None:
    """Write half a megabyte that would be 8 GB of numbers."""
    np.savez(path, y=np.ones(2))
    head = io.BytesIO()
    shape = (2, 500_000_000)
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", head.getvalue() + bytes(1000))
        entry = archive.getinfo("X.npy")
        entry.file_size = len(head.getvalue()) + 8 * shape[0] * shape[1]  # what a longer one would say


def named_pipe(path: Path) -> None:
    """Make a pipe that somebody writes into, as a shell does for <(command)."""
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # so that opening it to read does not wait
    os.write(writer, b"1 1:1\n")


def csr(**changes) -> Callable[[Path], None]:
    parts = {
        "data": np.ones(2),
        "indices": np.array([0, 1]),
        "indptr": np.array([0, 1, 2]),
        "shape": np.array([2, 2]),
    }
    return npz(**(parts | {"y": np.array([1, -1])} | changes))


# name of the file, how it is made, what the line must say, more options
BAD = {
    "missing": ("none.svm", lambda path: None, "No such file", []),
    "empty": ("e.svm", content(b""), "is empty", []),
    "blank": ("e.svm", content(b"\n \n# nothing\n"), "holds no samples", []),
    "directory": ("d.svm", lambda path: path.mkdir(), "is a directory", ["--format", "libsvm"]),
    "no permission": ("p.svm", lambda path: (path.write_bytes(GOOD), path.chmod(0)), "Permission denied", []),
    "damaged zstd": ("z.svm.zst", content(b"\x28\xb5\x2f\xfd" + bytes(50)), "cut short or damaged", []),
    "zip": ("z.csv.zip", content(b"PK\x03\x04" + bytes(50)), "is a zip archive; unpack it first", []),
    "pipe": ("p.svm", named_pipe, "is a pipe, which can be read once only", []),
    "truncated bz2": ("t.svm.bz2", content(bz2.compress(GOOD)[:-20]), "cut short or damaged", []),
    "truncated gz": ("t.svm.gz", content(gzip.compress(GOOD)[:-20]), "cut short or damaged", []),
    "truncated xz": ("t.svm.xz", content(lzma.compress(GOOD)[:-20]), "cut short or damaged", []),
    "damaged bz2": (
        "t.bz2",
        content(bz2.compress(GOOD)[:90] + b"XXXX" + bz2.compress(GOOD)[94:]),
        "damaged",
        [],
    ),
    "damaged gz": ("t.gz", content(gzip.compress(GOOD)[:-8] + b"\0" * 8), "damaged", []),
    "binary": ("b.svm", content(bytes(range(256)) * 9), "not plain text", []),
    "utf-16": ("u.svm", content("1 1:2\n-1 2:3\n".encode("utf-16")), "not plain text", []),
    "image": ("i.svm", content(b"\x89PNG\r\n\x1a\n" + bytes(99)), "not plain text", []),
    "csv as libsvm": ("c.svm", content(b"a,b,c\n1,2,3\n"), "line 1: the first word is not one label", []),
    "half a line": ("h.svm", content(GOOD + b"1 7:"), "line 2001: word 2 is not index:value", []),
    "text value": ("v.svm", content(GOOD + b"1 7:x\n"), "line 2001: the value of index 7 is not", []),
    "nan": ("n.svm", content(GOOD + b"1 7:nan\n"), "line 2001: the value of index 7 is NaN or", []),
    "infinity": ("n.svm", content(GOOD + b"1 7:-inf\n"), "line 2001: the value of index 7 is NaN or", []),
    "index too large": ("x.svm", content(b"1 1:1\n-1 3000000000:1\n"), "is too large", []),
    "huge model": ("x.svm", content(b"1 1:1\n-1 2000000000:1\n"), "confirm with --n-features", []),
    "unsorted": ("s.svm", content(b"1 3:1 2:1\n-1 1:1\n"), "indices must ascend", []),
    "0-based said 1": ("z.svm", content(b"1 0:1\n-1 1:1\n"), "start at 1", ["--index-base", "1"]),
    "too wide": ("w.svm", content(b"1 9:1\n-1 1:1\n"), "has 9 features, 3 are wanted", ["--n-features", "3"]),
    "no features": ("l.svm", content(b"1\n-1\n"), "holds labels but no features", []),
    "ranking": ("q.svm", content(b"1 qid:1 1:1\n"), "qid (ranking data)", []),
    "one class": ("o.svm", content(b"1 1:1\n1 2:1\n"), "all labels are 1.0", []),
    "targets as classes": ("r.svm", content(b"0.5 1:1\n1.5 2:1\n"), "labels with fractions are no", []),
    "too few for the nodes": (
        "f.svm",
        content(b"1 1:1\n-1 2:1\n"),
        "cannot be split over 5 nodes",
        ["--nodes", "5"],
    ),
    "wrong column count": ("c.csv", content(b"a,b,y\n1,2,0\n1,2,3,1\n"), "line 3 has 4 fields, 3 were", []),
    "all too long": ("c.csv", content(b"a,y\n1,2,0\n1,2,1\n"), "more fields than the first", []),
    "missing field": (
        "c.csv",
        content(b"a,b,y\n1,2,0\n1,,1\n"),
        "column 'b' is missing in data row 2; clean it, or say --missing mean",
        ["--missing", "error"],
    ),
    "short line": (
        "c.csv",
        content(b"a,y,b\n1,0,5\n1,1\n"),
        "column 'b' is missing in data row 2",
        ["--missing", "error"],
    ),
    "infinite number": ("c.csv", content(b"a,y\n1,0\ninf,1\n"), "column 'a' is infinite in data row 2", []),
    "one text cell": (
        "c.csv",
        content(b"a,b,y\n1,2,0\n1,secret,1\n1,3,0\n"),
        "column 'b' holds text in data row 2, and mostly numbers",
        [],
    ),
    "dates": ("c.csv", content(b"a,when,y\n1,2024-01-31,0\n1,2024-02-01,1\n"), "'when' holds dates", []),
    "too many levels": (
        "c.csv",
        content(b"a,id,y\n" + b"".join(b"1,n%d,%d\n" % (k, k % 2) for k in range(1001))),
        "column 'id' has over 1000 levels; leave it out with --drop",
        [],
    ),
    "only missing values": ("c.csv", content(b"a,y\n,0\n,1\n"), "has no column with values", []),
    "same feature twice": (
        "c.csv",
        content(b"a,a is missing,y\n,1,0\n2,3,1\n"),
        "two features would be named 'a is missing'",
        [],
    ),
    "nothing kept": ("c.csv", content(b"a,y\n1,0\n2,1\n"), "no column besides the label", ["--drop", "a"]),
    "unknown column": ("c.csv", content(b"a,y\n1,0\n"), "has no column 'b'", ["--columns", "a,b"]),
    "unknown category": ("c.csv", content(b"a,y\n1,0\n"), "no column 'b' for --categ", ["--categories", "b"]),
    "empty folder": ("d", lambda path: path.mkdir(), "holds no parquet files", []),
    "no names": ("c.csv", content(b"red,1,2\nblue,2,1\nred,2,3\n"), "has no line of names", ["--label", "0"]),
    "no names, rare class": (
        "c.csv",
        content(b"0.5,1.5,green\n2.5,1.5,blue\n2,3,red\n"),
        "has no line of names",
        ["--label", "-1"],
    ),
    "no names, equal values": (
        "c.csv",
        content(b"3,3,no\n2,1,yes\n2,3,yes\n"),
        "has no line of names",
        ["--label", "2"],
    ),
    "no names, truth values": (
        "c.csv",
        content(b"True,1,4\nFalse,1,5\nTrue,1,6\n"),
        "has no line of names",
        ["--label", "0"],
    ),
    "mixed labels": ("c.csv", content(b"a,y\n1,0\n2,yes\n"), "mixes numbers and text", []),
    "missing label": ("c.csv", content(b"a,y\n1,0\n2,\n"), "the label 'y' is missing in data row 2", []),
    "no label column": ("c.csv", content(b"a,b\n1,0\n2,1\n"), "no column is named label", []),
    "unknown label": ("c.csv", content(b"a,y\n1,0\n2,1\n"), "has no column 'z'", ["--label", "z"]),
    "names only": ("c.csv", content(b"a,y\n"), "holds no samples", []),
    "same name twice": ("c.csv", content(b"a,a,y\n1,2,0\n1,2,1\n"), "two columns are named 'a'", []),
    "binary csv": ("c.csv", content(bytes(range(256))), "bytes that are not text", []),
    "latin-1 csv": (
        "c.csv",
        content("a,y\n1,Käse\n2,Brot\n".encode("latin-1")),
        "bytes that are not text",
        [],
    ),
    "label alone": ("c.csv", content(b"y\n0\n1\n"), "no column besides the label", []),
    "not an archive": ("a.npz", content(b"hello"), "not a NumPy archive", []),
    "cut archive": ("a.npz", cut_npz, "not a NumPy archive, or is damaged or cut short", []),
    "pickle": ("a.npz", content(pickle.dumps([1, 2])), "not a NumPy archive", []),
    "objects": ("a.npz", pickled_npz, "Python objects, which are never loaded", []),
    "no y": ("a.npz", npz(X=np.ones((2, 2))), "has no array 'y'", []),
    "no X": ("a.npz", npz(y=np.ones(2)), "must hold X and y", []),
    "other length": ("a.npz", npz(X=np.ones((2, 2)), y=np.ones(3)), "one entry per row", []),
    "nan in X": (
        "a.npz",
        npz(X=np.array([[1, np.nan], [1, 2]]), y=[1, 0]),
        r"holds NaN or infinity, first at \(0, 1\)",
        [],
    ),
    "complex": ("a.npz", npz(X=np.ones((2, 2), complex), y=[1, 0]), "complex128 values, not numbers", []),
    "flat X": ("a.npz", npz(X=np.ones(4), y=np.ones(4)), "must be two-dimensional", []),
    "no rows": ("a.npz", npz(X=np.ones((0, 3)), y=np.ones(0)), "no samples or no features", []),
    "csr outside": ("a.npz", csr(indices=np.array([0, 7])), "not hold a valid CSR matrix", []),
    "csr backwards": ("a.npz", csr(indptr=np.array([0, 2, 1])), "not hold a valid CSR matrix", []),
    "csr of fractions": ("a.npz", csr(indices=np.array([0.0, 1.7])), "indices holds float64 values", []),
    "csr pointers of fractions": ("a.npz", csr(indptr=np.array([0.0, 1.5, 2.0])), "indptr holds float64", []),
    "csr of two forms": ("a.npz", csr(format=np.array(["csr", "csr"])), "another form than CSR", []),
    "labels of bytes": (
        "a.npz",
        npz(X=np.ones((2, 2)), y=np.array([b"a", b"\xff"])),
        "bytes that are not text",
        [],
    ),
    "huge shape": ("a.npz", huge_npz, "the array 'X' is not as large as it says", []),
    "bomb": ("a.npz", bomb_npz, "its arrays would take 8 GB of memory", []),
    "csc": ("a.npz", csr(format=np.array("csc")), "another form than CSR", []),
    "not parquet": ("a.parquet", content(b"PAR1 and more"), "parquet", []),
    "text target": (
        "c.csv",
        content(b"a,y\n1,no\n2,yes\n"),
        "a regression needs numbers",
        ["--loss", "squared"],
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_fit_command_refuses_a_bad_file_in_one_line_and_leaves_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, make, message, options = BAD[kind]
    if kind == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "in" / name
    make(path)
    out, history = tmp_path / "out" / "model.json", tmp_path / "out" / "history.csv"
    out.write_text("what stood here before")
    arguments = ["fit", str(path), "--out", str(out), "--history", str(history), *options]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("adfs: ")
    assert captured.err.count("\n") == 1
    assert "secret" not in captured.err
    assert re.search(message if "\\" in message or "|" in message else re.escape(message), captured.err)
    joint = ("too few for the nodes", "too many levels", "same feature twice", "unknown category")
    assert name in captured.err or kind in joint
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["model.json"]
    assert out.read_text() == "what stood here before"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s3://bucket/a.svm", "is an address"),
        ("https://a.org/b.csv", "is an address"),
    ],
)
def test_fit_and_compare_commands_refuse_what_is_no_file(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = ["compare", "--data", name, "--network", "path:2", "--method", "adfs", "--out", "c"]
    for command in (["fit", name, "--out", "m.json"], compare):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_compare_command_refuses_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--data", "-", "--network", "path:2", "--method", "adfs", "--out", "c"]) == 2
    assert "standard input (-)" in capsys.readouterr().err


def test_bad_files_are_of_more_than_thirty_kinds() -> None:
    assert len(BAD) > 30


@pytest.mark.parametrize(
    ("place", "message"),
    [("folder", "it is a directory"), ("none/model.json", "there is no directory"), ("folder/", "directory")],
)
def test_fit_command_refuses_a_place_it_cannot_write_before_the_work(
    place: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "t.svm").write_bytes(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("adfs.cli.fit_files.fit_files", lambda *_: pytest.fail("the work was begun"))
    assert main(["fit", "t.svm", "--out", place]) == 2
    assert message in capsys.readouterr().err
