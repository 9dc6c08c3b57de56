"""The algorithms: literal forms that read beside the paper, and the compiled ones that run."""

# Each of these modules registers its methods.
from adfs.algorithms import (  # noqa: F401
    adfs,
    adfs_block,
    esdacd,
    gradient_methods,
    interior_point,
    lbfgs,
    msda,
    newton,
    ns_adfs,
    qning,
    saga,
)
from adfs.algorithms.base import (
    METHODS,
    EventProcess,
    Method,
    Process,
    Setting,
    Work,
    get_method,
    register_method,
)
from adfs.algorithms.costs import EventEffort, RoundEffort
from adfs.algorithms.method_kernels import EventKernels, RoundKernels, register_kernels
from adfs.algorithms.round_process import RoundProcess

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
    "get_method",
    "register_kernels",
    "register_method",
]
