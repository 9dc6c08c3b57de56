"""The algorithms: literal forms that read beside the paper, and the compiled ones that run."""

from adfs.algorithms import (
    adfs,
    adfs_block,
    agd,
    apcg,
    dsba,
    esdacd,
    extra,
    msda,
    ns_adfs,
    point_saga,
    qning,
)
from adfs.algorithms.base import (
    METHODS,
    EventEffort,
    EventProcess,
    Method,
    Process,
    RoundEffort,
    RoundProcess,
    Setting,
    Work,
    get_method,
    register_method,
)
from adfs.algorithms.event_kernels import EventKernels, register_event_kernels
from adfs.algorithms.round_kernels import RoundKernels, register_round_kernels

__all__ = [
    "METHODS",
    "EventEffort",
    "EventKernels",
    "EventProcess",
    "Method",
    "Process",
    "RoundEffort",
    "RoundKernels",
    "RoundProcess",
    "Setting",
    "Work",
    "adfs",
    "adfs_block",
    "agd",
    "apcg",
    "dsba",
    "esdacd",
    "extra",
    "get_method",
    "msda",
    "ns_adfs",
    "point_saga",
    "qning",
    "register_event_kernels",
    "register_method",
    "register_round_kernels",
]
