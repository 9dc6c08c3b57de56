"""What a user reads who has not installed Spark."""

from __future__ import annotations

import sys

import pytest

import adfs


@pytest.mark.parametrize("name", ["fit", "transform"])
def test_spark_says_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(adfs.InputError, match=r"adfs\.spark needs pyspark .*the extra spark"):
        getattr(adfs.spark, name)(adfs.ADFSClassifier(), None, ["a"])
