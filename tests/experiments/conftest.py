"""What the tests of experiments leave behind, they take away again."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from adfs.algorithms import METHODS

# Looking for doctests in it would import it, and so register its method.
collect_ignore = ["outside_method.py"]


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    """Forget methods that a test registered, and the modules from outside that registered them."""
    methods, modules = dict(METHODS), set(sys.modules)
    yield
    METHODS.clear()
    METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if "outside_method" in name:
            del sys.modules[name]
