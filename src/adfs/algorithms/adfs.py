"""ADFS, and APCG, which is ADFS on one machine.

The kernels are those of `adfs.algorithms.adfs_kernels`, which the tests hold to a literal twin.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from adfs.algorithms.adfs_kernels import (
    AdfsParts,
    adfs_parts,
    center_iterate,
    center_iterates,
    dual_scalars,
    receive,
    run_events,
)
from adfs.algorithms.base import EventProcess, Method, Process, Setting
from adfs.algorithms.costs import Cost, inverse_rate, network_links, split_cost
from adfs.algorithms.method_kernels import EventKernels, register_kernels
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.problem.evaluation import sampling_weights
from adfs.schedule import Events
from adfs.theory import Facts, Parameters


class CenterProcess(Process):
    """A process whose state has complex ``duals`` and ``centers``: x, v and their mean agree at its start."""

    state: Any

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        # The imaginary parts, which say how far v is from x, are zero.
        self.state.duals[...] = np.ravel(duals)
        self.state.centers[...] = centers
        return True


class LagProcess(CenterProcess):
    """A process that takes the steps of ADFS, with x and v as their mean and the lag between them."""

    def hold(self, adfs: AdfsParts, problem: FiniteSum) -> None:
        """Keep the arguments of the kernels of ADFS."""
        self.adfs, self.state = adfs, adfs.state
        self._duals_shape = (problem.n_samples, *problem.dual_shape)

    def primal(self, read: str = "x") -> np.ndarray:
        return center_iterates(self.adfs, self.position, read)

    def dual(self) -> np.ndarray:
        return dual_scalars(self.adfs, self.position, -1.0).reshape(self._duals_shape)


class AdfsProcess(LagProcess, EventProcess):
    """ADFS in progress over a block of nodes."""

    kernels = register_kernels(AdfsParts, EventKernels(run_events, center_iterate, receive))

    def __init__(self, setting: Setting[Parameters]) -> None:
        problem, parameters, block = setting.problem, setting.parameters, setting.block
        sigma = parameters.sigma[block]
        # A node draws its samples with probabilities proportional to √(1 + L_ij/σ_i).
        super().__init__(
            setting, sampling_weights(problem.smoothness, problem.active, problem.node_starts, sigma)
        )
        # A node that never acts has no samples: any probability does.
        probability = np.where(parameters.node_probability > 0.0, parameters.node_probability, 1.0)[block]
        mixing = parameters.root_sums[block] * (parameters.contraction / probability)
        steps = parameters.virtual_weight[block] / parameters.dual_curvature
        edges = np.stack(parameters.edge_steps(), axis=1)
        self.hold(adfs_parts(setting, mixing, steps, edges), problem)
        self.parts = self.adfs


class GeneralAdfsProcess(EventProcess):
    """ADFS in progress on terms with a prox of their own: interpreted, d numbers per dual variable.

    The steps are those of the literal twin in the tests, without copying the whole state at every event.
    """

    def __init__(self, setting: Setting[Parameters]) -> None:
        problem, parameters = setting.problem, setting.parameters
        block = setting.block
        self.sigma = parameters.sigma[block]
        roots = sampling_weights(problem.smoothness, problem.active, problem.node_starts, self.sigma)
        super().__init__(setting, roots)
        self.problem = problem
        self.parameters = parameters
        self.roots = roots
        k, d = block.size, problem.n_features
        # c and e of the centres and of the terms, and the time as of which they hold.
        self.mean, self.lag, self.time = np.zeros((k, d)), np.zeros((k, d)), np.zeros(k)
        self.dual_mean, self.dual_lag = np.zeros((problem.n_samples, d)), np.zeros((problem.n_samples, d))
        self.dual_time = np.zeros(problem.n_samples)
        probability = np.where(parameters.node_probability > 0.0, parameters.node_probability, 1.0)
        # χ of a term is `mixing` over its root, η̃ is `step` times χ times its smoothness.
        self.mixing = (parameters.contraction * parameters.root_sums / probability)[block]
        self.step = (parameters.virtual_weight / parameters.dual_curvature)[block]
        self.edge_step, self.edge_mixing = parameters.edge_steps()

    def run(self, events: Events, first: int, last: int) -> int:
        n = self.slot.size
        for t in range(first, last):
            actor, time = int(events.actor[t]), float(events.time[t])
            if actor < n:
                self._compute(int(self.slot[actor]), int(events.sample[t]), time)
                continue
            # A communication: both ends are in this block, or the runtime carries the messages.
            edge = actor - n
            i, j = (int(k) for k in self.slot[self.ends[edge]])
            if i < 0 or j < 0:
                return t
            own, other = self._iterate(i, time), self._iterate(j, time)
            self._receive(edge, i, own - other, -1.0)
            self._receive(edge, j, own - other, 1.0)
        return last

    def _iterate(self, i: int, time: float) -> np.ndarray:
        """Bring node i to a time and return x_i/σ_i there."""
        self.lag[i] *= np.exp(self.parameters.log_decay * (time - self.time[i]))
        self.time[i] = time
        return np.asarray((self.mean[i] - 0.5 * self.lag[i]) / self.sigma[i])

    def _compute(self, i: int, j: int, time: float) -> None:
        """Take the prox step of term j at node i."""
        iterate = self._iterate(i, time)
        self.dual_lag[j] *= np.exp(self.parameters.log_decay * (time - self.dual_time[j]))
        self.dual_time[j] = time
        # The dual prox at v, then the jump of c and e: at the term with a plus, at the centre with a minus.
        smoothness = self.problem.smoothness[j]
        chi = self.mixing[i] / self.roots[j]
        eta = self.step[i] * chi * smoothness
        at_x, at_v = self.dual_mean[j] - 0.5 * self.dual_lag[j], self.dual_mean[j] + 0.5 * self.dual_lag[j]
        moved = self.problem.term(j).dual_prox(at_v + eta * (iterate - at_x / smoothness), eta, smoothness)
        change = moved - at_v
        self.dual_mean[j] += 0.5 * (1.0 + chi) * change
        self.dual_lag[j] += (1.0 - chi) * change
        self.mean[i] -= 0.5 * (1.0 + chi) * change
        self.lag[i] -= (1.0 - chi) * change

    def _receive(self, edge: int, i: int, difference: np.ndarray, sign: float) -> None:
        """Move node i by the difference of the two ends' iterates."""
        change = sign * self.edge_step[edge] * difference
        chi = self.edge_mixing[edge]
        self.mean[i] += 0.5 * (1.0 + chi) * change
        self.lag[i] += (1.0 - chi) * change

    def outgoing(self, edge: int, time: float) -> np.ndarray:
        return self._iterate(self.end(edge), time)

    def incoming(self, edge: int, time: float, own: np.ndarray, message: np.ndarray) -> None:
        # The difference as at the first end, so that both ends compute the same bits.
        first = int(self.slot[self.ends[edge, 0]]) == self.end(edge)
        difference = own - message if first else message - own
        self._receive(edge, self.end(edge), difference, -1.0 if first else 1.0)

    def primal(self, read: str = "x") -> np.ndarray:
        # As of the current position: the lags of idle nodes have decayed since their last events.
        lag = self.lag * np.exp(self.parameters.log_decay * (self.position - self.time))[:, None]
        side = -0.5 if read == "x" else 0.5
        return np.asarray((self.mean + side * lag) / self.sigma[:, None])

    def dual(self) -> np.ndarray:
        lag = self.dual_lag * np.exp(self.parameters.log_decay * (self.position - self.dual_time))[:, None]
        return np.asarray(self.dual_mean - 0.5 * lag)

    def place(self, duals: np.ndarray, centers: np.ndarray) -> bool:
        self.dual_mean[...] = duals
        self.mean[...] = centers
        return True

    def arrays(self) -> dict[str, np.ndarray]:
        names = ("mean", "lag", "time", "dual_mean", "dual_lag", "dual_time")
        return {name: getattr(self, name) for name in names}


