"""The planner: which method, how many nodes, which network, how long, before anything is run."""

from adfs.planning.choice import Choice, choose
from adfs.planning.planner import GRAPHS, NODES, Plan, Prediction, networks_of, node_counts, plan, predict
from adfs.theory import Facts

__all__ = [
    "GRAPHS",
    "NODES",
    "Choice",
    "Facts",
    "Plan",
    "Prediction",
    "choose",
    "networks_of",
    "node_counts",
    "plan",
    "predict",
]
