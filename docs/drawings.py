"""The drawings of "how it works" and of the README: everything in them is computed by the package."""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from kept import RESULTS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

import adfs
from adfs.algorithms import METHODS
from adfs.experiments import read_grid, winners
from adfs.experiments.report import layout
from adfs.pages import COLORS, line_options, line_styles
from adfs.runtimes.clock import Clock
from adfs.runtimes.joint_problem import place
from adfs.schedule import frame, make_schedule
from adfs.stages.boxes import intervals
from adfs.theory import AugmentedGraph

# The literal form of ADFS is part of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
from literal_adfs import LagState, MeanLagAdfs, draw_edges

BLUE, RED, GREEN, PINK, ORANGE, _ = COLORS
SOFT = "0.48"


@cache
def example() -> tuple[adfs.Problem, adfs.Network, adfs.Run]:
    """Return the problem, the network and the run of the README's first example."""
    X, classes = load_breast_cancer(return_X_y=True)
    problem = adfs.Problem(
        scale(X), 2 * classes - 1, loss="logistic", sigma=0.1, n_nodes=9, partition="random"
    )
    network = adfs.Network("grid:3x3")
    return problem, network, adfs.simulate("adfs", problem, network, tau=5, tol=1e-8, seed=0, record="gap")


@cache
def small_case(graph: str = "grid:2x2", samples: int = 3) -> tuple[AugmentedGraph, MeanLagAdfs]:
    """Return the augmented graph of a few samples per node in the plane, and ADFS on it."""
    network = adfs.Network(graph)
    rng = np.random.default_rng(4)
    n = network.n_nodes
    X = rng.standard_normal((samples * n, 2))
    y = X @ [1.0, -0.5] + 0.3 * rng.standard_normal(samples * n)
    problem = adfs.Problem(X, y, loss="squared", sigma=1.0, n_nodes=n)
    made = AugmentedGraph(problem, network, adfs.Parameters.tuned(problem, network, tau=2.0))
    return made, MeanLagAdfs(made)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_network(axes: Axes, network: adfs.Network, colors: list[str], labels: list[str]) -> None:
    places = layout(network) * [1, -1]
    for i, j in network.edges:
        axes.plot(*places[[i, j]].T, color="0.6", linewidth=1.5, zorder=1)
    axes.scatter(*places.T, s=480, color=colors, edgecolors="white", linewidths=1.5, zorder=2)
    for (x, y), label in zip(places, labels, strict=True):
        axes.text(x, y, label, ha="center", va="center", color="white", fontsize=9, zorder=3)
    axes.set_aspect("equal")
    axes.margins(0.14)
    axes.set_axis_off()


# --------------------------------------------------------------------------- what one gets


def first_picture_data() -> dict[str, list[float]]:
    """Return what the README's picture shows: samples of each node, passes and certified gaps of the run."""
    problem, _, run = example()
    shown = run.frame[run.frame["passes"] > 0.0]
    return {
        "samples": [float(shard.y.size) for shard in problem.shards],
        "passes": shown["passes"].tolist(),
        "gap": shown["gap"].tolist(),
    }


def draw_first(figure: Figure) -> None:
    """Draw the network with its data, and the certified gap as it falls."""
    _, network, _ = example()
    data = first_picture_data()
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.45])
    labels = [f"{count:.0f}" for count in data["samples"]]
    _draw_network(left, network, [BLUE] * network.n_nodes, labels)
    left.set_title("nine nodes with samples", fontsize=9.5)
    (style,) = line_styles(["adfs"], METHODS)
    right.semilogy(data["passes"], data["gap"], linewidth=2, **line_options(*style))
    right.set_xlabel("passes over the data")
    right.set_title("certified distance to the best", fontsize=9.5)
    right.grid(True, alpha=0.3)
    _plain(right)


# --------------------------------------------------------------------------- how it works


