"""Short runs on a few of the rows, by which predictions are put right before the whole run is begun.

Split evenly, R of N rows with σ scaled by R/N have about the condition numbers of all. A method that goes
through all rows takes as many passes over them, one that draws samples some more: so a run to the target
costs about R/N of the whole one, or a few times that. What it measures is a number that hardly depends on
the sizes: how much sooner than theory promises the method is there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from adfs.algorithms import METHODS
from adfs.network import Network
from adfs.planning.facts import Facts
from adfs.planning.predictions import (
    FORMULAS,
    LOCAL_SOLVERS,
    OBSERVED,
    UNSURE,
    Calibration,
    Prediction,
    best_of_each,
    predict,
    ranked,
    reach,
)
from adfs.problem import Problem
from adfs.runtimes import Delays, Grid, Record, RunOptions, run_method
from adfs.theory import summarize

#: The pilot runs together are to process at most this share of the samples that the predicted run does. A
#: little less is planned for, since a run ends at a recorded point; if a method turns out far quicker than
#: predicted, the share of its run is more, and is reported as it is.
MOST = 0.05
_PLANNED = 0.8 * MOST
# Rows for so many pilots at once are taken, and at least so many for each feature and for each node.
_PILOTS, _ROWS_PER_FEATURE, _LEAST_ROWS = 4, 3, 100
# A run is begun if its budget lets it come so far; one that ends above this gap has told nothing.
_PART_OF_THE_WAY = 0.4
_ENOUGH = 0.03
# Few rows are fitted better than many, and their nodes are less alike. What that makes of a factor, by
# eye from whole runs and pilots on the same Gaussian classes (24 settings).
_WHOLE_OVER_PART = {"adfs": 1.12, "adfs-block": 1.12, "apcg": 1.12, "msda": 0.7, "lbfgs": 0.9}


@dataclass(frozen=True)
class Pilot:
    """What the pilot runs measured, and what they cost.

    Attributes
    ----------
    found : mapping of str to Calibration
        For each method tried, what it showed.
    rows : int
        Rows that they ran on; 0 where 5 % of the run are too few to learn from.
    samples : float
        Samples that they processed together.
    share : float
        The same, of those that the recommended run is predicted to process.
    seconds : float
        What they took here, compilation included.
    """

    found: Mapping[str, Calibration] = field(default_factory=dict)
    rows: int = 0
    samples: float = 0.0
    share: float = 0.0
    seconds: float = 0.0


def run_pilots(
    problem: Problem,
    predictions: list[Prediction],
    *,
    tau: float,
    tol: float,
    leave_out: Collection[str] = (),
    seed: int = 0,
) -> Pilot:
    """Try the methods that may be the best, the likeliest first, until the best is one that was tried.

    ``predictions`` are those of every method on every network, without pilot runs; the methods to
    ``leave_out`` are not tried.
    """
    begun = time.perf_counter()
    least = max(_LEAST_ROWS, _ROWS_PER_FEATURE * problem.n_features)
    rows = max(int(MOST / _PILOTS * problem.n_samples), least)
    if rows > MOST * problem.n_samples:
        return Pilot()
    known: dict[str, Calibration] = {}
    tried = set(leave_out)
    predictions = [one for one in predictions if one.method not in leave_out]
    found, spent = ranked(predictions, known), 0.0
    small = _part(problem, found[0].n_nodes, rows, seed)
    while True:
        each = best_of_each(found)
        # Any that is not far behind may turn out the best, and it is of its samples that 5 % are allowed.
        close = [one.passes for one in each if one.time <= 2.0 * found[0].time]
        passes = (_PLANNED * min(close) * problem.n_samples - spent) / rows
        # The best so far, or the one that would be the quickest if it were as quick as it may be.
        rest = [one for one in each if one.method not in tried]
        following = found[0] if found[0] in rest else min(rest, key=_at_best, default=None)
        if following is None or (_at_best(following) >= found[0].time and found[0].calibrated):
            break
        tried.add(following.method)
        own_tau = _scaled_tau(tau, following, small)
        network = _small_network(small, following.method)
        own = predict(following.method, Facts.of(small), network, Delays(tau=own_tau), tol)
        if _PART_OF_THE_WAY * own.passes / UNSURE.get(following.method, 2.0) > passes:
            continue
        measured, cost = _measure(following.method, small, own_tau, tol, passes, seed)
        spent += cost
        if measured is not None:
            known[following.method] = measured
            found = ranked(predictions, known)
    whole = found[0].passes * problem.n_samples
    return Pilot(known, rows, spent, spent / whole, time.perf_counter() - begun)


def _at_best(one: Prediction) -> float:
    return one.time / UNSURE.get(one.method, 2.0)


def _scaled_tau(tau: float, wanted: Prediction, small: Problem) -> float:
    """Return the τ that is as long beside a node's computing as in the whole run: the split is the same."""
    network = _small_network(small, wanted.method)
    gamma = network.gamma if network.n_nodes > 1 else 1.0
    rows = small.n_samples / small.n_nodes
    return tau * rows / wanted.rows * float(np.sqrt(gamma / wanted.gamma))


