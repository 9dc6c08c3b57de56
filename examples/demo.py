"""A demonstration: a network, data spread over it, a model that all nodes agree on, and why it is useful.

Run with ``make demo``. The data is the breast cancer set that comes with scikit-learn. The printed text is
also written as a page, ``demo/index.html``, which needs no other file.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from string import Template

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.datasets import dump_svmlight_file, load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import adfs
from adfs.experiments.report import network_svg
from adfs.pages import COLORS, on_any_page

SEED = 0
TOLERANCE = 1e-8
SIDE = 3
ADFS_COLOR = COLORS[0]

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>adfs: a demonstration</title>
<style>
$css
.story { max-width: 720px; margin: 0 auto; }
.story .network svg { max-width: 300px; display: block; margin: 0 auto; }
.story img { width: 100%; }
</style>
</head>
<body><div class="story">
<h1>One model from nine places</h1>
<p class="lead">The results of <code>make demo</code> with adfs $version.</p>
$sections
</div></body>
</html>
""")


class Story:
    """The steps of the demonstration: printed as they happen, and a page at the end."""

    def __init__(self) -> None:
        self.sections: list[str] = []

    def add(self, title: str, words: str, picture: str = "", drawn: str = "", command: str = "") -> None:
        """Add one step: text, a picture for the page, a drawing for the terminal, the command."""
        print(f"\n{len(self.sections) + 1}. {title}\n\n{words}")
        for text in filter(None, (drawn, command)):
            print(f"\n{text}")
        block = f"<pre>{html.escape(command)}</pre>" if command else ""
        self.sections.append(
            f"<section><h2>{html.escape(title)}</h2><p>{html.escape(words)}</p>{picture}{block}</section>"
        )

    def write(self, folder: Path) -> Path:
        """Write the page and return its path."""
        css = (resources.files("adfs") / "pages" / "page.css").read_text(encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "index.html"
        page = PAGE.substitute(css=css, version=adfs.__version__, sections="\n".join(self.sections))
        path.write_text(page, encoding="utf-8")
        return path


def make_problem() -> tuple[adfs.Problem, adfs.Network, np.ndarray, np.ndarray]:
    """Return the samples, spread over the nodes of a grid, and a third of them that no node has."""
    X, classes = load_breast_cancer(return_X_y=True)
    y = 2.0 * classes - 1.0
    X, others, y, their_y = train_test_split(X, y, test_size=1 / 3, stratify=y, random_state=SEED)
    scaler = StandardScaler().fit(X)
    n = SIDE * SIDE
    problem = adfs.Problem(
        scaler.transform(X), y, loss="logistic", sigma=1.0 / n, n_nodes=n, partition="random", seed=SEED
    )
    return problem, adfs.Network(f"grid:{SIDE}x{SIDE}"), scaler.transform(others), their_y


def grid_text(problem: adfs.Problem) -> str:
    """Draw the grid with the number of samples of each node, for a terminal."""
    counts = [f"[{shard.y.size:3d}]" for shard in problem.shards]
    rows = ["──".join(counts[SIDE * k : SIDE * (k + 1)]) for k in range(SIDE)]
    between = "\n" + "    ".join(["  │"] * SIDE) + "\n"
    return between.join(rows)


def show_network(story: Story, problem: adfs.Problem, network: adfs.Network) -> None:
    """Show the samples of each node, and the network."""
    counts = sorted({shard.y.size for shard in problem.shards})
    words = (
        f"{problem.n_samples} tumours with {problem.n_features} measurements each are spread over "
        f"{network.n_nodes} places, {' or '.join(map(str, counts))} to each. Each place keeps its samples, "
        f"and talks only to its neighbours."
    )
    picture = f'<div class="network">{network_svg(network)}</div>'
    story.add("The network, and the data split over it", words, picture, grid_text(problem))


def image(svg: bytes, words: str) -> str:
    """Return a drawing as a part of the page, with its description as the alternative text."""
    drawn = base64.b64encode(svg).decode()
    return f'<img alt="{words}" src="data:image/svg+xml;base64,{drawn}">'


def draw(plot: Callable[[Figure], None], height: float, words: str) -> str:
    """Draw for the page, light or dark."""
    stream = io.BytesIO()
    with mpl.rc_context(on_any_page()):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        plot(figure)
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return image(stream.getvalue(), words)


def plot_gap(figure: Figure, frame: pd.DataFrame) -> None:
    """Plot the gap against the passes, on a logarithmic scale."""
    axes = figure.subplots()
    axes.semilogy(frame["passes"], frame["gap"], color=ADFS_COLOR, linewidth=2.5)
    axes.set(xlabel="passes over the data", ylabel="certified gap", xlim=(0, None))
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def plot_models(figure: Figure, names: list[str], models: np.ndarray, accuracies: np.ndarray) -> None:
    """Plot, a line for each model, how often it is right about new samples, and its coefficients.

    The last two are that of all places together and that of one machine with all the data.
    """
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.6])
    colors = [COLORS[4]] * (len(names) - 2) + [ADFS_COLOR] * 2
    for place, (theta, share, color) in enumerate(zip(models, accuracies, colors, strict=True)):
        left.plot(100 * share, place, "o", color=color)
        right.plot(theta, np.full(theta.size, place), "|", color=color, markersize=11)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("right about new samples, %")
    right.set_xlabel(f"the {models.shape[1]} coefficients")
    for axes in (left, right):
        axes.grid(True, axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)


