"""Pages whose engine is not installed are not run: `make test-engines` installs Spark."""

from importlib.util import find_spec

import pytest

collect_ignore = [
    page for page, package in {"dask.md": "distributed", "spark.md": "pyspark"}.items() if find_spec(package) is None
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Spark's own warnings be warnings."""
    for item in items:
        if item.path.name == "spark.md":
            for name in ("FutureWarning", "DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))
