"""The planner: predict the time of every method on every network, and recommend the fastest."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adfs import pages
from adfs.algorithms import METHODS, RoundEffort, get_method
from adfs.errors import InputError
from adfs.files import write_whole
from adfs.network import Network
from adfs.pages import number
from adfs.planning.choice import is_predictable
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


class Prediction(NamedTuple):
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
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """All predictions and the recommendation; `str` of a plan is the recommendation in a few sentences.

    Attributes
    ----------
    predictions : tuple of Prediction
        The fastest first.
    best : Prediction
        The recommended one: the fastest of a method that is not passed over.
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
    best: Prediction
    facts: Facts
    tau: float
    tol: float
    law: str
    node_limit: int
    tau_limit: float
    passed_over: tuple[str, ...] = ()
    seconds_per_sample: float | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method and network, the fastest first; with ``seconds`` if these were measured."""
        import pandas as pd

        frame = pd.DataFrame(self.predictions)
        if self.seconds_per_sample is not None:
            frame.insert(4, "seconds", frame["time"] * self.seconds_per_sample)
        return frame

    @cached_property
    def text_table(self) -> pd.DataFrame:
        """The table as it is printed: the best of each method first, then the others, and short heads."""
        heads = {"n_nodes": "nodes", "contraction": "ρ", "gamma": "γ"}
        frame = self.table.drop(columns="position").rename(columns=heads)
        texts = frame.map(lambda cell: number(cell) if isinstance(cell, float) else str(cell))
        return texts.replace("nan", "").loc[frame["method"].duplicated().sort_values(kind="stable").index]

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
            "best": self.best._asdict(),
            "facts": {name: getattr(self.facts, name) for name in sizes},
            **{name: getattr(self, name) for name in copied},
            "predictions": [one._asdict() for one in self.predictions],
        }
        # JSON has no infinity and no nan: they become null.
        plain = json.loads(json.dumps(content), parse_constant=lambda _: None)
        return json.dumps(plain, ensure_ascii=False, indent=1) + "\n"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the predicted time against the number of nodes, one line per method on its best network."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(7.4, 4.6), layout="constrained").add_subplot()
        scale = 1.0 if self.seconds_per_sample is None else self.seconds_per_sample
        # Methods that take a hundred times as long as the best would squeeze the others together.
        shown = [one.method for one in self.best_of_each() if one.time <= 100.0 * self.best.time]
        for method, style in zip(shown, pages.line_styles(shown, METHODS), strict=True):
            rows = self.table[self.table["method"] == method]
            times = scale * rows.groupby("n_nodes")["time"].min()
            # Hollow markers stand for methods that are not recommended. A single point shows no dashes, so
            # the markers tell the styles of lines apart.
            line = pages.line_options(*style) | ({"mfc": "none"} if method in self.passed_over else {})
            marker = {"": "o", "6 3": "s"}.get(style[1], "^")
            axes.plot(times.index, times, marker=marker, ms=5, label=method, **line)
        # A grey ring marks the recommendation.
        axes.plot(self.best.n_nodes, scale * self.best.time, "o", ms=12, mfc="none", mec="0.48")
        counts = sorted({one.n_nodes for one in self.predictions})
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_xlabel("nodes")
        unit = "one sample takes 1" if self.seconds_per_sample is None else "seconds"
        axes.set_ylabel(f"predicted time to a gap of {self.tol:g} ({unit})")
        axes.grid(True, which="major", alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False, handlelength=4.0, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return axes

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained page: the recommendation, the figure, and a table of at most 40 rows."""
        import matplotlib as mpl

        with mpl.rc_context(pages.on_any_page()):
            figure: Any = self.plot().get_figure(root=True)
        cells = self.text_table.drop(columns="γ").map(html.escape)
        best = self.predictions.index(self.best)
        cells.loc[best] = "<strong>" + cells.loc[best] + "</strong>"
        facts = {
            "samples, N": number(self.facts.n_samples),
            "features, d": number(self.facts.n_features),
            "κ_s": number(self.facts.kappa_s),
            "κ_b": number(self.facts.kappa_b),
            "time of a message, τ": f"{self.tau:g}",
            "target, relative gap": f"{self.tol:g}",
            "spectral gap, γ": number(self.best.gamma),
            "delays": self.law,
        }
        page = pages.fill_page(
            "plan.html",
            sentences="".join(f"<li>{html.escape(one)}</li>" for one in self.sentences()),
            figure=pages.svg_element(figure, "Predicted time of each method against the number of nodes"),
            table=pages.html_table(cells.head(40)),
            facts=pages.html_facts(facts),
        )
        write_whole(path, page)

    def sentences(self) -> list[str]:
        """Return the recommendation, sentence by sentence."""
        best = self.best
        seconds = ""
        if self.seconds_per_sample is not None:
            seconds = f" ({number(best.time * self.seconds_per_sample)} s)"
        said = [
            f"Run {best.method} on {_place(best)}.",
            f"It takes about {number(best.time)} units of time{seconds} to a certified gap of {self.tol:g}.",
            f"The computation of a sample takes 1 unit, and a message takes τ = {self.tau:g}.",
        ]
        others = [one for one in self.best_of_each() if one.method not in (best.method, *self.passed_over)]
        if others:
            ratio = f"{others[0].time / best.time:.3g} times as long"
            said.append(f"The next best method, {others[0].method} on {_place(others[0])}, takes {ratio}.")
        # How much the nodes help: compared with one node, with half of them, and with more of them.
        one_node = [one for one in self.predictions if one.n_nodes == 1]
        if best.n_nodes > 1:
            if one_node:
                ratio = f"{one_node[0].time / best.time:.3g} times as long"
                said.append(f"One node with all the data would take {ratio}.")
            doubling = f"More than {self.node_limit} nodes would not shorten the run."
            if self.node_limit >= _MOST_NODES:
                doubling = f"Each doubling of the nodes up to {self.node_limit} would shorten the run."
            limit = "for every τ"
            if math.isfinite(self.tau_limit):
                limit = f"as long as τ is below {number(self.tau_limit)}"
            said += [doubling, f"{best.n_nodes} nodes are faster than {best.n_nodes // 2} {limit}."]
        elif len({one.n_nodes for one in self.predictions}) > 1:
            said.append("More nodes would not shorten the run: their messages take longer than they save.")
        # Methods that are passed over may be first in the table: say why they are not recommended.
        sooner = [one.method for one in self.best_of_each() if one.time < best.time]
        if sooner:
            said.append(f"The time of {' and '.join(sooner)} is shorter, but too optimistic.")
        if sooner or METHODS[best.method].solves_locally:
            said.append("The clock counts a whole local solve as one pass; in seconds it is many.")
        return said

    def __str__(self) -> str:
        return " ".join(self.sentences())


