"""A short story: a network, data spread over it, a model that all nodes agree on, and how good it is.

Run with ``make demo``. The data is scikit-learn's breast cancer set, bundled with it. What is printed is also
written as a page, ``demo/index.html``, which needs nothing else.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from sklearn.datasets import dump_svmlight_file, load_breast_cancer
from sklearn.preprocessing import StandardScaler

import adfs
from adfs.experiments.figures import network_svg

SEED = 0
TOLERANCE = 1e-8
SIDE = 3

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>adfs: a demonstration</title>
<style>
$css
.story { max-width: 720px; margin: 0 auto; }
.story svg.curve { width: 100%; height: auto; }
.story .network svg { max-width: 300px; display: block; margin: 0 auto; }
.curve text { fill: var(--soft); font-size: 12px; }
.curve polyline { fill: none; stroke: var(--accent); stroke-width: 2.5; }
</style>
</head>
<body><div class="story">
<h1>One model from nine places</h1>
<p class="lead">What <code>make demo</code> did, with adfs $version.</p>
$sections
</div></body>
</html>
""")


class Story:
    """What is told, on the terminal as it happens and as a page at the end."""

    def __init__(self) -> None:
        self.sections: list[str] = []

    def tell(self, title: str, words: str, picture: str = "", shown: str = "") -> None:
        """Tell one step: words, a picture for the page, and text that is shown as it stands."""
        print(f"\n{len(self.sections) + 1}. {title}\n\n{words}")
        if shown:
            print(f"\n{shown}")
        block = f"<pre>{html.escape(shown)}</pre>" if shown else ""
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


def make_problem() -> tuple[adfs.Problem, adfs.Network]:
    """Return the samples, spread over the nodes of a grid."""
    X, classes = load_breast_cancer(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), 2.0 * classes - 1.0
    n = SIDE * SIDE
    problem = adfs.Problem(X, y, loss="logistic", sigma=1.0 / n, n_nodes=n, partition="random", seed=SEED)
    return problem, adfs.Network(f"grid:{SIDE}x{SIDE}")


def grid_text(problem: adfs.Problem) -> str:
    """Draw the grid with the number of samples of each node, for a terminal."""
    counts = [f"[{shard.y.size:3d}]" for shard in problem.shards]
    rows = ["──".join(counts[SIDE * k : SIDE * (k + 1)]) for k in range(SIDE)]
    between = "\n" + "    ".join(["  │"] * SIDE) + "\n"
    return between.join(rows)


def tell_network(story: Story, problem: adfs.Problem, network: adfs.Network) -> None:
    """Show who has what, and who talks to whom."""
    words = (
        f"{problem.n_samples} tumours with {problem.n_features} measurements each are spread over "
        f"{network.n_nodes} places. Each place keeps its samples, and talks to its neighbours only."
    )
    picture = f'<div class="network">{network_svg(network)}</div>'
    story.tell("The network, and the data split over it", words, picture, grid_text(problem))


def curve_svg(passes: np.ndarray, gaps: np.ndarray) -> str:
    """Draw the gap against the passes, on a logarithmic scale."""
    width, height, left, bottom = 640.0, 300.0, 54.0, 40.0
    low, high = math.floor(np.log10(gaps.min())), 0
    x = left + (width - left - 10) * passes / passes.max()
    y = 10 + (height - bottom - 10) * (high - np.log10(gaps)) / (high - low)
    parts = []
    for power in range(low, high + 1, 2):
        at = 10 + (height - bottom - 10) * (high - power) / (high - low)
        parts.append(f'<line class="grid" x1="{left}" x2="{width}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>')
    for share in (0.0, 0.5, 1.0):
        at = left + (width - left - 10) * share
        parts.append(
            f'<text x="{at:.1f}" y="{height - 22}" text-anchor="middle">{share * passes.max():.0f}</text>'
        )
    parts.append(f'<text x="{width / 2}" y="{height - 4}" text-anchor="middle">passes over the data</text>')
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    label = "The certified gap falls along a straight line on a logarithmic scale"
    return (
        f'<svg class="curve" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">'
        f'{"".join(parts)}<polyline points="{points}"/></svg>'
    )


