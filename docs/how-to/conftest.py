"""Pages whose engine is not installed are skipped: `make test-engines` installs Spark."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

PACKAGES = {"dask.md": "distributed", "spark.md": "pyspark"}
# Spark warns of the pandas it meets, and leaves its sockets to the garbage collector.
LEFT = ("FutureWarning", "DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip pages without their package, and let Spark's own warnings be warnings."""
    for item in items:
        package = PACKAGES.get(item.path.name)
        if package is not None and find_spec(package) is None:
            item.add_marker(pytest.mark.skip(reason=f"{package} is not installed"))
        if item.path.name == "spark.md":
            for name in LEFT:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))
