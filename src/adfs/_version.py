"""The one place where the version is written."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.5.0"
