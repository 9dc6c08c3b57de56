"""The constants of NS-ADFS, for losses that need not be smooth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adfs.errors import InputError
from adfs.network import Network
from adfs.problem import FiniteSum
from adfs.theory.event_parameters import EventParameters
from adfs.theory.parameters import network_constant
from adfs.theory.summary import Source, check_network, summarize
from adfs.theory.tables import text_table

__all__ = ["NonSmoothParameters"]


@dataclass(frozen=True, eq=False)
class NonSmoothParameters(EventParameters):
    """The constants of NS-ADFS.

    ``step_bound`` is S² = max_e μ_e²R_e(Σ_i⁻¹ + Σ_j⁻¹)/p_e² with Σ⁻¹ = 0 at tips, ``offset`` t0. The
    coefficients follow in closed form, A_t = (t + t0)²/(4S²) and a_{t+1} = (2(t + t0) + 1)/(4S²): they
    satisfy a²S² ≤ A_{t+1}, and any node knows them without a recursion. t0 ≥ 2/min p_ij keeps the
    iterates inside the domain of f* (erratum 9; the paper's A_0 = 0 does not). ``virtual_weight`` is
    μ_ij² itself. Samples are equally likely.

    Build it with :meth:`paper`.

    Examples
    --------
    >>> import numpy as np, adfs
    >>> problem = adfs.Problem(np.eye(4), [1, -1, 1, -1], loss="hinge", n_nodes=2)
    >>> parameters = NonSmoothParameters.paper(problem, adfs.Network("path:2"))
    >>> alpha = parameters.increment_at(0) / parameters.weight_at(1)
    >>> alpha < float(parameters.sample_probability(problem).min())
    True
    """

    step_bound: float
    offset: float
    sigma: np.ndarray
    n_active: np.ndarray
    node_probability: np.ndarray
    virtual_weight: np.ndarray
    edge_weights: np.ndarray
    edge_probability: np.ndarray
    edge_resistance: np.ndarray
    kind: str = "non-smooth"

    def __post_init__(self) -> None:
        self._freeze_arrays(
            nodes=("sigma", "n_active", "node_probability", "virtual_weight"),
            edges=("edge_weights", "edge_probability", "edge_resistance"),
            samples="n_active",
        )
        if not (self.step_bound > 0.0 and self.offset >= 0.0):
            raise InputError("parameters: the step bound S² must be above 0 and the offset t0 at least 0")

    def weight_at(self, t: float) -> float:
        """Return A_t."""
        return (t + self.offset) ** 2 / (4.0 * self.step_bound)

    def increment_at(self, t: float) -> float:
        """Return a_{t+1} = A_{t+1} − A_t."""
        return (2.0 * (t + self.offset) + 1.0) / (4.0 * self.step_bound)

    def sample_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return 1 on active rows and 0 on others: samples of a node are equally likely; shape (N,)."""
        return problem.active.astype(np.float64)

    def sample_probability(self, problem: FiniteSum) -> np.ndarray:
        """Return p_ij, shape (N,)."""
        node = problem.node_of_row
        counts = np.where(self.n_active > 0, self.n_active, 1.0)
        return np.asarray(self.node_probability[node] * self.sample_weights(problem) / counts[node])

    def sample_virtual_weights(self, problem: FiniteSum) -> np.ndarray:
        """Return μ_ij², shape (N,)."""
        return np.asarray(self.virtual_weight[problem.node_of_row])

    @classmethod
    def paper(cls, problem: Source, network: Network) -> NonSmoothParameters:
        """Choose as the paper does: μ_ij² = λ_min⁺(Lap)/(1 + m) and p_comm = min(1/2, 1/(1 + √(mγ̃))).

        Edges are equally likely, and so are samples; m is the largest number of samples per node.
        """
        summary = summarize(problem)
        check_network(summary, network)
        active = summary.n_active
        most = float(active.max())
        if network.n_nodes == 1:
            p_comm, weight = 0.0, 1.0
            edge_probability = resistance = np.empty(0)
        else:
            resistance = network.resistances.values
            p_comm = min(0.5, 1.0 / (1.0 + math.sqrt(most * network_constant(network, resistance))))
            weight = network.algebraic_connectivity / (1.0 + most)
            edge_probability = np.full(network.n_edges, p_comm / network.n_edges)
        sample_probability = (1.0 - p_comm) / float(active.sum())
        bounds = [float(np.max(weight / summary.sigma[active > 0])) / sample_probability**2]
        if network.n_edges:
            ends = network.edges
            inverse = 1.0 / summary.sigma[ends[:, 0]] + 1.0 / summary.sigma[ends[:, 1]]
            bounds.append(float(np.max(network.weights * resistance * inverse / edge_probability**2)))
        return cls(
            step_bound=max(bounds),
            offset=float(math.ceil(2.0 / sample_probability)),
            sigma=summary.sigma,
            n_active=active,
            node_probability=sample_probability * active,
            virtual_weight=np.full(summary.n_nodes, weight),
            edge_weights=network.weights,
            edge_probability=edge_probability,
            edge_resistance=resistance,
        )

    def __str__(self) -> str:
        rows: list[tuple[str, str, object]] = [
            ("step bound", "S²", self.step_bound),
            ("offset", "t0", self.offset),
            ("P(communication)", "p_comm", self.p_comm),
            ("P(computation)", "p_comp", self.p_comp),
            ("nodes, edges", "n, |E|", f"{self.n_nodes}, {self.edge_weights.size}"),
            ("virtual weight", "μ_ij²", float(self.virtual_weight.max())),
        ]
        return text_table("Parameters of NS-ADFS", rows)
