"""EXTRA: an exact first-order method, the floor that others are measured from."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from adfs.algorithms.base import Method, Setting, register_method
from adfs.algorithms.method_kernels import RoundKernels, register_round_kernels
from adfs.algorithms.round_process import LocalRounds, extrapolate, node_gradients
from adfs.compilation import kernel
from adfs.network import lazy_gossip
from adfs.problem import Samples
from adfs.theory.baselines import ExtraParameters


class ExtraParts(NamedTuple):
    """All that the kernels below need.

    Attributes
    ----------
    now, before, gradient : (k, d)
        The iterate, the one before, and the gradient there.
    room : (k, d)
    """

    samples: Samples
    sigma: np.ndarray
    step: float
    now: np.ndarray
    before: np.ndarray
    gradient: np.ndarray
    room: np.ndarray


@kernel
def _begin(parts: ExtraParts, t: int, last: int, out: np.ndarray) -> int:
    if t < last:
        extrapolate(parts.now, parts.before, out)
    return t


@kernel
def _end(parts: ExtraParts, t: int, heard: np.ndarray) -> int:
    now, before, gradient, found = parts.now, parts.before, parts.gradient, parts.room
    node_gradients(parts.samples, parts.sigma, now, found)
    for i in range(heard.shape[0]):
        for k in range(heard.shape[1]):
            following = heard[i, k] - parts.step * (found[i, k] - gradient[i, k])
            before[i, k] = now[i, k]
            now[i, k] = following
            gradient[i, k] = found[i, k]
    return t + 1


class ExtraProcess(LocalRounds):
    """EXTRA in progress over a block of nodes."""

    kernels = register_round_kernels(ExtraParts, RoundKernels(_begin, _end))

    def __init__(self, setting: Setting[ExtraParameters]) -> None:
        parameters: ExtraParameters = setting.parameters
        super().__init__(setting, lazy_gossip(setting.network, parameters.laplacian_max))
        # From x = x before = 0 and a gradient before of 0, the general step is the paper's first one.
        self.now, self.before, self.gradient, room = (np.zeros(self.message_shape) for _ in range(4))
        step = float(parameters.step)
        self.parts = ExtraParts(
            self.samples, self.problem.sigma, step, self.now, self.before, self.gradient, room
        )

    def primal(self, read: str = "x") -> np.ndarray:
        return self.now.copy()

    def arrays(self) -> dict[str, np.ndarray]:
        return {"now": self.now, "before": self.before, "gradient": self.gradient}


class Extra(Method[ExtraParameters]):
    """EXTRA: gradient descent with gossip, made exact by the difference of two steps.

    Problem
        min_θ Σ_i f_i(θ), each f_i smooth and strongly convex.
    Algorithm
        x⁺⁺ = (I + W)x⁺ − (I + W)/2·x − α(∇f(x⁺) − ∇f(x)), W = I − Lap/λ_max, α = 1/(2 max M_i).
    Guarantee
        The squared error shrinks by 1 − min(σ_min/(2 max M_i), γ/2) per round.

    References
    ----------
        Shi, Ling, Wu, Yin, "EXTRA: an exact first-order algorithm for decentralized consensus
        optimization", SIAM Journal on Optimization, 2015.
    """

    name = "extra"
    needs_network = True
    observed_factor = 0.13
    by_gradients = True
    kind = "rounds"

    record, process = ExtraParameters, ExtraProcess
    choices = MappingProxyType(
        {"theory": lambda problem, network, tau: ExtraParameters.theory(problem, network)}
    )


register_method(Extra())