def tell_run(story: Story, problem: adfs.Problem, network: adfs.Network) -> adfs.Run:
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
        f"ADFS, with all nine nodes simulated here. It {run.outcome} after {last['passes']:.0f} passes "
        f"over the data and {last['messages']:.0f} messages of {problem.n_features} numbers, in "
        f"{run.seconds:.2f} s. The gap is proven: the model is no farther than that from the best there is, "
        f"relative to where it started."
    )
    picture = curve_svg(frame["passes"].to_numpy(), frame["gap"].to_numpy())
    story.tell("The gap falls", words, picture, "\n".join(lines))
    return run


def planner_word(problem: adfs.Problem) -> str:
    """Return what the planner says of this problem, nothing where there is no planner."""
    plan = getattr(adfs, "plan", None)
    return "" if plan is None else str(plan(problem, nodes=[1, 4, 9], graphs=["grid"], tau=5.0))


def tell_comparison(story: Story, problem: adfs.Problem, run: adfs.Run) -> None:
    """Hold every node's model to the one that a single machine finds with all the data."""
    best = problem.optimum()
    # F* is at least the run's dual value: that certifies any point, each node's own included.
    dual = run.frame["dual"].iloc[-1]
    gaps = [(problem.objective(theta) - dual) / problem.value_at_zero for theta in run.theta]
    right = [np.mean(np.sign(problem.X @ theta) == problem.y) for theta in run.theta]
    alone = np.mean(np.sign(problem.X @ best.theta) == problem.y)
    words = (
        f"One machine with all the data, and Newton's method, finds the same model: no coefficient differs "
        f"by more than {np.abs(run.coef - best.theta).max():.0e}. No node saw another's samples, yet the "
        f"worst of the nine has a certified gap of {max(gaps):.0e} and is right about {min(right):.1%} "
        f"of all {problem.n_samples} samples; the one machine's about {alone:.1%}."
    )
    story.tell("Compared with one machine", words)


def tell_two_ranks(story: Story, problem: adfs.Problem) -> None:
    """Fit the same data on two real MPI ranks, each of which reads its own file only."""
    title = "Two processes, two files"
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        words = "There is no mpiexec beside this Python, so this is left out: pip install 'adfs[mpi]'."
        story.tell(title, words)
        return
    command = ["adfs", "fit", "shard-{rank}.svm", "--algorithm", "adfs", "--graph", "path", "-C", "1"]
    command += ["--tol", str(TOLERANCE), "--out", "model.json"]
    shown = f"$ mpiexec -n 2 {shlex.join(command)}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, rows in enumerate(np.array_split(np.arange(problem.n_samples), 2)):
            path = str(folder / f"shard-{rank}.svm")
            dump_svmlight_file(problem.X[rows], problem.y[rows], path, zero_based=False)
        real = [str(mpiexec), "-n", "2", "--oversubscribe", sys.executable, "-m", "mpi4py", "-m", *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
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
        drawn = base64.b64encode((folder / "waits.svg").read_bytes()).decode()
    words = (
        f"The same on two real MPI ranks; each reads its own file, and no sample leaves its rank. It "
        f"{training['outcome']} to a gap of {training['gap']:.0e} after {training['passes']:.0f} passes, in "
        f"{training['seconds']:.2f} s. The time line shows who waited for whom."
    )
    picture = (
        '<img class="figure" alt="A time line for each of the two ranks; bars are waits for the other." '
        f'src="data:image/svg+xml;base64,{drawn}">'
    )
    story.tell(title, words, picture, shown)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the page")
    parser.add_argument("--steps", type=int, default=4, help="stop after so many steps of the story")
    given = parser.parse_args()
    story = Story()
    problem, network = make_problem()
    tell_network(story, problem, network)
    if given.steps > 1:
        run = tell_run(story, problem, network)
        if run.gap > TOLERANCE:
            raise SystemExit(f"the demo did not reach its tolerance: {run.gap:.1e}")
    if given.steps > 2:
        # The one place of the planner: where the package has it, its word stands here.
        word = planner_word(problem)
        if word:
            story.tell("What the planner says", word)
        tell_comparison(story, problem, run)
    if given.steps > 3:
        tell_two_ranks(story, problem)
    print(f"\nThe whole story as a page: {story.write(given.out)}")


if __name__ == "__main__":
    main()
