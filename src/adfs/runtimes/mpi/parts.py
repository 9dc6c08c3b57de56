"""What compiled code needs of a process to execute its events."""

from __future__ import annotations

from typing import Any

from adfs.algorithms.base import EventProcess
from adfs.algorithms.event_kernels import execute, fill_message, take_message

__all__ = ["execute", "fill_message", "parts_of", "take_message"]


def parts_of(process: EventProcess) -> tuple[Any, ...] | None:
    """Return the parts of a process whose kernels compiled code can call; None for any other."""
    return None if process.kernels is None else process.parts
