"""A method as somebody outside would write it: plain gradient descent with gossip, constants of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from adfs.algorithms import Method, RoundProcess, Setting, register_method


@dataclass(frozen=True)
class Step:
    size: float


class TrackingProcess(RoundProcess):
    """Gradient tracking: every node follows the mean gradient, which it learns by gossip."""

    def __init__(self, setting: Setting) -> None:
        n, laplacian = setting.network.n_nodes, setting.network.laplacian()
        largest = float(laplacian.diagonal().max())
        super().__init__(setting, sp.csr_array(sp.eye_array(n) - laplacian / (1.0 + largest)))
        self.size = setting.parameters.size
        self.theta = np.zeros(self.message_shape)
        self.old = self._gradients()
        self.followed = self.old.copy()

    def _gradients(self) -> np.ndarray:
        out = np.empty_like(self.theta)
        for i, shard in enumerate(self.problem.shards):
            margin = shard.y * (shard.X @ self.theta[i])
            out[i] = -shard.X.T @ (shard.y / (1.0 + np.exp(margin))) + self.problem.sigma[i] * self.theta[i]
        return out

    def round(self, gossip: Any) -> None:
        self.theta = gossip(self.theta) - self.size * self.followed
        new = self._gradients()
        self.followed = gossip(self.followed) + new - self.old
        self.old = new
        self.position += 1.0
        self.count(rounds=1, products=2)

    def primal(self, read: str = "x") -> np.ndarray:
        return self.theta

    def arrays(self) -> dict[str, np.ndarray]:
        return {"theta": self.theta, "old": self.old, "followed": self.followed}


class Tracking(Method):
    name = label = "tracking"
    kind = "rounds"
    options = ("size",)

    def parameters(self, problem: Any, network: Any, *, choice: Any = None, tau: Any = None) -> Step:
        return Step(0.002)

    def start(self, setting: Setting) -> TrackingProcess:
        return TrackingProcess(setting)

    def position_of(self, parameters: Any, sizes: Any, passes: float) -> float:
        return passes


register_method(Tracking())
