"""The planner: predict the time of every method on every network, and recommend the fastest.

`predict` combines the cost of a method with a short simulation of the idealised clock, `plan` compares the
predictions, and `Plan` holds them with the recommendation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
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

#: The networks and numbers of nodes that are compared by default. In these networks a node has few
#: neighbours, so that its messages can be sent at once.
GRAPHS = ("cycle", "grid", "torus", "exponential")
NODES = tuple(2**k for k in range(7))

# With fewer rows per node, starting a node takes longer than its computation. The clock does not count that.
_FEWEST_ROWS = 100
_MOST_NODES = 1024


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of a method on a network, up to the target gap.

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
        ρ per event or round; nan where the theory has none.
    p_comm : float
        The share of events that are communications; nan where every round has both kinds.
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
    """Predict the cost of a method on a network, and its time on the idealised clock."""
    method, tau = METHODS[name], float(np.mean(delays.tau))
    cost = method.cost(facts, network, tol, tau)
    summary = facts.summary(network.n_nodes)
    constants = method.parameters(summary, network, tau=tau)
    # The clock runs for the first events or rounds, and the rest is extrapolated.
    clock = Clock(method, constants, summary, network, delays)
    effort = method.effort(constants, summary, network)
    in_rounds = isinstance(effort, RoundEffort) and effort.gossip_probability is None
    begun, simulated = clock.latest, min(math.ceil(cost.position), 200 if in_rounds else 20_000)
    clock.advance(float(simulated))
    return Prediction(
        method=name,
        network=network.name or f"{network.n_nodes} nodes",
        n_nodes=network.n_nodes,
        time=begun + (clock.latest - begun) * cost.position / simulated,
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
    """All predictions and the recommendation; `str` of a plan is the recommendation in a few sentences.

    Attributes
    ----------
    predictions : tuple of Prediction
        The fastest first.
    facts : Facts
    tau, tol : float
    law : str
        The law of the delays.
    node_limit : int
        Each doubling of the nodes up to this number makes the recommended method faster.
    tau_limit : float
        The time of a message up to which the recommended number of nodes is faster than half of it; nan for
        one node, infinite if it is faster for every time of a message.
    passed_over : tuple of str
        Methods that are not recommended, because the clock counts each of their local solves as one pass.
    seconds_per_sample : float, optional
        The measured time of one sample's computation, which is 1 on the idealised clock.
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
        """The recommended prediction: the fastest one of a method that is not passed over."""
        return _first_fair(self.predictions, self.passed_over)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method and network, the fastest first; with ``seconds`` if these were measured."""
        import pandas as pd

        # All rows have the same target, so it is not a column.
        frame = pd.DataFrame([dataclasses.asdict(one) for one in self.predictions]).drop(columns="tol")
        if self.seconds_per_sample is not None:
            frame.insert(4, "seconds", frame["time"] * self.seconds_per_sample)
        return frame

    @property
    def heads(self) -> list[str]:
        """The heads of the columns of a printed table; see :meth:`cells`."""
        seconds = [] if self.seconds_per_sample is None else ["seconds"]
        return ["method", "network", "nodes", "time", *seconds, "passes", "messages", "ρ", "p_comm", "γ"]

    def cells(self, one: Prediction) -> list[str]:
        """Return the texts of one prediction, in the order of :attr:`heads`."""
        seconds = [] if self.seconds_per_sample is None else [one.time * self.seconds_per_sample]
        figures = [one.time, *seconds, one.passes, one.messages, one.contraction, one.p_comm, one.gamma]
        texts = ["" if math.isnan(value) else number(value) for value in figures]
        return [one.method, one.network, str(one.n_nodes), *texts]

    def best_of_each(self) -> list[Prediction]:
        """Return the best prediction of each method, the fastest first."""
        best: dict[str, Prediction] = {}
        for one in self.predictions:
            best.setdefault(one.method, one)
        return list(best.values())

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        sizes = ("n_samples", "n_features", "kappa_s", "kappa_b")
        copied = ("tau", "tol", "law", "node_limit", "tau_limit", "seconds_per_sample")
        content = {
            "recommendation": str(self),
            "best": dataclasses.asdict(self.best),
            "facts": {name: getattr(self.facts, name) for name in sizes},
            **{name: getattr(self, name) for name in copied},
            "predictions": [dataclasses.asdict(one) for one in self.predictions],
        }
        return json.dumps(_finite(content), ensure_ascii=False, indent=1) + "\n"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the predicted time against the number of nodes, one line per method on its best network."""
        from adfs.planning.pictures import draw

        return draw(self, axes)

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained page: the recommendation, the figure, the table."""
        from adfs.planning.pictures import make_page

        write_whole(path, make_page(self))

    def sentences(self) -> list[str]:
        """Return the recommendation, sentence by sentence."""
        best = self.best
        others = [one for one in self.best_of_each() if one.method not in (best.method, *self.passed_over)]
        time = f"{number(best.time)} samples' time"
        if self.seconds_per_sample is not None:
            time = f"{number(best.time * self.seconds_per_sample)} s ({time})"
        first = (
            f"{best.method} on {_place(best)} takes about {time} to a certified relative "
            f"gap of {self.tol:g} with τ = {self.tau:g}"
        )
        if others:
            ratio = others[0].time / best.time
            first += f", and {others[0].method} on {_place(others[0])} {ratio:.3g} times as long"
        said = [f"{first}."]
        # How much the nodes help: compared with one node, with half of them, and with more of them.
        one_node = [one for one in self.predictions if one.n_nodes == 1]
        if best.n_nodes > 1:
            if one_node:
                ratio = one_node[0].time / best.time
                said.append(f"One node with all the data would take {ratio:.3g} times as long.")
            said += self._limits()
        elif len({one.n_nodes for one in self.predictions}) > 1:
            said.append("More nodes would not shorten the run: their messages take longer than they save.")
        # Methods that are passed over may be first in the table: say why they are not recommended.
        sooner = [one.method for one in self.best_of_each() if one.time < best.time]
        unfair = "counts a whole local solve as one pass; in seconds it is many."
        if sooner:
            said.append(f"{' and '.join(sooner)} would be there sooner on this clock, which {unfair}")
        elif METHODS[best.method].solves_locally:
            said.append(f"The clock {unfair}")
        return said

    def _limits(self) -> list[str]:
        """Say how many nodes shorten the run, and for which τ."""
        family, count = self.best.network.partition(":")[0], self.best.n_nodes
        nodes = f"More than {self.node_limit} nodes ({family}) do not shorten the run."
        if self.node_limit >= _MOST_NODES:
            nodes = f"Every doubling of the nodes up to {self.node_limit} shortens the run."
        condition = f"as long as τ is below {number(self.tau_limit)}"
        if math.isinf(self.tau_limit):
            condition = "for every τ"
        return [nodes, f"{count} nodes are faster than {count // 2} {condition}."]

    def __str__(self) -> str:
        return " ".join(self.sentences())


def _place(one: Prediction) -> str:
    return "one node" if one.n_nodes == 1 else f"{one.network} ({one.n_nodes} nodes)"


def _first_fair(predictions: Sequence[Prediction], passed_over: Sequence[str]) -> Prediction:
    """Return the first prediction whose method is not passed over; the first one if all are."""
    return next((one for one in predictions if one.method not in passed_over), predictions[0])


def _finite(value: object) -> object:
    """Replace numbers that are not finite by None: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def node_counts(n_samples: int) -> list[int]:
    """Return the numbers of nodes that are compared by default for a number of samples.

    Examples
    --------
    >>> node_counts(143), node_counts(1000)
    ([1], [1, 2, 4, 8])
    """
    return [count for count in NODES if count == 1 or count * _FEWEST_ROWS <= n_samples]


