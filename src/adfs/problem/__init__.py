"""The problem: losses, shards, partitions, objective, optimum and duality gap."""

from adfs.problem import exponential_losses, line_losses, tweedie  # noqa: F401, which register their losses
from adfs.problem.finite_sum import FiniteSum
from adfs.problem.logistic import Multinomial
from adfs.problem.losses import LOSSES, Loss, get_loss, register_loss
from adfs.problem.problem import Problem
from adfs.problem.reference import Optimum
from adfs.problem.samples import Samples
from adfs.problem.shards import PARTITIONS, Shard, split
from adfs.problem.terms import GeneralProblem, LinearTerm, MultinomialLogisticTerm, Term

__all__ = [
    "LOSSES",
    "PARTITIONS",
    "FiniteSum",
    "GeneralProblem",
    "LinearTerm",
    "Loss",
    "Multinomial",
    "MultinomialLogisticTerm",
    "Optimum",
    "Problem",
    "Samples",
    "Shard",
    "Term",
    "get_loss",
    "register_loss",
    "split",
]
