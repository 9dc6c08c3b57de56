"""What a method costs: sample computations and messages to a tolerance, predicted from a few facts.

The planner prints these numbers, and ``method="auto"`` takes the cheapest method that can solve the problem.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adfs.network import Network
from adfs.theory import Facts, NodeSummary

if TYPE_CHECKING:
    from adfs.algorithms.base import Method

# The unit of the next four numbers is one multiplication and addition. They were measured on one machine;
# only their order of magnitude matters. A step of ADFS draws a sample and solves a scalar equation.
_STEP = 120.0
# A step of ADFS reads each entry of its row twice and writes one.
_STEP_ENTRY = 3.0
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
    """The work of an event, for the clock; a computation of the schedule takes one sample at its node.

    Attributes
    ----------
    before_exchange : ndarray of shape (n,)
        Samples that an end of a communication processes before it sends.
    at_start : int
        Samples that each node processes before the first event.
    """

    before_exchange: np.ndarray
    at_start: int = 0


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
    """

    samples: np.ndarray
    exchanges: int = 1
    hops: int = 0
    gossip_first: bool = False
    gossip_probability: float | None = None


#: The cost of a method that nothing predicts on a problem.
UNKNOWN = Cost(math.inf, math.inf, math.inf, math.inf)


def _entries(facts: Facts) -> float:
    """Return the numbers that a row stores."""
    dense = facts.n_features / facts.n_outputs
    return dense if facts.entries_per_row is None else facts.entries_per_row


def _step(facts: Facts) -> float:
    return facts.n_outputs * (_STEP_ENTRY * _entries(facts) + _STEP)


def gradient_work(facts: Facts) -> float:
    """Return what one row of a gradient costs, a step of ADFS taking 1."""
    return facts.n_outputs * (2.0 * _entries(facts) + _GRADIENT_ROW) / _step(facts)


def matrix_work(facts: Facts, n_nodes: int) -> float:
    """Return what a d × d matrix of second derivatives costs, summed over n nodes and factored."""
    entries, width = _entries(facts), facts.n_features / facts.n_outputs
    speed = MATRIX_SPEED if facts.entries_per_row is None else 1.0
    products = 0.5 * facts.n_samples * entries * (entries + 1.0) / speed
    return (products + n_nodes * width**2 + width**3 / (3.0 * MATRIX_SPEED)) / _step(facts)


def _messages(effort: EventEffort | RoundEffort, constants: Any, network: Network) -> float:
    """Return the messages per event or round."""
    if isinstance(effort, EventEffort):
        return 2.0 * float(getattr(constants, "edge_probability", np.zeros(1)).sum())
    chance = 1.0 if effort.gossip_probability is None else effort.gossip_probability
    # A sum over all nodes goes up and down a spanning tree.
    sums = 2.0 * (network.n_nodes - 1) if effort.hops else 0.0
    return 2.0 * network.n_edges * effort.exchanges * chance + sums


def predicted_cost(method: Method, facts: Facts, network: Network, tol: float, tau: float) -> Cost:
    """Return the cost of a method from its constants, its effort and its predicted position."""
    # Without a bound of the curvature only primal methods have a cost that is known.
    if method.needs_smooth and not (facts.smooth or method.primal):
        return UNKNOWN
    summary = facts.summary(network.n_nodes)
    constants = method.planned_parameters(facts, summary, network, tau)
    position = method.predicted_position(constants, facts, summary, tol)
    if not math.isfinite(position):
        return UNKNOWN
    # The first pass of some methods fills a table before their first event: two passes have events.
    passes = position / method.position_of(constants, summary, 2.0) * 2.0
    # Dual methods find an unpenalised intercept in several rounds; others take it as a column.
    rounds = INTERCEPT_ROUNDS if facts.intercept and not method.unpenalised_columns else 1.0
    messages = position * _messages(method.effort(constants, summary, network), constants, network)
    work = passes * facts.n_samples * method.row_work(facts) + method.extra_work(facts, position, network)
    return Cost(position, rounds * passes, rounds * work, rounds * messages)


def with_width(constants: Any, facts: Facts) -> Any:
    """Return constants with the number of features put in, where they have a place for it."""
    if any(field.name == "n_features" for field in dataclasses.fields(constants)):
        return dataclasses.replace(constants, n_features=facts.n_features)
    return constants


def position_after_local_solves(
    promised: float, first: float, facts: Facts, summary: NodeSummary, tol: float
) -> float:
    """Return the position of a method whose nodes first solve their own problem, until ``first``.

    The mean of the local solutions is nearer to the optimum with more rows per node, fewer directions and
    more penalty; theory's promise then counts from there.
    """
    start = 1.0
    if facts.kappa_b > 1.0:
        effective = facts.kappa_s / (facts.kappa_b - 1.0)
        rows = facts.n_samples / summary.n_nodes
        start = min(1.0, effective**2 * facts.kappa_b / (4.0 * rows**2))
    left = max(0.0, math.log(start / tol)) / math.log(1.0 / tol)
    return first + math.ceil(promised * left)