def show_run(story: Story, problem: adfs.Problem, network: adfs.Network) -> adfs.Run:
    """Run ADFS, and show how the certified gap falls."""
    run = adfs.simulate("adfs", problem, network, tau=5, tol=TOLERANCE, seed=SEED, record="gap")
    frame = run.frame[run.frame["gap"] < 1.0]
    lines = []
    for power in range(-1, round(math.log10(TOLERANCE)) - 1, -1):
        reached = frame[frame["gap"] <= 10.0**power]
        if len(reached):
            row = reached.iloc[0]
            bar = "█" * round(24 * row["passes"] / frame["passes"].max())
            lines.append(f"gap below 1e{power}  after {row['passes']:5.0f} passes  {bar}")
    last = run.frame.iloc[-1]
    words = (
        f"ADFS, with all nine nodes simulated here, {run.outcome} after {last['passes']:.0f} passes "
        f"over the data and {last['messages']:.0f} messages of {problem.n_features} numbers, in "
        f"{run.seconds:.2f} s. The gap is proven: it bounds the error of the objective, relative to the "
        f"objective at the start."
    )
    caption = "The certified gap falls along a straight line on a logarithmic scale."
    picture = draw(lambda figure: plot_gap(figure, frame), 3.2, caption)
    story.add("The gap falls", words, picture, "\n".join(lines))
    return run


def show_comparison(
    story: Story, problem: adfs.Problem, run: adfs.Run, new: np.ndarray, new_y: np.ndarray
) -> None:
    """Compare the common model with those of single places, and with that of one machine with all data."""
    best = problem.optimum()
    sigma = problem.total_sigma / problem.n_nodes
    alone = [adfs.Problem(one.X, one.y, loss="logistic", sigma=sigma).optimum() for one in problem.shards]
    # F* is at least the run's dual value: that certifies any point, each node's own included.
    dual = run.frame["dual"].iloc[-1]
    gaps = [(problem.objective(theta) - dual) / problem.value_at_zero for theta in run.theta]
    models = np.array([*(one.theta for one in alone), run.coef, best.theta])
    names = [f"place {place} alone" for place in range(len(alone))]
    names += ["all together", "one machine, all data"]
    accuracies = np.array([np.mean(np.sign(new @ theta) == new_y) for theta in models])
    words = (
        f"With its own samples alone, a place is right about {accuracies[:-2].min():.1%} to "
        f"{accuracies[:-2].max():.1%} of {new_y.size} tumours that no place has seen, and places disagree "
        f"about the coefficients. Together they are right about {accuracies[-2]:.1%}, and so is one machine "
        f"with all the data ({accuracies[-1]:.1%}): no coefficient differs by more than "
        f"{np.abs(run.coef - best.theta).max():.0e}. No place saw another's samples, and the worst of the "
        f"nine has a certified gap of {max(gaps):.0e}."
    )
    lines = [f"{name:22} {share:6.1%}" for name, share in zip(names, accuracies, strict=True)]
    caption = (
        "The models of single places differ; that of all together is that of one machine with all the data."
    )
    picture = draw(lambda figure: plot_models(figure, names, models, accuracies), 3.8, caption)
    story.add("Why do it together", words, picture, "\n".join(lines))


