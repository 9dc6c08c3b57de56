"""Pages whose engine is not installed are not run: `make test-engines` installs Spark."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

PACKAGES = {"dask.md": "distributed", "spark.md": "pyspark"}
collect_ignore = [page for page, package in PACKAGES.items() if find_spec(package) is None]
# Spark warns of the pandas it meets, and leaves its sockets to the garbage collector.
LEFT = ("FutureWarning", "DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Spark's own warnings be warnings."""
    for item in items:
        if item.path.name == "spark.md":
            for name in LEFT:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))
