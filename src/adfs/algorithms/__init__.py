"""The methods, and the contract between them and the runtimes."""

from adfs.algorithms.adfs import Adfs, Apcg
from adfs.algorithms.adfs_block import AdfsBlock
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
from adfs.algorithms.dadao import Dadao
from adfs.algorithms.dual_methods import Esdacd, Msda
from adfs.algorithms.dvr import Dvr
from adfs.algorithms.gradient_methods import Agd, DistributedAgd, Extra
from adfs.algorithms.gt_saga import GtSaga
from adfs.algorithms.interior_point import InteriorPoint
from adfs.algorithms.lbfgs import Lbfgs
from adfs.algorithms.method_kernels import EventKernels, RoundKernels, register_kernels
from adfs.algorithms.newton import Newton
from adfs.algorithms.ns_adfs import NsAdfs
from adfs.algorithms.opapc import Opapc
from adfs.algorithms.qning import Qning
from adfs.algorithms.round_process import RoundProcess
from adfs.algorithms.saga import Dsba, PointSaga
from adfs.algorithms.sonata import Sonata

# The order decides the colours of methods in figures: a new one comes last.
for _method in (
    *(Adfs(), Apcg(), AdfsBlock(), Esdacd(), Agd(), DistributedAgd(), Extra(), InteriorPoint()),
    *(Lbfgs(), Msda(), Newton(), NsAdfs(), Qning(), PointSaga(), Dsba()),
    *(Opapc(), Sonata(), Dvr(), GtSaga(), Dadao()),
):
    register_method(_method)

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
