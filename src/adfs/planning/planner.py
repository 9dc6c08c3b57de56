"""The planner: every method on every network that is worth a thought, and what follows from it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adfs.algorithms import METHODS, RoundEffort
from adfs.errors import InputError, unknown_name
from adfs.files import write_whole
from adfs.network import Network
from adfs.pages import number
from adfs.problem import FiniteSum
from adfs.runtimes.clock import Clock
from adfs.runtimes.delays import DEFAULT_TAU, Delays
from adfs.theory import Facts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: What is looked at unless told otherwise: few links per node, so that messages at once cost about one.
GRAPHS = ("cycle", "grid", "torus", "exponential")
NODES = (1, 2, 4, 8, 16, 32, 64)

# A node with fewer rows computes for less time than it takes to start it, which the clock does not count.
_FEWEST_ROWS = 100

# More nodes pay as long as twice as many are this much quicker.
_WORTH = 0.95
_MOST_NODES = 1024
_LONGEST_TAU = 1e7


# The pace of a clock is taken from the first events or rounds; the rest is extrapolated.
_EVENTS, _ROUNDS = 20_000, 200


@dataclass(frozen=True)
class Prediction:
    """What a method takes to the target on a network.

    Attributes
    ----------
    method, network : str
    n_nodes : int
    time : float
        On the idealised clock: 1 is the computation of one sample.
    position : float
        Events or rounds.
    passes, messages : float
        Work in passes over all the data (N steps of ADFS), and messages of d numbers between nodes.
    contraction : float
        ρ per event or round, as the theory has it; nan where it has none.
    p_comm : float
        The share of events that are communications; nan where every round has both.
    gamma : float
        The spectral gap of the network.
    tol : float
    """

    method: str
    network: str
    n_nodes: int
    time: float
    position: float
    passes: float
    messages: float
    contraction: float
    p_comm: float
    gamma: float
    tol: float


def predict(name: str, facts: Facts, network: Network, delays: Delays, tol: float) -> Prediction:
    """Predict what a method takes on a network: its cost, and the idealised time of it."""
    method, tau = METHODS[name], float(np.mean(delays.tau))
    cost = method.cost(facts, network, tol, tau)
    summary = facts.summary(network.n_nodes)
    constants = method.planned_parameters(facts, summary, network, tau)
    # A short walk of the clock gives the pace of the events or rounds.
    clock = Clock(method, constants, summary, network, delays)
    effort = method.effort(constants, summary, network)
    in_rounds = isinstance(effort, RoundEffort) and effort.gossip_probability is None
    begun, walked = clock.latest, min(math.ceil(cost.position), _ROUNDS if in_rounds else _EVENTS)
    clock.advance(float(walked))
    return Prediction(
        method=name,
        network=network.name or f"{network.n_nodes} nodes",
        n_nodes=network.n_nodes,
        time=begun + (clock.latest - begun) * cost.position / walked,
        position=cost.position,
        passes=cost.computations / facts.n_samples,
        messages=cost.messages,
        contraction=float(getattr(constants, "contraction", math.nan)),
        p_comm=float(getattr(constants, "p_comm", math.nan)),
        gamma=network.gamma if network.n_nodes > 1 else 1.0,
        tol=tol,
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What a planner found; `str` of it is a recommendation in a few sentences.

    Attributes
    ----------
    predictions : tuple of Prediction
        The quickest first.
    facts : Facts
    tau, tol : float
    law : str
        Of the delays.
    node_limit : int
        Up to so many nodes each doubling makes the recommended method on its kind of network quicker.
    tau_limit : float
        Up to this time of a message the recommended number of nodes is quicker than half of it; nan for one
        node, infinite where no message is slow enough.
    passed_over : tuple of str
        Methods that are not recommended, since the clock counts a whole local solve of theirs as one pass.
    seconds_per_sample : float, optional
        Measured: what time 1 of the idealised clock is here.

    Examples
    --------
    >>> import adfs
    >>> facts = adfs.planning.Facts(n_samples=20_000, n_features=30, kappa_s=2000.0, kappa_b=200.0)
    >>> found = adfs.plan(facts, nodes=[1, 16], network=["grid"], tau=20.0)
    >>> found.best.n_nodes
    16
    """

    predictions: tuple[Prediction, ...]
    facts: Facts
    tau: float
    tol: float
    law: str
    node_limit: int
    tau_limit: float
    passed_over: tuple[str, ...] = ()
    seconds_per_sample: float | None = None

    @property
    def best(self) -> Prediction:
        """The quickest of those that the clock counts fairly, or were asked for by name."""
        fair = (one for one in self.predictions if one.method not in self.passed_over)
        return next(fair, self.predictions[0])

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method and network, the quickest first; ``seconds`` where they were measured."""
        import pandas as pd

        frame = pd.DataFrame([dataclasses.asdict(one) for one in self.predictions]).drop(columns="tol")
        if self.seconds_per_sample is not None:
            frame.insert(4, "seconds", frame["time"] * self.seconds_per_sample)
        return frame

    @property
    def heads(self) -> list[str]:
        """What the table of a page or a screen has of a prediction; see :meth:`cells`."""
        seconds = [] if self.seconds_per_sample is None else ["seconds"]
        return ["method", "network", "nodes", "time", *seconds, "passes", "messages", "ρ", "p_comm", "γ"]

    def cells(self, one: Prediction) -> list[str]:
        """Return a prediction for people: a text under each of :attr:`heads`."""
        seconds = [] if self.seconds_per_sample is None else [one.time * self.seconds_per_sample]
        figures = [one.time, *seconds, one.passes, one.messages, one.contraction, one.p_comm, one.gamma]
        texts = ["" if math.isnan(value) else number(value) for value in figures]
        return [one.method, one.network, str(one.n_nodes), *texts]

    def best_of_each(self) -> list[Prediction]:
        """Return each method at its best, the quickest first."""
        first: dict[str, Prediction] = {}
        for one in self.predictions:
            first.setdefault(one.method, one)
        return list(first.values())

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        facts = {
            name: getattr(self.facts, name) for name in ("n_samples", "n_features", "kappa_s", "kappa_b")
        }
        content = {
            "recommendation": str(self),
            "best": dataclasses.asdict(self.best),
            "facts": facts,
            "tau": self.tau,
            "tol": self.tol,
            "law": self.law,
            "node_limit": self.node_limit,
            "tau_limit": self.tau_limit,
            "seconds_per_sample": self.seconds_per_sample,
            "predictions": [dataclasses.asdict(one) for one in self.predictions],
        }
        return json.dumps(_finite(content), ensure_ascii=False, indent=1) + "\n"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the predicted time against the number of nodes, one line per method on its best network."""
        from adfs.planning.pictures import draw

        return draw(self, axes)

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing else: the recommendation, the figure, the table."""
        from adfs.planning.pictures import make_page

        write_whole(path, make_page(self))

    def duration(self, time: float) -> str:
        """Return a time in words: samples' computations, and seconds where they were measured."""
        words = f"{number(time)} samples' time"
        if self.seconds_per_sample is None:
            return words
        return f"{number(time * self.seconds_per_sample)} s ({words})"

    def sentences(self) -> list[str]:
        """Return the recommendation, sentence by sentence."""
        best = self.best
        others = [one for one in self.best_of_each() if one.method not in (best.method, *self.passed_over)]
        first = (
            f"{best.method} on {_place(best)} takes about {self.duration(best.time)} to a certified relative "
            f"gap of {self.tol:g} with τ = {self.tau:g}"
        )
        if others:
            ratio = others[0].time / best.time
            first += f", and {others[0].method} on {_place(others[0])} {ratio:.3g} times as long"
        words = [f"{first}."]
        alone = [one for one in self.predictions if one.n_nodes == 1]
        if best.n_nodes > 1:
            if alone:
                words.append(
                    f"One node with all the data would take {alone[0].time / best.time:.3g} times as long."
                )
            words += _limits(self)
        elif len({one.n_nodes for one in self.predictions}) > 1:
            words.append("More nodes would not shorten the run: their messages take longer than they save.")
        sooner = [one.method for one in self.best_of_each() if one.time < best.time]
        unfair = "counts a whole local solve as one pass; in seconds it is many."
        if sooner:
            words.append(f"{' and '.join(sooner)} would be there sooner on this clock, which {unfair}")
        elif METHODS[best.method].solves_locally:
            words.append(f"The clock {unfair}")
        return words

    def __str__(self) -> str:
        return " ".join(self.sentences())


