"""Outside code that a comparison brings along: modules that register methods of their own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from adfs.errors import InputError

__all__ = ["load_modules"]


def load_modules(names: Iterable[str]) -> None:
    """Import modules by name, or .py files by path; a file is imported once."""
    for name in names:
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
                continue
            path = Path(name).resolve()
            alias = f"_adfs_import_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
            if alias in sys.modules:
                continue
            found = importlib.util.spec_from_file_location(alias, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[alias] = module
            found.loader.exec_module(module)
        except (ImportError, OSError) as error:
            raise InputError(f"cannot import {name!r}: {error}") from None
