"""How long a method takes to a target: what theory promises, times what is seen, on the idealised clock.

And which method and network to take, from facts that all processes share: what ``"auto"`` stands for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from adfs.algorithms import METHODS, EventEffort, Method, RoundEffort
from adfs.algorithms.newton import MOST_FEATURES
from adfs.errors import InputError, unknown_name
from adfs.network import Network
from adfs.pages import number
from adfs.planning.facts import Facts
from adfs.runtimes.clock import Clock
from adfs.runtimes.delays import Delays
from adfs.theory import NodeSummary, NonSmoothParameters, Parameters
from adfs.theory.baselines import (
    AgdParameters,
    InteriorPointParameters,
    NewtonParameters,
    QningParameters,
)

#: Events (or rounds) × contraction to divide the certified gap by e, as seen in runs to 1e-6 on Gaussian
#: classes (3 graphs of 9 to 16 nodes, m = 500 and 2,000, d = 10 and 40; by eye). Theory promises 1 at worst,
#: which stands for a method that is not listed.
OBSERVED: Mapping[str, float] = {
    "adfs": 0.6,
    "adfs-block": 0.6,
    "apcg": 0.6,
    "msda": 0.21,
    "dagd": 0.3,
    "agd": 0.3,
    "esdacd": 0.2,
    "extra": 0.13,
    "dsba": 0.12,
    "ns-adfs": 0.65,
}

#: These begin with the mean of what the nodes find alone. The clock counts a whole local solve as one pass,
#: as the paper does: their seconds are more.
LOCAL_SOLVERS = ("msda", "esdacd")
# On one node these are their local solver, or nothing at all.
_FOR_NETWORKS = (*LOCAL_SOLVERS, "dsba", "extra")

_ONE_NODE = Network("path:1")

# A clock's pace is taken from so many events or rounds, and the rest goes on at it.
_EVENTS, _ROUNDS = 20_000, 200


class Formula(NamedTuple):
    """What is stated of a method whose rounds no contraction tells.

    ``rounds`` gives their number from the facts and the target, ``samples`` what a row costs in a round, in
    computations of a sample.
    """

    rounds: Callable[[Facts, float], float]
    samples: Callable[[Facts], float]


_BY_MATRICES = {"newton": NewtonParameters, "interior-point": InteriorPointParameters}

#: Newton: a few damped steps, then digits double; a row adds its part to half a Hessian.
#: Interior points: the same matrix and six times through the rows, 1.75 rounds per digit and a few more.
#: L-BFGS: between the root of κ_b and its logarithm, as directions differ; one gradient per round.
#: By eye from ten runs, synthetic and real; they took between a quarter and three times as many.
FORMULAS: Mapping[str, Formula] = {
    "newton": Formula(
        lambda facts, tol: NewtonParameters.rounds_to(tol), lambda facts: 0.5 * (facts.n_features + 1) + 1.0
    ),
    "interior-point": Formula(
        lambda facts, tol: InteriorPointParameters.rounds_to(tol),
        lambda facts: (0.5 * (facts.n_features + 1) + 3.0) / InteriorPointParameters.passes_per_round,
    ),
    "lbfgs": Formula(
        lambda facts, tol: 0.3 * math.log(1.0 / tol) * math.cbrt(facts.kappa_b),
        lambda facts: 1.0,
    ),
    "qning": Formula(
        lambda facts, tol: QningParameters.passes_beside(_adfs_passes(facts, tol)), lambda facts: 1.0
    ),
}


def _adfs_passes(facts: Facts, tol: float) -> float:
    """Return the passes of ADFS on one node that has all the data."""
    contraction = Parameters.tuned(facts.summary(1), _ONE_NODE).contraction
    return OBSERVED["adfs"] * math.log(1.0 / tol) / (contraction * facts.n_samples)


@dataclass(frozen=True)
class Prediction:
    """A method on a network, and what it takes to the target.

    Attributes
    ----------
    method, network : str
    n_nodes : int
    time : float
        On the idealised clock, or of the work here: 1 is the computation of one sample.
    position : float
        Events or rounds.
    passes, messages : float
        Work in passes over all the data (N samples' computations), and messages of d numbers between nodes.
    run_passes : float
        The passes that a run of it reports: one that adds up a Hessian counts its rows once.
    contraction : float
        ρ per event or round; nan where a stated number of rounds stands for it.
    p_comm : float
        The share of events that are communications; nan where every round has both.
    gamma : float
        The network's spectral gap.
    tol : float
    """

    method: str
    network: str
    n_nodes: int
    time: float
    position: float
    passes: float
    run_passes: float
    messages: float
    contraction: float
    p_comm: float
    gamma: float
    tol: float


def candidates(facts: Facts, methods: Iterable[str] | None = None) -> list[str]:
    """Return the methods that can run on a problem, of those named or of all there are."""
    named = list(METHODS if methods is None else methods)
    for name in named:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    return [name for name in named if _fits(name, facts)]


def _fits(name: str, facts: Facts) -> bool:
    method = METHODS[name]
    if facts.n_outputs > 1 and not method.several_outputs:
        return False
    if name in _BY_MATRICES and facts.n_features > MOST_FEATURES:
        return False
    if name == "qning" and not facts.curved:
        return False
    # A method for losses that are not smooth is for these: its rate is far worse than a smooth one's.
    return method.needs_smooth if facts.smooth else not method.needs_smooth


def promised_position(name: str, parameters: Any, facts: Facts, summary: NodeSummary, tol: float) -> float:
    """Return the position by which theory has a gap of 1 at the target."""
    if name in FORMULAS:
        return FORMULAS[name].rounds(facts, tol)
    if isinstance(parameters, NonSmoothParameters):
        # Theorem 3: the gap is at most (‖λ*‖² + 2A_0Δ_0)/(2A_t); ‖λ*‖² is about Σ s²‖x‖²/μ², and Δ_0 is 1.
        size = facts.spread * float(summary.sigma.sum()) / float(parameters.virtual_weight.max())
        return math.sqrt((2.0 * parameters.step_bound * size + parameters.offset**2) / tol)
    return math.log(1.0 / tol) / float(parameters.contraction)


def _position(name: str, promised: float, facts: Facts, n_nodes: int, tol: float) -> float:
    """Return the position at which a method is at the target, from theory's and what is seen in runs."""
    factor = 1.0 if name in FORMULAS else OBSERVED.get(name, 1.0)
    if name not in LOCAL_SOLVERS:
        return float(max(1, math.ceil(factor * promised)))
    # Every node has solved once after a round, or about as many events as there are nodes. The mean of the
    # local solutions is nearer to the optimum with more rows per node, fewer directions and more penalty.
    first = 1 if METHODS[name].kind == "rounds" else n_nodes
    start = 1.0
    if facts.smooth and facts.kappa_b > 1.0:
        effective = facts.kappa_s / (facts.kappa_b - 1.0)
        rows = facts.n_samples / n_nodes
        start = min(1.0, effective**2 * facts.kappa_b / (4.0 * rows**2))
    left = max(0.0, math.log(start / tol)) / math.log(1.0 / tol)
    return float(first + math.ceil(factor * promised * left))


def predict(name: str, facts: Facts, network: Network, delays: Delays | None, tol: float) -> Prediction:
    """Predict one method on one network.

    Parameters
    ----------
    name : str
    facts : Facts
    network : Network
    delays : Delays, optional
        Without them all nodes are computed in turn by what computes now, and its time is their work.
    tol : float
        The certified relative gap to reach.
    """
    summary = facts.summary(network.n_nodes)
    tau = 1.0 if delays is None else float(np.mean(delays.tau))
    method = METHODS[name]
    parameters = _constants(method, facts, summary, network, tau)
    promised = promised_position(name, parameters, facts, summary, tol)
    position = _position(name, promised, facts, network.n_nodes, tol)
    passes = position / method.position_of(parameters, summary, 2.0) * 2.0
    messages = position * _messages(method.effort(parameters, summary, network), parameters, network)
    if delays is None:
        time = work_here(name, facts, network.n_nodes, passes, messages)
    else:
        time = _time(method, parameters, summary, network, delays, position)
    return Prediction(
        method=name,
        network=_name(network),
        n_nodes=network.n_nodes,
        time=time,
        position=position,
        passes=passes * (FORMULAS[name].samples(facts) if name in FORMULAS else 1.0),
        run_passes=passes,
        messages=messages,
        contraction=math.nan if name in FORMULAS else float(getattr(parameters, "contraction", math.nan)),
        p_comm=float(getattr(parameters, "p_comm", math.nan)),
        gamma=network.gamma if network.n_nodes > 1 else 1.0,
        tol=tol,
    )


def _name(network: Network) -> str:
    return network.name or f"{network.n_nodes} nodes"


def _constants(method: Method, facts: Facts, summary: NodeSummary, network: Network, tau: float) -> Any:
    """Return a method's constants, from what is known without the data."""
    parameters = method.parameters(summary, network, tau=tau)
    if any(item.name == "n_features" for item in dataclasses.fields(parameters)):
        parameters = dataclasses.replace(parameters, n_features=facts.n_features)
    if isinstance(parameters, AgdParameters):  # a run measures the whole objective's smoothness, and so do we
        parameters = parameters.with_smoothness(float(summary.sigma.sum()) * facts.kappa_b)
    return parameters


# What things take here, in units of one multiplication and addition: a step of ADFS (the draw, the prox,
# the cache) and what each entry of its row adds, a look at a row beside its entries, and how many products
# of a dense Hessian or of its factors are done at once. Measured on one machine; the order of magnitude
# matters.
_STEP, _ENTRY, _LOOK, _AT_ONCE = 120.0, 3.0, 60.0, 8.0
# These look at every row once per round instead of computing one sample after the other.
_BY_GRADIENTS = ("agd", "dagd", "extra", "lbfgs", "newton", "interior-point")


def work_here(name: str, facts: Facts, n_nodes: int, passes: float, messages: float) -> float:
    """Return what passes and messages take where one processor does all; a step of ADFS is 1."""
    width = float(facts.n_features // facts.n_outputs)
    entries = width if facts.entries_per_row is None else facts.entries_per_row
    step = facts.n_outputs * (_ENTRY * entries + _STEP)
    row = facts.n_outputs * (2.0 * entries + _LOOK) if name in _BY_GRADIENTS else step
    work = passes * facts.n_samples * row
    if name not in _BY_MATRICES:  # both ends of a message go through d numbers
        return (work + messages * (facts.n_features + _STEP)) / step
    at_once = 1.0 if facts.entries_per_row is not None else _AT_ONCE
    products = 0.5 * facts.n_samples * entries * (entries + 1.0) / at_once
    rounds = passes / _BY_MATRICES[name].passes_per_round
    return (work + rounds * (products + n_nodes * width**2 + width**3 / (3.0 * _AT_ONCE))) / step


def _time(
    method: Method, parameters: Any, summary: NodeSummary, network: Network, delays: Delays, to: float
) -> float:
    """Return the time of a position: a short walk of the clock gives the pace."""
    clock = Clock(method, parameters, summary, network, delays)
    begun = clock.latest
    walked = min(math.ceil(to), _EVENTS if method.kind != "rounds" else _ROUNDS)
    effort = method.effort(parameters, summary, network)
    if isinstance(effort, RoundEffort) and effort.gossip_probability is not None:
        walked = min(math.ceil(to), _EVENTS)  # rounds of one sample or one exchange
    clock.advance(float(walked))
    return begun + (clock.latest - begun) * to / walked


def _messages(effort: EventEffort | RoundEffort, parameters: Any, network: Network) -> float:
    """Return the messages per event or round."""
    if isinstance(effort, EventEffort):
        return 2.0 * float(parameters.edge_probability.sum())
    chance = 1.0 if effort.gossip_probability is None else effort.gossip_probability
    sums = 2.0 * (network.n_nodes - 1) if effort.hops else 0.0
    return 2.0 * network.n_edges * effort.exchanges * chance + sums


def predict_all(
    names: Iterable[str], facts: Facts, networks: Iterable[Network], delays: Delays | None, tol: float
) -> list[Prediction]:
    """Predict every method on every network; one-machine methods on one node only."""
    return [
        predict(name, facts, network, delays, tol)
        for network in networks
        for name in names
        if _runs_on(METHODS[name], network)
    ]


def best_of_each(found: Iterable[Prediction]) -> list[Prediction]:
    """Return the first prediction of each method."""
    first: dict[str, Prediction] = {}
    for one in found:
        first.setdefault(one.method, one)
    return list(first.values())


def _runs_on(method: Method, network: Network) -> bool:
    if method.kind == "single":
        return network.n_nodes == 1
    return network.n_nodes > 1 or method.name not in _FOR_NETWORKS


# --------------------------------------------------------------------------- what "auto" stands for


class Choice(NamedTuple):
    """A method on a network, the time that it is predicted to take, and why it was chosen, in words.

    ``passes`` are those that a run is predicted to report, and ``next_method`` is what could take its place:
    the second best, or itself if nothing can.
    """

    method: str
    network: Network
    time: float
    reason: str
    passes: float
    next_method: str


def choose(
    facts: Facts,
    networks: Sequence[Network],
    *,
    tau: float | None = 1.0,
    tol: float = 1e-6,
    methods: Iterable[str] | None = None,
    rounds: Mapping[str, float] | None = None,
) -> Choice:
    """Choose the method and the network that are predicted to be the quickest; nothing is run.

    Parameters
    ----------
    facts : Facts
        The same in every process, and so is the choice but for the last digits of eigenvalues: let process 0
        tell the others.
    networks : sequence of Network
    tau : float, optional
        Time of a message, one sample's computation taking 1. None: nothing is planned, the nodes are what
        they are, and the least work counts (`predict` without delays).
    tol : float
    methods : iterable of str, optional
        All that are registered and fit the problem when left out, apart from those whose local solves the
        clock counts as one pass.
    rounds : mapping, optional
        How often a method has to solve the problem, once where it does not say.

    Examples
    --------
    >>> from adfs.network import Network
    >>> facts = Facts(n_samples=50_000, n_features=500, kappa_s=5000.0, kappa_b=500.0)
    >>> choose(facts, [Network("path:16"), Network("grid:4x4")], tau=10.0).network.name
    'grid:4x4'
    """
    names = candidates(facts, methods)
    if methods is None:
        names = [name for name in names if name not in LOCAL_SOLVERS]
    delays = None if tau is None else Delays(tau=tau, law="fixed")
    often = rounds or {}
    found = predict_all(names, facts, networks, delays, tol)
    found = [dataclasses.replace(one, time=often.get(one.method, 1.0) * one.time) for one in found]
    found.sort(key=lambda one: one.time)
    if not found:
        raise InputError("none of these methods can run on this problem and these networks")
    best = found[0]
    network = next(one for one in networks if _name(one) == best.network)
    passes = often.get(best.method, 1.0) * best.run_passes
    second = next((one for one in found if one.method != best.method), best)
    if best.method in _BY_MATRICES:  # on rows that are hard for these the others never get anywhere
        second = best
    return Choice(best.method, network, best.time, _reason(found, tau), passes, second.method)


def _reason(found: Sequence[Prediction], tau: float | None) -> str:
    """Say what the best of some predictions is, and what the next other choice would take."""
    best = found[0]
    other = next((one for one in found if one.network != best.network), None)
    if other is None:
        other = next((one for one in found if one.method != best.method), None)
    if tau is None:
        stated = best.method in FORMULAS
        words = f"{number(best.position)} rounds" if stated else f"{number(best.passes)} passes"
        behind = (
            "" if other is None else f", {other.time / best.time:.2g} times less work than {other.method}"
        )
        return f"{words} are predicted{behind}"
    time = f"{number(best.time)} samples' time at τ = {tau:g}"
    words = f"{best.method} on {best.network} is predicted to take {time}"
    return words if other is None else f"{words}, {other.method} on {other.network} {number(other.time)}"
