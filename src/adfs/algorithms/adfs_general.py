"""ADFS for terms with a prox of their own: interpreted, one Python call per term, d-dimensional tips.

The steps are those of :class:`adfs.algorithms.adfs_literal.MeanLagAdfs`, without copying the whole state at
every event.
"""

from __future__ import annotations

import numpy as np

from adfs.algorithms.base import EventProcess, Setting
from adfs.problem.evaluation import sampling_weights
from adfs.schedule import Events
from adfs.theory import Parameters

__all__ = ["GeneralAdfsProcess"]


class GeneralAdfsProcess(EventProcess):
    """ADFS in progress on a :class:`~adfs.problem.GeneralProblem`."""

    def __init__(self, setting: Setting[Parameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        block = setting.block
        self.sigma = parameters.sigma[block]
        roots = sampling_weights(problem.smoothness, problem.active, problem.offsets, self.sigma)
        super().__init__(setting, roots)
        self.problem = problem
        self.parameters = parameters
        self.roots = roots
        k, d = block.size, problem.n_features
        self.mean, self.lag, self.time = np.zeros((k, d)), np.zeros((k, d)), np.zeros(k)
        self.tip_mean, self.tip_lag = np.zeros((problem.n_samples, d)), np.zeros((problem.n_samples, d))
        self.tip_time = np.zeros(problem.n_samples)
        probability = np.where(parameters.node_probability > 0.0, parameters.node_probability, 1.0)
        self.mixing = (parameters.contraction * parameters.root_sums / probability)[block]
        self.step = (parameters.virtual_weight / parameters.dual_curvature)[block]

    def run(self, events: Events, first: int, last: int) -> int:
        n = self.slot.size
        for t in range(first, last):
            actor, time = int(events.actor[t]), float(events.time[t])
            if actor < n:
                self._compute(int(self.slot[actor]), int(events.sample[t]), time)
                continue
            edge = actor - n
            i, j = (int(k) for k in self.slot[self.ends[edge]])
            if i < 0 or j < 0:
                return t
            own, other = self._iterate(i, time), self._iterate(j, time)
            self._receive(edge, i, own - other, -1.0)
            self._receive(edge, j, own - other, 1.0)
        return last

    def _decay(self, i: int, time: float) -> None:
        self.lag[i] *= np.exp(self.parameters.log_decay * (time - self.time[i]))
        self.time[i] = time

    def _iterate(self, i: int, time: float) -> np.ndarray:
        self._decay(i, time)
        return np.asarray((self.mean[i] - 0.5 * self.lag[i]) / self.sigma[i])

    def _compute(self, i: int, j: int, time: float) -> None:
        iterate = self._iterate(i, time)
        self.tip_lag[j] *= np.exp(self.parameters.log_decay * (time - self.tip_time[j]))
        self.tip_time[j] = time
        smoothness = self.problem.smoothness[j]
        chi = self.mixing[i] / self.roots[j]
        eta = self.step[i] * chi * smoothness
        at_x, at_v = self.tip_mean[j] - 0.5 * self.tip_lag[j], self.tip_mean[j] + 0.5 * self.tip_lag[j]
        moved = self.problem.term(j).dual_prox(at_v + eta * (iterate - at_x / smoothness), eta, smoothness)
        change = moved - at_v
        self.tip_mean[j] += 0.5 * (1.0 + chi) * change
        self.tip_lag[j] += (1.0 - chi) * change
        self.mean[i] -= 0.5 * (1.0 + chi) * change
        self.lag[i] -= (1.0 - chi) * change

    def _receive(self, edge: int, i: int, difference: np.ndarray, sign: float) -> None:
        change = sign * self.parameters.edge_step[edge] * difference
        chi = self.parameters.edge_mixing[edge]
        self.mean[i] += 0.5 * (1.0 + chi) * change
        self.lag[i] += (1.0 - chi) * change

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        return self._iterate(self.end(edge), time)

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        first = int(self.slot[self.ends[edge, 0]]) == self.end(edge)
        difference = own - message if first else message - own
        self._receive(edge, self.end(edge), difference, -1.0 if first else 1.0)

    def primal(self, read: str = "x") -> np.ndarray:
        lag = self.lag * np.exp(self.parameters.log_decay * (self.position - self.time))[:, None]
        side = -0.5 if read == "x" else 0.5
        return np.asarray((self.mean + side * lag) / self.sigma[:, None])

    def dual(self) -> np.ndarray:
        lag = self.tip_lag * np.exp(self.parameters.log_decay * (self.position - self.tip_time))[:, None]
        return np.asarray(self.tip_mean - 0.5 * lag)

    def place(self, tips: np.ndarray, centers: np.ndarray) -> bool:
        self.tip_mean[...] = tips
        self.mean[...] = centers
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("mean", "lag", "time", "tip_mean", "tip_lag", "tip_time")
        return {name: getattr(self, name) for name in names}
