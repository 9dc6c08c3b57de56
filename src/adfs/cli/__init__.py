"""The ``adfs`` command."""

from __future__ import annotations

from adfs.cli.app import main

__all__ = ["main"]