def draw_augmented(figure: Figure) -> None:
    """Draw a 2 × 2 grid, and the same with a star of samples at each node."""
    graph, _ = small_case()
    network = graph.network
    places = layout(network) * [1, -1] - [0.5, -0.5]
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.4])
    _draw_network(left, network, [BLUE] * 4, list("0123"))
    left.set_title("the network", fontsize=10)
    tips = np.empty((graph.n_tips, 2))
    for number, (i, _) in enumerate(graph.edges[graph.n_communication :]):
        outward = np.arctan2(*places[i][::-1]) + 0.75 * (number % 3 - 1)
        tips[number] = places[i] + 0.42 * np.array([np.cos(outward), np.sin(outward)])
    both = np.concatenate([places, tips])
    for edge, (i, j) in enumerate(graph.edges):
        virtual = graph.is_virtual(edge)
        style = {"color": ORANGE, "linestyle": "--"} if virtual else {"color": "0.5", "linewidth": 2.0}
        right.plot(*both[[i, j]].T, zorder=1, **style)
    right.scatter(*places.T, s=420, color=BLUE, zorder=2)
    right.scatter(*tips.T, s=110, color=ORANGE, zorder=2)
    for node, place_ in enumerate(places):
        right.text(*place_, str(node), color="white", ha="center", va="center", fontsize=9)
    right.set_title("the augmented graph", fontsize=10)
    right.set_aspect("equal")
    right.margins(0.08)
    right.set_axis_off()
    for name, color in (("centre", BLUE), ("tip: one sample", ORANGE)):
        right.scatter([], [], color=color, label=name)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5, frameon=False)


def _state_before_exchange() -> tuple[MeanLagAdfs, LagState, int, float]:
    """Return ADFS some events in, just before an exchange whose ends have been idle for a while."""
    graph, method = small_case()
    edges = draw_edges(graph, 400, seed=1)
    state = method.start()
    for t, edge in enumerate(edges):
        idle = t + 1 - state.time[graph.edges[edge]]
        if t > 12 and not graph.is_virtual(edge) and idle.min() > 2:
            return method, state, int(edge), float(t + 1)
        state = method.step(state, int(edge), float(t + 1))
    raise AssertionError("no such exchange among the first events")


def draw_event(figure: Figure) -> None:
    """Draw the two ends of an edge in three steps: the lag decays, the two compare, the two jump."""
    method, before, edge, time = _state_before_exchange()
    ends = method.graph.edges[edge]
    x, v = method.iterates(before, time)
    after = method.step(before, edge, time)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    titles = ("1. the lag decays", "2. x is compared", "3. both jump")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        _plain(axes)
    arrow = {"arrowstyle": "->", "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    for node, color in zip(ends, (BLUE, RED), strict=True):
        mean, lag = before.mean[node], before.lag[node]
        # Arrows do not count for the limits of the axes; these do.
        for axes in panels:
            axes.plot(*np.array([mean - lag / 2, mean + lag / 2, after.mean[node]]).T, linestyle="none")
        faded = arrow | {"color": color, "alpha": 0.3}
        panels[0].annotate("", mean + lag / 2, mean - lag / 2, arrowprops=faded)
        panels[0].annotate("", v[node], x[node], arrowprops=arrow | {"color": color})
        panels[0].plot(*mean, "o", color=color, label=f"node {node}")
        panels[1].plot(*x[node], "s", color=color)
        panels[1].plot(*mean, "o", color=color, alpha=0.25)
        panels[2].annotate("", after.mean[node], mean, arrowprops=arrow | {"color": color})
        panels[2].plot(*mean, "o", color=color, alpha=0.25)
        panels[2].plot(*after.mean[node], "o", color=color)
    panels[1].plot(*x[ends].T, ":", color=SOFT)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)


def draw_mean_and_lag(figure: Figure) -> None:
    """Draw one coordinate of one node's mean and lag over time: nothing moves between events but the lag."""
    graph, method = small_case()
    edges = draw_edges(graph, 60, seed=3)
    state = method.start()
    node, coordinate, moments = 0, 0, []
    grid, mean, lag = [], [], []
    for t, edge in enumerate(edges):
        fine = np.linspace(t, t + 1, 20, endpoint=False)
        grid += fine.tolist()
        mean += [state.mean[node, coordinate]] * fine.size
        lag += (state.lag[node, coordinate] * method.parameters.decay ** (fine - state.time[node])).tolist()
        state = method.step(state, int(edge), float(t + 1))
        if node in graph.edges[edge]:
            moments.append(t + 1)
    axes = figure.subplots()
    axes.vlines(
        moments, *np.array([min(mean + lag), max(mean + lag)]) * 1.05, color="0.5", alpha=0.3, linewidth=1
    )
    axes.plot(grid, mean, color=BLUE, linewidth=2, label="mean c: rests between events")
    axes.plot(grid, lag, color=RED, linewidth=2, label="lag e: decays between events")
    axes.set_xlabel("events of the whole network; grey: this node's own")
    figure.legend(loc="outside upper center", ncols=2, fontsize=9.5)
    _plain(axes)