def _place(one: Prediction) -> str:
    return "one node" if one.n_nodes == 1 else f"{one.network} ({one.n_nodes} nodes)"


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
    """Return the networks to compare, each shape once; ``seed`` is that of random graphs.

    A name without sizes such as ``"grid"`` is combined with every number of nodes that is not above the
    number of samples. A name with sizes such as ``"grid:3x3"`` and a network are used as they are.
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
        By default all methods that can solve the problem; ``"msda"``, ``"esdacd"`` and ``"sonata"`` are then
        predicted but not recommended, because the clock counts each of their local solves as one pass.
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
    names = list(METHODS) if methods is None else [get_method(name).name for name in methods]
    predictions = [
        predict(name, facts, each, delays, tol)
        for each in networks_of(counts, graphs, facts.n_samples, seed)
        for name in names
        if is_predictable(name, facts, each, tol, tau)
    ]
    if not predictions:
        raise InputError("none of these methods can run on this problem and these networks")
    predictions.sort(key=lambda one: one.time)
    # Methods that solve local problems look too fast on the clock: recommend them only on request.
    local = tuple(name for name in names if METHODS[name].solves_locally)
    passed_over = local if methods is None else ()
    best = next((one for one in predictions if one.method not in passed_over), predictions[0])

    def time(n_nodes: int, tau: float) -> float:
        """Return the time of the recommended method on its kind of network, for another n and τ."""
        changed = dataclasses.replace(delays, tau=tau)
        return predict(best.method, facts, _resized(best, n_nodes, seed), changed, tol).time

    most = min(_MOST_NODES, facts.n_samples // _FEWEST_ROWS)
    return Plan(
        predictions=tuple(predictions),
        best=best,
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
    low = high = max(tau, 1e-3)
    while faster(high):
        low, high = high, 4.0 * high
        if high > 1e7:
            return math.inf
    for _ in range(5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if faster(middle) else (low, middle)
    return math.sqrt(low * high)