def _part(problem: Problem, n_nodes: int, rows: int, seed: int) -> Problem:
    """Return some rows of a problem, on few nodes, so that each has enough to be like those of the whole."""
    count = 1 if n_nodes == 1 else 4 if rows >= 4 * _ROWS_PER_FEATURE * problem.n_features else 2
    chosen = np.random.default_rng(seed).permutation(problem.n_samples)[:rows]
    sigma = problem.total_sigma * rows / problem.n_samples
    return Problem(
        problem.X[chosen],
        problem.y[chosen],
        problem.loss,
        sigma / count,
        count,
        sample_weight=problem.weights[chosen],
    )


def _measure(
    name: str, small: Problem, tau: float, tol: float, passes: float, seed: int
) -> tuple[Calibration | None, float]:
    """Run one method; return what it showed, None where the budget ended too early, and its samples."""
    network = _small_network(small, name)
    facts = Facts.of(small)
    # What a round takes in computations of a sample, where the run counts rows.
    work = FORMULAS[name].samples(facts) if name in FORMULAS else 1.0
    run = run_method(
        METHODS[name],
        small,
        network,
        RunOptions(
            tol=tol,
            passes=passes / work,
            tau=tau,
            seed=seed,
            record=Record("gap", grid=Grid(first=0.5, per_decade=24)),
            progress=False,
        ),
    )
    gaps, positions = run.columns["gap"], run.columns["position"]
    cost = work * float(run.columns["computations"][-1])
    aim = max(tol, float(gaps[-1]))
    if len(gaps) < 2 or not aim <= max(_ENOUGH, tol):
        return None, cost
    # Between two records the gap falls geometrically.
    fallen = np.log(gaps[-2] / aim) / np.log(gaps[-2] / gaps[-1])
    position = float(positions[-2] + fallen * (positions[-1] - positions[-2]))
    promised = reach(name, run.parameters, facts, summarize(small), aim)
    raised = _WHOLE_OVER_PART.get(name, 1.0)
    if name not in LOCAL_SOLVERS:
        return Calibration(raised * position / promised), cost
    start = float(gaps[1])
    likeness = start * (small.n_samples / small.n_nodes) ** 2
    if start < 2.0 * aim:  # there at once: nothing is learned of the rounds after
        return Calibration(OBSERVED[name], likeness), cost
    rounds = (position - 1.0) * np.log(1.0 / aim) / np.log(start / aim)
    return Calibration(float(raised * rounds / promised), likeness), cost


def _small_network(small: Problem, name: str) -> Network:
    if small.n_nodes == 1 or METHODS[name].kind == "single":
        return Network("path:1")
    return Network("cycle", n_nodes=small.n_nodes)
