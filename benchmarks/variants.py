"""Forms of block ADFS that are not in the package, measured where ADFS loses on the map.

``python -m benchmarks.variants FOLDER`` goes on from finished runs in a folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from adfs.experiments import Comparison, DataSpec, MethodSpec, run_comparison
from adfs.experiments.inputs import make_problem
from adfs.files import JsonObject
from adfs.pages import number
from benchmarks.block_forms import TARGET, Form, Variant
from benchmarks.measure import DATA, RESULTS, machine

SEEDS = (0, 1, 2, 3, 4)
FORMS = (
    Form("block ADFS"),
    Form("K = 2", products=2),
    Form("K = 5", products=5),
    Form("b = 4", batch=4),
    Form("b = 16", batch=16),
    Form("matchings", matchings=True),
    Form("smaller curvatures", metric="none"),
    Form("metric", metric="one"),
    Form("metric, products counted", metric="flops"),
    Form("metric, d per step", metric="d"),
)
PACKAGE = (
    MethodSpec("adfs", "ADFS"),
    MethodSpec("adfs", "ADFS, adaptive", "adaptive"),
    MethodSpec("adfs-block", "block ADFS"),
    MethodSpec("adfs-block", "block ADFS, adaptive", "adaptive"),
    MethodSpec("msda", "MSDA"),
    MethodSpec("lbfgs", "L-BFGS"),
    MethodSpec("newton", "Newton"),
)


def _gaussians(m: int, d: int) -> DataSpec:
    return DataSpec("gaussians", m, d)


_IJCNN1 = DataSpec(str(DATA / "ijcnn1.bz2"), 1000)
_COVTYPE = DataSpec(str(DATA / "covtype.libsvm.binary.scale.bz2"), 1000)
POINTS = (
    ("gaussians, d = 10, m = 100", _gaussians(100, 10), "cycle:16", "random", 500.0),
    ("gaussians, d = 10, m = 1000", _gaussians(1000, 10), "cycle:16", "random", 500.0),
    ("gaussians, d = 10, m = 1000", _gaussians(1000, 10), "grid:4x4", "random", 5.0),
    ("gaussians, d = 100, m = 100", _gaussians(100, 100), "cycle:16", "random", 500.0),
    ("gaussians, d = 100, m = 100", _gaussians(100, 100), "grid:4x4", "random", 5.0),
    ("gaussians, d = 100, m = 1000", _gaussians(1000, 100), "grid:4x4", "random", 500.0),
    ("ijcnn1, m = 1000", _IJCNN1, "cycle:16", "random", 500.0),
    ("ijcnn1, m = 1000", _IJCNN1, "grid:4x4", "random", 5.0),
    ("covtype, m = 1000", _COVTYPE, "grid:4x4", "random", 500.0),
    ("covtype, m = 1000", _COVTYPE, "cycle:16", "random", 5.0),
)


def measure(point: tuple[str, DataSpec, str, str, float], folder: Path) -> tuple[str, JsonObject]:
    """Return the medians of a point over the seeds; a file in the folder keeps them."""
    what, data, graph, partition, tau = point
    name = f"{what}, {graph}, {partition}, τ = {tau:g}"
    kept = folder / f"{name.replace(' ', '').replace(':', '-')}.json"
    found: JsonObject = json.loads(kept.read_text()) if kept.exists() else {}
    comparison = Comparison(
        data,
        graph,
        PACKAGE,
        tau=tau,
        seeds=SEEDS,
        target=TARGET,
        relative=True,
        partition=partition,
        records=12,
    )
    missing = [form for form in FORMS if form.name not in found]
    if missing:
        problems = [make_problem(comparison, seed) for seed in SEEDS]
        for form in missing:
            runs = [
                Variant(form, problem, network, tau, seed).run()
                for (problem, network), seed in zip(problems, SEEDS, strict=True)
            ]
            medians = [float(np.median(values)) for values in zip(*runs, strict=True)]
            found[form.name] = [*medians, min(run.rate for run in runs)]
    if "package" not in found:
        comparison = replace(comparison, max_time=4.0 * found["block ADFS"][0])
        results = run_comparison(comparison, folder / kept.stem, progress=False)
        found["package"] = {entry.label: results.median_time(entry.label, TARGET) for entry in PACKAGE}
    kept.write_text(json.dumps(found))
    print(name, {form.name: round(found[form.name][0]) for form in FORMS}, found["package"], flush=True)
    return name, found


def forms_table(points: dict[str, JsonObject]) -> list[str]:
    """Return the ratios of the forms."""
    names = [form.name for form in FORMS]
    lines = ["# Forms of block ADFS", "", f"| data, network, shards | time | {' | '.join(names[1:])} |"]
    lines.append("|---" * (1 + len(names)) + "|")
    for point, found in points.items():
        time, promised = found[names[0]][:2]
        cells = [number(time)]
        for form in FORMS[1:]:
            formula = "" if form.metric else f" ({found[form.name][1] / promised:.2f})"
            cells.append(f"{found[form.name][0] / time:.2f}{formula}")
        lines.append(f"| {point} | {' | '.join(cells)} |")
    rates = [f"{min(found[name][4] for found in points.values()):.1f}" for name in names]
    return [*lines, f"| exponent over promised | {' | '.join(rates)} |"]


def package_table(points: dict[str, JsonObject]) -> list[str]:
    """Return the times of the stages in a metric next to those of the package's methods."""
    labels, shown = [entry.label for entry in PACKAGE], [form.name for form in FORMS[-3:]]
    heads = (*labels, *shown, *(f"best ADFS over {name}" for name in shown))
    lines = ["# Stages in a metric", "", f"| data, network, shards | {' | '.join(heads)} |"]
    lines.append("|---" * (1 + len(heads)) + "|")
    for point, found in points.items():
        times = [found["package"][label] for label in labels]
        cells = [f"{'' if reached else '> '}{number(time)}" for time, reached in times]
        cells += [number(found[name][0]) for name in shown]
        best = min(time for time, reached in times[:4] if reached)
        cells += [f"{best / found[name][0]:.2f}" for name in shown]
        lines.append(f"| {point} | {' | '.join(cells)} |")
    return lines


