"""The planner: which method, how many nodes, which network, how long, before anything is run."""

from adfs.planning.facts import Facts
from adfs.planning.plan import GRAPHS, NODES, Plan, networks_of, node_counts, plan
from adfs.planning.predictions import Choice, Prediction, choose, predict

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
