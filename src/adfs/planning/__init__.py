"""The planner: which method, how many nodes, which graph, how long, before anything is run."""

from adfs.planning.auto_method import FitFacts, choose_method
from adfs.planning.choice import Choice, choose
from adfs.planning.facts import Facts
from adfs.planning.pilot import Pilot
from adfs.planning.plan import GRAPHS, NODES, Plan, networks_of, plan
from adfs.planning.predictions import Calibration, Prediction, predict

__all__ = [
    "GRAPHS",
    "NODES",
    "Calibration",
    "Choice",
    "Facts",
    "FitFacts",
    "Pilot",
    "Plan",
    "Prediction",
    "choose",
    "choose_method",
    "networks_of",
    "plan",
    "predict",
]
