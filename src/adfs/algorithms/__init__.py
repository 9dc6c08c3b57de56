"""The algorithms: literal forms that read beside the paper, and the compiled ones that run."""

from adfs.algorithms import adfs, adfs_block, ns_adfs
from adfs.algorithms.base import (
    METHODS,
    EventProcess,
    Method,
    Process,
    RoundProcess,
    Setting,
    Work,
    get_method,
    register_method,
)

__all__ = [
    "METHODS",
    "EventProcess",
    "Method",
    "Process",
    "RoundProcess",
    "Setting",
    "Work",
    "adfs",
    "adfs_block",
    "get_method",
    "ns_adfs",
    "register_method",
]