def networks_of(
    nodes: Iterable[int], graphs: Iterable[object], n_samples: int, seed: int = 0
) -> list[Network]:
    """Return the networks to compare, each shape once.

    Parameters
    ----------
    nodes : iterable of int
        Numbers of nodes, for names without sizes; those above the number of samples are left out.
    graphs : iterable
        Names without sizes such as ``"grid"``, which are combined with every number of nodes; names with
        sizes such as ``"grid:3x3"`` and networks, which are used as they are.
    n_samples : int
    seed : int
        The seed of random graphs.
    """
    counts = [int(count) for count in nodes if 1 <= count <= n_samples]
    networks: dict[tuple[int, int, float], Network] = {}
    refusal: InputError | None = None
    for graph in graphs:
        named = isinstance(graph, str) and ":" not in graph
        for count in counts if named else [None]:
            try:
                # Two nodes have one shape only.
                few = count is not None and count <= 2
                network = Network("path" if few else graph, n_nodes=count, seed=seed)
            except InputError as error:
                # A hypercube of 12 nodes, for instance, does not exist: other networks may.
                refusal = refusal or error
                continue
            if network.n_nodes <= n_samples:
                # The cycle of four is the grid of two by two: as many edges, and the same spectral gap.
                gamma = round(network.gamma, 9) if network.n_nodes > 1 else 1.0
                networks.setdefault((network.n_nodes, network.n_edges, gamma), network)
    if not networks:
        raise refusal or InputError(f"there is no network for {n_samples} samples to plan with")
    return list(networks.values())


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
        The data on any number of nodes, or only its sizes and condition numbers.
    nodes : sequence of int, optional
        Numbers of nodes to compare; 1 to 64 by default, as long as every node has 100 rows. The objective
        does not depend on them: Σσ is shared by the nodes.
    network : str, Network, or a sequence of them
        See `networks_of`.
    tau : float
        Time of a message, one sample's computation taking 1; the paper's 5 by default.
    tol : float
        The certified relative duality gap to reach.
    methods : sequence of str, optional
        By default all methods that can solve the problem; ``"msda"`` and ``"esdacd"`` are then predicted but
        not recommended, because the clock counts each of their local solves as one pass.
    law : str
        The law of the delays, ``"exponential"`` or ``"fixed"``.
    seconds_per_sample : float, optional
        The time of one sample's computation (`adfs.runtimes.timing.step_seconds`), to report seconds.
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
    graphs = network if isinstance(network, list | tuple) else [network]
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    predictions = [
        predict(name, facts, each, delays, tol)
        for each in networks_of(counts, graphs, facts.n_samples, seed)
        for name in names
        if METHODS[name].can_solve(facts, each.n_nodes)
    ]
    if not predictions:
        raise InputError("none of these methods can run on this problem and these networks")
    predictions.sort(key=lambda one: one.time)
    # Methods that solve local problems look too fast on the clock: recommend them only on request.
    local = tuple(name for name in names if METHODS[name].solves_locally)
    passed_over = local if methods is None else ()
    best = _first_fair(predictions, passed_over)

    def time(n_nodes: int, tau: float) -> float:
        """Return the time of the recommended method on its kind of network, for another n and τ."""
        changed = dataclasses.replace(delays, tau=tau)
        return predict(best.method, facts, _resized(best, n_nodes, seed), changed, tol).time

    most = min(_MOST_NODES, facts.n_samples // _FEWEST_ROWS)
    return Plan(
        predictions=tuple(predictions),
        facts=facts,
        tau=float(tau),
        tol=float(tol),
        law=law,
        node_limit=_node_limit(lambda count: time(count, tau), best.n_nodes, most),
        tau_limit=_tau_limit(time, best.n_nodes, float(tau)),
        passed_over=passed_over,
        seconds_per_sample=seconds_per_sample,
    )


def _resized(best: Prediction, n_nodes: int, seed: int) -> Network:
    """Return a network of another size and the same family; a path if the family has none of that size."""
    family = best.network.partition(":")[0] if ":" in best.network and n_nodes > 1 else "path"
    try:
        return Network(family, n_nodes=n_nodes, seed=seed)
    except InputError:
        return Network("path", n_nodes=n_nodes)


def _node_limit(time: Callable[[int], float], count: int, most: int) -> int:
    """Return the number of nodes up to which each doubling of ``count`` saves at least 5 % of the time."""
    current = time(count)
    while 1 < count <= most // 2:
        doubled = time(2 * count)
        if doubled > 0.95 * current:
            break
        count, current = 2 * count, doubled
    return count


def _tau_limit(time: Callable[[int, float], float], count: int, tau: float) -> float:
    """Return the τ from which ``count`` nodes are not faster than half of them; nan for one node."""
    if count == 1:
        return math.nan

    def faster(tau: float) -> bool:
        return time(count, tau) < time(count // 2, tau)

    # Bracket the limit by steps of a factor of four, then bisect its logarithm.
    low = max(tau, 1e-3)
    if not faster(low):
        return low
    while faster(4.0 * low):
        low = 4.0 * low
        if 4.0 * low > 1e7:
            return math.inf
    high = 4.0 * low
    for _ in range(5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if faster(middle) else (low, middle)
    return math.sqrt(low * high)