def _place(one: Prediction) -> str:
    return "one node" if one.n_nodes == 1 else f"{one.network} ({one.n_nodes} nodes)"


def _limits(found: Plan) -> list[str]:
    """Say how many nodes shorten the run, and for which τ."""
    family = found.best.network.partition(":")[0]
    if found.node_limit >= _MOST_NODES:
        words = f"Every doubling of the nodes up to {found.node_limit} shortens the run."
    else:
        words = f"More than {found.node_limit} nodes ({family}) do not shorten the run."
    count, half = found.best.n_nodes, found.best.n_nodes // 2
    if math.isinf(found.tau_limit):
        return [words, f"{count} nodes are faster than {half} for every τ."]
    return [words, f"{count} nodes are faster than {half} as long as τ is below {number(found.tau_limit)}."]


def _finite(value: object) -> object:
    """Return JSON's own values: what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def node_counts(n_samples: int) -> list[int]:
    """Return the numbers of nodes to look at for so many samples, unless told otherwise.

    Examples
    --------
    >>> node_counts(143), node_counts(1000)
    ([1], [1, 2, 4, 8])
    """
    return [count for count in NODES if count == 1 or count * _FEWEST_ROWS <= n_samples]


def networks_of(
    nodes: Iterable[int], graphs: Iterable[object], n_samples: int, seed: int = 0
) -> list[Network]:
    """Return the networks to look at, each shape once; a graph of its own size is taken as it is.

    Parameters
    ----------
    nodes : iterable of int
        Numbers of nodes, for names without sizes; those above the number of samples are left out.
    graphs : iterable
        Names such as ``"grid"`` or ``"grid:3x3"``, or networks.
    n_samples : int
    seed : int
        Of random graphs.
    """
    counts = [int(count) for count in nodes if 1 <= count <= n_samples]
    found: dict[tuple[int, int, float], Network] = {}
    refusals: list[InputError] = []
    for graph in graphs:
        named = isinstance(graph, str) and ":" not in graph
        for count in counts if named else [None]:
            try:
                few = count is not None and count <= 2  # whose only shape is a path
                network = Network("path" if few else graph, n_nodes=count, seed=seed)
            except InputError as error:  # a hypercube of 12 nodes: the others are looked at
                refusals.append(error)
                continue
            if network.n_nodes <= n_samples:
                # The cycle of four is the grid of two by two: as many edges, and the same spectral gap.
                gamma = round(network.gamma, 9) if network.n_nodes > 1 else 1.0
                found.setdefault((network.n_nodes, network.n_edges, gamma), network)
    if not found:
        raise (
            refusals[0]
            if refusals
            else InputError(f"there is no network for {n_samples} samples to plan with")
        )
    return list(found.values())


def plan(
    problem: FiniteSum | Facts,
    *,
    nodes: Sequence[int] | None = None,
    network: object = GRAPHS,
    tau: float = DEFAULT_TAU,
    tol: float = 1e-6,
    methods: Sequence[str] | None = None,
    law: str = "exponential",
    seconds_per_sample: float | None = None,
    seed: int = 0,
) -> Plan:
    """Predict how long every method takes on every network, and recommend one.

    Parameters
    ----------
    problem : Problem or Facts
        The data, on however many nodes; or just its sizes and condition numbers.
    nodes : sequence of int, optional
        Numbers of nodes to look at; 1 to 64 when left out, as long as every node has 100 rows. The objective
        stays the same: Σσ is shared.
    network : str, Network, or a sequence of them
        Names of graphs without sizes (``"grid"``), tried with every number of nodes; names with sizes, or
        networks, taken as they are.
    tau : float
        Time of a message, one sample's computation taking 1; the paper's 5 by default.
    tol : float
        The certified relative duality gap to reach.
    methods : sequence of str, optional
        All that can run on the problem when left out, ``"newton"`` and ``"lbfgs"`` among them; ``"msda"`` and
        ``"esdacd"`` are then predicted but not recommended, since the clock counts a whole local solve of
        theirs as one pass.
    law : str
        Of the delays, ``"exponential"`` or ``"fixed"``.
    seconds_per_sample : float, optional
        What one sample's computation takes, to tell seconds (`adfs.runtimes.timing.step_seconds`).
    seed : int

    Examples
    --------
    >>> import adfs
    >>> facts = adfs.planning.Facts(n_samples=50_000, n_features=500, kappa_s=5000.0, kappa_b=500.0)
    >>> found = adfs.plan(facts, nodes=[4, 16], network=["grid"], methods=["adfs", "newton"], tau=10.0)
    >>> found.best.method, found.best.network
    ('adfs', 'grid:4x4')
    """
    facts = problem if isinstance(problem, Facts) else Facts.of(problem)
    if not 0.0 < tol < 1.0:
        raise InputError(f"tol is a relative gap between 0 and 1, got {tol!r}")
    delays = Delays(tau=tau, law=law)
    counts = node_counts(facts.n_samples) if nodes is None else nodes
    networks = networks_of(
        counts, network if isinstance(network, list | tuple) else [network], facts.n_samples, seed
    )
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    found = sorted(
        (
            predict(name, facts, each, delays, tol)
            for each in networks
            for name in names
            if METHODS[name].can_solve(facts, each.n_nodes)
        ),
        key=lambda one: one.time,
    )
    if not found:
        raise InputError("none of these methods can run on this problem and these networks")
    local = tuple(name for name in names if METHODS[name].solves_locally)
    passed_over = local if methods is None else ()
    best = next((one for one in found if one.method not in passed_over), found[0])
    return Plan(
        predictions=tuple(found),
        facts=facts,
        tau=float(tau),
        tol=float(tol),
        law=law,
        node_limit=_node_limit(best, facts, delays, tol, seed),
        tau_limit=_tau_limit(best, facts, delays, tol, seed),
        passed_over=passed_over,
        seconds_per_sample=seconds_per_sample,
    )


def _resized(best: Prediction, n_nodes: int, seed: int) -> Network:
    """Return a network of another size and the same family; a path where it has none of that size."""
    if n_nodes == 1:
        return Network("path:1")
    family = best.network.partition(":")[0] if ":" in best.network else "path"
    try:
        return Network(family, n_nodes=n_nodes, seed=seed)
    except InputError:
        return Network("path", n_nodes=n_nodes)


def _node_limit(best: Prediction, facts: Facts, delays: Delays, tol: float, seed: int) -> int:
    """Return the number of nodes up to which doubling them pays."""
    count = best.n_nodes
    time = predict(best.method, facts, _resized(best, count, seed), delays, tol).time
    while best.n_nodes > 1 and 2 * count <= min(_MOST_NODES, facts.n_samples // _FEWEST_ROWS):
        following = predict(best.method, facts, _resized(best, 2 * count, seed), delays, tol).time
        if following > _WORTH * time:
            break
        count, time = 2 * count, following
    return count


def _tau_limit(best: Prediction, facts: Facts, delays: Delays, tol: float, seed: int) -> float:
    """Return the τ at which as many nodes as recommended are no quicker than half of them."""
    if best.n_nodes == 1:
        return math.nan
    half = _resized(best, best.n_nodes // 2, seed)
    whole = _resized(best, best.n_nodes, seed)

    def pays(tau: float) -> bool:
        changed = dataclasses.replace(delays, tau=tau)
        own = predict(best.method, facts, whole, changed, tol).time
        return own < predict(best.method, facts, half, changed, tol).time

    low = max(float(delays.tau), 1e-3)
    if not pays(low):
        return low
    high = 4.0 * low
    while pays(high):
        low, high = high, 4.0 * high
        if high > _LONGEST_TAU:
            return math.inf
    for _ in range(5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return math.sqrt(low * high)