def show_two_ranks(story: Story, problem: adfs.Problem) -> None:
    """Fit the same data on two real MPI ranks, each of which reads its own file only."""
    title = "Two processes, two files"
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        words = "This step needs mpiexec beside this Python: pip install '.[mpi]'."
        story.add(title, words)
        return
    command = ["adfs", "fit", "shard-{rank}.svm", "--method", "adfs", "--network", "path", "-C", "1"]
    command += ["--tol", str(TOLERANCE), "--out", "model.json"]
    shown = f"$ mpiexec -n 2 {shlex.join(command)}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, rows in enumerate(np.array_split(np.arange(problem.n_samples), 2)):
            path = str(folder / f"shard-{rank}.svm")
            dump_svmlight_file(problem.X[rows], problem.y[rows], path, zero_based=False)
        real = [str(mpiexec), "-n", "2", "--oversubscribe", sys.executable, "-m", "mpi4py", "-m", *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        settings = "".join(f"{name}: {value}\n" for name, value in on_any_page().items())
        (folder / "matplotlibrc").write_text(settings, encoding="utf-8")
        waits = ["--timeline", "waits.svg"]
        ended = subprocess.run(
            [*real, *waits],
            cwd=folder,
            env=os.environ | root,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if ended.returncode:
            raise SystemExit(f"{shown}\n{ended.stderr}")
        training = json.loads((folder / "model.json").read_text(encoding="utf-8"))["training"]
        waits_svg = (folder / "waits.svg").read_bytes()
    words = (
        f"The same fit on two MPI ranks. Each reads its own file, and no sample leaves its rank. It "
        f"{training['outcome']} to a gap of {training['gap']:.0e} after {training['passes']:.0f} passes, in "
        f"{training['seconds']:.2f} s. The time line shows which rank waited for which."
    )
    picture = image(waits_svg, "A time line for each of the two ranks; bars are waits for the other.")
    story.add(title, words, picture, command=shown)


def show_plan(story: Story, problem: adfs.Problem) -> None:
    """Show the planner's recommendation for this problem."""
    plan = adfs.plan(problem, nodes=[1, 4, 9], network=["grid"], tau=5.0)
    words = f"The demonstration chose ADFS by name; it is made for many more samples. The planner: {plan}"
    story.add("Which method to take", words)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the page")
    parser.add_argument("--steps", type=int, default=4, help="stop after so many steps")
    given = parser.parse_args()
    story = Story()
    problem, network, new, new_y = make_problem()
    show_network(story, problem, network)
    if given.steps > 1:
        run = show_run(story, problem, network)
        if run.gap > TOLERANCE:
            raise SystemExit(f"the demo did not reach its tolerance: {run.gap:.1e}")
    if given.steps > 2:
        show_comparison(story, problem, run, new, new_y)
    if given.steps > 3:
        show_two_ranks(story, problem)
        show_plan(story, problem)
    print(f"\nThe same as a page: {story.write(given.out)}")


if __name__ == "__main__":
    main()
