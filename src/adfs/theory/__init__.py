"""The theory: the augmented graph, parameters, one function per theorem, and Table 1."""

from adfs.theory.baselines import (
    AgdParameters,
    DsbaParameters,
    EsdacdParameters,
    ExtraParameters,
    MsdaParameters,
    NoParameters,
    PointSagaParameters,
)
from adfs.theory.parameters import BlockParameters, NonSmoothParameters, Parameters, smoothness_limit
from adfs.theory.problem_summary import Facts, NodeSizes, NodeSummary, node_sizes, summarize
from adfs.theory.records import dual_curvature, dual_curvature_of_split, tree_depth
from adfs.theory.theorems import (
    AugmentedGraph,
    table1,
    theorem1_lyapunov,
    theorem2_error,
    theorem2_initial_error,
    theorem3_bound,
    theorem4_step_time,
    theorem5_time,
)

__all__ = [
    "AgdParameters",
    "AugmentedGraph",
    "BlockParameters",
    "DsbaParameters",
    "EsdacdParameters",
    "ExtraParameters",
    "Facts",
    "MsdaParameters",
    "NoParameters",
    "NodeSizes",
    "NodeSummary",
    "NonSmoothParameters",
    "Parameters",
    "PointSagaParameters",
    "dual_curvature",
    "dual_curvature_of_split",
    "node_sizes",
    "smoothness_limit",
    "summarize",
    "table1",
    "theorem1_lyapunov",
    "theorem2_error",
    "theorem2_initial_error",
    "theorem3_bound",
    "theorem4_step_time",
    "theorem5_time",
    "tree_depth",
]
