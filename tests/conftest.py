"""What tests register, they take away again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from adfs.algorithms import METHODS
from adfs.problem import LOSSES

# Looking for doctests in them would import them, and so register what they define.
collect_ignore = ["experiments/outside_loss.py", "experiments/outside_method.py"]


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    """Forget methods and losses that a test registered, and the modules from outside that registered them."""
    modules = set(sys.modules)
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = [(METHODS, dict(METHODS)), (LOSSES, dict(LOSSES))]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
    for name in set(sys.modules) - modules:
        if name.startswith("_adfs_import_"):
            del sys.modules[name]
