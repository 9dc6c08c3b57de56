"""Runs in stages on top of the runtimes: adaptive parameters, assumptions that are checked, smoothing.

Importing this package puts its rules into `adfs.runtimes.stages.STAGE_RULES`; the runtimes do not import it.
The public names of ``adfs`` that run something import it.
"""

from adfs.errors import InputError
from adfs.problem import FiniteSum
from adfs.runtimes.stages import STAGE_RULES, StageRule, rule_for
from adfs.stages.adaptive import ADAPTIVE, Adaptive
from adfs.stages.assumptions import Assumptions
from adfs.stages.smoothing import Smoothing

__all__ = ["ADAPTIVE", "Adaptive", "Assumptions", "Smoothing", "rule_for"]


def _adaptive(problem: FiniteSum, choice: object) -> StageRule | None:
    """Adapt the parameters of ADFS where that was asked for, or check the assumptions that they rest on."""
    l1 = problem.l1 is not None
    assumptions = Assumptions(l1=l1) if l1 or problem.assumes_curvature else None
    if not isinstance(choice, str) or choice not in ADAPTIVE:
        return assumptions
    # Boxes from certificates and assumed curvatures would contradict each other.
    if assumptions is not None:
        what = "an l1 term" if l1 else f"the loss {problem.loss.name!r}"
        raise InputError(f"parameters={choice!r} does not take {what}; use 'tuned'")
    if problem.loss.curvature_over is None:
        raise InputError(
            f"parameters={choice!r} takes a linear model with the loss logistic, squared_hinge, huber, "
            f"smoothed_hinge or smoothed_quantile, not {problem.loss.name!r}; use 'tuned'"
        )
    # The curvature of the other losses is the largest one or none, so that samples leave the schedule.
    return Adaptive(ADAPTIVE[choice], keeps_all=problem.loss.curvature_type == "continuous")


def _smoothing(problem: FiniteSum, choice: object) -> StageRule | None:
    """Smooth the loss where that was asked for."""
    if choice != "smoothing":
        return None
    if problem.loss.smoothed(1.0) is None:
        raise InputError(
            "parameters='smoothing' takes the losses absolute, quantile, epsilon_insensitive and hinge, "
            f"not {problem.loss.name!r}"
        )
    return Smoothing()


STAGE_RULES |= {"adaptive": _adaptive, "smoothing": _smoothing}
