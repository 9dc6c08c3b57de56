"""Which method ``algorithm="auto"`` stands for, given its network: the one that is least work here.

`adfs.planning.choose` asks another question, which network and method are soonest on the idealised clock of
a cluster that is to be set up; here the nodes are what they are, and all work is counted in the same unit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from adfs.algorithms.newton import MOST_FEATURES
from adfs.network import Network
from adfs.theory import NewtonParameters, NodeSummary, Parameters
from adfs.theory.baselines import QningParameters

__all__ = ["AUTO", "FitFacts", "choose_method"]

#: What is chosen between.
AUTO = ("adfs", "newton", "qning", "ns-adfs")

# What things take, in units of one multiplication and addition: a step of ADFS (the draw, the prox, the
# cache) and what each entry of its row adds, a look at a row beside its entries, and how many products of a
# dense Hessian or of its factors are done at once. Measured on one machine; the order of magnitude matters.
_STEP, _ENTRY, _LOOK, _AT_ONCE = 120.0, 3.0, 60.0, 4.0


class FitFacts(NamedTuple):
    """What the choice is made from, the same in every process.

    Attributes
    ----------
    smooth : bool
        Whether the loss is.
    n_outputs : int
    n_features : int
    entries : float
        The mean number of entries of a row that are stored.
    sparse : bool
    summary : NodeSummary
        Of the nodes of all processes.
    network : Network
    tol : float
        The relative gap to reach.
    asked : bool
        Whether parameters, tau or schedule were given, which speak of ADFS.
    curved : bool
        Whether the loss has a curvature without jumps, on which quasi-Newton steps rely.
    """

    smooth: bool
    n_outputs: int
    n_features: int
    entries: float
    sparse: bool
    summary: NodeSummary
    network: Network
    tol: float
    asked: bool
    curved: bool


def choose_method(facts: FitFacts) -> tuple[str, str]:
    """Return the name of a method, and why it was chosen, in words.

    Newton's method where the Hessians and factors of the rounds that it is expected to take cost less than
    the steps that ADFS (QNing, where there is one node) is predicted to take; that one otherwise, and NS-ADFS
    for losses that are not smooth.

    Parameters
    ----------
    facts : FitFacts
    """
    if not facts.smooth:
        return "ns-adfs", "the loss is not smooth"
    if facts.asked:
        return "adfs", "its parameters, tau or schedule were given"
    if facts.n_outputs > 1:
        return "adfs", "the model has several outputs per sample"
    if not facts.summary.n_active.any():
        return "adfs", "there is nothing to run"
    name, passes, ours = first_order(facts)
    if facts.n_features > MOST_FEATURES:
        return name, f"there are more than {MOST_FEATURES} features"
    rounds, theirs = NewtonParameters.rounds_to(min(facts.tol, 0.5)), newton_round(facts)
    about = f"{rounds:.0f} rounds against {passes:.0f} predicted passes of {name}"
    if rounds * theirs <= ours:
        return "newton", f"{about}: {ours / (rounds * theirs):.2g} times less work"
    return name, f"{passes:.0f} predicted passes: {rounds * theirs / ours:.2g} times less work than newton"


def first_order(facts: FitFacts) -> tuple[str, float, float]:
    """Return the method that goes from sample to sample, its predicted passes and what they take."""
    parameters = Parameters.tuned(facts.summary, facts.network)
    events = math.log(1.0 / min(facts.tol, 0.5)) / parameters.contraction
    step = _ENTRY * facts.entries + _STEP
    # Both ends of a communication go through vectors of d numbers.
    work = events * (parameters.p_comp * step + parameters.p_comm * 2.0 * (facts.n_features + _STEP))
    passes = events * parameters.p_comp / float(facts.summary.n_samples.sum())
    if facts.network.n_nodes > 1 or not facts.curved:
        return "adfs", passes, work
    fewer = QningParameters.passes_beside(passes)
    return "qning", fewer, work * fewer / passes


def newton_round(facts: FitFacts) -> float:
    """Return what a round of Newton's method takes: a Hessian and a look per row, sums, and the factors."""
    d, entries = float(facts.n_features), facts.entries
    products = 0.5 * entries * (entries + 1.0) / (1.0 if facts.sparse else _AT_ONCE)
    rows = float(facts.summary.n_samples.sum()) * (products + 2.0 * entries + _LOOK)
    return rows + facts.summary.n_nodes * d * d + d**3 / (3.0 * _AT_ONCE)
