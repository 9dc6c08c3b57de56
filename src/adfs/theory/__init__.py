"""The theory: the augmented graph, parameters, one function per theorem, and Table 1."""

from adfs.theory.baselines import (
    AgdParameters,
    DsbaParameters,
    EsdacdParameters,
    ExtraParameters,
    LbfgsParameters,
    MsdaParameters,
    NewtonParameters,
    PointSagaParameters,
)
from adfs.theory.facts import Facts
from adfs.theory.parameters import Parameters, smoothness_limit
from adfs.theory.strong_convexity import dual_curvature, dual_curvature_of_split, projected_dual_curvature
from adfs.theory.summary import NodeSizes, NodeSummary, node_sizes, summarize
from adfs.theory.theorems import (
    AugmentedGraph,
    ExecutionTime,
    StepTime,
    table1,
    theorem1_lyapunov,
    theorem2_error,
    theorem2_initial_error,
    theorem3_bound,
    theorem4_step_time,
    theorem5_time,
)
from adfs.theory.variants import BlockParameters, NonSmoothParameters

__all__ = [
    "AgdParameters",
    "AugmentedGraph",
    "BlockParameters",
    "DsbaParameters",
    "EsdacdParameters",
    "ExecutionTime",
    "ExtraParameters",
    "Facts",
    "LbfgsParameters",
    "MsdaParameters",
    "NewtonParameters",
    "NodeSizes",
    "NodeSummary",
    "NonSmoothParameters",
    "Parameters",
    "PointSagaParameters",
    "StepTime",
    "dual_curvature",
    "dual_curvature_of_split",
    "node_sizes",
    "projected_dual_curvature",
    "smoothness_limit",
    "summarize",
    "table1",
    "theorem1_lyapunov",
    "theorem2_error",
    "theorem2_initial_error",
    "theorem3_bound",
    "theorem4_step_time",
    "theorem5_time",
]
