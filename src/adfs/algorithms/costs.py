"""What a method costs: sample computations and messages to a tolerance, predicted from a few facts.

The planner prints these numbers, and ``method="auto"`` takes the cheapest method that can solve the problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adfs.network import Network
from adfs.theory import Facts
from adfs.theory.parameters import best_split

if TYPE_CHECKING:
    from adfs.algorithms.base import Method

# The unit of the next two numbers is one multiplication and addition. They were measured on one machine;
# only their order of magnitude matters. A step of ADFS draws a sample and solves a scalar equation.
_STEP = 120.0
# A gradient evaluates the loss of each row once, in the order of memory.
_GRADIENT_ROW = 60.0
# Products of matrices run this many times as fast as products of vectors.
MATRIX_SPEED = 8.0
#: A dual method solves a problem with an unpenalised intercept about this many times (proximal rounds).
INTERCEPT_ROUNDS = 3.0


class Cost(NamedTuple):
    """What a method is predicted to take to a tolerance, on all nodes together.

    Attributes
    ----------
    position : float
        Events or rounds.
    passes : float
        The passes that a run reports.
    computations : float
        Work in steps of ADFS, each of one sample.
    messages : float
        Messages of d numbers between nodes.
    """

    position: float
    passes: float
    computations: float
    messages: float

    def work(self, facts: Facts) -> float:
        """Return all the work in steps of ADFS: both ends of a message read d numbers."""
        return self.computations + self.messages * (facts.n_features + _STEP) / _step(facts)


@dataclass(frozen=True, eq=False)
class EventEffort:
    """The work of an event, for the clock.

    Attributes
    ----------
    before_exchange : ndarray of shape (n,)
        Samples that an end of a communication processes before it sends.
    at_start : int
        Samples that each node processes before the first event.
    per_computation : ndarray of shape (n,), optional
        Samples that a computation of each node processes; None: one.
    """

    before_exchange: np.ndarray
    at_start: int = 0
    per_computation: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class RoundEffort:
    """The work of a round, for the clock.

    Attributes
    ----------
    samples : ndarray of shape (n,)
        Samples that each node processes.
    exchanges : int
        Products with the gossip matrix, one after another.
    hops : int
        Messages, one after another, of the sums over all nodes; every node waits for them.
    gossip_first : bool
        Whether the nodes exchange before they compute.
    gossip_probability : float, optional
        With this probability a round has its exchanges alone, otherwise its samples alone; all nodes share
        the coin. None: every round has both.
    at_start : ndarray of shape (n,), optional
        Samples that each node processes before the first round.
    """

    samples: np.ndarray
    exchanges: int = 1
    hops: int = 0
    gossip_first: bool = False
    gossip_probability: float | None = None
    at_start: np.ndarray | int = 0


#: The cost of a method that nothing predicts on a problem.
UNKNOWN = Cost(math.inf, math.inf, math.inf, math.inf)


def _step(facts: Facts) -> float:
    # It reads each entry of its row twice and writes one.
    return facts.n_outputs * (3.0 * facts.row_entries + _STEP)


def gradient_work(facts: Facts) -> float:
    """Return what one row of a gradient costs, a step of ADFS taking 1."""
    return facts.n_outputs * (2.0 * facts.row_entries + _GRADIENT_ROW) / _step(facts)


def matrix_work(facts: Facts, n_nodes: int, features: int) -> float:
    """Return what a matrix of second derivatives in some features costs, summed over n nodes and factored."""
    width, entries = features, facts.n_outputs * facts.row_entries * features / facts.n_features
    speed = MATRIX_SPEED if facts.entries_per_row is None else 1.0
    products = 0.5 * facts.n_samples * entries * (entries + 1.0) / speed
    return (products + n_nodes * width**2 + width**3 / (3.0 * MATRIX_SPEED)) / _step(facts)


def network_links(network: Network) -> float:
    """Return 2Σμ_e²(n − 1)/λ_2, on which the communications of ADFS depend; for at least two nodes.

    The resistances R_e of a network sum to n − 1, so Σ√(2μ_e²R_e) is at most √(2Σμ_e²(n − 1)): equal if all
    edges are alike.
    """
    weight = float(network.weights.sum())
    return 2.0 * weight * (network.n_nodes - 1.0) / network.algebraic_connectivity


def inverse_rate(samples: float, links: float, kappa: float, delay: float) -> tuple[float, float]:
    """Return S/√r and √(links(1 + κ/(1 − r))), which sum to 1/ρ, for the split r that suits a delay."""
    split = best_split(delay * math.sqrt(0.5 * links * (1.0 + 2.0 * kappa)) / samples)
    return samples / math.sqrt(split), math.sqrt(links * (1.0 + kappa / (1.0 - split)))


def dual_cost(facts: Facts, position: float, computations: float, messages: float = 0.0) -> Cost:
    """Return the cost of a dual method, which finds an unpenalised intercept in several rounds."""
    rounds = INTERCEPT_ROUNDS if facts.intercept else 1.0
    passes = computations / facts.n_samples
    return Cost(position, rounds * passes, rounds * computations, rounds * messages)


def split_cost(
    facts: Facts,
    factor: float,
    parts: Callable[[Facts], tuple[float, float]],
    n_nodes: int = 1,
    n_edges: int = 1,
) -> Cost:
    """Return the cost of ``factor``/ρ steps of samples and of exchanges, for smooth losses.

    ``parts`` are the two parts of 1/ρ; so many nodes act in a step of samples, so many edges in an exchange.
    """
    if not facts.smooth:
        return UNKNOWN
    samples, exchanges = parts(facts)
    # Parameters are for the bound of the curvature. Where losses are flatter, the dual is more strongly
    # convex, and runs take about as long as with parameters for that.
    factor *= sum(parts(facts.near_optimum)) / (samples + exchanges)
    computations, messages = factor * samples * n_nodes, factor * exchanges * 2.0 * n_edges
    return dual_cost(facts, factor * (samples + exchanges), computations, messages)


def predicted_cost(method: Method, facts: Facts, network: Network, tol: float, tau: float) -> Cost:
    """Return the cost of a method from the contraction and the effort that its constants give."""
    summary = facts.summary(network.n_nodes)
    constants: Any = method.parameters(summary, network, tau=tau)
    contraction = float(getattr(constants, "contraction", 0.0))
    if not contraction > 0.0:
        return UNKNOWN
    position = float(max(1, math.ceil(method.observed_factor * math.log(1.0 / tol) / contraction)))
    # The first pass of some methods fills a table before their first event: two passes have events.
    passes = position / method.position_of(constants, summary, 2.0) * 2.0
    # The messages of an event, or those of a round: its exchanges, and a sum that goes up and down a tree.
    effort = method.effort(constants, summary, network)
    if isinstance(effort, EventEffort):
        messages = 2.0 * float(getattr(constants, "edge_probability", np.zeros(1)).sum())
    else:
        sums = 2.0 * (network.n_nodes - 1) if effort.hops else 0.0
        messages = 2.0 * network.n_edges * effort.exchanges + sums
    return Cost(position, passes, passes * facts.n_samples, position * messages)