def draw_waiting(figure: Figure) -> None:
    """Draw the first events of a cycle on the idealised clock: who computes, who waits for whose message."""
    network = adfs.Network("cycle:4")
    problem = small_case("cycle:4", 6)[0].problem
    parameters = adfs.Parameters.tuned(problem, network, tau=2.0)
    clock = Clock("adfs", parameters, problem, network, adfs.Delays(tau=2.0), seed=5)
    schedule = make_schedule(
        "iid",
        seed=5,
        n_nodes=4,
        edges=network.ends,
        node_probability=parameters.node_probability,
        edge_probability=parameters.edge_probability,
    )
    axes = figure.subplots()
    for number, event in enumerate(frame(schedule, first=40).itertuples()):
        before = clock.times
        clock.advance(number + 1.0)
        after = clock.times
        if event.kind == "compute":
            span = (before[event.node], after[event.node] - before[event.node])
            axes.broken_barh([span], (event.node - 0.22, 0.44), facecolors=BLUE, edgecolors="white")
            continue
        for waits, sender in ((event.node, event.neighbour), (event.neighbour, event.node)):
            if after[waits] > before[waits]:
                span = (before[waits], after[waits] - before[waits])
                axes.broken_barh([span], (waits - 0.08, 0.16), facecolors=ORANGE)
                arrow = {"arrowstyle": "->", "color": SOFT, "linewidth": 0.9}
                axes.annotate("", (after[waits], waits), (before[sender], sender), arrowprops=arrow)
    axes.set_yticks(range(4), [f"node {node}" for node in range(4)])
    axes.invert_yaxis()
    axes.set_xlabel("idealised time: a sample about 1, a message about 2")
    for color, label in ((BLUE, "computes"), (ORANGE, "waits for a message (arrow)")):
        axes.barh(0, 0, color=color, label=label)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9.5, frameon=False)
    _plain(axes)


def draw_placement(figure: Figure) -> None:
    """Draw a grid on three ranks, with the edges that are cut."""
    network = adfs.Network("grid:3x4")
    placement = place(network, 3)
    axes = figure.subplots()
    colors = [(BLUE, GREEN, PINK)[rank] for rank in placement.rank_of_node]
    _draw_network(axes, network, colors, [str(node) for node in range(network.n_nodes)])
    places = layout(network) * [1, -1]
    for (i, j), cut in zip(network.edges, placement.cut, strict=True):
        if cut:
            axes.plot(*places[[i, j]].T, color=RED, linewidth=3, zorder=1)


def draw_certificate(figure: Figure) -> None:
    """Draw the objective from above and the dual bound from below, with the optimum between them."""
    problem, _, run = example()
    shown = run.frame[(run.frame["passes"] > 0.5) & (run.frame["passes"] < 30)]
    axes = figure.subplots()
    primal, dual = shown["primal"] / problem.value_at_zero, shown["dual"] / problem.value_at_zero
    axes.fill_between(shown["passes"], dual, primal, color=SOFT, alpha=0.35, label="certified gap")
    axes.plot(shown["passes"], primal, color=BLUE, linewidth=2, label="objective F(θ)/F(0)")
    axes.plot(shown["passes"], dual, color=GREEN, linewidth=2, label="dual bound D/F(0)")
    best = problem.optimum().value / problem.value_at_zero
    axes.axhline(best, color=SOFT, linestyle=":", label="optimum")
    axes.set_xscale("log")
    axes.set_ylim(max(-0.1, float(dual.min())), 0.35)
    axes.set_xlabel("passes over the data")
    axes.legend(fontsize=9.5, frameon=False)
    _plain(axes)