FORMS_NOTES = """\
The first column has the idealised time of block ADFS as a prototype (the computation of a sample takes 1,
exponential delays) until the mean over the nodes of F − F\\* stays below 1e-6 F(0): logistic loss, σ_i = 1,
median of five seeds. The others have the time of a form over it, in brackets what the formulas predict.
Stages are charged for their checks, their sums over all nodes (two sums of matrices in a metric) and their
matrices: in the columns *smaller curvatures* and *metric* at most 8 passes, as an adaptive stage of the
package is; all products, and dense rows, in *products counted*; in the last column rows stay as they are, so
that a step takes as long as d steps. The last row has the exponent of the error over the promised one, below
an error of 1e-3: the least of all points and seeds.
"""
PACKAGE_NOTES = """\
Idealised times as in the table of the forms; `>` stands before a lower bound, as a method of the package is
given up at four times the time of block ADFS. The clock counts a whole local solve of MSDA as one pass. The
last columns compare the best of the four ADFS of the package with the three counts of the prototype.
"""


def main(folder: str | None = None) -> str:
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return main(made)
    Path(folder).mkdir(parents=True, exist_ok=True)
    points = dict(measure(point, Path(folder)) for point in POINTS)
    text = "\n".join([*forms_table(points), "", machine(), FORMS_NOTES])
    (RESULTS / "variants.md").write_text(text)
    other = "\n".join([*package_table(points), "", machine(), PACKAGE_NOTES])
    (RESULTS / "metric.md").write_text(other)
    return f"{text}\n{other}"


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
