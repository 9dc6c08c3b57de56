"""APCG on one machine: ADFS with a single node and nothing to communicate."""

from __future__ import annotations

from adfs.algorithms.adfs import ADFS_CHOICES, AdfsProcess
from adfs.algorithms.assumptions import retuner_for
from adfs.algorithms.base import Method, Setting, passes_in_events, register_method
from adfs.algorithms.retuning import Retuner
from adfs.problem import FiniteSum
from adfs.theory import NodeSizes, Parameters

__all__ = ["Apcg"]


class Apcg(Method[Parameters]):
    """APCG: accelerated proximal coordinate gradient on the dual, on one machine.

    Problem
        min_θ Σ_j w_j ℓ(x_jᵀθ; y_j) + (Σσ_i/2)‖θ‖² with a smooth loss, all samples in one place.
    Algorithm
        ADFS on one node: α = 1, no communication, p_j ∝ √(1 + L_j/σ).
    Guarantee
        Theorem 2 with ρ = 1/Σ_j √(1 + L_j/σ).

    References
    ----------
        Lin, Lu, Xiao, "An accelerated randomized proximal coordinate gradient method and its
        application to regularized empirical risk minimization", SIAM Journal on Optimization, 2015.
    """

    name = "apcg"
    kind = "single"
    several_outputs = True
    assumes_curvature = True
    l1 = True

    record = Parameters
    choices = ADFS_CHOICES

    def start(self, setting: Setting[Parameters]) -> AdfsProcess:
        return AdfsProcess(setting)

    def retuner(self, problem: FiniteSum, choice: object) -> Retuner | None:
        return retuner_for(problem, None)

    def position_of(self, parameters: Parameters, sizes: NodeSizes, passes: float) -> float:
        return passes_in_events(parameters.node_probability, sizes, passes)


register_method(Apcg())