class Adfs(Method[Parameters]):
    """ADFS: decentralised, asynchronous, accelerated, stochastic, proximal.

    Problem
        min_θ Σ_i [Σ_j w_ij ℓ(x_ijᵀθ; y_ij) + (σ_i/2)‖θ‖²] with a smooth loss, node i holding its own samples.
    Algorithm
        Algorithm 2 of the paper in mean/lag form: an event is a dual coordinate step on one sample at one
        node, or a difference between two neighbours.
    Guarantee
        Theorem 2: the error contracts by 1 − ρ per event, in expectation.

    References
    ----------
        Hendrikx, Bach, Massoulié, "An accelerated decentralized stochastic proximal algorithm for finite
        sums", arXiv 1905.11394.
    """

    name = "adfs"
    label = "ADFS"
    warm_starts = True
    observed_factor = 0.6
    kind: ClassVar[str] = "events"
    general_terms = True
    several_outputs = True
    unbounded_curvature = True
    l1 = True
    lost_exchanges = True
    stages = "adaptive"

    record = Parameters
    # The first stage of a run that adapts its parameters has tuned ones.
    choices = MappingProxyType(
        {
            "tuned": Parameters.tuned,
            "paper": Parameters.paper,
            "adaptive": Parameters.tuned,
            "adaptive-safe": Parameters.tuned,
        }
    )

    def cost(self, facts: Facts, network: Network, tol: float, tau: float = 1.0) -> Cost:
        # Theorem 2 with tuned parameters: of 1/ρ events, one part are computations, the rest communications.
        def parts(facts: Facts) -> tuple[float, float]:
            n, summary = network.n_nodes, facts.summary(network.n_nodes)
            samples = float(summary.root_sums.sum())
            if n == 1:
                return samples, 0.0
            # The busiest node decides how long the messages take.
            delay = tau * n * float(network.degrees.max()) / network.n_edges
            return inverse_rate(samples, network_links(network), float(summary.batch_kappa.mean()), delay)

        return split_cost(facts, self.observed_factor * math.log(1.0 / tol), parts)

    def start(self, setting: Setting[Parameters]) -> EventProcess:
        return AdfsProcess(setting) if setting.problem.linear else GeneralAdfsProcess(setting)


class Apcg(Adfs):
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
    label = "APCG"
    warm_starts = lost_exchanges = False
    kind = "single"
    reference_order = 4
