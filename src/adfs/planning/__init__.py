"""The planner: which method, how many nodes, which graph, how long, before anything is run."""

from adfs.planning.facts import Facts
from adfs.planning.pilot import Pilot
from adfs.planning.plan import Plan, plan
from adfs.planning.predictions import Prediction, predict

__all__ = ["Facts", "Pilot", "Plan", "Prediction", "plan", "predict"]
