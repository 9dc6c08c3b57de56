"""LIBSVM text: what scikit-learn writes is what we read, and every fault is told with its line."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from adfs.data import ReadOptions, read_table, read_tables
from adfs.errors import InputError


def some_rows(seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 13)) * 10.0 ** rng.integers(-8, 8, (40, 13))
    X[rng.random(X.shape) < 0.7] = 0.0
    X[3] = 0.0
    X[0, [0, 12]] = 1.0
    return sp.csr_array(X), rng.choice([-1.0, 1.0], 40)


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("compress", [None, gzip.compress, bz2.compress, lzma.compress])
def test_libsvm_text_of_others_is_read_bit_for_bit(tmp_path: Path, zero_based: bool, compress) -> None:
    X, y = some_rows()
    path = tmp_path / "train.svm"
    dump_svmlight_file(X, y, str(path), zero_based=zero_based)
    again, labels = load_svmlight_file(str(path), zero_based=zero_based)
    if compress is not None:
        path.write_bytes(compress(path.read_bytes()))  # told by the content, not by the name
    (table,) = read_tables([path])
    assert table.index_base == (0 if zero_based else 1)
    assert np.array_equal(table.X.toarray(), again.toarray())
    assert np.allclose(table.X.toarray(), X.toarray(), rtol=1e-15)  # scikit-learn writes 16 digits
    assert np.array_equal(table.y, labels)
    assert table.X.has_canonical_format


def test_libsvm_text_may_have_comments_blank_lines_and_no_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"\xef\xbb\xbf# a comment\r\n\r\n+1 1:0.5\t3:-2e1 # why\r\n\n-1\n2.5 2:.5")
    (table,) = read_tables([path])
    assert table.y.tolist() == [1.0, -1.0, 2.5]
    assert table.X.toarray().tolist() == [[0.5, 0.0, -20.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]


def test_libsvm_files_share_their_columns_and_their_numbering(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n-1 2:2\n")
    (tmp_path / "b").write_text("1 0:5 4:1\n")
    first, second = read_tables([tmp_path / "a", tmp_path / "b"])
    assert first.X.shape == (2, 5)
    assert second.X.shape == (1, 5)
    assert first.X.toarray()[0].tolist() == [0, 1, 0, 0, 0]  # an index 0 in one file: all count from 0
    (wide,) = read_tables([tmp_path / "a"], ReadOptions(n_features=7))
    assert wide.X.shape == (2, 7)
    with pytest.raises(InputError, match=r"b has an index 0, but"):
        read_tables([tmp_path / "b"], ReadOptions(index_base=1))
    with pytest.raises(InputError, match=r"has 5 features, 3 are wanted"):
        read_tables([tmp_path / "b"], ReadOptions(n_features=3))


FAULTS = {
    "label": ("x 1:2", "line 3: the label is not a number"),
    "labels": ("1,2 1:2", "line 3: the first word is not one label"),
    "nan label": ("nan 1:2", "line 3: the label is NaN or infinite"),
    "pair": ("1 1:2 3", "line 3: word 3 is not index:value"),
    "double": ("1 1:2:3 4", "line 3: word 2 is not index:value"),
    "lonely": ("1 1: 2", "line 3: word 2 is not index:value"),
    "headless": ("1 :2", "line 3: word 2 is not index:value"),
    "colons": (":", "line 3: the label is not a number"),
    "index": ("1 a:2", "line 3: the index in word 2 is not a whole number"),
    "fraction": ("1 1.5:2", "line 3: the index in word 2 is not a whole number"),
    "negative": ("1 -1:2", "line 3: the index in word 2 is not a whole number"),
    "huge": ("1 99999999999:2", "line 3: the index in word 2 is too large"),
    "order": ("1 5:1 2:1", "line 3: the index 2 comes after 5; indices must ascend"),
    "twice": ("1 5:1 5:1", "line 3: the index 5 comes after 5"),
    "value": ("1 1:b", "line 3: the value of index 1 is not a number"),
    "underscore": ("1 1:1_0", "line 3: the value of index 1 is not a number"),
    "nan": ("1 1:nan", "line 3: the value of index 1 is NaN or infinite"),
    "overflow": ("1 1:1e999", "line 3: the value of index 1 is NaN or infinite"),
    "qid": ("1 qid:3 1:2", "line 3: qid"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_libsvm_faults_are_told_with_their_line(tmp_path: Path, fault: str) -> None:
    line, message = FAULTS[fault]
    path = tmp_path / "bad.svm"
    path.write_text(f"1 1:1\n\n{line}\n-1 2:1\n")
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert message in str(caught.value)