def draw_constants(figure: Figure) -> None:
    """Draw the error against idealised time: the paper's constants, tuned ones, and rounds in blocks."""
    problem, network, _ = example()
    axes = figure.subplots()
    cases = (
        ("adfs", {"parameters": "paper"}, "ADFS, the paper's constants"),
        ("adfs", {}, "ADFS, tuned"),
        ("adfs-block", {}, "block-synchronous ADFS"),
        ("msda", {}, "MSDA"),
    )
    styles = line_styles((method for method, _, _ in cases), METHODS)
    for (method, options, label), style in zip(cases, styles, strict=True):
        run = adfs.simulate(
            method,
            problem,
            network,
            tau=5,
            delays=adfs.Delays(tau=5.0),
            max_passes=4000 if method == "msda" else 200,
            record="suboptimality",
            **options,
        )
        errors = run.frame["suboptimality"].clip(1e-12)
        axes.semilogy(run.frame["time"], errors, label=label, **line_options(*style))
    axes.set_xlim(0, 20_000)
    axes.set_ylim(1e-5, None)
    axes.set_xlabel("idealised time, τ = 5")
    axes.set_ylabel("F − F*")
    axes.legend(fontsize=9.5, frameon=False)
    _plain(axes)


def draw_nonsmooth(figure: Figure) -> None:
    """Draw the gap of the hinge loss and of its smoothed form."""
    problem, network, _ = example()
    axes = figure.subplots()
    cases = (("hinge", "ns-adfs"), ("smoothed_hinge", "adfs"))
    for loss, method in cases:
        shards = [(shard.X, shard.y) for shard in problem.shards]
        other = adfs.Problem.from_shards(shards, loss=loss, sigma=0.1)
        run = adfs.simulate(method, other, network, max_passes=300, record="gap")
        shown = run.frame[run.frame["passes"] > 1]
        (style,) = line_styles([method], METHODS)
        label = f"{loss}, {method}"
        axes.loglog(shown["passes"], shown["gap"].clip(1e-12), label=label, **line_options(*style))
    axes.set_xlabel("passes over the data")
    axes.set_ylabel("certified relative gap")
    axes.legend(fontsize=9.5, frameon=False)
    axes.grid(True, alpha=0.3)
    _plain(axes)


def draw_intervals(figure: Figure) -> None:
    """Draw where the optimal margins of some samples may be, as the gap falls, under the loss's curvature."""
    axes = figure.subplots()
    rng = np.random.default_rng(2)
    X = rng.standard_normal((80, 4)) + 0.8 * (signs := np.where(np.arange(80) % 2, 1.0, -1.0))[:, None]
    problem = adfs.Problem(X, signs, sigma=0.5, n_nodes=4)
    shown = np.argsort(X @ problem.optimum().theta)[4::9]
    for tol, color in zip(
        (1e-2, 1e-3, 1e-4, 1e-6), ("#dbe7f3", "#a9c6e3", "#6c9bd0", "#1f4e86"), strict=True
    ):
        run = adfs.simulate("adfs", problem, adfs.Network("cycle:4"), tol=tol)
        assert run.dual is not None
        theta = problem.primal_from_dual(run.dual)
        gap = problem.duality_gap(run.dual, relative=False)
        radius = np.full(problem.n_samples, np.sqrt(gap / problem.total_sigma))
        low, high = intervals(problem, theta, run.dual, gap, radius)[shown].T
        axes.barh(np.arange(shown.size), high - low, left=low, height=0.7, color=color, label=f"gap {tol:g}")
    optimum = problem.X[shown] @ problem.optimum().theta
    axes.plot(optimum, np.arange(shown.size), "|", color=RED, markersize=9, label="optimal margin")
    margins = np.linspace(-7.0, 7.0, 301)
    curvature = 1.0 / (2.0 + 2.0 * np.cosh(margins))
    axes.fill_between(margins, -3.2, -3.2 + 8.0 * curvature, color="#f0d9b5", label="curvature of the loss")
    axes.set(xlabel="margin", xlim=(-7.0, 7.0), ylim=(-3.2, shown.size - 0.3), yticks=[])
    axes.set_ylabel("nine samples")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


# --------------------------------------------------------------------------- who wins where

#: The rows of the map's picture: their titles, and which rows of the table of times take part.
CANDIDATES = {
    "sums over all nodes allowed": lambda times: times[~times["local"]],
    "messages between neighbours only": lambda times: times[~times["local"] & ~times["sums"]],
}


def map_stamp() -> str:
    """Return a hash of the table that the map is drawn from."""
    return hashlib.sha256((RESULTS / "map.csv").read_bytes()).hexdigest()


def draw_map(figure: Figure, times: pd.DataFrame | None = None) -> None:
    """Draw who wins where: at each point the planner's choice beside the method that won, with its lead.

    Without ``times`` (of `adfs.experiments.run_grid`) those in ``benchmarks/results`` are drawn.
    """
    kept = pd.read_csv(RESULTS / "map.csv") if times is None else times
    kept = kept.assign(tau=kept["tau"].astype(float))
    found = {title: winners(choose(kept)) for title, choose in CANDIDATES.items()}
    # A method has a colour, by its place in the registry; its other forms are hatched.
    labels = kept.drop_duplicates("label").set_index("label")["method"]
    shown = {label for table in found.values() for label in (*table["winner"], *table["predicted"])} - {""}
    methods = [name for name in METHODS if name in set(labels[list(shown)])]
    styles: dict[str, dict[str, object]] = {"": {"facecolor": "0.48", "alpha": 0.3}}
    for method in methods:
        forms = list(labels.index[labels == method])
        color = (*COLORS, "#F0E442", "#B3B3B3")[methods.index(method) % 8]
        for label, hatch in zip(forms, ("", "/////", "....."), strict=False):
            styles[label] = {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.0}
    sides = [(title, shards) for shards in kept["partition"].unique() for title in CANDIDATES]
    if times is None:
        of_all = sum(map(len, read_grid(RESULTS.parents[1] / "examples" / "map.toml").columns()))
        done = len(next(iter(found.values())))
        figure.suptitle("" if done == of_all else f"{done} of {of_all} points have been run", fontsize=8)
    networks, data, taus = (list(kept[axis].unique()) for axis in ("network", "data", "tau"))
    figure.set_size_inches(7.4, 1.1 + len(sides) * (0.45 + 0.17 * len(data)))
    names = [re.sub(r"\.[\w.]+", "", name) for name in data]  # without the endings of files
    panels = figure.subplots(len(sides), len(networks), sharex=True, sharey=True, squeeze=False)
    for (title, shards), row in zip(sides, panels, strict=True):
        for network, axes in zip(networks, row, strict=True):
            table = found[title]
            here = table[(table["network"] == network) & (table["partition"] == shards)]
            for _, point in here.iterrows():
                x, y = taus.index(point["tau"]), data.index(point["data"])
                _tile(axes, x, y, 0.28, styles[point["predicted"]])
                _tile(axes, x + 0.3, y, 0.64, styles[point["winner"]])
                bound = "" if point["exact"] else ">"
                digits = 1 if point["lead"] < 10.0 else 0
                lead = f"{bound}{point['lead']:.{digits}f}" if point["winner"] else "–"
                ground = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
                place = {"ha": "center", "va": "center", "fontsize": 6.5}
                axes.text(x + 0.62, y + 0.52, lead, color="black", bbox=ground, **place)
            axes.set_title(f"{network}, shards: {shards}\n{title}", fontsize=7.5)
            axes.set_xticks(np.arange(len(taus)) + 0.5, [f"{tau:g}" for tau in taus], fontsize=7)
            axes.set_yticks(np.arange(len(data)) + 0.5, names, fontsize=7)
            axes.set(xlim=(-0.05, len(taus)), ylim=(len(data), -0.05))
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("time of a message, τ", fontsize=7.5)
    patches = [Patch(label=label, **style) for label, style in styles.items() if label in shown]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=7.5)


def _tile(axes: Axes, x: float, y: float, width: float, style: dict[str, object]) -> None:
    axes.add_patch(Rectangle((x, y + 0.04), width, 0.92, **style))
